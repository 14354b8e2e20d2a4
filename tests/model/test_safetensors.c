/* The reader of safetensors files: what it reads of openpi's goldens, and what it says of broken files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/json.h"
#include "checkpoint/open.h"
#include "scratch.h"

static openpi_error error = OPENPI_ERROR_INIT;

static void check(openpi_status status) {
    if (status != OPENPI_OK) fail_msg("%s: %s", openpi_status_text(status), error.message);
}

static void check_fails(openpi_status status, openpi_status expected, const char *sentence) {
    if (status != expected || !strstr(error.message, sentence))
        fail_msg("%s: \"%s\", expected %s: \"%s\"", openpi_status_text(status), error.message,
                 openpi_status_text(expected), sentence);
}

/* 8 bytes of length, the header, the data. */
static size_t build(uint8_t *file, const char *header, const void *data, size_t data_bytes) {
    size_t length = strlen(header);
    for (int i = 0; i < 8; i++) file[i] = (uint8_t)(length >> 8 * i);
    memcpy(file + 8, header, length);
    if (data_bytes) memcpy(file + 8 + length, data, data_bytes);
    return 8 + length + data_bytes;
}

static const tensor *need(const tensors *list, const char *name, dtype type, int rank) {
    const tensor *t = tensors_find(list, name);
    if (!t) fail_msg("no tensor %s", name);
    assert_int_equal(t->type, type);
    assert_int_equal(t->rank, rank);
    return t;
}

static void test_golden(void **state) {
    tensors *list;
    (void)state;
    check(tensors_open(GOLDEN "/model/pi0_tiny_batch.safetensors", &list, &error));
    assert_null(need(list, "in.image_mask", DTYPE_U8, 2)->data); /* nothing is read before it is asked for */
    check(tensors_load(list, &error));
    assert_int_equal(tensors_count(list), 19);
    const tensor *images = need(list, "in.images", DTYPE_U8, 5);
    assert_true(images->shape[0] == 3 && images->shape[1] == 3 && images->shape[2] == 224 &&
                images->shape[4] == 3);
    assert_true(images->count == 3 * 3 * 224 * 224 * 3);
    const tensor *mask = need(list, "in.image_mask", DTYPE_U8, 2),
                 *rows = need(list, "stage.rows", DTYPE_I32, 1);
    static const uint8_t masks[] = {1, 1, 1, 1, 0, 0, 0, 1, 1}; /* what the metadata's "cameras" says */
    assert_memory_equal(mask->data, masks, sizeof masks);
    assert_string_equal(tensors_metadata(list, "cameras"), "[[1, 1, 1], [1, 0, 0], [0, 1, 1]]");
    assert_null(tensors_metadata(list, "camera"));
    int32_t first[2];
    float as_float[2];
    memcpy(first, rows->data, sizeof first);
    tensor_read_f32(rows, 0, 2, as_float);
    assert_true(first[0] == 0 && as_float[0] == 0.0f && as_float[1] == (float)first[1]);
    assert_null(tensors_find(list, "in.imagesx"));
    assert_null(tensors_find(list, ""));
    for (int i = 0; i < tensors_count(list); i++)
        assert_ptr_equal(tensors_find(list, tensors_at(list, i)->name), tensors_at(list, i));
    tensors_close(list);

    check(tensors_open(GOLDEN "/policy/libero_pi05/expected.safetensors", &list, &error));
    check(tensors_load(list, &error));
    const tensor *actions = need(list, "actions", DTYPE_F64, 2);
    double exact[7];
    float rounded[7];
    memcpy(exact, (const char *)actions->data + 7 * sizeof(double), sizeof exact);
    tensor_read_f32(actions, 7, 7, rounded);
    for (int i = 0; i < 7; i++) assert_true(rounded[i] == (float)exact[i] && rounded[i] != 0.0f);
    tensors_close(list);

    check(tensors_open(GOLDEN "/lerobot/pi0/checkpoint/"
                              "policy_postprocessor_step_0_unnormalizer_processor.safetensors",
                       &list, &error));
    assert_int_equal(tensors_count(list), 30);
    assert_int_equal(need(list, "observation.images.top.max", DTYPE_F32, 3)->count, 3);
    assert_null(tensors_metadata(list, "format"));
    tensors_close(list);
}

