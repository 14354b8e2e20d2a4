/* labels: server threads links=serve wrap=openpi_session_run_rtc */
/* One call of a device for several robots (serve/schedule/device.c). Where the model refuses the numbers of
 * one robot, which only computing can show, that robot gets a sentence. Each other robot gets what it gets
 * alone. Where the device is lost, all of them get the same sentence. */
#include <float.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "policy_golden.h"
#include "aloha_requests.h"
#include "serve/schedule/device.h"
#include "serve/messages.h"
#include "serve/prepare.h"

enum { JOBS = 4, H = 5, DIMS = OPENPI_ACTION_DIM, ARMS = 14 };

static openpi_error error = OPENPI_ERROR_INIT;
static serve_model *served_model;
static serve_device *tested;
static job_pool pool = {.horizon = H, .action_dim = ARMS, .in_flight = {.most = 1 << 30}};

static int set_up(void **state) {
    (void)state;
    static openpi_engine_options engine = OPENPI_ENGINE_OPTIONS_INIT;
    static openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    device_options opened = {.name = "cpu", .engine = &engine, .session = OPENPI_SESSION_OPTIONS_INIT};
    WORKS(openpi_synthetic_parse("tiny", &synthetic, &error));
    engine.synthetic = options.synthetic = &synthetic;
    engine.threads = 2;
    options.robot = "aloha";
    WORKS(model_open(NULL, &options, H, 1, &served_model, &error));
    assert_int_equal(served_model->info.action_dim, ARMS);
    opened.model = served_model;
    opened.session.batch = JOBS;
    opened.session.horizon = H;
    opened.session.steps = 2;
    opened.session.max_prompt = served_model->info.max_prompt;
    WORKS(device_open(&opened, &tested, &error));
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    device_close(tested);
    model_drop(served_model);
    job_pool_close(&pool);
    return 0;
}

/* Every other job asks for real-time chunking, each for another one. */
static openpi_rtc chunking(int number, float previous[H * DIMS]) {
    openpi_rtc rtc = OPENPI_RTC_INIT;
    if (number % 2 == 0) return rtc;
    openpi_noise(4, (uint64_t)number, previous, (size_t)H * DIMS);
    rtc.mode = OPENPI_RTC_GUIDED;
    rtc.previous = previous;
    rtc.rows = H;
    rtc.dims = DIMS;
    rtc.delay = number;
    return rtc;
}

/* Job `number`: an observation and noise of its own, or as noise the largest finite number, which overflows
 * in the model. */
static job *make_job(int number, int overflows) {
    msgpack_sbuffer message;
    job *made = job_take(&pool);
    assert_non_null(made);
    make_aloha_request(number, &message);
    WORKS(openpi_request_create(served_model->policy, &made->request, &error));
    WORKS(openpi_request_prepare_msgpack(made->request, message.data, message.size, NULL, &error));
    made->sample = (openpi_sample)OPENPI_SAMPLE_INIT;
    WORKS(openpi_request_sample(made->request, &made->sample, &error));
    made->rtc_asked = number % 2;
    made->rtc = chunking(number, made->previous);
    made->prev_total_ms = -1;
    openpi_noise(3, (uint64_t)number, made->noise, (size_t)H * DIMS);
    for (int i = 0; i < H * DIMS && overflows; i++) made->noise[i] = FLT_MAX;
    msgpack_sbuffer_destroy(&message);
    return made;
}

static void give_job(job *done) {
    openpi_request_close(done->request);
    done->request = NULL;
    job_give(&pool, done);
}

/* The bytes of a reply's actions: the times after them differ. */
static const uint8_t *actions_of(const job *done) {
    static const uint8_t middle[] = "\xc4\x05"
                                    "dtype";
    size_t at = 0;
    assert_int_equal(done->status, OPENPI_OK);
    assert_int_equal(done->answer.text, 0);
    while (memcmp(done->answer.data + at, middle, sizeof middle - 1)) {
        assert_true(at + sizeof middle < done->answer.bytes);
        at++;
    }
    assert_true(at > ARMS * H * sizeof(double));
    return done->answer.data + at - ARMS * H * sizeof(double);
}

static void must_be_refused(const job *done) {
    char text[1024];
    assert_int_equal(done->status, OPENPI_BAD_INPUT);
    assert_int_equal(done->answer.text, 1);
    snprintf(text, sizeof text, "%.*s", (int)done->answer.bytes, (const char *)done->answer.data);
    if (!strstr(text, "expected a finite number")) fail_msg("the sentence is \"%s\"", text);
}

/* Job 0 with one part of job 1's observation. */
static void take_picture(openpi_sample *to, const openpi_sample *from) { to->images[0] = from->images[0]; }

static void take_cameras(openpi_sample *to, const openpi_sample *from) {
    memcpy(to->image_mask, from->image_mask, sizeof to->image_mask);
}

static void take_prompt(openpi_sample *to, const openpi_sample *from) {
    to->tokens = from->tokens;
    to->token_count = from->token_count;
}

