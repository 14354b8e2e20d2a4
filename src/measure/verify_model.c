/* Model goldens: prepared tensors and noise -> normalised actions, with every stage on the way.
 *
 *   the golden itself   inputs as generated, Euler steps and actions agree with each other
 *   fp32                times, image tokens, K and V, first suffix, velocities, x: 1e-3 of the tensor's largest value
 *   actions             against openpi's fp32, the batch as one call and then each sample alone
 *
 * Rows of K and V are stored by their place in the padded prefix (768 + L); the engine has only the valid ones. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/report.h"
#include "measure/verify_case.h"
#include "openpi_internal.h"

enum {
    PADDED_IMAGES = OPENPI_CAMERAS * OPENPI_IMAGE_TOKENS,
    CAMERA_BYTES = OPENPI_IMAGE_SIZE * OPENPI_IMAGE_SIZE * 3,
    STATE = OPENPI_ACTION_DIM
};

static const double stage_bound = 1e-3;

typedef struct golden_model {
    openpi_synthetic synthetic;
    int64_t B, H, N, L, R, kept;             /* R rows of K,V; kept tokens a camera (every 29th)             */
    int64_t input_seed;                      /* -1: the golden does not say                                  */
    uint8_t *images, *image_mask, *token_mask;
    int32_t *tokens, *rows;
    float *state, *noise;
    const char *truth_name, *rounded_name;
    float *truth, *torch, *rounded;          /* actions; rounded: whose bf16 sets the bf16 bound             */
    double rounded_max, rounded_rms;         /* what times its distance is allowed                           */
    float *image_tokens, *k, *v, *suffix, *time, *velocity, *x;
    /* Prepared: prompts without their holes. */
    openpi_sample *samples;
    int32_t *compact;                        /* [B][R] row among the valid ones, -1: masked                  */
    float *actions;                          /* [B][H][32]                                                   */
} golden_model;

/* The largest distance of each stage piece, -1 while it has not been seen. */
typedef struct stages {
    const golden_model *g;
    double *image_tokens, *k, *v, *suffix, *velocity, *x;     /* [B][3] [depth][B] ×2 [B] [N][B] ×2          */
    char unexpected[96];
} stages;

/* ---- reading ---------------------------------------------------------------------------------------- */

static openpi_status read_metadata(const tensors *file, const char *path, golden_model *g, openpi_error *error) {
    int pi05;
    int64_t seed;
    const char *dims = tensors_metadata(file, "dims");
    if (!dims) return report(error, OPENPI_BAD_FILE, "%s: metadata dims is absent, expected the model's sizes", path);
    TRY(openpi_dims_parse(dims, &g->synthetic.dims, error));
    if (!tensors_metadata(file, "pi05"))
        return report(error, OPENPI_BAD_FILE, "%s: metadata pi05 is absent, expected true or false", path);
    TRY(golden_boolean(file, path, "pi05", 0, &pi05, error));
    TRY(golden_integer(file, path, "seed", 0, INT64_MAX, -1, &seed, error));
    g->input_seed = -1;
    if (tensors_metadata(file, "input_seed"))
        TRY(golden_integer(file, path, "input_seed", 0, INT64_MAX, -1, &g->input_seed, error));
    TRY(golden_integer(file, path, "horizon", 1, OPENPI_MAX_HORIZON, -1, &g->H, error));
    TRY(golden_integer(file, path, "steps", 1, OPENPI_MAX_STEPS, -1, &g->N, error));
    TRY(golden_integer(file, path, "max_tokens", 1, 4096, -1, &g->L, error));
    g->synthetic.variant = pi05 ? OPENPI_PI05 : OPENPI_PI0;
    g->synthetic.seed = (uint64_t)seed;
    return OPENPI_OK;
}

#define SHAPE(...) ((int64_t[]){__VA_ARGS__})

