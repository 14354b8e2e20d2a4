/* Rows of 8-bit integers, the input of a matrix that says INPUT_INT8 (ops.h has the formulas). A row may come
 * in pieces: its top first, piece by piece, then its codes.
 *
 * Magnitudes are compared as bits: the order is that of the numbers, infinities and NaN are above all others,
 * and no order of comparing changes the result. */
#ifndef OPS_INT8_ROWS_H
#define OPS_INT8_ROWS_H

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "ops/ops.h"

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

/* ---- one scale for all rows ---------------------------------------------------------------------------- */

/* Such scales: their inverses are finite, and so is what 127 of them make. */
static inline int int8_scale_is_fit(float scale) { return scale >= 0x1p-100f && scale <= 0x1p100f; }

static inline int8_row int8_row_fixed(float scale) { return (int8_row){scale, 1 / scale}; }

/* What the numbers of a row were, that codes cannot say. */
typedef struct int8_lost {
    uint32_t clipped, not_finite;
} int8_lost;

/* The definition: a number's code. */
static inline float int8_fixed_code(float x, float inverse, int8_lost *lost) {
    float code = nearbyintf(x * inverse);
    lost->not_finite += !isfinite(x);
    lost->clipped += isfinite(x) && fabsf(code) > 127;
    return isnan(x) ? 0 : fmaxf(-127, fminf(127, code));
}

/* Makes numbers of such a row be those that int8_row_codes, or a product's own encoder, gives the codes of
 * the definition for: rounding is monotonous, so what is beyond ±127 scales may as well be ±127 scales. */
static inline void int8_row_clip(int8_row row, float *x, int count, int8_lost *lost) {
    const float most = 127 * row.scale, inverse = row.inverse;
    uint32_t clipped = 0, not_finite = 0;
    for (int i = 0; i < count; i++) {
        const float size = fabsf(x[i]), kept = size < most ? size : most;
        const uint32_t finite = size <= FLT_MAX, beyond = size * inverse >= 127.5f;
        clipped += finite & beyond;
        not_finite += !finite;
        x[i] = x[i] != x[i] ? 0 : copysignf(kept, x[i]);
    }
    lost->clipped += clipped;
    lost->not_finite += not_finite;
}

/* A row's, once it is known whole; by any thread. */
static inline void int8_row_count(uint32_t *counts, int8_lost lost) {
    if (!counts) return;
    if (lost.clipped) {
        __atomic_fetch_add(&counts[INT8_CLIPPED], lost.clipped, __ATOMIC_RELAXED);
        __atomic_fetch_add(&counts[INT8_CLIPPED_ROWS], 1, __ATOMIC_RELAXED);
    }
    if (lost.not_finite)
        __atomic_fetch_add(&counts[INT8_NOT_FINITE], lost.not_finite, __ATOMIC_RELAXED);
}

#endif
