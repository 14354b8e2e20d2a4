/* Sections of bench and peer files: headline, comparison, batch scaling. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"
#include "lab/draw/svg.h"

enum { BARS = 64, POINTS = 32, LABEL = 300 };

/* ---- headline ------------------------------------------------------------------------------------- */

/* Every place that a figure of one name may have: bench grows by keys that older files lack. */
static const struct {
    const char *name, *pointer, *unit;
    double factor;
    int card;
} headline[] = {
    {"device p50", "/device/p50_ms", "ms", 1, 1},
    {"host to host p50", "/host/p50_ms", "ms", 1, 1},
    {"host p95", "/host/p95_ms", "ms", 1, 0},
    {"host p99", "/host/p99_ms", "ms", 1, 1},
    {"host mean", "/host/mean_ms", "ms", 1, 0},
    {"host std", "/host/std_ms", "ms", 1, 0},
    {"host min", "/host/min_ms", "ms", 1, 0},
    {"host max", "/host/max_ms", "ms", 1, 0},
    {"device p99", "/device/p99_ms", "ms", 1, 0},
    {"calls", "/host/hz", "Hz", 1, 1},
    {"samples", "/host/samples_per_s", "/s", 1, 1},
    {"of the roof", "/device/roof_ratio", "%", 100, 1},
    {"energy of an inference", "/energy/inference_j", "J", 1, 1},
    {"energy of an action", "/energy/action_j", "J", 1, 0},
    {"power", "/energy/average_w", "W", 1, 1},
    {"samples a joule", "/energy/samples_per_j", "/J", 1, 0},
    {"rate a watt", "/energy/hz_per_w", "Hz/W", 1, 0},
    {"memory asked for", "/memory/asked_bytes", "GB", 1e-9, 0},
    {"device memory used", "/memory/device_used_bytes", "GB", 1e-9, 0},
    {"host memory at most", "/memory/peak_bytes", "GB", 1e-9, 0},
    {"weights", "/memory/weight_bytes", "GB", 1e-9, 0},
    {"ready after", "/ready_ms", "s", 1e-3, 0},
};

enum { HEADLINES = sizeof headline / sizeof *headline };

static void put_headline_figure(report_page *page, const char *tag, const figure *f, int i) {
    if (strstr(headline[i].pointer, "roof_ratio")) page_share(page, tag, f);
    else page_figure(page, tag, f, headline[i].factor, headline[i].unit);
}

static void put_cards(report_page *page, const report_file *file) {
    page_heading(page, file);
    fprintf(page->out, "<div class=\"cards\">\n");
    for (int i = 0; i < HEADLINES; i++) {
        figure f = figure_at(file, "%s", headline[i].pointer);
        if (!headline[i].card || !isfinite(f.value)) continue;
        fprintf(page->out, "<div class=\"card\">");
        put_headline_figure(page, "b", &f, i);
        page_fixed(page, "span", headline[i].name);
        fprintf(page->out, "</div>\n");
    }
    fprintf(page->out, "</div>\n");
}

static const report_file *bench_or_peer(const report_page *page, const report_file *after) {
    for (int i = after ? after->number : 0; i < page->count; i++)
        if (!strcmp(page->files[i].kind, "bench") || !strcmp(page->files[i].kind, "peer"))
            return &page->files[i];
    return NULL;
}

/* One column a file. */
static void put_headline_table(report_page *page) {
    fprintf(page->out, "<div class=\"box\"><table>\n<thead><tr><th scope=\"col\"></th>");
    for (const report_file *f = bench_or_peer(page, NULL); f; f = bench_or_peer(page, f))
        page_name(page, "th scope=\"col\"", f);
    fprintf(page->out, "</tr></thead>\n<tbody>\n");
    for (int i = 0; i < HEADLINES; i++) {
        int known = 0;
        for (const report_file *f = bench_or_peer(page, NULL); f; f = bench_or_peer(page, f))
            known |= isfinite(figure_at(f, "%s", headline[i].pointer).value);
        if (!known) continue;
        fprintf(page->out, "<tr>");
        page_fixed(page, "td", headline[i].name);
        for (const report_file *f = bench_or_peer(page, NULL); f; f = bench_or_peer(page, f)) {
            figure at = figure_at(f, "%s", headline[i].pointer);
            put_headline_figure(page, "td", &at, i);
        }
        fprintf(page->out, "</tr>\n");
    }
    page_table_end(page);
}

