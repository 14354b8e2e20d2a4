/* openpi report, inside: the files, the page, and figures that know where they come from.
 *
 * A figure is read by its place in a file ("/device/p50_ms", a JSON pointer) and written together with that
 * place: data-from= "2:/device/p50_ms" is file 2 of the page's list. So nothing on the page can be a number
 * that no file holds, and a test compares them all. Sections are functions in a table (report.c); each writes
 * itself or says which command makes its file. */
#ifndef CLI_REPORT_H
#define CLI_REPORT_H

#include <jansson.h>
#include <stdio.h>

#include "lab/draw/chart.h"
#include "cli/cli.h"

enum { REPORT_FILES = 32, REPORT_NAME = 160, FIGURE_FROM = 200 };

typedef struct report_file {
    const char *path, *kind;
    json_t *root;
    int number;                  /* on the page, from 1                                                   */
    char name[REPORT_NAME];      /* "NVIDIA H200, portable, bf16", or a peer's system: heads its column   */
} report_file;

typedef struct report {
    FILE *out;
    report_file files[REPORT_FILES];
    int count;
} report_page;

/* ---- reading -------------------------------------------------------------------------------------- */

/* Fills name and kind and checks that everything the sections need is there; END_FINE, or the code to end
 * with, having said why. */
int report_check(report_file *file);

/* The kind of docs/peers.json: times that others published, "/systems", and batches, "/scaling". */
#define PUBLISHED "published"

/* The next file of this kind after `after` (NULL: the first); NULL: no more. */
const report_file *report_next(const report_page *page, const char *kind, const report_file *after);

/* By JSON pointer; NULL where there is nothing. */
const json_t *report_at(const report_file *file, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
int report_length(const report_file *file, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* "" where there is no string. */
const char *report_text(const report_file *file, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

typedef struct figure {
    double value;                /* NaN: not there                                                        */
    char from[FIGURE_FROM];      /* "2:/device/p50_ms"; two with a blank between for a ratio              */
    const char *how;             /* NULL: the value itself; "ratio": first / second; "sum": of a list     */
    int whole;                   /* an integer in its file                                                */
    char where[FIGURE_FROM];     /* a sum's entries: "stage=vision|name=mlp up"                           */
} figure;

figure figure_at(const report_file *file, const char *format, ...) __attribute__((format(printf, 2, 3)));
figure figure_ratio(const figure *a, const figure *b);

/* ---- writing -------------------------------------------------------------------------------------- */

void page_open(report_page *page);
void page_title(report_page *page);
void page_close(report_page *page);
void page_section(report_page *page, const char *id, const char *title);
void page_section_end(report_page *page);
/* The line that stands for a section whose files are not there. */
void page_missing(report_page *page, const char *title, const char *command);
void page_note(report_page *page, const char *text);
/* A file's name in a tag; above what is of one file, with the file below it. */
void page_name(report_page *page, const char *tag, const report_file *file);
void page_heading(report_page *page, const report_file *file);

/* A number with its origin, times `factor` (100 for percent), and a unit ("" or NULL: none, as of a count).
 * "–" where it is not there. Three digits that matter; a count is whole. Times, bytes, rates and energies
 * take the unit of their ladder (ns µs ms s, GB/s TB/s, …) in which they have one to three digits before the
 * point. */
void page_figure(report_page *page, const char *tag, const figure *figure, double factor, const char *unit);
/* How many: a whole number as one, the mean of several as it is. */
void page_count(report_page *page, const char *tag, const figure *figure);
/* What part of its roof something reaches; above the whole it is called noise, as below nothing is a gap's
 * time. */
void page_share(report_page *page, const char *tag, const figure *ratio);
void page_gap(report_page *page, const char *tag, const figure *gap, const char *unit);
/* A string of a file, as it is. */
void page_text(report_page *page, const char *tag, const report_file *file, const char *pointer);
/* A string of "/systems/SYSTEM" of published figures. */
void page_system(report_page *page, const report_file *published, int system, const char *key);
/* The sentence about wrong masks, below whatever shows published figures. */
void page_masks(report_page *page);
/* Fixed text. */
void page_fixed(report_page *page, const char *tag, const char *text);

/* A table scrolls in its own box. `heads` ends with NULL; one that begins with '<' heads texts, not
 * numbers. */
void page_table(report_page *page, const char *const *heads);
void page_table_end(report_page *page);

/* A chart for wide and one for narrow screens: `put` is called with both widths. */
void page_chart(report_page *page, void (*put)(FILE *file, void *chart, int width), void *chart);

/* ---- the sections --------------------------------------------------------------------------------- */

void section_headline(report_page *page);
void section_compare(report_page *page);
void section_predicted(report_page *page);
void section_scaling(report_page *page);
void section_stages(report_page *page);
void section_roofline(report_page *page);
void section_gaps(report_page *page);
void section_ladder(report_page *page);
void section_tune(report_page *page);
void section_trace(report_page *page);
void section_roof(report_page *page);
void section_server(report_page *page);

#endif
