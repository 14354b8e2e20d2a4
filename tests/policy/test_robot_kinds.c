/* policy/robots/robots_kinds.c: whether an action is a position or a motion, as a robot's record says it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "policy/policy.h"
#include "policy/robots/robots.h"
#include "policy_golden.h"
#include "synthetic_policy.h"

#define ARM "{\"name\": \"arm\", \"cameras\": {\"front\": \"base\"}, \"normalization\": \"none\", " \
            "\"prompt\": \"go\", \"state\": {\"joints\": 2, \"gripper\": 1}, \"actions\": 3"

/* "ppv?": of each action. */
static void must_be(const char *record, const char *expected) {
    openpi_error error = OPENPI_ERROR_INIT;
    char found[OPENPI_ACTION_DIM + 1] = "";
    robot r;
    WORKS(robot_open(record, &r, &error));
    for (int a = 0; a < r.action_dim; a++) found[a] = "?pv"[robot_kind(&r, a)];
    found[r.action_dim] = 0;
    if (strcmp(found, expected)) fail_msg("%.60s: %s, expected %s", record, found, expected);
}

static void robots_say_what_actions_are(void **state) {
    (void)state;
    must_be("aloha", "pppppppppppppp");
    must_be("aloha_sim", "pppppppppppppp");
    must_be("droid", "vvvvvvvp");
    must_be("droid_jointpos", "pppppppp");
    must_be("libero", "vvvvvvp");
    must_be("none", "????????????????????????????????");
    must_be(ARM "}", "???");
    must_be(ARM ", \"delta\": [2, -1]}", "pp?");                         /* added to the state            */
    must_be(ARM ", \"starts\": [0, null, 2]}", "p?p");
    must_be(ARM ", \"kinds\": \"velocity\"}", "vvv");
    must_be(ARM ", \"kinds\": [\"position\", \"step\", null]}", "pv?");
    must_be(ARM ", \"kinds\": [\"velocity\", null, null], \"starts\": [0, 1, null]}", "vp?");
    must_be("{\"like\": \"droid\", \"name\": \"a\"}", "vvvvvvvp");
    must_be("{\"like\": \"droid\", \"actions\": 7}", "???????");          /* others, so nothing is known   */
}

static void a_policy_says_it(void **state) {
    (void)state;
    openpi_policy *policy = open_synthetic("droid", NULL, OPENPI_PI0);
    assert_int_equal(openpi_policy_action_kind(policy, 0), OPENPI_ACTION_VELOCITY);
    assert_int_equal(openpi_policy_action_kind(policy, 7), OPENPI_ACTION_POSITION);
    assert_int_equal(openpi_policy_action_kind(policy, 8), OPENPI_ACTION_UNKNOWN);
    assert_int_equal(openpi_policy_action_kind(policy, -1), OPENPI_ACTION_UNKNOWN);
    assert_int_equal(openpi_policy_action_kind(NULL, 0), OPENPI_ACTION_UNKNOWN);
    openpi_policy_close(policy);
}

static void wrong_kinds(void **state) {
    (void)state;
    static const struct {
        const char *kinds, *sentence;
    } cases[] = {
        {"\"speed\"", "\"kinds\"[0] is speed, expected \"position\", \"velocity\", \"step\" or null"},
        {"[\"position\", 3, null]", "\"kinds\"[1] is an integer"},
        {"[\"position\"]", "\"kinds\" has 1 entries, expected 3, as many as \"actions\" says"},
        {"{}", "\"kinds\"[0] is an object"},
    };
    openpi_error error = OPENPI_ERROR_INIT;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char record[512];
        robot r;
        snprintf(record, sizeof record, "%s, \"kinds\": %s}", ARM, cases[i].kinds);
        REFUSES(robot_open(record, &r, &error), OPENPI_BAD_FILE, cases[i].sentence);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(robots_say_what_actions_are),
        cmocka_unit_test(a_policy_says_it),
        cmocka_unit_test(wrong_kinds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
