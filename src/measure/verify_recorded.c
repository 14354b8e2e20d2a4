/* Goldens that a user recorded with tools/record-golden: openpi's or LeRobot's own results on the user's
 * checkpoint and observations. docs/verify.md describes the file.
 *
 *   identity        the tensors of --checkpoint are those that were recorded: names, shapes, a hash of values
 *   model level     prepared tensors and noise -> normalised actions, with every stage (verify_model.h)
 *   policy level    an observation as a client sends it -> the prepared sample -> robot actions
 *
 * The weights are anybody's, so bounds are relative. fp32: x holds rounding errors in proportion to its
 * largest value, so the actions may be off by 1e-4 of it (2e-4 on a GPU): the bound of the project's
 * full-size goldens, whose largest value is 4 to 5. bf16: the recorder also ran the model in bf16; its
 * distance from its own fp32 sets the bound. Robot actions are model actions through an affine map a
 * dimension, and are judged in units of that map's slope. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/report.h"
#include "measure/verify_model.h"
#include "model/tensors_build.h"

enum { DIMS = OPENPI_ACTION_DIM, EDGE = 256 };

#define SHAPE(...) ((int64_t[]){__VA_ARGS__})

static const char format_name[] = "openpi golden 1";
static const double bound_cpu = 1e-4, bound_gpu = 2e-4;      /* of the largest value of x                  */
static const double bf16_rms = 1.5, bf16_max = 3;            /* times the recorded bf16's own distance     */

typedef struct recorded {
    const char *path;
    openpi_engine *engine;       /* shared by the rows of one dtype; NULL until one needs it              */
    golden_model model;
    int lerobot, rounded;        /* rounded: 1 if the golden holds actions.bf16                           */
    const char *config;          /* openpi's name of the training config, NULL: none                      */
    int64_t A;
    double *state, *actions;     /* [B][32], [B][H][A]                                                    */
} recorded;

int verify_is_recorded(const char *path) {
    tensors *file;
    if (tensors_open(path, &file, NULL) != OPENPI_OK) return 0;
    const char *format = tensors_metadata(file, "format");
    int is = format && !strncmp(format, "openpi golden", 13);
    tensors_close(file);
    return is;
}

/* ---- identity --------------------------------------------------------------------------------------- */

/* FNV-1a64 over a tensor's first and last 256 values, as bf16: a checkpoint converted to another type keeps
 * it. */
static uint64_t edges_hash(const tensor *t) {
    uint16_t bits[2 * EDGE];
    int64_t count = t->count < EDGE ? t->count : EDGE;
    tensor_read_bf16(t, 0, count, bits);
    tensor_read_bf16(t, t->count - count, count, bits + count);
    return fnv1a64(bits, (size_t)count * 2 * sizeof *bits);
}

static openpi_status same_tensor(const recorded *r, const tensors *checkpoint, const char *name,
                                 const json_t *row, openpi_error *error) {
    const char *folder = r->path, *hash = json_string_value(json_array_get(row, 1));
    const json_t *shape = json_array_get(row, 0);
    const tensor *t = tensors_find(checkpoint, name);
    char found[17];
    if (!json_is_array(shape) || !hash)
        return report(error, OPENPI_BAD_FILE, "%s: metadata weights: %s has no [shape, hash]", folder, name);
    if (!t)
        return report(error, OPENPI_BAD_INPUT,
                      "recorded from another checkpoint: it has tensor %s, this one has not", name);
    int same = (int)json_array_size(shape) == t->rank;
    for (int i = 0; same && i < t->rank; i++)
        same = json_integer_value(json_array_get(shape, (size_t)i)) == t->shape[i];
    if (!same)
        return report(error, OPENPI_BAD_INPUT,
                      "recorded from another checkpoint: tensor %s has another shape there", name);
    snprintf(found, sizeof found, "%016" PRIx64, edges_hash(t));
    if (strcmp(found, hash))
        return report(error, OPENPI_BAD_INPUT,
                      "recorded from other weights: the hash of tensor %s is %s there, %s in this checkpoint",
                      name, hash, found);
    return OPENPI_OK;
}

static void close_list(void *thing) { tensors_close(thing); }

static openpi_status same_weights(verify_case *c, const recorded *r, const tensors *file,
                                  openpi_error *error) {
    tensors *checkpoint;
    json_t *weights, *row;
    const char *name;
    if (!c->options->checkpoint)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "recorded from a checkpoint of its own: give --checkpoint DIR");
    TRY(golden_json(c, file, r->path, "weights", &weights, error));
    if (!json_object_size(weights))
        return report(error, OPENPI_BAD_FILE,
                      "%s: metadata weights is absent, expected {tensor: [shape, hash]}", r->path);
    TRY(tensors_open(c->options->checkpoint, &checkpoint, error));
    TRY(case_close_later(c, close_list, checkpoint, error));
    tensors_strip_prefix(checkpoint);
    TRY(tensors_finish(checkpoint, error));
    json_object_foreach(weights, name, row) TRY(same_tensor(r, checkpoint, name, row, error));
    return tensors_check(checkpoint, error);
}

