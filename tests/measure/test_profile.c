/* labels: command cost no_asan */
/* The profile: rows, floors and groups that must come out of the plan by arithmetic alone, times that must
 * add up, a session that must compute the same while it is timed, and the verb's words, tables and file. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lab/measure/costs.h"
#include "lab/measure/profile.h"
#include "scratch.h"

#include "command.h"
#include "fake_replay.h"

enum { STEPS = 2, HORIZON = 5, PROMPT = 7, RUNS = 3 };

static openpi_engine *engine;
static openpi_session *session;
static const bench_roofs roofs = {.tflops = 0.5, .gbs = 20};
static const profile_options options = {
    .call = {.batch = 1, .cameras = {1, 0, 1}, .prompt = PROMPT, .seed = 3}, .warmup = 1, .runs = RUNS};

static void near(const char *what, double got, double expected, double part) {
    if (!(fabs(got - expected) <= part * fabs(expected)))
        fail_msg("%s is %.9g, expected %.9g", what, got, expected);
}

static void open_session(backend *fake) {
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_synthetic tiny = OPENPI_SYNTHETIC_INIT;
    openpi_engine_options with = OPENPI_ENGINE_OPTIONS_INIT;
    openpi_session_options shape = OPENPI_SESSION_OPTIONS_INIT;
    shape.steps = STEPS;
    shape.horizon = HORIZON;
    shape.max_prompt = 16;
    assert_int_equal(openpi_synthetic_parse("tiny", &tiny, &error), OPENPI_OK);
    with.synthetic = &tiny;
    assert_int_equal(openpi_engine_open(NULL, &with, &engine, &error), OPENPI_OK);
    if (fake) fake_replays(engine, fake);
    assert_int_equal(openpi_session_create(engine, &shape, &session, &error), OPENPI_OK);
}

static void close_session(void) {
    openpi_session_close(session);
    openpi_engine_close(engine);
}

/* What any profile must be, whatever the clock says. */
static void check(const profile *p) {
    op_cost all = {0, 0, 0};
    double sum = 0;
    for (int i = 0, next = 0; i < p->count; i++) {
        const profile_op *o = &p->ops[i];
        const op *first = &session->plan->ops[o->first];
        assert_int_equal(o->first, next);
        next += o->ops;
        assert_int_equal(o->stage, first->stage);
        assert_true(o->ms >= 0 && o->name[0] && o->shape[0] && o->kernel[0]);
        double compute = o->cost.flops / (roofs.tflops * 1e9),
               memory = o->cost.weight_bytes / (roofs.gbs * 1e6);
        near("floor", o->floor_ms, fmax(compute, memory), 1e-9);
        assert_int_equal(o->memory_bound, memory > compute);
        op_cost cost = {0, 0, 0};
        for (int k = 0; k < o->ops; k++) cost.flops += costs_of_op(session, o->first + k).cost.flops;
        near("FLOPs", o->cost.flops, cost.flops, 1e-12);
        all.flops += o->cost.flops;
        all.weight_bytes += o->cost.weight_bytes;
        sum += o->ms;
        if (i == p->count - 1) assert_int_equal(next, session->plan->count);
    }
    near("sum", p->sum_ms, sum, 1e-9);
    near("coverage", p->coverage_ratio, 1, PROFILE_COVERAGE);
    assert_true(p->host.p50_ms >= p->replay.p50_ms && p->replay.p50_ms > 0 && p->timed.p50_ms > 0);

    profile_group *groups = calloc((size_t)p->count, sizeof *groups);
    for (int by = PROFILE_BY_STAGE; by <= PROFILE_BY_SHAPE; by++) {
        int count = profile_groups(p, (profile_by)by, groups), ops = 0, calls = 0;
        double ms = 0, flops = 0, floor = 0;
        assert_true(count > 0 && count <= p->count);
        for (int g = 0; g < count; g++) {
            for (int other = 0; other < g; other++)
                assert_string_not_equal(groups[g].name, groups[other].name);
            if (g && by != PROFILE_BY_STAGE && by != PROFILE_BY_STEP)
                assert_true(groups[g - 1].ms >= groups[g].ms);
            ops += groups[g].ops;
            calls += groups[g].calls;
            ms += groups[g].ms;
            flops += groups[g].cost.flops;
            floor += groups[g].floor_ms;
            assert_true(groups[g].memory_ms <= groups[g].floor_ms * (1 + 1e-9));
        }
        assert_int_equal(ops, session->plan->count);
        assert_int_equal(calls, p->launches);
        near("groups' time", ms, sum, 1e-9);
        near("groups' FLOPs", flops, all.flops, 1e-9);
        assert_true(floor > 0);
    }
    free(groups);
}

