/* From the bytes of an openpi client's message to named fields; wire.h tells what becomes what.
 *
 * Three steps: check_bytes walks the raw bytes against the limits and allocates nothing; msgpack-c turns them
 * into objects (at most WIRE_MAX_VALUES of them); flatten makes fields of the objects, twice: once to check
 * everything and to measure, once to fill the one block that a message is. What surprises: text and arrays
 * are never copied, they point into the caller's bytes; only lists of numbers and fixed-width unicode need
 * memory of their own. */
#include "policy/wire.h"

#include <limits.h>
#include <msgpack.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "base/report.h"
#include "base/utf8.h"

enum { DESCRIPTION = 128 };

struct wire_message {
    int count;
    wire_field *fields;          /* [count], then the memory that fields own; one block with this struct */
};

/* ---- the bytes ------------------------------------------------------------------------------------ */

typedef struct walk {
    const uint8_t *bytes;
    size_t count, at;
    size_t values;
    openpi_error *error;
} walk;

static openpi_status walk_cut(const walk *walk) {
    return report(walk->error, OPENPI_BAD_INPUT,
                  "request: the message is cut short: it ends after %zu bytes, inside a value", walk->count);
}

/* A big-endian number of 1, 2, 4 or 8 bytes. */
static openpi_status walk_number(walk *walk, int bytes, uint64_t *number) {
    if (walk->count - walk->at < (size_t)bytes) return walk_cut(walk);
    *number = 0;
    for (int i = 0; i < bytes; i++) *number = *number << 8 | walk->bytes[walk->at++];
    return OPENPI_OK;
}

static openpi_status walk_skip(walk *walk, uint64_t bytes) {
    if (walk->count - walk->at < bytes) return walk_cut(walk);
    walk->at += (size_t)bytes;
    return OPENPI_OK;
}

static openpi_status walk_text(walk *walk, uint64_t bytes) {
    if (bytes > WIRE_MAX_TEXT)
        return report(walk->error, OPENPI_BAD_INPUT,
                      "request: a string of %llu bytes at byte %zu, expected at most %d",
                      (unsigned long long)bytes, walk->at, WIRE_MAX_TEXT);
    return walk_skip(walk, bytes);
}

static openpi_status walk_value(walk *walk, int depth);

/* `each` values an entry: 1 for a list, 2 for a map. */
static openpi_status walk_entries(walk *walk, uint64_t entries, uint64_t each, int depth) {
    const char *what = each == 2 ? "map" : "list";
    if (depth >= WIRE_MAX_DEPTH)
        return report(walk->error, OPENPI_BAD_INPUT, "request: a %s at byte %zu is nested deeper than %d",
                      what, walk->at, WIRE_MAX_DEPTH);
    if (entries * each > WIRE_MAX_VALUES - walk->values)
        return report(walk->error, OPENPI_BAD_INPUT,
                      "request: a %s of %llu entries at byte %zu, expected at most %d values in a message",
                      what, (unsigned long long)entries, walk->at, WIRE_MAX_VALUES);
    walk->values += (size_t)(entries * each);
    for (uint64_t i = 0; i < entries * each; i++) TRY(walk_value(walk, depth + 1));
    return OPENPI_OK;
}

