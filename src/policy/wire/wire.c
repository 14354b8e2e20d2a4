/* From the bytes of an openpi client's message to named fields; wire.h lists the types.
 *
 * The bytes take three steps: wire_check_bytes walks them against the limits and allocates nothing; msgpack-c
 * turns them into objects (at most WIRE_MAX_VALUES of them); flatten makes fields of the objects, twice: once
 * to check everything and to measure, once to fill the one block that a message is. */
#include "policy/wire/wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/report.h"
#include "policy/wire/wire_parts.h"

enum { DESCRIPTION = 128 };

struct wire_message {
    int count;
    wire_field *fields;          /* [count], then the memory that fields own; one block with this struct */
    const char *end;             /* of the block */
};

/* ---- the message ---------------------------------------------------------------------------------- */

/* Entry i of a map: its key joined to the prefix ("" or "images/"). */
static openpi_status join_key(const wire_fields *fields, const msgpack_object *map, uint32_t i,
                              const char *prefix, char key[WIRE_KEY_BYTES]) {
    const char *name;
    size_t length, before = strlen(prefix);
    if (!wire_as_text(&map->via.map.ptr[i].key, &name, &length))
        return report(fields->error, OPENPI_BAD_INPUT, "request: a key in \"%s\" is %s, expected text",
                      prefix, wire_kind_of(&map->via.map.ptr[i].key));
    if (!length || memchr(name, 0, length) || !wire_is_utf8(name, length))
        return report(fields->error, OPENPI_BAD_INPUT,
                      "request: key %u in \"%s\" is empty or not valid UTF-8", (unsigned)i, prefix);
    if (before + length >= WIRE_KEY_BYTES)
        return report(fields->error, OPENPI_BAD_INPUT,
                      "request: the key \"%s%.*s…\" has %zu bytes, expected at most %d", prefix, 20, name,
                      before + length, WIRE_KEY_BYTES - 1);
    memset(key, 0, WIRE_KEY_BYTES);
    memcpy(key, prefix, before);
    memcpy(key + before, name, length);
    return OPENPI_OK;
}

static openpi_status add_field(wire_fields *fields, const wire_field *field) {
    if (fields->count >= WIRE_MAX_FIELDS)
        return report(fields->error, OPENPI_BAD_INPUT, "request: more than %d fields", WIRE_MAX_FIELDS);
    for (int i = 0; fields->fields && i < fields->count; i++)
        if (strcmp(fields->fields[i].key, field->key) == 0)
            return report(fields->error, OPENPI_BAD_INPUT, "request: the key \"%s\" comes twice", field->key);
    if (fields->fields) fields->fields[fields->count] = *field;
    fields->count++;
    return OPENPI_OK;
}

/* The value. What cannot be one is an error only for who reads the key, because openpi ignores all keys that
 * are not the robot's, whatever they hold. */
static openpi_status set_field(wire_fields *fields, wire_field *field, const msgpack_object *value) {
    openpi_error why = OPENPI_ERROR_INIT, *error = fields->error;
    if (value->type == MSGPACK_OBJECT_NIL) {
        field->kind = WIRE_NIL;
        return OPENPI_OK;
    }
    fields->error = &why;
    openpi_status status = value->type == MSGPACK_OBJECT_ARRAY ? wire_set_list(fields, field, value)
                                                               : wire_set_value(fields, field, value);
    fields->error = error;
    if (status == OPENPI_OK) return status;
    size_t bytes = strlen(why.message) + 1;
    char *kept = wire_take(fields, bytes);
    if (kept) memcpy(kept, why.message, bytes);
    field->kind = WIRE_OTHER;
    field->text = NULL;
    field->sentence = kept;
    return OPENPI_OK;
}