static openpi_status read_inputs(verify_case *c, const tensors *file, const char *path, golden_model *g, openpi_error *error) {
    int64_t shape[] = {-1, OPENPI_CAMERAS};
    TRY(golden_u8(c, file, "in.image_mask", 2, shape, &g->image_mask, error));
    g->B = shape[0];
    if (g->B < 1 || g->B > OPENPI_MAX_BATCH)
        return report(error, OPENPI_BAD_FILE, "%s: a batch of %" PRId64 ", expected 1 to %d", path, g->B, OPENPI_MAX_BATCH);
    TRY(golden_u8(c, file, "in.images", 5, SHAPE(g->B, OPENPI_CAMERAS, OPENPI_IMAGE_SIZE, OPENPI_IMAGE_SIZE, 3), &g->images,
                  error));
    TRY(golden_i32(c, file, "in.tokens", 2, SHAPE(g->B, g->L), &g->tokens, error));
    TRY(golden_u8(c, file, "in.token_mask", 2, SHAPE(g->B, g->L), &g->token_mask, error));
    TRY(golden_f32(c, file, "in.state", 2, SHAPE(g->B, STATE), &g->state, error));
    return golden_f32(c, file, "in.noise", 3, SHAPE(g->B, g->H, STATE), &g->noise, error);
}

static openpi_status read_actions(verify_case *c, const tensors *file, golden_model *g, openpi_error *error) {
    int jax = tensors_find(file, "actions.jax_f32") != NULL;
    g->truth_name = jax ? "actions.jax_f32" : "actions.torch_f32";
    g->rounded_name = jax ? "actions.jax_bf16" : "actions.torch_bf16_exact_rotary";
    g->rounded_rms = jax ? 1.15 : 1.25;
    g->rounded_max = 2;
    TRY(golden_f32(c, file, g->truth_name, 3, SHAPE(g->B, g->H, STATE), &g->truth, error));
    TRY(golden_f32(c, file, "actions.torch_f32", 3, SHAPE(g->B, g->H, STATE), &g->torch, error));
    return golden_f32(c, file, g->rounded_name, 3, SHAPE(g->B, g->H, STATE), &g->rounded, error);
}

static openpi_status read_stages(verify_case *c, const tensors *file, golden_model *g, openpi_error *error) {
    const openpi_dims *d = &g->synthetic.dims;
    int64_t suffix_rows = g->H + (g->synthetic.variant == OPENPI_PI0), rows[] = {-1};
    int64_t image_tokens[] = {g->B, OPENPI_CAMERAS, -1, d->width};
    TRY(golden_f32(c, file, "stage.image_tokens", 4, image_tokens, &g->image_tokens, error));
    g->kept = image_tokens[2];
    if (g->kept < 1 || (g->kept - 1) * 29 >= OPENPI_IMAGE_TOKENS)
        return report(error, OPENPI_BAD_FILE, "stage.image_tokens holds %" PRId64 " tokens a camera, expected every 29th",
                      g->kept);
    TRY(golden_i32(c, file, "stage.rows", 1, rows, &g->rows, error));
    g->R = rows[0];
    TRY(golden_f32(c, file, "stage.k", 4, SHAPE(d->depth, g->B, g->R, d->head_dim), &g->k, error));
    TRY(golden_f32(c, file, "stage.v", 4, SHAPE(d->depth, g->B, g->R, d->head_dim), &g->v, error));
    TRY(golden_f32(c, file, "stage.suffix0", 3, SHAPE(g->B, suffix_rows, d->expert_width), &g->suffix, error));
    TRY(golden_f32(c, file, "stage.time", 1, SHAPE(g->N), &g->time, error));
    TRY(golden_f32(c, file, "stage.velocity", 4, SHAPE(g->B, g->N, g->H, STATE), &g->velocity, error));
    return golden_f32(c, file, "stage.x", 4, SHAPE(g->B, g->N, g->H, STATE), &g->x, error);
}

/* ---- the golden itself ------------------------------------------------------------------------------ */

/* A moved number that no bound below is tight enough for shows here: x after a step is x before it plus dt·v, the
 * actions are the last x, and openpi's two fp32 models agree. */
