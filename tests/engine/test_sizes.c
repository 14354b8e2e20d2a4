/* The sizes of openpi.h's structs, for every function that takes or fills a struct: structs of this release
 * cut to two thirds, and longer ones, with bytes after them that nobody may read or write. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "openpi.h"
#include "policy_golden.h"
#include "scratch.h"
#include "structs.h"

enum { AFTER = 64, WILD = 0xa5, MOST = 8192, H = 4, DIM = OPENPI_ACTION_DIM };

#define LENGTH(ARRAY) (sizeof(ARRAY) / sizeof *(ARRAY))
#define MUST(CALL)                                                      \
    do {                                                                 \
        openpi_error works_ = OPENPI_ERROR_INIT, *error = &works_;       \
        if ((CALL) != OPENPI_OK) fail_msg("%s: %s", #CALL, works_.message); \
    } while (0)

static struct subject {
    scratch place;
    char checkpoint[400];
    openpi_synthetic synthetic;
    openpi_engine *engine;
    openpi_session *session;
    openpi_policy *policy, *libero;
    char *message;               /* an openpi client's message, for libero                   */
    size_t message_bytes;
    openpi_request *request, *libero_request;
    uint8_t picture[OPENPI_IMAGE_SIZE * OPENPI_IMAGE_SIZE * 3];
    int32_t tokens[3];
    float state[DIM], noise[2 * H * DIM];
    double robot_state[DIM];
} it;

static openpi_session_options shape(void) {
    openpi_session_options options = OPENPI_SESSION_OPTIONS_INIT;
    options.batch = 2;
    options.horizon = H;
    options.steps = 2;
    options.max_prompt = 48;
    options.rtc = 1;
    return options;
}

static openpi_image image(void) {
    openpi_image i = IMAGE("base", it.picture, OPENPI_U8, OPENPI_HWC, OPENPI_IMAGE_SIZE, OPENPI_IMAGE_SIZE);
    return i;
}

static int set_up(void **state) {
    (void)state;
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    openpi_policy_options words = OPENPI_POLICY_OPTIONS_INIT;
    openpi_session_options two = shape();
    if (scratch_open(&it.place)) return -1;
    it.synthetic = (openpi_synthetic)OPENPI_SYNTHETIC_INIT;
    MUST(openpi_synthetic_parse("odd:pi05", &it.synthetic, error));
    snprintf(it.checkpoint, sizeof it.checkpoint, "%s", scratch_path(&it.place, "odd"));
    MUST(openpi_synthetic_write(&it.synthetic, it.checkpoint, 0, 1, NULL, NULL, error));
    options.synthetic = words.synthetic = &it.synthetic;
    options.threads = 1;
    words.robot = "none";
    words.max_prompt = 48;
    MUST(openpi_engine_open(NULL, &options, &it.engine, error));
    MUST(openpi_session_create(it.engine, &two, &it.session, error));
    MUST(openpi_policy_open(NULL, &words, &it.policy, error));
    MUST(openpi_request_create(it.policy, &it.request, error));
    words.robot = "libero";
    words.norm_stats = GOLDEN "/policy/libero_pi05/norm_stats.json";
    MUST(openpi_policy_open(NULL, &words, &it.libero, error));
    MUST(openpi_request_create(it.libero, &it.libero_request, error));
    it.message = golden_read(GOLDEN "/policy/libero_pi05/request.msgpack", &it.message_bytes);
    for (size_t i = 0; i < sizeof it.picture; i++) it.picture[i] = (uint8_t)(i * 7);
    it.tokens[0] = 2;
    it.tokens[1] = 11;
    it.tokens[2] = 5;
    openpi_noise(1, 1, it.noise, LENGTH(it.noise));
    const openpi_image one = image();
    openpi_observation seen = OBSERVATION(&one, 1, it.robot_state, 8, "go", 0);
    MUST(openpi_request_prepare(it.request, &seen, NULL, error));
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    openpi_request_close(it.request);
    openpi_request_close(it.libero_request);
    openpi_policy_close(it.libero);
    free(it.message);
    openpi_policy_close(it.policy);
    openpi_session_close(it.session);
    openpi_engine_close(it.engine);
    scratch_close(&it.place);
    return 0;
}

