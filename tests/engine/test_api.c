/* labels: isa_slow threads */
/* The public header's contract: what holds of every function, the documented generator of noise, what handles
 * report of themselves, what an observer and a progress bar are given, and that one call is the sum of its
 * parts. */
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

#include "openpi.h"
#include "structs.h"

enum {
    DIM = OPENPI_ACTION_DIM,
    SIDE = OPENPI_IMAGE_SIZE,
    PICTURE = SIDE * SIDE * 3,
    H = 3,
    N = 2,
    B = 2,
    L = 12
};

#define SHAPE \
    {.size = sizeof(openpi_session_options), .batch = B, .horizon = H, .steps = N, .max_prompt = L, .seed = 9}

static uint8_t picture[PICTURE];

#define WORKS(call)                                                     \
    do {                                                                \
        openpi_error works_error_ = OPENPI_ERROR_INIT;                  \
        openpi_error *error = &works_error_;                            \
        if ((call) != OPENPI_OK) fail_msg("%s: %s", #call, error->message); \
    } while (0)

static openpi_engine *open_odd(const char *model, openpi_dtype dtype) {
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    openpi_engine *engine = NULL;
    WORKS(openpi_synthetic_parse(model, &synthetic, error));
    options.synthetic = &synthetic;
    options.dtype = dtype;
    options.threads = 2;
    WORKS(openpi_engine_open(NULL, &options, &engine, error));
    return engine;
}

static openpi_session *open_session(openpi_engine *engine) {
    openpi_session_options options = SHAPE;
    openpi_session *session = NULL;
    WORKS(openpi_session_create(engine, &options, &session, error));
    return session;
}

static openpi_sample one_sample(void) {
    static const int32_t tokens[] = {2, 17, 33, 4};
    static const float state[DIM] = {0.5f, -0.25f};
    return (openpi_sample){
        .size = sizeof(openpi_sample), .images = {picture, picture}, .image_mask = {1, 1, 0},
            .tokens = tokens, .token_count = 4, .state = state};
}

/* ---- texts and constants ---------------------------------------------------------------------------- */

static void statuses_have_texts(void **state) {
    (void)state;
#define X(name, value, text)              \
    assert_int_equal(name, value);        \
    assert_string_equal(openpi_status_text(name), text);
    OPENPI_STATUS_LIST(X)
#undef X
    assert_non_null(openpi_status_text((openpi_status)99));
    assert_string_equal(openpi_version(), "0.1.0");
}

static void stages_have_names(void **state) {
    (void)state;
    static const char *const names[OPENPI_STAGES] = {"picture", "prompt",  "upload",   "vision", "prefix",
                                                       "denoise", "download", "actions"};
    for (int i = 0; i < OPENPI_STAGES; i++) assert_string_equal(openpi_stage_name((openpi_stage)i), names[i]);
}

static void closing_nothing_is_allowed(void **state) {
    (void)state;
    openpi_free(NULL);
    openpi_engine_close(NULL);
    openpi_session_close(NULL);
    openpi_policy_close(NULL);
    openpi_request_close(NULL);
}

static void init_macros_are_defaults(void **state) {
    (void)state;
    openpi_engine_options engine = OPENPI_ENGINE_OPTIONS_INIT;
    openpi_session_options session = OPENPI_SESSION_OPTIONS_INIT;
    openpi_policy_options policy = OPENPI_POLICY_OPTIONS_INIT;
    static const uint8_t zeros[256];
    assert_int_equal(engine.size, sizeof engine);
    assert_int_equal(session.size, sizeof session);
    assert_int_equal(policy.size, sizeof policy);
    assert_true(sizeof engine <= sizeof zeros && sizeof session <= sizeof zeros &&
                sizeof policy <= sizeof zeros);
    assert_memory_equal((char *)&engine + sizeof engine.size, zeros, sizeof engine - sizeof engine.size);
    assert_memory_equal((char *)&session + sizeof session.size, zeros, sizeof session - sizeof session.size);
    assert_memory_equal((char *)&policy + sizeof policy.size, zeros, sizeof policy - sizeof policy.size);
}

/* ---- noise: Philox4x32-10 and Box-Muller, written down from the header ------------------------------- */

static void philox(uint64_t index, uint64_t stream, uint64_t seed, uint32_t out[4]) {
    uint32_t c[4] = {(uint32_t)index, (uint32_t)(index >> 32), (uint32_t)stream, (uint32_t)(stream >> 32)};
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * c[0], b = (uint64_t)0xCD9E8D57u * c[2];
        uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k0, (uint32_t)b, (uint32_t)(a >> 32) ^ c[3] ^ k1,
                            (uint32_t)a};
        memcpy(c, next, sizeof c);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    memcpy(out, c, sizeof c);
}