static void check_golden(verify_case *c, const golden_model *g) {
    int64_t one = g->H * STATE;
    float dt = (float)(-1.0 / (double)g->N);
    for (int64_t b = 0; b < g->B; b++) {
        for (int64_t k = 0; k < g->N; k++) {
            const float *from = k ? g->x + (b * g->N + k - 1) * one : g->noise + b * one;
            const float *v = g->velocity + (b * g->N + k) * one, *to = g->x + (b * g->N + k) * one;
            for (int64_t i = 0; i < one; i++) {
                float expected = from[i] + dt * v[i];
                if (fabsf(to[i] - expected) <= 1e-6f + 2.5e-7f * fabsf(expected)) continue;
                case_fail(c,
                          "the golden's stage.x of step %d, sample %d, element %d is %.9g, but the step before and "
                          "stage.velocity give %.9g",
                          (int)k, (int)b, (int)i, (double)to[i], (double)expected);
                return;
            }
        }
        const float *last = g->x + (b * g->N + g->N - 1) * one;
        for (int64_t i = 0; i < one; i++) {
            int64_t at = b * one + i;
            if (!(fabsf(g->truth[at] - last[i]) <= 1e-5f))
                case_fail(c, "the golden's %s, sample %d, element %d is %.9g, but its stage.x ends at %.9g", g->truth_name,
                          (int)b, (int)i, (double)g->truth[at], (double)last[i]);
            if (!(fabsf(g->truth[at] - g->torch[at]) <= 2e-4f))
                case_fail(c, "the golden's actions.torch_f32, sample %d, element %d is %.9g, but %s has %.9g", (int)b, (int)i,
                          (double)g->torch[at], g->truth_name, (double)g->truth[at]);
        }
    }
}

/* Samples with their valid tokens only, and where each stored row of K and V went. */
static openpi_status prepare(verify_case *c, golden_model *g, openpi_error *error) {
    int32_t *tokens;
    TRY(case_take(c, (size_t)g->B, sizeof *g->samples, &g->samples, error));
    TRY(case_take(c, (size_t)(g->B * g->L), sizeof *tokens, &tokens, error));
    TRY(case_take(c, (size_t)(g->B * g->R), sizeof *g->compact, &g->compact, error));
    TRY(case_take(c, (size_t)(g->B * g->H * STATE), sizeof *g->actions, &g->actions, error));
    for (int64_t b = 0; b < g->B; b++) {
        const uint8_t *cameras = g->image_mask + b * OPENPI_CAMERAS, *valid = g->token_mask + b * g->L;
        openpi_sample *s = &g->samples[b];
        int before[PADDED_IMAGES / OPENPI_IMAGE_TOKENS + 1] = {0};
        int32_t *ids = tokens + b * g->L;
        *s = (openpi_sample){.pixels = OPENPI_PIXELS_U8, .tokens = ids, .state = g->state + b * STATE};
        for (int i = 0; i < OPENPI_CAMERAS; i++) {
            s->images[i] = g->images + (b * OPENPI_CAMERAS + i) * CAMERA_BYTES;
            s->image_mask[i] = cameras[i];
            before[i + 1] = before[i] + (cameras[i] ? OPENPI_IMAGE_TOKENS : 0);
        }
        for (int64_t r = 0; r < g->R; r++) {
            int row = g->rows[r];
            if (row < 0 || row >= PADDED_IMAGES + g->L)
                return report(error, OPENPI_BAD_FILE, "stage.rows[%d] is %d, expected 0 to %d", (int)r, row,
                              (int)(PADDED_IMAGES + g->L - 1));
            int camera = row / OPENPI_IMAGE_TOKENS, at = -1;
            if (row < PADDED_IMAGES) {
                if (cameras[camera]) at = before[camera] + row % OPENPI_IMAGE_TOKENS;
            } else if (valid[row - PADDED_IMAGES]) {
                at = before[OPENPI_CAMERAS];
                for (int i = 0; i < row - PADDED_IMAGES; i++) at += valid[i] != 0;
            }
            g->compact[b * g->R + r] = at;
        }
        for (int64_t i = 0; i < g->L; i++) {
            if (valid[i]) ids[s->token_count++] = g->tokens[b * g->L + i];
            else if (g->tokens[b * g->L + i])
                case_fail(c, "in.tokens, sample %d: the padding has id %d at %d", (int)b, (int)g->tokens[b * g->L + i], (int)i);
        }
    }
    return OPENPI_OK;
}

