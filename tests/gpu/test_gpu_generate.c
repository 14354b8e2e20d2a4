/* labels: skips */
/* Synthetic weights made on the GPU are those made on the host, byte for byte. Without a GPU every test is
 * counted and skipped, with the reason. */
#include "generated_matrix.h"

extern const backend backend_cuda;

static openpi_error error = OPENPI_ERROR_INIT;
static int without_gpu;

static device *open_device(pool **threads) {
    device_options options = {0};
    device *device = NULL;
    *threads = NULL;
    generated_ok(pool_create(0, 0, threads, &error), &error);
    options.pool = *threads;
    openpi_status status = backend_cuda.open("cuda:0", &options, &device, &error);
    if (status == OPENPI_OK) return device;
    pool_close(*threads);
    if (status != OPENPI_NO_DEVICE) fail_msg("%s", error.message);
    print_message("skipped: %s\n", error.message);
    without_gpu = 1;
    return NULL;
}

static void close_device(device *device, pool *threads) {
    device->backend->close(device);
    pool_close(threads);
}

static void test_matrices(void **state) {
    pool *threads;
    device *device = open_device(&threads);
    (void)state;
    if (!device) skip();
    check_generated_cases(device);
    close_device(device, threads);
}

/* Small models whole; one layer of each stack at full width. */
static void test_models(void **state) {
    static const char *const specs[] = {"tiny:pi0", "tiny:pi05", "odd:pi0",
                                        "odd:pi05", "full:pi0",  "full:pi05"};
    pool *threads;
    device *device = open_device(&threads);
    (void)state;
    if (!device) skip();
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
        checkpoint *weights = NULL;
        generated_ok(openpi_synthetic_parse(specs[i], &synthetic, &error), &error);
        if (i >= 4) synthetic.dims.depth = synthetic.dims.vision_depth = 1;
        generated_ok(checkpoint_open(NULL, &synthetic, &weights, &error), &error);
        check_generated_model(device, threads, weights, 0, specs[i]);
        check_generated_model(device, threads, weights, MODEL_SWITCHES, specs[i]);
        checkpoint_close(weights);
    }
    close_device(device, threads);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matrices),
        cmocka_unit_test(test_models),
    };
    int failed = cmocka_run_group_tests_name("gpu generate", tests, NULL, NULL);
    return failed ? failed : without_gpu ? 77 : 0;
}
