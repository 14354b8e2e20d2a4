/* policy/leftover.c: a chunk kept for real-time chunking, against LeRobot's reanchor_relative_rtc_prefix bit
 * for bit; for openpi's delta robots by what the robot does: the same actions, seen from another state. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "policy/policy.h"
#include "policy_golden.h"
#include "structs.h"

enum { DIMS = OPENPI_ACTION_DIM, STEPS = 5, ARM = 14 };

static openpi_error error = OPENPI_ERROR_INIT;

typedef struct subject {
    openpi_policy *policy;
    openpi_request *request;
    openpi_policy_info info;
} subject;

static subject subject_open(const char *checkpoint, const openpi_policy_options *options) {
    subject s = {.info = OPENPI_POLICY_INFO_INIT};
    WORKS(openpi_policy_open(checkpoint, options, &s.policy, &error));
    WORKS(openpi_policy_get_info(s.policy, &s.info, &error));
    WORKS(openpi_request_create(s.policy, &s.request, &error));
    return s;
}

static void subject_close(const subject *s) {
    openpi_request_close(s->request);
    openpi_policy_close(s->policy);
}

static subject golden_subject(const char *name, tensors **file) {
    char path[512];
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    options.tokenizer = GOLDEN "/lerobot/pi05/checkpoint/tokenizer/tokenizer.json";
    snprintf(path, sizeof path, GOLDEN "/lerobot/%s/expected.safetensors", name);
    *file = golden_open(path);
    snprintf(path, sizeof path, GOLDEN "/lerobot/%s/checkpoint", name);
    return subject_open(path, &options);
}

static void prepare_at(const subject *s, const double *state, int count) {
    static const uint8_t dark[3];
    openpi_image image = IMAGE("base", dark, OPENPI_U8, OPENPI_HWC, 1, 1);
    if (s->info.cameras[0][0]) image.name = s->info.cameras[0];
    openpi_observation observation = OBSERVATION(&image, 1, state, count, "go", 0);
    WORKS(openpi_request_prepare(s->request, &observation, NULL, &error));
}

static void prepare_f32(const subject *s, const float *state) {
    double wide[DIMS];
    for (int i = 0; i < s->info.state_length; i++) wide[i] = (double)state[i];
    prepare_at(s, wide, s->info.state_length);
}

/* ---- LeRobot ------------------------------------------------------------------------------------- */

static const char *const relative[] = {"pi05_relative", "pi0_relative", "pi05_relative_unnamed"};

/* 1: the statistics of an action have no span, where LeRobot's number is what is left of a difference of
 * rounding over 1e-8. */
static int has_no_span(const openpi_policy *policy, int d) {
    for (int i = 0; i < policy->pipeline.after_count; i++) {
        const lerobot_norm *norm = &policy->pipeline.after[i].norm;
        if (norm->mode == LEROBOT_MEAN_STD && norm->high[d] == 0) return 1;
        if (norm->mode != LEROBOT_IDENTITY && norm->high[d] == norm->low[d]) return 1;
    }
    return 0;
}

/* Absolute actions become what LeRobot makes of them at the state of row 0, from whichever step on. */
static void leftovers_are_lerobots(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof relative / sizeof *relative; i++) {
        tensors *file;
        const subject s = golden_subject(relative[i], &file);
        int a = s.info.action_dim, n = s.info.state_length, rows, dims;
        float *absolute = golden_copy(file, "in.actions_absolute", DTYPE_F32, -1),
              *raw = golden_copy(file, "in.state", DTYPE_F32, -1),
              *want = golden_copy(file, "leftover_normalized", DTYPE_F32, STEPS * a), got[STEPS * DIMS];
        double kept[STEPS * DIMS] = {0};
        for (int k = 0; k < STEPS * a; k++) kept[k / a * DIMS + k % a] = (double)absolute[k];
        assert_true(n > 0);
        prepare_f32(&s, raw);
        for (int executed = 0; executed < STEPS; executed++) {
            WORKS(openpi_request_previous(s.request, kept, STEPS, executed, got, CAPACITY(got), &rows, &dims,
                                          &error));
            assert_int_equal(rows, STEPS - executed);
            assert_int_equal(dims, a);
            for (int k = 0; k < rows * a; k++) {
                const float *expected = want + executed * a + k;
                if (!has_no_span(s.policy, k % a)) assert_memory_equal(&got[k], expected, sizeof *got);
                else
                    assert_true(got[k] == -1 || got[k] == 0);
            }
        }
        free(absolute), free(raw), free(want);
        tensors_close(file);
        subject_close(&s);
    }
}

