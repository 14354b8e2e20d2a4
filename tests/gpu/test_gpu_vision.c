/* labels: skips */
/* The resident vision kernel against the ops' own kernels: the same image tokens to rounding, the same bits
 * every time, and taken exactly where it is legal. Tokens are looked at where the first layer of the language
 * stack has kept them, as keys and values. Without a GPU, or on one that is no Hopper, every test is counted
 * and skipped. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "long_run.h"
#include "relative.h"
#include "resident_calls.h"

enum {
    HORIZON = 10,
    STEPS = 2,
    PROMPT = 20,
    VALUES = HORIZON * OPENPI_ACTION_DIM,
    HEAD = 256,                            /* head width of the language stack                              */
    TOKENS = OPENPI_CAMERAS * OPENPI_IMAGE_TOKENS,
    KEPT = TOKENS * HEAD
};

/* What a call leaves: keys and values of the image tokens in the first layer, and actions. */
typedef struct result {
    float kept[2][KEPT], actions[VALUES];
} result;

/* A small model with the vision tower's sizes and so many layers, on a device that may run the kernel, or
 * NULL. */
static openpi_engine *open_engine(int depth, openpi_dtype dtype) {
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    char dims[160];
    snprintf(dims, sizeof dims,
             "{\"vision\":[1152,%d,16,4304],\"vlm\":[256,2,8,256,512],\"expert\":[256,512],\"vocab\":2048}",
             depth);
    must(openpi_dims_parse(dims, &synthetic.dims, &error));
    return open_resident(&synthetic, dtype, SWITCH_PERSISTENT_VISION, "resident vision kernel");
}

/* A session with or without the resident kernel. */
static openpi_session *open_session(openpi_engine *engine, int resident, int batch) {
    openpi_session_options options = OPENPI_SESSION_OPTIONS_INIT;
    options.batch = batch;
    options.horizon = HORIZON;
    options.steps = STEPS;
    options.max_prompt = PROMPT;
    return open_switched(engine, SWITCH_PERSISTENT_VISION, resident, &options);
}

/* Launches of the kernel in a recording. */
static int resident_launches(const openpi_session *session) {
    enum { MOST = 4096 };
    static launch_record list[MOST];
    device *device = session->engine->device;
    const int count = device->backend->launches(device, session->kinds.recordings[CALL_ANY], list, MOST);
    int resident = 0;
    assert_in_range(count, 1, MOST);
    for (int i = 0; i < count; i++) resident += !strcmp(list[i].kernel, "resident_vision");
    return resident;
}

static void run(openpi_session *session, const inputs *in, result *out) {
    device *device = session->engine->device;
    const kv_cache cache = plan_cache(session->plan, 0);
    memset(out, 0, sizeof *out);
    must(openpi_session_run(session, &in->sample, 1, in->noise, out->actions, NULL, &error));
    for (int values = 0; values < 2 && in->cameras; values++)
        must(gpu_cache_read(device, &cache, session->engine->model->type, values, 0,
                            in->cameras * OPENPI_IMAGE_TOKENS, out->kept[values], &error));
}

/* The largest distance of a token, and of all tokens together. A NaN is infinitely far. */
typedef struct distance {
    double token, all;
} distance;

static void add_distance(distance *d, const result *a, const result *b, int cameras) {
    const size_t tokens = (size_t)(cameras * OPENPI_IMAGE_TOKENS);
    for (int values = 0; values < 2; values++) {
        const double all = relative_difference(a->kept[values], b->kept[values], tokens * HEAD);
        if (!(all <= d->all)) d->all = isnan(all) ? INFINITY : all;
        for (size_t i = 0; i < tokens; i++) {
            const size_t at = i * HEAD;
            const double one = relative_difference(a->kept[values] + at, b->kept[values] + at, HEAD);
            if (!(one <= d->token)) d->token = isnan(one) ? INFINITY : one;
        }
    }
}

/* Which pictures there are: one, two, three, in every way, and none. */
static const int masks[] = {7, 1, 2, 4, 3, 5, 6, 0};
enum { MASKS = sizeof masks / sizeof *masks };

