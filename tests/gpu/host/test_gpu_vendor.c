/* The frame of src/backend/gpu over a vendor whose GPU is the host (host.h): a model gives openpi's actions
 * there, with and without graphs, whichever of the listed choices its ops run by. openpi_ops_host checks
 * single operations.
 *
 *   test_gpu_vendor [device | chunking | goldens]    the frame's own promises, real-time chunking, openpi's
 *                                                    actions, or all three
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "block_watch.h"
#include "generated_matrix.h"
#include "host.h"
#include "openpi_internal.h"
#include "timed_steps.h"
#include "verify_rows.h"

static openpi_error error = OPENPI_ERROR_INIT;

static void must(openpi_status status) {
    if (status != OPENPI_OK) fail_msg("%s", error.message);
}

/* Everything that was taken from the driver has been given back. */
static int nothing_left(void **state) {
    (void)state;
    if (!host_alive() && !host_device_bytes()) return 0;
    print_error("%d things, %zu device bytes were not given back\n", host_alive(), host_device_bytes());
    return -1;
}

/* path: NULL, the best. */
static openpi_engine *open_on(const char *path, const char *spec, openpi_dtype dtype, int max_delay) {
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    openpi_engine *engine;
    must(openpi_synthetic_parse(spec, &synthetic, &error));
    synthetic.rtc_max_delay = max_delay;
    options.synthetic = &synthetic;
    options.device = "host:0";
    options.dtype = dtype;
    options.path = path;
    must(openpi_engine_open(NULL, &options, &engine, &error));
    return engine;
}

static openpi_engine *open_trained(const char *spec, openpi_dtype dtype, int max_delay) {
    return open_on(NULL, spec, dtype, max_delay);
}

static openpi_engine *open_engine(const char *spec, openpi_dtype dtype) {
    return open_trained(spec, dtype, 0);
}

/* ---- the device ---------------------------------------------------------------------------------------- */

static void test_listed(void **state) {
    openpi_device devices[2] = {OPENPI_DEVICE_INIT, OPENPI_DEVICE_INIT};
    int count, found = 0;
    (void)state;
    must(openpi_devices(devices, 2, &count, &error));
    assert_int_equal(count, 2);
    for (int i = 0; i < count; i++) {
        if (strcmp(devices[i].name, "host:0")) continue;
        found++;
        assert_int_equal(devices[i].usable, 1);
        assert_string_equal(devices[i].path, "plain");
        assert_string_equal(devices[i].description, "the processor, as a GPU");
        assert_string_equal(devices[i].reason, "");
        assert_int_equal(devices[i].memory_bytes, 1 << 30);
    }
    assert_int_equal(found, 1);
}

/* Sentences name this vendor's device and paths. */
static void test_refused(void **state) {
    static const struct {
        const char *device, *path, *says[2];
        openpi_status status;
    } cases[] = {
        {"host:1", NULL, {"host:1", "1"}, OPENPI_NO_DEVICE},
        {"host:x", NULL, {"host:x", "host:N"}, OPENPI_NO_DEVICE},
        {"host:0", "hopper", {"\"hopper\"", "plain"}, OPENPI_BAD_ARGUMENT},
    };
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    (void)state;
    must(openpi_synthetic_parse("odd", &synthetic, &error));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
        openpi_engine *engine;
        options.synthetic = &synthetic;
        options.device = cases[i].device;
        options.path = cases[i].path;
        assert_int_equal(openpi_engine_open(NULL, &options, &engine, &error), cases[i].status);
        for (int part = 0; part < 2; part++)
            if (!strstr(error.message, cases[i].says[part])) fail_msg("%s", error.message);
        assert_null(strstr(error.message, "cuda"));
    }
}