/* Two thirds of a struct, as an older release's header may have it. */
static size_t cut(size_t size) { return size * 2 / 3 / sizeof(size_t) * sizeof(size_t); }

/* Sizes that no header ever had: too small, not a multiple of 8, too large. */
enum { IMPOSSIBLE = 6 };
static size_t impossible(size_t whole, int which) {
    return (const size_t[IMPOSSIBLE]){
        0, 1, sizeof(size_t), cut(whole) + 4, (64 << 10) + 8, (size_t)-8}[which];
}

static void set_size(void *at, size_t size) { memcpy(at, &size, sizeof size); }

static size_t size_at(const void *at) {
    size_t size;
    memcpy(&size, at, sizeof size);
    return size;
}

static void all_are(const char *what, const unsigned char *bytes, size_t from, size_t end, int wanted) {
    for (size_t i = from; i < end; i++)
        if (bytes[i] != wanted) fail_msg("%s: byte %zu is %d, expected %d", what, i, bytes[i], wanted);
}

/* ---- structs that the library fills --------------------------------------------------------------- */

static openpi_status fill_engine_info(void *out, openpi_error *e) {
    return openpi_engine_get_info(it.engine, out, e);
}

static openpi_status fill_session_info(void *out, openpi_error *e) {
    return openpi_session_get_info(it.session, out, e);
}

static openpi_status fill_policy_info(void *out, openpi_error *e) {
    return openpi_policy_get_info(it.policy, out, e);
}

static openpi_status fill_synthetic(void *out, openpi_error *e) {
    return openpi_synthetic_parse("tiny:pi05:99", out, e);
}

static openpi_status fill_dims(void *out, openpi_error *e) { return openpi_dims_parse("tiny", out, e); }
static openpi_status fill_sample(void *out, openpi_error *e) {
    return openpi_request_sample(it.request, out, e);
}

static openpi_status time_msgpack(void *out, openpi_error *e) {
    return openpi_request_prepare_msgpack(it.libero_request, it.message, it.message_bytes, out, e);
}

static openpi_status fill_extras(void *out, openpi_error *e) {
    openpi_status status = time_msgpack(NULL, e);
    return status == OPENPI_OK ? openpi_request_extras(it.libero_request, out, e) : status;
}

static openpi_status fill_device(void *out, openpi_error *e) {
    int count;
    return openpi_devices(out, 1, &count, e);
}

static openpi_status fill_switch(void *out, openpi_error *e) {
    int count;
    return openpi_switches(out, 1, &count, e);
}

static openpi_status time_run(void *out, openpi_error *e) {
    float actions[H * DIM];
    openpi_sample sample = prepared(it.request);
    return openpi_session_run(it.session, &sample, 1, NULL, actions, out, e);
}

static openpi_status time_prepare(void *out, openpi_error *e) {
    const openpi_image one = image();
    openpi_observation seen = OBSERVATION(&one, 1, it.robot_state, 8, "go", 0);
    return openpi_request_prepare(it.request, &seen, out, e);
}

enum { PICTURE, STATE, PROMPT, FIELDS };

static void fill_fields(openpi_field fields[FIELDS]) {
    for (int f = 0; f < FIELDS; f++) fields[f] = (openpi_field)OPENPI_FIELD_INIT;
    fields[PICTURE].name = "base";
    fields[PICTURE].data = it.picture;
    fields[PICTURE].rank = 3;
    fields[PICTURE].shape[0] = fields[PICTURE].shape[1] = OPENPI_IMAGE_SIZE;
    fields[PICTURE].shape[2] = 3;
    fields[STATE].name = "state";
    fields[STATE].data = it.robot_state;
    fields[STATE].element = OPENPI_FLOAT64;
    fields[STATE].rank = 1;
    fields[STATE].shape[0] = 8;
    fields[PROMPT].name = "prompt";
    fields[PROMPT].text = "go";
    fields[PROMPT].text_length = 2;
}

