/* Product int8 · int8 where the processor has no instruction for it: sixteen products of 16 bits in two
 * instructions, pairs of them added, then pairs of pairs, to int32: the four multiply-adds an instruction of
 * fp32, from a quarter of the memory. Two products of codes, at most 127 · 127 each, fit 16 bits.
 *
 * Never run on hardware: sizes follow from counting (tests/scripts/arm_loops.py), not from measuring. */
#include <arm_neon.h>

#include "backend/cpu/broadcast.h"

enum { ROWS = 8, SUMS = 20 /* an element of A and three products want registers, too */, AHEAD = 2048 };
#define EACH_ROW(X) BROADCAST_ROWS_6(X) X(7) X(8)

typedef int32x4_t reg;

/* sum + the four products of each word of b with those of word a. */
BROADCAST_INLINE reg multiply(reg sum, int8x16_t b, int8x16_t a) {
    int16x8_t low = vmull_s8(vget_low_s8(b), vget_low_s8(a)), high = vmull_high_s8(b, a);
    return vpadalq_s16(sum, vpaddq_s16(low, high));
}

#define MULTIPLY(sum, b, a, lane) multiply(sum, (int8x16_t)(b), (int8x16_t)vdupq_laneq_s32(a, lane))
#define NAME(rows) pair_tile_##rows

#include "backend/cpu/arm/int8_lanes.h"

const cpu_product cpu_int8_int8_neon = INT8_LANES;
