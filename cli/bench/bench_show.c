/* What bench prints: one block a batch, and a table over all of them. */
#include <stdio.h>
#include <string.h>

#include "bench.h"
#include "lab/verbs/roof.h"
#include "table.h"

static const char *or_blank(const char *text) { return text[0] ? text : "-"; }

/* ---- the head ------------------------------------------------------------------------------------- */

/* A board's power mode and clocks, and what its owner can do for better figures. */
static void put_board(power *power) {
    const power_facts *f = power_get_facts(power);
    power_reading now;
    if (f->mode[0]) {
        power_clocks(power, &now);
        printf("power mode %s", f->mode);
        if (now.core_mhz > 0) printf(", GPU clock %.0f MHz", now.core_mhz);
        if (now.core_mhz > 0 && f->core_max_mhz > 0) printf(" of %.0f", f->core_max_mhz);
        putchar('\n');
    }
    if (f->advice[0]) fprintf(stderr, "openpi bench: warning: %s\n", f->advice);
}

void bench_put_head(const bench_job *j) {
    const bench_roofs *r = &j->roofs;
    subject_print(&j->subject);
    printf("%s, driver %s, openpi %s (%s)\n", or_blank(j->subject.hardware), or_blank(j->driver),
           openpi_version(), openpi_revision);
    put_board(j->power);
    printf("%d warm-up and %d measured runs", j->v.warmup, j->v.runs);
    if (j->v.changing_prompts) printf(", each with another prompt of 1 to %d tokens", j->v.subject.prompt);
    putchar('\n');
    if (r->tflops <= 0) return;
    printf("roofs measured just now: %.3f TFLOP/s, read %.1f GB/s, copy %.1f GB/s\n", r->tflops, r->gbs,
           r->copy_gbs);
}

/* ---- one batch ------------------------------------------------------------------------------------ */

static void figures_row(table *t, const char *name, const figures *f, double floor_ms) {
    const double values[] = {f->mean_ms, f->std_ms, f->min_ms, f->max_ms, f->p50_ms, f->p95_ms, f->p99_ms};
    char roof[ROOF_TEXT];
    table_cell(t, "%s", name);
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) table_cell(t, "%.3f", values[i]);
    table_cell(t, "%.3f", f->p99_ms / f->p50_ms);
    if (floor_ms > 0) table_cell(t, "%s", roof_share(floor_ms / f->p50_ms, roof));
    else table_cell(t, "%s", "");
}

static void put_figures(const bench_report *r) {
    static const char *const heads[] = {"ms",  "mean", "std", "min",     "max",
                                        "p50", "p95",  "p99", "p99/p50", ""};
    table *t = table_create("lrrrrrrrrr");
    for (size_t i = 0; i + 1 < sizeof heads / sizeof *heads; i++) table_cell(t, "%s", heads[i]);
    table_cell(t, "%s", r->floor_ms > 0 ? "roof" : "");
    figures_row(t, "host", &r->host, r->floor_ms);
    figures_row(t, "device", &r->device, r->floor_ms);
    table_print(t, stdout, 0);
}

static void put_stages(const bench_report *r) {
    table *t = table_create("lrrrrrl");
    const int roofs = r->floor_ms > 0;
    const char *const heads[] = {"stage", "p50 ms", "floor ms", "TFLOP/s", "GB/s", "roof", ""};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        table_cell(t, "%s", roofs || (i != 2 && i != 5) ? heads[i] : "");
    char roof[ROOF_TEXT];
    for (int i = 0; i < r->stage_count; i++) {
        const bench_stage *s = &r->stages[i];
        table_cell(t, "%s", openpi_stage_name(s->stage));
        table_cell(t, "%.3f", s->ms.p50_ms);
        if (s->floor_ms > 0) table_cell(t, "%.3f", s->floor_ms);
        else table_cell(t, "%s", "");
        if (s->flops > 0) {
            table_cell(t, "%.3f", s->tflops);
            table_cell(t, "%.1f", s->gbs);
        } else {
            table_cell(t, "%s", "");
            table_cell(t, "%s", "");
        }
        if (s->roof_ratio > 0) table_cell(t, "%s", roof_share(s->roof_ratio, roof));
        else table_cell(t, "%s", "");
        table_cell(t, "%s", s->roof_ratio > 0 ? s->memory_bound ? "of memory" : "of compute" : "");
    }
    table_print(t, stdout, 0);
}

/* A bar a bin; its length is the bin's count. */
static void put_histogram(const char *name, const histogram *h) {
    enum { LENGTH = 60 };
    int most = 1, last = 0;
    for (int i = 0; i < HISTOGRAM_BINS; i++) {
        if (h->counts[i] > most) most = h->counts[i];
        if (h->counts[i]) last = i;
    }
    printf("\n%s, ms from\n", name);
    for (int i = 0; i <= last; i++) {
        int length = (h->counts[i] * LENGTH + most - 1) / most;
        printf("%10.3f%s", h->low_ms + i * h->width_ms,
               i == HISTOGRAM_BINS - 1 ? " and above " : "           ");
        for (int c = 0; c < length; c++) putchar('#');
        printf("%s%d\n", length ? " " : "", h->counts[i]);
    }
}

