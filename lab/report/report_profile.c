/* Sections of profile files: stages (of bench and trace files too), the roofline of every operation, the
 * largest gaps. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"
#include "lab/draw/svg.h"

enum { STAGE_BARS = 32, LABEL = 240, GAPS = 15 };

/* ---- stages --------------------------------------------------------------------------------------- */

typedef struct stage_chart {
    chart_bar bars[STAGE_BARS];
    char labels[STAGE_BARS][LABEL];
    figure figures[STAGE_BARS][CHART_PARTS];
    char sums[STAGE_BARS][FIGURE_FROM];
    const char *parts[CHART_PARTS];
    int part_count, count;
} stage_chart;

static int part_of(stage_chart *c, const char *name) {
    for (int i = 0; i < c->part_count; i++)
        if (!strcmp(c->parts[i], name)) return i;
    if (c->part_count == CHART_PARTS) return -1;
    c->parts[c->part_count] = name;
    return c->part_count++;
}

static const char *stage_key(const report_file *f) {
    return strcmp(f->kind, "profile") ? "p50_ms" : "time_us";
}
static double stage_factor(const report_file *f) { return strcmp(f->kind, "profile") ? 1 : 1e-3; }

static void add_stages(stage_chart *c, const report_file *f) {
    if (c->count == STAGE_BARS) return;
    int b = c->count++;
    snprintf(c->labels[b], LABEL, "%s: %s", f->kind, f->name);
    snprintf(c->sums[b], FIGURE_FROM, "%d:/stages/*/%s", f->number, stage_key(f));
    c->bars[b] = (chart_bar){.label = c->labels[b], .from = c->sums[b]};
    for (int p = 0; p < CHART_PARTS; p++) c->bars[b].values[p] = NAN;
    for (int i = 0; i < report_length(f, "/stages"); i++) {
        figure ms = figure_at(f, "/stages/%d/%s", i, stage_key(f));
        int p = part_of(c, report_text(f, "/stages/%d/name", i));
        if (p < 0) continue;
        c->figures[b][p] = ms;
        c->bars[b].values[p] = ms.value * stage_factor(f);
        c->bars[b].froms[p] = c->figures[b][p].from;
    }
}

static void put_stage_chart(FILE *file, void *chart, int width) {
    const stage_chart *c = chart;
    chart_bars(file, &(bar_chart){.head = {"Where a call's time goes",
                                           "milliseconds a stage; the sum at the end", width},
                                  .unit = "ms",
                                  .parts = c->parts,
                                  .part_count = c->part_count,
                                  .bars = c->bars,
                                  .count = c->count});
}

static void put_stage_table(report_page *page, const report_file *f) {
    static const char *const heads[] = {"stage",       "time",      "arithmetic", "bandwidth",
                                        "of the roof", "<bound by", NULL};
    int profile = !strcmp(f->kind, "profile");
    page_heading(page, f);
    page_table(page, heads);
    for (int i = 0; i < report_length(f, "/stages"); i++) {
        char pointer[64];
        figure ms = figure_at(f, "/stages/%d/%s", i, stage_key(f)),
               tflops = figure_at(f, "/stages/%d/tflops", i);
        figure bytes = figure_at(f, "/stages/%d/%s", i, profile ? "tbs" : "gbs"),
               roof = figure_at(f, "/stages/%d/roof_ratio", i);
        fprintf(page->out, "<tr>");
        snprintf(pointer, sizeof pointer, "/stages/%d/name", i);
        page_text(page, "td", f, pointer);
        page_figure(page, "td", &ms, stage_factor(f), "ms");
        page_figure(page, "td", &tflops, 1, "TFLOP/s");
        page_figure(page, "td", &bytes, 1, profile ? "TB/s" : "GB/s");
        page_share(page, "td", &roof);
        snprintf(pointer, sizeof pointer, "/stages/%d/bound", i);
        page_text(page, "td class=\"t\"", f, pointer);
        fprintf(page->out, "</tr>\n");
    }
    page_table_end(page);
}

static void put_totals(report_page *page, const report_file *f) {
    static const struct {
        const char *name, *pointer, *unit;
    } rows[] = {
        {"plain replay", "/totals/replay_ms", "ms"},   {"timed replay", "/totals/instrumented_ms", "ms"},
        {"sum of operations", "/totals/sum_ms", "ms"}, {"remainder", "/totals/remainder_ms", "ms"},
        {"launches", "/totals/launches", NULL},        {"graph nodes", "/totals/nodes", NULL}};
    fprintf(page->out, "<div class=\"cards\">\n");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        figure at = figure_at(f, "%s", rows[i].pointer);
        if (!isfinite(at.value)) continue;
        fprintf(page->out, "<div class=\"card\">");
        page_figure(page, "b", &at, 1, rows[i].unit);
        page_fixed(page, "span", rows[i].name);
        fprintf(page->out, "</div>\n");
    }
    fprintf(page->out, "</div>\n");
}

