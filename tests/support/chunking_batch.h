/* A batch of samples with and without real-time chunking, and the proof that each is what it is alone, bit
 * for bit; an ordinary one also in a session that knows nothing of chunking. Include after cmocka.h. */
#ifndef TESTS_CHUNKING_BATCH_H
#define TESTS_CHUNKING_BATCH_H

#include <string.h>

#include "openpi.h"

enum {
    MIXED = 6, MIXED_H = 9, MIXED_STEPS = 3, MIXED_PROMPT = 12, MIXED_DELAY = 4,
    MIXED_ONE = MIXED_H * OPENPI_ACTION_DIM,
};

typedef struct mixed {
    uint8_t picture[OPENPI_IMAGE_SIZE * OPENPI_IMAGE_SIZE * 3];
    int32_t tokens[MIXED_PROMPT];
    float state[OPENPI_ACTION_DIM], noise[MIXED * MIXED_ONE], previous[MIXED][MIXED_ONE];
    openpi_sample samples[MIXED];
    openpi_rtc rtc[MIXED];
} mixed;

/* `trained`: the model takes OPENPI_RTC_TRAINED with a delay of up to MIXED_DELAY. Else these are OFF. */
static inline void mixed_make(mixed *m, int trained) {
    const openpi_rtc_mode known = trained ? OPENPI_RTC_TRAINED : OPENPI_RTC_OFF;
    const openpi_rtc rtc[MIXED] = {
        {.mode = OPENPI_RTC_OFF},
        {.mode = OPENPI_RTC_GUIDED, .delay = 2, .rows = 7, .dims = 7, .horizon = 6},
        {.mode = known, .delay = 3, .rows = 5, .dims = 14},
        {.mode = OPENPI_RTC_OFF},
        {.mode = known, .delay = MIXED_DELAY, .rows = MIXED_DELAY, .dims = 32},
        {.mode = OPENPI_RTC_GUIDED, .delay = 1, .rows = MIXED_H, .dims = 32, .schedule = OPENPI_RTC_EXP,
         .horizon = MIXED_H, .max_weight = 3},
    };
    memset(m, 0, sizeof *m);
    for (size_t i = 0; i < sizeof m->picture; i++) m->picture[i] = (uint8_t)(i * 2654435761u >> 24);
    for (int i = 0; i < MIXED_PROMPT; i++) m->tokens[i] = 2 + 3 * i;
    openpi_noise(21, 0, m->noise, MIXED * MIXED_ONE);
    openpi_noise(22, 0, m->state, OPENPI_ACTION_DIM);
    for (int b = 0; b < MIXED; b++) {
        openpi_noise(23, (uint64_t)b, m->previous[b], MIXED_ONE);
        m->rtc[b] = rtc[b];
        m->rtc[b].size = sizeof m->rtc[b];
        m->rtc[b].previous = m->previous[b];
        m->samples[b] = (openpi_sample){.size = sizeof *m->samples,
                                        .tokens = m->tokens + b,
                                        .token_count = MIXED_PROMPT - 2 * b,
                                        .state = m->state};
        for (int c = 0; c <= b % 2; c++) {
            m->samples[b].images[c] = m->picture;
            m->samples[b].image_mask[c] = 1;
        }
    }
}

/* Sizes for the scalar reference. On the processor; without a level `isa` on the device OPENPI_TEST_DEVICE
 * (environment of the test program only). NULL where this machine lacks the level. */
static inline openpi_engine *mixed_engine(const char *model, const char *isa, openpi_dtype dtype,
                                          int max_delay) {
    static const char small[] =
        "{\"vision\": [72, 1, 1, 24], \"vlm\": [24, 2, 2, 32, 40], \"expert\": [16, 24], \"vocab\": 512}";
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    openpi_engine_info info = OPENPI_ENGINE_INFO_INIT;
    openpi_error why = OPENPI_ERROR_INIT;
    openpi_engine *engine;
    if (openpi_synthetic_parse(model, &synthetic, &why) || openpi_dims_parse(small, &synthetic.dims, &why))
        fail_msg("%s", why.message);
    synthetic.rtc_max_delay = max_delay;
    options.synthetic = &synthetic;
    options.isa = isa;
    options.dtype = dtype;
    options.device = isa ? NULL : getenv("OPENPI_TEST_DEVICE");
    options.threads = 2;
    openpi_status status = openpi_engine_open(NULL, &options, &engine, &why);
    if (status == OPENPI_NO_DEVICE || status == OPENPI_UNSUPPORTED) return NULL;
    if (status != OPENPI_OK || openpi_engine_get_info(engine, &info, &why)) fail_msg("%s", why.message);
    if (!isa || !strcmp(info.path, isa)) return engine;
    openpi_engine_close(engine);
    return NULL;
}

