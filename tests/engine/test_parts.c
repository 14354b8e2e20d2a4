/* labels: isa no_asan */
/* Calls in parts, and prefixes that are kept: chunks are those of whole calls on every level, whatever
 * differs from the call before is computed again, and what cannot be is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>

#include "backend/cpu/isa.h"
#include "openpi_internal.h"
#include "timed_steps.h"

static openpi_error error = OPENPI_ERROR_INIT;

static void must(openpi_status status) { parts_must(status, &error); }

static void refuses(openpi_status status, openpi_status expected, const char *part) {
    assert_int_equal(status, expected);
    if (!strstr(error.message, part)) fail_msg("\"%s\" says nothing of \"%s\"", error.message, part);
}

static void parts_at_every_level(void **state) {
    static const char *const models[] = {"odd:pi0", "odd:pi05"};
    static mixed m;
    (void)state;
    mixed_make(&m, 0);
    for (int i = 0; i < cpu_isa_count(); i++)
        for (int which = 0; which < 4; which++) {
            openpi_engine *engine =
                mixed_engine(models[which / 2], cpu_isa_name(i), which % 2 ? OPENPI_BF16 : OPENPI_F32, 0);
            if (!engine) continue;
            parts_are_the_whole(engine, &m, 1);
            openpi_engine_close(engine);
        }
}

static void times_of_rows_at_every_level(void **state) {
    static const char *const models[] = {"odd:pi0", "odd:pi05"};
    static mixed m;
    (void)state;
    mixed_make(&m, 1);
    for (int i = 0; i < cpu_isa_count(); i++)
        for (int which = 0; which < 4; which++) {
            int trained = which / 2;
            openpi_engine *engine =
                mixed_engine(models[trained], cpu_isa_name(i), which % 2 ? OPENPI_BF16 : OPENPI_F32,
                             trained ? MIXED_DELAY : 0);
            if (!engine) continue;
            timed_all(engine, &m, trained, 0);
            openpi_engine_close(engine);
        }
}

/* On the device of the environment: a range of steps that is replayed gives what launching it does. */
static void ranges_are_the_same_recorded(void **state) {
    static float first[PARTS_BATCH * MIXED_ONE], replayed[PARTS_BATCH * MIXED_ONE];
    static mixed m;
    (void)state;
    openpi_engine *engine = mixed_engine("odd:pi0", NULL, OPENPI_BF16, 0);
    openpi_session *session = parts_session(engine, PARTS_BATCH, 1);
    struct recording **all = &session->more_kinds[PLAN_DENOISE].recordings[CALL_ANY], *kept = *all;
    uint64_t ranges = 0;
    mixed_make(&m, 0);
    must(openpi_session_prefix(session, m.samples, 2, PARTS_CHUNKS, NULL, &error));
    for (int from = 0; from < MIXED_STEPS; from++)
        for (int to = from + 1; to <= MIXED_STEPS; to++) {
            ranges += kept && to - from < MIXED_STEPS;
            for (int turn = 0; turn < 2; turn++) {
                parts_from(session, &m, from, to, replayed);
                assert_int_equal(parts_recorded(session), ranges);
            }
            *all = NULL;
            parts_from(session, &m, from, to, first);
            *all = kept;
            parts_same("a range, recorded", replayed, first);
        }
    openpi_session_close(session);
    openpi_engine_close(engine);
}

/* ---- a prefix that is kept -------------------------------------------------------------------------- */

typedef struct kept_rig {
    openpi_engine *engine;
    openpi_session *parts, *plain;
    mixed m, other;
} kept_rig;

/* Sample 1 (two pictures) in both sessions, and whether the one with parts kept its prefix. */
static void run_both(kept_rig *r, const openpi_sample *sample, int kept) {
    float got[MIXED_ONE], want[MIXED_ONE];
    uint64_t before = parts_kept(r->parts);
    must(openpi_session_run(r->parts, sample, 1, r->m.noise, got, NULL, &error));
    must(openpi_session_run(r->plain, sample, 1, r->m.noise, want, NULL, &error));
    mixed_same("with parts and without", 0, got, want);
    assert_int_equal(parts_kept(r->parts) - before, kept);
}

