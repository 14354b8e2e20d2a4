/* What tests of both emulated GPUs ask of a backend over its fake driver library: that it says what is wrong,
 * gives the same actions however it runs, survives what the driver refuses, and gives everything back.
 * Include after cmocka.h, the machine's emulation.h and these words about the vendor:
 *
 *   EMULATED              of its devices, "hip"
 *   EMULATED_CAPTURE      the driver's function that begins a capture
 *   EMULATED_COPY_ROWS    and that which copies rows on the device
 *   EMULATED_ON_THE_WAY   functions that a call of a session runs, which may lose the device
 */
#ifndef TESTS_GPU_EMULATED_TESTS_H
#define TESTS_GPU_EMULATED_TESTS_H

#include <math.h>
#include <string.h>

#include "fake_gpu.h"
#include "openpi_internal.h"
#include "verify_rows.h"

static openpi_error error = OPENPI_ERROR_INIT;
static fake_gpu *fake, original;

static void must(openpi_status status) {
    if (status != OPENPI_OK) fail_msg("%s", error.message);
}

/* The vendor's entry of openpi_devices. */
static openpi_device listed(void) {
    openpi_device devices[8];
    int count;
    for (int i = 0; i < 8; i++) devices[i] = (openpi_device)OPENPI_DEVICE_INIT;
    must(openpi_devices(devices, 8, &count, &error));
    for (int i = 0; i < count; i++)
        if (!strncmp(devices[i].name, EMULATED, strlen(EMULATED))) return devices[i];
    fail_msg(EMULATED " is not listed");
    return devices[0];
}

static openpi_status open_engine(openpi_engine **engine) {
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    must(openpi_synthetic_parse("odd", &synthetic, &error));
    options.synthetic = &synthetic;
    options.device = EMULATED ":0";
    return openpi_engine_open(NULL, &options, engine, &error);
}

static void says(const char *sentence) {
    if (!strstr(error.message, sentence)) fail_msg("\"%s\", expected \"%s\"", error.message, sentence);
}

static int set_up(void **state) {
    (void)state;
    *fake = original;
    fake->set_fault(EMU_SOUND, 0);
    return 0;
}

/* Everything that was taken from the driver has been given back. */
static int nothing_left(void **state) {
    (void)state;
    if (!fake->alive && !fake->bytes) return 0;
    print_error("%d things, %zu device bytes were not given back\n", fake->alive, fake->bytes);
    return -1;
}

static void unusable(const char *name, const char *reason) {
    openpi_device d = listed();
    openpi_engine *engine = NULL;
    assert_string_equal(d.name, name);
    assert_false(d.usable);
    assert_string_equal(d.reason, reason);
    assert_int_equal(open_engine(&engine), OPENPI_NO_DEVICE);
    assert_null(engine);
}

static void fail_next(const char *function, int after, int code) {
    snprintf(fake->failing, sizeof fake->failing, "%s", function);
    fake->after = after;
    fake->code = code;
}

/* Functions that fail while an engine is opened. */
typedef struct refusal {
    const char *function;
    int after, code;
    openpi_status status;
    const char *says;
} refusal;

static void check_refused(const refusal *cases, size_t count) {
    openpi_engine *engine = NULL;
    for (size_t i = 0; i < count; i++) {
        fail_next(cases[i].function, cases[i].after, cases[i].code);
        openpi_status status = open_engine(&engine);
        if (status != cases[i].status) fail_msg("%s: %s", cases[i].function, error.message);
        says(cases[i].says);
        assert_null(engine);
        assert_int_equal(fake->alive, 0);
    }
    fake->memory_bytes = 100000;
    assert_int_equal(open_engine(&engine), OPENPI_NO_MEMORY);
    says("of 100000 bytes are free");
}

/* ---- a session ----------------------------------------------------------------------------------------- */

static openpi_session *open_session(openpi_engine *engine) {
    openpi_session_options options = OPENPI_SESSION_OPTIONS_INIT;
    openpi_session *session;
    options.horizon = 10;
    options.steps = 1;
    must(openpi_session_create(engine, &options, &session, &error));
    return session;
}

static openpi_status infer(openpi_session *session, float *actions) {
    static uint8_t image[224 * 224 * 3];
    static const float state[OPENPI_ACTION_DIM];
    static const int32_t tokens[] = {2, 5, 9};
    openpi_sample sample = {.size = sizeof sample, .images = {image}, .image_mask = {1}, .tokens = tokens,
                            .token_count = 3, .state = state};
    return openpi_session_run(session, &sample, 1, NULL, actions, NULL, &error);
}

