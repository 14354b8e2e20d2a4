/* labels: long */
/* Memory runs out at the n-th request, for every n, through loading and inference: each entry point must come
 * back with OPENPI_NO_MEMORY and a sentence, crash never, and leave nothing behind. Once where a single
 * request fails and once where all later ones do too. The libraries underneath (jansson, libpng, turbojpeg,
 * msgpack) ask the same allocator. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adapter_write.h"
#include "allocator.h"
#include "openpi.h"
#include "scratch.h"
#include "verify_rows.h"
#include "structs.h"

#if ALLOCATOR

static scratch place;
static const char dims[] = "{\"vision\": [72, 1, 1, 24], \"vlm\": [24, 2, 2, 32, 40], \"expert\": [16, 24], "
                           "\"vocab\": 2048}";

static openpi_synthetic model(openpi_variant variant, int lerobot) {
    openpi_synthetic s = {.size = sizeof(openpi_synthetic), .dims = OPENPI_DIMS_INIT, .variant = variant,
                          .seed = 7, .lerobot = lerobot};
    assert_int_equal(openpi_dims_parse(dims, &s.dims, NULL), OPENPI_OK);
    return s;
}

/* What a scenario works on, found before memory runs out. */
static struct material {
    openpi_synthetic pi0, pi05, hub;
    char plain[128], sharded[128], lerobot[128], written[128], golden[128], adapter[128];
    uint8_t *request, *png, *jpeg;
    size_t request_bytes, png_bytes, jpeg_bytes;
    uint8_t picture[300 * 400 * 3];
    float noise[4 * OPENPI_ACTION_DIM];
    float known[4 * OPENPI_ACTION_DIM];  /* what a run that nothing hindered gave                          */
} material;

/* Of the small expert that `dims` has: pairs and a replaced bias. Note: no "rank_pattern", because glibc's
 * own regcomp frees twice where memory ends in it. */
static void write_adapter(const char *folder) {
    static tensor_list list;
    assert_int_equal(mkdir(folder, 0777), 0);
    pair_add(&list, "model.action_in_proj", DTYPE_F32, 2, OPENPI_ACTION_DIM, 16, 0.1f);
    pair_add(&list, "model.paligemma_with_expert.gemma_expert.model.layers.1.self_attn.q_proj", DTYPE_BF16, 2,
             16, 64, 0.1f);
    list_random(&list, "base_model.model.model.action_out_proj.bias", DTYPE_F32, OPENPI_ACTION_DIM, 0, 0.1f);
    adapter_write(&list, folder,
                  "\"r\": 2, \"lora_alpha\": 4, \"modules_to_save\": [\"action_out_proj\"]");
    list_free(&list);
}

static int make_material(void **state) {
    (void)state;
    struct material *m = &material;
    if (scratch_open(&place)) return -1;
    m->pi0 = model(OPENPI_PI0, 0);
    m->pi05 = model(OPENPI_PI05, 0);
    m->hub = model(OPENPI_PI05, 1);
    snprintf(m->plain, sizeof m->plain, "%s/plain", place.folder);
    snprintf(m->sharded, sizeof m->sharded, "%s/sharded", place.folder);
    snprintf(m->lerobot, sizeof m->lerobot, "%s/lerobot", place.folder);
    snprintf(m->written, sizeof m->written, "%s/written", place.folder);
    snprintf(m->adapter, sizeof m->adapter, "%s/adapter", place.folder);
    write_adapter(m->adapter);
    openpi_error error = OPENPI_ERROR_INIT;
    if (openpi_synthetic_write(&m->pi0, m->plain, 0, 1, NULL, NULL, &error) ||
        openpi_synthetic_write(&m->pi05, m->sharded, 100000, 1, NULL, NULL, &error) ||
        openpi_synthetic_write(&m->hub, m->lerobot, 0, 1, NULL, NULL, &error)) {
        print_error("%s\n", error.message);
        return -1;
    }
    m->request = file_bytes(GOLDEN "/policy/droid_pi0/request.msgpack", &m->request_bytes);
    m->png = file_bytes(TESTS_DIR "/pictures/interlaced.png", &m->png_bytes);
    m->jpeg = file_bytes(TESTS_DIR "/pictures/progressive.jpg", &m->jpeg_bytes);
    for (size_t i = 0; i < sizeof m->picture; i++) m->picture[i] = (uint8_t)(i * 7 % 251);
    openpi_noise(3, 0, m->noise, 4 * OPENPI_ACTION_DIM);
    return m->request && m->png && m->jpeg ? 0 : -1;
}