static const profile_op *find(const profile *p, const char *name, int layer) {
    for (int i = 0; i < p->count; i++)
        if (!strcmp(p->ops[i].name, name) && p->ops[i].layer == layer) return &p->ops[i];
    fail_msg("no row %s of layer %d", name, layer);
    return NULL;
}

/* Op by op, as a CPU runs. Shapes and FLOPs by hand from the tiny model's sizes. */
static void test_clock(void **state) {
    (void)state;
    openpi_error error = OPENPI_ERROR_INIT;
    profile p;
    open_session(NULL);
    assert_int_equal(profile_run(session, &options, &roofs, &p, &error), OPENPI_OK);
    assert_int_equal(p.method, TIMED_CLOCK);
    assert_int_equal(p.count, session->plan->count);
    assert_int_equal(p.launches, session->plan->count);
    assert_int_equal(p.nodes, 0);
    check(&p);

    const openpi_dims *d = &engine->checkpoint->dims;
    char shape[48];
    int prefix = 2 * 256 + PROMPT;
    const profile_op *o = find(&p, "vision.fc1", 1);
    snprintf(shape, sizeof shape, "%dx%dx%d", 2 * 256, d->vision_mlp, d->vision_width);
    assert_string_equal(o->shape, shape);
    assert_string_equal(o->kind, "norm_linear");
    assert_int_equal(o->step, -1);
    near("GFLOP of fc1", o->cost.flops, 2.0 * 512 * d->vision_mlp * d->vision_width, 1e-12);
    o = find(&p, "prefix.attention", 0);
    snprintf(shape, sizeof shape, "%dx%dx%d", d->heads, prefix, prefix);
    assert_string_equal(o->shape, shape);
    o = find(&p, "vision.attention", 0);
    snprintf(shape, sizeof shape, "%dx%dx%d", d->vision_heads, 512, 256);
    assert_string_equal(o->shape, shape);
    o = find(&p, "prefix.text", -1);
    snprintf(shape, sizeof shape, "%dx%d", PROMPT, d->width);
    assert_string_equal(o->shape, shape);
    profile_free(&p);

    profile_options none = options;
    none.runs = 0;
    assert_int_equal(profile_run(session, &none, &roofs, &p, &error), OPENPI_BAD_ARGUMENT);
    none = options;
    none.call.prompt = 17;
    assert_int_equal(profile_run(session, &none, &roofs, &p, &error), OPENPI_BAD_ARGUMENT);
    none = options;
    none.warmup = 0;
    none.runs = 1;
    assert_int_equal(profile_run(session, &none, NULL, &p, &error), OPENPI_OK);
    assert_true(p.ops[0].floor_ms == 0 && p.ops[0].cost.flops > 0);
    profile_free(&p);
    close_session();
}