static openpi_status time_fields(void *out, openpi_error *e) {
    openpi_field fields[FIELDS];
    fill_fields(fields);
    return openpi_request_prepare_fields(it.request, fields, FIELDS, out, e);
}

static openpi_status time_infer(void *out, openpi_error *e) {
    const openpi_image one = image();
    double actions[H * DIM];
    openpi_observation seen = OBSERVATION(&one, 1, it.robot_state, 8, "go", 0);
    return openpi_policy_infer(it.request, it.session, &seen, NULL, actions, LENGTH(actions), out, e);
}

static const struct filler {
    const char *what, *macro;
    size_t size;
    openpi_status (*call)(void *out, openpi_error *error);
    int varies;                  /* other values each time                                                  */
} fillers[] = {
    {"openpi_engine_get_info", "OPENPI_ENGINE_INFO_INIT", sizeof(openpi_engine_info), fill_engine_info, 0},
    {"openpi_session_get_info", "OPENPI_SESSION_INFO_INIT", sizeof(openpi_session_info), fill_session_info, 0},
    {"openpi_policy_get_info", "OPENPI_POLICY_INFO_INIT", sizeof(openpi_policy_info), fill_policy_info, 0},
    {"openpi_synthetic_parse", "OPENPI_SYNTHETIC_INIT", sizeof(openpi_synthetic), fill_synthetic, 0},
    {"openpi_dims_parse", "OPENPI_DIMS_INIT", sizeof(openpi_dims), fill_dims, 0},
    {"openpi_request_sample", "OPENPI_SAMPLE_INIT", sizeof(openpi_sample), fill_sample, 0},
    {"openpi_request_extras", "OPENPI_EXTRAS_INIT", sizeof(openpi_extras), fill_extras, 0},
    {"openpi_devices", "OPENPI_DEVICE_INIT", sizeof(openpi_device), fill_device, 0},
    {"openpi_switches", "OPENPI_SWITCH_INIT", sizeof(openpi_switch), fill_switch, 0},
    {"openpi_session_run", "OPENPI_TIMING_INIT", sizeof(openpi_timing), time_run, 1},
    {"openpi_request_prepare", "OPENPI_TIMING_INIT", sizeof(openpi_timing), time_prepare, 1},
    {"openpi_request_prepare_msgpack", "OPENPI_TIMING_INIT", sizeof(openpi_timing), time_msgpack, 1},
    {"openpi_request_prepare_fields", "OPENPI_TIMING_INIT", sizeof(openpi_timing), time_fields, 1},
    {"openpi_policy_infer", "OPENPI_TIMING_INIT", sizeof(openpi_timing), time_infer, 1},
};

static void filled_structs(void **state) {
    (void)state;
    for (const struct filler *f = fillers; f < fillers + LENGTH(fillers); f++) {
        _Alignas(16) unsigned char whole[MOST], out[MOST];
        memset(whole, WILD, sizeof whole);
        set_size(whole, f->size);
        MUST(f->call(whole, error));
        all_are(f->what, whole, f->size, sizeof whole, WILD);
        const size_t sizes[] = {cut(f->size), f->size + 8, f->size + 200};
        for (size_t i = 0; i < LENGTH(sizes); i++) {
            size_t known = sizes[i] < f->size ? sizes[i] : f->size;
            memset(out, WILD, sizeof out);
            set_size(out, sizes[i]);
            MUST(f->call(out, error));
            assert_int_equal(size_at(out), sizes[i]);
            if (!f->varies && memcmp(out + sizeof(size_t), whole + sizeof(size_t), known - sizeof(size_t)))
                fail_msg("%s: of %zu bytes the first %zu differ from the whole", f->what, sizes[i], known);
            all_are(f->what, out, known, sizes[i], 0);
            all_are(f->what, out, sizes[i], sizeof out, WILD);
        }
    }
}