/* What is kept of a chunk is what LeRobot's postprocessor makes of it. */
static void kept_chunks_are_absolute(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof relative / sizeof *relative; i++) {
        tensors *file;
        const subject s = golden_subject(relative[i], &file);
        int a = s.info.action_dim;
        float *model = golden_copy(file, "in.actions_normalized", DTYPE_F32, -1),
              *raw = golden_copy(file, "in.state", DTYPE_F32, -1),
              *want = golden_copy(file, "actions", DTYPE_F32, -1), padded[STEPS * DIMS] = {0};
        double kept[STEPS * DIMS];
        for (int k = 0; k < STEPS * a; k++) padded[k / a * DIMS + k % a] = model[k];
        prepare_f32(&s, raw);
        WORKS(openpi_request_keep(s.request, padded, STEPS, kept, CAPACITY(kept), &error));
        for (int k = 0; k < STEPS * DIMS; k++) {
            int d = k % DIMS;
            assert_true(kept[k] == (d < a ? (double)want[k / DIMS * a + d] : 0));
        }
        free(model), free(raw), free(want);
        tensors_close(file);
        subject_close(&s);
    }
}

/* A policy without relative actions goes on from the model's own numbers. */
static void absolute_policies_keep_their_numbers(void **state) {
    (void)state;
    tensors *file;
    const subject s = golden_subject("pi05_mean_std", &file);
    float *raw = golden_copy(file, "in.state", DTYPE_F32, -1), model[STEPS * DIMS], got[STEPS * DIMS];
    double kept[STEPS * DIMS];
    int rows, dims;
    openpi_noise(3, 0, model, CAPACITY(model));
    prepare_f32(&s, raw);
    WORKS(openpi_request_keep(s.request, model, STEPS, kept, CAPACITY(kept), &error));
    prepare_f32(&s, raw + s.info.state_length);
    WORKS(openpi_request_previous(s.request, kept, STEPS, 2, got, CAPACITY(got), &rows, &dims, &error));
    assert_true(rows == STEPS - 2 && dims == s.info.action_dim);
    for (int k = 0; k < rows * dims; k++) assert_true(got[k] == model[(2 + k / dims) * DIMS + k % dims]);
    free(raw);
    tensors_close(file);
    subject_close(&s);
}

/* ---- openpi -------------------------------------------------------------------------------------- */

/* Joints relative to the state, grippers not, ALOHA's signs and gripper maps after it. */
static const char aloha[] = "{\"like\": \"aloha\", \"transform\": \"aloha\", \"delta\": [6, -1, 6, -1]}";

static subject aloha_subject(const char *variant) {
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    WORKS(openpi_synthetic_parse(variant, &synthetic, &error));
    options.synthetic = &synthetic;
    options.robot = aloha;
    return subject_open(NULL, &options);
}

static void robot_actions(const subject *s, const float *model, int steps, double *out) {
    WORKS(openpi_request_finish(s->request, model, steps, out, (size_t)(steps * ARM), &error));
}

/* The robot's actions are the same, whether from the old chunk at the old state or from what is left of it at
 * the new one; and the model's numbers are not. */