typedef struct latency_chart {
    const report_file *file;
    int counts[64], count;
    figure low, width, p50, p99;
} latency_chart;

static void put_latency(FILE *file, void *chart, int width) {
    const latency_chart *c = chart;
    const chart_marker markers[] = {{"p50", c->p50.value, c->p50.from}, {"p99", c->p99.value, c->p99.from}};
    chart_histogram(
        file, &(histogram_chart){.head = {c->file->name, "host to host, every run of the first batch", width},
                                 .unit = "ms",
                                 .counts = c->counts,
                                 .bin_count = c->count,
                                 .low = c->low.value,
                                 .step = c->width.value,
                                 .markers = markers,
                                 .marker_count = 2});
}

static void put_histogram(report_page *page, const report_file *f) {
    latency_chart c = {.file = f, .count = report_length(f, "/histogram/host/counts")};
    if (!c.count) return;
    if (c.count > 64) c.count = 64;
    for (int i = 0; i < c.count; i++) {
        double runs = figure_at(f, "/histogram/host/counts/%d", i).value;
        c.counts[i] = runs > 0 && runs < 1e9 ? (int)runs : 0;
    }
    c.low = figure_at(f, "/histogram/host/low_ms");
    c.width = figure_at(f, "/histogram/host/width_ms");
    c.p50 = figure_at(f, "/host/p50_ms");
    c.p99 = figure_at(f, "/host/p99_ms");
    if (isfinite(c.low.value) && isfinite(c.width.value)) page_chart(page, put_latency, &c);
}

void section_headline(report_page *page) {
    if (!report_next(page, "bench", NULL)) {
        page_missing(page, "Headline figures", "openpi bench --json bench.json");
        if (!bench_or_peer(page, NULL)) return;
    }
    page_section(page, "headline", "Headline");
    for (const report_file *f = report_next(page, "bench", NULL); f; f = report_next(page, "bench", f))
        put_cards(page, f);
    put_headline_table(page);
    for (const report_file *f = report_next(page, "bench", NULL); f; f = report_next(page, "bench", f))
        put_histogram(page, f);
    page_note(page, "Device: inputs and outputs resident there. Host to host: pictures, state and tokens in "
                    "host memory to "
                    "actions in "
                    "host memory. Both of the first batch in the file.");
    page_section_end(page);
}

/* ---- comparison ----------------------------------------------------------------------------------- */

/* Whether a file's workload is the one of these published figures, so that times may be compared. */
static int is_published(const report_file *published, const report_file *f) {
    static const char *const same[] = {"/workload/cameras", "/workload/prompt", "/workload/horizon",
                                       "/workload/steps"};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        if (!json_equal(report_at(published, "%s", same[i]), report_at(f, "%s", same[i]))) return 0;
    figure least = figure_at(published, "/workload/least_parameters");
    return figure_at(f, "/model/parameters").value >= least.value &&
           !json_is_true(report_at(f, "/workload/changing_prompts"));
}

/* Device time where there is one, else host time. */
static figure time_of(const report_file *f) {
    figure device = figure_at(f, "/device/p50_ms");
    return isfinite(device.value) ? device : figure_at(f, "/host/p50_ms");
}

static int same_workload(const report_file *a, const report_file *b) {
    static const char *const same[] = {"/workload/cameras", "/workload/prompt", "/workload/horizon",
                                       "/workload/steps",   "/model/variant",   "/batch"};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        if (!json_equal(report_at(a, "%s", same[i]), report_at(b, "%s", same[i]))) return 0;
    return 1;
}

/* Is the time of that system one of our file's workload. */
static int comparable(const report_file *published, int system, const report_file *f) {
    const char *variant = report_text(published, "/systems/%d/variant", system);
    return is_published(published, f) && !strcmp(variant, report_text(f, "/model/variant")) &&
           !(figure_at(f, "/batch").value > 1);
}

