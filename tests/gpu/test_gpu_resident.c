/* labels: skips */
/* The resident denoise kernels against the ops' own kernels: the same actions to rounding, the same bits
 * every time, and taken exactly where they are legal. Without a GPU, or on one that is no Hopper, every test
 * is counted and skipped. */
#include <string.h>

#include "long_run.h"
#include "relative.h"
#include "resident_calls.h"

enum { HORIZON = 64, PROMPT = 200, VALUES = HORIZON * OPENPI_ACTION_DIM };

/* What the expert's weights are in the tests that run with both. */
static const char *const formats[] = {NULL, "expert=int8"};
enum { WEIGHTS = 2 };

/* An engine whose device may run the resident kernel, or NULL. max_delay: of trained chunking. format: of the
 * weights. */
static openpi_engine *open_trained(const char *spec, openpi_dtype dtype, int max_delay, const char *format) {
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    must(openpi_synthetic_parse(spec, &synthetic, &error));
    synthetic.rtc_max_delay = max_delay;
    return open_resident_as(NULL, format, &synthetic, dtype, SWITCH_PERSISTENT_DENOISE, "resident kernel");
}

static openpi_engine *open_engine(const char *spec, openpi_dtype dtype) {
    return open_trained(spec, dtype, 0, NULL);
}

/* A session with or without the resident kernel. */
static openpi_session *open_chunking(openpi_engine *engine, int resident, int batch, int horizon, int steps,
                                     int rtc) {
    openpi_session_options options = OPENPI_SESSION_OPTIONS_INIT;
    options.batch = batch;
    options.horizon = horizon;
    options.steps = steps;
    options.max_prompt = PROMPT;
    options.rtc = rtc;
    return open_switched(engine, SWITCH_PERSISTENT_DENOISE, resident, &options);
}

static openpi_session *open_session(openpi_engine *engine, int resident, int batch, int horizon, int steps) {
    return open_chunking(engine, resident, batch, horizon, steps, 0);
}

static int nodes_of(const openpi_session *session, const call_kinds *kinds) {
    return session->engine->device->backend->nodes(kinds->recordings[CALL_ANY]);
}

static int nodes(const openpi_session *session) { return nodes_of(session, &session->kinds); }

/* Taken: one kernel instead of several a layer. */
static void check_shape(openpi_engine *engine, const char *spec, int batch, int horizon, int steps,
                        int expected) {
    openpi_session *with = open_session(engine, 1, batch, horizon, steps),
                   *without = open_session(engine, 0, batch, horizon, steps);
    int taken = nodes(with) < nodes(without);
    if (taken != expected)
        fail_msg("%s batch %d horizon %d: %d nodes with the resident kernel, %d without", spec, batch,
                 horizon, nodes(with), nodes(without));
    openpi_session_close(with);
    openpi_session_close(without);
}

static void compare(openpi_engine *engine, const char *spec, int horizon, int steps, int rounds,
                    double bound) {
    static float resident[VALUES], plain[VALUES], again[VALUES];
    openpi_session *with = open_session(engine, 1, 1, horizon, steps),
                   *without = open_session(engine, 0, 1, horizon, steps);
    size_t count = (size_t)(horizon * OPENPI_ACTION_DIM);
    double worst = 0;
    inputs *in = inputs_open(PROMPT, HORIZON);
    assert_true(nodes(with) < nodes(without));
    for (int round = 0; round < rounds; round++) {
        draw(in, ANY_CAMERAS);
        must(openpi_session_run(without, &in->sample, 1, in->noise, plain, NULL, &error));
        must(openpi_session_run(with, &in->sample, 1, in->noise, resident, NULL, &error));
        double d = relative_difference(resident, plain, count);
        if (!(d <= worst)) worst = d;
        /* The plan launched op by op has the kernel in it too. */
        struct recording *recording = with->kinds.recordings[CALL_ANY];
        with->kinds.recordings[CALL_ANY] = NULL;
        must(openpi_session_run(with, &in->sample, 1, in->noise, again, NULL, &error));
        with->kinds.recordings[CALL_ANY] = recording;
        assert_memory_equal(resident, again, count * sizeof *again);
    }
    print_message("%s horizon %d steps %d: %.2e from the ops' kernels\n", spec, horizon, steps, worst);
    inputs_close(in);
    openpi_session_close(with);
    openpi_session_close(without);
    if (!(worst <= bound))
        fail_msg("%s horizon %d steps %d: differs by %.3g, expected %.3g at most", spec, horizon, steps,
                 worst, bound);
}

