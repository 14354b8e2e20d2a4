/* openpi bench: how fast a model runs here, and how far from what the machine could do.
 *
 * The words, the table and the JSON file; what is measured is measure/bench.h. */
#include "measure/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "subject.h"
#include "table.h"

enum { BATCHES_MAX = 16 };

typedef struct bench_values {
    subject_values subject;
    const char *batch, *json, *against;
    int warmup, runs, tolerance;
} bench_values;

typedef struct bench_job {
    const bench_values *v;
    subject subject;
    int batches[BATCHES_MAX], count;
    bench_report reports[BATCHES_MAX];
    bench_roofs roofs;
    uint64_t load_anonymous, load_peak;    /* largest while it opened                                     */
} bench_job;

/* ---- reading the words ---------------------------------------------------------------------------- */

static int read_batches(bench_job *j) {
    const char *at = j->v->batch ? j->v->batch : "1";
    for (;;) {
        char *end;
        long batch = strtol(at, &end, 10);
        if (end == at || batch < 1 || batch > OPENPI_MAX_BATCH || (*end && *end != ',') || (*end == ',' && !end[1]))
            return usage_error(&verb_bench, "--batch is '%s', expected numbers from 1 to %d such as 1,2,4", j->v->batch,
                               OPENPI_MAX_BATCH);
        if (j->count == BATCHES_MAX) return usage_error(&verb_bench, "--batch lists more than %d numbers", BATCHES_MAX);
        j->batches[j->count++] = (int)batch;
        if (!*end) return END_FINE;
        at = end + 1;
    }
}

/* ---- running -------------------------------------------------------------------------------------- */

static void sample_memory(bench_job *j) {
    uint64_t anonymous, peak;
    bench_memory(&anonymous, &peak);
    if (anonymous > j->load_anonymous) j->load_anonymous = anonymous;
    if (peak > j->load_peak) j->load_peak = peak;
}

static void on_load(void *user, const char *what, uint64_t done, uint64_t total) {
    (void)what, (void)done, (void)total;
    sample_memory(user);
}

static int load(bench_job *j) {
    openpi_error error = {0};
    j->subject.on_load = on_load;
    j->subject.on_load_user = j;
    int end = subject_open(&j->subject, NULL);
    if (end != END_FINE) return end;
    sample_memory(j);
    openpi_status status = bench_measure_roofs(j->subject.engine, &j->roofs, &error);
    return status == OPENPI_OK ? END_FINE : library_error(&verb_bench, &error);
}

static int measure(bench_job *j, int which) {
    openpi_error error = {0};
    openpi_session *session = NULL;
    openpi_session_info info;
    int end = subject_session(&j->subject, j->batches[which], 0, &session);
    if (end != END_FINE) return end;
    openpi_session_get_info(session, &info);
    if (info.not_recorded[0]) fprintf(stderr, "openpi bench: runs operation by operation, not as one graph: %s\n", info.not_recorded);
    bench_workload work = {j->subject.call, j->v->warmup, j->v->runs, progress_show, &j->subject.bar};
    progress_start(&j->subject.bar);
    openpi_status status = bench_run(session, &work, &j->roofs, &j->reports[which], &error);
    progress_end(&j->subject.bar);
    if (j->load_anonymous > j->reports[which].anonymous_bytes) j->reports[which].anonymous_bytes = j->load_anonymous;
    if (j->load_peak > j->reports[which].peak_bytes) j->reports[which].peak_bytes = j->load_peak;
    openpi_session_close(session);
    return status == OPENPI_OK ? END_FINE : library_error(&verb_bench, &error);
}

/* ---- showing -------------------------------------------------------------------------------------- */

static void figures_row(table *t, const char *name, const figures *f) {
    const double values[] = {f->mean_ms, f->std_ms, f->min_ms, f->max_ms, f->p50_ms, f->p95_ms, f->p99_ms};
    table_cell(t, "%s", name);
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) table_cell(t, "%.3f", values[i]);
}

static void figures_head(table *t) {
    static const char *const heads[] = {"ms", "mean", "std", "min", "max", "p50", "p95", "p99"};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) table_cell(t, "%s", heads[i]);
}

