/* Bench: runs a session on made-up inputs and summarises. Costs are a walk over the plan with the rows of the last call.
 *
 * Surprising: GB/s counts weights only. Activations of a call fit the caches, and counting them would make a stage look
 * closer to the memory's roof than it is. */
#include "measure/bench.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/roof.h"
#include "base/clock.h"
#include "base/report.h"
#include "openpi_internal.h"

/* ---- figures -------------------------------------------------------------------------------------- */

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double percentile(const double *sorted, int count, double part) {
    double at = part * (count - 1);
    int low = (int)at, high = low + 1 < count ? low + 1 : low;
    return sorted[low] + (at - low) * (sorted[high] - sorted[low]);
}

bench_figures bench_summarise(double *values, int count) {
    double sum = 0, squares = 0;
    qsort(values, (size_t)count, sizeof *values, ascending);
    for (int i = 0; i < count; i++) sum += values[i];
    double mean = sum / count;
    for (int i = 0; i < count; i++) squares += (values[i] - mean) * (values[i] - mean);
    return (bench_figures){mean,
                           count > 1 ? sqrt(squares / (count - 1)) : 0,
                           values[0],
                           values[count - 1],
                           percentile(values, count, 0.50),
                           percentile(values, count, 0.95),
                           percentile(values, count, 0.99)};
}

void bench_memory(uint64_t *anonymous, uint64_t *peak) {
    char line[256];
    FILE *file = fopen("/proc/self/status", "r");
    *anonymous = *peak = 0;
    if (!file) return;
    while (fgets(line, sizeof line, file)) {
        uint64_t kilobytes;
        if (sscanf(line, "RssAnon: %" SCNu64, &kilobytes) == 1) *anonymous = kilobytes * 1024;
        if (sscanf(line, "VmHWM: %" SCNu64, &kilobytes) == 1) *peak = kilobytes * 1024;
    }
    fclose(file);
}

/* ---- inputs --------------------------------------------------------------------------------------- */

typedef struct inputs {
    openpi_sample *samples;
    uint8_t *pixels;             /* [batch][3][224][224][3]                                               */
    int32_t *tokens;             /* [batch][prompt]                                                       */
    float *state;                /* [batch][32]                                                           */
    float *noise, *actions;      /* [batch][horizon][32]                                                  */
    double *times;               /* [OPENPI_STAGES + 2][runs]                                             */
} inputs;

static void inputs_free(inputs *in) {
    free(in->samples);
    free(in->pixels);
    free(in->tokens);
    free(in->state);
    free(in->noise);
    free(in->actions);
    free(in->times);
}

static openpi_status inputs_make(const openpi_session *s, const bench_workload *w, inputs *in, openpi_error *error) {
    enum { PICTURE = IMAGE_BYTES };
    size_t batch = (size_t)w->batch, rows = batch * (size_t)s->options.horizon * OPENPI_ACTION_DIM;
    int vocab = s->engine->checkpoint->dims.vocab;
    in->samples = calloc(batch, sizeof *in->samples);
    in->pixels = malloc(batch * OPENPI_CAMERAS * PICTURE);
    in->tokens = malloc((batch * (size_t)w->prompt + 1) * sizeof *in->tokens);
    in->state = malloc(batch * OPENPI_ACTION_DIM * sizeof *in->state);
    in->noise = malloc(rows * sizeof *in->noise);
    in->actions = malloc(rows * sizeof *in->actions);
    in->times = malloc((OPENPI_STAGES + 2) * (size_t)w->runs * sizeof *in->times);
    if (!in->samples || !in->pixels || !in->tokens || !in->state || !in->noise || !in->actions || !in->times)
        return report_no_memory(error, batch * OPENPI_CAMERAS * PICTURE, "the benchmark's inputs");

    uint64_t random = w->seed * 2 + 1;
    for (size_t i = 0; i < batch * OPENPI_CAMERAS * PICTURE; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        in->pixels[i] = (uint8_t)(random >> 56);
    }
    for (size_t i = 0; i < batch * (size_t)w->prompt; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        in->tokens[i] = (int32_t)((random >> 33) % (uint64_t)vocab);
    }
    openpi_noise(w->seed, 1, in->state, batch * OPENPI_ACTION_DIM);
    openpi_noise(w->seed, 0, in->noise, rows);
    for (size_t b = 0; b < batch; b++) {
        openpi_sample *sample = &in->samples[b];
        for (int c = 0; c < OPENPI_CAMERAS; c++) {
            sample->images[c] = in->pixels + (b * OPENPI_CAMERAS + (size_t)c) * PICTURE;
            sample->image_mask[c] = w->cameras[c];
        }
        sample->tokens = in->tokens + b * (size_t)w->prompt;
        sample->token_count = w->prompt;
        sample->state = in->state + b * OPENPI_ACTION_DIM;
    }
    return OPENPI_OK;
}

/* ---- costs ---------------------------------------------------------------------------------------- */

static const row_set *op_rows(const op *op) {
    switch (op->kind) {
#define X(kind, member, type) \
    case kind: return &op->member.rows;
        OP_LIST(X)
#undef X
    case OP_KINDS: break;
    }
    return NULL;
}

/* The host's copy of the table whose device copy a row set looks at. */
static const row_table *host_table(const openpi_session *s, const row_set *rows) {
    const call_tables *device = &s->plan->buffers.in.tables, *host = &s->in.tables;
    const row_table *on_device[] = {&device->vision, &device->text,   &device->prefix, &device->state,
                                    &device->suffix, &device->action, &device->steps};
    const row_table *on_host[] = {&host->vision, &host->text,   &host->prefix, &host->state,
                                  &host->suffix, &host->action, &host->steps};
    for (size_t i = 0; i < sizeof on_device / sizeof *on_device; i++)
        if (on_device[i]->count == rows->count) return on_host[i];
    return NULL;
}

