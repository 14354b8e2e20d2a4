/* Product int8 · int8 by SDOT: four multiply-adds of k for each of four columns in one instruction, exact.
 * The tiles and the counts of kernels_neon.c, an SDOT in place of each FMA.
 *
 * Never run on hardware: sizes follow from counting (tests/scripts/arm_loops.py), not from measuring. */
#include <arm_neon.h>

#include "backend/cpu/broadcast.h"

enum { ROWS = 12, SUMS = 24, AHEAD = 2048 };
#define EACH_ROW BROADCAST_ROWS_12

typedef int32x4_t reg;

#define MULTIPLY(sum, b, a, lane) vdotq_laneq_s32(sum, (int8x16_t)(b), (int8x16_t)(a), lane)
#define NAME(rows) dot_tile_##rows

#include "backend/cpu/arm/int8_lanes.h"

const cpu_product cpu_int8_int8_neondot = INT8_LANES;