static void noise_is_as_documented(void **state) {
    (void)state;
    static const uint64_t seeds[] = {0, 1, UINT64_C(0x299f31d0a4093822), UINT64_MAX},
                          streams[] = {0, 7, UINT64_C(0x0370734413198a2e)};
    uint32_t known[4];
    enum { COUNT = 1003 };
    static float noise[COUNT + 1], part[5];
    philox(0, 0, 0, known);              /* Random123's known answers */
    assert_true(known[0] == 0x6627e8d5u && known[1] == 0xe169c58du && known[2] == 0xbc57ac4cu &&
                known[3] == 0x9b00dbd8u);
    philox(UINT64_MAX, UINT64_MAX, UINT64_MAX, known);
    assert_true(known[0] == 0x408f276du && known[1] == 0x41c83b0eu && known[2] == 0xa20bc7c6u &&
                known[3] == 0x6d5451fdu);
    philox(UINT64_C(0x85a308d3243f6a88), UINT64_C(0x0370734413198a2e), UINT64_C(0x299f31d0a4093822), known);
    assert_true(known[0] == 0xd16cfe09u && known[1] == 0x94fdccebu && known[2] == 0x5001e420u &&
                known[3] == 0x24126ea1u);
    for (int s = 0; s < 4; s++)
        for (int t = 0; t < 3; t++) {
            double sum = 0, squares = 0;
            noise[COUNT] = 77;
            openpi_noise(seeds[s], streams[t], noise, COUNT);
            assert_true(noise[COUNT] == 77);
            for (int i = 0; i < COUNT; i++) {
                uint32_t bits[4];
                philox((uint64_t)i / 4, streams[t], seeds[s], bits);
                double u = (bits[i % 4 / 2 * 2] + 0.5) * 0x1p-32,
                       v = (bits[i % 4 / 2 * 2 + 1] + 0.5) * 0x1p-32;
                double z =
                    sqrt(-2 * log(u)) * (i % 2 ? sin(6.283185307179586 * v) : cos(6.283185307179586 * v));
                if (!(fabs((double)noise[i] - z) <= 1e-6))
                    fail_msg("noise[%d] is %.9g, expected %.9g", i, (double)noise[i], z);
                sum += (double)noise[i];
                squares += (double)noise[i] * (double)noise[i];
            }
            assert_true(fabs(sum / COUNT) < 0.15 && fabs(squares / COUNT - 1) < 0.2);
            openpi_noise(seeds[s], streams[t], part, 5);     /* a prefix does not depend on the count */
            assert_memory_equal(part, noise, sizeof part);
        }
    openpi_noise(1, 1, NULL, 0);
}

/* ---- what is there ---------------------------------------------------------------------------------- */

