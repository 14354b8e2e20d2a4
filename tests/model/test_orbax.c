/* JAX checkpoints as orbax-checkpoint wrote them (tests/orbax): every tensor against what openpi's converter
 * makes of it, every key of a deep database, and what a header may not ask for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/json.h"
#include "folder_copy.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/jax/ocdbt.h"
#include "checkpoint/open.h"
#include "policy_golden.h"
#include "scratch.h"

#define ORBAX TESTS_DIR "/orbax/"
#define ARRAY "params.PaliGemma.img.head.kernel"

/* Any order of reads inside of a stage gives the same: whole, and two pieces that do not begin at a line. */
static void same_elements(const tensor *got, const tensor *want) {
    size_t bytes = (size_t)want->count * sizeof(float);
    float *a = malloc(bytes), *b = malloc(bytes);
    int64_t cut = want->count / 3;
    assert_true(a && b);
    tensor_read_f32(want, 0, want->count, b);
    tensor_read_f32(got, 0, got->count, a);
    assert_memory_equal(a, b, bytes);
    memset(a, 0xff, bytes);
    tensor_read_f32(got, 0, cut, a);
    tensor_read_f32(got, cut, got->count - cut, a + cut);
    assert_memory_equal(a, b, bytes);
    free(a), free(b);
}

static void same_shape(const tensor *got, const tensor *want) {
    assert_int_equal(got->rank, want->rank);
    for (int i = 0; i < want->rank; i++) assert_int_equal(got->shape[i], want->shape[i]);
}

/* Stages forwards, then the second one once more: going back decodes anew. */
static void test_tensors(void **state) {
    static const char *const folders[][2] = {{"pi0_released", "pi0_released"},
                                             {"pi0_released/params", "pi0_released"},
                                             {"pi05_train/100", "pi05_train"},
                                             {"pi05_train", "pi05_train"},
                                             {"pi0_lora/100", "pi0_lora"}};
    (void)state;
    for (size_t f = 0; f < sizeof folders / sizeof *folders; f++) {
        openpi_error error = OPENPI_ERROR_INIT;
        char path[600], expected[600];
        tensors *got = NULL, *want = NULL;
        int compared = 0;
        snprintf(path, sizeof path, ORBAX "%s", folders[f][0]);
        snprintf(expected, sizeof expected, ORBAX "%s/expected.safetensors", folders[f][1]);
        if (tensors_open(path, &got, &error) != OPENPI_OK) fail_msg("%s", error.message);
        if (tensors_open(expected, &want, &error) != OPENPI_OK) fail_msg("%s", error.message);
        int stages = tensors_stages(got);
        for (int turn = 0; turn < stages + 1; turn++) {
            int stage = turn < stages ? turn : 1 % stages;
            if (tensors_stage(got, stage, NULL, &error) != OPENPI_OK) fail_msg("%s", error.message);
            for (int i = 0; i < tensors_count(got); i++) {
                const tensor *t = tensors_at(got, i), *e = tensors_find(want, t->name);
                if (tensor_stage(t) != stage) continue;
                if (!e) fail_msg("%s: tensor %s is not expected", path, t->name);
                same_shape(t, e);
                /* expected.safetensors merges this pair head by head, which openpi does not (MODEL.md) */
                int other = !strcmp(folders[f][1], "pi0_lora") && strstr(t->name, "o_proj");
                if (!other) same_elements(t, e);
                compared += turn < stages;
            }
        }
        assert_int_equal(compared, tensors_count(got));
        assert_int_equal(compared, tensors_count(want));
        assert_int_equal(tensors_check(got, &error), OPENPI_OK);
        tensors_close(got);
        tensors_close(want);
    }
}

