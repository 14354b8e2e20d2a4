/* labels: long cost */
/* verify must be able to fail: goldens with one number, token, mask bit or byte changed, in a folder without
 * a MANIFEST, so that only what is computed can show it. The same copies, unharmed, must pass. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "lab/verify/verify_case.h"
#include "random_numbers.h"
#include "scratch.h"
#include "verify_rows.h"

static scratch place;

static int make_place(void **state) {
    (void)state;
    static const char *const parts[] = {"policy/droid_pi0",   "policy/droid_jointpos", "policy/aloha_sim",
                                        "lerobot/pi0",        "lerobot/pi05",          "lerobot/pi0_relative",
                                        "lerobot/pi05_rtc",   "lerobot/encode.json",   "steps.json",
                                        "resize.safetensors", "synth_hashes.json",     "tokenizer.model"};
    static const char *const folders[] = {"model", "policy", "lerobot"};
    if (scratch_open(&place)) return -1;
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        if (mkdir(scratch_path(&place, folders[i]), 0700)) return -1;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        char from[512];
        snprintf(from, sizeof from, GOLDEN "/%s", parts[i]);
        if (tree_copy(from, scratch_path(&place, parts[i]))) return -1;
    }
    static const char *const models[] = {"pi0_odd", "pi05_odd", "pi0_tiny"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char from[512], to[64];
        snprintf(from, sizeof from, GOLDEN "/model/%s.safetensors", models[i]);
        snprintf(to, sizeof to, "model/%s.safetensors", models[i]);
        if (tree_copy(from, scratch_path(&place, to))) return -1;
    }
    return 0;
}

static int remove_place(void **state) {
    (void)state;
    scratch_close(&place);
    return 0;
}

static rows run(const char *path, openpi_dtype dtype) {
    rows r = {0};
    verify_options options = VERIFY_OPTIONS_INIT;
    openpi_error error = OPENPI_ERROR_INIT;
    options.dtype = dtype;
    openpi_status status = verify_path(scratch_path(&place, path), &options, rows_take, &r, &error);
    if (status != OPENPI_OK) fail_msg("%s: %s", path, error.message);
    return r;
}

/* ---- the control ------------------------------------------------------------------------------------ */

static void unharmed_copies_pass(void **state) {
    (void)state;
    rows r = run("", OPENPI_DTYPE_DEFAULT);
    for (int i = 0; i < r.count && i < ROWS; i++)
        if (r.row[i].result == VERIFY_FAIL) fail_msg("%s: %s", r.row[i].name, r.row[i].detail);
    assert_int_equal(r.results[VERIFY_OK], 3 + 3 + 5 + 11 + 1 + 4 + 7);
    assert_int_equal(r.results[VERIFY_SKIPPED], 0);
}

/* ---- one change in a tensor ------------------------------------------------------------------------- */

typedef enum change { ADD_F32, ADD_F64, ADD_I32, XOR, ULP } change;

typedef struct mutation {
    const char *path, *verified; /* the file that changes; what is verified                                */
    const char *tensor;
    int index;                   /* element                                                                */
    change change;
    double by;
    const char *says;            /* in the FAIL's detail                                                   */
} mutation;

#define ODD "model/pi0_odd.safetensors", "model/pi0_odd.safetensors"
#define ODD5 "model/pi05_odd.safetensors", "model/pi05_odd.safetensors"
#define TINY "model/pi0_tiny.safetensors", "model/pi0_tiny.safetensors"
#define DROID "policy/droid_pi0/expected.safetensors", "policy/droid_pi0"
#define JOINT "policy/droid_jointpos/expected.safetensors", "policy/droid_jointpos"
#define ALOHA "policy/aloha_sim/expected.safetensors", "policy/aloha_sim"
#define HUB "lerobot/pi0/expected.safetensors", "lerobot/pi0"
#define HUB5 "lerobot/pi05/expected_missing.safetensors", "lerobot/pi05"
#define REL "lerobot/pi0_relative/expected.safetensors", "lerobot/pi0_relative"

