/* A robot, its cameras and a computer of chunks in virtual time, around a schedule, and a book of what has to
 * come out. After cmocka.h.
 *
 * Number 0 of an action is a position: the step that the row is for. Number 1 is a velocity: which chunk and
 * row it came from. Number 2 is a position that jumps, for limits. */
#ifndef TESTS_SCHEDULE_WORLD_H
#define TESTS_SCHEDULE_WORLD_H

#include <math.h>
#include <string.h>

#include "base/hash.h"
#include "runner/schedule.h"

enum { WORLD_DIMS = 3, WORLD_CALLS = 3, WORLD_NUMBERS = 1 << 10, WORLD_TIMES = 1 << 12 };

typedef struct world_call {
    int runs;
    double ends;
    schedule_chunk chunk;
} world_call;

typedef struct world {
    schedule schedule;
    schedule_options options;
    uint64_t seed, ticks;
    double now, period;
    /* How it goes: odds in 1,000 a tick. */
    int lost_observation, lost_chunk, late_observation, freeze, stop;
    double latency;              /* the longest of a call, ms                                             */
    int calls;                   /* that run at once at most; more than one: they overtake each other     */
    int rows;
    /* The book. */
    schedule_news news;
    world_call call[WORLD_CALLS];
    uint64_t number, newest, newest_base;
    uint64_t base[WORLD_NUMBERS];                      /* chunk n at n % WORLD_NUMBERS                 */
    double times[WORLD_TIMES];                         /* step s at s % WORLD_TIMES                    */
    uint64_t executed, held, moved, accepted;
    uint64_t plan_end, next_end; /* first step that no chunk at hand has; APPEND: that of the next chunk  */
    double flushed;
    int was_forbidden, stopped, known;
    double last[WORLD_DIMS];
    int still;                   /* calls since it moved                                                  */
} world;

static uint64_t world_draw(world *w, uint64_t below) {
    w->seed += HASH_STEP;
    return hash_mix(w->seed) % below;
}

static int world_chance(world *w, int of_1000) { return (int)world_draw(w, 1000) < of_1000; }

/* ---- what comes in -------------------------------------------------------------------------------- */

static uint64_t world_steps_before(const world *w, double taken) {
    uint64_t step = w->executed;
    while (step && w->executed - step < WORLD_TIMES && w->times[(step - 1) % WORLD_TIMES] >= taken) step--;
    return step;
}

static void world_ask(world *w, double taken) {
    world_call *call = w->call;
    int c = 0;
    while (c < w->calls && call[c].runs) c++;
    if (c == w->calls) return;
    schedule_chunk *chunk = &call[c].chunk;
    *chunk = (schedule_chunk){.number = ++w->number, .taken = taken, .rows = w->rows};
    chunk->base = timeline_before(&w->schedule.timeline, taken);
    uint64_t expected = world_steps_before(w, taken);
    if (w->executed - expected < TIMELINE_STEPS / 2) assert_int_equal(chunk->base, expected);
    w->base[chunk->number % WORLD_NUMBERS] = chunk->base;
    for (int r = 0; r < chunk->rows; r++) {
        double *action = chunk->actions + r * WORLD_DIMS;
        action[0] = (double)(chunk->base + (uint64_t)r);
        action[1] = (double)(chunk->number * 64 + (uint64_t)r + 1);
        action[2] = (double)world_draw(w, 2000) / 100 - 10;
    }
    call[c].runs = 1;
    call[c].ends = w->now + (double)world_draw(w, 1000) / 1000 * w->latency;
}

static void world_observe(world *w) {
    if (world_chance(w, w->lost_observation)) return;
    double taken = w->now - (world_chance(w, w->late_observation) ? (double)world_draw(w, 80) : 0);
    if (taken > w->news.newest) w->news.newest = taken;
    if (!w->news.camera) world_ask(w, taken);
}

static int world_usable(const world *w, const schedule_chunk *chunk) {
    return chunk->number > w->newest && chunk->base >= w->newest_base && !w->stopped &&
           w->executed - chunk->base < (uint64_t)chunk->rows &&
           w->now - chunk->taken <= w->options.deadline && chunk->taken >= w->flushed;
}

