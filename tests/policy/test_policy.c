/* policy/policy.c and request.c: openpi's whole requests, from the bytes of its client to the prepared sample
 * and from model actions to the robot's; where a policy takes its parts from; what it refuses. */
#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "policy/policy.h"
#include "policy_golden.h"
#include "structs.h"

enum { DIMS = 32, PIXELS = 224 * 224 * 3 };

/* ---- openpi's goldens ----------------------------------------------------------------------------- */

typedef struct policy_case {
    tensors *expected;
    char *request;
    size_t request_bytes;
    char robot[256];             /* JSON */
    openpi_synthetic synthetic;
    openpi_policy *policy;
} policy_case;

/* The robot of the golden's metadata: a built-in with the case's own delta and transform. */
static void case_open(const char *name, policy_case *out) {
    char path[512], stats[512];
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    snprintf(path, sizeof path, GOLDEN "/policy/%s/expected.safetensors", name);
    snprintf(stats, sizeof stats, GOLDEN "/policy/%s/norm_stats.json", name);
    out->expected = golden_open(path);
    json_t *robot = golden_metadata(out->expected, "robot"), *delta = golden_metadata(out->expected, "delta");
    char *mask = delta ? json_dumps(delta, 0) : strdup("[]");
    assert_non_null(robot);
    snprintf(out->robot, sizeof out->robot, "{\"like\": \"%s\", \"delta\": %s, \"transform\": \"%s\"}",
             json_string_value(robot), mask, golden_flag(out->expected, "adapt_to_pi", 0) ? "aloha" : "none");
    free(mask);
    json_decref(robot);
    json_decref(delta);
    int pi05 = golden_flag(out->expected, "pi05", 0);
    out->synthetic = (openpi_synthetic)OPENPI_SYNTHETIC_INIT;
    out->synthetic.variant = pi05 ? OPENPI_PI05 : OPENPI_PI0;
    out->synthetic.seed = 7;
    options.synthetic = &out->synthetic;
    options.robot = out->robot;
    options.norm_stats = stats;
    options.tokenizer = GOLDEN "/tokenizer.model";
    if (!golden_flag(out->expected, "discrete_state", pi05)) options.prompt_state = OPENPI_PROMPT_STATE_OFF;
    WORKS(openpi_policy_open(NULL, &options, &out->policy, &error));
    snprintf(path, sizeof path, GOLDEN "/policy/%s/request.msgpack", name);
    out->request = golden_read(path, &out->request_bytes);
}

static void case_close(policy_case *c) {
    openpi_policy_close(c->policy);
    tensors_close(c->expected);
    free(c->request);
}

static void check_sample(const policy_case *c, const openpi_request *request) {
    const openpi_sample held = prepared(request), *sample = &held;
    int count, length = c->synthetic.variant == OPENPI_PI05 ? 200 : 48;
    const double *state = openpi_request_state(request, &count);
    double *want = golden_copy(c->expected, "state", DTYPE_F64, DIMS);
    const uint8_t *images = golden_data(c->expected, "images", DTYPE_U8, 3 * PIXELS),
                  *mask = golden_data(c->expected, "image_mask", DTYPE_U8, 3);
    int32_t *tokens = golden_copy(c->expected, "tokens", DTYPE_I32, length);
    assert_non_null(sample);
    assert_int_equal(sample->pixels, OPENPI_PIXELS_U8);
    for (int slot = 0; slot < 3; slot++) {
        assert_int_equal(sample->image_mask[slot], mask[slot]);
        assert_memory_equal(sample->images[slot], images + slot * PIXELS, PIXELS);
    }
    for (int i = 0; i < DIMS; i++) {
        double got = i < count ? state[i] : 0;
        if (!(fabs(got - want[i]) <= 1e-12)) fail_msg("state[%d] is %.17g, expected %.17g", i, got, want[i]);
        assert_true(sample->state[i] == (float)got);
    }
    golden_tokens(sample, tokens, golden_data(c->expected, "token_mask", DTYPE_U8, length), length);
    assert_false(openpi_request_prompt_truncated(request));
    free(tokens);
    free(want);
}

/* The state that openpi adds relative actions to, from its normalised one: fp32 as it comes out of the model,
 * and (n + 1)/2 of a quantile still is. */
static double reference_of(const openpi_policy *p, double normalised, int dim) {
    float n = (float)normalised, half = (n + 1.0f) / 2.0f;
    if (p->mode == STATS_ZSCORE) return (double)n * (p->state.std[dim] + 1e-6) + p->state.mean[dim];
    return (double)half * (p->state.q99[dim] - p->state.q01[dim] + 1e-6) + p->state.q01[dim];
}

/* openpi's output transforms undone, written down from their formulas: a robot's action -> what the model
 * gave. */
static double model_action(const openpi_policy *p, const double *state, double action, int dim) {
    static const double signs[7] = {1, -1, -1, 1, 1, 1, 1};
    double x = action;
    if (p->robot.transform == ROBOT_ALOHA) {
        if (dim % 7 == 6) x = x * (1.4910 + 0.6213) - 0.6213 - 0.5476;
        x *= signs[dim % 7];
    }
    if (dim < p->robot.delta_count && p->robot.delta[dim]) x -= reference_of(p, state[dim], dim);
    if (dim >= p->actions.dims) return p->mode == STATS_ZSCORE ? x / (1 + 1e-6) : x;
    if (p->mode == STATS_ZSCORE) return (x - p->actions.mean[dim]) / (p->actions.std[dim] + 1e-6);
    return (x - p->actions.q01[dim]) / (p->actions.q99[dim] - p->actions.q01[dim] + 1e-6) * 2 - 1;
}

/* The golden's actions lead back to fp32 numbers, which is what a model gives; and from these, finish leads
 * to the golden's actions. */