/* ---- stages ----------------------------------------------------------------------------------------- */

static double farthest(const float *got, const float *expected, int64_t count) {
    distance d = {0};
    for (int64_t i = 0; i < count; i++) distance_add(&d, (double)got[i], (double)expected[i]);
    return d.max;
}

static void observe(void *user, openpi_tensor tensor, int sample, int index, const float *data, int rows, int columns) {
    stages *s = user;
    const golden_model *g = s->g;
    const openpi_dims *d = &g->synthetic.dims;
    int64_t b = sample, B = g->B, one = g->H * STATE;
    int suffix_rows = (int)g->H + (g->synthetic.variant == OPENPI_PI0);
    int limit = tensor == OPENPI_TENSOR_IMAGE_TOKENS                     ? OPENPI_CAMERAS
                : tensor == OPENPI_TENSOR_K || tensor == OPENPI_TENSOR_V ? d->depth
                                                                         : (int)g->N;
    int wanted_columns[] = {d->width, d->head_dim, d->head_dim, d->expert_width, STATE, STATE};
    int wanted_rows[] = {OPENPI_IMAGE_TOKENS, rows, rows, suffix_rows, (int)g->H, (int)g->H};
    if (sample < 0 || b >= B || index < 0 || index >= limit || rows != wanted_rows[tensor] || columns != wanted_columns[tensor]) {
        snprintf(s->unexpected, sizeof s->unexpected, "tensor %d, sample %d, index %d came with %d rows of %d", (int)tensor,
                 sample, index, rows, columns);
        return;
    }
    switch (tensor) {
    case OPENPI_TENSOR_IMAGE_TOKENS:
        s->image_tokens[b * OPENPI_CAMERAS + index] = 0;
        for (int64_t i = 0; i < g->kept; i++)
            s->image_tokens[b * OPENPI_CAMERAS + index] =
                fmax(s->image_tokens[b * OPENPI_CAMERAS + index],
                     farthest(data + i * 29 * columns, g->image_tokens + ((b * OPENPI_CAMERAS + index) * g->kept + i) * columns,
                              columns));
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
                *off = fmax(*off,
                            farthest(data + (int64_t)at * columns, expected + ((index * B + b) * g->R + r) * columns, columns));
        }
        return;
    }
    case OPENPI_TENSOR_SUFFIX: s->suffix[b] = farthest(data, g->suffix + b * rows * columns, (int64_t)rows * columns); return;
    case OPENPI_TENSOR_VELOCITY: s->velocity[index * B + b] = farthest(data, g->velocity + (b * g->N + index) * one, one); return;
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
        if (g->compact[row % (g->B * g->R)] >= 0) scale = largest(values + row * d->head_dim, d->head_dim, scale);
    return scale;
}

/* Fails the case where a piece is beyond the bound or never came. */
static void judge(verify_case *c, const char *stage, int index, int sample, double off, double scale) {
    char where[64] = "";
    if (index >= 0) snprintf(where, sizeof where, " %d", index);
    if (off < 0) case_fail(c, "%s%s, sample %d: the engine handed nothing on", stage, where, sample);
    else if (!(off <= stage_bound * scale))
        case_fail(c, "%s%s, sample %d: off by %.2e, allowed %.2e", stage, where, sample, off, stage_bound * scale);
}