static void devices_are_listed(void **state) {
    (void)state;
    openpi_device devices[16] = {OPENPI_DEVICE_INIT}, first = OPENPI_DEVICE_INIT;
    int count, again;
    WORKS(openpi_devices(NULL, 0, &count, error));
    assert_in_range(count, 1, 16);
    WORKS(openpi_devices(devices, 16, &again, error));
    assert_int_equal(again, count);
    WORKS(openpi_devices(&first, 1, &again, error));
    assert_int_equal(again, count);
    assert_string_equal(first.name, devices[0].name);
    int cpu = -1;
    for (int i = 0; i < count; i++) {
        assert_true(devices[i].name[0] && devices[i].description[0]);
        if (devices[i].usable) assert_true(devices[i].path[0] && !devices[i].reason[0]);
        else assert_true(devices[i].reason[0]);
        if (!strcmp(devices[i].name, "cpu")) cpu = i;
    }
    assert_in_range(cpu, 0, count - 1);
    assert_true(devices[cpu].usable);
}

static void synthetic_models_are_parsed(void **state) {
    (void)state;
    static const struct {
        const char *spec;
        openpi_variant variant;
        uint64_t seed;
        int width, vocab;
    } specs[] = {{"full", OPENPI_PI0, 7, 2048, 257152},
                 {"tiny:pi05", OPENPI_PI05, 7, 128, 2048},
                 {"odd:pi0:123", OPENPI_PI0, 123, 96, 2048},
                 {"tiny:pi05:18446744073709551615", OPENPI_PI05, UINT64_MAX, 128, 2048}};
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        openpi_synthetic s = OPENPI_SYNTHETIC_INIT;
        WORKS(openpi_synthetic_parse(specs[i].spec, &s, error));
        assert_true(s.variant == specs[i].variant && s.seed == specs[i].seed && s.lerobot == 0);
        assert_true(s.dims.width == specs[i].width && s.dims.vocab == specs[i].vocab);
    }
    openpi_synthetic whole = OPENPI_SYNTHETIC_INIT;              /* nothing said: the released size */
    WORKS(openpi_synthetic_parse(NULL, &whole, error));
    assert_int_equal(whole.dims.depth, 18);
    openpi_dims tiny = OPENPI_DIMS_INIT, same = OPENPI_DIMS_INIT;
    WORKS(openpi_dims_parse("tiny", &tiny, error));
    WORKS(openpi_dims_parse("{\"vision\": [144, 2, 2, 208], \"vlm\": [128, 3, 8, 256, 272], \"expert\": [64, "
                            "144], \"vocab\": 2048}",
                            &same, error));
    assert_memory_equal(&tiny, &same, sizeof tiny);
}

static void handles_tell_what_they_are(void **state) {
    (void)state;
    static const openpi_dtype dtypes[] = {OPENPI_BF16, OPENPI_F32, OPENPI_DTYPE_DEFAULT};
    for (int i = 0; i < 3; i++) {
        openpi_engine *engine = open_odd("odd:pi05:4", dtypes[i]);
        openpi_engine_info e = OPENPI_ENGINE_INFO_INIT;
        openpi_session_info s = OPENPI_SESSION_INFO_INIT;
        openpi_session_options options = SHAPE;
        uint64_t bytes = 0;
        openpi_engine_get_info(engine, &e, NULL);
        assert_int_equal(e.dtype, dtypes[i] == OPENPI_F32 ? OPENPI_F32 : OPENPI_BF16);
        assert_string_equal(e.device, "cpu");
        assert_true(e.path[0] && e.threads == 2 && e.variant == OPENPI_PI05 && !e.lerobot);
        assert_true(e.dims.width == 96 && e.dims.vision_width == 72 && e.dims.expert_width == 40);
        assert_true(e.default_steps == 10 && e.default_prompt == 200 && e.default_horizon == 50);
        assert_true(e.parameters > 500000 && e.parameters < 2000000 && e.weight_bytes > e.parameters / 2);
        WORKS(openpi_session_bytes(engine, &options, &bytes, error));
        openpi_session *session = open_session(engine);
        openpi_session_get_info(session, &s, NULL);
        assert_true(s.batch == B && s.horizon == H && s.steps == N && s.max_prompt == L && s.bytes == bytes &&
                    s.runs == 0 && s.operations > 20);
        openpi_session_close(session);
        openpi_session *plain = NULL;
        WORKS(openpi_session_create(engine, NULL, &plain, error));
        openpi_session_get_info(plain, &s, NULL);
        assert_true(s.batch == 1 && s.horizon == 50 && s.steps == 10 && s.max_prompt == 200);
        openpi_session_close(plain);
        openpi_engine_close(engine);
    }
}

