/* The whole engine on the GPU: one answer whatever the way of running, again and again, and nothing left behind.
 * Without a GPU every test is counted and skipped, with the reason.
 *
 *   OPENPI_TEST_GPU_PATH=portable   (environment of the test program only) the portable kernels */
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

static openpi_error error;
static char reason[600];

static void must(openpi_status status) {
    if (status != OPENPI_OK) fail_msg("%s", error.message);
}

static uint64_t random_state = 99;

static uint32_t next_random(void) {
    uint64_t z = random_state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (uint32_t)((z ^ z >> 31) >> 32);
}

enum { BATCH = 3, HORIZON = 50, PROMPT = 200, PIXELS = 224 * 224 * 3 };

typedef struct inputs {
    openpi_sample samples[BATCH];
    uint8_t *images;
    int32_t tokens[BATCH][PROMPT];
    float state[BATCH][OPENPI_ACTION_DIM];
    float noise[BATCH * HORIZON * OPENPI_ACTION_DIM];
} inputs;

/* Cameras and prompt lengths differ from call to call and from sample to sample. */
static void draw(inputs *in) {
    for (int i = 0; i < BATCH * OPENPI_CAMERAS * PIXELS; i++) in->images[i] = (uint8_t)next_random();
    for (int b = 0; b < BATCH; b++) {
        openpi_sample *s = &in->samples[b];
        *s = (openpi_sample){.tokens = in->tokens[b], .token_count = (int)(next_random() % (PROMPT + 1)), .state = in->state[b]};
        for (int c = 0; c < OPENPI_CAMERAS; c++) {
            s->images[c] = in->images + (size_t)(b * OPENPI_CAMERAS + c) * PIXELS;
            s->image_mask[c] = c == 0 || next_random() % 3;
        }
        for (int i = 0; i < PROMPT; i++) in->tokens[b][i] = (int32_t)(next_random() % 2000);
        for (int i = 0; i < OPENPI_ACTION_DIM; i++) in->state[b][i] = (float)next_random() * 0x1p-31f - 1;
    }
    openpi_noise(next_random(), 0, in->noise, sizeof in->noise / sizeof *in->noise);
}

static void watch(void *user, openpi_tensor tensor, int sample, int index, const float *data, int rows, int columns) {
    (void)tensor, (void)sample, (void)index, (void)data, (void)rows, (void)columns;
    ++*(int *)user;
}

static double largest_difference(const float *a, const float *b, size_t count) {
    double worst = 0;
    for (size_t i = 0; i < count; i++) {
        double d = (double)a[i] - (double)b[i];
        if (d < 0) d = -d;
        if (!(d <= worst)) worst = d;
    }
    return worst;
}

static int open_engine(const char *spec, openpi_dtype dtype, openpi_engine **engine) {
    openpi_synthetic synthetic;
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    must(openpi_synthetic_parse(spec, &synthetic, &error));
    options.synthetic = &synthetic;
    options.device = "cuda:0";
    options.dtype = dtype;
    options.path = getenv("OPENPI_TEST_GPU_PATH");
    openpi_status status = openpi_engine_open(NULL, &options, engine, &error);
    if (status == OPENPI_NO_DEVICE) {
        snprintf(reason, sizeof reason, "%s", error.message);
        print_message("skipped: %s\n", reason);
        return 0;
    }
    must(status);
    return 1;
}

