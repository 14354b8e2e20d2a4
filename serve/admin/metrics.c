/* See metrics.h. */
#include "metrics.h"

#include <stdio.h>
#include <string.h>

/* ---- names and buckets ------------------------------------------------------------------------------ */

static const char *const class_names[SCHEDULER_CLASSES] = {"shared", "reserved"};
static const char *const result_names[REQUEST_RESULTS] = {"ok",     "refused", "late",
                                                         "failed", "stopped", "gone"};
static const char *const rejection_names[REJECTIONS] = {"token", "connections", "address", "reserved",
                                                        "attempts", "origin"};
static const char *const shadow_names[SHADOW_RESULTS] = {"within", "above", "left_out", "failed"};
static const char *const stage_names[METRICS_STAGES] = {"receive", "turn", "prepare_wait", "prepare",
                                                        "queue",   "run",  "send"};

const char *metrics_class(scheduler_class class) { return class_names[class]; }
const char *metrics_stage(int stage) { return stage_names[stage]; }
const char *metrics_result(request_result result) { return result_names[result]; }

/* The largest values that the buckets take, ascending; 0: there are no more. */
static const double seconds_bounds[HISTOGRAM_BOUNDS] = {
    .001, .002, .003, .005, .0075, .01, .015, .02, .03, .05, .075, .1, .15, .2, .3, .5, .75, 1,
    2,    3,    5,    10,   20,    30};
static const double batch_bounds[HISTOGRAM_BOUNDS] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64};
static const double bytes_bounds[HISTOGRAM_BOUNDS] = {1e3, 1e4, 1e5, 2e5, 3e5, 4e5, 5e5, 6e5,
                                                      8e5, 1e6, 2e6, 4e6, 8e6, 16e6};
/* The first bucket has the delay 0. */
static const double steps_bounds[HISTOGRAM_BOUNDS] = {.5, 1,  2,  3,  4,  5,  6,  8,
                                                     10, 12, 16, 20, 25, 32, 40, 50};

/* σ; the default bound is one of them. */
static const double difference_bounds[HISTOGRAM_BOUNDS] = {.0005, .001, .002, .003, .005, .0075, .01, .015,
                                                           .02, .03, .05, .1, .2, .5, 1, 2};

static void observe(histogram *h, const double *bounds, double value) {
    int bucket = 0;
    while (bucket < HISTOGRAM_BOUNDS && bounds[bucket] > 0 && value > bounds[bucket]) bucket++;
    if (bucket < HISTOGRAM_BOUNDS && !(bounds[bucket] > 0)) bucket = HISTOGRAM_BOUNDS;
    h->counts[bucket]++;
    h->count++;
    h->sum += value;
}

/* ---- what happens ----------------------------------------------------------------------------------- */

void metrics_open(metrics *m) {
    memset(m, 0, sizeof *m);
    pthread_mutex_init(&m->lock, NULL);
}

void metrics_close(metrics *m) { pthread_mutex_destroy(&m->lock); }

void metrics_add_device(metrics *m, const char *name) {
    metrics_counts *c = &m->counts;
    if (c->device_count == SCHEDULER_DEVICES) return;
    metrics_device *device = &c->devices[c->device_count++];
    snprintf(device->name, sizeof device->name, "%s", name);
}

/* Returns 0 where one of the moments was not reached. */
static int seconds_between(const double *at_ms, moment from, moment to, double *seconds) {
    if (!(at_ms[from] > 0) || !(at_ms[to] > 0)) return 0;
    *seconds = (at_ms[to] - at_ms[from]) * 1e-3;
    return 1;
}

static void add_limited(metrics_counts *c, const openpi_limited *l) {
    if (!l) return;
    const int beyond[METRICS_LIMITS] = {l->below_min, l->above_max, l->beyond_step, l->beyond_start};
    c->limited += l->changed > 0;
    for (int i = 0; i < METRICS_LIMITS; i++) c->beyond[i] += (uint64_t)beyond[i];
}

