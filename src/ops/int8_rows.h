/* Rows of 8-bit integers, the input of a matrix that says INPUT_INT8 (ops.h has the formulas). A row may come
 * in pieces: its top first, piece by piece, then its codes.
 *
 * Magnitudes are compared as bits: the order is that of the numbers, infinities and NaN are above all others,
 * and no order of comparing changes the result. */
#ifndef OPS_INT8_ROWS_H
#define OPS_INT8_ROWS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

typedef struct int8_row {
    float scale;                 /* NaN: the row is not finite                                            */
    float inverse;               /* codes a unit; 0: all codes are 0                                      */
} int8_row;

/* The larger of `top` (0 at first) and the bits of the largest magnitude. */
static inline uint32_t int8_row_top(const float *x, int count, uint32_t top) {
    for (int i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bits &= UINT32_C(0x7fffffff);
        top = bits > top ? bits : top;
    }
    return top;
}

static inline int8_row int8_row_of(uint32_t top) {
    float size;
    memcpy(&size, &top, sizeof size);
    if (!isfinite(size)) return (int8_row){NAN, 0};
    return size < 0x1p-100f ? (int8_row){0, 0} : (int8_row){size / 127, 127 / size};
}

/* Codes, as numbers; `out` may be x. */
static inline void int8_row_codes(int8_row row, const float *x, int count, float *out) {
    for (int i = 0; i < count; i++) out[i] = row.inverse > 0 ? nearbyintf(x[i] * row.inverse) : 0;
}

#endif
