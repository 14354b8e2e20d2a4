/* Product bf16 · bf16 by BFMMLA: two rows times two columns over four of k, 16 multiply-adds in one
 * instruction. pairs.h has the tiles.
 *
 * Note: where a processor has no other rounding (FEAT_EBF16), BFMMLA adds two products at a time, rounds to
 * odd and takes numbers below 2⁻¹²⁶ for zero. */
#include <arm_neon.h>

#include "backend/cpu/arm/kernels.h"

enum { K_BYTES = sizeof(bf16) };

typedef float32x4_t sums;

#define MULTIPLY(sum, a, b) vbfmmlaq_f32(sum, (bfloat16x8_t)(a), (bfloat16x8_t)(b))
#define NAME(pairs) mmla_tile_##pairs

#include "backend/cpu/arm/pairs.h"

static double peak(long loops) {
    enum { SUMS = 4 * MOST_PAIRS };
    float32x4_t sum[SUMS];
    static const bf16 some[8] = {0x3f80, 0xbf00, 0x3f81, 0xbf01, 0x3f82, 0xbf02, 0x3f83, 0xbf03};
    uint32x4_t a = (uint32x4_t)vld1q_u16(some);
    __asm__ volatile("" : "+w"(a));
    BROADCAST_UNROLL
    for (int i = 0; i < SUMS; i++) sum[i] = vdupq_n_f32(0);
    for (long l = 0; l < loops; l++) {
        BROADCAST_UNROLL
        for (int i = 0; i < SUMS; i++) sum[i] = MULTIPLY(sum[i], a, a);
        BROADCAST_UNROLL
        for (int i = 0; i < SUMS; i++) __asm__ volatile("" : "+w"(sum[i]));
    }
    return (double)loops * SUMS * 16 * 2;
}

const cpu_product cpu_bf16_bf16_neonbf16 = {PAIRS_PRODUCT, .peak = peak};
