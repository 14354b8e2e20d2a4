/* The level of AVX2 and FMA: fp32 products, bf16 weights widened on the fly, and the element-by-element
 * functions.
 *
 * Sixteen registers hold 6 rows × 16 columns, so a panel is done in two halves, k from start to end each. */
#include "backend/cpu/broadcast.h"
#include "backend/cpu/x86/kernels.h"
#include "backend/cpu/x86/vec_avx2.h"

#include "backend/cpu/elements.h"

enum { ROWS = 6, AHEAD = 1024 /* bytes of B fetched ahead */ };

BROADCAST_INLINE void step(int rows, __m256 sum[][2], const float *a, __m256 b0, __m256 b1) {
    BROADCAST_UNROLL
    for (int r = 0; r < rows; r++) {
        __m256 value = _mm256_broadcast_ss(a + r);
        sum[r][0] = _mm256_fmadd_ps(value, b0, sum[r][0]);
        sum[r][1] = _mm256_fmadd_ps(value, b1, sum[r][1]);
    }
}

/* The odd elements of 8 pairs. Two shifts, not a mask: a constant would take the register that is one too
 * many. */
BROADCAST_INLINE __m256 odd(const char *b) {
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_srli_epi32(_mm256_loadu_si256((const __m256i *)b), 16), 16));
}

/* b: half a panel, 64 bytes of each row of 128. */
BROADCAST_INLINE void tile(int rows, int k, const float *a, const char *b, float *c, int accumulate,
                           int b_is_bf16) {
    __m256 sum[ROWS][2];
    BROADCAST_UNROLL
    for (int r = 0; r < rows; r++) {
        BROADCAST_UNROLL
        for (int h = 0; h < 2; h++)
            sum[r][h] = accumulate ? _mm256_loadu_ps(c + r * PANEL + h * 8) : _mm256_setzero_ps();
    }
    for (int i = 0; i < k; i += 1 + b_is_bf16, a += rows * (1 + b_is_bf16), b += 128) {
        _mm_prefetch(b + AHEAD, _MM_HINT_T0);
        if (!b_is_bf16) {
            step(rows, sum, a, _mm256_loadu_ps((const float *)b), _mm256_loadu_ps((const float *)(b + 32)));
        } else {
            __m256i b0 = _mm256_loadu_si256((const __m256i *)b),
                    b1 = _mm256_loadu_si256((const __m256i *)(b + 32));
            step(rows, sum, a, _mm256_castsi256_ps(_mm256_slli_epi32(b0, 16)),
                 _mm256_castsi256_ps(_mm256_slli_epi32(b1, 16)));
            step(rows, sum, a + rows, odd(b), odd(b + 32));
        }
    }
    BROADCAST_UNROLL
    for (int r = 0; r < rows; r++) {
        BROADCAST_UNROLL
        for (int h = 0; h < 2; h++) _mm256_storeu_ps(c + r * PANEL + h * 8, sum[r][h]);
    }
}

BROADCAST_INLINE void two_tiles(int rows, int k, const void *a, const void *b, float *c, int accumulate,
                                int b_is_bf16) {
    tile(rows, k, a, b, c, accumulate, b_is_bf16);
    tile(rows, k, a, (const char *)b + 64, c + HALF_PANEL, accumulate, b_is_bf16);
}

#define X(rows)                                                                                       \
    SANITIZER_BLIND static void f32_tile_##rows(int k, const void *a, const void *b, float *c,        \
                                                int accumulate) {                                     \
        two_tiles(rows, k, a, b, c, accumulate, 0);                                                   \
    }                                                                                                 \
    SANITIZER_BLIND static void bf16_tile_##rows(int k, const void *a, const void *b, float *c,       \
                                                 int accumulate) {                                    \
        two_tiles(rows, k, a, b, c, accumulate, 1);                                                   \
    }
BROADCAST_ROWS_6(X)
#undef X

static void f32_run(int rows, int k, const void *a, const void *b, float *c, int accumulate,
                    cpu_ahead ahead) {
    (void)ahead;                 /* these have a fetch of their own, along the panel they read */
#define X(rows) [rows] = f32_tile_##rows,
    static const broadcast_kernel kernels[ROWS + 1] = {BROADCAST_ROWS_6(X)};
#undef X
    kernels[rows](k, a, b, c, accumulate);
}

static void bf16_run(int rows, int k, const void *a, const void *b, float *c, int accumulate,
                     cpu_ahead ahead) {
    (void)ahead;                 /* these have a fetch of their own, along the panel they read */
#define X(rows) [rows] = bf16_tile_##rows,
    static const broadcast_kernel kernels[ROWS + 1] = {BROADCAST_ROWS_6(X)};
#undef X
    kernels[rows](k, a, b, c, accumulate);
}

static void f32_pack(void *to, const void *const *rows, int count, int k) { pack_f32(to, rows, count, k, 1); }
static void bf16_pack(void *to, const void *const *rows, int count, int k) {
    pack_f32(to, rows, count, k, 2);
}

static double peak(long loops) {
    __m256 sum[12], a = _mm256_set1_ps(1e-20f);
    BROADCAST_UNROLL
    for (int i = 0; i < 12; i++) sum[i] = _mm256_setzero_ps();
    for (long l = 0; l < loops; l++) {
        BROADCAST_UNROLL
        for (int i = 0; i < 12; i++) sum[i] = _mm256_fmadd_ps(a, a, sum[i]);
        BROADCAST_UNROLL
        for (int i = 0; i < 12; i++) __asm__ volatile("" : "+x"(sum[i]));
    }
    return (double)loops * 12 * 8 * 2;
}

const cpu_product cpu_f32_f32_avx2 = {.rows = ROWS,
                                      .row_step = 1,
                                      .k_step = 1,
                                      .a_bytes = 4,
                                      .b_bytes = 4,
                                      .k_block = 512,
                                      .panels = 4,
                                      .panel_outer = 0,
                                      .a_cost = 0.05,
                                      .b_cost = 0.1,
                                      .pack = f32_pack,
                                      .run = f32_run,
                                      .peak = peak};
const cpu_product cpu_f32_bf16_avx2 = {.rows = ROWS,
                                       .row_step = 1,
                                       .k_step = 2,
                                       .a_bytes = 4,
                                       .b_bytes = 2,
                                       .k_block = 512,
                                       .panels = 4,
                                       .panel_outer = 0,
                                       .a_cost = 0.05,
                                       .b_cost = 0.1,
                                       .pack = bf16_pack,
                                       .run = bf16_run,
                                       .peak = peak};
const cpu_elements cpu_elements_avx2 = ELEMENTS_TABLE;
