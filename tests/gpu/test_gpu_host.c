/* The host side of the GPU backend over a driver that is not there (fake_gpu.h), so this runs everywhere:
 * what is asked of the driver per inference, what happens when it fails at any call, and that everything
 * taken is given back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fake_engine.h"
#include "model/tuning.h"
#include "fork_child.h"
#include "openpi_internal.h"

/* ---- an engine over it ---------------------------------------------------------------------------- */

static openpi_error error = OPENPI_ERROR_INIT;
static const backend *used = &backend_cuda;

/* `off`: switches, as in device_options. */
static openpi_status open_model(openpi_engine **out, const openpi_synthetic *synthetic, const char *path,
                                uint32_t off) {
    return fake_engine_open(used, synthetic, path, off, out, &error);
}

static openpi_status open_engine(openpi_engine **out, const char *path, int no_graph) {
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    assert_int_equal(openpi_synthetic_parse("tiny", &synthetic, &error), OPENPI_OK);
    return open_model(out, &synthetic, path, no_graph ? 1u << SWITCH_GRAPH_REPLAY : 0);
}

static openpi_status infer_prompt(openpi_session *session, int prompt, openpi_timing *timing) {
    return fake_infer(session, prompt, timing, &error);
}

static openpi_status infer(openpi_session *session, openpi_timing *timing) {
    return infer_prompt(session, 3, timing);
}

static openpi_status open_session(openpi_engine *engine, openpi_session **session) {
    openpi_session_options options = OPENPI_SESSION_OPTIONS_INIT;
    options.horizon = 10;
    return openpi_session_create(engine, &options, session, &error);
}

/* ---- tests ---------------------------------------------------------------------------------------- */

static void log_is(const char *const *names, int count) {
    for (int i = 0; i < fake.calls || i < count; i++) {
        assert_true(i < fake.calls && i < count);
        assert_string_equal(fake.log[i], names[i]);
    }
}

/* What a failure while recording means: a driver that cannot capture is no failure; one that is lost or out
 * of memory is, whatever it was doing. */
static void test_failures_of_recording(void **state) {
    static const char *const doing[] = {"capture_begin", "capture_end", "graph_nodes", "graph_instantiate",
                                        "graph_upload"};
    static const struct {
        int code;
        openpi_status status;
        const char *says;
    } failures[] = {
        {SICK, OPENPI_DEVICE_LOST, "is lost"},
        {CUDA_OUT_OF_MEMORY, OPENPI_NO_MEMORY, "out of memory on cuda:0 while"},
        {CUDA_CAPTURE_UNSUPPORTED, OPENPI_OK, "some error (error 900)"},
        {CUDA_NOT_SUPPORTED, OPENPI_OK, "some error (error 801)"},
        {CUDA_CAPTURE_UNSUPPORTED + 1, OPENPI_DEVICE_LOST, "is lost"},      /* a capture that somebody broke */
    };
    (void)state;
    for (size_t d = 0; d < sizeof doing / sizeof *doing; d++)
        for (size_t f = 0; f < sizeof failures / sizeof *failures; f++) {
            openpi_engine *engine;
            openpi_session *session = NULL;
            reset();
            assert_int_equal(open_engine(&engine, NULL, 0), OPENPI_OK);
            int alive = fake.alive;
            fake.fail_name = doing[d];
            fake.fail_at = 0;
            fake.code = failures[f].code;
            assert_int_equal(open_session(engine, &session), failures[f].status);
            fake.fail_at = -1;
            if (failures[f].status != OPENPI_OK) {
                assert_null(session);
                assert_non_null(strstr(error.message, failures[f].says));
                assert_int_equal(fake.alive, alive);
            } else {
                assert_null(session->kinds.recordings[CALL_ANY]);
                assert_non_null(strstr(session->kinds.no_recording, failures[f].says));
                assert_int_equal(infer(session, NULL), OPENPI_OK);
            }
            openpi_session_close(session);
            openpi_engine_close(engine);
            assert_int_equal(fake.alive, 0);
        }
}

static int stages_of(const plan *plan) {
    int stages = 1;
    for (int i = 1; i < plan->count; i++) stages += plan->ops[i].stage != plan->ops[i - 1].stage;
    return stages;
}

/* The request path asks the driver for this and no more: a copy up, a graph, a copy down, queued in one
 * stream of the session's; one wait; the stages' times, where somebody asks for them. */
