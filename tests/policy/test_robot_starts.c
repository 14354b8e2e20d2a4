/* policy/robots/robots_starts.c: where each action of a robot starts in its state, as its record says it,
 * and the value in the action's units. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lerobot_folder.h"
#include "policy/policy.h"
#include "policy_golden.h"
#include "structs.h"

#define ARM "{\"name\": \"arm\", \"cameras\": {\"front\": \"base\"}, \"normalization\": \"none\", " \
            "\"prompt\": \"go\", \"state\": {\"joints\": 2, \"gripper\": 1}, \"actions\": 3"

static openpi_policy *open_robot(const char *robot, const char *config) {
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_synthetic tiny = {.size = sizeof tiny, .seed = 7, .dims = OPENPI_DIMS_INIT};
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    openpi_policy *policy;
    WORKS(openpi_dims_parse("tiny", &tiny.dims, &error));
    options.synthetic = &tiny;
    options.robot = robot;
    options.config = config;
    WORKS(openpi_policy_open(NULL, &options, &policy, &error));
    return policy;
}

/* "0 1 -1": the number of the state that each action starts at. */
static void must_start(const openpi_policy *policy, const char *expected) {
    openpi_policy_info info = OPENPI_POLICY_INFO_INIT;
    openpi_error error = OPENPI_ERROR_INIT;
    char found[128] = "";
    size_t at = 0;
    WORKS(openpi_policy_get_info(policy, &info, &error));
    for (int a = 0; a < info.action_dim; a++)
        at += (size_t)snprintf(found + at, sizeof found - at, "%s%d", a ? " " : "",
                               openpi_policy_action_state(policy, a));
    assert_string_equal(found, expected);
    assert_int_equal(openpi_policy_action_state(policy, -1), -1);
    assert_int_equal(openpi_policy_action_state(policy, info.action_dim), -1);
}