static void delta_robots_go_on(void **state) {
    static const char *const variants[] = {"odd:pi0", "odd:pi05"};
    (void)state;
    for (int v = 0; v < 2; v++) {
        const subject s = aloha_subject(variants[v]);
        double old[ARM], new[ARM], kept[STEPS * DIMS], before[STEPS * ARM], after[STEPS * ARM];
        float model[STEPS * DIMS], left[STEPS * DIMS], padded[STEPS * DIMS] = {0};
        int rows, dims, moved = 0;
        for (int i = 0; i < ARM; i++) old[i] = 0.05 * i, new[i] = 0.3 - 0.04 * i;
        openpi_noise(4, 0, model, CAPACITY(model));
        prepare_at(&s, old, ARM);
        robot_actions(&s, model, STEPS, before);
        WORKS(openpi_request_keep(s.request, model, STEPS, kept, CAPACITY(kept), &error));
        prepare_at(&s, new, ARM);
        WORKS(openpi_request_previous(s.request, kept, STEPS, 1, left, CAPACITY(left), &rows, &dims, &error));
        assert_true(rows == STEPS - 1 && dims == ARM);
        for (int k = 0; k < rows * dims; k++) {
            int step = k / dims, d = k % dims;
            padded[step * DIMS + d] = left[k];
            moved += fabsf(left[k] - model[(1 + step) * DIMS + d]) > 1e-3f;
        }
        assert_int_equal(moved, 12 * rows);
        robot_actions(&s, padded, rows, after);
        for (int k = 0; k < rows * dims; k++)
            if (!(fabs(after[k] - before[ARM + k]) <= 2e-6))
                fail_msg("%s: action %d of step %d is %.9g, before %.9g", variants[v], k % dims, k / dims,
                         after[k], before[ARM + k]);
        subject_close(&s);
    }
}

/* ---- a joint that never moved -------------------------------------------------------------------- */

enum { IDLE = 3 };

/* Makes the statistics of action IDLE as flat as those of a joint that never moved, but for `spread`. */
static void make_idle(openpi_policy *policy, double spread) {
    norm_stats *stats = &policy->actions;
    stats->q99[IDLE] = stats->q01[IDLE] + spread;
    stats->std[IDLE] = spread;
    for (int i = 0; i < policy->pipeline.after_count; i++) {
        lerobot_norm *norm = &policy->pipeline.after[i].norm;
        norm->high[IDLE] = (norm->mode == LEROBOT_MEAN_STD ? 0 : norm->low[IDLE]) + (float)spread;
    }
}

/* What is left of a chunk after the robot has drifted by 1e-3 is at the only value that the data had. */
static void check_idle(const subject *s, double spread, float want) {
    double at[DIMS] = {0}, kept[STEPS * DIMS];
    float model[STEPS * DIMS], left[STEPS * DIMS];
    int rows, dims;
    make_idle(s->policy, spread);
    openpi_noise(5, 0, model, CAPACITY(model));
    prepare_at(s, at, s->info.state_length);
    WORKS(openpi_request_keep(s->request, model, STEPS, kept, CAPACITY(kept), &error));
    for (int i = 0; i < s->info.state_length; i++) at[i] += 1e-3;
    prepare_at(s, at, s->info.state_length);
    WORKS(openpi_request_previous(s->request, kept, STEPS, 1, left, CAPACITY(left), &rows, &dims, &error));
    for (int k = 0; k < rows * dims; k++) {
        if (k % dims == IDLE && fabsf(left[k] - want) > 1e-6f)
            fail_msg("idle, span %g: step %d is %g, expected %g", spread, k / dims, (double)left[k],
                     (double)want);
        if (k % dims != IDLE) assert_true(fabsf(left[k]) < 10);
    }
}

