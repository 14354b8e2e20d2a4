/* labels: cost */
/* A driver that is not there (fake_gpu.h) fails at any call: what the GPU backend says then, and that
 * everything taken is given back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fake_session.h"

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

/* Opening and closing again and again gives everything back. */
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
        cmocka_unit_test(test_failures_of_recording),
        cmocka_unit_test(test_failures),
        cmocka_unit_test(test_failures_of_uploads),
        cmocka_unit_test(test_out_of_memory_anywhere),
        cmocka_unit_test(test_lost),
        cmocka_unit_test(test_too_small),
        cmocka_unit_test(test_again_and_again),
    };
    return cmocka_run_group_tests_name("gpu faults", tests, NULL, NULL);
}
