/* labels: long no_asan */
/* What a result must not depend on: neighbours in a batch, padding, what is masked out, what ran before, the
 * number of threads, other sessions. Bit for bit, on every level of kernels that this machine has, in fp32
 * and bf16. Then the ends of every range, against the scalar reference; and that a run takes no memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "allocator.h"
#include "backend/cpu/isa.h"
#include "base/hash.h"
#include "openpi.h"
#include "openpi_internal.h"

enum {
    DIM = OPENPI_ACTION_DIM,
    PICTURE = 224 * 224 * 3,
    PICTURES = 4,
    LONGEST = 320,
    MOST = OPENPI_MAX_HORIZON * DIM
};

/* ---- material --------------------------------------------------------------------------------------- */

static uint8_t pictures[PICTURES][PICTURE];
static int32_t words[LONGEST];
static float states[8][DIM], noises[8][MOST];

static int make_material(void **state) {
    (void)state;
    for (int p = 0; p < PICTURES; p++) {
        uint64_t key = hash_mix((uint64_t)p + 1);
        for (int i = 0; i < PICTURE; i++) {
            int y = i / 3 / 224, x = i / 3 % 224;
            uint64_t block = (uint64_t)((y / 16 * 16 + x / 16) * 3 + i % 3);
            pictures[p][i] = (uint8_t)((int)(hash_uniform(key, block) * 100 + 120) +
                                       (int)(hash_uniform(key, (uint64_t)i + 5000) * 8));
        }
    }
    for (int i = 0; i < LONGEST; i++) words[i] = i ? (int32_t)(hash_mix((uint64_t)i) % 2000 + 4) : 2;
    for (int b = 0; b < 8; b++) {
        for (int i = 0; i < DIM; i++)
            states[b][i] = (float)hash_uniform(hash_mix(77 + (uint64_t)b), (uint64_t)i);
        openpi_noise(11, (uint64_t)b, noises[b], MOST);
    }
    return 0;
}

static openpi_sample sample(int cameras, int prompt, int which) {
    openpi_sample s = {.size = sizeof(openpi_sample), .pixels = OPENPI_PIXELS_U8, .tokens = words + which,
                       .token_count = prompt, .state = states[which]};
    for (int i = 0; i < OPENPI_CAMERAS; i++) {
        s.image_mask[i] = (uint8_t)(cameras >> i & 1);
        s.images[i] = s.image_mask[i] ? pictures[(which + i) % PICTURES] : NULL;
    }
    return s;
}

/* ---- engines ---------------------------------------------------------------------------------------- */

enum { MOST_ISAS = 8 };

typedef struct setting {
    const char *isa;
    openpi_dtype dtype;
    const char *model;
    char name[64];
} setting;

/* "odd:pi0", or "small:pi05": sizes for the scalar reference. */
static openpi_synthetic model_of(const char *model) {
    static const char small[] =
        "{\"vision\": [72, 1, 1, 24], \"vlm\": [24, 2, 2, 32, 40], \"expert\": [16, 24], \"vocab\": 2048}";
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    openpi_error error = OPENPI_ERROR_INIT;
    int is_small = !strncmp(model, "small:", 6);
    char spec[32];
    snprintf(spec, sizeof spec, "odd:%s", strchr(model, ':') + 1);
    assert_int_equal(openpi_synthetic_parse(spec, &synthetic, &error), OPENPI_OK);
    if (is_small && openpi_dims_parse(small, &synthetic.dims, &error) != OPENPI_OK)
        fail_msg("%s", error.message);
    return synthetic;
}

/* NULL where this machine lacks the level. */
static openpi_engine *engine_open(const char *isa, openpi_dtype dtype, const char *model, int threads) {
    openpi_synthetic synthetic = model_of(model);
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    openpi_engine *engine;
    openpi_engine_info info = OPENPI_ENGINE_INFO_INIT;
    openpi_error error = OPENPI_ERROR_INIT;
    options.synthetic = &synthetic;
    options.isa = isa;
    options.dtype = dtype;
    options.threads = threads;
    openpi_status status = openpi_engine_open(NULL, &options, &engine, &error);
    if (status == OPENPI_NO_DEVICE || status == OPENPI_UNSUPPORTED) return NULL;
    if (status != OPENPI_OK) fail_msg("%s", error.message);
    openpi_engine_get_info(engine, &info, NULL);
    if (!isa || !strcmp(info.path, isa)) return engine;
    openpi_engine_close(engine);
    return NULL;
}

