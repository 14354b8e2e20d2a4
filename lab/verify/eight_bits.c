/* The numbers of the derivation in eight_bits.h. */
#include "lab/verify/eight_bits.h"

#include <math.h>

static double operand_error(product_format format) {
    static const double errors[FORMATS] = {
        [FORMAT_INT8] = 0.0055, [FORMAT_INT8X8] = 0.0173, [FORMAT_E4M3] = 0.026};
    return errors[format];
}

/* Products in a row. q, k, v, o; gate, up, down; fc1, fc2; of the heads patches, action in and out, time. */
static int products(const openpi_dims *dims, weight_group group) {
    switch (group) {
    case GROUP_VISION: return 6 * dims->vision_depth + 1;
    case GROUP_ATTENTION: return 4 * dims->depth;
    case GROUP_FFN: return 3 * dims->depth;
    case GROUP_EXPERT: return 7 * dims->depth;
    case GROUP_HEADS: return 6;
    default: return 0;
    }
}

static double sigma_of(const model *model, const float *actions, const float *noise, size_t count) {
    double squares = 0, errors = 0;
    for (int g = 0; g < GROUPS; g++)
        errors +=
            products(&model->dims, (weight_group)g) * pow(operand_error(model->types.group[g]), 2);
    for (size_t i = 0; i < count; i++) squares += pow((double)actions[i] - noise[i], 2);
    return sqrt(errors * squares / (double)count);
}

int eight_bits_widen(const model *model, const float *actions, const float *noise, size_t count, double *max,
                     double *rms) {
    static const double spread_of_rms = 1.64, too_rare = 1e-6;         /* rounding.h                     */
    double sigma = sigma_of(model, actions, noise, count);
    *rms = hypot(*rms, sigma * spread_of_rms);
    *max = hypot(*max, sigma * sqrt(2 * log(2 * (double)count / too_rare)));
    return sigma > 0;
}