static void compare(int depth, double bound) {
    static result resident, plain, again;
    openpi_engine *engine = open_engine(depth, OPENPI_BF16);
    if (!engine) skip();
    openpi_session *with = open_session(engine, 1, 1), *without = open_session(engine, 0, 1);
    inputs *in = inputs_open(PROMPT, HORIZON);
    distance worst = {0};
    double worst_actions = 0;
    assert_int_equal(resident_launches(with), (depth + 26) / 27);
    assert_int_equal(resident_launches(without), 0);
    for (int i = 0; i < MASKS; i++) {
        draw(in, masks[i]);
        run(without, in, &plain);
        run(with, in, &resident);
        add_distance(&worst, &resident, &plain, in->cameras);
        const double actions = relative_difference(resident.actions, plain.actions, VALUES);
        if (!(actions <= worst_actions)) worst_actions = actions;
        /* The plan launched op by op has the kernel in it too. */
        struct recording *recording = with->kinds.recordings[CALL_ANY];
        with->kinds.recordings[CALL_ANY] = NULL;
        run(with, in, &again);
        with->kinds.recordings[CALL_ANY] = recording;
        assert_memory_equal(&resident, &again, sizeof again);
    }
    print_message("%d layers: tokens %.2e from the ops' kernels, the farthest %.2e; actions %.2e\n", depth,
                  worst.all, worst.token, worst_actions);
    inputs_close(in);
    openpi_session_close(with);
    openpi_session_close(without);
    openpi_engine_close(engine);
    assert_true(worst.all <= bound && worst.token <= 3 * bound && worst_actions <= 3 * bound);
}

/* Bounds: 13 roundings a layer, of 1.66e-3 each, on both sides (docs/ladder.md), and some around them. */
static void test_agrees(void **state) {
    (void)state;
    compare(1, 0.02);
    compare(2, 0.025);
    compare(27, 0.06);
    compare(28, 0.06);                     /* more than a launch has                                        */
}

/* ---- rows and norms that are not as usual ------------------------------------------------------------ */

enum { WIDTH = 1152, DEPTH = 4 };

/* Adds to all numbers of a vector on the device. */
static void add_mean(device *device, const float *vector, float by) {
    float host[WIDTH];
    must(device->backend->download(device, host, vector, sizeof host, &error));
    for (int i = 0; i < WIDTH; i++) host[i] += by;
    must(device->backend->upload(device, (float *)(uintptr_t)vector, host, sizeof host, &error));
}

/* Every seventh weight of a norm becomes 0, or a number near it. */
static void clear_weights(device *device, const norm *norm) {
    float host[WIDTH];
    must(device->backend->download(device, host, norm->weight, sizeof host, &error));
    for (int i = 0; i < WIDTH; i += 7) host[i] = i % 2 ? 0 : i % 4 ? 1e-35f : -1e-20f;
    must(device->backend->upload(device, (float *)(uintptr_t)norm->weight, host, sizeof host, &error));
}

/* An engine whose rows have so large a mean and, `clear`, norms that leave columns out. */
static openpi_engine *open_unusual(openpi_dtype dtype, float mean, int clear) {
    openpi_engine *engine = open_engine(DEPTH, dtype);
    if (!engine) return NULL;
    const model *m = engine->model;
    add_mean(engine->device, m->patch_bias, mean);
    for (int i = 0; i < DEPTH && clear; i++) {
        clear_weights(engine->device, &m->vision[i].norm1);
        clear_weights(engine->device, &m->vision[i].norm2);
    }
    /* What depends on them is made anew. */
    const block_weights *tower = &m->blocks[BLOCK_VISION_LAYERS];
    if (tower->prepared) must(engine->device->backend->prepare(engine->device, tower, &error));
    return engine;
}

/* The kernel is as near to the fp32 engine as the ops' kernels are, with which it shares no way to norm: they
 * round what has been normed, it rounds what comes before, around a mean. */