/* A format without kernels: group, format and device are named. */
static void test_formats_refused(void **state) {
    static const char *const cases[][3] = {{"expert=int8", "expert=int8", "f32 or expert=bf16"},
                                           {"ffn=int8x8", "ffn=int8x8", "ffn=f32 or ffn=bf16"},
                                           {"e4m3", "vision=e4m3", "vision=f32"},
                                           {"heads=e4m3", "heads=e4m3", "heads=f32"}};
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    (void)state;
    must(openpi_synthetic_parse("odd", &synthetic, &error));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
        openpi_engine *engine;
        char sentence[160];
        options.synthetic = &synthetic;
        options.device = "host:0";
        options.formats = cases[i][0];
        snprintf(sentence, sizeof sentence,
                 "weights is %s, for which host (plain) has no kernels under bf16 activations, expected ",
                 cases[i][1]);
        assert_int_equal(openpi_engine_open(NULL, &options, &engine, &error), OPENPI_UNSUPPORTED);
        if (strncmp(error.message, sentence, strlen(sentence)) || !strstr(error.message, cases[i][2]))
            fail_msg("%s", error.message);
    }
}

static void test_facts(void **state) {
    openpi_engine *engine = open_engine("odd", OPENPI_BF16);
    const backend *backend = engine->device->backend;
    device_facts facts;
    uint64_t unused, total;
    (void)state;
    must(backend->facts(engine->device, &facts, &error));
    assert_string_equal(facts.name, "Host");
    assert_int_equal(facts.multiprocessors, HOST_PROCESSORS);
    must(backend->memory(engine->device, &unused, &total, &error));
    assert_int_equal(total, 1 << 30);
    assert_int_equal(unused, total - host_device_bytes());
    assert_string_equal(engine->device->path, "plain");
    openpi_engine_close(engine);
}

/* ---- weights that the device makes --------------------------------------------------------------------- */

static void test_generated(void **state) {
    static const char *const specs[] = {"tiny:pi0", "tiny:pi05", "odd:pi0", "odd:pi05"};
    openpi_engine *engine = open_engine("odd", OPENPI_BF16);
    (void)state;
    check_generated_cases(engine->device);
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
        checkpoint *weights;
        must(openpi_synthetic_parse(specs[i], &synthetic, &error));
        must(checkpoint_open(NULL, &synthetic, &weights, &error));
        check_generated_model(engine->device, engine->pool, weights, 0, specs[i]);
        check_generated_model(engine->device, engine->pool, weights, MODEL_SWITCHES, specs[i]);
        checkpoint_close(weights);
    }
    openpi_engine_close(engine);
}

/* ---- graphs -------------------------------------------------------------------------------------------- */

enum { ACTIONS = 10, VALUES = ACTIONS * OPENPI_ACTION_DIM, PIXELS = 224 * 224 * 3, TOKENS = 20 };

typedef struct call {
    openpi_session *session;
    openpi_sample sample;
    uint8_t *image;
    int32_t tokens[TOKENS];
    float state[OPENPI_ACTION_DIM], noise[VALUES], actions[VALUES];
    int failed;                            /* calls                                                        */
} call;

/* A session, and a call of two cameras and `tokens` prompt tokens; its numbers depend on the seed. */
static void call_open(call *c, openpi_engine *engine, int seed, int tokens) {
    openpi_session_options options = OPENPI_SESSION_OPTIONS_INIT;
    options.horizon = ACTIONS;
    options.max_prompt = TOKENS;
    memset(c, 0, sizeof *c);
    must(openpi_session_create(engine, &options, &c->session, &error));
    c->image = malloc(PIXELS);
    assert_non_null(c->image);
    for (int i = 0; i < PIXELS; i++) c->image[i] = (uint8_t)((i + seed) * 2654435761u >> 24);
    for (int i = 0; i < TOKENS; i++) c->tokens[i] = 31 * i + seed;
    for (int i = 0; i < OPENPI_ACTION_DIM; i++) c->state[i] = (float)(i - seed) * 0x1p-5f;
    openpi_noise((uint64_t)seed, 0, c->noise, VALUES);
    c->sample = (openpi_sample){
        .size = sizeof c->sample, .tokens = c->tokens, .token_count = tokens, .state = c->state};
    for (int i = 0; i < 2; i++) c->sample.images[i] = c->image, c->sample.image_mask[i] = 1;
}

static void call_run(call *c) {
    must(openpi_session_run(c->session, &c->sample, 1, c->noise, c->actions, NULL, &error));
}

static void call_close(call *c) {
    openpi_session_close(c->session);
    free(c->image);
}