static openpi_engine *engine_of(const setting *s, int threads) {
    openpi_engine *engine = engine_open(s->isa, s->dtype, s->model, threads);
    if (!engine) {
        print_message("           skipped: this machine has no %s\n", s->isa);
        skip();
    }
    return engine;
}

static openpi_session *session_of(openpi_engine *engine, int batch, int horizon, int steps, int max_prompt) {
    openpi_session_options options = OPENPI_SESSION_OPTIONS_INIT;
    openpi_session *session;
    openpi_error error = OPENPI_ERROR_INIT;
    options.batch = batch;
    options.horizon = horizon;
    options.steps = steps;
    options.max_prompt = max_prompt;
    options.seed = 5;
    if (openpi_session_create(engine, &options, &session, &error) != OPENPI_OK) fail_msg("%s", error.message);
    return session;
}

static void run(openpi_session *session, const openpi_sample *samples, int batch, const float *noise,
                float *actions) {
    openpi_error error = OPENPI_ERROR_INIT;
    if (openpi_session_run(session, samples, batch, noise, actions, NULL, &error) != OPENPI_OK)
        fail_msg("%s", error.message);
}

/* One sample alone in a session of its own. */
static void run_alone(openpi_engine *engine, openpi_sample s, int horizon, int steps, int max_prompt,
                      const float *noise, float *actions) {
    openpi_session *session = session_of(engine, 1, horizon, steps, max_prompt);
    run(session, &s, 1, noise, actions);
    openpi_session_close(session);
}

static void assert_same(const char *what, const float *a, const float *b, int count) {
    int other = 0, first = -1;
    double most = 0;
    for (int i = 0; i < count; i++) {
        if (!memcmp(&a[i], &b[i], sizeof *a)) continue;
        if (first < 0) first = i;
        other++;
        most = fmax(most, fabs((double)a[i] - (double)b[i]));
    }
    if (other) fail_msg("%s: %d of %d differ, first %d, by at most %.3g", what, other, count, first, most);
}

/* ---- what must not matter --------------------------------------------------------------------------- */

enum { H = 5, N = 2, L = 40, ONE = H * DIM };

static void batch_is_singles(void **state) {
    const setting *s = *state;
    static const int cameras[] = {7, 1, 6, 0, 5, 7, 2}, prompts[] = {3, 1, 40, 17, 0, 20, 33};
    enum { B = sizeof cameras / sizeof *cameras };
    openpi_engine *engine = engine_of(s, 2);
    openpi_sample samples[B];
    float noise[B * ONE], together[B * ONE], reversed[B * ONE], alone[ONE];
    openpi_session *session = session_of(engine, B, H, N, L);
    for (int b = 0; b < B; b++) {
        samples[b] = sample(cameras[b], prompts[b], b);
        memcpy(noise + b * ONE, noises[b], sizeof alone);
    }
    run(session, samples, B, noise, together);
    for (int b = 0; b < B; b++) {
        char what[64];
        snprintf(what, sizeof what, "sample %d of a batch, and alone", b);
        run_alone(engine, samples[b], H, N, L, noises[b], alone);
        assert_same(what, together + b * ONE, alone, ONE);
        snprintf(what, sizeof what, "sample %d alone, and in a session for a batch", b);
        run(session, &samples[b], 1, noises[b], alone);
        assert_same(what, together + b * ONE, alone, ONE);
    }
    openpi_sample backwards[B];
    for (int b = 0; b < B; b++) {
        backwards[b] = samples[B - 1 - b];
        memcpy(noise + b * ONE, noises[B - 1 - b], sizeof alone);
    }
    run(session, backwards, B, noise, reversed);
    for (int b = 0; b < B; b++)
        assert_same("the batch in another order", together + b * ONE, reversed + (B - 1 - b) * ONE, ONE);
    openpi_session_close(session);
    openpi_engine_close(engine);
}