static void test_unusual_norms(void **state) {
    static const struct {
        float mean;
        int clear;
    } cases[] = {{0, 0}, {0, 1}, {4, 0}, {40, 1}, {-400, 0}};
    static result exact, plain, resident;
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        openpi_engine *engine = open_unusual(OPENPI_BF16, cases[c].mean, cases[c].clear);
        if (!engine) skip();
        openpi_engine *f32 = open_unusual(OPENPI_F32, cases[c].mean, cases[c].clear);
        openpi_session *with = open_session(engine, 1, 1), *without = open_session(engine, 0, 1),
                       *truth = open_session(f32, 0, 1);
        inputs *in = inputs_open(PROMPT, HORIZON);
        distance of_plain = {0}, of_resident = {0};
        for (int images = 0; images < 3; images++) {
            static const int masks_of[] = {1, 3, 7};
            draw(in, masks_of[images]);
            run(truth, in, &exact);
            run(without, in, &plain);
            run(with, in, &resident);
            add_distance(&of_plain, &plain, &exact, in->cameras);
            add_distance(&of_resident, &resident, &exact, in->cameras);
        }
        print_message("mean %g%s: tokens %.2e from fp32, the ops' kernels %.2e\n", (double)cases[c].mean,
                      cases[c].clear ? ", weights of 0" : "", of_resident.all, of_plain.all);
        assert_true(of_resident.all <= 1.3 * of_plain.all && of_resident.token <= 1.5 * of_plain.token);
        inputs_close(in);
        openpi_session_close(with);
        openpi_session_close(without);
        openpi_session_close(truth);
        openpi_engine_close(engine);
        openpi_engine_close(f32);
    }
}

/* Several samples and fp32 stay with the ops' kernels. */
static void test_where_legal(void **state) {
    (void)state;
    openpi_engine *engine = open_engine(2, OPENPI_BF16);
    if (!engine) skip();
    for (int batch = 1; batch <= 2; batch++) {
        openpi_session *session = open_session(engine, 1, batch);
        assert_int_equal(resident_launches(session), batch == 1);
        openpi_session_close(session);
    }
    openpi_engine_close(engine);
    engine = open_engine(2, OPENPI_F32);
    assert_non_null(engine);
    openpi_session *session = open_session(engine, 1, 1);
    assert_int_equal(resident_launches(session), 0);
    openpi_session_close(session);
    openpi_engine_close(engine);
}

/* Calls with other pictures in random order: the same inputs give the same bits, whatever the call before
 * left in the buffers. */
static void test_repeats(void **state) {
    enum { REPEATS = 200, SESSIONS = 2 };
    static result expected[MASKS], found;
    const int times = long_run(REPEATS);
    inputs *in[MASKS];
    int bad = 0;
    (void)state;
    openpi_engine *engine = open_engine(2, OPENPI_BF16);
    if (!engine) skip();
    openpi_session *sessions[SESSIONS] = {open_session(engine, 1, 1), open_session(engine, 1, 1)};
    for (int i = 0; i < MASKS; i++) {
        in[i] = inputs_open(PROMPT, HORIZON);
        draw(in[i], masks[i]);
        run(sessions[0], in[i], &expected[i]);
    }
    for (int n = 0; n < times; n++) {
        const int i = (int)(next_random() % MASKS);
        run(sessions[next_random() % SESSIONS], in[i], &found);
        bad += memcmp(&found, &expected[i], sizeof found) != 0;
        tell_progress("vision", n + 1, REPEATS);
    }
    print_message("%d of %d replays differ\n", bad, times);
    for (int i = 0; i < MASKS; i++) inputs_close(in[i]);
    for (int i = 0; i < SESSIONS; i++) openpi_session_close(sessions[i]);
    openpi_engine_close(engine);
    assert_int_equal(bad, 0);
}

int main(void) {
    random_state = 11;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_agrees),
        cmocka_unit_test(test_unusual_norms),
        cmocka_unit_test(test_where_legal),
        cmocka_unit_test(test_repeats),
    };
    return verdict(cmocka_run_group_tests_name("gpu vision", tests, NULL, NULL));
}
