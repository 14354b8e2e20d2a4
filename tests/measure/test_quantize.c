/* The gate for 8 bits: the choice against all choices that there are, bounds in a robot's units, figures of
 * differences. What it does on models is tested by test_cli_w8. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base64.h"
#include "lab/quantize/quantize.h"

static openpi_error error = OPENPI_ERROR_INIT;

static void must(openpi_status status) {
    if (status != OPENPI_OK) fail_msg("%s", error.message);
}

/* ---- the choice ------------------------------------------------------------------------------------- */

enum { CHOICE_GROUPS = 4, CHOICE_FORMATS = 3, CANDIDATES = CHOICE_GROUPS * CHOICE_FORMATS };

static double gain_of(const choice_candidate *list) {
    double gain = 0;
    for (int i = 0; i < CANDIDATES; i++) gain += list[i].taken ? list[i].gain : 0;
    return gain;
}

/* The most that any table within the bound saves: 4^4 tables. */
static double best_gain(const choice_candidate *list) {
    double best = 0;
    for (int table = 0; table < 256; table++) {
        double squares = 0, gain = 0;
        for (int g = 0; g < CHOICE_GROUPS; g++) {
            int format = table >> 2 * g & 3;
            const choice_candidate *c = &list[g * CHOICE_FORMATS + format];
            if (format == CHOICE_FORMATS) continue;
            squares += c->load * c->load;
            gain += c->gain;
        }
        if (squares <= 1 && gain > best) best = gain;
    }
    return best;
}

static void check_choice(const choice_candidate *list) {
    int of_group[CHOICE_GROUPS] = {0};
    for (int i = 0; i < CANDIDATES; i++) {
        of_group[list[i].group] += list[i].taken;
        assert_true(!list[i].taken || list[i].gain > 0);
    }
    for (int g = 0; g < CHOICE_GROUPS; g++) assert_true(of_group[g] <= 1);
    assert_true(choice_predicted(list, CANDIDATES) <= 1 + 1e-12);
}

/* Loads as they are measured: a group's size of error times its format's. */
static void the_choice_is_near_the_best(void **state) {
    (void)state;
    uint64_t random = 1;
    double worst = 1, sum = 0;
    enum { ROUNDS = 2000 };
    for (int round = 0; round < ROUNDS; round++) {
        choice_candidate list[CANDIDATES];
        for (int i = 0; i < CANDIDATES; i++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            double u = (double)(random >> 40) * 0x1p-24, w = (double)(random >> 20 & 0xfffff) * 0x1p-20;
            list[i] = (choice_candidate){.group = i / CHOICE_FORMATS, .load = 0.1 + 1.2 * u, .gain = w - 0.1};
        }
        choice_make(list, CANDIDATES, 1);
        check_choice(list);
        double best = best_gain(list), share = best > 0 ? gain_of(list) / best : 1;
        assert_true(share <= 1 + 1e-12);
        if (share < worst) worst = share;
        sum += share;
    }
    if (sum / ROUNDS < 0.97 || worst < 0.5)
        fail_msg("of the best gain the choice has %.3f on average, %.3f at worst", sum / ROUNDS, worst);
}

static void what_saves_nothing_is_not_taken(void **state) {
    (void)state;
    choice_candidate list[] = {{.group = 0, .load = 0, .gain = 0},
                               {.group = 1, .load = 0, .gain = -1},
                               {.group = 2, .load = 0.5, .gain = 1},
                               {.group = 3, .load = INFINITY, .gain = 9},
                               {.group = 4, .load = NAN, .gain = 9}};
    assert_int_equal(choice_make(list, 5, 1), 1);
    for (int i = 0; i < 5; i++) assert_int_equal(list[i].taken, i == 2);
    assert_int_equal(choice_make(list, 5, 0.2), 0);
}

/* ---- bounds ------------------------------------------------------------------------------------------ */

static openpi_policy *open_robot(const char *robot) {
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    openpi_policy *policy = NULL;
    must(openpi_synthetic_parse("tiny:pi0", &synthetic, &error));
    options.synthetic = &synthetic;
    options.robot = robot;
    must(openpi_policy_open(NULL, &options, &policy, &error));
    return policy;
}

typedef struct made_bounds {
    w8_bound list[W8_BOUNDS];
    int dims[W8_BOUNDS], count;
} made_bounds;

static openpi_status make_bounds(const char *robot, double rms, const char *units, made_bounds *out) {
    openpi_policy *policy = open_robot(robot);
    const chunks_shape shape = {.observations = 1, .horizon = 1, .policy = policy,
                                .dims = !strcmp(robot, "aloha") ? 14 : !strcmp(robot, "libero") ? 7 : 32};
    openpi_status status = bounds_make(&shape, &(bounds_given){.rms = rms, .units = units}, out->list,
                                       out->dims, &out->count, &error);
    openpi_policy_close(policy);
    return status;
}

