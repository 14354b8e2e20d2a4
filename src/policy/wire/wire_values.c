/* From msgpack's values to fields: text, numbers, numpy scalars and arrays, lists of numbers.
 *
 * Note: text and arrays are never copied, they point into the caller's bytes; only lists of numbers and
 * fixed-width unicode need memory of the message. */
#include <string.h>

#include "base/dtype.h"
#include "base/report.h"
#include "base/utf8.h"
#include "policy/wire/wire_parts.h"

/* ---- text ----------------------------------------------------------------------------------------- */

int wire_is_utf8(const char *text, size_t bytes) {
    return utf8_valid_prefix(text, bytes) == bytes;
}

/* ---- values ---------------------------------------------------------------------------------------- */

void *wire_take(wire_fields *fields, size_t bytes) {
    void *memory = fields->fields ? fields->owned + fields->owned_bytes : NULL;
    fields->owned_bytes += (bytes + 7) & ~(size_t)7;
    return memory;
}

int wire_as_text(const msgpack_object *object, const char **text, size_t *bytes) {
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

const char *wire_kind_of(const msgpack_object *object) {
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

const msgpack_object *wire_member(const msgpack_object *map, const char *name) {
    size_t length = strlen(name);
    for (uint32_t i = 0; i < map->via.map.size; i++) {
        const char *text;
        size_t bytes;
        if (wire_as_text(&map->via.map.ptr[i].key, &text, &bytes) && bytes == length &&
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

const char *wire_element_name(wire_element element) {
    return elements[element].name;
}

typedef struct numpy_type {
    char kind;                   /* numpy's: b u i f U S */
    size_t bytes;                /* an element's size    */
    wire_element element;        /* for the kinds b u i f */
} numpy_type;

/* numpy's one-letter codes and names without a number. */
static const struct {
    const char *name;
    char kind;
    uint8_t bytes;
} spellings[] = {
    {"?", 'b', 1}, {"b", 'i', 1}, {"B", 'u', 1}, {"h", 'i', 2}, {"H", 'u', 2}, {"i", 'i', 4}, {"I", 'u', 4},
    {"l", 'i', 8}, {"L", 'u', 8}, {"q", 'i', 8}, {"Q", 'u', 8}, {"e", 'f', 2}, {"f", 'f', 4}, {"d", 'f', 8},
    {"bool", 'b', 1}, {"bool_", 'b', 1}, {"int", 'i', 8}, {"float", 'f', 8}, {"half", 'f', 2},
    {"single", 'f', 4}, {"double", 'f', 8}, {"byte", 'i', 1}, {"ubyte", 'u', 1},
};
enum { SPELLINGS = sizeof spellings / sizeof spellings[0] };

/* "f4", "U12", "float32". 0: none of these. */
static int parse_counted(const char *name, size_t length, numpy_type *type) {
    static const struct { const char *word; char kind; int bits; } words[] = {
        {"float", 'f', 1}, {"uint", 'u', 1}, {"int", 'i', 1}, {"f", 'f', 0}, {"u", 'u', 0}, {"i", 'i', 0},
        {"b", 'b', 0}, {"U", 'U', 0}, {"S", 'S', 0}, {"a", 'S', 0}};
    for (size_t w = 0; w < sizeof words / sizeof *words; w++) {
        size_t at = strlen(words[w].word), number = 0, digits = length - at;
        if (length < at || memcmp(name, words[w].word, at)) continue;
        type->kind = words[w].kind;
        int is_text = type->kind == 'U' || type->kind == 'S';
        if (digits > 8 || (!digits && !is_text)) return 0;
        for (; at < length && name[at] >= '0' && name[at] <= '9'; at++)
            number = number * 10 + (size_t)(name[at] - '0');
        if (at < length || (words[w].bits && number % 8)) return 0;
        type->bytes = words[w].bits ? number / 8 : type->kind == 'U' ? 4 * number : number;
        return 1;
    }
    return 0;
}

/* The name of a type without its byte order. 0: it is unknown. */
static int parse_type(const char *name, size_t length, numpy_type *type) {
    int known = 0;
    for (int i = 0; i < SPELLINGS && !known; i++) {
        known = strlen(spellings[i].name) == length && !memcmp(name, spellings[i].name, length);
        if (known) *type = (numpy_type){spellings[i].kind, spellings[i].bytes, WIRE_U8};
    }
    if (!known && !parse_counted(name, length, type)) return 0;
    if (type->kind == 'U' || type->kind == 'S') return 1;
    for (int i = 0; i < ELEMENTS; i++)
        if (elements[i].kind == type->kind && elements[i].bytes == type->bytes) {
            type->element = elements[i].element;
            return 1;
        }
    return 0;
}

/* "<f4", "|u1", "<U12", "float32" … */
static openpi_status parse_dtype(const msgpack_object *object, const char *key, numpy_type *type,
                                 openpi_error *error) {
    const char *text;
    size_t length;
    if (!wire_as_text(object, &text, &length))
        return report(error, OPENPI_BAD_INPUT,
                      "request: \"%s\": its dtype is %s, expected text such as \"<f4\"", key,
                      wire_kind_of(object));
    int shown = length < 20 ? (int)length : 20, order = length && memchr("<>|=", text[0], 4) ? text[0] : 0;
    const char *name = text + (order != 0);
    length -= order != 0;
    if (length && memchr("VOcov", name[0], 5))
        return report(error, OPENPI_BAD_INPUT,
                      "request: \"%s\": dtype \"%.*s\" holds %s, expected numbers or text", key, shown, text,
                      name[0] == 'c'                     ? "complex numbers"
                      : name[0] == 'O' || name[0] == 'o' ? "Python objects"
                                                         : "records");
    if (!parse_type(name, length, type))
        return report(
            error, OPENPI_BAD_INPUT,
            "request: \"%s\": dtype \"%.*s\" is unknown, expected b1, u1 to u8, i1 to i8, f2, f4, f8 or U",
            key, shown, text);
    if (order == '>' && type->bytes > 1)
        return report(error, OPENPI_BAD_INPUT,
                      "request: \"%s\": dtype \"%.*s\" is big-endian, expected little-endian", key, shown,
                      text);
    return OPENPI_OK;
}

double wire_element_at(const void *data, wire_element element, size_t index) {
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

static openpi_status set_text(wire_fields *fields, wire_field *field, const char *text, size_t bytes) {
    if (!wire_is_utf8(text, bytes))
        return report(fields->error, OPENPI_BAD_INPUT, "request: \"%s\": its text is not valid UTF-8",
                      field->key);
    field->kind = WIRE_TEXT;
    field->text = bytes ? text : "";
    field->bytes = bytes;
    return OPENPI_OK;
}

/* numpy's fixed-width text: UCS-4 or bytes, ended by zeros. */
static openpi_status set_fixed_text(wire_fields *fields, wire_field *field, const numpy_type *type,
                                    const char *data) {
    size_t length = type->bytes;
    while (length && !data[length - 1]) length--;
    if (type->kind == 'S') return set_text(fields, field, data, length);
    length = (length + 3) / 4;
    size_t bytes = 0;
    char *text = NULL;
    for (int pass = 0; pass < 2; pass++) {                               /* its size, then the text itself */
        if (pass) text = wire_take(fields, bytes);
        if (pass && !text) break;
        bytes = 0;
        for (size_t i = 0; i < length; i++) {
            uint32_t code;
            memcpy(&code, data + 4 * i, sizeof code);
            size_t more = utf8_encode(code, text ? text + bytes : NULL);
            if (!more)
                return report(fields->error, OPENPI_BAD_INPUT,
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

/* An array's rank, shape and number of elements. */
static openpi_status set_shape(wire_fields *fields, wire_field *field, const msgpack_object *shape) {
    if (shape->type != MSGPACK_OBJECT_ARRAY || shape->via.array.size > WIRE_RANK)
        return report(fields->error, OPENPI_BAD_INPUT,
                      "request: \"%s\": its shape is %s, expected a list of up to %d integers", field->key,
                      shape->type == MSGPACK_OBJECT_ARRAY ? "a longer list" : wire_kind_of(shape), WIRE_RANK);
    field->rank = (int)shape->via.array.size;
    uint64_t count = 1;
    for (int i = 0; i < field->rank; i++) {
        const msgpack_object *side = &shape->via.array.ptr[i];
        if (side->type != MSGPACK_OBJECT_POSITIVE_INTEGER || side->via.u64 > WIRE_MAX_BYTES)
            return report(
                fields->error, OPENPI_BAD_INPUT,
                "request: \"%s\": dimension %d of its shape is %s, expected an integer from 0 to %d",
                field->key, i,
                side->type == MSGPACK_OBJECT_POSITIVE_INTEGER   ? "larger"
                : side->type == MSGPACK_OBJECT_NEGATIVE_INTEGER ? "negative"
                                                                : wire_kind_of(side),
                WIRE_MAX_BYTES);
        field->shape[i] = (int64_t)side->via.u64;
        count *= side->via.u64;                                          /* both factors <= 2^26 */
        if (count > WIRE_MAX_BYTES)
            return report(fields->error, OPENPI_BAD_INPUT,
                          "request: \"%s\": its shape has more elements than a message's %d bytes",
                          field->key, WIRE_MAX_BYTES);
    }
    field->count = (int64_t)count;
    return OPENPI_OK;
}

/* An array's bytes, as many as its shape and type say. */
static openpi_status set_data(wire_fields *fields, wire_field *field, const numpy_type *type,
                              const msgpack_object *data) {
    const char *bytes;
    unsigned long long count = (unsigned long long)field->count;
    if (data->type != MSGPACK_OBJECT_BIN)
        return report(fields->error, OPENPI_BAD_INPUT, "request: \"%s\": its data is %s, expected bytes",
                      field->key, wire_kind_of(data));
    wire_as_text(data, &bytes, &field->bytes);
    field->data = bytes;
    if (field->bytes == count * type->bytes) return OPENPI_OK;
    return report(fields->error, OPENPI_BAD_INPUT,
                  "request: \"%s\": %zu bytes of data, expected %llu: %llu elements of %zu bytes", field->key,
                  field->bytes, count * type->bytes, count, type->bytes);
}

/* As openpi_client packs it ("__ndarray__") or as the package msgpack-numpy does ("nd", whose scalars have no
 * shape). */
static openpi_status set_array(wire_fields *fields, wire_field *field, const msgpack_object *map) {
    static const char *const forms[2][3] = {{"dtype", "shape", "data"}, {"type", "shape", "data"}};
    const msgpack_object *parts[3], *nd = wire_member(map, "nd");
    int other = !wire_member(map, "__ndarray__");
    const char *const *names = forms[other];
    int scalar = other && nd->type == MSGPACK_OBJECT_BOOLEAN && !nd->via.boolean;
    numpy_type type = {0, 0, WIRE_U8};
    for (int i = 0; i < 3; i++) {
        parts[i] = wire_member(map, names[i]);
        if (!parts[i] && !(scalar && i == 1))
            return report(fields->error, OPENPI_BAD_INPUT, "request: \"%s\": a numpy array without \"%s\"",
                          field->key, names[i]);
    }
    TRY(parse_dtype(parts[0], field->key, &type, fields->error));
    field->count = 1;
    if (!scalar) TRY(set_shape(fields, field, parts[1]));
    TRY(set_data(fields, field, &type, parts[2]));
    if (type.kind == 'U' || type.kind == 'S') {
        if (field->count != 1)
            return report(fields->error, OPENPI_BAD_INPUT,
                          "request: \"%s\": an array of %llu strings, expected one string", field->key,
                          (unsigned long long)field->count);
        return set_fixed_text(fields, field, &type, field->data);
    }
    if (field->rank) {
        field->kind = WIRE_ARRAY;
        field->element = type.element;
    } else {
        field->kind = WIRE_NUMBER;
        field->number = wire_element_at(field->data, type.element, 0);
    }
    return OPENPI_OK;
}

int wire_is_numpy(const msgpack_object *map) {
    return wire_member(map, "__ndarray__") || wire_member(map, "__npgeneric__") ||
           (wire_member(map, "nd") && wire_member(map, "type") && wire_member(map, "data"));
}

openpi_status wire_set_value(wire_fields *fields, wire_field *field, const msgpack_object *value) {
    int generic = value->type == MSGPACK_OBJECT_MAP && wire_member(value, "__npgeneric__");
    if (value->type == MSGPACK_OBJECT_MAP && !generic && wire_is_numpy(value))
        return set_array(fields, field, value);
    if (generic) {
        const msgpack_object *data = wire_member(value, "data");
        if (!data)
            return report(fields->error, OPENPI_BAD_INPUT, "request: \"%s\": a numpy scalar without \"data\"",
                          field->key);
        value = data;
    }
    const char *text;
    size_t bytes;
    if (as_number(value, &field->number)) {
        field->kind = WIRE_NUMBER;
        return OPENPI_OK;
    }
    if (value->type == MSGPACK_OBJECT_BIN && !wire_is_utf8(value->via.bin.ptr, value->via.bin.size)) {
        field->kind = WIRE_BYTES;
        field->text = value->via.bin.ptr;
        field->bytes = value->via.bin.size;
        return OPENPI_OK;
    }
    if (wire_as_text(value, &text, &bytes)) return set_text(fields, field, text, bytes);
    return report(fields->error, OPENPI_BAD_INPUT,
                  "request: \"%s\" is %s, expected text, a number or an array", field->key,
                  wire_kind_of(value));
}

openpi_status wire_set_list(wire_fields *fields, wire_field *field, const msgpack_object *list) {
    size_t count = list->via.array.size;
    double *numbers = wire_take(fields, count * sizeof *numbers);
    for (size_t i = 0; i < count; i++) {
        wire_field one;
        memset(&one, 0, sizeof one);
        memcpy(one.key, field->key, sizeof one.key);
        const msgpack_object *value = &list->via.array.ptr[i];
        if (value->type != MSGPACK_OBJECT_ARRAY) TRY(wire_set_value(fields, &one, value));
        if (value->type == MSGPACK_OBJECT_ARRAY || one.kind != WIRE_NUMBER)
            return report(fields->error, OPENPI_BAD_INPUT,
                          "request: \"%s\": element %zu of the list is %s, expected a number%s", field->key,
                          i, value->type == MSGPACK_OBJECT_MAP ? "a numpy value" : wire_kind_of(value),
                          value->type == MSGPACK_OBJECT_STR ? "; a prompt is text alone, not in a list" : "");
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
