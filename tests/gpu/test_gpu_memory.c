/* labels: skips */
/* An engine on the GPU for long: nothing grows, nothing changes, and what openpi says it takes is what is
 * gone. Without a GPU every test is counted and skipped, with the reason. */
#include "gpu_engine.h"
#include "long_run.h"

enum { OPENS = 200, CALLS = 10000, KINDS = 8 };

/* Opening and closing gives everything back. */
static void test_open_close(void **state) {
    openpi_engine *keeper, *engine;
    size_t before = 0, after = 0;
    const int opens = long_run(OPENS);
    (void)state;
    if (!open_engine("tiny:pi0", OPENPI_BF16, &keeper)) skip();
    for (int i = 0; i <= opens; i++) {
        openpi_session *session;
        if (!open_engine(i & 1 ? "tiny:pi05" : "tiny:pi0", OPENPI_BF16, &engine)) skip();
        must(openpi_session_create(engine, NULL, &session, &error));
        openpi_session_close(session);
        openpi_engine_close(engine);
        if (!i) before = free_bytes(keeper);
        after = free_bytes(keeper);
        if (i) tell_progress("engines opened and closed", i, OPENS);
    }
    print_message("free after 1 engine and after %d more: %zu and %zu bytes\n", opens, before, after);
    assert_true(after + (2u << 20) >= before);
    openpi_engine_close(keeper);
}

/* Ten thousand calls, or more in a longer run, whose prompts, cameras and pictures change every time: the
 * same inputs give the same bits. */
static void test_many_calls(void **state) {
    openpi_engine *engine;
    openpi_session *session;
    openpi_session_options options = OPENPI_SESSION_OPTIONS_INIT;
    static inputs kinds[KINDS];
    static float expected[KINDS][HORIZON * OPENPI_ACTION_DIM], actions[HORIZON * OPENPI_ACTION_DIM];
    size_t before = 0;
    const int calls = long_run(CALLS);
    int bad = 0;
    (void)state;
    if (!open_engine("tiny:pi0", OPENPI_BF16, &engine)) skip();
    options.horizon = HORIZON;
    options.max_prompt = PROMPT;
    must(openpi_session_create(engine, &options, &session, &error));
    for (int k = 0; k < KINDS; k++) {
        kinds[k].images = malloc((size_t)BATCH * OPENPI_CAMERAS * PIXELS);
        draw(&kinds[k]);
        must(openpi_session_run(session, kinds[k].samples, 1, kinds[k].noise, expected[k], NULL, &error));
    }
    for (int i = 0; i < calls; i++) {
        int k = (int)(next_random() % KINDS);
        must(openpi_session_run(session, kinds[k].samples, 1, kinds[k].noise, actions, NULL, &error));
        bad += memcmp(actions, expected[k], sizeof actions) != 0;
        if (!i) before = free_bytes(engine);
        tell_progress("tiny calls", i + 1, CALLS);
    }
    print_message("%d of %d calls differ\n", bad, calls);
    assert_int_equal(bad, 0);
    assert_int_equal(free_bytes(engine), before);
    for (int k = 0; k < KINDS; k++) free(kinds[k].images);
    openpi_session_close(session);
    openpi_engine_close(engine);
}

/* What the driver says is in use is what openpi says it asked for, to the driver's grain of 2 MiB an
 * allocation. Two engines' difference leaves out what opening one takes besides, its kernels; a graph's
 * memory is the driver's own. */
static void test_bytes(void **state) {
    static const char *const specs[] = {"tiny:pi0", "tiny:pi0", "full:pi0", "full:pi0"};
    enum { OPENED = 4 }; /* of each kind the second: the first time the driver grows by itself */
    openpi_engine *keeper;
    size_t grain = 2u << 20, asked[OPENED], gone[OPENED];
    (void)state;
    if (!open_engine("tiny:pi0", OPENPI_BF16, &keeper)) skip();
    for (int i = 0; i < OPENED; i++) {
        openpi_engine *engine;
        openpi_session *session;
        openpi_session_info info = OPENPI_SESSION_INFO_INIT;
        size_t start = free_bytes(keeper);
        assert_true(open_engine(specs[i], OPENPI_BF16, &engine));
        size_t loaded = free_bytes(keeper);
        must(openpi_session_create(engine, NULL, &session, &error));
        size_t replayed = free_bytes(keeper),
               buffers = session->plan->device_bytes + session->kinds.work_bytes;
        openpi_session_get_info(session, &info, NULL);
        assert_int_equal(info.bytes, buffers + session->in.bytes);
        openpi_session_close(session);
        asked[i] = engine->model->bytes;
        gone[i] = start - loaded;
        print_message("%s: weights %zu asked, %zu gone; session %zu asked, %zu gone with its graph\n",
                      specs[i], asked[i], gone[i], buffers, loaded - replayed);
        assert_true(loaded - replayed + 2 * grain >= buffers);
        assert_true(i < 2 || start - replayed < 6600000000u);
        openpi_engine_close(engine);
        size_t kept = start > free_bytes(keeper) ? start - free_bytes(keeper) : 0;
        print_message("%s: %zu kept after closing\n", specs[i], kept);
        assert_true(i < 3 ||
                    kept <= 2 * grain); /* the first time the driver keeps some for the next graphs */
    }
    size_t more = gone[3] - gone[1], expected = asked[3] - asked[1];
    assert_true(more + grain >= expected && more <= expected + grain);

    openpi_engine *engine = keeper;        /* without a graph: the session's two blocks and nothing else */
    openpi_session *session;
    engine->device->backend->set_off(engine->device, 1u << SWITCH_GRAPH_REPLAY);
    size_t before = free_bytes(engine);
    must(openpi_session_create(engine, NULL, &session, &error));
    size_t taken = before - free_bytes(engine),
           buffers = session->plan->device_bytes + session->kinds.work_bytes;
    print_message("session without a graph: %zu asked, %zu gone\n", buffers, taken);
    assert_true(taken + 2 * grain >= buffers && taken <= buffers + 2 * grain);
    openpi_session_close(session);
    openpi_engine_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open_close),
        cmocka_unit_test(test_many_calls),
        cmocka_unit_test(test_bytes),
    };
    return verdict(cmocka_run_group_tests_name("gpu memory", tests, NULL, NULL));
}
