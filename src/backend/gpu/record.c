/* Running ops: now, or into a graph that calls replay.
 *
 * Both are one walk over the ops with an event in front of every stage. A recording keeps the stream that it was
 * captured on: its replays, with a call's copies, go there, so that sessions do not wait for each other (but see
 * replay_stream). A timed recording has an event behind every launch too, so that an instrument sees each of them
 * where it really runs, inside a replay; launches then wait for each other, which is why its replay is slower than
 * the plain one.
 *
 * The surprise: a timed recording's times are sums of neighbouring differences. On an H200 they come in steps of 32 ns
 * (the driver promises 500); a difference to the first event, a float of milliseconds, would lose that in a long call. */
#include <stdio.h>
#include <stdlib.h>

#include "backend/gpu/gpu.h"
#include "base/report.h"

/* One launch, and the event behind it in a timed recording. */
typedef struct mark {
    launch_record launch;
    void *event;
} mark;

struct recording {
    void *stream;
    void *exec;
    int nodes;
    void *events[OPENPI_STAGES + 1];
    openpi_stage stages[OPENPI_STAGES];
    int stage_count;

    int timed, replayed;
    int resident;                          /* holds a resident kernel, and is counted by the device       */
    mark *marks;
    int mark_count, mark_capacity;
    int stage_marks[OPENPI_STAGES];        /* launches in front of each stage                             */
};

/* Tells a recording of a launch that was just issued. */
void gpu_note_launch(gpu_issue *issue, gpu_kernel kernel, const gpu_launch *config, unsigned cluster) {
    struct recording *r = issue->recording;
    const gpu_driver *driver = &issue->device->driver;
    if (issue->code) return;
    if (r->mark_count == r->mark_capacity) {
        int capacity = r->mark_capacity ? 2 * r->mark_capacity : 512;
        mark *marks = realloc(r->marks, (size_t)capacity * sizeof *marks);
        if (!marks) {
            issue->code = GPU_OUT_OF_MEMORY;
            return;
        }
        r->marks = marks;
        r->mark_capacity = capacity;
    }
    mark *m = &r->marks[r->mark_count];
    *m = (mark){.launch = {.op = issue->op, .ops = issue->ops, .cluster = cluster, .shared_bytes = config->shared_bytes}};
    snprintf(m->launch.kernel, sizeof m->launch.kernel, "%s", gpu_kernel_name(kernel));
    for (int i = 0; i < 3; i++) {
        m->launch.grid[i] = config->grid[i];
        m->launch.block[i] = config->block[i];
    }
    if (r->timed) issue->code = driver->event_create(&m->event, 0);
    if (issue->code) return;
    r->mark_count++;
    if (!r->timed) return;
    issue->code = driver->event_record(m->event, issue->stream, GPU_EVENT_EXTERNAL);
    issue->first = 1;
}

static void note_resident(gpu_device *self, struct recording *r) {
    if (!r->resident) atomic_fetch_add(&self->resident_recordings, 1);
    r->resident = 1;
}

/* Issues all ops, with an event in front of every stage and one at the end; stages[i] is the stage behind event i. */
static int issue_all(gpu_issue *issue, const op *ops, int count, void **events, unsigned flags, openpi_stage *stages,
                     int *stage_count) {
    gpu_driver *driver = &issue->device->driver;
    int n = 0;
    for (int i = 0; i < count && !issue->code;) {
        if (!i || ops[i].stage != ops[i - 1].stage) {
            issue->first = 1;              /* a stage begins when the one in front has ended */
            if (events && n < OPENPI_STAGES) {
                if (issue->recording) issue->recording->stage_marks[n] = issue->recording->mark_count;
                issue->code = driver->event_record(events[n], issue->stream, flags);
                stages[n++] = ops[i].stage;
            }
        }
        issue->op = i;
        issue->ops = 1;
        issue->left = count - i;
        if (!issue->code && !gpu_resident_take(issue, &ops[i], count - i)) gpu_issue_op(issue, &ops[i]);
        if (issue->ops > 1 && issue->recording) note_resident(issue->device, issue->recording);
        i += issue->ops;
    }
    if (events && !issue->code) issue->code = driver->event_record(events[n], issue->stream, flags);
    *stage_count = n;
    return issue->code;
}

