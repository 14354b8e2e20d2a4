/* What products of 8 bits may add to the distance of actions from a golden's.
 *
 * Derivation, as in rounding.h: a product whose operands are off by u of their rms is off by u of its own; a
 * norm before every product keeps relative errors relative, so each reaches the velocity with at most its own
 * relative size; errors are independent and squares add. So σ = √(Σ R·u²)·rms(velocity) over the groups, with
 * R products in a row and u of their format. It is an upper bound: most of a product's error is averaged out
 * by the residual sums beside it. The bound on the rms is 1.64·σ; measured on the goldens is 3 to 21 times
 * less (docs/weights.md): least of e4m3, whose u is no larger than what is lost, most of an int8x8 whose
 * rows have no outliers and whose prefix acts through attention only. So it finds a wrong product, not a
 * small fault in one; test_formats holds tables to what was measured.
 *
 * u of an operand, with top / rms for its largest number: integers top / rms / (127·√12)
 *   int8      0.0055   weights, 64 normal numbers: 2.4
 *   int8x8    0.0173   weights and rows, thousands of normal numbers: 4; GeGLU's hidden rows: 10
 *   e4m3      0.026    3 bits of mantissa, rounded: what FP8 formats lose whatever the numbers */
#ifndef VERIFY_EIGHT_BITS_H
#define VERIFY_EIGHT_BITS_H

#include "model/model.h"

/* Widens the bounds on the largest distance and the rms of `count` actions by what σ allows: squares add.
 * Actions and noise may be in any unit, the same one for both. 0: no group has 8 bits, nothing was done. */
int eight_bits_widen(const model *model, const float *actions, const float *noise, size_t count,
                     double *max, double *rms);

#endif
