/* policy/wire/wire.c: what openpi's client really sends (the requests of the goldens, bytes of its packer),
 * and what must not get through. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "policy/wire/wire.h"

static uint64_t fnv1a64(const void *data, size_t bytes) {
    uint64_t hash = 0xCBF29CE484222325u;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ ((const uint8_t *)data)[i]) * 0x100000001B3u;
    return hash;
}

/* ---- the goldens' requests -------------------------------------------------------------------------- */

/* As Python's msgpack and numpy see the same files; hash: of an array's bytes. */
static const struct {
    const char *name, *key;
    wire_element element;
    int rank, shape[3];
    uint64_t hash;
} arrays[] = {
    {"aloha_pi05", "images/cam_high", WIRE_U8, 3, {3, 120, 160}, 0xa22bad2d7715f0ab},
    {"aloha_pi05", "images/cam_low", WIRE_U8, 3, {3, 120, 160}, 0xdfc58fd06cc8740a},
    {"aloha_pi05", "images/cam_left_wrist", WIRE_U8, 3, {3, 120, 160}, 0x370d5ada7fbac3e8},
    {"aloha_pi05", "images/cam_right_wrist", WIRE_U8, 3, {3, 120, 160}, 0x0ed0fb226b207244},
    {"aloha_pi05", "state", WIRE_F64, 1, {14}, 0x07f6cf22c9263f9c},
    {"aloha_sim", "images/cam_high", WIRE_U8, 3, {3, 240, 320}, 0xf92c497a1ae31e84},
    {"aloha_sim", "state", WIRE_F64, 1, {14}, 0x9372947a35c75715},
    {"droid_jointpos", "observation/exterior_image_1_left", WIRE_U8, 3, {180, 320, 3}, 0xbead7a0cea25f562},
    {"droid_jointpos", "observation/wrist_image_left", WIRE_U8, 3, {180, 320, 3}, 0xf4c70e72bb4944a7},
    {"droid_jointpos", "observation/joint_position", WIRE_F64, 1, {7}, 0xb2cfe9e33db67bed},
    {"droid_pi0", "observation/exterior_image_1_left", WIRE_U8, 3, {180, 320, 3}, 0xfcf3e59f2a9f2276},
    {"droid_pi0", "observation/wrist_image_left", WIRE_U8, 3, {180, 320, 3}, 0x21490022b7fab1ff},
    {"droid_pi0", "observation/joint_position", WIRE_F64, 1, {7}, 0xdefe3c3a0b8b0eb3},
    {"droid_pi0", "observation/gripper_position", WIRE_F64, 1, {1}, 0x2f3437c70137e0df},
    {"libero_pi0", "observation/image", WIRE_F32, 3, {3, 256, 256}, 0xe0f41db929933c70},
    {"libero_pi0", "observation/wrist_image", WIRE_U8, 3, {224, 224, 3}, 0x0f1f248e22353bc7},
    {"libero_pi0", "observation/state", WIRE_F32, 1, {8}, 0x43e54d1bc8545315},
    {"libero_pi05", "observation/image", WIRE_F32, 3, {3, 256, 256}, 0xeead0a82d8894ee1},
    {"libero_pi05", "observation/wrist_image", WIRE_U8, 3, {224, 224, 3}, 0x82c8d41eeafc6ee2},
    {"libero_pi05", "observation/state", WIRE_F32, 1, {8}, 0x69431881045a087d},
};

static const struct {
    const char *name, *prompt;
    int fields;
} requests[] = {
    {"aloha_pi05", "fold the towel", 7},          {"aloha_sim", "fold the towel", 4},
    {"droid_jointpos", "wipe the_table\n", 5},    {"droid_pi0", "  pick up the red cup ", 5},
    {"libero_pi0", "put both moka pots on the stove", 4}, {"libero_pi05", "put both moka pots on the stove", 4},
};

static void requests_of_the_goldens(void **state) {
    (void)state;
    for (size_t r = 0; r < sizeof requests / sizeof requests[0]; r++) {
        char path[512], *bytes;
        size_t count;
        openpi_error error = OPENPI_ERROR_INIT;
        wire_message *message;
        snprintf(path, sizeof path, GOLDEN "/policy/%s/request.msgpack", requests[r].name);
        assert_int_equal(file_read(path, WIRE_MAX_BYTES, &bytes, &count, &error), OPENPI_OK);
        assert_int_equal(wire_decode(bytes, count, &message, &error), OPENPI_OK);
        assert_int_equal(wire_count(message), requests[r].fields);
        const wire_field *prompt = wire_find(message, "prompt");
        const char *text;
        size_t length;
        assert_non_null(prompt);
        assert_int_equal(wire_text(prompt, &text, &length, &error), OPENPI_OK);
        assert_int_equal(length, strlen(requests[r].prompt));
        assert_memory_equal(text, requests[r].prompt, length);
        const wire_field *images = wire_find(message, "images");
        int found = images && images->kind == WIRE_MAP ? 2 : 1;
        for (size_t a = 0; a < sizeof arrays / sizeof arrays[0]; a++) {
            if (strcmp(arrays[a].name, requests[r].name)) continue;
            const wire_field *field = wire_find(message, arrays[a].key);
            assert_non_null(field);
            assert_int_equal(field->kind, WIRE_ARRAY);
            assert_int_equal(field->element, arrays[a].element);
            assert_int_equal(field->rank, arrays[a].rank);
            for (int i = 0; i < field->rank; i++) assert_int_equal(field->shape[i], arrays[a].shape[i]);
            assert_true(fnv1a64(field->data, field->bytes) == arrays[a].hash);
            assert_true((const char *)field->data > bytes &&
                        (const char *)field->data + field->bytes <= bytes + count);
            found++;
        }
        const wire_field *gripper = wire_find(message, "observation/gripper_position");
        if (gripper && gripper->kind == WIRE_NUMBER) {
            assert_true(gripper->number == 0x1.7723a55315c12p-2);
            found++;
        }
        assert_int_equal(found, requests[r].fields);
        wire_message_free(message);
        for (size_t cut = 0; cut < count; cut += cut < 300 || count - cut < 300 ? 1 : 977) {
            assert_int_equal(wire_decode(bytes, cut, &message, &error), OPENPI_BAD_INPUT);
            assert_non_null(strstr(error.message, cut ? "cut short" : "empty message"));
        }
        free(bytes);
    }
}