static const char *const full[] = {"full:pi0", "full:pi05"};

static void agrees(const char *format) {
    static const int horizons[] = {1, 4, 10, 11, 12, 15, 16}, steps[] = {1, 10};
    for (int i = 0; i < 2; i++) {
        openpi_engine *engine = open_trained(full[i], OPENPI_BF16, 0, format);
        if (!engine) skip();
        for (size_t h = 0; h < sizeof horizons / sizeof *horizons; h++)
            for (int s = 0; s < 2; s++)            /* π0's first step has a row more */
                if (i || horizons[h] < 16 || steps[s] > 1)
                    compare(engine, full[i], horizons[h], steps[s], 3, 0.02);
        openpi_engine_close(engine);
    }
}

static void test_agrees(void **state) {
    (void)state;
    agrees(NULL);
}

/* With int8 weights the ops' kernels are few_mma_int8's. */
static void test_int8(void **state) {
    (void)state;
    agrees("expert=int8");
}

/* More than 16 rows have a kernel of their own, a launch a step. 8 draws each: how many keys a part has, and
 * whether they are new, differs from draw to draw. */
static void test_long_horizons(void **state) {
    static const int horizons[] = {17, 24, 31, 32, 33, 47, 48, 50, 54}, steps[] = {1, 10};
    (void)state;
    for (int i = 0; i < 2; i++) {
        openpi_engine *engine = open_engine(full[i], OPENPI_BF16);
        if (!engine) skip();
        for (size_t h = 0; h < sizeof horizons / sizeof *horizons; h++)
            for (int s = 0; s < 2; s++) compare(engine, full[i], horizons[h], steps[s], 8, 0.02);
        openpi_engine_close(engine);
    }
}

/* The same with the most rows, for which the prompt must be shorter, and with every prompt about where new
 * keys begin a part. */
static void test_most_rows(void **state) {
    static float resident[VALUES], plain[VALUES];
    (void)state;
    for (int i = 0; i < 2; i++) {
        const int horizon = 63;            /* and the state token, or the shift                             */
        openpi_engine *engine = open_engine(full[i], OPENPI_BF16);
        if (!engine) skip();
        openpi_session *sessions[2];
        for (int with = 0; with < 2; with++) {
            openpi_session_options options = OPENPI_SESSION_OPTIONS_INIT;
            options.horizon = horizon;
            options.steps = 2;
            options.max_prompt = 150;
            sessions[with] = open_switched(engine, SWITCH_PERSISTENT_DENOISE, with, &options);
        }
        assert_true(nodes(sessions[1]) < nodes(sessions[0]));
        inputs *in = inputs_open(150, HORIZON);
        double worst = 0;
        draw(in, 1);
        for (int tokens = 58; tokens <= 72; tokens++) {
            in->sample.token_count = tokens;
            must(openpi_session_run(sessions[0], &in->sample, 1, in->noise, plain, NULL, &error));
            must(openpi_session_run(sessions[1], &in->sample, 1, in->noise, resident, NULL, &error));
            double d = relative_difference(resident, plain, (size_t)horizon * OPENPI_ACTION_DIM);
            if (!(d <= worst)) worst = d;
        }
        print_message("%s horizon %d: %.2e from the ops' kernels\n", full[i], horizon, worst);
        inputs_close(in);
        openpi_session_close(sessions[0]);
        openpi_session_close(sessions[1]);
        openpi_engine_close(engine);
        assert_true(worst <= 0.02);
    }
}

enum { MOST_BATCH = 8, FEW_SAMPLES = 4, WIDE_LEAST = 60, WIDE_MOST = 96 };

/* Several samples. */
typedef struct several {
    inputs *in[MOST_BATCH];
    openpi_sample samples[MOST_BATCH];
    float noise[MOST_BATCH * VALUES];
} several;

static void open_several(several *s) {
    for (int b = 0; b < MOST_BATCH; b++) s->in[b] = inputs_open(PROMPT, HORIZON);
}

