/* The section of `bench --server`: how long robots waited for answers. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"

enum { BARS = 32, LABEL = 240 };

typedef struct server_chart {
    chart_bar bars[BARS];
    char labels[BARS][LABEL];
    figure figures[BARS][2];
    int count;
} server_chart;

static void add_bars(server_chart *c, const report_file *f) {
    for (int g = 0; g < report_length(f, "/groups") && c->count < BARS; g++) {
        figure p50 = figure_at(f, "/groups/%d/round_trip/p50_ms", g);
        figure p99 = figure_at(f, "/groups/%d/round_trip/p99_ms", g);
        if (!isfinite(p50.value)) continue;
        int b = c->count++;
        snprintf(c->labels[b], LABEL, "%s, %.60s", f->name, report_text(f, "/groups/%d/name", g));
        c->figures[b][0] = p50;
        c->figures[b][1] = p99;
        c->bars[b] = (chart_bar){.label = c->labels[b],
                                 .values = {p50.value, p99.value},
                                 .froms = {c->figures[b][0].from, c->figures[b][1].from}};
    }
}

static void put_chart(FILE *file, void *chart, int width) {
    static const char *const parts[] = {"p50", "p99"};
    const server_chart *c = chart;
    chart_bars(file, &(bar_chart){.head = {"From a request to its answer",
                                           "as the robots saw it, milliseconds, shorter is better", width},
                                  .unit = "ms",
                                  .parts = parts,
                                  .part_count = 2,
                                  .grouped = 1,
                                  .bars = c->bars,
                                  .count = c->count});
}

/* A key's end says the unit. */
static const char *unit_of(const char *key) {
    return strstr(key, "_ms") ? "ms" : strstr(key, "_hz") ? "Hz" : strstr(key, "_per_s") ? "/s" : NULL;
}

/* A row an entry of the list: the text `name`, then a number a key. */
static void put_table(report_page *page, const report_file *f, const char *list, const char *const *heads,
                      const char *name, const char *const *keys) {
    page_table(page, heads);
    for (int i = 0; i < report_length(f, "%s", list); i++) {
        char pointer[80];
        snprintf(pointer, sizeof pointer, "%s/%d/%s", list, i, name);
        fprintf(page->out, "<tr>");
        page_text(page, "td", f, pointer);
        for (int k = 0; keys[k]; k++) {
            figure at = figure_at(f, "%s/%d/%s", list, i, keys[k]);
            page_figure(page, "td", &at, 1, unit_of(keys[k]));
        }
        fprintf(page->out, "</tr>\n");
    }
    page_table_end(page);
}

static void put_robots(report_page *page, const report_file *f) {
    static const char *const heads[] = {"<group", "robots",  "rate each", "answers",    "p50",
                                        "p99",    "longest", "model p50", "beside p50", "beside p99",
                                        "errors", "broken",  "refused",   NULL};
    static const char *const keys[] = {"robots", "rate_hz", "answers_per_s", "round_trip/p50_ms",
                                       "round_trip/p99_ms", "round_trip/max_ms", "model/p50_ms",
                                       "beside_model/p50_ms", "beside_model/p99_ms", "errors", "broken",
                                       "refused", NULL};
    put_table(page, f, "/groups", heads, "name", keys);
}

void section_server(report_page *page) {
    const report_file *first = report_next(page, "server_bench", NULL);
    if (!first) {
        page_missing(page, "Robots on a server",
                     "openpi bench --server ws://127.0.0.1:8000 --json server.json");
        return;
    }
    server_chart *c = allocate(sizeof *c);
    c->count = 0;
    page_section(page, "server", "Robots on a server");
    for (const report_file *f = first; f; f = report_next(page, "server_bench", f)) add_bars(c, f);
    if (c->count) page_chart(page, put_chart, c);
    for (const report_file *f = first; f; f = report_next(page, "server_bench", f)) {
        page_heading(page, f);
        put_robots(page, f);
    }
    page_note(page, "Beside the model: from the request's last byte until the reply's, less the call that "
                    "the server says it took; with several robots that is mostly waiting for others.");
    page_section_end(page);
    free(c);
}