/* ---- a run ------------------------------------------------------------------------------------------ */

static void a_run_is_timed_and_counted(void **state) {
    (void)state;
    openpi_engine *engine = open_odd("odd:pi0:4", OPENPI_F32);
    openpi_session *session = open_session(engine);
    openpi_sample sample = one_sample();
    openpi_session_info info = OPENPI_SESSION_INFO_INIT;
    openpi_timing t = OPENPI_TIMING_INIT;
    float actions[H * DIM];
    double staged = 0, inner = 0;
    memset(&t, 0xff, sizeof t);
    t.size = sizeof t;
    WORKS(openpi_session_run(session, &sample, 1, NULL, actions, &t, error));
    for (int i = 0; i < OPENPI_STAGES; i++) {
        assert_true(t.stage_ms[i] >= 0);
        staged += t.stage_ms[i];
        if (i >= OPENPI_STAGE_VISION && i <= OPENPI_STAGE_DENOISE) inner += t.stage_ms[i];
    }
    assert_true(t.stage_ms[OPENPI_STAGE_VISION] > 0 && t.stage_ms[OPENPI_STAGE_PREFIX] > 0 &&
                t.stage_ms[OPENPI_STAGE_DENOISE] > 0);
    assert_true(t.stage_ms[OPENPI_STAGE_PICTURE] == 0 && t.stage_ms[OPENPI_STAGE_PROMPT] == 0);
    assert_true(inner <= t.device_ms * 1.01 && t.device_ms <= t.total_ms * 1.01 &&
                staged <= t.total_ms * 1.01);
    for (int i = 0; i < H * DIM; i++) assert_true(actions[i] - actions[i] == 0);
    WORKS(openpi_session_run(session, &sample, 1, NULL, actions, NULL, error));
    openpi_session_get_info(session, &info, NULL);
    assert_int_equal(info.runs, 2);
    openpi_session_close(session);
    openpi_engine_close(engine);
}

/* Without noise sample b of a session's call number `runs` draws the stream runs * 64 + b. */
static void noise_has_its_stream(void **state) {
    (void)state;
    openpi_engine *engine = open_odd("odd:pi0:4", OPENPI_F32);
    openpi_session *session = open_session(engine), *other = open_session(engine);
    const openpi_sample samples[B] = {one_sample(), one_sample()};
    float drawn[B * H * DIM], noise[B * H * DIM], given[B * H * DIM];
    for (int runs = 0; runs < 3; runs++) {
        int batch = runs == 1 ? 1 : B;                        /* the stream does not depend on it */
        WORKS(openpi_session_run(session, samples, batch, NULL, drawn, NULL, error));
        for (int b = 0; b < batch; b++)
            openpi_noise(9, (uint64_t)(runs * OPENPI_MAX_BATCH + b), noise + b * H * DIM, H * DIM);
        WORKS(openpi_session_run(other, samples, batch, noise, given, NULL, error));
        assert_memory_equal(drawn, given, (size_t)(batch * H * DIM) * sizeof *drawn);
    }
    openpi_session_close(other);
    openpi_session_close(session);
    openpi_engine_close(engine);
}

