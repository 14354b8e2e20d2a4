/* openpi ladder: what every optimisation is worth, from all off to all on, and each alone taken away from the
 * whole. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lab/draw/chart.h"
#include "lab/measure/ladder.h"
#include "cli/output.h"
#include "subject.h"
#include "cli/table.h"

typedef struct ladder_values {
    subject_values subject;
    int batch, warmup, runs, list;
    const char *json, *svg;
} ladder_values;

typedef struct ladder_view {
    const ladder_values *v;
    subject subject;
    openpi_switch names[LADDER_SWITCHES];
    int name_count;
    ladder_report report;
} ladder_view;

static const char *name_of(const ladder_view *l, const ladder_rung *rung) {
    return rung->which < 0 || rung->which >= l->name_count ? "all off" : l->names[rung->which].name;
}

static double ratio(double a, double b) { return b > 0 ? a / b : 0; }

/* ---- text ------------------------------------------------------------------------------------------- */

static void put_state(table *t, const ladder_rung *rung) {
    table_cell(t, "%.1e%s", rung->deviation_max, rung->within ? "" : " FAIL");
    table_cell(t, "%d", rung->operations);
    if (rung->nodes) table_cell(t, "%d", rung->nodes);
    else table_cell(t, "-");
    table_cell(t, "%.1f", (double)rung->weight_bytes / 1e6);
    table_cell(t, "%.1f", (double)rung->session_bytes / 1e6);
}

static void put_head(table *t, const char *name, const char *a, const char *b, const char *c) {
    const char *const head[] = {name,         a,           b, c, "deviation", "operations", "nodes",
                                "weights MB", "session MB"};
    for (size_t i = 0; i < sizeof head / sizeof *head; i++) table_cell(t, "%s", head[i]);
}

static void put_not_applicable(table *t, const char *name, const char *ms) {
    table_cell(t, "%s", name);
    table_cell(t, "%s", ms);
    for (int i = 0; i < 7; i++) table_cell(t, "%s", i ? "" : "n/a");
}

static void print_climb(const ladder_view *l) {
    const ladder_report *r = &l->report;
    table *t = table_create("lrrrrrrrr");
    put_head(t, "rung", "ms", "gain ms", "so far");
    for (int i = 0; i < r->climb_count; i++) {
        const ladder_rung *rung = &r->climb[i];
        char name[64];
        snprintf(name, sizeof name, "%s%s", i ? "+ " : "", name_of(l, rung));
        if (rung->reason[0]) {
            put_not_applicable(t, name, "");
            continue;
        }
        table_cell(t, "%s", name);
        table_cell(t, "%.3f", rung->p50_ms);
        if (i) table_cell(t, "%.3f", rung->before_ms - rung->p50_ms);
        else table_cell(t, "-");
        table_cell(t, "%.2fx", ratio(r->foot_ms, rung->p50_ms));
        put_state(t, rung);
    }
    table_print(t, stdout, 0);
}

static void print_without(const ladder_view *l) {
    const ladder_report *r = &l->report;
    table *t = table_create("lrrrrrrrr");
    put_head(t, "without", "ms", "cost ms", "slower");
    for (int i = 0; i < r->without_count; i++) {
        const ladder_rung *rung = &r->without[i];
        if (rung->reason[0]) {
            put_not_applicable(t, name_of(l, rung), "");
            continue;
        }
        table_cell(t, "%s", name_of(l, rung));
        table_cell(t, "%.3f", rung->p50_ms);
        table_cell(t, "%.3f", rung->p50_ms - r->top_ms);
        table_cell(t, "%.3fx", ratio(rung->p50_ms, r->top_ms));
        put_state(t, rung);
    }
    table_print(t, stdout, 0);
}

static void print_reasons(const ladder_view *l) {
    const ladder_report *r = &l->report;
    int head = 0;
    for (int i = 0; i < r->climb_count; i++) {
        if (!r->climb[i].reason[0]) continue;
        if (!head++) printf("\nn/a\n");
        printf("  %s: %s\n", name_of(l, &r->climb[i]), r->climb[i].reason);
    }
}

