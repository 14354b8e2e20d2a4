/* Bench: runs a session on synthetic inputs and summarises. Costs come from a walk over the plan with the
 * rows of the last call.
 *
 * Note: GB/s counts weights only. The activations of a call fit the caches; counting them would make a stage
 * look closer to the memory's roof than it is. */
#include "lab/measure/bench.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/report.h"
#include "lab/measure/costs.h"
#include "tuning/tuning.h"
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

double bench_floor(double flops, double weight_bytes, const bench_roofs *roofs, int *memory_bound) {
    *memory_bound = 0;
    if (!roofs || roofs->tflops <= 0 || roofs->gbs <= 0) return 0;
    double compute = flops / (roofs->tflops * 1e12), memory = weight_bytes / (roofs->gbs * 1e9);
    *memory_bound = memory > compute;
    return (memory > compute ? memory : compute) * 1e3;
}

static void place_under_roof(bench_stage *stage, const bench_roofs *roofs) {
    double seconds = stage->ms.p50_ms * 1e-3;
    if (seconds <= 0) return;
    stage->tflops = stage->flops / seconds * 1e-12;
    stage->gbs = stage->weight_bytes / seconds * 1e-9;
    stage->floor_ms = bench_floor(stage->flops, stage->weight_bytes, roofs, &stage->memory_bound);
    stage->roof_ratio = stage->floor_ms / stage->ms.p50_ms;
}

/* ---- the device ------------------------------------------------------------------------------------ */

/* Linux: 5 resets VmHWM to the resident size. */
static void forget_peak(void) {
    FILE *file = fopen("/proc/self/clear_refs", "w");
    if (!file) return;
    fputs("5", file);
    fclose(file);
}

static openpi_status measure_roofs(openpi_engine *engine, int both, bench_roofs *roofs, openpi_error *error) {
    device *device = engine->device;
    dtype type = engine->model->type;
    device_roofs one = {0}, other = {0};
    *roofs = (bench_roofs){0};
    if (!device->backend->roof) return OPENPI_OK;
    openpi_status status = device->backend->roof(device, type, &one, error);
    if (status == OPENPI_OK && both && (one.bf16_tflops <= 0 || one.f32_tflops <= 0))
        status = device->backend->roof(device, type == DTYPE_BF16 ? DTYPE_F32 : DTYPE_BF16, &other, error);
    forget_peak();
    if (status != OPENPI_OK) return status;
    roofs->f32_tflops = one.f32_tflops > 0 ? one.f32_tflops : other.f32_tflops;
    roofs->bf16_tflops = one.bf16_tflops > 0 ? one.bf16_tflops : other.bf16_tflops;
    if (roofs->bf16_tflops <= 0 && (both || type == DTYPE_BF16)) roofs->bf16_tflops = roofs->f32_tflops;
    roofs->tflops = type == DTYPE_BF16 ? roofs->bf16_tflops : roofs->f32_tflops;
    roofs->gbs = one.read_gbs;
    roofs->copy_gbs = one.copy_gbs;
    roofs->core_mhz = one.core_mhz;
    return OPENPI_OK;
}

openpi_status bench_measure_roofs(openpi_engine *engine, bench_roofs *roofs, openpi_error *error) {
    return measure_roofs(engine, 0, roofs, error);
}

openpi_status bench_measure_all_roofs(openpi_engine *engine, bench_roofs *roofs, openpi_error *error) {
    return measure_roofs(engine, 1, roofs, error);
}

openpi_status bench_device_facts(openpi_engine *engine, device_facts *facts, openpi_error *error) {
    *facts = (device_facts){0};
    return engine->device->backend->facts ? engine->device->backend->facts(engine->device, facts, error)
                                          : OPENPI_OK;
}

void bench_table_hash(const openpi_engine *engine, char text[BENCH_HASH]) {
    const tuning *table = engine->tuning;
    uint64_t hash = HASH_FNV_START;
    text[0] = 0;
    for (int i = 0; table && i < table->count; i++) {
        const tuning_entry *e = &table->entries[i];
        hash = hash_fnv1a64(hash, &e->key, sizeof e->key);     /* int fields only: no padding */
        hash = hash_fnv1a64(hash, e->choice, strlen(e->choice));
    }
    if (table) snprintf(text, BENCH_HASH, "%016" PRIx64, hash);
}