static void close_several(several *s) {
    for (int b = 0; b < MOST_BATCH; b++) inputs_close(s->in[b]);
}

/* So many of them, in this order or the other way round. */
static void line_up(several *s, int used, size_t count, int turned) {
    for (int b = 0; b < used; b++) {
        const inputs *in = s->in[turned ? used - 1 - b : b];
        s->samples[b] = in->sample;
        memcpy(s->noise + (size_t)b * count, in->noise, count * sizeof *in->noise);
    }
}

/* Every number of samples up to the batch, of more than four every third, each sample another one. A sample's
 * place does not show. */
static void compare_batch(several *s, openpi_engine *engine, const char *spec, int batch, int horizon,
                          int steps) {
    static float resident[MOST_BATCH * VALUES], plain[MOST_BATCH * VALUES], turned[MOST_BATCH * VALUES];
    openpi_session *with = open_session(engine, 1, batch, horizon, steps),
                   *without = open_session(engine, 0, batch, horizon, steps);
    const size_t count = (size_t)(horizon * OPENPI_ACTION_DIM);
    double worst = 0;
    assert_true(nodes(with) < nodes(without));
    for (int used = batch; used > 0; used -= batch > FEW_SAMPLES ? 3 : 1) {
        for (int b = 0; b < used; b++) draw(s->in[b], ANY_CAMERAS);
        line_up(s, used, count, 1);
        must(openpi_session_run(with, s->samples, used, s->noise, turned, NULL, &error));
        line_up(s, used, count, 0);
        must(openpi_session_run(without, s->samples, used, s->noise, plain, NULL, &error));
        must(openpi_session_run(with, s->samples, used, s->noise, resident, NULL, &error));
        for (int b = 0; b < used; b++) {
            double d = relative_difference(resident + (size_t)b * count, plain + (size_t)b * count, count);
            if (!(d <= worst)) worst = d;
            if (memcmp(resident + (size_t)b * count, turned + (size_t)(used - 1 - b) * count,
                       count * sizeof *turned))
                fail_msg("%s batch %d horizon %d: sample %d of %d is another one as sample %d", spec, batch,
                         horizon, b, used, used - 1 - b);
        }
    }
    print_message("%s batch %d horizon %d steps %d: %.2e from the ops' kernels\n", spec, batch, horizon,
                  steps, worst);
    openpi_session_close(with);
    openpi_session_close(without);
    if (!(worst <= 0.02))
        fail_msg("%s batch %d horizon %d steps %d: differs by %.3g, expected 0.02 at most", spec, batch,
                 horizon, steps, worst);
}

/* Two to eight samples have a launch a step: up to 64 rows one kernel, more another one. With its state token
 * a first step has a row more a sample, or a step has its shift. */
static void test_batches(void **state) {
    static const int horizons[] = {1, 7, 8, 9, 10, 11, 15};
    static several s;
    (void)state;
    open_several(&s);
    for (int i = 0; i < 2; i++) {
        openpi_engine *engine = open_engine(full[i], OPENPI_BF16);
        if (!engine) skip();
        for (int batch = 2; batch <= MOST_BATCH; batch++)
            for (int h = 0; h < 7; h++) {
                if (batch > FEW_SAMPLES && batch * horizons[h] < WIDE_LEAST) continue;
                if (batch * (horizons[h] + !i) + i > WIDE_MOST) continue;
                compare_batch(&s, engine, full[i], batch, horizons[h], horizons[h] == 10 ? 10 : 2);
            }
        openpi_engine_close(engine);
    }
    close_several(&s);
}

