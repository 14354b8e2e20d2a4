/* The AMD backend over the fake libamdhip64: what it says of runtimes and devices that it cannot use, that it
 * gives openpi's actions, gives everything back, survives what the runtime refuses, and that faults of the
 * machine or of kernels do not pass.
 *
 *   test_hip device | goldens | faults    with the fake library on the loader's path
 *   test_hip missing                      without it
 *   test_hip old                          with the library of old.c
 */
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "backend/gpu/hip/vendor.h"
#include "block_watch.h"
#include "emulation.h"

#define EMULATED "hip"
#define EMULATED_CAPTURE "hipStreamBeginCapture"
#define EMULATED_COPY_ROWS "hipMemcpy2DAsync"
#define EMULATED_ON_THE_WAY "hipGraphLaunch", "hipMemcpyDtoHAsync", "hipStreamSynchronize"
#include "emulated_tests.h"

/* ---- devices that cannot be used ----------------------------------------------------------------------- */

static void test_listed(void **state) {
    openpi_device d = listed();
    (void)state;
    assert_string_equal(d.name, "hip:0");
    assert_string_equal(d.path, "mfma");
    assert_string_equal(d.reason, "");
    assert_true(d.usable && d.memory_bytes == fake->memory_bytes);
    assert_string_equal(d.description, "Emulated GPU, gfx942, ROCm 7.1");
}

static void test_unusable(void **state) {
    (void)state;
    snprintf(fake->architecture, sizeof fake->architecture, "gfx90a:sramecc+");
    unusable("hip:0", "its architecture is gfx90a, expected gfx942 or gfx950");
    says("hip:0 (Emulated GPU) cannot be used: its architecture is gfx90a");
    set_up(NULL);
    fake->devices = 0;
    unusable("hip", "the AMD driver sees no GPU");
    says("there is no device \"hip:0\", the driver sees 0");
    set_up(NULL);
    fake->version = 50730000;
    unusable("hip", "the AMD runtime is of ROCm 5.7, expected 6.0 or newer");
    says("hip:0: the AMD runtime is of ROCm 5.7");
}

/* Other architectures are other code objects. */
static void test_architectures(void **state) {
    openpi_engine *engine;
    (void)state;
    snprintf(fake->architecture, sizeof fake->architecture, "gfx950");
    must(open_engine(&engine));
    openpi_engine_close(engine);
}

static void test_refused(void **state) {
    static const refusal cases[] = {
        {"hipInit", 0, 3, OPENPI_NO_DEVICE, "the AMD runtime does not start: some error (error 3)"},
        {"hipModuleLoadData", 1, 209, OPENPI_NO_DEVICE, "does not open: some error (error 209) at gemm"},
        {"hipModuleGetFunction", 0, 500, OPENPI_NO_DEVICE, "does not open: some error (error 500) at attention"},
        {"hipHostMalloc", 0, 2, OPENPI_NO_MEMORY, "out of memory on hip:0 while opening it"},
        {"hipMalloc", 0, 2, OPENPI_NO_MEMORY, "out of memory on hip:0: "},
        {"hipMemcpyHtoDAsync", 0, 719, OPENPI_DEVICE_LOST, "device hip:0 is lost: unspecified launch failure"},
        {"hipModuleLaunchKernel", 0, 719, OPENPI_DEVICE_LOST, "device hip:0 is lost: unspecified launch failure"},
    };
    (void)state;
    check_refused(cases, sizeof cases / sizeof *cases);
}

/* ---- goldens ------------------------------------------------------------------------------------------- */

static void test_goldens(void **state) {
    static const golden_case cases[] = {
        {GOLDEN "/model/pi05_odd.safetensors", OPENPI_BF16, "gfx942", NULL},
        {GOLDEN "/model/pi05_odd.safetensors", OPENPI_F32, "gfx942", NULL},
        {GOLDEN "/model/pi0_odd.safetensors", OPENPI_BF16, "gfx950", NULL},
    };
    (void)state;
    check_goldens(cases, sizeof cases / sizeof *cases, "hip/mfma");
}

/* ---- faults -------------------------------------------------------------------------------------------- */

/* A fault of the machine makes the golden fail, or a kernel is stopped with a sentence. The first kernel that
 * waits is a product with two buffers (gemm_tile.h): wait 0 is before the first is read, wait 1 before the
 * second is, and the next ones also keep a buffer from being put into while it is read. */