enum { VALUES = 10 * OPENPI_ACTION_DIM };

/* A call is one replay; and a driver that cannot capture gives the same actions op by op. */
static void test_replays(void **state) {
    float replayed[VALUES], launched[VALUES];
    openpi_engine *engine;
    (void)state;
    must(open_engine(&engine));
    openpi_session *session = open_session(engine);
    int replays = fake->replays;
    must(infer(session, replayed));
    assert_int_equal(fake->replays, replays + 1);
    openpi_session_close(session);
    fail_next(EMULATED_CAPTURE, 0, 900);
    session = open_session(engine);
    must(infer(session, launched));
    assert_int_equal(fake->replays, replays + 1);
    assert_memory_equal(replayed, launched, sizeof replayed);
    openpi_session_close(session);
    openpi_engine_close(engine);
}

/* Two chunks of one observation: its K and V are copied on the device. */
static void test_chunks(void **state) {
    static float chunks[2 * VALUES], whole[2 * VALUES], noise[2 * VALUES];
    static const int32_t tokens[] = {2, 5, 9};
    static const float zeros[OPENPI_ACTION_DIM];
    const openpi_sample sample = {.size = sizeof sample, .tokens = tokens, .token_count = 3, .state = zeros};
    const openpi_sample both[2] = {sample, sample};
    openpi_session_options options = OPENPI_SESSION_OPTIONS_INIT;
    openpi_engine *engine;
    openpi_session *session;
    (void)state;
    must(open_engine(&engine));
    options.batch = 2;
    options.horizon = 10;
    options.steps = 1;
    options.parts = 1;
    must(openpi_session_create(engine, &options, &session, &error));
    openpi_noise(1, 1, noise, 2 * VALUES);
    must(openpi_session_run_many(session, &sample, 1, 2, noise, chunks, NULL, &error));
    must(openpi_session_run(session, both, 2, noise, whole, NULL, &error));
    assert_memory_equal(chunks, whole, sizeof whole);
    fail_next(EMULATED_COPY_ROWS, 0, 719);
    must(openpi_session_run(session, &sample, 1, noise, whole, NULL, &error));
    assert_int_equal(openpi_session_run_many(session, &sample, 1, 2, noise, chunks, NULL, &error),
                     OPENPI_DEVICE_LOST);
    openpi_session_close(session);
    openpi_engine_close(engine);
}

/* A range of steps is recorded at its first call; where the driver then cannot capture, it runs op by op. */
static void test_ranges(void **state) {
    static float noise[VALUES], x[3][VALUES];
    static const int32_t tokens[] = {2, 5, 9};
    static const float zeros[OPENPI_ACTION_DIM];
    const openpi_sample sample = {.size = sizeof sample, .tokens = tokens, .token_count = 3, .state = zeros};
    openpi_session_options options = OPENPI_SESSION_OPTIONS_INIT;
    openpi_engine *engine;
    (void)state;
    must(open_engine(&engine));
    openpi_noise(1, 1, noise, VALUES);
    options.horizon = 10;
    options.steps = 2;
    options.parts = 1;
    for (int which = 0; which < 3; which++) {
        openpi_session *session;
        must(openpi_session_create(engine, &options, &session, &error));
        must(openpi_session_prefix(session, &sample, 1, 1, NULL, &error));
        int replays = fake->replays;
        if (which == 2) fail_next(EMULATED_CAPTURE, 0, 900);
        for (int turn = 0; turn <= (which == 1); turn++)
            must(openpi_session_denoise(session, memcpy(x[which], noise, sizeof noise), 1, 0, 1, NULL,
                                        &error));
        assert_int_equal(fake->replays - replays, which == 2 ? 0 : which + 1);
        assert_memory_equal(x[which], x[0], sizeof noise);
        openpi_session_close(session);
    }
    openpi_engine_close(engine);
}