static const mutation mutations[] = {
    /* A model golden: what is expected. */
    {ODD, "actions.jax_f32", 0, ADD_F32, 3e-4, "actions.jax_f32"},
    {ODD, "actions.jax_f32", 223, ADD_F32, -3e-4, "actions.jax_f32"},
    {ODD5, "actions.jax_f32", 100, ADD_F32, 3e-4, "actions.jax_f32"},
    {TINY, "actions.jax_f32", 319, ADD_F32, 3e-4, "actions.jax_f32"},
    {ODD, "actions.torch_f32", 50, ADD_F32, 3e-4, "actions.torch_f32"},
    {ODD, "stage.x", 0, ADD_F32, 3e-4, "stage.x of step 0"},
    {ODD, "stage.x", 895, ADD_F32, 3e-4, "stage.x of step 3"},
    {ODD, "stage.velocity", 300, ADD_F32, 3e-4, "stage.velocity"},
    {ODD, "stage.time", 1, ULP, 1, "time of step 1"},
    {ODD, "stage.image_tokens", 1000, ADD_F32, 0.05, "image_tokens of camera 1"},
    {ODD, "stage.k", 1000, ADD_F32, 0.05, "k of layer 0"},
    {ODD, "stage.v", 8000, ADD_F32, 0.05, "v of layer 1"},
    {ODD, "stage.suffix0", 319, ADD_F32, 0.05, "suffix0"},
    {ODD, "stage.rows", 4, ADD_I32, 1, "k of layer 0"},
    /* Its inputs. */
    {ODD, "in.tokens", 10, ADD_I32, 1, "k of layer 0"},
    {ODD, "in.tokens", 3, ADD_I32, 1, "layer"},
    {TINY, "in.tokens", 7, ADD_I32, 5, "layer"},
    {ODD, "in.tokens", 11, ADD_I32, 1, "padding"},
    {ODD, "in.token_mask", 5, XOR, 1, "padding"},
    {ODD, "in.token_mask", 10, XOR, 1, "padding"},
    {ODD, "in.token_mask", 11, XOR, 1, "off by"},
    {ODD, "in.image_mask", 0, XOR, 1, "in.images"},
    {ODD5, "in.image_mask", 2, XOR, 1, "in.images"},
    {ODD, "in.images", 0, XOR, 1, "in.images: byte 0 "},
    {ODD, "in.images", 200000, XOR, 0x80, "in.images: byte 200000 "},
    {TINY, "in.images", 451583, XOR, 1, "in.images: byte 451583 "},
    {ODD5, "in.images", 400000, XOR, 1, "in.images: byte 400000 "},      /* masked out */
    {ODD, "in.state", 31, ULP, 1, "in.state: element 31 "},
    {ODD, "in.noise", 200, ADD_F32, 3e-4, "stage.x of step 0"},
    /* A policy golden. */
    {DROID, "actions", 3, ADD_F64, 3e-4, "which no fp32 model returns"},
    {DROID, "actions", 79, ADD_F64, 3e-4, "which no fp32 model returns"},                /* the last of ten rows of 8 */
    {DROID, "actions", 72, ADD_F64, 0.5, "actions in units of their std: element 72"},
    {JOINT, "actions", 119, ADD_F64, 0.5, "actions in units of their std: element 119"},
    {JOINT, "actions", 60, ADD_F64, -3e-4, "which no fp32 model returns"},
    {ALOHA, "actions", 70, ADD_F64, 3e-4, "which no fp32 model returns"},
    {DROID, "actions", 20, ADD_F64, 0.5, "actions in units of their std"},
    {DROID, "images", 100000, XOR, 1, "images, base"},
    {DROID, "images", 150528, XOR, 1, "images, left wrist"},
    {DROID, "images", 451583, XOR, 1, "images, right wrist"},
    {DROID, "image_mask", 2, XOR, 1, "image_mask"},
    {DROID, "tokens", 4, ADD_I32, 1, "token 4"},
    {JOINT, "tokens", 199, ADD_I32, 1, "padding"},
    {DROID, "token_mask", 2, XOR, 1, "tokens"},
    {DROID, "token_mask", 20, XOR, 1, "tokens"},
    {DROID, "state", 2, ADD_F64, 1e-9, "state: element 2"},
    {DROID, "state", 31, ADD_F64, 1e-9, "state: element 31"},
    {DROID, "noise", 0, ADD_F32, 1e-2, "actions"},
    /* LeRobot's. */
    {HUB, "actions_model", 100, ADD_F32, 3e-4, "actions_model"},
    {HUB, "actions_normalized", 13, ULP, 1, "actions_normalized"},
    {HUB, "actions", 13, ADD_F32, 3e-4, "actions from the golden's"},
    {HUB, "images", 5000, ADD_F32, 1e-4, "images, slot 0"},
    {HUB, "image0", 150000, ADD_F32, 1e-4, "image0"},
    {HUB, "image_mask", 2, XOR, 1, "image_mask"},
    {HUB, "state", 0, ULP, 1, "state: element 0"},
    {HUB, "tokens", 2, ADD_I32, 1, "tokens: token 2"},
    {HUB, "token_mask", 47, XOR, 1, "tokens"},
    {HUB, "in.image.top", 40000, XOR, 0x80, "images, slot"},
    {HUB, "in.state", 3, ADD_F32, 1e-3, "state: element 3"},
    {HUB, "in.noise", 3, ADD_F32, 1e-2, "actions_model"},
    {HUB5, "images", 20000, ADD_F32, 1e-4, "images, slot"},
    {HUB5, "tokens", 40, ADD_I32, 1, "tokens: token 40"},
    {HUB5, "actions_model", 479, ADD_F32, 3e-4, "actions_model"},
    {REL, "actions", 30, ULP, 1, "actions of row 0"},
    {REL, "state", 47, ULP, 1, "state of row 5"},
    {REL, "tokens", 100, ADD_I32, 1, "tokens of row 2"},
    {REL, "relative_mask", 7, XOR, 1, "relative_mask"},
    {REL, "actions_absolute_normalized", 100, ULP, 1, "actions_absolute_normalized"},
    {REL, "leftover_normalized", 5, ULP, 1, "leftover_normalized"},
};

