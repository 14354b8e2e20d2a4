/* The core of a runner in virtual time: every row of the timeline is given once at most, in order, at the
 * measured delay and within the limits, whatever latencies, losses and reorderings there are, and every hold
 * has its reason. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/sanitizer.h"
#include "schedule_world.h"

/* A sanitizer makes each tick some ten times as slow. */
enum { SEEDS = SANITIZED ? 10000 : 100000, TICKS = 100, DAY = 24 * 3600 * 50 };

static void many_seeds(void **state) {
    static world w;
    uint64_t moved = 0, held = 0, late = 0;
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        world_random(&w, seed);
        world_run(&w, TICKS);
        moved += w.moved, held += w.held, late += w.schedule.late;
    }
    print_message("%d seeds: %llu steps, %llu held, %llu chunks too late\n", SEEDS, (unsigned long long)moved,
                  (unsigned long long)held, (unsigned long long)late);
    assert_true(moved > SEEDS * 20 && held > SEEDS * 20 && late > SEEDS);
}

/* 50 Hz, chunks of 50, calls of up to 300 ms of which two overtake each other, one in twenty is lost, and
 * observations are lost and late. */
static void a_day(void **state) {
    static world w;
    (void)state;
    world_begin(&w, 24);
    w.options.seam = OPENPI_SEAM_BLEND, w.options.blend_steps = 4;
    world_limit(&w);
    w.calls = 2, w.latency = 300, w.lost_chunk = 50, w.lost_observation = 100, w.late_observation = 200;
    world_run(&w, SANITIZED ? DAY / 10 : DAY);
    print_message("a day: %llu steps, %llu held, %llu chunks\n", (unsigned long long)w.moved,
                  (unsigned long long)w.held, (unsigned long long)w.accepted);
    assert_true(w.held < w.ticks / 100);
}

/* ---- by hand --------------------------------------------------------------------------------------- */

static schedule_chunk chunk_of(uint64_t number, uint64_t base, double taken, int rows, double first) {
    schedule_chunk chunk = {.number = number, .base = base, .taken = taken, .rows = rows};
    for (int r = 0; r < rows; r++)
        for (int d = 0; d < WORLD_DIMS; d++) chunk.actions[r * WORLD_DIMS + d] = first + r;
    return chunk;
}

static double tick(world *w, openpi_move expected, openpi_runner_state *state) {
    double action[WORLD_DIMS];
    w->now += w->period;
    w->news.newest = w->now;
    assert_int_equal(schedule_next(&w->schedule, &w->news, w->now, action, state), expected);
    return action[0];
}

static void begin(world *w) {
    world_begin(w, 1);
    schedule_begin(&w->schedule, &w->options);
}

static void switch_at_the_measured_delay(void **state) {
    static world w;
    openpi_runner_state told;
    (void)state;
    begin(&w);
    schedule_chunk one = chunk_of(1, 0, 0, 10, 0), two = chunk_of(2, 3, 70, 10, 100);
    assert_int_equal(schedule_offer(&w.schedule, &one, w.now), 1);
    for (int i = 0; i < 5; i++) assert_true(tick(&w, OPENPI_MOVE_ACTION, &told) == i);
    assert_int_equal(schedule_offer(&w.schedule, &two, w.now), 1);
    assert_true(tick(&w, OPENPI_MOVE_ACTION, &told) == 102); /* 5 are executed, 3 before it was seen   */
    assert_int_equal(told.delay, 2);
    assert_int_equal(told.row, 2);
    assert_int_equal(told.left, 7);
    schedule_chunk old = chunk_of(3, 2, 50, 10, 200);
    assert_int_equal(schedule_offer(&w.schedule, &old, w.now), 0);
}

static void seams(void **state) {
    static world w;
    openpi_runner_state told;
    (void)state;
    begin(&w);
    w.schedule.options.seam = OPENPI_SEAM_BLEND, w.schedule.options.blend_steps = 3;
    w.schedule.blended = 3;
    schedule_chunk one = chunk_of(1, 0, 0, 10, 0), two = chunk_of(2, 2, 40, 10, 10);
    schedule_offer(&w.schedule, &one, w.now);
    for (int i = 0; i < 2; i++) tick(&w, OPENPI_MOVE_ACTION, &told);
    schedule_offer(&w.schedule, &two, w.now);
    static const double blended[] = {2 + 8 * .25, 3 + 8 * .5, 4 + 8 * .75, 5 + 8, 6 + 8};
    for (int i = 0; i < 5; i++)
        assert_true(fabs(tick(&w, OPENPI_MOVE_ACTION, &told) - blended[i]) < 1e-12);
    begin(&w);
    w.schedule.options.seam = OPENPI_SEAM_APPEND;
    one.rows = 4;
    schedule_offer(&w.schedule, &one, w.now);
    for (int i = 0; i < 2; i++) tick(&w, OPENPI_MOVE_ACTION, &told);
    schedule_offer(&w.schedule, &two, w.now);
    static const double appended[] = {2, 3, 12, 13};
    for (int i = 0; i < 4; i++) assert_true(tick(&w, OPENPI_MOVE_ACTION, &told) == appended[i]);
}