static void test_calls_of_an_inference(void **state) {
    static const char *const call[] = {"context_set", "upload", "graph_launch", "download", "stream_wait"};
    enum { CALL = sizeof call / sizeof *call };
    const char *names[CALL + OPENPI_STAGES];
    int count = 0;
    openpi_engine *engine;
    openpi_session *session;
    openpi_timing timing = OPENPI_TIMING_INIT;
    (void)state;
    reset();
    assert_int_equal(open_engine(&engine, NULL, 0), OPENPI_OK);
    assert_string_equal(engine->device->path, "hopper");
    assert_int_equal(open_session(engine, &session), OPENPI_OK);
    assert_non_null(session->kinds.recordings[CALL_ANY]);
    for (int i = 0; i < CALL; i++) names[count++] = call[i];
    assert_int_equal(fake.graph_uploads, 1);   /* before the first call, which would wait for it */
    for (int i = 0; i < stages_of(session->plan); i++) names[count++] = "event_elapsed";
    for (int i = 0; i < 24; i++) {         /* whatever the prompt's length */
        fake.calls = 0;
        assert_int_equal(infer_prompt(session, 2 * i + 1, &timing), OPENPI_OK);
        log_is(names, count);
        fake.calls = 0;
        assert_int_equal(infer_prompt(session, 2 * i + 1, NULL), OPENPI_OK);
        log_is(names, CALL);
        for (int c = 1; c < CALL; c++) assert_ptr_equal(fake.streams[c], fake.streams[1]);
        assert_ptr_not_equal(fake.streams[1], ((gpu_device *)engine->device)->stream);
    }
    assert_true(timing.stage_ms[OPENPI_STAGE_VISION] == 1 && timing.stage_ms[OPENPI_STAGE_DENOISE] == 1);
    assert_true(timing.device_ms == stages_of(session->plan));
    openpi_session_close(session);
    openpi_engine_close(engine);
    assert_int_equal(fake.alive, 0);
    assert_int_equal(fake.memory, 0);
}

/* A child of fork asks the driver for nothing: context and memory are its parent's. */
static int leave_the_driver_alone(void *argument) {
    openpi_session *session = argument;
    openpi_engine *engine = session->engine;
    fake.calls = 0;
    openpi_status status = infer(session, NULL);
    openpi_session_close(session);
    openpi_engine_close(engine);
    if (status != OPENPI_SYSTEM || fake.calls)
        fprintf(stderr, "status %d, %d driver calls\n", (int)status, fake.calls);
    return status != OPENPI_SYSTEM || fake.calls;
}

static void test_fork(void **state) {
    openpi_engine *engine;
    openpi_session *session;
    (void)state;
    reset();
    assert_int_equal(open_engine(&engine, NULL, 0), OPENPI_OK);
    assert_int_equal(open_session(engine, &session), OPENPI_OK);
    in_child(leave_the_driver_alone, session);
    assert_int_equal(infer(session, NULL), OPENPI_OK);
    openpi_session_close(session);
    openpi_engine_close(engine);
    assert_int_equal(fake.alive, 0);
}

/* Two sessions of an engine: while one waits for its call the other does all of its own, on another stream.
 * Nothing of the first comes after anything of the second. While a recording needs the whole device, calls
 * take turns on one stream. */
static openpi_session *inner;
static int inner_from, inner_end;
static void run_inner(void) {
    inner_from = fake.calls;
    assert_int_equal(infer(inner, NULL), OPENPI_OK);
    inner_end = fake.calls;
}

static void test_two_sessions(void **state) {
    static const char *const paths[] = {"hopper", "portable", "hopper"};
    enum { WHOLE_DEVICE = 2 };             /* as if another session's recording needed it all */
    (void)state;
    for (int p = 0; p < 3; p++) {
        openpi_engine *engine;
        openpi_session *outer;
        reset();
        assert_int_equal(open_engine(&engine, paths[p], 0), OPENPI_OK);
        assert_int_equal(open_session(engine, &outer), OPENPI_OK);
        assert_int_equal(open_session(engine, &inner), OPENPI_OK);
        gpu_device *device = (gpu_device *)engine->device;
        assert_int_equal(atomic_load(&device->whole_device_recordings), 0);
        atomic_store(&device->whole_device_recordings, p == WHOLE_DEVICE);
        fake.calls = 0;
        fake.on_wait = run_inner;
        assert_int_equal(infer(outer, NULL), OPENPI_OK);
        assert_int_equal(inner_from, 5);                   /* the outer call's last words were its wait */
        assert_int_equal(inner_end, 10);
        assert_int_equal(fake.calls, 10);
        void *first = fake.streams[1], *second = fake.streams[6];
        for (int i = 1; i < 5; i++) {
            assert_ptr_equal(fake.streams[i], first);
            assert_ptr_equal(fake.streams[5 + i], second);
        }
        if (p == WHOLE_DEVICE) assert_ptr_equal(first, second);
        else assert_ptr_not_equal(first, second);
        atomic_store(&device->whole_device_recordings, 0);
        openpi_session_close(outer);
        openpi_session_close(inner);
        openpi_engine_close(engine);
        assert_int_equal(fake.alive, 0);
    }
}

