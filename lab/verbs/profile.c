/* openpi profile: which operation takes how long, and how far each is from what the machine could do.
 *
 * The options, the tables and the JSON file; measuring is lab/measure/profile.h. */
#include "lab/measure/profile.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "paper.h"
#include "roof.h"
#include "subject.h"
#include "cli/table.h"

typedef struct profile_values {
    subject_values subject;
    const char *json;
    int by, top, warmup, runs, batch;
} profile_values;

typedef struct profile_job {
    const profile_values *v;
    subject subject;
    const paper_card *card;      /* its times are predicted; NULL: measured                               */
    bench_roofs roofs;
    profile profile;
    profile_group *groups; /* capacity: profile.count                                               */
} profile_job;

/* ---- measuring ------------------------------------------------------------------------------------ */

static int measure(profile_job *j) {
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_session *session = NULL;
    int end = subject_open(&j->subject, NULL);
    if (end == END_FINE) end = subject_session(&j->subject, j->v->batch, 0, &session);
    if (end != END_FINE) return end;
    profile_options options = {j->subject.call, j->v->warmup, j->v->runs, progress_show, &j->subject.bar};
    openpi_status status = bench_measure_roofs(j->subject.engine, &j->roofs, &error);
    progress_start(&j->subject.bar);
    if (status == OPENPI_OK) status = profile_run(session, &options, &j->roofs, &j->profile, &error);
    progress_end(&j->subject.bar);
    openpi_session_close(session);
    if (status != OPENPI_OK) return library_error(&verb_profile, &error);
    j->groups = allocate((size_t)j->profile.count * sizeof *j->groups);
    return END_FINE;
}

static int predict(profile_job *j) {
    paper_call call;
    int end = paper_subject(&j->subject, j->card, j->v->batch, &call);
    if (end != END_FINE) return end;
    j->profile = call.profile;
    j->roofs = paper_roofs(j->card);
    j->groups = allocate((size_t)j->profile.count * sizeof *j->groups + 1);
    return END_FINE;
}

/* ---- showing -------------------------------------------------------------------------------------- */

static double rate(double amount, double ms) { return ms > 0 ? amount / (ms * 1e-3) * 1e-12 : 0; }

static void heads(const profile_job *j, table *t, const char *first, const char *unit) {
    char time[32], floor[32];
    snprintf(time, sizeof time, "%s%s", j->card ? "PREDICTED " : "", unit);
    snprintf(floor, sizeof floor, "floor %s", unit);
    const char *const names[] = {first,     "calls", time,   "share", "GFLOP",  "MB",
                                 "TFLOP/s", "TB/s",  "roof", floor,   "gap µs", ""};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) table_cell(t, "%s", names[i]);
}

/* unit: 1 for ms, 1000 for µs. */
static void put_group(const profile_job *j, table *t, const profile_group *g, double unit) {
    char roof[ROOF_TEXT];
    table_cell(t, "%s", g->name);
    if (g->calls) table_cell(t, "%d", g->calls);
    else table_cell(t, "part");
    table_cell(t, unit > 1 ? "%.1f" : "%.3f", g->ms * unit);
    table_cell(t, "%.1f %%", j->profile.sum_ms > 0 ? g->ms / j->profile.sum_ms * 100 : 0);
    table_cell(t, "%.3f", g->cost.flops * 1e-9);
    table_cell(t, "%.3f", g->cost.bytes * 1e-6);
    table_cell(t, "%.3f", rate(g->cost.flops, g->ms));
    table_cell(t, "%.4f", rate(g->cost.bytes, g->ms));
    if (g->floor_ms > 0 && g->ms > 0) {
        table_cell(t, "%s", roof_share(g->floor_ms / g->ms, roof));
        table_cell(t, unit > 1 ? "%.1f" : "%.3f", g->floor_ms * unit);
        table_cell(t, "%.1f", (g->ms - g->floor_ms) * 1e3);
        table_cell(t, "%s", g->memory_ms > g->floor_ms / 2 ? "of memory" : "of compute");
    } else {
        for (int i = 0; i < 4; i++) table_cell(t, "%s", "");
    }
}

