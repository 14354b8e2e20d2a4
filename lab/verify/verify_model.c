/* Model goldens: prepared tensors and noise -> normalised actions, with every stage on the way.
 *
 *   the golden itself   inputs as generated, Euler steps and actions agree with each other
 *   fp32                times, image tokens, K and V, first suffix, velocities, x: 1e-3 of the largest value
 *   actions             against openpi's fp32: the batch as one call, the batch repeated, each sample alone
 *
 * Rows of K and V are stored by their place in the padded prefix (768 + L); the engine has only the valid
 * ones. verify_model.h holds what recorded goldens share with these. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/report.h"
#include "lab/verify/eight_bits.h"
#include "lab/verify/verify_model.h"
#include "openpi_internal.h"

enum {
    PADDED_IMAGES = OPENPI_CAMERAS * OPENPI_IMAGE_TOKENS,
    STATE = OPENPI_ACTION_DIM
};

/* ---- reading ---------------------------------------------------------------------------------------- */

static openpi_status read_metadata(const tensors *file, const char *path, golden_model *g,
                                   int64_t *input_seed, openpi_error *error) {
    int64_t seed;
    const char *dims = tensors_metadata(file, "dims");
    if (!dims)
        return report(error, OPENPI_BAD_FILE, "%s: metadata dims is absent, expected the model's sizes",
                      path);
    TRY(openpi_dims_parse(dims, &g->synthetic.dims, error));
    TRY(golden_variant(file, path, &g->synthetic.variant, error));
    TRY(golden_integer(file, path, "seed", 0, INT64_MAX, -1, &seed, error));
    TRY(golden_integer(file, path, "input_seed", 0, INT64_MAX, -1, input_seed, error));
    TRY(golden_integer(file, path, "horizon", 1, OPENPI_MAX_HORIZON, -1, &g->H, error));
    TRY(golden_integer(file, path, "steps", 1, OPENPI_MAX_STEPS, -1, &g->N, error));
    TRY(golden_integer(file, path, "max_tokens", 1, 4096, -1, &g->L, error));
    g->synthetic.seed = (uint64_t)seed;
    return OPENPI_OK;
}

openpi_status model_inputs(verify_case *c, const tensors *file, const char *path, golden_model *g,
                           openpi_error *error) {
    int64_t shape[] = {-1, OPENPI_CAMERAS};
    TRY(golden_u8(c, file, "in.image_mask", 2, shape, &g->image_mask, error));
    g->B = shape[0];
    if (g->B < 1 || g->B > OPENPI_MAX_BATCH)
        return report(error, OPENPI_BAD_FILE, "%s: a batch of %" PRId64 ", expected 1 to %d", path, g->B,
                      OPENPI_MAX_BATCH);
    int64_t pictures[] = {g->B, OPENPI_CAMERAS, OPENPI_IMAGE_SIZE, OPENPI_IMAGE_SIZE, 3};
    const tensor *images = tensors_find(file, "in.images");
    uint8_t *bytes = NULL;
    float *floats = NULL;
    g->pixels = images && images->type == DTYPE_F32 ? OPENPI_PIXELS_F32 : OPENPI_PIXELS_U8;
    if (g->pixels == OPENPI_PIXELS_F32) TRY(golden_f32(c, file, "in.images", 5, pictures, &floats, error));
    else TRY(golden_u8(c, file, "in.images", 5, pictures, &bytes, error));
    g->images = floats ? (void *)floats : bytes;
    TRY(golden_i32(c, file, "in.tokens", 2, SHAPE(g->B, g->L), &g->tokens, error));
    TRY(golden_u8(c, file, "in.token_mask", 2, SHAPE(g->B, g->L), &g->token_mask, error));
    TRY(golden_f32(c, file, "in.state", 2, SHAPE(g->B, STATE), &g->state, error));
    return golden_f32(c, file, "in.noise", 3, SHAPE(g->B, g->H, STATE), &g->noise, error);
}

/* The bf16 bound: the distance of openpi's bf16 from its fp32, times a factor for another order of roundings.
 */