/* ---- fields that lie in memory ----------------------------------------------------------------------- */

static void same_field(const wire_field *a, const wire_field *b) {
    assert_string_equal(a->key, b->key);
    if (b->kind == WIRE_MAP) {
        assert_int_equal(a->kind, WIRE_OTHER);
        return;
    }
    assert_int_equal(a->kind, b->kind);
    if (a->kind == WIRE_NUMBER) {
        assert_true(a->number == b->number);
        return;
    }
    assert_true(a->bytes == b->bytes && a->text == b->text && a->data == b->data);
    assert_true(a->rank == b->rank && a->count == b->count && a->element == b->element);
    assert_memory_equal(a->shape, b->shape, sizeof a->shape);
}

/* What a message holds, as a caller has it in memory, gives the same fields. */
static void fields_of_the_goldens(void **state) {
    (void)state;
    static const struct { wire_element from; openpi_element to; } types[] = {
        {WIRE_U8, OPENPI_U8}, {WIRE_F32, OPENPI_FLOAT32}, {WIRE_F64, OPENPI_FLOAT64}};
    for (size_t r = 0; r < sizeof requests / sizeof requests[0]; r++) {
        char path[512], *bytes;
        size_t count;
        openpi_error error = OPENPI_ERROR_INIT;
        openpi_field given[8];
        wire_message *message, *again;
        snprintf(path, sizeof path, GOLDEN "/policy/%s/request.msgpack", requests[r].name);
        assert_int_equal(file_read(path, WIRE_MAX_BYTES, &bytes, &count, &error), OPENPI_OK);
        assert_int_equal(wire_decode(bytes, count, &message, &error), OPENPI_OK);
        for (int i = 0; i < wire_count(message); i++) {
            const wire_field *field = wire_at(message, i);
            given[i] = (openpi_field)OPENPI_FIELD_INIT;
            given[i].name = field->key;
            given[i].unknown = field->kind == WIRE_MAP ? "a map" : NULL;
            given[i].text = field->kind == WIRE_TEXT ? field->text : NULL;
            given[i].text_length = field->bytes;
            given[i].data = field->kind == WIRE_NUMBER ? &field->number : field->data;
            given[i].element = OPENPI_FLOAT64;
            given[i].rank = field->rank;
            for (int t = 0; field->kind == WIRE_ARRAY && t < 3; t++)
                if (types[t].from == field->element) given[i].element = types[t].to;
            for (int d = 0; d < field->rank; d++) given[i].shape[d] = field->shape[d];
        }
        assert_int_equal(wire_from_fields(given, wire_count(message), &again, &error), OPENPI_OK);
        assert_int_equal(wire_count(again), wire_count(message));
        for (int i = 0; i < wire_count(message); i++) same_field(wire_at(again, i), wire_at(message, i));
        wire_message_free(again);
        wire_message_free(message);
        free(bytes);
    }
}

static void bad_fields(void **state) {
    (void)state;
    static const float numbers[4] = {1, 2, 3, 4};
    char longest[WIRE_KEY_BYTES + 1];
    memset(longest, 'k', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
#define FIELD(...) {.size = sizeof(openpi_field), __VA_ARGS__}
    const struct {
        openpi_field fields[2];
        int count;
        const char *sentence;
    } cases[] = {
        {{FIELD(.name = NULL)}, 1, "request: field 0 has no name"},
        {{FIELD(.name = "")}, 1, "request: field 0 has no name"},
        {{FIELD(.name = longest)}, 1, "has more than 127 bytes"},
        {{FIELD(.name = "a\xff")}, 1, "the key of field 0 is not valid UTF-8"},
        {{FIELD(.name = "a", .data = NULL)}, 1, "\"a\": text and data are both NULL"},
        {{FIELD(.name = "a", .data = numbers, .element = (openpi_element)4)}, 1, "\"a\": element is 4"},
        {{FIELD(.name = "a", .data = numbers, .rank = 9)}, 1, "\"a\" has 9 dimensions, expected at most 8"},
        {{FIELD(.name = "a", .data = numbers, .rank = -1)}, 1, "\"a\" has -1 dimensions"},
        {{FIELD(.name = "a", .data = numbers, .rank = 1, .shape = {-2})}, 1, "dimension 0 of its shape is -2"},
        {{FIELD(.name = "a", .data = numbers, .rank = 2, .shape = {1 << 20, 1 << 20})}, 1, "has more than 67108864 elements"},
        {{FIELD(.name = "a", .data = numbers), FIELD(.name = "a", .data = numbers)}, 2, "the key \"a\" comes twice"},
        {{FIELD(.name = "a", .data = numbers)}, -1, "request: -1 fields at an address"},
        {{FIELD(.name = "a", .data = numbers)}, WIRE_MAX_FIELDS + 1, "request: 257 fields at an address, expected at most 256"},
    };
#undef FIELD
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        openpi_error error = OPENPI_ERROR_INIT;
        wire_message *message = NULL;
        openpi_status status = wire_from_fields(cases[i].fields, cases[i].count, &message, &error);
        if (status == OPENPI_OK || message || !strstr(error.message, cases[i].sentence))
            fail_msg("case %zu: status %d, \"%s\", expected \"%s\"", i, status, error.message,
                     cases[i].sentence);
    }
}