static void put_stages(const profile_job *j) {
    table *t = table_create("lrrrrrrrrrrl");
    int count = profile_groups(&j->profile, PROFILE_BY_STAGE, j->groups);
    heads(j, t, "stage", "ms");
    profile_group all = {.name = "all"};
    for (int i = 0; i < count; i++) {
        const profile_group *g = &j->groups[i];
        put_group(j, t, g, 1);
        all.calls += g->calls;
        all.cost.flops += g->cost.flops;
        all.cost.bytes += g->cost.bytes;
        all.ms += g->ms;
        all.floor_ms += g->floor_ms;
        all.memory_ms += g->memory_ms;
    }
    put_group(j, t, &all, 1);
    table_print(t, stdout, 0);
}

static void put_groups(const profile_job *j) {
    static const char *const names[] = {"stage", "step", "operation", "kind", "layer", "shape"};
    table *t = table_create("lrrrrrrrrrrl");
    int count = profile_groups(&j->profile, (profile_by)(j->v->by - 1), j->groups),
        shown = j->v->top && j->v->top < count ? j->v->top : count;
    double rest = 0;
    heads(j, t, names[j->v->by - 1], "µs");
    for (int i = 0; i < shown; i++) put_group(j, t, &j->groups[i], 1e3);
    for (int i = shown; i < count; i++) rest += j->groups[i].ms;
    putchar('\n');
    table_print(t, stdout, 0);
    if (shown < count) printf("and %d more with %.1f µs; --top 0 shows all\n", count - shown, rest * 1e3);
}

static const char *coverage_words(const profile *p) {
    if (p->method == TIMED_EVENTS) return "the rest is launching and waiting, operation by operation";
    return fabs(p->coverage_ratio - 1) <= PROFILE_COVERAGE ? "ok, within 2 %"
                                                           : "NOT within 2 %: some time has no operation";
}

static void put_totals(const profile_job *j) {
    const profile *p = &j->profile;
    if (j->card) {
        printf("\ntimed %s; nothing ran\n", timed_method_text(p->method));
        printf("operations %.3f ms PREDICTED, %d launches\n", p->sum_ms, p->launches);
        return;
    }
    double rest = p->replay.p50_ms - p->sum_ms,
           noise = p->timed.p50_ms > 0 ? p->sum_ms / p->timed.p50_ms - 1 : 0;
    printf("\ntimed %s; p50 of %d calls\n", timed_method_text(p->method), p->runs);
    if (p->not_replayed[0]) printf("not inside graph replay: %s\n", p->not_replayed);
    printf("operations %.3f ms, timed call %.3f ms: within a call they cover %.2f %% (%s)\n", p->sum_ms,
           p->timed.p50_ms, p->coverage_ratio * 100, coverage_words(p));
    if (p->method != TIMED_EVENTS && fabs(noise) > PROFILE_COVERAGE)
        printf("the operations' medians add up to %.1f %% %s than the median call: calls differ much, a "
               "quiet machine helps\n",
               fabs(noise) * 100, noise < 0 ? "less" : "more");
    printf("plain call %.3f ms, remainder %+.3f ms: %s\n", p->replay.p50_ms, rest,
           p->method == TIMED_CLOCK ? "what the clock itself costs, and noise"
           : rest > 0               ? "launch gaps"
                                    : "what overlaps when nothing is timed");
    if (p->method == TIMED_EVENTS) printf("%d operations, each run alone", p->launches);
    else printf("%d launches", p->launches);
    if (p->nodes) printf(", %d graph nodes", p->nodes);
    printf("; host to host %.3f ms\n", p->host.p50_ms);
}

static void put_head(const profile_job *j) {
    if (!j->card) subject_print(&j->subject);
    printf("%s, batch %d\n", j->subject.hardware, j->v->batch);
    if (j->card)
        printf("taken for roofs: %.0f TFLOP/s, %.0f GB/s (docs/roof.md)\n", j->roofs.tflops, j->roofs.gbs);
    else if (j->roofs.tflops > 0)
        printf("roofs measured just now: %.3f TFLOP/s, %.1f GB/s\n", j->roofs.tflops, j->roofs.gbs);
    printf("roof, floor: FLOPs at the first or weights at the second, whichever takes longer; MB, TB/s: "
           "every operand once\n\n");
}

/* ---- JSON ----------------------------------------------------------------------------------------- */

static json_t *real_or_null(int known, double value) { return known ? json_real(value) : json_null(); }

static json_t *place_or_null(int place) { return place < 0 ? json_null() : json_integer(place); }

