/* See schedule.h.
 *
 * Note: holding still is given within the limits too, so a robot with a limit of its change slows down as
 * fast as that allows. It is always clamped: an action that is refused in favour of another one cannot be
 * refused itself. */
#include "runner/schedule.h"

#include <math.h>
#include <string.h>

static void copy_action(const schedule *s, double *to, const double *from) {
    memcpy(to, from, (size_t)s->options.dims * sizeof *to);
}

void schedule_begin(schedule *s, const schedule_options *options) {
    memset(s, 0, sizeof *s);
    s->options = *options;
    s->flushed = -INFINITY;
    s->blended = options->blend_steps;
}

/* ---- chunks --------------------------------------------------------------------------------------- */

/* The row that is the step `step`; NULL: the chunk has none. */
static const double *row_of(const schedule *s, const schedule_chunk *chunk, uint64_t step) {
    if (step < chunk->base || step - chunk->base >= (uint64_t)chunk->rows) return NULL;
    return chunk->actions + (step - chunk->base) * (uint64_t)s->options.dims;
}

static int rows_left(const schedule_chunk *chunk, uint64_t step) {
    uint64_t end = chunk->base + (uint64_t)chunk->rows;
    return chunk->rows && end > step ? (int)(end - step) : 0;
}

/* What is left of `offset` at this step. */
static double faded(const schedule *s, int dim) {
    double parts = s->options.blend_steps + 1;
    return s->blended < s->options.blend_steps ? s->offset[dim] * (1 - (s->blended + 1) / parts) : 0;
}

/* Step `step` as it would be given without another chunk. 0: nothing is left. */
static int planned(const schedule *s, uint64_t step, double *out) {
    const double *row = row_of(s, &s->current, step);
    if (!row) return 0;
    for (int d = 0; d < s->options.dims; d++) out[d] = row[d] + faded(s, d);
    return 1;
}

static void take_over(schedule *s, const schedule_chunk *chunk) {
    double before[OPENPI_ACTION_DIM];
    uint64_t step = timeline_executed(&s->timeline);
    int blends = s->options.seam == OPENPI_SEAM_BLEND && planned(s, step, before);
    const double *row = row_of(s, chunk, step);
    s->delay = (int)(step - chunk->base);
    s->blended = blends ? 0 : s->options.blend_steps;
    for (int d = 0; blends && d < s->options.dims; d++) s->offset[d] = before[d] - row[d];
    s->current = *chunk;
}

int schedule_offer(schedule *s, const schedule_chunk *chunk, double now) {
    uint64_t step = timeline_executed(&s->timeline);
    int ordered = chunk->number > s->newest && chunk->base >= s->newest_base,
        timely = now - chunk->taken <= s->options.deadline && chunk->taken >= s->flushed;
    if (!ordered || !timely || s->stopped || !row_of(s, chunk, step)) {
        s->late++;
        return 0;
    }
    s->newest = chunk->number;
    s->newest_base = chunk->base;
    if (s->options.seam == OPENPI_SEAM_APPEND && rows_left(&s->current, step)) s->pending = *chunk;
    else take_over(s, chunk);
    return 1;
}

/* Nothing of these chunks is executed any more, nor of one whose observation was taken before `since`. */
static void flush(schedule *s, double since) {
    s->current.rows = s->pending.rows = 0;
    s->flushed = fmax(s->flushed, since);
}

/* ---- holding still -------------------------------------------------------------------------------- */

/* How much of the last motion is left at this call; 0: none. */
static double slowing(const schedule *s) {
    double calls = (double)s->options.decelerate_steps * s->options.calls_per_step;
    if (s->options.ending != OPENPI_ENDING_DECELERATE || !s->moved || s->stopped) return 0;
    return fmax(0, 1 - s->held / (calls + 1));
}

static void still(const schedule *s, double *out) {
    double left = slowing(s);
    for (int d = 0; d < s->options.dims; d++) {
        if (s->options.velocity[d]) out[d] = s->given ? left * s->target[d] : 0;
        else out[d] = s->given ? s->last[d] + left * s->motion[d] / s->options.calls_per_step : NAN;
    }
}

static openpi_move hold(schedule *s, openpi_reason reason, double *action, openpi_runner_state *state) {
    limits_report report;
    limits clamped = s->options.limits;
    clamped.on_violation = LIMITS_CLAMP;
    /* Once a motion: a robot that goes on after a stop is held at first, too. */
    if (s->options.ending == OPENPI_ENDING_STOP && s->given && !s->held && !s->stopped) s->stopped = reason;
    s->held++;
    s->part = 0;
    still(s, action);
    if (s->given && !limits_apply(&clamped, s->last, NULL, action, 1, &report))
        copy_action(s, action, s->last);
    if (s->given) copy_action(s, s->last, action);
    s->holds++;
    state->fresh = 0;
    state->reason = s->stopped ? s->stopped : reason;
    return s->stopped ? OPENPI_MOVE_STOP : OPENPI_MOVE_HOLD;
}