/* A masked camera's picture is never looked at, and what a former call left there neither. */
static void behind_a_mask_is_nothing(void **state) {
    const setting *s = *state;
    openpi_engine *engine = engine_of(s, 2);
    float dropped[ONE], covered[ONE], after[ONE], other[ONE];
    openpi_sample plain = sample(3, 12, 0), hidden = plain, full = sample(7, 40, 1);
    run_alone(engine, plain, H, N, L, noises[0], dropped);
    hidden.images[2] = pictures[3];
    run_alone(engine, hidden, H, N, L, noises[0], covered);
    assert_same("a picture that is masked out", dropped, covered, ONE);
    openpi_session *session = session_of(engine, 1, H, N, L);
    run(session, &full, 1, noises[1], other);
    run(session, &plain, 1, noises[0], after);
    assert_same("after a call with more cameras and words", dropped, after, ONE);
    full.image_mask[2] = 0;
    run(session, &full, 1, noises[1], after);
    int same = 1;
    for (int i = 0; i < ONE; i++) same &= other[i] == after[i];
    assert_false(same);                  /* a camera that is missing does change the actions */
    openpi_session_close(session);
    openpi_engine_close(engine);
}

static void room_for_more_is_nothing(void **state) {
    const setting *s = *state;
    static const int capacities[] = {12, 13, 48, 200, 311};
    openpi_engine *engine = engine_of(s, 2);
    float tight[ONE], wide[ONE];
    for (int i = 0; i < (int)(sizeof capacities / sizeof *capacities); i++) {
        char what[64];
        snprintf(what, sizeof what, "a capacity of %d tokens", capacities[i]);
        run_alone(engine, sample(5, 12, 2), H, N, capacities[i], noises[2], i ? wide : tight);
        if (i) assert_same(what, tight, wide, ONE);
    }
    openpi_engine_close(engine);
}

static void threads_do_not_matter(void **state) {
    const setting *s = *state;
    static const int threads[] = {1, 2, 3, 7};
    enum { B = 2 };
    openpi_sample samples[B] = {sample(7, 23, 3), sample(2, 1, 1)};
    float noise[B * ONE], one[B * ONE], many[B * ONE];
    memcpy(noise, noises[3], sizeof *noise * ONE);
    memcpy(noise + ONE, noises[1], sizeof *noise * ONE);
    for (int i = 0; i < (int)(sizeof threads / sizeof *threads); i++) {
        char what[64];
        openpi_engine *engine = engine_of(s, threads[i]);
        openpi_session *session = session_of(engine, B, H, N, L);
        snprintf(what, sizeof what, "%d threads", threads[i]);
        run(session, samples, B, noise, i ? many : one);
        if (i) assert_same(what, one, many, B * ONE);
        openpi_session_close(session);
        openpi_engine_close(engine);
    }
}

/* ---- sessions at once ------------------------------------------------------------------------------- */

typedef struct stream {
    openpi_session *session;
    openpi_sample sample;
    const float *noise, *expected;
    int wrong;
    openpi_error error;
} stream;

static void *stream_run(void *argument) {
    stream *s = argument;
    float actions[ONE];
    for (int i = 0; i < 6; i++) {
        if (openpi_session_run(s->session, &s->sample, 1, s->noise, actions, NULL, &s->error) != OPENPI_OK)
            s->wrong = 2;
        else if (memcmp(actions, s->expected, sizeof actions)) s->wrong |= 1;
    }
    return NULL;
}

static void sessions_at_once(void **state) {
    const setting *s = *state;
    enum { STREAMS = 3 };
    openpi_engine *engine = engine_of(s, 2);
    stream streams[STREAMS];
    pthread_t threads[STREAMS];
    float expected[STREAMS][ONE];
    for (int i = 0; i < STREAMS; i++) {
        streams[i] = (stream){.session = session_of(engine, 1, H, N, L),
                              .sample = sample(7 - i, 5 + 9 * i, i),
                              .noise = noises[i],
                              .expected = expected[i],
                              .error = OPENPI_ERROR_INIT};
        run_alone(engine, streams[i].sample, H, N, L, noises[i], expected[i]);
    }
    for (int i = 0; i < STREAMS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, stream_run, &streams[i]), 0);
    for (int i = 0; i < STREAMS; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < STREAMS; i++) {
        if (streams[i].wrong)
            fail_msg("session %d: %s", i,
                     streams[i].wrong == 2 ? streams[i].error.message : "other actions than alone");
        openpi_session_close(streams[i].session);
    }
    openpi_engine_close(engine);
}