/* As a graph, launched op by op, and op by op with a wait after each: bit for bit the same, run after run. */
static void ways_agree(openpi_engine *engine, const char *what, int rounds, int batch, int horizon) {
    openpi_session *session;
    openpi_session_options options = OPENPI_SESSION_OPTIONS_INIT;
    static float first[BATCH * HORIZON * OPENPI_ACTION_DIM], again[BATCH * HORIZON * OPENPI_ACTION_DIM];
    static const char *const ways[] = {"graph", "launches", "one by one"};
    inputs *in = calloc(1, sizeof *in);
    int bad = 0, seen = 0;
    in->images = malloc((size_t)BATCH * OPENPI_CAMERAS * PIXELS);
    options.batch = batch;
    options.horizon = horizon;
    options.max_prompt = PROMPT;
    must(openpi_session_create(engine, &options, &session, &error));
    if (!session->recording) print_message("%s: no graph: %s\n", what, session->no_recording);
    for (int round = 0; round < rounds; round++) {
        struct recording *recording = session->recording;
        size_t count = (size_t)(batch * horizon * OPENPI_ACTION_DIM);
        draw(in);
        openpi_session_observe(session, watch, &seen);
        must(openpi_session_run(session, in->samples, batch, in->noise, first, NULL, &error));
        openpi_session_observe(session, NULL, NULL);
        for (int way = 0; way < 2; way++) {
            session->recording = way ? NULL : recording;
            for (int repeat = 0; repeat < 3; repeat++) {
                must(openpi_session_run(session, in->samples, batch, in->noise, again, NULL, &error));
                if (!memcmp(first, again, count * sizeof *first)) continue;
                if (bad++ < 10)
                    print_message("%s, round %d: %s differs from %s by %.3g\n", what, round, ways[way], ways[2], largest_difference(first, again, count));
            }
        }
        session->recording = recording;
    }
    openpi_session_close(session);
    free(in->images);
    free(in);
    print_message("%s: %d of %d runs differ\n", what, bad, rounds * 6);
    assert_int_equal(bad, 0);
}

static void test_ways(void **state) {
    static const char *const specs[] = {"tiny:pi0", "tiny:pi05", "odd:pi0", "odd:pi05"};
    (void)state;
    for (int i = 0; i < 4; i++)
        for (int d = OPENPI_BF16; d <= OPENPI_F32; d++) {
            openpi_engine *engine;
            char what[80];
            if (!open_engine(specs[i], (openpi_dtype)d, &engine)) skip();
            for (int batch = 1; batch <= BATCH; batch += BATCH - 1)
                for (int horizon = 10; horizon <= HORIZON; horizon += HORIZON - 10) {
                    snprintf(what, sizeof what, "%s %s batch %d horizon %d", specs[i], d == OPENPI_F32 ? "f32" : "bf16", batch, horizon);
                    ways_agree(engine, what, 3, batch, horizon);
                }
            openpi_engine_close(engine);
        }
}

static void test_ways_full(void **state) {
    openpi_engine *engine;
    (void)state;
    if (!open_engine("full:pi0", OPENPI_BF16, &engine)) skip();
    ways_agree(engine, "full:pi0 bf16 batch 1", 5, 1, 10);
    openpi_engine_close(engine);
}

/* ---- against the scalar definition, stage by stage --------------------------------------------------------- */

enum { TENSOR_KINDS = OPENPI_TENSOR_X + 1, KEPT = 1 << 25 };

/* Everything that an observed run shows, in order. */
typedef struct shown {
    float *values;
    size_t count;
    struct { openpi_tensor tensor; int sample, index; size_t at, count; } parts[4096];
    int part_count;
} shown;

static void keep(void *user, openpi_tensor tensor, int sample, int index, const float *data, int rows, int columns) {
    shown *s = user;
    size_t n = (size_t)rows * (size_t)columns;
    assert_true(s->part_count < 4096 && s->count + n <= KEPT);
    s->parts[s->part_count].tensor = tensor;
    s->parts[s->part_count].sample = sample;
    s->parts[s->part_count].index = index;
    s->parts[s->part_count].at = s->count;
    s->parts[s->part_count++].count = n;
    memcpy(s->values + s->count, data, n * sizeof *data);
    s->count += n;
}

static double relative_difference(const float *a, const float *b, size_t count) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < count; i++) {
        difference += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        norm += (double)b[i] * (double)b[i];
    }
    return sqrt(difference / (norm > 0 ? norm : 1));
}

static int g_bad;

