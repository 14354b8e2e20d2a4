/* What openpi trace --analyze prints: one trace or two, by stage and by what kernels do, in the rows of the
 * published MI300X table. Sums are lab/measure/breakdown.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/input.h"
#include "lab/verbs/subject.h"
#include "cli/table.h"
#include "trace.h"

enum { FILES = 2 };

/* What the MI300X table of the tuned PyTorch fork says, ms of kernels a call; its action tokens attend too
 * little. */
static const double mi300x_ms[BREAKDOWN_STAGES] = {4.1, 10.7, 11.2, 1.1};
#define MI300X_ALL_MS 27.1

typedef struct analysis {
    const trace_reading_options *o;
    char *const *paths;
    trace_file files[FILES];
    int count;
} analysis;

static breakdown_cell add(breakdown_cell a, breakdown_cell b) {
    return (breakdown_cell){a.launches + b.launches, a.ms + b.ms};
}

static breakdown_cell of_stage(const trace_file *f, int stage) {
    breakdown_cell sum = {0, 0};
    for (int g = 0; g < BREAKDOWN_GROUPS; g++) sum = add(sum, f->sums.cells[stage][g]);
    return sum;
}

static breakdown_cell of_group(const trace_file *f, int group) {
    breakdown_cell sum = {0, 0};
    for (int s = 0; s < BREAKDOWN_STAGES; s++) sum = add(sum, f->sums.cells[s][group]);
    return sum;
}

/* What the file says counts; then --calls; then PyTorch's step marks; then one. */
static void settle(const analysis *a, trace_file *f) {
    if (f->calls < 1) f->calls = a->o->calls;
    if (f->calls < 1) f->calls = f->sums.profiler_steps;
    if (f->calls < 1) f->calls = 1;
    if (f->steps < 1) f->steps = a->o->steps;
}

static void put_cell(table *t, const trace_file *f, breakdown_cell cell, breakdown_cell stepped) {
    double launches = (double)cell.launches / f->calls;
    table_cell(t, launches == (int)launches ? "%.0f" : "%.1f", launches);
    table_cell(t, "%.3f", cell.ms / f->calls);
    table_cell(t, "%.1f %%", f->sums.all.ms > 0 ? cell.ms / f->sums.all.ms * 100 : 0);
    if (stepped.ms > 0) table_cell(t, "%.4f", stepped.ms / f->calls / f->steps);
    else table_cell(t, "%s", "");
}

static table *begin_table(const analysis *a, const char *first) {
    table *t = table_create(a->count == 1 ? "lrrrrr" : "lrrrrrrrrr");
    table_cell(t, "%s", first);
    for (int i = 0; i < a->count; i++) {
        const char *const names[] = {"calls", "ms", "share", "ms/step"};
        char mark[8] = "";
        if (a->count > 1) snprintf(mark, sizeof mark, "%c ", 'A' + i);
        for (int n = 0; n < 4; n++) table_cell(t, "%s%s", mark, names[n]);
    }
    return t;
}

static void put_stages(const analysis *a) {
    table *t = begin_table(a, "stage");
    table_cell(t, "%s", "MI300X ms *");
    for (int s = 0; s < BREAKDOWN_STAGES; s++) {
        table_cell(t, "%s", breakdown_stage_name((breakdown_stage)s));
        for (int i = 0; i < a->count; i++) {
            breakdown_cell cell = of_stage(&a->files[i], s);
            put_cell(t, &a->files[i], cell, s == BREAKDOWN_DIFFUSION ? cell : (breakdown_cell){0, 0});
        }
        table_cell(t, "%.1f", mi300x_ms[s]);
    }
    table_cell(t, "total");
    for (int i = 0; i < a->count; i++)
        put_cell(t, &a->files[i], a->files[i].sums.all, (breakdown_cell){0, 0});
    table_cell(t, "%.1f", MI300X_ALL_MS);
    table_print(t, stdout, 0);
}

static void put_kinds(const analysis *a) {
    table *t = begin_table(a, "kernels");
    table_cell(t, "%s", "");
    for (int g = 0; g < BREAKDOWN_GROUPS; g++) {
        int any = g != BREAKDOWN_SEVERAL;
        for (int i = 0; i < a->count; i++) any |= of_group(&a->files[i], g).launches > 0;
        if (!any) continue;
        table_cell(t, "%s", breakdown_group_name((breakdown_group)g));
        for (int i = 0; i < a->count; i++)
            put_cell(t, &a->files[i], of_group(&a->files[i], g),
                     a->files[i].sums.cells[BREAKDOWN_DIFFUSION][g]);
        table_cell(t, "%s", "");
    }
    putchar('\n');
    table_print(t, stdout, 0);
}

enum { NAME_SHOWN = 90 };

/* A foreign name, cut, without what a terminal would take as an order. */
static const char *shown_name(const char *name, char text[NAME_SHOWN + 1]) {
    size_t length = strlen(name), count = length < NAME_SHOWN ? length : NAME_SHOWN;
    while (count < length && count && ((unsigned char)name[count] & 0xc0) == 0x80) count--;
    for (size_t i = 0; i < count; i++)
        text[i] = (unsigned char)name[i] < 32 || name[i] == 127 ? '?' : name[i];
    text[count] = 0;
    return text;
}

