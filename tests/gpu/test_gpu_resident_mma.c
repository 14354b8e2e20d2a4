/* labels: skips */
/* The denoise kernel that any tensor core runs, as a card has it whose kernels cannot start early: the same
 * actions as the ops' own kernels to rounding, the same bits every time, taken exactly where it is legal.
 * Without a GPU that can stand for such a card every test is counted and skipped. */
#include <string.h>

#include "long_run.h"
#include "relative.h"
#include "resident_calls.h"

enum { HORIZON = 17, PROMPT = 200, VALUES = HORIZON * OPENPI_ACTION_DIM };

static const char card[] = "rtx4090";
static const char *const full[] = {"full:pi0", "full:pi05"};

/* dims: NULL for those that the spec names. */
static openpi_engine *open_engine_of(const char *spec, const openpi_dims *dims, openpi_dtype dtype,
                                     int max_delay) {
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    must(openpi_synthetic_parse(spec, &synthetic, &error));
    synthetic.rtc_max_delay = max_delay;
    if (dims) synthetic.dims = *dims;
    return open_resident_as(card, NULL, &synthetic, dtype, SWITCH_PERSISTENT_DENOISE, "resident kernel");
}

static openpi_engine *open_engine(const char *spec, openpi_dtype dtype, int max_delay) {
    return open_engine_of(spec, NULL, dtype, max_delay);
}

static openpi_session *open_session(openpi_engine *engine, int resident, int batch, int horizon, int rtc) {
    openpi_session_options options = OPENPI_SESSION_OPTIONS_INIT;
    options.batch = batch;
    options.horizon = horizon;
    options.max_prompt = PROMPT;
    options.rtc = rtc;
    return open_switched(engine, SWITCH_PERSISTENT_DENOISE, resident, &options);
}

static int nodes(const openpi_session *session) {
    return session->engine->device->backend->nodes(session->kinds.recordings[CALL_ANY]);
}

static void run(openpi_session *session, inputs *in, const openpi_rtc *rtc, float *actions) {
    if (rtc) must(openpi_session_run_rtc(session, &in->sample, rtc, 1, in->noise, actions, NULL, &error));
    else must(openpi_session_run(session, &in->sample, 1, in->noise, actions, NULL, &error));
}

/* Draws of one to three cameras and any prompt. The plan launched op by op has the kernel in it, too. */
static void compare(openpi_engine *engine, const char *spec, int horizon, const openpi_rtc *rtc, int rounds) {
    static float resident[VALUES], plain[VALUES], again[VALUES];
    openpi_session *with = open_session(engine, 1, 1, horizon, rtc != NULL),
                   *without = open_session(engine, 0, 1, horizon, rtc != NULL);
    const size_t count = (size_t)(horizon * OPENPI_ACTION_DIM);
    double worst = 0;
    inputs *in = inputs_open(PROMPT, HORIZON);
    assert_true(nodes(with) < nodes(without));
    for (int round = 0; round < rounds; round++) {
        draw(in, ANY_CAMERAS);
        run(without, in, rtc, plain);
        run(with, in, rtc, resident);
        const double d = relative_difference(resident, plain, count);
        if (!(d <= worst)) worst = d;
        if (rtc) continue;
        struct recording *recording = with->kinds.recordings[CALL_ANY];
        with->kinds.recordings[CALL_ANY] = NULL;
        run(with, in, rtc, again);
        with->kinds.recordings[CALL_ANY] = recording;
        assert_memory_equal(resident, again, count * sizeof *again);
    }
    print_message("%s horizon %d%s: %.2e from the ops' kernels\n", spec, horizon, rtc ? " chunking" : "",
                  worst);
    inputs_close(in);
    openpi_session_close(with);
    openpi_session_close(without);
    if (!(worst <= 0.02)) fail_msg("%s horizon %d: differs by %.3g", spec, horizon, worst);
}

static void test_agrees(void **state) {
    static const int horizons[] = {1, 4, 10, 15, 16};
    (void)state;
    for (int i = 0; i < 2; i++) {
        openpi_engine *engine = open_engine(full[i], OPENPI_BF16, 0);
        if (!engine) skip();
        for (size_t h = 0; h < sizeof horizons / sizeof *horizons; h++)
            compare(engine, full[i], horizons[h], NULL, 8);
        openpi_engine_close(engine);
    }
}

