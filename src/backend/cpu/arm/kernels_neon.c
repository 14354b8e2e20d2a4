/* The level of NEON, which every 64-bit ARM has: fp32 products, weights in bf16 or 8 bits widened on the fly,
 * and the element-by-element functions of every level from here up. The tiles are in lanes.h.
 *
 *            32 columns of B         A tile of R rows is W registers of four columns wide. A turn
 *          ┌─────┬─────┬─            of its loop, one k: W loads of B; loads of A, each with four
 *   12     │ q   │ q   │             rows, two or one; R·W FMA, which take an element of A by its
 *   rows   │  …  │  …  │             number. Sums and all of these fit 32 registers.
 *          └─────┴─────┴─            R 1 … 3: W 8      4 … 6: W 4      7 … 12: W 2
 *
 *   a turn of    loads   FMA   multiply-adds a load     Weights in bf16: a turn is two k and twice
 *   1 row           9      8      4                     of all, B is loaded for each, and W shl and
 *   6 rows          6     24     16                     W and widen it. A few kernels of 5 to 11
 *   12 rows         5     24     19                     rows also move up to 6 registers. Codes of 8
 *                                                       bits: five instructions widen eight.
 *
 * A line of B (64 bytes, 16 columns) is wider than the narrowest tile, so a panel is cut into pieces that
 * stay in L1 until all tiles have had them; the sums wait in C meanwhile.
 *
 * Never run on hardware: sizes follow from counting (tests/scripts/arm_loops.py), not from measuring. */
#include "backend/cpu/broadcast.h"
#include "backend/cpu/arm/kernels.h"
#include "backend/cpu/arm/vec_neon.h"

#include "backend/cpu/elements.h"

enum { REG_FLOATS = 4, ROWS = 12, SUMS = 24, AHEAD = 2048, K_BLOCK = 512 };
#define EACH_ROW BROADCAST_ROWS_12
#define REG_CLASS "w"
#define MULTIPLY(sum, b, a, lane) vfmaq_laneq_f32(sum, b, a, lane)

typedef float32x4_t reg;

#include "backend/cpu/arm/lanes.h"

BROADCAST_INLINE reg reg_zero(void) { return vdupq_n_f32(0); }
BROADCAST_INLINE reg reg_set(const float *x) { return vld1q_dup_f32(x); }
BROADCAST_INLINE reg reg_fma(reg a, reg b, reg c) { return vfmaq_f32(c, a, b); }

#include "backend/cpu/broadcast_f32.h"

const cpu_product cpu_f32_f32_neon = BROADCAST_PRODUCT(f32, 4, 1);
const cpu_product cpu_f32_bf16_neon = BROADCAST_PRODUCT(bf16, 2, 2);
const cpu_product cpu_f32_int8_neon = BROADCAST_PRODUCT(codes, 1, 1);
const cpu_elements cpu_elements_neon = ELEMENTS_TABLE;
