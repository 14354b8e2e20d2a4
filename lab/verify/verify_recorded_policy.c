/* Recorded goldens at policy level: an observation as a client sends it, the prepared sample, the robot's
 * actions.
 *
 * Robot actions are model actions through an affine map a dimension, and are judged in units of that map's
 * slope. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "base/report.h"
#include "lab/verify/verify_recorded.h"
#include "openpi_internal.h"

static void compare_pictures(verify_case *c, const golden_model *g, const openpi_sample *s, int64_t b) {
    static const char *const slots[OPENPI_CAMERAS] = {"base", "left wrist", "right wrist"};
    char what[64];
    snprintf(what, sizeof what, "image_mask, observation %d", (int)b);
    case_same_u8(c, what, s->image_mask, g->image_mask + b * OPENPI_CAMERAS, OPENPI_CAMERAS);
    if (s->pixels != g->pixels)
        case_fail(c, "pictures: the engine prepares %s", s->pixels ? "floats" : "bytes");
    for (int i = 0; i < OPENPI_CAMERAS && s->pixels == g->pixels; i++) {
        int64_t at = (b * OPENPI_CAMERAS + i) * MODEL_PIXELS;
        snprintf(what, sizeof what, "picture of slot %s, observation %d", slots[i], (int)b);
        if (!s->image_mask[i] || !g->image_mask[b * OPENPI_CAMERAS + i]) continue;
        if (s->pixels == OPENPI_PIXELS_U8) {
            case_same_u8(c, what, s->images[i], (const uint8_t *)g->images + at, MODEL_PIXELS);
            continue;
        }
        distance d = {0};
        for (int64_t p = 0; p < MODEL_PIXELS; p++)
            distance_add(&d, (double)((const float *)s->images[i])[p],
                         (double)((const float *)g->images)[at + p]);
        if (!(d.max <= 2e-6))
            case_fail(c, "%s: element %" PRId64 " is off by %.2e, allowed 2e-6", what, d.worst, d.max);
    }
}

/* LeRobot computes in fp32 and openpi in fp64: exact, and to rounding. */
static void compare_numbers(verify_case *c, const recorded *r, const char *what, const double *got,
                            const double *expected, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        double allowed = r->lerobot ? 0 : 1e-12 * fmax(1, fabs(expected[i]));
        double found = r->lerobot ? (double)(float)got[i] : got[i];
        if (fabs(found - expected[i]) <= allowed) continue;
        case_fail(c, "%s: element %" PRId64 " is %.17g, expected %.17g", what, i, found, expected[i]);
        return;
    }
}

static void compare_sample(verify_case *c, const recorded *r, const openpi_request *request,
                           const openpi_sample *s, int64_t b) {
    const golden_model *g = &r->model;
    char what[48];
    double padded[DIMS] = {0};
    int count;
    const double *state = openpi_request_state(request, &count);
    compare_pictures(c, g, s, b);
    snprintf(what, sizeof what, "tokens, observation %d", (int)b);
    case_prompt(c, what, s->tokens, s->token_count, g->tokens + b * g->L, g->token_mask + b * g->L,
                (int)g->L);
    for (int i = 0; i < count && i < DIMS; i++) padded[i] = state[i];
    snprintf(what, sizeof what, "normalised state, observation %d", (int)b);
    compare_numbers(c, r, what, padded, r->state + b * DIMS, DIMS);
    snprintf(what, sizeof what, "the model's state, observation %d", (int)b);
    if (s->state) case_same_f32(c, what, s->state, g->state + b * DIMS, DIMS);
}

/* The robot's actions from the golden's own model actions. LeRobot: exact. openpi's PyTorch policy keeps the
 * normalised state, which absolute actions add, in fp64; its JAX policy, whose results this engine follows,
 * rounds it to fp32. */
static void compare_finished(verify_case *c, const recorded *r, const double *slope, const double *got,
                             const double *expected, int64_t b) {
    for (int64_t i = 0; i < r->model.H * r->A; i++) {
        double allowed = r->lerobot ? 0 : 1e-6 * fmax(slope[i % r->A], fabs(expected[i]));
        double found = r->lerobot ? (double)(float)got[i] : got[i];
        if (fabs(found - expected[i]) <= allowed) continue;
        case_fail(c,
                  "robot actions of the golden's actions.f32, observation %d: step %d, dimension %d is %.9g, "
                  "expected %.9g",
                  (int)b, (int)(i / r->A), (int)(i % r->A), found, expected[i]);
        return;
    }
}

/* The slope of each robot action over its dimension of the chunk; 1 where it is nearly 0. */
static openpi_status slopes(const recorded *r, const openpi_request *request, double *slope,
                            openpi_error *error) {
    float chunk[2 * DIMS] = {0};
    double ends[2 * DIMS];
    for (int i = 0; i < DIMS; i++) chunk[DIMS + i] = 1;
    TRY(openpi_request_finish(request, chunk, 2, ends, 2 * DIMS, error));
    for (int64_t i = 0; i < r->A; i++) {
        slope[i] = fabs(ends[r->A + i] - ends[i]);
        if (slope[i] < 1e-6) slope[i] = 1;
    }
    return OPENPI_OK;
}