static void bounds_are_in_the_robots_units(void **state) {
    (void)state;
    made_bounds b;
    must(make_bounds("aloha", 0, NULL, &b));
    assert_int_equal(b.count, 3);
    assert_true(b.list[0].limit == 0.02 && fabs(b.list[1].limit - 0.1) < 1e-12 && b.list[2].limit == 0);
    must(make_bounds("aloha", 0.01, NULL, &b));
    assert_true(b.list[0].limit == 0.01 && fabs(b.list[1].limit - 0.05) < 1e-12);
    must(make_bounds("aloha", 0, "joint 0.3deg, gripper 0.01", &b));
    assert_int_equal(b.count, 1 + 12 + 2);
    for (int i = 1; i < b.count; i++) {
        int gripper = b.dims[i] == 6 || b.dims[i] == 13;
        assert_int_equal(gripper, i > 12);
        assert_true(fabs(b.list[i].limit - (gripper ? 0.01 : 0.0052359878)) < 1e-9);
    }
    must(make_bounds("aloha", 0.01, "left_waist 0.1", &b));
    assert_int_equal(b.count, 4);
    assert_int_equal(b.dims[3], 0);
    must(make_bounds("none", 0, "all 0.1", &b));
    assert_int_equal(b.count, 1 + 32);
}

static void wrong_bounds_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *robot, *units, *sentence;
    } cases[] = {
        {"aloha", "elbo w 1", "unit_bound has \"elbo w 1\", expected NAME NUMBER[UNIT]"},
        {"aloha", "joint", "expected NAME NUMBER[UNIT]"},
        {"aloha", "joint -1deg", "expected NAME NUMBER[UNIT]"},
        {"aloha", "jont 0.3deg",
         "\"jont\", which is no action of this robot, expected all, joint or a part of: left_waist"},
        {"aloha", "joint 3mm", "gives joint in mm, and action left_waist of this robot is in rad"},
        {"none", "joint 1", "(its actions have no names)"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        made_bounds b;
        assert_int_equal(make_bounds(cases[i].robot, 0, cases[i].units, &b), OPENPI_BAD_ARGUMENT);
        if (!strstr(error.message, cases[i].sentence)) fail_msg("%s: %s", cases[i].units, error.message);
    }
}

/* ---- differences ------------------------------------------------------------------------------------- */

enum { OBSERVATIONS = 2, HORIZON = 50, DIMS = 7, ROWS = OBSERVATIONS * HORIZON };

static void figures_are_of_each_dimension(void **state) {
    (void)state;
    static float a[ROWS * OPENPI_ACTION_DIM], b[ROWS * OPENPI_ACTION_DIM];
    static double x[ROWS * DIMS], y[ROWS * DIMS];
    const chunks one = {a, x}, other = {b, y};
    openpi_policy *policy = open_robot("libero");
    const chunks_shape shape = {OBSERVATIONS, HORIZON, DIMS, policy};
    differences d;
    for (int r = 0; r < ROWS; r++) {
        b[r * OPENPI_ACTION_DIM + 2] = r % 2 ? 0.5f : -0.5f; /* rms 0.5 σ                          */
        b[r * OPENPI_ACTION_DIM + 20] = 99;                  /* no action of this robot             */
        y[r * DIMS + 2] = r;
        a[r * OPENPI_ACTION_DIM + 6] = -0.04f; /* across the middle, but near        */
        b[r * OPENPI_ACTION_DIM + 6] = r < 3 ? 0.07f : r < 10 ? 0.05f : -0.3f;
    }
    must(differences_of(&shape, &one, &other, &d, &error));
    assert_true(fabs(d.sigma[2].rms - 0.5) < 1e-6 && d.sigma[2].max == 0.5 && d.sigma[0].max == 0);
    assert_true(d.unit[2].max == ROWS - 1 && fabs(d.unit[2].p99 - 0.99 * (ROWS - 1)) < 1e-9);
    assert_true(d.all.max == 0.5 && d.all.rms < 0.3);
    assert_int_equal(d.flipped, 3);
    w8_bound list[3];
    int dims[3], count;
    must(bounds_make(&shape, &(bounds_given){.rms = 10}, list, dims, &count, &error));
    assert_true(isinf(bounds_fill(&d, list, dims, count))); /* no flip is allowed                 */
    assert_true(list[0].found == d.all.rms && list[2].found == 3 && w8_above(&list[2]) &&
                !w8_above(&list[0]));
    openpi_policy_close(policy);
}

/* ---- base64 ------------------------------------------------------------------------------------------ */

static void base64_there_and_back(void **state) {
    (void)state;
    uint8_t bytes[256], back[256];
    for (int i = 0; i < 256; i++) bytes[i] = (uint8_t)(i * 73 + 255);
    for (size_t count = 0; count <= sizeof bytes; count++) {
        char *text = base64_text(bytes, count);
        assert_non_null(text);
        assert_true(base64_bytes(text, back, count));
        assert_memory_equal(bytes, back, count);
        assert_false(base64_bytes(text, back, count + 3));
        if (count) text[0] = '~';
        assert_true(!count || !base64_bytes(text, back, count));
        free(text);
    }
    char *text = base64_text("Man, Ma", 7);
    assert_string_equal(text, "TWFuLCBNYQ==");
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_choice_is_near_the_best), cmocka_unit_test(what_saves_nothing_is_not_taken),
        cmocka_unit_test(bounds_are_in_the_robots_units), cmocka_unit_test(wrong_bounds_are_refused),
        cmocka_unit_test(figures_are_of_each_dimension), cmocka_unit_test(base64_there_and_back)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