/* openpi's own sums are what the driver was asked for. */
static void test_bytes(void **state) {
    openpi_engine *engine;
    openpi_session *session;
    openpi_session_info info = OPENPI_SESSION_INFO_INIT;
    (void)state;
    reset();
    assert_int_equal(open_engine(&engine, NULL, 0), OPENPI_OK);
    assert_int_equal(fake.memory, engine->model->bytes);
    assert_int_equal(open_session(engine, &session), OPENPI_OK);
    openpi_session_get_info(session, &info, NULL);
    assert_int_equal(fake.memory,
                     engine->model->bytes + session->plan->device_bytes + session->kinds.work_bytes);
    assert_int_equal(info.bytes, session->plan->device_bytes + session->kinds.work_bytes + session->in.bytes);
    openpi_session_close(session);
    assert_int_equal(fake.memory, engine->model->bytes);
    openpi_engine_close(engine);
}

/* A driver that cannot capture: the session opens, says why, and runs op by op. So it does when asked. */
static void test_without_a_graph(void **state) {
    openpi_engine *engine;
    openpi_session *session;
    openpi_timing timing = OPENPI_TIMING_INIT;
    (void)state;
    for (int asked = 0; asked < 2; asked++) {
        reset();
        fake.graphs_refused = !asked;
        assert_int_equal(open_engine(&engine, "portable", asked), OPENPI_OK);
        assert_string_equal(engine->device->path, "portable");
        assert_int_equal(open_session(engine, &session), OPENPI_OK);
        assert_null(session->kinds.recordings[CALL_ANY]);
        assert_non_null(strstr(session->kinds.no_recording, asked ? "switched off" : "capturing"));
        fake.calls = 0;
        assert_int_equal(infer(session, &timing), OPENPI_OK);
        assert_true(fake.calls > session->plan->count);
        openpi_session_close(session);
        openpi_engine_close(engine);
        assert_int_equal(fake.alive, 0);
    }
}

/* A timed recording: every op of the plan has launches, in order; each lasts the millisecond that the fake
 * clock says. */
static void test_timed_recording(void **state) {
    (void)state;
    for (int hopper = 0; hopper < 2; hopper++) {
        openpi_engine *engine;
        openpi_session *session;
        struct recording *timed = NULL;
        static launch_record seen[LOG];
        double stage_ms[OPENPI_STAGES] = {0};
        reset();
        assert_int_equal(open_engine(&engine, hopper ? "hopper" : "portable", 0), OPENPI_OK);
        assert_int_equal(open_session(engine, &session), OPENPI_OK);
        const plan *plan = session->plan;
        int alive = fake.alive;
        assert_int_equal(
            backend_cuda.record_timed(engine->device, plan->ops, plan->count, session->work, &timed, &error),
            OPENPI_OK);
        int count = backend_cuda.launches(engine->device, timed, seen, LOG), next = 0,
            stages = stages_of(session->plan);
        assert_true(count >= 20 && count <= LOG);
        assert_int_equal(
            count, backend_cuda.launches(engine->device, session->kinds.recordings[CALL_ANY], seen, LOG));
        for (int i = 0; i < count; i++) {
            assert_true(seen[i].start_ms == 0 && seen[i].end_ms == 0);
            assert_true(seen[i].op == next || (i && seen[i].op == seen[i - 1].op));
            if (seen[i].op == next) next += seen[i].ops;
            assert_true(seen[i].kernel[0] && seen[i].grid[0] && seen[i].grid[1] && seen[i].grid[2] == 1 &&
                        seen[i].block[0] && seen[i].cluster >= 1);
        }
        assert_int_equal(next, plan->count);
        assert_int_equal(backend_cuda.nodes(session->kinds.recordings[CALL_ANY]), count + stages + 1);
        assert_int_equal(backend_cuda.nodes(timed), 2 * count + stages + 1);

        assert_int_equal(backend_cuda.replay(engine->device, timed, NULL, 0, NULL, stage_ms, &error),
                         OPENPI_OK);
        assert_true(stage_ms[OPENPI_STAGE_VISION] == 1 && stage_ms[OPENPI_STAGE_PREFIX] == 1);
        assert_int_equal(backend_cuda.launches(engine->device, timed, seen, LOG), count);
        assert_int_equal(seen[0].op, 0);
        assert_true(seen[0].start_ms == 0);
        for (int i = 0; i < count; i++) {
            double gap = i && plan->ops[seen[i].op].stage != plan->ops[seen[i - 1].op].stage ? 1 : 0;
            assert_true(seen[i].end_ms == seen[i].start_ms + 1);
            if (i) assert_true(seen[i].start_ms == seen[i - 1].end_ms + gap);
        }
        assert_int_equal(backend_cuda.launches(engine->device, timed, seen, 3), count);
        backend_cuda.forget(engine->device, timed);
        assert_int_equal(fake.alive, alive);

        for (int n = 0; n < 2000; n += 17) { /* a driver that fails meanwhile leaves nothing allocated */
            timed = NULL;
            fake.fail_at = fake.calls + n;
            openpi_status status = backend_cuda.record_timed(engine->device, plan->ops, plan->count,
                                                             session->work, &timed, &error);
            fake.fail_at = -1;
            if (status == OPENPI_OK) {
                backend_cuda.forget(engine->device, timed);
                break;
            }
            assert_int_equal(status, OPENPI_DEVICE_LOST);
            assert_null(timed);
            assert_int_equal(fake.alive, alive);
            ((gpu_device *)engine->device)->lost = 0;
        }
        openpi_session_close(session);
        openpi_engine_close(engine);
        assert_int_equal(fake.alive, 0);
    }
}