/* Inside a replay whose launches are not the plan's ops. */
static void test_replay(void **state) {
    (void)state;
    openpi_error error = OPENPI_ERROR_INIT;
    profile p;
    backend fake;
    open_session(&fake);
    assert_non_null(session->kinds.recordings[CALL_ANY]);
    assert_int_equal(profile_run(session, &options, &roofs, &p, &error), OPENPI_OK);
    int ops = session->plan->count, launches = ops + 1 - (FAKE_JOIN - 1);
    assert_int_equal(p.method, TIMED_REPLAY);
    assert_int_equal(p.launches, launches);
    assert_int_equal(p.nodes, FAKE_NODES);
    assert_int_equal(p.count, ops - (FAKE_JOIN - 1));
    check(&p);
    assert_int_equal(p.ops[FAKE_SPLIT].calls, 2);
    assert_string_equal(p.ops[FAKE_SPLIT].kernel, "first + second");
    const profile_op *joined = &p.ops[FAKE_JOINED];
    assert_int_equal(joined->ops, FAKE_JOIN);
    assert_string_equal(joined->kind, "several");
    assert_string_equal(joined->shape, "4 operations");
    must_contain(joined->name, " … ");
    assert_int_equal(joined->calls, 1);
    profile_free(&p);
    close_session();
}

/* A timed call computes what a plain one does, and afterwards nothing is left of the timing. */
static void test_same_actions(void **state) {
    (void)state;
    enum { COUNT = HORIZON * OPENPI_ACTION_DIM };
    openpi_error error = OPENPI_ERROR_INIT;
    backend fake;
    for (int with_fake = 0; with_fake < 2; with_fake++) {
        workload_inputs in = {0};
        float before[COUNT];
        timed t;
        open_session(with_fake ? &fake : NULL);
        assert_int_equal(workload_make(session, &options.call, &in, &error), OPENPI_OK);
        assert_int_equal(workload_run(session, &in, NULL, &error), OPENPI_OK);
        memcpy(before, in.actions, sizeof before);
        assert_int_equal(timed_open(session, &t, &error), OPENPI_OK);
        for (int i = 0; i < 2; i++) {
            memset(in.actions, 0, sizeof before);
            assert_int_equal(workload_run(session, &in, NULL, &error), OPENPI_OK);
            assert_memory_equal(in.actions, before, sizeof before);
            double last = 0;
            for (int l = 0; l < t.count; l++) {
                assert_true(t.launches[l].start_ms >= last - 1e-9 &&
                            t.launches[l].end_ms >= t.launches[l].start_ms);
                last = t.launches[l].end_ms;
            }
            assert_true(last > 0 && last <= t.end_ms - t.start_ms + 1e-9);
        }
        timed_close(&t);
        assert_null(session->on_run);
        assert_int_equal(workload_run(session, &in, NULL, &error), OPENPI_OK);
        assert_memory_equal(in.actions, before, sizeof before);
        workload_free(&in);
        close_session();
    }
}

/* ---- the verb ------------------------------------------------------------------------------------- */

#define TINY "profile --synthetic tiny --steps 2 --horizon 4 --warmup 1 --runs 3"

static void test_words(void **state) {
    (void)state;
    must_refuse("profile --synthetic tiny --by color", "--by is 'color', expected one of "
                                                       "stage|step|op|kind|layer|shape");
    must_refuse("profile --synthetic tiny --runs 0", "--runs is '0', expected a whole number from 1 to "
                                                     "100000");
    must_refuse("profile --synthetic tiny --top all", "--top is 'all'");
    must_refuse("profile --synthetic tiny --batch 65", "--batch is '65', expected a whole number from 1 to "
                                                       "64");
    must_refuse("profile --synthetic tiny --json absent/p.json", "absent/p.json: cannot be written: No such "
                                                                 "file or directory");
    must_refuse("profile somewhere --synthetic tiny", "CHECKPOINT and --synthetic contradict each other");
    must_refuse("profile somewhere", "somewhere");
}

static void test_tables(void **state) {
    (void)state;
    assert_int_equal(run(TINY " --top 0 --by step"), 0);
    must_contain(out, "\nstage ");
    must_contain(out, "\ndenoise ");
    must_contain(out, "\nall ");
    must_contain(out, "\nbefore the steps ");
    must_contain(out, "\nstep 1 ");
    must_contain(out, "as this device runs a plan, by the clock around each");
    must_contain(out, "(ok, within 2 %)");
    assert_int_equal(run(TINY " --top 2 --by layer"), 0);
    must_contain(out, " more with ");
}

