/* Policy goldens: the bytes that an openpi client sends -> the robot's actions, and the prepared sample
 * between.
 *
 * The golden's metadata is its robot: it becomes a robot's JSON, in the form that users write. Actions [H][A]
 * are judged in units of their standard deviation, as tests/golden/README.md defines.
 *
 * Note: a changed expected action could be within the bound. But actions are an affine map of an fp32 chunk,
 * dimension by dimension, so the inverse map must give an fp32 number. */
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/report.h"
#include "lab/verify/verify_case.h"

enum { STEPS = 10, PICTURE = OPENPI_IMAGE_SIZE * OPENPI_IMAGE_SIZE * 3 };

typedef struct golden_policy {
    const char *folder;
    openpi_synthetic synthetic;
    int discrete_state;
    int64_t H, L, A;
    uint8_t *images, *image_mask, *token_mask;
    int32_t *tokens;
    float *noise;
    double *state, *actions;
    double std[DIMS];
    const openpi_request *request;
    openpi_sample sample;        /* its bytes                                                             */
} golden_policy;

static openpi_status read_metadata(const tensors *file, const char *name, golden_policy *g,
                                   openpi_error *error) {
    int64_t seed;
    TRY(golden_variant(file, name, &g->synthetic.variant, error));
    const variant_traits *traits = variant_of(g->synthetic.variant);
    TRY(golden_boolean(file, name, "discrete_state", traits->state_in_prompt, &g->discrete_state, error));
    TRY(golden_integer(file, name, "seed", 0, INT64_MAX, -1, &seed, error));
    TRY(golden_integer(file, name, "horizon", 1, OPENPI_MAX_HORIZON, -1, &g->H, error));
    TRY(openpi_dims_parse("tiny", &g->synthetic.dims, error));
    g->synthetic.seed = (uint64_t)seed;
    g->L = traits->max_prompt;
    return OPENPI_OK;
}

/* {"like": "aloha", "name": "golden", "delta": [6, -1, 6, -1], "transform": "none", …} */
static openpi_status robot_text(verify_case *c, const tensors *file, const char *name, const golden_policy *g,
                                char *text, size_t bytes, openpi_error *error) {
    json_t *robot, *delta;
    int adapt;
    TRY(golden_json(c, file, name, "robot", &robot, error));
    TRY(golden_json(c, file, name, "delta", &delta, error));
    TRY(golden_boolean(file, name, "adapt_to_pi", 1, &adapt, error));
    if (!json_is_string(robot))
        return report(error, OPENPI_BAD_FILE, "%s: metadata robot is no string", name);
    if (delta && !json_is_array(delta))
        return report(error, OPENPI_BAD_FILE, "%s: metadata delta is no array", name);
    int length = snprintf(
        text, bytes,
        "{\"like\": \"%.40s\", \"name\": \"golden\", \"normalization\": \"%s\", \"prompt_state\": \"%s\"",
        json_string_value(robot), variant_of(g->synthetic.variant)->quantiles ? "quantile" : "zscore",
        g->discrete_state ? "on" : "off");
    size_t at = (size_t)length;
    if (!adapt) at += (size_t)snprintf(text + at, bytes - at, ", \"transform\": \"none\"");
    at += (size_t)snprintf(text + at, bytes - at, ", \"delta\": [");
    for (size_t i = 0; delta && i < json_array_size(delta); i++) {
        if (at + 16 > bytes) return report(error, OPENPI_BAD_FILE, "%s: metadata delta is too long", name);
        at += (size_t)snprintf(text + at, bytes - at, "%s%d", i ? ", " : "",
                               (int)json_integer_value(json_array_get(delta, i)));
    }
    snprintf(text + at, bytes - at, "]}");
    return OPENPI_OK;
}

static openpi_status read_expected(verify_case *c, const tensors *file, golden_policy *g,
                                   openpi_error *error) {
    int64_t actions[] = {g->H, -1};
    TRY(golden_u8(c, file, "images", 4, SHAPE(OPENPI_CAMERAS, OPENPI_IMAGE_SIZE, OPENPI_IMAGE_SIZE, 3),
                  &g->images, error));
    TRY(golden_u8(c, file, "image_mask", 1, SHAPE(OPENPI_CAMERAS), &g->image_mask, error));
    TRY(golden_i32(c, file, "tokens", 1, SHAPE(g->L), &g->tokens, error));
    TRY(golden_u8(c, file, "token_mask", 1, SHAPE(g->L), &g->token_mask, error));
    TRY(golden_f64(c, file, "state", 1, SHAPE(DIMS), &g->state, error));
    TRY(golden_f32(c, file, "noise", 2, SHAPE(g->H, DIMS), &g->noise, error));
    TRY(golden_f64(c, file, "actions", 2, actions, &g->actions, error));
    g->A = actions[1];
    if (g->A < 1 || g->A > DIMS)
        return report(error, OPENPI_BAD_FILE, "%s: %" PRId64 " action dimensions, expected 1 to %d",
                      g->folder, g->A, DIMS);
    return OPENPI_OK;
}

