/* labels: threads */
/* The arithmetic of a benchmark: percentiles, histograms, joules, ratios to roofs, and what a call's FLOPs
 * and weights must come to, counted here by hand from the dimensions. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "backend/gpu/cuda/counter.h"
#include "base/report.h"
#include "lab/measure/bench.h"
#include "lab/measure/energy.h"
#include "tuning/tuning.h"
#include "openpi_internal.h"

static void near(const char *what, double got, double expected, double part) {
    if (!(fabs(got - expected) <= part * fabs(expected)))
        fail_msg("%s is %.6g, expected %.6g", what, got, expected);
}

static void test_figures(void **state) {
    (void)state;
    double values[] = {5, 1, 4, 2, 3};
    figures f = figures_of(values, 5);
    near("mean", f.mean_ms, 3, 1e-12);
    near("std", f.std_ms, 1.5811388300841898, 1e-12);
    near("min", f.min_ms, 1, 0);
    near("max", f.max_ms, 5, 0);
    near("p50", f.p50_ms, 3, 1e-12);
    near("p95", f.p95_ms, 4.8, 1e-12);
    near("p99", f.p99_ms, 4.96, 1e-12);
    double one[] = {7};
    f = figures_of(one, 1);
    near("p99 of one", f.p99_ms, 7, 0);
    assert_true(f.std_ms == 0);
    double two[] = {4, 2};
    f = figures_of(two, 2);
    near("p50 of two", f.p50_ms, 3, 1e-12);
}

static void test_histogram(void **state) {
    (void)state;
    double values[200];
    int sum = 0;
    for (int i = 0; i < 200; i++) values[i] = 10 + i * 0.01;
    values[199] = 500;                                             /* one straggler */
    histogram h = histogram_of(values, 200);
    near("low", h.low_ms, 10, 1e-12);
    near("bins reach to p99", h.low_ms + h.width_ms * (HISTOGRAM_BINS - 1),
         figures_percentile(values, 200, 0.99), 1e-12);
    for (int i = 0; i < HISTOGRAM_BINS; i++) sum += h.counts[i];
    assert_int_equal(sum, 200);
    assert_int_equal(h.counts[HISTOGRAM_BINS - 1], 2);
    assert_true(h.counts[0] >= 12 && h.counts[0] <= 13);
    double same[] = {4, 4, 4};
    h = histogram_of(same, 3);
    assert_true(h.counts[0] == 3 && h.width_ms == 0);
}

