/* labels: isa no_asan */
/* Real-time chunking in calls: samples with and without it do not touch each other, guidance is LeRobot's
 * formula at every step, known actions are kept, defaults are the checkpoint's, bad input is refused.
 * LeRobot's own chunks are in test_golden (lerobot/pi05_rtc). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "backend/cpu/isa.h"
#include "base/file.h"
#include "chunking_batch.h"
#include "scratch.h"

enum { DIM = OPENPI_ACTION_DIM };

static openpi_error error = OPENPI_ERROR_INIT;

static void must(openpi_status status) {
    if (status != OPENPI_OK) fail_msg("%s", error.message);
}

/* ---- samples do not touch each other ---------------------------------------------------------------- */

static void each_is_as_alone(void **state) {
    static const char *const models[] = {"odd:pi0", "odd:pi05"};
    static mixed m;
    (void)state;
    for (int i = 0; i < cpu_isa_count(); i++)
        for (int which = 0; which < 4; which++) {
            openpi_dtype dtype = which % 2 ? OPENPI_BF16 : OPENPI_F32;
            int trained = which / 2;
            openpi_engine *engine = mixed_engine(models[trained], cpu_isa_name(i), dtype,
                                                 trained ? MIXED_DELAY : 0);
            if (!engine) continue;
            mixed_make(&m, trained);
            mixed_is_each_alone(engine, &m);
            openpi_engine_close(engine);
        }
}

/* Guided with no weight on any row is an ordinary sample. */
static void no_weight_is_ordinary(void **state) {
    static mixed m;
    float guided[MIXED_ONE], ordinary[MIXED_ONE];
    (void)state;
    openpi_engine *engine = mixed_engine("odd:pi05", NULL, OPENPI_BF16, 0);
    openpi_session *session = mixed_session(engine, 1, 1);
    mixed_make(&m, 0);
    m.rtc[1].delay = 0;
    m.rtc[1].schedule = OPENPI_RTC_ZEROS;
    mixed_run(session, &m, 1, 1, guided);
    must(openpi_session_run(session, &m.samples[1], 1, m.noise + MIXED_ONE, ordinary, NULL, &error));
    mixed_same("no weight", 1, guided, ordinary);
    openpi_session_close(session);
    openpi_engine_close(engine);
}

/* ---- guidance --------------------------------------------------------------------------------------- */

typedef struct seen {
    float velocity[MIXED_STEPS][MIXED_ONE], x[MIXED_STEPS][MIXED_ONE];
    int rows[2], suffix, count;
} seen;

static void look(void *user, openpi_tensor tensor, int sample, int index, const float *data, int rows,
                 int columns) {
    seen *s = user;
    if (tensor == OPENPI_TENSOR_SUFFIX) s->suffix = rows;
    if (sample || (tensor != OPENPI_TENSOR_VELOCITY && tensor != OPENPI_TENSOR_X)) return;
    memcpy(tensor == OPENPI_TENSOR_X ? s->x[index] : s->velocity[index], data,
           (size_t)(rows * columns) * sizeof *data);
    s->rows[tensor == OPENPI_TENSOR_X] = rows;
    s->count++;
}

/* The overlap's weight, from the words of LeRobot's get_prefix_weights. */
static double weight_of(openpi_rtc_schedule schedule, int k, int delay, int end) {
    int start = delay < end ? delay : end;
    if (k < start) return 1;
    if (k >= end || schedule == OPENPI_RTC_ZEROS) return 0;
    if (schedule == OPENPI_RTC_ONES) return 1;
    double u = (double)(end - k) / (end - start + 1);
    return schedule == OPENPI_RTC_EXP ? u * (exp(u) - 1) / (exp(1) - 1) : u;
}