static int remove_material(void **state) {
    (void)state;
    free(material.request);
    free(material.png);
    free(material.jpeg);
    scratch_close(&place);
    return 0;
}

/* ---- scenarios -------------------------------------------------------------------------------------- */

/* Everything that a scenario opens, so that it can end anywhere. */
typedef struct holdings {
    openpi_engine *engine;
    openpi_session *session;
    openpi_policy *policy;
    openpi_request *request;
    void *bytes;
} holdings;

static void let_go(holdings *h) {
    openpi_free(h->bytes);
    openpi_request_close(h->request);
    openpi_policy_close(h->policy);
    openpi_session_close(h->session);
    openpi_engine_close(h->engine);
}

#define STEP(call)                                   \
    do {                                             \
        openpi_status step_status_ = (call);         \
        if (step_status_ != OPENPI_OK) return step_status_; \
    } while (0)

static void look(void *user, openpi_tensor tensor, int sample, int index, const float *data, int rows,
                 int columns) {
    (void)tensor, (void)sample, (void)index, (void)rows, (void)columns;
    *(float *)user += data[0];
}

static openpi_status infer(holdings *h, const char *checkpoint, const openpi_synthetic *synthetic,
                           int threads, openpi_dtype dtype, openpi_error *error) {
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    openpi_session_options session = OPENPI_SESSION_OPTIONS_INIT;
    const openpi_rtc rtc = {.size = sizeof rtc,
                            .mode = synthetic && synthetic->rtc_max_delay ? OPENPI_RTC_TRAINED
                                                                          : OPENPI_RTC_OFF,
                            .delay = 2,
                            .previous = material.noise,
                            .rows = 4,
                            .dims = 32};
    static const int32_t tokens[] = {2, 5, 9};
    openpi_sample sample = {
        .size = sizeof(openpi_sample), .images = {material.picture}, .image_mask = {1}, .tokens = tokens,
            .token_count = 3, .state = material.noise};
    float actions[4 * OPENPI_ACTION_DIM], seen = 0;
    uint64_t bytes;
    options.synthetic = synthetic;
    options.threads = threads;
    options.dtype = dtype;
    STEP(openpi_engine_open(checkpoint, &options, &h->engine, error));
    session.horizon = 4;
    session.steps = 2;
    session.rtc = rtc.mode != OPENPI_RTC_OFF;
    STEP(openpi_session_bytes(h->engine, &session, &bytes, error));
    STEP(openpi_session_create(h->engine, &session, &h->session, error));
    STEP(openpi_session_run_rtc(h->session, &sample, &rtc, 1, material.noise, actions, NULL, error));
    if (!atomic_load(&allocator_fail_at)) memcpy(material.known, actions, sizeof actions);
    else if (memcmp(material.known, actions, sizeof actions))
        return OPENPI_SYSTEM; /* half a model answered */
    openpi_session_observe(h->session, look, &seen);
    return openpi_session_run_rtc(h->session, &sample, &rtc, 1, material.noise, actions, NULL, error);
}

static openpi_status synthetic_f32(holdings *h, openpi_error *error) {
    return infer(h, NULL, &material.pi0, 1, OPENPI_F32, error);
}
static openpi_status synthetic_bf16(holdings *h, openpi_error *error) {
    return infer(h, NULL, &material.pi05, 1, OPENPI_BF16, error);
}
static openpi_status real_time_chunking(holdings *h, openpi_error *error) {
    openpi_synthetic trained = material.pi05;
    trained.rtc_max_delay = 2;
    return infer(h, NULL, &trained, 1, OPENPI_BF16, error);
}
static openpi_status with_threads(holdings *h, openpi_error *error) {
    return infer(h, NULL, &material.pi0, 3, OPENPI_BF16, error);
}
static openpi_status from_a_file(holdings *h, openpi_error *error) {
    return infer(h, material.plain, NULL, 1, OPENPI_BF16, error);
}
static openpi_status from_shards(holdings *h, openpi_error *error) {
    return infer(h, material.sharded, NULL, 1, OPENPI_F32, error);
}
static openpi_status from_lerobot(holdings *h, openpi_error *error) {
    return infer(h, material.lerobot, NULL, 1, OPENPI_F32, error);
}

