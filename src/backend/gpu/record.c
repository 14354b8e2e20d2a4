/* Running ops: now, or into a graph that calls replay.
 *
 * Both are one walk over the ops with an event before every stage. A recording keeps the stream that it
 * was captured on: its replays and a call's copies run there, so that sessions do not wait for each other
 * (but see stream_of_calls). A timed recording has an event after every launch too, so that an instrument
 * sees each of them where it really runs, inside a replay; launches then wait for each other, which is why
 * its replay is slower than the plain one.
 *
 * Note: a timed recording's times are sums of neighbouring differences. On an H200 they come in steps of
 * 32 ns (the driver promises 500); a difference to the first event, a float of milliseconds, would lose
 * that in a long call. */
#include "backend/gpu/record.h"

#include <stdlib.h>
#include <string.h>

#include "backend/gpu/issue.h"
#include "base/report.h"

struct recording {
    void *stream;
    void *exec;
    int nodes;
    void *events[OPENPI_STAGES + 1];
    openpi_stage stages[OPENPI_STAGES];
    int stage_count;

    int replayed;
    gpu_log log;
    int stage_marks[OPENPI_STAGES];        /* launches before each stage                                    */
};

/* The events of a walk: one before every stage and one at the end; stages[i] is the stage after event i. */
typedef struct stage_events {
    void **events;                         /* NULL: none                                                    */
    int in_graph;
    openpi_stage stages[OPENPI_STAGES];
    int marks[OPENPI_STAGES];              /* launches noted before each                                    */
    int count;
} stage_events;

/* A stage begins when the one before has ended. */
static int begin_stage(gpu_issue *issue, openpi_stage stage, stage_events *e) {
    const gpu_driver *driver = &issue->device->driver;
    const gpu_log *log = issue->emit.log;
    issue->emit.alone = 1;
    if (!e->events || e->count == OPENPI_STAGES) return 0;
    e->marks[e->count] = log ? log->count : 0;
    e->stages[e->count] = stage;
    return driver->event_record(driver, e->events[e->count++], issue->emit.stream, e->in_graph);
}

static int issue_all(gpu_issue *issue, const op_list *list, stage_events *e) {
    const gpu_driver *driver = &issue->device->driver;
    gpu_emission *emit = &issue->emit;
    const op *ops = list->ops;
    for (int i = 0; i < list->count && !emit->code;) {
        if (!i || ops[i].stage != ops[i - 1].stage) emit->code = begin_stage(issue, ops[i].stage, e);
        if (!emit->code) i += gpu_issue_next(issue, list, i);
    }
    if (e->events && !emit->code)
        emit->code = driver->event_record(driver, e->events[e->count], emit->stream, e->in_graph);
    return emit->code;
}

static int read_stages(gpu_device *self, void **events, const openpi_stage *stages, int count,
                       double *stage_ms) {
    for (int i = 0; i < count; i++) {
        float ms;
        int code = self->driver.event_elapsed(&self->driver, &ms, events[i], events[i + 1]);
        if (code) return code;
        stage_ms[stages[i]] += (double)ms;
    }
    return 0;
}

/* ---- now -------------------------------------------------------------------------------------------- */

/* While any recording needs the device for itself, all sessions share one stream: calls then run in the
 * order in which they came, and none waits for the device to be empty while another session's calls follow
 * each other. Weights on their way to the device do not wait for calls. */
static void *stream_of_calls(gpu_device *self, void *own) {
    return atomic_load(&self->whole_device_recordings) ? self->calls : own;
}

