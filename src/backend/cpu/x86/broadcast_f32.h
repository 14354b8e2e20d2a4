/* The tiles of fp32 products on x86: elements of A are broadcast from memory; bf16 weights and codes of 8
 * bits are widened on the fly, which is exact. Written once over a register of floats, for a level's file
 * that defines, besides what cpu/broadcast_f32.h names:
 *
 *   AHEAD                  bytes of B that are fetched ahead
 *   reg_load, reg_store
 *   reg_even, reg_odd      the even and the odd elements of pairs of bf16 in memory, as floats
 *   reg_integers           integers of 8 bits in memory, as floats
 *
 * A tile is two registers wide; a panel is one or two of them, one after the other, each from the start of
 * k to its end. A row of a panel is 128 bytes, 32 floats or 32 pairs, or 32 integers. */

/* The kinds of cpu/broadcast_f32.h. */
typedef enum b_kind { B_F32, B_BF16, B_INT8 } b_kind;

enum { ROW_BYTES = PANEL * 4, REG_BYTES = REG_FLOATS * 4, TILES = PANEL / 2 / REG_FLOATS, LINE = 64 };

BROADCAST_INLINE void step(int rows, reg sum[][2], const float *a, reg b0, reg b1) {
    BROADCAST_UNROLL
    for (int r = 0; r < rows; r++) {
        reg value = reg_set(a + r);
        sum[r][0] = reg_fma(value, b0, sum[r][0]);
        sum[r][1] = reg_fma(value, b1, sum[r][1]);
    }
}

BROADCAST_INLINE void fetch_ahead(const char *b) {
    BROADCAST_UNROLL
    for (int at = 0; at < 2 * REG_BYTES; at += LINE) _mm_prefetch(b + AHEAD + at, _MM_HINT_T0);
}

BROADCAST_INLINE void tile(int rows, int k, const float *a, const char *b, float *c, int accumulate,
                           b_kind kind) {
    const int deep = kind == B_BF16 ? 2 : 1, row_bytes = kind == B_INT8 ? PANEL : ROW_BYTES;
    reg sum[ROWS][2];
    BROADCAST_UNROLL
    for (int r = 0; r < rows; r++) {
        BROADCAST_UNROLL
        for (int h = 0; h < 2; h++)
            sum[r][h] = accumulate ? reg_load(c + r * PANEL + h * REG_FLOATS) : reg_zero();
    }
    for (int i = 0; i < k; i += deep, a += rows * deep, b += row_bytes) {
        if (kind != B_INT8) fetch_ahead(b);
        else _mm_prefetch(b + AHEAD, _MM_HINT_T0);
        if (kind == B_INT8) {
            step(rows, sum, a, reg_integers(b), reg_integers(b + REG_FLOATS));
        } else if (kind == B_F32) {
            step(rows, sum, a, reg_load((const float *)b), reg_load((const float *)(b + REG_BYTES)));
        } else {
            step(rows, sum, a, reg_even(b), reg_even(b + REG_BYTES));
            step(rows, sum, a + rows, reg_odd(b), reg_odd(b + REG_BYTES));
        }
    }
    BROADCAST_UNROLL
    for (int r = 0; r < rows; r++) {
        BROADCAST_UNROLL
        for (int h = 0; h < 2; h++) reg_store(c + r * PANEL + h * REG_FLOATS, sum[r][h]);
    }
}

BROADCAST_INLINE void tiles(int rows, int k, const void *a, const void *b, float *c, int accumulate,
                            b_kind kind) {
    const char *second = (const char *)b + (kind == B_INT8 ? 2 * REG_FLOATS : 2 * REG_BYTES);
    tile(rows, k, a, b, c, accumulate, kind);
    if (TILES == 2) tile(rows, k, a, second, c + 2 * REG_FLOATS, accumulate, kind);
}

#define REG_CLASS "v"
#include "backend/cpu/broadcast_f32.h"
