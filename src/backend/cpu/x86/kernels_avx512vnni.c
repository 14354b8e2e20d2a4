/* Product int8 · int8 by vpdpbusd: four multiply-adds of k for each of 16 columns in one instruction, summed
 * in int32 without saturation. The tile is that of kernels_avx512bf16.c.
 *
 * The instruction multiplies bytes without a sign by bytes with one. B's are the former: panels hold
 * code + 128, and Σ a·(b + 128) is 128·Σ a too large, which int8_scale (kernels.h) takes away again. */
#include <immintrin.h>

#include "backend/cpu/broadcast.h"
#include "backend/cpu/x86/kernels.h"
#include "backend/cpu/x86/transpose.h"

#include "backend/cpu/pack.h"

enum { ROWS = 12, AHEAD = 4096 /* bytes of B fetched ahead: about the latency of DRAM */ };

BROADCAST_INLINE void tile(int rows, int k, const void *a_, const void *b_, float *c, int accumulate) {
    const int32_t *a = a_;
    const char *b = b_;
    __m512i sum[ROWS][2];
    BROADCAST_UNROLL
    for (int r = 0; r < rows; r++) {
        BROADCAST_UNROLL
        for (int h = 0; h < 2; h++)
            sum[r][h] = accumulate ? _mm512_loadu_si512(c + r * PANEL + h * 16) : _mm512_setzero_si512();
    }
    for (int quad = 0; quad < k / 4; quad++, a += rows, b += 128) {
        __m512i b0 = _mm512_loadu_si512(b), b1 = _mm512_loadu_si512(b + 64);
        _mm_prefetch(b + AHEAD, _MM_HINT_T0);
        _mm_prefetch(b + AHEAD + 64, _MM_HINT_T0);
        BROADCAST_UNROLL
        for (int r = 0; r < rows; r++) {
            __m512i value = _mm512_set1_epi32(a[r]);
            sum[r][0] = _mm512_dpbusd_epi32(sum[r][0], b0, value);
            sum[r][1] = _mm512_dpbusd_epi32(sum[r][1], b1, value);
        }
    }
    BROADCAST_UNROLL
    for (int r = 0; r < rows; r++) {
        BROADCAST_UNROLL
        for (int h = 0; h < 2; h++) _mm512_storeu_si512(c + r * PANEL + h * 16, sum[r][h]);
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

const cpu_product cpu_int8_int8_avx512vnni = {.rows = ROWS,
                                              .row_step = 1,
                                              .k_step = 4,
                                              .a_bytes = 1,
                                              .b_bytes = 1,
                                              .bias = 128,
                                              .k_block = 4096,
                                              .panels = 4,
                                              .panel_outer = 0,
                                              .a_cost = 0.1,
                                              .b_cost = 0.2,
                                              .pack = pack_int8_quads,
                                              .run = run};