/* A cut timing has its stages. */
static void cut_timing(void **state) {
    (void)state;
    openpi_timing whole = OPENPI_TIMING_INIT;
    whole.size = cut(sizeof whole);
    MUST(time_infer(&whole, error));
    assert_true(whole.stage_ms[OPENPI_STAGE_VISION] > 0 && whole.stage_ms[OPENPI_STAGE_ACTIONS] >= 0);
    assert_true(whole.total_ms == 0);
}

static void impossible_sizes(void **state) {
    (void)state;
    for (const struct filler *f = fillers; f < fillers + LENGTH(fillers); f++)
        for (int i = 0; i < IMPOSSIBLE; i++) {
            _Alignas(16) unsigned char out[MOST];
            openpi_error why = OPENPI_ERROR_INIT;
            memset(out, WILD, sizeof out);
            set_size(out, impossible(f->size, i));
            assert_int_equal(f->call(out, &why), OPENPI_BAD_ARGUMENT);
            if (!strstr(why.message, f->macro))
                fail_msg("%s: \"%s\" does not name %s", f->what, why.message, f->macro);
            all_are(f->what, out, sizeof(size_t), sizeof out, WILD);
        }
}

static void filled_arrays(void **state) {
    (void)state;
    openpi_switch own[64] = {OPENPI_SWITCH_INIT};
    int count, again;
    MUST(openpi_switches(own, 64, &count, error));
    for (int i = 0; i < count; i++) assert_true(own[i].size == sizeof *own && own[i].name && own[i].text);
    const size_t sizes[] = {cut(sizeof *own), sizeof *own + 16};
    for (size_t s = 0; s < LENGTH(sizes); s++) {
        _Alignas(16) unsigned char array[MOST];
        memset(array, WILD, sizeof array);
        set_size(array, sizes[s]);
        MUST(openpi_switches((openpi_switch *)array, 3, &again, error));
        assert_int_equal(again, count);
        for (int i = 0; i < 3; i++) {
            const unsigned char *at = array + (size_t)i * sizes[s];
            const char *name;
            memcpy(&name, at + offsetof(openpi_switch, name), sizeof name);
            assert_int_equal(size_at(at), sizes[s]);
            assert_string_equal(name, own[i].name);
        }
        all_are("openpi_switches", array, 3 * sizes[s], sizeof array, WILD);
    }
    openpi_device devices[16] = {OPENPI_DEVICE_INIT};
    MUST(openpi_devices(devices, 16, &count, error));
    for (int i = 0; i < count; i++) assert_int_equal(devices[i].size, sizeof *devices);
    assert_int_equal(openpi_devices(NULL, 1, &count, NULL), OPENPI_BAD_ARGUMENT);
    assert_int_equal(openpi_devices(devices, 1, NULL, NULL), OPENPI_BAD_ARGUMENT);
    assert_int_equal(openpi_switches(NULL, 1, &count, NULL), OPENPI_BAD_ARGUMENT);
    assert_int_equal(openpi_switches(own, 1, NULL, NULL), OPENPI_BAD_ARGUMENT);
}

/* ---- structs that the library reads --------------------------------------------------------------- */

static openpi_status open_engine(const void *in, openpi_error *e) {
    openpi_engine *engine = NULL;
    openpi_status status = openpi_engine_open(NULL, in, &engine, e);
    openpi_engine_close(engine);
    return status;
}

static openpi_status open_model(const void *in, openpi_error *e) {
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    options.synthetic = in;
    options.threads = 1;
    return open_engine(&options, e);
}

static openpi_status price(const void *in, openpi_error *e) {
    uint64_t bytes;
    return openpi_session_bytes(it.engine, in, &bytes, e);
}

static openpi_status create(const void *in, openpi_error *e) {
    openpi_session *session = NULL;
    openpi_status status = openpi_session_create(it.engine, in, &session, e);
    openpi_session_close(session);
    return status;
}

