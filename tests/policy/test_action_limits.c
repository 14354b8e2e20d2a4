/* policy/limits.c: the limits of actions that are sent, over made-up limits and chunks and case by case.
 *
 * What is sent is judged by a check of its own, written as the limits are defined, so that a limit of the
 * wrong number, of the wrong step or before a rounding does not pass. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "policy/limits.h"
#include "random_numbers.h"

enum { DIMS = 5, STEPS = 9, SEEDS = 100000 };

typedef struct problem {
    limits limits;
    double previous[DIMS], start[DIMS], came[STEPS][DIMS], sent[STEPS][DIMS];
    int has_previous, has_start, steps;
    limits_report report;
} problem;

/* -1 … 1, now and then of another order of magnitude, so that sums round. */
static double any_number(void) {
    double value = next_random() / 2147483648.0 - 1.0;
    return next_random() % 8 ? value : value * ldexp(1.0, (int)(next_random() % 60) - 30);
}

static int one_in(uint32_t n) { return next_random() % n == 0; }

static void make_limits(limits *l) {
    limits_clear(l, DIMS);
    l->on_violation = (limits_verb)(next_random() % 3);
    for (int d = 0; d < DIMS; d++) {
        double a = any_number(), b = any_number();
        if (one_in(2)) l->min[d] = fmin(a, b), l->count++;
        if (one_in(2)) l->max[d] = fmax(a, b) + 1e-3, l->count++;
        if (one_in(2)) l->max_step[d] = fabs(any_number()) + 1e-4, l->count++;
        if (one_in(2)) l->max_start_jump[d] = fabs(any_number()) + 1e-4, l->count++;
    }
}

/* An action within its own limits, as one that was sent is. */
static double within(const limits *l, int d, double value) { return fmin(fmax(value, l->min[d]), l->max[d]); }

static void make_problem(problem *p) {
    make_limits(&p->limits);
    p->has_previous = !one_in(4);
    p->has_start = !one_in(4);
    p->steps = 1 + (int)(next_random() % STEPS);
    double pace = one_in(2) ? 0.05 : 1;
    for (int d = 0; d < DIMS; d++) {
        p->start[d] = any_number();
        p->previous[d] = within(&p->limits, d, one_in(2) ? p->start[d] : any_number());
        for (int s = 0; s < STEPS; s++)
            p->came[s][d] = (s ? p->came[s - 1][d] : p->start[d]) + pace * any_number();
    }
    memcpy(p->sent, p->came, sizeof p->sent);
}

static int apply(problem *p) {
    return limits_apply(&p->limits, p->has_previous ? p->previous : NULL, p->has_start ? p->start : NULL,
                        p->sent[0], p->steps, &p->report);
}

/* As the limits are defined: what a reader computes from the numbers that are sent. */
static int is_within(const problem *p, int s, int d, double value) {
    const limits *l = &p->limits;
    const double *before = s ? p->sent[s - 1] : p->has_previous ? p->previous : NULL;
    if (value < l->min[d] || value > l->max[d] || !isfinite(value)) return 0;
    if (before && fabs(value - before[d]) > l->max_step[d]) return 0;
    return s || !p->has_start || !(fabs(value - p->start[d]) > l->max_start_jump[d]);
}

static int action_is_within(const problem *p, int s, const double *action) {
    for (int d = 0; d < DIMS; d++)
        if (!is_within(p, s, d, action[d])) return 0;
    return 1;
}

/* Closer to what came by a few last bits of the numbers that differences are taken from. */
static double closer(const problem *p, int s, int d) {
    double sent = p->sent[s][d], came = p->came[s][d];
    double size = fabs(sent) + fabs(s ? p->sent[s - 1][d] : p->previous[d]) + fabs(p->start[d]);
    double few = 4 * DBL_EPSILON * size;
    return came > sent ? fmin(came, sent + few) : fmax(came, sent - few);
}

/* The nearest one, to rounding. */
static void assert_nearest(const problem *p) {
    int changed = 0;
    uint64_t steps = 0;
    for (int s = 0; s < p->steps; s++)
        for (int d = 0; d < DIMS; d++) {
            double sent = p->sent[s][d], came = p->came[s][d];
            assert_true(is_within(p, s, d, sent));
            if (sent == came) continue;
            changed++;
            steps |= UINT64_C(1) << s;
            assert_false(is_within(p, s, d, came));
            assert_false(is_within(p, s, d, closer(p, s, d)));
        }
    assert_int_equal(p->report.changed, changed);
    assert_true(p->report.changed_steps == steps);
    assert_int_equal(p->report.held, 0);
}