static void check_finish(const policy_case *c, const openpi_request *request) {
    openpi_error error = OPENPI_ERROR_INIT;
    const openpi_policy *p = c->policy;
    json_t *metadata = golden_metadata(c->expected, "horizon");
    int horizon = (int)json_integer_value(metadata), a = p->action_dim;
    json_decref(metadata);
    double *want = golden_copy(c->expected, "actions", DTYPE_F64, (int64_t)horizon * a);
    double *state = golden_copy(c->expected, "state", DTYPE_F64, DIMS),
           *got = calloc((size_t)(horizon * a), sizeof *got);
    float *model = calloc((size_t)horizon * DIMS, sizeof *model);
    for (int i = 0; i < horizon * a; i++) {
        int step = i / a, dim = i % a;
        double x = model_action(p, state, want[i], dim);
        model[step * DIMS + dim] = (float)x;
        if (!(fabs(x - (double)(float)x) <= 1e-13 * (1 + fabs(x))))
            fail_msg("step %d dim %d comes from %.17g, no fp32 number", step, dim, x);
    }
    WORKS(openpi_request_finish(request, model, horizon, got, (size_t)(horizon * a), &error));
    for (int i = 0; i < horizon * a; i++)
        if (!(fabs(got[i] - want[i]) <= 5e-7))
            fail_msg("action %d of dim %d: %.9g, expected %.9g", i / a, i % a, got[i], want[i]);
    free(model);
    free(got);
    free(state);
    free(want);
}

static int is_golden(const struct dirent *entry) {
    return entry->d_name[0] != '.';
}

static void requests_are_openpis(void **state) {
    (void)state;
    struct dirent **names;
    int count = scandir(GOLDEN "/policy", &names, is_golden, alphasort);
    assert_int_equal(count, 6);
    for (int i = 0; i < count; i++) {
        openpi_error error = OPENPI_ERROR_INIT;
        openpi_request *request;
        policy_case c;
        print_message("           %s\n", names[i]->d_name);
        case_open(names[i]->d_name, &c);
        WORKS(openpi_request_create(c.policy, &request, &error));
        for (int again = 0; again < 2; again++) { /* nothing of a request stays for the next */
            openpi_timing timing = OPENPI_TIMING_INIT;
            WORKS(openpi_request_prepare_msgpack(request, c.request, c.request_bytes, &timing, &error));
            assert_true(timing.stage_ms[OPENPI_STAGE_PICTURE] > 0 &&
                        timing.stage_ms[OPENPI_STAGE_PROMPT] > 0);
            check_sample(&c, request);
            check_finish(&c, request);
        }
        openpi_request_close(request);
        case_close(&c);
        free(names[i]);
    }
    free(names);
}

/* Cut anywhere, a request is an error or a request, never more. */
static void cut_requests_are_refused(void **state) {
    (void)state;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_request *request;
    policy_case c;
    case_open("droid_pi0", &c);
    WORKS(openpi_request_create(c.policy, &request, &error));
    for (size_t bytes = 0; bytes < c.request_bytes;
         bytes += bytes < 400 || bytes + 400 > c.request_bytes ? 1 : 4999) {
        char *cut = malloc(bytes + 1);
        memcpy(cut, c.request, bytes);
        assert_int_not_equal(openpi_request_prepare_msgpack(request, cut, bytes, NULL, &error), OPENPI_OK);
        assert_false(holds_sample(request));
        free(cut);
    }
    openpi_request_close(request);
    case_close(&c);
}

static openpi_policy *open_synthetic(const char *robot, const char *config, openpi_variant variant);

/* ---- requests of our own ---------------------------------------------------------------------------- */

typedef struct pack_field {
    const char *key, *type;      /* type NULL: text in data; "" a number                                  */
    int shape[4], rank;
    const char *data;            /* NULL: zeros                                                           */
} pack_field;

static void pack_message(msgpack_sbuffer *bytes, const pack_field *fields) {
    static const char zeros[4096];
    msgpack_packer packer;
    size_t count = 0;
    while (fields[count].key) count++;
    msgpack_sbuffer_init(bytes);
    msgpack_packer_init(&packer, bytes, msgpack_sbuffer_write);
    msgpack_pack_map(&packer, count);
    for (const pack_field *f = fields; f->key; f++) {
        size_t size = f->type && f->type[0] ? (size_t)(f->type[2] - '0') : 0;
        for (int i = 0; i < f->rank; i++) size *= (size_t)f->shape[i];
        pack_text(&packer, f->key);
        if (!f->type) pack_text(&packer, f->data);
        else if (!f->type[0]) msgpack_pack_double(&packer, 0.5);
        else pack_array(&packer, f->type, f->shape, f->rank, f->data ? f->data : zeros, size);
    }
}

#define JOINTS {"observation/joint_position", "<f8", {7}, 1, NULL}
#define GRIPPER {"observation/gripper_position", "", {0}, 0, NULL}
#define OUTSIDE {"observation/exterior_image_1_left", "|u1", {4, 6, 3}, 3, NULL}
#define WRIST {"observation/wrist_image_left", "|u1", {4, 6, 3}, 3, NULL}
#define HIGH {"images/cam_high", "|u1", {3, 4, 6}, 3, NULL}
#define ARMS {"state", "<f4", {14}, 1, NULL}
#define GO {"prompt", NULL, {0}, 0, "go"}