static double mean_keys(const row_table *table, int rows) {
    double sum = 0;
    if (!table->keys) return 0;
    for (int i = 0; i < rows; i++) sum += table->keys[i];
    return rows ? sum / rows : 0;
}

static void add_costs(const openpi_session *s, op_cost costs[OPENPI_STAGES]) {
    for (int i = 0; i < s->plan->count; i++) {
        const op *op = &s->plan->ops[i];
        const row_set *set = op_rows(op);
        const row_table *table = set ? host_table(s, set) : NULL;
        int rows = table ? *table->count : set ? set->capacity : 0;
        op_cost cost = op_get_cost(op, rows, table ? mean_keys(table, rows) : 0);
        costs[op->stage].flops += cost.flops;
        costs[op->stage].bytes += cost.bytes;
        costs[op->stage].weight_bytes += cost.weight_bytes;
    }
}

static void place_under_roof(bench_stage *stage, const bench_roofs *roofs) {
    double seconds = stage->ms.p50_ms * 1e-3;
    if (seconds <= 0) return;
    stage->tflops = stage->flops / seconds * 1e-12;
    stage->gbs = stage->weight_bytes / seconds * 1e-9;
    if (!roofs || roofs->tflops <= 0 || roofs->gbs <= 0) return;
    double compute = stage->flops / (roofs->tflops * 1e12), memory = stage->weight_bytes / (roofs->gbs * 1e9);
    stage->memory_bound = memory > compute;
    stage->roof = (memory > compute ? memory : compute) / seconds;
}

/* ---- running -------------------------------------------------------------------------------------- */

openpi_status bench_measure_roofs(openpi_engine *engine, bench_roofs *roofs, openpi_error *error) {
    cpu_roofs cpu = {0, 0};
    if (engine->device->backend == &backend_cpu) TRY(cpu_roof(engine->device, engine->model->type, &cpu, error));
    *roofs = (bench_roofs){cpu.tflops, cpu.gbs};
    FILE *file = fopen("/proc/self/clear_refs", "w");          /* Linux: 5 sets VmHWM back to what is resident now */
    if (file) {
        fputs("5", file);
        fclose(file);
    }
    return OPENPI_OK;
}

static openpi_status run_all(openpi_session *s, const bench_workload *w, inputs *in, bench_report *out, openpi_error *error) {
    double *host = in->times, *device = host + w->runs, *stages = device + w->runs;
    uint64_t anonymous, peak;
    for (int i = -w->warmup; i < w->runs; i++) {
        openpi_timing timing;
        double start = clock_ms();
        TRY(openpi_session_run(s, in->samples, w->batch, in->noise, in->actions, &timing, error));
        double end = clock_ms();
        if (w->progress) w->progress(w->progress_user, "running", (uint64_t)(i + w->warmup + 1), (uint64_t)(w->runs + w->warmup));
        bench_memory(&anonymous, &peak);
        if (anonymous > out->anonymous_bytes) out->anonymous_bytes = anonymous;
        if (i < 0) continue;
        host[i] = end - start;
        device[i] = s->engine->device->backend->allocate_host ? timing.device_ms : end - start;
        for (int stage = 0; stage < OPENPI_STAGES; stage++) stages[stage * w->runs + i] = timing.stage_ms[stage];
    }
    out->peak_bytes = peak;
    return OPENPI_OK;
}

static void summarise(const openpi_session *s, const bench_workload *w, inputs *in, const bench_roofs *roofs, bench_report *out) {
    double *host = in->times, *device = host + w->runs, *stages = device + w->runs;
    op_cost costs[OPENPI_STAGES] = {{0}};
    add_costs(s, costs);
    out->host = bench_summarise(host, w->runs);
    out->device = bench_summarise(device, w->runs);
    for (int stage = 0; stage < OPENPI_STAGES; stage++) {
        bench_figures ms = bench_summarise(stages + stage * w->runs, w->runs);
        out->flops += costs[stage].flops;
        out->weight_bytes += costs[stage].weight_bytes;
        if (ms.max_ms <= 0 && costs[stage].flops <= 0) continue;
        bench_stage *row = &out->stages[out->stage_count++];
        *row = (bench_stage){
            .stage = (openpi_stage)stage, .ms = ms, .flops = costs[stage].flops, .weight_bytes = costs[stage].weight_bytes};
        place_under_roof(row, roofs);
    }
}

openpi_status bench_run(openpi_session *s, const bench_workload *w, const bench_roofs *roofs, bench_report *out,
                        openpi_error *error) {
    inputs in = {0};
    if (w->runs < 1 || w->warmup < 0 || w->batch < 1 || w->batch > s->options.batch || w->prompt < 0 ||
        w->prompt > s->options.max_prompt)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "bench: %d runs of batch %d with %d prompt tokens, expected at least one run, at most batch %d and %d "
                      "tokens",
                      w->runs, w->batch, w->prompt, s->options.batch, s->options.max_prompt);
    *out = (bench_report){0};
    openpi_status status = inputs_make(s, w, &in, error);
    if (status == OPENPI_OK) status = run_all(s, w, &in, out, error);
    if (status == OPENPI_OK) summarise(s, w, &in, roofs, out);
    inputs_free(&in);
    return status;
}