/* A replay gives what launching op by op gives, bit for bit, for every length of the prompt. */
static void test_replays(void **state) {
    static const char *const specs[] = {"odd:pi0", "odd:pi05"};
    (void)state;
    for (int i = 0; i < 4; i++) {
        openpi_engine *engine = open_engine(specs[i / 2], i % 2 ? OPENPI_BF16 : OPENPI_F32);
        float replayed[VALUES], before[VALUES] = {0};
        call c;
        call_open(&c, engine, i, 0);
        call_kinds *kinds = &c.session->kinds;
        for (int tokens = 1; tokens <= TOKENS; tokens += 9) {
            int replays = host_replays();
            c.sample.token_count = tokens;
            call_run(&c);
            assert_int_equal(host_replays(), replays + 1);
            memcpy(replayed, c.actions, sizeof replayed);
            struct recording *kept[CALL_KINDS];
            memcpy(kept, kinds->recordings, sizeof kept);
            memset(kinds->recordings, 0, sizeof kept);
            call_run(&c);
            memcpy(kinds->recordings, kept, sizeof kept);
            assert_int_equal(host_replays(), replays + 1);
            assert_memory_equal(replayed, c.actions, sizeof replayed);
            assert_memory_not_equal(replayed, before, sizeof replayed);
            memcpy(before, replayed, sizeof before);
        }
        call_close(&c);
        openpi_engine_close(engine);
    }
}

/* Samples with and without real-time chunking in one graph, and the graph gives what launching op by op
 * gives; calls in parts. */
static void test_chunking(void **state) {
    static const char *const specs[] = {"odd:pi0", "odd:pi05"};
    static mixed m;
    static float replayed[MIXED * MIXED_ONE], launched[MIXED * MIXED_ONE];
    (void)state;
    for (int i = 0; i < 4; i++) {
        int trained = i / 2, replays;
        openpi_engine *engine =
            open_trained(specs[i / 2], i % 2 ? OPENPI_BF16 : OPENPI_F32, trained ? MIXED_DELAY : 0);
        mixed_make(&m, trained);
        mixed_is_each_alone(engine, &m);
        if (i == 1) parts_are_the_whole(engine, &m, 2);
        timed_all(engine, &m, trained, i % 2 ? 0.05 : 1e-4);
        openpi_session *session = mixed_session(engine, MIXED, 1);
        call_kinds *kinds = &session->more_kinds[trained ? PLAN_TRAINED : PLAN_GUIDED];
        struct recording *kept[CALL_KINDS];
        replays = host_replays();
        mixed_run(session, &m, 0, MIXED, replayed);
        assert_int_equal(host_replays(), replays + 1);
        memcpy(kept, kinds->recordings, sizeof kept);
        memset(kinds->recordings, 0, sizeof kept);
        mixed_run(session, &m, 0, MIXED, launched);
        memcpy(kinds->recordings, kept, sizeof kept);
        assert_int_equal(host_replays(), replays + 1);
        assert_memory_equal(replayed, launched, sizeof replayed);
        openpi_session_close(session);
        openpi_engine_close(engine);
    }
}

/* Ranges of steps: each call is one replay and gives what launching op by op gives. No more steps are
 * recorded than the bound says, and the range that was asked for last stays. */
