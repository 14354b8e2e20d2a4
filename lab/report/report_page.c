/* The page: its style, its boxes, and every number with the place that it comes from. No script at all. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"
#include "lab/draw/svg.h"

enum { WIDE = 1080, SLIM = 360, ANY = 4000 };

static const char style[] =
    ":root{color-scheme:light dark}*{box-sizing:border-box}body{margin:0 auto;max-width:1120px;padding:16px;"
    "font:15px/1.5 system-ui,Helvetica,Arial,sans-serif;color:#222;background:#fff;overflow-wrap:anywhere}"
    "h1{font-size:26px;margin:8px 0}h2{font-size:20px;margin:36px 0 8px;border-bottom:1px solid "
    "#ddd;padding-bottom:4px}"
    "h3{font-size:15px;margin:20px 0 0}h3+p.soft{margin:0 0 4px;font-size:13px}p{margin:6px "
    "0}.soft,figcaption{color:#555}.box{overflow-x:auto;margin:8px 0}"
    "table{border-collapse:collapse;font-size:14px;overflow-wrap:normal}th,td{padding:4px 12px 4px "
    "0;text-align:right;"
    "border-bottom:1px solid #e8e8e8;white-space:nowrap;font-variant-numeric:tabular-nums}"
    "th:first-child,td:first-child,td.t,th.t{text-align:left}td.x{text-align:left;white-space:normal;min-"
    "width:13em}"
    "th{font-weight:600;color:#555}.cards{display:grid;gap:8px;grid-template-columns:repeat(auto-fill,minmax("
    "132px,1fr));"
    "margin:8px 0}.card{border:1px solid #ddd;border-radius:8px;padding:8px 12px}.card "
    "b{display:block;white-space:nowrap;font-size:20px;"
    "font-weight:600}.card span{color:#555;font-size:13px}figure{margin:8px "
    "0}svg{display:block;max-width:100%;height:auto}"
    ".slim{display:none}code{font-size:13px;background:#f2f2f2;padding:1px 4px;border-radius:4px}"
    "@media(max-width:700px){.wide{display:none}.slim{display:block}body{padding:12px}}"
    "@media screen and "
    "(prefers-color-scheme:dark){body{color:#e6e6e6;background:#16181c}.soft,figcaption,th,.card span"
    "{color:#b0b0b0}h2,.card{border-color:#3a3f46}th,td{border-color:#2b2f35}code{background:#2b2f35}}"
    "@media "
    "print{body{max-width:none;padding:0;font-size:11px}.wide{display:block}.slim{display:none}.box{overflow:"
    "visible}"
    "table{font-size:10px}th,td{padding:2px 8px 2px "
    "0}td.x{min-width:0}h2{break-after:avoid}h3{break-after:avoid}"
    "figure,.cards,tr{break-inside:avoid}}";

/* The file that the page is named after: the first that has a model, else the first. */
static const report_file *main_file(const report_page *page) {
    for (int i = 0; i < page->count; i++)
        if (*report_text(&page->files[i], "/model/source")) return &page->files[i];
    return page->count ? &page->files[0] : NULL;
}

/* "openpi report: MODEL on MACHINE, DATE" and, in a heading, where each stands. */
void page_title(report_page *page) {
    const report_file *f = main_file(page);
    fprintf(page->out, "<h1>openpi report");
    if (f && *report_text(f, "/model/source")) {
        fprintf(page->out, ": ");
        page_text(page, "span", f, "/model/source");
    }
    if (f) {
        fprintf(page->out, " on ");
        page_name(page, "span", f);
    }
    if (f && *report_text(f, "/date")) {
        fprintf(page->out, ", ");
        page_text(page, "span", f, "/date");
    }
    fprintf(page->out, "%s</h1>\n", page->count > 1 ? ", and others" : "");
}

void page_open(report_page *page) {
    const report_file *f = main_file(page);
    fprintf(page->out, "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                       "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
                       "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none';style-src "
                       "'unsafe-inline'\">\n"
                       "<title>openpi report");
    const char *const texts[] = {f ? report_text(f, "/model/source") : "", f ? f->name : "",
                                 f ? report_text(f, "/date") : ""};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        if (!*texts[i]) continue;
        fprintf(page->out, i ? ", " : ": ");
        svg_escape(page->out, texts[i], ANY);
    }
    fprintf(page->out, "</title>\n<style>%s</style>\n</head>\n<body>\n", style);
}

void page_close(report_page *page) { fprintf(page->out, "</body>\n</html>\n"); }

void page_section(report_page *page, const char *id, const char *title) {
    fprintf(page->out, "<section id=\"%s\">\n<h2>%s</h2>\n", id, title);
}

void page_section_end(report_page *page) { fprintf(page->out, "</section>\n"); }

void page_missing(report_page *page, const char *title, const char *command) {
    fprintf(page->out, "<p class=\"soft\">%s: not in these files; <code>", title);
    svg_escape(page->out, command, ANY);
    fprintf(page->out, "</code> makes it.</p>\n");
}

void page_fixed(report_page *page, const char *tag, const char *text) {
    fprintf(page->out, "<%s>", tag);
    svg_escape(page->out, text, ANY);
    fprintf(page->out, "</%.*s>", (int)strcspn(tag, " "), tag);
}

void page_note(report_page *page, const char *text) {
    page_fixed(page, "p class=\"soft\"", text);
    fputc('\n', page->out);
}

void page_name(report_page *page, const char *tag, const report_file *file) {
    fprintf(page->out, "<%s data-from=\"%d:name\">", tag, file->number);
    svg_escape(page->out, file->name, ANY);
    fprintf(page->out, "</%.*s>", (int)strcspn(tag, " "), tag);
}

