/* labels: threads */
/* A runner over a model in this process: its chunks are those of openpi_policy_infer, and with real-time
 * chunking those that follow on from each other. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <sched.h>

#include "policy_golden.h"
#include "runner/runner.h"
#include "structs.h"

enum { SIDE = 8, STATES = 8, DIMS = 8, HORIZON = 10 };

typedef struct arm_rig {
    openpi_engine *engine;
    openpi_policy *policy;
    uint8_t pixels[2][SIDE * SIDE * 3];
    double state[STATES];
    openpi_image images[2];
    openpi_observation observation;
} arm_rig;

static openpi_error error = OPENPI_ERROR_INIT;

static void begin(arm_rig *g) {
    openpi_synthetic tiny = OPENPI_SYNTHETIC_INIT;
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    openpi_policy_options robot = OPENPI_POLICY_OPTIONS_INIT;
    memset(g, 0, sizeof *g);
    WORKS(openpi_synthetic_parse("tiny:pi0", &tiny, &error));
    options.synthetic = robot.synthetic = &tiny;
    options.threads = 1;
    robot.robot = "{\"like\": \"droid\", \"name\": \"arm\", \"horizon\": 10}";
    WORKS(openpi_engine_open(NULL, &options, &g->engine, &error));
    WORKS(openpi_policy_open(NULL, &robot, &g->policy, &error));
    memset(g->pixels, 99, sizeof g->pixels);
    g->images[0] = (openpi_image)IMAGE("base", g->pixels[0], OPENPI_U8, OPENPI_HWC, SIDE, SIDE);
    g->images[1] = (openpi_image)IMAGE("left_wrist", g->pixels[1], OPENPI_U8, OPENPI_HWC, SIDE, SIDE);
    g->observation = (openpi_observation)OBSERVATION(g->images, 2, g->state, STATES, "go", 0);
}

static void end(arm_rig *g) {
    openpi_policy_close(g->policy);
    openpi_engine_close(g->engine);
}

static void wait_for_chunk(openpi_runner *runner, uint64_t number) {
    /* On the board it stands before the control thread can take it. */
    while (atomic_load(&runner->board_published) < number || !exchange_waits(&runner->chunks)) {
        assert_int_equal(atomic_load(&runner->trouble), OPENPI_REASON_NONE);
        sched_yield();
    }
}

/* The same seed and the same observation: the same numbers. */
static void chunks_are_those_of_a_policy(void **state) {
    static arm_rig g;
    double expected[HORIZON * DIMS], action[DIMS];
    openpi_session_options session = OPENPI_SESSION_OPTIONS_INIT;
    openpi_runner_options options = OPENPI_RUNNER_OPTIONS_INIT;
    openpi_runner_info info = OPENPI_RUNNER_INFO_INIT;
    openpi_session *plain;
    openpi_request *request;
    openpi_runner *runner;
    (void)state;
    begin(&g);
    session.seed = 5, session.horizon = HORIZON, session.steps = 2;
    WORKS(openpi_session_create(g.engine, &session, &plain, &error));
    WORKS(openpi_request_create(g.policy, &request, &error));
    WORKS(openpi_policy_infer(request, plain, &g.observation, NULL, expected, CAPACITY(expected), NULL, &error));
    WORKS(openpi_runner_open(g.engine, g.policy, &session, &options, &runner, &error));
    WORKS(openpi_runner_observe(runner, &g.observation, 0, &error));
    wait_for_chunk(runner, 1);
    for (int i = 0; i < HORIZON; i++) {
        assert_int_equal(openpi_runner_next(runner, i, action, NULL), OPENPI_MOVE_ACTION);
        assert_memory_equal(action, expected + i * DIMS, sizeof action);
    }
    assert_int_equal(openpi_runner_next(runner, HORIZON, action, NULL), OPENPI_MOVE_HOLD);
    for (int d = 0; d < DIMS - 1; d++) assert_true(action[d] == 0); /* velocities end, the gripper stays */
    assert_true(action[DIMS - 1] == expected[HORIZON * DIMS - 1]);
    WORKS(openpi_runner_get_info(runner, &info, &error));
    assert_int_equal(info.action_dim, DIMS);
    assert_true(info.rate_hz == 15);
    assert_int_equal(info.steps, HORIZON);
    assert_int_equal(info.ticks, HORIZON + 1);
    openpi_runner_close(runner);
    openpi_request_close(request);
    openpi_session_close(plain);
    end(&g);
}

/* With guidance the overlap of two chunks is nearer than without, for the same noise. */
static double seam_of(arm_rig *g, openpi_rtc_mode mode) {
    openpi_session_options session = OPENPI_SESSION_OPTIONS_INIT;
    openpi_runner_options options = OPENPI_RUNNER_OPTIONS_INIT;
    openpi_runner *runner;
    double action[DIMS], first[HORIZON * DIMS], apart = 0;
    session.seed = 5, session.horizon = HORIZON, session.steps = 2;
    options.rtc = mode, options.ask_after = 3, options.frozen_after = -1;
    WORKS(openpi_runner_open(g->engine, g->policy, &session, &options, &runner, &error));
    WORKS(openpi_runner_observe(runner, &g->observation, 0, &error));
    wait_for_chunk(runner, 1);
    for (int i = 0; i < 3; i++) openpi_runner_next(runner, 10 + i, action, NULL);
    memcpy(first, runner->schedule.current.actions, sizeof first);
    WORKS(openpi_runner_observe(runner, &g->observation, 20, &error));
    wait_for_chunk(runner, 2);
    assert_int_equal(openpi_runner_next(runner, 21, action, NULL), OPENPI_MOVE_ACTION);
    for (int d = 0; d < DIMS; d++) apart += fabs(action[d] - first[3 * DIMS + d]);
    openpi_runner_close(runner);
    return apart;
}

static void chunks_follow_on(void **state) {
    static arm_rig g;
    (void)state;
    begin(&g);
    double plain = seam_of(&g, OPENPI_RTC_OFF), guided = seam_of(&g, OPENPI_RTC_GUIDED);
    print_message("at the seam: %g without guidance, %g with\n", plain, guided);
    assert_true(guided < plain / 4);
    end(&g);
}

static void what_does_not_fit_is_refused(void **state) {
    static arm_rig g;
    openpi_runner_options options = OPENPI_RUNNER_OPTIONS_INIT;
    openpi_runner *runner = NULL;
    (void)state;
    begin(&g);
    options.rtc = OPENPI_RTC_TRAINED;
    REFUSES(openpi_runner_open(g.engine, g.policy, NULL, &options, &runner, &error), OPENPI_UNSUPPORTED,
            "was not trained for it");
    options = (openpi_runner_options)OPENPI_RUNNER_OPTIONS_INIT;
    options.robot = "droid";
    REFUSES(openpi_runner_open(g.engine, g.policy, NULL, &options, &runner, &error), OPENPI_BAD_ARGUMENT,
            "over an engine the robot is the policy's");
    options.robot = NULL, options.ask_after = 99;
    REFUSES(openpi_runner_open(g.engine, g.policy, NULL, &options, &runner, &error), OPENPI_BAD_ARGUMENT,
            "ask_after is 99");
    REFUSES(openpi_runner_open(g.engine, NULL, NULL, NULL, &runner, &error), OPENPI_BAD_ARGUMENT, "NULL");
    assert_null(runner);
    end(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_are_those_of_a_policy),
        cmocka_unit_test(chunks_follow_on),
        cmocka_unit_test(what_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