static void endings(void **state) {
    static world w;
    openpi_runner_state told;
    (void)state;
    begin(&w);
    assert_true(isnan(tick(&w, OPENPI_MOVE_HOLD, &told)));
    assert_int_equal(told.reason, OPENPI_REASON_STARTING);
    schedule_chunk one = chunk_of(1, 0, 0, 3, 0), two = chunk_of(2, 3, 200, 3, 5);
    w.schedule.options.ending = OPENPI_ENDING_DECELERATE, w.schedule.options.decelerate_steps = 3;
    schedule_offer(&w.schedule, &one, w.now);
    for (int i = 0; i < 3; i++) tick(&w, OPENPI_MOVE_ACTION, &told);
    static const double slower[] = {2.75, 3.25, 3.5, 3.5, 3.5};
    for (int i = 0; i < 5; i++) assert_true(tick(&w, OPENPI_MOVE_HOLD, &told) == slower[i]);
    assert_int_equal(told.reason, OPENPI_REASON_NO_ACTIONS);
    w.news.source = OPENPI_REASON_LOST;
    tick(&w, OPENPI_MOVE_HOLD, &told);
    assert_int_equal(told.reason, OPENPI_REASON_LOST);
    w.schedule.options.ending = OPENPI_ENDING_STOP;
    schedule_offer(&w.schedule, &two, w.now);
    for (int i = 0; i < 3; i++) assert_true(tick(&w, OPENPI_MOVE_ACTION, &told) == 5 + i);
    for (int i = 0; i < 3; i++) assert_true(tick(&w, OPENPI_MOVE_STOP, &told) == 7);
    schedule_chunk three = chunk_of(3, 6, w.now, 3, 9);
    assert_int_equal(schedule_offer(&w.schedule, &three, w.now), 0);
    w.news.resume = 1;
    tick(&w, OPENPI_MOVE_HOLD, &told);
    w.news.resume = 0;
    three.taken = w.now;
    assert_int_equal(schedule_offer(&w.schedule, &three, w.now), 1);
    assert_true(tick(&w, OPENPI_MOVE_ACTION, &told) == 9);
}

static void calls_between_steps(void **state) {
    static world w;
    openpi_runner_state told;
    (void)state;
    begin(&w);
    w.schedule.options.calls_per_step = 4, w.schedule.options.interpolate = 1;
    schedule_chunk one = chunk_of(1, 0, 0, 3, 0);
    schedule_offer(&w.schedule, &one, w.now);
    static const double given[] = {0, 0, 0, 0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2};
    for (int i = 0; i < 12; i++) {
        assert_true(tick(&w, OPENPI_MOVE_ACTION, &told) == given[i]);
        assert_int_equal(told.fresh, i % 4 == 0);
        assert_int_equal(told.step, i / 4 + 1);
    }
    tick(&w, OPENPI_MOVE_HOLD, &told);
}

/* What a limit does: the nearest number, the last one until another chunk comes, a stop; also from where the
 * robot is measured, and where holding still would be too sudden. */
static void beyond_limits(void **state) {
    static world w;
    openpi_runner_state told;
    (void)state;
    for (int verb = LIMITS_CLAMP; verb <= LIMITS_STOP; verb++) {
        begin(&w);
        limits *l = &w.schedule.options.limits;
        l->count = 2, l->max[0] = 1.5, l->max_step[1] = 1, l->on_violation = (limits_verb)verb;
        schedule_chunk one = chunk_of(1, 0, 0, 4, 0), two = chunk_of(2, 2, 1, 4, 0);
        schedule_offer(&w.schedule, &one, w.now);
        for (int i = 0; i < 2; i++) assert_true(tick(&w, OPENPI_MOVE_ACTION, &told) == i);
        openpi_move then = verb == LIMITS_CLAMP  ? OPENPI_MOVE_ACTION
                           : verb == LIMITS_HOLD ? OPENPI_MOVE_HOLD
                                                 : OPENPI_MOVE_STOP;
        assert_true(tick(&w, then, &told) == (verb == LIMITS_CLAMP ? 1.5 : 1));
        assert_int_equal(told.limited, verb == LIMITS_CLAMP);
        assert_int_equal(told.reason, verb == LIMITS_CLAMP ? OPENPI_REASON_NONE : OPENPI_REASON_LIMIT);
        if (verb == LIMITS_CLAMP) continue;
        tick(&w, then, &told);                         /* nothing of that chunk comes any more              */
        assert_int_equal(schedule_offer(&w.schedule, &two, w.now), 0); /* seen before the limit  */
        two.taken = w.now;
        assert_int_equal(schedule_offer(&w.schedule, &two, w.now), verb == LIMITS_HOLD);
        if (verb == LIMITS_HOLD) assert_true(tick(&w, OPENPI_MOVE_ACTION, &told) == 0);
    }
    begin(&w);
    w.schedule.options.limits.count = 1, w.schedule.options.limits.max_start_jump[0] = 2;
    schedule_chunk far = chunk_of(1, 0, 0, 4, 10);
    far.start[0] = 5;
    schedule_offer(&w.schedule, &far, w.now);
    assert_true(tick(&w, OPENPI_MOVE_ACTION, &told) == 7);
    begin(&w);
    w.schedule.options.limits.count = 1, w.schedule.options.limits.max_step[1] = 1;
    schedule_chunk fast = chunk_of(1, 0, 0, 1, 3);
    double action[WORLD_DIMS];
    schedule_offer(&w.schedule, &fast, w.now);
    tick(&w, OPENPI_MOVE_ACTION, &told);
    for (int i = 2; i >= -1; i--) {                    /* a velocity of 3 ends at 1 a tick                  */
        schedule_next(&w.schedule, &w.news, w.now, action, &told);
        assert_true(action[1] == (i > 0 ? i : 0));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(switch_at_the_measured_delay),
        cmocka_unit_test(seams),
        cmocka_unit_test(endings),
        cmocka_unit_test(calls_between_steps),
        cmocka_unit_test(beyond_limits),
        cmocka_unit_test(many_seeds),
        cmocka_unit_test(a_day),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