static void test_ranges(void **state) {
    enum { STEPS = 6, RANGES = STEPS * (STEPS + 1) / 2 - 1, H = 5, ONE = H * OPENPI_ACTION_DIM };
    static const int32_t tokens[] = {2, 5, 9};
    static const float zeros[OPENPI_ACTION_DIM];
    const openpi_sample sample = {.size = sizeof sample, .tokens = tokens, .token_count = 3, .state = zeros};
    openpi_session_options options = OPENPI_SESSION_OPTIONS_INIT;
    openpi_engine *engine = open_engine("odd:pi0", OPENPI_BF16);
    openpi_session *session;
    float noise[ONE], x[2][ONE];
    (void)state;
    options.horizon = H;
    options.steps = STEPS;
    options.parts = 1;
    must(openpi_session_create(engine, &options, &session, &error));
    openpi_noise(1, 1, noise, ONE);
    must(openpi_session_prefix(session, &sample, 1, 1, NULL, &error));
    must(openpi_session_denoise(session, memcpy(x[0], noise, sizeof noise), 1, 0, STEPS, NULL, &error));
    assert_int_equal(session->ranges.recorded, 0);
    for (int i = 0; i < STEPS * STEPS; i++) {
        int from = i / STEPS, to = i % STEPS + 1, replays = host_replays();
        if (from >= to || to - from == STEPS) continue;
        for (int again = 0; again < 2; again++) {
            uint64_t recorded = session->ranges.recorded;
            memcpy(x[0], noise, sizeof noise);
            must(openpi_session_denoise(session, x[0], 1, from, to, NULL, &error));
            assert_int_equal(session->ranges.recorded - recorded, !again);
            assert_int_equal(host_replays(), ++replays);
            assert_true(session->ranges.steps <= RANGES_SHARE * STEPS);
        }
        struct recording **all = &session->more_kinds[PLAN_DENOISE].recordings[CALL_ANY], *kept = *all;
        *all = NULL;
        memcpy(x[1], noise, sizeof noise);
        must(openpi_session_denoise(session, x[1], 1, from, to, NULL, &error));
        *all = kept;
        assert_int_equal(host_replays(), replays);
        assert_memory_equal(x[0], x[1], sizeof noise);
    }
    assert_int_equal(session->ranges.recorded, RANGES);
    memcpy(x[0], noise, sizeof noise);           /* a range that is gone meanwhile               */
    must(openpi_session_denoise(session, x[0], 1, 0, 1, NULL, &error));
    assert_int_equal(session->ranges.recorded, RANGES + 1);
    openpi_session_close(session);
    openpi_engine_close(engine);
}

/* Launches of a timed recording: every op has one, in order, by kernels of this vendor. */
static void test_timed(void **state) {
    enum { LAUNCHES = 4096 };
    static launch_record seen[LAUNCHES];
    openpi_engine *engine = open_engine("odd:pi0", OPENPI_BF16);
    const backend *backend = engine->device->backend;
    struct recording *timed;
    call c;
    double last = 0;
    (void)state;
    call_open(&c, engine, 5, TOKENS);
    const plan *plan = c.session->plan;
    call_run(&c);
    must(backend->record_timed(engine->device, plan_list(plan), c.session->work, &timed, &error));
    must(backend->replay(engine->device, timed, NULL, 0, NULL, NULL, &error));
    int count = backend->launches(engine->device, timed, seen, LAUNCHES), next = 0;
    assert_in_range(count, plan->count, LAUNCHES);
    for (int i = 0; i < count; i++) {
        assert_true(seen[i].op == next - 1 || seen[i].op == next);
        assert_int_equal(seen[i].ops, 1);
        assert_int_equal(seen[i].block[0], 1);
        assert_true(seen[i].start_ms >= last && seen[i].end_ms >= seen[i].start_ms);
        last = seen[i].end_ms;
        next = seen[i].op + 1;
    }
    assert_int_equal(next, plan->count);
    assert_string_equal(seen[0].kernel, "split_pixels");
    assert_string_equal(seen[1].kernel, "product");
    assert_true(backend->nodes(timed) > count);
    backend->forget(engine->device, timed);
    call_close(&c);
    openpi_engine_close(engine);
}

static void test_blocks(void **state) {
    extern const backend backend_host;
    (void)state;
    check_blocks_are_shown(&gpu_vendor_host, &backend_host, "host:0");
}

/* ---- what is prepared of a model's weights ------------------------------------------------------------ */

static void poison(device *device, const void *at, size_t bytes) {
    void *ff = malloc(bytes);
    assert_non_null(ff);
    memset(ff, 0xff, bytes);
    must(device->backend->upload(device, (void *)(uintptr_t)at, ff, bytes, &error));
    free(ff);
}

/* Nothing is left of what the layers of a block read, but what was prepared. Returns its bytes. */
static size_t poison_weights(device *device, const block_weights *block) {
    unsigned char marks[HOST_MARKS];
    assert_non_null(block->prepared);
    must(device->backend->download(device, marks, block->prepared, sizeof marks, &error));
    for (int i = 0; i < HOST_MARKS; i++) assert_int_equal(marks[i], HOST_MARK);
    for (int i = 0; i < block->layers * LAYER_OPS; i++) {
        const op_weights *w = &block->layer[i / LAYER_OPS].ops[i % LAYER_OPS];
        const size_t k = (size_t)w->weight.k * sizeof(float), n = (size_t)w->weight.n * sizeof(float);
        if (w->weight.n) poison(device, w->weight.data, device->backend->matrix_bytes(device, &w->weight));
        if (w->bias) poison(device, w->bias, n);
        if (w->norm.weight) poison(device, w->norm.weight, k);
        if (w->norm.bias) poison(device, w->norm.bias, k);
    }
    return (device->backend->prepared_bytes(device, block) + 255) / 256 * 256;
}