/* Multiply-adds count two. Norms, activations and adds are too few to matter: 3 % is allowed for them. */
static void test_costs(void **state) {
    (void)state;
    enum { STEPS = 4, HORIZON = 6, PROMPT = 9 };
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_synthetic tiny = OPENPI_SYNTHETIC_INIT;
    openpi_engine *engine;
    openpi_session *session;
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    openpi_session_options shape = OPENPI_SESSION_OPTIONS_INIT;
    shape.batch = 2;
    shape.steps = STEPS;
    shape.horizon = HORIZON;
    shape.max_prompt = 16;
    assert_int_equal(openpi_synthetic_parse("tiny", &tiny, &error), OPENPI_OK);
    options.synthetic = &tiny;
    assert_int_equal(openpi_engine_open(NULL, &options, &engine, &error), OPENPI_OK);
    assert_int_equal(openpi_session_create(engine, &shape, &session, &error), OPENPI_OK);
    bench_workload work = {
        .call = {.batch = 2, .cameras = {1, 0, 1}, .prompt = PROMPT, .seed = 3}, .warmup = 1, .runs = 2};
    bench_roofs roofs = {.tflops = 2, .gbs = 10};
    bench_report report;
    assert_int_equal(bench_run(session, &work, &roofs, &report, &error), OPENPI_OK);

    const openpi_dims *d = &tiny.dims;
    double images = 2 * 2 * 256, prefix = 2 * (2 * 256 + PROMPT), keys = 2 * 256 + PROMPT;
    double vw = d->vision_width, w = d->width, e = d->expert_width, heads = (double)d->heads * d->head_dim,
           hd = d->head_dim;
    double vision_layer = vw * 3 * vw + vw * vw + 2.0 * vw * d->vision_mlp,
           vision_weights = vw * 588 + d->vision_depth * vision_layer + w * vw;
    double prefix_kv = w * 2 * hd, prefix_layer = w * (heads + 2 * hd) + heads * w + 3.0 * w * d->mlp;
    double prefix_weights = (d->depth - 1) * prefix_layer + prefix_kv;
    double expert_layer = e * (heads + 2 * hd) + heads * e + 3.0 * e * d->expert_mlp;
    double embed = e * 32 + 2 * e * e, step_weights = d->depth * expert_layer + embed + 32 * e;

    int seen = 0;
    for (int i = 0; i < report.stage_count; i++) {
        const bench_stage *s = &report.stages[i];
        const char *name = openpi_stage_name(s->stage);
        if (s->stage == OPENPI_STAGE_VISION) {
            near(name, s->flops, 2 * images * vision_weights + d->vision_depth * 4 * images * 256 * vw, 0.03);
            near(name, s->weight_bytes, 2 * vision_weights, 0.03);
        } else if (s->stage == OPENPI_STAGE_PREFIX) {
            near(name, s->flops, 2 * prefix * prefix_weights + (d->depth - 1) * 4 * prefix * keys * heads,
                 0.03);
            near(name, s->weight_bytes, 2 * prefix_weights, 0.03);
        } else if (s->stage == OPENPI_STAGE_DENOISE) {
            double rows = 2 * HORIZON, all = keys + 1 + HORIZON;
            double state_rows = 2, state_flops = d->depth * (2 * state_rows * expert_layer +
                                                             4 * state_rows * (keys + 1) * heads);
            near(name, s->flops,
                 STEPS * (2 * rows * step_weights + d->depth * 4 * rows * all * heads) + state_flops, 0.01);
            near(name, s->weight_bytes, STEPS * 2 * step_weights, 0.03);
        } else {
            continue;
        }
        double seconds = s->ms.p50_ms / 1e3;
        near("TFLOP/s", s->tflops * seconds * 1e12, s->flops, 1e-6);
        near("GB/s", s->gbs * seconds * 1e9, s->weight_bytes, 1e-6);
        double compute = s->flops / 2e12, memory = s->weight_bytes / 10e9;
        assert_int_equal(s->memory_bound, memory > compute);
        near("roof", s->roof_ratio * seconds, fmax(compute, memory), 1e-6);
        seen++;
    }
    assert_int_equal(seen, 3);
    assert_true(report.peak_bytes > 0 && report.anonymous_bytes > 0);

    work.call.prompt = 17;
    assert_int_equal(bench_run(session, &work, NULL, &report, &error), OPENPI_BAD_ARGUMENT);
    openpi_session_close(session);
    openpi_engine_close(engine);
}

/* ---- a session, and a device of this file's making ------------------------------------------------- */

static openpi_engine *engine;
static openpi_session *session;
static const workload call = {.batch = 2, .cameras = {1, 0, 0}, .prompt = 6, .seed = 3};

static int setup(void **state) {
    (void)state;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_synthetic tiny = OPENPI_SYNTHETIC_INIT;
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    openpi_session_options shape = OPENPI_SESSION_OPTIONS_INIT;
    shape.batch = 2;
    shape.steps = shape.horizon = 1;
    shape.max_prompt = 6;
    options.synthetic = &tiny;
    if (openpi_synthetic_parse("tiny", &tiny, &error) || openpi_engine_open(NULL, &options, &engine, &error))
        return -1;
    return openpi_session_create(engine, &shape, &session, &error);
}

static int teardown(void **state) {
    (void)state;
    openpi_session_close(session);
    openpi_engine_close(engine);
    return 0;
}

static openpi_status give_memory(device *device, uint64_t *unused, uint64_t *total, openpi_error *error) {
    (void)device, (void)error;
    *unused = 30;
    *total = 100;
    return OPENPI_OK;
}