/* Real-time chunking: after every step a guide pulls x, or the first actions are known. */
static void test_chunking(void **state) {
    enum { STEPS = 7, DELAY = 3, CASES = 9 };
    static const struct {
        int spec, horizon;
        openpi_rtc_mode mode;
    } cases[CASES] = {{0, 10, OPENPI_RTC_GUIDED},  {0, 16, OPENPI_RTC_GUIDED},  {1, 10, OPENPI_RTC_GUIDED},
                      {1, 16, OPENPI_RTC_GUIDED},  {1, 10, OPENPI_RTC_TRAINED}, {1, 15, OPENPI_RTC_TRAINED},
                      {1, 16, OPENPI_RTC_TRAINED}, {0, 50, OPENPI_RTC_GUIDED},  {1, 50, OPENPI_RTC_GUIDED}};
    static const openpi_rtc_schedule schedules[] = {OPENPI_RTC_LINEAR, OPENPI_RTC_EXP, OPENPI_RTC_ONES,
                                                    OPENPI_RTC_ZEROS};
    static float resident[VALUES], plain[VALUES], again[VALUES], previous[VALUES];
    (void)state;
    for (int n = 0; n < CASES * WEIGHTS; n++) {
        const int i = n / WEIGHTS, spec = cases[i].spec, horizon = cases[i].horizon;
        const size_t count = (size_t)(horizon * OPENPI_ACTION_DIM);
        double worst = 0;
        if (n % WEIGHTS && horizon > 16) continue;         /* int8 has no kernel for more rows             */
        openpi_engine *engine = open_trained(full[spec], OPENPI_BF16, spec ? DELAY : 0,
                                             formats[n % WEIGHTS]);
        if (!engine) skip();
        openpi_session *with = open_chunking(engine, 1, 1, horizon, STEPS, 1),
                       *without = open_chunking(engine, 0, 1, horizon, STEPS, 1);
        const int kind = cases[i].mode == OPENPI_RTC_GUIDED ? PLAN_GUIDED : PLAN_TRAINED;
        openpi_rtc rtc = OPENPI_RTC_INIT;
        inputs *in = inputs_open(PROMPT, HORIZON);
        assert_true(nodes_of(with, &with->more_kinds[kind]) < nodes_of(without, &without->more_kinds[kind]));
        rtc.mode = cases[i].mode;
        rtc.previous = previous;
        rtc.dims = OPENPI_ACTION_DIM;
        for (int round = 0; round < 8; round++) {
            draw(in, ANY_CAMERAS);
            openpi_noise(7 + (uint64_t)round, 0, previous, VALUES);
            rtc.delay = round % (DELAY + 1);
            rtc.rows = horizon - rtc.delay;
            rtc.schedule = schedules[round % 4];
            must(openpi_session_run_rtc(without, &in->sample, &rtc, 1, in->noise, plain, NULL, &error));
            must(openpi_session_run_rtc(with, &in->sample, &rtc, 1, in->noise, resident, NULL, &error));
            double d = relative_difference(resident, plain, count);
            if (!(d <= worst)) worst = d;
            /* A call without a previous chunk in between: nothing of this one is left in it. */
            must(openpi_session_run(with, &in->sample, 1, in->noise, again, NULL, &error));
            must(openpi_session_run_rtc(with, &in->sample, &rtc, 1, in->noise, again, NULL, &error));
            assert_memory_equal(again, resident, count * sizeof *again);
        }
        print_message("%s horizon %d mode %d: %.2e from the ops' kernels\n", full[spec], horizon,
                      (int)cases[i].mode, worst);
        openpi_session_close(with);
        openpi_session_close(without);
        openpi_engine_close(engine);
        inputs_close(in);
        assert_true(worst <= 0.02);
    }
}

/* A guided sample among ordinary ones: these have the bits of an ordinary call. */
static void test_neighbours(void **state) {
    enum { BATCH = 3, ACTIONS = 10, COUNT = ACTIONS * OPENPI_ACTION_DIM };
    static float ordinary[BATCH * COUNT], beside[BATCH * COUNT], previous[COUNT];
    static several s;
    (void)state;
    open_several(&s);
    for (int i = 0; i < 2; i++) {
        openpi_engine *engine = open_engine(full[i], OPENPI_BF16);
        openpi_rtc rtc[BATCH] = {OPENPI_RTC_INIT, OPENPI_RTC_INIT, OPENPI_RTC_INIT};
        if (!engine) skip();
        openpi_session *session = open_chunking(engine, 1, BATCH, ACTIONS, 10, 1);
        openpi_noise(11, 0, previous, COUNT);
        rtc[1].mode = OPENPI_RTC_GUIDED;
        rtc[1].previous = previous;
        rtc[1].dims = OPENPI_ACTION_DIM;
        rtc[1].delay = 2;
        rtc[1].rows = ACTIONS - 2;
        for (int b = 0; b < BATCH; b++) draw(s.in[b], ANY_CAMERAS);
        line_up(&s, BATCH, COUNT, 0);
        must(openpi_session_run(session, s.samples, BATCH, s.noise, ordinary, NULL, &error));
        must(openpi_session_run_rtc(session, s.samples, rtc, BATCH, s.noise, beside, NULL, &error));
        assert_memory_equal(beside, ordinary, COUNT * sizeof *beside);
        assert_memory_not_equal(beside + COUNT, ordinary + COUNT, COUNT * sizeof *beside);
        assert_memory_equal(beside + 2 * COUNT, ordinary + 2 * COUNT, COUNT * sizeof *beside);
        openpi_session_close(session);
        openpi_engine_close(engine);
    }
    close_several(&s);
}

