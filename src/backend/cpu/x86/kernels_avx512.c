/* fp32 products by AVX-512 FMA, and the element-by-element functions of every level from here up.
 * The tile is that of kernels_avx512bf16.c; bf16 weights are widened on the fly, which is exact. */
#include "backend/cpu/broadcast.h"
#include "backend/cpu/x86/kernels.h"
#include "backend/cpu/x86/vec_avx512.h"

#include "backend/cpu/elements.h"

enum { ROWS = 12, AHEAD = 2048 /* bytes of B fetched ahead */ };

BROADCAST_INLINE void step(int rows, __m512 sum[][2], const float *a, __m512 b0, __m512 b1) {
    BROADCAST_UNROLL
    for (int r = 0; r < rows; r++) {
        __m512 value = _mm512_set1_ps(a[r]);
        sum[r][0] = _mm512_fmadd_ps(value, b0, sum[r][0]);
        sum[r][1] = _mm512_fmadd_ps(value, b1, sum[r][1]);
    }
}

BROADCAST_INLINE void tile(int rows, int k, const float *a, const char *b, float *c, int accumulate,
                           int b_is_bf16) {
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
    __m512 sum[ROWS][2];
    BROADCAST_UNROLL
    for (int r = 0; r < rows; r++) {
        BROADCAST_UNROLL
        for (int h = 0; h < 2; h++)
            sum[r][h] = accumulate ? _mm512_loadu_ps(c + r * PANEL + h * 16) : _mm512_setzero_ps();
    }
    for (int i = 0; i < k; i += 1 + b_is_bf16, a += rows * (1 + b_is_bf16), b += 128) {
        __m512i b0 = _mm512_loadu_si512(b), b1 = _mm512_loadu_si512(b + 64);
        _mm_prefetch(b + AHEAD, _MM_HINT_T0);
        _mm_prefetch(b + AHEAD + 64, _MM_HINT_T0);
        if (!b_is_bf16) {
            step(rows, sum, a, _mm512_castsi512_ps(b0), _mm512_castsi512_ps(b1));
        } else {
            step(rows, sum, a, _mm512_castsi512_ps(_mm512_slli_epi32(b0, 16)),
                 _mm512_castsi512_ps(_mm512_slli_epi32(b1, 16)));
            step(rows, sum, a + rows, _mm512_castsi512_ps(_mm512_and_si512(b0, upper)),
                 _mm512_castsi512_ps(_mm512_and_si512(b1, upper)));
        }
    }
    BROADCAST_UNROLL
    for (int r = 0; r < rows; r++) {
        BROADCAST_UNROLL
        for (int h = 0; h < 2; h++) _mm512_storeu_ps(c + r * PANEL + h * 16, sum[r][h]);
    }
}

#define X(rows)                                                                                       \
    SANITIZER_BLIND static void f32_tile_##rows(int k, const void *a, const void *b, float *c,        \
                                                int accumulate) {                                     \
        tile(rows, k, a, b, c, accumulate, 0);                                                        \
    }                                                                                                 \
    SANITIZER_BLIND static void bf16_tile_##rows(int k, const void *a, const void *b, float *c,       \
                                                 int accumulate) {                                    \
        tile(rows, k, a, b, c, accumulate, 1);                                                        \
    }
BROADCAST_ROWS_12(X)
#undef X

static void f32_run(int rows, int k, const void *a, const void *b, float *c, int accumulate,
                    cpu_ahead ahead) {
    (void)ahead;                 /* these have a fetch of their own, along the panel they read */
#define X(rows) [rows] = f32_tile_##rows,
    static const broadcast_kernel kernels[ROWS + 1] = {BROADCAST_ROWS_12(X)};
#undef X
    kernels[rows](k, a, b, c, accumulate);
}

static void bf16_run(int rows, int k, const void *a, const void *b, float *c, int accumulate,
                     cpu_ahead ahead) {
    (void)ahead;                 /* these have a fetch of their own, along the panel they read */
#define X(rows) [rows] = bf16_tile_##rows,
    static const broadcast_kernel kernels[ROWS + 1] = {BROADCAST_ROWS_12(X)};
#undef X
    kernels[rows](k, a, b, c, accumulate);
}

static void f32_pack(void *to, const void *const *rows, int count, int k) { pack_f32(to, rows, count, k, 1); }
static void bf16_pack(void *to, const void *const *rows, int count, int k) {
    pack_f32(to, rows, count, k, 2);
}

static double peak(long loops) {
    __m512 sum[24], a = _mm512_set1_ps(1e-20f);
    BROADCAST_UNROLL
    for (int i = 0; i < 24; i++) sum[i] = _mm512_setzero_ps();
    for (long l = 0; l < loops; l++) {
        BROADCAST_UNROLL
        for (int i = 0; i < 24; i++) sum[i] = _mm512_fmadd_ps(a, a, sum[i]);
        BROADCAST_UNROLL
        for (int i = 0; i < 24; i++) __asm__ volatile("" : "+v"(sum[i]));
    }
    return (double)loops * 24 * 16 * 2;
}

const cpu_product cpu_f32_f32_avx512 = {.rows = ROWS,
                                        .row_step = 1,
                                        .k_step = 1,
                                        .a_bytes = 4,
                                        .b_bytes = 4,
                                        .k_block = 1024,
                                        .panels = 4,
                                        .panel_outer = 0,
                                        .a_cost = 0.05,
                                        .b_cost = 0.1,
                                        .pack = f32_pack,
                                        .run = f32_run,
                                        .peak = peak};
const cpu_product cpu_f32_bf16_avx512 = {.rows = ROWS,
                                         .row_step = 1,
                                         .k_step = 2,
                                         .a_bytes = 4,
                                         .b_bytes = 2,
                                         .k_block = 1024,
                                         .panels = 4,
                                         .panel_outer = 0,
                                         .a_cost = 0.05,
                                         .b_cost = 0.1,
                                         .pack = bf16_pack,
                                         .run = bf16_run,
                                         .peak = peak};
const cpu_elements cpu_elements_avx512 = ELEMENTS_TABLE;