static void put_stages(const bench_job *j, const bench_report *r) {
    table *t = table_create("lrrrrl");
    int roofs = j->roofs.tflops > 0;
    table_cell(t, "stage");
    table_cell(t, "p50 ms");
    table_cell(t, "TFLOP/s");
    table_cell(t, "GB/s");
    table_cell(t, "%s", roofs ? "roof" : "");
    table_cell(t, "%s", "");
    for (int i = 0; i < r->stage_count; i++) {
        const bench_stage *s = &r->stages[i];
        table_cell(t, "%s", openpi_stage_name(s->stage));
        table_cell(t, "%.3f", s->ms.p50_ms);
        if (s->flops > 0) {
            table_cell(t, "%.3f", s->tflops);
            table_cell(t, "%.1f", s->gbs);
        } else {
            table_cell(t, "%s", "");
            table_cell(t, "%s", "");
        }
        if (s->roof > 0) table_cell(t, "%.0f %%", s->roof * 100);
        else table_cell(t, "%s", "");
        table_cell(t, "%s", s->roof > 0 ? s->memory_bound ? "of memory" : "of compute" : "");
    }
    table_print(t, stdout, 0);
}

static void put_report(const bench_job *j, int which) {
    const bench_report *r = &j->reports[which];
    table *t = table_create("lrrrrrrr");
    printf("\nbatch %d\n", j->batches[which]);
    figures_head(t);
    figures_row(t, "host", &r->host);
    figures_row(t, "device", &r->device);
    table_print(t, stdout, 0);
    double hz = r->host.p50_ms > 0 ? 1e3 / r->host.p50_ms : 0;
    printf("%.3f Hz, %.3f samples/s; %.3f TFLOP and %.2f GB of weights a call\n\n", hz, hz * j->batches[which], r->flops * 1e-12,
           r->weight_bytes * 1e-9);
    put_stages(j, r);
    printf("\nmemory: %.2f GB at most, of it anonymous %.2f GB (weights %.2f GB)\n", (double)r->peak_bytes / 1e9,
           (double)r->anonymous_bytes / 1e9, (double)j->subject.info.weight_bytes / 1e9);
}

static void put_head(const bench_job *j) {
    subject_print(&j->subject);
    printf("%d warm-up and %d measured runs\n", j->v->warmup, j->v->runs);
    if (j->roofs.tflops > 0) printf("roofs measured just now: %.3f TFLOP/s, %.1f GB/s\n", j->roofs.tflops, j->roofs.gbs);
}

/* ---- JSON ----------------------------------------------------------------------------------------- */

static json_t *figures_json(const figures *f, int batch) {
    double hz = f->p50_ms > 0 ? 1e3 / f->p50_ms : 0;
    return json_pack("{s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f}", "p50_ms", f->p50_ms, "p95_ms", f->p95_ms, "p99_ms", f->p99_ms,
                     "mean_ms", f->mean_ms, "std_ms", f->std_ms, "min_ms", f->min_ms, "max_ms", f->max_ms, "hz", hz,
                     "samples_per_s", hz * batch);
}

static json_t *stages_json(const bench_report *r) {
    json_t *list = json_array();
    for (int i = 0; i < r->stage_count; i++) {
        const bench_stage *s = &r->stages[i];
        json_t *roof = s->roof > 0 ? json_real(s->roof) : json_null();
        json_array_append_new(list, json_pack("{s:s,s:f,s:f,s:f,s:f,s:f,s:f,s:o,s:o}", "name", openpi_stage_name(s->stage),
                                              "p50_ms", s->ms.p50_ms, "p95_ms", s->ms.p95_ms, "min_ms", s->ms.min_ms, "flops",
                                              s->flops, "tflops", s->tflops, "gbs", s->gbs, "roof", roof, "bound",
                                              s->roof > 0 ? json_string(s->memory_bound ? "memory" : "compute") : json_null()));
    }
    return list;
}