/* Each value of a map, and of the maps inside it, to a field. */
static openpi_status flatten(wire_fields *fields, const msgpack_object *map, const char *prefix) {
    for (uint32_t i = 0; i < map->via.map.size; i++) {
        const msgpack_object *value = &map->via.map.ptr[i].val;
        wire_field field;
        memset(&field, 0, sizeof field);
        TRY(join_key(fields, map, i, prefix, field.key));
        if (value->type != MSGPACK_OBJECT_MAP || wire_is_numpy(value)) {
            TRY(set_field(fields, &field, value));
            TRY(add_field(fields, &field));
            continue;
        }
        size_t length = strlen(field.key);
        if (length + 1 >= WIRE_KEY_BYTES)
            return report(fields->error, OPENPI_BAD_INPUT,
                          "request: the key \"%s\" is too long for a map", field.key);
        field.kind = WIRE_MAP;
        field.count = value->via.map.size;
        TRY(add_field(fields, &field));
        field.key[length] = '/';
        TRY(flatten(fields, value, field.key));
    }
    return OPENPI_OK;
}

static openpi_status build(const msgpack_object *root, wire_message **out, openpi_error *error) {
    if (wire_is_numpy(root))
        return report(error, OPENPI_BAD_INPUT,
                      "request: the message is one numpy value, expected a map of fields");
    wire_fields all = {.error = error};
    TRY(flatten(&all, root, ""));
    size_t fields = (size_t)all.count * sizeof(wire_field),
           bytes = sizeof(wire_message) + fields + all.owned_bytes;
    wire_message *message = malloc(bytes);
    if (!message) return report_no_memory(error, bytes, "a request's fields");
    message->fields = (wire_field *)(message + 1);
    all.fields = message->fields;
    all.owned = (char *)message->fields + fields;
    all.count = 0;
    all.owned_bytes = 0;
    openpi_status status = flatten(&all, root, "");
    if (status != OPENPI_OK) {
        free(message);
        return status;
    }
    message->count = all.count;
    message->end = (const char *)message + bytes;
    *out = message;
    return OPENPI_OK;
}