static void judge_stages(verify_case *c, const golden_model *g, const stages *s) {
    const openpi_dims *d = &g->synthetic.dims;
    int B = (int)g->B;
    double images = image_scale(g), k = cache_scale(g, g->k), v = cache_scale(g, g->v), suffix_scale;
    double velocity = largest(g->velocity, g->B * g->N * g->H * STATE, 0), x = largest(g->x, g->B * g->N * g->H * STATE, 0);
    suffix_scale = largest(g->suffix, g->B * (g->H + (g->synthetic.variant == OPENPI_PI0)) * d->expert_width, 0);
    if (s->unexpected[0]) case_fail(c, "the engine's observer: %s", s->unexpected);
    for (int i = 0; i < B * OPENPI_CAMERAS; i++)
        if (g->image_mask[i])
            judge(c, "image_tokens of camera", i % OPENPI_CAMERAS, i / OPENPI_CAMERAS, s->image_tokens[i], images);
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

static openpi_status begin_stages(verify_case *c, const golden_model *g, stages *s, openpi_error *error) {
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

/* ---- actions ---------------------------------------------------------------------------------------- */

static void judge_actions(verify_case *c, const golden_model *g, const char *what) {
    distance d = {0}, rounded = {0};
    for (int64_t i = 0; i < g->B * g->H * STATE; i++) {
        distance_add(&d, (double)g->actions[i], (double)g->truth[i]);
        distance_add(&rounded, (double)g->rounded[i], (double)g->truth[i]);
    }
    if (c->options->dtype == OPENPI_F32) {
        int jax = !strcmp(g->truth_name, "actions.jax_f32"), cpu = !strncmp(c->row.device, "cpu", 3);
        case_actions(c, what, &d, jax ? (cpu ? 1e-4 : 3e-4) : (cpu ? 5e-4 : 1e-3), 0);
    } else {
        case_actions(c, what, &d, g->rounded_max * rounded.max, g->rounded_rms * distance_rms(&rounded));
    }
}

static openpi_status run(verify_case *c, golden_model *g, openpi_error *error) {
    openpi_engine *engine;
    openpi_session *session;
    stages s = {0};
    int H = (int)g->H, N = (int)g->N, L = (int)g->L, f32 = c->options->dtype == OPENPI_F32;
    TRY(case_engine(c, &g->synthetic, &engine, error));
    TRY(case_session(c, engine, (int)g->B, H, N, L, &session, error));
    for (int k = 0; k < N; k++)
        if (!(session->plan->times[k] == g->time[k]))
            case_fail(c, "time of step %d is %.9g, expected %.9g", k, (double)session->plan->times[k], (double)g->time[k]);
    if (f32) {
        TRY(begin_stages(c, g, &s, error));
        openpi_session_observe(session, observe, &s);
    }
    TRY(openpi_session_run(session, g->samples, (int)g->B, g->noise, g->actions, NULL, error));
    if (f32) judge_stages(c, g, &s);
    judge_actions(c, g, "actions");
    if (g->B == 1 || c->options->batch_only) return OPENPI_OK;
    TRY(case_session(c, engine, 1, H, N, L, &session, error));
    for (int64_t b = 0; b < g->B; b++)
        TRY(openpi_session_run(session, &g->samples[b], 1, g->noise + b * g->H * STATE, g->actions + b * g->H * STATE, NULL,
                               error));
    judge_actions(c, g, "actions of samples run alone");
    return OPENPI_OK;
}

static openpi_status model_case(verify_case *c, const char *path, openpi_error *error) {
    golden_model g = {0};
    tensors *file;
    snprintf(c->row.dtype, sizeof c->row.dtype, "%s", c->options->dtype == OPENPI_F32 ? "f32" : "bf16");
    TRY(case_manifest(c, path, error));
    TRY(case_open(c, path, &file, error));
    TRY(read_metadata(file, path, &g, error));
    TRY(read_inputs(c, file, path, &g, error));
    TRY(read_actions(c, file, &g, error));
    TRY(read_stages(c, file, &g, error));
    TRY(prepare(c, &g, error));
    if (g.input_seed >= 0) case_generated(c, (uint64_t)g.input_seed, (int)g.B, g.images, g.image_mask, g.state);
    check_golden(c, &g);
    return run(c, &g, error);
}

openpi_status verify_model(verify_walk *walk, const char *path, openpi_error *error) {
    verify_case c;
    char name[sizeof c.row.name];
    verify_name(path, name, sizeof name);
    case_begin(&c, walk, name);
    case_end(&c, walk, model_case(&c, path, error), error);
    return OPENPI_OK;
}