static openpi_status run_now(gpu_device *self, const op_list *list, void *work, double *stage_ms,
                             openpi_error *error) {
    void *stream = stream_of_calls(self, self->stream);
    gpu_issue issue = {
        .device = self, .purpose = GPU_LAUNCH, .work = {.memory = work}, .emit = {.stream = stream}};
    stage_events e = {.events = stage_ms ? self->events : NULL};
    if (stream != self->stream) GPU(stream_wait, "waiting for uploads", self->stream);
    int code = issue_all(&issue, list, &e);
    if (code) return gpu_fail(self, code, "launching kernels", error);
    GPU(stream_wait, "running kernels", stream);
    code = stage_ms ? read_stages(self, self->events, e.stages, e.count, stage_ms) : 0;
    return code ? gpu_fail(self, code, "reading the stages' times", error) : OPENPI_OK;
}

openpi_status gpu_run(device *device, op_list list, void *work, double *stage_ms, openpi_error *error) {
    gpu_device *self = (gpu_device *)device;
    TRY(gpu_enter(self, error));
    pthread_mutex_lock(&self->running);
    openpi_status status = run_now(self, &list, work, stage_ms, error);
    pthread_mutex_unlock(&self->running);
    return status;
}

/* ---- into a graph ----------------------------------------------------------------------------------- */

void gpu_forget(device *device, struct recording *r) {
    gpu_device *self = (gpu_device *)device;
    if (!r) return;
    const gpu_driver *driver = &self->driver;
    driver->enter(driver, self->context);
    if (r->exec) driver->graph_exec_destroy(driver, r->exec);
    if (r->stream) driver->stream_destroy(driver, r->stream);
    for (int i = 0; i <= OPENPI_STAGES; i++)
        if (r->events[i]) driver->event_destroy(driver, r->events[i]);
    gpu_forget_log(self, &r->log);
    free(r);
}

/* The walk on the recording's stream, while the driver captures it: the device's stream may be in use by
 * another session. */
static int capture_ops(gpu_device *self, const op_list *list, void *work, struct recording *r,
                       void **graph) {
    const gpu_driver *driver = &self->driver;
    gpu_issue issue = {.device = self, .purpose = GPU_LAUNCH, .work = {.memory = work},
                       .emit = {.stream = r->stream, .log = &r->log, .in_turn = r->log.timed}};
    stage_events e = {.events = r->events, .in_graph = 1};
    int code = driver->capture_begin(driver, r->stream);
    if (code) return code;
    code = issue_all(&issue, list, &e);
    int ended = driver->capture_end(driver, r->stream, graph);
    memcpy(r->stages, e.stages, sizeof r->stages);
    memcpy(r->stage_marks, e.marks, sizeof r->stage_marks);
    r->stage_count = e.count;
    return code ? code : ended;
}

static int make_graph(gpu_device *self, const op_list *list, void *work, struct recording *r,
                      const char **doing) {
    const gpu_driver *driver = &self->driver;
    void *graph = NULL;
    size_t nodes = 0;
    int code = 0;
    *doing = "preparing a capture";
    for (int i = 0; i <= OPENPI_STAGES && !code; i++) code = driver->event_create(driver, &r->events[i]);
    if (!code) code = driver->stream_create(driver, &r->stream);
    if (code) return code;
    *doing = "capturing the plan";
    code = capture_ops(self, list, work, r, &graph);
    if (!code) code = driver->graph_nodes(driver, graph, &nodes);
    r->nodes = (int)nodes;
    if (!code) {
        *doing = "making a graph of the plan";
        code = driver->graph_instantiate(driver, &r->exec, graph);
    }
    if (!code) code = driver->graph_upload(driver, r->exec, r->stream);
    if (graph) driver->graph_destroy(driver, graph);
    return code;
}

/* Only a driver that cannot capture is no failure: plans then run op by op. */
static openpi_status report_record(gpu_device *self, int code, const char *doing, openpi_error *error) {
    switch (gpu_error_class(self, code)) {
    case GPU_ERROR_OUT_OF_MEMORY:
        return report(error, OPENPI_NO_MEMORY, "out of memory on %s while %s", self->name, doing);
    case GPU_ERROR_CANNOT_CAPTURE:
        return report(error, OPENPI_UNSUPPORTED, "%s (error %d) while %s", gpu_error_text(self, code), code,
                      doing);
    case GPU_ERROR_NO_CODE:
    case GPU_ERROR_OTHER: break;
    }
    return gpu_fail(self, code, doing, error);
}