void metrics_add_request(metrics *m, const metrics_request *r) {
    metrics_counts *c = &m->counts;
    double seconds;
    pthread_mutex_lock(&m->lock);
    c->requests[r->class][r->result]++;
    observe(&c->message_bytes, bytes_bounds, (double)r->bytes);
    c->truncated += r->truncated != 0;
    add_limited(c, r->limited);
    if (r->rtc_delay >= 0) observe(&c->rtc_delay, steps_bounds, r->rtc_delay);
    for (int i = 0; i < METRICS_STAGES; i++)
        if (seconds_between(r->at_ms, (moment)i, (moment)(i + 1), &seconds))
            observe(&c->stages[i], seconds_bounds, seconds);
    if (seconds_between(r->at_ms, MOMENT_PREPARED, MOMENT_RUN, &seconds))
        observe(&c->queue, seconds_bounds, seconds);
    if (seconds_between(r->at_ms, MOMENT_ARRIVED, MOMENT_SENT, &seconds))
        observe(&c->duration, seconds_bounds, seconds);
    pthread_mutex_unlock(&m->lock);
}

void metrics_add_batch(metrics *m, int device, int requests, double seconds) {
    pthread_mutex_lock(&m->lock);
    observe(&m->counts.batch, batch_bounds, requests);
    m->counts.devices[device].busy_seconds += seconds;
    pthread_mutex_unlock(&m->lock);
}

void metrics_add_kept(metrics *m, int calls) {
    if (!calls) return;
    pthread_mutex_lock(&m->lock);
    m->counts.kept += (uint64_t)calls;
    pthread_mutex_unlock(&m->lock);
}

void metrics_add_lost(metrics *m, metrics_lost lost) {
    if (!lost.clipped && !lost.not_finite) return;
    pthread_mutex_lock(&m->lock);
    m->counts.lost.clipped += lost.clipped;
    m->counts.lost.rows += lost.rows;
    m->counts.lost.not_finite += lost.not_finite;
    pthread_mutex_unlock(&m->lock);
}

void metrics_add_rejected(metrics *m, rejection reason) {
    pthread_mutex_lock(&m->lock);
    m->counts.rejected[reason]++;
    pthread_mutex_unlock(&m->lock);
}

void metrics_add_dropped(metrics *m, drop_reason reason) {
    pthread_mutex_lock(&m->lock);
    m->counts.dropped[reason]++;
    pthread_mutex_unlock(&m->lock);
}

void metrics_add_updated(metrics *m, int done) {
    pthread_mutex_lock(&m->lock);
    m->counts.updated[done]++;
    pthread_mutex_unlock(&m->lock);
}

void metrics_add_recorded(metrics *m, int written) {
    pthread_mutex_lock(&m->lock);
    m->counts.recorded[written]++;
    pthread_mutex_unlock(&m->lock);
}

void metrics_add_shadow(metrics *m, shadow_result result, const metrics_shadow *d) {
    metrics_counts *c = &m->counts;
    pthread_mutex_lock(&m->lock);
    c->shadow[result]++;
    if (d) {
        observe(&c->shadow_rms, difference_bounds, d->rms);
        observe(&c->shadow_max, difference_bounds, d->max);
        if (d->robot_max > c->shadow_robot_max) c->shadow_robot_max = d->robot_max;
    }
    pthread_mutex_unlock(&m->lock);
}

void metrics_add_received(metrics *m, size_t bytes) {
    pthread_mutex_lock(&m->lock);
    m->counts.received_bytes += bytes;
    pthread_mutex_unlock(&m->lock);
}

void metrics_add_sent(metrics *m, size_t bytes) {
    pthread_mutex_lock(&m->lock);
    m->counts.sent_bytes += bytes;
    pthread_mutex_unlock(&m->lock);
}

metrics_counts metrics_get(metrics *m) {
    pthread_mutex_lock(&m->lock);
    metrics_counts counts = m->counts;
    pthread_mutex_unlock(&m->lock);
    return counts;
}

/* ---- the text --------------------------------------------------------------------------------------- */

