/* The thread of a runner that computes chunks: which observation is computed when, what the source is asked,
 * and what becomes of its answer. */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/report.h"
#include "runner/runner.h"

enum { LOST_RETRY_MS = 1000 };

/* ---- when ------------------------------------------------------------------------------------------- */

int runner_due(openpi_runner *r) {
    uint64_t published = atomic_load(&r->board_published), base = atomic_load(&r->board_base);
    int rows = atomic_load(&r->board_rows), after = r->options.ask_after < rows ? r->options.ask_after : rows;
    if (!published) return 1;
    if (atomic_load(&r->seen) >= published && atomic_load(&r->in_use) != published) return 1;
    uint64_t executed = timeline_executed(&r->schedule.timeline);
    return executed >= base + (uint64_t)after;
}

/* ---- what is asked ---------------------------------------------------------------------------------- */

/* Steps that will be executed until an answer comes that takes as long as the slowest of late. */
static int expected_steps(const openpi_runner *r) {
    double slowest = 0;
    for (int i = 0; i < RUNNER_LATENCIES; i++) slowest = fmax(slowest, r->latencies[i]);
    double steps = ceil(slowest * r->options.rate_hz / 1000);
    return steps < OPENPI_MAX_HORIZON ? (int)steps : OPENPI_MAX_HORIZON;
}

/* How the chunk follows on from the one before, if that is in use or still on its way there. */
static void follow(openpi_runner *r, uint64_t base, openpi_chunk_call *call) {
    uint64_t now = timeline_executed(&r->schedule.timeline), executed = base - r->published_base;
    int on_its_way = r->published > atomic_load(&r->seen), used = r->published == atomic_load(&r->in_use);
    if (!r->options.rtc || !r->published || !(on_its_way || used) || base < r->published_base ||
        executed >= (uint64_t)r->published_rows)
        return;
    int left = r->published_rows - (int)executed, delay = (int)(now - base) + expected_steps(r);
    call->follows = 1;
    call->executed = (int)executed;
    call->delay = delay < 1 ? 1 : delay < left ? delay : left;
}

/* What the source may tell others of the robot. Returns how long it was held in all. */
static double tell_robot(const openpi_runner *r, uint64_t base, openpi_chunk_call *call) {
    double held = atomic_load(&r->held_ms);
    uint64_t used = base - r->published_base, rows = (uint64_t)r->published_rows;
    call->held_ms = held - r->held_told;
    call->reason = call->held_ms > 0 ? (openpi_reason)atomic_load(&r->held_reason) : OPENPI_REASON_NONE;
    call->used = !rows || base < r->published_base ? -1 : (int)(used < rows ? used : rows);
    return held;
}

/* ---- what becomes of it ------------------------------------------------------------------------------ */

static void tell_failure(openpi_runner *r, const openpi_error *error) {
    pthread_mutex_lock(&r->telling);
    r->told.calls++;
    r->told.failed += error != NULL;
    r->told.failure[0] = 0;
    if (error) memcpy(r->told.failure, error->message, sizeof r->told.failure);
    pthread_mutex_unlock(&r->telling);
}

static void tell_camera(openpi_runner *r, const char *camera) {
    pthread_mutex_lock(&r->telling);
    size_t bytes = strlen(camera), most = sizeof r->told.camera - 1;
    memcpy(r->told.camera, camera, bytes < most ? bytes : most);
    r->told.camera[bytes < most ? bytes : most] = 0;
    pthread_mutex_unlock(&r->telling);
}

static void fail(openpi_runner *r, openpi_status status, int lost, const openpi_error *error) {
    double pause = r->options.retry_ms > 0 ? r->options.retry_ms : lost ? LOST_RETRY_MS : 0;
    r->retry_at = clock_ms() + pause;
    tell_failure(r, error);
    atomic_store(&r->trouble, lost                            ? OPENPI_REASON_LOST
                              : status == OPENPI_BEYOND_LIMIT ? OPENPI_REASON_LIMIT
                                                              : OPENPI_REASON_FAILED);
}

static openpi_status check_answer(const openpi_runner *r, const openpi_chunk *answer, openpi_error *error) {
    if (answer->rows < 1 || answer->rows > OPENPI_MAX_HORIZON)
        return report(error, OPENPI_BAD_INPUT, "the chunk has %d rows, expected 1 to %d", answer->rows,
                      OPENPI_MAX_HORIZON);
    for (int i = 0; i < answer->rows * r->arm.dims; i++)
        if (!isfinite(answer->actions[i]))
            return report(error, OPENPI_BAD_INPUT, "action %d of row %d of the chunk is no finite number",
                          i % r->arm.dims, i / r->arm.dims);
    return OPENPI_OK;
}

