/* The resident denoise kernel against the ops' own kernels: the same actions to rounding, the same bits every time, and
 * taken exactly where it is legal. Without a GPU, or on one that is no Hopper, every test is counted and skipped. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/gpu/gpu.h"
#include "openpi_internal.h"

static openpi_error error = OPENPI_ERROR_INIT;

static void must(openpi_status status) {
    if (status != OPENPI_OK) fail_msg("%s", error.message);
}

static uint64_t random_state = 5;

static uint32_t next_random(void) {
    uint64_t z = random_state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (uint32_t)((z ^ z >> 31) >> 32);
}

enum { HORIZON = 20, PROMPT = 200, PIXELS = 224 * 224 * 3, VALUES = HORIZON * OPENPI_ACTION_DIM };

typedef struct inputs {
    openpi_sample sample;
    uint8_t *images;
    int32_t tokens[PROMPT];
    float state[OPENPI_ACTION_DIM], noise[VALUES];
} inputs;

static inputs *inputs_open(void) {
    inputs *in = calloc(1, sizeof *in);
    assert_non_null(in);
    in->images = malloc((size_t)OPENPI_CAMERAS * PIXELS);
    assert_non_null(in->images);
    return in;
}

static void inputs_close(inputs *in) {
    free(in->images);
    free(in);
}

static void draw(inputs *in) {
    for (int i = 0; i < OPENPI_CAMERAS * PIXELS; i++) in->images[i] = (uint8_t)next_random();
    in->sample = (openpi_sample){.size = sizeof(openpi_sample), .tokens = in->tokens,
                                 .token_count = 1 + (int)(next_random() % PROMPT), .state = in->state};
    for (int c = 0; c < OPENPI_CAMERAS; c++) {
        in->sample.images[c] = in->images + (size_t)c * PIXELS;
        in->sample.image_mask[c] = c == 0 || next_random() % 3;
    }
    for (int i = 0; i < PROMPT; i++) in->tokens[i] = (int32_t)(next_random() % 2000);
    for (int i = 0; i < OPENPI_ACTION_DIM; i++) in->state[i] = (float)next_random() * 0x1p-31f - 1;
    openpi_noise(next_random(), 0, in->noise, VALUES);
}

static int without_gpu;

/* An engine whose device may run the resident kernel, or NULL. */
static openpi_engine *open_engine_without(const char *spec, openpi_dtype dtype, const char *without) {
    openpi_engine *engine;
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    must(openpi_synthetic_parse(spec, &synthetic, &error));
    options.synthetic = &synthetic;
    options.device = "cuda:0";
    options.path = "hopper+resident";
    options.dtype = dtype;
    options.without = without;
    openpi_status status = openpi_engine_open(NULL, &options, &engine, &error);
    if (status == OPENPI_NO_DEVICE || status == OPENPI_UNSUPPORTED) {
        print_message("skipped: %s\n", error.message);
        without_gpu = 1;
        return NULL;
    }
    must(status);
    if (((gpu_device *)engine->device)->resident) return engine;
    print_message("skipped: this device has no resident kernel\n");
    openpi_engine_close(engine);
    return NULL;
}

static openpi_engine *open_engine(const char *spec, openpi_dtype dtype) { return open_engine_without(spec, dtype, NULL); }

/* A session with or without the resident kernel. */
static openpi_session *open_session(openpi_engine *engine, int resident, int batch, int horizon, int steps) {
    openpi_session *session;
    openpi_session_options options = OPENPI_SESSION_OPTIONS_INIT;
    options.batch = batch;
    options.horizon = horizon;
    options.steps = steps;
    options.max_prompt = PROMPT;
    ((gpu_device *)engine->device)->resident = resident;
    must(openpi_session_create(engine, &options, &session, &error));
    ((gpu_device *)engine->device)->resident = 1;
    assert_non_null(session->recording);
    return session;
}

static double relative(const float *a, const float *b, size_t count) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < count; i++) {
        difference += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        norm += (double)b[i] * (double)b[i];
    }
    return sqrt(difference / (norm > 0 ? norm : 1));
}

