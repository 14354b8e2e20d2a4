/* The whole engine on the GPU: one answer whatever the way of running, again and again, and nothing left behind.
 * Without a GPU every test is counted and skipped, with the reason. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

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

enum { BATCH = 3, HORIZON = 10, PROMPT = 48, PIXELS = 224 * 224 * 3 };

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
static void ways_agree(openpi_engine *engine, const char *what, int rounds, int batch) {
    openpi_session *session;
    openpi_session_options options = OPENPI_SESSION_OPTIONS_INIT;
    static float first[BATCH * HORIZON * OPENPI_ACTION_DIM], again[BATCH * HORIZON * OPENPI_ACTION_DIM];
    static const char *const ways[] = {"graph", "launches", "one by one"};
    inputs *in = calloc(1, sizeof *in);
    int bad = 0, seen = 0;
    in->images = malloc((size_t)BATCH * OPENPI_CAMERAS * PIXELS);
    options.batch = batch;
    options.horizon = HORIZON;
    options.max_prompt = PROMPT;
    must(openpi_session_create(engine, &options, &session, &error));
    if (!session->recording) print_message("%s: no graph: %s\n", what, session->no_recording);
    for (int round = 0; round < rounds; round++) {
        struct recording *recording = session->recording;
        size_t count = (size_t)(batch * HORIZON * OPENPI_ACTION_DIM);
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
            for (int batch = 1; batch <= BATCH; batch += BATCH - 1) {
                snprintf(what, sizeof what, "%s %s batch %d", specs[i], d == OPENPI_F32 ? "f32" : "bf16", batch);
                ways_agree(engine, what, 5, batch);
            }
            openpi_engine_close(engine);
        }
}

static void test_ways_full(void **state) {
    openpi_engine *engine;
    (void)state;
    if (!open_engine("full:pi0", OPENPI_BF16, &engine)) skip();
    ways_agree(engine, "full:pi0 bf16 batch 1", 5, 1);
    openpi_engine_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ways),
        cmocka_unit_test(test_ways_full),
    };
    return cmocka_run_group_tests_name("gpu engine", tests, NULL, NULL);
}