static void apply(uint8_t *at, const mutation *m) {
    float f;
    double d;
    int32_t i;
    switch (m->change) {
    case ADD_F32:
        memcpy(&f, at + 4 * m->index, 4);
        f += (float)m->by;
        memcpy(at + 4 * m->index, &f, 4);
        return;
    case ADD_F64:
        memcpy(&d, at + 8 * m->index, 8);
        d += m->by;
        memcpy(at + 8 * m->index, &d, 8);
        return;
    case ADD_I32:
    case ULP:
        memcpy(&i, at + 4 * m->index, 4);
        i += (int32_t)m->by;
        memcpy(at + 4 * m->index, &i, 4);
        return;
    case XOR: at[m->index] ^= (uint8_t)m->by; return;
    }
}

static void check_fails(const char *path, const char *what, const char *says) {
    rows r = run(path, OPENPI_DTYPE_DEFAULT);
    const verify_row *failed = NULL;
    for (int i = 0; i < r.count && i < ROWS; i++)
        if (r.row[i].result == VERIFY_FAIL && !failed) failed = &r.row[i];
    if (!failed) fail_msg("%s passes with %s changed", path, what);
    else if (!strstr(failed->detail, says))
        fail_msg("%s with %s changed: \"%s\" does not say \"%s\"", path, what, failed->detail, says);
}

static void one_number_changed(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof mutations / sizeof *mutations; i++) {
        const mutation *m = &mutations[i];
        size_t bytes, count;
        uint8_t *file = file_bytes(scratch_path(&place, m->path), &bytes), *keep = malloc(bytes);
        assert_true(file && keep);
        memcpy(keep, file, bytes);
        uint8_t *data = tensor_data(file, bytes, m->tensor, &count);
        if (!data) fail_msg("%s has no %s", m->path, m->tensor);
        size_t size = m->change == XOR ? 1 : m->change == ADD_F64 ? 8 : 4;
        if (((size_t)m->index + 1) * size > count)
            fail_msg("%s is too short for element %d", m->tensor, m->index);
        apply(data, m);
        assert_int_equal(file_put(scratch_path(&place, m->path), file, bytes), 0);
        check_fails(m->verified, m->tensor, m->says);
        assert_int_equal(file_put(scratch_path(&place, m->path), keep, bytes), 0);
        free(file);
        free(keep);
    }
}

/* In bf16 the bound is wide, but the golden's own numbers still have to agree. */
static void one_action_changed_in_bf16(void **state) {
    (void)state;
    static const mutation m = {ODD, "actions.jax_f32", 17, ADD_F32, 3e-4, ""};
    size_t bytes;
    uint8_t *file = file_bytes(scratch_path(&place, m.path), &bytes);
    assert_non_null(file);
    assert_int_equal(run(m.verified, OPENPI_BF16).results[VERIFY_OK], 1);
    apply(tensor_data(file, bytes, m.tensor, NULL), &m);
    assert_int_equal(file_put(scratch_path(&place, m.path), file, bytes), 0);
    assert_int_equal(run(m.verified, OPENPI_BF16).results[VERIFY_FAIL], 1);
    assert_int_equal(file_copy(GOLDEN "/model/pi0_odd.safetensors", scratch_path(&place, m.path)), 0);
    free(file);
}