static openpi_status policy(holdings *h, const char *checkpoint, const openpi_policy_options *options,
                            const char *camera, int states, openpi_error *error) {
    openpi_image image = IMAGE(camera, material.picture, OPENPI_U8, OPENPI_HWC, 300, 400);
    double state[OPENPI_ACTION_DIM] = {0}, actions[4 * OPENPI_ACTION_DIM];
    static char text[20000];             /* longer than what a request has ready */
    memset(text, 'a', sizeof text - 1);
    openpi_observation observation = OBSERVATION(&image, 1, state, states, "pick up the cup", 0);
    STEP(openpi_policy_open(checkpoint, options, &h->policy, error));
    STEP(openpi_request_create(h->policy, &h->request, error));
    STEP(openpi_request_prepare(h->request, &observation, NULL, error));
    observation.prompt = text;
    STEP(openpi_request_prepare(h->request, &observation, NULL, error));
    return openpi_request_finish(h->request, material.noise, 4, actions, CAPACITY(actions), error);
}

static openpi_status openpi_policy_scenario(holdings *h, openpi_error *error) {
    return policy(h, material.plain, NULL, "base", 32, error);
}

static openpi_status lerobot_policy_scenario(holdings *h, openpi_error *error) {
    return policy(h, GOLDEN "/lerobot/pi05/checkpoint", NULL, "observation.images.front", 8, error);
}

static openpi_status robot_policy_scenario(holdings *h, openpi_error *error) {
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    double actions[4 * OPENPI_ACTION_DIM];
    options.robot = "{\"like\": \"droid\", \"name\": \"mine\", \"delta\": [7, -1]}";
    options.synthetic = &material.pi0;
    options.norm_stats = GOLDEN "/policy/droid_pi0/norm_stats.json";
    options.tokenizer = GOLDEN "/tokenizer.model";
    STEP(openpi_policy_open(NULL, &options, &h->policy, error));
    STEP(openpi_request_create(h->policy, &h->request, error));
    STEP(openpi_request_prepare_msgpack(h->request, material.request, material.request_bytes, NULL, error));
    return openpi_request_finish(h->request, material.noise, 4, actions, CAPACITY(actions), error);
}

static openpi_status png(holdings *h, openpi_error *error) {
    int height, width;
    uint8_t *pixels = NULL;
    STEP(openpi_image_decode(material.png, material.png_bytes, "a.png", &pixels, &height, &width, error));
    h->bytes = pixels;
    return OPENPI_OK;
}

static openpi_status jpeg(holdings *h, openpi_error *error) {
    int height, width;
    uint8_t *pixels = NULL;
    STEP(openpi_image_decode(material.jpeg, material.jpeg_bytes, "a.jpg", &pixels, &height, &width, error));
    h->bytes = pixels;
    return OPENPI_OK;
}

static openpi_status inspect_plain(holdings *h, openpi_error *error) {
    char *json = NULL;
    STEP(openpi_inspect(material.plain, NULL, &json, error));
    h->bytes = json;
    return OPENPI_OK;
}

static openpi_status inspect_lerobot(holdings *h, openpi_error *error) {
    char *json = NULL;
    STEP(openpi_inspect(material.lerobot, NULL, &json, error));
    h->bytes = json;
    return OPENPI_OK;
}

static openpi_status inspect_adapter(holdings *h, openpi_error *error) {
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    char *json = NULL;
    options.adapter = material.adapter;
    STEP(openpi_inspect(material.lerobot, &options, &json, error));
    h->bytes = json;
    return OPENPI_OK;
}