/* Each change alone, and back; state and noise are no part of the prefix. */
static void what_changed_is_computed(void **state) {
    static kept_rig r;
    (void)state;
    r.engine = mixed_engine("odd:pi0", NULL, OPENPI_BF16, 0);
    r.parts = parts_session(r.engine, 1, 1);
    r.plain = parts_session(r.engine, 1, 0);
    mixed_make(&r.m, 0);
    mixed_make(&r.other, 0);
    openpi_sample base = r.m.samples[1], changed;
    run_both(&r, &base, 0);
    run_both(&r, &base, 1);
    r.m.state[3] += 1;
    run_both(&r, &base, 1);
    r.m.noise[5] = 0;
    run_both(&r, &base, 1);
    for (int what = 0; what < 6; what++) {
        changed = base;
        r.other.picture[sizeof r.other.picture - 1] ^= what == 0;
        r.other.tokens[1] += what == 1;
        if (what == 0) changed.images[1] = r.other.picture;
        if (what == 1) changed.tokens = r.other.tokens + 1;
        if (what == 2) changed.token_count--;
        if (what == 3) changed.image_mask[1] = 0;
        if (what == 4) changed.image_mask[0] = 0;
        if (what == 5) changed.image_mask[2] = 1, changed.images[2] = r.m.picture;
        run_both(&r, &changed, 0);
        run_both(&r, &changed, 1);
        run_both(&r, &base, 0);
    }
    /* What the picture lies in may change behind the session's back. */
    r.m.picture[7] ^= 1;
    run_both(&r, &base, 0);
    openpi_session_close(r.parts);
    openpi_session_close(r.plain);
    openpi_engine_close(r.engine);
}

/* A whole call in a session of several samples computes a prefix by what is made for several: the part for
 * one sample computes its own, once, and gives what a session of one gives. */
static void a_prefix_of_one_sample(void **state) {
    static kept_rig r;
    static float x[MIXED_ONE], want[MIXED_ONE];
    (void)state;
    r.engine = mixed_engine("odd:pi0", NULL, OPENPI_BF16, 0);
    r.parts = parts_session(r.engine, 2, 1);
    r.plain = parts_session(r.engine, 1, 0);
    mixed_make(&r.m, 0);
    const openpi_sample *sample = &r.m.samples[1];
    must(openpi_session_run(r.plain, sample, 1, r.m.noise, want, NULL, &error));
    must(openpi_session_run(r.parts, sample, 1, r.m.noise, x, NULL, &error));
    for (int turn = 0; turn < 2; turn++) {
        must(openpi_session_run_many(r.parts, sample, 1, 1, r.m.noise, x, NULL, &error));
        mixed_same("a prefix of one", 0, x, want);
        assert_int_equal(parts_kept(r.parts), turn);
    }
    openpi_session_close(r.parts);
    openpi_session_close(r.plain);
    openpi_engine_close(r.engine);
}

/* A call that fails leaves no prefix that a later one could take for its own. */
static void after_a_failure(void **state) {
    static kept_rig r;
    float x[MIXED_ONE];
    (void)state;
    r.engine = mixed_engine("odd:pi0", NULL, OPENPI_F32, 0);
    r.parts = parts_session(r.engine, 1, 1);
    r.plain = parts_session(r.engine, 1, 0);
    mixed_make(&r.m, 0);
    openpi_sample base = r.m.samples[1];
    refuses(openpi_session_denoise(r.parts, r.m.noise, 1, 0, 1, NULL, &error), OPENPI_BAD_ARGUMENT,
            "there is no prefix");
    run_both(&r, &base, 0);
    for (int i = 0; i < MIXED_ONE; i++) r.m.noise[i] = 3e38f;      /* what is made of it is not finite      */
    assert_int_equal(openpi_session_run(r.parts, &base, 1, r.m.noise, x, NULL, &error), OPENPI_BAD_INPUT);
    memcpy(x, r.m.noise, sizeof x);
    assert_int_equal(openpi_session_denoise(r.parts, x, 1, 0, MIXED_STEPS, NULL, &error), OPENPI_BAD_INPUT);
    assert_memory_equal(x, r.m.noise, sizeof x);
    for (int i = 0; i < MIXED_ONE; i++) r.m.noise[i] = 0;
    run_both(&r, &base, 1);
    openpi_session_close(r.parts);
    openpi_session_close(r.plain);
    openpi_engine_close(r.engine);
}

/* ---- refusals --------------------------------------------------------------------------------------- */