/* ---- reading ---------------------------------------------------------------------------------------- */

static openpi_status read_metadata(const tensors *file, recorded *r, openpi_error *error) {
    golden_model *g = &r->model;
    const char *format = tensors_metadata(file, "format"), *layout = tensors_metadata(file, "layout");
    const char *dims = tensors_metadata(file, "dims");
    if (!format || strcmp(format, format_name))
        return report(error, OPENPI_UNSUPPORTED,
                      "%s: metadata format is \"%.40s\", this program reads \"%s\"", r->path,
                      format ? format : "", format_name);
    if (!layout || (strcmp(layout, "openpi") && strcmp(layout, "lerobot")))
        return report(error, OPENPI_BAD_FILE, "%s: metadata layout is \"%.40s\", expected openpi or lerobot",
                      r->path, layout ? layout : "");
    r->lerobot = !strcmp(layout, "lerobot");
    if (!dims) return report(error, OPENPI_BAD_FILE, "%s: metadata dims is absent", r->path);
    TRY(golden_variant(file, r->path, &g->synthetic.variant, error));
    TRY(openpi_dims_parse(dims, &g->synthetic.dims, error));
    TRY(golden_integer(file, r->path, "horizon", 1, OPENPI_MAX_HORIZON, -1, &g->H, error));
    TRY(golden_integer(file, r->path, "steps", 1, OPENPI_MAX_STEPS, -1, &g->N, error));
    TRY(golden_integer(file, r->path, "max_tokens", 1, 4096, -1, &g->L, error));
    r->config = tensors_metadata(file, "config");
    return OPENPI_OK;
}

static double largest(const float *values, int64_t count, double so_far) {
    for (int64_t i = 0; i < count; i++) so_far = fmax(so_far, fabs((double)values[i]));
    return so_far;
}

/* x starts as the noise and ends as the actions: the larger of the two is its scale. */
static openpi_status read_bounds(verify_case *c, const tensors *file, recorded *r, openpi_error *error) {
    golden_model *g = &r->model;
    int64_t count = g->B * g->H * DIMS;
    double scale = largest(g->noise, count, 0);
    distance d = {0};
    float *rounded;
    g->truth_name = "actions.f32";
    if (tensors_find(file, g->truth_name)) {
        TRY(golden_f32(c, file, g->truth_name, 3, SHAPE(g->B, g->H, DIMS), &g->truth, error));
        scale = largest(g->truth, count, scale);
    }
    g->bound_cpu = bound_cpu * scale;
    g->bound_gpu = bound_gpu * scale;
    g->agree = g->bound_cpu / 2;
    r->rounded = g->truth && tensors_find(file, "actions.bf16");
    if (!r->rounded) return OPENPI_OK;
    TRY(golden_f32(c, file, "actions.bf16", 3, SHAPE(g->B, g->H, DIMS), &rounded, error));
    for (int64_t i = 0; i < count; i++) distance_add(&d, (double)rounded[i], (double)g->truth[i]);
    g->bound_bf16_max = bf16_max * d.max;
    g->bound_bf16_rms = bf16_rms * distance_rms(&d);
    return OPENPI_OK;
}

/* *judged: 0 where the case was skipped. */
static openpi_status read_golden(verify_case *c, recorded *r, tensors **file, int *judged,
                                 openpi_error *error) {
    snprintf(c->row.dtype, sizeof c->row.dtype, "%s", c->options->dtype == OPENPI_F32 ? "f32" : "bf16");
    TRY(case_manifest(c, r->path, error));
    TRY(case_open(c, r->path, file, error));
    TRY(read_metadata(*file, r, error));
    TRY(same_weights(c, r, *file, error));
    TRY(model_inputs(c, *file, r->path, &r->model, error));
    TRY(read_bounds(c, *file, r, error));
    *judged = c->options->dtype == OPENPI_F32 || r->rounded;
    if (*judged) return OPENPI_OK;
    c->row.result = VERIFY_SKIPPED;
    snprintf(c->row.detail, sizeof c->row.detail,
             "no actions.bf16 in the golden, whose distance from actions.f32 is the bound");
    return OPENPI_OK;
}

static int same_dims(const openpi_dims *a, const openpi_dims *b) { return !memcmp(a, b, sizeof *a); }