static int nodes(const openpi_session *session) { return session->engine->device->backend->nodes(session->recording); }

/* Taken: one kernel instead of several a layer. */
static void check_shape(openpi_engine *engine, const char *spec, int batch, int horizon, int steps, int expected) {
    openpi_session *with = open_session(engine, 1, batch, horizon, steps),
                   *without = open_session(engine, 0, batch, horizon, steps);
    int taken = nodes(with) < nodes(without);
    if (taken != expected)
        fail_msg("%s batch %d horizon %d: %d nodes with the resident kernel, %d without", spec, batch, horizon, nodes(with),
                 nodes(without));
    openpi_session_close(with);
    openpi_session_close(without);
}

static void compare(openpi_engine *engine, const char *spec, int horizon, int steps, int rounds, double bound) {
    static float resident[VALUES], plain[VALUES], again[VALUES];
    openpi_session *with = open_session(engine, 1, 1, horizon, steps), *without = open_session(engine, 0, 1, horizon, steps);
    size_t count = (size_t)(horizon * OPENPI_ACTION_DIM);
    double worst = 0;
    inputs *in = inputs_open();
    /* π0's first step carries the state token and stays with the ops' kernels. */
    if (steps > 1 || !strstr(spec, ":pi0") || strstr(spec, ":pi05")) assert_true(nodes(with) < nodes(without));
    for (int round = 0; round < rounds; round++) {
        draw(in);
        must(openpi_session_run(without, &in->sample, 1, in->noise, plain, NULL, &error));
        must(openpi_session_run(with, &in->sample, 1, in->noise, resident, NULL, &error));
        double d = relative(resident, plain, count);
        if (!(d <= worst)) worst = d;
        /* The plan launched op by op has the kernel in it too. */
        struct recording *recording = with->recording;
        with->recording = NULL;
        must(openpi_session_run(with, &in->sample, 1, in->noise, again, NULL, &error));
        with->recording = recording;
        assert_memory_equal(resident, again, count * sizeof *again);
    }
    print_message("%s horizon %d steps %d: %.2e from the ops' kernels\n", spec, horizon, steps, worst);
    inputs_close(in);
    openpi_session_close(with);
    openpi_session_close(without);
    if (!(worst <= bound))
        fail_msg("%s horizon %d steps %d: differs by %.3g, expected %.3g at most", spec, horizon, steps, worst, bound);
}

static const char *const specs[] = {"tiny:pi0", "tiny:pi05", "odd:pi0", "odd:pi05"};

static void test_agrees(void **state) {
    static const int horizons[] = {1, 10, 16}, steps[] = {1, 10};
    (void)state;
    for (int i = 0; i < 4; i++) {
        openpi_engine *engine = open_engine(specs[i], OPENPI_BF16);
        if (!engine) skip();
        for (int h = 0; h < 3; h++)
            for (int s = 0; s < 2; s++) compare(engine, specs[i], horizons[h], steps[s], 4, 0.02);
        openpi_engine_close(engine);
    }
}

static void test_agrees_full(void **state) {
    static const char *const full[] = {"full:pi0", "full:pi05"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        openpi_engine *engine = open_engine(full[i], OPENPI_BF16);
        if (!engine) skip();
        compare(engine, full[i], 10, 10, 3, 0.02);
        compare(engine, full[i], 16, 2, 2, 0.02);
        openpi_engine_close(engine);
    }
}

/* Several samples, too many rows, fp32 or an action embedding of three products stay with the ops' kernels. */
static void test_where_legal(void **state) {
    (void)state;
    openpi_engine *engine = open_engine("tiny:pi0", OPENPI_BF16);
    if (!engine) skip();
    check_shape(engine, "tiny:pi0", 1, 16, 10, 1);
    check_shape(engine, "tiny:pi0", 1, 17, 10, 0);
    check_shape(engine, "tiny:pi0", 2, 5, 10, 0);
    openpi_engine_close(engine);
    engine = open_engine("tiny:pi0", OPENPI_F32);
    assert_non_null(engine);
    check_shape(engine, "tiny:pi0 f32", 1, 10, 10, 0);
    openpi_engine_close(engine);
    engine = open_engine_without("tiny:pi0", OPENPI_BF16, "folded-constants");
    assert_non_null(engine);
    check_shape(engine, "tiny:pi0 without folded-constants", 1, 10, 10, 0);
    openpi_engine_close(engine);
}