/* ---- one change in a text or a stream of bytes ------------------------------------------------------ */

typedef struct replacement {
    const char *path, *verified;
    const char *find, *put;      /* two texts of one length                                                */
    const char *says;
} replacement;

static const replacement replacements[] = {
    {ODD, "\"seed\":\"9\"", "\"seed\":\"8\"", "image_tokens"},
    {ODD, "\"pi05\":\"false\"", "\"pi05\":\"treu \"", "metadata pi05"},
    {ODD, "\"stage.k\"", "\"stage.q\"", "stage.k is missing"},
    {ODD, "\"horizon\":\"7\"", "\"horizon\":\"8\"", "in.noise"},
    {ODD, "\"steps\":\"4\"", "\"steps\":\"5\"", "stage.time"},
    {ODD, "[72, 3, 1, 88]", "[72, 2, 1, 88]", "image_tokens"},
    {ODD, "\"input_seed\":\"6\"", "\"input_seed\":\"7\"", "in.images: byte 0 "},
    {ODD, "\"input_seed\":", "\"input_sead\":", "metadata input_seed is absent, expected an integer"},
    {"policy/droid_pi0/norm_stats.json", "policy/droid_pi0", "\"mean\"", "\"maen\"", "mean"},
    {"policy/droid_pi0/request.msgpack", "policy/droid_pi0", "red cup", "rad cup", "tokens"},
    {"lerobot/pi0/checkpoint/config.json", "lerobot/pi0", "\"chunk_size\"", "\"chonk_size\"", "chonk_size"},
    {"lerobot/pi0/checkpoint/policy_preprocessor.json", "lerobot/pi0", "MEAN_STD", "QUANTILE", "QUANTILE"},
    {"lerobot/pi0/expected.safetensors", "lerobot/pi0", "{\\\"task\\\":", "{\\\"task\\\";",
     "expected.safetensors: metadata case: not valid JSON: ':' is expected (line 1, column 8)"},
    {"steps.json", "steps.json", "{", "}", "steps.json: not valid JSON: "},
    {"lerobot/encode.json", "lerobot/encode.json", "785", "786", "pick up the red cup"},
    {"steps.json", "steps.json", "785", "786", "pick up the red cup"},
    {"steps.json", "steps.json", "d046181217593794", "d046181217593795", "resize0"},
    {"steps.json", "steps.json", "f7c272cabec88610", "f7c272cabec88611", "resize14"},
    {"synth_hashes.json", "synth_hashes.json", "51aba0f9c36ef56f", "51aba0f9c36ef56e", "patch_embedding.weight"},
};

static uint8_t *find_text(uint8_t *file, size_t bytes, const char *text) {
    size_t length = strlen(text);
    for (size_t at = 0; at + length <= bytes; at++)
        if (!memcmp(file + at, text, length)) return file + at;
    return NULL;
}

static void with_bytes(const char *path, const uint8_t *file, size_t bytes, const char *verified,
                       const char *what, const char *says) {
    size_t before;
    uint8_t *keep = file_bytes(scratch_path(&place, path), &before);
    assert_non_null(keep);
    assert_int_equal(file_put(scratch_path(&place, path), file, bytes), 0);
    check_fails(verified, what, says);
    assert_int_equal(file_put(scratch_path(&place, path), keep, before), 0);
    free(keep);
}

static void one_word_changed(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof replacements / sizeof *replacements; i++) {
        const replacement *r = &replacements[i];
        size_t bytes;
        uint8_t *file = file_bytes(scratch_path(&place, r->path), &bytes), *at;
        assert_non_null(file);
        assert_int_equal(strlen(r->find), strlen(r->put));
        at = find_text(file, bytes, r->find);
        if (!at) fail_msg("%s has no %s", r->path, r->find);
        memcpy(at, r->put, strlen(r->put));
        with_bytes(r->path, file, bytes, r->verified, r->find, r->says);
        free(file);
    }
}

