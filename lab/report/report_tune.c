/* The section of tune files: each shape's winner beside the heuristic's choice and the vendor's library. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"
#include "lab/draw/svg.h"

enum { BARS = 24, LABEL = 160, SIZE = 80 };

typedef struct tune_chart {
    const report_file *file;
    chart_bar bars[BARS];
    char labels[BARS][LABEL];
    figure figures[BARS][2];
    int count;
} tune_chart;

/* "gemm 788 x 2048 x 32768": what identifies a shape. */
static void size_text(const report_file *f, int i, char text[SIZE]) {
    static const char *const keys[] = {"m", "n", "k", "heads", "head_dim"};
    const char *between = "";
    snprintf(text, SIZE, "%.30s ", report_text(f, "/shapes/%d/op", i));
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
        figure at = figure_at(f, "/shapes/%d/%s", i, keys[k]);
        if (!isfinite(at.value)) continue;
        snprintf(text + strlen(text), SIZE - strlen(text), "%s%.0f", between, at.value);
        between = "×";
    }
}

static void put_tune_chart(FILE *file, void *chart, int width) {
    static const char *const parts[] = {"own kernel", "the vendor's library"};
    const tune_chart *c = chart;
    chart_bars(file, &(bar_chart){.head = {"Products, own kernel and library", c->file->name, width},
                                  .unit = "µs",
                                  .parts = parts,
                                  .part_count = 2,
                                  .grouped = 1,
                                  .bars = c->bars,
                                  .count = c->count});
}

/* The shapes that the library was timed for, the longest first in the file's order. */
static void put_against_library(report_page *page, const report_file *f) {
    tune_chart *c = allocate(sizeof *c);
    memset(c, 0, sizeof *c);
    c->file = f;
    for (int i = 0; i < report_length(f, "/shapes") && c->count < BARS; i++) {
        char size[SIZE];
        figure library = figure_at(f, "/shapes/%d/library_us", i);
        if (!isfinite(library.value)) continue;
        int b = c->count++;
        size_text(f, i, size);
        snprintf(c->labels[b], LABEL, "%.60s, %s", report_text(f, "/shapes/%d/name", i), size);
        c->figures[b][0] = figure_at(f, "/shapes/%d/time_us", i);
        c->figures[b][1] = library;
        c->bars[b] = (chart_bar){.label = c->labels[b],
                                 .values = {c->figures[b][0].value, library.value},
                                 .froms = {c->figures[b][0].from, c->figures[b][1].from}};
    }
    if (c->count) page_chart(page, put_tune_chart, c);
    free(c);
}

static void put_shapes(report_page *page, const report_file *f) {
    static const char *const heads[] = {"<operation",  "<shape",    "calls", "<winner",
                                        "time",        "heuristic", "won",   "library",
                                        "of the roof", "<in place", NULL};
    page_table(page, heads);
    for (int i = 0; i < report_length(f, "/shapes"); i++) {
        char pointer[64], size[SIZE];
        figure calls = figure_at(f, "/shapes/%d/calls", i), time = figure_at(f, "/shapes/%d/time_us", i);
        figure heuristic = figure_at(f, "/shapes/%d/heuristic_us", i), won = figure_ratio(&heuristic, &time);
        figure library = figure_at(f, "/shapes/%d/library_us", i),
               roof = figure_at(f, "/shapes/%d/roof_ratio", i);
        fprintf(page->out, "<tr>");
        snprintf(pointer, sizeof pointer, "/shapes/%d/name", i);
        page_text(page, "td", f, pointer);
        size_text(f, i, size);
        fprintf(page->out, "<td class=\"t\" data-from=\"%d:/shapes/%d\" data-how=\"shape\">", f->number, i);
        svg_escape(page->out, size, SIZE);
        fprintf(page->out, "</td>");
        page_count(page, "td", &calls);
        snprintf(pointer, sizeof pointer, "/shapes/%d/choice", i);
        page_text(page, "td class=\"t\"", f, pointer);
        page_figure(page, "td", &time, 1, "µs");
        page_figure(page, "td", &heuristic, 1, "µs");
        page_figure(page, "td", &won, 1, "×");
        page_figure(page, "td", &library, 1, "µs");
        page_share(page, "td", &roof);
        snprintf(pointer, sizeof pointer, "/shapes/%d/outcome", i);
        page_text(page, "td class=\"t\"", f, pointer);
        fprintf(page->out, "</tr>\n");
    }
    page_table_end(page);
}

static void put_plans(report_page *page, const report_file *f) {
    static const char *const heads[] = {"<variant",          "batch",   "horizon", "cameras",
                                        "without the table", "with it", "faster",  NULL};
    if (!report_length(f, "/plans")) return;
    page_table(page, heads);
    for (int i = 0; i < report_length(f, "/plans"); i++) {
        static const char *const keys[] = {"batch", "horizon", "cameras"};
        char pointer[64];
        figure before = figure_at(f, "/plans/%d/before_ms", i), after = figure_at(f, "/plans/%d/after_ms", i);
        figure ratio = figure_ratio(&before, &after);
        fprintf(page->out, "<tr>");
        snprintf(pointer, sizeof pointer, "/plans/%d/variant", i);
        page_text(page, "td", f, pointer);
        for (int k = 0; k < 3; k++) {
            figure at = figure_at(f, "/plans/%d/%s", i, keys[k]);
            page_figure(page, "td", &at, 1, NULL);
        }
        page_figure(page, "td", &before, 1, "ms");
        page_figure(page, "td", &after, 1, "ms");
        page_figure(page, "td", &ratio, 1, "×");
        fprintf(page->out, "</tr>\n");
    }
    page_table_end(page);
}

void section_tune(report_page *page) {
    const report_file *f = report_next(page, "tune", NULL);
    if (!f) {
        page_missing(page, "Tuned shapes", "openpi tune --json tune.json");
        return;
    }
    page_section(page, "tune", "Tuned shapes");
    for (; f; f = report_next(page, "tune", f)) {
        page_heading(page, f);
        put_against_library(page, f);
        put_shapes(page, f);
        put_plans(page, f);
    }
    page_note(page, "In place: a winner that does not win inside the whole pipeline is rejected, and the "
                    "heuristic's choice stays.");
    page_section_end(page);
}