/* For real-time chunking, or in parts, of whose steps some may have more times than one. */
static inline openpi_session *mixed_open(openpi_engine *engine, int batch, int rtc, int parts, int times) {
    openpi_session_options options = OPENPI_SESSION_OPTIONS_INIT;
    openpi_session *session;
    openpi_error why = OPENPI_ERROR_INIT;
    options.batch = batch;
    options.horizon = MIXED_H;
    options.steps = MIXED_STEPS;
    options.max_prompt = MIXED_PROMPT;
    options.seed = 9;
    options.rtc = rtc;
    options.parts = parts;
    options.times = times;
    if (openpi_session_create(engine, &options, &session, &why) != OPENPI_OK) fail_msg("%s", why.message);
    return session;
}

static inline openpi_session *mixed_session(openpi_engine *engine, int batch, int rtc) {
    return mixed_open(engine, batch, rtc, 0, 0);
}

static inline void mixed_run(openpi_session *session, const mixed *m, int first, int count, float *actions) {
    openpi_error why = OPENPI_ERROR_INIT;
    if (openpi_session_run_rtc(session, m->samples + first, m->rtc + first, count,
                               m->noise + first * MIXED_ONE, actions, NULL, &why) != OPENPI_OK)
        fail_msg("%s", why.message);
}

static inline void mixed_same(const char *what, int b, const float *got, const float *want) {
    for (int i = 0; i < MIXED_ONE; i++)
        if (memcmp(got + i, want + i, sizeof *got))
            fail_msg("sample %d, %s: step %d, dimension %d is %.9g, expected %.9g", b, what,
                     i / OPENPI_ACTION_DIM, i % OPENPI_ACTION_DIM, (double)got[i], (double)want[i]);
}

/* In one session, whose kernels do not depend on the call: each sample beside the others, alone, and, where
 * it is OFF, in an ordinary call. */
static inline void mixed_in_one_session(openpi_session *session, const mixed *m) {
    static float together[MIXED * MIXED_ONE], one[MIXED_ONE];
    openpi_error why = OPENPI_ERROR_INIT;
    mixed_run(session, m, 0, MIXED, together);
    for (int b = 0; b < MIXED; b++) {
        const float *beside = together + b * MIXED_ONE;
        mixed_run(session, m, b, 1, one);
        mixed_same("beside others and alone", b, beside, one);
        if (m->rtc[b].mode != OPENPI_RTC_OFF) continue;
        if (openpi_session_run(session, m->samples + b, 1, m->noise + b * MIXED_ONE, one, NULL, &why))
            fail_msg("%s", why.message);
        mixed_same("beside others and in an ordinary call", b, beside, one);
    }
}

/* The batch twice, then a batch without chunking, then each sample alone. */
static inline void mixed_is_each_alone(openpi_engine *engine, mixed *m) {
    static float together[MIXED * MIXED_ONE], again[MIXED * MIXED_ONE], one[MIXED_ONE];
    openpi_error why = OPENPI_ERROR_INIT;
    openpi_session *batch = mixed_session(engine, MIXED, 1), *alone = mixed_session(engine, 1, 1),
                   *ordinary = mixed_session(engine, 1, 0), *ordinary_batch = mixed_session(engine, MIXED, 0);
    mixed_in_one_session(batch, m);
    mixed_run(batch, m, 0, MIXED, together);
    mixed_run(batch, m, 0, MIXED, again);
    for (int b = 0; b < MIXED; b++) {
        mixed_same("run again", b, again + b * MIXED_ONE, together + b * MIXED_ONE);
        mixed_run(alone, m, b, 1, one);
        mixed_same("in a batch and alone", b, together + b * MIXED_ONE, one);
    }
    if (openpi_session_run(ordinary_batch, m->samples, MIXED, m->noise, again, NULL, &why) != OPENPI_OK)
        fail_msg("%s", why.message);
    for (int b = 0; b < MIXED; b++) {
        const openpi_rtc keep = m->rtc[b];
        if (openpi_session_run(ordinary, m->samples + b, 1, m->noise + b * MIXED_ONE, one, NULL, &why))
            fail_msg("%s", why.message);
        mixed_same("an ordinary batch", b, again + b * MIXED_ONE, one);
        if (keep.mode == OPENPI_RTC_OFF) mixed_same("ordinary", b, together + b * MIXED_ONE, one);
        else assert_memory_not_equal(together + b * MIXED_ONE, one, sizeof one);
        m->rtc[b].mode = OPENPI_RTC_OFF;
        mixed_run(alone, m, b, 1, again);
        mixed_same("off, after a call that was not", b, again, one);
        m->rtc[b] = keep;
    }
    openpi_session_close(batch);
    openpi_session_close(alone);
    openpi_session_close(ordinary);
    openpi_session_close(ordinary_batch);
}

#endif
