/* See runner.h: a runner's life, what comes in, and the control thread's call. */
#include "runner/runner.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/ascii.h"
#include "base/boundary.h"
#include "base/report.h"
#include "base/threads.h"
#include "policy/wire/unpack.h"
#include "runner/engine_source.h"

const char *openpi_reason_text(openpi_reason reason) {
    switch (reason) {
#define X(name, value, text) case name: return text;
        OPENPI_REASON_LIST(X)
#undef X
    }
    return "unknown reason";
}

/* ---- life ------------------------------------------------------------------------------------------- */

static void free_runner(openpi_runner *r) {
    for (int i = 0; i < EXCHANGE_PLACES; i++) sight_free(&r->sight[i]);
    fields_free(&r->fields);
    free(r->own_keys);
    sem_destroy(&r->wake);
    pthread_mutex_destroy(&r->observing);
    pthread_mutex_destroy(&r->telling);
    free(r);
}

static openpi_runner *new_runner(void) {
    openpi_runner *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    exchange_begin(&r->chunks);
    exchange_begin(&r->sights);
    sem_init(&r->wake, 0, 0);
    pthread_mutex_init(&r->observing, NULL);
    pthread_mutex_init(&r->telling, NULL);
    atomic_init(&r->newest, -INFINITY);
    atomic_init(&r->now, -INFINITY);
    r->told = (openpi_runner_info)OPENPI_RUNNER_INFO_INIT;
    return r;
}

static openpi_status start(openpi_runner *r, openpi_error *error) {
    schedule_options options;
    TRY(arm_schedule(&r->arm, &r->options, &options, error));
    if (r->source.wants_fields && !r->arm.has_record)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "the source wants fields, but nothing says the robot's request keys: expected the "
                      "runner's "
                      "option robot");
    schedule_begin(&r->schedule, &options);
    r->told.action_dim = r->arm.dims;
    r->told.calls_per_step = options.calls_per_step;
    r->told.rate_hz = r->options.rate_hz;
    r->told.limits = r->arm.limits.count;
    int code = thread_start(&r->thread, runner_main, r);
    if (!code) return OPENPI_OK;
    return report(error, OPENPI_SYSTEM, "the runner's thread cannot start: %s", ascii_errno(code));
}

/* `r->arm` and `r->source` are known. On failure everything is freed but the source. */
static openpi_status finish_opening(openpi_runner *r, openpi_runner **out, openpi_error *error) {
    openpi_status status = start(r, error);
    if (status == OPENPI_OK) *out = r;
    else free_runner(r);
    return status;
}

static openpi_status begin_opening(const openpi_runner_options *options, openpi_runner **r,
                                   openpi_error *error) {
    openpi_runner_options own;
    TRY(BOUNDARY_TAKE(openpi_runner_options, options, &own, error));
    *r = new_runner();
    if (!*r) return report_no_memory(error, sizeof **r, "a runner");
    (*r)->options = own;
    return OPENPI_OK;
}

static openpi_status open_over_engine(openpi_runner *r, openpi_engine *engine, const openpi_policy *policy,
                                      const openpi_session_options *session, openpi_error *error) {
    arm_of_policy(policy, &r->arm);
    r->keys = policy;
    if (r->options.robot)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "the runner's option robot is \"%.64s\", expected NULL: over an engine the robot is "
                      "the "
                      "policy's",
                      r->options.robot);
    return engine_source(engine, policy, session, r->options.rtc, &r->source, error);
}

openpi_status openpi_runner_open(openpi_engine *engine, const openpi_policy *policy,
                                 const openpi_session_options *session, const openpi_runner_options *options,
                                 openpi_runner **runner, openpi_error *error) {
    openpi_runner *r;
    if (!engine || !policy || !runner)
        return report(error, OPENPI_BAD_ARGUMENT, "runner open: %s is NULL",
                      !engine ? "the engine" : !policy ? "the policy" : "runner");
    TRY(begin_opening(options, &r, error));
    openpi_status status = open_over_engine(r, engine, policy, session, error);
    if (status != OPENPI_OK) {
        free_runner(r);
        return status;
    }
    openpi_source source = r->source;
    status = finish_opening(r, runner, error);
    if (status != OPENPI_OK) source.close(source.user);
    return status;
}

static openpi_status take_keys(openpi_runner *r, openpi_error *error) {
    r->own_keys = calloc(1, sizeof *r->own_keys);
    if (!r->own_keys) return report_no_memory(error, sizeof *r->own_keys, "a runner's robot");
    r->own_keys->robot = r->arm.record;
    r->keys = r->own_keys;
    return OPENPI_OK;
}