static int read_stages(gpu_device *self, void **events, const openpi_stage *stages, int count, double *stage_ms) {
    for (int i = 0; i < count; i++) {
        float ms;
        int code = self->driver.event_elapsed(&ms, events[i], events[i + 1]);
        if (code) return code;
        stage_ms[stages[i]] += (double)ms;
    }
    return 0;
}

/* ---- now -------------------------------------------------------------------------------------------------- */

size_t gpu_work_bytes(const device *device, const op *ops, int count) {
    gpu_issue issue = {.device = (gpu_device *)(uintptr_t)device, .measure = 1};
    for (int i = 0; i < count; i++) gpu_issue_op(&issue, &ops[i]);
    return issue.work_bytes;
}

static openpi_status run_now(gpu_device *self, const op *ops, int count, void *work, double *stage_ms, openpi_error *error) {
    gpu_issue issue = {.device = self, .stream = self->stream, .work = work};
    openpi_stage stages[OPENPI_STAGES];
    int n = 0, code = issue_all(&issue, ops, count, stage_ms ? self->events : NULL, 0, stages, &n);
    if (code) return gpu_fail(self, code, "launching kernels", error);
    GPU(stream_wait(self->stream), "running kernels");
    code = stage_ms ? read_stages(self, self->events, stages, n, stage_ms) : 0;
    return code ? gpu_fail(self, code, "reading the stages' times", error) : OPENPI_OK;
}

openpi_status gpu_run(device *device, const op *ops, int count, void *work, double *stage_ms, openpi_error *error) {
    gpu_device *self = (gpu_device *)device;
    TRY(gpu_enter(self, error));
    pthread_mutex_lock(&self->running);
    openpi_status status = run_now(self, ops, count, work, stage_ms, error);
    pthread_mutex_unlock(&self->running);
    return status;
}

/* ---- into a graph ----------------------------------------------------------------------------------------- */

void gpu_forget(device *device, struct recording *r) {
    gpu_device *self = (gpu_device *)device;
    if (!r) return;
    if (r->resident) atomic_fetch_sub(&self->resident_recordings, 1);
    self->driver.context_set(self->context);
    if (r->exec) self->driver.graph_exec_destroy(r->exec);
    if (r->stream) self->driver.stream_destroy(r->stream);
    for (int i = 0; i <= OPENPI_STAGES; i++)
        if (r->events[i]) self->driver.event_destroy(r->events[i]);
    for (int i = 0; i < r->mark_count; i++)
        if (r->marks[i].event) self->driver.event_destroy(r->marks[i].event);
    free(r->marks);
    free(r);
}

/* Captures the ops on the recording's stream (the device's may be in use by another session) and makes a graph. */
static int capture(gpu_device *self, const op *ops, int count, void *work, struct recording *r, const char **doing) {
    const gpu_driver *driver = &self->driver;
    void *graph = NULL;
    size_t nodes = 0;
    *doing = "preparing a capture";
    for (int i = 0; i <= OPENPI_STAGES; i++) {
        int failed = driver->event_create(&r->events[i], 0);
        if (failed) return failed;
    }
    int code = driver->stream_create(&r->stream, GPU_STREAM_NON_BLOCKING);
    if (code) return code;
    *doing = "capturing the plan";
    code = driver->capture_begin(r->stream, GPU_CAPTURE_THREAD_LOCAL);
    if (!code) {
        gpu_issue issue = {.device = self, .stream = r->stream, .work = work, .recording = r};
        code = issue_all(&issue, ops, count, r->events, GPU_EVENT_EXTERNAL, r->stages, &r->stage_count);
        int ended = driver->capture_end(r->stream, &graph);
        if (!code) code = ended;
    }
    if (!code) code = driver->graph_nodes(graph, NULL, &nodes);
    if (!code) {
        r->nodes = (int)nodes;
        *doing = "making a graph of the plan";
        code = driver->graph_instantiate(&r->exec, graph, 0);
    }
    if (!code) code = driver->graph_upload(r->exec, r->stream);
    if (graph) driver->graph_destroy(graph);
    return code;
}

/* Only a driver that cannot capture is no failure: plans then run op by op. */
static openpi_status report_record(gpu_device *self, int code, const char *doing, openpi_error *error) {
    if (code == GPU_OUT_OF_MEMORY)
        return report(error, OPENPI_NO_MEMORY, "out of memory on cuda:%d while %s", self->ordinal, doing);
    if (code != GPU_NOT_SUPPORTED && code != GPU_CAPTURE_UNSUPPORTED) return gpu_fail(self, code, doing, error);
    return report(error, OPENPI_UNSUPPORTED, "%s (error %d) while %s", gpu_error_text(&self->driver, code), code, doing);
}