/* A step of two chunks, the staircase on one and another order of times on the other, on this device. */
static void step_on(const char *device, const char *model, openpi_dtype type, float *x) {
    static const int32_t tokens[] = {2, 5, 9};
    static const float state[OPENPI_ACTION_DIM] = {0.5f};
    const openpi_sample sample = {.size = sizeof sample, .tokens = tokens, .token_count = 3, .state = state};
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    openpi_session_options shape = OPENPI_SESSION_OPTIONS_INIT;
    openpi_engine *engine;
    openpi_session *session;
    float times[20], dt[20];
    must(openpi_synthetic_parse(model, &synthetic, &error));
    options.synthetic = &synthetic;
    options.device = device;
    options.dtype = type;
    must(openpi_engine_open(NULL, &options, &engine, &error));
    shape.batch = 2;
    shape.horizon = 10;
    shape.steps = 2;
    shape.parts = 1;
    shape.times = 10;
    must(openpi_session_create(engine, &shape, &session, &error));
    openpi_noise(1, 1, x, 2 * VALUES);
    for (int r = 0; r < 20; r++) {
        int k = r < 10 ? r : (r - 10) * 7 % 10;
        times[r] = k < 2 ? 0 : k > 7 ? 1 : (float)(k - 1) / 7;
        dt[r] = k < 2 ? 0 : -0.125f * (float)k;
    }
    must(openpi_session_prefix(session, &sample, 1, 2, NULL, &error));
    must(openpi_session_step(session, x, 2, times, dt, NULL, &error));
    openpi_session_close(session);
    openpi_engine_close(engine);
}

/* A step whose rows have times of their own, as the processor computes it. */
static void test_times(void **state) {
    static float x[2 * VALUES], want[2 * VALUES], noise[2 * VALUES];
    (void)state;
    openpi_noise(1, 1, noise, 2 * VALUES);
    for (int which = 0; which < 4; which++) {
        openpi_dtype type = which % 2 ? OPENPI_F32 : OPENPI_BF16;
        double most = type == OPENPI_F32 ? 1e-4 : 0.03;
        step_on("cpu", which / 2 ? "odd:pi05" : "odd:pi0", type, want);
        step_on(EMULATED ":0", which / 2 ? "odd:pi05" : "odd:pi0", type, x);
        for (int i = 0; i < 2 * VALUES; i++)
            if (!(fabs((double)x[i] - (double)want[i]) <= most * (1 + fabs((double)want[i]))))
                fail_msg("%d, number %d: %g, expected %g", which, i, (double)x[i], (double)want[i]);
        assert_memory_equal(x, noise, 2 * OPENPI_ACTION_DIM * sizeof *x);          /* where dt is 0         */
        assert_memory_not_equal(x + 2 * OPENPI_ACTION_DIM, noise + 2 * OPENPI_ACTION_DIM, sizeof *x);
    }
}

/* A device that is lost says so in every later call, and gives everything back. */
static void test_lost(void **state) {
    static const char *const functions[] = {EMULATED_ON_THE_WAY};
    float actions[VALUES];
    (void)state;
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        openpi_engine *engine;
        set_up(NULL);
        must(open_engine(&engine));
        openpi_session *session = open_session(engine);
        fail_next(functions[i], 0, 719);
        for (int call = 0; call < 2; call++) {
            assert_int_equal(infer(session, actions), OPENPI_DEVICE_LOST);
            says("device " EMULATED ":0 is lost: unspecified launch failure (error 719) while ");
        }
        openpi_session_close(session);
        openpi_engine_close(engine);
        assert_int_equal(fake->alive, 0);
    }
}

/* ---- goldens ------------------------------------------------------------------------------------------- */

static verify_row verify(const char *path, openpi_dtype dtype, const char *formats) {
    verify_options options = VERIFY_OPTIONS_INIT;
    rows r = {0};
    options.device = EMULATED ":0";
    options.dtype = dtype;
    options.formats = formats;
    options.batch_only = 1;
    must(verify_path(path, &options, rows_take, &r, &error));
    assert_int_equal(r.count, 1);
    return r.row[0];
}

/* A golden on a chip. */
typedef struct golden_case {
    const char *path;
    openpi_dtype dtype;
    const char *architecture;
    const char *formats;                   /* as openpi_engine_options.formats; NULL: none                 */
} golden_case;

static void check_goldens(const golden_case *cases, size_t count, const char *device) {
    for (size_t i = 0; i < count; i++) {
        int replays = fake->replays;
        snprintf(fake->architecture, sizeof fake->architecture, "%s", cases[i].architecture);
        verify_row row = verify(cases[i].path, cases[i].dtype, cases[i].formats);
        if (row.result != VERIFY_OK) fail_msg("%s: %s", row.name, row.detail);
        assert_string_equal(row.device, device);
        if (cases[i].dtype == OPENPI_BF16) assert_true(fake->replays > replays);
    }
}

#endif