/* Two sessions in turn, five hundred times: the same inputs give the same bits. */
static void repeats(const char *spec, int times) {
    static float expected[2][VALUES], actions[VALUES];
    openpi_session *sessions[2];
    openpi_engine *engine = open_engine(spec, OPENPI_BF16);
    inputs *in[2];
    int bad = 0;
    if (!engine) skip();
    for (int i = 0; i < 2; i++) {
        sessions[i] = open_session(engine, 1, 1, 10 + 6 * i, 10);
        in[i] = inputs_open();
        draw(in[i]);
        must(openpi_session_run(sessions[i], &in[i]->sample, 1, in[i]->noise, expected[i], NULL, &error));
    }
    for (int n = 0; n < times; n++) {
        int i = next_random() % 3 == 0;
        must(openpi_session_run(sessions[i], &in[i]->sample, 1, in[i]->noise, actions, NULL, &error));
        bad += memcmp(actions, expected[i], (size_t)(10 + 6 * i) * OPENPI_ACTION_DIM * sizeof *actions) != 0;
    }
    print_message("%s: %d of %d replays differ\n", spec, bad, times);
    for (int i = 0; i < 2; i++) {
        openpi_session_close(sessions[i]);
        inputs_close(in[i]);
    }
    openpi_engine_close(engine);
    assert_int_equal(bad, 0);
}

static void test_repeats(void **state) {
    (void)state;
    repeats("tiny:pi0", 500);
    repeats("odd:pi05", 500);
}

static void test_repeats_full(void **state) {
    (void)state;
    repeats("full:pi0", 500);
}

/* Time stamps are there when asked for and never go back. */
static void test_stamps(void **state) {
    enum { STEPS = 4 };
    static uint64_t stamps[1024];
    static float actions[VALUES];
    (void)state;
    openpi_engine *engine = open_engine("tiny:pi05", OPENPI_BF16);
    if (!engine) skip();
    gpu_device *device = (gpu_device *)engine->device;
    inputs *in = inputs_open();
    int depth = 0;
    draw(in);
    openpi_session *session = open_session(engine, 1, 1, 10, STEPS);
    const plan *plan = session->plan;
    assert_int_equal(gpu_resident_stamps(device, plan->ops, plan->count, session->work, stamps, 1024, &depth), 0);
    openpi_session_close(session);
    device->resident_stamps = 1;
    session = open_session(engine, 1, 1, 10, STEPS);
    plan = session->plan;
    must(openpi_session_run(session, &in->sample, 1, in->noise, actions, NULL, &error));
    int count = gpu_resident_stamps(device, plan->ops, plan->count, session->work, stamps, 1024, &depth);
    assert_int_equal(depth, engine->model->dims.depth);
    assert_int_equal(count, STEPS * (depth + 1) + 1);
    for (int i = 0; i < count; i++) assert_true(stamps[i] && (!i || stamps[i] >= stamps[i - 1]));
    print_message("%d steps in %.1f us\n", STEPS, (double)(stamps[count - 1] - stamps[0]) * 1e-3);
    openpi_session_close(session);
    openpi_engine_close(engine);
    inputs_close(in);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_agrees),  cmocka_unit_test(test_where_legal), cmocka_unit_test(test_repeats),
        cmocka_unit_test(test_stamps),  cmocka_unit_test(test_agrees_full), cmocka_unit_test(test_repeats_full),
    };
    int failed = cmocka_run_group_tests_name("gpu resident", tests, NULL, NULL);
    return failed ? failed : without_gpu ? 77 : 0;         /* which ctest counts as skipped */
}