/* ---- noise ------------------------------------------------------------------------------------------ */

static void noise_is_the_seeds(void **state) {
    const setting *s = *state;
    openpi_engine *engine = engine_of(s, 2);
    enum { B = 2 };
    openpi_session *first = session_of(engine, B, H, N, L), *second = session_of(engine, B, H, N, L);
    openpi_sample samples[B] = {sample(1, 5, 0), sample(1, 5, 0)};
    float a[B * ONE], b[B * ONE], again[B * ONE], drawn[B * ONE], noise[B * ONE];
    run(first, samples, B, NULL, a);
    run(second, samples, B, NULL, b);
    assert_same("one seed", a, b, B * ONE);
    for (int i = 0; i < B; i++) openpi_noise(5, (uint64_t)i, noise + i * ONE, ONE);
    run(second, samples, B, noise, drawn);
    assert_same("the documented noise", a, drawn, B * ONE);
    run(first, samples, B, NULL, again);
    assert_memory_not_equal(a, again, sizeof a);
    assert_memory_not_equal(a, a + ONE, sizeof *a * ONE);
    openpi_session_close(first);
    openpi_session_close(second);
    openpi_engine_close(engine);
}

/* ---- ends of ranges --------------------------------------------------------------------------------- */

/* fp32 against the scalar reference: the same numbers but for the order of sums. */
static void ends_of_ranges(void **state) {
    const setting *s = *state;
    static const struct {
        int horizon, steps, cameras, prompt;
    } ends[] = {{1, 1, 1, 0},   {64, 1, 7, 1},   {1, 100, 1, 3},  {2, 16, 0, 1},
                {3, 2, 4, 200}, {63, 2, 3, 311}, {17, 3, 0, 200}, {33, 1, 2, 31}};
    enum { ENDS = sizeof ends / sizeof *ends };
    static float expected[2][ENDS][MOST], a[MOST];
    static int known[2];
    int pi05 = strstr(s->model, "pi05") != NULL;
    openpi_engine *engine = engine_of(s, 2),
                  *reference = known[pi05] ? NULL : engine_open("reference", OPENPI_F32, s->model, 2);
    for (int i = 0; i < ENDS; i++) {
        int count = ends[i].horizon * DIM, capacity = ends[i].prompt ? ends[i].prompt : 1;
        openpi_sample now = sample(ends[i].cameras, ends[i].prompt, 1);
        const float *b = expected[pi05][i];
        double most = 0;
        run_alone(engine, now, ends[i].horizon, ends[i].steps, capacity, noises[4], a);
        if (reference)
            run_alone(reference, now, ends[i].horizon, ends[i].steps, capacity, noises[4], expected[pi05][i]);
        for (int k = 0; k < count; k++) {
            double off = fabs((double)a[k] - (double)b[k]);
            if (!(off <= most)) most = off;
        }
        if (!(most <= 1e-4))
            fail_msg("H %d, N %d, cameras %d, prompt %d: off the reference by %.2e", ends[i].horizon,
                     ends[i].steps, ends[i].cameras, ends[i].prompt, most);
    }
    known[pi05] = 1;
    openpi_engine_close(engine);
    openpi_engine_close(reference);
}