static void world_take(world *w, const schedule_chunk *chunk) {
    int usable = world_usable(w, chunk);
    assert_int_equal(schedule_offer(&w->schedule, chunk, w->now), usable);
    if (!usable) return;
    uint64_t end = chunk->base + (uint64_t)chunk->rows;
    w->newest = chunk->number;
    w->newest_base = chunk->base;
    w->accepted++;
    if (w->options.seam == OPENPI_SEAM_APPEND && w->plan_end > w->executed) w->next_end = end;
    else w->plan_end = w->next_end = end;
}

static void world_deliver(world *w) {
    for (int c = w->calls - 1; c >= 0; c--) {          /* the later one first, where both are there         */
        if (!w->call[c].runs || w->call[c].ends > w->now) continue;
        w->call[c].runs = 0;
        if (!world_chance(w, w->lost_chunk)) world_take(w, &w->call[c].chunk);
    }
}

/* ---- what comes out ------------------------------------------------------------------------------- */

/* `before`: `last` was given. */
static void world_check_limits(const world *w, int before, const double *action) {
    const limits *l = &w->options.limits;
    if (!l->count || !w->known) return;
    for (int d = 0; d < WORLD_DIMS; d++) {
        assert_true(action[d] >= l->min[d] && action[d] <= l->max[d]);
        if (before) assert_true(fabs(action[d] - w->last[d]) <= l->max_step[d]);
    }
}

/* A row of the timeline: the next one, of a chunk that has it. */
static void world_check_step(world *w, const double *action, const openpi_runner_state *state) {
    uint64_t base = w->base[state->chunk % WORLD_NUMBERS];
    int whole = w->options.calls_per_step == 1 || !w->options.interpolate,
        blends = w->options.blend_steps > 0;
    assert_int_equal(state->step, w->executed + 1);
    assert_int_equal(state->row, w->executed - base);
    assert_true(state->chunk <= w->newest);
    if (whole && !w->options.limits.count) assert_true(fabs(action[0] - (double)w->executed) < 1e-6);
    if (!blends) assert_true(action[1] == (double)(state->chunk * 64 + (uint64_t)state->row + 1));
    assert_true(w->executed < w->plan_end || w->executed < w->next_end);
    w->times[w->executed++ % WORLD_TIMES] = w->now;
    if (w->executed >= w->plan_end) w->plan_end = w->next_end;
    assert_int_equal(state->left, w->plan_end > w->executed ? w->plan_end - w->executed +
                     (w->options.seam == OPENPI_SEAM_APPEND ? w->next_end - w->plan_end : 0) : 0);
    w->moved++;
}

static void world_check_still(world *w, const double *action, const openpi_runner_state *state) {
    int slows = w->options.ending == OPENPI_ENDING_DECELERATE &&
                w->still <= w->options.decelerate_steps * w->options.calls_per_step;
    w->held++;
    assert_true(state->reason != OPENPI_REASON_NONE && !state->fresh);
    assert_int_equal(state->step, w->executed);
    assert_int_equal(state->known, w->known);
    if (!w->known) {
        assert_true(isnan(action[0]) && isnan(action[2]));
    } else if (!slows) {
        assert_true(action[0] == w->last[0] && action[2] == w->last[2]);
    }
    if (!slows) assert_true(action[1] == 0);
}

/* Must the robot be held although there are actions? */
static int world_forbidden(const world *w) {
    return w->stopped || w->now - w->news.newest > w->options.max_age || w->news.camera;
}