static openpi_status need_engine(verify_case *c, recorded *r, openpi_error *error) {
    openpi_engine_info info = OPENPI_ENGINE_INFO_INIT;
    const golden_model *g = &r->model;
    if (!r->engine) TRY(case_checkpoint(c, &r->engine, error));
    case_on_engine(c, r->engine);
    TRY(openpi_engine_get_info(r->engine, &info, error));
    if (info.variant != g->synthetic.variant || info.lerobot != r->lerobot ||
        !same_dims(&info.dims, &g->synthetic.dims))
        return report(error, OPENPI_BAD_INPUT, "recorded from another checkpoint: its %s differs",
                      info.variant != g->synthetic.variant ? "variant (π0 or π0.5)"
                      : info.lerobot != r->lerobot         ? "layout (openpi or LeRobot)"
                                                           : "sizes");
    return OPENPI_OK;
}

/* ---- model level ------------------------------------------------------------------------------------ */

static openpi_status model_level(verify_case *c, recorded *r, openpi_error *error) {
    golden_model *g = &r->model;
    tensors *file;
    int judged;
    TRY(read_golden(c, r, &file, &judged, error));
    if (!judged) return OPENPI_OK;
    if (tensors_find(file, "stage.time")) TRY(model_stages(c, file, g, error));
    TRY(model_prepare(c, g, error));
    if (g->time) model_consistent(c, g);
    TRY(need_engine(c, r, error));
    return model_judge(c, g, r->engine, error);
}

/* ---- policy level ----------------------------------------------------------------------------------- */

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

/* The golden's own model actions as the robot gets them. LeRobot: exact. openpi's PyTorch policy keeps the
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

/* How much each robot action moves with its dimension of the chunk. Where it hardly does, 1. */
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

static openpi_status policy_level(verify_case *c, recorded *r, openpi_error *error) {
    const golden_model *g = &r->model;
    tensors *file;
    openpi_policy *policy;
    openpi_request *request;
    openpi_session *session;
    int judged;
    distance d = {0};
    TRY(read_golden(c, r, &file, &judged, error));
    if (!judged) return OPENPI_OK;
    int64_t shape[] = {g->B, g->H, -1};
    TRY(golden_f64(c, file, "policy.state", 2, SHAPE(g->B, DIMS), &r->state, error));
    TRY(golden_f64(c, file, "policy.actions", 3, shape, &r->actions, error));
    r->A = shape[2];
    TRY(open_policy(c, r, &policy, &request, error));
    TRY(need_engine(c, r, error));
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

/* ---- rows ------------------------------------------------------------------------------------------- */

static const struct {
    const char *name,
        *tensor; /* of the level, and the one tensor that shows that it was recorded            */
    openpi_status (*judge)(verify_case *c, recorded *r, openpi_error *error);
} levels[] = {{"model", "actions.f32", model_level}, {"policy", "request.0", policy_level}};

enum { LEVELS = sizeof levels / sizeof *levels };

static openpi_status recorded_levels(const char *path, int *has, openpi_error *error) {
    tensors *file;
    TRY(tensors_open(path, &file, error));
    int any = 0, known = tensors_metadata(file, "format") != NULL;
    for (int i = 0; i < LEVELS; i++) any |= has[i] = tensors_find(file, levels[i].tensor) != NULL;
    tensors_close(file);
    if (!known)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "not recorded by tools/record-golden: verify it without --checkpoint");
    return any ? OPENPI_OK
               : report(error, OPENPI_BAD_FILE, "%s: neither actions.f32 nor request.0: nothing was recorded",
                        path);
}

openpi_status verify_recorded(verify_walk *walk, const char *path, openpi_error *error) {
    static const openpi_dtype dtypes[] = {OPENPI_F32, OPENPI_BF16};
    const openpi_dtype given = walk->options.dtype;
    int has[LEVELS];
    char name[sizeof((verify_row *)0)->name];
    verify_case c;
    verify_name(path, name, sizeof name);
    openpi_status status = recorded_levels(path, has, error);
    if (status != OPENPI_OK) {
        case_begin(&c, walk, name);
        case_end(&c, walk, status, error);
        return OPENPI_OK;
    }
    for (int t = 0; t < 2; t++) {
        openpi_engine *engine = NULL;
        if (dtypes[t] != given && !walk->every_dtype) continue;
        walk->options.dtype = dtypes[t];
        for (int i = 0; i < LEVELS; i++) {
            recorded r = {.path = path, .engine = engine, .model.synthetic = OPENPI_SYNTHETIC_INIT};
            char row[2 * sizeof name];
            if (!has[i]) continue;
            snprintf(row, sizeof row, "%s %s", name, levels[i].name);
            case_begin(&c, walk, row);
            case_end(&c, walk, levels[i].judge(&c, &r, error), error);
            engine = r.engine;
        }
        openpi_engine_close(engine);
    }
    walk->options.dtype = given;
    return OPENPI_OK;
}
