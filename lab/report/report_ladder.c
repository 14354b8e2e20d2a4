/* The section of ladder files: what every optimisation is worth, rung by rung, and what is lost without
 * it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"
#include "lab/draw/svg.h"

enum { BARS = 40, LABEL = 120, NOTE = 140 };

typedef struct ladder_chart {
    const report_file *file;
    const char *title, *about;
    chart_bar bars[BARS];
    char labels[BARS][LABEL], notes[BARS][NOTE];
    figure figures[BARS];
    int count;
} ladder_chart;

/* `list`: "climb" or "leave_one_out". A rung without a switch is the foot: everything off. */
static void fill(ladder_chart *c, const char *list, const char *before, const char *change) {
    const report_file *f = c->file;
    c->count = 0;
    for (int i = 0; i < report_length(f, "/%s", list) && c->count < BARS; i++) {
        const char *name = report_text(f, "/%s/%d/switch", list, i),
                   *reason = report_text(f, "/%s/%d/reason", list, i);
        figure gain = figure_at(f, "/%s/%d/%s", list, i, change);
        int b = c->count++;
        char text[SVG_NUMBER];
        c->figures[b] = figure_at(f, "/%s/%d/p50_ms", list, i);
        if (*name) snprintf(c->labels[b], LABEL, "%s%.100s", before, name);
        else snprintf(c->labels[b], LABEL, "all off");
        if (*reason) snprintf(c->notes[b], NOTE, "%.130s", reason);
        else if (isfinite(gain.value) && *name)
            snprintf(c->notes[b], NOTE, "%s×", svg_number(gain.value, text));
        else c->notes[b][0] = 0;
        c->bars[b] = (chart_bar){.label = c->labels[b],
                                 .values = {c->figures[b].value},
                                 .froms = {c->figures[b].from},
                                 .note = c->notes[b],
                                 .color = *name ? 0 : 6};
    }
}

static void put_ladder_chart(FILE *file, void *chart, int width) {
    const ladder_chart *c = chart;
    chart_bars(
        file,
        &(bar_chart){.head = {c->title, c->about, width}, .unit = "ms", .bars = c->bars, .count = c->count});
}

static void put_ladder_table(report_page *page, const report_file *f, const char *list,
                             const char *const *heads, const char *ms, const char *ratio, const char *total) {
    page_table(page, heads);
    for (int i = 0; i < report_length(f, "/%s", list); i++) {
        char pointer[64];
        const char *const keys[] = {"p50_ms", ms, ratio, total, "operations", "nodes"};
        static const char *const units[] = {"ms", "ms", "×", "×", NULL, NULL};
        const json_t *within = report_at(f, "/%s/%d/within_bound", list, i);
        figure weights = figure_at(f, "/%s/%d/weight_bytes", list, i),
               session = figure_at(f, "/%s/%d/session_bytes", list, i);
        fprintf(page->out, "<tr>");
        snprintf(pointer, sizeof pointer, "/%s/%d/switch", list, i);
        if (*report_text(f, "%s", pointer)) page_text(page, "td", f, pointer);
        else page_fixed(page, "td", "all off");
        for (int k = 0; k < 6; k++) {
            figure at = figure_at(f, "/%s/%d/%s", list, i, keys[k] ? keys[k] : "-");
            if (keys[k]) page_figure(page, "td", &at, 1, units[k]);
        }
        page_figure(page, "td", &weights, 1e-9, "GB");
        page_figure(page, "td", &session, 1e-6, "MB");
        snprintf(pointer, sizeof pointer, "/%s/%d/reason", list, i);
        if (*report_text(f, "%s", pointer)) page_text(page, "td class=\"x\"", f, pointer);
        else page_fixed(page, "td class=\"x\"", json_is_false(within) ? "NO" : "yes");
        fprintf(page->out, "</tr>\n");
    }
    page_table_end(page);
}

void section_ladder(report_page *page) {
    static const char *const climb[] = {"<switched on",
                                        "p50",
                                        "gain",
                                        "gain",
                                        "since all off",
                                        "operations",
                                        "graph nodes",
                                        "weights",
                                        "session",
                                        "<within the bound",
                                        NULL};
    static const char *const without[] = {"<all but",          "p50",         "cost",    "cost",
                                          "operations",        "graph nodes", "weights", "session",
                                          "<within the bound", NULL};
    const report_file *f = report_next(page, "ladder", NULL);
    if (!f) {
        page_missing(page, "Ladder of optimisations", "openpi ladder --json ladder.json");
        return;
    }
    ladder_chart *c = allocate(sizeof *c);
    page_section(page, "ladder", "Ladder of optimisations");
    for (; f; f = report_next(page, "ladder", f)) {
        page_heading(page, f);
        c->file = f;
        c->title = "From all off to all on";
        c->about = "each bar has everything above it switched on too; host to host, p50; and how many times "
                   "faster than the bar "
                   "above";
        fill(c, "climb", "+ ", "gain_ratio");
        page_chart(page, put_ladder_chart, c);
        put_ladder_table(page, f, "climb", climb, "gain_ms", "gain_ratio", "total_ratio");
        c->title = "All but one";
        c->about = "everything on but this; host to host, p50; and how many times slower than with "
                   "everything";
        fill(c, "leave_one_out", "without ", "cost_ratio");
        page_chart(page, put_ladder_chart, c);
        put_ladder_table(page, f, "leave_one_out", without, "cost_ms", "cost_ratio", NULL);
    }
    page_note(page, "Every rung's actions are compared with those of the top: within the bound of the "
                    "goldens, or not.");
    page_section_end(page);
    free(c);
}
