/* Memory runs out at the n-th request, for every n, in a profile and a trace: each must come
 * back with OPENPI_NO_MEMORY and a sentence, leave nothing behind, and leave the session as it was. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "allocator.h"
#include "lab/measure/profile.h"
#include "lab/measure/trace.h"
#include "openpi_internal.h"

#if ALLOCATOR

static openpi_engine *engine;
static openpi_session *session;
static openpi_policy *policy;
static const workload call = {.batch = 1, .cameras = {1, 0, 0}, .prompt = 3, .seed = 1};

static openpi_status run_profile(openpi_error *error) {
    profile_options options = {.call = call, .warmup = 0, .runs = 1};
    profile p;
    openpi_status status = profile_run(session, &options, NULL, &p, error);
    if (status == OPENPI_OK) assert_int_equal(p.count, session->plan->count);
    profile_free(&p);
    return status;
}

static openpi_status run_trace(openpi_error *error) {
    trace_options options = {.call = call, .calls = 2, .policy = policy};
    trace t;
    openpi_status status = trace_run(session, &options, &t, error);
    if (status == OPENPI_OK) assert_true(t.count == 2 && t.policy);
    trace_free(&t);
    return status;
}

static void fail_everywhere(openpi_status (*scenario)(openpi_error *)) {
    openpi_error error = OPENPI_ERROR_INIT;
    assert_int_equal(scenario(&error), OPENPI_OK); /* what the first use keeps, a driver's or libc's  */
    for (long long n = 1;; n++) {
        long long blocks = atomic_load(&allocator_blocks);
        error = (openpi_error)OPENPI_ERROR_INIT;
        atomic_store(&allocator_calls, 0);
        atomic_store(&allocator_failed, 0);
        atomic_store(&allocator_fail_at, n);
        openpi_status status = scenario(&error);
        atomic_store(&allocator_fail_at, 0);
        if (!atomic_load(&allocator_failed)) {
            assert_int_equal(status, OPENPI_OK);
            assert_true(n > 3);
            return;
        }
        if (status != OPENPI_NO_MEMORY || !error.message[0]) {
            /* What runs without (opening a folder or a library that may be absent) may do so. */
            if (status != OPENPI_OK)
                fail_msg("request %lld: status %d, \"%s\"", n, (int)status, error.message);
        }
        assert_null(session->on_run);
        if (atomic_load(&allocator_blocks) > blocks)
            fail_msg("request %lld: %lld blocks are left", n, atomic_load(&allocator_blocks) - blocks);
    }
}

static void test_profile(void **state) {
    (void)state;
    fail_everywhere(run_profile);
}

static void test_trace(void **state) {
    (void)state;
    fail_everywhere(run_trace);
}

static int open_all(void **state) {
    (void)state;
    static const char dims[] =
        "{\"vision\": [72, 1, 1, 24], \"vlm\": [24, 2, 2, 32, 40], \"expert\": [16, 24], \"vocab\": 2048}";
    openpi_synthetic model = {.size = sizeof(openpi_synthetic), .dims = OPENPI_DIMS_INIT,
                              .variant = OPENPI_PI0, .seed = 7};
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    openpi_session_options shape = OPENPI_SESSION_OPTIONS_INIT;
    openpi_policy_options words = OPENPI_POLICY_OPTIONS_INIT;
    options.synthetic = words.synthetic = &model;
    options.threads = 1;
    shape.steps = 1;
    shape.horizon = 2;
    shape.max_prompt = 4;
    words.max_prompt = 3;
    return openpi_dims_parse(dims, &model.dims, NULL) || openpi_engine_open(NULL, &options, &engine, NULL) ||
           openpi_session_create(engine, &shape, &session, NULL) ||
           openpi_policy_open(NULL, &words, &policy, NULL);
}

static int close_all(void **state) {
    (void)state;
    openpi_policy_close(policy);
    openpi_session_close(session);
    openpi_engine_close(engine);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_profile), cmocka_unit_test(test_trace)};
    return cmocka_run_group_tests(tests, open_all, close_all);
}

#else

int main(void) { return without_allocator(); }

#endif
