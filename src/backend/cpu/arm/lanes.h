/* The tiles of products that take an element of A by its number in a register: how wide they are, what is
 * loaded, in which order a panel is read. kernels_neon.c has the picture. Written once over registers of four
 * words, floats or int32, for a file that defines before it includes this one:
 *
 *   reg                           such a register: elements of A, columns of B, sums
 *   MULTIPLY(sum, b, a, lane)     sum + b · element `lane` of a, a number
 *   ROWS, EACH_ROW                most rows of a block, and X(1) … X(ROWS) for it
 *   SUMS                          most registers of sums
 *   AHEAD                         bytes of B that are fetched ahead
 *
 * Note: sums of integers have to be registers of integers. gcc copies them in every turn where they are cast
 * from floats and back. */
#ifndef CPU_ARM_LANES_H
#define CPU_ARM_LANES_H

#include <arm_neon.h>

#include "backend/cpu/broadcast.h"
#include "backend/cpu/kernels.h"

enum { PIECE = 128 /* rows of a panel: 16 KB */, PANEL_ROW = PANEL * 4, LINE = 64, MOST_WIDE = 8 };

/* What B is: words that MULTIPLY takes as they are, pairs of bf16, codes of 8 bits; the last two become
 * floats. In the order of cpu/broadcast_f32.h's kinds. */
typedef enum b_kind { B_WORDS, B_BF16, B_CODES } b_kind;
/* What a turn uses of each word. */
typedef enum part { WORDS, EVEN, ODD } part;

BROADCAST_INLINE reg load(const char *from) { return (reg)vld1q_u8((const uint8_t *)from); }
BROADCAST_INLINE void store(float *to, reg x) { vst1q_u8((uint8_t *)to, (uint8x16_t)x); }

/* Registers that a tile is wide. */
BROADCAST_INLINE int width_of(int rows) { return rows * 8 <= SUMS ? 8 : rows * 4 <= SUMS ? 4 : 2; }

/* Four columns of B. */
BROADCAST_INLINE reg load_b(const char *b, part part) {
    uint32x4_t words = (uint32x4_t)load(b);
    if (part == EVEN) words = vshlq_n_u32(words, 16);
    if (part == ODD) words = vandq_u32(words, vdupq_n_u32(0xffff0000));
    return (reg)words;
}

/* sum[r][h] += a[r]·b for the 1, 2 or 4 rows that a register of A holds. */
BROADCAST_INLINE void multiply_rows(int count, reg sum[][MOST_WIDE], int h, reg a, reg b) {
    sum[0][h] = MULTIPLY(sum[0][h], b, a, 0);
    if (count >= 2) sum[1][h] = MULTIPLY(sum[1][h], b, a, 1);
    if (count >= 4) sum[2][h] = MULTIPLY(sum[2][h], b, a, 2);
    if (count >= 4) sum[3][h] = MULTIPLY(sum[3][h], b, a, 3);
}

/* One k of A: its rows in registers of 4, 2 or 1, for a load reads no more than the block. */
typedef struct a_rows {
    reg four[3], two, one;
} a_rows;

BROADCAST_INLINE a_rows load_a(int rows, const float *a) {
    a_rows out;
    const float32x2_t zeros = vdup_n_f32(0);
    if (rows >= 4) out.four[0] = (reg)vld1q_f32(a);
    if (rows >= 8) out.four[1] = (reg)vld1q_f32(a + 4);
    if (rows >= 12) out.four[2] = (reg)vld1q_f32(a + 8);
    if (rows & 2) out.two = (reg)vcombine_f32(vld1_f32(a + (rows & ~3)), zeros);
    if (rows & 1) out.one = (reg)vcombine_f32(vset_lane_f32(a[rows - 1], zeros, 0), zeros);
    return out;
}