/* Each step from the one before it and the velocity that the observer saw. */
static void check_steps(const mixed *m, const openpi_rtc *rtc, const seen *s, double max_weight) {
    int end = rtc->horizon < rtc->rows ? rtc->horizon : rtc->rows;
    for (int n = 0; n < MIXED_STEPS; n++) {
        double t = 1 - (double)n / MIXED_STEPS, tau = 1 - t, g = fmin(max_weight, MIXED_STEPS);
        if (n) g = fmin(g, (1 - tau) / tau * ((1 - tau) * (1 - tau) + tau * tau) / ((1 - tau) * (1 - tau)));
        for (int i = 0; i < MIXED_ONE; i++) {
            int k = i / DIM, d = i % DIM;
            double x = (double)(n ? s->x[n - 1][i] : m->noise[i]), v = (double)s->velocity[n][i];
            double p = k < rtc->rows && d < rtc->dims ? (double)rtc->previous[k * rtc->dims + d] : 0;
            double w = weight_of(rtc->schedule, k, rtc->delay, end), error_k = (p - (x - t * v)) * w;
            double want = x - (v - g * error_k) / MIXED_STEPS;
            if (!(fabs((double)s->x[n][i] - want) <= 3e-6 * (1 + g) * (1 + fabs(want))))
                fail_msg("step %d, row %d, dimension %d: x is %.8g, expected %.8g", n, k, d,
                         (double)s->x[n][i], want);
        }
    }
}

static void guidance_is_the_formula(void **state) {
    static const openpi_rtc cases[] = {
        {.delay = 2, .rows = 7, .dims = 7, .horizon = 6, .schedule = OPENPI_RTC_LINEAR},
        {.delay = 2, .rows = 7, .dims = 7, .horizon = 6, .schedule = OPENPI_RTC_EXP, .max_weight = 2},
        {.delay = 0, .rows = 9, .dims = 32, .horizon = 9, .schedule = OPENPI_RTC_ONES},
        {.delay = 4, .rows = 9, .dims = 32, .horizon = 9, .schedule = OPENPI_RTC_ZEROS, .max_weight = 0.5},
        {.delay = 8, .rows = 9, .dims = 32, .horizon = 5, .schedule = OPENPI_RTC_LINEAR},
        {.delay = 1, .rows = 3, .dims = 32, .horizon = 9, .schedule = OPENPI_RTC_EXP},
    };
    static mixed m;
    static seen s;
    float actions[MIXED_ONE];
    (void)state;
    for (int which = 0; which < 2; which++) {
        openpi_engine *engine = mixed_engine(which ? "odd:pi05" : "odd:pi0", NULL, OPENPI_F32, 0);
        openpi_session *session = mixed_session(engine, 1, 1);
        mixed_make(&m, 0);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            openpi_rtc rtc = cases[i];
            rtc.size = sizeof rtc;
            rtc.mode = OPENPI_RTC_GUIDED;
            rtc.previous = m.previous[0];
            s.count = 0;
            openpi_session_observe(session, look, &s);
            must(openpi_session_run_rtc(session, m.samples, &rtc, 1, m.noise, actions, NULL, &error));
            assert_int_equal(s.count, 2 * MIXED_STEPS);
            check_steps(&m, &rtc, &s, rtc.max_weight > 0 ? rtc.max_weight : 10);
            mixed_same("the last step", 0, actions, s.x[MIXED_STEPS - 1]);
            openpi_session_observe(session, NULL, NULL);
        }
        openpi_session_close(session);
        openpi_engine_close(engine);
    }
}

/* With few steps: a weight above their number would throw the first rows beyond the previous chunk, so the
 * largest is their number, and one step of that weight lands on the previous chunk. */
static void a_weight_never_throws(void **state) {
    static mixed m;
    float one[MIXED_ONE], most[MIXED_ONE];
    (void)state;
    openpi_engine *engine = mixed_engine("odd:pi05", NULL, OPENPI_F32, 0);
    for (int steps = 1; steps <= 4; steps++) {
        openpi_session_options options = OPENPI_SESSION_OPTIONS_INIT;
        openpi_session *session;
        options.horizon = MIXED_H, options.steps = steps, options.max_prompt = MIXED_PROMPT, options.rtc = 1;
        must(openpi_session_create(engine, &options, &session, &error));
        mixed_make(&m, 0);
        openpi_rtc *rtc = &m.rtc[1];
        rtc->max_weight = steps;
        mixed_run(session, &m, 1, 1, one);
        for (int i = 0; i < 3; i++) {
            static const double weights[] = {0, 10, 1e30};               /* 0: the default, which is 10    */
            rtc->max_weight = weights[i];
            mixed_run(session, &m, 1, 1, most);
            mixed_same("a weight above the number of steps", 1, most, one);
        }
        for (int i = 0; steps == 1 && i < rtc->delay * DIM; i++) {
            double want = i % DIM < rtc->dims ? (double)m.previous[1][i / DIM * rtc->dims + i % DIM] : 0;
            if (!(fabs((double)one[i] - want) <= 2e-6))
                fail_msg("one step: number %d is %g, expected %g", i, (double)one[i], want);
        }
        openpi_session_close(session);
    }
    openpi_engine_close(engine);
}