static void take_state(openpi_sample *to, const openpi_sample *from) { to->state = from->state; }

/* What the next test rests on: with any part of another robot's observation the actions are others. */
static void each_part_counts(void **state) {
    (void)state;
    static void (*const take_part[])(openpi_sample *to, const openpi_sample *from) = {
        take_picture, take_cameras, take_prompt, take_state,
    };
    uint8_t own[ARMS * H * sizeof(double)];
    job *one = make_job(0, 0), *other = make_job(1, 0);
    openpi_sample sample = one->sample;
    WORKS(device_run(tested, &one, 1, &error));
    memcpy(own, actions_of(one), sizeof own);
    for (size_t i = 0; i < sizeof take_part / sizeof *take_part; i++) {
        one->sample = sample;
        take_part[i](&one->sample, &other->sample);
        WORKS(device_run(tested, &one, 1, &error));
        if (!memcmp(actions_of(one), own, sizeof own)) fail_msg("part %zu does not change the actions", i);
    }
    give_job(one);
    give_job(other);
}

/* Each job in turn is the one whose numbers overflow. */
static void one_overflows(void **state) {
    (void)state;
    uint8_t alone[JOBS][ARMS * H * sizeof(double)];
    double kept[JOBS][H * DIMS];
    for (int i = 0; i < JOBS; i++) {
        job *one = make_job(i, 0);
        WORKS(device_run(tested, &one, 1, &error));
        memcpy(alone[i], actions_of(one), sizeof alone[i]);
        memcpy(kept[i], one->chunk, sizeof kept[i]);
        give_job(one);
    }
    for (int bad = 0; bad <= JOBS; bad++) {            /* the last time none                                */
        job *jobs[JOBS];
        for (int i = 0; i < JOBS; i++) jobs[i] = make_job(i, i == bad);
        device_run(tested, jobs, JOBS, &error);
        for (int i = 0; i < JOBS; i++) {
            if (i == bad) {
                must_be_refused(jobs[i]);
            } else {
                assert_memory_equal(actions_of(jobs[i]), alone[i], sizeof alone[i]);
                assert_memory_equal(jobs[i]->chunk, kept[i], sizeof kept[i]);
            }
            give_job(jobs[i]);
        }
    }
}

/* All of them do: each has its sentence. */
static void all_overflow(void **state) {
    (void)state;
    job *jobs[JOBS];
    for (int i = 0; i < JOBS; i++) jobs[i] = make_job(i, 1);
    assert_int_equal(device_run(tested, jobs, JOBS, &error), OPENPI_BAD_INPUT);
    for (int i = 0; i < JOBS; i++) {
        must_be_refused(jobs[i]);
        give_job(jobs[i]);
    }
}

/* ---- a device that is lost --------------------------------------------------------------------------- */

static int lost, calls_of_many;

openpi_status __real_openpi_session_run_rtc(openpi_session *session, const openpi_sample *samples,
                                            const openpi_rtc *rtc, int count, const float *noise,
                                            float *actions, openpi_timing *timing, openpi_error *why);
openpi_status __wrap_openpi_session_run_rtc(openpi_session *session, const openpi_sample *samples,
                                            const openpi_rtc *rtc, int count, const float *noise,
                                            float *actions, openpi_timing *timing, openpi_error *why);

openpi_status __wrap_openpi_session_run_rtc(openpi_session *session, const openpi_sample *samples,
                                            const openpi_rtc *rtc, int count, const float *noise,
                                            float *actions, openpi_timing *timing, openpi_error *why) {
    if (!lost)
        return __real_openpi_session_run_rtc(session, samples, rtc, count, noise, actions, timing, why);
    calls_of_many += count == JOBS;
    snprintf(why->message, sizeof why->message, "device cuda:0 is lost: an address of its driver");
    return OPENPI_DEVICE_LOST;
}

/* In the middle of a batch: the driver's words are for the server, and no robot has a reply. */
static void lost_in_a_batch(void **state) {
    (void)state;
    static const char sentence[] = "the device is lost; the server restarts";
    job *jobs[JOBS];
    for (int i = 0; i < JOBS; i++) jobs[i] = make_job(i, 0);
    lost = 1;
    assert_int_equal(device_run(tested, jobs, JOBS, &error), OPENPI_DEVICE_LOST);
    lost = 0;
    assert_int_equal(calls_of_many, 1);
    assert_non_null(strstr(error.message, "device cuda:0 is lost"));
    for (int i = 0; i < JOBS; i++) {
        assert_int_equal(jobs[i]->status, OPENPI_DEVICE_LOST);
        assert_int_equal(jobs[i]->answer.text, 1);
        assert_int_equal(jobs[i]->answer.bytes, sizeof sentence - 1);
        assert_memory_equal(jobs[i]->answer.data, sentence, sizeof sentence - 1);
        give_job(jobs[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_part_counts), cmocka_unit_test(one_overflows),
                                       cmocka_unit_test(all_overflow), cmocka_unit_test(lost_in_a_batch)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
