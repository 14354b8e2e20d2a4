/* Bench: runs a session on made-up inputs and summarises. Costs are a walk over the plan with the rows of the last call.
 *
 * Surprising: GB/s counts weights only. Activations of a call fit the caches, and counting them would make a stage look
 * closer to the memory's roof than it is. */
#include "measure/bench.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/report.h"
#include "measure/costs.h"
#include "openpi_internal.h"

/* ---- memory ---------------------------------------------------------------------------------------- */

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

/* ---- costs ---------------------------------------------------------------------------------------- */

static void add_costs(const openpi_session *s, op_cost costs[OPENPI_STAGES]) {
    for (int i = 0; i < s->plan->count; i++) {
        op_cost cost = costs_of_op(s, i).cost, *to = &costs[s->plan->ops[i].stage];
        to->flops += cost.flops;
        to->bytes += cost.bytes;
        to->weight_bytes += cost.weight_bytes;
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
    device_roofs all = {0};
    dtype type = engine->model->type;
    if (engine->device->backend->roof) TRY(engine->device->backend->roof(engine->device, type, &all, error));
    *roofs = (bench_roofs){type == DTYPE_BF16 && all.bf16_tflops > 0 ? all.bf16_tflops : all.f32_tflops, all.read_gbs};
    FILE *file = fopen("/proc/self/clear_refs", "w");          /* Linux: 5 sets VmHWM back to what is resident now */
    if (file) {
        fputs("5", file);
        fclose(file);
    }
    return OPENPI_OK;
}

/* times: [OPENPI_STAGES + 2][runs] */
static openpi_status run_all(openpi_session *s, const bench_workload *w, workload_inputs *in, double *times, bench_report *out,
                             openpi_error *error) {
    double *host = times, *device = host + w->runs, *stages = device + w->runs;
    uint64_t anonymous, peak;
    for (int i = -w->warmup; i < w->runs; i++) {
        openpi_timing timing;
        double start = clock_ms();
        TRY(workload_run(s, in, &timing, error));
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

static void summarise(const openpi_session *s, const bench_workload *w, double *times, const bench_roofs *roofs, bench_report *out) {
    double *host = times, *device = host + w->runs, *stages = device + w->runs;
    op_cost costs[OPENPI_STAGES] = {{0}};
    add_costs(s, costs);
    out->host = figures_of(host, w->runs);
    out->device = figures_of(device, w->runs);
    for (int stage = 0; stage < OPENPI_STAGES; stage++) {
        figures ms = figures_of(stages + stage * w->runs, w->runs);
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
    workload_inputs in = {0};
    if (w->runs < 1 || w->warmup < 0)
        return report(error, OPENPI_BAD_ARGUMENT, "bench: %d measured and %d warm-up runs, expected at least 1 and 0", w->runs, w->warmup);
    *out = (bench_report){0};
    double *times = malloc((OPENPI_STAGES + 2) * (size_t)w->runs * sizeof *times);
    openpi_status status = times ? OPENPI_OK : report_no_memory(error, (size_t)w->runs, "the benchmark's times");
    if (status == OPENPI_OK) status = workload_make(s, &w->call, &in, error);
    if (status == OPENPI_OK) status = run_all(s, w, &in, times, out, error);
    if (status == OPENPI_OK) summarise(s, w, times, roofs, out);
    workload_free(&in);
    free(times);
    return status;
}