/* Of one type at a time, as a GPU's. */
static openpi_status give_roof(device *device, dtype type, device_roofs *out, openpi_error *error) {
    (void)device, (void)error;
    *out = type == DTYPE_BF16 ? (device_roofs){800, 0, 4000, 3500, 1700}
                              : (device_roofs){0, 50, 4001, 3501, 1900};
    return OPENPI_OK;
}

static openpi_status no_roof(device *device, dtype type, device_roofs *out, openpi_error *error) {
    (void)device, (void)type, (void)out;
    return report(error, OPENPI_DEVICE_LOST, "gone");
}

static void test_device(void **state) {
    (void)state;
    openpi_error error = OPENPI_ERROR_INIT;
    bench_roofs roofs;
    bench_report told;
    const backend *before = engine->device->backend;
    backend mine = *before;
    mine.memory = give_memory;
    mine.roof = give_roof;
    engine->device->backend = &mine;
    assert_int_equal(bench_measure_roofs(engine, &roofs, &error), OPENPI_OK);
    assert_true(roofs.tflops == 800 && roofs.bf16_tflops == 800 && roofs.f32_tflops == 0 &&
                roofs.gbs == 4000);
    assert_true(roofs.copy_gbs == 3500 && roofs.core_mhz == 1700);
    assert_int_equal(bench_measure_all_roofs(engine, &roofs, &error), OPENPI_OK);
    assert_true(roofs.tflops == 800 && roofs.bf16_tflops == 800 && roofs.f32_tflops == 50 &&
                roofs.gbs == 4000);

    bench_workload work = {.call = call, .warmup = 0, .runs = 4, .changing_prompts = 1};
    assert_int_equal(bench_run(session, &work, &roofs, &told, &error), OPENPI_OK);
    assert_true(told.device_used_bytes == 70 && told.device_total_bytes == 100);
    openpi_session_info info = OPENPI_SESSION_INFO_INIT;
    openpi_session_get_info(session, &info, NULL);
    assert_true(told.session_bytes == info.bytes && info.bytes > 0);
    double floors = 0;
    for (int i = 0; i < told.stage_count; i++) floors += told.stages[i].floor_ms;
    near("floor", told.floor_ms, floors, 1e-12);
    assert_true(floors > 0);

    mine.roof = no_roof;
    assert_int_equal(bench_measure_roofs(engine, &roofs, &error), OPENPI_DEVICE_LOST);
    mine.roof = NULL;
    assert_int_equal(bench_measure_roofs(engine, &roofs, &error), OPENPI_OK);
    assert_true(roofs.tflops == 0 && roofs.gbs == 0);
    engine->device->backend = before;
    assert_int_equal(bench_run(session, &work, &roofs, &told, &error), OPENPI_OK);
    assert_true(told.floor_ms == 0 && told.device_total_bytes == 0 &&
                told.stages[told.stage_count - 1].roof_ratio == 0);
}

/* As many calls as there are lengths see each of them once, and the next one is always another. */
static void test_changing_prompts(void **state) {
    (void)state;
    for (int prompt = 1; prompt <= 61; prompt += 5) {
        openpi_sample samples[2] = {{.token_count = prompt}, {.token_count = prompt}};
        workload_inputs in = {.samples = samples, .batch = 2};
        int seen[64] = {0}, last = 0;
        for (int i = 0; i < 2 * prompt; i++) {
            workload w = {.batch = 2, .prompt = prompt, .seed = 11};
            workload_change_prompts(&in, &w, i);
            int length = samples[0].token_count;
            assert_true(length >= 1 && length <= prompt);
            if (prompt > 1) assert_true(length != last && samples[1].token_count != length);
            last = length;
            seen[length]++;
        }
        for (int length = 1; length <= prompt; length++) assert_int_equal(seen[length], 2);
    }
}

/* ---- joules ---------------------------------------------------------------------------------------- */

/* A counter of one's own. BY_CALLS: a step of 3 J every five calls; otherwise one every per_step readings. */
enum { STUCK = -1, BY_CALLS = 0, CALLS_A_STEP = 5 };
typedef struct counter_reading {
    unsigned long long millijoules;
    int calls;                             /* that had ended by then                                      */
} counter_reading;
static struct {
    unsigned long long millijoules;
    int reads, per_step, fails_after;
    counter_reading warm, start, before, last;      /* the second one, the first that differs from it, and
                                            * the last two                                                */
    int sampled_at;                        /* calls that had ended when the clocks were first sampled     */
} counter;
static atomic_int calls_ended;