/* All as it came up to a step; from there on the action before it. */
static void assert_held(const problem *p) {
    int from = 0, changed = 0;
    while (from < p->steps && action_is_within(p, from, p->came[from])) from++;
    const double *last = from ? p->came[from - 1] : p->previous;
    for (int s = 0; s < p->steps; s++) {
        assert_memory_equal(p->sent[s], s < from ? p->came[s] : last, sizeof p->sent[s]);
        assert_true(action_is_within(p, s, p->sent[s]));
        int before = changed;
        for (int d = 0; d < DIMS; d++) changed += p->sent[s][d] != p->came[s][d];
        assert_int_equal(p->report.changed_steps >> s & 1, changed > before);
    }
    assert_int_equal(p->report.held, p->steps - from);
    assert_int_equal(p->report.changed, changed);
    if (from < p->steps) assert_int_equal(p->report.step, from);
}

/* 1: no number at all is within the limits of one of the numbers that came, or it is not known. */
static int nothing_fits(const problem *p) {
    int s = p->report.step, d = p->report.dim;
    const limits *l = &p->limits;
    const double *before = s ? p->sent[s - 1] : p->has_previous ? p->previous : NULL;
    double low = l->min[d], high = l->max[d];
    if (before) low = fmax(low, before[d] - l->max_step[d]), high = fmin(high, before[d] + l->max_step[d]);
    if (!s && p->has_start) {
        low = fmax(low, p->start[d] - l->max_start_jump[d]);
        high = fmin(high, p->start[d] + l->max_start_jump[d]);
    }
    return nextafter(low, INFINITY) > nextafter(high, -INFINITY);
}

static void assert_stopped(const problem *p) {
    switch (p->report.stop) {
    case LIMITS_REFUSED: {
        assert_int_equal(p->limits.on_violation, LIMITS_STOP);
        int s = p->report.step;
        assert_false(is_within(p, s, p->report.dim, p->came[s][p->report.dim]));
        for (int before = 0; before < s; before++) assert_true(action_is_within(p, before, p->came[before]));
        break;
    }
    case LIMITS_NOTHING_FITS:
        assert_int_equal(p->limits.on_violation, LIMITS_CLAMP);
        assert_true(nothing_fits(p));
        break;
    case LIMITS_NOTHING_HELD:
        assert_int_equal(p->limits.on_violation, LIMITS_HOLD);
        assert_int_equal(p->report.step, 0);
        assert_true(!p->has_previous || !action_is_within(p, 0, p->previous));
        break;
    default: fail_msg("stop %d", (int)p->report.stop);
    }
}

/* Limits that no finite number is within, which a robot's file cannot have: nothing is sent. */
static void an_infinite_limit_is_never_sent(void **state) {
    (void)state;
    limits l;
    limits_report report;
    for (int kind = 0; kind < 2; kind++) {
        double action[1] = {0.5};
        limits_clear(&l, 1);
        l.count = 1;
        if (kind) l.max[0] = -INFINITY;
        else l.min[0] = INFINITY;
        assert_false(limits_apply(&l, NULL, NULL, action, 1, &report));
        assert_int_equal(report.stop, LIMITS_NOTHING_FITS);
    }
}

static void no_action_leaves_beyond_a_limit(void **state) {
    (void)state;
    int sent[3] = {0}, changed[3] = {0}, stopped[3] = {0};
    for (int seed = 0; seed < SEEDS; seed++) {
        problem p;
        random_state = (uint64_t)seed;
        make_problem(&p);
        int verb = (int)p.limits.on_violation;
        if (!apply(&p)) {
            stopped[verb]++;
            assert_stopped(&p);
            continue;
        }
        sent[verb]++;
        changed[verb] += p.report.changed > 0;
        assert_int_equal(p.report.stop, LIMITS_SENT);
        if (verb == LIMITS_HOLD) assert_held(&p);
        else assert_nearest(&p);
        if (verb == LIMITS_STOP) assert_memory_equal(p.sent, p.came, sizeof p.sent);
    }
    for (int verb = 0; verb < 3; verb++) {
        assert_in_range(sent[verb], SEEDS / 300, SEEDS);
        assert_in_range(stopped[verb], SEEDS / 100, SEEDS);
        if (verb != LIMITS_STOP) assert_in_range(changed[verb], SEEDS / 100, SEEDS);
    }
}

/* Whatever the limits, and where there are none. */
static void only_finite_numbers_leave(void **state) {
    (void)state;
    static const double wrong[] = {(double)NAN, (double)INFINITY, -(double)INFINITY};
    for (int i = 0; i < 3000; i++) {
        problem p;
        random_state = (uint64_t)i;
        make_problem(&p);
        if (one_in(3)) limits_clear(&p.limits, DIMS);
        int s = (int)(next_random() % (uint32_t)p.steps), d = (int)(next_random() % DIMS);
        p.sent[s][d] = wrong[i % 3];
        assert_int_equal(apply(&p), 0);
        assert_int_equal(p.report.stop, LIMITS_NOT_FINITE);
        assert_int_equal(p.report.step, s);
        assert_int_equal(p.report.dim, d);
    }
}