static void head(text *out, const char *name, const char *type, const char *help) {
    text_put(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void put_number(text *out, const char *type, const char *name, const char *help, double value) {
    head(out, name, type, help);
    text_put(out, "%s %.17g\n", name, value);
}

/* `labels`: those besides le, each with a comma after it. */
static void put_buckets(text *out, const char *name, const char *labels, const double *bounds,
                        const histogram *h) {
    uint64_t below = 0;
    for (int i = 0; i < HISTOGRAM_BOUNDS && bounds[i] > 0; i++) {
        below += h->counts[i];
        text_put(out, "%s_bucket{%sle=\"%.15g\"} %llu\n", name, labels, bounds[i], (unsigned long long)below);
    }
    text_put(out, "%s_bucket{%sle=\"+Inf\"} %llu\n", name, labels, (unsigned long long)h->count);
    int most = (int)strlen(labels) - 1;      /* without the comma                                          */
    const char *open = *labels ? "{" : "", *close = *labels ? "}" : "";
    text_put(out, "%s_sum%s%.*s%s %.17g\n", name, open, most, labels, close, h->sum);
    text_put(out, "%s_count%s%.*s%s %llu\n", name, open, most, labels, close, (unsigned long long)h->count);
}

static void put_histogram(text *out, const char *name, const char *help, const double *bounds,
                          const histogram *h) {
    head(out, name, "histogram", help);
    put_buckets(out, name, "", bounds, h);
}

static void put_requests(text *out, const metrics_counts *c) {
    head(out, "openpi_requests_total", "counter", "Requests that came whole, by what became of them.");
    for (int class = 0; class < SCHEDULER_CLASSES; class++)
        for (int result = 0; result < REQUEST_RESULTS; result++)
            text_put(out, "openpi_requests_total{class=\"%s\",result=\"%s\"} %llu\n", class_names[class],
                     result_names[result], (unsigned long long)c->requests[class][result]);
}

static void put_durations(text *out, const metrics_counts *c) {
    put_histogram(out, "openpi_request_duration_seconds",
                  "From a request's last byte to its reply's last byte in the kernel.", seconds_bounds,
                  &c->duration);
    put_histogram(out, "openpi_queue_duration_seconds", "From prepared to the begin of the batch.",
                  seconds_bounds, &c->queue);
    head(out, "openpi_stage_duration_seconds", "histogram", "What a request spends its time with.");
    for (int i = 0; i < METRICS_STAGES; i++) {
        char label[64];
        snprintf(label, sizeof label, "stage=\"%s\",", stage_names[i]);
        put_buckets(out, "openpi_stage_duration_seconds", label, seconds_bounds, &c->stages[i]);
    }
    put_histogram(out, "openpi_batch_size", "Samples that one batch computed.", batch_bounds,
                  &c->batch);
}

static void put_connections(text *out, const metrics_counts *c, const metrics_now *now) {
    head(out, "openpi_queue_length", "gauge", "Prepared requests that wait for a device.");
    for (int i = 0; i < SCHEDULER_CLASSES; i++)
        text_put(out, "openpi_queue_length{class=\"%s\"} %d\n", class_names[i], now->queued[i]);
    put_number(out, "gauge", "openpi_connections", "WebSockets that are open.", now->connections);
    head(out, "openpi_connections_rejected_total", "counter", "Who asked for a WebSocket and got none.");
    for (int i = 0; i < REJECTIONS; i++)
        text_put(out, "openpi_connections_rejected_total{reason=\"%s\"} %llu\n", rejection_names[i],
                 (unsigned long long)c->rejected[i]);
    head(out, "openpi_connections_dropped_total", "counter", "Connections that the server ended by itself.");
    for (int i = 0; i < DROP_REASONS; i++)
        text_put(out, "openpi_connections_dropped_total{reason=\"%s\"} %llu\n", drop_label((drop_reason)i),
                 (unsigned long long)c->dropped[i]);
}

static void put_devices(text *out, const metrics_counts *c) {
    head(out, "openpi_device_busy_seconds_total", "counter", "Time in which the device computed.");
    for (int i = 0; i < c->device_count; i++) {
        text_put(out, "openpi_device_busy_seconds_total{device=");
        text_quote(out, c->devices[i].name);
        text_put(out, "} %.17g\n", c->devices[i].busy_seconds);
    }
}

static void put_process(text *out, const process *p) {
    put_number(out, "counter", "process_cpu_seconds_total", "Time of the CPU, user and system.",
               p->cpu_seconds);
    put_number(out, "gauge", "process_start_time_seconds", "When the process started, since 1970.",
               p->start_seconds);
    put_number(out, "gauge", "process_resident_memory_bytes", "Memory in RAM.", (double)p->resident_bytes);
    put_number(out, "gauge", "process_virtual_memory_bytes", "Memory in the address space.",
               (double)p->virtual_bytes);
    put_number(out, "gauge", "process_virtual_memory_max_bytes",
               "Memory that the address space may have; without a limit the largest number of 64 bits.",
               (double)p->max_virtual_bytes);
    put_number(out, "gauge", "process_open_fds", "Open file descriptors.", (double)p->open_fds);
    put_number(out, "gauge", "process_max_fds", "File descriptors that may be open.", (double)p->max_fds);
}

static void put_limits(text *out, const metrics_counts *c) {
    static const char *const names[METRICS_LIMITS] = {"min", "max", "max_step", "max_start_jump"};
    put_number(out, "counter", "openpi_replies_limited_total",
               "Replies whose actions a limit of the robot changed.", (double)c->limited);
    head(out, "openpi_numbers_beyond_limit_total", "counter",
         "Numbers of actions that were beyond a limit of the robot.");
    for (int i = 0; i < METRICS_LIMITS; i++)
        text_put(out, "openpi_numbers_beyond_limit_total{limit=\"%s\"} %llu\n", names[i],
                 (unsigned long long)c->beyond[i]);
}

static void put_lost(text *out, const metrics_lost *lost) {
    const struct {
        const char *name, *what;
        uint64_t count;
    } rows[] = {
        {"openpi_w8_clipped_total", "Numbers that a static scale of 8 bits clipped.", lost->clipped},
        {"openpi_w8_clipped_rows_total", "Rows of a layer with such a number.", lost->rows},
        {"openpi_w8_not_finite_total", "Numbers that were NaN or infinite there.", lost->not_finite},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        head(out, rows[i].name, "counter", rows[i].what);
        text_put(out, "%s{group=\"ffn\"} %llu\n", rows[i].name, (unsigned long long)rows[i].count);
    }
}

static void put_shadow(text *out, const metrics_counts *c) {
    head(out, "openpi_shadow_requests_total", "counter",
         "Requests that --shadow computed again, by what their chunks differ by, or did not.");
    for (int i = 0; i < SHADOW_RESULTS; i++)
        text_put(out, "openpi_shadow_requests_total{result=\"%s\"} %llu\n", shadow_names[i],
                 (unsigned long long)c->shadow[i]);
    put_histogram(out, "openpi_shadow_rms", "rms of a chunk's difference from the shadow's, normalised.",
                  difference_bounds, &c->shadow_rms);
    put_histogram(out, "openpi_shadow_max", "Largest difference of a chunk from the shadow's, normalised.",
                  difference_bounds, &c->shadow_max);
    put_number(out, "gauge", "openpi_shadow_largest",
               "The largest difference from the shadow so far, in the robot's units.", c->shadow_robot_max);
}

void metrics_write(const metrics_counts *c, const metrics_now *now, text *out) {
    put_requests(out, c);
    put_durations(out, c);
    put_connections(out, c, now);
    put_number(out, "counter", "openpi_received_bytes_total", "Bytes of messages from robots.",
               (double)c->received_bytes);
    put_number(out, "counter", "openpi_sent_bytes_total", "Bytes of messages to robots.",
               (double)c->sent_bytes);
    put_histogram(out, "openpi_message_bytes", "Sizes of requests.", bytes_bounds, &c->message_bytes);
    put_devices(out, c);
    put_histogram(out, "openpi_rtc_delay_steps", "Delays that chunks with real-time chunking have.",
                  steps_bounds, &c->rtc_delay);
    head(out, "openpi_recorded_requests_total", "counter", "Requests that --record wrote or left out.");
    for (int i = 0; i < 2; i++)
        text_put(out, "openpi_recorded_requests_total{result=\"%s\"} %llu\n", i ? "written" : "left_out",
                 (unsigned long long)c->recorded[i]);
    head(out, "openpi_weight_updates_total", "counter", "Updates of weights that were asked for.");
    for (int i = 0; i < 2; i++)
        text_put(out, "openpi_weight_updates_total{result=\"%s\"} %llu\n", i ? "ok" : "refused",
                 (unsigned long long)c->updated[i]);
    put_number(out, "counter", "openpi_prompts_truncated_total", "Answered requests whose prompt was cut.",
               (double)c->truncated);
    put_number(out, "counter", "openpi_prefixes_kept_total",
               "Calls of the model that took the prefix of the call before.", (double)c->kept);
    put_lost(out, &c->lost);
    put_limits(out, c);
    put_shadow(out, c);
    head(out, "openpi_build_info", "gauge", "Always 1: which openpi this is.");
    text_put(out, "openpi_build_info{version=");
    text_quote(out, now->version);
    text_put(out, "} 1\n");
    head(out, "openpi_model_notes", "gauge",
         "What loading the running model told of; a warning: its actions may not be what its user expects.");
    text_put(out, "openpi_model_notes{level=\"note\"} %d\n", now->notes);
    text_put(out, "openpi_model_notes{level=\"warning\"} %d\n", now->warnings);
    put_process(out, &now->process);
}