void section_stages(report_page *page) {
    static const char *const kinds[] = {"bench", "profile"};
    stage_chart *c = allocate(sizeof *c);
    memset(c, 0, sizeof *c);
    for (int k = 0; k < 2; k++)
        for (const report_file *f = report_next(page, kinds[k], NULL); f; f = report_next(page, kinds[k], f))
            add_stages(c, f);
    if (!c->count) {
        page_missing(page, "Stages", "openpi bench --json bench.json");
        free(c);
        return;
    }
    page_section(page, "stages", "Stages");
    page_chart(page, put_stage_chart, c);
    for (int k = 0; k < 2; k++)
        for (const report_file *f = report_next(page, kinds[k], NULL); f;
             f = report_next(page, kinds[k], f)) {
            put_stage_table(page, f);
            if (k) put_totals(page, f);
        }
    page_section_end(page);
    free(c);
}

/* ---- roofline ------------------------------------------------------------------------------------- */

typedef struct roofline {
    const report_file *file;
    chart_series series[CHART_SERIES];
    chart_point *points; /* points, one series after the other                                    */
    figure *figures;
    char (*tips)[LABEL];
    int count;
    figure tflops, gbs;
    char roof_name[LABEL], roof_from[2 * FIGURE_FROM];
} roofline;

/* The ceilings of the arithmetic that the file ran in. */
static void roofs_of(const report_file *f, figure *tflops, figure *gbs) {
    *tflops = figure_at(f, "/roofs/tflops");
    if (!isfinite(tflops->value))
        *tflops = figure_at(f, "/roofs/%s_tflops", report_text(f, "/machine/dtype"));
    *gbs = figure_at(f, "/roofs/gbs");
    if (!isfinite(gbs->value)) *gbs = figure_at(f, "/roofs/read_gbs");
}

static void add_op(roofline *r, int at, int op) {
    const report_file *f = r->file;
    figure gflop = figure_at(f, "/ops/%d/gflop", op), mb = figure_at(f, "/ops/%d/mb", op),
           time = figure_at(f, "/ops/%d/time_us", op);
    char speed[SVG_NUMBER], took[SVG_NUMBER];
    figure *y = &r->figures[at];
    *y = figure_at(f, "/ops/%d/tflops", op);
    snprintf(r->tips[at], LABEL, "%.60s %.60s: %s TFLOP/s, %s µs", report_text(f, "/ops/%d/name", op),
             report_text(f, "/ops/%d/shape", op), svg_number(y->value, speed), svg_number(time.value, took));
    r->points[at] = (chart_point){.x = mb.value > 0 ? gflop.value * 1e3 / mb.value : NAN,
                                  .y = y->value,
                                  .size = time.value,
                                  .tip = r->tips[at],
                                  .from = y->from};
}

/* Ops in stages, a series each, in the order of their first op. */
static void collect(roofline *r) {
    int ops = report_length(r->file, "/ops"), at = 0;
    for (int i = 0; i < ops; i++) {
        const char *stage = report_text(r->file, "/ops/%d/stage", i);
        int known = 0;
        for (int s = 0; s < r->count; s++) known |= !strcmp(r->series[s].name, stage);
        if (known || r->count == CHART_SERIES) continue;
        chart_series *one = &r->series[r->count++];
        *one = (chart_series){stage, CHART_POINTS, r->points + at, 0};
        for (int j = i; j < ops; j++) {
            if (strcmp(report_text(r->file, "/ops/%d/stage", j), stage)) continue;
            add_op(r, at++, j);
            one->count++;
        }
    }
}

static void put_roofline(FILE *file, void *chart, int width) {
    const roofline *r = chart;
    chart_xy(file, &(xy_chart){.head = {r->file->name, "every operation of a call; area: its time", width},
                               .x_name = "FLOP a byte",
                               .y_name = "TFLOP/s",
                               .x = CHART_LOG10,
                               .y = CHART_LOG10,
                               .series = r->series,
                               .count = r->count,
                               .roof_flat = isfinite(r->tflops.value) ? r->tflops.value : 0,
                               .roof_slope = isfinite(r->gbs.value) ? r->gbs.value * 1e-3 : 0,
                               .roof_name = r->roof_name,
                               .roof_from = r->roof_from});
}