/* Launches of layers that were taken as a whole. */
static int layers_taken(const openpi_session *session) {
    enum { LAUNCHES = 4096 };
    static launch_record seen[LAUNCHES];
    device *device = session->engine->device;
    struct recording *timed;
    int layers = 0;
    must(device->backend->record_timed(device, plan_list(session->plan), session->work, &timed, &error));
    const int count = device->backend->launches(device, timed, seen, LAUNCHES);
    assert_in_range(count, 1, LAUNCHES);
    for (int i = 0; i < count; i++)
        layers += seen[i].ops == LAYER_OPS && (!i || seen[i].op != seen[i - 1].op);
    device->backend->forget(device, timed);
    return layers;
}

static int layers_of(const plan *plan) {
    int layers = 0;
    for (int i = 0; i < plan->block_count; i++) layers += plan->blocks[i].layers * plan->blocks[i].steps;
    return layers;
}

/* Blocks of every kind, computed from what was prepared alone: the bits of the path that prepares nothing.
 * The memory is the model's. */
static void expect_prepared(const char *spec, openpi_dtype dtype) {
    float plain[VALUES];
    call c;
    openpi_engine *engine = open_engine(spec, dtype);
    const size_t bytes = engine->model->bytes;
    size_t prepared = 0;
    call_open(&c, engine, 11, TOKENS);
    call_run(&c);
    memcpy(plain, c.actions, sizeof plain);
    assert_int_equal(layers_taken(c.session), 0);
    for (int kind = 0; kind < BLOCK_KINDS; kind++) assert_null(engine->model->blocks[kind].prepared);
    call_close(&c);
    openpi_engine_close(engine);
    engine = open_on("copied", spec, dtype, 0);
    for (int kind = 0; kind < BLOCK_KINDS; kind++)
        prepared += poison_weights(engine->device, &engine->model->blocks[kind]);
    assert_int_equal(engine->model->bytes, bytes + prepared);
    assert_int_equal(host_device_bytes(), engine->model->bytes);
    call_open(&c, engine, 11, TOKENS);
    call_run(&c);
    assert_memory_equal(c.actions, plain, sizeof plain);
    assert_int_equal(layers_taken(c.session), layers_of(c.session->plan));
    call_close(&c);
    openpi_engine_close(engine);
}

static void test_prepared(void **state) {
    (void)state;
    expect_prepared("odd:pi0", OPENPI_F32);
    expect_prepared("odd:pi0", OPENPI_BF16);
    expect_prepared("odd:pi05", OPENPI_F32);
    expect_prepared("odd:pi05", OPENPI_BF16);
}

/* In a thread of its own, where assertions cannot stand. */
static void *run_twice(void *argument) {
    call *c = argument;
    for (int i = 0; i < 2; i++)
        c->failed += !!openpi_session_run(c->session, &c->sample, 1, c->noise, c->actions, NULL, NULL);
    return NULL;
}

/* Two sessions in threads of their own give what each gives alone. */
static void test_side_by_side(void **state) {
    openpi_engine *engine = open_engine("odd:pi05", OPENPI_BF16);
    call calls[2];
    float alone[2][VALUES];
    pthread_t threads[2];
    (void)state;
    for (int i = 0; i < 2; i++) {
        call_open(&calls[i], engine, 7 + i, 3 + i);
        call_run(&calls[i]);
        memcpy(alone[i], calls[i].actions, sizeof alone[i]);
    }
    assert_memory_not_equal(alone[0], alone[1], sizeof alone[0]);
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&threads[i], NULL, run_twice, &calls[i]), 0);
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(calls[i].failed, 0);
        assert_memory_equal(alone[i], calls[i].actions, sizeof alone[i]);
        call_close(&calls[i]);
    }
    openpi_engine_close(engine);
}

/* ---- choices ------------------------------------------------------------------------------------------- */