static void messages_are_checked(void **state) {
    (void)state;
    static const struct {
        const char *robot;
        pack_field fields[8];
        openpi_status status;
        const char *sentence;
    } cases[] = {
        {"droid", {OUTSIDE, WRIST, JOINTS, GRIPPER, GO}, OPENPI_OK, ""},
        {"droid", {OUTSIDE, WRIST, JOINTS, GRIPPER, {"prompt", NULL, {0}, 0, ""}}, OPENPI_OK, ""},
        {"droid",
         {OUTSIDE, WRIST, JOINTS, GRIPPER, GO, {"observation/exterior_image_2_left", "|u1", {4, 6, 3}, 3, NULL}},
         OPENPI_OK,
         ""},
        {"droid",
         {OUTSIDE, JOINTS, GRIPPER, GO},
         OPENPI_BAD_INPUT,
         "camera \"observation/wrist_image_left\" (left_wrist), which robot \"droid\" needs"},
        {"droid", {OUTSIDE, WRIST, GRIPPER, GO}, OPENPI_BAD_INPUT, "has no \"observation/joint_position\", expected 7 numbers"},
        {"droid",
         {OUTSIDE, WRIST, {"observation/joint_position", "<f8", {8}, 1, NULL}, GRIPPER, GO},
         OPENPI_BAD_INPUT,
         "\"observation/joint_position\" of the request has 8 numbers, expected 7"},
        {"droid",
         {OUTSIDE, WRIST, {"observation/joint_position", NULL, {0}, 0, "7"}, GRIPPER, GO},
         OPENPI_BAD_INPUT,
         "observation/joint_position"},
        {"droid", {OUTSIDE, WRIST, JOINTS, GRIPPER}, OPENPI_BAD_INPUT, "a prompt is required"},
        {"droid", {OUTSIDE, WRIST, JOINTS, GRIPPER, {"prompt", "<f8", {3}, 1, NULL}}, OPENPI_BAD_INPUT, "prompt"},
        {"droid",
         {OUTSIDE, {"observation/wrist_image_left", "|u1", {4, 6}, 2, NULL}, JOINTS, GRIPPER, GO},
         OPENPI_BAD_INPUT,
         "observation/wrist_image_left"},
        {"droid",
         {OUTSIDE, {"base", "|u1", {4, 6, 3}, 3, NULL}, WRIST, JOINTS, GRIPPER, GO},
         OPENPI_BAD_INPUT,
         "are of the same camera"},
        {"aloha", {HIGH, ARMS, GO}, OPENPI_OK, ""},
        {"aloha", {HIGH, {"images/cam_low", "|u1", {3, 2, 2}, 3, NULL}, ARMS, GO}, OPENPI_OK, ""},
        {"aloha",
         {{"images/cam_high", "|u1", {4, 6, 3}, 3, NULL}, ARMS, GO},
         OPENPI_BAD_INPUT,
         "images/cam_high"}, /* always CHW */
        {"aloha",
         {HIGH, {"images/cam_front", "|u1", {3, 4, 6}, 3, NULL}, ARMS, GO},
         OPENPI_BAD_INPUT,
         "no camera \"images/cam_front\""},
        {"aloha",
         {HIGH, {"state", "<f4", {32}, 1, NULL}, GO},
         OPENPI_BAD_INPUT,
         "\"state\" of the request has 32 numbers, expected 14"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        openpi_error error = OPENPI_ERROR_INIT;
        openpi_policy *policy = open_synthetic(cases[i].robot, NULL, OPENPI_PI0);
        openpi_request *request;
        msgpack_sbuffer bytes;
        WORKS(openpi_request_create(policy, &request, &error));
        pack_message(&bytes, cases[i].fields);
        REFUSES(openpi_request_prepare_msgpack(request, bytes.data, bytes.size, NULL, &error),
                cases[i].status, cases[i].sentence);
        msgpack_sbuffer_destroy(&bytes);
        openpi_request_close(request);
        openpi_policy_close(policy);
    }
}

/* ---- small policies ------------------------------------------------------------------------------- */

static openpi_policy *open_synthetic(const char *robot, const char *config, openpi_variant variant) {
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_synthetic synthetic = {.size = sizeof(openpi_synthetic), .dims = OPENPI_DIMS_INIT,
                                  .variant = variant, .seed = 7};
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    openpi_policy *policy;
    options.robot = robot;
    options.config = config;
    options.synthetic = &synthetic;
    WORKS(openpi_policy_open(NULL, &options, &policy, &error));
    return policy;
}

static const uint8_t grey[4 * 6 * 3] = {90, 90, 90, 91, 92, 93};
static const double zeros[DIMS];

static openpi_image picture(const char *name) {
    return (openpi_image)IMAGE(name, grey, OPENPI_U8, OPENPI_HWC, 4, 6);
}

/* The same observation by any of a camera's names gives the same sample. */
static void names_of_cameras(void **state) {
    (void)state;
    static const struct {
        const char *robot, *names[3][4];
    } cases[] = {
        {"aloha",
         {{"images/cam_high", "cam_high", "base", "base_0_rgb"},
          {"images/cam_left_wrist", "cam_left_wrist", "left_wrist", "left_wrist_0_rgb"},
          {"images/cam_right_wrist", "cam_right_wrist", "right_wrist", "right_wrist_0_rgb"}}},
        {"droid",
         {{"observation/exterior_image_1_left", "exterior_image_1_left", "base", "base_0_rgb"},
          {"observation/wrist_image_left", "wrist_image_left", "left_wrist", "left_wrist_0_rgb"},
          {NULL, NULL, NULL, NULL}}},
        {"libero",
         {{"observation/image", "image", "base", "base_0_rgb"},
          {"observation/wrist_image", "wrist_image", "left_wrist", "left_wrist_0_rgb"},
          {NULL, NULL, NULL, NULL}}},
        {"none",
         {{"base", "base", "base", "base_0_rgb"},
          {"left_wrist", "left_wrist", "left_wrist", "left_wrist_0_rgb"},
          {"right_wrist", "right_wrist", "right_wrist", "right_wrist_0_rgb"}}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        openpi_error error = OPENPI_ERROR_INIT;
        openpi_policy *policy = open_synthetic(cases[i].robot, NULL, OPENPI_PI05);
        openpi_policy_info info = OPENPI_POLICY_INFO_INIT;
        openpi_request *request;
        openpi_policy_get_info(policy, &info, NULL);
        assert_string_equal(info.robot, cases[i].robot);
        WORKS(openpi_request_create(policy, &request, &error));
        for (int form = 0; form < 4; form++) {
            openpi_image images[3];
            openpi_observation observation = OBSERVATION(images, 0, zeros,
                                                         info.state_length ? info.state_length : 5, "go", 0);
            for (int slot = 0; slot < 3; slot++) {
                assert_string_equal(info.cameras[slot],
                                    cases[i].names[slot][0] ? cases[i].names[slot][0] : "");
                if (cases[i].names[slot][0])
                    images[observation.image_count++] = picture(cases[i].names[slot][form]);
            }
            WORKS(openpi_request_prepare(request, &observation, NULL, &error));
            for (int slot = 0; slot < 3; slot++)
                assert_int_equal(prepared(request).image_mask[slot], cases[i].names[slot][0] != NULL);
        }
        openpi_request_close(request);
        openpi_policy_close(policy);
    }
}

static void refuses_bad_observations(void **state) {
    (void)state;
    const double nan_state[14] = {0, 0, 0, NAN}, huge_state[14] = {0, 1e300},
                 infinite_state[14] = {-INFINITY};
    const openpi_image high = picture("cam_high"), low = picture("cam_low"), wrist = picture("left_wrist"),
                       twice = picture("base"), unknown = picture("cam_front"), unnamed = picture(NULL),
                       thin = IMAGE("cam_high", grey, OPENPI_U8, OPENPI_HWC, 2000, 3),
                       empty = IMAGE("cam_high", NULL, OPENPI_U8, OPENPI_HWC, 4, 6);
    const openpi_image two[2] = {high, twice}, both[2] = {high, low}, only_wrist[1] = {wrist};
    const struct {
        openpi_observation observation;
        openpi_status status;
        const char *sentence;
    } cases[] = {
        {OBSERVATION(&high, 1, zeros, 14, "go", 0), OPENPI_OK, ""},
        {OBSERVATION(both, 2, zeros, 14, "go", 0), OPENPI_OK, ""},
        {OBSERVATION(&high, 1, zeros, 14, "", 0), OPENPI_OK, ""},
        {OBSERVATION(NULL, 0, zeros, 14, "go", 0), OPENPI_BAD_INPUT,
         "camera \"images/cam_high\" (base), which robot \"aloha\" needs, is missing"},
        {OBSERVATION(only_wrist, 1, zeros, 14, "go", 0), OPENPI_BAD_INPUT, "\"images/cam_high\""},
        {OBSERVATION(&low, 1, zeros, 14, "go", 0), OPENPI_BAD_INPUT, "\"images/cam_high\""},
        {OBSERVATION(NULL, 1, zeros, 14, "go", 0), OPENPI_BAD_ARGUMENT, "1 pictures at NULL"},
        {OBSERVATION(&high, -1, zeros, 14, "go", 0), OPENPI_BAD_ARGUMENT, "-1 pictures"},
        {OBSERVATION(two, 2, zeros, 14, "go", 0), OPENPI_BAD_INPUT,
         "\"cam_high\" and \"base\" are of the same camera"},
        {OBSERVATION(&unknown, 1, zeros, 14, "go", 0), OPENPI_BAD_INPUT,
         "no camera \"cam_front\", it has images/cam_high (base), images/cam_left_wrist (left_wrist), "
         "images/cam_right_wrist "
         "(right_wrist), "
         "images/cam_low (unused)"},
        {OBSERVATION(&unnamed, 1, zeros, 14, "go", 0), OPENPI_BAD_INPUT, "picture 0 has no name"},
        {OBSERVATION(&thin, 1, zeros, 14, "go", 0), OPENPI_BAD_INPUT, "cam_high"},
        {OBSERVATION(&empty, 1, zeros, 14, "go", 0), OPENPI_BAD_INPUT, "cam_high"},
        {OBSERVATION(&high, 1, zeros, 13, "go", 0), OPENPI_BAD_INPUT,
         "the state has 13 numbers, robot \"aloha\" has 14"},
        {OBSERVATION(&high, 1, zeros, 0, "go", 0), OPENPI_BAD_INPUT, "the state has 0 numbers"},
        {OBSERVATION(&high, 1, NULL, 14, "go", 0), OPENPI_BAD_ARGUMENT, "state has 14 numbers at NULL"},
        {OBSERVATION(&high, 1, nan_state, 14, "go", 0), OPENPI_BAD_INPUT, "state[3] is nan"},
        {OBSERVATION(&high, 1, infinite_state, 14, "go", 0), OPENPI_BAD_INPUT, "state[0] is -inf"},
        {OBSERVATION(&high, 1, huge_state, 14, "go", 0), OPENPI_BAD_INPUT, "state[1] is 1e+300"},
        {OBSERVATION(&high, 1, zeros, 14, NULL, 0), OPENPI_BAD_INPUT, "a prompt is required"},
        {OBSERVATION(&high, 1, zeros, 14, "a\xff\xfe", 0), OPENPI_BAD_INPUT, "UTF-8"},
        {OBSERVATION(&high, 1, zeros, 14, "go", (size_t)2 << 20), OPENPI_BAD_INPUT,
         "the prompt has 2097152 bytes"},
    };
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_policy *policy = open_synthetic("aloha", NULL, OPENPI_PI0);
    openpi_request *request;
    float model[64 * DIMS] = {0};
    double actions[64 * 14];
    WORKS(openpi_request_create(policy, &request, &error));
    assert_false(holds_sample(request));
    REFUSES(openpi_request_finish(request, model, 10, actions, CAPACITY(actions), &error),
            OPENPI_BAD_ARGUMENT, "nothing was prepared");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        REFUSES(openpi_request_prepare(request, &cases[i].observation, NULL, &error), cases[i].status, cases[i].sentence);
        assert_true(holds_sample(request) == (cases[i].status == OPENPI_OK));
    }
    WORKS(openpi_request_prepare(request, &cases[0].observation, NULL, &error));
    WORKS(openpi_request_finish(request, model, 64, actions, CAPACITY(actions), &error));
    actions[0] = 77;
    REFUSES(openpi_request_finish(request, model, 64, actions, 64 * 14 - 1, &error), OPENPI_BAD_ARGUMENT,
            "actions holds 895 numbers, expected 896: horizon 64 times 14 action dimensions");
    assert_true(actions[0] == 77);
    REFUSES(openpi_request_finish(request, model, 65, actions, CAPACITY(actions), &error),
            OPENPI_BAD_ARGUMENT, "horizon is 65");
    REFUSES(openpi_request_finish(request, model, 0, actions, CAPACITY(actions), &error),
            OPENPI_BAD_ARGUMENT, "horizon is 0");
    model[3 * DIMS + 5] = NAN;
    REFUSES(openpi_request_finish(request, model, 4, actions, CAPACITY(actions), &error), OPENPI_BAD_INPUT,
            "step 3, dimension 5 is nan");
    REFUSES(openpi_request_prepare(NULL, &cases[0].observation, NULL, &error), OPENPI_BAD_ARGUMENT, "request is NULL");
    REFUSES(openpi_request_prepare_msgpack(request, NULL, 3, NULL, &error), OPENPI_BAD_ARGUMENT, "bytes are NULL");
    openpi_request_close(request);
    openpi_policy_close(policy);
}

/* A picture that was there is gone from the next request. */
static void cameras_come_and_go(void **state) {
    (void)state;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_policy *policy = open_synthetic("aloha", NULL, OPENPI_PI0);
    openpi_request *request;
    openpi_image images[2] = {picture("cam_high"), picture("cam_left_wrist")};
    openpi_observation observation = OBSERVATION(images, 2, zeros, 14, "go", 0);
    static const uint8_t black[PIXELS];
    WORKS(openpi_request_create(policy, &request, &error));
    WORKS(openpi_request_prepare(request, &observation, NULL, &error));
    assert_int_equal(prepared(request).image_mask[1], 1);
    assert_memory_not_equal(prepared(request).images[1], black, PIXELS);
    observation.image_count = 1;
    WORKS(openpi_request_prepare(request, &observation, NULL, &error));
    assert_int_equal(prepared(request).image_mask[1], 0);
    assert_memory_equal(prepared(request).images[1], black, PIXELS);
    openpi_request_close(request);
    openpi_policy_close(policy);
}

static void prompts(void **state) {
    (void)state;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_policy *policy = open_synthetic("aloha_sim", NULL, OPENPI_PI0);
    openpi_request *request;
    openpi_image image = picture("cam_high");
    openpi_observation observation = OBSERVATION(&image, 1, zeros, 14, NULL, 0);
    WORKS(openpi_request_create(policy, &request, &error));
    static const int32_t transfer_cube[7] = {2, 1987, 513, 347, 694, 1953, 4};     /* steps.json */
    WORKS(openpi_request_prepare(request, &observation, NULL, &error));
    assert_int_equal(prepared(request).token_count, 7);
    assert_memory_equal(prepared(request).tokens, transfer_cube, sizeof transfer_cube);
    observation.prompt = "";
    WORKS(openpi_request_prepare(request, &observation, NULL, &error));
    assert_int_equal(prepared(request).token_count, 2);
    observation.prompt = "Transfer cube and what stands after the length";
    observation.prompt_length = 13;
    WORKS(openpi_request_prepare(request, &observation, NULL, &error));
    assert_memory_equal(prepared(request).tokens, transfer_cube, sizeof transfer_cube);
    observation.prompt = "7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7";
    observation.prompt_length = 0;
    WORKS(openpi_request_prepare(request, &observation, NULL, &error));
    assert_true(openpi_request_prompt_truncated(request));
    assert_int_equal(prepared(request).token_count, 48);
    observation.prompt_length = 2 * 23; /* BOS, 45 pieces (the last space is stripped), newline */
    WORKS(openpi_request_prepare(request, &observation, NULL, &error));
    assert_false(openpi_request_prompt_truncated(request));
    assert_int_equal(prepared(request).token_count, 47);
    openpi_request_close(request);
    openpi_policy_close(policy);
}

/* "Transfer cube" has 7 tokens: with a capacity of 7 nothing is cut, with 6 its newline is. */
static void a_prompt_may_fill_its_room(void **state) {
    (void)state;
    for (int capacity = 6; capacity <= 8; capacity++) {
        openpi_error error = OPENPI_ERROR_INIT;
        openpi_synthetic synthetic = {.size = sizeof(openpi_synthetic), .dims = OPENPI_DIMS_INIT, .seed = 7};
        openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
        openpi_policy *policy;
        openpi_request *request;
        openpi_image image = picture("cam_high");
        openpi_observation observation = OBSERVATION(&image, 1, zeros, 14, "Transfer cube", 0);
        options.robot = "aloha_sim";
        options.max_prompt = capacity;
        options.synthetic = &synthetic;
        WORKS(openpi_policy_open(NULL, &options, &policy, &error));
        WORKS(openpi_request_create(policy, &request, &error));
        WORKS(openpi_request_prepare(request, &observation, NULL, &error));
        assert_int_equal(openpi_request_prompt_truncated(request), capacity < 7);
        assert_int_equal(prepared(request).token_count, capacity < 7 ? capacity : 7);
        openpi_request_close(request);
        openpi_policy_close(policy);
    }
}

/* The model's own space: what is given is returned. */
static void none_is_the_models_space(void **state) {
    (void)state;
    openpi_error error = OPENPI_ERROR_INIT;
    for (int v = 0; v < 2; v++) {
        openpi_policy *policy = open_synthetic(NULL, NULL, v ? OPENPI_PI05 : OPENPI_PI0);
        openpi_policy_info info = OPENPI_POLICY_INFO_INIT;
        openpi_request *request;
        openpi_image image = picture("right_wrist");
        double given[3] = {0.5, -0.25, 1.75}, actions[2 * DIMS];
        float model[2 * DIMS];
        openpi_observation observation = OBSERVATION(&image, 1, given, 3, "go", 0);
        int count;
        openpi_policy_get_info(policy, &info, NULL);
        assert_string_equal(info.robot, "none");
        assert_int_equal(info.state_length, 0);
        assert_int_equal(info.action_dim, 32);
        assert_int_equal(info.max_prompt, v ? 200 : 48);
        assert_int_equal(info.prompt_state, v);
        WORKS(openpi_request_create(policy, &request, &error));
        WORKS(openpi_request_prepare(request, &observation, NULL, &error));
        assert_memory_equal(openpi_request_state(request, &count), given, sizeof given);
        assert_int_equal(count, 3);
        for (int i = 0; i < 2 * DIMS; i++) model[i] = (float)i / 7;
        WORKS(openpi_request_finish(request, model, 2, actions, CAPACITY(actions), &error));
        for (int i = 0; i < 2 * DIMS; i++) assert_true(actions[i] == (double)model[i]);
        observation.state_length = 0;
        REFUSES(openpi_request_prepare(request, &observation, NULL, &error), OPENPI_BAD_INPUT, "the state is missing");
        observation.state_length = 33;
        REFUSES(openpi_request_prepare(request, &observation, NULL, &error), OPENPI_BAD_INPUT, "33 numbers, expected at most 32");
        observation.state_length = 3;
        observation.image_count = 0;
        REFUSES(openpi_request_prepare(request, &observation, NULL, &error), OPENPI_BAD_INPUT, "no picture is given");
        openpi_request_close(request);
        openpi_policy_close(policy);
    }
}

/* π0.5 that never sees the state does not ask for it. */
static void unseen_state_may_be_absent(void **state) {
    (void)state;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_synthetic synthetic = {.size = sizeof(openpi_synthetic), .dims = OPENPI_DIMS_INIT,
                                  .variant = OPENPI_PI05};
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    openpi_policy *policy;
    openpi_request *request;
    openpi_image image = picture("base");
    openpi_observation observation = OBSERVATION(&image, 1, NULL, 0, "go", 0);
    options.synthetic = &synthetic;
    options.prompt_state = OPENPI_PROMPT_STATE_OFF;
    WORKS(openpi_policy_open(NULL, &options, &policy, &error));
    WORKS(openpi_request_create(policy, &request, &error));
    WORKS(openpi_request_prepare(request, &observation, NULL, &error));
    openpi_request_close(request);
    openpi_policy_close(policy);
}

/* ---- where a policy's parts come from -------------------------------------------------------------- */

static const char folder[] = "test_policy_checkpoint";

static void write_file(const char *name, const void *bytes, size_t count) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    for (char *slash = path; (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        mkdir(path, 0777);
        *slash = '/';
    }
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    fclose(file);
}

static void write_text(const char *name, const char *text) {
    write_file(name, text, strlen(text));
}

static void remove_file(const char *name) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    unlink(path);
}