/* ---- known actions ---------------------------------------------------------------------------------- */

/* They are in the result as they were given, zeros after their dimensions, and in x after every step; the
 * other rows have seen them. */
static void known_actions_are_kept(void **state) {
    static mixed m;
    static seen s;
    float actions[MIXED_ONE], other[MIXED_ONE];
    (void)state;
    openpi_engine *engine = mixed_engine("odd:pi05", NULL, OPENPI_F32, MIXED_DELAY);
    openpi_session *session = mixed_session(engine, 1, 1);
    mixed_make(&m, 1);
    const openpi_rtc *rtc = &m.rtc[2];
    mixed_run(session, &m, 2, 1, actions);
    for (int i = 0; i < rtc->delay * DIM; i++) {
        float want = i % DIM < rtc->dims ? m.previous[2][i / DIM * rtc->dims + i % DIM] : 0;
        assert_memory_equal(&actions[i], &want, sizeof want);
    }
    openpi_session_observe(session, look, &s);
    mixed_run(session, &m, 2, 1, other);
    mixed_same("observed", 2, other, actions);
    assert_true(s.rows[0] == MIXED_H && s.rows[1] == MIXED_H && s.suffix == MIXED_H);
    for (int step = 0; step < MIXED_STEPS; step++)
        assert_memory_equal(s.x[step], actions, (size_t)(rtc->delay * DIM) * sizeof *actions);
    mixed_same("the last step", 2, s.x[MIXED_STEPS - 1], actions);
    openpi_session_observe(session, NULL, NULL);
    m.previous[2][3] += 0.5f;
    mixed_run(session, &m, 2, 1, other);
    assert_memory_not_equal(other + rtc->delay * DIM, actions + rtc->delay * DIM, DIM * sizeof *actions);
    m.previous[2][rtc->delay * rtc->dims] += 0.5f;         /* the first row that is not known */
    mixed_run(session, &m, 2, 1, actions);
    mixed_same("rows after the delay are not read", 2, actions, other);
    m.rtc[2].delay = 0;                                    /* an ordinary call, whatever `previous` is */
    m.rtc[2].previous = NULL;
    mixed_run(session, &m, 2, 1, actions);
    must(openpi_session_run(session, &m.samples[2], 1, m.noise + 2 * MIXED_ONE, other, NULL, &error));
    mixed_same("a delay of 0", 2, actions, other);
    openpi_session_close(session);
    openpi_engine_close(engine);
}

/* ---- defaults --------------------------------------------------------------------------------------- */

/* A LeRobot checkpoint with this config.json. */
static openpi_engine *configured(scratch *place, const char *config) {
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    openpi_engine *engine = NULL;
    char folder[500], *text = NULL;
    size_t bytes = strlen(config);
    snprintf(folder, sizeof folder, "%s", scratch_path(place, "checkpoint"));
    scratch_remove(folder);
    must(openpi_synthetic_parse("odd:pi05", &synthetic, &error));
    synthetic.lerobot = 1;
    must(openpi_synthetic_write(&synthetic, folder, 0, 1, NULL, NULL, &error));
    if (config[0] == '/') must(file_read(config, 1 << 20, &text, &bytes, &error));
    assert_int_equal(scratch_write(place, "checkpoint/config.json", text ? text : config, bytes), 0);
    free(text);
    options.threads = 1;
    openpi_engine_open(folder, &options, &engine, &error);
    return engine;
}

