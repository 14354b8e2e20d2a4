/* NVIDIA's backend over the fake libcuda: what it says of drivers and devices that it cannot use, that its
 * portable kernels give openpi's actions, that everything is given back, that it survives what the driver
 * refuses, and that faults of the machine do not pass.
 *
 *   test_cuda device | goldens | faults   with the fake library on the loader's path
 *   test_cuda missing                     without it
 *   test_cuda old                         with the library of old.c
 */
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "backend/gpu/cuda/vendor.h"
#include "emulation.h"
#include "fake_cuda.h"
#include "openpi_internal.h"
#include "verify_rows.h"

static openpi_error error = OPENPI_ERROR_INIT;
static fake_gpu *fake, original;

static void must(openpi_status status) {
    if (status != OPENPI_OK) fail_msg("%s", error.message);
}

/* The entry cuda of openpi_devices. */
static openpi_device listed(void) {
    openpi_device devices[8];
    int count;
    for (int i = 0; i < 8; i++) devices[i] = (openpi_device)OPENPI_DEVICE_INIT;
    must(openpi_devices(devices, 8, &count, &error));
    for (int i = 0; i < count; i++)
        if (!strncmp(devices[i].name, "cuda", 4)) return devices[i];
    fail_msg("cuda is not listed");
    return devices[0];
}