typedef struct compare_chart {
    chart_bar bars[BARS];
    char labels[BARS][LABEL];
    figure figures[BARS];
    int count;
} compare_chart;

static void add_bar(compare_chart *c, const char *label, const figure *f, int color, const char *note) {
    if (c->count == BARS) return;
    int i = c->count++;
    snprintf(c->labels[i], LABEL, "%s", label);
    c->figures[i] = *f;
    c->bars[i] = (chart_bar){.label = c->labels[i],
                             .values = {f->value},
                             .froms = {c->figures[i].from},
                             .color = color,
                             .note = note};
}

static void put_compare_chart(FILE *file, void *chart, int width) {
    const compare_chart *c = chart;
    chart_bars(file, &(bar_chart){.head = {"One call, and what others report",
                                           "device time, milliseconds, shorter is better", width},
                                  .unit = "ms",
                                  .bars = c->bars,
                                  .count = c->count});
}

/* One row of the comparison: its time, and how many times ours fits into it. The system is a file's or has a
 * name. */
static void put_row(report_page *page, const report_file *file, const char *name, const char *who,
                    const figure *ms, const figure *ours, const char *note) {
    fprintf(page->out, "<tr>");
    if (file) page_name(page, "td class=\"x\"", file);
    else page_fixed(page, "td class=\"x\"", name);
    page_figure(page, "td", ms, 1, "ms");
    if (ours) {
        figure ratio = figure_ratio(ms, ours);
        page_figure(page, "td", &ratio, 1, "×");
    } else {
        page_fixed(page, "td", "–");
    }
    page_fixed(page, "td class=\"t\"", who);
    if (file && ours) page_text(page, "td class=\"x\"", file, "/system/note");
    else page_fixed(page, "td class=\"x\"", note ? note : "");
    fprintf(page->out, "</tr>\n");
}

static int wrong_masks(const report_file *published, int i) {
    return json_is_true(report_at(published, "/systems/%d/wrong_masks", i));
}

/* One row of what others published. */
static void put_published_row(report_page *page, const report_file *published, int i, const figure *ours) {
    figure ms = figure_at(published, "/systems/%d/ms", i), ratio = figure_ratio(&ms, ours);
    fprintf(page->out, "<tr><td class=\"x\">");
    page_system(page, published, i, "name");
    fprintf(page->out, ", ");
    page_system(page, published, i, "gpu");
    fprintf(page->out, "%s</td>", wrong_masks(published, i) ? " (wrong masks)" : "");
    page_figure(page, "td", &ms, 1, "ms");
    page_figure(page, "td", &ratio, 1, "×");
    fprintf(page->out, "<td class=\"t\">");
    page_system(page, published, i, "who");
    fprintf(page->out, "</td><td class=\"x\">");
    page_system(page, published, i, "note");
    fprintf(page->out, "</td></tr>\n");
}

static void put_comparison(report_page *page, const report_file *ours) {
    static const char *const heads[] = {"<system", "time", "to ours", "<whose figure", "<what to know", NULL};
    figure mine = time_of(ours);
    page_heading(page, ours);
    page_table(page, heads);
    put_row(page, NULL, "openpi.c", "this file", &mine, NULL, NULL);
    for (const report_file *f = report_next(page, "peer", NULL); f; f = report_next(page, "peer", f)) {
        figure ms = time_of(f);
        put_row(page, f, NULL, "peer's file", &ms, same_workload(ours, f) ? &mine : NULL,
                "another workload, model or batch: not compared");
    }
    int beside = 1;
    for (const report_file *p = report_next(page, PUBLISHED, NULL); p; p = report_next(page, PUBLISHED, p)) {
        beside &= is_published(p, ours);
        for (int i = 0; i < report_length(p, "/systems"); i++)
            if (comparable(p, i, ours)) put_published_row(page, p, i, &mine);
    }
    page_table_end(page);
    if (!beside)
        page_note(page, "This file's workload is not the published one (π0 or π0.5 of full size, all "
                        "cameras, and the default prompt, horizon and steps of bench), so published figures "
                        "are not set beside it.");
}