/* host, device, stages, memory of one batch, into `to`. */
static void report_json(json_t *to, const bench_job *j, int which) {
    const bench_report *r = &j->reports[which];
    json_object_set_new(to, "batch", json_integer(j->batches[which]));
    json_object_set_new(to, "host", figures_json(&r->host, j->batches[which]));
    json_object_set_new(to, "device", figures_json(&r->device, j->batches[which]));
    json_object_set_new(to, "stages", stages_json(r));
    json_object_set_new(to, "memory",
                        json_pack("{s:I,s:I,s:I}", "peak_bytes", (json_int_t)r->peak_bytes, "anonymous_bytes",
                                  (json_int_t)r->anonymous_bytes, "weight_bytes", (json_int_t)j->subject.info.weight_bytes));
}

/* The first batch's figures stand at the top; with several, `batches` holds each. */
static json_t *bench_json(const bench_job *j) {
    json_t *root = subject_json(&j->subject, "bench");
    json_object_set_new(root, "warmup", json_integer(j->v->warmup));
    json_object_set_new(root, "runs", json_integer(j->v->runs));
    json_object_set_new(root, "roofs",
                        j->roofs.tflops > 0 ? json_pack("{s:f,s:f}", "tflops", j->roofs.tflops, "gbs", j->roofs.gbs)
                                            : json_null());
    report_json(root, j, 0);
    if (j->count > 1) {
        json_t *list = json_array();
        for (int i = 0; i < j->count; i++) {
            json_t *one = json_object();
            report_json(one, j, i);
            json_array_append_new(list, one);
        }
        json_object_set_new(root, "batches", list);
    }
    return root;
}

/* ---- against an earlier file ---------------------------------------------------------------------- */

/* What must be equal for two times to be comparable. */
static const struct {
    const char *group, *key;
} same[] = {{"model", "variant"}, {"model", "parameters"}, {"machine", "dtype"}, {"workload", "cameras"}, {"workload", "prompt"},
            {"workload", "horizon"}, {"workload", "steps"}};

static const json_t *find_batch(const json_t *root, int batch) {
    const json_t *list = json_object_get(root, "batches");
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_integer_value(json_object_get(json_array_get(list, i), "batch")) == batch) return json_array_get(list, i);
    return json_integer_value(json_object_get(root, "batch")) == batch ? root : NULL;
}

/* Before anything runs, so that a wrong file costs nothing. */
static int read_against(const char *path, json_t **before) {
    int end = json_open(&verb_bench, path, "bench", before);
    if (end != END_FINE || json_is_number(json_object_get(json_object_get(*before, "host"), "p50_ms"))) return end;
    return input_error(&verb_bench, "%s: no host.p50_ms, expected a file that bench --json wrote", path);
}

static int compare(const bench_job *j, const json_t *before) {
    json_t *now = bench_json(j);
    int end = END_FINE;
    for (size_t i = 0; i < sizeof same / sizeof *same && end == END_FINE; i++) {
        const json_t *a = json_object_get(json_object_get(before, same[i].group), same[i].key);
        const json_t *b = json_object_get(json_object_get(now, same[i].group), same[i].key);
        if (!json_equal(a, b))
            end = input_error(&verb_bench, "%s: its %s.%s is not this run's, expected the same workload", j->v->against,
                              same[i].group, same[i].key);
    }
    json_decref(now);
    for (int i = 0; i < j->count && end != END_USAGE; i++) {
        const json_t *old = find_batch(before, j->batches[i]);
        if (!old) return input_error(&verb_bench, "%s: holds no batch of %d", j->v->against, j->batches[i]);
        double was = json_number_value(json_object_get(json_object_get(old, "host"), "p50_ms")), is = j->reports[i].host.p50_ms;
        double change = was > 0 ? (is / was - 1) * 100 : 0;
        int slower = change > j->v->tolerance;
        printf("%sbatch %d: %.3f ms against %.3f ms, %+.1f %%: %s\n", i ? "" : "\n", j->batches[i], is, was, change,
               slower ? "FAIL" : "ok");
        if (slower) end = END_CHECK;
    }
    return end;
}