static openpi_status walk_value(walk *walk, int depth) {
    uint64_t tag, length;
    TRY(walk_number(walk, 1, &tag));
    if (tag <= 0x7f || tag >= 0xe0) return OPENPI_OK;                            /* small integers     */
    if (tag <= 0x8f) return walk_entries(walk, tag & 15, 2, depth);
    if (tag <= 0x9f) return walk_entries(walk, tag & 15, 1, depth);
    if (tag <= 0xbf) return walk_text(walk, tag & 31);
    switch (tag) {
    case 0xc0: case 0xc2: case 0xc3: return OPENPI_OK;                           /* nil, false, true   */
    case 0xc4: case 0xc5: case 0xc6:                                             /* bin 8, 16, 32      */
        TRY(walk_number(walk, 1 << (tag - 0xc4), &length));
        return walk_skip(walk, length);
    case 0xca: return walk_skip(walk, 4);                                        /* float 32, 64       */
    case 0xcb: return walk_skip(walk, 8);
    case 0xcc: case 0xcd: case 0xce: case 0xcf: return walk_skip(walk, 1u << (tag - 0xcc));
    case 0xd0: case 0xd1: case 0xd2: case 0xd3: return walk_skip(walk, 1u << (tag - 0xd0));
    case 0xd9: case 0xda: case 0xdb:                                             /* str 8, 16, 32      */
        TRY(walk_number(walk, 1 << (tag - 0xd9), &length));
        return walk_text(walk, length);
    case 0xdc: case 0xdd:                                                        /* list 16, 32        */
        TRY(walk_number(walk, tag == 0xdc ? 2 : 4, &length));
        return walk_entries(walk, length, 1, depth);
    case 0xde: case 0xdf:                                                        /* map 16, 32         */
        TRY(walk_number(walk, tag == 0xde ? 2 : 4, &length));
        return walk_entries(walk, length, 2, depth);
    case 0xc1:
        return report(walk->error, OPENPI_BAD_INPUT, "request: byte %zu is 0xc1, which msgpack never uses",
                      walk->at - 1);
    default:                                                                     /* c7 c8 c9 d4 … d8   */
        return report(
            walk->error, OPENPI_BAD_INPUT,
            "request: an extension type (0x%02x) at byte %zu, expected plain msgpack and numpy maps",
            (unsigned)tag, walk->at - 1);
    }
}

static openpi_status check_bytes(const uint8_t *bytes, size_t count, openpi_error *error) {
    if (count > WIRE_MAX_BYTES)
        return report(error, OPENPI_BAD_INPUT, "request: %zu bytes, expected at most %d", count,
                      WIRE_MAX_BYTES);
    if (!count)
        return report(error, OPENPI_BAD_INPUT, "request: an empty message, expected a map of msgpack");
    uint8_t tag = bytes[0];
    if (!((tag >= 0x80 && tag <= 0x8f) || tag == 0xde || tag == 0xdf))
        return report(error, OPENPI_BAD_INPUT,
                      "request: the message starts with byte 0x%02x, expected a map of msgpack", tag);
    walk walk = {bytes, count, 0, 0, error};
    TRY(walk_value(&walk, 0));
    if (walk.at != count)
        return report(error, OPENPI_BAD_INPUT, "request: %zu bytes follow the message's map, expected none",
                      count - walk.at);
    return OPENPI_OK;
}

/* ---- text ----------------------------------------------------------------------------------------- */

static int is_utf8(const char *text, size_t bytes) {
    return utf8_valid_prefix(text, bytes) == bytes;
}

/* Writes one code point; returns its bytes, 0 where it is none. out may be NULL. */
static size_t put_utf8(uint32_t code, char *out) {
    if (code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) return 0;
    size_t bytes = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    if (!out) return bytes;
    static const uint8_t lead[5] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = bytes; i-- > 0; code >>= 6) out[i] = (char)(i ? 0x80 | (code & 63) : lead[bytes] | code);
    return bytes;
}

/* ---- fields --------------------------------------------------------------------------------------- */

typedef struct flat {
    wire_field *fields;          /* NULL: measuring */
    int count;
    char *owned;                 /* 8-byte aligned  */
    size_t owned_bytes;
    openpi_error *error;
} flat;

/* Memory of the message itself. While measuring there is none, and *out is NULL. */
static void *flat_take(flat *flat, size_t bytes) {
    void *memory = flat->fields ? flat->owned + flat->owned_bytes : NULL;
    flat->owned_bytes += (bytes + 7) & ~(size_t)7;
    return memory;
}

static int as_text(const msgpack_object *object, const char **text, size_t *bytes) {
    if (object->type == MSGPACK_OBJECT_STR) {
        *text = object->via.str.ptr;
        *bytes = object->via.str.size;
    } else if (object->type == MSGPACK_OBJECT_BIN) {
        *text = object->via.bin.ptr;
        *bytes = object->via.bin.size;
    } else {
        return 0;
    }
    return 1;
}

static int as_number(const msgpack_object *object, double *number) {
    switch (object->type) {
    case MSGPACK_OBJECT_BOOLEAN: *number = object->via.boolean; return 1;
    case MSGPACK_OBJECT_POSITIVE_INTEGER: *number = (double)object->via.u64; return 1;
    case MSGPACK_OBJECT_NEGATIVE_INTEGER: *number = (double)object->via.i64; return 1;
    case MSGPACK_OBJECT_FLOAT32:
    case MSGPACK_OBJECT_FLOAT64: *number = object->via.f64; return 1;
    default: return 0;
    }
}