static openpi_status convert_adapter(holdings *h, openpi_error *error) {
    openpi_convert_options options = OPENPI_CONVERT_OPTIONS_INIT;
    (void)h;
    options.threads = 1;
    options.adapter = material.adapter;
    openpi_status status = openpi_convert(material.lerobot, material.written, &options, error);
    long long fail_at = atomic_exchange(&allocator_fail_at, 0);
    scratch_remove(material.written);
    atomic_store(&allocator_fail_at, fail_at);
    return status;
}

static openpi_status write_shards(holdings *h, openpi_error *error) {
    (void)h;
    openpi_status status =
        openpi_synthetic_write(&material.pi05, material.written, 100000, 1, NULL, NULL, error);
    long long fail_at = atomic_exchange(&allocator_fail_at, 0);
    scratch_remove(material.written);
    atomic_store(&allocator_fail_at, fail_at);
    return status;
}

static openpi_status write_lerobot(holdings *h, openpi_error *error) {
    (void)h;
    openpi_status status = openpi_synthetic_write(&material.hub, material.written, 0, 1, NULL, NULL, error);
    long long fail_at = atomic_exchange(&allocator_fail_at, 0);
    scratch_remove(material.written);
    atomic_store(&allocator_fail_at, fail_at);
    return status;
}

static openpi_status convert_shards(holdings *h, openpi_error *error) {
    openpi_convert_options options = OPENPI_CONVERT_OPTIONS_INIT;
    (void)h;
    options.threads = 1;
    options.shard_bytes = 100000;
    openpi_status status = openpi_convert(material.sharded, material.written, &options, error);
    long long fail_at = atomic_exchange(&allocator_fail_at, 0);
    scratch_remove(material.written);
    atomic_store(&allocator_fail_at, fail_at);
    return status;
}

static openpi_status convert_lerobot(holdings *h, openpi_error *error) {
    openpi_convert_options options = OPENPI_CONVERT_OPTIONS_INIT;
    (void)h;
    options.threads = 1;
    options.dtype = OPENPI_FILE_F16;
    openpi_status status = openpi_convert(material.lerobot, material.written, &options, error);
    long long fail_at = atomic_exchange(&allocator_fail_at, 0);
    scratch_remove(material.written);
    atomic_store(&allocator_fail_at, fail_at);
    return status;
}

static openpi_status parse(holdings *h, openpi_error *error) {
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    (void)h;
    STEP(openpi_synthetic_parse("odd:pi05:3", &synthetic, error));
    return openpi_dims_parse(dims, &synthetic.dims, error);
}

static void keep_row(void *user, const verify_row *row) { *(verify_result *)user = row->result; }

/* verify's own failures are FAIL rows. */
static openpi_status verify_policy_golden(holdings *h, openpi_error *error) {
    verify_options options = VERIFY_OPTIONS_INIT;
    verify_result result = VERIFY_FAIL;
    (void)h;
    options.threads = 1;
    STEP(verify_path(GOLDEN "/lerobot/pi0_relative", &options, keep_row, &result, error));
    if (result == VERIFY_OK) return OPENPI_OK;
    snprintf(error->message, sizeof error->message, "a FAIL row");
    return error->status = OPENPI_NO_MEMORY;
}

/* ---- the harness ------------------------------------------------------------------------------------ */

typedef struct scenario {
    const char *name;
    openpi_status (*run)(holdings *h, openpi_error *error);
    int blocks;                  /* that a library may keep or give up                                 */
    int stride;                  /* every how many requests, unless asked for all; 0: every one            */
} scenario;

typedef struct outcome {
    openpi_status status;
    openpi_error error;
    long long calls, refused, blocks, files;  /* the last two: left behind                                 */
} outcome;

static outcome attempt(const scenario *s, long long fail_at, int and_on) {
    outcome o = {.error = OPENPI_ERROR_INIT};
    holdings h = {0};
    long long blocks = atomic_load(&allocator_blocks), files = atomic_load(&allocator_files),
              calls = atomic_load(&allocator_calls);
    atomic_store(&allocator_failed, 0);
    atomic_store(&allocator_fail_on, and_on);
    atomic_store(&allocator_fail_at, fail_at ? calls + fail_at : 0);
    o.status = s->run(&h, &o.error);
    atomic_store(&allocator_fail_at, 0);
    o.calls = atomic_load(&allocator_calls) - calls;
    let_go(&h);
    o.refused = atomic_load(&allocator_failed);
    o.blocks = atomic_load(&allocator_blocks) - blocks;
    o.files = atomic_load(&allocator_files) - files;
    return o;
}

