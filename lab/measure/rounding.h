/* The bound on the difference between two bf16 variants of one model, for the ladder and the test of the
 * switches.
 *
 * Derivation. Two variants (fused and unfused, say) compute the same numbers and differ in where they round
 * to bf16.
 *   1. bf16 keeps 8 binary digits: a value m·2^e, 1 ≤ m < 2, is rounded by at most 2^-8·2^e, evenly spread,
 * so by 2^-8·2^e/√3 rms. Over m spread evenly in log m the mean of 1/m² is 3/(8 ln 2) = 0.541: relative to
 * the value, one rounding is an error of u = 2^-8·√(0.541/3) = 1.66e-3 rms.
 *   2. The longest variant of a layer rounds 13 times in a row (ROUNDINGS_A_LAYER lists them), a layer of
 * vision, of the prefix and of the expert alike; outside the layers 5 more. Denoise steps do not add up: each
 * is an error of its own velocity, weighted by dt, and the sum of |dt| is 1.
 *   3. Roundings are independent, and a norm before every product keeps relative errors relative, so each
 * reaches the velocity with at most its own relative size, and squares add: R roundings are √R·u. The two
 * variants' roundings are independent of each other, because one changed digit changes those after it:
 * √(2R)·u between them.
 *   4. The velocity's rms is that of what the actions moved from the noise. A multiple of it, σ =
 * √(2R)·u·rms(velocity), is the expected distance of two correct variants.
 *   5. What is measured is one sample. Its values err together, since rows share prefix and weights, but the
 * 32 numbers of a row are 32 different sums: their mean square is that of 32 normal values, χ²/32, exceeded
 * with a probability of 1e-6 at 1.64² (Wilson-Hilferty: (1 - 2/9ν + 4.75·√(2/9ν))^3, ν = 32). The largest of
 * n normal values exceeds √(2 ln(2n/1e-6)) with that probability. No step asks which machine or which kernels
 * compute. What this bound cannot see, because rounding is as large, f32 sees. */
#ifndef MEASURE_ROUNDING_H
#define MEASURE_ROUNDING_H

#include <stddef.h>

#include "openpi.h"

typedef struct rounding_bound {
    double rms, max;
} rounding_bound;

/* Of `count` actions of a model with these sizes; a: one variant's actions; noise: its start.
 */
rounding_bound rounding_between(const openpi_dims *dims, const float *actions, const float *noise,
                                size_t count);

#endif