static openpi_status run(const void *in, openpi_error *e) {
    float actions[H * DIM];
    return openpi_session_run(it.session, in, 1, it.noise, actions, NULL, e);
}

static openpi_status run_rtc(const void *in, openpi_error *e) {
    float actions[H * DIM];
    const openpi_sample sample = {
        .size = sizeof sample, .images = {it.picture}, .image_mask = {1}, .state = it.state};
    return openpi_session_run_rtc(it.session, &sample, in, 1, it.noise, actions, NULL, e);
}

static openpi_status open_policy(const void *in, openpi_error *e) {
    openpi_policy *policy = NULL;
    openpi_status status = openpi_policy_open(it.checkpoint, in, &policy, e);
    openpi_policy_close(policy);
    return status;
}

static openpi_status open_words(const void *in, openpi_error *e) {
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    openpi_policy *policy = NULL;
    options.synthetic = in;
    openpi_status status = openpi_policy_open(NULL, &options, &policy, e);
    openpi_policy_close(policy);
    return status;
}

static openpi_status inspect(const void *in, openpi_error *e) {
    char *json = NULL;
    openpi_status status = openpi_inspect(it.checkpoint, in, &json, e);
    openpi_free(json);
    return status;
}

static openpi_status inspect_model(const void *in, openpi_error *e) {
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    char *json = NULL;
    options.synthetic = in;
    openpi_status status = openpi_inspect(NULL, &options, &json, e);
    openpi_free(json);
    return status;
}

static openpi_status write_model(const void *in, openpi_error *e) {
    const char *folder = scratch_path(&it.place, "written");
    openpi_status status = openpi_synthetic_write(in, folder, 0, 1, NULL, NULL, e);
    scratch_remove(folder);
    return status;
}

static openpi_status convert(const void *in, openpi_error *e) {
    const char *folder = scratch_path(&it.place, "converted");
    openpi_status status = openpi_convert(it.checkpoint, folder, in, e);
    scratch_remove(folder);
    return status;
}

static openpi_status prepare(const void *in, openpi_error *e) {
    return openpi_request_prepare(it.request, in, NULL, e);
}

static openpi_status prepare_image(const void *in, openpi_error *e) {
    openpi_observation seen = OBSERVATION(in, 1, it.robot_state, 8, "go", 0);
    return openpi_request_prepare(it.request, &seen, NULL, e);
}

/* The given field and, as far apart as its size says, two more that make it an observation. */
static openpi_status prepare_fields(const void *in, openpi_error *e) {
    openpi_field own[FIELDS];
    size_t size = size_at(in);
    if (size < cut(sizeof *own) || size % sizeof size || size > MOST)
        return openpi_request_prepare_fields(it.request, in, 1, NULL, e);
    unsigned char *array = calloc(FIELDS, size);
    assert_non_null(array);
    fill_fields(own);
    for (int f = 0; f < FIELDS; f++) {
        memcpy(array + f * size, &own[f], size < sizeof *own ? size : sizeof *own);
        set_size(array + f * size, size);
    }
    memcpy(array, in, size);
    openpi_status status = openpi_request_prepare_fields(it.request, (openpi_field *)array, FIELDS, NULL, e);
    free(array);
    return status;
}

static openpi_status infer(const void *in, openpi_error *e) {
    double actions[H * DIM];
    return openpi_policy_infer(it.request, it.session, in, it.noise, actions, LENGTH(actions), NULL, e);
}