static void defaults_are_the_checkpoints(void **state) {
    static const struct {
        const char *config;
        int max_delay, horizon;
        openpi_rtc_mode mode;
        openpi_rtc_schedule schedule;
        double max_weight;
    } cases[] = {
        {GOLDEN "/lerobot/pi05_rtc/config_exp/config.json", 0, 10, OPENPI_RTC_GUIDED, OPENPI_RTC_EXP, 10},
        {GOLDEN "/lerobot/pi05_rtc/config_trained/config.json", 5, 10, OPENPI_RTC_TRAINED, OPENPI_RTC_LINEAR,
         10},
        {"{\"type\": \"pi05\"}", 0, 10, OPENPI_RTC_OFF, OPENPI_RTC_LINEAR, 10},
        {"{\"type\": \"pi05\", \"rtc_config\": null}", 0, 10, OPENPI_RTC_OFF, OPENPI_RTC_LINEAR, 10},
        {"{\"type\": \"pi05\", \"rtc_config\": {\"enabled\": false, \"mode\": \"trained\"}}", 0, 10,
         OPENPI_RTC_OFF, OPENPI_RTC_LINEAR, 10},
        {"{\"type\": \"pi05\", \"rtc_config\": {\"prefix_attention_schedule\": \"ONES\", "
         "\"execution_horizon\": 4, \"max_guidance_weight\": 2.5}}", 0, 4, OPENPI_RTC_GUIDED,
         OPENPI_RTC_ONES, 2.5},
    };
    scratch place;
    (void)state;
    assert_int_equal(scratch_open(&place), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        openpi_engine_info info = OPENPI_ENGINE_INFO_INIT;
        openpi_engine *engine = configured(&place, cases[i].config);
        if (!engine) fail_msg("%s: %s", cases[i].config, error.message);
        must(openpi_engine_get_info(engine, &info, &error));
        assert_int_equal(info.rtc_max_delay, cases[i].max_delay);
        assert_int_equal(info.rtc_horizon, cases[i].horizon);
        assert_int_equal(info.rtc_mode, cases[i].mode);
        assert_int_equal(info.rtc_schedule, cases[i].schedule);
        assert_true(info.rtc_max_weight == cases[i].max_weight);
        openpi_engine_close(engine);
    }
    scratch_close(&place);
}

/* A synthetic checkpoint on disk says what the one in memory does; openpi's config.json cannot. */
static void a_written_checkpoint_says_it(void **state) {
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    openpi_engine_info info = OPENPI_ENGINE_INFO_INIT;
    openpi_engine *engine;
    scratch place;
    char folder[500];
    (void)state;
    assert_int_equal(scratch_open(&place), 0);
    snprintf(folder, sizeof folder, "%s", scratch_path(&place, "written"));
    must(openpi_synthetic_parse("odd:pi05", &synthetic, &error));
    synthetic.rtc_max_delay = 6;
    assert_int_equal(openpi_synthetic_write(&synthetic, folder, 0, 1, NULL, NULL, &error),
                     OPENPI_BAD_ARGUMENT);
    assert_non_null(strstr(error.message, "rtc_max_delay is 6, expected 0: only LeRobot's config.json"));
    synthetic.lerobot = 1;
    must(openpi_synthetic_write(&synthetic, folder, 0, 1, NULL, NULL, &error));
    options.threads = 1;
    must(openpi_engine_open(folder, &options, &engine, &error));
    must(openpi_engine_get_info(engine, &info, &error));
    assert_int_equal(info.rtc_max_delay, 6);
    openpi_engine_close(engine);
    scratch_close(&place);
}

/* 0 stands for the default, and a horizon past the previous chunk's rows for its end. */
static void zeros_stand_for_defaults(void **state) {
    static mixed m;
    float told[MIXED_ONE], left[MIXED_ONE];
    (void)state;
    openpi_engine *engine = mixed_engine("odd:pi05", NULL, OPENPI_BF16, 0);
    openpi_session *session = mixed_session(engine, 1, 1);
    mixed_make(&m, 0);
    m.rtc[1].horizon = 0;
    mixed_run(session, &m, 1, 1, left);
    m.rtc[1].horizon = m.rtc[1].rows;
    m.rtc[1].schedule = OPENPI_RTC_LINEAR;
    m.rtc[1].max_weight = 10;
    mixed_run(session, &m, 1, 1, told);
    mixed_same("defaults", 1, left, told);
    m.rtc[1].horizon = MIXED_H;
    mixed_run(session, &m, 1, 1, told);
    mixed_same("a horizon past the rows", 1, left, told);
    openpi_session_close(session);
    openpi_engine_close(engine);
}

