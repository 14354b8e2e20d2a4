/* labels: links=serve */
/* The scheduler's rules one by one, each in a few events at exact times. A device of these tests takes 10 ms
 * for one sample, 18 for two, 32 for four and 60 for eight. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "serve/schedule/pace.h"
#include "serve/schedule/rhythm.h"
#include "serve/schedule/scheduler.h"

enum { CONNECTIONS = 8 };
static const int64_t ms = 1000000;
static const batch_time table[] = {{1, 10000000}, {2, 18000000}, {4, 32000000}, {8, 60000000}};

/* Requests are told apart by their addresses. */
static char requests[16];

static scheduler *make(int devices, double max_block) {
    batch_times times[SCHEDULER_DEVICES];
    for (int d = 0; d < devices; d++) assert_true(batch_times_fill(&times[d], table, 4));
    scheduler_options options = {devices, times, CONNECTIONS, max_block};
    scheduler *s = scheduler_create(&options);
    assert_non_null(s);
    return s;
}

static int join(scheduler *s, scheduler_class class, double rate, int64_t now) {
    int connection = -1;
    assert_int_equal(scheduler_join(s, class, rate, now, &connection), SCHEDULER_JOINED);
    assert_in_range(connection, 0, CONNECTIONS - 1);
    return connection;
}

static void submit(scheduler *s, int connection, int request, int64_t now) {
    assert_true(scheduler_submit(s, connection, &requests[request], SCHEDULER_NEVER, now));
}

/* The device runs exactly these requests, given as digits. */
static void runs(scheduler *s, int device, int64_t now, const char *expected) {
    scheduler_action a = scheduler_next(s, device, now);
    assert_int_equal(a.verb, SCHEDULER_RUN);
    int count = 0;
    for (; expected[count]; count++) {
        assert_true(count < a.count);
        assert_ptr_equal(a.requests[count], &requests[expected[count] - '0']);
    }
    assert_int_equal(a.count, count);
}

static int64_t waits(scheduler *s, int device, int64_t now) {
    scheduler_action a = scheduler_next(s, device, now);
    assert_int_equal(a.verb, SCHEDULER_WAIT);
    assert_true(a.until > now);
    return a.until;
}

/* ---- batch times --------------------------------------------------------------------------------- */