static void print_all(const ladder_view *l) {
    const ladder_report *r = &l->report;
    subject_print(&l->subject);
    printf("batch %d, median of %d runs from host to host\n\nfrom all off to all on\n", l->v->batch,
           l->v->runs);
    print_climb(l);
    printf("\n%.3f ms -> %.3f ms: %.2fx\n\nall on but one\n", r->foot_ms, r->top_ms,
           ratio(r->foot_ms, r->top_ms));
    print_without(l);
    print_reasons(l);
    printf("\ndeviation: largest distance of an action from the last rung's; bound %.1e", r->bound_max);
    if (r->bound_rms > 0) printf(", rms %.1e", r->bound_rms);
    printf("; %d rung%s beyond it\n", r->failed, r->failed == 1 ? "" : "s");
}

static int list_switches(void) {
    openpi_switch names[LADDER_SWITCHES] = {OPENPI_SWITCH_INIT};
    openpi_error error = OPENPI_ERROR_INIT;
    int count;
    if (openpi_switches(names, LADDER_SWITCHES, &count, &error) != OPENPI_OK)
        return library_error(&verb_ladder, &error);
    table *t = table_create("ll");
    for (int i = 0; i < count && i < LADDER_SWITCHES; i++) {
        table_cell(t, "%s", names[i].name);
        table_cell(t, "%s", names[i].text);
    }
    table_print(t, stdout, 0);
    return END_FINE;
}

/* ---- files ------------------------------------------------------------------------------------------ */

static json_t *rung_json(const ladder_view *l, const ladder_rung *rung) {
    if (rung->reason[0])
        return json_pack("{s:s,s:b,s:s}", "switch", name_of(l, rung), "applies", 0, "reason", rung->reason);
    json_t *o = json_pack("{s:b,s:f,s:f,s:i,s:i,s:I,s:I,s:f,s:f,s:b}", "applies", 1, "p50_ms", rung->p50_ms,
                          "device_p50_ms", rung->device_ms, "operations", rung->operations, "nodes",
                          rung->nodes, "weight_bytes", (json_int_t)rung->weight_bytes, "session_bytes",
                          (json_int_t)rung->session_bytes, "deviation_max", rung->deviation_max,
                          "deviation_rms", rung->deviation_rms, "within_bound", rung->within);
    if (o) json_object_set_new(o, "switch", rung->which < 0 ? json_null() : json_string(name_of(l, rung)));
    return o;
}

static json_t *climb_json(const ladder_view *l) {
    const ladder_report *r = &l->report;
    json_t *list = json_array();
    for (int i = 0; i < r->climb_count; i++) {
        const ladder_rung *rung = &r->climb[i];
        json_t *o = rung_json(l, rung);
        if (!rung->reason[0]) {
            json_object_set_new(o, "gain_ms", json_real(i ? rung->before_ms - rung->p50_ms : 0));
            json_object_set_new(o, "gain_ratio", json_real(i ? ratio(rung->before_ms, rung->p50_ms) : 1));
            json_object_set_new(o, "total_ratio", json_real(ratio(r->foot_ms, rung->p50_ms)));
        }
        json_array_append_new(list, o);
    }
    return list;
}

static json_t *without_json(const ladder_view *l) {
    const ladder_report *r = &l->report;
    json_t *list = json_array();
    for (int i = 0; i < r->without_count; i++) {
        const ladder_rung *rung = &r->without[i];
        json_t *o = rung_json(l, rung);
        if (!rung->reason[0]) {
            json_object_set_new(o, "cost_ms", json_real(rung->p50_ms - r->top_ms));
            json_object_set_new(o, "cost_ratio", json_real(ratio(rung->p50_ms, r->top_ms)));
        }
        json_array_append_new(list, o);
    }
    return list;
}