/* A file with one tensor of one number: enough to see the variant. */
static void write_weights(const char *tensor) {
    char header[256], file[512];
    int bytes = snprintf(header, sizeof header,
                         "{\"%s\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[0,4]}}", tensor);
    while (bytes % 8) header[bytes++] = ' ';
    memset(file, 0, sizeof file);
    file[0] = (char)bytes;
    memcpy(file + 8, header, (size_t)bytes);
    write_file("model.safetensors", file, 8 + (size_t)bytes + 4);
}

static void copy_golden(const char *from, const char *to) {
    size_t bytes;
    char *data = golden_read(from, &bytes);
    write_file(to, data, bytes);
    free(data);
}

static const char ADAPTIVE[] = "paligemma_with_expert.gemma_expert.model.layers.0.input_layernorm.dense."
                               "weight";

static void write_checkpoint(void) {
    write_weights("state_proj.weight");
    write_text("config.json", "{\"action_dim\": 32, \"action_horizon\": 50}");
    copy_golden(GOLDEN "/tokenizer.model", "tokenizer.model");
    copy_golden(GOLDEN "/policy/droid_pi0/norm_stats.json", "assets/droid/norm_stats.json");
    copy_golden(GOLDEN "/policy/libero_pi0/norm_stats.json", "assets/physical-intelligence/libero/"
                                                             "norm_stats.json");
}