/* ---- small messages ----------------------------------------------------------------------------------- */

/* "81 a1 'prompt' …": hex bytes, text in quotes; spaces between. */
static size_t pack(const char *source, uint8_t *out, size_t capacity) {
    size_t count = 0;
    for (const char *at = source; *at;) {
        if (*at == ' ') {
            at++;
        } else if (*at == '\'') {
            for (at++; *at != '\''; at++) {
                assert_true(*at && count < capacity);
                out[count++] = (uint8_t)*at;
            }
            at++;
        } else {
            unsigned byte = 0;
            assert_true(count < capacity && sscanf(at, "%2x", &byte) == 1);
            out[count++] = (uint8_t)byte;
            at += 2;
        }
    }
    return count;
}

/* Exactly as large as the message, so that a sanitizer sees every read past it. */
static uint8_t *packed(const char *source, size_t *count) {
    static uint8_t buffer[4096];
    *count = pack(source, buffer, sizeof buffer);
    uint8_t *bytes = malloc(*count ? *count : 1);
    assert_non_null(bytes);
    memcpy(bytes, buffer, *count);
    return bytes;
}

#define NDARRAY "c4 0b '__ndarray__' c3 "
#define DATA "c4 04 'data' "
#define DTYPE "c4 05 'dtype' "
#define SHAPE "c4 05 'shape' "
#define GENERIC "c4 0d '__npgeneric__' c3 "
#define FLOATS_1_2 "c4 08 00 00 80 3f 00 00 00 40 "

/* What numpy values are on the wire (MODEL.md, "Pictures, statistics and requests"), each under the key "a":
 * its numbers, or its text. */