/* Every type, every conversion, from an odd address. */
static void test_types(void **state) {
    static const char header[] =
        "{\"f16\":{\"dtype\":\"F16\",\"shape\":[6],\"data_offsets\":[1,13]},"
        "\"u8\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]},"
        "\"bf16\":{\"dtype\":\"BF16\",\"shape\":[1,2],\"data_offsets\":[13,17]},"
        "\"f32\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[17,29]},"
        "\"f64\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[29,37]},"
        "\"i64\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[37,45]},"
        "\"i32\":{\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[45,49]},"
        "\"none\":{\"dtype\":\"I32\",\"shape\":[4,0],\"data_offsets\":[49,49]}} ";
    static const uint8_t data[] = {
        200, /* 200 */
        0x00, 0x3c, 0x00, 0xc0, 0xff, 0x7b, 0x01, 0x00,
        0x00, 0xfc, 0x00, 0x80, /* 1, -2, 65504, 2^-24, -inf, -0 */
        0x80, 0x3f, 0x49, 0x40, /* 1, 3.140625 */
        0x00, 0x80, 0x80, 0x3f, 0x00, 0x80, 0x81, 0x3f,
        0x01, 0x80, 0x80, 0x3f, /* halfway to even up and down, just above */
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xe0, 0xbf, /* -0.5 */
        0xfd, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, /* -3 */
        0x00, 0x00, 0x01, 0x00, /* 65536 */
    };
    static const struct {
        const char *name;
        int count;
        float f32[6];
        bf16 half[6];
    } expected[] = {
        {"u8", 1, {200}, {0x4348}},
        {"f16", 4, {1, -2, 65504, 0x1p-24f}, {0x3f80, 0xc000, 0x4780, 0x3380}},
        {"bf16", 2, {1, 3.140625f}, {0x3f80, 0x4049}},
        {"f32", 3, {0x1.01p0f, 0x1.03p0f, 0x1.010002p0f}, {0x3f80, 0x3f82, 0x3f81}},
        {"f64", 1, {-0.5f}, {0xbf00}},
        {"i64", 1, {-3}, {0xc040}},
        {"i32", 1, {65536}, {0x4780}},
    };
    scratch s;
    tensors *list;
    uint8_t file[2000];
    (void)state;
    assert_int_equal(scratch_open(&s), 0);
    assert_int_equal(scratch_write(&s, "a", file, build(file, header, data, sizeof data)), 0);
    check(tensors_open(scratch_path(&s, "a"), &list, &error));
    assert_int_equal(tensors_count(list), 8);
    assert_string_equal(tensors_at(list, 0)->name, "u8");                /* in the order of the bytes */
    assert_int_equal(tensors_find(list, "none")->count, 0);
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        const tensor *t = tensors_find(list, expected[i].name);
        float f32[6];
        bf16 half[6];
        tensor_read_f32(t, 0, expected[i].count, f32);
        tensor_read_bf16(t, 0, expected[i].count, half);
        assert_memory_equal(f32, expected[i].f32, (size_t)expected[i].count * sizeof *f32);
        assert_memory_equal(half, expected[i].half, (size_t)expected[i].count * sizeof *half);
        tensor_read_f32(t, t->count - 1, 1, f32);
        if (t->count == expected[i].count) assert_true(f32[0] == expected[i].f32[t->count - 1]);
    }
    float ends[2];
    tensor_read_f32(tensors_find(list, "f16"), 4, 2, ends);
    assert_true(ends[0] == -__builtin_inff() && ends[1] == 0.0f && __builtin_signbit(ends[1]));
    tensors_close(list);
    scratch_close(&s);
}

#define ONE(dtype, shape, offsets) \
    "{\"x\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
#define TWO(a, b)                                                          \
    "{\"x\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":" a "},"     \
    "\"y\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":" b "}}"