static void put_strays(const analysis *a, int which) {
    const trace_file *f = &a->files[which];
    int top = a->o->top, shown = top && top < f->sums.stray_count ? top : f->sums.stray_count;
    breakdown_cell rest = {0, 0};
    if (!f->sums.staged)
        printf("\n%s: no annotation names a stage (vit, prefill, diffusion …), so every kernel's stage is "
               "other\n",
               a->paths[which]);
    if (!f->sums.stray_count) {
        printf("\n%s: every kernel has its place\n", a->paths[which]);
        return;
    }
    printf("\n%s: kernels without a stage or a kind\n", a->paths[which]);
    table *t = table_create("rrlll");
    const char *const names[] = {"calls", "ms", "stage", "kind", "name"};
    for (int i = 0; i < 5; i++) table_cell(t, "%s", names[i]);
    for (int i = 0; i < f->sums.stray_count; i++) {
        const breakdown_stray *s = &f->sums.strays[i];
        if (i >= shown) {
            rest = add(rest, s->cell);
            continue;
        }
        table_cell(t, "%.4g", (double)s->cell.launches / f->calls);
        table_cell(t, "%.4f", s->cell.ms / f->calls);
        table_cell(t, "%s", breakdown_stage_name(s->stage));
        table_cell(t, "%s", breakdown_group_name(s->group));
        char text[NAME_SHOWN + 1];
        table_cell(t, "%s", shown_name(s->name, text));
    }
    table_print(t, stdout, 0);
    if (shown < f->sums.stray_count)
        printf("and %d names more with %.4f ms; --top 0 shows all\n", f->sums.stray_count - shown,
               rest.ms / f->calls);
}

static void put_analysis(const analysis *a) {
    for (int i = 0; i < a->count; i++) {
        const trace_file *f = &a->files[i];
        printf("%s%s: %s; %d call%s of %d denoising steps, %.3f ms of kernels a call",
               a->count == 1 ? ""
               : i           ? "B "
                             : "A ",
               a->paths[i], f->engine, f->calls, f->calls == 1 ? "" : "s", f->steps,
               f->sums.all.ms / f->calls);
        if (f->calls == 1) printf(", %.3f ms from the first to the last", f->sums.span_ms);
        if (!f->ours) printf("; --calls and --steps say how many, where it is not so");
        putchar('\n');
    }
    putchar('\n');
    put_stages(a);
    put_kinds(a);
    printf("\n* published for the tuned PyTorch fork, kernels of one call; its action tokens attend at most "
           "11 of 799 keys\n");
    for (int i = 0; i < a->count; i++) put_strays(a, i);
}

static json_t *cell_json(const trace_file *f, const char *name, breakdown_cell cell, breakdown_cell stepped) {
    return json_pack("{s:s,s:f,s:f,s:f,s:f}", "name", name, "calls", (double)cell.launches / f->calls,
                     "time_ms", cell.ms / f->calls, "share_ratio",
                     f->sums.all.ms > 0 ? cell.ms / f->sums.all.ms : 0, "step_ms",
                     stepped.ms / f->calls / f->steps);
}

static json_t *file_json(const char *path, const trace_file *f) {
    json_t *stages = json_array(), *kinds = json_array(), *strays = json_array();
    for (int s = 0; s < BREAKDOWN_STAGES; s++) {
        breakdown_cell cell = of_stage(f, s);
        json_array_append_new(stages, cell_json(f, breakdown_stage_name((breakdown_stage)s), cell,
                                                s == BREAKDOWN_DIFFUSION ? cell : (breakdown_cell){0, 0}));
    }
    for (int g = 0; g < BREAKDOWN_GROUPS; g++)
        json_array_append_new(kinds, cell_json(f, breakdown_group_name((breakdown_group)g), of_group(f, g),
                                               f->sums.cells[BREAKDOWN_DIFFUSION][g]));
    for (int i = 0; i < f->sums.stray_count; i++) {
        const breakdown_stray *s = &f->sums.strays[i];
        json_array_append_new(
            strays, json_pack("{s:s,s:s,s:s,s:f,s:f}", "name", s->name, "stage",
                              breakdown_stage_name(s->stage), "kind", breakdown_group_name(s->group), "calls",
                              (double)s->cell.launches / f->calls, "time_ms", s->cell.ms / f->calls));
    }
    return json_pack("{s:s,s:s,s:i,s:i,s:f,s:f,s:o,s:o,s:o}", "file", path, "engine", f->engine, "calls",
                     f->calls, "steps", f->steps, "total_ms", f->sums.all.ms / f->calls, "span_ms",
                     f->sums.span_ms, "stages", stages, "kinds", kinds, "unplaced", strays);
}

int trace_analyze(const verb *verb, const trace_reading_options *o, char **paths, int count) {
    char *names[FILES] = {NULL};
    analysis a = {.o = o, .paths = names, .count = count < FILES ? count : FILES};
    int end = END_FINE;
    for (int i = 0; i < a.count && end == END_FINE; i++) {
        end = trace_read(verb, paths[i], &a.files[i]);
        settle(&a, &a.files[i]);
        names[i] = (char *)(uintptr_t)input_name(paths[i]);
    }
    if (end == END_FINE) put_analysis(&a);
    if (end == END_FINE && o->json) {
        json_t *files = json_array();
        for (int i = 0; i < a.count; i++) json_array_append_new(files, file_json(a.paths[i], &a.files[i]));
        json_t *root = head_json("breakdown");
        json_object_set_new(root, "files", files);
        end = json_save(verb, o->json, root);
    }
    for (int i = 0; i < a.count; i++) trace_file_free(&a.files[i]);
    return end;
}
