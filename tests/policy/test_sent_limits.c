/* Limits of the actions that a robot is sent, from its file to what leaves openpi_request_finish: read,
 * refused where they cannot be checked, and counted. test_action_limits has the arithmetic. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>

#include "base/file.h"
#include "policy/policy.h"
#include "policy_golden.h"
#include "random_numbers.h"
#include "structs.h"

enum { DIMS = 32, ARM_ACTIONS = 3, STEPS = 8 };

#define ARM "{\"name\": \"arm\", \"cameras\": {\"front\": \"base\"}, \"normalization\": \"none\", " \
            "\"prompt\": \"go\", \"state\": {\"joints\": 2, \"gripper\": 1}, \"actions\": 3, \"delta\": [2]"
#define STARTS ", \"starts\": [0, 1, 2]"
#define ALL "\"min\": [-1, null, 0], \"max\": [1, null, 1], \"max_step\": [0.5, 0.25, null], " \
            "\"max_start_jump\": [0.5, null, 0.125]"

static const double rest[3] = {0.25, 0, 0.5};

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

static void see(openpi_request *request, const double state[3]) {
    static const uint8_t dark[3];
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_image image = IMAGE("base", dark, OPENPI_U8, OPENPI_HWC, 1, 1);
    openpi_observation observation = OBSERVATION(&image, 1, state, 3, "go", 0);
    WORKS(openpi_request_prepare(request, &observation, NULL, &error));
}

static openpi_request *prepare(const openpi_policy *policy, const double state[3]) {
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_request *request;
    WORKS(openpi_request_create(policy, &request, &error));
    see(request, state);
    return request;
}

/* The same as fields of a message, with "openpi/last_action" [count]. */
static openpi_status see_fields(openpi_request *request, const double *last, int count, openpi_error *error) {
    static const uint8_t dark[3];
    openpi_field fields[] = {
        {.size = sizeof *fields, .name = "front", .data = dark, .rank = 3, .shape = {1, 1, 3}},
        {.size = sizeof *fields, .name = "joints", .data = rest, .element = OPENPI_FLOAT64, .rank = 1,
         .shape = {2}},
        {.size = sizeof *fields, .name = "gripper", .data = rest + 2, .element = OPENPI_FLOAT64, .rank = 1,
         .shape = {1}},
        {.size = sizeof *fields, .name = "openpi/last_action", .data = last, .element = OPENPI_FLOAT64,
         .rank = 1, .shape = {count}},
    };
    return openpi_request_prepare_fields(request, fields, 4, NULL, error);
}

/* Two steps; the first two actions are relative to the state. */
static const float two_steps[2 * DIMS] = {[0] = 0.75f, [1] = 9, [2] = 1.5f, [DIMS] = -3, [DIMS + 1] = 9};

static openpi_limited limited_of(const openpi_request *request) {
    openpi_limited limited = OPENPI_LIMITED_INIT;
    openpi_error error = OPENPI_ERROR_INIT;
    WORKS(openpi_request_get_limited(request, &limited, &error));
    return limited;
}

static void actions_are_clamped_and_counted(void **state) {
    (void)state;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_policy *policy = open_arm(ARM STARTS ", \"limits\": {" ALL "}}");
    openpi_request *request = prepare(policy, rest);
    openpi_limited limited = limited_of(request);
    double actions[2 * ARM_ACTIONS];
    static const double sent[] = {0.75, 9, 0.625, 0.25, 9, 0};
    assert_int_equal(limited.step, -1);
    WORKS(openpi_request_finish(request, two_steps, 2, actions, CAPACITY(actions), &error));
    for (size_t i = 0; i < CAPACITY(sent); i++) assert_true(actions[i] == sent[i]);
    limited = limited_of(request);
    assert_int_equal(limited.changed, 3);
    assert_int_equal(limited.below_min, 1);          /* -2.75 of the first */
    assert_int_equal(limited.above_max, 1);          /* 1.5 of the third   */
    assert_int_equal(limited.beyond_step, 1);
    assert_int_equal(limited.beyond_start, 2);
    assert_int_equal(limited.held, 0);
    assert_int_equal(limited.step, 0);
    assert_int_equal(limited.action, 0);
    assert_string_equal(openpi_policy_note(policy, 0, NULL),
                        "robot \"arm\" has 8 limits for the actions that it is sent: an action beyond them "
                        "becomes the nearest one within them, as \"limits\" of its file says");
    openpi_request_close(request);
    openpi_policy_close(policy);
}