/* Each with 8 bytes of data after it. */
static const struct {
    const char *header, *sentence;
} broken[] = {
    {"", "header: not valid JSON"},
    {"{", "header: not valid JSON"},
    {"[]", "header is an array, expected an object"},
    {"{}", "the tensors end at byte 0 of the data, expected its end at 8"},
    {"{\"x\":{},\"x\":{}}", "duplicate object key"},
    {"{\"x\":1}", "tensor \"x\" is an integer, expected an object"},
    {"{\"x\":{}}", "tensor \"x\": dtype is absent, expected a string"},
    {"{\"\\u0000\":{}}", "header: not valid JSON"},
    {"{\"\xff\":{}}", "header: not valid JSON"},
    {ONE("7", "[2]", "[0,8]"), "tensor \"x\": dtype is an integer"},
    {ONE("\"F33\"", "[2]", "[0,8]"), "dtype is \"F33\", expected F32, BF16 or F16"},
    {ONE("\"f32\"", "[2]", "[0,8]"), "dtype is \"f32\""},
    {ONE("\"F32\"", "2", "[0,8]"), "shape is an integer, expected an array"},
    {ONE("\"F32\"", "[2.0]", "[0,8]"), "shape[0] is a real number"},
    {ONE("\"F32\"", "[-2]", "[0,8]"), "shape[0] is negative"},
    {ONE("\"F32\"", "[1,\"2\"]", "[0,8]"), "shape[1] is a string"},
    {ONE("\"F32\"", "[1,1,1,1,1,2]", "[0,8]"), "shape has 6 dimensions, expected at most 5"},
    {ONE("\"F32\"", "[4294967296,4294967296]", "[0,8]"), "its shape has too many elements"},
    {ONE("\"F32\"", "[4611686018427387904]", "[0,8]"), "its shape has too many elements"},
    {ONE("\"F32\"", "[9223372036854775808]", "[0,8]"), "header: not valid JSON"},
    {ONE("\"F32\"", "[3]", "[0,8]"), "data_offsets hold 8 bytes, expected 12 for [3] of F32"},
    {ONE("\"BF16\"", "[2,1]", "[0,8]"), "data_offsets hold 8 bytes, expected 4 for [2, 1] of BF16"},
    {ONE("\"F32\"", "[]", "[0,8]"), "data_offsets hold 8 bytes, expected 4 for [] of F32"},
    {ONE("\"F32\"", "[2]", "8"), "data_offsets is an integer, expected two integers"},
    {ONE("\"F32\"", "[2]", "[0]"), "expected two integers"},
    {ONE("\"F32\"", "[2]", "[0,8,8]"), "expected two integers"},
    {ONE("\"F32\"", "[2]", "[0,8.0]"), "expected two integers"},
    {ONE("\"F32\"", "[2]", "[8,0]"), "data_offsets are [8, 0], expected ascending within the file's 8 bytes of data"},
    {ONE("\"F32\"", "[2]", "[-8,0]"), "data_offsets are [-8, 0]"},
    {ONE("\"F32\"", "[2]", "[4,12]"), "data_offsets are [4, 12]"},
    {ONE("\"F32\"", "[2]", "[9223372036854775799,9223372036854775807]"), "expected ascending within"},
    {ONE("\"F32\"", "[1]", "[0,4]"), "the tensors end at byte 4 of the data, expected its end at 8"},
    {ONE("\"F32\"", "[1]", "[4,8]"), "tensor \"x\" begins at byte 4 of the data, expected 0: no tensor has the bytes between"},
    {TWO("[0,4]", "[2,6]"), "tensor \"y\" begins at byte 2 of the data, inside of \"x\", which ends at 4"},
    {TWO("[4,8]", "[4,8]"), "expected 0: no tensor has the bytes between"},
    {TWO("[0,4]", "[0,4]"), "inside of"},
    {"{\"__metadata__\":[]}", "__metadata__ is an array, expected an object"},
    {"{\"__metadata__\":{\"k\":1}}", "__metadata__ \"k\" is an integer, expected a string"},
};

static void test_broken(void **state) {
    static const uint8_t data[8] = {0};
    scratch s;
    uint8_t file[1000];
    (void)state;
    assert_int_equal(scratch_open(&s), 0);
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        tensors *list = NULL;
        assert_int_equal(
            scratch_write(&s, "bad.safetensors", file, build(file, broken[i].header, data, sizeof data)), 0);
        check_fails(tensors_open(scratch_path(&s, "bad.safetensors"), &list, &error), OPENPI_BAD_FILE,
                    broken[i].sentence);
        assert_non_null(strstr(error.message, "/bad.safetensors: "));
        assert_null(list);
    }
    static const struct {
        uint8_t length[8];
        const char *sentence;
    } lengths[] = {{{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, "bytes, expected at most 2"},
                   {{0, 0, 0, 0, 1}, "be a header of 4294967296 bytes, expected at most 2"},
                   {{13}, "cut short: the file has 10 bytes, its header alone needs 21"},
                   {{0xf8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, "bytes, expected at most 2"}};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        tensors *list;
        size_t bytes = build(file, "{}", NULL, 0);
        memcpy(file, lengths[i].length, 8);
        assert_int_equal(scratch_write(&s, "bad.safetensors", file, bytes), 0);
        check_fails(tensors_open(scratch_path(&s, "bad.safetensors"), &list, &error), OPENPI_BAD_FILE,
                    lengths[i].sentence);
    }
    scratch_close(&s);
}