/* Adds one observation's distances to `d`. */
static openpi_status one_observation(verify_case *c, const recorded *r, openpi_session *session,
                                     openpi_request *request, const uint8_t *bytes, size_t count, int64_t b,
                                     distance *d, openpi_error *error) {
    const golden_model *g = &r->model;
    float *chunk;
    double *actions, slope[DIMS];
    openpi_sample sample = OPENPI_SAMPLE_INIT;
    size_t capacity = (size_t)(g->H * r->A);
    const double *expected = r->actions + b * g->H * r->A;
    TRY(case_take(c, (size_t)(g->H * DIMS), sizeof *chunk, &chunk, error));
    TRY(case_take(c, capacity, sizeof *actions, &actions, error));
    TRY(openpi_request_prepare_msgpack(request, bytes, count, NULL, error));
    TRY(openpi_request_sample(request, &sample, error));
    compare_sample(c, r, request, &sample, b);
    TRY(slopes(r, request, slope, error));
    if (g->truth) {
        TRY(openpi_request_finish(request, g->truth + b * g->H * DIMS, (int)g->H, actions, capacity, error));
        compare_finished(c, r, slope, actions, expected, b);
    }
    TRY(openpi_session_run(session, &sample, 1, g->noise + b * g->H * DIMS, chunk, NULL, error));
    TRY(openpi_request_finish(request, chunk, (int)g->H, actions, capacity, error));
    for (int64_t i = 0; i < g->H * r->A; i++) {
        /* LeRobot's actions are fp32: their last place is no error of the model. */
        double off = fabs(actions[i] - expected[i]), place = r->lerobot ? fabs(expected[i]) * 0x1p-23 : 0;
        distance_add(d, off - off == 0 ? fmax(0, off - place) / slope[i % r->A] : off, 0);
    }
    return OPENPI_OK;
}

static openpi_status open_policy(verify_case *c, const recorded *r, openpi_policy **policy,
                                 openpi_request **request, openpi_error *error) {
    const golden_model *g = &r->model;
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    openpi_policy_info info = OPENPI_POLICY_INFO_INIT;
    options.robot = c->options->robot;
    options.config = c->options->config || c->options->robot ? c->options->config : r->config;
    options.norm_stats = c->options->norm_stats;
    options.adapter = c->options->adapter;
    options.without_lora = c->options->without_lora;
    options.assets = c->options->assets;
    options.horizon = (int)g->H;
    options.tokenizer = c->options->tokenizer;
    options.tokenizer_cache = c->options->tokenizer_cache;
    TRY(case_policy(c, c->options->checkpoint, &options, policy, request, error));
    TRY(openpi_policy_get_info(*policy, &info, error));
    if (info.max_prompt != g->L)
        return report(error, OPENPI_BAD_INPUT, "the policy's prompts have up to %d tokens, those recorded %d",
                      info.max_prompt, (int)g->L);
    if (info.horizon && info.horizon != g->H)
        return report(error, OPENPI_BAD_INPUT, "the policy's chunk has %d steps, the one recorded %d",
                      info.horizon, (int)g->H);
    if (info.action_dim != r->A)
        return report(error, OPENPI_BAD_INPUT,
                      "the robot \"%s\" has %d action dimensions, the one recorded %d", info.robot,
                      info.action_dim, (int)r->A);
    return OPENPI_OK;
}

/* 0: skipped. The bound for 8 bits comes from the golden's model actions. */
static int has_bounds(verify_case *c, recorded *r) {
    if (r->model.truth) model_widen(&r->model, r->engine);
    else if (formats_have_8_bits(&r->engine->model->types)) {
        c->row.result = VERIFY_SKIPPED;
        snprintf(c->row.detail, sizeof c->row.detail,
                 "no actions.f32 in the golden, of which the bound for 8-bit weights is made");
        return 0;
    }
    return 1;
}

openpi_status recorded_policy_level(verify_case *c, recorded *r, openpi_error *error) {
    golden_model *g = &r->model;
    tensors *file;
    openpi_policy *policy;
    openpi_request *request;
    openpi_session *session;
    int judged;
    distance d = {0};
    TRY(recorded_read(c, r, &file, &judged, error));
    if (!judged) return OPENPI_OK;
    int64_t shape[] = {g->B, g->H, -1};
    TRY(golden_f64(c, file, "policy.state", 2, SHAPE(g->B, DIMS), &r->state, error));
    TRY(golden_f64(c, file, "policy.actions", 3, shape, &r->actions, error));
    r->A = shape[2];
    TRY(open_policy(c, r, &policy, &request, error));
    TRY(recorded_engine(c, r, error));
    if (!has_bounds(c, r)) return OPENPI_OK;
    TRY(case_session(c, r->engine, 1, (int)g->H, (int)g->N, (int)g->L, &session, error));
    for (int64_t b = 0; b < g->B; b++) {
        char name[32];
        int64_t length[] = {-1};
        uint8_t *bytes;
        snprintf(name, sizeof name, "request.%d", (int)b);
        TRY(golden_u8(c, file, name, 1, length, &bytes, error));
        TRY(one_observation(c, r, session, request, bytes, (size_t)length[0], b, &d, error));
    }
    model_judge_actions(c, g, "robot actions in units of the model's", &d);
    return OPENPI_OK;
}