/* ---- bad input -------------------------------------------------------------------------------------- */

static void broken_configs(void **state) {
    static const struct {
        const char *config, *part;
        openpi_status status;
    } cases[] = {
        {"{\"type\": \"pi05\", \"rtc_training_max_delay\": -1}", "\"rtc_training_max_delay\" is -1",
         OPENPI_BAD_FILE},
        {"{\"type\": \"pi05\", \"rtc_config\": 3}", "\"rtc_config\" is an integer, expected an object",
         OPENPI_BAD_FILE},
        {"{\"type\": \"pi05\", \"rtc_config\": {\"mode\": \"vjp\"}}", "rtc_config: \"mode\" is \"vjp\"",
         OPENPI_UNSUPPORTED},
        {"{\"type\": \"pi05\", \"rtc_config\": {\"prefix_attention_schedule\": \"COSINE\"}}",
         "rtc_config: \"prefix_attention_schedule\" is \"COSINE\"", OPENPI_UNSUPPORTED},
        {"{\"type\": \"pi05\", \"rtc_config\": {\"enabled\": false, \"mode\": \"later\"}}",
         "rtc_config: \"mode\" is \"later\"", OPENPI_UNSUPPORTED},
        {"{\"type\": \"pi05\", \"rtc_config\": {\"sigma_d\": 0.2}}",
         "rtc_config has a setting \"sigma_d\" that is not known", OPENPI_UNSUPPORTED},
        {"{\"type\": \"pi05\", \"rtc_training_schedule\": \"staircase\"}",
         "\"rtc_training_schedule\" is \"staircase\", expected", OPENPI_UNSUPPORTED},
        {"{\"type\": \"pi05\", \"rtc_config\": {\"max_guidance_weight\": -1}}",
         "\"max_guidance_weight\" is not above 0, expected a number above 0", OPENPI_BAD_FILE},
        {"{\"type\": \"pi05\", \"rtc_config\": {\"execution_horizon\": 0}}", "\"execution_horizon\" is 0",
         OPENPI_BAD_FILE},
    };
    scratch place;
    (void)state;
    assert_int_equal(scratch_open(&place), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        error.message[0] = 0;
        assert_null(configured(&place, cases[i].config));
        if (error.status != cases[i].status || !strstr(error.message, cases[i].part))
            fail_msg("%s: %s", cases[i].config, error.message);
    }
    scratch_close(&place);
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    openpi_engine *engine;
    must(openpi_synthetic_parse("odd:pi0", &synthetic, &error));
    synthetic.rtc_max_delay = 2;
    options.synthetic = &synthetic;
    assert_int_equal(openpi_engine_open(NULL, &options, &engine, &error), OPENPI_UNSUPPORTED);
    assert_non_null(strstr(error.message, "\"rtc_training_max_delay\" is 2, expected 0: π0 cannot be"));
    synthetic.rtc_max_delay = -2;
    assert_int_equal(openpi_engine_open(NULL, &options, &engine, &error), OPENPI_BAD_ARGUMENT);
}

#define BREAK(name, change) \
    static void name(openpi_rtc *rtc, float *previous) { (void)rtc, (void)previous; change; }

