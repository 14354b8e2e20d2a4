/* labels: isa_slow threads */
/* openpi's whole requests, from the bytes of its client to the prepared sample and from model actions to the
 * robot's (policy/request.c). */
#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "policy/policy.h"
#include "policy_golden.h"
#include "structs.h"

enum { DIMS = 32, PIXELS = 224 * 224 * 3 };

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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_are_openpis),
        cmocka_unit_test(cut_requests_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