static const struct {
    const char *source, *text;
    int count;
    double numbers[6];
} values[] = {
    {"81 a1 'a' 84 " NDARRAY DATA FLOATS_1_2 DTYPE "a3 '<f4' " SHAPE "91 02", NULL, 2, {1, 2}},
    {"81 a1 'a' 83 " GENERIC DATA "cb 3f f8 00 00 00 00 00 00 " DTYPE "a3 '<f4'", NULL, 1, {1.5}},
    {"81 a1 'a' 84 " NDARRAY DATA "c4 08 00 00 00 00 00 00 f0 3f " DTYPE "a3 '<f8' " SHAPE "90",
     NULL,
     1,
     {1}},
    {"81 a1 'a' 96 00 cb bf f8 00 00 00 00 00 00 cb 3f f8 00 00 00 00 00 00 00 00 00",
     NULL,
     6,
     {0, -1.5, 1.5, 0, 0, 0}},
    {"81 a1 'a' 90", NULL, 0, {0}},
    /* str keys, any order, an entry that nobody knows */
    {"81 a1 'a' 85 a5 'shape' 91 02 a5 'dtype' c4 03 '<f4' a1 'x' 07 a4 'data' " FLOATS_1_2 "ab "
                                                                                            "'__ndarray__' "
                                                                                            "c3",
     NULL,
     2,
     {1, 2}},
    {"81 c4 01 'a' 84 " NDARRAY DATA FLOATS_1_2 DTYPE "a3 '<f4' " SHAPE "91 02", NULL, 2, {1, 2}},
    /* every element type */
    {"81 a1 'a' 84 " NDARRAY DATA "c4 02 01 00 " DTYPE "a3 '|b1' " SHAPE "91 02", NULL, 2, {1, 0}},
    {"81 a1 'a' 84 " NDARRAY DATA "c4 02 80 07 " DTYPE "a3 '|u1' " SHAPE "91 02", NULL, 2, {128, 7}},
    {"81 a1 'a' 84 " NDARRAY DATA "c4 02 80 07 " DTYPE "a3 '|i1' " SHAPE "91 02", NULL, 2, {-128, 7}},
    {"81 a1 'a' 84 " NDARRAY DATA "c4 04 ff ff 01 00 " DTYPE "a3 '<u2' " SHAPE "91 02", NULL, 2, {65535, 1}},
    {"81 a1 'a' 84 " NDARRAY DATA "c4 04 ff ff 01 00 " DTYPE "a3 '<i2' " SHAPE "91 02", NULL, 2, {-1, 1}},
    {"81 a1 'a' 84 " NDARRAY DATA "c4 04 ff ff ff ff " DTYPE "a3 '<u4' " SHAPE "91 01",
     NULL,
     1,
     {4294967295.0}},
    {"81 a1 'a' 84 " NDARRAY DATA "c4 04 fe ff ff ff " DTYPE "a3 '<i4' " SHAPE "91 01", NULL, 1, {-2}},
    {"81 a1 'a' 84 " NDARRAY DATA "c4 08 00 00 00 00 00 00 00 80 " DTYPE "a3 '<u8' " SHAPE "91 01",
     NULL,
     1,
     {9223372036854775808.0}},
    {"81 a1 'a' 84 " NDARRAY DATA "c4 08 fd ff ff ff ff ff ff ff " DTYPE "a3 '<i8' " SHAPE "91 01",
     NULL,
     1,
     {-3}},
    {"81 a1 'a' 84 " NDARRAY DATA "c4 04 00 3c 01 80 " DTYPE "a3 '<f2' " SHAPE "91 02",
     NULL,
     2,
     {1, -0x1p-24}},
    {"81 a1 'a' 84 " NDARRAY DATA "c4 01 05 " DTYPE "a3 '>u1' " SHAPE "91 01", NULL, 1, {5}},
    {"81 a1 'a' 84 " NDARRAY DATA "c4 00 " DTYPE "a3 '<f8' " SHAPE "91 00", NULL, 0, {0}},
    /* numbers as Python has them */
    {"81 a1 'a' 07", NULL, 1, {7}},
    {"81 a1 'a' ff", NULL, 1, {-1}},
    {"81 a1 'a' d1 fe d4", NULL, 1, {-300}},
    {"81 a1 'a' cf 00 00 01 00 00 00 00 00", NULL, 1, {1099511627776.0}},
    {"81 a1 'a' ca 3f 80 00 00", NULL, 1, {1}},
    {"81 a1 'a' c3", NULL, 1, {1}},
    {"81 a1 'a' c2", NULL, 1, {0}},
    {"81 a1 'a' 83 " GENERIC DATA "c3 " DTYPE "a3 '|b1'", NULL, 1, {1}},
    /* a list of numpy scalars and of 0-d arrays */
    {"81 a1 'a' 93 01 83 " GENERIC DATA "cb 3f f8 00 00 00 00 00 00 " DTYPE "a3 '<f4' "
     "84 " NDARRAY DATA "c4 01 09 " DTYPE "a3 '|u1' " SHAPE "90",
     NULL,
     3,
     {1, 1.5, 9}},
    /* numpy's other spellings of a type */
#define TYPED(TYPE, BYTES, NUMBER) \
    {"81 a1 'a' 84 " NDARRAY DATA BYTES DTYPE TYPE " " SHAPE "91 01", NULL, 1, {NUMBER}}
    TYPED("a5 'uint8'", "c4 01 ff ", 255), TYPED("a2 'u1'", "c4 01 ff ", 255), TYPED("a1 'B'", "c4 01 ff ", 255),
    TYPED("a1 'b'", "c4 01 ff ", -1), TYPED("a4 'int8'", "c4 01 ff ", -1), TYPED("a1 '?'", "c4 01 01 ", 1),
    TYPED("a4 'bool'", "c4 01 01 ", 1), TYPED("a7 'float16'", "c4 02 00 3c ", 1),
    TYPED("a1 'e'", "c4 02 00 3c ", 1), TYPED("a7 'float32'", "c4 04 00 00 80 3f ", 1),
    TYPED("a1 'f'", "c4 04 00 00 80 3f ", 1), TYPED("a2 'f4'", "c4 04 00 00 80 3f ", 1),
    TYPED("a3 '=f4'", "c4 04 00 00 80 3f ", 1), TYPED("a7 'float64'", "c4 08 00 00 00 00 00 00 f0 3f ", 1),
    TYPED("a1 'd'", "c4 08 00 00 00 00 00 00 f0 3f ", 1), TYPED("a2 'f8'", "c4 08 00 00 00 00 00 00 f0 3f ", 1),
    TYPED("a2 '<d'", "c4 08 00 00 00 00 00 00 f0 3f ", 1), TYPED("a5 'int64'", "c4 08 fe ff ff ff ff ff ff ff ", -2),
    TYPED("a1 'l'", "c4 08 fe ff ff ff ff ff ff ff ", -2), TYPED("a6 'uint16'", "c4 02 01 01 ", 257),
    /* as the package msgpack-numpy packs them: an array, a scalar, str keys */
    {"81 a1 'a' 85 c4 02 'nd' c3 c4 04 'type' a3 '<f4' c4 04 'kind' c4 00 " SHAPE "91 02 " DATA FLOATS_1_2,
     NULL,
     2,
     {1, 2}},
    {"81 a1 'a' 83 c4 02 'nd' c2 c4 04 'type' a3 '<f8' " DATA "c4 08 00 00 00 00 00 00 f0 3f", NULL, 1, {1}},
    {"81 a1 'a' 85 a2 'nd' c3 a4 'type' a3 '|u1' a4 'kind' a0 a5 'shape' 91 01 a4 'data' c4 01 07", NULL, 1, {7}},
    /* text */
    {"81 a1 'a' 84 " NDARRAY DATA "c4 0c 63 00 00 00 75 00 00 00 70 00 00 00 " DTYPE "a3 '<U3' " SHAPE
     "91 01",
     "cup",
     0,
     {0}},
    {"81 a1 'a' 84 " NDARRAY DATA "c4 03 'cup' " DTYPE "a2 'S3' " SHAPE "92 01 01", "cup", 0, {0}},
    {"81 a1 'a' a3 'cup'", "cup", 0, {0}},
    {"81 a1 'a' a0", "", 0, {0}},
    {"81 a1 'a' c4 03 'cup'", "cup", 0, {0}},
    {"81 a1 'a' d9 03 'cup'", "cup", 0, {0}},
    {"81 a1 'a' 83 " GENERIC DATA "a3 'cup' " DTYPE "a3 '<U3'", "cup", 0, {0}},
    {"81 a1 'a' 84 " NDARRAY DATA "c4 10 63 00 00 00 e9 00 00 00 48 f6 01 00 00 00 00 00 " DTYPE
     "a3 '<U4' " SHAPE "90",
     "cé🙈",
     0,
     {0}},
    {"81 a1 'a' 84 " NDARRAY DATA "c4 00 " DTYPE "a3 '<U0' " SHAPE "90", "", 0, {0}},
    {"81 a1 'a' 84 " NDARRAY DATA "c4 05 'cup' 00 00 " DTYPE "a3 '|S5' " SHAPE "90", "cup", 0, {0}},
};