static openpi_status read_actions(verify_case *c, const tensors *file, golden_model *g, openpi_error *error) {
    int jax = tensors_find(file, "actions.jax_f32") != NULL;
    float *rounded;
    distance d = {0};
    g->truth_name = jax ? "actions.jax_f32" : "actions.torch_f32";
    g->bound_cpu = jax ? 1e-4 : 5e-4;
    g->bound_gpu = jax ? 3e-4 : 1e-3;
    g->agree = 1e-5;
    TRY(golden_f32(c, file, g->truth_name, 3, SHAPE(g->B, g->H, STATE), &g->truth, error));
    TRY(golden_f32(c, file, "actions.torch_f32", 3, SHAPE(g->B, g->H, STATE), &g->torch, error));
    TRY(golden_f32(c, file, jax ? "actions.jax_bf16" : "actions.torch_bf16_exact_rotary", 3,
                   SHAPE(g->B, g->H, STATE), &rounded, error));
    for (int64_t i = 0; i < g->B * g->H * STATE; i++)
        distance_add(&d, (double)rounded[i], (double)g->truth[i]);
    distance_bounds(&d, jax ? 1.15 : 1.25, 2, &g->bound_bf16_max, &g->bound_bf16_rms);
    return OPENPI_OK;
}

openpi_status model_stages(verify_case *c, const tensors *file, golden_model *g, openpi_error *error) {
    const openpi_dims *d = &g->synthetic.dims;
    int64_t suffix_rows = g->H + variant_of(g->synthetic.variant)->state_token, rows[] = {-1};
    int64_t image_tokens[] = {g->B, OPENPI_CAMERAS, -1, d->width};
    TRY(golden_f32(c, file, "stage.image_tokens", 4, image_tokens, &g->image_tokens, error));
    g->kept = image_tokens[2];
    if (g->kept < 1 || (g->kept - 1) * 29 >= OPENPI_IMAGE_TOKENS)
        return report(error, OPENPI_BAD_FILE,
                      "stage.image_tokens holds %" PRId64 " tokens a camera, expected every 29th", g->kept);
    TRY(golden_i32(c, file, "stage.rows", 1, rows, &g->rows, error));
    g->R = rows[0];
    TRY(golden_f32(c, file, "stage.k", 4, SHAPE(d->depth, g->B, g->R, d->head_dim), &g->k, error));
    TRY(golden_f32(c, file, "stage.v", 4, SHAPE(d->depth, g->B, g->R, d->head_dim), &g->v, error));
    TRY(golden_f32(c, file, "stage.suffix0", 3, SHAPE(g->B, suffix_rows, d->expert_width), &g->suffix,
                   error));
    TRY(golden_f32(c, file, "stage.time", 1, SHAPE(g->N), &g->time, error));
    TRY(golden_f32(c, file, "stage.velocity", 4, SHAPE(g->B, g->N, g->H, STATE), &g->velocity, error));
    return golden_f32(c, file, "stage.x", 4, SHAPE(g->B, g->N, g->H, STATE), &g->x, error);
}

/* ---- the golden itself ------------------------------------------------------------------------------ */

void model_consistent(verify_case *c, const golden_model *g) {
    int64_t one = g->H * STATE;
    float dt = (float)(-1.0 / (double)g->N);
    for (int64_t b = 0; b < g->B; b++) {
        for (int64_t k = 0; k < g->N; k++) {
            const float *from = k ? g->x + (b * g->N + k - 1) * one : g->noise + b * one;
            const float *v = g->velocity + (b * g->N + k) * one, *to = g->x + (b * g->N + k) * one;
            for (int64_t i = 0; i < one; i++) {
                float expected = from[i] + dt * v[i];
                if (fabsf(to[i] - expected) <= 1e-6f + 2.5e-7f * fabsf(expected)) continue;
                case_fail(
                    c,
                    "the golden's stage.x of step %d, sample %d, element %d is %.9g, but the step before and "
                    "stage.velocity give %.9g",
                    (int)k, (int)b, (int)i, (double)to[i], (double)expected);
                return;
            }
        }
        const float *last = g->x + (b * g->N + g->N - 1) * one;
        for (int64_t i = 0; i < one; i++) {
            int64_t at = b * one + i;
            if (!(fabs((double)g->truth[at] - (double)last[i]) <= g->agree))
                case_fail(c, "the golden's %s, sample %d, element %d is %.9g, but its stage.x ends at %.9g",
                          g->truth_name, (int)b, (int)i, (double)g->truth[at], (double)last[i]);
            if (g->torch && !(fabsf(g->truth[at] - g->torch[at]) <= 2e-4f))
                case_fail(c, "the golden's actions.torch_f32, sample %d, element %d is %.9g, but %s has %.9g",
                          (int)b, (int)i, (double)g->torch[at], g->truth_name, (double)g->truth[at]);
        }
    }
}