static void one_byte_changed(void **state) {
    (void)state;
    size_t bytes;
    uint8_t *file = file_bytes(scratch_path(&place, "policy/droid_pi0/request.msgpack"), &bytes);
    assert_non_null(file);
    file[bytes / 4] ^= 0x80;             /* in the first picture */
    with_bytes("policy/droid_pi0/request.msgpack", file, bytes, "policy/droid_pi0", "a picture byte",
               "images, ");
    free(file);
    file = file_bytes(scratch_path(&place, "resize.safetensors"), &bytes);
    assert_non_null(file);
    file[bytes - 1] ^= 1;
    with_bytes("resize.safetensors", file, bytes, "steps.json", "a byte of resize.safetensors", "resize1");
    free(file);
    static const char *const stats =
        "lerobot/pi0_relative/checkpoint/policy_postprocessor_step_0_unnormalizer_processor.safetensors";
    file = file_bytes(scratch_path(&place, stats), &bytes);
    assert_non_null(file);
    uint8_t *mean = tensor_data(file, bytes, "action.mean", NULL);
    assert_non_null(mean);
    mean[1] ^= 1;
    with_bytes(stats, file, bytes, "lerobot/pi0_relative", "action.mean", "actions of row 0");
    free(file);
}

/* ---- statistics of what never moved --------------------------------------------------------------- */

/* Sets one number of a norm_stats.json and returns what stood there. */
static double set_stat(const char *path, const char *entry, const char *key, size_t dim, double value) {
    json_t *root = json_load_file(scratch_path(&place, path), 0, NULL);
    json_t *list = json_object_get(json_object_get(json_object_get(root, "norm_stats"), entry), key);
    assert_true(json_array_size(list) > dim);
    double before = json_number_value(json_array_get(list, dim));
    json_array_set_new(list, dim, json_real(value));
    assert_int_equal(json_dump_file(root, place.path, JSON_REAL_PRECISION(17)), 0);
    json_decref(root);
    return before;
}

static void passes(const char *path, openpi_dtype dtype) {
    rows r = run(path, dtype);
    if (!r.results[VERIFY_OK] || r.results[VERIFY_FAIL]) fail_msg("%s: %s", path, r.row[0].detail);
}

/* openpi's z-score of an action with std 0: x·1e-6 + mean. The golden's x stays, its actions follow. */
static void a_zscore_may_be_flat(void **state) {
    (void)state;
    static const char stats[] = "policy/droid_pi0/norm_stats.json",
                      path[] = "policy/droid_pi0/expected.safetensors";
    enum { DIM = 2, A = 8, STEPS = 10 };
    size_t bytes;
    uint8_t *file = file_bytes(scratch_path(&place, path), &bytes), *keep = malloc(bytes);
    assert_true(file && keep);
    memcpy(keep, file, bytes);
    double *actions = (double *)calloc(STEPS * A, sizeof *actions),
           std = set_stat(stats, "actions", "std", DIM, 0);
    double mean = set_stat(stats, "actions", "mean", DIM, 3.25);
    uint8_t *data = tensor_data(file, bytes, "actions", NULL);
    assert_true(actions && data && std > 0.1);
    memcpy(actions, data, STEPS * A * sizeof *actions);
    for (int i = DIM; i < STEPS * A; i += A) {
        float x = (float)((actions[i] - mean) / (std + 1e-6));
        actions[i] = (double)x * 1e-6 + 3.25;
    }
    memcpy(data, actions, STEPS * A * sizeof *actions);
    assert_int_equal(file_put(scratch_path(&place, path), file, bytes), 0);
    passes("policy/droid_pi0", OPENPI_DTYPE_DEFAULT);
    passes("policy/droid_pi0", OPENPI_BF16);
    actions[DIM] += 0.01 * 1e-6; /* a hundredth of what x moves it by */
    memcpy(data, actions, STEPS * A * sizeof *actions);
    with_bytes(path, file, bytes, "policy/droid_pi0", "a flat action",
               "actions in units of their std: element 2 ");
    assert_int_equal(file_put(scratch_path(&place, path), keep, bytes), 0);
    assert_int_equal(file_copy(GOLDEN "/policy/droid_pi0/norm_stats.json", scratch_path(&place, stats)), 0);
    passes("policy/droid_pi0", OPENPI_DTYPE_DEFAULT);
    free(actions);
    free(keep);
    free(file);
}

/* Quantiles do not look at std. */
static void a_std_that_nobody_reads_may_be_zero(void **state) {
    (void)state;
    static const char stats[] = "policy/droid_jointpos/norm_stats.json";
    set_stat(stats, "actions", "std", 5, 0);
    passes("policy/droid_jointpos", OPENPI_DTYPE_DEFAULT);
    assert_int_equal(file_copy(GOLDEN "/policy/droid_jointpos/norm_stats.json", scratch_path(&place, stats)),
                     0);
}

/* A state between equal quantiles is divided by 1e-6: its millions agree to their own last places. No token
 * says so where the state is in no prompt. */