/* The numbers that generate.py drew for this folder. */
static void test_files(void **state) {
    openpi_error error = OPENPI_ERROR_INIT;
    tensors *list;
    (void)state;
    WORKS(tensors_open(ORBAX "zarr_files", &list, &error));
    WORKS(tensors_stage(list, 0, NULL, &error));
    static const struct {
        const char *name;
        int64_t first;
        int in_64ths[12];
    } rows[] = {
        {"paligemma_with_expert.paligemma.model.vision_tower.vision_model.post_layernorm.weight",
         0,
         {-5, 2, -2, 2}},
        {"paligemma_with_expert.paligemma.model.vision_tower.vision_model.post_layernorm.bias",
         0,
         {-7, -6, 0, 0}},
        {"paligemma_with_expert.paligemma.model.multi_modal_projector.linear.weight",
         0,
         {5, -4, 4, -7, -4, -1, 0, -7, 5, 2, 4, 7}},
        {"paligemma_with_expert.paligemma.model.language_model.layers.1.self_attn.q_proj.weight",
         84,
         {-5, -5, -4, -5, -7, 7, -4, -5, -6, 6, 0, -3}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const tensor *t = tensors_find(list, rows[i].name);
        float got[12];
        assert_non_null(t);
        int count = t->count < 12 ? (int)t->count : 12;
        WORKS(tensors_stage(list, tensor_stage(t), NULL, &error));
        tensor_read_f32(t, rows[i].first, count, got);
        for (int n = 0; n < count; n++) assert_float_equal(got[n] * 64, rows[i].in_64ths[n], 0);
    }
    tensors_close(list);
}

/* A tree of height 2, several versions, values inside of nodes and beside them; with and without compression.
 */
static void test_database(void **state) {
    static const char *const folders[] = {"ocdbt_deep", "ocdbt_plain"};
    openpi_error error = OPENPI_ERROR_INIT;
    json_t *root;
    (void)state;
    assert_int_equal(json_read(ORBAX "ocdbt.json", &root, &error), OPENPI_OK);
    for (size_t f = 0; f < 2; f++) {
        char path[600], *data;
        values *list;
        snprintf(path, sizeof path, ORBAX "%s", folders[f]);
        if (ocdbt_open(path, &list, &error) != OPENPI_OK) fail_msg("%s", error.message);
        assert_int_equal(values_count(list), json_object_size(root));
        for (int i = 0; i < values_count(list); i++) {
            const stored_value *value = values_at(list, i);
            const json_t *want = json_object_get(root, value->key);
            assert_non_null(want);
            assert_ptr_equal(values_find(list, value->key), value);
            assert_int_equal(value_read(value, 1 << 20, &data, &error), OPENPI_OK);
            assert_string_equal(data, json_string_value(want));
            free(data);
        }
        values_close(list);
    }
    json_decref(root);
}

static void refused(const char *folder, openpi_status expected, const char *piece) {
    openpi_error error = OPENPI_ERROR_INIT;
    char path[600];
    tensors *list = NULL;
    snprintf(path, sizeof path, ORBAX "%s", folder);
    REFUSES(tensors_open(path, &list, &error), expected, piece);
}

static void test_refusals(void **state) {
    openpi_error error = OPENPI_ERROR_INIT;
    checkpoint *checkpoint = NULL;
    (void)state;
    REFUSES(checkpoint_open(ORBAX "fast", NULL, &checkpoint, &error), OPENPI_UNSUPPORTED, "π0-FAST");
    refused("zarr3", OPENPI_UNSUPPORTED, "zarr v3");
    refused("ocdbt_plain", OPENPI_BAD_FILE, "no array");
}

/* Rounding is seen in fp32 too, of a JAX checkpoint only, and can be taken back. */
static void test_rounded(void **state) {
    static const char header[] = "{\"zarr_format\":2,\"order\":\"C\",\"fill_value\":null,\"filters\":null,"
                                 "\"compressor\":null,\"dtype\":\"<f4\",\"shape\":[2,2],\"chunks\":[2,2]}";
    static const float stored[4] = {0x1.01p0f, 0x1.03p0f, 0x1.0101p0f, -3.0f}; /* two ties first */
    static const float transposed[4] = {0x1.01p0f, 0x1.0101p0f, 0x1.03p0f, -3.0f};
    static const float rounded[4] = {0x1.00p0f, 0x1.02p0f, 0x1.04p0f, -3.0f};
    openpi_error error = OPENPI_ERROR_INIT;
    scratch s;
    tensors *list = NULL;
    float got[4];
    (void)state;
    assert_int_equal(scratch_open(&s), 0);
    assert_int_equal(mkdir(scratch_path(&s, ARRAY), 0777), 0);
    assert_int_equal(scratch_write(&s, ARRAY "/.zarray", header, sizeof header - 1), 0);
    assert_int_equal(scratch_write(&s, ARRAY "/0.0", stored, sizeof stored), 0);
    WORKS(tensors_open(s.folder, &list, &error));
    const tensor *t = tensors_at(list, 0);
    for (int on = 0; on < 3; on++) {
        tensors_round(list, on % 2);
        WORKS(tensors_stage(list, 0, NULL, &error));
        assert_int_equal(tensor_is_bf16(t), on % 2);
        tensor_read_f32(t, 0, 4, got);
        assert_memory_equal(got, on % 2 ? rounded : transposed, sizeof got);
    }
    tensors_close_files(list);                             /* forgets what was decoded */
    tensor_read_f32(t, 0, 4, got);
    assert_true(got[0] == 0 && tensors_check(list, &error) == OPENPI_BAD_ARGUMENT);
    tensors_close(list);
    WORKS(tensors_open(ORBAX "pi0_released/expected.safetensors", &list, &error));
    tensors_round(list, 1);
    assert_int_equal(tensors_at(list, 0)->rounded, 0);
    tensors_close(list);
    scratch_close(&s);
}

/* ---- damage ---- */

/* A header that asks for more than a checkpoint has, of an array whose every chunk is missing. */
static void test_greedy(void **state) {
    static const struct { const char *array, *shape, *chunks, *piece; } rows[] = {
        {"params.PaliGemma.img.Transformer.encoderblock.LayerNorm_0.scale",
         "[2000000000,4]",
         "[2000000000,4]",
         "has 2000000000 layers, expected at most 1024"},
        {ARRAY, "[4,1000]", "[4,1]", "has 1000 chunks side by side, expected at most 256"},
        {ARRAY, "[1000000,4]", "[1,4]", "has 1000000 chunks, expected at most 65536"},
        {ARRAY, "[0,1000]", "[1,1]", "has 1000 chunks side by side, expected at most 256"},
        {ARRAY, "[0,2147483647,2147483647]", "[1,1,1]", "too many elements"},
        {ARRAY, "[2147483647,2147483647]", "[2147483647,2147483647]", "too many elements"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        openpi_error error = OPENPI_ERROR_INIT;
        scratch s;
        char name[200], header[400];
        tensors *list = NULL;
        assert_int_equal(scratch_open(&s), 0);
        assert_int_equal(mkdir(scratch_path(&s, rows[i].array), 0777), 0);
        if (strcmp(rows[i].array, ARRAY))
            assert_int_equal(mkdir(scratch_path(&s, ARRAY), 0777), 0);
        snprintf(name, sizeof name, "%s/.zarray", rows[i].array);
        int length = snprintf(header, sizeof header,
                              "{\"zarr_format\":2,\"order\":\"C\",\"fill_value\":null,\"filters\":null,"
                              "\"compressor\":null,\"dtype\":\"<f4\",\"shape\":%s,\"chunks\":%s}",
                              rows[i].shape, rows[i].chunks);
        assert_int_equal(scratch_write(&s, name, header, (size_t)length), 0);
        REFUSES(tensors_open(s.folder, &list, &error), OPENPI_BAD_FILE, rows[i].piece);
        scratch_close(&s);
    }
}

/* ---- what inspect tells ---- */

static int64_t member(const json_t *object, const char *key) {
    return json_integer_value(json_object_get(object, key));
}

/* A run of two steps: the newest, the older by its own folder, and arrays in a folder of no run. */
static void test_described(void **state) {
    static const struct { const char *path; int step, steps; } rows[] = {
        {"", 100, 2}, {"/100", 100, 2}, {"/20", 20, 2}, {"/20/params", 20, 2}, {"/other", -1, 0}};
    scratch s;
    char run[100], path[200];
    (void)state;
    assert_int_equal(scratch_open(&s), 0);
    snprintf(run, sizeof run, "%s/run", s.folder);
    folder_copy(ORBAX "pi0_lora", run);
    snprintf(path, sizeof path, "%s/20", run);
    folder_copy(ORBAX "pi0_lora/100", path);
    snprintf(path, sizeof path, "%s/other", run);
    folder_copy(ORBAX "pi0_lora/100", path);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        openpi_error error = OPENPI_ERROR_INIT;
        checkpoint *checkpoint;
        json_t *root;
        int64_t bytes = 0;
        snprintf(path, sizeof path, "%s%s", run, rows[i].path);
        WORKS(checkpoint_open(path, NULL, &checkpoint, &error));
        WORKS(checkpoint_describe(checkpoint, &root, &error));
        const json_t *orbax = json_object_get(root, "orbax"), *files = json_object_get(root, "files");
        const json_t *types = json_object_get(root, "dtypes"), *steps = json_object_get(orbax, "steps");
        assert_int_equal(json_array_size(files), 3);       /* manifest, root node, values */
        for (size_t f = 0; f < json_array_size(files); f++) {
            struct stat st;
            assert_int_equal(stat(json_string_value(json_array_get(files, f)), &st), 0);
            bytes += st.st_size;
        }
        assert_int_equal(member(root, "bytes"), bytes);
        assert_int_equal(member(orbax, "arrays"), 50 + 20);      /* LoRA's pairs are arrays, too */
        assert_int_equal(member(types, "F32") + member(types, "BF16"), 88);
        assert_true(member(types, "F32") > 20 && member(types, "BF16") > 20);
        assert_int_equal(json_array_size(steps), rows[i].steps);
        if (rows[i].steps) {
            assert_int_equal(member(orbax, "step"), rows[i].step);
            assert_int_equal(json_integer_value(json_array_get(steps, 0)), 20);
            assert_int_equal(json_integer_value(json_array_get(steps, 1)), 100);
        }
        snprintf(path, sizeof path, "%s%s", run, rows[i].step == 100 ? "/100/params" : "/20/params");
        if (rows[i].steps) assert_string_equal(json_string_value(json_object_get(orbax, "params")), path);
        json_decref(root);
        checkpoint_close(checkpoint);
    }
    scratch_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_tensors), cmocka_unit_test(test_files),
                                       cmocka_unit_test(test_database), cmocka_unit_test(test_refusals),
                                       cmocka_unit_test(test_greedy), cmocka_unit_test(test_described),
                                       cmocka_unit_test(test_rounded)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