/* Chunk after chunk, and one action at a time: the same, where each is told what was sent before. */
static void single_actions_are_as_a_chunk(void **state) {
    (void)state;
    for (int seed = 0; seed < 20000; seed++) {
        problem p;
        limits_report one;
        double single[STEPS][DIMS];
        random_state = (uint64_t)seed;
        make_problem(&p);
        p.limits.on_violation = LIMITS_CLAMP;
        if (!apply(&p)) continue;
        memcpy(single, p.came, sizeof single);
        int changed = 0;
        for (int s = 0; s < p.steps; s++) {
            const double *before = s ? single[s - 1] : p.has_previous ? p.previous : NULL;
            const double *measured = s || !p.has_start ? NULL : p.start;
            assert_true(limits_apply(&p.limits, before, measured, single[s], 1, &one));
            changed += one.changed;
        }
        assert_memory_equal(single, p.sent, (size_t)p.steps * sizeof *single);
        assert_int_equal(changed, p.report.changed);
    }
}

/* ---- case by case -------------------------------------------------------------------------------------- */

static limits arm(limits_verb verb) {
    limits l;
    limits_clear(&l, 2);
    l.on_violation = verb;
    l.min[0] = -1, l.max[0] = 1, l.max_step[1] = 0.5, l.max_start_jump[1] = 0.25, l.count = 4;
    return l;
}

static void each_is_counted(void **state) {
    (void)state;
    limits l = arm(LIMITS_CLAMP);
    limits_report r;
    double actions[4][2] = {{-3, 0.5}, {0, 1}, {2, 3}, {1, 1.25}};
    static const double start[2] = {0, 0}, sent[4][2] = {{-1, 0.25}, {0, 0.75}, {1, 1.25}, {1, 1.25}};
    assert_true(limits_apply(&l, NULL, start, actions[0], 4, &r));
    assert_memory_equal(actions, sent, sizeof sent);
    assert_int_equal(r.beyond[LIMIT_MIN], 1);
    assert_int_equal(r.beyond[LIMIT_MAX], 1);
    assert_int_equal(r.beyond[LIMIT_STEP], 2);
    assert_int_equal(r.beyond[LIMIT_START], 1);
    assert_int_equal(r.changed, 5);
    assert_int_equal(r.step, 0);
    assert_int_equal(r.dim, 0);
    assert_int_equal(r.kind, LIMIT_MIN);
}

static void one_sentence(const limits *l, const double *previous, const double *start, double first,
                         double second, const char *wanted) {
    double action[2] = {first, second};
    char text[200];
    limits_report r;
    limits_apply(l, previous, start, action, 1, &r);
    assert_string_equal(limits_describe(&r, text, sizeof text), wanted);
}

static void what_is_wrong_is_described(void **state) {
    (void)state;
    limits clamp = arm(LIMITS_CLAMP), hold = arm(LIMITS_HOLD), stop = arm(LIMITS_STOP);
    static const double zero[2] = {0, 0}, far[2] = {0, 9}, unknown[2] = {0, (double)NAN};
    one_sentence(&stop, NULL, NULL, 1.5, 0, "1.5, above the max of 1");
    one_sentence(&clamp, NULL, NULL, -1.5, 0, "-1.5, below the min of -1");
    one_sentence(&stop, zero, NULL, 0, 0.75,
                 "0.75, 0.75 from 0, the action before, more than the max_step of 0.5");
    one_sentence(&stop, NULL, zero, 0, 0.75,
                 "0.75, 0.75 from 0, the measured state, more than the max_start_jump of 0.25");
    one_sentence(&hold, NULL, zero, 0, 0.75,
                 "0.75, 0.75 from 0, the measured state, more than the max_start_jump of 0.25, and no action "
                 "within the limits was sent before that could be held");
    one_sentence(&clamp, zero, far, 0, 8,
                 "8, and no number is at least 8.75 and at most 0.5, as its limits want");
    one_sentence(&clamp, NULL, unknown, 0, 0,
                 "not checked: its max_start_jump counts from the measured state, which is no finite number");
    one_sentence(&clamp, NULL, NULL, 0, (double)NAN, "nan, expected a finite number");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_infinite_limit_is_never_sent),
        cmocka_unit_test(no_action_leaves_beyond_a_limit), cmocka_unit_test(only_finite_numbers_leave),
        cmocka_unit_test(single_actions_are_as_a_chunk),   cmocka_unit_test(each_is_counted),
        cmocka_unit_test(what_is_wrong_is_described),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