static void count_call(void *user, const char *what, uint64_t done, uint64_t total) {
    (void)user, (void)what, (void)done, (void)total;
    atomic_fetch_add(&calls_ended, 1);
}

/* With a call long enough that a reading falls into a certain one. */
static void count_slow_call(void *user, const char *what, uint64_t done, uint64_t total) {
    count_call(user, what, done, total);
    nanosleep(&(struct timespec){0, 2000000}, NULL);
}

static int fine(void) { return 0; }
static const char *error_text(int code) {
    (void)code;
    return "lost";
}
static int by_index(unsigned index, void **device) {
    (void)index;
    *device = &counter;
    return 0;
}
static int text_of(void *device, char *text, unsigned bytes) {
    (void)device;
    if (bytes) text[0] = 0;
    return 0;
}
static int version_of(char *text, unsigned bytes) { return text_of(NULL, text, bytes); }
static int energy_of(void *device, unsigned long long *millijoules) {
    (void)device;
    if (counter.fails_after && counter.reads >= counter.fails_after) return 15;
    int calls = atomic_load(&calls_ended), read = counter.reads++;
    if (counter.per_step == BY_CALLS) counter.millijoules = 3000ull * (unsigned)(calls / CALLS_A_STEP);
    else if (counter.per_step != STUCK && counter.reads % counter.per_step == 0) counter.millijoules += 3000;
    counter.before = counter.last;
    counter.last = (counter_reading){counter.millijoules, calls};
    if (read == 1) counter.warm = counter.start = counter.last;
    if (counter.start.millijoules == counter.warm.millijoules) counter.start = counter.last;
    *millijoules = counter.millijoules;
    return 0;
}
static int power_of(void *device, unsigned *milliwatts) {
    (void)device;
    *milliwatts = 1000;
    return 0;
}
static int clock_of(void *device, int which, unsigned *mhz) {
    (void)device;
    if (!counter.sampled_at) counter.sampled_at = atomic_load(&calls_ended);
    *mhz = which == NVML_CLOCK_CORE ? 1500 : 2600;
    return 0;
}

static openpi_status open_board(const char *device, power_facts *facts, void **state, openpi_error *error) {
    static const nvml table = {.init = fine,           .shutdown = fine,    .error_text = error_text,
                               .by_index = by_index,   .energy = energy_of, .driver_version = version_of,
                               .device_name = text_of, .power = power_of,   .clock = clock_of};
    return cuda_counter_open(device, &table, "", facts, state, error);
}

static openpi_status count_joules(int per_step, int fails_after, double seconds, energy_report *out,
                                  openpi_error *error) {
    power_counter board = power_counter_cuda;
    const power_counter *const counters[] = {&board, NULL};
    bench_workload work = {.call = call, .warmup = 0, .runs = 1, .changing_prompts = 1};
    work.progress = per_step == BY_CALLS ? count_slow_call : count_call;
    power *p;
    board.open = open_board;
    memset(&counter, 0, sizeof counter);
    atomic_store(&calls_ended, 0);
    counter.per_step = per_step;
    assert_int_equal(power_open_with("cuda:0", counters, &p, error), OPENPI_OK);
    counter.fails_after = fails_after;
    openpi_status status = energy_run(session, &work, p, seconds, out, error);
    power_close(p);
    return status;
}

/* A window of so many calls on this machine, whose speed is measured; at least `least` seconds. */
static double window_of(int calls, double least) {
    openpi_error error = OPENPI_ERROR_INIT;
    bench_workload work = {.call = call, .warmup = 1, .runs = 3};
    bench_report told;
    assert_int_equal(bench_run(session, &work, NULL, &told, &error), OPENPI_OK);
    double seconds = calls * told.host.p50_ms * 1e-3;
    return seconds > least ? seconds : least;
}

