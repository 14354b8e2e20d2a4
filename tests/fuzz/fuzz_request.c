/* A robot's message as the server takes it: prepared, its sample, and the keys "openpi/…" with what
 * serve/rtc.c makes of them. A message of several observations ("openpi/batch", a list) is taken one by one,
 * with "openpi/samples" and noise of each. */
#include "fuzz.h"
#include "serve/rtc.h"

enum { H = 8, NUMBERS = H * OPENPI_ACTION_DIM };

static openpi_request *request;
static float sink;

static void open_request(void) {
    static openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_policy *policy;
    PROMISE(openpi_synthetic_parse("tiny", &synthetic, &error) == OPENPI_OK);
    options.synthetic = &synthetic;
    options.robot = "aloha";
    PROMISE(openpi_policy_open(NULL, &options, &policy, &error) == OPENPI_OK);
    PROMISE(openpi_request_create(policy, &request, &error) == OPENPI_OK);
}

static void check_extras(const openpi_extras *e) {
    PROMISE(e->deadline_ms >= 0 && e->rtc_executed >= 0 && e->rtc_delay >= 0 && e->rtc_horizon >= 0);
    PROMISE(!e->noise == !e->noise_rows && e->noise_rows >= 0 && e->noise_rows <= OPENPI_MAX_HORIZON);
    PROMISE(e->samples >= 0 && e->samples <= OPENPI_MAX_BATCH);
    int rows = e->noise_rows * (e->samples ? e->samples : 1);
    for (int i = 0; i < rows * OPENPI_ACTION_DIM; i++) sink += e->noise[i];
}

/* Follows on from a chunk of zeros. */
static void follow(const openpi_extras *extras, int max_delay) {
    static double last[NUMBERS];
    static float previous[NUMBERS];
    openpi_error error = OPENPI_ERROR_INIT;
    rtc_offer offer = {.horizon = H, .max_delay = max_delay, .mode = OPENPI_RTC_GUIDED};
    job job = {.request = request, .last = last, .previous = previous};
    if (!went_well(rtc_check(&offer, extras, &error), &error)) return;
    if (!went_well(rtc_prepare(&offer, extras, &job, &error), &error)) return;
    if (job.rtc.mode == OPENPI_RTC_OFF) return;
    PROMISE(job.rtc.previous == previous && job.rtc.rows >= 1 && job.rtc.rows <= H - extras->rtc_executed);
    PROMISE(job.rtc.delay >= 0 && job.rtc.delay < H && job.rtc.horizon <= H);
    PROMISE(job.rtc.mode != OPENPI_RTC_TRAINED || job.rtc.delay <= max_delay);
}

static void check_sample(void) {
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_sample sample = OPENPI_SAMPLE_INIT;
    if (!went_well(openpi_request_sample(request, &sample, &error), &error)) return;
    for (int i = 0; i < sample.token_count; i++) PROMISE(sample.tokens[i] >= 0);
}

/* One observation of several, twice, in two halves as serve/prepare.c takes them: it reads all of them, then
 * prepares those that could be read. */
static void take_one(const uint8_t *message, size_t size, int i) {
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_extras extras[2] = {OPENPI_EXTRAS_INIT, OPENPI_EXTRAS_INIT};
    for (int again = 0; again < 2; again++) {
        openpi_status status = openpi_request_read_msgpack_at(request, message, size, i, &error);
        if (!went_well(status, &error)) {
            PROMISE(!again && status != OPENPI_BAD_ARGUMENT);
            return;
        }
        if (!went_well(openpi_request_extras(request, &extras[again], &error), &error)) return;
        check_extras(&extras[again]);
    }
    PROMISE(extras[0].samples == extras[1].samples && extras[0].noise_rows == extras[1].noise_rows);
    if (went_well(openpi_request_prepare_read(request, NULL, &error), &error)) check_sample();
}

static void take_several(const uint8_t *message, size_t size, int several) {
    openpi_error error = OPENPI_ERROR_INIT;
    PROMISE(several <= OPENPI_MAX_OBSERVATIONS);
    for (int i = 0; i < several && i < 4; i++) take_one(message, size, i);
    take_one(message, size, several - 1);
    PROMISE(openpi_request_read_msgpack_at(request, message, size, several, &error) == OPENPI_BAD_ARGUMENT);
    PROMISE(openpi_request_read_msgpack_at(request, message, size, -1, &error) == OPENPI_BAD_ARGUMENT);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_extras extras = OPENPI_EXTRAS_INIT;
    if (!request) open_request();
    uint8_t *copy = exact_copy(data, size, 0);
    int several = 0, known = went_well(openpi_message_observations(copy, size, &several, &error), &error);
    if (known && several) take_several(copy, size, several);
    int good = went_well(openpi_request_prepare_msgpack(request, copy, size, NULL, &error), &error);
    PROMISE(!good || (known && !several));
    free(copy);                                        /* a request keeps nothing of the message           */
    if (good && went_well(openpi_request_extras(request, &extras, &error), &error)) {
        check_extras(&extras);
        follow(&extras, 0);
        follow(&extras, 3);
        check_sample();
    }
    return 0;
}