static void a_policy_tells_its_limits(void **state) {
    (void)state;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_policy_info info = OPENPI_POLICY_INFO_INIT;
    openpi_limits limits = OPENPI_LIMITS_INIT;
    openpi_policy *policy = open_arm(ARM STARTS ", \"limits\": {" ALL ", \"on_violation\": \"hold\"}}");
    WORKS(openpi_policy_get_info(policy, &info, &error));
    assert_int_equal(info.limits, 8);
    assert_int_equal(info.on_violation, OPENPI_HOLD);
    WORKS(openpi_policy_get_limits(policy, &limits, &error));
    assert_int_equal(limits.count, 8);
    assert_true(limits.min[0] == -1 && limits.min[1] == -(double)INFINITY && limits.max[2] == 1);
    assert_true(limits.max_step[1] == 0.25 && limits.max_start_jump[2] == 0.125);
    assert_true(limits.max_step[3] == (double)INFINITY);
    openpi_policy_close(policy);
    policy = open_arm(ARM "}");
    WORKS(openpi_policy_get_info(policy, &info, &error));
    WORKS(openpi_policy_get_limits(policy, &limits, &error));
    assert_int_equal(info.limits, 0);
    assert_true(limits.count == 0 && limits.max[0] == (double)INFINITY);
    openpi_policy_close(policy);
}

static void a_chunk_is_refused_or_held(void **state) {
    (void)state;
    openpi_error error = OPENPI_ERROR_INIT;
    double actions[2 * ARM_ACTIONS] = {7, 7, 7, 7, 7, 7};
    static const double last[3] = {0.5, 9, 0.5};
    openpi_policy *policy =
        open_arm(ARM STARTS ", \"action_names\": [\"waist\", \"elbow\", \"grip\"], \"limits\": {" ALL
                            ", \"on_violation\": \"stop\"}}");
    openpi_request *request = prepare(policy, rest);
    REFUSES(openpi_request_finish(request, two_steps, 2, actions, CAPACITY(actions), &error),
            OPENPI_BEYOND_LIMIT,
            "robot \"arm\" is sent nothing: action 0 (waist) of step 0 is 1, 0.75 from 0.25, the measured "
            "state, more than the max_start_jump of 0.5");
    assert_true(actions[0] == 7);
    assert_int_equal(limited_of(request).beyond_start, 2);
    openpi_request_close(request);
    openpi_policy_close(policy);

    policy = open_arm(ARM STARTS ", \"limits\": {" ALL ", \"on_violation\": \"hold\"}}");
    request = prepare(policy, rest);
    REFUSES(openpi_request_finish(request, two_steps, 2, actions, CAPACITY(actions), &error),
            OPENPI_BEYOND_LIMIT, "no action within the limits was sent before that could be held");
    WORKS(openpi_request_last_action(request, last, 3, &error));
    WORKS(openpi_request_finish(request, two_steps, 2, actions, CAPACITY(actions), &error));
    for (int i = 0; i < 6; i++) assert_true(actions[i] == last[i % 3]);
    assert_int_equal(limited_of(request).held, 2);
    openpi_request_close(request);
    openpi_policy_close(policy);
}