enum { MOST = 64 };

static int has_product(const op *op) {
    struct op copy = *op;
    matrix *none[OP_MATRICES];
    return op_matrices(&copy, none) > 0;
}

/* One heuristic, no name twice, several choices for every product. 0: there is nothing to choose. */
static int check_choices(const device *device, const op *op) {
    candidate list[MOST];
    int count = device->backend->candidates(device, op, list, MOST), heuristics = 0;
    assert_in_range(count, 0, MOST);
    for (int i = 0; i < count; i++) {
        heuristics += list[i].heuristic;
        for (int j = 0; j < i; j++) assert_string_not_equal(list[i].name, list[j].name);
    }
    assert_int_equal(heuristics, count > 0);
    assert_true(count > 1 || !has_product(op) || op->kind == OP_PATCH_EMBED || op->kind == OP_ACTION_EMBED);
    return count;
}

/* Op i of a plan takes choice i of those that it has: over many layers and ops every one of them. The work
 * block is made as large as these choices need it. */
static void choose_by_turns(void *user, openpi_session *session) {
    device *device = session->engine->device;
    plan *plan = session->plan;
    for (int i = 0; i < plan->count; i++) {
        int count = check_choices(device, &plan->ops[i]);
        plan->ops[i].choice = count ? 1 + i % count : 0;
        *(int *)user += count > 1;
    }
    size_t bytes = device->backend->work_bytes(device, plan->ops, plan->count);
    device->backend->release(device, session->work);
    must(device->backend->allocate(device, bytes, "the work block", &session->work, &error));
}

/* What is launched is what was chosen: with `norm` a norm goes first, else the product computes it. */
static void launches_follow(const device *device, const op *op, void *work, int choice, int norm) {
    const backend *backend = device->backend;
    struct device *self = (struct device *)(uintptr_t)device;
    struct op chosen = *op;
    struct recording *timed;
    launch_record seen[3];
    chosen.choice = choice;
    must(backend->record_timed(self, op_alone(&chosen), work, &timed, &error));
    assert_int_equal(backend->launches(self, timed, seen, 3), 1 + norm);
    if (norm) assert_string_equal(seen[0].kernel, "normalize");
    assert_string_equal(seen[norm].kernel, "product");
    backend->forget(self, timed);
}

static void test_choices(void **state) {
    openpi_engine *engine = open_engine("odd:pi0", OPENPI_BF16);
    const backend *backend = engine->device->backend;
    candidate list[MOST];
    call c;
    int seen = 0;
    (void)state;
    call_open(&c, engine, 3, TOKENS);
    for (int place = 0; place < c.session->plan->count; place++) {
        const op *op = &c.session->plan->ops[place];
        int count = check_choices(engine->device, op);
        if (op->kind != OP_NORM_QKV || seen++) continue;
        backend->candidates(engine->device, op, list, MOST);
        for (int i = 0; i < count; i++)
            launches_follow(engine->device, op, c.session->work, i + 1, !!strstr(list[i].name, ", norm "));
        assert_true(count > 4);
    }
    assert_true(seen > 0);
    call_close(&c);
    openpi_engine_close(engine);
}

/* ---- goldens ------------------------------------------------------------------------------------------- */

typedef struct golden_case {
    const char *path;
    openpi_dtype dtype;
    const char *without;                   /* switches that are off                                        */
    void (*on_session)(void *user, openpi_session *session);
    const char *formats;                   /* weights by group                                             */
} golden_case;

static void golden_holds(void **state) {
    const golden_case *g = *state;
    verify_options options = VERIFY_OPTIONS_INIT;
    rows r = {0};
    char path[256];
    int chosen = 0, replays = host_replays();
    options.device = "host:0";
    options.dtype = g->dtype;
    options.without = g->without;
    options.formats = g->formats;
    options.on_session = g->on_session;
    options.hook_user = &chosen;
    options.batch_only = 1;
    snprintf(path, sizeof path, GOLDEN "/%s", g->path);
    must(verify_path(path, &options, rows_take, &r, &error));
    assert_int_equal(r.count, 1);
    if (r.row[0].result == VERIFY_FAIL) fail_msg("%s: %s", r.row[0].name, r.row[0].detail);
    assert_int_equal(r.row[0].result, VERIFY_OK);
    assert_string_equal(r.row[0].device, "host/plain");
    assert_true(!g->on_session == !chosen);
    /* In fp32 verify looks at every stage, and then plans run op by op. */
    if (g->without) assert_int_equal(host_replays(), replays);
    else if (g->dtype == OPENPI_BF16) assert_true(host_replays() > replays);
}