static void a_failure_leaves_outputs_alone(void **state) {
    (void)state;
    openpi_engine *engine = open_odd("odd:pi0:4", OPENPI_F32);
    openpi_session *session = open_session(engine);
    openpi_sample sample = one_sample();
    float actions[H * DIM], before[H * DIM];
    openpi_timing t = OPENPI_TIMING_INIT, t_before = OPENPI_TIMING_INIT;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_session_info info = OPENPI_SESSION_INFO_INIT;
    memset(actions, 0x5a, sizeof actions);
    memset(&t, 0x5a, sizeof t);
    t.size = sizeof t;
    memcpy(before, actions, sizeof before);
    memcpy(&t_before, &t, sizeof t);
    sample.token_count = L + 1;
    assert_int_equal(openpi_session_run(session, &sample, 1, NULL, actions, &t, &error), OPENPI_BAD_INPUT);
    assert_int_equal(error.status, OPENPI_BAD_INPUT);
    assert_true(error.message[0] && !strchr(error.message, '\n'));
    assert_int_equal(openpi_session_run(session, &sample, 1, NULL, actions, &t, NULL), OPENPI_BAD_INPUT);
    assert_memory_equal(actions, before, sizeof actions);
    assert_memory_equal(&t, &t_before, sizeof t);
    openpi_session_get_info(session, &info, NULL);
    assert_int_equal(info.runs, 0);
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    openpi_engine *none = (openpi_engine *)(uintptr_t)0x5a, *kept = none;
    assert_int_equal(openpi_engine_open("/nowhere/at/all", &options, &none, &error), OPENPI_NOT_FOUND);
    assert_ptr_equal(none, kept);
    openpi_session_close(session);
    openpi_engine_close(engine);
}

typedef struct seen {
    int counts[OPENPI_TENSOR_X + 1];
    int wrong;
    pthread_t thread;
    float last[B][H * DIM];
} seen;

static void watch(void *user, openpi_tensor tensor, int sample, int index, const float *data, int rows,
                  int columns) {
    seen *s = user;
    /* odd: width 96, depth 2, head_dim 256, expert width 40; sample 0 has two cameras, sample 1 one */
    const int prefix[B] = {2 * 256 + 4, 256 + 4};
    int good = pthread_equal(s->thread, pthread_self()) && sample >= 0 && sample < B;
    s->counts[tensor]++;
    switch (tensor) {
    case OPENPI_TENSOR_IMAGE_TOKENS: good &= rows == 256 && columns == 96 && index >= 0 && index < 3; break;
    case OPENPI_TENSOR_K:
    case OPENPI_TENSOR_V: good &= rows == prefix[sample] && columns == 256 && index >= 0 && index < 2; break;
    case OPENPI_TENSOR_SUFFIX: good &= rows == H + 1 && columns == 40; break;
    case OPENPI_TENSOR_VELOCITY: good &= rows == H && columns == DIM && index >= 0 && index < N; break;
    case OPENPI_TENSOR_X:
        good &= rows == H && columns == DIM && index >= 0 && index < N;
        if (good && index == N - 1) memcpy(s->last[sample], data, sizeof s->last[sample]);
        break;
    }
    s->wrong += !good;
}

static void an_observer_sees_every_stage(void **state) {
    (void)state;
    openpi_engine *engine = open_odd("odd:pi0:4", OPENPI_F32);
    openpi_session *session = open_session(engine);
    openpi_sample samples[B] = {one_sample(), one_sample()};
    float noise[B * H * DIM], plain[B * H * DIM], watched[B * H * DIM], after[B * H * DIM];
    seen s = {.thread = pthread_self()};
    samples[1].image_mask[0] = 0;
    openpi_noise(1, 2, noise, B * H * DIM);
    WORKS(openpi_session_run(session, samples, B, noise, plain, NULL, error));
    openpi_session_observe(session, watch, &s);
    WORKS(openpi_session_run(session, samples, B, noise, watched, NULL, error));
    static const int expected[] = {3, 2 * B, 2 * B, B, N * B, N * B};
    for (int i = 0; i <= OPENPI_TENSOR_X; i++) assert_int_equal(s.counts[i], expected[i]);
    assert_int_equal(s.wrong, 0);
    assert_memory_equal(s.last, watched, sizeof watched);
    assert_memory_equal(plain, watched, sizeof plain);      /* looking changes nothing */
    openpi_session_observe(session, NULL, NULL);
    WORKS(openpi_session_run(session, samples, B, noise, after, NULL, error));
    assert_memory_equal(plain, after, sizeof plain);
    assert_int_equal(s.counts[OPENPI_TENSOR_X], N * B);
    openpi_session_close(session);
    openpi_engine_close(engine);
}