static void values_of_every_kind(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        size_t count;
        uint8_t *bytes = packed(values[i].source, &count);
        openpi_error error = OPENPI_ERROR_INIT;
        wire_message *message;
        if (wire_decode(bytes, count, &message, &error) != OPENPI_OK)
            fail_msg("%s: %s", values[i].source, error.message);
        assert_int_equal(wire_count(message), 1);
        const wire_field *field = wire_at(message, 0);
        assert_string_equal(field->key, "a");
        const char *text;
        size_t length;
        double numbers[6];
        int found;
        if (values[i].text) {
            assert_int_equal(wire_text(field, &text, &length, &error), OPENPI_OK);
            assert_int_equal(length, strlen(values[i].text));
            assert_memory_equal(text, values[i].text, length);
            assert_int_equal(wire_read_doubles(field, numbers, 6, &found, &error), OPENPI_BAD_INPUT);
        } else {
            assert_int_equal(wire_read_doubles(field, numbers, 6, &found, &error), OPENPI_OK);
            assert_int_equal(found, values[i].count);
            for (int j = 0; j < found; j++) assert_true(numbers[j] == values[i].numbers[j]);
            assert_int_equal(wire_text(field, &text, &length, &error), OPENPI_BAD_INPUT);
            if (found > 1) {
                assert_int_equal(wire_read_doubles(field, numbers, found - 1, &found, &error),
                                 OPENPI_BAD_INPUT);
                assert_non_null(strstr(error.message, "expected at most"));
            }
        }
        wire_message_free(message);
        for (size_t cut = 0; cut < count; cut++) { /* every prefix, in memory of just its size */
            uint8_t *less = malloc(cut ? cut : 1);
            assert_non_null(less);
            memcpy(less, bytes, cut);
            assert_int_equal(wire_decode(less, cut, &message, &error), OPENPI_BAD_INPUT);
            free(less);
        }
        free(bytes);
    }
}

static void nested_maps_and_nil(void **state) {
    (void)state;
    static const struct { const char *key; wire_kind kind; } fields[] = {
        {"a", WIRE_MAP}, {"a/b", WIRE_MAP}, {"a/b/c", WIRE_NUMBER}, {"a/d", WIRE_NIL}, {"x/y", WIRE_NUMBER},
        {"e", WIRE_MAP}, {"f", WIRE_NIL}};
    size_t count;
    uint8_t *bytes =
        packed("84 a1 'a' 82 a1 'b' 81 a1 'c' 01 a1 'd' c0 a3 'x/y' 02 a1 'e' 80 a1 'f' c0", &count);
    openpi_error error = OPENPI_ERROR_INIT;
    wire_message *message;
    assert_int_equal(wire_decode(bytes, count, &message, &error), OPENPI_OK);
    assert_int_equal(wire_count(message), 7);
    for (int i = 0; i < 7; i++) {
        assert_string_equal(wire_at(message, i)->key, fields[i].key);
        assert_int_equal(wire_at(message, i)->kind, fields[i].kind);
    }
    wire_message_free(message);
    free(bytes);
    bytes = packed("80", &count);
    assert_int_equal(wire_decode(bytes, count, &message, &error), OPENPI_OK);
    assert_int_equal(wire_count(message), 0);
    wire_message_free(message);
    free(bytes);
}

/* ---- pictures ----------------------------------------------------------------------------------------- */