static int every;

static void memory_runs_out(void **state) {
    const scenario *s = *state;
    outcome whole = attempt(s, 0, 0);
    if (whole.status != OPENPI_OK) fail_msg("unhindered: %s", whole.error.message);
    whole = attempt(s, 0, 0); /* once more: what libraries keep for ever is there now */
    assert_int_equal(whole.blocks, 0);
    int unnoticed = 0, tries = 0;
    for (int and_on = 0; and_on < 2; and_on++)
        for (long long n = 1; n <= whole.calls; n += every || !s->stride ? 1 : s->stride) {
            outcome o = attempt(s, n, and_on);
            if (!o.refused) continue;                    /* fewer requests this time */
            tries++;
            if (o.blocks > s->blocks || o.blocks < -s->blocks || o.files)
                fail_msg("request %lld of %lld%s refused: %lld blocks and %lld files left behind (%s)", n,
                         whole.calls, and_on ? " and on" : "", o.blocks, o.files, o.error.message);
            if (o.status == OPENPI_OK) {
                unnoticed++;
                continue;
            }
            if (o.status != OPENPI_NO_MEMORY || o.error.status != OPENPI_NO_MEMORY || !o.error.message[0])
                fail_msg("request %lld of %lld%s refused: status %d, \"%s\"", n, whole.calls,
                         and_on ? " and on" : "", (int)o.status, o.error.message);
        }
    print_message("           %lld requests, %d refusals, %d of them survived\n", whole.calls, tries,
                  unnoticed);
    /* A library may do without now and then; the rest must have been noticed. */
    assert_true(unnoticed <= 5 + tries / 100);
    assert_int_equal(attempt(s, 0, 0).status, OPENPI_OK);
}

static const scenario scenarios[] = {
    {"parse", parse, 0, 0},
    {"synthetic f32", synthetic_f32, 0, 0},
    {"synthetic bf16", synthetic_bf16, 0, 0},
    {"real-time chunking", real_time_chunking, 0, 0},
    {"three threads", with_threads, 0, 0},
    {"a checkpoint of one file", from_a_file, 0, 0},
    {"a checkpoint of shards", from_shards, 0, 0},
    {"a checkpoint of LeRobot's", from_lerobot, 0, 0},
    {"a policy", openpi_policy_scenario, 0, 0},
    {"a policy of LeRobot's", lerobot_policy_scenario, 0, 23},
    {"a policy from a robot's JSON", robot_policy_scenario, 0, 0},
    {"PNG", png, 0, 0},
    {"JPEG", jpeg, 1, 0},                   /* tjInitDecompress: its own handle                               */
    {"inspect", inspect_plain, 1, 0},       /* dlopen of a driver that is not there: glibc keeps its message    */
    {"inspect LeRobot's", inspect_lerobot, 1, 0},
    {"write shards", write_shards, 0, 7},
    {"write LeRobot's", write_lerobot, 0, 7},
    {"convert to shards", convert_shards, 0, 7},
    {"convert LeRobot's", convert_lerobot, 0, 7},
    {"inspect an adapter", inspect_adapter, 1, 7},
    {"convert an adapter", convert_adapter, 0, 37},
    {"verify", verify_policy_golden, 0, 37},
};

enum { SCENARIOS = sizeof scenarios / sizeof *scenarios };

/* "every" as an argument leaves no request out: what takes tens of thousands of requests, or writes files, is
 * thinned otherwise. */
int main(int count, char **arguments) {
    static struct CMUnitTest tests[SCENARIOS];
    every = count > 1 && !strcmp(arguments[1], "every");
    for (int i = 0; i < SCENARIOS; i++)
        tests[i] = (struct CMUnitTest){scenarios[i].name, memory_runs_out, NULL, NULL,
                                       (void *)(uintptr_t)&scenarios[i]};
    return _cmocka_run_group_tests("memory runs out", tests, SCENARIOS, make_material, remove_material);
}

#else

int main(void) { return without_allocator(); }
#endif