/* After every step a guide pulls x; or the first actions are known. */
static void test_chunking(void **state) {
    static float previous[VALUES];
    openpi_rtc rtc = OPENPI_RTC_INIT;
    (void)state;
    openpi_noise(11, 0, previous, VALUES);
    rtc.previous = previous;
    rtc.dims = OPENPI_ACTION_DIM;
    rtc.delay = 2;
    rtc.rows = 8;
    for (int i = 0; i < 2; i++) {
        openpi_engine *engine = open_engine(full[i], OPENPI_BF16, i ? 3 : 0);
        if (!engine) skip();
        rtc.mode = OPENPI_RTC_GUIDED;
        compare(engine, full[i], 10, &rtc, 4);
        rtc.mode = OPENPI_RTC_TRAINED;
        if (i) compare(engine, full[i], 10, &rtc, 4);
        openpi_engine_close(engine);
    }
}

static void check_shape(openpi_engine *engine, int batch, int horizon, int expected) {
    openpi_session *with = open_session(engine, 1, batch, horizon, 0),
                   *without = open_session(engine, 0, batch, horizon, 0);
    if ((nodes(with) < nodes(without)) != expected)
        fail_msg("batch %d horizon %d: %d nodes with the resident kernel, %d without", batch, horizon,
                 nodes(with), nodes(without));
    openpi_session_close(with);
    openpi_session_close(without);
}

static void test_where_legal(void **state) {
    openpi_engine *engine = open_engine(full[0], OPENPI_BF16, 0);
    (void)state;
    if (!engine) skip();
    check_shape(engine, 1, 10, 1);
    check_shape(engine, 1, 16, 1);         /* all steps but the first, which has 17 rows                    */
    check_shape(engine, 1, 17, 0);
    check_shape(engine, 2, 5, 0);
    openpi_engine_close(engine);
    engine = open_engine(full[0], OPENPI_F32, 0);
    assert_non_null(engine);
    check_shape(engine, 1, 10, 0);
    openpi_engine_close(engine);
}

/* Two engines on one card, called at the same time: neither kernel may hold a part of the card that the other
 * one waits for. The same inputs give the same bits. */
static void call_two(const openpi_dims *dims, int calls) {
    static caller callers[2];
    openpi_engine *engines[2];
    for (int i = 0; i < 2; i++) {
        caller *c = &callers[i];
        *c = (caller){.calls = calls};
        if (!(engines[i] = open_engine_of(full[i], dims, OPENPI_BF16, 0))) skip();
        check_shape(engines[i], 1, 10, 1);
        c->session = open_session(engines[i], 1, 1, 10, 0);
        c->in = inputs_open(PROMPT, HORIZON);
        draw(c->in, ANY_CAMERAS);
        run(c->session, c->in, NULL, c->expected);
    }
    call_together(callers);
    for (int i = 0; i < 2; i++) {
        print_message("%s beside another: %d of %d calls differ or fail\n", full[i], callers[i].bad,
                      callers[i].calls);
        assert_int_equal(callers[i].bad, 0);
        openpi_session_close(callers[i].session);
        inputs_close(callers[i].in);
        openpi_engine_close(engines[i]);
    }
}

static void test_two_engines(void **state) {
    (void)state;
    call_two(NULL, long_run(300));
}

/* The expert as it is, all else as narrow as it goes: a call is little more than the resident kernel, so that
 * many calls take little time. */
static void test_two_experts(void **state) {
    static const openpi_dims dims = {
        .size = sizeof dims,
        .vision_width = 72,
        .vision_depth = 1,
        .vision_heads = 1,
        .vision_mlp = 24,
        .width = 24,
        .depth = 18,
        .heads = 8,
        .head_dim = 256,
        .mlp = 40,
        .expert_width = 1024,
        .expert_mlp = 4096,
        .vocab = 2048,
    };
    (void)state;
    call_two(&dims, long_run(1000));
}

/* An argument: the only test to run. */
int main(int argc, char **argv) {
    random_state = 5;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_agrees),
        cmocka_unit_test(test_chunking),
        cmocka_unit_test(test_where_legal),
        cmocka_unit_test(test_two_engines),
        cmocka_unit_test(test_two_experts),
    };
    return verdict(cmocka_run_group_tests_name("gpu resident_mma", tests, NULL, NULL));
}