/* Residuals with the products after them that norm their output: how many pairs a plan's launches have. */
static int pairs_of(const openpi_session *session) {
    static launch_record seen[LOG];
    struct recording *recording = session->kinds.recordings[CALL_ANY];
    int pairs = 0, count = backend_cuda.launches(session->engine->device, recording, seen, LOG);
    assert_true(count > 1 && count <= LOG);
    for (int i = 0; i + 1 < count; i++) {
        const launch_record *first = &seen[i], *second = &seen[i + 1];
        int normed = !strcmp(second->kernel, "medium_hopper_qkv") ||
                     !strcmp(second->kernel, "medium_hopper_gated");
        if (strcmp(first->kernel, "medium_hopper_residual") || !normed) continue;
        assert_int_equal(second->op, first->op + 1);
        assert_int_equal(first->ops, 1);
        assert_int_equal(second->ops, 1);
        pairs++;
    }
    return pairs;
}

/* Two layers: a step has three pairs, of 48 rows and more only the one with qkv. Known rows have norms of
 * their own, so there are no pairs then. */
static void test_pairs(void **state) {
    static const struct {
        openpi_variant variant;
        int batch, horizon, max_delay, pairs;
    } cases[] = {{OPENPI_PI0, 2, 10, 0, 3}, {OPENPI_PI05, 2, 10, 0, 3}, {OPENPI_PI05, 1, 50, 0, 1},
                 {OPENPI_PI0, 1, 10, 0, 0}, {OPENPI_PI05, 2, 10, 4, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        openpi_engine *engine;
        openpi_session *session;
        openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
        openpi_session_options options = OPENPI_SESSION_OPTIONS_INIT;
        assert_int_equal(openpi_dims_parse("{\"vision\":[72,1,1,24],\"vlm\":[24,2,8,256,40],"
                                           "\"expert\":[256,512],\"vocab\":2048}",
                                           &synthetic.dims, &error),
                         OPENPI_OK);
        synthetic.variant = cases[i].variant;
        synthetic.rtc_max_delay = cases[i].max_delay;
        options.batch = cases[i].batch;
        options.horizon = cases[i].horizon;
        options.steps = 4;
        options.rtc = cases[i].max_delay > 0;
        reset();
        assert_int_equal(open_model(&engine, &synthetic, "hopper", 1u << SWITCH_PERSISTENT_DENOISE),
                         OPENPI_OK);
        assert_int_equal(openpi_session_create(engine, &options, &session, &error), OPENPI_OK);
        assert_int_equal(pairs_of(session), options.steps * cases[i].pairs);
        openpi_session_close(session);
        openpi_engine_close(engine);
        assert_int_equal(fake.alive, 0);
    }
}

static void test_facts_and_roofs(void **state) {
    openpi_engine *engine;
    device_facts facts;
    device_roofs roofs;
    uint64_t unused, total;
    (void)state;
    for (int hopper = 0; hopper < 2; hopper++) {
        reset();
        fake.limit = (size_t)1 << 29;
        assert_int_equal(open_engine(&engine, hopper ? "hopper" : "portable", 0), OPENPI_OK);
        assert_int_equal(backend_cuda.facts(engine->device, &facts, &error), OPENPI_OK);
        assert_string_equal(facts.name, "Paper GPU");
        assert_string_equal(facts.driver, "CUDA 13.0");
        assert_int_equal(facts.capability_major, 9);
        assert_int_equal(facts.multiprocessors, 132);
        assert_int_equal(facts.memory_bytes, (uint64_t)1 << 33);
        assert_int_equal(backend_cuda.memory(engine->device, &unused, &total, &error), OPENPI_OK);
        assert_int_equal(total, fake.limit);
        assert_int_equal(unused, fake.limit - engine->model->bytes);
        size_t memory = fake.memory;
        int alive = fake.alive;
        assert_int_equal(backend_cuda.roof(engine->device, DTYPE_BF16, &roofs, &error), OPENPI_OK);
        assert_true(roofs.bf16_tflops > 0 && roofs.f32_tflops > 0 && roofs.read_gbs > 0 &&
                    roofs.copy_gbs > 0);
        assert_true(fake.memory == memory && fake.alive == alive && fake.most_memory < fake.limit);
        fake.fail_at = fake.calls + 20;
        assert_int_equal(backend_cuda.roof(engine->device, DTYPE_BF16, &roofs, &error), OPENPI_DEVICE_LOST);
        assert_true(fake.memory == memory && fake.alive == alive);
        assert_int_equal(backend_cuda.memory(engine->device, &unused, &total, &error), OPENPI_DEVICE_LOST);
        openpi_engine_close(engine);
        assert_int_equal(fake.alive, 0);
    }
}

/* From call n on the driver fails: every n up to `dense` and some of the others, of which there are more than
 * `least`, end in a sentence, and closing gives everything back. */
static void fail_everywhere(int code, openpi_status first, openpi_status second, int least, int dense) {
    int total = -1;
    for (int n = -1; n < total || total < 0;) {
        openpi_engine *engine = NULL;
        openpi_session *session = NULL;
        reset();
        fake.code = code;
        fake.fail_at = n;
        openpi_status status = open_engine(&engine, NULL, 0);
        if (status == OPENPI_OK) status = open_session(engine, &session);
        if (status == OPENPI_OK) status = infer(session, NULL);
        if (n < 0) {
            assert_int_equal(status, OPENPI_OK);
        } else {                           /* nothing that fails is passed over, a recording neither */
            assert_true(status == first || status == second || status == OPENPI_DEVICE_LOST);
            assert_int_equal(error.status, status);
            assert_true(strlen(error.message) > 20);
        }
        if (n < 0) total = fake.calls;
        openpi_session_close(session);
        openpi_engine_close(engine);
        if (fake.alive)
            fail_msg("failing at call %d (%s) leaves %d things allocated", n,
                     n < LOG && n >= 0 ? fake.log[n] : "", fake.alive);
        n += n < dense ? 1 : 7;  /* packing and launching repeat themselves */
    }
    assert_true(total > least);
}

static void test_failures(void **state) {
    (void)state;
    fail_everywhere(SICK, OPENPI_NO_DEVICE, OPENPI_DEVICE_LOST, 600, 300);
}

/* The same where weights are packed by threads and copied. */
static void test_failures_of_uploads(void **state) {
    backend without = backend_cuda;
    (void)state;
    without.matrix_generate = NULL;
    used = &without;
    fail_everywhere(SICK, OPENPI_NO_DEVICE, OPENPI_DEVICE_LOST, 1000, 0);
    used = &backend_cuda;
}

static void test_out_of_memory_anywhere(void **state) {
    (void)state;
    fail_everywhere(CUDA_OUT_OF_MEMORY, OPENPI_NO_MEMORY, OPENPI_NO_DEVICE, 600, 300);
}

/* A card that is lost in mid-flight: that call and every later one says so, the later ones at once. */
static void test_lost(void **state) {
    openpi_engine *engine;
    openpi_session *session, *other = NULL;
    (void)state;
    reset();
    assert_int_equal(open_engine(&engine, NULL, 0), OPENPI_OK);
    assert_int_equal(open_session(engine, &session), OPENPI_OK);
    assert_int_equal(infer(session, NULL), OPENPI_OK);
    fake.fail_at = fake.calls + 4;
    assert_int_equal(infer(session, NULL), OPENPI_DEVICE_LOST);
    assert_non_null(strstr(error.message, "unspecified launch failure"));
    assert_non_null(strstr(error.message, "cuda:0"));
    fake.fail_at = -1;           /* even if the driver answered again */
    fake.calls = 0;
    assert_int_equal(infer(session, NULL), OPENPI_DEVICE_LOST);
    assert_int_equal(open_session(engine, &other), OPENPI_DEVICE_LOST);
    assert_null(other);
    assert_int_equal(fake.calls, 0);
    openpi_session_close(session);
    openpi_engine_close(engine);
    assert_int_equal(fake.alive, 0);
}

static void test_too_small(void **state) {
    openpi_engine *engine = NULL;
    char numbers[80];
    (void)state;
    reset();
    fake.limit = 1 << 20;
    assert_int_equal(open_engine(&engine, NULL, 0), OPENPI_NO_MEMORY);
    snprintf(numbers, sizeof numbers, "%d of %d bytes are free", 1 << 20, 1 << 20);
    assert_non_null(strstr(error.message, numbers));
    assert_non_null(strstr(error.message, "the model's weights"));
    assert_int_equal(fake.alive, 0);
}

static const op *op_named(const plan *plan, const char *name) {
    for (int i = 0; i < plan->count; i++)
        if (!strcmp(plan->ops[i].name, name)) return &plan->ops[i];
    fail_msg("the plan has no %s", name);
    return NULL;
}

/* What runs on a Hopper card that has no table: tiles that were the fastest, timed alone, on an H200 or an
 * H100. The first is the exception: k shared by two blocks takes 8 % less there, which only a table
 * chooses. */
static void test_tiles_without_a_table(void **state) {
    static const struct { const char *op; int rows, n, k; const char *kernel; } wanted[] = {
        {"prefix.down", 788, 2048, 16384, "hopper_64x200_transposed"},      /* one wave of blocks          */
        {"prefix.down", 968, 2048, 16384, "hopper_128x128_parts x1"},
        {"prefix.down", 1576, 2048, 16384, "hopper_128x200_parts x1"},
        {"prefix.down", 1632, 2048, 16384, "hopper_256x128"},               /* 168 µs, 64x208 204          */
        {"prefix.down", 6528, 2048, 16384, "hopper_128x200_parts x1"},      /* 614 µs, 64x200 1395         */
        {"prefix.o", 3264, 2048, 2048, "hopper_128x144_parts x1"},
        {"vision.out", 12288, 1152, 1152, "hopper_128x144_parts x1"},
        {"vision.fc2", 24576, 1152, 4304, "hopper_128x144_parts x1"},
        {"prefix.gate_up", 788, 32768, 2048, "hopper_128x200_gated, "},
        {"prefix.gate_up", 12608, 32768, 2048, "hopper_128x184_gated, "},
        {"prefix.gate_up", 25216, 32768, 2048, "hopper_128x200_gated, "},   /* 4692 µs, 160x128 6266       */
        {"vision.qkv", 768, 3456, 1152, "hopper_160x128, "},
    };
    static candidate choices[256];
    openpi_engine *engine;
    openpi_session *session;
    (void)state;
    reset();
    assert_int_equal(open_engine(&engine, "hopper", 0), OPENPI_OK);
    assert_int_equal(open_session(engine, &session), OPENPI_OK);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        op one = *op_named(session->plan, wanted[i].op);
        int residual = one.kind == OP_LINEAR_RESIDUAL, taken = -1;
        row_set *rows = residual ? &one.linear_residual.rows : &one.norm_linear.rows;
        matrix *weight = residual ? &one.linear_residual.weight : &one.norm_linear.weight;
        rows->capacity = wanted[i].rows;
        weight->n = wanted[i].n;
        weight->k = wanted[i].k;
        int count = backend_cuda.candidates(engine->device, &one, choices, 256);
        for (int c = 0; c < count; c++)
            if (choices[c].heuristic) taken = c;
        assert_true(taken >= 0);
        if (strncmp(choices[taken].name, wanted[i].kernel, strlen(wanted[i].kernel)))
            fail_msg("%s of %d rows takes %s, expected %s", wanted[i].op, wanted[i].rows, choices[taken].name,
                     wanted[i].kernel);
    }
    openpi_session_close(session);
    openpi_engine_close(engine);
}