static int bench_verb_run(const void *values, char **positional, int count) {
    bench_job j = {.v = values};
    json_t *before = NULL;
    int end = subject_read(&j.subject, &verb_bench, &j.v->subject, positional, count);
    if (end == END_FINE) end = read_batches(&j);
    if (end == END_FINE && j.v->against) end = read_against(j.v->against, &before);
    if (end == END_FINE) end = load(&j);
    if (end == END_FINE) put_head(&j);
    for (int i = 0; i < j.count && end == END_FINE; i++) {
        end = measure(&j, i);
        if (end == END_FINE) put_report(&j, i);
        fflush(stdout);
    }
    if (end == END_FINE && j.v->json) end = json_save(&verb_bench, j.v->json, bench_json(&j));
    if (end == END_FINE && before) end = compare(&j, before);
    subject_close(&j.subject);
    json_decref(before);
    return end;
}

/* ---- the words ------------------------------------------------------------------------------------ */

#define AT(field) offsetof(bench_values, field)

static const bench_values defaults = {.subject = SUBJECT_DEFAULTS, .warmup = 1, .runs = 5, .tolerance = 5};

static const option_row options[] = {
    SUBJECT_MODEL_OPTIONS(bench_values, subject),
    {OPTION_HEADING, "Workload", NULL, NULL, 0, 0, 0},
    {OPTION_TEXT, "batch", "LIST", "samples of a call, a list such as 1,2,4 (default: 1)", AT(batch), 0, 0},
    SUBJECT_WORKLOAD_OPTIONS(bench_values, subject),
    {OPTION_HEADING, "Measuring", NULL, NULL, 0, 0, 0},
    {OPTION_INT, "warmup", "N", "runs that do not count (default: 1)", AT(warmup), 0, 100000},
    {OPTION_INT, "runs", "N", "runs that count (default: 5)", AT(runs), 1, 100000},
    {OPTION_TEXT, "json", "FILE", "also write the figures here; every time ends in _ms", AT(json), 0, 0},
    {OPTION_TEXT, "against", "FILE",
     "compare host.p50_ms with such a file's: slower by more than the tolerance ends with status 1", AT(against), 0, 0},
    {OPTION_INT, "tolerance", "PERCENT", "of --against (default: 5)", AT(tolerance), 0, 1000},
    SUBJECT_MACHINE_OPTIONS(bench_values, subject),
    {0},
};

static const conflict conflicts[] = {
    {"", "synthetic", "the weights are either read or made"},
    {0},
};

static const example examples[] = {
    {"the published π0 at its published workload, synthetic weights", "openpi bench --synthetic full --dtype bf16"},
    {"a quick look on any machine", "openpi bench --synthetic tiny --runs 20"},
    {"throughput of a checkpoint, figures for a script", "openpi bench pi0_droid/ --batch 1,2,4,8 --json bench.json"},
    {"did a change make it slower", "openpi bench --synthetic full --runs 10 --against before.json --tolerance 3"},
    {NULL, NULL},
};

static const char *const synopsis[] = {"[--synthetic PRESET[:pi0|pi05[:SEED]]] [options]", "CHECKPOINT [options]", NULL};

const verb verb_bench = {
    .name = "bench",
    .summary = "how fast a model runs here, stage by stage",
    .synopsis = synopsis,
    .positional = "CHECKPOINT",
    .positional_max = 1,
    .description = "Runs one policy inference again and again: pictures, state, prompt tokens and noise in, actions out. Without "
                   "a model it takes the "
                   "full synthetic π0.\n\n"
                   "Two boundaries are reported: host (pictures, state and tokens in host memory to actions in host memory) and "
                   "device (inputs and "
                   "outputs resident on the device; on the CPU the two are one). Each stage's median is set against the compute "
                   "and memory ceilings "
                   "of this machine, measured in the same run; GB/s counts weights. Anonymous memory is sampled while loading "
                   "and after each run.",
    .options = options,
    .conflicts = conflicts,
    .examples = examples,
    .values_bytes = sizeof(bench_values),
    .defaults = &defaults,
    .run = bench_verb_run,
};