/* π0's state token once an observation is an exact saving: the same as carrying it through every step. */
static void state_once_is_state_always(void **state) {
    const setting *s = *state;
    openpi_engine *engine = engine_of(s, 2);
    openpi_session_options options = OPENPI_SESSION_OPTIONS_INIT;
    openpi_session *always;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_sample samples[2] = {sample(3, 9, 0), sample(6, 21, 1)};
    float noise[2 * ONE], once[2 * ONE], carried[2 * ONE];
    memcpy(noise, noises[0], sizeof *noise * ONE);
    memcpy(noise + ONE, noises[1], sizeof *noise * ONE);
    options.batch = 2;
    options.horizon = H;
    options.steps = 4;
    options.max_prompt = L;
    openpi_session *session = session_of(engine, 2, H, 4, L);
    if (session_create(engine, &options, 1, &always, &error) != OPENPI_OK) fail_msg("%s", error.message);
    run(session, samples, 2, noise, once);
    run(always, samples, 2, noise, carried);
    for (int i = 0; i < 2 * ONE; i++)
        if (!(fabsf(once[i] - carried[i]) <= 2e-5f))
            fail_msg("element %d: once %.9g, always %.9g", i, (double)once[i], (double)carried[i]);
    openpi_session_close(session);
    openpi_session_close(always);
    openpi_engine_close(engine);
}

/* u8 pictures and the same pictures as floats. */
static void pixels_of_either_type(void **state) {
    const setting *s = *state;
    openpi_engine *engine = engine_of(s, 2);
    openpi_sample bytes = sample(3, 9, 0), floats = bytes;
    float *scaled = malloc(2 * PICTURE * sizeof *scaled), a[ONE], b[ONE];
    assert_non_null(scaled);
    floats.pixels = OPENPI_PIXELS_F32;
    for (int c = 0; c < 2; c++) {
        const uint8_t *from = bytes.images[c];
        for (int i = 0; i < PICTURE; i++) scaled[c * PICTURE + i] = (float)from[i] / 255.0f * 2.0f - 1.0f;
        floats.images[c] = scaled + c * PICTURE;
    }
    run_alone(engine, bytes, H, N, L, noises[0], a);
    run_alone(engine, floats, H, N, L, noises[0], b);
    for (int i = 0; i < ONE; i++)
        if (!(fabsf(a[i] - b[i]) <= (s->dtype == OPENPI_F32 ? 1e-5f : 0.05f)))
            fail_msg("element %d: %.9g and %.9g", i, (double)a[i], (double)b[i]);
    free(scaled);
    openpi_engine_close(engine);
}

/* ---- memory ----------------------------------------------------------------------------------------- */

static void a_run_takes_no_memory(void **state) {
    const setting *s = *state;
#if ALLOCATOR
    enum { B = 3 };
    openpi_engine *engine = engine_of(s, 2);
    openpi_session *session = session_of(engine, B, H, N, L);
    openpi_sample samples[B] = {sample(7, 40, 0), sample(1, 1, 1), sample(6, 9, 2)};
    float noise[B * ONE], actions[B * ONE];
    openpi_timing timing = OPENPI_TIMING_INIT;
    for (int b = 0; b < B; b++) memcpy(noise + b * ONE, noises[b], sizeof *noise * ONE);
    for (int round = 0; round < 3; round++) {
        long long before = allocator_calls, frees = allocator_blocks;
        openpi_status status = openpi_session_run(session, samples, B - round, round == 1 ? NULL : noise,
                                                  actions, &timing, NULL);
        long long after = allocator_calls, left = allocator_blocks;
        assert_int_equal(status, OPENPI_OK);
        assert_int_equal(after - before, 0);
        assert_int_equal(left - frees, 0);
    }
    openpi_session_close(session);
    openpi_engine_close(engine);
#else
    (void)s;
    print_message("           skipped: the sanitizer has its own allocator\n");
    skip();
#endif
}

/* What openpi_session_bytes says is what opening takes, but for the list of operations and the allocator's
 * own. */