void section_roofline(report_page *page) {
    const report_file *f = report_next(page, "profile", NULL);
    if (!f) {
        page_missing(page, "Roofline and gaps", "openpi profile --json profile.json");
        return;
    }
    page_section(page, "roofline", "Roofline");
    for (; f; f = report_next(page, "profile", f)) {
        int ops = report_length(f, "/ops");
        size_t capacity = (size_t)(ops > 0 ? ops : 1);
        roofline *r = allocate(sizeof *r);
        char tflops[SVG_NUMBER], gbs[SVG_NUMBER];
        memset(r, 0, sizeof *r);
        r->file = f;
        r->points = allocate(capacity * sizeof *r->points);
        r->figures = allocate(capacity * sizeof *r->figures);
        r->tips = allocate(capacity * sizeof *r->tips);
        roofs_of(f, &r->tflops, &r->gbs);
        snprintf(r->roof_name, sizeof r->roof_name, "measured roof: %s TFLOP/s, %s GB/s",
                 svg_number(r->tflops.value, tflops), svg_number(r->gbs.value, gbs));
        snprintf(r->roof_from, sizeof r->roof_from, "%s %s", r->tflops.from, r->gbs.from);
        collect(r);
        page_chart(page, put_roofline, r);
        free(r->points);
        free(r->figures);
        free(r->tips);
        free(r);
    }
    page_note(page, "Bytes count every operand once. An operation on the roof cannot be made faster on this "
                    "machine, only "
                    "avoided.");
    page_section_end(page);
}

/* ---- gaps ----------------------------------------------------------------------------------------- */

/* Operations of one name, stage and shape, over layers and steps. */
typedef struct gap {
    const char *stage, *name, *shape;
    double time_us, gap_us;
    int ops, first;
} gap;

static int by_gap(const void *a, const void *b) {
    double x = ((const gap *)a)->gap_us, y = ((const gap *)b)->gap_us;
    return (x < y) - (x > y);
}

static int gather(const report_file *f, gap *gaps) {
    int count = 0;
    for (int i = 0; i < report_length(f, "/ops"); i++) {
        gap one = {report_text(f, "/ops/%d/stage", i),
                   report_text(f, "/ops/%d/name", i),
                   report_text(f, "/ops/%d/shape", i),
                   figure_at(f, "/ops/%d/time_us", i).value,
                   figure_at(f, "/ops/%d/gap_us", i).value,
                   1,
                   i};
        int g = 0;
        if (!isfinite(one.gap_us)) continue;
        while (g < count && (strcmp(gaps[g].name, one.name) || strcmp(gaps[g].stage, one.stage) ||
                             strcmp(gaps[g].shape, one.shape)))
            g++;
        if (g == count) gaps[count++] = (gap){one.stage, one.name, one.shape, 0, 0, 0, i};
        gaps[g].time_us += one.time_us;
        gaps[g].gap_us += one.gap_us;
        gaps[g].ops++;
    }
    qsort(gaps, (size_t)count, sizeof *gaps, by_gap);
    return count;
}

static figure sum_figure(const report_file *f, const gap *g, const char *key, double value) {
    figure sum = {.value = value, .how = "sum"};
    snprintf(sum.from, sizeof sum.from, "%d:/ops/*/%s", f->number, key);
    snprintf(sum.where, sizeof sum.where, "%.40s|%.60s|%.60s", g->stage, g->name, g->shape);
    return sum;
}

static void put_word(report_page *page, const report_file *f, const char *tag, int op, const char *key) {
    char pointer[64];
    snprintf(pointer, sizeof pointer, "/ops/%d/%s", op, key);
    page_text(page, tag, f, pointer);
}

static void put_gaps(report_page *page, const report_file *f) {
    static const char *const heads[] = {"<operation", "gap to the roof", "time", "operations",
                                        "<stage",     "<shape",          NULL};
    int ops = report_length(f, "/ops");
    gap *gaps = allocate((size_t)(ops > 0 ? ops : 1) * sizeof *gaps);
    int count = gather(f, gaps);
    page_heading(page, f);
    page_table(page, heads);
    for (int i = 0; i < count && i < GAPS; i++) {
        figure time = sum_figure(f, &gaps[i], "time_us", gaps[i].time_us),
               left = sum_figure(f, &gaps[i], "gap_us", gaps[i].gap_us);
        figure many = sum_figure(f, &gaps[i], "*", gaps[i].ops);
        many.how = "count";
        many.whole = 1;
        fprintf(page->out, "<tr>");
        put_word(page, f, "td", gaps[i].first, "name");
        page_gap(page, "td", &left, "µs");
        page_figure(page, "td", &time, 1, "µs");
        page_figure(page, "td", &many, 1, NULL);
        put_word(page, f, "td class=\"t\"", gaps[i].first, "stage");
        put_word(page, f, "td class=\"t\"", gaps[i].first, "shape");
        fprintf(page->out, "</tr>\n");
    }
    page_table_end(page);
    free(gaps);
}

void section_gaps(report_page *page) {
    const report_file *f = report_next(page, "profile", NULL);
    if (!f) return;
    page_section(page, "gaps", "What is there to be won");
    for (; f; f = report_next(page, "profile", f)) put_gaps(page, f);
    page_note(page, "Gap: measured time less the time at the roof, summed over layers and steps. Nothing "
                    "runs faster than its "
                    "roof: where the numbers say so, they are off by the noise of the machine, or operands "
                    "came from a cache.");
    page_section_end(page);
}