static void batch_times_are_interpolated(void **state) {
    batch_times t;
    (void)state;
    assert_true(batch_times_fill(&t, table, 4));
    static const int expected[] = {0, 10, 18, 25, 32, 39, 46, 53, 60};
    for (int batch = 1; batch <= 8; batch++) assert_int_equal(t.ns[batch], expected[batch] * ms);
    assert_int_equal(t.largest, 8);
    static const struct {
        int count;
        int64_t limit;
        int best;
    } cases[] = {{8, 60, 8}, {8, 59, 7}, {8, 10, 1},  {8, 9, 0},    {8, 18, 2},
                 {8, 17, 1}, {3, 100, 3}, {0, 100, 0}, {20, 1000, 8}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(batch_times_best(&t, cases[i].count, cases[i].limit * ms), cases[i].best);
    batch_times twice = batch_times_scaled(&t, 2);
    assert_int_equal(twice.ns[8], 120 * ms);
    assert_int_equal(twice.largest, 8);
}

/* A larger batch is taken only where it computes more a second; one that was measured as faster than a
 * smaller one counts as equally fast. */
static void batches_that_gain_nothing_are_not_made(void **state) {
    static const batch_time line[] = {{1, 10}, {2, 20}, {4, 40}}, dip[] = {{1, 10}, {2, 9}, {4, 30}};
    batch_times t;
    (void)state;
    assert_true(batch_times_fill(&t, line, 3));
    assert_int_equal(batch_times_best(&t, 4, 1000), 1);
    assert_true(batch_times_fill(&t, dip, 3));
    assert_int_equal(t.ns[2], 10);
    assert_int_equal(t.ns[3], 20);
    assert_int_equal(batch_times_best(&t, 4, 1000), 2);
}

static void bad_batch_times_are_refused(void **state) {
    static const batch_time bad[][2] = {
        {{2, 10}, {4, 20}},  {{1, 10}, {1, 20}},                   {{1, 0}, {2, 20}},
        {{1, 10}, {2, -1}}, {{1, 10}, {BATCH_TIMES_MAX + 1, 20}}, {{0, 10}, {1, 20}},
    };
    batch_times t;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_false(batch_times_fill(&t, bad[i], 2));
    assert_false(batch_times_fill(&t, table, 0));
}

/* ---- rhythm -------------------------------------------------------------------------------------- */

/* Calls of `latency` with a pause that alternates around its mean; returns the time of the last reply. */
static int64_t play(rhythm *r, int64_t now, int count, double pause, double swing, double latency) {
    for (int i = 0; i < count; i++) {
        if (i || now) now += (int64_t)((pause + (i % 2 ? swing : -swing)) * 1e6);
        else now = 1;
        rhythm_request(r, now);
        rhythm_reply(r, now += (int64_t)(latency * 1e6));
    }
    return now;
}

static void a_rhythm_is_known_after_eight_intervals(void **state) {
    rhythm_window w;
    (void)state;
    for (int count = 1; count <= 12; count++) {
        rhythm r = {0};
        int64_t replied = play(&r, 0, count, 90, 2, 10);
        assert_int_equal(rhythm_expect(&r, &w), count > 8);
        if (count <= 8) continue;
        assert_true(llabs((w.begin + w.end) / 2 - replied - 90 * ms) < ms / 2);
        assert_true(llabs(w.end - w.begin - 2 * RHYTHM_WINDOW * 2 * ms) < 2 * ms);
        rhythm_request(&r, replied + ms);
        assert_false(rhythm_expect(&r, &w));           /* the request is there */
    }
}

static void a_wide_deviation_is_no_rhythm(void **state) {
    rhythm_window w;
    rhythm near = {0}, far = {0};
    (void)state;
    play(&near, 0, 60, 90, 29, 1);
    play(&far, 0, 60, 90, 31, 1);
    assert_true(rhythm_expect(&near, &w));
    assert_false(rhythm_expect(&far, &w));
}

/* An hour's rest is one odd interval; another pace is learnt. */
static void odd_intervals_do_not_last_and_new_paces_are_learnt(void **state) {
    rhythm_window w;
    rhythm r = {0};
    (void)state;
    int64_t now = play(&r, 0, 60, 90, 2, 10);
    now = play(&r, now, 1, 3600e3, 0, 10);
    now = play(&r, now, 4, 90, 2, 10);
    assert_true(rhythm_expect(&r, &w));
    assert_true(w.begin > now + 70 * ms && w.end < now + 110 * ms);
    now = play(&r, now, 250, 300, 2, 10);
    assert_true(rhythm_expect(&r, &w));
    assert_true(w.begin > now + 270 * ms && w.begin < now + 300 * ms);
    assert_true(w.end > now + 300 * ms && w.end < now + 330 * ms);
}

/* With a clock of its own a robot's pauses vary with the latency, its period does not. */
static void the_steadier_interval_counts(void **state) {
    rhythm_window w;
    rhythm r = {0};
    (void)state;
    for (int i = 0; i < 60; i++) {
        rhythm_request(&r, 1 + i * 100 * ms);
        rhythm_reply(&r, 1 + i * 100 * ms + (i % 2 ? 10 : 80) * ms);
    }
    assert_ptr_equal(rhythm_known(&r), &r.period);
    assert_true(rhythm_expect(&r, &w));
    assert_true(w.begin > 5999 * ms && w.begin < 6000 * ms && w.end > 6000 * ms && w.end < 6001 * ms);
    rhythm acts = {0};
    int64_t now = 1;
    for (int i = 0; i < 60; i++) {
        rhythm_request(&acts, now += 50 * ms);
        rhythm_reply(&acts, now += (i % 2 ? 10 : 80) * ms);
    }
    assert_ptr_equal(rhythm_known(&acts), &acts.pause);
}

/* ---- pace ---------------------------------------------------------------------------------------- */

static void a_pace_allows_its_rate_and_a_tenth(void **state) {
    (void)state;
    pace p = pace_start(10, ms);
    int64_t now = ms;
    for (int i = 0; i < PACE_BURST; i++) {
        assert_true(pace_allows(&p, now));
        pace_take(&p, now);
    }
    assert_false(pace_allows(&p, now));
    int calls = 0;
    for (; calls < 1100; calls++) {
        assert_false(pace_allows(&p, pace_again(&p) - 10));
        now = pace_again(&p);
        assert_true(pace_allows(&p, now));
        pace_take(&p, now);
    }
    assert_true(llabs(now - ms - 100000 * ms) < ms);
    now += 3600000 * ms;                               /* what was not used in an hour is no credit */
    for (calls = 0; pace_allows(&p, now); calls++) pace_take(&p, now);
    assert_int_equal(calls, PACE_BURST);
    pace none = pace_start(0, ms);
    assert_false(pace_allows(&none, now));
}

/* ---- connections --------------------------------------------------------------------------------- */

static void reserved_rates_are_limited(void **state) {
    (void)state;
    for (int devices = 1; devices <= 2; devices++) {
        scheduler *s = make(devices, 1);
        int connection, last;
        join(s, SCHEDULER_RESERVED, 40 * devices, ms);
        last = join(s, SCHEDULER_RESERVED, 30 * devices, ms);
        assert_int_equal(scheduler_join(s, SCHEDULER_RESERVED, 0.1, ms, &connection), SCHEDULER_OVERBOOKED);
        join(s, SCHEDULER_SHARED, 0, ms);
        scheduler_leave(s, last, ms);
        assert_int_equal(scheduler_join(s, SCHEDULER_RESERVED, 30.1 * devices, ms, &connection),
                         SCHEDULER_OVERBOOKED);
        join(s, SCHEDULER_RESERVED, 29.9 * devices, ms);
        scheduler_state seen = scheduler_get_state(s);
        assert_int_equal(seen.connections, 3);
        assert_true(fabs(seen.reserved - 69.9 * devices) < 1e-9);
        assert_true(fabs(seen.reservable - 70 * devices) < 1e-9);
        assert_int_equal(scheduler_join(s, SCHEDULER_RESERVED, 0, ms, &connection), SCHEDULER_OVERBOOKED);
        assert_int_equal(scheduler_join(s, SCHEDULER_RESERVED, NAN, ms, &connection), SCHEDULER_OVERBOOKED);
        scheduler_destroy(s);
    }
}

/* A token's rate is reserved once, from its first connection to its last. */
static void connections_of_a_token_reserve_its_rate_once(void **state) {
    (void)state;
    scheduler *s = make(1, 1);
    int first = join(s, SCHEDULER_RESERVED, 40, ms), second, third, none;
    assert_int_equal(scheduler_join_token(s, first, ms, &second), SCHEDULER_JOINED);
    assert_int_equal(scheduler_join_token(s, second, ms, &third), SCHEDULER_JOINED);
    assert_int_not_equal(first, second);
    int other = join(s, SCHEDULER_RESERVED, 30, ms);
    assert_true(scheduler_get_state(s).reserved == 70);
    assert_true(scheduler_look(s, third).rate == 40);
    scheduler_leave(s, first, ms);
    scheduler_leave(s, third, ms);
    assert_true(scheduler_get_state(s).reserved == 70);
    assert_int_equal(scheduler_join(s, SCHEDULER_RESERVED, 1, ms, &none), SCHEDULER_OVERBOOKED);
    scheduler_leave(s, second, ms);
    assert_true(scheduler_get_state(s).reserved == 30);
    join(s, SCHEDULER_RESERVED, 40, ms);
    scheduler_leave(s, other, ms);
    while (scheduler_get_state(s).connections < CONNECTIONS) join(s, SCHEDULER_SHARED, 0, ms);
    assert_int_equal(scheduler_join_token(s, first, ms, &none), SCHEDULER_FULL);
    scheduler_destroy(s);
}

/* How many of a thousand calls the third connection gets, a shared one, where all three ask again as soon as
 * they are answered. The first has a reserved token; the second one has the same, or is shared. */
static int calls_of_the_third(int same_token) {
    int connections[3], calls[3] = {0};
    int64_t now = ms;
    scheduler *s = make(1, 1);
    connections[0] = join(s, SCHEDULER_RESERVED, 20, now);
    if (same_token) scheduler_join_token(s, connections[0], now, &connections[1]);
    else connections[1] = join(s, SCHEDULER_SHARED, 0, now);
    connections[2] = join(s, SCHEDULER_SHARED, 0, now);
    for (int i = 0; i < 3; i++) submit(s, connections[i], i, now);
    for (int call = 0; call < 1000; call++) {
        scheduler_action a = scheduler_next(s, 0, now);
        assert_int_equal(a.verb, SCHEDULER_RUN);
        assert_int_equal(a.count, 1);
        int who = (int)((char *)a.requests[0] - requests);
        calls[who]++;
        now += 10 * ms;
        scheduler_finish(s, 0, now);
        submit(s, connections[who], who, now);
    }
    scheduler_destroy(s);
    return calls[2];
}

/* Ten seconds at 22 calls a second and PACE_BURST go first; three share what is left. */
static void connections_of_a_token_have_its_rate_together(void **state) {
    const int left = 1000 - 220 - PACE_BURST;
    (void)state;
    assert_in_range(calls_of_the_third(0), left / 3 - 2, left / 3 + 2);
    assert_in_range(calls_of_the_third(1), left / 3 - 2, left / 3 + 2);
}

static void connections_are_bounded(void **state) {
    int connections[CONNECTIONS], more;
    (void)state;
    scheduler *s = make(1, 1);
    for (int i = 0; i < CONNECTIONS; i++) {
        connections[i] = join(s, SCHEDULER_SHARED, 0, ms);
        for (int j = 0; j < i; j++) assert_int_not_equal(connections[i], connections[j]);
    }
    assert_int_equal(scheduler_join(s, SCHEDULER_SHARED, 0, ms, &more), SCHEDULER_FULL);
    assert_null(scheduler_leave(s, connections[3], ms));
    assert_int_equal(join(s, SCHEDULER_SHARED, 0, ms), connections[3]);
    scheduler_destroy(s);
}

static void one_runs_and_one_is_queued(void **state) {
    (void)state;
    scheduler *s = make(1, 8);
    int c = join(s, SCHEDULER_SHARED, 0, ms);
    submit(s, c, 0, ms);
    assert_false(scheduler_submit(s, c, &requests[1], SCHEDULER_NEVER, ms));
    runs(s, 0, ms, "0");
    submit(s, c, 1, ms);
    assert_false(scheduler_submit(s, c, &requests[2], SCHEDULER_NEVER, ms));
    assert_int_equal(waits(s, 0, 2 * ms), SCHEDULER_NEVER);
    scheduler_finish(s, 0, 11 * ms);
    runs(s, 0, 11 * ms, "1");
    scheduler_destroy(s);
}

/* Two devices, two requests of one connection: the second waits for the first all the same. */
static void a_connection_is_on_one_device_at_a_time(void **state) {
    (void)state;
    scheduler *s = make(2, 1);
    int c = join(s, SCHEDULER_SHARED, 0, ms);
    submit(s, c, 0, ms);
    runs(s, 0, ms, "0");
    submit(s, c, 1, ms);
    assert_int_equal(waits(s, 1, ms), SCHEDULER_NEVER);
    scheduler_finish(s, 0, 11 * ms);
    runs(s, 1, 11 * ms, "1");
    scheduler_destroy(s);
}

static void who_leaves_takes_its_queued_request_along(void **state) {
    (void)state;
    scheduler *s = make(1, 8);
    int a = join(s, SCHEDULER_SHARED, 0, ms), b = join(s, SCHEDULER_SHARED, 0, ms);
    submit(s, a, 0, ms);
    submit(s, b, 1, ms);
    assert_ptr_equal(scheduler_leave(s, a, ms), &requests[0]);
    runs(s, 0, ms, "1");
    submit(s, b, 2, ms);
    assert_ptr_equal(scheduler_leave(s, b, 2 * ms), &requests[2]);
    assert_int_equal(scheduler_get_state(s).connections, 1);           /* its batch is running */
    for (int i = 0; i < CONNECTIONS - 1; i++) assert_int_not_equal(join(s, SCHEDULER_SHARED, 0, 3 * ms), b);
    scheduler_finish(s, 0, 11 * ms);
    assert_int_equal(join(s, SCHEDULER_SHARED, 0, 11 * ms), b);
    assert_int_equal(waits(s, 0, 11 * ms), SCHEDULER_NEVER);
    scheduler_destroy(s);
}

/* ---- batches ------------------------------------------------------------------------------------- */

/* Requests that are taken back and come again, 5 ms later, are each there once, and a robot's rhythm is that
 * of the second time alone. */
static void queued_requests_can_be_taken_back(void **state) {
    (void)state;
    scheduler_connection after[2];
    for (int taken = 0; taken < 2; taken++) {
        scheduler *s = make(1, 1);
        int robot = join(s, SCHEDULER_RESERVED, 1, ms), other = join(s, SCHEDULER_SHARED, 0, ms);
        assert_null(scheduler_withdraw(s));
        for (int64_t i = 1; i <= 12; i++) {
            int64_t now = i * 1000 * ms;
            if (taken && i == 12) {
                submit(s, robot, 0, now - 5 * ms);
                submit(s, other, 1, now - 5 * ms);
                char *first = scheduler_withdraw(s), *second = scheduler_withdraw(s);
                assert_true((first == &requests[0] && second == &requests[1]) ||
                            (first == &requests[1] && second == &requests[0]));
                assert_null(scheduler_withdraw(s));
                waits(s, 0, now - 4 * ms);
            }
            submit(s, robot, 0, now);
            submit(s, other, 1, now);
            runs(s, 0, now, "0");
            scheduler_finish(s, 0, now + 10 * ms);
            runs(s, 0, now + 10 * ms, "1");
            scheduler_finish(s, 0, now + 20 * ms);
        }
        after[taken] = scheduler_look(s, robot);
        assert_true(after[taken].interval_ns > 0);
        scheduler_destroy(s);
    }
    assert_true(after[0].interval_ns == after[1].interval_ns);
    assert_true(after[0].deviation_ns == after[1].deviation_ns);
}

static void a_shared_batch_is_no_longer_than_max_block(void **state) {
    static const struct {
        double max_block;
        const char *first;
    } cases[] = {{0, "0"},      {1, "0"},       {1.7, "0"},      {1.8, "01"},
                 {3.2, "0123"}, {4.5, "01234"}, {4.6, "012345"}, {100, "012345"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        scheduler *s = make(1, cases[i].max_block);
        for (int r = 0; r < 6; r++) submit(s, join(s, SCHEDULER_SHARED, 0, ms), r, ms + r);
        runs(s, 0, 2 * ms, cases[i].first);
        scheduler_destroy(s);
    }
}

/* Two reserved requests one by one take 10 and 20 ms, together 18: their mean answer would come later. */
static void reserved_requests_run_before_shared_and_one_by_one(void **state) {
    (void)state;
    scheduler *s = make(1, 8);
    int shared = join(s, SCHEDULER_SHARED, 0, ms), a = join(s, SCHEDULER_RESERVED, 10, ms);
    int b = join(s, SCHEDULER_RESERVED, 10, ms);
    submit(s, shared, 0, ms);
    submit(s, b, 2, 2 * ms);
    submit(s, a, 1, 3 * ms);
    runs(s, 0, 3 * ms, "2");
    scheduler_finish(s, 0, 13 * ms);
    runs(s, 0, 13 * ms, "1");
    scheduler_finish(s, 0, 23 * ms);
    runs(s, 0, 23 * ms, "0");
    scheduler_destroy(s);
}

/* On a device that takes hardly longer for two they run together. */
static void reserved_requests_run_together_where_that_is_sooner(void **state) {
    static const batch_time flat[] = {{1, 10000000}, {4, 13000000}};
    batch_times times;
    (void)state;
    assert_true(batch_times_fill(&times, flat, 2));
    scheduler_options options = {1, &times, CONNECTIONS, 1};
    scheduler *s = scheduler_create(&options);
    assert_non_null(s);
    for (int i = 0; i < 5; i++) submit(s, join(s, SCHEDULER_RESERVED, 10, ms), i, ms + i);
    runs(s, 0, 2 * ms, "0123");
    scheduler_destroy(s);
}

static void idle_devices_share_what_is_queued(void **state) {
    (void)state;
    scheduler *s = make(2, 8);
    for (int r = 0; r < 6; r++) submit(s, join(s, SCHEDULER_SHARED, 0, ms), r, ms + r);
    runs(s, 0, 2 * ms, "012");
    runs(s, 1, 2 * ms, "345");
    scheduler_destroy(s);
}

/* ---- hold ---------------------------------------------------------------------------------------- */

/* A reserved robot that asks 80 ms after each reply; returns the time of the last reply. */
static int64_t learn(scheduler *s, int robot, int calls) {
    int64_t now = ms;
    for (int i = 0; i < calls; i++, now += 80 * ms) {
        submit(s, robot, 0, now);
        runs(s, 0, now, "0");
        scheduler_finish(s, 0, now += 10 * ms);
    }
    return now - 80 * ms;
}

/* A batch of several takes at most half of the time until then. */
static void nothing_shared_starts_into_an_expected_request(void **state) {
    static const struct {
        int after;               /* the last reply, ms                                                    */
        double max_block;
        const char *run;         /* "": the device holds                                                  */
    } cases[] = {{1, 8, "12345"}, {2, 8, "1234"}, {15, 8, "1234"}, {16, 8, "123"}, {29, 8, "123"},
                 {30, 8, "12"},   {30, 1, "1"},   {43, 8, "12"},   {44, 8, "1"},   {62, 8, "1"},
                 {69, 8, "1"},    {70, 8, ""},    {79, 8, ""},     {81, 8, "1234567"}, {500, 8, "1234567"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        scheduler *s = make(1, cases[i].max_block);
        int64_t replied = learn(s, join(s, SCHEDULER_RESERVED, 20, ms), 20);
        int64_t now = replied + cases[i].after * ms;
        for (int r = 1; r < 8; r++) submit(s, join(s, SCHEDULER_SHARED, 0, now), r, now);
        if (cases[i].run[0]) runs(s, 0, now, cases[i].run);
        else {
            int64_t until = waits(s, 0, now);
            assert_true(until > replied + 80 * ms && until < replied + 81 * ms);
            runs(s, 0, until, "1234567");
            assert_int_equal(scheduler_get_state(s).held_ns, until - now);
        }
        scheduler_destroy(s);
    }
}

/* No request waits or runs, and no reserved robot needs the device before the work would end. */
static void other_work_begins_where_it_is_quiet(void **state) {
    (void)state;
    scheduler *s = make(1, 8);
    int robot = join(s, SCHEDULER_RESERVED, 20, ms), other = join(s, SCHEDULER_SHARED, 0, ms);
    int64_t replied = learn(s, robot, 20);
    assert_true(scheduler_quiet(s, 0, 60 * ms, replied + ms));
    assert_false(scheduler_quiet(s, 0, 90 * ms, replied + ms));
    assert_false(scheduler_quiet(s, 0, 1, replied + 80 * ms));
    assert_true(scheduler_quiet(s, 0, ms, replied + 200 * ms));         /* it did not come                */
    submit(s, other, 1, replied + 200 * ms);
    assert_false(scheduler_quiet(s, 0, ms, replied + 200 * ms));
    runs(s, 0, replied + 200 * ms, "1");
    assert_false(scheduler_quiet(s, 0, ms, replied + 201 * ms));
    scheduler_finish(s, 0, replied + 210 * ms);
    assert_true(scheduler_quiet(s, 0, ms, replied + 210 * ms));
    scheduler_destroy(s);
}

static void a_rhythm_that_is_not_known_holds_nothing(void **state) {
    (void)state;
    scheduler *s = make(1, 1);
    int64_t replied = learn(s, join(s, SCHEDULER_RESERVED, 20, ms), 8);
    submit(s, join(s, SCHEDULER_SHARED, 0, ms), 1, replied + 75 * ms);
    runs(s, 0, replied + 75 * ms, "1");
    scheduler_destroy(s);
}

static void nothing_is_held_for_a_robot_that_left_or_is_shared(void **state) {
    (void)state;
    for (int leaves = 0; leaves < 2; leaves++) {
        scheduler *s = make(1, 1);
        int robot = join(s, leaves ? SCHEDULER_RESERVED : SCHEDULER_SHARED, 20, ms);
        int64_t replied = learn(s, robot, 20);
        if (leaves) assert_null(scheduler_leave(s, robot, replied + ms));
        submit(s, join(s, SCHEDULER_SHARED, 0, ms), 1, replied + 75 * ms);
        runs(s, 0, replied + 75 * ms, "1");
        scheduler_destroy(s);
    }
}

/* While one device is free for the robot the other one need not hold. */
static void one_device_is_kept_free(void **state) {
    (void)state;
    scheduler *s = make(2, 1);
    int robot = join(s, SCHEDULER_RESERVED, 20, ms), a = join(s, SCHEDULER_SHARED, 0, ms);
    int b = join(s, SCHEDULER_SHARED, 0, ms);
    int64_t now = learn(s, robot, 20) + 75 * ms;
    submit(s, a, 1, now);
    submit(s, b, 2, now);
    runs(s, 0, now, "1");
    waits(s, 1, now);
    submit(s, robot, 3, now + 5 * ms);
    runs(s, 1, now + 5 * ms, "3");
    scheduler_finish(s, 0, now + 10 * ms);
    runs(s, 0, now + 10 * ms, "2");
    scheduler_destroy(s);
}

/* ---- fair shares and deadlines ------------------------------------------------------------------- */

/* Who used less is next: a, which has had three calls, waits for b and c, which come later. */
static void the_one_that_used_least_is_next(void **state) {
    (void)state;
    scheduler *s = make(1, 1);
    int a = join(s, SCHEDULER_SHARED, 0, ms), b = join(s, SCHEDULER_SHARED, 0, ms);
    int64_t now = ms;
    for (int i = 0; i < 3; i++) {
        submit(s, a, 0, now);
        runs(s, 0, now, "0");
        scheduler_finish(s, 0, now += 10 * ms);
    }
    int c = join(s, SCHEDULER_SHARED, 0, now);
    submit(s, a, 0, now);
    submit(s, b, 1, now);
    submit(s, c, 2, now);
    const char *const order[] = {"1", "2", "0"};
    for (int i = 0; i < 3; i++) {
        runs(s, 0, now, order[i]);
        scheduler_finish(s, 0, now += 10 * ms);
    }
    assert_int_equal(scheduler_look(s, a).device_ns, 40 * ms);
    assert_int_equal(scheduler_look(s, b).device_ns, 10 * ms);
    scheduler_destroy(s);
}

/* Two that ran together have used 9 ms each, so they are before the one that ran 10 ms alone. */
static void members_divide_the_time_of_a_batch(void **state) {
    (void)state;
    scheduler *s = make(1, 8);
    int alone = join(s, SCHEDULER_SHARED, 0, ms), a = join(s, SCHEDULER_SHARED, 0, ms);
    int b = join(s, SCHEDULER_SHARED, 0, ms);
    submit(s, alone, 0, ms);
    runs(s, 0, ms, "0");
    submit(s, a, 1, 2 * ms);
    submit(s, b, 2, 2 * ms);
    scheduler_finish(s, 0, 11 * ms);
    runs(s, 0, 11 * ms, "12");
    submit(s, alone, 0, 12 * ms);
    scheduler_finish(s, 0, 29 * ms);
    submit(s, a, 1, 29 * ms);
    submit(s, b, 2, 29 * ms);
    runs(s, 0, 29 * ms, "120");
    assert_int_equal(scheduler_look(s, a).device_ns, 9 * ms);
    assert_int_equal(scheduler_look(s, alone).device_ns, 10 * ms);
    scheduler_destroy(s);
}

/* Who was away for 30 calls of another one is before it once, and then they take turns. */
static void time_that_was_not_used_is_not_saved_up(void **state) {
    (void)state;
    scheduler *s = make(1, 1);
    int away = join(s, SCHEDULER_SHARED, 0, ms), busy = join(s, SCHEDULER_SHARED, 0, ms);
    int64_t now = ms;
    for (int i = 0; i < 30; i++) {
        submit(s, busy, 1, now);
        runs(s, 0, now, "1");
        scheduler_finish(s, 0, now += 10 * ms);
    }
    submit(s, busy, 1, now);
    int calls[2] = {0};
    for (int i = 0; i < 10; i++) {
        scheduler_submit(s, away, &requests[0], SCHEDULER_NEVER, now);
        scheduler_submit(s, busy, &requests[1], SCHEDULER_NEVER, now);
        scheduler_action a = scheduler_next(s, 0, now);
        assert_int_equal(a.verb, SCHEDULER_RUN);
        if (i == 0) assert_ptr_equal(a.requests[0], &requests[0]);
        calls[a.requests[0] == &requests[1]]++;
        scheduler_finish(s, 0, now += 10 * ms);
    }
    assert_in_range(calls[0], 5, 6);
    scheduler_destroy(s);
}

static void late_requests_are_answered_not_computed(void **state) {
    (void)state;
    scheduler *s = make(1, 1);
    int a = join(s, SCHEDULER_SHARED, 0, ms), b = join(s, SCHEDULER_RESERVED, 10, ms);
    assert_true(scheduler_submit(s, a, &requests[0], 30 * ms, ms));
    runs(s, 0, 20 * ms, "0");                          /* answered at 30: in time */
    assert_true(scheduler_submit(s, b, &requests[1], 32 * ms, 21 * ms));
    assert_true(scheduler_submit(s, a, &requests[2], 25 * ms, 21 * ms));
    assert_int_equal(waits(s, 0, 21 * ms), 22 * ms + 1);
    scheduler_action late = scheduler_next(s, 0, 22 * ms + 1);          /* while the device runs */
    assert_int_equal(late.verb, SCHEDULER_LATE);
    assert_int_equal(late.count, 1);
    assert_ptr_equal(late.requests[0], &requests[1]);
    assert_int_equal(waits(s, 0, 29 * ms), SCHEDULER_NEVER);            /* a's answers stay in order */
    scheduler_finish(s, 0, 30 * ms);
    late = scheduler_next(s, 0, 30 * ms);
    assert_int_equal(late.verb, SCHEDULER_LATE);
    assert_ptr_equal(late.requests[0], &requests[2]);
    assert_int_equal(waits(s, 0, 30 * ms), SCHEDULER_NEVER);
    submit(s, b, 3, 31 * ms);
    runs(s, 0, 31 * ms, "3");
    scheduler_destroy(s);
}

/* A batch is only as large as its members' deadlines bear. */
static void a_deadline_keeps_the_batch_small(void **state) {
    (void)state;
    scheduler *s = make(1, 8);
    int64_t deadlines[] = {SCHEDULER_NEVER, 27 * ms, SCHEDULER_NEVER, SCHEDULER_NEVER};
    for (int i = 0; i < 4; i++)
        assert_true(scheduler_submit(s, join(s, SCHEDULER_SHARED, 0, ms), &requests[i], deadlines[i], ms));
    runs(s, 0, 2 * ms, "012");
    scheduler_destroy(s);
}

/* ---- clocks -------------------------------------------------------------------------------------- */

static void a_clock_that_is_set_back_stops_nothing(void **state) {
    (void)state;
    scheduler *s = make(1, 1);
    int64_t hour = 3600000 * ms, now = 2 * hour;
    int a = join(s, SCHEDULER_SHARED, 0, now);
    submit(s, a, 0, now);
    runs(s, 0, now, "0");
    now -= hour;
    scheduler_finish(s, 0, now);
    assert_true(scheduler_submit(s, a, &requests[1], now + 20 * ms, now));
    runs(s, 0, now, "1");
    assert_true(scheduler_submit(s, a, &requests[2], now + 15 * ms, now));
    scheduler_finish(s, 0, now + 6 * ms);
    scheduler_action late = scheduler_next(s, 0, now + 6 * ms);
    assert_int_equal(late.verb, SCHEDULER_LATE);
    assert_true(scheduler_submit(s, a, &requests[3], now + 50 * ms, now + 6 * ms));
    runs(s, 0, now + 6 * ms, "3");
    assert_int_equal(scheduler_look(s, a).device_ns, 6 * ms);
    scheduler_destroy(s);
}

/* A batch that hung for a minute is not charged to its member as a minute of device time. */
static void a_clock_that_jumps_ahead_makes_nobody_a_debtor(void **state) {
    (void)state;
    scheduler *s = make(1, 1);
    int a = join(s, SCHEDULER_SHARED, 0, ms), b = join(s, SCHEDULER_SHARED, 0, ms);
    int64_t now = ms;
    submit(s, a, 0, now);
    runs(s, 0, now, "0");
    scheduler_finish(s, 0, now += 60000 * ms);
    int calls = 0;
    submit(s, a, 0, now);
    for (; calls < 10; calls++) {
        submit(s, b, 1, now);
        if (scheduler_next(s, 0, now).requests[0] == &requests[0]) break;
        scheduler_finish(s, 0, now += 10 * ms);
    }
    assert_in_range(calls, 1, 3);
    scheduler_destroy(s);
}

/* ---- requests of several samples ------------------------------------------------------------------- */

static void submit_many(scheduler *s, int connection, int request, int samples, int whole, int64_t now) {
    assert_true(scheduler_submit_many(s, connection, &requests[request], samples, whole, SCHEDULER_NEVER,
                                      now));
}

/* The device runs these requests, and these numbers of their samples. */
static void runs_samples(scheduler *s, int64_t now, const char *expected, const int *samples) {
    scheduler_action a = scheduler_next(s, 0, now);
    assert_int_equal(a.verb, SCHEDULER_RUN);
    assert_int_equal(a.count, strlen(expected));
    for (int i = 0; i < a.count; i++) {
        assert_ptr_equal(a.requests[i], &requests[expected[i] - '0']);
        assert_int_equal(a.samples[i], samples[i]);
    }
}

/* Ten samples of one connection: batches of eight and of what is left, beside who has used less. */
static void samples_fill_batches(void **state) {
    scheduler *s = make(1, 8);
    int many = join(s, SCHEDULER_SHARED, 0, ms), one = join(s, SCHEDULER_SHARED, 0, ms);
    (void)state;
    submit_many(s, many, 1, 10, 0, ms);
    runs_samples(s, ms, "1", (const int[]){8});
    submit(s, one, 2, 2 * ms);
    scheduler_finish(s, 0, 61 * ms);
    runs_samples(s, 61 * ms, "21", (const int[]){1, 2});
    scheduler_finish(s, 0, 86 * ms);
    assert_int_equal(scheduler_next(s, 0, 86 * ms).verb, SCHEDULER_WAIT);
    scheduler_connection a = scheduler_look(s, many), b = scheduler_look(s, one);
    assert_true(a.device_ns == 60 * ms + 25 * ms * 2 / 3 && b.device_ns == 25 * ms / 3);
    scheduler_destroy(s);
}

/* Each sample is a turn: beside three requests one after the other, eight samples get half of the time. */
static void samples_are_turns(void **state) {
    scheduler *s = make(1, 1);
    int many = join(s, SCHEDULER_SHARED, 0, ms), one = join(s, SCHEDULER_SHARED, 0, ms), of_many = 0;
    int64_t now = ms;
    (void)state;
    submit_many(s, many, 1, 8, 0, now);
    submit(s, one, 2, now);
    for (int call = 0; call < 8; call++) {
        scheduler_action a = scheduler_next(s, 0, now);
        assert_true(a.verb == SCHEDULER_RUN && a.count == 1 && a.samples[0] == 1);
        int again = a.requests[0] == &requests[2];
        of_many += !again;
        now += 10 * ms;
        scheduler_finish(s, 0, now);
        if (again) submit(s, one, 2, now);
    }
    assert_int_equal(of_many, 4);
    scheduler_destroy(s);
}

/* A whole request runs alone, and is paid for by the time that it takes. */
static void a_whole_request_is_a_call(void **state) {
    scheduler *s = make(1, 8);
    int whole = join(s, SCHEDULER_SHARED, 0, ms), one = join(s, SCHEDULER_SHARED, 0, ms);
    (void)state;
    submit_many(s, whole, 1, 20, 1, ms);
    submit(s, one, 2, ms);
    runs_samples(s, ms, "1", (const int[]){20});
    scheduler_finish(s, 0, 31 * ms);
    assert_true(scheduler_look(s, whole).device_ns == 30 * ms);
    submit_many(s, whole, 3, 8, 1, 31 * ms);
    runs_samples(s, 31 * ms, "2", (const int[]){1});
    scheduler_finish(s, 0, 41 * ms);
    runs_samples(s, 41 * ms, "3", (const int[]){8});
    scheduler_destroy(s);
}

/* Who leaves while samples of its request run gets nothing back, and the rest is forgotten. */
static void a_begun_request_leaves(void **state) {
    scheduler *s = make(1, 1);
    int c = join(s, SCHEDULER_SHARED, 0, ms);
    (void)state;
    submit_many(s, c, 1, 3, 0, ms);
    runs_samples(s, ms, "1", (const int[]){1});
    assert_null(scheduler_leave(s, c, 2 * ms));
    scheduler_finish(s, 0, 11 * ms);
    assert_int_equal(scheduler_next(s, 0, 11 * ms).verb, SCHEDULER_WAIT);
    c = join(s, SCHEDULER_SHARED, 0, 12 * ms);
    submit_many(s, c, 2, 2, 0, 12 * ms);
    runs_samples(s, 12 * ms, "2", (const int[]){1});
    scheduler_finish(s, 0, 22 * ms);
    assert_ptr_equal(scheduler_leave(s, c, 22 * ms), &requests[2]);
    scheduler_destroy(s);
}

/* A batch whose prefix was there says nothing of the device's speed. */
static void shorter_batches_are_not_timed(void **state) {
    scheduler *s = make(1, 1);
    int c = join(s, SCHEDULER_SHARED, 0, ms);
    (void)state;
    double before = scheduler_get_state(s).reservable;
    submit(s, c, 1, ms);
    runs(s, 0, ms, "1");
    scheduler_shorter(s, 0);
    scheduler_finish(s, 0, 2 * ms);
    assert_true(scheduler_get_state(s).reservable == before);
    submit(s, c, 1, 3 * ms);
    runs(s, 0, 3 * ms, "1");
    scheduler_finish(s, 0, 4 * ms);
    assert_true(scheduler_get_state(s).reservable > before);
    scheduler_destroy(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(samples_fill_batches), cmocka_unit_test(samples_are_turns),
        cmocka_unit_test(a_whole_request_is_a_call), cmocka_unit_test(a_begun_request_leaves),
        cmocka_unit_test(shorter_batches_are_not_timed),
        cmocka_unit_test(batch_times_are_interpolated),
        cmocka_unit_test(batches_that_gain_nothing_are_not_made),
        cmocka_unit_test(bad_batch_times_are_refused),
        cmocka_unit_test(a_rhythm_is_known_after_eight_intervals),
        cmocka_unit_test(a_wide_deviation_is_no_rhythm),
        cmocka_unit_test(odd_intervals_do_not_last_and_new_paces_are_learnt),
        cmocka_unit_test(the_steadier_interval_counts),
        cmocka_unit_test(a_pace_allows_its_rate_and_a_tenth),
        cmocka_unit_test(reserved_rates_are_limited),
        cmocka_unit_test(connections_of_a_token_reserve_its_rate_once),
        cmocka_unit_test(connections_of_a_token_have_its_rate_together),
        cmocka_unit_test(connections_are_bounded),
        cmocka_unit_test(one_runs_and_one_is_queued),
        cmocka_unit_test(a_connection_is_on_one_device_at_a_time),
        cmocka_unit_test(who_leaves_takes_its_queued_request_along),
        cmocka_unit_test(queued_requests_can_be_taken_back),
        cmocka_unit_test(a_shared_batch_is_no_longer_than_max_block),
        cmocka_unit_test(reserved_requests_run_before_shared_and_one_by_one),
        cmocka_unit_test(reserved_requests_run_together_where_that_is_sooner),
        cmocka_unit_test(idle_devices_share_what_is_queued),
        cmocka_unit_test(nothing_shared_starts_into_an_expected_request),
        cmocka_unit_test(other_work_begins_where_it_is_quiet),
        cmocka_unit_test(a_rhythm_that_is_not_known_holds_nothing),
        cmocka_unit_test(nothing_is_held_for_a_robot_that_left_or_is_shared),
        cmocka_unit_test(one_device_is_kept_free),
        cmocka_unit_test(the_one_that_used_least_is_next),
        cmocka_unit_test(members_divide_the_time_of_a_batch),
        cmocka_unit_test(time_that_was_not_used_is_not_saved_up),
        cmocka_unit_test(late_requests_are_answered_not_computed),
        cmocka_unit_test(a_deadline_keeps_the_batch_small),
        cmocka_unit_test(a_clock_that_is_set_back_stops_nothing),
        cmocka_unit_test(a_clock_that_jumps_ahead_makes_nobody_a_debtor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