static void what_cannot_be_is_refused(void **state) {
    enum { ALL = PARTS_BATCH };
    static mixed m;
    static float x[PARTS_BATCH * MIXED_ONE];
    (void)state;
    openpi_engine *engine = mixed_engine("odd:pi05", NULL, OPENPI_F32, 0);
    openpi_session *plain = parts_session(engine, 2, 0), *parts = parts_session(engine, PARTS_BATCH, 1);
    mixed_make(&m, 0);
    refuses(openpi_session_run_many(plain, m.samples, 1, 2, NULL, x, NULL, &error), OPENPI_BAD_ARGUMENT,
            "without the option parts");
    refuses(openpi_session_prefix(plain, m.samples, 1, 1, NULL, &error), OPENPI_BAD_ARGUMENT,
            "without the option parts");
    refuses(openpi_session_denoise(plain, x, 1, 0, 1, NULL, &error), OPENPI_BAD_ARGUMENT,
            "without the option parts");
    refuses(openpi_session_run_many(parts, m.samples, 2, 4, NULL, x, NULL, &error), OPENPI_BAD_ARGUMENT,
            "4 chunks of each of 2 samples, expected 1 to 3");
    refuses(openpi_session_run_many(parts, m.samples, 2, 0, NULL, x, NULL, &error), OPENPI_BAD_ARGUMENT,
            "0 chunks");
    refuses(openpi_session_run_many(parts, m.samples, 2, 1, NULL, NULL, NULL, &error), OPENPI_BAD_ARGUMENT,
            "actions is NULL");
    must(openpi_session_prefix(parts, m.samples, 2, 3, NULL, &error));
    refuses(openpi_session_denoise(parts, x, ALL, 1, 1, NULL, &error), OPENPI_BAD_ARGUMENT, "steps 1 to 1");
    refuses(openpi_session_denoise(parts, x, ALL, -1, 1, NULL, &error), OPENPI_BAD_ARGUMENT, "within 0 to 3");
    refuses(openpi_session_denoise(parts, x, ALL, 0, 4, NULL, &error), OPENPI_BAD_ARGUMENT, "within 0 to 3");
    refuses(openpi_session_denoise(parts, NULL, ALL, 0, 1, NULL, &error), OPENPI_BAD_ARGUMENT, "x is NULL");
    refuses(openpi_session_denoise(parts, x, 2, 0, 1, NULL, &error), OPENPI_BAD_ARGUMENT,
            "x has 2 chunks, expected 6: the prefix is of 2 samples with 3 each");
    x[MIXED_ONE] = NAN;
    refuses(openpi_session_denoise(parts, x, ALL, 0, 1, NULL, &error), OPENPI_BAD_INPUT,
            "sample 1: x[0] is nan");
    openpi_session_close(plain);
    openpi_session_close(parts);
    openpi_engine_close(engine);
}

