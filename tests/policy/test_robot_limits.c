/* policy/robots/robots_limits.c: limits of a robot's file, as they are read and as they hold a state and
 * actions. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "policy/policy.h"
#include "policy_golden.h"
#include "structs.h"

enum { DIMS = 32 };

#define ARM "{\"name\": \"arm\", \"cameras\": {\"front\": \"base\"}, \"normalization\": \"none\", " \
            "\"prompt\": \"go\", \"state\": {\"joints\": 2, \"gripper\": 1}, \"actions\": 3, \"delta\": [2]"

static openpi_policy *open_arm(const char *record) {
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_synthetic tiny = {.size = sizeof tiny, .seed = 7, .dims = OPENPI_DIMS_INIT};
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    openpi_policy *policy;
    WORKS(openpi_dims_parse("tiny", &tiny.dims, &error));
    options.synthetic = &tiny;
    options.robot = record;
    WORKS(openpi_policy_open(NULL, &options, &policy, &error));
    return policy;
}

/* A state and one step of model actions through the policy. */
static openpi_request *prepare(openpi_policy *policy, const double state[3]) {
    static const uint8_t dark[3];
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_image image = IMAGE("base", dark, OPENPI_U8, OPENPI_HWC, 1, 1);
    openpi_observation observation = OBSERVATION(&image, 1, state, 3, "go", 0);
    openpi_request *request;
    WORKS(openpi_request_create(policy, &request, &error));
    WORKS(openpi_request_prepare(request, &observation, NULL, &error));
    return request;
}

static void limits_hold(void **state) {
    (void)state;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_policy *policy = open_arm(ARM ", \"limits\": {"
                                         "\"state\": {\"joints\": [-2, 2], \"gripper\": [[0, null]]}, "
                                         "\"actions\": [[-3, 3], null, [null, 1]]}}");
    static const struct {
        double state[3], taken[3];
        float model[3];
        double actions[3];
    } cases[] = {
        {{1, -1, 0.5}, {1, -1, 0.5}, {0.5f, 0.5f, 0.5f}, {1.5, -0.5, 0.5}},     /* nothing is beyond        */
        {{5, -5, -1}, {2, -2, 0}, {0.5f, 0.5f, -9}, {2.5, -1.5, -9}},           /* added: the limited state */
        {{2, -2, 0}, {2, -2, 0}, {4, -40, 4}, {3, -42, 1}},
        {{-2, 2, 1e6}, {-2, 2, 1e6}, {-4, 40, 1}, {-3, 42, 1}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        openpi_request *request = prepare(policy, cases[i].state);
        float model[DIMS] = {0};
        double actions[3];
        int count;
        memcpy(model, cases[i].model, sizeof cases[i].model);
        const double *taken = openpi_request_state(request, &count);
        assert_int_equal(count, 3);
        WORKS(openpi_request_finish(request, model, 1, actions, 3, &error));
        for (int d = 0; d < 3; d++) {
            assert_true(taken[d] == cases[i].taken[d]);
            assert_true(actions[d] == cases[i].actions[d]);
        }
        openpi_request_close(request);
    }
    int warning = 1;
    assert_string_equal(openpi_policy_note(policy, 0, &warning),
                        "robot \"arm\" has limits for 2 of its 3 actions and numbers of the state: beyond "
                        "them the limit is taken, as \"limits\" of its file says");
    assert_int_equal(warning, 0);
    openpi_policy_close(policy);
    policy = open_arm(ARM "}");
    assert_null(openpi_policy_note(policy, 0, NULL));
    openpi_policy_close(policy);
}

/* What is no number stays none, so that it is refused. */
static void infinity_stays(void **state) {
    (void)state;
    const robot_limit limits[3] = {{1, -1, 1}, {1, -1, 1}, {0}};
    double values[3] = {INFINITY, NAN, 1e300};
    robot_limit_all(limits, 3, values);
    assert_true(isinf(values[0]) && isnan(values[1]) && values[2] == 1e300);
}

static void other_dims_forget_them(void **state) {
    (void)state;
    openpi_error error = OPENPI_ERROR_INIT;
    robot r;
    WORKS(robot_open("{\"like\": \"libero\", \"limits\": {\"actions\": [-1, 1], "
                     "\"state\": {\"observation/state\": [-9, 9]}}}", &r, &error));
    assert_int_equal(robot_limit_count(r.action_limits, DIMS), 7);
    assert_int_equal(robot_limit_count(r.state_limits, DIMS), 8);
    WORKS(robot_open("{\"like\": \"libero\", \"actions\": 6, \"limits\": {\"actions\": [-1, 1]}}", &r, &error));
    assert_int_equal(robot_limit_count(r.action_limits, DIMS), 6);
    WORKS(robot_open("{\"name\": \"any\", \"cameras\": {\"a\": \"base\"}, \"state\": {\"s\": 0}, "
                     "\"actions\": 2, \"limits\": {\"state\": {\"s\": [-1, 1]}}}", &r, &error));
    assert_int_equal(robot_limit_count(r.state_limits, DIMS), DIMS);
    assert_int_equal(robot_limit_count(r.action_limits, DIMS), 0);
}

static void refuses_others(void **state) {
    (void)state;
    static const struct {
        const char *limits, *sentence;
    } cases[] = {
        {"3", "\"limits\" is an integer, expected an object"},
        {"{\"speed\": [0, 1]}", "unknown key \"speed\", known are min, max, max_step, max_start_jump, "
                               "on_violation, state and actions"},
        {"{\"state\": [-1, 1]}", "\"state\" is an array, expected an object of request keys and limits"},
        {"{\"state\": {\"wrist\": [-1, 1]}}", "\"state\" has \"wrist\", expected a key of the robot's"},
        {"{\"state\": {\"joints\": [[-1, 1]]}}", "the limits of joints have 1 entries, expected one pair"},
        {"{\"actions\": [[-1, 1]]}", "the limits of the actions have 1 entries"},
        {"{\"actions\": 3}", "the limits of the actions are no two numbers [low, high]"},
        {"{\"actions\": [1, -1]}", "the limits of the actions are no two numbers [low, high]"},
        {"{\"actions\": [1, 1]}", "the limits of the actions are no two numbers [low, high]"},
        {"{\"actions\": [null, null]}", "the limits of the actions have 2 entries"},
        {"{\"actions\": [[-1, 1], [\"0\", 1], null]}", "the limits of the actions are no two numbers [low, high]"},
    };
    openpi_error error = OPENPI_ERROR_INIT;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[512];
        robot r;
        snprintf(text, sizeof text, ARM ", \"limits\": %s}", cases[i].limits);
        REFUSES(robot_open(text, &r, &error), OPENPI_BAD_FILE, cases[i].sentence);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(limits_hold),
        cmocka_unit_test(infinity_stays),
        cmocka_unit_test(other_dims_forget_them),
        cmocka_unit_test(refuses_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