/* ---- progress --------------------------------------------------------------------------------------- */

typedef struct bar {
    int calls, wrong, finished;
    uint64_t last;
    char what[64];
    pthread_t thread;
} bar;

static void advance(void *user, const char *what, uint64_t done, uint64_t total) {
    bar *b = user;
    if (!what || !what[0] || done > total || !total || !pthread_equal(b->thread, pthread_self())) b->wrong++;
    if (what && !strcmp(what, b->what) && done < b->last) b->wrong++;
    snprintf(b->what, sizeof b->what, "%s", what ? what : "");
    b->last = done;
    b->finished = done == total;
    b->calls++;
}

static void progress_goes_up_to_the_end(void **state) {
    (void)state;
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    openpi_engine *engine = NULL;
    bar b = {.thread = pthread_self()};
    WORKS(openpi_synthetic_parse("tiny", &synthetic, error));
    options.synthetic = &synthetic;
    options.progress = advance;
    options.progress_user = &b;
    options.threads = 3;
    WORKS(openpi_engine_open(NULL, &options, &engine, error));
    assert_true(b.calls > 0 && !b.wrong && b.finished);
    openpi_engine_close(engine);
}

/* After any report a caller may stop: nothing is open then, and the sentence says why. */
static int stop_at(void *user) {
    int *left = user;
    return --*left == 0;
}

static void loading_can_be_cancelled(void **state) {
    (void)state;
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    openpi_engine *engine = NULL;
    int asked = 0, left;
    WORKS(openpi_synthetic_parse("tiny", &synthetic, error));
    options.synthetic = &synthetic;
    options.cancel = stop_at;
    options.progress_user = &left;
    left = 0; /* never */
    WORKS(openpi_engine_open(NULL, &options, &engine, error));
    asked = -left;
    openpi_engine_close(engine);
    assert_true(asked > 3);
    for (int at = 1; at <= asked; at += asked / 3) {
        openpi_error why = OPENPI_ERROR_INIT;
        left = at;
        engine = NULL;
        assert_int_equal(openpi_engine_open(NULL, &options, &engine, &why), OPENPI_CANCELLED);
        assert_null(engine);
        assert_string_equal(why.message, "loading the weights was cancelled");
        assert_int_equal(left, 0);
    }
}

/* ---- policy level ----------------------------------------------------------------------------------- */