/* What stages and ops have in common. */
static void costs_json(json_t *to, const profile_job *j, const op_cost *cost, int calls, double ms,
                       double floor_ms, double memory_ms) {
    int known = floor_ms > 0;
    json_object_set_new(to, "calls", json_integer(calls));
    json_object_set_new(to, "time_us", json_real(ms * 1e3));
    json_object_set_new(to, "share_ratio", json_real(j->profile.sum_ms > 0 ? ms / j->profile.sum_ms : 0));
    json_object_set_new(to, "gflop", json_real(cost->flops * 1e-9));
    json_object_set_new(to, "mb", json_real(cost->bytes * 1e-6));
    json_object_set_new(to, "weight_mb", json_real(cost->weight_bytes * 1e-6));
    json_object_set_new(to, "tflops", json_real(rate(cost->flops, ms)));
    json_object_set_new(to, "tbs", json_real(rate(cost->bytes, ms)));
    json_object_set_new(to, "roof_ratio", real_or_null(known && ms > 0, known && ms > 0 ? floor_ms / ms : 0));
    json_object_set_new(to, "floor_us", real_or_null(known, floor_ms * 1e3));
    json_object_set_new(to, "gap_us", real_or_null(known, (ms - floor_ms) * 1e3));
    json_object_set_new(to, "bound",
                        known ? json_string(memory_ms > floor_ms / 2 ? "memory" : "compute") : json_null());
}

static json_t *stages_json(const profile_job *j) {
    json_t *list = json_array();
    int count = profile_groups(&j->profile, PROFILE_BY_STAGE, j->groups);
    for (int i = 0; i < count; i++) {
        const profile_group *g = &j->groups[i];
        json_t *one = json_pack("{s:s,s:i}", "name", g->name, "ops", g->ops);
        costs_json(one, j, &g->cost, g->calls, g->ms, g->floor_ms, g->memory_ms);
        json_array_append_new(list, one);
    }
    return list;
}

static json_t *ops_json(const profile_job *j) {
    json_t *list = json_array();
    for (int i = 0; i < j->profile.count; i++) {
        const profile_op *o = &j->profile.ops[i];
        json_t *one = json_pack("{s:s,s:s,s:o,s:o,s:s,s:s,s:s,s:i}", "name", o->name, "stage",
                                openpi_stage_name(o->stage), "step", place_or_null(o->step), "layer",
                                place_or_null(o->layer), "kind", o->kind, "shape", o->shape, "kernel",
                                o->kernel, "ops", o->ops);
        costs_json(one, j, &o->cost, o->calls, o->ms, o->floor_ms, o->memory_bound ? o->floor_ms : 0);
        json_array_append_new(list, one);
    }
    return list;
}

static json_t *profile_json(const profile_job *j) {
    const profile *p = &j->profile;
    json_t *root = subject_json(&j->subject, "profile");
    int launches = p->method == TIMED_EVENTS ? 0 : p->launches;
    json_object_set_new(root, "batch", json_integer(j->v->batch));
    json_object_set_new(root, "warmup", json_integer(j->v->warmup));
    json_object_set_new(root, "runs", json_integer(p->runs));
    json_object_set_new(root, "roofs", roofs_json(&j->roofs));
    json_object_set_new(root, "method", json_string(timed_method_name(p->method)));
    json_object_set_new(root, "not_replayed", json_string(p->not_replayed));
    json_object_set_new(root, "stages", stages_json(j));
    json_object_set_new(root, "ops", ops_json(j));
    if (j->card) {
        json_object_set_new(root, "prediction", paper_json(&j->subject, j->card, p));
        json_object_set_new(
            root, "totals",
            json_pack("{s:n,s:n,s:f,s:n,s:n,s:i,s:n,s:n}", "replay_ms", "instrumented_ms", "sum_ms",
                      p->sum_ms, "remainder_ms", "coverage_ratio", "launches", p->launches, "nodes",
                      "host_ms"));
        return root;
    }
    json_object_set_new(
        root, "totals",
        json_pack("{s:f,s:f,s:f,s:f,s:f,s:o,s:o,s:f}", "replay_ms", p->replay.p50_ms, "instrumented_ms",
                  p->timed.p50_ms, "sum_ms", p->sum_ms, "remainder_ms", p->replay.p50_ms - p->sum_ms,
                  "coverage_ratio", p->coverage_ratio, "launches", place_or_null(launches ? launches : -1),
                  "nodes", p->nodes ? json_integer(p->nodes) : json_null(), "host_ms", p->host.p50_ms));
    return root;
}

/* ---- the verb ------------------------------------------------------------------------------------- */