openpi_status wire_decode(const void *bytes, size_t count, wire_message **out, openpi_error *error) {
    TRY(wire_check_bytes(bytes, count, error));
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

openpi_status wire_from_fields(const openpi_field *given, int count, wire_message **out,
                               openpi_error *error) {
    if (count < 0 || count > WIRE_MAX_FIELDS || (count && !given))
        return report(error, OPENPI_BAD_ARGUMENT, "request: %d fields at %s, expected at most %d", count,
                      given ? "an address" : "NULL", WIRE_MAX_FIELDS);
    size_t bytes = sizeof(wire_message) + (size_t)count * sizeof(wire_field);
    wire_message *message = malloc(bytes);
    if (!message) return report_no_memory(error, bytes, "a request's fields");
    message->fields = (wire_field *)(message + 1);
    wire_fields all = {.fields = message->fields, .error = error};
    openpi_status status = OPENPI_OK;
    for (int i = 0; i < count && status == OPENPI_OK; i++) {
        wire_field field;
        status = wire_take_field(given, i, &field, error);
        if (status == OPENPI_OK) status = add_field(&all, &field);
    }
    if (status != OPENPI_OK) {
        free(message);
        return status;
    }
    message->count = all.count;
    message->end = (const char *)message + bytes;
    *out = message;
    return OPENPI_OK;
}

void wire_message_free(wire_message *message) {
    free(message);
}

int wire_owns(const wire_message *message, const char *text) {
    return (uintptr_t)text >= (uintptr_t)message && (uintptr_t)text < (uintptr_t)message->end;
}

/* msgpack-c's objects, in chunks of which half may stay empty; the fields with their sentences; numbers of
 * lists; texts of wide characters. */
size_t wire_most_bytes(size_t count) {
    enum { CHUNK = 16 << 10 };
    size_t values = count < WIRE_MAX_VALUES ? count : WIRE_MAX_VALUES;
    size_t field = sizeof(wire_field) + sizeof(openpi_error);
    return CHUNK + values * (2 * sizeof(msgpack_object) + sizeof(double)) + sizeof(wire_message) +
           WIRE_MAX_FIELDS * field + count;
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

static const char *describe_array(const wire_field *field, char *out, size_t bytes) {
    size_t used = 0;
    for (int i = -1; i < field->rank && used < bytes; i++) {
        int more = i < 0 ? snprintf(out, bytes, "an array %s [", wire_element_name(field->element))
                         : snprintf(out + used, bytes - used, "%s%lld%s", i ? "," : "",
                                    (long long)field->shape[i], i + 1 < field->rank ? "" : "]");
        used += (size_t)more;
    }
    return out;
}

const char *wire_describe(const wire_field *field, char *out, size_t bytes) {
    const char *file = NULL;
    switch (field->kind) {
    case WIRE_TEXT: snprintf(out, bytes, "text"); break;
    case WIRE_NUMBER: snprintf(out, bytes, "a number"); break;
    case WIRE_ARRAY: return describe_array(field, out, bytes);
    case WIRE_BYTES:
        file = wire_file_kind(field->text, field->bytes);
        snprintf(out, bytes, "%zu bytes that are %s", field->bytes, file ? file : "not valid UTF-8");
        break;
    case WIRE_NIL: snprintf(out, bytes, "nil (None)"); break;
    case WIRE_MAP:
        if (field->count) snprintf(out, bytes, "a map (dict) with %lld entries", (long long)field->count);
        else snprintf(out, bytes, "an empty map (dict)");
        break;
    case WIRE_OTHER: snprintf(out, bytes, "%s", field->text ? field->text : "of another type"); break;
    }
    return out;
}

openpi_status wire_refuse(const wire_field *field, const char *expected, openpi_error *error) {
    char found[DESCRIPTION];
    if (field->sentence) return report(error, OPENPI_BAD_INPUT, "%s", field->sentence);
    return report(error, OPENPI_BAD_INPUT, "request: \"%s\" is %s, expected %s", field->key,
                  wire_describe(field, found, sizeof found), expected);
}

openpi_status wire_read_doubles(const wire_field *field, double *out, int capacity, int *count,
                                openpi_error *error) {
    char found[DESCRIPTION];
    int64_t numbers = field->kind == WIRE_ARRAY ? field->count : 1;
    if (field->kind != WIRE_NUMBER && (field->kind != WIRE_ARRAY || field->rank != 1))
        return wire_refuse(field, "a number or a list of them", error);
    if (numbers > capacity)
        return report(error, OPENPI_BAD_INPUT, "request: \"%s\" is %s, expected at most %d numbers",
                      field->key, wire_describe(field, found, sizeof found), capacity);
    if (field->kind == WIRE_NUMBER && capacity > 0) out[0] = field->number;
    for (int64_t i = 0; field->kind == WIRE_ARRAY && i < numbers; i++)
        out[i] = wire_element_at(field->data, field->element, (size_t)i);
    *count = (int)numbers;
    return OPENPI_OK;
}

openpi_status wire_text(const wire_field *field, const char **text, size_t *bytes, openpi_error *error) {
    if (field->kind != WIRE_TEXT) return wire_refuse(field, "text", error);
    if (field->bytes > WIRE_MAX_TEXT)
        return report(error, OPENPI_BAD_INPUT, "request: \"%s\" has %zu bytes, expected at most %d",
                      field->key, field->bytes, WIRE_MAX_TEXT);
    *text = field->text;
    *bytes = field->bytes;
    return OPENPI_OK;
}

openpi_status wire_image(const wire_field *field, int always_chw, openpi_image *image, openpi_error *error) {
    static const struct { wire_element from; openpi_element to; } types[] = {
        {WIRE_U8, OPENPI_U8}, {WIRE_F16, OPENPI_FLOAT16}, {WIRE_F32, OPENPI_FLOAT32},
        {WIRE_F64, OPENPI_FLOAT64}};
    int chw = always_chw || (field->kind == WIRE_ARRAY && field->shape[0] == 3);
    if (field->kind == WIRE_ARRAY && field->rank == 3 && field->shape[chw ? 0 : 2] == 3)
        for (int i = 0; i < 4; i++)
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
    return wire_refuse(field, always_chw ? "a picture: u8, f16, f32 or f64 [3,height,width]"
                                         : "a picture: u8, f16, f32 or f64 [height,width,3] or "
                                           "[3,height,width]", error);
}