static openpi_status record(gpu_device *self, const op *ops, int count, void *work, int timed, struct recording **out,
                            openpi_error *error) {
    const char *doing = NULL;
    TRY(gpu_enter(self, error));
    if (self->no_graph) return report(error, OPENPI_UNSUPPORTED, "graph-replay is switched off");
    struct recording *r = calloc(1, sizeof *r);
    if (!r) return report_no_memory(error, sizeof *r, "the recording");
    r->timed = timed;
    int code = capture(self, ops, count, work, r, &doing);
    if (code) {
        gpu_forget(&self->base, r);
        return report_record(self, code, doing, error);
    }
    *out = r;
    return OPENPI_OK;
}

openpi_status gpu_record(device *device, const op *ops, int count, void *work, struct recording **out, openpi_error *error) {
    return record((gpu_device *)device, ops, count, work, 0, out, error);
}

openpi_status gpu_record_timed(device *device, const op *ops, int count, void *work, struct recording **out,
                               openpi_error *error) {
    return record((gpu_device *)device, ops, count, work, 1, out, error);
}

/* A resident kernel needs the whole device and one exchange block. While any recording holds one, all sessions
 * share one stream: calls then run in the order in which they came, and a resident kernel never waits for the
 * device to be empty while another session's calls follow each other. */
static void *replay_stream(gpu_device *self, const struct recording *r) {
    return atomic_load(&self->resident_recordings) ? self->stream : r->stream;
}

openpi_status gpu_replay(device *device, struct recording *r, const device_copy *up, int up_count, const device_copy *down,
                         double *stage_ms, openpi_error *error) {
    gpu_device *self = (gpu_device *)device;
    void *stream = replay_stream(self, r);
    TRY(gpu_enter(self, error));
    if (!up_count) GPU(stream_wait(self->stream), "waiting for uploads");
    for (int i = 0; i < up_count; i++)
        GPU(upload((gpu_address)(uintptr_t)up[i].to, up[i].from, up[i].bytes, stream), "uploading");
    GPU(graph_launch(r->exec, stream), "launching the graph");
    if (down) GPU(download(down->to, (gpu_address)(uintptr_t)down->from, down->bytes, stream), "downloading");
    GPU(stream_wait(stream), "running the graph");
    r->replayed = 1;
    int code = stage_ms ? read_stages(self, r->events, r->stages, r->stage_count, stage_ms) : 0;
    return code ? gpu_fail(self, code, "reading the stages' times", error) : OPENPI_OK;
}

/* ---- what a timed recording saw --------------------------------------------------------------------------- */

/* A stage's first launch begins at the stage's event, any other at the event behind the launch in front. */
static int read_launches(gpu_device *self, struct recording *r) {
    const gpu_driver *driver = &self->driver;
    int stage = 0, code = driver->event_wait(r->events[r->stage_count]);
    double now = 0;
    void *before = r->events[0];
    for (int i = 0; i < r->mark_count && !code; i++) {
        float ms = 0;
        for (; stage < r->stage_count && r->stage_marks[stage] == i; stage++) {
            if (before != r->events[stage]) code = driver->event_elapsed(&ms, before, r->events[stage]);
            before = r->events[stage];
            now += (double)ms;
            ms = 0;
        }
        r->marks[i].launch.start_ms = now;
        if (!code) code = driver->event_elapsed(&ms, before, r->marks[i].event);
        r->marks[i].launch.end_ms = now += (double)ms;
        before = r->marks[i].event;
    }
    return code;
}

int gpu_launches(device *device, struct recording *r, launch_record *out, int capacity) {
    gpu_device *self = (gpu_device *)device;
    if (r->timed && r->replayed && gpu_enter(self, NULL) == OPENPI_OK) {
        int code = read_launches(self, r);
        if (code) gpu_fail(self, code, "reading the launches' times", NULL);
    }
    for (int i = 0; i < r->mark_count && i < capacity; i++) out[i] = r->marks[i].launch;
    return r->mark_count;
}

int gpu_nodes(const struct recording *r) { return r->nodes; }