/* Four columns, h, of all rows. */
BROADCAST_INLINE void column(int rows, reg sum[][MOST_WIDE], int h, const a_rows *a, reg b) {
    if (rows >= 4) multiply_rows(4, sum, h, a->four[0], b);
    if (rows >= 8) multiply_rows(4, sum + 4, h, a->four[1], b);
    if (rows >= 12) multiply_rows(4, sum + 8, h, a->four[2], b);
    if (rows & 2) multiply_rows(2, sum + (rows & ~3), h, a->two, b);
    if (rows & 1) multiply_rows(1, sum + rows - 1, h, a->one, b);
}

BROADCAST_INLINE void step(int rows, int width, reg sum[][MOST_WIDE], const float *a_, const char *b,
                           part part) {
    const a_rows a = load_a(rows, a_);
    BROADCAST_UNROLL
    for (int h = 0; h < width; h++) column(rows, sum, h, &a, load_b(b + h * 16, part));
}

/* Codes become floats eight at a time. */
BROADCAST_INLINE void step_codes(int rows, int width, reg sum[][MOST_WIDE], const float *a_, const char *b) {
    const a_rows a = load_a(rows, a_);
    BROADCAST_UNROLL
    for (int h = 0; h < width; h += 2) {
        int16x8_t codes = vmovl_s8(vld1_s8((const int8_t *)b + h * 4));
        column(rows, sum, h, &a, (reg)vcvtq_f32_s32(vmovl_s16(vget_low_s16(codes))));
        column(rows, sum, h + 1, &a, (reg)vcvtq_f32_s32(vmovl_high_s16(codes)));
    }
}

BROADCAST_INLINE void fetch_ahead(const char *b, int lines) {
    __builtin_prefetch(b + AHEAD);
    if (lines == 2) __builtin_prefetch(b + AHEAD + LINE);
}

BROADCAST_INLINE void tile(int rows, int width, int fetches, int k, const float *a, const char *b, float *c,
                           int accumulate, b_kind kind) {
    const int deep = kind == B_BF16 ? 2 : 1, row = kind == B_CODES ? PANEL : PANEL_ROW;
    reg sum[ROWS][MOST_WIDE];
    BROADCAST_UNROLL
    for (int r = 0; r < rows; r++) {
        BROADCAST_UNROLL
        for (int h = 0; h < width; h++)
            sum[r][h] = accumulate ? load((const char *)(c + r * PANEL + h * 4)) : (reg)vdupq_n_u32(0);
    }
    for (int i = 0; i < k; i += deep, a += rows * deep, b += row) {
        if (fetches) fetch_ahead(b, width == 8 && kind != B_CODES ? 2 : 1);
        if (kind == B_CODES) step_codes(rows, width, sum, a, b);
        else step(rows, width, sum, a, b, kind == B_BF16 ? EVEN : WORDS);
        if (kind != B_BF16) continue;
        __asm__("" : "+r"(b));   /* B is read again: kept, it would take registers that are sums */
        step(rows, width, sum, a + rows, b, ODD);
    }
    BROADCAST_UNROLL
    for (int r = 0; r < rows; r++) {
        BROADCAST_UNROLL
        for (int h = 0; h < width; h++) store(c + r * PANEL + h * 4, sum[r][h]);
    }
}

/* k rows of A's words; where B is pairs of bf16, a row of the panel is two of them. */
BROADCAST_INLINE void tiles(int rows, int k, const void *a_, const void *b_, float *c, int accumulate,
                            b_kind kind) {
    const int width = width_of(rows), piece = kind == B_BF16 ? 2 * PIECE : PIECE;
    const int row = kind == B_CODES ? PANEL : PANEL_ROW, four = row / 8 /* bytes of four columns */;
    const float *a = a_;
    const char *b = b_;
    for (int i = 0; i < k; i += piece, a += piece * rows, b += PIECE * row)
        for (int at = 0; at < 8; at += width == 8 ? 8 : 4) {
            int depth = k - i < piece ? k - i : piece;
            tile(rows, width, 1, depth, a, b + at * four, c + at * 4, accumulate || i, kind);
            if (width == 2)
                tile(rows, width, 0, depth, a, b + (at + 2) * four, c + (at + 2) * 4, accumulate || i, kind);
        }
}

#endif