static const char *kind_of(const msgpack_object *object) {
    switch (object->type) {
    case MSGPACK_OBJECT_NIL: return "nil";
    case MSGPACK_OBJECT_BOOLEAN: return "a bool";
    case MSGPACK_OBJECT_POSITIVE_INTEGER:
    case MSGPACK_OBJECT_NEGATIVE_INTEGER: return "an integer";
    case MSGPACK_OBJECT_FLOAT32:
    case MSGPACK_OBJECT_FLOAT64: return "a float";
    case MSGPACK_OBJECT_STR: return "text";
    case MSGPACK_OBJECT_BIN: return "bytes";
    case MSGPACK_OBJECT_ARRAY: return "a list";
    case MSGPACK_OBJECT_MAP: return "a map";
    default: return "an extension type";
    }
}

/* A map's value, by a key that may be str or bin. */
static const msgpack_object *member(const msgpack_object *map, const char *name) {
    size_t length = strlen(name);
    for (uint32_t i = 0; i < map->via.map.size; i++) {
        const char *text;
        size_t bytes;
        if (as_text(&map->via.map.ptr[i].key, &text, &bytes) && bytes == length &&
            memcmp(text, name, bytes) == 0)
            return &map->via.map.ptr[i].val;
    }
    return NULL;
}

static const struct {
    char kind;
    uint8_t bytes;
    wire_element element;
    const char *name;
} elements[] = {                 /* in the order of wire_element */
    {'b', 1, WIRE_BOOL, "bool"}, {'u', 1, WIRE_U8, "u8"},   {'u', 2, WIRE_U16, "u16"},
    {'u', 4, WIRE_U32, "u32"},   {'u', 8, WIRE_U64, "u64"}, {'i', 1, WIRE_I8, "i8"},
    {'i', 2, WIRE_I16, "i16"},   {'i', 4, WIRE_I32, "i32"}, {'i', 8, WIRE_I64, "i64"},
    {'f', 2, WIRE_F16, "f16"},   {'f', 4, WIRE_F32, "f32"}, {'f', 8, WIRE_F64, "f64"},
};
enum { ELEMENTS = sizeof elements / sizeof elements[0] };

typedef struct numpy_type {
    char kind;                   /* numpy's: b u i f U S */
    size_t bytes;                /* of one element       */
    wire_element element;        /* of b u i f           */
} numpy_type;

/* "<f4", "|u1", "<U12" … */
static openpi_status parse_dtype(const msgpack_object *object, const char *key, numpy_type *type,
                                 openpi_error *error) {
    const char *text;
    size_t length;
    if (!as_text(object, &text, &length))
        return report(error, OPENPI_BAD_INPUT,
                      "request: \"%s\": its dtype is %s, expected text such as \"<f4\"", key,
                      kind_of(object));
    int shown = length < 20 ? (int)length : 20;
    char order = length > 1 ? text[0] : 0, kind = length > 1 ? text[1] : 0;
    if (kind == 'V' || kind == 'O' || kind == 'c')
        return report(error, OPENPI_BAD_INPUT,
                      "request: \"%s\": dtype \"%.*s\" holds %s, expected numbers or text", key, shown, text,
                      kind == 'V'   ? "records"
                      : kind == 'O' ? "Python objects"
                                    : "complex numbers");
    size_t bytes = 0;
    int valid = length > 2 && length <= 10 && (order == '<' || order == '|' || order == '=' || order == '>');
    for (size_t i = 2; valid && i < length; i++) {
        if (text[i] < '0' || text[i] > '9') valid = 0;
        else bytes = bytes * 10 + (size_t)(text[i] - '0');
    }
    if (valid && order == '>' && bytes > 1)
        return report(error, OPENPI_BAD_INPUT,
                      "request: \"%s\": dtype \"%.*s\" is big-endian, expected little-endian", key, shown,
                      text);
    if (valid && (kind == 'U' || kind == 'S')) {
        type->kind = kind;
        type->bytes = kind == 'U' ? bytes * 4 : bytes;
        return OPENPI_OK;
    }
    for (int i = 0; valid && i < ELEMENTS; i++)
        if (elements[i].kind == kind && elements[i].bytes == bytes) {
            type->kind = kind;
            type->bytes = bytes;
            type->element = elements[i].element;
            return OPENPI_OK;
        }
    return report(
        error, OPENPI_BAD_INPUT,
        "request: \"%s\": dtype \"%.*s\" is unknown, expected b1, u1 to u8, i1 to i8, f2, f4, f8 or U", key,
        shown, text);
}

