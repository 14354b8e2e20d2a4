/* policy/normalize.c: openpi's formulas against openpi's numbers, the reader against broken files. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "policy/normalize.h"
#include "policy_golden.h"

static int read_row(const json_t *array, double *out) {
    int count = (int)json_array_size(array);
    assert_true(count <= NORM_DIMS);
    for (int i = 0; i < count; i++) out[i] = json_number_value(json_array_get(array, (size_t)i));
    return count;
}

static int compare_rows(const json_t *row, const char *key, norm_mode mode, const norm_stats *stats) {
    const json_t *expected = json_object_get(row, key), *x = json_object_get(row, "x");
    int checked = 0;
    for (size_t r = 0; r < json_array_size(expected); r++) {
        double got[NORM_DIMS], want[NORM_DIMS];
        int count = read_row(json_array_get(x, r), got);
        assert_int_equal(read_row(json_array_get(expected, r), want), count);
        if (!strcmp(key, "normalized")) normalize_apply(mode, stats, got, count);
        else normalize_invert(mode, stats, got, count);
        for (int i = 0; i < count; i++) {
            if (!(fabs(got[i] - want[i]) <= 1e-12))
                fail_msg("%s row %zu dim %d: %.17g, expected %.17g", key, r, i, got[i], want[i]);
            checked++;
        }
    }
    return checked;
}

static void formulas_are_openpis(void **state) {
    (void)state;
    json_t *steps = json_load_file(GOLDEN "/steps.json", JSON_ALLOW_NUL, NULL), *row;
    size_t index;
    int forward = 0, back = 0;
    assert_non_null(steps);
    json_array_foreach(json_object_get(steps, "normalize"), index, row) {
        norm_stats stats = {.epsilon = 1e-6};
        int quantile = json_is_true(json_object_get(row, "quantile"));
        stats.dims = read_row(json_object_get(row, "mean"), stats.mean);
        assert_int_equal(read_row(json_object_get(row, "std"), stats.std), stats.dims);
        if (quantile)
            stats.quantiles = read_row(json_object_get(row, "q01"), stats.q01) ==
                              read_row(json_object_get(row, "q99"), stats.q99);
        forward += compare_rows(row, "normalized", quantile ? STATS_QUANTILE : STATS_ZSCORE, &stats);
        back += compare_rows(row, "unnormalized", quantile ? STATS_QUANTILE : STATS_ZSCORE, &stats);
    }
    json_decref(steps);
    assert_int_equal(forward, 2 * 3 * (8 + 14));          /* statistics as long as the data, and longer */
    assert_int_equal(back, 2 * 3 * (8 + 32 + 32));        /* as long, and shorter */
}

static void none_leaves_everything(void **state) {
    (void)state;
    double x[3] = {1, 2, 3};
    normalize_apply(STATS_NONE, NULL, x, 3);
    normalize_invert(STATS_NONE, NULL, x, 3);
    assert_true(x[0] == 1 && x[1] == 2 && x[2] == 3);
}

/* Values by the formula of SYNTH.md in another language. */
static void synthetic_statistics_are_stable(void **state) {
    (void)state;
    norm_stats robot, actions;
    normalize_synthetic_stats(7, &robot, &actions);
    assert_int_equal(robot.dims, 32);
    assert_true(robot.quantiles && actions.quantiles);
    assert_true(robot.mean[0] == -0.013199672102928162);
    assert_true(robot.std[31] == 0.8076759725809097);
    assert_true(actions.mean[5] == -0.21786026656627655);
    assert_true(actions.std[0] == 0.7560357004404068);
    for (int i = 0; i < 32; i++) {
        assert_true(robot.q01[i] == robot.mean[i] - 2 * robot.std[i] &&
                    robot.q99[i] == robot.mean[i] + 2 * robot.std[i]);
        assert_true(actions.std[i] > 0.5 && actions.std[i] < 1.0 && fabs(actions.mean[i]) < 0.25);
    }
}

static void reads_openpis_files(void **state) {
    (void)state;
    openpi_error error = OPENPI_ERROR_INIT;
    norm_stats robot, actions;
    WORKS(normalize_read(GOLDEN "/policy/aloha_pi05/norm_stats.json", &robot, &actions, &error));
    assert_int_equal(robot.dims, 14);
    assert_true(robot.quantiles);
    assert_true(robot.mean[0] == -0.3006715937130642 && robot.q99[2] == 2.989539038202647);
    WORKS(normalize_read(GOLDEN "/policy/libero_pi0/norm_stats.json", &robot, &actions, &error));
    assert_int_equal(actions.dims, 32);
    assert_false(actions.quantiles);
    REFUSES(normalize_read(GOLDEN "/policy/nowhere/norm_stats.json", &robot, &actions, &error),
            OPENPI_NOT_FOUND, "nowhere/norm_stats.json");
}

static void refuses_broken_files(void **state) {
    (void)state;
    static const struct {
        const char *text, *sentence;
    } cases[] = {
        {"", "not valid JSON"},
        {"[1]", "\"norm_stats\" is absent"},
        {"{\"norm_stats\": 3}", "\"norm_stats\" is an integer"},
        {"{\"norm_stats\": {}}", "norm_stats.\"state\" is absent"},
        {"{\"norm_stats\": {\"state\": {\"mean\": [1], \"std\": [1]}}}", "norm_stats.\"actions\" is absent"},
        {"{\"norm_stats\": {\"state\": {\"mean\": [], \"std\": []}}}", "0 means and 0 standard deviations"},
        {"{\"norm_stats\": {\"state\": {\"mean\": [1, 2], \"std\": [1]}}}", "2 means and 1 standard deviations"},
        {"{\"norm_stats\": {\"state\": {\"mean\": [1], \"std\": [1], \"q01\": [1]}}}", "1 q01 and 0 q99"},
        {"{\"norm_stats\": {\"state\": {\"mean\": [1], \"std\": [1], \"q01\": [1, 2], \"q99\": [1, 2]}}}",
         "2 q01 and 2 q99, expected none or 1"},
        {"{\"norm_stats\": {\"state\": {\"mean\": [1], \"std\": [-1]}}}", "std[0] is -1"},
        {"{\"norm_stats\": {\"state\": {\"mean\": [1], \"std\": [1], \"q01\": [2], \"q99\": [1]}}}", "less than q01"},
        {"{\"norm_stats\": {\"state\": {\"mean\": [1, \"x\"], \"std\": [1, 1]}}}", "\"mean\"[1] is a string"},
        {"{\"norm_stats\": {\"state\": {\"mean\": [1e999], \"std\": [1]}}}", "real number overflow"},
    };
    openpi_error error = OPENPI_ERROR_INIT;
    norm_stats robot = {.dims = 77}, actions;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        REFUSES(normalize_parse(cases[i].text, strlen(cases[i].text), "broken", &robot, &actions, &error),
                OPENPI_BAD_FILE, cases[i].sentence);
    char many[2048] = "{\"norm_stats\": {\"state\": {\"mean\": [0";
    for (int i = 0; i < 32; i++) strcat(many, ", 0");
    strcat(many, "], \"std\": [1]}}}");
    REFUSES(normalize_parse(many, strlen(many), "broken", &robot, &actions, &error), OPENPI_BAD_FILE,
            "33 numbers, expected at most 32");
    assert_int_equal(robot.dims, 77);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(formulas_are_openpis),
        cmocka_unit_test(none_leaves_everything),
        cmocka_unit_test(synthetic_statistics_are_stable),
        cmocka_unit_test(reads_openpis_files),
        cmocka_unit_test(refuses_broken_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