static openpi_status open_engine(openpi_engine **engine) {
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    must(openpi_synthetic_parse("odd", &synthetic, &error));
    options.synthetic = &synthetic;
    options.device = "cuda:0";
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

/* ---- devices that cannot be used ----------------------------------------------------------------------- */

static void test_listed(void **state) {
    openpi_device d = listed();
    (void)state;
    assert_string_equal(d.name, "cuda:0");
    assert_string_equal(d.path, "portable");
    assert_string_equal(d.reason, "");
    assert_true(d.usable && d.memory_bytes == fake->memory_bytes);
    assert_string_equal(d.description, "Emulated GPU, compute capability 8.6, driver for CUDA 13.0");
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

static void test_unusable(void **state) {
    (void)state;
    snprintf(fake->architecture, sizeof fake->architecture, "sm_75");
    unusable("cuda:0", "its compute capability is 7.5, expected 8.0 or newer");
    set_up(NULL);
    fake->devices = 0;
    unusable("cuda", "the NVIDIA driver sees no GPU");
    says("there is no device \"cuda:0\", the driver sees 0");
    set_up(NULL);
    fake->version = 11080;
    unusable("cuda:0", "the driver is for CUDA 11.8, expected 12.0 or newer");
}

static void fail_next(const char *function, int after, int code) {
    snprintf(fake->failing, sizeof fake->failing, "%s", function);
    fake->after = after;
    fake->code = code;
}

static void test_refused(void **state) {
    static const struct {
        const char *function;
        int after, code;
        openpi_status status;
        const char *says;
    } cases[] = {
        {"cuInit", 0, 3, OPENPI_NO_DEVICE, "the NVIDIA driver does not start: some error (error 3)"},
        {"cuModuleLoadData", 1, 209, OPENPI_NO_DEVICE, "cuda:0"},
        {"cuModuleGetFunction", 0, 500, OPENPI_NO_DEVICE, "does not open: some error (error 500) at attention"},
        {"cuMemHostAlloc", 0, 2, OPENPI_NO_MEMORY, "out of memory on cuda:0 while opening it"},
        {"cuMemAlloc_v2", 0, 2, OPENPI_NO_MEMORY, "out of memory on cuda:0: "},
        {"cuMemcpyHtoDAsync_v2", 0, 719, OPENPI_DEVICE_LOST, "device cuda:0 is lost: unspecified launch failure"},
        {"cuLaunchKernelEx", 0, 719, OPENPI_DEVICE_LOST, "device cuda:0 is lost: unspecified launch failure"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        openpi_engine *engine = NULL;
        fail_next(cases[i].function, cases[i].after, cases[i].code);
        openpi_status status = open_engine(&engine);
        if (status != cases[i].status) fail_msg("%s: %s", cases[i].function, error.message);
        says(cases[i].says);
        assert_null(engine);
        assert_int_equal(fake->alive, 0);
    }
    fake->memory_bytes = 100000;
    openpi_engine *engine = NULL;
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
    fail_next("cuStreamBeginCapture_v2", 0, 900);
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
    fail_next("cuMemcpy2DAsync_v2", 0, 719);
    must(openpi_session_run(session, &sample, 1, noise, whole, NULL, &error));
    assert_int_equal(openpi_session_run_many(session, &sample, 1, 2, noise, chunks, NULL, &error),
                     OPENPI_DEVICE_LOST);
    openpi_session_close(session);
    openpi_engine_close(engine);
}

/* A device that is lost says so in every later call, and gives everything back. */
static void test_lost(void **state) {
    static const char *const functions[] = {"cuGraphLaunch", "cuMemcpyDtoHAsync_v2", "cuStreamSynchronize"};
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
            says("device cuda:0 is lost: unspecified launch failure (error 719) while ");
        }
        openpi_session_close(session);
        openpi_engine_close(engine);
        assert_int_equal(fake->alive, 0);
    }
}

/* ---- goldens ------------------------------------------------------------------------------------------- */

static verify_row verify(const char *path, openpi_dtype dtype) {
    verify_options options = VERIFY_OPTIONS_INIT;
    rows r = {0};
    options.device = "cuda:0";
    options.dtype = dtype;
    options.batch_only = 1;
    must(verify_path(path, &options, rows_take, &r, &error));
    assert_int_equal(r.count, 1);
    return r.row[0];
}

static void test_goldens(void **state) {
    static const struct {
        const char *path;
        openpi_dtype dtype;
        const char *chip;
    } cases[] = {
        {GOLDEN "/model/pi05_odd.safetensors", OPENPI_BF16, "sm_86"},
        {GOLDEN "/model/pi05_odd.safetensors", OPENPI_F32, "sm_90"},
        {GOLDEN "/model/pi0_odd.safetensors", OPENPI_BF16, "sm_80"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int replays = fake->replays;
        snprintf(fake->architecture, sizeof fake->architecture, "%s", cases[i].chip);
        verify_row row = verify(cases[i].path, cases[i].dtype);
        if (row.result != VERIFY_OK) fail_msg("%s: %s", row.name, row.detail);
        assert_string_equal(row.device, "cuda/portable");
        if (cases[i].dtype == OPENPI_BF16) assert_true(fake->replays > replays);
    }
}

/* ---- faults -------------------------------------------------------------------------------------------- */

/* A fault of the machine makes the golden fail, or a kernel is stopped with a sentence. */
static void test_faults(void **state) {
    static const struct {
        emu_fault fault;
        int n;
    } cases[] = {
        {EMU_SKIPPED_BARRIER, 0}, {EMU_SKIPPED_BARRIER, 1}, {EMU_EARLY_COPIES, 0},
        {EMU_WRONG_ROWS, 0},      {EMU_WRONG_SWIZZLE, 0},   {EMU_SWAPPED_LANES, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        set_up(NULL);
        fake->set_fault((int)cases[i].fault, cases[i].n);
        verify_row row = verify(GOLDEN "/model/pi05_odd.safetensors", OPENPI_BF16);
        if (row.result != VERIFY_FAIL) fail_msg("case %zu passes", i);
    }
}

/* ---- without a driver ---------------------------------------------------------------------------------- */

static void test_missing(void **state) {
    (void)state;
    unusable("cuda", "no NVIDIA driver on this machine (libcuda.so.1 does not open)");
    says("cuda:0: no NVIDIA driver on this machine");
}

static void test_old(void **state) {
    (void)state;
    unusable("cuda", "the NVIDIA driver is too old: it has no cuGraphDestroy (12.4 or newer is needed)");
    says("cuda:0: the NVIDIA driver is too old");
}

int main(int count, char **words) {
    const struct CMUnitTest missing[] = {cmocka_unit_test(test_missing)};
    const struct CMUnitTest old[] = {cmocka_unit_test(test_old)};
    const struct CMUnitTest device[] = {
        cmocka_unit_test_setup_teardown(test_listed, set_up, nothing_left),
        cmocka_unit_test_setup_teardown(test_unusable, set_up, nothing_left),
        cmocka_unit_test_setup_teardown(test_refused, set_up, nothing_left),
        cmocka_unit_test_setup_teardown(test_replays, set_up, nothing_left),
        cmocka_unit_test_setup_teardown(test_chunks, set_up, nothing_left),
        cmocka_unit_test_setup_teardown(test_lost, set_up, nothing_left),
    };
    const struct CMUnitTest goldens[] = {cmocka_unit_test_setup_teardown(test_goldens, set_up, nothing_left)};
    const struct CMUnitTest faults[] = {cmocka_unit_test_setup_teardown(test_faults, set_up, nothing_left)};
    const char *mode = count > 1 ? words[1] : "device";
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    fake = library ? dlsym(library, "fake_cuda_state") : NULL;
    if (!strcmp(mode, "old")) return cmocka_run_group_tests_name("cuda, old", old, NULL, NULL);
    if (!strcmp(mode, "missing")) {
        if (library) return 77;            /* a machine that has one                                       */
        return cmocka_run_group_tests_name("cuda, missing", missing, NULL, NULL);
    }
    if (!fake) {
        fprintf(stderr, "test_cuda: the fake libcuda.so.1 is not on the loader's path\n");
        return 2;
    }
    original = *fake;
    if (!strcmp(mode, "goldens")) return cmocka_run_group_tests_name("cuda, goldens", goldens, NULL, NULL);
    if (!strcmp(mode, "faults")) return cmocka_run_group_tests_name("cuda, faults", faults, NULL, NULL);
    return cmocka_run_group_tests_name("cuda, device", device, NULL, NULL);
}