static void test_paths(void **state) {
    openpi_engine *engine;
    (void)state;
    reset();
    assert_int_equal(open_engine(&engine, "sideways", 0), OPENPI_BAD_ARGUMENT);
    assert_non_null(strstr(error.message, "sideways"));
    assert_int_equal(fake.alive, 0);
}

/* Opening and closing again and again gives everything back. */
/* Every choice of every op of a plan stays within what a chip allows (the fake launch looks), under a name of
 * its own; one is the rule's. */
static void test_every_choice(void **state) {
    static candidate choices[256];
    openpi_engine *engine;
    openpi_session *session;
    (void)state;
    for (int hopper = 0; hopper < 2; hopper++) {
        reset();
        assert_int_equal(open_engine(&engine, hopper ? "hopper" : "portable", 0), OPENPI_OK);
        assert_int_equal(open_session(engine, &session), OPENPI_OK);
        for (int i = 0; i < session->plan->count; i++) {
            op one = session->plan->ops[i];
            int count = backend_cuda.candidates(engine->device, &one, choices, 256), rules = 0, others = 0;
            uint64_t first = 0;
            assert_true(count <= 256);
            for (int w = 0; w < count; w++) {
                void *work = NULL;
                rules += choices[w].heuristic;
                if (!used->kernel_hash(engine->device, choices[w].name))
                    fail_msg("\"%s\" has no hash", choices[w].name);
                for (int other = 0; other < w; other++)
                    assert_string_not_equal(choices[other].name, choices[w].name);
                one.choice = w + 1;
                size_t bytes = backend_cuda.work_bytes(engine->device, &one, 1);
                assert_int_equal(backend_cuda.allocate(engine->device, bytes, "a test", &work, &error),
                                 OPENPI_OK);
                fake.calls = 0;
                fake.launched = 0;
                assert_int_equal(backend_cuda.run(engine->device, &one, 1, work, NULL, &error), OPENPI_OK);
                assert_true(fake.calls >= 3);              /* context, launch, wait */
                if (!w) first = fake.launched;
                others += fake.launched != first;
                backend_cuda.release(engine->device, work);
            }
            assert_int_equal(rules, count > 0);
            assert_int_equal(others > 0, count > 1);       /* a choice chooses */
        }
        openpi_session_close(session);
        openpi_engine_close(engine);
        assert_int_equal(fake.alive, 0);
    }
}

