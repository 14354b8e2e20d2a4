/* The section of predictions: what the static model says of cards that were not here, beside what others
 * published for them. Files of `roof --model` and of `profile --device hip:sim`. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"

enum { BARS = 64, LABEL = 240 };

typedef struct predicted_chart {
    chart_bar bars[BARS];
    char labels[BARS][LABEL];
    figure figures[BARS];
    int count;
} predicted_chart;

static int is_prediction(const report_file *f) { return json_is_object(report_at(f, "/prediction")); }

static void add_bar(predicted_chart *c, const report_file *f, const char *who, const figure *ms, int color,
                    const char *note) {
    int i = c->count;
    if (i == BARS || !isfinite(ms->value)) return;
    c->count++;
    snprintf(c->labels[i], LABEL, "%s: %.80s", who, report_text(f, "/prediction/title"));
    c->figures[i] = *ms;
    c->bars[i] = (chart_bar){.label = c->labels[i],
                             .values = {ms->value},
                             .froms = {c->figures[i].from},
                             .color = color,
                             .note = note};
}

static void put_chart(FILE *file, void *chart, int width) {
    const predicted_chart *c = chart;
    chart_bars(file, &(bar_chart){.head = {"PREDICTED by a static model, and what others published",
                                           "one call, milliseconds, shorter is better", width},
                                  .unit = "ms",
                                  .bars = c->bars,
                                  .count = c->count});
}

/* A row for the call and one for each stage; published beside it where somebody did. */
static void put_rows(report_page *page, const report_file *f) {
    static const char *const heads[] = {"", "PREDICTED", "published", "PREDICTED to published", "floor",
                                        NULL};
    page_heading(page, f);
    page_table(page, heads);
    for (int i = -1; i < report_length(f, "/prediction/stages"); i++) {
        char at[64] = "/prediction";
        if (i >= 0) snprintf(at, sizeof at, "/prediction/stages/%d", i);
        figure said = figure_at(f, "%s/predicted_ms", at), theirs = figure_at(f, "%s/published_ms", at);
        figure floor = figure_at(f, "%s/floor_ms", at), ratio = figure_ratio(&said, &theirs);
        char name[80];
        snprintf(name, sizeof name, "%s/name", at);
        fprintf(page->out, "<tr>");
        if (i < 0) page_fixed(page, "td", "whole call");
        else page_text(page, "td", f, name);
        page_figure(page, "td", &said, 1, "ms");
        page_figure(page, "td", &theirs, 1, "ms");
        page_figure(page, "td", &ratio, 1, "×");
        page_figure(page, "td", &floor, 1, "ms");
        fprintf(page->out, "</tr>\n");
    }
    page_table_end(page);
    figure rate = figure_at(f, "/prediction/samples_per_s");
    figure theirs = figure_at(f, "/prediction/published_samples_per_s");
    fprintf(page->out, "<p>PREDICTED samples: ");
    page_figure(page, "b", &rate, 1, "/s");
    fprintf(page->out, ", published: ");
    page_figure(page, "b", &theirs, 1, "/s");
    fprintf(page->out, "</p>\n");
}

/* Everything that others published, in one of their files, for one call of this model on this card. */
static void put_published(report_page *page, const report_file *published, const report_file *f) {
    static const char *const heads[] = {"<published for this card", "time", "<what to know", NULL};
    page_table(page, heads);
    for (int i = 0; i < report_length(published, "/systems"); i++) {
        figure ms = figure_at(published, "/systems/%d/ms", i);
        if (!strstr(report_text(f, "/prediction/title"), report_text(published, "/systems/%d/gpu", i)) ||
            strcmp(report_text(f, "/model/variant"), report_text(published, "/systems/%d/variant", i)))
            continue;
        fprintf(page->out, "<tr><td>");
        page_system(page, published, i, "name");
        fprintf(page->out, "</td>");
        page_figure(page, "td", &ms, 1, "ms");
        fprintf(page->out, "<td class=\"x\">");
        page_system(page, published, i, "note");
        fprintf(page->out, "</td></tr>\n");
    }
    page_table_end(page);
}

void section_predicted(report_page *page) {
    int any = 0;
    for (int i = 0; i < page->count; i++) any |= is_prediction(&page->files[i]);
    if (!any) return;            /* measurements miss nothing without it                                  */
    predicted_chart *c = allocate(sizeof *c);
    c->count = 0;
    page_section(page, "predicted", "PREDICTED, not measured");
    for (int i = 0; i < page->count; i++) {
        const report_file *f = &page->files[i];
        if (!is_prediction(f)) continue;
        figure said = figure_at(f, "/prediction/predicted_ms"),
               theirs = figure_at(f, "/prediction/published_ms");
        add_bar(c, f, "PREDICTED, openpi.c", &said, 0, "PREDICTED");
        add_bar(c, f, "published, tuned PyTorch fork", &theirs, 4, "wrong masks");
    }
    page_chart(page, put_chart, c);
    for (int i = 0; i < page->count; i++)
        if (is_prediction(&page->files[i])) {
            put_rows(page, &page->files[i]);
            for (const report_file *p = report_next(page, PUBLISHED, NULL); p;
                 p = report_next(page, PUBLISHED, p))
                put_published(page, p, &page->files[i]);
        }
    page_note(page, "Nothing ran on these cards: a static model (docs/roof.md) computed the times from "
                    "published rates and from the kernels' machine code.");
    page_masks(page);
    page_section_end(page);
    free(c);
}
