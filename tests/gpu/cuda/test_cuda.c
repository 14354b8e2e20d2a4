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

#define EMULATED "cuda"
#define EMULATED_CAPTURE "cuStreamBeginCapture_v2"
#define EMULATED_COPY_ROWS "cuMemcpy2DAsync_v2"
#define EMULATED_ON_THE_WAY "cuGraphLaunch", "cuMemcpyDtoHAsync_v2", "cuStreamSynchronize"
#include "emulated_tests.h"

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

static void test_refused(void **state) {
    static const refusal cases[] = {
        {"cuInit", 0, 3, OPENPI_NO_DEVICE, "the NVIDIA driver does not start: some error (error 3)"},
        {"cuModuleLoadData", 1, 209, OPENPI_NO_DEVICE, "cuda:0"},
        {"cuModuleGetFunction", 0, 500, OPENPI_NO_DEVICE, "does not open: some error (error 500) at attention"},
        {"cuMemHostAlloc", 0, 2, OPENPI_NO_MEMORY, "out of memory on cuda:0 while opening it"},
        {"cuMemAlloc_v2", 0, 2, OPENPI_NO_MEMORY, "out of memory on cuda:0 while opening it (resident_mma)"},
        {"cuMemAlloc_v2", 1, 2, OPENPI_NO_MEMORY, "out of memory on cuda:0: "},
        {"cuMemcpyHtoDAsync_v2", 0, 719, OPENPI_DEVICE_LOST, "device cuda:0 is lost: unspecified launch failure"},
        {"cuLaunchKernelEx", 0, 719, OPENPI_DEVICE_LOST, "device cuda:0 is lost: unspecified launch failure"},
    };
    (void)state;
    check_refused(cases, sizeof cases / sizeof *cases);
}

/* ---- goldens ------------------------------------------------------------------------------------------- */

static void test_goldens(void **state) {
    static const golden_case cases[] = {
        {GOLDEN "/model/pi05_odd.safetensors", OPENPI_BF16, "sm_86", NULL},
        {GOLDEN "/model/pi05_odd.safetensors", OPENPI_F32, "sm_90", NULL},
        {GOLDEN "/model/pi0_odd.safetensors", OPENPI_BF16, "sm_80", NULL},
        {GOLDEN "/model/pi0_odd.safetensors", OPENPI_BF16, "sm_86", "int8x8"},
    };
    (void)state;
    check_goldens(cases, sizeof cases / sizeof *cases, "cuda/portable");
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
        verify_row row = verify(GOLDEN "/model/pi05_odd.safetensors", OPENPI_BF16, NULL);
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