/* A table of one entry: of an op's choices the last. Returns its choice. */
static int one_entry(const openpi_engine *engine, const op *op, tuning *table, tuning_entry *entry) {
    static candidate choices[256];
    int count = backend_cuda.candidates(engine->device, op, choices, 256);
    *entry = (tuning_entry){.key = tuning_key_of(op), .confirmed = 1};
    snprintf(entry->choice, sizeof entry->choice, "%s", choices[count - 1].name);
    *table = (tuning){.entries = entry, .count = 1};
    return count;
}

/* Where the table has other choices for two cameras, a session of one sample keeps a graph for them; a batch
 * does not. */
static void test_graph_of_two_cameras(void **state) {
    openpi_engine *engine;
    openpi_session *session;
    openpi_timing timing = OPENPI_TIMING_INIT;
    (void)state;
    for (int batch = 1; batch <= 2; batch++) {
        openpi_session_options options = OPENPI_SESSION_OPTIONS_INIT;
        tuning_entry entry;
        tuning table;
        options.horizon = 10;
        options.batch = batch;
        reset();
        assert_int_equal(open_engine(&engine, NULL, 0), OPENPI_OK);
        assert_int_equal(openpi_session_create(engine, &options, &session, &error), OPENPI_OK);
        int choice = one_entry(engine, &session->plan->ops[1], &table, &entry);
        entry.key.cameras = 2;
        openpi_session_close(session);
        engine->model->tuning = &table;
        assert_int_equal(openpi_session_create(engine, &options, &session, &error), OPENPI_OK);
        for (int kind = 0; kind < CALL_KINDS; kind++) {
            int own = batch == 1 && kind == 1;
            assert_int_equal(session->kinds.recordings[kind] != NULL, own || kind == CALL_ANY);
        }
        assert_int_equal(session->plan->ops[1].choice, 0);
        assert_int_equal(infer(session, &timing), OPENPI_OK);              /* two cameras */
        assert_int_equal(session->plan->ops[1].choice, batch == 1 ? choice : 0);
        openpi_session_close(session);
        openpi_engine_close(engine);
        assert_int_equal(fake.alive, 0);
    }
}