/* The chunk in the thread's place goes to the control thread. */
static void publish(openpi_runner *r, schedule_chunk *chunk, int rows) {
    chunk->number = ++r->published;
    chunk->rows = rows;
    r->published_base = chunk->base;
    r->published_rows = rows;
    atomic_store(&r->board_base, chunk->base);
    atomic_store(&r->board_rows, rows);
    atomic_store(&r->board_published, r->published);
    exchange_give(&r->chunks);
    atomic_store(&r->trouble, OPENPI_REASON_NONE);
}

/* ---- a call ------------------------------------------------------------------------------------------ */

static openpi_status ask(openpi_runner *r, openpi_chunk_call *call, openpi_chunk *answer,
                         openpi_error *error) {
    if (r->source.wants_fields) {
        TRY(fields_of(&r->fields, &r->arm.record, call->observation, error));
        call->fields = r->fields.field;
        call->field_count = r->fields.count;
    }
    TRY(r->source.infer(r->source.user, call, answer, error));
    return check_answer(r, answer, error);
}

static void compute(openpi_runner *r, sight *sight) {
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_chunk_call call = {.size = sizeof call, .observation = &sight->observation,
                              .lent = sight->release ? sight->user : NULL};
    schedule_chunk *chunk = &r->chunk[r->chunks.back];
    openpi_chunk answer = {
        .size = sizeof answer, .action_dim = r->arm.dims, .actions = chunk->actions, .start = chunk->start};
    unsigned cancels = atomic_load(&r->cancels);
    double began = clock_ms();
    chunk->base = timeline_before(&r->schedule.timeline, sight->taken);
    chunk->taken = sight->taken;
    arm_starts(&r->arm, sight->state, sight->observation.state_length, chunk->start);
    if (isfinite(r->options.deadline_ms)) call.deadline_ms = r->options.deadline_ms;
    follow(r, chunk->base, &call);
    double held = tell_robot(r, chunk->base, &call);
    openpi_status status = ask(r, &call, &answer, &error);
    double took = clock_ms() - began;
    pthread_mutex_lock(&r->telling);
    r->told.call_ms = took;
    pthread_mutex_unlock(&r->telling);
    if (cancels != atomic_load(&r->cancels) || status == OPENPI_CANCELLED) {
        atomic_fetch_add(&r->cancelled, 1);
        r->published_rows = 0;                         /* the source's last chunk is not the one in use     */
        return;
    }
    if (status != OPENPI_OK) {
        fail(r, status, answer.lost, &error);
        r->published_rows = 0;
        return;
    }
    r->held_told = held;
    r->latencies[r->answered++ % RUNNER_LATENCIES] = took;
    tell_failure(r, NULL);
    publish(r, chunk, answer.rows);
}

/* The newest observation, where it is of use. */
static void look(openpi_runner *r) {
    sight *sight = &r->sight[r->sights.front];
    const char *camera = "";
    double now = atomic_load(&r->now);
    if (now - sight->taken > r->options.max_age_ms) return;
    openpi_reason blind = watch_look(&r->watch, &sight->observation, r->options.frozen_after,
                                     r->options.black_allowed, &camera);
    if (blind != (openpi_reason)atomic_load(&r->camera)) tell_camera(r, camera);
    atomic_store(&r->camera, blind);
    if (!blind) compute(r, sight);
}

/* Until something comes, or for `pause` ms where that is positive. */
static void wait_for_work(openpi_runner *r, double pause) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    double nanoseconds = (double)until.tv_nsec + fmod(pause, 1000) * 1e6;
    until.tv_sec += (time_t)(pause / 1000) + (nanoseconds >= 1e9);
    until.tv_nsec = (long)nanoseconds - (nanoseconds >= 1e9 ? 1000000000L : 0);
    if (pause > 0) sem_timedwait(&r->wake, &until);
    else while (sem_wait(&r->wake)) {}
    while (!sem_trywait(&r->wake)) {}                  /* what woke it several times is one observation     */
}

/* Until the next try with an observation that is there, in ms; not positive: now, or there is none. */
static double pause_of(openpi_runner *r) { return exchange_waits(&r->sights) ? r->retry_at - clock_ms() : 0; }

void *runner_main(void *user) {
    openpi_runner *r = user;
    double pause = 0;
    while (!atomic_load(&r->closing)) {
        wait_for_work(r, pause);
        if (atomic_load(&r->closing)) break;
        pause = pause_of(r);                           /* asked once: what is not done now is waited for    */
        if (pause > 0 || !exchange_waits(&r->sights)) continue;
        atomic_store(&r->wants, 1);
        if (!runner_due(r)) continue;
        atomic_store(&r->wants, 0);
        if (!exchange_take(&r->sights)) continue;
        look(r);
        sight_release(&r->sight[r->sights.front]);
    }
    return NULL;
}