static void read_structs(void **state) {
    (void)state;
    openpi_engine_options engine = OPENPI_ENGINE_OPTIONS_INIT;
    openpi_session_options session = shape();
    openpi_policy_options policy = OPENPI_POLICY_OPTIONS_INIT;
    const openpi_convert_options conversion = OPENPI_CONVERT_OPTIONS_INIT;
    const openpi_image one = image();
    const openpi_observation seen = OBSERVATION(&one, 1, it.robot_state, 8, "go", 0);
    const openpi_sample sample = {.size = sizeof sample,
                                  .images = {it.picture},
                                  .image_mask = {1},
                                  .tokens = it.tokens,
                                  .token_count = 3,
                                  .state = it.state};
    const openpi_rtc rtc = {.size = sizeof rtc,
                            .mode = OPENPI_RTC_GUIDED,
                            .delay = 1,
                            .previous = it.noise,
                            .rows = H,
                            .dims = DIM,
                            .schedule = OPENPI_RTC_EXP,
                            .horizon = 3,
                            .max_weight = 5};
    openpi_field fields[FIELDS];
    fill_fields(fields);
    engine.synthetic = &it.synthetic;
    engine.threads = 1;
    policy.robot = "none";
    const struct {
        const char *what, *macro;
        const void *given;
        size_t size;
        openpi_status (*call)(const void *in, openpi_error *error);
        const char *lacks;       /* what a cut one lacks and must have; NULL: it works */
    } takers[] = {
        {"openpi_engine_open", "OPENPI_ENGINE_OPTIONS_INIT", &engine, sizeof engine, open_engine, NULL},
        {"openpi_engine_open, synthetic", "OPENPI_SYNTHETIC_INIT", &it.synthetic, sizeof it.synthetic, open_model, NULL},
        {"openpi_session_bytes", "OPENPI_SESSION_OPTIONS_INIT", &session, sizeof session, price, NULL},
        {"openpi_session_create", "OPENPI_SESSION_OPTIONS_INIT", &session, sizeof session, create, NULL},
        {"openpi_session_run", "OPENPI_SAMPLE_INIT", &sample, sizeof sample, run, NULL},
        {"openpi_session_run_rtc", "OPENPI_RTC_INIT", &rtc, sizeof rtc, run_rtc, NULL},
        {"openpi_policy_open", "OPENPI_POLICY_OPTIONS_INIT", &policy, sizeof policy, open_policy, NULL},
        {"openpi_policy_open, synthetic", "OPENPI_SYNTHETIC_INIT", &it.synthetic, sizeof it.synthetic, open_words, NULL},
        {"openpi_inspect", "OPENPI_POLICY_OPTIONS_INIT", &policy, sizeof policy, inspect, NULL},
        {"openpi_inspect, synthetic", "OPENPI_SYNTHETIC_INIT", &it.synthetic, sizeof it.synthetic, inspect_model, NULL},
        {"openpi_synthetic_write", "OPENPI_SYNTHETIC_INIT", &it.synthetic, sizeof it.synthetic, write_model, NULL},
        {"openpi_convert", "OPENPI_CONVERT_OPTIONS_INIT", &conversion, sizeof conversion, convert, NULL},
        {"openpi_request_prepare", "OPENPI_OBSERVATION_INIT", &seen, sizeof seen, prepare, "the state is missing"},
        {"openpi_request_prepare, image", "OPENPI_IMAGE_INIT", &one, sizeof one, prepare_image, NULL},
        {"openpi_request_prepare_fields", "OPENPI_FIELD_INIT", fields, sizeof *fields, prepare_fields, NULL},
        {"openpi_policy_infer", "OPENPI_OBSERVATION_INIT", &seen, sizeof seen, infer, "the state is missing"},
    };
    for (size_t t = 0; t < LENGTH(takers); t++) {
        const size_t whole = takers[t].size, sizes[] = {cut(whole), whole, whole + 8, whole + 200};
        for (size_t i = 0; i < LENGTH(sizes); i++) {
            unsigned char *in = malloc(sizes[i] + AFTER);
            openpi_error why = OPENPI_ERROR_INIT;
            assert_non_null(in);
            memset(in, 0, sizes[i]);
            memset(in + sizes[i], WILD, AFTER);
            memcpy(in, takers[t].given, sizes[i] < whole ? sizes[i] : whole);
            set_size(in, sizes[i]);
            openpi_status status = takers[t].call(in, &why);
            const char *lacks = sizes[i] < whole ? takers[t].lacks : NULL;
            if (lacks ? !strstr(why.message, lacks) : status != OPENPI_OK)
                fail_msg("%s, %zu bytes of %zu: status %d, \"%s\"", takers[t].what, sizes[i], whole, status,
                         why.message);
            all_are(takers[t].what, in, sizes[i], sizes[i] + AFTER, WILD);
            if (sizes[i] > whole) {
                in[sizes[i] - 1] = 1;
                assert_int_equal(takers[t].call(in, &why), OPENPI_BAD_ARGUMENT);
                if (!strstr(why.message, "is not 0") || !strstr(why.message, takers[t].macro))
                    fail_msg("%s, an unknown byte set: \"%s\"", takers[t].what, why.message);
            }
            free(in);
        }
        for (int i = 0; i < IMPOSSIBLE; i++) {
            _Alignas(16) unsigned char in[MOST] = {0};
            openpi_error why = OPENPI_ERROR_INIT;
            memcpy(in, takers[t].given, whole);
            set_size(in, impossible(whole, i));
            openpi_status status = takers[t].call(in, &why);
            if (status != OPENPI_BAD_ARGUMENT || !strstr(why.message, takers[t].macro))
                fail_msg("%s, size %zu: status %d, \"%s\"", takers[t].what, impossible(whole, i), status,
                         why.message);
        }
    }
}