openpi_status model_prepare(verify_case *c, golden_model *g, openpi_error *error) {
    int32_t *tokens;
    size_t pixel = g->pixels == OPENPI_PIXELS_F32 ? sizeof(float) : 1;
    TRY(case_take(c, (size_t)g->B, sizeof *g->samples, &g->samples, error));
    TRY(case_take(c, (size_t)(g->B * g->L), sizeof *tokens, &tokens, error));
    TRY(case_take(c, (size_t)(g->B * g->R), sizeof *g->compact, &g->compact, error));
    TRY(case_take(c, (size_t)(g->B * g->H * STATE), sizeof *g->actions, &g->actions, error));
    for (int64_t b = 0; b < g->B; b++) {
        const uint8_t *cameras = g->image_mask + b * OPENPI_CAMERAS, *valid = g->token_mask + b * g->L;
        openpi_sample *s = &g->samples[b];
        int before[PADDED_IMAGES / OPENPI_IMAGE_TOKENS + 1] = {0};
        int32_t *ids = tokens + b * g->L;
        *s = (openpi_sample){
            .size = sizeof *s, .pixels = g->pixels, .tokens = ids, .state = g->state + b * STATE};
        for (int i = 0; i < OPENPI_CAMERAS; i++) {
            s->images[i] =
                (const uint8_t *)g->images + (size_t)(b * OPENPI_CAMERAS + i) * MODEL_PIXELS * pixel;
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
                case_fail(c, "in.tokens, sample %d: the padding has id %d at %d", (int)b,
                          (int)g->tokens[b * g->L + i], (int)i);
        }
    }
    return OPENPI_OK;
}

/* ---- actions ---------------------------------------------------------------------------------------- */

void model_judge_actions(verify_case *c, const golden_model *g, const char *what, const distance *d) {
    if (c->options->dtype != OPENPI_F32 || g->eight_bits)
        case_actions(c, what, d, g->bound_bf16_max, g->bound_bf16_rms);
    else case_actions(c, what, d, strncmp(c->row.device, "cpu", 3) ? g->bound_gpu : g->bound_cpu, 0);
}

static void judge(verify_case *c, const golden_model *g, const char *what) {
    distance d = {0};
    for (int64_t i = 0; i < g->B * g->H * STATE; i++)
        distance_add(&d, (double)g->actions[i], (double)g->truth[i]);
    model_judge_actions(c, g, what, &d);
}

/* Repeats the golden's samples, at least MANY in a call, each time in another order: detects faults of late
 * samples. */