static openpi_status record(gpu_device *self, const op_list *list, void *work, int timed,
                            struct recording **out, openpi_error *error) {
    const char *doing = NULL;
    TRY(gpu_enter(self, error));
    if (switch_off(self->off, SWITCH_GRAPH_REPLAY))
        return report(error, OPENPI_UNSUPPORTED, "graph-replay is switched off");
    struct recording *r = calloc(1, sizeof *r);
    if (!r) return report_no_memory(error, sizeof *r, "the recording");
    r->log.timed = timed;
    int code = make_graph(self, list, work, r, &doing);
    if (code) {
        gpu_forget(&self->base, r);
        return report_record(self, code, doing, error);
    }
    *out = r;
    return OPENPI_OK;
}

openpi_status gpu_record(device *device, op_list list, void *work, struct recording **out,
                         openpi_error *error) {
    return record((gpu_device *)device, &list, work, 0, out, error);
}

openpi_status gpu_record_timed(device *device, op_list list, void *work, struct recording **out,
                               openpi_error *error) {
    return record((gpu_device *)device, &list, work, 1, out, error);
}

openpi_status gpu_replay(device *device, struct recording *r, const device_copy *up, int up_count,
                         const device_copy *down, double *stage_ms, openpi_error *error) {
    gpu_device *self = (gpu_device *)device;
    void *stream = stream_of_calls(self, r->stream);
    TRY(gpu_enter(self, error));
    if (!up) GPU(stream_wait, "waiting for uploads", self->stream);
    for (int i = 0; i < up_count; i++)
        GPU(upload, "uploading", (gpu_address)(uintptr_t)up[i].to, up[i].from, up[i].bytes, stream);
    GPU(graph_launch, "launching the graph", r->exec, stream);
    if (down && down->to != down->from)
        GPU(download, "downloading", down->to, (gpu_address)(uintptr_t)down->from, down->bytes, stream);
    GPU(stream_wait, "running the graph", stream);
    r->replayed = 1;
    int code = stage_ms ? read_stages(self, r->events, r->stages, r->stage_count, stage_ms) : 0;
    return code ? gpu_fail(self, code, "reading the stages' times", error) : OPENPI_OK;
}

/* ---- what a timed recording saw --------------------------------------------------------------------- */

/* A stage's first launch begins at the stage's event, any other at the event after the launch before. */
static int read_launches(gpu_device *self, struct recording *r) {
    const gpu_driver *driver = &self->driver;
    int stage = 0, code = driver->event_wait(driver, r->events[r->stage_count]);
    double now = 0;
    void *before = r->events[0];
    for (int i = 0; i < r->log.count && !code; i++) {
        float ms = 0;
        for (; stage < r->stage_count && r->stage_marks[stage] == i; stage++) {
            if (before != r->events[stage])
                code = driver->event_elapsed(driver, &ms, before, r->events[stage]);
            before = r->events[stage];
            now += (double)ms;
            ms = 0;
        }
        r->log.marks[i].launch.start_ms = now;
        if (!code) code = driver->event_elapsed(driver, &ms, before, r->log.marks[i].event);
        r->log.marks[i].launch.end_ms = now += (double)ms;
        before = r->log.marks[i].event;
    }
    return code;
}

int gpu_launches(device *device, struct recording *r, launch_record *out, int capacity) {
    gpu_device *self = (gpu_device *)device;
    if (r->log.timed && r->replayed && gpu_enter(self, NULL) == OPENPI_OK) {
        int code = read_launches(self, r);
        if (code) gpu_fail(self, code, "reading the launches' times", NULL);
    }
    for (int i = 0; i < r->log.count && i < capacity; i++) out[i] = r->log.marks[i].launch;
    return r->log.count;
}

int gpu_nodes(const struct recording *r) { return r->nodes; }