/* The definition on the CPU and the GPU take the same inputs; bf16 differs by its roundings. */
static void follows_definition(const char *spec, openpi_dtype dtype, int batch, int used, int horizon, int prompt, double bound) {
    static const char *const names[TENSOR_KINDS] = {"image tokens", "k", "v", "suffix", "velocity", "x"};
    openpi_synthetic synthetic;
    openpi_engine *engines[2];
    shown *seen[2];
    inputs *in = calloc(1, sizeof *in);
    float actions[2][BATCH * HORIZON * OPENPI_ACTION_DIM], graph[BATCH * HORIZON * OPENPI_ACTION_DIM];
    double worst[TENSOR_KINDS] = {0};
    in->images = malloc((size_t)BATCH * OPENPI_CAMERAS * PIXELS);
    draw(in);
    for (int b = 0; b < BATCH; b++) in->samples[b].token_count = prompt - b * 5;
    must(openpi_synthetic_parse(spec, &synthetic, &error));
    for (int i = 0; i < 2; i++) {
        openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
        openpi_session_options shape = OPENPI_SESSION_OPTIONS_INIT;
        openpi_session *session;
        options.synthetic = &synthetic;
        options.device = i ? "cuda:0" : "cpu";
        if (i) options.path = getenv("OPENPI_TEST_GPU_PATH");
        options.dtype = dtype;
        seen[i] = calloc(1, sizeof *seen[i]);
        seen[i]->values = malloc((size_t)KEPT * sizeof(float));
        must(openpi_engine_open(NULL, &options, &engines[i], &error));
        shape.batch = batch;
        shape.horizon = horizon;
        shape.max_prompt = PROMPT;
        must(openpi_session_create(engines[i], &shape, &session, &error));
        openpi_session_observe(session, keep, seen[i]);
        must(openpi_session_run(session, in->samples, used, in->noise, actions[i], NULL, &error));
        openpi_session_observe(session, NULL, NULL);
        must(openpi_session_run(session, in->samples, used, in->noise, graph, NULL, &error));
        if (memcmp(graph, actions[i], (size_t)(used * horizon * OPENPI_ACTION_DIM) * sizeof(float)))
            print_message("%s: the graph's actions differ by %.3g\n", spec, largest_difference(graph, actions[i], (size_t)(used * horizon * OPENPI_ACTION_DIM)));
        openpi_session_close(session);
        openpi_engine_close(engines[i]);
    }
    assert_int_equal(seen[0]->part_count, seen[1]->part_count);
    for (int i = 0; i < seen[0]->part_count; i++) {
        double d = relative_difference(seen[1]->values + seen[0]->parts[i].at, seen[0]->values + seen[0]->parts[i].at, seen[0]->parts[i].count);
        if (!(d <= worst[seen[0]->parts[i].tensor])) worst[seen[0]->parts[i].tensor] = d;
    }
    print_message("%-9s batch %d of %d horizon %d, %s:", spec, used, batch, horizon, dtype == OPENPI_F32 ? "f32 " : "bf16");
    int bad = 0;
    for (int t = 0; t < TENSOR_KINDS; t++) {
        print_message(" %s %.1e", names[t], worst[t]);
        bad += !(worst[t] <= bound);
    }
    print_message("\n");
    for (int i = 0; i < 2; i++) {
        free(seen[i]->values);
        free(seen[i]);
    }
    free(in->images);
    free(in);
    g_bad += bad;
}

static void test_definition(void **state) {
    static const char *const specs[] = {"tiny:pi0", "tiny:pi05", "odd:pi0", "odd:pi05"};
    openpi_engine *engine;
    (void)state;
    if (!open_engine("tiny", OPENPI_BF16, &engine)) skip();
    openpi_engine_close(engine);
    for (int i = 0; i < 4; i++)
        for (int d = OPENPI_BF16; d <= OPENPI_F32; d++) {
            double bound = d == OPENPI_F32 ? 1e-4 : 0.05;
            follows_definition(specs[i], (openpi_dtype)d, 1, 1, 10, 120, bound);
            follows_definition(specs[i], (openpi_dtype)d, 1, 1, 15, 45, bound);
            follows_definition(specs[i], (openpi_dtype)d, BATCH, BATCH, 10, 40, bound);
            follows_definition(specs[i], (openpi_dtype)d, BATCH, BATCH, 50, 200, bound);
            follows_definition(specs[i], (openpi_dtype)d, BATCH, 1, 50, 30, bound);
        }
    assert_int_equal(g_bad, 0);
}

/* ---- for long ----------------------------------------------------------------------------------------------- */

static size_t free_bytes(const openpi_engine *engine) {
    const gpu_device *device = (const gpu_device *)engine->device;
    size_t left = 0, total = 0;
    assert_int_equal(device->driver.context_set(device->context), 0);
    assert_int_equal(device->driver.memory_info(&left, &total), 0);
    return left;
}