static void pictures_by_shape(void **state) {
    (void)state;
    static const struct {
        const char *source;
        int always_chw;
        openpi_element element;
        openpi_layout layout;
        int height, width;       /* 0: refused */
    } cases[] = {
        {"84 " NDARRAY DATA "c4 06 00 00 00 00 00 00 " DTYPE "a3 '|u1' " SHAPE "93 01 02 03", 0, OPENPI_U8,
         OPENPI_HWC, 1, 2},
        {"84 " NDARRAY DATA "c4 06 00 00 00 00 00 00 " DTYPE "a3 '|u1' " SHAPE "93 03 01 02", 0, OPENPI_U8,
         OPENPI_CHW, 1, 2},
        {"84 " NDARRAY DATA "c4 09 00 00 00 00 00 00 00 00 00 " DTYPE "a3 '|u1' " SHAPE "93 03 01 03", 0,
         OPENPI_U8, OPENPI_CHW, 1, 3},
        {"84 " NDARRAY DATA "c4 06 00 00 00 00 00 00 " DTYPE "a3 '|u1' " SHAPE "93 03 02 01", 1, OPENPI_U8,
         OPENPI_CHW, 2, 1},
        {"84 " NDARRAY DATA "c4 06 00 00 00 00 00 00 " DTYPE "a3 '|u1' " SHAPE "93 01 02 03", 1, 0, 0, 0, 0},
        {"84 " NDARRAY DATA "c4 0c 00 00 00 00 00 00 00 00 00 00 00 00 " DTYPE "a3 '<f4' " SHAPE "93 01 01 "
                                                                                                 "03",
         0, OPENPI_FLOAT32, OPENPI_HWC, 1, 1},
        {"84 " NDARRAY DATA "c4 06 00 00 00 00 00 00 " DTYPE "a3 '<f2' " SHAPE "93 01 01 03", 0,
         OPENPI_FLOAT16, OPENPI_HWC, 1, 1},
        {"84 " NDARRAY DATA "c4 06 00 00 00 00 00 00 " DTYPE "a3 '<i2' " SHAPE "93 01 01 03", 0, 0, 0, 0, 0},
        {"c0", 0, 0, 0, 0, 0},
        {"80", 0, 0, 0, 0, 0},
        {"81 a4 'data' 01", 0, 0, 0, 0, 0},
        {"c4 04 ff d8 ff e0", 0, 0, 0, 0, 0},
        {"84 " NDARRAY DATA "c4 06 00 00 00 00 00 00 " DTYPE "a3 '|u1' " SHAPE "92 02 03", 0, 0, 0, 0, 0},
        {"84 " NDARRAY DATA "c4 04 00 00 00 00 " DTYPE "a3 '|u1' " SHAPE "93 01 01 04", 0, 0, 0, 0, 0},
        {"a1 'x'", 0, 0, 0, 0, 0},
        {"07", 1, 0, 0, 0, 0},
        {"90", 0, 0, 0, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char source[256];
        size_t count;
        openpi_error error = OPENPI_ERROR_INIT;
        openpi_image image;
        wire_message *message;
        snprintf(source, sizeof source, "81 a1 'a' %s", cases[i].source);
        uint8_t *bytes = packed(source, &count);
        assert_int_equal(wire_decode(bytes, count, &message, &error), OPENPI_OK);
        openpi_status status = wire_image(wire_at(message, 0), cases[i].always_chw, &image, &error);
        if (cases[i].height) {
            assert_int_equal(status, OPENPI_OK);
            assert_string_equal(image.name, "a");
            assert_int_equal(image.element, cases[i].element);
            assert_int_equal(image.layout, cases[i].layout);
            assert_int_equal(image.height, cases[i].height);
            assert_int_equal(image.width, cases[i].width);
        } else {
            assert_int_equal(status, OPENPI_BAD_INPUT);
            assert_non_null(strstr(error.message, "expected a picture"));
        }
        wire_message_free(message);
        free(bytes);
    }
}

/* ---- what must not get through -------------------------------------------------------------------- */

static const struct {
    const char *source, *sentence;
} broken[] = {
    {"", "request: an empty message, expected a map of msgpack"},
    {"93 01 02 03", "request: the message starts with byte 0x93, expected a map of msgpack"},
    {"a3 'abc'", "request: the message starts with byte 0xa3, expected a map of msgpack"},
    {"7b", "request: the message starts with byte 0x7b, expected a map of msgpack"},
    {"81 a1 'a' 01 00", "request: 1 bytes follow the message's map, expected none"},
    {"81 a1 'a' c1", "request: byte 3 is 0xc1, which msgpack never uses"},
    {"81 a1 'a' d4 01 02", "request: \"a\" is an extension type, expected text, a number or an array"},
    {"81 a1 'a' d8 01 02 02 02 02 02 02 02 02 02 02 02 02 02 02 02 02",
     "request: \"a\" is an extension type, expected text, a number or an array"},
    {"81 a1 'a' c7 01 01 02", "request: \"a\" is an extension type, expected text, a number or an array"},
    {"81 a1 'a' dd ff ff ff ff", "request: a list of 4294967295 entries at byte 8, expected at most 65536 values in a message"},
    {"df ff ff ff ff", "request: a map of 4294967295 entries at byte 5, expected at most 65536 values in a message"},
    {"81 a1 'a' df 80 00 00 00", "request: a map of 2147483648 entries at byte 8, expected at most 65536 values in a message"},
    {"81 a1 'a' db 00 20 00 00 'x'", "request: the message is cut short: it ends after 9 bytes, inside a value"},
    {"80 04 95 00", "request: the message starts with byte 0x80, expected a map of "
     "msgpack; it is a Python pickle"},
    {"93 'NUMPY' 01 00", "request: the message starts with byte 0x93, expected a map of "
     "msgpack; it is a .npy file"},
    {"'{\"state\": []}'", "request: the message starts with byte 0x7b, expected a map of "
     "msgpack; it is JSON text"},
    {"81 a1 'a' c0", "request: \"a\" is nil (None), expected text"},
    {"81 a1 'a' 80", "request: \"a\" is an empty map (dict), expected text"},
    {"81 a1 'a' 82 a1 'b' 01 a1 'c' 02", "request: \"a\" is a map (dict) with 2 entries, expected text"},
    {"81 a1 'a' c4 04 ff d8 ff e0", "request: \"a\" is 4 bytes that are a JPEG file, expected text"},
    {"81 a1 'a' c4 02 ff 00", "request: \"a\" is 2 bytes that are not valid UTF-8, expected text"},
    {"81 a1 'a' c6 ff ff ff ff 00", "request: the message is cut short: it ends after 9 bytes, inside a value"},
    {"81 a1 'a' 91 91 91 91 91 91 91 91 01", "request: a list at byte 11 is nested deeper than 8"},
    {"81 a1 'a' 81 a1 'a' 81 a1 'a' 81 a1 'a' 81 a1 'a' 81 a1 'a' 81 a1 'a' 81 a1 'a' 81 a1 'a' 01",
     "request: a map at byte 25 is nested deeper than 8"},
    {"81 07 01", "request: a key in \"\" is an integer, expected text"},
    {"81 a1 'b' 81 c0 01", "request: a key in \"b/\" is nil, expected text"},
    {"81 a0 01", "request: key 0 in \"\" is empty or not valid UTF-8"},
    {"81 a1 ff 01", "request: key 0 in \"\" is empty or not valid UTF-8"},
    {"81 a2 'a' 00 01", "request: key 0 in \"\" is empty or not valid UTF-8"},
    {"82 a1 'a' 01 a1 'a' 02", "request: the key \"a\" comes twice"},
    {"82 a3 'a/b' 01 a1 'a' 81 a1 'b' 02", "request: the key \"a/b\" comes twice"},
    {"81 a1 'a' a2 c3 28", "request: \"a\": its text is not valid UTF-8"},
    {"81 a1 'a' a3 ed a0 80", "request: \"a\": its text is not valid UTF-8"},
    {"81 a1 'a' 92 01 a1 'x'", "request: \"a\": element 1 of the list is text, expected a number; a prompt is text alone, not in a list"},
    {"81 a1 'a' 91 90", "request: \"a\": element 0 of the list is a list, expected a number"},
    {"81 a1 'a' 91 c0", "request: \"a\" is nil, expected text, a number or an array"},
    {"81 a1 'a' 91 84 " NDARRAY DATA "c4 01 00 " DTYPE "a3 '|u1' " SHAPE "91 01",
     "request: \"a\": element 0 of the list is a numpy value, expected a number"},
    {"84 " NDARRAY DATA "c4 00 " DTYPE "a3 '<f4' " SHAPE "91 00",
     "request: the message is one numpy value, expected a map of fields"},
    {"81 a1 'a' 83 " NDARRAY DATA "c4 00 " SHAPE "91 00", "request: \"a\": a numpy array without \"dtype\""},
    {"81 a1 'a' 83 " NDARRAY DATA "c4 00 " DTYPE "a3 '<f4'", "request: \"a\": a numpy array without \"shape\""},
    {"81 a1 'a' 83 " NDARRAY DTYPE "a3 '<f4' " SHAPE "91 00", "request: \"a\": a numpy array without \"data\""},
    {"81 a1 'a' 82 " GENERIC DTYPE "a3 '<f4'", "request: \"a\": a numpy scalar without \"data\""},
    {"81 a1 'a' 83 " GENERIC DATA "90 " DTYPE "a3 '<f4'", "request: \"a\" is a list, expected text, a number or an array"},
    {"81 a1 'a' 84 " NDARRAY DATA "c4 04 00 00 00 00 " DTYPE "a3 '>f4' " SHAPE "91 01",
     "request: \"a\": dtype \">f4\" is big-endian, expected little-endian"},
    {"81 a1 'a' 84 " NDARRAY DATA "c4 08 00 00 00 00 00 00 00 00 " DTYPE "a3 '<c8' " SHAPE "91 01",
     "request: \"a\": dtype \"<c8\" holds complex numbers, expected numbers or text"},
    {"81 a1 'a' 84 " NDARRAY DATA "c4 08 00 00 00 00 00 00 00 00 " DTYPE "a2 '|O' " SHAPE "91 01",
     "request: \"a\": dtype \"|O\" holds Python objects, expected numbers or text"},
    {"81 a1 'a' 84 " NDARRAY DATA "c4 08 00 00 00 00 00 00 00 00 " DTYPE "a3 '|V8' " SHAPE "91 01",
     "request: \"a\": dtype \"|V8\" holds records, expected numbers or text"},
    {"81 a1 'a' 84 " NDARRAY DATA "c4 08 00 00 00 00 00 00 00 00 " DTYPE "a3 '<f3' " SHAPE "91 01",
     "request: \"a\": dtype \"<f3\" is unknown, expected b1, u1 to u8, i1 to i8, f2, f4, f8 or U"},
    {"81 a1 'a' 84 " NDARRAY DATA "c4 08 00 00 00 00 00 00 00 00 " DTYPE "a7 '<M8[ns]' " SHAPE "91 01",
     "request: \"a\": dtype \"<M8[ns]\" is unknown, expected b1, u1 to u8, i1 to i8, f2, f4, f8 or U"},
    {"81 a1 'a' 84 " NDARRAY DATA "c4 00 " DTYPE "a0 " SHAPE "91 00",
     "request: \"a\": dtype \"\" is unknown, expected b1, u1 to u8, i1 to i8, f2, f4, f8 or U"},
    {"81 a1 'a' 84 " NDARRAY DATA "c4 00 " DTYPE "07 " SHAPE "91 00",
     "request: \"a\": its dtype is an integer, expected text such as \"<f4\""},
    {"81 a1 'a' 84 " NDARRAY DATA "c4 04 00 00 00 00 " DTYPE "a3 '<f4' " SHAPE "91 02",
     "request: \"a\": 4 bytes of data, expected 8: 2 elements of 4 bytes"},
    {"81 a1 'a' 84 " NDARRAY DATA "c4 05 00 00 00 00 00 " DTYPE "a3 '<f4' " SHAPE "91 01",
     "request: \"a\": 5 bytes of data, expected 4: 1 elements of 4 bytes"},
    {"81 a1 'a' 84 " NDARRAY DATA "a4 'abcd' " DTYPE "a3 '<f4' " SHAPE "91 01",
     "request: \"a\": its data is text, expected bytes"},
    {"81 a1 'a' 84 " NDARRAY DATA "c4 00 " DTYPE "a3 '<f4' " SHAPE "01",
     "request: \"a\": its shape is an integer, expected a list of up to 8 integers"},
    {"81 a1 'a' 84 " NDARRAY DATA "c4 01 00 " DTYPE "a3 '|u1' " SHAPE "99 01 01 01 01 01 01 01 01 01",
     "request: \"a\": its shape is a longer list, expected a list of up to 8 integers"},
    {"81 a1 'a' 84 " NDARRAY DATA "c4 00 " DTYPE "a3 '<f4' " SHAPE "91 ff",
     "request: \"a\": dimension 0 of its shape is negative, expected an integer from 0 to 67108864"},
    {"81 a1 'a' 84 " NDARRAY DATA "c4 00 " DTYPE "a3 '<f4' " SHAPE "91 cf 40 00 00 00 00 00 00 01",
     "request: \"a\": dimension 0 of its shape is larger, expected an integer from 0 to 67108864"},
    {"81 a1 'a' 84 " NDARRAY DATA "c4 00 " DTYPE "a3 '<f4' " SHAPE "94 ce 04 00 00 00 "
     "ce 04 00 00 00 ce 04 00 00 00 ce 04 00 00 00",
     "request: \"a\": its shape has more elements than a message's 67108864 bytes"},
    {"81 a1 'a' 84 " NDARRAY DATA "c4 08 63 00 00 00 64 00 00 00 " DTYPE "a3 '<U1' " SHAPE "91 02",
     "request: \"a\": an array of 2 strings, expected one string"},
    {"81 a1 'a' 84 " NDARRAY DATA "c4 04 00 d8 00 00 " DTYPE "a3 '<U1' " SHAPE "90",
     "request: \"a\": character 0 is U+D800, which Unicode does not have"},
    {"81 a1 'a' 84 " NDARRAY DATA "c4 04 00 00 11 00 " DTYPE "a3 '<U1' " SHAPE "90",
     "request: \"a\": character 0 is U+110000, which Unicode does not have"},
    {"81 a1 'a' 84 " NDARRAY DATA "c4 04 00 00 00 00 " DTYPE "aa '<U99999999' " SHAPE "90",
     "request: \"a\": 4 bytes of data, expected 399999996: 1 elements of 399999996 bytes"},
};

static void broken_messages(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
        size_t count;
        uint8_t *bytes = packed(broken[i].source, &count);
        openpi_error error = OPENPI_ERROR_INIT;
        wire_message *message;
        if (wire_decode(bytes, count, &message, &error) == OPENPI_OK) {   /* the error of who reads it */
            const char *text;
            size_t length;
            assert_int_equal(wire_text(wire_at(message, 0), &text, &length, &error), OPENPI_BAD_INPUT);
            wire_message_free(message);
        }
        assert_string_equal(error.message, broken[i].sentence);
        if (wire_decode(bytes, count, &message, NULL) == OPENPI_OK) wire_message_free(message);
        free(bytes);
    }
}

