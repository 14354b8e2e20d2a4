/* Runs a plan and times every launch. */
#include "lab/measure/timed.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/report.h"
#include "openpi_internal.h"

const char *timed_method_name(timed_method method) {
    static const char *const names[] = {"clock", "events", "replay", "PREDICTED"};
    return names[method];
}

const char *timed_method_text(timed_method method) {
    if (method == TIMED_PREDICTED) return "not at all: PREDICTED by a static model";
    if (method == TIMED_REPLAY) return "inside graph replay, by an event node after every launch";
    if (method == TIMED_EVENTS) return "operation by operation, by the device's events around each";
    return "operation by operation, as this device runs a plan, by the clock around each";
}

/* ---- running -------------------------------------------------------------------------------------- */

/* On the host's clock a launch ends when the next begins. An op that the device timed ends when the host's
 * wait for it ends. */
static openpi_status run_ops(timed *t, double *stage_ms, openpi_error *error) {
    openpi_session *s = t->session;
    device *device = s->engine->device;
    double now = 0;
    for (int i = 0; i < t->count; i++) {
        const op *op = &s->plan->ops[i];
        double own[OPENPI_STAGES] = {0}, before = now;
        TRY(device->backend->run(device, op_alone(op), s->work, t->method == TIMED_EVENTS ? own : NULL, error));
        now = clock_ms() - t->start_ms;
        double ms = t->method == TIMED_EVENTS ? own[op->stage] : now - before;
        t->launches[i].start_ms = ms < now ? now - ms : 0;
        t->launches[i].end_ms = now;
        stage_ms[op->stage] += ms;
    }
    t->total_ms = now;
    return OPENPI_OK;
}

static openpi_status replay(timed *t, double *stage_ms, openpi_error *error) {
    device *device = t->session->engine->device;
    double own[OPENPI_STAGES] = {0};
    TRY(device->backend->replay(device, t->recording, NULL, 0, NULL, own, error));
    t->end_ms = clock_ms();
    t->total_ms = 0;
    for (int i = 0; i < OPENPI_STAGES; i++) {
        t->total_ms += own[i];
        stage_ms[i] += own[i];
    }
    int count = device->backend->launches(device, t->recording, t->launches, t->capacity);
    if (count != t->count)
        return report(error, OPENPI_SYSTEM,
                      "the timed recording has %d launches, expected the %d that it began with", count,
                      t->count);
    return OPENPI_OK;
}

static openpi_status run_timed(void *user, openpi_session *session, double *stage_ms, openpi_error *error) {
    timed *t = user;
    (void)session;
    t->start_ms = clock_ms();
    if (t->method == TIMED_REPLAY) return replay(t, stage_ms, error);
    TRY(run_ops(t, stage_ms, error));
    t->end_ms = clock_ms();
    return OPENPI_OK;
}

/* ---- opening -------------------------------------------------------------------------------------- */

static openpi_status record(timed *t, openpi_error *error) {
    openpi_session *s = t->session;
    device *device = s->engine->device;
    openpi_error why = OPENPI_ERROR_INIT;
    openpi_status status =
        device->backend->record_timed(device, plan_list(s->plan), s->work, &t->recording, &why);
    if (status == OPENPI_OK) {
        t->method = TIMED_REPLAY;
        t->count = device->backend->launches(device, t->recording, NULL, 0);
        return OPENPI_OK;
    }
    if (status != OPENPI_UNSUPPORTED) return report(error, status, "%s", why.message);
    snprintf(t->not_replayed, sizeof t->not_replayed, "%.199s", why.message);
    return OPENPI_OK;
}

openpi_status timed_open(openpi_session *s, timed *t, openpi_error *error) {
    const device *device = s->engine->device;
    *t = (timed){.session = s, .count = s->plan->count};
    t->method = device->backend->allocate_host ? TIMED_EVENTS : TIMED_CLOCK;
    if (t->method == TIMED_EVENTS)
        snprintf(t->not_replayed, sizeof t->not_replayed, "%s", s->kinds.no_recording);
    if (s->kinds.recordings[CALL_ANY] && device->backend->record_timed) TRY(record(t, error));
    t->capacity = t->count;
    t->launches = calloc((size_t)t->count + 1, sizeof *t->launches);
    if (!t->launches)
        return report_no_memory(error, (size_t)t->count * sizeof *t->launches, "the launches' times");
    for (int i = 0; i < t->count && !t->recording; i++) {
        t->launches[i] = (launch_record){.op = i, .ops = 1};
        snprintf(t->launches[i].kernel, sizeof t->launches[i].kernel, "%s", device->path);
    }
    if (t->recording)
        t->session->engine->device->backend->launches(s->engine->device, t->recording, t->launches,
                                                      t->capacity);
    timed_switch(t, 1);
    return OPENPI_OK;
}

void timed_switch(timed *t, int on) {
    t->session->on_run = on ? run_timed : NULL;
    t->session->on_run_user = t;
}

void timed_close(timed *t) {
    if (!t->session) return;
    timed_switch(t, 0);
    if (t->recording) t->session->engine->device->backend->forget(t->session->engine->device, t->recording);
    free(t->launches);
    *t = (timed){0};
}