/* Eight readings however many calls lie in the window: one when the counter is opened, three at the window's
 * start and four at its end, since the fourth and the eighth see the counter move. */
static void test_energy_reads(void **state) {
    (void)state;
    openpi_error error = OPENPI_ERROR_INIT;
    energy_report brief, longer;
    double seconds = window_of(2, 0.05);
    assert_int_equal(count_joules(4, 0, seconds, &brief, &error), OPENPI_OK);
    assert_int_equal(counter.reads, 8);
    assert_int_equal(count_joules(4, 0, 8 * seconds, &longer, &error), OPENPI_OK);
    assert_int_equal(counter.reads, 8);
    assert_true(longer.calls > brief.calls && brief.calls > 0);
    assert_true(longer.window_s >= 8 * seconds);
    near("joules of one step", brief.energy_j, 3, 1e-12);
    near("joules of one step, long", longer.energy_j, 3, 1e-12);
    assert_true(longer.core_mhz == 1500 && longer.memory_mhz == 2600);
}

/* The joules are the difference of the readings at the two ends, and the calls those between the two. */
static void test_energy_ends(void **state) {
    (void)state;
    openpi_error error = OPENPI_ERROR_INIT;
    energy_report e;
    assert_int_equal(count_joules(BY_CALLS, 0, window_of(2 * CALLS_A_STEP, 0.2), &e, &error), OPENPI_OK);
    const counter_reading *start = &counter.start, *last = &counter.last;
    assert_true(last->millijoules > start->millijoules && last->millijoules > counter.before.millijoules);
    assert_true(start->calls >= CALLS_A_STEP);                     /* not counted */
    double joules = (double)(last->millijoules - start->millijoules) * 1e-3;
    near("joules", e.energy_j, joules, 1e-12);
    /* The window begins between its first reading and the first sample, and ends after its last reading. */
    double least = last->calls - counter.sampled_at - 1, most = atomic_load(&calls_ended) - start->calls + 1;
    if (!(e.calls >= least && e.calls <= most))
        fail_msg("%.3f calls, the counter saw %.0f to %.0f", e.calls, least, most);
}

static void test_energy_fails(void **state) {
    (void)state;
    openpi_error error = OPENPI_ERROR_INIT;
    energy_report e;
    assert_int_equal(count_joules(STUCK, 0, 0.05, &e, &error), OPENPI_UNSUPPORTED);
    assert_string_equal(error.message, "the energy counter (NVML) does not move");
    assert_true(e.calls == 0 && e.energy_j == 0);
    for (int reads = 1; reads <= 7; reads += 3) {                  /* first at the start, last at the end  */
        assert_int_equal(count_joules(4, reads, 0.05, &e, &error), OPENPI_SYSTEM);
        assert_non_null(strstr(error.message, "its energy can no longer be read: lost (error 15)"));
        assert_int_equal(counter.reads, reads);
    }
}

static void test_table_hash(void **state) {
    (void)state;
    char one[BENCH_HASH], other[BENCH_HASH];
    tuning_entry entries[2] = {{.key = {.m = 788, .n = 2048, .k = 2048}, .choice = "a"},
                               {.key = {.m = 11}, .choice = "b"}};
    tuning table = {.entries = entries, .count = 2}, *before = engine->tuning;
    engine->tuning = NULL;
    bench_table_hash(engine, one);
    assert_string_equal(one, "");
    engine->tuning = &table;
    bench_table_hash(engine, one);
    assert_int_equal(strlen(one), 16);
    entries[1].time_us = 3;                                        /* what it chooses, not what that took */
    bench_table_hash(engine, other);
    assert_string_equal(one, other);
    strcpy(entries[1].choice, "c");
    bench_table_hash(engine, other);
    assert_string_not_equal(one, other);
    engine->tuning = before;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_figures),          cmocka_unit_test(test_histogram),
        cmocka_unit_test(test_costs),            cmocka_unit_test(test_device),
        cmocka_unit_test(test_changing_prompts), cmocka_unit_test(test_energy_reads),
        cmocka_unit_test(test_energy_ends),      cmocka_unit_test(test_energy_fails),
        cmocka_unit_test(test_table_hash),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
