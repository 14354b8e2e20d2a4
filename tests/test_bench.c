/* The arithmetic of a benchmark: percentiles, and what a call's FLOPs and weights must come to, counted here by hand from the
 * dimensions. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "measure/bench.h"

static void near(const char *what, double got, double expected, double part) {
    if (!(fabs(got - expected) <= part * fabs(expected))) fail_msg("%s is %.6g, expected %.6g", what, got, expected);
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

/* Multiply-adds count two. Norms, activations and adds are too few to matter: 3 % is allowed for them. */
static void test_costs(void **state) {
    (void)state;
    enum { STEPS = 4, HORIZON = 6, PROMPT = 9 };
    openpi_error error = {0};
    openpi_synthetic tiny;
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
    bench_workload work = {.call = {.batch = 2, .cameras = {1, 0, 1}, .prompt = PROMPT, .seed = 3}, .warmup = 1, .runs = 2};
    bench_roofs roofs = {.tflops = 2, .gbs = 10};
    bench_report report;
    assert_int_equal(bench_run(session, &work, &roofs, &report, &error), OPENPI_OK);

    const openpi_dims *d = &tiny.dims;
    double images = 2 * 2 * 256, prefix = 2 * (2 * 256 + PROMPT), keys = 2 * 256 + PROMPT;
    double vw = d->vision_width, w = d->width, e = d->expert_width, heads = (double)d->heads * d->head_dim, hd = d->head_dim;
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
            near(name, s->flops, 2 * prefix * prefix_weights + (d->depth - 1) * 4 * prefix * keys * heads, 0.03);
            near(name, s->weight_bytes, 2 * prefix_weights, 0.03);
        } else if (s->stage == OPENPI_STAGE_DENOISE) {
            double rows = 2 * HORIZON, all = keys + 1 + HORIZON;
            double state_rows = 2, state_flops = d->depth * (2 * state_rows * expert_layer + 4 * state_rows * (keys + 1) * heads);
            near(name, s->flops, STEPS * (2 * rows * step_weights + d->depth * 4 * rows * all * heads) + state_flops, 0.01);
            near(name, s->weight_bytes, STEPS * 2 * step_weights, 0.03);
        } else {
            continue;
        }
        double seconds = s->ms.p50_ms / 1e3;
        near("TFLOP/s", s->tflops * seconds * 1e12, s->flops, 1e-6);
        near("GB/s", s->gbs * seconds * 1e9, s->weight_bytes, 1e-6);
        double compute = s->flops / 2e12, memory = s->weight_bytes / 10e9;
        assert_int_equal(s->memory_bound, memory > compute);
        near("roof", s->roof * seconds, fmax(compute, memory), 1e-6);
        seen++;
    }
    assert_int_equal(seen, 3);
    assert_true(report.peak_bytes > 0 && report.anonymous_bytes > 0);

    work.call.prompt = 17;
    assert_int_equal(bench_run(session, &work, NULL, &report, &error), OPENPI_BAD_ARGUMENT);
    openpi_session_close(session);
    openpi_engine_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_figures), cmocka_unit_test(test_costs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