static void one_call_is_the_sum_of_its_parts(void **state) {
    (void)state;
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    openpi_policy *policy = NULL;
    openpi_policy_info info = OPENPI_POLICY_INFO_INIT;
    openpi_request *request = NULL;
    openpi_timing t = OPENPI_TIMING_INIT;
    WORKS(openpi_synthetic_parse("odd:pi0:4", &synthetic, error));
    options.synthetic = &synthetic;
    options.robot = "droid";
    options.max_prompt = L;
    WORKS(openpi_policy_open(NULL, &options, &policy, error));
    openpi_policy_get_info(policy, &info, NULL);
    assert_true(info.state_length == 8 && info.action_dim == 8 && info.max_prompt == L &&
                !info.prompt_state && !info.lerobot);
    assert_string_equal(info.robot, "droid");
    assert_string_equal(info.cameras[0], "observation/exterior_image_1_left");
    assert_true(!info.cameras[2][0]);
    WORKS(openpi_request_create(policy, &request, error));
    assert_false(holds_sample(request));
    openpi_engine *engine = open_odd("odd:pi0:4", OPENPI_F32);
    openpi_session *session = open_session(engine);
    openpi_image images[] = {IMAGE("base", picture, OPENPI_U8, OPENPI_HWC, SIDE, SIDE),
                             IMAGE("left_wrist", picture, OPENPI_U8, OPENPI_HWC, 112, 224)};
    double robot_state[8] = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8}, once[H * 8], parts[H * 8];
    float noise[H * DIM], chunk[H * DIM];
    openpi_observation observation = OBSERVATION(images, 2, robot_state, 8, "pick up the cup", 0);
    openpi_noise(1, 2, noise, H * DIM);
    assert_int_equal(
        openpi_policy_infer(request, session, &observation, noise, once, CAPACITY(once) - 1, &t, NULL),
        OPENPI_BAD_ARGUMENT);
    openpi_session_info runs = OPENPI_SESSION_INFO_INIT;
    WORKS(openpi_session_get_info(session, &runs, error));
    assert_int_equal(runs.runs, 0);                           /* refused before anything was computed */
    WORKS(openpi_policy_infer(request, session, &observation, noise, once, CAPACITY(once), &t, error));
    assert_true(t.stage_ms[OPENPI_STAGE_PICTURE] > 0 && t.stage_ms[OPENPI_STAGE_PROMPT] > 0 &&
                t.stage_ms[OPENPI_STAGE_ACTIONS] >= 0 && t.total_ms >= t.device_ms);
    WORKS(openpi_request_prepare(request, &observation, NULL, error));
    const openpi_sample held = prepared(request), *sample = &held;
    assert_non_null(sample);
    assert_true(sample->image_mask[0] == 1 && sample->image_mask[1] == 1 && sample->image_mask[2] == 0);
    int count;
    const double *normalised = openpi_request_state(request, &count);
    assert_int_equal(count, 8);
    for (int i = 0; i < 8; i++) assert_true(sample->state[i] == (float)normalised[i]);
    WORKS(openpi_session_run(session, sample, 1, noise, chunk, NULL, error));
    WORKS(openpi_request_finish(request, chunk, H, parts, CAPACITY(parts), error));
    assert_memory_equal(once, parts, sizeof once);
    assert_int_equal(openpi_request_prompt_truncated(request), 0);
    observation.prompt = "pick up the red cup and then pick up the blue block and then fold the towel";
    WORKS(openpi_request_prepare(request, &observation, NULL, error));
    assert_int_equal(openpi_request_prompt_truncated(request), 1);
    assert_int_equal(prepared(request).token_count, L);
    observation.state_length = 7;
    assert_int_equal(openpi_request_prepare(request, &observation, NULL, NULL), OPENPI_BAD_INPUT);
    assert_false(holds_sample(request));
    openpi_request_close(request);
    openpi_policy_close(policy);
    openpi_session_close(session);
    openpi_engine_close(engine);
}

/* ---- nothing at all --------------------------------------------------------------------------------- */