static openpi_status judge_many(verify_case *c, const golden_model *g, openpi_engine *engine,
                                openpi_error *error) {
    enum { MANY = 5 };
    int B = (int)g->B, count = (MANY + B - 1) / B * B;
    size_t one = (size_t)g->H * STATE;
    openpi_session *session;
    openpi_sample *samples;
    float *noise, *actions;
    distance d = {0};
    TRY(case_take(c, (size_t)count, sizeof *samples, &samples, error));
    TRY(case_take(c, (size_t)count * one, sizeof *noise, &noise, error));
    TRY(case_take(c, (size_t)count * one, sizeof *actions, &actions, error));
    for (int i = 0; i < count; i++) {
        int b = (i + i / B) % B;
        samples[i] = g->samples[b];
        memcpy(noise + (size_t)i * one, g->noise + (size_t)b * one, one * sizeof *noise);
    }
    TRY(case_session(c, engine, count, (int)g->H, (int)g->N, (int)g->L, &session, error));
    TRY(openpi_session_run(session, samples, count, noise, actions, NULL, error));
    for (int i = 0; i < count; i++)
        for (size_t j = 0; j < one; j++)
            distance_add(&d, (double)actions[(size_t)i * one + j],
                         (double)g->truth[(size_t)((i + i / B) % B) * one + j]);
    model_judge_actions(c, g, "actions of a batch of many", &d);
    return OPENPI_OK;
}

void model_widen(golden_model *g, const openpi_engine *engine) {
    g->eight_bits = eight_bits_widen(engine->model, g->truth, g->noise, (size_t)(g->B * g->H * STATE),
                                     &g->bound_bf16_max, &g->bound_bf16_rms);
}

openpi_status model_judge(verify_case *c, golden_model *g, openpi_engine *engine, openpi_error *error) {
    openpi_session *session;
    stages s = {0};
    model_widen(g, engine);
    int H = (int)g->H, N = (int)g->N, L = (int)g->L,
        observed = c->options->dtype == OPENPI_F32 && g->time && !g->eight_bits;
    TRY(case_session(c, engine, (int)g->B, H, N, L, &session, error));
    for (int k = 0; k < N && g->time; k++)
        if (!(session->plan->times[k] == g->time[k]))
            case_fail(c, "time of step %d is %.9g, expected %.9g", k, (double)session->plan->times[k],
                      (double)g->time[k]);
    if (observed) {
        TRY(stages_begin(c, g, &s, error));
        openpi_session_observe(session, stages_observe, &s);
    }
    TRY(openpi_session_run(session, g->samples, (int)g->B, g->noise, g->actions, NULL, error));
    if (observed) stages_judge(c, g, &s);
    judge(c, g, "actions");
    if (g->B == 1 || c->options->batch_only) return OPENPI_OK;
    TRY(judge_many(c, g, engine, error));
    TRY(case_session(c, engine, 1, H, N, L, &session, error));
    for (int64_t b = 0; b < g->B; b++)
        TRY(openpi_session_run(session, &g->samples[b], 1, g->noise + b * g->H * STATE,
                               g->actions + b * g->H * STATE, NULL, error));
    judge(c, g, "actions of samples run alone");
    return OPENPI_OK;
}

static openpi_status model_case(verify_case *c, const char *path, openpi_error *error) {
    golden_model g = {.synthetic = OPENPI_SYNTHETIC_INIT};
    tensors *file;
    openpi_engine *engine;
    int64_t input_seed;
    snprintf(c->row.dtype, sizeof c->row.dtype, "%s", c->options->dtype == OPENPI_F32 ? "f32" : "bf16");
    TRY(case_manifest(c, path, error));
    TRY(case_open(c, path, &file, error));
    TRY(read_metadata(file, path, &g, &input_seed, error));
    TRY(model_inputs(c, file, path, &g, error));
    if (g.pixels != OPENPI_PIXELS_U8)
        return report(error, OPENPI_BAD_FILE, "%s: tensor in.images is F32, expected U8", path);
    TRY(read_actions(c, file, &g, error));
    TRY(model_stages(c, file, &g, error));
    TRY(model_prepare(c, &g, error));
    TRY(case_generated(c, (uint64_t)input_seed, (int)g.B, g.images, g.image_mask, g.state, error));
    model_consistent(c, &g);
    TRY(case_engine(c, &g.synthetic, &engine, error));
    return model_judge(c, &g, engine, error);
}

openpi_status verify_model(verify_walk *walk, const char *path, openpi_error *error) {
    verify_case c;
    char name[sizeof c.row.name];
    verify_name(path, name, sizeof name);
    case_begin(&c, walk, name);
    case_end(&c, walk, model_case(&c, path, error), error);
    return OPENPI_OK;
}