BREAK(vjp, rtc->mode = OPENPI_RTC_VJP)
BREAK(mode_9, rtc->mode = (openpi_rtc_mode)9)
BREAK(mode_negative, rtc->mode = (openpi_rtc_mode)-1)
BREAK(nothing, rtc->previous = NULL)
BREAK(no_rows, rtc->rows = 0)
BREAK(many_rows, rtc->rows = MIXED_H + 1)
BREAK(no_dims, rtc->dims = 0)
BREAK(dims_33, rtc->dims = 33)
BREAK(early, rtc->delay = -1)
BREAK(late, rtc->delay = MIXED_H)
BREAK(infinite, previous[11] = INFINITY)
BREAK(schedule_7, rtc->schedule = (openpi_rtc_schedule)7)
BREAK(horizon_10, rtc->horizon = MIXED_H + 1)
BREAK(horizon_negative, rtc->horizon = -1)
BREAK(weight_nan, rtc->max_weight = NAN)
BREAK(weight_infinite, rtc->max_weight = INFINITY)
BREAK(weight_negative, rtc->max_weight = -1)
BREAK(size_0, rtc->size = 0)
BREAK(known_late, rtc->mode = OPENPI_RTC_TRAINED; rtc->delay = MIXED_DELAY + 1)
BREAK(known_few, rtc->mode = OPENPI_RTC_TRAINED; rtc->delay = 3; rtc->rows = 2)
BREAK(known_nan, rtc->mode = OPENPI_RTC_TRAINED; previous[0] = NAN)
BREAK(known_all, rtc->mode = OPENPI_RTC_TRAINED; rtc->delay = MIXED_H)

static const struct {
    const char *what;
    void (*change)(openpi_rtc *, float *);
    openpi_status status;
    const char *part;
} breaks[] = {
    {"vjp", vjp, OPENPI_UNSUPPORTED, "rtc mode is vjp, which needs the denoiser's Jacobian"},
    {"mode 9", mode_9, OPENPI_BAD_INPUT, "rtc mode is 9, expected OPENPI_RTC_OFF"},
    {"mode -1", mode_negative, OPENPI_BAD_INPUT, "rtc mode is -1"},
    {"no chunk", nothing, OPENPI_BAD_INPUT, "rtc previous is NULL"},
    {"no rows", no_rows, OPENPI_BAD_INPUT, "rtc rows is 0, expected 1 to 9"},
    {"too many rows", many_rows, OPENPI_BAD_INPUT, "rtc rows is 10, expected 1 to 9"},
    {"no dims", no_dims, OPENPI_BAD_INPUT, "rtc dims is 0, expected 1 to 32"},
    {"33 dims", dims_33, OPENPI_BAD_INPUT, "rtc dims is 33, expected 1 to 32"},
    {"delay -1", early, OPENPI_BAD_INPUT, "rtc delay is -1, expected 0 to 8"},
    {"delay H", late, OPENPI_BAD_INPUT, "rtc delay is 9, expected 0 to 8"},
    {"infinite", infinite, OPENPI_BAD_INPUT, "rtc previous, row 1, dimension 4 is inf"},
    {"schedule 7", schedule_7, OPENPI_BAD_INPUT, "rtc schedule is 7, expected OPENPI_RTC_ZEROS"},
    {"horizon H + 1", horizon_10, OPENPI_BAD_INPUT, "rtc horizon is 10, expected 0 to 9"},
    {"horizon -1", horizon_negative, OPENPI_BAD_INPUT, "rtc horizon is -1, expected 0 to 9"},
    {"weight NaN", weight_nan, OPENPI_BAD_INPUT, "rtc max_weight is nan"},
    {"weight infinite", weight_infinite, OPENPI_BAD_INPUT, "rtc max_weight is inf, expected a finite number"},
    {"weight -1", weight_negative, OPENPI_BAD_INPUT, "rtc max_weight is -1, expected a finite number"},
    {"size 0", size_0, OPENPI_BAD_ARGUMENT, "OPENPI_RTC_INIT"},
    {"delay past the training's", known_late, OPENPI_BAD_INPUT, "rtc delay is 5, but synthetic"},
    {"fewer rows than known", known_few, OPENPI_BAD_INPUT, "previous has 2 rows, but the delay is 3"},
    {"a known NaN", known_nan, OPENPI_BAD_INPUT, "rtc previous, row 0, dimension 0 is nan"},
    {"all known", known_all, OPENPI_BAD_INPUT, "rtc delay is 9, expected 0 to 8"},
};