static int save_json(const ladder_view *l) {
    const ladder_report *r = &l->report;
    json_t *root = subject_json(&l->subject, "ladder");
    json_object_set_new(json_object_get(root, "workload"), "batch", json_integer(l->v->batch));
    json_object_set_new(root, "warmup", json_integer(l->v->warmup));
    json_object_set_new(root, "runs", json_integer(l->v->runs));
    json_object_set_new(root, "foot_ms", json_real(r->foot_ms));
    json_object_set_new(root, "top_ms", json_real(r->top_ms));
    json_object_set_new(root, "total_ratio", json_real(ratio(r->foot_ms, r->top_ms)));
    json_object_set_new(root, "bound_max", json_real(r->bound_max));
    json_object_set_new(root, "bound_rms", r->bound_rms > 0 ? json_real(r->bound_rms) : json_null());
    json_object_set_new(root, "failed", json_integer(r->failed));
    json_object_set_new(root, "climb", climb_json(l));
    json_object_set_new(root, "leave_one_out", without_json(l));
    return json_save(&verb_ladder, l->v->json, root);
}

static void save_svg(const ladder_view *l) {
    const ladder_report *r = &l->report;
    chart_bar bars[LADDER_SWITCHES + 1];
    char labels[LADDER_SWITCHES + 1][64], notes[LADDER_SWITCHES + 1][48], title[120], subtitle[256];
    int count = 0;
    for (int i = 0; i < r->climb_count; i++) {
        const ladder_rung *rung = &r->climb[i];
        if (rung->reason[0]) continue;
        snprintf(labels[count], sizeof labels[count], "%s%s", i ? "+ " : "", name_of(l, rung));
        snprintf(notes[count], sizeof notes[count], "%+.2f ms", rung->p50_ms - rung->before_ms);
        bars[count] =
            (chart_bar){.label = labels[count], .values = {rung->p50_ms}, .note = i ? notes[count] : NULL};
        count++;
    }
    snprintf(title, sizeof title, "Ladder: %.2f ms to %.2f ms, %.2fx", r->foot_ms, r->top_ms,
             ratio(r->foot_ms, r->top_ms));
    snprintf(subtitle, sizeof subtitle, "%s, %s on %s (%s), batch %d", l->subject.source,
             r->info.dtype == OPENPI_F32 ? "f32" : "bf16", r->info.device, r->info.path, l->v->batch);
    const bar_chart chart = {.head = {title, subtitle, 0}, .unit = "ms", .bars = bars, .count = count};
    chart_bars(output_file(l->v->svg), &chart);
}

/* ---- running ---------------------------------------------------------------------------------------- */

static int climb(ladder_view *l, ladder_values *v) {
    subject *s = &l->subject;
    openpi_error error = OPENPI_ERROR_INIT;
    char text[SWITCH_TEXT];
    int gpu = v->subject.machine.device && strncmp(v->subject.machine.device, "cpu", 3) != 0;
    if (v->warmup < 0) v->warmup = gpu ? 5 : 1;
    if (!v->runs) v->runs = gpu ? 20 : 5;
    ladder_job job = {.checkpoint = s->model.checkpoint,
                      .engine = OPENPI_ENGINE_OPTIONS_INIT,
                      .session = OPENPI_SESSION_OPTIONS_INIT,
                      .call = s->call,
                      .warmup = v->warmup,
                      .runs = v->runs,
                      .progress = progress_show,
                      .progress_user = &s->bar};
    machine_options(&v->subject.machine, text, &job.engine);
    engine_of_model(&s->model, &v->subject.lora, &job.engine);
    job.engine.progress = progress_show;
    job.engine.progress_user = &s->bar;
    job.session.batch = job.call.batch = v->batch;
    job.session.horizon = v->subject.horizon;
    job.session.steps = v->subject.steps;
    job.session.max_prompt = s->call.prompt ? s->call.prompt : 1;
    progress_start(&s->bar);
    openpi_status status = ladder_run(&job, &l->report, &error);
    s->ready_ms = l->report.ready_ms;
    progress_end(&s->bar);
    s->info = l->report.info;
    head_hardware(v->subject.machine.device ? v->subject.machine.device : "cpu", l->report.facts.name,
                  s->hardware);
    return status == OPENPI_OK ? END_FINE : library_error(&verb_ladder, &error);
}