static void steps_that_cannot_be_are_refused(void **state) {
    static mixed m;
    static timed t;
    openpi_session_options options = OPENPI_SESSION_OPTIONS_INIT;
    openpi_session *session;
    (void)state;
    openpi_engine *engine = mixed_engine("odd:pi0", "reference", OPENPI_F32, 0);
    openpi_session *parts = parts_session(engine, 1, 1), *few = timed_session(engine, 1, 2);
    mixed_make(&m, 0);
    options.times = 1;
    refuses(openpi_session_create(engine, &options, &session, &error), OPENPI_BAD_ARGUMENT, "parts is 0");
    options.parts = 1;
    options.times = 2;
    options.horizon = 1;
    refuses(openpi_session_create(engine, &options, &session, &error), OPENPI_BAD_ARGUMENT,
            "times is 2, expected 0 to 1");
    refuses(openpi_session_step(parts, t.x, 1, t.times, t.dt, NULL, &error), OPENPI_BAD_ARGUMENT,
            "without the option times");
    refuses(openpi_session_step(NULL, t.x, 1, t.times, t.dt, NULL, &error), OPENPI_BAD_ARGUMENT, "NULL");
    refuses(openpi_session_step(few, t.x, 1, t.times, t.dt, NULL, &error), OPENPI_BAD_ARGUMENT,
            "session step: there is no prefix");
    must(openpi_session_prefix(few, m.samples, 1, 1, NULL, &error));
    refuses(openpi_session_step(few, t.x, 2, t.times, t.dt, NULL, &error), OPENPI_BAD_ARGUMENT,
            "x has 2 chunks, expected 1");
    refuses(openpi_session_step(few, NULL, 1, t.times, t.dt, NULL, &error), OPENPI_BAD_ARGUMENT, "x is NULL");
    refuses(openpi_session_step(few, t.x, 1, NULL, t.dt, NULL, &error), OPENPI_BAD_ARGUMENT, "times is NULL");
    refuses(openpi_session_step(few, t.x, 1, t.times, NULL, NULL, &error), OPENPI_BAD_ARGUMENT, "dt is NULL");
    t.times[1] = 0.5f;
    timed_step(few, &t, 1);
    t.times[2] = 0.25f;
    refuses(openpi_session_step(few, t.x, 1, t.times, t.dt, NULL, &error), OPENPI_BAD_ARGUMENT,
            "more than 2 different times");
    t.times[2] = 1.5f;
    refuses(openpi_session_step(few, t.x, 1, t.times, t.dt, NULL, &error), OPENPI_BAD_INPUT,
            "sample 0: times[2] is 1.5, expected 0 to 1");
    t.times[2] = NAN;
    refuses(openpi_session_step(few, t.x, 1, t.times, t.dt, NULL, &error), OPENPI_BAD_INPUT,
            "times[2] is nan");
    t.times[2] = 0;
    t.dt[8] = INFINITY;
    refuses(openpi_session_step(few, t.x, 1, t.times, t.dt, NULL, &error), OPENPI_BAD_INPUT, "dt[8] is inf");
    openpi_session_close(parts);
    openpi_session_close(few);
    openpi_engine_close(engine);
}

/* The time on the device is that of both parts, each once. */
static void times_are_of_both_parts(void **state) {
    static mixed m;
    static float x[PARTS_BATCH * MIXED_ONE];
    openpi_timing t = OPENPI_TIMING_INIT;
    double stages = 0;
    (void)state;
    openpi_engine *engine = mixed_engine("odd:pi05", NULL, OPENPI_F32, 0);
    openpi_session *session = parts_session(engine, PARTS_BATCH, 1);
    mixed_make(&m, 0);
    must(openpi_session_run_many(session, m.samples, 2, PARTS_CHUNKS, m.noise, x, &t, &error));
    for (int i = OPENPI_STAGE_VISION; i <= OPENPI_STAGE_DENOISE; i++) {
        assert_true(t.stage_ms[i] > 0);
        stages += t.stage_ms[i];
    }
    assert_true(t.device_ms >= stages * (1 - 1e-9) && t.device_ms <= t.total_ms);
    openpi_session_close(session);
    openpi_engine_close(engine);
}

/* Noise that nobody gives: chunk i of all draws as sample i does. */
static void noise_is_drawn(void **state) {
    static mixed m;
    static float got[PARTS_BATCH * MIXED_ONE], want[PARTS_BATCH * MIXED_ONE];
    (void)state;
    openpi_engine *engine = mixed_engine("odd:pi05", NULL, OPENPI_F32, 0);
    openpi_session *plain = parts_session(engine, PARTS_BATCH, 0);
    openpi_session *parts = parts_session(engine, PARTS_BATCH, 1);
    mixed_make(&m, 0);
    openpi_sample samples[PARTS_BATCH];
    for (int c = 0; c < PARTS_BATCH; c++) samples[c] = m.samples[c / PARTS_CHUNKS];
    for (int run = 0; run < 2; run++) {
        must(openpi_session_run_many(parts, m.samples, 2, PARTS_CHUNKS, NULL, got, NULL, &error));
        must(openpi_session_run(plain, samples, PARTS_BATCH, NULL, want, NULL, &error));
        parts_same("drawn noise", got, want);
    }
    openpi_session_close(plain);
    openpi_session_close(parts);
    openpi_engine_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_at_every_level), cmocka_unit_test(what_changed_is_computed),
        cmocka_unit_test(a_prefix_of_one_sample), cmocka_unit_test(after_a_failure),
        cmocka_unit_test(what_cannot_be_is_refused),
        cmocka_unit_test(noise_is_drawn),       cmocka_unit_test(times_are_of_both_parts),
        cmocka_unit_test(times_of_rows_at_every_level),
        cmocka_unit_test(ranges_are_the_same_recorded),
        cmocka_unit_test(steps_that_cannot_be_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
