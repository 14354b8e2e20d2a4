/* The scheduler's numbers, in virtual time on a simulated H200. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "simulation.h"

static const double call = 10.7;

static const sim_robot greedy = {.kind = SIM_ACTS, .class = SCHEDULER_SHARED};

static sim_robot reserved(double jitter) {
    return (sim_robot){.kind = SIM_ACTS, .class = SCHEDULER_RESERVED, .rate = 10, .pause_ms = 100 - call,
                       .jitter_ms = jitter, .first_ms = 100};
}

/* ---- one reserved robot among greedy ones -------------------------------------------------------- */

typedef struct among {
    const char *name;
    int greedy;
    double jitter, max_block;
    double p99;                  /* at most, in calls                                                     */
    double others;               /* a second, at least                                                    */
} among;

static void a_reserved_robot_among_greedy_ones(void **state) {
    static const among cases[] = {
        {"4", 4, 2, 1, 1.1, 65},          {"64", 64, 2, 1, 1.1, 65},
        {"4, throughput", 4, 2, 8, 1.1, 75}, {"64, throughput", 64, 2, 8, 1.1, 80},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const among *c = &cases[i];
        sim *s = sim_create(i, 200);
        s->max_block = c->max_block;
        sim_robot *robot = sim_add(s, 1, reserved(c->jitter)), *others = sim_add(s, c->greedy, greedy);
        sim_run(s);
        double p99 = sim_percentile(robot, 0.99) / call, rate = sim_rate(s, others, c->greedy);
        assert_true(p99 <= c->p99);
        assert_true(rate >= c->others);
        free(s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_reserved_robot_among_greedy_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