/* actions.std of norm_stats.json, 1 past its end. */
static openpi_status read_std(verify_case *c, const char *path, golden_policy *g, openpi_error *error) {
    json_t *root;
    TRY(case_json(c, path, &root, error));
    const json_t *std =
        json_object_get(json_object_get(json_object_get(root, "norm_stats"), "actions"), "std");
    if (!json_is_array(std))
        return report(error, OPENPI_BAD_FILE, "%s: norm_stats.actions.std is no array", path);
    for (size_t i = 0; i < DIMS; i++)
        g->std[i] = i < json_array_size(std) ? json_number_value(json_array_get(std, i)) : 1;
    return OPENPI_OK;
}

/* ---- comparing -------------------------------------------------------------------------------------- */

static void compare_sample(verify_case *c, const golden_policy *g, const openpi_sample *s) {
    static const char *const names[OPENPI_CAMERAS] = {"images, base", "images, left wrist",
                                                      "images, right wrist"};
    double padded[DIMS] = {0};
    int count;
    const double *state = openpi_request_state(g->request, &count);
    case_same_u8(c, "image_mask", s->image_mask, g->image_mask, OPENPI_CAMERAS);
    for (int i = 0; i < OPENPI_CAMERAS; i++) {
        const uint8_t *expected = g->images + (size_t)i * PICTURE;
        if (s->pixels != OPENPI_PIXELS_U8) case_fail(c, "images: floats, expected bytes");
        else if (s->image_mask[i]) case_same_u8(c, names[i], s->images[i], expected, PICTURE);
        for (int p = 0; !s->image_mask[i] && p < PICTURE; p++)
            if (expected[p]) {
                case_fail(c, "%s: a camera that is not there is black, the golden has %d at byte %d",
                          names[i], expected[p], p);
                break;
            }
    }
    case_prompt(c, "tokens", s->tokens, s->token_count, g->tokens, g->token_mask, (int)g->L);
    for (int i = 0; i < count && i < DIMS; i++) padded[i] = state[i];
    case_near(c, "state", padded, g->state, DIMS, 1e-12);
    for (int i = 0; s->state && i < DIMS; i++)
        if (s->state[i] != (float)padded[i])
            case_fail(c, "state: element %d reaches the model as %.9g, expected %.9g", i, (double)s->state[i],
                      (double)(float)padded[i]);
}

/* ends[0]: the action of 0 in every dimension of the chunk, ends[1]: of 1. The map between is affine. */
typedef struct map_ends {
    double ends[2][DIMS];
} map_ends;

static openpi_status read_map(const golden_policy *g, map_ends *map, openpi_error *error) {
    float chunk[2 * DIMS] = {0};
    double actions[2 * DIMS];
    for (int i = 0; i < DIMS; i++) chunk[DIMS + i] = 1;
    TRY(openpi_request_finish(g->request, chunk, 2, actions, 2 * DIMS, error));
    for (int end = 0; end < 2; end++)
        memcpy(map->ends[end], actions + end * g->A, (size_t)g->A * sizeof *actions);
    return OPENPI_OK;
}

/* The unit of a dimension is its std. If that does not describe the map (std 0: openpi adds 1e-6 to it), the
 * unit is the slope of the action over its dimension of the chunk. */
static double unit_of(const golden_policy *g, const map_ends *map, int64_t dim) {
    double slope = fabs(map->ends[1][dim] - map->ends[0][dim]), unit = g->std[dim];
    if (unit < slope / 10) unit = slope;
    return unit > 0 ? unit : 1;
}

static distance measure(const golden_policy *g, const map_ends *map, const double *actions) {
    distance d = {0};
    for (int64_t i = 0; i < g->H * g->A; i++) {
        double unit = unit_of(g, map, i % g->A);
        distance_add(&d, actions[i] / unit, g->actions[i] / unit);
    }
    return d;
}

/* The golden's chunk and noise in those units. */
static openpi_status read_bounds(verify_case *c, const golden_policy *g, const map_ends *map,
                                 const openpi_engine *engine, action_bounds *out, openpi_error *error) {
    float *truth, *noise;
    size_t count = (size_t)(g->H * g->A);
    TRY(case_take(c, count, sizeof *truth, &truth, error));
    TRY(case_take(c, count, sizeof *noise, &noise, error));
    for (int64_t i = 0; i < g->H * g->A; i++) {
        int64_t dim = i % g->A;
        double zero = map->ends[0][dim], unit = unit_of(g, map, dim);
        truth[i] = (float)((g->actions[i] - zero) / unit);
        noise[i] = (float)((map->ends[1][dim] - zero) / unit * (double)g->noise[i / g->A * DIMS + dim]);
    }
    *out = case_bounds(c, engine, 1e-3, truth, noise, count);
    return OPENPI_OK;
}