static void null_is_a_bad_argument(void **state) {
    (void)state;
    openpi_engine *engine = open_odd("odd:pi0:4", OPENPI_F32);
    openpi_session *session = open_session(engine);
    openpi_sample sample = one_sample();
    openpi_synthetic synthetic = {.size = sizeof(openpi_synthetic), .dims = OPENPI_DIMS_INIT, .seed = 1};
    openpi_policy *policy = NULL;
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    openpi_request *request = NULL;
    openpi_observation observation = {0};
    float actions[H * DIM];
    double out[H * DIM];
    uint64_t bytes;
    uint8_t *pixels;
    int h, w;
    WORKS(openpi_synthetic_parse("odd", &synthetic, error));
    options.synthetic = &synthetic;
    WORKS(openpi_policy_open(NULL, &options, &policy, error));
    WORKS(openpi_request_create(policy, &request, error));
#define REFUSES(call) assert_int_equal(call, OPENPI_BAD_ARGUMENT)
    REFUSES(openpi_synthetic_parse("odd", NULL, NULL));
    REFUSES(openpi_dims_parse(NULL, &synthetic.dims, NULL));
    REFUSES(openpi_dims_parse("odd", NULL, NULL));
    REFUSES(openpi_synthetic_write(NULL, "/tmp/x", 0, 1, NULL, NULL, NULL));
    REFUSES(openpi_synthetic_write(&synthetic, NULL, 0, 1, NULL, NULL, NULL));
    REFUSES(openpi_engine_open(NULL, NULL, &engine, NULL));
    REFUSES(openpi_engine_open("x", NULL, NULL, NULL));
    REFUSES(openpi_session_bytes(NULL, NULL, &bytes, NULL));
    REFUSES(openpi_session_bytes(engine, NULL, NULL, NULL));
    REFUSES(openpi_session_create(NULL, NULL, &session, NULL));
    REFUSES(openpi_session_create(engine, NULL, NULL, NULL));
    REFUSES(openpi_session_run(NULL, &sample, 1, NULL, actions, NULL, NULL));
    REFUSES(openpi_session_run(session, NULL, 1, NULL, actions, NULL, NULL));
    REFUSES(openpi_session_run(session, &sample, 1, NULL, NULL, NULL, NULL));
    REFUSES(openpi_policy_open(NULL, NULL, &policy, NULL));
    REFUSES(openpi_policy_open(NULL, &options, NULL, NULL));
    REFUSES(openpi_request_create(NULL, &request, NULL));
    REFUSES(openpi_request_create(policy, NULL, NULL));
    REFUSES(openpi_request_prepare(NULL, &observation, NULL, NULL));
    REFUSES(openpi_request_prepare(request, NULL, NULL, NULL));
    REFUSES(openpi_request_prepare_msgpack(NULL, "x", 1, NULL, NULL));
    REFUSES(openpi_request_prepare_msgpack(request, NULL, 1, NULL, NULL));
    REFUSES(openpi_request_finish(NULL, actions, 1, out, CAPACITY(out), NULL));
    REFUSES(openpi_request_finish(request, NULL, 1, out, CAPACITY(out), NULL));
    REFUSES(openpi_request_finish(request, actions, 1, NULL, 1, NULL));
    REFUSES(openpi_policy_infer(NULL, session, &observation, NULL, out, CAPACITY(out), NULL, NULL));
    REFUSES(openpi_policy_infer(request, NULL, &observation, NULL, out, CAPACITY(out), NULL, NULL));
    REFUSES(openpi_policy_infer(request, session, &observation, NULL, NULL, 1, NULL, NULL));
    REFUSES(openpi_image_decode(NULL, 4, "x", &pixels, &h, &w, NULL));
    REFUSES(openpi_image_decode("abcd", 4, "x", NULL, &h, &w, NULL));
    REFUSES(openpi_image_decode("abcd", 4, "x", &pixels, NULL, &w, NULL));
    REFUSES(openpi_inspect(NULL, NULL, NULL, NULL));
#undef REFUSES
    openpi_request_close(request);
    openpi_policy_close(policy);
    openpi_session_close(session);
    openpi_engine_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(statuses_have_texts),
        cmocka_unit_test(stages_have_names),
        cmocka_unit_test(closing_nothing_is_allowed),
        cmocka_unit_test(init_macros_are_defaults),
        cmocka_unit_test(noise_is_as_documented),
        cmocka_unit_test(devices_are_listed),
        cmocka_unit_test(synthetic_models_are_parsed),
        cmocka_unit_test(handles_tell_what_they_are),
        cmocka_unit_test(a_run_is_timed_and_counted),
        cmocka_unit_test(a_failure_leaves_outputs_alone),
        cmocka_unit_test(noise_has_its_stream),
        cmocka_unit_test(an_observer_sees_every_stage),
        cmocka_unit_test(progress_goes_up_to_the_end),
        cmocka_unit_test(loading_can_be_cancelled),
        cmocka_unit_test(one_call_is_the_sum_of_its_parts),
        cmocka_unit_test(null_is_a_bad_argument),
    };
    for (int i = 0; i < PICTURE; i++) picture[i] = (uint8_t)(i / 700 % 256);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