static double element_at(const void *data, wire_element element, size_t index) {
    const uint8_t *at = (const uint8_t *)data + index * elements[element].bytes;
    union {
        uint16_t u16;
        uint32_t u32;
        uint64_t u64;
        int16_t i16;
        int32_t i32;
        int64_t i64;
        float f32;
        double f64;
    } value;
    memcpy(&value, at, elements[element].bytes);
    switch (element) {
    case WIRE_BOOL: return *at != 0;
    case WIRE_U8: return *at;
    case WIRE_U16: return value.u16;
    case WIRE_U32: return value.u32;
    case WIRE_U64: return (double)value.u64;
    case WIRE_I8: return (int8_t)*at;
    case WIRE_I16: return value.i16;
    case WIRE_I32: return value.i32;
    case WIRE_I64: return (double)value.i64;
    case WIRE_F16: return f16_to_float(value.u16);
    case WIRE_F32: return value.f32;
    case WIRE_F64: return value.f64;
    }
    return 0.0;
}

static openpi_status set_text(flat *flat, wire_field *field, const char *text, size_t bytes) {
    if (!is_utf8(text, bytes))
        return report(flat->error, OPENPI_BAD_INPUT, "request: \"%s\": its text is not valid UTF-8",
                      field->key);
    field->kind = WIRE_TEXT;
    field->text = bytes ? text : "";
    field->bytes = bytes;
    return OPENPI_OK;
}

/* numpy's fixed-width text: UCS-4 or bytes, ended by zeros. */
static openpi_status set_fixed_text(flat *flat, wire_field *field, const numpy_type *type, const char *data) {
    size_t length = type->bytes;
    while (length && !data[length - 1]) length--;
    if (type->kind == 'S') return set_text(flat, field, data, length);
    length = (length + 3) / 4;
    size_t bytes = 0;
    char *text = NULL;
    for (int pass = 0; pass < 2; pass++) {                               /* its size, then the text itself */
        if (pass) text = flat_take(flat, bytes);
        if (pass && !text) break;
        bytes = 0;
        for (size_t i = 0; i < length; i++) {
            uint32_t code;
            memcpy(&code, data + 4 * i, sizeof code);
            size_t more = put_utf8(code, text ? text + bytes : NULL);
            if (!more)
                return report(flat->error, OPENPI_BAD_INPUT,
                              "request: \"%s\": character %zu is U+%X, which Unicode does not have",
                              field->key, i, (unsigned)code);
            bytes += more;
        }
    }
    field->kind = WIRE_TEXT;
    field->text = bytes && text ? text : "";
    field->bytes = bytes;
    return OPENPI_OK;
}