static void bytes_are_what_is_taken(void **state) {
    const setting *s = *state;
#if ALLOCATOR
    static const int shapes[][4] = {{1, 10, 10, 48}, {4, 50, 10, 200}, {1, 1, 1, 1}, {64, 64, 100, 300}};
    openpi_engine *engine = engine_of(s, 2);
    for (int i = 0; i < 4; i++) {
        openpi_session_options options = OPENPI_SESSION_OPTIONS_INIT;
        openpi_session_info info = OPENPI_SESSION_INFO_INIT;
        uint64_t bytes = 0;
        options.batch = shapes[i][0];
        options.horizon = shapes[i][1];
        options.steps = shapes[i][2];
        options.max_prompt = shapes[i][3];
        long long blocks = allocator_blocks;
        assert_int_equal(openpi_session_bytes(engine, &options, &bytes, NULL), OPENPI_OK);
        assert_int_equal(allocator_blocks, blocks);
        long long before = allocator_bytes;
        openpi_session *session =
            session_of(engine, options.batch, options.horizon, options.steps, options.max_prompt);
        long long taken = allocator_bytes - before;
        openpi_session_get_info(session, &info, NULL);
        assert_int_equal(info.bytes, bytes);
        /* Two maps of large blocks are rounded up to huge pages, 4 MB each. */
        long long slack = (long long)info.operations * 512 + (64 << 10) + 3 * (5 << 20);
        if (taken < (long long)bytes || taken > (long long)bytes + slack)
            fail_msg("B %d, H %d, N %d, L %d: %lld bytes taken, %llu announced", shapes[i][0], shapes[i][1],
                     shapes[i][2], shapes[i][3], taken, (unsigned long long)bytes);
        openpi_session_close(session);
        assert_int_equal(allocator_bytes, before);
    }
    openpi_engine_close(engine);
#else
    (void)s;
    print_message("           skipped: the sanitizer has its own allocator\n");
    skip();
#endif
}

/* ---- every test in every setting -------------------------------------------------------------------- */

static const struct {
    const char *name;
    CMUnitTestFunction run;
    int dtypes;                  /* 1: fp32, 2: bf16, 3: both                                             */
    int reference;               /* 1: on the scalar reference too                                        */
} checks[] = {
    {"batch_is_singles", batch_is_singles, 3, 1},
    {"behind_a_mask_is_nothing", behind_a_mask_is_nothing, 3, 0},
    {"room_for_more_is_nothing", room_for_more_is_nothing, 3, 0},
    {"threads_do_not_matter", threads_do_not_matter, 3, 1},
    {"sessions_at_once", sessions_at_once, 3, 0},
    {"noise_is_the_seeds", noise_is_the_seeds, 1, 0},
    {"ends_of_ranges", ends_of_ranges, 1, 0},
    {"state_once_is_state_always", state_once_is_state_always, 1, 0},
    {"pixels_of_either_type", pixels_of_either_type, 3, 0},
    {"a_run_takes_no_memory", a_run_takes_no_memory, 3, 1},
    {"bytes_are_what_is_taken", bytes_are_what_is_taken, 1, 0},
};
enum { CHECKS = sizeof checks / sizeof *checks, MOST_TESTS = CHECKS * MOST_ISAS * 4 };

int main(void) {
    static setting settings[MOST_TESTS];
    static struct CMUnitTest tests[MOST_TESTS];
    static const char *const models[2][2] = {{"small:pi0", "small:pi05"}, {"odd:pi0", "odd:pi05"}};
    int count = 0;
    for (int c = 0; c < CHECKS; c++)
        for (int isa = cpu_isa_count() - 1; isa >= 0; isa--)
            for (int i = 0; i < 4; i++) {
                openpi_dtype dtype = i % 2 ? OPENPI_BF16 : OPENPI_F32;
                if (!(checks[c].dtypes >> (i % 2) & 1) || (!isa && !checks[c].reference)) continue;
                if (checks[c].run == state_once_is_state_always && i / 2) continue;      /* π0.5 has none */
                /* Under a sanitizer, which replaces the allocator, half of it and no scalar reference. */
                if (!ALLOCATOR && (!isa || i == 1 || i == 2 || checks[c].run == ends_of_ranges)) continue;
                setting *s = &settings[count];
                *s = (setting){.isa = cpu_isa_name(isa), .dtype = dtype, .model = models[isa > 0][i / 2]};
                snprintf(s->name, sizeof s->name, "%s %s %s %s", checks[c].name, cpu_isa_name(isa),
                         i % 2 ? "bf16" : "f32", s->model);
                tests[count++] = (struct CMUnitTest){s->name, checks[c].run, NULL, NULL, s};
            }
    return _cmocka_run_group_tests("invariances", tests, (size_t)count, make_material, NULL);
}