/* A bar for each published time that is of the workload of one of our files. */
static void add_published(const report_page *page, compare_chart *c) {
    char label[LABEL];
    for (const report_file *p = report_next(page, PUBLISHED, NULL); p; p = report_next(page, PUBLISHED, p))
        for (int i = 0; i < report_length(p, "/systems"); i++) {
            int fits = 0;
            for (const report_file *f = report_next(page, "bench", NULL); f;
                 f = report_next(page, "bench", f))
                fits |= comparable(p, i, f);
            if (!fits) continue;
            figure ms = figure_at(p, "/systems/%d/ms", i);
            snprintf(label, sizeof label, "%.60s: %.140s, %.60s", report_text(p, "/systems/%d/who", i),
                     report_text(p, "/systems/%d/name", i), report_text(p, "/systems/%d/gpu", i));
            add_bar(c, label, &ms, wrong_masks(p, i) ? 4 : 6, wrong_masks(p, i) ? "wrong masks" : NULL);
        }
}

void section_compare(report_page *page) {
    compare_chart *c = allocate(sizeof *c);
    char label[LABEL];
    int ours = 0;
    c->count = 0;
    if (!bench_or_peer(page, NULL)) {
        free(c);
        return;
    }
    page_section(page, "compare", "Against other systems");
    for (const report_file *f = report_next(page, "bench", NULL); f;
         f = report_next(page, "bench", f), ours++) {
        figure ms = time_of(f);
        snprintf(label, sizeof label, "openpi.c, %s", f->name);
        add_bar(c, label, &ms, 0, NULL);
    }
    for (const report_file *f = report_next(page, "peer", NULL); f; f = report_next(page, "peer", f)) {
        figure ms = time_of(f);
        add_bar(c, f->name, &ms, 2, "peer, measured");
    }
    add_published(page, c);
    page_chart(page, put_compare_chart, c);
    for (const report_file *f = report_next(page, "bench", NULL); f; f = report_next(page, "bench", f))
        put_comparison(page, f);
    if (report_next(page, PUBLISHED, NULL)) page_masks(page);
    else page_note(page, "What others published is docs/peers.json of the project, as one more file.");
    if (!report_next(page, "peer", NULL))
        page_missing(page, "Another engine on your own card",
                     "tools/peers/realtime-vla --checkout DIR --json peer.json");
    page_section_end(page);
    free(c);
}

/* ---- batch scaling -------------------------------------------------------------------------------- */

typedef struct scaling {
    chart_series series[CHART_SERIES];
    chart_point points[CHART_SERIES][POINTS];
    figure figures[CHART_SERIES][POINTS];
    char names[CHART_SERIES][REPORT_NAME + 16];
    int count;
    const char *title, *about, *y_name;
} scaling;

/* The list of a file's batches; a file of one batch is its own list. */
static int batches_of(const report_file *f) {
    int n = report_length(f, "/batches");
    return n ? n : report_at(f, "/batch") ? 1 : 0;
}

static figure batch_figure(const report_file *f, int i, const char *rest) {
    return report_length(f, "/batches") ? figure_at(f, "/batches/%d%s", i, rest) : figure_at(f, "%s", rest);
}

static void add_point(scaling *s, double x, const figure *f) {
    chart_series *one = &s->series[s->count - 1];
    if (one->count == POINTS || !isfinite(f->value)) return;
    s->figures[s->count - 1][one->count] = *f;
    s->points[s->count - 1][one->count] =
        (chart_point){.x = x, .y = f->value, .from = s->figures[s->count - 1][one->count].from};
    one->count++;
}

static int add_series(scaling *s, const char *name, chart_style style) {
    if (s->count == CHART_SERIES) return 0;
    int i = s->count++;
    snprintf(s->names[i], sizeof s->names[i], "%s", name);
    s->series[i] = (chart_series){s->names[i], style, s->points[i], 0};
    return 1;
}

static void put_scaling(FILE *file, void *chart, int width) {
    const scaling *s = chart;
    chart_xy(file, &(xy_chart){.head = {s->title, s->about, width},
                               .x_name = "batch",
                               .y_name = s->y_name,
                               .x = CHART_LOG2,
                               .series = s->series,
                               .count = s->count});
}

