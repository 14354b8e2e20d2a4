/* Memory runs out somewhere on the ladder, at hundreds of places from the first engine to the last call: it
 * must come back with OPENPI_NO_MEMORY and a sentence, and leave nothing behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "allocator.h"
#include "lab/measure/ladder.h"

#if ALLOCATOR

static openpi_status climb(openpi_synthetic *model, openpi_error *error) {
    ladder_report r;
    ladder_job job = {.engine = OPENPI_ENGINE_OPTIONS_INIT,
                      .session = OPENPI_SESSION_OPTIONS_INIT,
                      .call = {.batch = 1, .cameras = {1, 0, 0}, .prompt = 2, .seed = 1},
                      .runs = 1};
    job.engine.synthetic = model;
    job.engine.threads = 1;
    job.engine.dtype = OPENPI_F32;
    job.session.steps = 1;
    job.session.horizon = 2;
    job.session.max_prompt = 2;
    openpi_status status = ladder_run(&job, &r, error);
    if (status == OPENPI_OK) assert_int_equal(r.failed, 0);
    return status;
}

static void memory_runs_out(void **state) {
    (void)state;
    static const char dims[] = "{\"vision\": [72, 1, 1, 24], \"vlm\": [24, 2, 2, 32, 40], \"expert\": [16, "
                               "24], \"vocab\": 2048}";
    openpi_synthetic model = {.size = sizeof(openpi_synthetic), .dims = OPENPI_DIMS_INIT,
                              .variant = OPENPI_PI05, .seed = 7};
    openpi_error error = OPENPI_ERROR_INIT;
    int tried = 0;
    assert_int_equal(openpi_dims_parse(dims, &model.dims, &error), OPENPI_OK);
    if (climb(&model, &error) != OPENPI_OK) fail_msg("%s", error.message);
    for (long long n = 1;; n += 1 + n / 12, tried++) {
        long long blocks = atomic_load(&allocator_blocks);
        error = (openpi_error)OPENPI_ERROR_INIT;
        atomic_store(&allocator_calls, 0);
        atomic_store(&allocator_failed, 0);
        atomic_store(&allocator_fail_at, n);
        openpi_status status = climb(&model, &error);
        atomic_store(&allocator_fail_at, 0);
        if (!atomic_load(&allocator_failed)) break;
        /* What runs without, such as a file of /proc that may be absent, may do so. */
        if (status != OPENPI_OK && (status != OPENPI_NO_MEMORY || !error.message[0]))
            fail_msg("request %lld: %d, \"%s\"", n, (int)status, error.message);
        if (atomic_load(&allocator_blocks) > blocks)
            fail_msg("request %lld: %lld blocks are left", n, atomic_load(&allocator_blocks) - blocks);
    }
    assert_true(tried > 60);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(memory_runs_out)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void) { return without_allocator(); }

#endif