static openpi_status learn_memory(const openpi_session *s, bench_report *out, openpi_error *error) {
    device *device = s->engine->device;
    openpi_session_info info = OPENPI_SESSION_INFO_INIT;
    uint64_t unused = 0;
    TRY(openpi_session_get_info(s, &info, error));
    out->session_bytes = info.bytes;
    if (!device->backend->memory) return OPENPI_OK;
    TRY(device->backend->memory(device, &unused, &out->device_total_bytes, error));
    out->device_used_bytes = out->device_total_bytes - unused;
    return OPENPI_OK;
}

/* ---- running -------------------------------------------------------------------------------------- */

/* times: [OPENPI_STAGES + 2][runs] */
static openpi_status run_all(openpi_session *s, const bench_workload *w, workload_inputs *in, double *times,
                             bench_report *out, openpi_error *error) {
    double *host = times, *device = host + w->runs, *stages = device + w->runs;
    uint64_t anonymous, peak;
    for (int i = -w->warmup; i < w->runs; i++) {
        openpi_timing timing = OPENPI_TIMING_INIT;
        if (w->changing_prompts) workload_change_prompts(in, &w->call, i + w->warmup);
        double start = clock_ms();
        TRY(workload_run(s, in, &timing, error));
        double end = clock_ms();
        uint64_t done = (uint64_t)(i + w->warmup + 1), all = (uint64_t)(w->runs + w->warmup);
        if (w->progress) w->progress(w->progress_user, "running", done, all);
        bench_memory(&anonymous, &peak);
        if (anonymous > out->anonymous_bytes) out->anonymous_bytes = anonymous;
        if (i < 0) continue;
        host[i] = end - start;
        device[i] = s->engine->device->backend->allocate_host ? timing.device_ms : end - start;
        for (int stage = 0; stage < OPENPI_STAGES; stage++)
            stages[stage * w->runs + i] = timing.stage_ms[stage];
    }
    out->peak_bytes = peak;
    if (w->changing_prompts) {             /* costs are those of the latest call */
        workload_change_prompts(in, &w->call, -1);
        TRY(workload_run(s, in, NULL, error));
    }
    return learn_memory(s, out, error);
}

static void summarise(const openpi_session *s, const bench_workload *w, double *times,
                      const bench_roofs *roofs, bench_report *out) {
    double *host = times, *device = host + w->runs, *stages = device + w->runs;
    op_cost costs[OPENPI_STAGES] = {{0}};
    add_costs(s, costs);
    out->host = figures_of(host, w->runs);
    out->device = figures_of(device, w->runs);
    out->host_times = histogram_of(host, w->runs);
    out->device_times = histogram_of(device, w->runs);
    for (int stage = 0; stage < OPENPI_STAGES; stage++) {
        figures ms = figures_of(stages + stage * w->runs, w->runs);
        out->flops += costs[stage].flops;
        out->weight_bytes += costs[stage].weight_bytes;
        if (ms.max_ms <= 0 && costs[stage].flops <= 0) continue;
        bench_stage *row = &out->stages[out->stage_count++];
        *row = (bench_stage){.stage = (openpi_stage)stage,
                             .ms = ms,
                             .flops = costs[stage].flops,
                             .weight_bytes = costs[stage].weight_bytes};
        place_under_roof(row, roofs);
        out->floor_ms += row->floor_ms;
    }
}

openpi_status bench_run(openpi_session *s, const bench_workload *w, const bench_roofs *roofs,
                        bench_report *out, openpi_error *error) {
    workload_inputs in = {0};
    if (w->runs < 1 || w->warmup < 0)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "bench: %d measured and %d warm-up runs, expected at least 1 and 0", w->runs,
                      w->warmup);
    *out = (bench_report){0};
    double *times = malloc((OPENPI_STAGES + 2) * (size_t)w->runs * sizeof *times);
    openpi_status status =
        times ? OPENPI_OK : report_no_memory(error, (size_t)w->runs, "the benchmark's times");
    if (status == OPENPI_OK) status = workload_make(s, &w->call, &in, error);
    if (status == OPENPI_OK) status = run_all(s, w, &in, times, out, error);
    if (status == OPENPI_OK) summarise(s, w, times, roofs, out);
    workload_free(&in);
    free(times);
    return status;
}