static openpi_status open_over_source(const openpi_source *source, const openpi_runner_options *options,
                                      openpi_runner **runner, openpi_error *error) {
    openpi_runner *r;
    TRY(begin_opening(options, &r, error));
    r->source = *source;
    openpi_status status = arm_of_robot(r->options.robot, &r->arm, error);
    if (status == OPENPI_OK) status = take_keys(r, error);
    if (status == OPENPI_OK) return finish_opening(r, runner, error);
    free_runner(r);
    return status;
}

openpi_status openpi_runner_over_source(const openpi_source *source, const openpi_runner_options *options,
                                        openpi_runner **runner, openpi_error *error) {
    openpi_source own;
    if (!source || !runner)
        return report(error, OPENPI_BAD_ARGUMENT, "runner open: %s is NULL",
                      source ? "runner" : "the source");
    TRY(BOUNDARY_TAKE(openpi_source, source, &own, error));
    openpi_status status =
        own.infer ? open_over_source(&own, options, runner, error)
                  : report(error, OPENPI_BAD_ARGUMENT, "runner open: the source's infer is NULL");
    if (status != OPENPI_OK && own.close) own.close(own.user);
    return status;
}

void openpi_runner_close(openpi_runner *r) {
    if (!r) return;
    atomic_store(&r->closing, 1);
    openpi_runner_cancel(r);
    sem_post(&r->wake);
    pthread_join(r->thread, NULL);
    if (r->source.close) r->source.close(r->source.user);
    free_runner(r);
}

/* ---- what comes in ---------------------------------------------------------------------------------- */

static openpi_status observe(openpi_runner *r, const openpi_observation *observation, double taken_ms,
                             void (*release)(void *user), void *user, openpi_error *error) {
    if (!isfinite(taken_ms))
        return report(error, OPENPI_BAD_INPUT, "the observation was taken at %g ms, expected a finite number",
                      taken_ms);
    sight *sight = &r->sight[r->sights.back];
    TRY(sight_fill(sight, observation, !release, error));
    sight->taken = taken_ms;
    sight->release = release;
    sight->user = user;
    int replaced = exchange_give(&r->sights);
    if (replaced) sight_release(&r->sight[r->sights.back]);
    pthread_mutex_lock(&r->telling);
    r->told.observed++;
    r->told.replaced += (uint64_t)replaced;
    pthread_mutex_unlock(&r->telling);
    return OPENPI_OK;
}

/* One that is older than what came before it is of no use. */
static openpi_status forget(openpi_runner *r, void (*release)(void *user), void *user) {
    pthread_mutex_lock(&r->telling);
    r->told.observed++;
    r->told.replaced++;
    pthread_mutex_unlock(&r->telling);
    if (release) release(user);
    return OPENPI_OK;
}

static openpi_status observe_newest(openpi_runner *r, const openpi_observation *observation, double taken_ms,
                                    void (*release)(void *user), void *user, openpi_error *error) {
    if (!r || !observation)
        return report(error, OPENPI_BAD_ARGUMENT, "runner observe: %s is NULL",
                      r ? "the observation" : "the runner");
    pthread_mutex_lock(&r->observing);
    int older = taken_ms < atomic_load(&r->newest);
    openpi_status status = older ? forget(r, release, user)
                                 : observe(r, observation, taken_ms, release, user, error);
    if (status == OPENPI_OK && !older) atomic_store(&r->newest, taken_ms);
    pthread_mutex_unlock(&r->observing);
    if (status == OPENPI_OK) sem_post(&r->wake);
    return status;
}

openpi_status openpi_runner_observe(openpi_runner *runner, const openpi_observation *observation,
                                    double taken_ms, openpi_error *error) {
    return observe_newest(runner, observation, taken_ms, NULL, NULL, error);
}

openpi_status openpi_runner_observe_fields(openpi_runner *r, const openpi_field *fields, int count,
                                           double taken_ms, openpi_error *error) {
    unpacked seen;
    wire_message *message;
    if (!r) return report(error, OPENPI_BAD_ARGUMENT, "runner observe: the runner is NULL");
    TRY(wire_from_fields(fields, count, &message, error));
    openpi_status status = unpack_message(r->keys, message, &seen, error);
    if (status == OPENPI_OK) status = openpi_runner_observe(r, &seen.observation, taken_ms, error);
    wire_message_free(message);
    return status;
}

openpi_status openpi_runner_lend(openpi_runner *runner, const openpi_observation *observation,
                                 double taken_ms, void (*release)(void *user), void *user,
                                 openpi_error *error) {
    if (!release) return report(error, OPENPI_BAD_ARGUMENT, "runner lend: release is NULL");
    return observe_newest(runner, observation, taken_ms, release, user, error);
}