static void put_memory(const bench_job *j, const bench_outcome *o) {
    const bench_report *r = &o->report;
    double weights = (double)j->subject.info.weight_bytes / 1e9, session = (double)r->session_bytes / 1e9;
    printf("\nmemory: asked %.3f GB (weights %.3f, session %.3f)", weights + session, weights, session);
    if (r->device_total_bytes)
        printf("; %.3f of the device's %.1f GB in use by everybody", (double)r->device_used_bytes / 1e9,
               (double)r->device_total_bytes / 1e9);
    printf("; process %.2f GB at most, of it anonymous %.2f GB\n", (double)r->peak_bytes / 1e9,
           (double)r->anonymous_bytes / 1e9);
}

static void put_energy(const bench_job *j, const bench_outcome *o) {
    const energy_report *e = &o->energy;
    const power_facts *f = power_get_facts(j->power);
    if (o->no_energy[0]) printf("energy: not readable here: %s\n", o->no_energy);
    if (e->calls <= 0) return;
    double samples = e->calls * o->batch, watts = e->energy_j / e->window_s;
    printf("energy: %.3f J an inference, %.4f J an action, %.0f W; %.4f samples/J, %.4f Hz/W (%s, %.1f s, "
           "%.0f calls; %s)\n",
           e->energy_j / samples, e->energy_j / samples / j->v.subject.horizon, watts, samples / e->energy_j,
           e->calls / e->window_s / watts, f->counter, e->window_s, e->calls, f->matched);
    if (e->core_mhz <= 0) return;
    printf("clocks meanwhile: core %.0f MHz", e->core_mhz);
    if (f->core_max_mhz > 0) printf(" of %.0f", f->core_max_mhz);
    if (e->memory_mhz > 0) printf(", memory %.0f MHz", e->memory_mhz);
    if (f->limit_w > 0) printf(", power limit %.0f W", f->limit_w);
    printf("%s%s\n", e->held[0] ? "; held down by " : "", e->held);
}

void bench_put_outcome(const bench_job *j, const bench_outcome *o) {
    const bench_report *r = &o->report;
    printf("\nbatch %d\n", o->batch);
    put_figures(r);
    double hz = 1e3 / r->host.p50_ms, device_hz = 1e3 / r->device.p50_ms;
    int gpu = r->device_total_bytes > 0;
    printf("%.3f Hz, %.3f samples/s", hz, hz * o->batch);
    if (gpu) printf(" host to host; %.3f Hz, %.3f samples/s on the device", device_hz, device_hz * o->batch);
    printf("; %.3f TFLOP and %.2f GB of weights a call\n\n", r->flops * 1e-12, r->weight_bytes * 1e-9);
    put_stages(r);
    if (j->v.histogram) put_histogram(gpu ? "device" : "host", &r->device_times);
    if (j->v.histogram && gpu) put_histogram("host", &r->host_times);
    put_memory(j, o);
    put_energy(j, o);
}

/* ---- all batches ---------------------------------------------------------------------------------- */

void bench_put_scaling(const bench_job *j) {
    static const char *const heads[] = {"batch",     "device ms", "host ms",    "ms a sample", "samples/s",
                                        "gain",      "roof",      "session GB", "J"};
    const bench_outcome *first = &j->outcomes[0];
    table *t = table_create("rrrrrrrrr");
    double base = first->batch / first->report.device.p50_ms;
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) table_cell(t, "%s", heads[i]);
    for (int i = 0; i < j->count; i++) {
        const bench_outcome *o = &j->outcomes[i];
        double ms = o->report.device.p50_ms, rate = o->batch / ms;
        table_cell(t, "%d", o->batch);
        table_cell(t, "%.3f", ms);
        table_cell(t, "%.3f", o->report.host.p50_ms);
        table_cell(t, "%.3f", ms / o->batch);
        table_cell(t, "%.2f", rate * 1e3);
        table_cell(t, "%.2f", rate / base);
        if (o->report.floor_ms > 0) table_cell(t, "%.1f %%", o->report.floor_ms / ms * 100);
        else table_cell(t, "-");
        table_cell(t, "%.3f", (double)o->report.session_bytes / 1e9);
        if (o->energy.calls > 0) table_cell(t, "%.3f", o->energy.energy_j / o->energy.calls / o->batch);
        else table_cell(t, "-");
    }
    printf("\nscaling: medians, samples/s on the device, gain over the first line's, J an inference\n");
    table_print(t, stdout, 0);
}