static void a_state_may_be_large(void **state) {
    (void)state;
    static const char stats[] = "policy/libero_pi05/norm_stats.json",
                      path[] = "policy/libero_pi05/expected.safetensors";
    enum { DIM = 3 };
    size_t bytes;
    double value;
    assert_int_equal(tree_copy(GOLDEN "/policy/libero_pi05", scratch_path(&place, "policy/libero_pi05")), 0);
    passes("policy/libero_pi05", OPENPI_DTYPE_DEFAULT);
    uint8_t *file = file_bytes(scratch_path(&place, path), &bytes),
            *data = tensor_data(file, bytes, "state", NULL);
    assert_non_null(data);
    double low = set_stat(stats, "state", "q01", DIM, 0.5), high = set_stat(stats, "state", "q99", DIM, 0.5);
    memcpy(&value, data + DIM * sizeof value, sizeof value);
    double raw = (value + 1) / 2 * (high - low + 1e-6) + low;
    value = nextafter((raw - 0.5) / 1e-6 * 2 - 1, 0);                    /* as if rounded in another order */
    assert_true(value > 1e4 || value < -1e4);
    memcpy(data + DIM * sizeof value, &value, sizeof value);
    assert_int_equal(file_put(scratch_path(&place, path), file, bytes), 0);
    passes("policy/libero_pi05", OPENPI_DTYPE_DEFAULT);
    value *= 1 + 1e-9;
    memcpy(data + DIM * sizeof value, &value, sizeof value);
    with_bytes(path, file, bytes, "policy/libero_pi05", "a large state", "state: element 3");
    scratch_remove(scratch_path(&place, "policy/libero_pi05"));
    free(file);
}

/* LeRobot's z-score, x·std + mean in fp32: with a large mean the last place of an action is more than the
 * bound of x, and some x near the golden's lead to a neighbour. */
static void lerobots_zscore_may_be_flat(void **state) {
    (void)state;
    static const char
        path[] = "lerobot/pi0/expected.safetensors",
        stats[] = "lerobot/pi0/checkpoint/policy_postprocessor_step_0_unnormalizer_processor.safetensors";
    static const float flat[][2] = {{0, 5}, {1e-7f, 5}, {1e-5f, 5}, {0.2f, 700}, {0.1f, 500}, {0.002f, 9}};
    for (size_t k = 0; k < sizeof flat / sizeof *flat; k++) {
        size_t bytes, stat_bytes, count, model_count;
        uint8_t *file = file_bytes(scratch_path(&place, path), &bytes);
        uint8_t *stat_file = file_bytes(scratch_path(&place, stats), &stat_bytes);
        uint8_t *data = tensor_data(file, bytes, "actions", &count);
        uint8_t *std = tensor_data(stat_file, stat_bytes, "action.std", NULL);
        uint8_t *mean = tensor_data(stat_file, stat_bytes, "action.mean", NULL);
        const uint8_t *model = tensor_data(file, bytes, "actions_model", &model_count);
        assert_true(data && model && std && mean);
        size_t steps = model_count / (32 * sizeof(float)), a = count / sizeof(float) / steps;
        for (size_t d = 0; d < a; d++) {
            memcpy(std + d * sizeof(float), &flat[k][0], sizeof(float));
            memcpy(mean + d * sizeof(float), &flat[k][1], sizeof(float));
        }
        for (size_t i = 0; i < steps * a; i++) {
            float x;
            memcpy(&x, model + (i / a * 32 + i % a) * sizeof x, sizeof x);
            x = x * flat[k][0] + flat[k][1];
            memcpy(data + i * sizeof x, &x, sizeof x);
        }
        assert_int_equal(file_put(scratch_path(&place, path), file, bytes), 0);
        assert_int_equal(file_put(scratch_path(&place, stats), stat_file, stat_bytes), 0);
        rows r = run("lerobot/pi0", OPENPI_DTYPE_DEFAULT);
        if (r.row[0].result != VERIFY_OK) fail_msg("std %g: %s", (double)flat[k][0], r.row[0].detail);
        assert_int_equal(file_copy(GOLDEN "/lerobot/pi0/expected.safetensors", scratch_path(&place, path)),
                         0);
        free(file);
        free(stat_file);
    }
    char from[512];
    snprintf(from, sizeof from, GOLDEN "/%s", stats);
    assert_int_equal(file_copy(from, scratch_path(&place, stats)), 0);
    passes("lerobot/pi0", OPENPI_DTYPE_DEFAULT);
}