/* Opening and closing gives everything back. */
static void test_open_close(void **state) {
    openpi_engine *keeper, *engine;
    size_t before = 0, after = 0;
    (void)state;
    if (!open_engine("tiny:pi0", OPENPI_BF16, &keeper)) skip();
    for (int i = 0; i < 201; i++) {
        openpi_session *session;
        if (!open_engine(i & 1 ? "tiny:pi05" : "tiny:pi0", OPENPI_BF16, &engine)) skip();
        must(openpi_session_create(engine, NULL, &session, &error));
        openpi_session_close(session);
        openpi_engine_close(engine);
        if (!i) before = free_bytes(keeper);
        after = free_bytes(keeper);
    }
    print_message("free after 1 and after 201: %zu and %zu bytes\n", before, after);
    assert_true(after + (2u << 20) >= before);
    openpi_engine_close(keeper);
}

enum { KINDS = 8, CALLS = 10000 };

/* Ten thousand calls whose prompts, cameras and pictures change every time: the same inputs give the same bits. */
static void test_many_calls(void **state) {
    openpi_engine *engine;
    openpi_session *session;
    openpi_session_options options = OPENPI_SESSION_OPTIONS_INIT;
    static inputs kinds[KINDS];
    static float expected[KINDS][HORIZON * OPENPI_ACTION_DIM], actions[HORIZON * OPENPI_ACTION_DIM];
    size_t before = 0;
    int bad = 0;
    (void)state;
    if (!open_engine("tiny:pi0", OPENPI_BF16, &engine)) skip();
    options.horizon = HORIZON;
    options.max_prompt = PROMPT;
    must(openpi_session_create(engine, &options, &session, &error));
    for (int k = 0; k < KINDS; k++) {
        kinds[k].images = malloc((size_t)BATCH * OPENPI_CAMERAS * PIXELS);
        draw(&kinds[k]);
        must(openpi_session_run(session, kinds[k].samples, 1, kinds[k].noise, expected[k], NULL, &error));
    }
    for (int i = 0; i < CALLS; i++) {
        int k = (int)(next_random() % KINDS);
        must(openpi_session_run(session, kinds[k].samples, 1, kinds[k].noise, actions, NULL, &error));
        bad += memcmp(actions, expected[k], sizeof actions) != 0;
        if (!i) before = free_bytes(engine);
    }
    print_message("%d of %d calls differ\n", bad, CALLS);
    assert_int_equal(bad, 0);
    assert_int_equal(free_bytes(engine), before);
    for (int k = 0; k < KINDS; k++) free(kinds[k].images);
    openpi_session_close(session);
    openpi_engine_close(engine);
}

/* What the driver says is in use is what openpi says it asked for, to the driver's grain per allocation. */
static void test_bytes(void **state) {
    openpi_engine *keeper, *engine;
    openpi_session *session;
    (void)state;
    if (!open_engine("tiny:pi0", OPENPI_BF16, &keeper)) skip();
    size_t start = free_bytes(keeper);
    assert_true(open_engine("full:pi0", OPENPI_BF16, &engine));
    size_t loaded = free_bytes(keeper);
    must(openpi_session_create(engine, NULL, &session, &error));
    size_t opened = free_bytes(keeper), grain = 2u << 20, model = engine->model->bytes, buffers = session->plan->device_bytes + session->plan->work_bytes;
    print_message("weights: %zu asked, %zu gone; session: %zu asked, %zu gone\n", model, start - loaded, buffers, loaded - opened);
    assert_true(start - loaded >= model && start - loaded <= model + grain);
    assert_true(loaded - opened + grain >= buffers);
    assert_true(model + buffers < 6600000000u);
    openpi_session_close(session);
    openpi_engine_close(engine);
    openpi_engine_close(keeper);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_definition),
        cmocka_unit_test(test_ways),
        cmocka_unit_test(test_ways_full),
        cmocka_unit_test(test_open_close),
        cmocka_unit_test(test_many_calls),
        cmocka_unit_test(test_bytes),
    };
    return cmocka_run_group_tests_name("gpu engine", tests, NULL, NULL);
}
