/* Product bf16 · bf16 by vdpbf16ps: two multiply-adds of k for each of 16 columns in one instruction.
 *
 *            32 columns of B
 *          ┌───────┬───────┐        12 rows × 2 registers accumulate; for each pair of k: two loads of B,
 *   12     │ zmm   │ zmm   │        and for each row one broadcast of A and two instructions.
 *   rows   │  …    │  …    │
 *          └───────┴───────┘ */
#include <immintrin.h>

#include "backend/cpu/broadcast.h"
#include "backend/cpu/x86/kernels.h"
#include "backend/cpu/x86/transpose.h"

#include "backend/cpu/pack.h"

enum { ROWS = 12, AHEAD = 4096 /* bytes of B fetched ahead: about the latency of DRAM */ };

BROADCAST_INLINE __m512 dot(__m512 c, __m512i a, __m512i b) {
    return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b);
}

BROADCAST_INLINE void tile(int rows, int k, const void *a_, const void *b_, float *c, int accumulate) {
    const int32_t *a = a_;
    const char *b = b_;
    __m512 sum[ROWS][2];
    BROADCAST_UNROLL
    for (int r = 0; r < rows; r++) {
        BROADCAST_UNROLL
        for (int h = 0; h < 2; h++)
            sum[r][h] = accumulate ? _mm512_loadu_ps(c + r * PANEL + h * 16) : _mm512_setzero_ps();
    }
    for (int pair = 0; pair < k / 2; pair++, a += rows, b += 128) {
        __m512i b0 = _mm512_loadu_si512(b), b1 = _mm512_loadu_si512(b + 64);
        _mm_prefetch(b + AHEAD, _MM_HINT_T0);
        _mm_prefetch(b + AHEAD + 64, _MM_HINT_T0);
        BROADCAST_UNROLL
        for (int r = 0; r < rows; r++) {
            __m512i value = _mm512_set1_epi32(a[r]);
            sum[r][0] = dot(sum[r][0], value, b0);
            sum[r][1] = dot(sum[r][1], value, b1);
        }
    }
    BROADCAST_UNROLL
    for (int r = 0; r < rows; r++) {
        BROADCAST_UNROLL
        for (int h = 0; h < 2; h++) _mm512_storeu_ps(c + r * PANEL + h * 16, sum[r][h]);
    }
}

#define X(rows)                                                                                   \
    SANITIZER_BLIND static void tile_##rows(int k, const void *a, const void *b, float *c,        \
                                            int accumulate) {                                     \
        tile(rows, k, a, b, c, accumulate);                                                       \
    }
BROADCAST_ROWS_12(X)
#undef X

static void run(int rows, int k, const void *a, const void *b, float *c, int accumulate, cpu_ahead ahead) {
    (void)ahead;                 /* these have a fetch of their own, along the panel they read */
#define X(rows) [rows] = tile_##rows,
    static const broadcast_kernel kernels[ROWS + 1] = {BROADCAST_ROWS_12(X)};
#undef X
    kernels[rows](k, a, b, c, accumulate);
}

static void pack(void *to, const void *const *rows, int count, int k) { pack_bf16_pairs(to, rows, count, k); }

static double peak(long loops) {
    __m512 sum[24];
    __m512i a = _mm512_set1_epi32(0x3f803f80);
    BROADCAST_UNROLL
    for (int i = 0; i < 24; i++) sum[i] = _mm512_setzero_ps();
    for (long l = 0; l < loops; l++) {
        BROADCAST_UNROLL
        for (int i = 0; i < 24; i++) sum[i] = dot(sum[i], a, a);
        BROADCAST_UNROLL
        for (int i = 0; i < 24; i++) __asm__ volatile("" : "+v"(sum[i]));
    }
    return (double)loops * 24 * 16 * 4;
}

const cpu_product cpu_bf16_bf16_avx512bf16 = {.rows = ROWS,
                                              .row_step = 1,
                                              .k_step = 2,
                                              .a_bytes = 2,
                                              .b_bytes = 2,
                                              .k_block = 2048,
                                              .panels = 4,
                                              .panel_outer = 0,
                                              .a_cost = 0.1,
                                              .b_cost = 0.2,
                                              .pack = pack,
                                              .run = run,
                                              .peak = peak};