static void limits(void **state) {
    (void)state;
    openpi_error error = OPENPI_ERROR_INIT;
    wire_message *message;
    uint8_t *bytes = calloc(WIRE_MAX_BYTES + 1, 1);
    assert_non_null(bytes);
    assert_int_equal(wire_decode(bytes, WIRE_MAX_BYTES + 1, &message, &error), OPENPI_BAD_INPUT);
    assert_string_equal(error.message, "request: 67108865 bytes, expected at most 67108864");
    for (int fields = WIRE_MAX_FIELDS; fields <= WIRE_MAX_FIELDS + 1; fields++) {
        size_t count = 0;
        bytes[count++] = 0xde;
        bytes[count++] = (uint8_t)(fields >> 8);
        bytes[count++] = (uint8_t)fields;
        for (int i = 0; i < fields; i++) {
            bytes[count++] = 0xa3;
            sprintf((char *)bytes + count, "%03d", i);
            count += 3;
            bytes[count++] = 1;
        }
        assert_int_equal(wire_decode(bytes, count, &message, &error),
                         fields > WIRE_MAX_FIELDS ? OPENPI_BAD_INPUT : OPENPI_OK);
        if (fields > WIRE_MAX_FIELDS) assert_string_equal(error.message, "request: more than 256 fields");
        else wire_message_free(message);
    }
    for (int length = WIRE_KEY_BYTES - 1; length <= WIRE_KEY_BYTES; length++) {
        bytes[0] = 0x81, bytes[1] = 0xd9, bytes[2] = (uint8_t)length;
        memset(bytes + 3, 'k', (size_t)length);
        bytes[3 + length] = 1;
        assert_int_equal(wire_decode(bytes, 4 + (size_t)length, &message, &error),
                         length < WIRE_KEY_BYTES ? OPENPI_OK : OPENPI_BAD_INPUT);
        if (length == WIRE_KEY_BYTES)
            assert_string_equal(error.message, "request: the key \"kkkkkkkkkkkkkkkkkkkk…\" has 128 bytes, "
                                               "expected at most 127");
        else wire_message_free(message);
    }
    free(bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_of_the_goldens),
        cmocka_unit_test(fields_of_the_goldens),
        cmocka_unit_test(bad_fields),
        cmocka_unit_test(values_of_every_kind),
        cmocka_unit_test(nested_maps_and_nil),     cmocka_unit_test(pictures_by_shape),
        cmocka_unit_test(broken_messages),         cmocka_unit_test(limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