/* max_step from the action that was sent before the chunk, which a prepare forgets. */
static void the_last_action_counts(void **state) {
    (void)state;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_policy *policy = open_arm(ARM ", \"limits\": {\"max_step\": [null, 0.25, null]}}");
    openpi_request *request = prepare(policy, rest);
    static const double last[3] = {0, 8, 0}, odd[3] = {0, (double)NAN, 0};
    double actions[2 * ARM_ACTIONS];
    WORKS(openpi_request_finish(request, two_steps, 2, actions, CAPACITY(actions), &error));
    assert_true(actions[1] == 9 && actions[4] == 9);
    WORKS(openpi_request_last_action(request, last, 3, &error));
    WORKS(openpi_request_finish(request, two_steps, 2, actions, CAPACITY(actions), &error));
    assert_true(actions[1] == 8.25 && actions[4] == 8.5);
    REFUSES(openpi_request_last_action(request, last, 2, &error), OPENPI_BAD_ARGUMENT, "2 numbers, expected 3");
    REFUSES(openpi_request_last_action(request, odd, 3, &error), OPENPI_BAD_INPUT, "number 1 is nan");
    WORKS(openpi_request_last_action(request, NULL, 0, &error));
    WORKS(openpi_request_finish(request, two_steps, 2, actions, CAPACITY(actions), &error));
    assert_true(actions[1] == 9);
    WORKS(openpi_request_last_action(request, last, 3, &error));
    see(request, rest);
    WORKS(openpi_request_finish(request, two_steps, 2, actions, CAPACITY(actions), &error));
    assert_true(actions[1] == 9);
    openpi_request_close(request);
    openpi_policy_close(policy);
}

static void a_message_tells_the_last_action(void **state) {
    (void)state;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_policy *policy = open_arm(ARM ", \"limits\": {\"max_step\": [null, 0.25, null]}}");
    openpi_request *request;
    static const double last[3] = {0, 8, 0}, odd[3] = {0, (double)INFINITY, 0};
    double actions[2 * ARM_ACTIONS];
    WORKS(openpi_request_create(policy, &request, &error));
    WORKS(see_fields(request, last, 3, &error));
    WORKS(openpi_request_finish(request, two_steps, 2, actions, CAPACITY(actions), &error));
    assert_true(actions[1] == 8.25 && actions[4] == 8.5);
    assert_int_equal(limited_of(request).beyond_step, 2);
    REFUSES(see_fields(request, last, 2, &error), OPENPI_BAD_INPUT,
            "\"openpi/last_action\" of the request has 2 numbers, expected 3");
    REFUSES(see_fields(request, odd, 3, &error), OPENPI_BAD_INPUT, "number 1 is inf");
    openpi_request_close(request);
    openpi_policy_close(policy);
}

/* The same over many chunks, judged here. */
static void nothing_leaves_beyond_a_limit(void **state) {
    (void)state;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_policy *policy = open_arm(ARM STARTS ", \"limits\": {" ALL "}}");
    int sent = 0;
    for (int seed = 0; seed < 500; seed++) {
        float model[STEPS * DIMS] = {0};
        double actions[STEPS * ARM_ACTIONS], start[3];
        random_state = (uint64_t)seed;
        for (int i = 0; i < STEPS * DIMS; i++) model[i] = (float)((int)(next_random() % 4001) - 2000) / 700;
        for (int i = 0; i < 3; i++) start[i] = (double)(next_random() % 1000) / 900;
        openpi_request *request = prepare(policy, start);
        openpi_status status =
            openpi_request_finish(request, model, STEPS, actions, CAPACITY(actions), &error);
        for (int s = 0; s < STEPS && status == OPENPI_OK; s++) {
            const double *a = actions + s * ARM_ACTIONS, *before = s ? a - ARM_ACTIONS : NULL;
            assert_true(a[0] >= -1 && a[0] <= 1 && a[2] >= 0 && a[2] <= 1);
            assert_true(!before || (fabs(a[0] - before[0]) <= 0.5 && fabs(a[1] - before[1]) <= 0.25));
            assert_true(s || (fabs(a[0] - start[0]) <= 0.5 && fabs(a[2] - start[2]) <= 0.125));
        }
        sent += status == OPENPI_OK;
        if (status != OPENPI_OK) assert_int_equal(status, OPENPI_BEYOND_LIMIT);
        openpi_request_close(request);
    }
    assert_in_range(sent, 400, 500);
    openpi_policy_close(policy);
}

