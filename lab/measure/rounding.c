/* The numbers of the derivation in rounding.h. */
#include "lab/measure/rounding.h"

#include <math.h>

enum {
    /* Attention: norm, product (q, k or v), bias or RoPE, probabilities, values, product (o), residual sum.
     * MLP: norm, product (gate or fc1), activation, times up, product (down or fc2), residual sum. */
    ROUNDINGS_A_LAYER = 13,
    /* Patches, projector's norm and product, action tokens, norm of the velocity. */
    ROUNDINGS_OUTSIDE = 5,
};

static const double one_rounding = 1.66e-3, spread_of_rms = 1.64, too_rare = 1e-6;

rounding_bound rounding_between(const openpi_dims *dims, const float *actions, const float *noise,
                                size_t count) {
    double squares = 0,
           roundings = ROUNDINGS_A_LAYER * (dims->vision_depth + 2.0 * dims->depth) + ROUNDINGS_OUTSIDE;
    for (size_t i = 0; i < count; i++)
        squares += ((double)actions[i] - noise[i]) * ((double)actions[i] - noise[i]);
    double sigma = sqrt(2 * roundings) * one_rounding * sqrt(squares / (double)count);
    return (rounding_bound){sigma * spread_of_rms, sigma * sqrt(2 * log(2 * (double)count / too_rare))};
}