static void add_files(const report_page *page, scaling *s, const char *rest) {
    for (const report_file *f = bench_or_peer(page, NULL); f; f = bench_or_peer(page, f)) {
        char name[REPORT_NAME + 16];
        snprintf(name, sizeof name, "%s%s", strcmp(f->kind, "peer") ? "openpi.c, " : "peer: ", f->name);
        if (!add_series(s, name, CHART_LINE)) return;
        for (int i = 0; i < batches_of(f); i++) {
            figure batch = batch_figure(f, i, "/batch"), value = batch_figure(f, i, rest);
            add_point(s, batch.value, &value);
        }
    }
}

static void put_scaling_table(report_page *page, const report_file *f) {
    static const char *const heads[] = {
        "batch", "device p50", "host p50", "host p99", "device samples", "a sample, on the device", NULL};
    page_heading(page, f);
    page_table(page, heads);
    for (int i = 0; i < batches_of(f); i++) {
        figure batch = batch_figure(f, i, "/batch"), device = batch_figure(f, i, "/device/p50_ms");
        figure host = batch_figure(f, i, "/host/p50_ms"), late = batch_figure(f, i, "/host/p99_ms");
        figure rate = batch_figure(f, i, "/device/samples_per_s"), each = figure_ratio(&device, &batch);
        fprintf(page->out, "<tr>");
        page_figure(page, "td", &batch, 1, NULL);
        page_figure(page, "td", &device, 1, "ms");
        page_figure(page, "td", &host, 1, "ms");
        page_figure(page, "td", &late, 1, "ms");
        page_figure(page, "td", &rate, 1, "/s");
        page_figure(page, "td", &each, 1, "ms");
        fprintf(page->out, "</tr>\n");
    }
    page_table_end(page);
}

/* Are the published series of the workload of one of our files. */
static int has_series(const report_page *page, const report_file *published) {
    for (const report_file *f = report_next(page, "bench", NULL); f; f = report_next(page, "bench", f))
        if (is_published(published, f) &&
            !strcmp(report_text(published, "/scaling/variant"), report_text(f, "/model/variant")))
            return 1;
    return 0;
}

/* The series of all files of published figures. Returns whether there is one. */
static int add_published_series(const report_page *page, scaling *s) {
    int any = 0;
    for (const report_file *p = report_next(page, PUBLISHED, NULL); p; p = report_next(page, PUBLISHED, p)) {
        if (!has_series(page, p)) continue;
        for (int i = 0; i < report_length(p, "/scaling/series"); i++) {
            if (!add_series(s, report_text(p, "/scaling/series/%d/name", i), CHART_DASHED)) return any;
            any = 1;
            for (int b = 0; b < report_length(p, "/scaling/batches"); b++) {
                figure rate = figure_at(p, "/scaling/series/%d/samples_per_s/%d", i, b);
                add_point(s, figure_at(p, "/scaling/batches/%d", b).value, &rate);
            }
        }
    }
    return any;
}

void section_scaling(report_page *page) {
    int sweeps = 0;
    for (const report_file *f = bench_or_peer(page, NULL); f; f = bench_or_peer(page, f))
        sweeps |= batches_of(f) > 1;
    if (!sweeps) {
        page_missing(page, "Batch scaling", "openpi bench --batch 1,2,4,8,16,32,64 --json batches.json");
        return;
    }
    scaling *s = allocate(sizeof *s);
    page_section(page, "scaling", "Batch scaling");
    *s = (scaling){.title = "Throughput",
                   .about = "on the device: inputs and outputs resident there",
                   .y_name = "samples/s"};
    add_files(page, s, "/device/samples_per_s");
    const int beside = add_published_series(page, s);
    page_chart(page, put_scaling, s);
    *s = (scaling){.title = "Latency", .about = "on the device, p50", .y_name = "ms"};
    add_files(page, s, "/device/p50_ms");
    page_chart(page, put_scaling, s);
    for (const report_file *f = bench_or_peer(page, NULL); f; f = bench_or_peer(page, f))
        if (batches_of(f) > 1) put_scaling_table(page, f);
    if (beside) page_masks(page);
    page_section_end(page);
    free(s);
}