/* Where the table knows a smaller prompt capacity, a session of one sample keeps a graph for prompts that fit
 * it. */
static void test_graph_of_short_prompts(void **state) {
    enum { CAPACITY = 10, SMALLER = 4 };
    openpi_engine *engine;
    openpi_session *session;
    openpi_timing timing = OPENPI_TIMING_INIT;
    (void)state;
    for (int batch = 1; batch <= 2; batch++) {
        openpi_session_options options = OPENPI_SESSION_OPTIONS_INIT;
        tuning_entry entry;
        tuning table;
        int at = 0, here = batch == 1;
        options.horizon = 10;
        options.max_prompt = CAPACITY;
        options.batch = batch;
        reset();
        assert_int_equal(open_engine(&engine, NULL, 0), OPENPI_OK);
        assert_int_equal(openpi_session_create(engine, &options, &session, &error), OPENPI_OK);
        while (session->plan->ops[at].stage != OPENPI_STAGE_PREFIX ||
               session->plan->ops[at].kind != OP_NORM_LINEAR)
            at++;
        int choice = one_entry(engine, &session->plan->ops[at], &table, &entry);
        assert_int_equal(entry.key.m, batch * (OPENPI_CAMERAS * OPENPI_IMAGE_TOKENS + CAPACITY));
        entry.key.m = OPENPI_CAMERAS * OPENPI_IMAGE_TOKENS + SMALLER;
        openpi_session_close(session);
        engine->model->tuning = &table;
        assert_int_equal(openpi_session_create(engine, &options, &session, &error), OPENPI_OK);
        assert_int_equal(session->kinds.short_prompt, here ? SMALLER : 0);
        /* One for the short prompts of any number of cameras: the table tells those apart by length alone. */
        for (int kind = 0; kind < CALL_KINDS; kind++)
            assert_int_equal(session->kinds.recordings[kind] != NULL,
                             kind == CALL_ANY || (here && kind == CALL_ANY + 1));
        for (int prompt = 1; prompt <= CAPACITY; prompt++) {
            assert_int_equal(infer_prompt(session, prompt, &timing), OPENPI_OK);
            assert_int_equal(session->plan->ops[at].choice, here && prompt <= SMALLER ? choice : 0);
        }
        openpi_session_close(session);
        openpi_engine_close(engine);
        assert_int_equal(fake.alive, 0);
    }
}