/* A file cut anywhere is refused, and so is one with a byte too many. */
static void test_truncated(void **state) {
    scratch s;
    tensors *list;
    char *whole;
    size_t bytes = 0, header = 0;
    (void)state;
    FILE *golden = fopen(
        GOLDEN "/lerobot/pi05/checkpoint/policy_preprocessor_step_3_normalizer_processor.safetensors", "rb");
    assert_non_null(golden);
    whole = calloc(1, 1 << 16);
    bytes = fread(whole, 1, (1 << 16) - 1, golden);
    fclose(golden);
    header = 8 + (size_t)(uint8_t)whole[0] + ((size_t)(uint8_t)whole[1] << 8);
    assert_true(header > 1000 && bytes - header == 700);
    assert_int_equal(scratch_open(&s), 0);
    assert_int_equal(scratch_write(&s, "cut", whole, bytes), 0);
    check(tensors_open(scratch_path(&s, "cut"), &list, &error));
    tensors_close(list);
    for (size_t cut = bytes; cut-- > 0;) {
        char says[100] = "/cut: an empty file";
        if (cut >= header)
            snprintf(says, sizeof says, "cut short: %zu bytes are missing of the 700", bytes - cut);
        else if (cut >= 8)
            snprintf(says, sizeof says, "cut short: the file has %zu bytes, its header alone needs %zu", cut,
                     header);
        else if (cut)
            snprintf(says, sizeof says, "/cut: %zu bytes, expected a safetensors file, which has at least 8",
                     cut);
        assert_int_equal(truncate(s.path, (off_t)cut), 0);
        check_fails(tensors_open(s.path, &list, &error), OPENPI_BAD_FILE, says);
    }
    assert_int_equal(scratch_write(&s, "cut", whole, bytes + 1), 0);
    check_fails(tensors_open(s.path, &list, &error), OPENPI_BAD_FILE,
                "the tensors end at byte 700 of the data, expected its end at 701");
    free(whole);
    scratch_close(&s);
}

/* Whatever one byte of the header becomes: read or refused with the file's name, never a crash. */
static void test_mutated(void **state) {
    static const char header[] = "{\"__metadata__\":{\"format\":\"pt\"},\"x\":{\"dtype\":\"F32\",\"shape\":["
                                 "1],\"data_offsets\":[0,4]},"
                                 "\"y\":{\"dtype\":\"U8\",\"shape\":[2,2],\"data_offsets\":[4,8]}}";
    static const uint8_t data[8] = {0};
    uint8_t file[400];
    scratch s;
    int refused = 0, read = 0;
    (void)state;
    size_t bytes = build(file, header, data, sizeof data);
    assert_int_equal(scratch_open(&s), 0);
    for (size_t at = 0; at < bytes - sizeof data; at++)
        for (int bit = 0; bit < 8; bit++) {
            tensors *list = NULL;
            file[at] ^= (uint8_t)(1 << bit);
            assert_int_equal(scratch_write(&s, "mutated", file, bytes), 0);
            openpi_status status = tensors_open(s.path, &list, &error);
            if (status == OPENPI_OK) {
                for (int i = 0; i < tensors_count(list); i++) {
                    float sum[4];
                    assert_true(tensors_at(list, i)->count <= 4);
                    tensor_read_f32(tensors_at(list, i), 0, tensors_at(list, i)->count, sum);
                }
                read++;
            } else {
                assert_int_equal(status, OPENPI_BAD_FILE);
                assert_non_null(strstr(error.message, "/mutated: "));
                refused++;
            }
            tensors_close(list);
            file[at] ^= (uint8_t)(1 << bit);
        }
    assert_true(refused > 400 && read > 20);      /* a name or a metadata text may be another */
    scratch_close(&s);
}

/* ---- folders ---- */

#define SHARD(name) "{\"" name "\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}"