/* Too many samples, too many rows, fp32 or other sizes stay with the ops' kernels. */
static void test_where_legal(void **state) {
    (void)state;
    openpi_engine *engine = open_engine("full:pi0", OPENPI_BF16);
    if (!engine) skip();
    check_shape(engine, "full:pi0", 1, 15, 10, 1);
    check_shape(engine, "full:pi0", 1, 16, 10, 1);         /* the first step has 17 rows */
    check_shape(engine, "full:pi0", 1, 17, 10, 1);
    check_shape(engine, "full:pi0", 1, 54, 10, 1);
    check_shape(engine, "full:pi0", 1, 60, 10, 0);         /* more than 1,024 keys with 200 tokens */
    check_shape(engine, "full:pi0", 2, 5, 10, 1);
    check_shape(engine, "full:pi0", 4, 15, 10, 1);         /* the first step has 64 rows */
    check_shape(engine, "full:pi0", 5, 10, 10, 0);
    check_shape(engine, "full:pi0", 5, 12, 10, 1);         /* 60 rows */
    check_shape(engine, "full:pi0", 6, 15, 10, 1);         /* the first step has 96 rows */
    check_shape(engine, "full:pi0", 8, 11, 10, 1);
    check_shape(engine, "full:pi0", 9, 9, 10, 0);
    openpi_engine_close(engine);
    engine = open_engine("full:pi05", OPENPI_BF16);
    assert_non_null(engine);
    check_shape(engine, "full:pi05", 1, 15, 10, 1);
    check_shape(engine, "full:pi05", 1, 16, 10, 1);        /* with its shift 17 rows */
    check_shape(engine, "full:pi05", 1, 17, 10, 1);
    check_shape(engine, "full:pi05", 1, 55, 10, 1);
    check_shape(engine, "full:pi05", 2, 17, 10, 0);
    check_shape(engine, "full:pi05", 2, 50, 10, 0);
    check_shape(engine, "full:pi05", 3, 16, 10, 1);
    check_shape(engine, "full:pi05", 4, 16, 10, 1);        /* with the shift 65 rows */
    check_shape(engine, "full:pi05", 6, 16, 10, 0);        /* 97 */
    check_shape(engine, "full:pi05", 8, 11, 10, 1);
    check_shape(engine, "full:pi05", 8, 12, 10, 0);
    openpi_engine_close(engine);
    engine = open_trained("full:pi05", OPENPI_BF16, 0, "expert=int8");
    assert_non_null(engine);
    check_shape(engine, "full:pi05 int8", 1, 11, 10, 1);
    check_shape(engine, "full:pi05 int8", 1, 16, 10, 1);
    check_shape(engine, "full:pi05 int8", 1, 17, 10, 0);
    check_shape(engine, "full:pi05 int8", 2, 10, 10, 0);
    openpi_engine_close(engine);
    engine = open_trained("full:pi05", OPENPI_BF16, 0, "int8x8");
    assert_non_null(engine);
    check_shape(engine, "full:pi05 int8x8", 1, 10, 10, 0);
    openpi_engine_close(engine);
    engine = open_engine("tiny:pi0", OPENPI_BF16);
    assert_non_null(engine);
    check_shape(engine, "tiny:pi0", 1, 10, 10, 0);
    openpi_engine_close(engine);
    engine = open_engine("full:pi0", OPENPI_F32);
    assert_non_null(engine);
    check_shape(engine, "full:pi0 f32", 1, 10, 10, 0);
    openpi_engine_close(engine);
}

enum { REPEATS = 500, REPEATS_AT_ONCE = 200 };

