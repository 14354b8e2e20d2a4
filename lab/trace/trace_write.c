/* Writes a trace in the trace-event format that Perfetto and chrome://tracing load: complete events (X) on
 * tracks, flows (s, f) from the host's run of the plan to each stage, counters (C), names (M).
 *
 * Every time is rounded to a nanosecond first and split up after, so that what is inside another event stays
 * inside. */
#include "trace.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gz.h"

enum { HOST = 1, DEVICE = 2, HOST_TRACK = 1, DIGITS = 13 };

typedef struct writer {
    gz *file;
    const trace *trace;
    int events, flows, failed; /* failed: no memory for an event                                        */
} writer;

typedef struct span {
    int64_t start, end; /* ns                                                                    */
} span;

static int64_t ns(double ms) { return llround(ms * 1e6); }

static double us(int64_t ns) { return (double)ns * 1e-3; }

static int tid_of(openpi_stage stage) { return (int)stage + 1; }

static void emit(writer *w, json_t *event) {
    char *text = event ? json_dumps(event, JSON_COMPACT | JSON_REAL_PRECISION(DIGITS)) : NULL;
    json_decref(event);
    if (!text) {
        w->failed = 1;
        return;
    }
    if (w->events++) gz_write(w->file, ",", 1);
    gz_write(w->file, "\n", 1);
    gz_write(w->file, text, strlen(text));
    free(text);
}

static void emit_span(writer *w, const char *name, const char *category, int pid, int tid, span at,
                      json_t *arguments) {
    emit(w, json_pack("{s:s,s:s,s:s,s:f,s:f,s:i,s:i,s:o}", "ph", "X", "name", name, "cat", category, "ts",
                      us(at.start), "dur", us(at.end - at.start), "pid", pid, "tid", tid, "args",
                      arguments ? arguments : json_object()));
}

static void emit_name(writer *w, const char *what, int pid, int tid, const char *key, json_t *value) {
    emit(w, json_pack("{s:s,s:s,s:i,s:i,s:{s:o}}", "ph", "M", "name", what, "pid", pid, "tid", tid, "args",
                      key, value));
}

/* ---- names of tracks ------------------------------------------------------------------------------ */

static void write_names(writer *w, const char *device) {
    const trace *t = w->trace;
    char text[80];
    int seen[OPENPI_STAGES] = {0};
    emit_name(w, "process_name", HOST, 0, "name", json_string("host"));
    emit_name(w, "process_sort_index", HOST, 0, "sort_index", json_integer(HOST));
    emit_name(w, "thread_name", HOST, HOST_TRACK, "name", json_string("calls"));
    snprintf(text, sizeof text, "device %.60s", device);
    emit_name(w, "process_name", DEVICE, 0, "name", json_string(text));
    emit_name(w, "process_sort_index", DEVICE, 0, "sort_index", json_integer(DEVICE));
    for (int i = 0; i < t->launch_count; i++) {
        openpi_stage stage = t->launches[i].what.stage;
        if (seen[stage]++) continue;
        snprintf(text, sizeof text, t->method == TIMED_CLOCK ? "%s" : "%s, stream 0",
                 openpi_stage_name(stage));
        emit_name(w, "thread_name", DEVICE, tid_of(stage), "name", json_string(text));
        emit_name(w, "thread_sort_index", DEVICE, tid_of(stage), "sort_index", json_integer(tid_of(stage)));
    }
}

/* ---- a call --------------------------------------------------------------------------------------- */

static json_t *place_json(int place) { return place < 0 ? json_null() : json_integer(place); }

static json_t *launch_arguments(const trace_launch *l) {
    const launch_record *r = &l->record;
    json_t *arguments = json_pack(
        "{s:s,s:s,s:s,s:o,s:o,s:s,s:s,s:f,s:f,s:f}", "stage", openpi_stage_name(l->what.stage), "kind",
        l->what.kind, "group", l->group, "step", place_json(l->what.step), "layer", place_json(l->what.layer),
        "shape", l->what.shape, "kernel", r->kernel, "gflop", l->what.cost.flops * 1e-9, "mb",
        l->what.cost.bytes * 1e-6, "weight_mb", l->what.cost.weight_bytes * 1e-6);
    char text[64];
    if (l->places > 1) {
        snprintf(text, sizeof text, "%d of %d", l->place, l->places);
        json_object_set_new(arguments, "launch", json_string(text));
    }
    if (!r->grid[0]) return arguments;
    snprintf(text, sizeof text, "%ux%ux%u", r->grid[0], r->grid[1], r->grid[2]);
    json_object_set_new(arguments, "grid", json_string(text));
    snprintf(text, sizeof text, "%ux%ux%u", r->block[0], r->block[1], r->block[2]);
    json_object_set_new(arguments, "block", json_string(text));
    json_object_set_new(arguments, "cluster", json_integer(r->cluster));
    json_object_set_new(arguments, "shared_bytes", json_integer((json_int_t)r->shared_bytes));
    return arguments;
}

static span launch_span(const trace_call *c, int i) {
    int64_t base = ns(c->device_ms);
    return (span){base + ns(c->starts[i]), base + ns(c->ends[i])};
}