/* Velocities and steps start nowhere, although the state has numbers in the same places. */
static void robots_say_where_actions_start(void **state) {
    (void)state;
    static const struct {
        const char *robot, *config, *starts;
    } cases[] = {
        {"aloha", NULL, "0 1 2 3 4 5 6 7 8 9 10 11 12 13"},
        {"aloha_sim", NULL, "0 1 2 3 4 5 6 7 8 9 10 11 12 13"},
        {"droid", NULL, "-1 -1 -1 -1 -1 -1 -1 7"},
        {"droid_jointpos", NULL, "0 1 2 3 4 5 6 7"},
        {"libero", NULL, "-1 -1 -1 -1 -1 -1 -1"},
        {NULL, "pi0_libero", "-1 -1 -1 -1 -1 -1 -1"},        /* "delta" is there, and the sum is a step      */
        {NULL, "pi0_aloha_towel", "0 1 2 3 4 5 6 7 8 9 10 11 12 13"},
        {ARM "}", NULL, "-1 -1 -1"},                         /* nothing is said                              */
        {ARM ", \"delta\": [2, -1]}", NULL, "0 1 -1"},       /* these are added to the state                 */
        {ARM ", \"starts\": [1, null, 2]}", NULL, "1 -1 2"},
        {ARM ", \"delta\": [2, -1], \"starts\": [0, null, 2]}", NULL, "0 -1 2"},
        {"{\"like\": \"droid\", \"name\": \"a\"}", NULL, "-1 -1 -1 -1 -1 -1 -1 7"},
        {"{\"like\": \"droid\", \"actions\": 7}", NULL, "-1 -1 -1 -1 -1 -1 -1"},
        {"{\"like\": \"droid_jointpos\", \"state\": {\"pose\": 8}, \"delta\": []}", NULL,
         "-1 -1 -1 -1 -1 -1 -1 -1"},
        {"{\"like\": \"droid_jointpos\", \"action_names\": [\"a\", \"b\", \"c\", \"d\", \"e\", \"f\", \"g\", "
         "\"h\"]}", NULL, "0 1 2 3 4 5 6 -1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        openpi_policy *policy = open_robot(cases[i].robot, cases[i].config);
        must_start(policy, cases[i].starts);
        openpi_policy_close(policy);
    }
    openpi_policy *none = open_robot("none", NULL);
    for (int a = 0; a < OPENPI_ACTION_DIM; a++) assert_int_equal(openpi_policy_action_state(none, a), -1);
    openpi_policy_close(none);
    assert_int_equal(openpi_policy_action_state(NULL, 0), -1);
}

/* A request whose state is 0.5, 1.5, 2.5 …, but for `gripper` in every seventh place. */
static openpi_request *prepare(const openpi_policy *policy, const char *camera, int count, double gripper) {
    static const uint8_t dark[3];
    openpi_error error = OPENPI_ERROR_INIT;
    double numbers[14];
    for (int i = 0; i < count; i++) numbers[i] = i % 7 == 6 ? gripper : i + 0.5;
    openpi_image image = IMAGE(camera, dark, OPENPI_U8, OPENPI_HWC, 1, 1);
    openpi_observation observation = OBSERVATION(&image, 1, numbers, count, "go", 0);
    openpi_request *request;
    WORKS(openpi_request_create(policy, &request, &error));
    assert_true(isnan(openpi_request_action_start(request, 0)));               /* nothing is prepared       */
    WORKS(openpi_request_prepare(request, &observation, NULL, &error));
    return request;
}

/* The state of ALOHA's real gripper is the opening of its linear drive, its action an angle of its motor. By
 * openpi's own values of _gripper_to_angular (test_robots.c) an opening of 0.5 is
 * -0.14005592 · (1.6296 - 0.5476) + 0.5476 rad, and RealEnv takes angles from -0.6213 to 1.4910. The
 * simulator takes openings. */
static void values_are_in_the_units_of_actions(void **state) {
    (void)state;
    static const struct {
        const char *robot;
        double opening, gripper;
    } cases[] = {
        {"aloha", 0.5, (-0.14005592 * (1.6296 - 0.5476) + 0.5476 + 0.6213) / (1.4910 + 0.6213)},
        {"aloha", 0.0, (-1.07986555 * (1.6296 - 0.5476) + 0.5476 + 0.6213) / (1.4910 + 0.6213)},
        {"aloha_sim", 0.5, 0.5},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        openpi_policy *policy = open_robot(cases[i].robot, NULL);
        openpi_request *request = prepare(policy, "cam_high", 14, cases[i].opening);
        for (int a = 0; a < 14; a++) {
            double start = openpi_request_action_start(request, a);
            if (a % 7 == 6) assert_true(fabs(start - cases[i].gripper) < 1e-7);
            else assert_true(start == a + 0.5);              /* the joints' signs are those of both        */
        }
        assert_true(isnan(openpi_request_action_start(request, 14)));
        openpi_request_close(request);
        openpi_policy_close(policy);
    }
    assert_true(isnan(openpi_request_action_start(NULL, 0)));
    openpi_policy *arm = open_robot("{\"name\": \"any\", \"cameras\": {\"front\": \"base\"}, "
                                    "\"normalization\": \"none\", \"state\": {\"state\": 0}, \"actions\": 3, "
                                    "\"starts\": [2, 1, null]}", NULL);
    openpi_request *request = prepare(arm, "front", 2, 0);
    assert_true(isnan(openpi_request_action_start(request, 0)));               /* the state has two numbers */
    assert_true(openpi_request_action_start(request, 1) == 1.5);
    assert_true(isnan(openpi_request_action_start(request, 2)));
    openpi_request_close(request);
    openpi_policy_close(arm);
}

static void wrong_starts(void **state) {
    (void)state;
    static const struct {
        const char *starts, *sentence;
    } cases[] = {
        {"3", "\"starts\" is an integer, expected an array such as [0, 1, null]"},
        {"[0, 1]", "\"starts\" has 2 entries, expected 3, as many as \"actions\" says"},
        {"[0, 1, \"2\"]", "\"starts\"[2] names no number of the state: expected one from 0, null, or {"},
        {"[0, 1, -1]", "\"starts\"[2] names no number of the state"},
        {"[0, 1, 2.0]", "\"starts\"[2] names no number of the state"},
        {"[0, 1, 99999999999]", "\"starts\"[2] names no number of the state"},
        {"[0, 1, 3]", "\"starts\"[2] is 3, but the state has 3 numbers"},
        {"[0, 2, 1]", "\"starts\"[1] is 2, but \"delta\" adds number 1 of the state to this action"},
        {"[0, 1, {\"state\": 2}]", "\"starts\"[2] is an object, expected \"state\" and \"as\" in it"},
        {"[0, 1, {\"state\": 2, \"as\": \"hand\"}]", "\"starts\"[2] is an object"},
        {"[0, 1, {\"as\": \"aloha_gripper\"}]", "\"starts\"[2] names no number of the state"},
    };
    openpi_error error = OPENPI_ERROR_INIT;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char record[512];
        robot r;
        snprintf(record, sizeof record, "%s, \"delta\": [2, -1], \"starts\": %s}", ARM, cases[i].starts);
        REFUSES(robot_open(record, &r, &error), OPENPI_BAD_FILE, cases[i].sentence);
    }
}

