/* Steps whose rows have times of their own: with the times of a session's steps they are those, with those of
 * trained real-time chunking its calls, bit for bit on a processor. Include after cmocka.h. */
#ifndef TESTS_TIMED_STEPS_H
#define TESTS_TIMED_STEPS_H

#include <math.h>

#include "parts_of_calls.h"

enum { TIMED_ROWS = PARTS_BATCH * MIXED_H };

typedef struct timed {
    float x[PARTS_BATCH * MIXED_ONE], times[TIMED_ROWS], dt[TIMED_ROWS];
} timed;

/* As a synthetic model has it, which is openpi's: fp32, added up. */
static inline float timed_of_step(int step) {
    float t = 1;
    for (int k = 0; k < step; k++) t += (float)(-1.0 / MIXED_STEPS);
    return t;
}

static inline openpi_session *timed_session(openpi_engine *engine, int batch, int times) {
    return mixed_open(engine, batch, 0, 1, times);
}

/* Rows first … end-1 at the time of a step, and one step on. */
static inline void timed_rows(timed *t, int first, int end, int step) {
    for (int r = first; r < end; r++) {
        t->times[r] = timed_of_step(step);
        t->dt[r] = (float)(-1.0 / MIXED_STEPS);
    }
}

/* Bit for bit where `most` is 0, else every number as near as that. */
static inline void timed_near(const char *what, int b, const float *got, const float *want, double most) {
    if (most == 0) mixed_same(what, b, got, want);
    for (int i = 0; i < MIXED_ONE; i++)
        if (!(fabs((double)got[i] - (double)want[i]) <= most * (1 + fabs((double)want[i]))))
            fail_msg("sample %d, %s: step %d, dimension %d is %.9g, expected %.9g", b, what,
                     i / OPENPI_ACTION_DIM, i % OPENPI_ACTION_DIM, (double)got[i], (double)want[i]);
}

static inline void timed_step(openpi_session *session, timed *t, int count) {
    openpi_error why = OPENPI_ERROR_INIT;
    parts_must(openpi_session_step(session, t->x, count, t->times, t->dt, NULL, &why), &why);
}

/* All rows alike; then chunks that are at steps of their own, of which each is that step's. */
static inline void timed_are_the_steps(openpi_engine *engine, const mixed *m, double most) {
    static float whole[PARTS_BATCH * MIXED_ONE], one[PARTS_BATCH * MIXED_ONE];
    static timed t;
    openpi_error why = OPENPI_ERROR_INIT;
    const openpi_sample samples[2] = {m->samples[2], m->samples[1]};
    openpi_session *session = timed_session(engine, PARTS_BATCH, MIXED_STEPS);
    parts_whole(engine, m, whole);
    parts_must(openpi_session_prefix(session, samples, 2, PARTS_CHUNKS, NULL, &why), &why);
    memcpy(t.x, m->noise, sizeof t.x);
    for (int step = 0; step < MIXED_STEPS; step++) {
        timed_rows(&t, 0, TIMED_ROWS, step);
        timed_step(session, &t, PARTS_BATCH);
    }
    for (int c = 0; c < PARTS_BATCH; c++)
        timed_near("steps with times", c, t.x + c * MIXED_ONE, whole + c * MIXED_ONE, most);
    for (int c = 0; c < PARTS_BATCH; c++) timed_rows(&t, c * MIXED_H, (c + 1) * MIXED_H, c % MIXED_STEPS);
    memcpy(t.x, m->noise, sizeof t.x);
    timed_step(session, &t, PARTS_BATCH);
    for (int c = 0; c < PARTS_BATCH; c++) {
        parts_from(session, m, c % MIXED_STEPS, c % MIXED_STEPS + 1, one);
        timed_near("beside other times", c, t.x + c * MIXED_ONE, one + c * MIXED_ONE, most);
    }
    openpi_session_close(session);
}

/* Sample `b` of `m` with trained chunking, made step by step. */
static inline void timed_are_trained(openpi_engine *engine, const mixed *m, int b, double most) {
    static float want[MIXED_ONE];
    static timed t;
    openpi_error why = OPENPI_ERROR_INIT;
    const openpi_rtc *rtc = &m->rtc[b];
    openpi_session *trained = mixed_session(engine, 1, 1), *session = timed_session(engine, 1, 2);
    assert_int_equal(rtc->mode, OPENPI_RTC_TRAINED);
    mixed_run(trained, m, b, 1, want);
    memcpy(t.x, m->noise + b * MIXED_ONE, sizeof want);
    for (int k = 0; k < rtc->delay; k++)
        for (int i = 0; i < OPENPI_ACTION_DIM; i++)
            t.x[k * OPENPI_ACTION_DIM + i] = i < rtc->dims ? rtc->previous[k * rtc->dims + i] : 0;
    parts_must(openpi_session_prefix(session, m->samples + b, 1, 1, NULL, &why), &why);
    for (int step = 0; step < MIXED_STEPS; step++) {
        timed_rows(&t, 0, MIXED_H, step);
        for (int k = 0; k < rtc->delay; k++) t.times[k] = t.dt[k] = 0;
        timed_step(session, &t, 1);
    }
    timed_near("trained chunking step by step", b, t.x, want, most);
    openpi_session_close(trained);
    openpi_session_close(session);
}

/* The staircase of πR² with delay `d`: times, and how far a call takes each row. */
static inline void timed_staircase(timed *t, int d) {
    for (int k = 0; k < MIXED_H; k++) {
        double at = (double)(k - d) / (MIXED_H - 2 * d), next = (double)(k - 2 * d) / (MIXED_H - 2 * d);
        t->times[k] = (float)(at < 0 ? 0 : at > 1 ? 1 : at);
        t->dt[k] = (float)(next < 0 ? 0 : next > 1 ? 1 : next) - t->times[k];
    }
}

/* One sample on the staircase: rows whose dt is 0 stay, all others move; a step with other times in between
 * changes nothing. */
static inline void timed_climb(openpi_engine *engine, const mixed *m) {
    static float first[MIXED_ONE];
    static timed t;
    openpi_error why = OPENPI_ERROR_INIT;
    openpi_session *session = timed_session(engine, 1, MIXED_H);
    parts_must(openpi_session_prefix(session, m->samples, 1, 1, NULL, &why), &why);
    for (int turn = 0; turn < 3; turn++) {
        memcpy(t.x, m->noise, sizeof first);
        timed_staircase(&t, 1 + turn % 2);
        timed_step(session, &t, 1);
        if (!turn) memcpy(first, t.x, sizeof first);
    }
    mixed_same("the staircase again", 0, t.x, first);
    for (int k = 0; k < MIXED_H; k++)
        for (int i = 0; i < OPENPI_ACTION_DIM; i++) {
            int at = k * OPENPI_ACTION_DIM + i;
            assert_int_equal(first[at] == m->noise[at], t.dt[k] == 0);
        }
    openpi_session_close(session);
}

/* All of it. The model takes trained chunking where `trained`, and `m` was made so. */
static inline void timed_all(openpi_engine *engine, const mixed *m, int trained, double most) {
    timed_are_the_steps(engine, m, most);
    timed_climb(engine, m);
    for (int b = 0; b < MIXED && trained; b++)
        if (m->rtc[b].mode == OPENPI_RTC_TRAINED) timed_are_trained(engine, m, b, most);
}

#endif
