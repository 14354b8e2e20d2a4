/* labels: threads */
/* The host side of the GPU backend over a driver that is not there (fake_gpu.h), so this runs everywhere:
 * what is asked of the driver per inference, what a recording consists of. test_gpu_faults lets the driver
 * fail, test_gpu_choices looks at the kernels that are chosen. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fake_session.h"
#include "fork_child.h"

static void log_is(const char *const *names, int count) {
    for (int i = 0; i < fake.calls || i < count; i++) {
        assert_true(i < fake.calls && i < count);
        assert_string_equal(fake.log[i], names[i]);
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
        if (p == WHOLE_DEVICE) assert_ptr_equal(first, device->calls);
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

/* The place of the last wait for the stream among the first `count` calls; -1: none. */
static int last_wait(const void *stream, int count) {
    int last = -1;
    for (int i = 0; i < count; i++)
        if (!strcmp(fake.log[i], "stream_wait") && fake.streams[i] == stream) last = i;
    return last;
}

/* Op by op, too, a call runs on the stream of all calls, behind what was uploaded for it. */
static void test_calls_take_turns(void **state) {
    openpi_engine *engine;
    openpi_session *session;
    (void)state;
    reset();
    assert_int_equal(open_engine(&engine, "portable", 1), OPENPI_OK);
    assert_int_equal(open_session(engine, &session), OPENPI_OK);
    gpu_device *device = (gpu_device *)engine->device;
    fake.calls = 0;
    assert_int_equal(infer(session, NULL), OPENPI_OK);
    assert_int_equal(last_wait(device->calls, fake.calls), -1);
    atomic_store(&device->whole_device_recordings, 1);
    fake.calls = 0;
    assert_int_equal(infer(session, NULL), OPENPI_OK);
    int launch = 0;
    while (launch < fake.calls && strcmp(fake.log[launch], "launch")) launch++;
    assert_in_range(launch, 1, fake.calls - 1);
    assert_true(last_wait(device->stream, launch) >= 0);
    assert_true(last_wait(device->calls, fake.calls) > launch);
    atomic_store(&device->whole_device_recordings, 0);
    openpi_session_close(session);
    openpi_engine_close(engine);
    assert_int_equal(fake.alive, 0);
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
            backend_cuda.record_timed(engine->device, plan_list(plan), session->work, &timed, &error),
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
            openpi_status status =
                backend_cuda.record_timed(engine->device, plan_list(plan), session->work, &timed, &error);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls_of_an_inference),
        cmocka_unit_test(test_fork),
        cmocka_unit_test(test_two_sessions),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_calls_take_turns),
        cmocka_unit_test(test_without_a_graph),
        cmocka_unit_test(test_timed_recording),
        cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_facts_and_roofs),
    };
    return cmocka_run_group_tests_name("gpu host", tests, NULL, NULL);
}