/* LeRobot's actions start at the state that its steps add, in the robot's units, and only there. */
static void lerobot_adds_the_state(void **state) {
    (void)state;
    static const char before[] = "policy_preprocessor.json", after[] = "policy_postprocessor.json";
    static const int relative[7] = {0, 1, 2, 3, 4, -1, -1};
    openpi_error error = OPENPI_ERROR_INIT;
    lerobot pipeline;
    folder_copy("pi05_relative");
    folder_patch(before, "steps/2/config/action_names",
                 "[\"a\", \"b\", \"c\", \"d\", \"e\", \"gripper\", \"left_gripper\"]");
    folder_patch(before, "steps/2/config/exclude_joints", "[\"gripper\"]");
    WORKS(lerobot_open(folder_name, &pipeline, NULL, &error));
    for (int a = 0; a < 7; a++) assert_int_equal(lerobot_start_state(&pipeline, a), relative[a]);
    /* A state that is remembered after it was normalised is in other units. */
    lerobot swapped = pipeline;
    int remembers = 0, normalizes = 0;
    for (int i = 0; i < pipeline.before_count; i++) {
        if (pipeline.before[i].kind == LEROBOT_RELATIVE) remembers = i;
        if (pipeline.before[i].kind == LEROBOT_NORMALIZE) normalizes = i;
    }
    assert_true(remembers < normalizes);
    swapped.before[remembers].kind = LEROBOT_NORMALIZE;
    swapped.before[normalizes].kind = LEROBOT_RELATIVE;
    assert_int_equal(lerobot_start_state(&swapped, 0), -1);
    /* So are actions that are unnormalised when the state was added. */
    swapped = pipeline;
    assert_int_equal(swapped.after[0].kind, LEROBOT_UNNORMALIZE);
    assert_int_equal(swapped.after[1].kind, LEROBOT_ABSOLUTE);
    swapped.after[0].kind = LEROBOT_ABSOLUTE;
    swapped.after[1].kind = LEROBOT_UNNORMALIZE;
    assert_int_equal(lerobot_start_state(&swapped, 0), -1);
    folder_patch(after, "steps/1/config/enabled", "false");
    WORKS(lerobot_open(folder_name, &pipeline, NULL, &error));
    for (int a = 0; a < 7; a++) assert_int_equal(lerobot_start_state(&pipeline, a), -1);
    folder_remove();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(robots_say_where_actions_start),
        cmocka_unit_test(values_are_in_the_units_of_actions),
        cmocka_unit_test(wrong_starts),
        cmocka_unit_test(lerobot_adds_the_state),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