static void remove_checkpoint(void) {
    static const char *const files[] = {"model.safetensors",
                                        "config.json",
                                        "tokenizer.model",
                                        "assets/droid/norm_stats.json",
                                        "assets/physical-intelligence/libero/norm_stats.json",
                                        "assets/synthetic/norm_stats.json",
                                        "arm.json"};
    static const char *const folders[] = {"/assets/droid",
                                          "/assets/physical-intelligence/libero",
                                          "/assets/physical-intelligence",
                                          "/assets/synthetic",
                                          "/assets",
                                          ""};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) remove_file(files[i]);
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        char path[256];
        snprintf(path, sizeof path, "%s%s", folder, folders[i]);
        rmdir(path);
    }
}

typedef struct open_case {
    const char *robot, *config, *norm_stats, *tokenizer;
    openpi_prompt_state prompt_state;
    int max_prompt;
    openpi_status status;
    const char *sentence;        /* or the robot's name where the status is OPENPI_OK */
} open_case;

static void try_open(const char *checkpoint, const open_case *cases, size_t count) {
    for (size_t i = 0; i < count; i++) {
        openpi_error error = OPENPI_ERROR_INIT;
        openpi_policy *policy = NULL;
        openpi_policy_info info = OPENPI_POLICY_INFO_INIT;
        openpi_policy_options options = {.size = sizeof options,
                                         .robot = cases[i].robot,
                                         .config = cases[i].config,
                                         .norm_stats = cases[i].norm_stats,
                                         .tokenizer = cases[i].tokenizer,
                                         .prompt_state = cases[i].prompt_state,
                                         .max_prompt = cases[i].max_prompt};
        if (cases[i].status != OPENPI_OK) {
            REFUSES(openpi_policy_open(checkpoint, &options, &policy, &error), cases[i].status, cases[i].sentence);
            assert_null(policy);
            continue;
        }
        WORKS(openpi_policy_open(checkpoint, &options, &policy, &error));
        openpi_policy_get_info(policy, &info, NULL);
        assert_string_equal(info.robot, cases[i].sentence);
        openpi_policy_close(policy);
    }
}