void page_heading(report_page *page, const report_file *file) {
    page_name(page, "h3", file);
    fprintf(page->out, "\n<p class=\"soft\">%s, file <span data-from=\"%d:number\">%d</span>: ", file->kind,
            file->number, file->number);
    svg_escape(page->out, file->path, ANY);
    fprintf(page->out, "</p>\n");
}

void page_text(report_page *page, const char *tag, const report_file *file, const char *pointer) {
    const json_t *value = report_at(file, "%s", pointer);
    if (!json_is_string(value) || !*json_string_value(value)) {
        page_fixed(page, tag, "–");
        return;
    }
    fprintf(page->out, "<%s data-from=\"%d:%s\">", tag, file->number, pointer);
    svg_escape(page->out, json_string_value(value), ANY);
    fprintf(page->out, "</%.*s>", (int)strcspn(tag, " "), tag);
}

void page_system(report_page *page, const report_file *published, int system, const char *key) {
    char pointer[64];
    snprintf(pointer, sizeof pointer, "/systems/%d/%s", system, key);
    page_text(page, "span", published, pointer);
}

void page_masks(report_page *page) {
    page_note(page,
              "Published figures were taken by their authors on their machines. Where masks are marked "
              "wrong, action tokens attend to a fraction of the keys that the model defines: the time is of "
              "less work, and the actions differ. openpi.c always computes the model's own masks.");
}

/* Units of one kind, each a thousand of the one below. */
static const char *const ladders[][5] = {{"ns", "µs", "ms", "s", NULL},
                                         {"B", "KB", "MB", "GB", NULL},
                                         {"MB/s", "GB/s", "TB/s", NULL},
                                         {"GFLOP/s", "TFLOP/s", "PFLOP/s", NULL},
                                         {"mJ", "J", "kJ", NULL}};

/* The unit in which |value| is 1 … 999, as far as its ladder goes; the factor grows with it. */
static const char *fit_unit(double value, double *factor, const char *unit) {
    double size = fabs(value * *factor);
    for (size_t l = 0; unit && l < sizeof ladders / sizeof *ladders; l++) {
        int at = 0;
        while (ladders[l][at] && strcmp(ladders[l][at], unit)) at++;
        if (!ladders[l][at] || size == 0) continue;
        for (; size >= 999.5 && ladders[l][at + 1]; at++) size *= 1e-3, *factor *= 1e-3;
        for (; size < 1 && at > 0; at--) size *= 1e3, *factor *= 1e3;
        return ladders[l][at];
    }
    return unit;
}

/* before, after: the text around the number. */
static void put_figure(report_page *page, const char *tag, const figure *f, double factor, const char *unit,
                       int count, const char *before, const char *after) {
    char text[SVG_NUMBER];
    if (!isfinite(f->value)) {
        page_fixed(page, tag, "–");
        return;
    }
    unit = fit_unit(f->value, &factor, unit);
    fprintf(page->out, "<%s data-from=\"", tag);
    svg_escape(page->out, f->from, ANY);
    fputc('"', page->out);
    if (f->how) fprintf(page->out, " data-how=\"%s\"", f->how);
    if (*f->where) {
        fprintf(page->out, " data-where=\"");
        svg_escape(page->out, f->where, ANY);
        fputc('"', page->out);
    }
    if (factor != 1) fprintf(page->out, " data-times=\"%g\"", factor);
    int bare = !unit || !*unit, whole = (f->whole && bare) || (count && f->value == floor(f->value));
    if (whole) snprintf(text, sizeof text, "%.0f", f->value);
    else svg_number(f->value * factor, text);
    fprintf(page->out, ">%s%s%s%s%s", before, text, bare ? "" : " ", bare ? "" : unit, after);
    fprintf(page->out, "</%.*s>", (int)strcspn(tag, " "), tag);
}

void page_figure(report_page *page, const char *tag, const figure *f, double factor, const char *unit) {
    put_figure(page, tag, f, factor, unit, 0, "", "");
}

void page_count(report_page *page, const char *tag, const figure *f) {
    put_figure(page, tag, f, 1, NULL, 1, "", "");
}

void page_share(report_page *page, const char *tag, const figure *f) {
    int noise = f->value > 1;
    put_figure(page, tag, f, 100, "%", 0, noise ? "noise (" : "", noise ? ")" : "");
}

void page_gap(report_page *page, const char *tag, const figure *f, const char *unit) {
    int noise = f->value < 0;
    put_figure(page, tag, f, 1, unit, 0, noise ? "noise (" : "", noise ? ")" : "");
}

void page_table(report_page *page, const char *const *heads) {
    fprintf(page->out, "<div class=\"box\"><table>\n<thead><tr>");
    for (; *heads; heads++)
        page_fixed(page, **heads == '<' ? "th scope=\"col\" class=\"t\"" : "th scope=\"col\"",
                   *heads + (**heads == '<'));
    fprintf(page->out, "</tr></thead>\n<tbody>\n");
}

void page_table_end(report_page *page) { fprintf(page->out, "</tbody></table></div>\n"); }

void page_chart(report_page *page, void (*put)(FILE *file, void *chart, int width), void *chart) {
    fprintf(page->out, "<figure><div class=\"wide\">\n");
    put(page->out, chart, WIDE);
    fprintf(page->out, "</div><div class=\"slim\">\n");
    put(page->out, chart, SLIM);
    fprintf(page->out, "</div></figure>\n");
}