/* ---- files that are not there, or not whole --------------------------------------------------------- */

static void missing_files_fail(void **state) {
    (void)state;
    static const char *const files[][3] = {
        {"policy/droid_pi0/request.msgpack", "policy/droid_pi0", "request.msgpack"},
        {"policy/droid_pi0/norm_stats.json", "policy/droid_pi0", "norm_stats.json"},
        {"policy/droid_pi0/expected.safetensors", "policy/droid_pi0", "expected.safetensors"},
        {"tokenizer.model", "policy/droid_pi0", "tokenizer.model"},
        {"tokenizer.model", "steps.json", "tokenizer.model"},
        {"resize.safetensors", "steps.json", "resize.safetensors"},
        {"lerobot/pi0/expected.safetensors", "lerobot/pi0", "expected.safetensors"},
        {"lerobot/pi0/checkpoint/policy_preprocessor.json", "lerobot/pi0", "policy_preprocessor.json"},
        {"lerobot/pi0/checkpoint/config.json", "lerobot/pi0", ""},
        {"lerobot/pi05/checkpoint/tokenizer/tokenizer.json", "lerobot/pi05", "tokenizer"},
        {"lerobot/pi05_rtc/expected.safetensors", "lerobot/pi05_rtc", "expected.safetensors"},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        size_t bytes;
        uint8_t *keep = file_bytes(scratch_path(&place, files[i][0]), &bytes);
        assert_non_null(keep);
        unlink(scratch_path(&place, files[i][0]));
        check_fails(files[i][1], files[i][0], files[i][2]);
        assert_int_equal(file_put(scratch_path(&place, files[i][0]), keep, bytes), 0);
        free(keep);
    }
}

static void truncated_files_fail(void **state) {
    (void)state;
    static const char *const files[][2] = {
        {"model/pi0_odd.safetensors", "model/pi0_odd.safetensors"}, {"policy/droid_pi0/request.msgpack", "policy/droid_pi0"},
        {"policy/droid_pi0/expected.safetensors", "policy/droid_pi0"}, {"steps.json", "steps.json"},
        {"lerobot/pi0/expected.safetensors", "lerobot/pi0"}, {"lerobot/pi05_rtc/expected.safetensors", "lerobot/pi05_rtc"},
        {"synth_hashes.json", "synth_hashes.json"}, {"tokenizer.model", "steps.json"}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        size_t bytes;
        uint8_t *file = file_bytes(scratch_path(&place, files[i][0]), &bytes);
        assert_non_null(file);
        with_bytes(files[i][0], file, bytes / 2, files[i][1], "its second half", "");
        with_bytes(files[i][0], file, 0, files[i][1], "everything", "");
        free(file);
    }
}

static void paths_without_goldens_are_errors(void **state) {
    (void)state;
    rows r = {0};
    openpi_error error = OPENPI_ERROR_INIT;
    assert_int_equal(verify_path(scratch_path(&place, "nothing"), NULL, rows_take, &r, &error),
                     OPENPI_NOT_FOUND);
    assert_non_null(strstr(error.message, "no such file"));
    assert_int_equal(mkdir(scratch_path(&place, "empty"), 0700), 0);
    assert_int_equal(verify_path(scratch_path(&place, "empty"), NULL, rows_take, &r, &error),
                     OPENPI_NOT_FOUND);
    assert_non_null(strstr(error.message, "no golden here"));
    rmdir(scratch_path(&place, "empty"));
    assert_int_equal(verify_path(scratch_path(&place, "tokenizer.model"), NULL, rows_take, &r, &error),
                     OPENPI_BAD_ARGUMENT);
    assert_int_equal(verify_path(NULL, NULL, rows_take, &r, &error), OPENPI_BAD_ARGUMENT);
    assert_int_equal(r.count, 0);
}

/* ---- MANIFEST --------------------------------------------------------------------------------------- */