static void parts_come_from_the_checkpoint(void **state) {
    (void)state;
    static const char stats[] = GOLDEN "/policy/droid_pi0/norm_stats.json", arm[] = "test_policy_checkpoint/"
                                                                                    "arm.json";
    static const open_case cases[] = {
        {NULL, NULL, NULL, NULL, 0, 0, OPENPI_BAD_ARGUMENT, "does not say which robot it is for"},
        {"droid", NULL, NULL, NULL, 0, 0, OPENPI_OK, "droid"},
        {NULL, "pi0_droid", NULL, NULL, 0, 0, OPENPI_OK, "droid"},
        {NULL, "pi0_libero", NULL, NULL, 0, 0, OPENPI_OK, "libero"},
        {arm, NULL, NULL, NULL, 0, 0, OPENPI_OK, "my_arm"},
        {"droid", NULL, GOLDEN "/policy/droid_pi0", GOLDEN, 0, 100, OPENPI_OK, "droid"},
        {"none", NULL, NULL, NULL, 0, 0, OPENPI_OK, "none"},
        {"droid", "pi0_droid", NULL, NULL, 0, 0, OPENPI_BAD_ARGUMENT, "both robot \"droid\" and config \"pi0_droid\""},
        {NULL, "pi05_droid", NULL, NULL, 0, 0, OPENPI_BAD_ARGUMENT,
         "config \"pi05_droid\" is for π0.5, but test_policy_checkpoint is a π0 model"},
        {NULL, "pi0_fast_droid", NULL, NULL, 0, 0, OPENPI_UNSUPPORTED, "π0-FAST"},
        {NULL, "pi9", NULL, NULL, 0, 0, OPENPI_NOT_FOUND, "known are pi0_aloha"},
        {"aloha", NULL, NULL, NULL, 0, 0, OPENPI_NOT_FOUND,
         "assets/trossen/norm_stats.json, the statistics of robot \"aloha\", is not there; assets holds"},
        {"aloha", NULL, NULL, NULL, 0, 0, OPENPI_NOT_FOUND, "physical-intelligence/libero"},
        {"aloha", NULL, stats, NULL, 0, 0, OPENPI_BAD_FILE, "a state of 8 numbers, robot \"aloha\" has 14"},
        {"droid", NULL, "nowhere.json", NULL, 0, 0, OPENPI_NOT_FOUND, "nowhere.json"},
        {"droid", NULL, GOLDEN, NULL, 0, 0, OPENPI_NOT_FOUND, "holds no norm_stats.json"},
        {"droid", NULL, GOLDEN "/steps.json", NULL, 0, 0, OPENPI_BAD_FILE, "steps.json"},
        {"none", NULL, stats, NULL, 0, 0, OPENPI_BAD_ARGUMENT, "takes none"},
        {"droid", NULL, NULL, "nowhere.model", 0, 0, OPENPI_NOT_FOUND, "nowhere.model"},
        {"droid", NULL, NULL, GOLDEN "/policy", 0, 0, OPENPI_NOT_FOUND, "holds no tokenizer.model or tokenizer.json"},
        {"droid", NULL, NULL, NULL, 0, -1, OPENPI_BAD_ARGUMENT, "max_prompt is -1"},
        {"lerobot", NULL, NULL, NULL, 0, 0, OPENPI_BAD_ARGUMENT, "is no LeRobot checkpoint"},
        {"nobody", NULL, NULL, NULL, 0, 0, OPENPI_NOT_FOUND, "robot \"nobody\" is not known"},
        {"{\"like\": \"droid\", \"assets\": \"\"}", NULL, NULL, NULL, 0, 0, OPENPI_NOT_FOUND, "does not say whose statistics"},
        {"{\"like\": \"droid\", \"normalization\": \"quantile\"}", NULL, NULL, NULL, 0, 0, OPENPI_BAD_FILE,
         "no q01 and q99 of state"},
    };
    write_checkpoint();
    write_text("arm.json", "{\"name\": \"my_arm\", \"cameras\": {\"front\": \"base\"}, \"state\": "
                           "{\"joints\": 7}, \"actions\": "
                           "7, \"assets\": \"droid\"}");
    try_open(folder, cases, sizeof cases / sizeof *cases);
    try_open("test_policy_checkpoint/model.safetensors", cases + 1, 1);
    static const open_case nowhere[] = {
        {"droid", NULL, NULL, NULL, 0, 0, OPENPI_NOT_FOUND, "no such checkpoint"}};
    try_open("test_policy_nowhere", nowhere, 1);

    write_weights(ADAPTIVE);
    static const open_case pi05[] = {
        {NULL, "pi0_droid", NULL, NULL, 0, 0, OPENPI_BAD_ARGUMENT, "is for π0, but test_policy_checkpoint is a π0.5 model"},
        {NULL, "pi05_droid", NULL, NULL, 0, 0, OPENPI_BAD_FILE,
         "no q01 and q99 of state, which π0.5 (quantile normalisation) needs"},
        {NULL, "pi05_droid", GOLDEN "/policy/droid_jointpos/norm_stats.json", NULL, 0, 0, OPENPI_OK, "droid"},
    };
    try_open(folder, pi05, sizeof pi05 / sizeof *pi05);

    write_weights("lm_head.weight");
    static const open_case neither[] = {
        {"droid", NULL, NULL, NULL, 0, 0, OPENPI_BAD_FILE, "neither a π0 nor a π0.5 checkpoint"}};
    try_open(folder, neither, 1);

    write_weights("state_proj.weight");
    copy_golden(GOLDEN "/policy/libero_pi0/norm_stats.json", "assets/synthetic/norm_stats.json");
    static const open_case synthetic[] = {
        {NULL, NULL, NULL, NULL, 0, 0, OPENPI_OK, "none"},
        {"libero", NULL, NULL, NULL, 0, 0, OPENPI_OK, "libero"},
        {"aloha", NULL, NULL, NULL, 0, 0, OPENPI_OK, "aloha"},
    };
    try_open(folder, synthetic, sizeof synthetic / sizeof *synthetic);

    write_text("config.json", "{\"type\": \"pi0_fast\"}");
    static const open_case fast[] = {
        {NULL, NULL, NULL, NULL, 0, 0, OPENPI_UNSUPPORTED, "\"type\" is \"pi0_fast\""}};
    try_open(folder, fast, 1);
    remove_checkpoint();
}