static void test_faults(void **state) {
    static const struct {
        emu_fault fault;
        int n;
        const char *trouble;               /* NULL: wrong numbers                                          */
        const char *architecture;
    } cases[] = {
        {EMU_SKIPPED_WAIT, 0, "which nobody has put", "gfx942"},
        {EMU_SKIPPED_WAIT, 1, "x, which nobody has put", "gfx942"},
        {EMU_SKIPPED_WAIT, 2, "with no block_wait after thread", "gfx942"},
        {EMU_SKIPPED_WAIT, 3, "with no block_wait after thread", "gfx942"},
        {EMU_WRONG_LANES, EMU_16X16X16_BF16, NULL, "gfx942"},
        {EMU_WRONG_LANES, EMU_32X32X8_BF16, NULL, "gfx942"},
        {EMU_WRONG_LANES, EMU_16X16X32_BF16, NULL, "gfx950"},
        {EMU_WRONG_LANES, EMU_32X32X16_BF16, NULL, "gfx950"},
        {EMU_UNSCALED_PARTS, 0, NULL, "gfx942"},
        {EMU_SWAPPED_LANES, 0, NULL, "gfx942"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        set_up(NULL);
        snprintf(fake->architecture, sizeof fake->architecture, "%s", cases[i].architecture);
        if (!cases[i].trouble) {
            fake->set_fault(cases[i].fault, cases[i].n);
            verify_row row = verify(GOLDEN "/model/pi05_odd.safetensors", OPENPI_BF16, NULL);
            if (row.result != VERIFY_FAIL) fail_msg("case %zu passes", i);
            assert_string_equal(fake->trouble, "");
            continue;
        }
        float actions[VALUES];
        openpi_engine *engine;
        must(open_engine(&engine));
        openpi_session *session = open_session(engine);
        fake->set_fault(cases[i].fault, cases[i].n);
        assert_int_equal(infer(session, actions), OPENPI_DEVICE_LOST);
        if (!strstr(fake->trouble, cases[i].trouble)) fail_msg("case %zu: %s", i, fake->trouble);
        openpi_session_close(session);
        openpi_engine_close(engine);
    }
}

/* ---- without a runtime --------------------------------------------------------------------------------- */

static void test_missing(void **state) {
    (void)state;
    unusable("hip", "no AMD runtime on this machine (none of libamdhip64.so.7, .so.6, .so opens)");
    says("hip:0: no AMD runtime on this machine");
}

static void test_old(void **state) {
    (void)state;
    unusable("hip", "the AMD runtime libamdhip64.so.7 is too old: it has no hipGraphDestroy "
                    "(ROCm 6.0 or newer is needed)");
    says("hip:0: the AMD runtime libamdhip64.so.7 is too old");
}

/* ---- blocks -------------------------------------------------------------------------------------------- */

static void test_blocks(void **state) {
    extern const backend backend_hip;
    (void)state;
    check_blocks_are_shown(&gpu_vendor_hip, &backend_hip, "hip:0");
}

int main(int count, char **words) {
    const struct CMUnitTest missing[] = {cmocka_unit_test(test_missing)};
    const struct CMUnitTest old[] = {cmocka_unit_test(test_old)};
    const struct CMUnitTest device[] = {
        cmocka_unit_test_setup_teardown(test_listed, set_up, nothing_left),
        cmocka_unit_test_setup_teardown(test_unusable, set_up, nothing_left),
        cmocka_unit_test_setup_teardown(test_architectures, set_up, nothing_left),
        cmocka_unit_test_setup_teardown(test_refused, set_up, nothing_left),
        cmocka_unit_test_setup_teardown(test_replays, set_up, nothing_left),
        cmocka_unit_test_setup_teardown(test_chunks, set_up, nothing_left),
        cmocka_unit_test_setup_teardown(test_ranges, set_up, nothing_left),
        cmocka_unit_test_setup_teardown(test_times, set_up, nothing_left),
        cmocka_unit_test_setup_teardown(test_blocks, set_up, nothing_left),
        cmocka_unit_test_setup_teardown(test_lost, set_up, nothing_left),
    };
    const struct CMUnitTest goldens[] = {cmocka_unit_test_setup_teardown(test_goldens, set_up, nothing_left)};
    const struct CMUnitTest faults[] = {cmocka_unit_test_setup_teardown(test_faults, set_up, nothing_left)};
    const char *mode = count > 1 ? words[1] : "device";
    void *library = dlopen("libamdhip64.so.7", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    fake = library ? dlsym(library, "fake_hip_state") : NULL;
    if (!strcmp(mode, "old")) return cmocka_run_group_tests_name("hip, old", old, NULL, NULL);
    if (!strcmp(mode, "missing")) {
        if (library) return 77;            /* a machine that has one                                       */
        return cmocka_run_group_tests_name("hip, missing", missing, NULL, NULL);
    }
    if (!fake) {
        fprintf(stderr, "test_hip: the fake libamdhip64.so.7 is not on the loader's path\n");
        return 2;
    }
    original = *fake;
    if (!strcmp(mode, "goldens")) return cmocka_run_group_tests_name("hip, goldens", goldens, NULL, NULL);
    if (!strcmp(mode, "faults")) return cmocka_run_group_tests_name("hip, faults", faults, NULL, NULL);
    return cmocka_run_group_tests_name("hip, device", device, NULL, NULL);
}
