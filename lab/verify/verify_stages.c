/* The stages of a golden's model level, compared in an observer while the engine runs: image tokens, K and V
 * of every layer, the expert's first input, velocity and x of every step, fp32 only. The first one beyond its
 * bound, in the order of the pipeline, is the first wrong stage. */
#include <math.h>
#include <stdio.h>

#include "base/report.h"
#include "lab/verify/verify_model.h"

enum { STATE = OPENPI_ACTION_DIM };

static double farthest(const float *got, const float *expected, int64_t count) {
    distance d = {0};
    for (int64_t i = 0; i < count; i++) distance_add(&d, (double)got[i], (double)expected[i]);
    return d.max;
}

void stages_observe(void *user, openpi_tensor tensor, int sample, int index, const float *data, int rows,
                    int columns) {
    stages *s = user;
    const golden_model *g = s->g;
    const openpi_dims *d = &g->synthetic.dims;
    int64_t b = sample, B = g->B, one = g->H * STATE;
    int suffix_rows = (int)g->H + variant_of(g->synthetic.variant)->state_token;
    int limit = tensor == OPENPI_TENSOR_IMAGE_TOKENS                     ? OPENPI_CAMERAS
                : tensor == OPENPI_TENSOR_K || tensor == OPENPI_TENSOR_V ? d->depth
                                                                         : (int)g->N;
    int wanted_columns[] = {d->width, d->head_dim, d->head_dim, d->expert_width, STATE, STATE};
    int wanted_rows[] = {OPENPI_IMAGE_TOKENS, rows, rows, suffix_rows, (int)g->H, (int)g->H};
    if (sample < 0 || b >= B || index < 0 || index >= limit || rows != wanted_rows[tensor] ||
        columns != wanted_columns[tensor]) {
        snprintf(s->unexpected, sizeof s->unexpected,
                 "tensor %d, sample %d, index %d came with %d rows of %d", (int)tensor, sample, index, rows,
                 columns);
        return;
    }
    switch (tensor) {
    case OPENPI_TENSOR_IMAGE_TOKENS:
        s->image_tokens[b * OPENPI_CAMERAS + index] = 0;
        for (int64_t i = 0; i < g->kept; i++)
            s->image_tokens[b * OPENPI_CAMERAS + index] = fmax(
                s->image_tokens[b * OPENPI_CAMERAS + index],
                farthest(data + i * 29 * columns,
                         g->image_tokens + ((b * OPENPI_CAMERAS + index) * g->kept + i) * columns, columns));
        return;
    case OPENPI_TENSOR_K:
    case OPENPI_TENSOR_V: {
        const float *expected = tensor == OPENPI_TENSOR_K ? g->k : g->v;
        double *off = (tensor == OPENPI_TENSOR_K ? s->k : s->v) + index * B + b;
        *off = 0;
        for (int64_t r = 0; r < g->R; r++) {
            int at = g->compact[b * g->R + r];
            if (at < 0) continue;
            if (at >= rows) *off = INFINITY;
            else
                *off = fmax(*off, farthest(data + (int64_t)at * columns,
                                           expected + ((index * B + b) * g->R + r) * columns, columns));
        }
        return;
    }
    case OPENPI_TENSOR_SUFFIX:
        s->suffix[b] = farthest(data, g->suffix + b * rows * columns, (int64_t)rows * columns);
        return;
    case OPENPI_TENSOR_VELOCITY:
        s->velocity[index * B + b] = farthest(data, g->velocity + (b * g->N + index) * one, one);
        return;
    case OPENPI_TENSOR_X: s->x[index * B + b] = farthest(data, g->x + (b * g->N + index) * one, one); return;
    }
}

static double largest(const float *values, int64_t count, double so_far) {
    for (int64_t i = 0; i < count; i++) so_far = fmax(so_far, fabs((double)values[i]));
    return so_far;
}

/* The largest value of a stage's tensor, masked parts left out. */
static double image_scale(const golden_model *g) {
    int64_t one = g->kept * g->synthetic.dims.width;
    double scale = 0;
    for (int64_t i = 0; i < g->B * OPENPI_CAMERAS; i++)
        if (g->image_mask[i]) scale = largest(g->image_tokens + i * one, one, scale);
    return scale;
}

static double cache_scale(const golden_model *g, const float *values) {
    const openpi_dims *d = &g->synthetic.dims;
    double scale = 0;
    for (int64_t row = 0; row < d->depth * g->B * g->R; row++)
        if (g->compact[row % (g->B * g->R)] >= 0)
            scale = largest(values + row * d->head_dim, d->head_dim, scale);
    return scale;
}

/* Fails the case if a piece is beyond the bound or was never observed. */
static void judge(verify_case *c, const char *stage, int index, int sample, double off, double scale) {
    char where[64] = "";
    if (index >= 0) snprintf(where, sizeof where, " %d", index);
    if (off < 0)
        case_fail(c, "%s%s, sample %d: the engine passed nothing to the observer", stage, where, sample);
    else if (!(off <= MODEL_STAGE_BOUND * scale))
        case_fail(c, "%s%s, sample %d: off by %.2e, allowed %.2e", stage, where, sample, off,
                  MODEL_STAGE_BOUND * scale);
}

void stages_judge(verify_case *c, const golden_model *g, const stages *s) {
    const openpi_dims *d = &g->synthetic.dims;
    int B = (int)g->B;
    double images = image_scale(g), k = cache_scale(g, g->k), v = cache_scale(g, g->v), suffix_scale;
    double velocity = largest(g->velocity, g->B * g->N * g->H * STATE, 0),
           x = largest(g->x, g->B * g->N * g->H * STATE, 0);
    int64_t suffix_rows = g->H + variant_of(g->synthetic.variant)->state_token;
    suffix_scale = largest(g->suffix, g->B * suffix_rows * d->expert_width, 0);
    if (s->unexpected[0]) case_fail(c, "the engine's observer: %s", s->unexpected);
    for (int i = 0; i < B * OPENPI_CAMERAS; i++)
        if (g->image_mask[i])
            judge(c, "image_tokens of camera", i % OPENPI_CAMERAS, i / OPENPI_CAMERAS, s->image_tokens[i],
                  images);
    for (int i = 0; i < d->depth * B; i++) {
        judge(c, "k of layer", i / B, i % B, s->k[i], k);
        judge(c, "v of layer", i / B, i % B, s->v[i], v);
    }
    for (int b = 0; b < B; b++) judge(c, "suffix0", -1, b, s->suffix[b], suffix_scale);
    for (int i = 0; i < (int)g->N * B; i++) {
        judge(c, "velocity of step", i / B, i % B, s->velocity[i], velocity);
        judge(c, "x after step", i / B, i % B, s->x[i], x);
    }
}

openpi_status stages_begin(verify_case *c, const golden_model *g, stages *s, openpi_error *error) {
    size_t B = (size_t)g->B, depth = (size_t)g->synthetic.dims.depth, N = (size_t)g->N;
    size_t total = B * OPENPI_CAMERAS + 2 * depth * B + B + 2 * N * B;
    double *at;
    TRY(case_take(c, total, sizeof *at, &at, error));
    for (size_t i = 0; i < total; i++) at[i] = -1;
    *s = (stages){.g = g, .image_tokens = at};
    s->k = s->image_tokens + B * OPENPI_CAMERAS;
    s->v = s->k + depth * B;
    s->suffix = s->v + depth * B;
    s->velocity = s->suffix + B;
    s->x = s->velocity + N * B;
    return OPENPI_OK;
}
