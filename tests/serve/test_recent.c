/* labels: links=serve */
/* Rates and percentiles of a robot's last requests, against what they are by definition. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include "serve/admin/recent.h"

static void must_be(double found, double expected) {
    if (fabs(found - expected) > 1e-6 * fabs(expected) + 1e-12)
        fail_msg("found %.9g, expected %.9g", found, expected);
}

static void nothing_yet(void **state) {
    (void)state;
    recent r;
    recent_open(&r, 1000);
    recent_summary s = recent_look(&r, 1000);
    assert_int_equal(s.count, 0);
    must_be(s.rate, 0);
    must_be(s.p50_ms, 0);
    must_be(s.p99_ms, 0);
}

/* The smallest value that at least so much of all are not above; the order they came in does not count. */
static void percentiles(void **state) {
    (void)state;
    recent r;
    recent_open(&r, 0);
    for (int i = 0; i < 100; i++) recent_add(&r, i, 1 + i * 37 % 100);         /* 1 … 100                   */
    recent_summary s = recent_look(&r, 100);
    assert_int_equal(s.count, 100);
    must_be(s.p50_ms, 50);
    must_be(s.p99_ms, 99);
    recent_open(&r, 0);
    for (int i = 3; i > 0; i--) recent_add(&r, i, i);
    s = recent_look(&r, 100);
    must_be(s.p50_ms, 2);
    must_be(s.p99_ms, 3);
}

/* Only the last RECENT_REQUESTS count. */
static void old_ones_are_forgotten(void **state) {
    (void)state;
    recent r;
    recent_open(&r, 0);
    for (int i = 0; i < RECENT_REQUESTS; i++) recent_add(&r, i, 1000);
    for (int i = 0; i < RECENT_REQUESTS; i++) recent_add(&r, RECENT_REQUESTS + i, 5);
    recent_summary s = recent_look(&r, 2 * RECENT_REQUESTS);
    assert_int_equal(s.count, RECENT_REQUESTS);
    must_be(s.p99_ms, 5);
}

static void rates(void **state) {
    (void)state;
    recent r;
    recent_open(&r, 0);
    for (int i = 1; i <= 6; i++) recent_add(&r, i * 500, 1);
    must_be(recent_look(&r, 3000).rate, 2);                    /* younger than the window                  */
    must_be(recent_look(&r, 12000).rate, .2);                  /* 2500 and 3000 are within it              */
    must_be(recent_look(&r, 60000).rate, 0);
    recent_open(&r, 0);
    for (int i = 1; i <= 1000; i++) recent_add(&r, i * 10, 1);                 /* 100 a second, 1 s is kept */
    must_be(recent_look(&r, 10000).rate, 100 / .99);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_yet),
        cmocka_unit_test(percentiles),
        cmocka_unit_test(old_ones_are_forgotten),
        cmocka_unit_test(rates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