static void refused(openpi_session *session, const mixed *m, const char *what, openpi_status status,
                    const char *part) {
    float actions[2 * MIXED_ONE], before[2 * MIXED_ONE];
    openpi_session_info info = OPENPI_SESSION_INFO_INIT;
    memset(actions, 0x5a, sizeof actions);
    memcpy(before, actions, sizeof before);
    error.message[0] = 0;
    openpi_status got =
        openpi_session_run_rtc(session, m->samples, m->rtc, 2, m->noise, actions, NULL, &error);
    if (got != status || !strstr(error.message, part)) fail_msg("%s: \"%s\"", what, error.message);
    assert_memory_equal(actions, before, sizeof before);
    must(openpi_session_get_info(session, &info, &error));
    assert_true(info.runs == 0);
}

static void what_may_not_be_asked_for(void **state) {
    static mixed m;
    (void)state;
    openpi_engine *engine = mixed_engine("odd:pi05", NULL, OPENPI_BF16, MIXED_DELAY);
    openpi_engine *untrained = mixed_engine("odd:pi05", NULL, OPENPI_BF16, 0);
    openpi_session *session = mixed_session(engine, 2, 1), *without = mixed_session(engine, 2, 0),
                   *guided_only = mixed_session(untrained, 2, 1);
    for (size_t i = 0; i < sizeof breaks / sizeof *breaks; i++) {
        mixed_make(&m, 1);
        m.rtc[0] = m.rtc[1];
        m.rtc[0].mode = OPENPI_RTC_GUIDED;
        breaks[i].change(&m.rtc[0], m.previous[1]);
        m.rtc[1].size = m.rtc[0].size;
        refused(session, &m, breaks[i].what, breaks[i].status, breaks[i].part);
    }
    mixed_make(&m, 1);
    m.rtc[1].size += 8;
    refused(session, &m, "another size", OPENPI_BAD_ARGUMENT, "openpi_rtc: element 1 has size 56");
    mixed_make(&m, 1);
    refused(without, &m, "no option", OPENPI_BAD_ARGUMENT, "created without the option rtc");
    m.rtc[0] = m.rtc[2];
    refused(guided_only, &m, "not trained", OPENPI_UNSUPPORTED, "was not trained for it");
    openpi_session_close(session);
    openpi_session_close(without);
    openpi_session_close(guided_only);
    openpi_engine_close(engine);
    openpi_engine_close(untrained);
}

/* The option costs memory, which the price tells; without it a session is as it always was. */
static void the_price_is_told(void **state) {
    uint64_t bytes[2];
    (void)state;
    openpi_engine *engine = mixed_engine("odd:pi05", NULL, OPENPI_BF16, MIXED_DELAY);
    for (int rtc = 0; rtc < 2; rtc++) {
        openpi_session_options options = OPENPI_SESSION_OPTIONS_INIT;
        openpi_session_info info = OPENPI_SESSION_INFO_INIT;
        openpi_session *session;
        options.rtc = rtc;
        must(openpi_session_bytes(engine, &options, &bytes[rtc], &error));
        must(openpi_session_create(engine, &options, &session, &error));
        must(openpi_session_get_info(session, &info, &error));
        assert_true(info.bytes == bytes[rtc]);
        openpi_session_close(session);
    }
    assert_true(bytes[1] > bytes[0]);
    openpi_session_options wrong = OPENPI_SESSION_OPTIONS_INIT;
    wrong.rtc = 2;
    assert_int_equal(openpi_session_bytes(engine, &wrong, bytes, &error), OPENPI_BAD_ARGUMENT);
    assert_non_null(strstr(error.message, "rtc is 2, expected 0 to 1"));
    openpi_engine_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_is_as_alone),
        cmocka_unit_test(no_weight_is_ordinary),
        cmocka_unit_test(guidance_is_the_formula),
        cmocka_unit_test(a_weight_never_throws),
        cmocka_unit_test(known_actions_are_kept),
        cmocka_unit_test(defaults_are_the_checkpoints),
        cmocka_unit_test(a_written_checkpoint_says_it),
        cmocka_unit_test(zeros_stand_for_defaults),
        cmocka_unit_test(broken_configs),
        cmocka_unit_test(what_may_not_be_asked_for),
        cmocka_unit_test(the_price_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