static int ladder_verb_run(const void *values, char **positional, int count) {
    ladder_values v = *(const ladder_values *)values;
    if (v.list) return list_switches();
    ladder_view *l = allocate(sizeof *l);
    memset(l, 0, sizeof *l);
    l->v = &v;
    l->names[0].size = sizeof l->names[0];
    openpi_switches(l->names, LADDER_SWITCHES, &l->name_count, NULL);
    int end = subject_read(&l->subject, &verb_ladder, &v.subject, positional, count);
    if (end == END_FINE) end = climb(l, &v);
    if (end == END_FINE) print_all(l);
    if (end == END_FINE && v.json) end = save_json(l);
    if (end == END_FINE && v.svg) save_svg(l);
    if (end == END_FINE && l->report.failed) end = END_CHECK;
    free(l);
    return end;
}

/* ---- the options -------------------------------------------------------------------------------------- */

#define AT(field) offsetof(ladder_values, field)

static const ladder_values defaults = {.subject = SUBJECT_DEFAULTS, .batch = 1, .warmup = -1};

static const option_row options[] = {
    {OPTION_FLAG, "list", NULL, "only list the switches and what each does", .offset = AT(list)},
    SUBJECT_MODEL_OPTIONS(ladder_values, subject),
    {OPTION_HEADING, .name = "Workload"},
    {OPTION_INT, "batch", "N",
     "samples of a call (default: 1)", .offset = AT(batch), .low = 1, .high = OPENPI_MAX_BATCH},
    SUBJECT_WORKLOAD_OPTIONS(ladder_values, subject),
    {OPTION_HEADING, .name = "Measuring"},
    {OPTION_INT, "warmup", "N",
     "runs a rung that do not count (default: 1; 5 on a GPU)",
     .offset = AT(warmup), .low = 0, .high = 100000},
    {OPTION_INT, "runs", "N",
     "runs a rung that count (default: 5; 20 on a GPU)", .offset = AT(runs), .low = 1, .high = 100000},
    {OPTION_HEADING, .name = "Results"},
    {OPTION_OUTPUT, "json", "FILE", "also write the figures here", .offset = AT(json)},
    {OPTION_OUTPUT, "svg", "FILE", "also draw the climb", .offset = AT(svg)},
    SUBJECT_MACHINE_OPTIONS(ladder_values, subject),
    {0},
};

static const conflict conflicts[] = {
    {"", "synthetic", "the weights are either read or made"},
    LORA_CONFLICT,
    {"", "list", "--list names the optimisations of any model"},
    {0},
};

static const option_alone alone = {"list", "nothing is measured", {NULL}};

static const example examples[] = {
    {"the published π0 on a GPU, with a picture", "openpi ladder --device cuda:0 --svg ladder.svg --json ladder.json"},
    {"what absent cameras cost where they are computed all the same", "openpi ladder --device cuda:0 --cameras 100"},
    {"a quick look on any machine", "openpi ladder --synthetic tiny"},
    {"the names that --without takes", "openpi ladder --list"},
    {NULL, NULL},
};

static const char *const synopsis[] = {"[--synthetic PRESET[:pi0|pi05[:SEED]]] [options]",
                                       "CHECKPOINT [options]", "--list", NULL};

const verb verb_ladder = {
    .name = "ladder",
    .summary = "what every optimisation is worth, switched on one after the other",
    .synopsis = synopsis,
    .positional = "CHECKPOINT",
    .positional_max = 1,
    .description = "Every optimisation is a switch. Climbs from all off to all on in the order of --list and "
                   "shows each rung's "
                   "time, its gain, the factor so far, its memory and how many operations and graph nodes "
                   "its plan has; then "
                   "takes each switch alone away from the whole. Every rung's actions are compared with "
                   "those of the last: beyond "
                   "the bound of the goldens the command ends with status 1. A switch that changes nothing "
                   "for the model, the "
                   "call or the device is n/a, with the reason.\n\n"
                   "What --without names stays off on every rung. Without a model it takes the full "
                   "synthetic π0.",
    .options = options,
    .conflicts = conflicts,
    .alone = &alone,
    .examples = examples,
    .values_bytes = sizeof(ladder_values),
    .defaults = &defaults,
    .run = ladder_verb_run,
};