/* Every choice of the shipped tables is a kernel of this build, and none has changed since the tables were
 * made: else sessions would ignore those entries. Where this fails after a change of a kernel, tune again;
 * or, where the change moves no time, `openpi tune --rekey`. */
static void test_kernels_of_the_shipped_tables(void **state) {
    static const tuning_machine cards[] = {{"NVIDIA H200", "hopper", 0},
                                           {"NVIDIA H100 80GB HBM3", "hopper", 0}};
    openpi_engine *engine;
    (void)state;
    reset();
    assert_int_equal(open_engine(&engine, "hopper", 0), OPENPI_OK);
    for (size_t c = 0; c < sizeof cards / sizeof *cards; c++) {
        tuning *table = NULL;
        assert_int_equal(tuning_shipped(&cards[c], engine->device, &table, &error), OPENPI_OK);
        assert_non_null(table);
        if (table->ignored[0]) fail_msg("%s: %s", cards[c].device, table->ignored);
        assert_true(table->count > 100);
        for (int i = 0; i < table->count; i++)
            if (!used->kernel_hash(engine->device, table->entries[i].choice))
                fail_msg("no kernel of this build is \"%s\"", table->entries[i].choice);
        tuning_close(table);
    }
    assert_true(used->kernel_hash(engine->device, "hopper_1x1") == 0);
    openpi_engine_close(engine);
}

static void test_again_and_again(void **state) {
    (void)state;
    reset();
    for (int i = 0; i < 20; i++) {
        openpi_engine *engine;
        openpi_session *session;
        assert_int_equal(open_engine(&engine, NULL, 0), OPENPI_OK);
        assert_int_equal(open_session(engine, &session), OPENPI_OK);
        assert_int_equal(infer(session, NULL), OPENPI_OK);
        openpi_session_close(session);
        openpi_engine_close(engine);
        assert_int_equal(fake.alive, 0);
        assert_int_equal(fake.memory, 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls_of_an_inference),
        cmocka_unit_test(test_fork),
        cmocka_unit_test(test_two_sessions),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_without_a_graph),
        cmocka_unit_test(test_failures_of_recording),
        cmocka_unit_test(test_timed_recording),
        cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_facts_and_roofs),
        cmocka_unit_test(test_failures),
        cmocka_unit_test(test_failures_of_uploads),
        cmocka_unit_test(test_out_of_memory_anywhere),
        cmocka_unit_test(test_lost),
        cmocka_unit_test(test_too_small),
        cmocka_unit_test(test_tiles_without_a_table),
        cmocka_unit_test(test_paths),
        cmocka_unit_test(test_every_choice),
        cmocka_unit_test(test_graph_of_two_cameras),
        cmocka_unit_test(test_graph_of_short_prompts),
        cmocka_unit_test(test_kernels_of_the_shipped_tables),
        cmocka_unit_test(test_again_and_again),
    };
    return cmocka_run_group_tests_name("gpu host", tests, NULL, NULL);
}