static int profile_verb_run(const void *values, char **positional, int count) {
    profile_job j = {.v = values};
    int end = subject_read(&j.subject, &verb_profile, &j.v->subject, positional, count);
    if (end == END_FINE) j.card = paper_device(&verb_profile, j.v->subject.machine.device, &end);
    if (end == END_FINE) end = j.card ? predict(&j) : measure(&j);
    if (end == END_FINE) {
        put_head(&j);
        put_stages(&j);
        if (j.v->by != 1) put_groups(&j);
        put_totals(&j);
    }
    if (end == END_FINE && j.v->json) end = json_save(&verb_profile, j.v->json, profile_json(&j));
    free(j.groups);
    profile_free(&j.profile);
    subject_close(&j.subject);
    return end;
}

/* ---- the options ------------------------------------------------------------------------------------ */

#define AT(field) offsetof(profile_values, field)

static const profile_values defaults = {
    .subject = SUBJECT_DEFAULTS, .by = 3, .top = 20, .warmup = 2, .runs = 10, .batch = 1};

static const option_row options[] = {
    SUBJECT_MODEL_OPTIONS(profile_values, subject),
    {OPTION_HEADING, .name = "Workload"},
    {OPTION_INT, "batch", "N",
     "samples of a call (default: 1)", .offset = AT(batch), .low = 1, .high = OPENPI_MAX_BATCH},
    SUBJECT_WORKLOAD_OPTIONS(profile_values, subject),
    {OPTION_HEADING, .name = "Measuring"},
    {OPTION_CHOICE, "by", "stage|step|op|kind|layer|shape",
     "what the second table groups by (default: op)", .offset = AT(by)},
    {OPTION_INT, "top", "N",
     "rows of the second table, 0 for all (default: 20)", .offset = AT(top), .low = 0, .high = 100000},
    {OPTION_INT, "warmup", "N",
     "calls that do not count (default: 2)", .offset = AT(warmup), .low = 0, .high = 100000},
    {OPTION_INT, "runs", "N",
     "timed calls, and as many plain ones (default: 10)", .offset = AT(runs), .low = 1, .high = 100000},
    {OPTION_OUTPUT, "json", "FILE",
     "also write everything here, every operation of the plan a row", .offset = AT(json)},
    SUBJECT_MACHINE_OPTIONS(profile_values, subject),
    {0},
};

static const conflict conflicts[] = {
    {"", "synthetic", "the weights are either read or made"},
    LORA_CONFLICT,
    {0},
};

static const example examples[] = {
    {"which operations take the time of the published π0 on a GPU", "openpi profile --synthetic full --device cuda:0"},
    {"a quick look on any machine", "openpi profile --synthetic tiny --by kind"},
    {"which step or layer is the odd one", "openpi profile pi0_droid/ --by layer --top 10"},
    {"what a card that is not here would take, PREDICTED", "openpi profile --device hip:sim"},
    {"operation by operation instead of inside the graph, for comparison", "openpi profile --device cuda:0 --no-graph"},
    {"everything for a script", "openpi profile --synthetic full --runs 50 --json profile.json"},
    {NULL, NULL},
};

static const char *const synopsis[] = {"[--synthetic PRESET[:pi0|pi05[:SEED]]] [options]",
                                       "CHECKPOINT [options]", NULL};

const verb verb_profile = {
    .name = "profile",
    .summary = "where a call's time goes, operation by operation",
    .synopsis = synopsis,
    .positional = "CHECKPOINT",
    .positional_max = 1,
    .description = "Times every operation of a call and sets it against the compute and memory ceilings of "
                   "this machine, measured in "
                   "the same run. Without a model it takes the full synthetic π0.\n\n"
                   "On a GPU the times are taken inside graph replay, by an event node after every launch, "
                   "because operations that "
                   "are launched one by one do not behave as they do in the graph; --no-graph does that all "
                   "the same. On the CPU a "
                   "plan always runs operation by operation, and the clock is read between them. Timed and "
                   "plain calls take turns; "
                   "the plain one and what separates the two are printed with the totals.\n\n"
                   "With --device hip:sim (an MI300X) or hip:sim:NAME nothing runs: the times are PREDICTED "
                   "by the static model of `openpi roof --model NAME`.\n\n"
                   "roof is floor / time, and gap is time - floor: what is there to be won.",
    .options = options,
    .conflicts = conflicts,
    .examples = examples,
    .values_bytes = sizeof(profile_values),
    .defaults = &defaults,
    .run = profile_verb_run,
};