static void an_idle_joint_pulls_nothing(void **state) {
    static const double spreads[] = {0, 1e-9, 1e-7};
    (void)state;
    for (int i = 0; i < 3; i++) {
        for (int pi05 = 0; pi05 < 2; pi05++) {
            const subject s = aloha_subject(pi05 ? "odd:pi05" : "odd:pi0");
            check_idle(&s, spreads[i], pi05 ? -1 : 0);
            subject_close(&s);
        }
        for (size_t which = 0; which < sizeof relative / sizeof *relative; which++) {
            tensors *file;
            const subject s = golden_subject(relative[which], &file);
            lerobot_mode mode = LEROBOT_IDENTITY;
            for (int k = 0; k < s.policy->pipeline.after_count; k++)
                if (s.policy->pipeline.after[k].kind == LEROBOT_UNNORMALIZE)
                    mode = s.policy->pipeline.after[k].norm.mode;
            check_idle(&s, spreads[i], mode == LEROBOT_MEAN_STD ? 0 : -1);
            tensors_close(file);
            subject_close(&s);
        }
    }
}

/* ---- bad input ----------------------------------------------------------------------------------- */

static void what_does_not_fit_is_refused(void **state) {
    (void)state;
    const subject s = aloha_subject("odd:pi05");
    double old[ARM] = {0}, kept[STEPS * DIMS] = {0};
    float model[STEPS * DIMS] = {0}, left[STEPS * DIMS];
    int rows = -1, dims = -1;
    const size_t most = STEPS * DIMS;
#define KEEP(REQUEST, MODEL, HORIZON, CAPACITY) \
    openpi_request_keep(REQUEST, MODEL, HORIZON, kept, CAPACITY, &error)
#define PREVIOUS(REQUEST, HORIZON, EXECUTED, CAPACITY) \
    openpi_request_previous(REQUEST, kept, HORIZON, EXECUTED, left, CAPACITY, &rows, &dims, &error)
    REFUSES(KEEP(s.request, model, STEPS, most), OPENPI_BAD_ARGUMENT, "nothing was prepared");
    REFUSES(PREVIOUS(s.request, STEPS, 0, most), OPENPI_BAD_ARGUMENT, "nothing was prepared");
    prepare_at(&s, old, ARM);
    REFUSES(KEEP(NULL, model, STEPS, most), OPENPI_BAD_ARGUMENT, "the request is NULL");
    REFUSES(KEEP(s.request, NULL, STEPS, most), OPENPI_BAD_ARGUMENT, "the chunk is NULL");
    REFUSES(KEEP(s.request, model, 0, most), OPENPI_BAD_ARGUMENT, "horizon is 0, expected 1 to 64");
    REFUSES(KEEP(s.request, model, STEPS, most - 1), OPENPI_BAD_ARGUMENT,
            "kept holds 159 numbers, expected 160");
    REFUSES(PREVIOUS(s.request, 65, 0, most), OPENPI_BAD_ARGUMENT, "horizon is 65");
    REFUSES(PREVIOUS(s.request, STEPS, -1, most), OPENPI_BAD_ARGUMENT, "-1 steps are executed");
    REFUSES(PREVIOUS(s.request, STEPS, STEPS, most), OPENPI_BAD_ARGUMENT,
            "5 steps are executed, expected 0 to 4");
    REFUSES(PREVIOUS(s.request, STEPS, 3, 2 * ARM - 1), OPENPI_BAD_ARGUMENT,
            "previous holds 27 numbers, expected 28: 2 steps times 14");
    REFUSES(openpi_request_previous(s.request, kept, STEPS, 0, left, most, NULL, &dims, &error),
            OPENPI_BAD_ARGUMENT, "the output is NULL");
    model[DIMS + 3] = NAN;
    REFUSES(KEEP(s.request, model, STEPS, most), OPENPI_BAD_INPUT,
            "the model's action of step 1, dimension 3 is nan");
    kept[2 * DIMS + 5] = INFINITY;
    REFUSES(PREVIOUS(s.request, STEPS, 1, most), OPENPI_BAD_INPUT, "step 2, dimension 5 is inf");
    assert_true(rows == -1 && dims == -1);
    subject_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(leftovers_are_lerobots),
        cmocka_unit_test(kept_chunks_are_absolute),
        cmocka_unit_test(absolute_policies_keep_their_numbers),
        cmocka_unit_test(delta_robots_go_on),
        cmocka_unit_test(an_idle_joint_pulls_nothing),
        cmocka_unit_test(what_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