static openpi_status set_array(flat *flat, wire_field *field, const msgpack_object *map) {
    const char *key = field->key, *names[3] = {"dtype", "shape", "data"};
    const msgpack_object *parts[3];
    for (int i = 0; i < 3; i++) {
        parts[i] = member(map, names[i]);
        if (!parts[i])
            return report(flat->error, OPENPI_BAD_INPUT, "request: \"%s\": a numpy array without \"%s\"", key,
                          names[i]);
    }
    numpy_type type = {0, 0, WIRE_U8};
    TRY(parse_dtype(parts[0], key, &type, flat->error));
    const msgpack_object *shape = parts[1], *data = parts[2];
    if (shape->type != MSGPACK_OBJECT_ARRAY || shape->via.array.size > WIRE_RANK)
        return report(flat->error, OPENPI_BAD_INPUT,
                      "request: \"%s\": its shape is %s, expected a list of up to %d integers", key,
                      shape->type == MSGPACK_OBJECT_ARRAY ? "a longer list" : kind_of(shape), WIRE_RANK);
    field->rank = (int)shape->via.array.size;
    uint64_t count = 1;
    for (int i = 0; i < field->rank; i++) {
        const msgpack_object *side = &shape->via.array.ptr[i];
        if (side->type != MSGPACK_OBJECT_POSITIVE_INTEGER || side->via.u64 > WIRE_MAX_BYTES)
            return report(
                flat->error, OPENPI_BAD_INPUT,
                "request: \"%s\": dimension %d of its shape is %s, expected an integer from 0 to %d", key, i,
                side->type == MSGPACK_OBJECT_POSITIVE_INTEGER   ? "larger"
                : side->type == MSGPACK_OBJECT_NEGATIVE_INTEGER ? "negative"
                                                                : kind_of(side),
                WIRE_MAX_BYTES);
        field->shape[i] = (int64_t)side->via.u64;
        count *= side->via.u64;                                          /* both factors <= 2^26 */
        if (count > WIRE_MAX_BYTES)
            return report(flat->error, OPENPI_BAD_INPUT,
                          "request: \"%s\": its shape has more elements than a message's %d bytes", key,
                          WIRE_MAX_BYTES);
    }
    const char *bytes;
    size_t length;
    if (data->type != MSGPACK_OBJECT_BIN)
        return report(flat->error, OPENPI_BAD_INPUT, "request: \"%s\": its data is %s, expected bytes", key,
                      kind_of(data));
    as_text(data, &bytes, &length);
    if (length != count * type.bytes)
        return report(flat->error, OPENPI_BAD_INPUT,
                      "request: \"%s\": %zu bytes of data, expected %llu: %llu elements of %zu bytes", key,
                      length, (unsigned long long)(count * type.bytes), (unsigned long long)count,
                      type.bytes);
    if (type.kind == 'U' || type.kind == 'S') {
        if (field->rank)
            return report(flat->error, OPENPI_BAD_INPUT,
                          "request: \"%s\": an array of %llu strings, expected one string", key,
                          (unsigned long long)count);
        return set_fixed_text(flat, field, &type, bytes);
    }
    if (!field->rank) {
        field->kind = WIRE_NUMBER;
        field->number = element_at(bytes, type.element, 0);
        return OPENPI_OK;
    }
    field->kind = WIRE_ARRAY;
    field->element = type.element;
    field->count = (int64_t)count;
    field->data = bytes;
    field->bytes = length;
    return OPENPI_OK;
}

/* A value that is not a plain map or a list. */
static openpi_status set_value(flat *flat, wire_field *field, const msgpack_object *value) {
    if (value->type == MSGPACK_OBJECT_MAP && member(value, "__ndarray__"))
        return set_array(flat, field, value);
    if (value->type == MSGPACK_OBJECT_MAP && member(value, "__npgeneric__")) {
        const msgpack_object *data = member(value, "data");
        if (!data)
            return report(flat->error, OPENPI_BAD_INPUT, "request: \"%s\": a numpy scalar without \"data\"",
                          field->key);
        value = data;
    }
    const char *text;
    size_t bytes;
    if (as_number(value, &field->number)) {
        field->kind = WIRE_NUMBER;
        return OPENPI_OK;
    }
    if (as_text(value, &text, &bytes)) return set_text(flat, field, text, bytes);
    return report(flat->error, OPENPI_BAD_INPUT, "request: \"%s\" is %s, expected text, a number or an array",
                  field->key, kind_of(value));
}

static openpi_status set_list(flat *flat, wire_field *field, const msgpack_object *list) {
    size_t count = list->via.array.size;
    double *numbers = flat_take(flat, count * sizeof *numbers);
    for (size_t i = 0; i < count; i++) {
        wire_field one;
        memset(&one, 0, sizeof one);
        memcpy(one.key, field->key, sizeof one.key);
        const msgpack_object *value = &list->via.array.ptr[i];
        if (value->type != MSGPACK_OBJECT_ARRAY) TRY(set_value(flat, &one, value));
        if (value->type == MSGPACK_OBJECT_ARRAY || one.kind != WIRE_NUMBER)
            return report(flat->error, OPENPI_BAD_INPUT,
                          "request: \"%s\": element %zu of the list is %s, expected a number", field->key, i,
                          value->type == MSGPACK_OBJECT_MAP ? "a numpy value" : kind_of(value));
        if (numbers) numbers[i] = one.number;
    }
    field->kind = WIRE_ARRAY;
    field->element = WIRE_F64;
    field->rank = 1;
    field->shape[0] = field->count = (int64_t)count;
    field->data = numbers;
    field->bytes = count * sizeof *numbers;
    return OPENPI_OK;
}