#define MODEL(name) "model/" name ".safetensors"
/* Samples of a batch also alone, and the other goldens: tools/check-all. */
#define BOTH(name, without, on_session)                                                   \
    {MODEL(name), OPENPI_F32, without, on_session, NULL}, {MODEL(name), OPENPI_BF16, without, on_session, NULL}

static const char no_graph[] = "graph-replay";

static golden_case cases[] = {
    BOTH("pi0_tiny", NULL, NULL),
    BOTH("pi0_tiny_droid", NULL, NULL),
    BOTH("pi0_tiny_batch", NULL, NULL),
    BOTH("pi05_tiny", NULL, NULL),
    BOTH("pi05_tiny_batch", NULL, NULL),
    BOTH("pi0_odd", NULL, NULL),
    BOTH("pi05_odd", NULL, NULL),
    BOTH("pi0_tiny", no_graph, NULL),
    BOTH("pi0_odd", no_graph, NULL),
    BOTH("pi05_odd", no_graph, NULL),
    BOTH("pi0_odd", no_graph, choose_by_turns),
    BOTH("pi05_odd", no_graph, choose_by_turns),
    /* Groups in the two formats that this vendor has. */
    {MODEL("pi0_odd"), OPENPI_BF16, NULL, NULL, "vision=f32,expert=f32"},
    {MODEL("pi05_odd"), OPENPI_BF16, NULL, NULL, "f32,ffn=bf16,heads=bf16"},
    {MODEL("pi05_odd"), OPENPI_F32, NULL, NULL, "attention=bf16,ffn=f32"},
};
enum { CASES = sizeof cases / sizeof *cases };

static int run_device(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_listed, nothing_left),
        cmocka_unit_test_teardown(test_refused, nothing_left),
        cmocka_unit_test_teardown(test_formats_refused, nothing_left),
        cmocka_unit_test_teardown(test_facts, nothing_left),
        cmocka_unit_test_teardown(test_generated, nothing_left),
        cmocka_unit_test_teardown(test_replays, nothing_left),
        cmocka_unit_test_teardown(test_ranges, nothing_left),
        cmocka_unit_test_teardown(test_timed, nothing_left),
        cmocka_unit_test_teardown(test_blocks, nothing_left),
        cmocka_unit_test_teardown(test_prepared, nothing_left),
        cmocka_unit_test_teardown(test_side_by_side, nothing_left),
        cmocka_unit_test_teardown(test_choices, nothing_left),
    };
    return cmocka_run_group_tests_name("gpu vendor, device", tests, NULL, NULL);
}

static int run_chunking(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(test_chunking, nothing_left)};
    return cmocka_run_group_tests_name("gpu vendor, chunking", tests, NULL, NULL);
}

static int run_goldens(void) {
    struct CMUnitTest tests[CASES];
    char names[CASES][96];
    for (int i = 0; i < CASES; i++) {
        const golden_case *g = &cases[i];
        snprintf(names[i], sizeof names[i], "%s %s%s%s", g->path, g->dtype == OPENPI_F32 ? "f32" : "bf16",
                 g->without ? ", no graph" : "", g->on_session ? ", choices by turns" : "");
        tests[i] = (struct CMUnitTest){names[i], golden_holds, NULL, nothing_left, &cases[i]};
    }
    return cmocka_run_group_tests_name("gpu vendor, goldens", tests, NULL, NULL);
}

int main(int count, char **words) {
    static const struct {
        const char *name;
        int (*run)(void);
    } groups[] = {{"device", run_device}, {"chunking", run_chunking}, {"goldens", run_goldens}};
    int failed = 0, run = 0;
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        if (count > 1 && strcmp(words[1], groups[i].name)) continue;
        failed += groups[i].run();
        run++;
    }
    if (run) return failed;
    fprintf(stderr, "usage: test_gpu_vendor [device | chunking | goldens]\n");
    return 2;
}
