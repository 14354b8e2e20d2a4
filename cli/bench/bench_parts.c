/* openpi bench --parts: what calls in parts cost beside a whole one, host to host.
 *
 *   one call       openpi_session_run of one sample
 *   N chunks       openpi_session_run_many of one observation
 *   prefix         openpi_session_prefix
 *   denoise        openpi_session_denoise of one chunk, all steps, over the prefix that is kept
 *   one step       the same, one step; each run takes the next of them
 *
 * Where a prefix is to be computed the pictures change before every run, so that no run finds it kept. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "cli.h"
#include "json_file.h"
#include "lab/measure/figures.h"
#include "table.h"

enum { ONE_CALL, CHUNKS, PREFIX, DENOISE, ONE_STEP, KINDS };

static const char *const keys[KINDS] = {"one_call", "chunks", "prefix", "denoise", "one_step"};

typedef struct parts_bench {
    bench_job *job;
    int chunks;
    openpi_session *whole, *one, *many;    /* ordinary; with parts, of one and of `chunks`                */
    workload_inputs inputs;                /* one sample                                                 */
    float *noise, *actions;                /* [chunks][H][32]                                             */
    float *x;                              /* [H][32]                                                     */
    int steps;
    figures host[KINDS], stage[KINDS];     /* stage: denoising, by the device's clock                     */
} parts_bench;

static openpi_status run_once(parts_bench *b, int kind, int run, openpi_timing *t, openpi_error *error) {
    const openpi_sample *sample = b->inputs.samples;
    b->inputs.pixels[0] = (uint8_t)(run + 1);
    switch (kind) {
    case ONE_CALL: return openpi_session_run(b->whole, sample, 1, b->noise, b->actions, t, error);
    case CHUNKS:
        return openpi_session_run_many(b->many, sample, 1, b->chunks, b->noise, b->actions, t, error);
    case PREFIX: return openpi_session_prefix(b->one, sample, 1, 1, t, error);
    case DENOISE: return openpi_session_denoise(b->one, b->x, 1, 0, b->steps, t, error);
    default:
        return openpi_session_denoise(b->one, b->x, 1, run % b->steps, run % b->steps + 1, t, error);
    }
}

/* Before each run x is the noise again. */
static openpi_status time_kind(parts_bench *b, int kind, openpi_error *error) {
    const bench_values *v = &b->job->v;
    int runs = v->runs, horizon = v->subject.horizon;
    double *host = allocate((size_t)runs * sizeof *host), *stage = allocate((size_t)runs * sizeof *stage);
    openpi_status status = OPENPI_OK;
    for (int i = -v->warmup; i < runs && status == OPENPI_OK; i++) {
        openpi_timing t = OPENPI_TIMING_INIT;
        memcpy(b->x, b->noise, (size_t)horizon * OPENPI_ACTION_DIM * sizeof *b->x);
        status = run_once(b, kind, i + v->warmup, &t, error);
        if (i < 0) continue;
        host[i] = t.total_ms;
        stage[i] = t.stage_ms[OPENPI_STAGE_DENOISE];
    }
    if (status == OPENPI_OK) b->host[kind] = figures_of(host, runs), b->stage[kind] = figures_of(stage, runs);
    free(host);
    free(stage);
    return status;
}

/* ---- results ---------------------------------------------------------------------------------------- */

static void put_row(table *t, const parts_bench *b, int kind) {
    const char *const names[KINDS] = {"one call", "", "prefix", "denoise alone", "one step"};
    const figures *f = &b->host[kind];
    if (kind == CHUNKS) table_cell(t, "%d chunks", b->chunks);
    else table_cell(t, "%s", names[kind]);
    table_cell(t, "%.3f", f->p50_ms);
    table_cell(t, "%.3f", f->p95_ms);
    table_cell(t, "%.3f", f->p99_ms);
    table_cell(t, "%.3f", b->stage[kind].p50_ms);
    table_cell(t, "%.3f", f->p50_ms / b->host[ONE_CALL].p50_ms);
}

static void show(const parts_bench *b) {
    static const char *const heads[] = {"ms, host to host", "p50", "p95", "p99", "denoise", "calls"};
    table *t = table_create("lrrrrr");
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) table_cell(t, "%s", heads[i]);
    for (int kind = 0; kind < KINDS; kind++) put_row(t, b, kind);
    putchar('\n');
    table_print(t, stdout, 0);
}

static int save(const parts_bench *b) {
    json_t *root = subject_json(&b->job->subject, "bench-parts"), *parts = json_object();
    for (int kind = 0; kind < KINDS; kind++) {
        const figures *f = &b->host[kind];
        json_object_set_new(parts, keys[kind],
                            json_pack("{s:f, s:f, s:f, s:f}", "p50_ms", f->p50_ms, "p95_ms", f->p95_ms,
                                      "p99_ms", f->p99_ms, "denoise_stage_ms", b->stage[kind].p50_ms));
    }
    json_object_set_new(root, "number", json_integer(b->chunks));
    json_object_set_new(root, "runs", json_integer(b->job->v.runs));
    json_object_set_new(root, "parts", parts);
    return json_save(&verb_bench, b->job->v.json, root);
}

/* ---- running ---------------------------------------------------------------------------------------- */

static openpi_status make_inputs(parts_bench *b, openpi_error *error) {
    workload one = b->job->subject.call;
    openpi_session_info info = OPENPI_SESSION_INFO_INIT;
    one.batch = 1;
    openpi_status status = openpi_session_get_info(b->whole, &info, error);
    if (status == OPENPI_OK) status = workload_make(b->whole, &one, &b->inputs, error);
    if (status != OPENPI_OK) return status;
    size_t numbers = (size_t)info.horizon * OPENPI_ACTION_DIM;
    b->steps = info.steps;
    b->x = allocate(numbers * sizeof *b->x);
    b->noise = allocate((size_t)b->chunks * numbers * sizeof *b->noise);
    b->actions = allocate((size_t)b->chunks * numbers * sizeof *b->actions);
    openpi_noise(one.seed, 0, b->noise, (size_t)b->chunks * numbers);
    return OPENPI_OK;
}

static int open_sessions(parts_bench *b) {
    subject *s = &b->job->subject;
    int end = subject_session(s, 1, 0, &b->whole);
    s->parts = 1;
    if (end == END_FINE) end = subject_session(s, 1, 0, &b->one);
    if (end == END_FINE) end = subject_session(s, b->chunks, 0, &b->many);
    return end;
}

static int time_all(parts_bench *b) {
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_status status = make_inputs(b, &error);
    for (int kind = 0; kind < KINDS && status == OPENPI_OK; kind++) status = time_kind(b, kind, &error);
    if (status != OPENPI_OK) return library_error(&verb_bench, &error);
    show(b);
    return b->job->v.json ? save(b) : END_FINE;
}

int bench_parts(bench_job *job) {
    parts_bench b = {.job = job, .chunks = job->v.parts};
    bench_put_head(job);
    int end = open_sessions(&b);
    if (end == END_FINE) end = time_all(&b);
    workload_free(&b.inputs);
    openpi_session_close(b.whole);
    openpi_session_close(b.one);
    openpi_session_close(b.many);
    free(b.x);
    free(b.noise);
    free(b.actions);
    return end;
}