/* prefix: "" or "images/". */
static openpi_status flatten(flat *flat, const msgpack_object *map, const char *prefix) {
    for (uint32_t i = 0; i < map->via.map.size; i++) {
        const msgpack_object *value = &map->via.map.ptr[i].val;
        const char *name;
        size_t length, before = strlen(prefix);
        if (!as_text(&map->via.map.ptr[i].key, &name, &length))
            return report(flat->error, OPENPI_BAD_INPUT, "request: a key in \"%s\" is %s, expected text",
                          prefix, kind_of(&map->via.map.ptr[i].key));
        if (!length || memchr(name, 0, length) || !is_utf8(name, length))
            return report(flat->error, OPENPI_BAD_INPUT,
                          "request: key %u in \"%s\" is empty or not valid UTF-8", (unsigned)i, prefix);
        if (before + length >= WIRE_KEY_BYTES)
            return report(flat->error, OPENPI_BAD_INPUT,
                          "request: the key \"%s%.*s…\" has %zu bytes, expected at most %d", prefix, 20, name,
                          before + length, WIRE_KEY_BYTES - 1);
        wire_field field;
        memset(&field, 0, sizeof field);
        memcpy(field.key, prefix, before);
        memcpy(field.key + before, name, length);
        if (value->type == MSGPACK_OBJECT_NIL) continue;
        if (value->type == MSGPACK_OBJECT_MAP && !member(value, "__ndarray__") &&
            !member(value, "__npgeneric__")) {
            if (before + length + 1 >= WIRE_KEY_BYTES)
                return report(flat->error, OPENPI_BAD_INPUT, "request: the key \"%s\" is too long for a map",
                              field.key);
            field.key[before + length] = '/';
            TRY(flatten(flat, value, field.key));
            continue;
        }
        if (value->type == MSGPACK_OBJECT_ARRAY) TRY(set_list(flat, &field, value));
        else TRY(set_value(flat, &field, value));
        if (flat->count >= WIRE_MAX_FIELDS)
            return report(flat->error, OPENPI_BAD_INPUT, "request: more than %d fields", WIRE_MAX_FIELDS);
        if (flat->fields) {
            for (int j = 0; j < flat->count; j++)
                if (strcmp(flat->fields[j].key, field.key) == 0)
                    return report(flat->error, OPENPI_BAD_INPUT, "request: the key \"%s\" comes twice",
                                  field.key);
            flat->fields[flat->count] = field;
        }
        flat->count++;
    }
    return OPENPI_OK;
}

/* ---- the message ---------------------------------------------------------------------------------- */

static openpi_status build(const msgpack_object *root, wire_message **out, openpi_error *error) {
    if (member(root, "__ndarray__") || member(root, "__npgeneric__"))
        return report(error, OPENPI_BAD_INPUT,
                      "request: the message is one numpy value, expected a map of fields");
    flat flat = {NULL, 0, NULL, 0, error};
    TRY(flatten(&flat, root, ""));
    size_t fields = (size_t)flat.count * sizeof(wire_field),
           bytes = sizeof(wire_message) + fields + flat.owned_bytes;
    wire_message *message = malloc(bytes);
    if (!message) return report_no_memory(error, bytes, "a request's fields");
    message->fields = (wire_field *)(message + 1);
    flat.fields = message->fields;
    flat.owned = (char *)message->fields + fields;
    flat.count = 0;
    flat.owned_bytes = 0;
    openpi_status status = flatten(&flat, root, "");
    if (status != OPENPI_OK) {
        free(message);
        return status;
    }
    message->count = flat.count;
    *out = message;
    return OPENPI_OK;
}

openpi_status wire_decode(const void *bytes, size_t count, wire_message **out, openpi_error *error) {
    TRY(check_bytes(bytes, count, error));
    msgpack_unpacked unpacked;
    msgpack_unpacked_init(&unpacked);
    size_t end = 0;
    msgpack_unpack_return result = msgpack_unpack_next(&unpacked, bytes, count, &end);
    openpi_status status;
    if (result == MSGPACK_UNPACK_NOMEM_ERROR)
        status = report(error, OPENPI_NO_MEMORY, "out of memory: decoding a request of %zu bytes", count);
    else if ((result != MSGPACK_UNPACK_SUCCESS && result != MSGPACK_UNPACK_EXTRA_BYTES) ||
             unpacked.data.type != MSGPACK_OBJECT_MAP)
        status = report(error, OPENPI_BAD_INPUT, "request: %zu bytes that msgpack-c cannot read", count);
    else
        status = build(&unpacked.data, out, error);
    msgpack_unpacked_destroy(&unpacked);
    return status;
}

