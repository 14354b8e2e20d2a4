/* labels: links=serve */
/* The last minute of a robot (serve/admin/trail.c), in made-up time: which second has what, which rows count
 * as executed, where chunks meet, and that what is older is gone. */
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include "serve/admin/trail.h"

enum { ROWS = 10, DIMS = 2 };

#define START 1000000.0          /* ms: a whole second */

static trail *made;
static float chunk[ROWS * DIMS];
static openpi_limited limited;

static int begin(void **state) {
    (void)state;
    made = trail_create(ROWS, DIMS);
    limited = (openpi_limited)OPENPI_LIMITED_INIT;
    return !made;
}

static int end(void **state) {
    (void)state;
    trail_free(made);
    return 0;
}

/* Row k is `from` + k and its opposite. */
static trail_call call_at(double ms, float from, int executed) {
    for (int k = 0; k < ROWS; k++) {
        chunk[k * DIMS] = from + (float)k;
        chunk[k * DIMS + 1] = -from - (float)k;
    }
    return (trail_call){.arrived_ms = START + ms - 20, .sent_ms = START + ms, .actions = chunk,
                        .limited = &limited, .rate_hz = 10, .executed = executed};
}

static void add(trail_call call) { trail_add(made, &call); }

static json_t *look(double ms) {
    text out = {.data = NULL};
    json_error_t where;
    trail_write(made, START + ms, &out);
    json_t *found = json_loads(out.data, JSON_REJECT_DUPLICATES, &where);
    if (!found) fail_msg("%s in %s", where.text, out.data);
    text_close(&out);
    return found;
}

/* A number in the second `ago` before the one that runs; NAN: null. */
static double number(const json_t *top, const char *name, int ago, int dim) {
    const json_t *list = json_object_get(top, name);
    assert_int_equal(json_array_size(list), TRAIL_SECONDS);
    const json_t *value = json_array_get(list, (size_t)(TRAIL_SECONDS - ago));
    if (json_is_array(value)) value = json_array_get(value, (size_t)dim);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static void must_be(const json_t *top, const char *name, int ago, double expected) {
    double found = number(top, name, ago, 0);
    if (isnan(found) ? !isnan(expected) : !(fabs(found - expected) < 1e-3))
        fail_msg("%s %d s ago is %g, expected %g", name, ago, found, expected);
}

/* A robot that says what it executed: those rows and no others. */
static void told_rows(void **state) {
    (void)state;
    add(call_at(100, 0, -1));
    add(call_at(600, 50, 4));
    json_t *top = look(1000);
    must_be(top, "answered", 1, 2);
    must_be(top, "told", 1, 1);
    must_be(top, "low", 1, 0);
    must_be(top, "high", 1, 3);
    assert_true(number(top, "low", 1, 1) == -3 && number(top, "high", 1, 1) == 0);
    must_be(top, "seam", 1, 46);             /* row 0 of the new one and row 4 of the one before           */
    must_be(top, "gap_ms", 1, 480);
    must_be(top, "answered", 2, 0);
    must_be(top, "low", 2, NAN);
    json_decref(top);
}

/* One that does not: rows follow each other at its rate, until the next chunk or until now. */
static void untold_rows(void **state) {
    (void)state;
    add(call_at(0, 0, -1));
    json_t *top = look(1000);
    must_be(top, "high", 1, 9);              /* ten rows at 10 a second                                     */
    json_decref(top);
    add(call_at(1000, 50, -1));
    add(call_at(1300, 0, -1));
    top = look(2000);
    must_be(top, "high", 1, 52);
    must_be(top, "low", 1, 0);
    must_be(top, "seam", 1, 53);             /* row 3 of the one before is 53                              */
    json_decref(top);
}

static void limits_and_holds(void **state) {
    (void)state;
    limited.changed = 3;
    limited.held = 2;
    add(call_at(0, 0, -1));
    limited.changed = limited.held = 0;
    trail_call call = call_at(500, 0, 2);
    call.status = OPENPI_BEYOND_LIMIT;
    add(call);
    call = call_at(900, 0, 2);
    call.status = OPENPI_BAD_INPUT;
    add(call);
    call = call_at(1200, 0, 2);
    call.held_ms = 250;
    call.reason = OPENPI_REASON_NO_ACTIONS;
    add(call);
    call.reason = OPENPI_REASON_LOST;
    add(call);
    json_t *top = look(5200);
    must_be(top, "limited", 5, 3);
    must_be(top, "held", 5, 2);
    must_be(top, "stopped", 5, 1);
    must_be(top, "failed", 5, 1);
    must_be(top, "answered", 5, 1);
    must_be(top, "held_ms", 4, 500);
    must_be(top, "reasons", 4, 1 << OPENPI_REASON_NO_ACTIONS | 1 << OPENPI_REASON_LOST);
    assert_true(fabs(json_number_value(json_object_get(top, "silent_ms")) - 4000) < 1);
    assert_string_equal(json_string_value(json_array_get(json_object_get(top, "why"), OPENPI_REASON_LOST)),
                        openpi_reason_text(OPENPI_REASON_LOST));
    json_decref(top);
}

/* Whatever comes, a minute is kept: the same seconds as if only the last minute had been. */
static void older_seconds_are_gone(void **state) {
    (void)state;
    for (int i = 0; i < 1000; i++) add(call_at(100 * i, (float)i, -1));
    json_t *top = look(100000);
    for (int ago = 1; ago <= TRAIL_SECONDS; ago++) {
        must_be(top, "answered", ago, 10);
        must_be(top, "high", ago, 1000 - 10 * (ago - 1) - 1);
    }
    json_decref(top);
    top = look(100000 + 30000);
    must_be(top, "answered", 30, 0);
    must_be(top, "answered", 31, 10);
    json_decref(top);
    top = look(100000 + 3600000);
    for (int ago = 1; ago <= TRAIL_SECONDS; ago++) must_be(top, "answered", ago, 0);
    json_decref(top);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(told_rows, begin, end),
        cmocka_unit_test_setup_teardown(untold_rows, begin, end),
        cmocka_unit_test_setup_teardown(limits_and_holds, begin, end),
        cmocka_unit_test_setup_teardown(older_seconds_are_gone, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
