/* Calls in parts: that prefix and steps, called apart, and several chunks of one observation are what whole
 * calls of the same session give, bit for bit. Include after cmocka.h. */
#ifndef TESTS_PARTS_OF_CALLS_H
#define TESTS_PARTS_OF_CALLS_H

#include "chunking_batch.h"

enum { PARTS_CHUNKS = 3, PARTS_BATCH = 2 * PARTS_CHUNKS };

static inline void parts_must(openpi_status status, const openpi_error *why) {
    if (status != OPENPI_OK) fail_msg("%s", why->message);
}

static inline openpi_session *parts_session(openpi_engine *engine, int batch, int parts) {
    return mixed_open(engine, batch, 0, parts, 0);
}

static inline uint64_t parts_kept(const openpi_session *session) {
    openpi_session_info info = OPENPI_SESSION_INFO_INIT;
    openpi_error why = OPENPI_ERROR_INIT;
    parts_must(openpi_session_get_info(session, &info, &why), &why);
    return info.prefixes_kept;
}

static inline void parts_same(const char *what, const float *got, const float *want) {
    for (int c = 0; c < PARTS_BATCH; c++) mixed_same(what, c, got + c * MIXED_ONE, want + c * MIXED_ONE);
}

/* Samples 2 and 1 of `m`, each PARTS_CHUNKS times, in a whole call. */
static inline void parts_whole(openpi_engine *engine, const mixed *m, float *actions) {
    openpi_session *session = parts_session(engine, PARTS_BATCH, 0);
    openpi_error why = OPENPI_ERROR_INIT;
    openpi_sample samples[PARTS_BATCH];
    for (int c = 0; c < PARTS_BATCH; c++) samples[c] = m->samples[2 - c / PARTS_CHUNKS];
    parts_must(openpi_session_run(session, samples, PARTS_BATCH, m->noise, actions, NULL, &why), &why);
    openpi_session_close(session);
}

/* From x, in calls of the steps that `cuts` divides them into. */
static inline void parts_steps(openpi_session *session, const mixed *m, const int *cuts, float *x) {
    openpi_error why = OPENPI_ERROR_INIT;
    memcpy(x, m->noise, PARTS_BATCH * MIXED_ONE * sizeof *x);
    for (int i = 0; cuts[i] < MIXED_STEPS; i++)
        parts_must(openpi_session_denoise(session, x, PARTS_BATCH, cuts[i], cuts[i + 1], NULL, &why), &why);
}

/* From the noise of `m`. */
static inline void parts_from(openpi_session *session, const mixed *m, int first, int last, float *x) {
    openpi_error why = OPENPI_ERROR_INIT;
    memcpy(x, m->noise, PARTS_BATCH * MIXED_ONE * sizeof *x);
    parts_must(openpi_session_denoise(session, x, PARTS_BATCH, first, last, NULL, &why), &why);
}

/* A last step from an x of its own, with the prefix only just there, is what it is after all others. */
static inline void parts_last_step(openpi_session *session, const mixed *m, const openpi_sample *samples) {
    enum { LAST = MIXED_STEPS - 1 };
    static float first[PARTS_BATCH * MIXED_ONE], later[PARTS_BATCH * MIXED_ONE];
    openpi_error why = OPENPI_ERROR_INIT;
    for (int kept = 0; kept < 2; kept++) {
        parts_must(openpi_session_prefix(session, samples + 1, 1, PARTS_BATCH, NULL, &why), &why);
        for (int i = 0; i <= kept; i++)
            parts_must(openpi_session_prefix(session, samples, 2, PARTS_CHUNKS, NULL, &why), &why);
        parts_from(session, m, LAST, MIXED_STEPS, first);
        parts_from(session, m, 0, MIXED_STEPS, later);
        parts_from(session, m, LAST, MIXED_STEPS, later);
        parts_same("the last step, at once and later", first, later);
    }
}

static inline uint64_t parts_recorded(const openpi_session *session) {
    openpi_session_info info = OPENPI_SESSION_INFO_INIT;
    openpi_error why = OPENPI_ERROR_INIT;
    parts_must(openpi_session_get_info(session, &info, &why), &why);
    return info.ranges_recorded;
}

/* A range gives the same the first time, when a device records it, and later; all steps together are recorded
 * with the session. */
static inline void parts_ranges(openpi_session *session, const mixed *m, int records) {
    static float first[PARTS_BATCH * MIXED_ONE], again[PARTS_BATCH * MIXED_ONE];
    uint64_t recorded = 0;
    for (int from = 0; from < MIXED_STEPS; from++)
        for (int to = from + 1; to <= MIXED_STEPS; to++) {
            parts_from(session, m, from, to, first);
            recorded += records && to - from < MIXED_STEPS;
            assert_int_equal(parts_recorded(session), recorded);
            parts_from(session, m, from, to, again);
            parts_same("a range again", again, first);
            assert_int_equal(parts_recorded(session), recorded);
        }
}

/* `cuts`: the device computes a step in the same way however many are made together; 2: and it records. */
static inline void parts_are_the_whole(openpi_engine *engine, const mixed *m, int cuts) {
    static const int once[] = {0, MIXED_STEPS}, each[] = {0, 1, 2, MIXED_STEPS}, late[] = {0, 2, MIXED_STEPS};
    static float whole[PARTS_BATCH * MIXED_ONE], x[PARTS_BATCH * MIXED_ONE];
    openpi_error why = OPENPI_ERROR_INIT;
    const openpi_sample samples[2] = {m->samples[2], m->samples[1]};
    parts_whole(engine, m, whole);
    openpi_session *session = parts_session(engine, PARTS_BATCH, 1);
    parts_must(openpi_session_run_many(session, samples, 2, PARTS_CHUNKS, m->noise, x, NULL, &why), &why);
    parts_same("several chunks", x, whole);
    assert_int_equal(parts_kept(session), 0);
    parts_must(openpi_session_run_many(session, samples, 2, PARTS_CHUNKS, m->noise, x, NULL, &why), &why);
    parts_same("over the same prefix", x, whole);
    assert_int_equal(parts_kept(session), 1);
    parts_must(openpi_session_prefix(session, samples, 2, PARTS_CHUNKS, NULL, &why), &why);
    assert_int_equal(parts_kept(session), 2);
    parts_steps(session, m, once, x);
    parts_same("prefix, then steps", x, whole);
    if (cuts) {
        parts_ranges(session, m, cuts > 1);
        parts_steps(session, m, each, x);
        parts_same("step by step", x, whole);
        parts_steps(session, m, late, x);
        parts_same("two steps, then one", x, whole);
        parts_last_step(session, m, samples);
    }
    openpi_session_close(session);
}

#endif
