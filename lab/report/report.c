/* openpi report: JSON files of the instruments in, one HTML page out. The options, the files, the order of
 * the sections. */
#include "report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/input.h"
#include "lab/verbs/subject.h"
#include "cli/output.h"

typedef struct report_values {
    const char *out;
} report_values;

/* In reading order: how fast, against whom, at which batch, where the time goes, what is left, what each
 * optimisation is worth. */
static void (*const sections[])(report_page *page) = {
    section_headline, section_compare, section_predicted, section_scaling, section_stages, section_roofline,
    section_gaps,     section_ladder,  section_tune,      section_trace,   section_roof,
    section_server,
};

/* Which files, of what, measured where and when. */
static void put_files(report_page *page) {
    static const char *const heads[] = {"<file",   "<kind",     "<path",   "<model", "<machine",
                                        "cameras", "prompt",    "horizon", "steps",  "batch",
                                        "<openpi", "<revision", "<taken",  NULL};
    static const char *const numbers[] = {"/workload/prompt", "/workload/horizon", "/workload/steps",
                                          "/batch"};
    page_table(page, heads);
    for (int i = 0; i < page->count; i++) {
        const report_file *f = &page->files[i];
        fprintf(page->out, "<tr><td data-from=\"%d:number\">%d</td>", f->number, f->number);
        page_fixed(page, "td class=\"t\"", f->kind);
        page_fixed(page, "td class=\"t\"", f->path);
        page_text(page, "td class=\"t\"", f, "/model/source");
        page_name(page, "td class=\"t\"", f);
        page_text(page, "td", f, "/workload/cameras");
        for (size_t n = 0; n < sizeof numbers / sizeof *numbers; n++) {
            figure number = figure_at(f, "%s", numbers[n]);
            page_figure(page, "td", &number, 1, NULL);
        }
        page_text(page, "td class=\"t\"", f, "/version");
        page_text(page, "td class=\"t\"", f, strcmp(f->kind, "peer") ? "/revision" : "/system/revision");
        page_text(page, "td class=\"t\"", f, "/date");
        fprintf(page->out, "</tr>\n");
    }
    page_table_end(page);
}

/* The page in a sentence: the first run's time and rate. */
static void put_sentence(report_page *page) {
    for (int i = 0; i < page->count; i++) {
        const report_file *f = &page->files[i];
        figure call = figure_at(f, "/host/p50_ms"), rate = figure_at(f, "/host/samples_per_s"),
               share = figure_at(f, "/device/roof_ratio");
        if (strcmp(f->kind, "bench") || !isfinite(call.value)) continue;
        fprintf(page->out, "<p>One call takes ");
        page_figure(page, "b", &call, 1, "ms");
        fprintf(page->out, " on ");
        page_name(page, "span", f);
        fprintf(page->out, ", from pictures to actions");
        if (isfinite(rate.value)) {
            fprintf(page->out, ": ");
            page_figure(page, "b", &rate, 1, "samples a second");
        }
        if (isfinite(share.value)) {
            fprintf(page->out, ", ");
            page_share(page, "b", &share);
            fprintf(page->out, " of what the device could do at most");
        }
        fprintf(page->out, ".</p>\n");
        return;
    }
}

static void put_page(report_page *page, const char *path) {
    page->out = output_file(path);
    page_open(page);
    page_title(page);
    put_sentence(page);
    for (size_t i = 0; i < sizeof sections / sizeof *sections; i++) sections[i](page);
    page_section(page, "files", "Files");
    put_files(page);
    page_note(page, "Every number on this page stands in one of these files; hover over a mark of a chart to "
                    "read it.");
    page_section_end(page);
    page_close(page);
}

static int report_verb_run(const void *values, char **positional, int count) {
    const report_values *v = values;
    report_page *page = allocate(sizeof *page);
    int end = END_FINE;
    memset(page, 0, sizeof *page);
    if (!v->out) end = usage_error(&verb_report, "no --out: name the page, such as --out report.html");
    else if (count > REPORT_FILES)
        end = usage_error(&verb_report, "%d files, expected at most %d", count, REPORT_FILES);
    for (int i = 0; i < count && end == END_FINE; i++) {
        report_file *file = &page->files[i];
        *file = (report_file){.path = positional[i], .number = i + 1};
        if (!strcmp(positional[i], v->out) && strcmp(v->out, "-"))
            end = usage_error(&verb_report, "--out is '%s', which is also a file to read", v->out);
        else end = json_open(&verb_report, file->path, &file->root);
        if (end != END_FINE) break;
        page->count++;
        file->path = input_name(positional[i]);
        end = report_check(file);
    }
    if (end == END_FINE) put_page(page, v->out);
    for (int i = 0; i < page->count; i++) json_decref(page->files[i].root);
    free(page);
    return end;
}

/* ---- the options ------------------------------------------------------------------------------------ */

static const option_row options[] = {
    {OPTION_OUTPUT, "out", "FILE", "write the page here; needed", .offset = offsetof(report_values, out)},
    {0},
};

static const example examples[] = {
    {"one page from everything measured", "openpi report bench.json profile.json ladder.json --out report.html"},
    {"how many times faster than another engine on the same card", "openpi report bench.json peer.json --out against.html"},
    {"two machines side by side", "openpi report h200.json h100.json --out machines.html"},
    {NULL, NULL},
};

static const char *const synopsis[] = {"FILE... --out report.html", NULL};

const verb verb_report = {
    .name = "report",
    .summary = "one HTML page from the JSON files of the other instruments",
    .synopsis = synopsis,
    .positional = "FILE",
    .positional_min = 1,
    .positional_max = -1,
    .description = "Reads what bench, bench --server, profile, ladder, tune, roof and tools/trace-analyze "
                   "wrote with --json, what the scripts in tools/peers wrote of other engines, and what "
                   "others published (docs/peers.json of the project), and makes one "
                   "page of it: headline figures, the comparison with other systems, batch scaling, stages, "
                   "a roofline of every operation, the largest gaps, the ladder, the tuned tiles, robots on "
                   "a server. A section whose files are missing is left out, and a line says which command "
                   "makes them. Several files of one kind stand side by side.\n\n"
                   "The page is one file without scripts or links: it can be mailed, printed and read on a "
                   "phone. Every number on it stands in one of the files: data-from says in which and where.",
    .options = options,
    .examples = examples,
    .values_bytes = sizeof(report_values),
    .run = report_verb_run,
};