void openpi_runner_stop(openpi_runner *r) {
    if (r) atomic_store(&r->wish, WISH_STOP);
}

void openpi_runner_resume(openpi_runner *r) {
    if (r) atomic_store(&r->wish, WISH_RESUME);
}

void openpi_runner_cancel(openpi_runner *r) {
    if (!r) return;
    atomic_fetch_add(&r->cancels, 1);
    if (r->source.cancel) r->source.cancel(r->source.user);
}

/* ---- the control thread ------------------------------------------------------------------------------ */

static void take_chunk(openpi_runner *r, double now) {
    if (!exchange_take(&r->chunks)) return;
    const schedule_chunk *chunk = &r->chunk[r->chunks.front];
    schedule_offer(&r->schedule, chunk, now);
    r->offered = chunk->number;
}

/* Held since the call before. */
static void note_hold(openpi_runner *r, double now, openpi_reason reason) {
    double before = atomic_load_explicit(&r->now, memory_order_relaxed),
           held = atomic_load_explicit(&r->held_ms, memory_order_relaxed);
    atomic_store_explicit(&r->held_reason, reason, memory_order_relaxed);
    if (isfinite(before) && now > before)
        atomic_store_explicit(&r->held_ms, held + now - before, memory_order_relaxed);
}

/* What the other threads want to know. */
static void write_board(openpi_runner *r, double now) {
    const schedule *s = &r->schedule;
    uint64_t in_use = s->pending.rows ? s->pending.number : s->current.rows ? s->current.number : 0;
    atomic_store_explicit(&r->now, now, memory_order_relaxed);
    atomic_store(&r->in_use, in_use);
    atomic_store(&r->seen, r->offered);                /* after `in_use`, which says what became of it      */
    atomic_store_explicit(&r->ticks, s->ticks, memory_order_relaxed);
    atomic_store_explicit(&r->holds, s->holds, memory_order_relaxed);
    atomic_store_explicit(&r->limited, s->limited, memory_order_relaxed);
    atomic_store_explicit(&r->refused, s->late, memory_order_relaxed);
    atomic_store_explicit(&r->delay, s->delay, memory_order_relaxed);
}

/* An observation that came too early is to be computed now. The thread says that it waits and then looks at
 * the board, which is written here before that is read: one of the two sees the other. */
static void wake_thread(openpi_runner *r) {
    if (!atomic_load(&r->wants) || !runner_due(r)) return;
    atomic_store(&r->wants, 0);
    sem_post(&r->wake);
}

openpi_move openpi_runner_next(openpi_runner *r, double now_ms, double *action, openpi_runner_state *state) {
    double own[OPENPI_ACTION_DIM];
    openpi_runner_state told;
    schedule_news news = {0};
    if (!r || !action) return OPENPI_MOVE_STOP;
    int wish = atomic_load(&r->wish) ? atomic_exchange(&r->wish, WISH_NONE) : WISH_NONE;
    news.newest = atomic_load(&r->newest);
    news.camera = (openpi_reason)atomic_load(&r->camera);
    news.source = (openpi_reason)atomic_load(&r->trouble);
    news.stop = wish == WISH_STOP;
    news.resume = wish == WISH_RESUME;
    take_chunk(r, now_ms);
    openpi_move move = schedule_next(&r->schedule, &news, now_ms, own, &told);
    if (move != OPENPI_MOVE_ACTION) note_hold(r, now_ms, told.reason);
    memcpy(action, own, (size_t)r->arm.dims * sizeof *action);
    write_board(r, now_ms);
    wake_thread(r);
    if (BOUNDARY_CHECK(openpi_runner_state, state, NULL) == OPENPI_OK)
        BOUNDARY_GIVE(openpi_runner_state, &told, state);
    return move;
}

openpi_status openpi_runner_get_info(openpi_runner *r, openpi_runner_info *info, openpi_error *error) {
    if (!r || !info)
        return report(error, OPENPI_BAD_ARGUMENT, "runner info: %s is NULL", r ? "info" : "the runner");
    TRY(BOUNDARY_CHECK(openpi_runner_info, info, error));
    pthread_mutex_lock(&r->telling);
    openpi_runner_info own = r->told;
    pthread_mutex_unlock(&r->telling);
    own.ticks = atomic_load(&r->ticks);
    own.held = atomic_load(&r->holds);
    own.steps = timeline_executed(&r->schedule.timeline);
    own.limited = atomic_load(&r->limited);
    own.late = atomic_load(&r->refused) + atomic_load(&r->cancelled);
    own.delay = atomic_load(&r->delay);
    BOUNDARY_GIVE(openpi_runner_info, &own, info);
    return OPENPI_OK;
}