static void test_names(void **state) {
    (void)state;
    static const char *const rows[] = {"denoise",     "step 1",         "prefix.gate_up",
                                       "norm_linear", "prefix layer 0", "norm_linear 512x208x144"};
    openpi_error error = OPENPI_ERROR_INIT;
    profile p;
    open_session(NULL);
    assert_int_equal(profile_run(session, &options, &roofs, &p, &error), OPENPI_OK);
    profile_group *groups = calloc((size_t)p.count, sizeof *groups);
    for (int by = PROFILE_BY_STAGE; by <= PROFILE_BY_SHAPE; by++) {
        int count = profile_groups(&p, (profile_by)by, groups), g = 0;
        while (g < count && strcmp(groups[g].name, rows[by])) g++;
        if (g == count) fail_msg("no group %s", rows[by]);
    }
    free(groups);
    profile_free(&p);
    close_session();
}

static void sums_to(const json_t *list, const char *key, double expected) {
    double sum = 0;
    for (size_t i = 0; i < json_array_size(list); i++) sum += number(json_array_get(list, i), key);
    near(key, sum, expected, 1e-4);
}

static void test_json(void **state) {
    (void)state;
    static const char *const words[] = {"name", "stage", "kind", "shape", "kernel"};
    static const char *const numbers[] = {"calls", "time_us", "share_ratio", "gflop", "mb", "tflops", "tbs"};
    assert_int_equal(run(TINY " --batch 2 --json p.json"), 0);
    json_t *root = load("p.json"), *ops = json_object_get(root, "ops"),
           *stages = json_object_get(root, "stages");
    const json_t *totals = json_object_get(root, "totals"), *measured = json_object_get(root, "roofs");
    assert_string_equal(word(root, "kind"), "profile");
    assert_true(number(root, "format") == 1);
    assert_string_equal(word(root, "method"), "clock");
    assert_true(number(root, "batch") == 2 && number(root, "runs") == 3);
    double tflops = number(measured, "bf16_tflops"), gbs = number(measured, "read_gbs");
    for (size_t i = 0; i < json_array_size(ops); i++) {
        const json_t *o = json_array_get(ops, i);
        for (size_t k = 0; k < sizeof words / sizeof *words; k++) word(o, words[k]);
        for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++) assert_true(number(o, numbers[k]) >= 0);
        assert_non_null(json_object_get(o, "step"));
        assert_non_null(json_object_get(o, "layer"));
        double time = number(o, "time_us"), floor = number(o, "floor_us");
        near("floor", floor, fmax(number(o, "gflop") * 1e3 / tflops, number(o, "weight_mb") * 1e3 / gbs),
             1e-4);
        assert_true(fabs(number(o, "gap_us") - (time - floor)) <= 1e-3 * (time + floor));
        if (time > 1) near("TFLOP/s", number(o, "tflops"), number(o, "gflop") / time * 1e3, 1e-3);
        if (time > 1) near("TB/s", number(o, "tbs"), number(o, "mb") / time, 1e-3);
        if (time > 1) near("roof", number(o, "roof_ratio"), floor / time, 1e-3);
    }
    double sum = number(totals, "sum_ms");
    sums_to(ops, "time_us", sum * 1e3);
    sums_to(stages, "time_us", sum * 1e3);
    sums_to(ops, "share_ratio", 1);
    sums_to(ops, "calls", number(totals, "launches"));
    near("coverage", number(totals, "coverage_ratio"), 1, 0.02);
    near("remainder", number(totals, "remainder_ms") + sum, number(totals, "replay_ms"), 1e-4);
    assert_true(number(totals, "host_ms") >= number(totals, "replay_ms"));
    assert_true(number(totals, "instrumented_ms") > 0);
    assert_true(json_is_null(json_object_get(totals, "nodes")));
    json_decref(root);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_clock),        cmocka_unit_test(test_replay),
                                       cmocka_unit_test(test_same_actions), cmocka_unit_test(test_words),
                                       cmocka_unit_test(test_tables),       cmocka_unit_test(test_names),
                                       cmocka_unit_test(test_json)};
    return cmocka_run_group_tests(tests, open_box, close_box);
}