/* Sessions in turn, five hundred times or more: the same inputs give the same bits. */
static void repeats(const char *spec, const char *format) {
    enum { SESSIONS = 8 };
    static const int horizons[SESSIONS] = {10, 15, 16, 20, 50, 10, 10, 10},
                     batches[SESSIONS] = {1, 1, 1, 1, 1, 2, FEW_SAMPLES, MOST_BATCH};
    static several s[SESSIONS];
    static float expected[SESSIONS][MOST_BATCH * VALUES], actions[MOST_BATCH * VALUES];
    const int times = long_run(REPEATS);
    openpi_session *sessions[SESSIONS];
    openpi_engine *engine = open_trained(spec, OPENPI_BF16, 0, format);
    int bad = 0;
    if (!engine) skip();
    for (int i = 0; i < SESSIONS; i++) {
        sessions[i] = open_session(engine, 1, batches[i], horizons[i], 10);
        open_several(&s[i]);
        for (int b = 0; b < batches[i]; b++) draw(s[i].in[b], ANY_CAMERAS);
        line_up(&s[i], batches[i], (size_t)(horizons[i] * OPENPI_ACTION_DIM), 0);
        must(openpi_session_run(sessions[i], s[i].samples, batches[i], s[i].noise, expected[i], NULL,
                                &error));
    }
    for (int n = 0; n < times; n++) {
        const int i = (int)(next_random() % SESSIONS);
        must(openpi_session_run(sessions[i], s[i].samples, batches[i], s[i].noise, actions, NULL, &error));
        bad += memcmp(actions, expected[i],
                      (size_t)(batches[i] * horizons[i] * OPENPI_ACTION_DIM) * sizeof *actions) != 0;
        tell_progress(spec, n + 1, REPEATS);
    }
    print_message("%s: %d of %d replays differ\n", spec, bad, times);
    for (int i = 0; i < SESSIONS; i++) {
        openpi_session_close(sessions[i]);
        close_several(&s[i]);
    }
    openpi_engine_close(engine);
    assert_int_equal(bad, 0);
}

static void test_repeats(void **state) {
    (void)state;
    repeats("full:pi0", NULL);
    repeats("full:pi05", NULL);
}

static void test_int8_repeats(void **state) {
    (void)state;
    repeats("full:pi0", "expert=int8");
    repeats("full:pi05", "expert=int8");
}

/* Two engines on one card, called at the same time: neither kernel may hold a part of the card that the other
 * one waits for. */
static void test_two_engines(void **state) {
    static caller callers[2];
    openpi_engine *engines[2];
    const int calls = long_run(REPEATS_AT_ONCE);
    (void)state;
    for (int i = 0; i < 2; i++) {
        caller *c = &callers[i];
        c->calls = calls;
        engines[i] = open_engine("full:pi0", OPENPI_BF16);
        if (!engines[i]) skip();
        c->session = open_session(engines[i], 1, 1, 10, 10);
        c->in = inputs_open(PROMPT, HORIZON);
        draw(c->in, ANY_CAMERAS);
        must(openpi_session_run(c->session, &c->in->sample, 1, c->in->noise, c->expected, NULL, &error));
    }
    call_together(callers);
    for (int i = 0; i < 2; i++) {
        print_message("engine %d of two: %d of %d replays differ or fail\n", i + 1, callers[i].bad,
                      callers[i].calls);
        assert_int_equal(callers[i].bad, 0);
        openpi_session_close(callers[i].session);
        inputs_close(callers[i].in);
        openpi_engine_close(engines[i]);
    }
}

/* An argument: the only test to run. */
int main(int argc, char **argv) {
    random_state = 5;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_agrees),
        cmocka_unit_test(test_int8),
        cmocka_unit_test(test_long_horizons),
        cmocka_unit_test(test_most_rows),
        cmocka_unit_test(test_batches),
        cmocka_unit_test(test_chunking),
        cmocka_unit_test(test_neighbours),
        cmocka_unit_test(test_where_legal),
        cmocka_unit_test(test_repeats),
        cmocka_unit_test(test_int8_repeats),
        cmocka_unit_test(test_two_engines),
    };
    return verdict(cmocka_run_group_tests_name("gpu resident", tests, NULL, NULL));
}