/* From launch i on, as long as stage (and step, where it is not -1) stay the same. */
static int run_end(const trace *t, int i, int step) {
    const profile_op *first = &t->launches[i].what;
    int end = i + 1;
    while (end < t->launch_count && t->launches[end].what.stage == first->stage &&
           (step < 0 || t->launches[end].what.step == step))
        end++;
    return end;
}

static span whole(const trace_call *c, int first, int end) {
    return (span){launch_span(c, first).start, launch_span(c, end - 1).end};
}

static void write_flow(writer *w, const char *phase, int id, int pid, int tid, int64_t at) {
    json_t *event = json_pack("{s:s,s:s,s:s,s:i,s:f,s:i,s:i}", "ph", phase, "name", "replay", "cat", "flow",
                              "id", id, "ts", us(at), "pid", pid, "tid", tid);
    if (event && *phase == 'f') json_object_set_new(event, "bp", json_string("e"));
    emit(w, event);
}

static void write_stage(writer *w, const trace_call *c, int first, int end) {
    const trace *t = w->trace;
    openpi_stage stage = t->launches[first].what.stage;
    int tid = tid_of(stage);
    emit_span(w, openpi_stage_name(stage), "stage", DEVICE, tid, whole(c, first, end), NULL);
    write_flow(w, "f", w->flows++, DEVICE, tid, launch_span(c, first).start);
    for (int i = first; i < end; i++) {
        int step = t->launches[i].what.step;
        char name[32];
        if (step >= 0 && (i == first || t->launches[i - 1].what.step != step)) {
            snprintf(name, sizeof name, "step %d", step);
            emit_span(w, name, "step", DEVICE, tid, whole(c, i, run_end(t, i, step)), NULL);
        }
        emit_span(w, t->launches[i].what.name, "kernel", DEVICE, tid, launch_span(c, i),
                  launch_arguments(&t->launches[i]));
    }
}

static void write_counter(writer *w, const char *name, const char *unit, double at, double value) {
    if (value <= 0) return;
    emit(w, json_pack("{s:s,s:s,s:f,s:i,s:{s:f}}", "ph", "C", "name", name, "ts", us(ns(at)), "pid", DEVICE,
                      "args", unit, value));
}

static void write_reading(writer *w, const trace_reading *r) {
    write_counter(w, "power", "W", r->at_ms, r->watts);
    write_counter(w, "core clock", "MHz", r->at_ms, r->core_mhz);
    write_counter(w, "memory clock", "MHz", r->at_ms, r->memory_mhz);
}

static void write_call(writer *w, int which) {
    const trace *t = w->trace;
    const trace_call *c = &t->calls[which];
    char name[32];
    snprintf(name, sizeof name, "call %d", which);
    write_reading(w, &c->before);
    emit_span(w, name, "call", HOST, HOST_TRACK, (span){ns(c->start_ms), ns(c->end_ms)}, NULL);
    for (int i = 0; i < c->span_count; i++) {
        span at = {ns(c->spans[i].start_ms), ns(c->spans[i].end_ms)};
        emit_span(w, c->spans[i].name, "host", HOST, HOST_TRACK, at, NULL);
        for (int l = 0, flow = w->flows; i == c->run && l < t->launch_count; l = run_end(t, l, -1))
            write_flow(w, "s", flow++, HOST, HOST_TRACK, at.start);
    }
    for (int i = 0, end; i < t->launch_count; i = end) {
        end = run_end(t, i, -1);
        write_stage(w, c, i, end);
    }
    write_reading(w, &c->after);
}

/* ---- the file ------------------------------------------------------------------------------------- */

/* Sums of what is written, as it is written: for whoever checks the file. */
static json_t *totals(const trace *t) {
    int64_t kernels = 0, runs = 0;
    for (int n = 0; n < t->count; n++) {
        const trace_call *c = &t->calls[n];
        runs += ns(c->spans[c->run].end_ms) - ns(c->spans[c->run].start_ms);
        for (int i = 0; i < t->launch_count; i++) {
            span at = launch_span(c, i);
            kernels += at.end - at.start;
        }
    }
    int count = t->launch_count * t->count;
    return json_pack("{s:i,s:i,s:f,s:f}", "kernels", count, "launches", count, "kernel_ms",
                     (double)kernels * 1e-6, "run_ms", (double)runs * 1e-6);
}

int trace_write(const verb *verb, const char *path, const trace *t, const char *device, json_t *head) {
    static const char middle[] = ",\n\"traceEvents\": [", end[] = "\n]}\n";
    writer w = {.file = gz_create(verb, path), .trace = t};
    if (head) json_object_set_new(head, "totals", totals(t));
    char *text = head ? json_dumps(head, JSON_COMPACT | JSON_REAL_PRECISION(DIGITS)) : NULL;
    json_decref(head);
    if (w.file && text) {
        static const char start[] = "{\"displayTimeUnit\": \"ms\",\n\"otherData\": ";
        gz_write(w.file, start, sizeof start - 1);
        gz_write(w.file, text, strlen(text));
        gz_write(w.file, middle, sizeof middle - 1);
        write_names(&w, device);
        for (int i = 0; i < t->count; i++) write_call(&w, i);
        gz_write(w.file, end, sizeof end - 1);
    }
    int failed = w.failed || !text, code = w.file ? gz_close(w.file) : END_USAGE;
    free(text);
    if (code == END_FINE && failed) return input_error(verb, "%s: cannot be written: out of memory", path);
    return code;
}