static void a_manifest_guards_what_numbers_cannot(void **state) {
    (void)state;
    static const char bf16[] = "actions.torch_bf16"; /* kept for the record, compared with nothing */
    static const char path[] = "model/pi0_odd.safetensors";
    size_t bytes;
    uint8_t *file = file_bytes(scratch_path(&place, path), &bytes), *data;
    assert_non_null(file);
    data = tensor_data(file, bytes, bf16, NULL);
    assert_non_null(data);
    data[0] ^= 1;
    assert_int_equal(file_put(scratch_path(&place, path), file, bytes), 0);
    assert_int_equal(run(path, OPENPI_DTYPE_DEFAULT).results[VERIFY_OK], 1);
    assert_int_equal(file_copy(GOLDEN "/MANIFEST", scratch_path(&place, "MANIFEST")), 0);
    check_fails(path, bf16, "differs from MANIFEST");
    assert_int_equal(file_copy(GOLDEN "/model/pi0_odd.safetensors", scratch_path(&place, path)), 0);
    assert_int_equal(run(path, OPENPI_DTYPE_DEFAULT).results[VERIFY_OK], 1);
    rows r = run("", OPENPI_DTYPE_DEFAULT); /* the full-size goldens are listed and not there */
    for (int i = 0; i < r.count; i++)
        if (r.row[i].result == VERIFY_FAIL)
            print_message("           %s: %s\n", r.row[i].name, r.row[i].detail);
    assert_int_equal(r.results[VERIFY_FAIL], 1);
    assert_non_null(strstr(r.row[0].name, "MANIFEST"));
    unlink(scratch_path(&place, "MANIFEST"));
    free(file);
}

static void the_manifest_lists_every_golden(void **state) {
    (void)state;
    size_t bytes;
    char *text = (char *)file_bytes(GOLDEN "/MANIFEST", &bytes);
    int lines = 0;
    assert_non_null(text);
    for (const char *at = text; *at; at++) lines += *at == '\n';
    assert_int_equal(lines, 91);
    assert_non_null(strstr(text, "  model/pi0_full.safetensors\n"));
    assert_non_null(strstr(text, "  model/pi05_full.safetensors\n"));
    free(text);
}

/* ---- bounds of few numbers ---------------------------------------------------------------------------- */

/* Normal values, four of them the same, as the errors of a chunk scatter. */
static distance drawn(int count) {
    distance d = {0};
    for (int i = 0; i < count / 4; i++) {
        double u = (next_random() + 1.0) / 4294967297.0, v = next_random() / 4294967296.0;
        double value = sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
        for (int copy = 0; copy < 4; copy++) distance_add(&d, value, 0);
    }
    return d;
}

/* Two models that are equally good pass each other's bounds, however few numbers there are; one that is half
 * as good again fails where they are many. */
static void few_numbers_scatter(void **state) {
    (void)state;
    static const int counts[] = {128, 224, 320, 512, 4800};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        int refused = 0, fixed = 0;
        for (int pair = 0; pair < 500; pair++) {
            distance known = drawn(counts[i]), other = drawn(counts[i]);
            double most, rms;
            distance_bounds(&known, 1.15, 2, &most, &rms);
            refused += !(distance_rms(&other) <= rms && other.max <= most);
            fixed += distance_rms(&other) > 1.15 * distance_rms(&known);
            if (counts[i] == 4800) assert_true(1.5 * distance_rms(&other) > rms);
        }
        print_message("           %4d numbers: %d of 500 refused, %d by a factor of 1.15\n", counts[i],
                      refused, fixed);
        assert_true(refused <= 5);
        if (counts[i] == 320) assert_true(fixed > 20);
    }
    distance d = {.sum = 320, .max = 2, .count = 320};
    double most, rms;
    distance_bounds(&d, 1.15, 2, &most, &rms);
    assert_true(fabs(rms - exp(6 / sqrt(320))) < 1e-12 && fabs(most / rms - 5.12) < 0.01);
    distance_bounds(&d, 1.5, 4, &most, &rms);
    assert_true(rms == 1.5 && most == 8);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unharmed_copies_pass),
        cmocka_unit_test(one_number_changed),
        cmocka_unit_test(one_action_changed_in_bf16),
        cmocka_unit_test(one_word_changed),
        cmocka_unit_test(one_byte_changed),
        cmocka_unit_test(a_zscore_may_be_flat),
        cmocka_unit_test(a_std_that_nobody_reads_may_be_zero),
        cmocka_unit_test(a_state_may_be_large),
        cmocka_unit_test(lerobots_zscore_may_be_flat),
        cmocka_unit_test(missing_files_fail),
        cmocka_unit_test(truncated_files_fail),
        cmocka_unit_test(paths_without_goldens_are_errors),
        cmocka_unit_test(a_manifest_guards_what_numbers_cannot),
        cmocka_unit_test(the_manifest_lists_every_golden),
        cmocka_unit_test(few_numbers_scatter),
    };
    return cmocka_run_group_tests(tests, make_place, remove_place);
}