/* What a shorter struct leaves out is as if it were 0. */
static void missing_fields_are_zero(void **state) {
    (void)state;
    enum { OLDER = offsetof(openpi_session_options, steps) };
    openpi_session_options whole = shape();
    unsigned char *older = malloc(OLDER);
    openpi_session_info a = OPENPI_SESSION_INFO_INIT, b = OPENPI_SESSION_INFO_INIT;
    openpi_session *session;
    assert_non_null(older);
    memcpy(older, &whole, OLDER);
    set_size(older, OLDER);
    whole.steps = whole.max_prompt = whole.rtc = 0;
    MUST(openpi_session_create(it.engine, (openpi_session_options *)older, &session, error));
    MUST(openpi_session_get_info(session, &a, error));
    openpi_session_close(session);
    MUST(openpi_session_create(it.engine, &whole, &session, error));
    MUST(openpi_session_get_info(session, &b, error));
    openpi_session_close(session);
    assert_memory_equal(&a, &b, sizeof a);
    free(older);
}

/* Two samples, two pictures, further apart than ours: the same result; sizes that differ are refused. */
static void read_arrays(void **state) {
    (void)state;
    enum { STRIDE = sizeof(openpi_sample) + 24 };
    _Alignas(16) unsigned char array[2 * STRIDE] = {0};
    openpi_sample two[2];
    float near[2 * H * DIM], far[2 * H * DIM];
    openpi_error why = OPENPI_ERROR_INIT;
    for (int b = 0; b < 2; b++) {
        two[b] = (openpi_sample){.size = sizeof *two,
                                 .images = {it.picture},
                                 .image_mask = {1},
                                 .tokens = it.tokens,
                                 .token_count = 2 + b,
                                 .state = it.state};
        memcpy(array + b * STRIDE, &two[b], sizeof *two);
        set_size(array + b * STRIDE, STRIDE);
    }
    MUST(openpi_session_run(it.session, two, 2, it.noise, near, NULL, error));
    MUST(openpi_session_run(it.session, (openpi_sample *)array, 2, it.noise, far, NULL, error));
    assert_memory_equal(near, far, sizeof near);
    two[1].size += 8;
    assert_int_equal(openpi_session_run(it.session, two, 2, it.noise, far, NULL, &why), OPENPI_BAD_ARGUMENT);
    assert_non_null(strstr(why.message, "openpi_sample: element 1 has size 72, element 0 has 64"));

    enum { APART = sizeof(openpi_image) + 16 };
    _Alignas(16) unsigned char pictures[2 * APART] = {0};
    openpi_image one[2] = {image(), image()};
    one[1].name = "left_wrist";
    for (int i = 0; i < 2; i++) {
        memcpy(pictures + i * APART, &one[i], sizeof *one);
        set_size(pictures + i * APART, APART);
    }
    openpi_observation seen = OBSERVATION((openpi_image *)pictures, 2, it.robot_state, 8, "go", 0);
    MUST(openpi_request_prepare(it.request, &seen, NULL, error));
    assert_true(prepared(it.request).image_mask[0] == 1 && prepared(it.request).image_mask[1] == 1);
    one[1].size += 8;
    seen.images = one;
    assert_int_equal(openpi_request_prepare(it.request, &seen, NULL, &why), OPENPI_BAD_ARGUMENT);
    assert_non_null(strstr(why.message, "openpi_image: element 1"));
    seen.image_count = 1;
    MUST(openpi_request_prepare(it.request, &seen, NULL, error));
}

