/* Sections of breakdown and roof files: tables as they are. */
#include <math.h>
#include <string.h>

#include "report.h"

/* ---- roof ----------------------------------------------------------------------------------------- */

/* Measured ones: those of a prediction are a data sheet's. */
static int has_roofs(const report_file *f) {
    return json_is_object(report_at(f, "/roofs")) && !report_at(f, "/prediction");
}

void section_roof(report_page *page) {
    static const char *const heads[] = {"machine", "<kernels", "multiply, bf16", "multiply, f32", "read",
                                        "copy",    NULL};
    static const struct {
        const char *pointer, *unit;
    } columns[] = {{"/roofs/bf16_tflops", "TFLOP/s"},
                   {"/roofs/f32_tflops", "TFLOP/s"},
                   {"/roofs/read_gbs", "GB/s"},
                   {"/roofs/copy_gbs", "GB/s"}};
    static const char *const kinds[] = {"roof", "bench", "profile"};
    int any = 0;
    for (int i = 0; i < page->count; i++) any |= has_roofs(&page->files[i]);
    if (!any) {
        page_missing(page, "Roofs", "openpi roof --json roof.json");
        return;
    }
    page_section(page, "roofs", "Measured roofs");
    page_table(page, heads);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (const report_file *f = report_next(page, kinds[k], NULL); f;
             f = report_next(page, kinds[k], f)) {
            if (!has_roofs(f)) continue;
            fprintf(page->out, "<tr>");
            page_text(page, "td", f,
                      json_is_string(report_at(f, "/machine/hardware")) ? "/machine/hardware"
                                                                        : "/machine/device");
            page_text(page, "td class=\"t\"", f, "/machine/path");
            for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
                figure at = figure_at(f, "%s", columns[i].pointer);
                page_figure(page, "td", &at, 1, columns[i].unit);
            }
            fprintf(page->out, "</tr>\n");
        }
    page_table_end(page);
    page_note(page, "Ceilings of the machine as this program's own kernels reach them, measured in the run "
                    "that each file is of.");
    page_section_end(page);
}

/* ---- trace analysis ------------------------------------------------------------------------------- */

static void put_breakdown_rows(report_page *page, const report_file *f, int which, const char *list) {
    for (int i = 0; i < report_length(f, "/files/%d/%s", which, list); i++) {
        char pointer[96];
        figure calls = figure_at(f, "/files/%d/%s/%d/calls", which, list, i),
               ms = figure_at(f, "/files/%d/%s/%d/time_ms", which, list, i);
        figure share = figure_at(f, "/files/%d/%s/%d/share_ratio", which, list, i);
        figure step = figure_at(f, "/files/%d/%s/%d/step_ms", which, list, i);
        if (!(ms.value > 0)) continue;
        fprintf(page->out, "<tr>");
        snprintf(pointer, sizeof pointer, "/files/%d/%s/%d/name", which, list, i);
        page_text(page, "td", f, pointer);
        page_count(page, "td", &calls);
        page_figure(page, "td", &ms, 1, "ms");
        page_figure(page, "td", &share, 100, "%");
        if (step.value > 0) page_figure(page, "td", &step, 1, "ms");
        else page_fixed(page, "td", "");
        fprintf(page->out, "</tr>\n");
    }
}

static void put_breakdown(report_page *page, const report_file *f, int which) {
    static const char *const lists[] = {"stages", "kinds"};
    static const char *const heads[][6] = {{"stage", "calls", "time", "share", "a denoising step", NULL},
                                           {"kernels", "calls", "time", "share", "a denoising step", NULL}};
    char pointer[64];
    snprintf(pointer, sizeof pointer, "/files/%d/file", which);
    page_text(page, "h3", f, pointer);
    snprintf(pointer, sizeof pointer, "/files/%d/engine", which);
    page_text(page, "p class=\"soft\"", f, pointer);
    figure total = figure_at(f, "/files/%d/total_ms", which);
    fprintf(page->out, "<p>Kernels of a call: ");
    page_figure(page, "span", &total, 1, "ms");
    fprintf(page->out, "</p>\n");
    for (int l = 0; l < 2; l++) {
        page_table(page, heads[l]);
        put_breakdown_rows(page, f, which, lists[l]);
        page_table_end(page);
    }
}

void section_trace(report_page *page) {
    const report_file *f = report_next(page, "breakdown", NULL);
    if (!f) {
        page_missing(page, "Kernels by stage and kind",
                     "tools/trace-analyze trace.json --json breakdown.json");
        return;
    }
    page_section(page, "trace", "Kernels by stage and kind");
    for (; f; f = report_next(page, "breakdown", f))
        for (int i = 0; i < report_length(f, "/files"); i++) put_breakdown(page, f, i);
    page_section_end(page);
}
