/* The level of NEON, which every 64-bit ARM has: fp32 products, bf16 weights widened on the fly, and the
 * element-by-element functions of every level from here up.
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
 *   12 rows         5     24     19                     rows also move up to 6 registers.
 *
 * A line of B (64 bytes, 16 columns) is wider than the narrowest tile, so a panel is cut into pieces that
 * stay in L1 until all tiles have had them; the sums wait in C meanwhile.
 *
 * Never run on hardware: sizes follow from counting (tests/scripts/arm_loops.py), not from measuring. */
#include "backend/cpu/broadcast.h"
#include "backend/cpu/arm/kernels.h"
#include "backend/cpu/arm/vec_neon.h"

#include "backend/cpu/elements.h"

enum { REG_FLOATS = 4, ROWS = 12, AHEAD = 2048, K_BLOCK = 512, PIECE = 128 /* rows of a panel: 16 KB */ };
enum { PANEL_ROW = PANEL * 4, LINE = 64, MOST_WIDE = 8 };
#define EACH_ROW BROADCAST_ROWS_12
#define REG_CLASS "w"

typedef float32x4_t reg;

BROADCAST_INLINE reg reg_zero(void) { return vdupq_n_f32(0); }
BROADCAST_INLINE reg reg_set(const float *x) { return vld1q_dup_f32(x); }
BROADCAST_INLINE reg reg_fma(reg a, reg b, reg c) { return vfmaq_f32(c, a, b); }

/* Registers that a tile is wide. */
BROADCAST_INLINE int width_of(int rows) { return rows <= 3 ? 8 : rows <= 6 ? 4 : 2; }

/* Four columns of B: floats, or the even or odd elements of pairs of bf16. */
typedef enum part { FLOATS, EVEN, ODD } part;

BROADCAST_INLINE reg load_b(const char *b, part part) {
    uint32x4_t words = vld1q_u32((const uint32_t *)(const void *)b);
    if (part == EVEN) words = vshlq_n_u32(words, 16);
    if (part == ODD) words = vandq_u32(words, vdupq_n_u32(0xffff0000));
    return vreinterpretq_f32_u32(words);
}

/* sum[r][h] += a[r]·b for the 1, 2 or 4 rows that a register of A holds. */
BROADCAST_INLINE void fma_rows(int count, reg sum[][MOST_WIDE], int h, reg a, reg b) {
    sum[0][h] = vfmaq_laneq_f32(sum[0][h], b, a, 0);
    if (count >= 2) sum[1][h] = vfmaq_laneq_f32(sum[1][h], b, a, 1);
    if (count >= 4) sum[2][h] = vfmaq_laneq_f32(sum[2][h], b, a, 2);
    if (count >= 4) sum[3][h] = vfmaq_laneq_f32(sum[3][h], b, a, 3);
}

/* One k of A: its rows in registers of 4 or 2, for a load reads no more than the block. */
typedef struct a_rows {
    reg four[ROWS / 4], two;
    float one;
} a_rows;

BROADCAST_INLINE a_rows load_a(int rows, const float *a) {
    a_rows out;
    if (rows >= 4) out.four[0] = vld1q_f32(a);
    if (rows >= 8) out.four[1] = vld1q_f32(a + 4);
    if (rows >= 12) out.four[2] = vld1q_f32(a + 8);
    if (rows & 2) out.two = vcombine_f32(vld1_f32(a + (rows & ~3)), vdup_n_f32(0));
    if (rows & 1) out.one = a[rows - 1];
    return out;
}

/* Four columns, h, of all rows. */
BROADCAST_INLINE void column(int rows, reg sum[][MOST_WIDE], int h, const a_rows *a, reg b) {
    if (rows >= 4) fma_rows(4, sum, h, a->four[0], b);
    if (rows >= 8) fma_rows(4, sum + 4, h, a->four[1], b);
    if (rows >= 12) fma_rows(4, sum + 8, h, a->four[2], b);
    if (rows & 2) fma_rows(2, sum + (rows & ~3), h, a->two, b);
    if (rows & 1) sum[rows - 1][h] = vfmaq_n_f32(sum[rows - 1][h], b, a->one);
}

BROADCAST_INLINE void step(int rows, int width, reg sum[][MOST_WIDE], const float *a_, const char *b,
                           part part) {
    const a_rows a = load_a(rows, a_);
    BROADCAST_UNROLL
    for (int h = 0; h < width; h++) column(rows, sum, h, &a, load_b(b + h * 16, part));
}

BROADCAST_INLINE void tile(int rows, int width, int fetches, int k, const float *a, const char *b, float *c,
                           int accumulate, int b_is_bf16) {
    reg sum[ROWS][MOST_WIDE];
    BROADCAST_UNROLL
    for (int r = 0; r < rows; r++) {
        BROADCAST_UNROLL
        for (int h = 0; h < width; h++)
            sum[r][h] = accumulate ? vld1q_f32(c + r * PANEL + h * 4) : reg_zero();
    }
    for (int i = 0; i < k; i += 1 + b_is_bf16, a += rows * (1 + b_is_bf16), b += PANEL_ROW) {
        if (fetches) __builtin_prefetch(b + AHEAD);
        if (fetches && width == 8) __builtin_prefetch(b + AHEAD + LINE);
        step(rows, width, sum, a, b, b_is_bf16 ? EVEN : FLOATS);
        if (!b_is_bf16) continue;
        __asm__("" : "+r"(b));   /* B is read again: kept, it would take registers that are sums */
        step(rows, width, sum, a + rows, b, ODD);
    }
    BROADCAST_UNROLL
    for (int r = 0; r < rows; r++) {
        BROADCAST_UNROLL
        for (int h = 0; h < width; h++) vst1q_f32(c + r * PANEL + h * 4, sum[r][h]);
    }
}

BROADCAST_INLINE void tiles(int rows, int k, const void *a_, const void *b_, float *c, int accumulate,
                            int b_is_bf16) {
    int width = width_of(rows), piece = PIECE * (1 + b_is_bf16);
    const float *a = a_;
    const char *b = b_;
    for (int i = 0; i < k; i += piece, a += piece * rows, b += PIECE * PANEL_ROW)
        for (int at = 0; at < PANEL_ROW; at += LINE * (width == 8 ? 2 : 1)) {
            int depth = k - i < piece ? k - i : piece;
            tile(rows, width, 1, depth, a, b + at, c + at / 4, accumulate || i, b_is_bf16);
            if (width == 2)
                tile(rows, width, 0, depth, a, b + at + 32, c + at / 4 + 8, accumulate || i, b_is_bf16);
        }
}

#include "backend/cpu/broadcast_f32.h"

const cpu_product cpu_f32_f32_neon = BROADCAST_PRODUCT(f32, 4, 1);
const cpu_product cpu_f32_bf16_neon = BROADCAST_PRODUCT(bf16, 2, 2);
const cpu_elements cpu_elements_neon = ELEMENTS_TABLE;