/* openpi_dims inside another struct: of its frozen size, and nothing reserved is set. */
static void embedded_dims(void **state) {
    (void)state;
    openpi_synthetic synthetic = it.synthetic;
    openpi_error why = OPENPI_ERROR_INIT;
    synthetic.dims.reserved[3] = 1;
    assert_int_equal(open_model(&synthetic, &why), OPENPI_BAD_ARGUMENT);
    assert_non_null(strstr(why.message, "openpi_dims: byte 68"));
    synthetic = it.synthetic;
    synthetic.dims.size = 0;
    assert_int_equal(open_model(&synthetic, &why), OPENPI_BAD_ARGUMENT);
    assert_non_null(strstr(why.message, "openpi_synthetic: the size of its dims is 0, expected 128"));
}

/* ---- errors --------------------------------------------------------------------------------------- */

static void errors(void **state) {
    (void)state;
    openpi_error whole = OPENPI_ERROR_INIT;
    char name[420];
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = 0;
    assert_int_equal(openpi_synthetic_parse(name, &it.synthetic, &whole), OPENPI_BAD_ARGUMENT);
    const size_t sizes[] = {cut(sizeof whole), sizeof whole, sizeof whole + 8, sizeof whole + 200};
    for (size_t i = 0; i < LENGTH(sizes); i++) {
        _Alignas(16) unsigned char out[MOST];
        openpi_error *given = (openpi_error *)out;
        memset(out, WILD, sizeof out);
        given->size = sizes[i];
        assert_int_equal(openpi_synthetic_parse(name, &it.synthetic, given), OPENPI_BAD_ARGUMENT);
        assert_int_equal(given->size, sizes[i]);
        assert_int_equal(given->status, OPENPI_BAD_ARGUMENT);
        size_t most = (sizes[i] < sizeof whole ? sizes[i] : sizeof whole) - offsetof(openpi_error, message);
        size_t length = strlen(whole.message) < most ? strlen(whole.message) : most - 1;
        assert_int_equal(strlen(given->message), length);
        assert_memory_equal(given->message, whole.message, length);
        if (sizes[i] > sizeof whole) all_are("openpi_error", out, sizeof whole, sizes[i], 0);
        all_are("openpi_error", out, sizes[i], sizeof out, WILD);
    }
    for (int i = 0; i < IMPOSSIBLE; i++) {
        _Alignas(16) unsigned char out[MOST];
        const size_t bad = impossible(sizeof whole, i);
        memset(out, WILD, sizeof out);
        set_size(out, bad);
        assert_int_equal(openpi_synthetic_parse(name, &it.synthetic, (openpi_error *)out),
                         OPENPI_BAD_ARGUMENT);
        assert_int_equal(size_at(out), bad);
        all_are("openpi_error", out, sizeof(size_t), sizeof out, WILD);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(filled_structs),   cmocka_unit_test(cut_timing),
        cmocka_unit_test(impossible_sizes), cmocka_unit_test(filled_arrays),
        cmocka_unit_test(read_structs),     cmocka_unit_test(missing_fields_are_zero),
        cmocka_unit_test(read_arrays),      cmocka_unit_test(embedded_dims),
        cmocka_unit_test(errors),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