static void world_tick(world *w) {
    double action[WORLD_DIMS];
    openpi_runner_state state;
    int begins = w->schedule.part == 0, was_still = w->still > 0, before = w->known;
    if (w->news.resume && w->stopped) {
        w->stopped = 0;
        w->plan_end = w->next_end = w->executed;
        w->flushed = w->now;
    }
    if (w->news.stop) w->stopped = 1;
    int forbidden = world_forbidden(w), has = w->plan_end > w->executed || w->next_end > w->executed;
    if (forbidden) {
        if (!w->was_forbidden) w->flushed = fmax(w->flushed, w->now);
        w->plan_end = w->next_end = w->executed;
    }
    w->was_forbidden = forbidden;
    openpi_move move = schedule_next(&w->schedule, &w->news, w->now, action, &state);
    if (move == OPENPI_MOVE_ACTION) {
        assert_false(forbidden);
        assert_int_equal(state.fresh, begins);
        if (state.fresh) world_check_step(w, action, &state);
        else assert_int_equal(state.step, w->executed);
        w->known = 1;
        w->still = 0;
    } else {
        /* Held with an action at hand: only where it is forbidden, as there are no limits that refuse. */
        assert_true(forbidden || !has);
        w->still++;
        world_check_still(w, action, &state);
        if (w->options.ending == OPENPI_ENDING_STOP && w->known && !was_still) w->stopped = 1;
        assert_int_equal(move, w->stopped ? OPENPI_MOVE_STOP : OPENPI_MOVE_HOLD);
    }
    world_check_limits(w, before, action);
    memcpy(w->last, action, sizeof w->last);
    assert_int_equal(w->schedule.ticks, ++w->ticks);
}

/* ---- its course ----------------------------------------------------------------------------------- */

static void world_begin(world *w, uint64_t seed) {
    memset(w, 0, sizeof *w);
    w->seed = seed;
    w->period = 20;
    w->news.newest = w->flushed = -INFINITY;
    w->options = (schedule_options){.dims = WORLD_DIMS, .velocity = {0, 1, 0}, .calls_per_step = 1,
                                    .max_age = 200, .deadline = 1000, .decelerate_steps = 1};
    limits_clear(&w->options.limits, WORLD_DIMS);
    w->calls = 1;
    w->rows = 50;
    w->latency = 100;
}

static void world_limit(world *w) {
    limits *l = &w->options.limits;
    l->count = 3;
    l->min[2] = -4, l->max[2] = 5, l->max_step[2] = 0.75;
}

/* Everything that may be chosen, at random. */
static void world_random(world *w, uint64_t seed) {
    world_begin(w, seed);
    w->options.seam = (openpi_seam)world_draw(w, 3);
    w->options.blend_steps = w->options.seam == OPENPI_SEAM_BLEND ? 1 + (int)world_draw(w, 6) : 0;
    w->options.ending = (openpi_ending)world_draw(w, 3);
    w->options.decelerate_steps = 1 + (int)world_draw(w, 5);
    w->options.calls_per_step = 1 + (world_chance(w, 300) ? (int)world_draw(w, 4) : 0);
    w->options.interpolate = world_chance(w, 500);
    w->options.max_age = world_chance(w, 200) ? INFINITY : 30 + (double)world_draw(w, 300);
    w->options.deadline = world_chance(w, 200) ? INFINITY : 20 + (double)world_draw(w, 1000);
    if (world_chance(w, 500)) world_limit(w);
    w->rows = 1 + (int)world_draw(w, 24);
    w->calls = 1 + (int)world_draw(w, WORLD_CALLS);
    w->latency = world_chance(w, 100) ? 0 : (double)world_draw(w, 600);
    w->lost_observation = world_chance(w, 500) ? (int)world_draw(w, 600) : 0;
    w->late_observation = world_chance(w, 500) ? (int)world_draw(w, 500) : 0;
    w->lost_chunk = world_chance(w, 500) ? (int)world_draw(w, 500) : 0;
    w->freeze = world_chance(w, 200) ? 20 : 0;
    w->stop = world_chance(w, 200) ? 10 : 0;
}

static void world_run(world *w, uint64_t ticks) {
    schedule_begin(&w->schedule, &w->options);
    for (uint64_t i = 0; i < ticks; i++) {
        w->now += w->period * (world_chance(w, 10) ? 1 + (double)world_draw(w, 300) / 100 : 1);
        if (world_chance(w, w->freeze)) w->news.camera = w->news.camera ? 0 : OPENPI_REASON_FROZEN_CAMERA;
        w->news.stop = world_chance(w, w->stop);
        w->news.resume = !w->news.stop && w->stopped && world_chance(w, 200);
        world_deliver(w);
        world_observe(w);
        world_tick(w);
    }
    assert_int_equal(w->ticks, ticks);
    assert_int_equal(w->held, w->schedule.holds);
}

#endif