static void options_are_checked(void **state) {
    (void)state;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_policy *policy = NULL;
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    REFUSES(openpi_policy_open(NULL, &options, &policy, &error), OPENPI_BAD_ARGUMENT, "neither a checkpoint nor a synthetic one");
    REFUSES(openpi_policy_open(NULL, NULL, &policy, &error), OPENPI_BAD_ARGUMENT, "neither a checkpoint nor a synthetic one");
    REFUSES(openpi_policy_open("x", &options, NULL, &error), OPENPI_BAD_ARGUMENT, "policy is NULL");
    options.size = 3;
    REFUSES(openpi_policy_open("x", &options, &policy, &error), OPENPI_BAD_ARGUMENT,
            "size is 3, expected 88: begin with OPENPI_POLICY_OPTIONS_INIT");
    openpi_policy_close(NULL);
    openpi_request_close(NULL);
}

/* What openpi's configs of these names set (its training/config.py). */
static void configs_set_everything(void **state) {
    (void)state;
    static const struct {
        const char *name;
        openpi_variant variant;
        int horizon, max_prompt, prompt_state, state, actions, delta;
    } cases[] = {
        {"pi0_aloha", OPENPI_PI0, 50, 48, 0, 14, 14, 14},
        {"pi05_aloha", OPENPI_PI05, 50, 200, 1, 14, 14, 14},
        {"pi0_aloha_sim", OPENPI_PI0, 50, 48, 0, 14, 14, 0},
        {"pi0_droid", OPENPI_PI0, 10, 48, 0, 8, 8, 0},
        {"pi05_droid", OPENPI_PI05, 15, 200, 1, 8, 8, 0},
        {"pi05_full_droid_finetune", OPENPI_PI05, 16, 200, 1, 8, 8, 8},
        {"pi05_droid_finetune", OPENPI_PI05, 16, 200, 1, 8, 8, 0},
        {"pi0_libero", OPENPI_PI0, 50, 48, 0, 8, 7, 7},
        {"pi0_libero_low_mem_finetune", OPENPI_PI0, 50, 48, 0, 8, 7, 7},
        {"pi05_libero", OPENPI_PI05, 10, 200, 0, 8, 7, 0},
        {"pi05_droid_jointpos_polaris", OPENPI_PI05, 15, 200, 1, 8, 8, 8},
        {"pi0_droid_jointpos_polaris", OPENPI_PI0, 10, 100, 0, 8, 8, 8},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        openpi_policy *policy = open_synthetic(NULL, cases[i].name, cases[i].variant);
        openpi_policy_info info = OPENPI_POLICY_INFO_INIT;
        openpi_policy_get_info(policy, &info, NULL);
        assert_int_equal(info.horizon, cases[i].horizon);
        assert_int_equal(info.max_prompt, cases[i].max_prompt);
        assert_int_equal(info.prompt_state, cases[i].prompt_state);
        assert_int_equal(info.state_length, cases[i].state);
        assert_int_equal(info.action_dim, cases[i].actions);
        assert_int_equal(info.lerobot, 0);
        assert_int_equal(policy->robot.delta_count, cases[i].delta);
        assert_int_equal(policy->mode, cases[i].variant == OPENPI_PI05 ? STATS_QUANTILE : STATS_ZSCORE);
        openpi_policy_close(policy);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_are_openpis),
        cmocka_unit_test(cut_requests_are_refused),
        cmocka_unit_test(messages_are_checked),
        cmocka_unit_test(names_of_cameras),
        cmocka_unit_test(refuses_bad_observations),
        cmocka_unit_test(cameras_come_and_go),
        cmocka_unit_test(prompts),
        cmocka_unit_test(none_is_the_models_space),
        cmocka_unit_test(unseen_state_may_be_absent),
        cmocka_unit_test(parts_come_from_the_checkpoint),
        cmocka_unit_test(options_are_checked),
        cmocka_unit_test(a_prompt_may_fill_its_room),
        cmocka_unit_test(configs_set_everything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
