/* Where sets of channels are in a list of powers, and the powers. */
#include "model/smoothing.h"

#include <math.h>

static const double share = 0.75;          /* what goes from rows to weights: SmoothQuant's α               */

static int depth_of(const openpi_dims *d, smooth_tower tower) {
    return tower == SMOOTH_VISION ? d->vision_depth : d->depth;
}

static int width_of(const openpi_dims *d, smooth_tower tower) {
    return tower == SMOOTH_VISION ? d->vision_width : tower == SMOOTH_PREFIX ? d->width : d->expert_width;
}

int smooth_channels(const openpi_dims *d, smooth_tower tower, smooth_set set) {
    int vision = tower == SMOOTH_VISION, prefix = tower == SMOOTH_PREFIX;
    switch (set) {
    case SMOOTH_NORM1:
    case SMOOTH_NORM2: return width_of(d, tower);
    case SMOOTH_HIDDEN: return vision ? 0 : prefix ? d->mlp : d->expert_mlp;
    case SMOOTH_VALUES: return vision ? d->vision_width : d->head_dim;
    case SMOOTH_SETS: break;
    }
    return 0;
}

/* In a list: the expert has no values of its own. */
static size_t own_channels(const openpi_dims *d, smooth_tower tower, int set) {
    if (tower == SMOOTH_EXPERT && set == SMOOTH_VALUES) return 0;
    return (size_t)smooth_channels(d, tower, (smooth_set)set);
}

static size_t layer_channels(const openpi_dims *d, smooth_tower tower) {
    size_t count = 0;
    for (int set = 0; set < SMOOTH_SETS; set++) count += own_channels(d, tower, set);
    return count;
}

static size_t tower_at(const openpi_dims *d, int tower) {
    size_t at = 0;
    for (int t = 0; t < tower; t++)
        at += (size_t)depth_of(d, (smooth_tower)t) * layer_channels(d, (smooth_tower)t);
    return at;
}

size_t smooth_at(const openpi_dims *d, smooth_tower tower, int layer, smooth_set set) {
    if (tower == SMOOTH_EXPERT && set == SMOOTH_VALUES) tower = SMOOTH_PREFIX;
    size_t at = tower_at(d, (int)tower) + (size_t)layer * layer_channels(d, tower);
    for (int s = 0; s < (int)set; s++) at += own_channels(d, tower, s);
    return at;
}

size_t smooth_count(const openpi_dims *d) { return tower_at(d, SMOOTH_TOWERS); }

int smooth_asked(const model_types *t, smooth_tower tower, smooth_set set) {
    if (tower == SMOOTH_VISION) return t->smooth[GROUP_VISION];
    if (set == SMOOTH_VALUES) return t->smooth[GROUP_ATTENTION] || t->smooth[GROUP_EXPERT];
    if (tower == SMOOTH_EXPERT) return t->smooth[GROUP_EXPERT];
    return t->smooth[set == SMOOTH_NORM1 ? GROUP_ATTENTION : GROUP_FFN];
}

/* ---- powers ------------------------------------------------------------------------------------------- */

/* log2 of what a channel should be divided by, but for what all channels of its set share. */
static double wish(float row, float weight) {
    return share * log2((double)row) - (1 - share) * log2((double)weight);
}

static int is_alive(float row, float weight) {
    return row > 0 && weight > 0 && isfinite(row) && isfinite(weight);
}

static void set_powers(const float *rows, const float *weights, size_t count, int8_t *powers) {
    double sum = 0;
    int alive = 0;
    for (size_t i = 0; i < count; i++)
        if (is_alive(rows[i], weights[i])) sum += wish(rows[i], weights[i]), alive++;
    for (size_t i = 0; i < count; i++) {
        double power = is_alive(rows[i], weights[i]) ? nearbyint(wish(rows[i], weights[i]) - sum / alive) : 0;
        powers[i] = (int8_t)fmax(-SMOOTH_MOST, fmin(SMOOTH_MOST, power));
    }
}

void smooth_powers(const openpi_dims *d, const float *rows, const float *weights, int8_t *powers) {
    for (int t = 0; t < SMOOTH_TOWERS; t++)
        for (int layer = 0; layer < depth_of(d, (smooth_tower)t); layer++)
            for (int set = 0; set < SMOOTH_SETS; set++) {
                size_t at = smooth_at(d, (smooth_tower)t, layer, (smooth_set)set);
                set_powers(rows + at, weights + at, own_channels(d, (smooth_tower)t, set), powers + at);
            }
}