static void write_shard(scratch *s, const char *file_name, const char *header) {
    static const uint8_t data[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    uint8_t file[400];
    assert_int_equal(scratch_write(s, file_name, file, build(file, header, data, sizeof data)), 0);
}

static void test_shards(void **state) {
    static const struct {
        const char *index, *sentence;
        openpi_status status;
    } bad[] = {
        {"{", "index.json: not valid JSON", OPENPI_BAD_FILE},
        {"{}", "weight_map is absent, expected an object", OPENPI_BAD_FILE},
        {"{\"weight_map\":[]}", "weight_map is an array, expected an object", OPENPI_BAD_FILE},
        {"{\"weight_map\":{\"x\":1}}", "weight_map \"x\" is an integer, expected a file's name",
         OPENPI_BAD_FILE},
        {"{\"weight_map\":{\"x\":\"\"}}",
         "weight_map \"x\" is \"\", expected the name of a file in the same folder", OPENPI_BAD_FILE},
        {"{\"weight_map\":{\"x\":\"..\"}}", "is \"..\", expected the name of a file in the same folder",
         OPENPI_BAD_FILE},
        {"{\"weight_map\":{\"x\":\"../1.safetensors\"}}", "expected the name of a file in the same folder",
         OPENPI_BAD_FILE},
        {"{\"weight_map\":{\"x\":\"/etc/passwd\"}}",
         "is \"/etc/passwd\", expected the name of a file in the same folder", OPENPI_BAD_FILE},
        {"{\"weight_map\":{\"x\":\"a\\\\b\"}}", "expected the name of a file in the same folder",
         OPENPI_BAD_FILE},
        {"{\"weight_map\":{\"x\":\"3.safetensors\"}}", "/3.safetensors: cannot be opened", OPENPI_NOT_FOUND},
        {"{\"weight_map\":{\"x\":\"1.safetensors\",\"z\":\"1.safetensors\"}}",
         "tensor \"z\" is not in 1.safetensors, expected there", OPENPI_BAD_FILE},
        {"{\"weight_map\":{\"x\":\"2.safetensors\"}}",
         "tensor \"y\" is in 2.safetensors, expected in no file", OPENPI_BAD_FILE},
        {"{\"weight_map\":{\"x\":\"1.safetensors\",\"y\":\"1.safetensors\",\"z\":\"2.safetensors\"}}",
         "tensor \"y\" is in 2.safetensors, expected in 1.safetensors", OPENPI_BAD_FILE},
        {"{\"weight_map\":{\"x\":\"1.safetensors\",\"y\":\"2.safetensors\",\"w\":\"also.safetensors\"}}",
         "tensor \"x\" is in also.safetensors, expected in 1.safetensors", OPENPI_BAD_FILE},
    };
    scratch s;
    tensors *list;
    (void)state;
    assert_int_equal(scratch_open(&s), 0);
    check_fails(tensors_open(s.folder, &list, &error), OPENPI_NOT_FOUND,
                "an empty folder, expected model.safetensors or model.safetensors.index.json");
    check_fails(tensors_open(scratch_path(&s, "absent"), &list, &error), OPENPI_NOT_FOUND,
                "/absent: cannot be opened");
    check_fails(tensors_open("", &list, &error), OPENPI_BAD_ARGUMENT, "path is empty");
    check_fails(tensors_open(NULL, &list, &error), OPENPI_BAD_ARGUMENT, "path is empty");
    check_fails(tensors_open("/dev/null", &list, &error), OPENPI_BAD_FILE, "/dev/null: not a regular file");
    assert_int_equal(mkdir(scratch_path(&s, "params"), 0777), 0);
    check_fails(tensors_open(s.folder, &list, &error), OPENPI_BAD_FILE,
                "a JAX checkpoint (params/) without its manifest.ocdbt: its save was not finished");

    write_shard(&s, "1.safetensors", SHARD("x"));
    write_shard(&s, "2.safetensors", SHARD("y"));
    write_shard(&s, "also.safetensors", SHARD("x"));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(
            scratch_write(&s, "model.safetensors.index.json", bad[i].index, strlen(bad[i].index)), 0);
        check_fails(tensors_open(s.folder, &list, &error), bad[i].status, bad[i].sentence);
    }
    static const char good[] =
        "{\"metadata\":{\"total_size\":16},\"weight_map\":{\"y\":\"2.safetensors\",\"x\":\"1.safetensors\"}}";
    assert_int_equal(scratch_write(&s, "model.safetensors.index.json", good, strlen(good)), 0);
    check(tensors_open(s.folder, &list, &error));
    assert_int_equal(tensors_count(list), 2);
    assert_non_null(strstr(tensors_find(list, "y")->file, "/2.safetensors"));
    tensors_close(list);

    write_shard(&s, "model.safetensors", SHARD("z"));          /* one file has precedence over an index */
    check(tensors_open(s.folder, &list, &error));
    assert_non_null(tensors_find(list, "z"));
    tensors_close(list);
    scratch_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),    cmocka_unit_test(test_types),   cmocka_unit_test(test_broken),
        cmocka_unit_test(test_truncated), cmocka_unit_test(test_mutated), cmocka_unit_test(test_shards),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