static void what_cannot_be_checked_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *limits, *sentence;
    } cases[] = {
        {"{\"min\": 3}", "\"min\" is an integer, expected an array of a number or null for each action"},
        {"{\"max\": [1, 2]}", "\"max\" has 2 entries, expected 3"},
        {"{\"max\": [1, \"2\", 3]}", "\"max\"[1] is a string, expected a number or null"},
        {"{\"max_step\": [1, 0, null]}", "\"max_step\"[1] is 0, expected a number above 0 or null"},
        {"{\"max_start_jump\": [1, -1, null]}", "\"max_start_jump\"[1] is -1, expected a number above 0"},
        {"{\"min\": [0, 2, null], \"max\": [1, 1, 1]}", "\"min\"[1] is 2 and \"max\"[1] is 1"},
        {"{\"max_start_jump\": [1, 1, 1]}", "\"max_start_jump\"[2] cannot be checked: no number of the state"},
        {"{\"on_violation\": \"stop\"}", "\"on_violation\" and no limit that it is about"},
        {"{\"min\": [0, 0, 0], \"on_violation\": \"halt\"}", "\"on_violation\" is \"halt\", expected \"clamp\""},
        {"{\"min\": [0, 0, 0], \"on_violation\": 1}", "on_violation"},
        {"{\"max_steps\": [1, 1, 1]}", "did you mean \"max_step\"?"},
    };
    openpi_error error = OPENPI_ERROR_INIT;
    robot r;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[512];
        snprintf(text, sizeof text, ARM ", \"limits\": %s}", cases[i].limits);
        REFUSES(robot_open(text, &r, &error), OPENPI_BAD_FILE, cases[i].sentence);
    }
    REFUSES(robot_open("{\"name\": \"any\", \"cameras\": {\"a\": \"base\"}, \"state\": {\"s\": 0}, "
                       "\"starts\": [0], \"actions\": 1, \"limits\": {\"max_start_jump\": [1]}}", &r, &error),
            OPENPI_BAD_FILE, "which may have any length");
    WORKS(robot_open(ARM ", \"limits\": {\"max_start_jump\": [1, 1, null]}}", &r, &error));
    assert_int_equal(r.limits.count, 2);
    WORKS(robot_open("{\"like\": \"droid\"}", &r, &error));
    assert_int_equal(r.limits.count, 0);
    assert_int_equal(r.limits.dims, 8);
}

/* Every file that the page shows, from its "{" to its "}" in the first column. */
static void the_pages_examples_are_read(void **state) {
    (void)state;
    openpi_error error = OPENPI_ERROR_INIT;
    char *page, *at;
    size_t bytes;
    int limited = 0;
    robot r;
    WORKS(file_read(TESTS_DIR "/../docs/robots.md", 1 << 20, &page, &bytes, &error));
    for (at = page; (at = strstr(at, "```json\n{"));) {
        char *begin = at + strlen("```json\n"), *end = strstr(begin, "\n}\n```");
        assert_non_null(end);
        end[2] = 0;
        WORKS(robot_open(begin, &r, &error));
        limited += r.limits.count > 0;
        at = end + 3;
    }
    assert_int_equal(limited, 2);
    free(page);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(actions_are_clamped_and_counted),
        cmocka_unit_test(a_policy_tells_its_limits),
        cmocka_unit_test(a_chunk_is_refused_or_held),
        cmocka_unit_test(the_last_action_counts),
        cmocka_unit_test(a_message_tells_the_last_action),
        cmocka_unit_test(nothing_leaves_beyond_a_limit),
        cmocka_unit_test(what_cannot_be_checked_is_refused),
        cmocka_unit_test(the_pages_examples_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