/* ---- moving --------------------------------------------------------------------------------------- */

/* The call between two steps, or the one that ends at the step's own row. */
static void give(schedule *s, double *action) {
    double share = (s->part + 1.0) / s->options.calls_per_step;
    int parts = s->options.interpolate && s->part + 1 < s->options.calls_per_step;
    for (int d = 0; d < s->options.dims; d++)
        action[d] = parts && !s->options.velocity[d] ? s->from[d] + share * (s->target[d] - s->from[d])
                                                     : s->target[d];
    copy_action(s, s->last, action);
    s->given = 1;
    s->held = 0;
    s->part = (s->part + 1) % s->options.calls_per_step;
}

/* The step's row within the limits. 0: it may not be given, and the robot is held or stopped. */
static int within(schedule *s, uint64_t step, double *row, openpi_runner_state *state) {
    limits_report report;
    /* The measured state is where the robot is as long as it was not moved since. */
    const double *start = step == s->current.base ? s->current.start : NULL;
    int sent = limits_apply(&s->options.limits, s->given ? s->last : NULL, start, row, 1, &report);
    if (!sent && report.stop == LIMITS_REFUSED) s->stopped = OPENPI_REASON_LIMIT;
    if (!sent || report.held) return 0;
    state->limited = report.changed;
    s->limited += (uint64_t)report.changed;
    return 1;
}

static void begin_step(schedule *s, const double *row, double now) {
    for (int d = 0; d < s->options.dims; d++) {
        s->from[d] = s->given ? s->last[d] : row[d];
        s->motion[d] = row[d] - s->from[d];
        s->target[d] = row[d];
    }
    s->moved = s->given && !s->held;
    if (s->blended < s->options.blend_steps) s->blended++;
    timeline_add(&s->timeline, now);
}

static openpi_move move(schedule *s, const schedule_news *news, double now, double *action,
                        openpi_runner_state *state) {
    uint64_t step = timeline_executed(&s->timeline);
    double row[OPENPI_ACTION_DIM] = {0};
    if (!s->part) {
        if (!rows_left(&s->current, step) && row_of(s, &s->pending, step)) take_over(s, &s->pending);
        if (!rows_left(&s->pending, step) || s->pending.number == s->current.number) s->pending.rows = 0;
        if (!planned(s, step, row)) {
            openpi_reason none = s->given ? OPENPI_REASON_NO_ACTIONS : OPENPI_REASON_STARTING;
            return hold(s, news->source ? news->source : none, action, state);
        }
        if (!within(s, step, row, state)) {
            flush(s, now);
            return hold(s, OPENPI_REASON_LIMIT, action, state);
        }
        begin_step(s, row, now);
        state->fresh = 1;
    }
    give(s, action);
    return OPENPI_MOVE_ACTION;
}

/* ---- a tick --------------------------------------------------------------------------------------- */

/* Why the robot may not move, whatever chunks there are. */
static openpi_reason forbidden(const schedule *s, const schedule_news *news, double now) {
    if (s->stopped) return s->stopped;
    if (now - news->newest > s->options.max_age)
        return s->given || news->newest > -INFINITY ? OPENPI_REASON_OLD_OBSERVATION
                                                    : OPENPI_REASON_STARTING;
    return news->camera;
}

static void tell(const schedule *s, const schedule_news *news, double now, openpi_runner_state *state) {
    uint64_t step = timeline_executed(&s->timeline), end = s->current.base + (uint64_t)s->current.rows;
    uint64_t from = rows_left(&s->current, step) ? end : step;
    state->step = step;
    state->chunk = s->current.number;
    state->row = step > s->current.base ? (int)(step - 1 - s->current.base) : 0;
    state->delay = s->delay;
    state->left = rows_left(&s->current, step) + rows_left(&s->pending, from);
    state->known = s->given;
    state->age_ms = now - news->newest;
}

openpi_move schedule_next(schedule *s, const schedule_news *news, double now, double *action,
                          openpi_runner_state *state) {
    *state = (openpi_runner_state)OPENPI_RUNNER_STATE_INIT;
    s->ticks++;
    if (news->resume && s->stopped) {
        s->stopped = OPENPI_REASON_NONE;
        flush(s, now);
    }
    if (news->stop) s->stopped = OPENPI_REASON_ASKED;
    openpi_reason reason = forbidden(s, news, now);
    /* Chunks of observations that come meanwhile count: by them the robot moves again. */
    if (reason) flush(s, s->forbidden ? s->flushed : now);
    s->forbidden = reason != OPENPI_REASON_NONE;
    state->move = reason ? hold(s, reason, action, state) : move(s, news, now, action, state);
    tell(s, news, now, state);
    return state->move;
}