void wire_message_free(wire_message *message) {
    free(message);
}

int wire_count(const wire_message *message) {
    return message->count;
}

const wire_field *wire_at(const wire_message *message, int index) {
    return &message->fields[index];
}

const wire_field *wire_find(const wire_message *message, const char *key) {
    for (int i = 0; i < message->count; i++)
        if (strcmp(message->fields[i].key, key) == 0) return &message->fields[i];
    return NULL;
}

/* ---- reading a field ------------------------------------------------------------------------------ */

const char *wire_describe(const wire_field *field, char *out, size_t bytes) {
    static const char *const kinds[] = {"text", "a number"};
    if (field->kind != WIRE_ARRAY) {
        snprintf(out, bytes, "%s", kinds[field->kind]);
        return out;
    }
    size_t used = 0;
    for (int i = -1; i < field->rank && used < bytes; i++) {
        int more = i < 0 ? snprintf(out, bytes, "an array %s [", elements[field->element].name)
                         : snprintf(out + used, bytes - used, "%s%lld%s", i ? "," : "",
                                    (long long)field->shape[i], i + 1 < field->rank ? "" : "]");
        used += (size_t)more;
    }
    return out;
}

openpi_status wire_read_doubles(const wire_field *field, double *out, int capacity, int *count,
                                openpi_error *error) {
    char found[DESCRIPTION];
    int64_t numbers = field->kind == WIRE_ARRAY ? field->count : 1;
    if (field->kind == WIRE_TEXT || (field->kind == WIRE_ARRAY && field->rank != 1))
        return report(error, OPENPI_BAD_INPUT, "request: \"%s\" is %s, expected a number or a list of them",
                      field->key, wire_describe(field, found, sizeof found));
    if (numbers > capacity)
        return report(error, OPENPI_BAD_INPUT, "request: \"%s\" is %s, expected at most %d numbers",
                      field->key, wire_describe(field, found, sizeof found), capacity);
    if (field->kind == WIRE_NUMBER && capacity > 0) out[0] = field->number;
    for (int64_t i = 0; field->kind == WIRE_ARRAY && i < numbers; i++)
        out[i] = element_at(field->data, field->element, (size_t)i);
    *count = (int)numbers;
    return OPENPI_OK;
}

openpi_status wire_text(const wire_field *field, const char **text, size_t *bytes, openpi_error *error) {
    char found[DESCRIPTION];
    if (field->kind != WIRE_TEXT)
        return report(error, OPENPI_BAD_INPUT, "request: \"%s\" is %s, expected text", field->key,
                      wire_describe(field, found, sizeof found));
    *text = field->text;
    *bytes = field->bytes;
    return OPENPI_OK;
}

openpi_status wire_image(const wire_field *field, int always_chw, openpi_image *image, openpi_error *error) {
    static const struct { wire_element from; openpi_element to; } types[] = {
        {WIRE_U8, OPENPI_U8}, {WIRE_F32, OPENPI_FLOAT32}, {WIRE_F64, OPENPI_FLOAT64}};
    char found[DESCRIPTION];
    int chw = always_chw || (field->kind == WIRE_ARRAY && field->shape[0] == 3);
    if (field->kind == WIRE_ARRAY && field->rank == 3 && field->shape[chw ? 0 : 2] == 3)
        for (int i = 0; i < 3; i++)
            if (field->element == types[i].from) {
                *image = (openpi_image){.size = sizeof *image,
                                        .name = field->key,
                                        .data = field->data,
                                        .element = types[i].to,
                                        .layout = chw ? OPENPI_CHW : OPENPI_HWC,
                                        .height = (int)field->shape[chw ? 1 : 0],
                                        .width = (int)field->shape[chw ? 2 : 1]};
                return OPENPI_OK;
            }
    return report(error, OPENPI_BAD_INPUT, "request: \"%s\" is %s, expected a picture: u8, f32 or f64 %s",
                  field->key, wire_describe(field, found, sizeof found),
                  always_chw ? "[3,height,width]" : "[height,width,3] or [3,height,width]");
}