/* Inverts the map of each dimension, up to the rounding of the golden's doubles. A dimension whose slope is
 * so small that this rounding hides fp32's grid is not checked. */
static void check_golden(verify_case *c, const golden_policy *g, const map_ends *map) {
    for (int64_t i = 0; i < g->H * g->A; i++) {
        int64_t dim = i % g->A;
        double zero = map->ends[0][dim], slope = map->ends[1][dim] - zero, x = (g->actions[i] - zero) / slope;
        double rounding = 1e-12 + 4 * DBL_EPSILON * (fabs(g->actions[i]) + fabs(zero)) / fabs(slope);
        if (!(rounding < 1e-8 * fabs(x)) || fabs(x - (double)(float)x) <= rounding) continue;
        case_fail(c,
                  "the golden's actions, step %d, dimension %d: %.17g comes from x = %.17g, which no fp32 "
                  "model returns",
                  (int)(i / g->A), (int)dim, g->actions[i], x);
        return;
    }
}

static openpi_status run(verify_case *c, const golden_policy *g, openpi_error *error) {
    openpi_engine *engine;
    openpi_session *session;
    float *chunk;
    double *actions;
    map_ends map;
    action_bounds bounds;
    TRY(case_take(c, (size_t)g->H * DIMS, sizeof *chunk, &chunk, error));
    TRY(case_take(c, (size_t)g->H * DIMS, sizeof *actions, &actions, error));
    TRY(case_engine(c, &g->synthetic, &engine, error));
    TRY(case_session(c, engine, 1, (int)g->H, STEPS, (int)g->L, &session, error));
    TRY(openpi_session_run(session, &g->sample, 1, g->noise, chunk, NULL, error));
    TRY(openpi_request_finish(g->request, chunk, (int)g->H, actions, (size_t)g->H * DIMS, error));
    TRY(read_map(g, &map, error));
    distance d = measure(g, &map, actions);
    TRY(read_bounds(c, g, &map, engine, &bounds, error));
    case_actions(c, "actions in units of their std", &d, bounds.max, bounds.rms);
    check_golden(c, g, &map);
    return OPENPI_OK;
}

static openpi_status policy_case(verify_case *c, const char *folder, openpi_error *error) {
    golden_policy g = {.folder = folder, .synthetic = OPENPI_SYNTHETIC_INIT, .sample = OPENPI_SAMPLE_INIT};
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    openpi_policy *policy;
    openpi_policy_info info = OPENPI_POLICY_INFO_INIT;
    openpi_request *request;
    tensors *file;
    char *expected, *stats, *tokenizer, *bytes, *message, robot[512];
    size_t count;
    snprintf(c->row.dtype, sizeof c->row.dtype, "%s", c->options->dtype == OPENPI_F32 ? "f32" : "bf16");
    TRY(case_manifest(c, folder, error));
    TRY(case_join(c, folder, "expected.safetensors", &expected, error));
    TRY(case_join(c, folder, "norm_stats.json", &stats, error));
    TRY(case_join(c, folder, "request.msgpack", &message, error));
    TRY(case_tokenizer(c, folder, &tokenizer, error));
    TRY(case_open(c, expected, &file, error));
    TRY(read_metadata(file, expected, &g, error));
    TRY(robot_text(c, file, expected, &g, robot, sizeof robot, error));
    TRY(read_expected(c, file, &g, error));
    TRY(read_std(c, stats, &g, error));
    TRY(case_read(c, message, &bytes, &count, error));
    options.robot = robot;
    options.norm_stats = stats;
    options.tokenizer = tokenizer;
    options.synthetic = &g.synthetic;
    options.max_prompt = (int)g.L;
    TRY(case_policy(c, NULL, &options, &policy, &request, error));
    TRY(openpi_policy_get_info(policy, &info, error));
    if (info.action_dim != g.A)
        return report(error, OPENPI_BAD_FILE, "%s: the robot has %d action dimensions, the golden %d", folder,
                      info.action_dim, (int)g.A);
    TRY(openpi_request_prepare_msgpack(request, bytes, count, NULL, error));
    g.request = request;
    TRY(openpi_request_sample(request, &g.sample, error));
    compare_sample(c, &g, &g.sample);
    return run(c, &g, error);
}

openpi_status verify_policy(verify_walk *walk, const char *folder, openpi_error *error) {
    verify_case c;
    char name[sizeof c.row.name];
    verify_name(folder, name, sizeof name);
    case_begin(&c, walk, name);
    case_end(&c, walk, policy_case(&c, folder, error), error);
    return OPENPI_OK;
}
