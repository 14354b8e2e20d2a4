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

static const char wire_batch_key[] = "openpi/batch";

static openpi_status wrong_batch(const wire_fields *fields, const wire_field *field, int64_t entries) {
    return report(fields->error, OPENPI_BAD_INPUT,
                  "request: \"%s\" has %lld entries, expected %d, one for each observation: \"%s\" is %d",
                  field->key, (long long)entries, fields->batch, wire_batch_key, fields->batch);
}

/* Where the message is of several observations and the value is a list: the entry of this one. */
static openpi_status entry_of(const wire_fields *fields, const wire_field *field,
                              const msgpack_object **value) {
    const msgpack_object *list = *value;
    if (!fields->batch || list->type != MSGPACK_OBJECT_ARRAY) return OPENPI_OK;
    if (list->via.array.size != (uint32_t)fields->batch)
        return wrong_batch(fields, field, list->via.array.size);
    *value = &list->via.array.ptr[fields->index];
    return OPENPI_OK;
}

/* Likewise of an array: what lies at this one's place along its first dimension. */
static openpi_status part_of(const wire_fields *fields, wire_field *field) {
    if (!fields->batch || field->kind != WIRE_ARRAY) return OPENPI_OK;
    if (field->shape[0] != fields->batch) return wrong_batch(fields, field, field->shape[0]);
    field->count /= fields->batch;
    field->bytes /= (size_t)fields->batch;
    field->data = (const char *)field->data + (size_t)fields->index * field->bytes;
    field->rank--;
    for (int i = 0; i < field->rank; i++) field->shape[i] = field->shape[i + 1];
    if (field->rank) return OPENPI_OK;
    field->kind = WIRE_NUMBER;
    field->number = wire_element_at(field->data, field->element, 0);
    return OPENPI_OK;
}

/* Each value of a map, and of the maps inside it, to a field. */
static openpi_status flatten(wire_fields *fields, const msgpack_object *map, const char *prefix) {
    for (uint32_t i = 0; i < map->via.map.size; i++) {
        const msgpack_object *value = &map->via.map.ptr[i].val;
        wire_field field;
        memset(&field, 0, sizeof field);
        TRY(join_key(fields, map, i, prefix, field.key));
        if (fields->batch && !strcmp(field.key, wire_batch_key)) continue;
        if (value->type != MSGPACK_OBJECT_MAP || wire_is_numpy(value)) {
            const msgpack_object *own = value;
            TRY(entry_of(fields, &field, &own));
            TRY(set_field(fields, &field, own));
            if (own == value) TRY(part_of(fields, &field));
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

/* `batch`, `index`: as wire_fields has them. */
static openpi_status build(const msgpack_object *root, int batch, int index, wire_message **out,
                           openpi_error *error) {
    if (wire_is_numpy(root))
        return report(error, OPENPI_BAD_INPUT,
                      "request: the message is one numpy value, expected a map of fields");
    wire_fields all = {.error = error, .batch = batch, .index = index};
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

static openpi_status decode(const void *bytes, size_t count, int batch, int index, wire_message **out,
                            openpi_error *error) {
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
        status = build(&unpacked.data, batch, index, out, error);
    msgpack_unpacked_destroy(&unpacked);
    return status;
}

openpi_status wire_decode(const void *bytes, size_t count, wire_message **out, openpi_error *error) {
    TRY(wire_check_bytes(bytes, count, 0, error));
    return decode(bytes, count, 0, 0, out, error);
}

/* ---- messages of several observations --------------------------------------------------------------- */

static int is_list(const uint8_t *bytes) {
    return (bytes[0] & 0xf0) == 0x90 || bytes[0] == 0xdc || bytes[0] == 0xdd;
}

/* What stands before a text's characters, or the bytes that are taken as one. */
static size_t before_text(uint8_t tag) {
    switch (tag) {
    case 0xc4: case 0xd9: return 2;
    case 0xc5: case 0xda: return 3;
    case 0xc6: case 0xdb: return 5;
    default: return 1;
    }
}

/* The key's value in a map of checked bytes; 0: it has none. */
static size_t find_value(const uint8_t *bytes, size_t count, const char *key) {
    size_t at, length = strlen(key);
    uint64_t entries = wire_entries(bytes, &at);
    for (uint64_t i = 0; i < entries; i++) {
        size_t value = wire_end(bytes, count, at), text = at + before_text(bytes[at]);
        if (value - text == length && !memcmp(bytes + text, key, length)) return value;
        at = wire_end(bytes, count, value);
    }
    return 0;
}

static openpi_status wrong_number(const char *what, double found, openpi_error *error) {
    return report(error, OPENPI_BAD_INPUT, "request: %s is %g, expected a whole number from 1 to %d", what,
                  found, WIRE_MAX_OBSERVATIONS);
}

/* Any of msgpack's integers and floats, or a numpy scalar. */
static openpi_status read_batch(const uint8_t *bytes, size_t count, size_t at, int *observations,
                                openpi_error *error) {
    wire_field field = {.key = "openpi/batch"};
    msgpack_unpacked unpacked;
    msgpack_unpacked_init(&unpacked);
    wire_fields one = {.error = error};
    msgpack_unpack_return result = msgpack_unpack_next(&unpacked, (const char *)bytes, count, &at);
    openpi_status status = OPENPI_OK;
    if (result == MSGPACK_UNPACK_NOMEM_ERROR)
        status = report(error, OPENPI_NO_MEMORY, "out of memory: decoding a request of %zu bytes", count);
    else status = set_field(&one, &field, &unpacked.data);
    msgpack_unpacked_destroy(&unpacked);
    if (status != OPENPI_OK) return status;
    if (field.kind != WIRE_NUMBER) return wire_refuse(&field, "a whole number", error);
    if (!(field.number >= 1 && field.number <= WIRE_MAX_OBSERVATIONS &&
          field.number == (double)(int)field.number))
        return wrong_number("\"openpi/batch\"", field.number, error);
    *observations = (int)field.number;
    return OPENPI_OK;
}

openpi_status wire_observations(const void *bytes, size_t count, int *observations, openpi_error *error) {
    size_t at;
    TRY(wire_check_bytes(bytes, count, 1, error));
    *observations = 0;
    if (!is_list(bytes)) {
        at = find_value(bytes, count, wire_batch_key);
        return at ? read_batch(bytes, count, at, observations, error) : OPENPI_OK;
    }
    uint64_t entries = wire_entries(bytes, &at);
    if (entries < 1 || entries > WIRE_MAX_OBSERVATIONS)
        return wrong_number("the number of observations in the message's list", (double)entries, error);
    *observations = (int)entries;
    return OPENPI_OK;
}

openpi_status wire_decode_at(const void *bytes, size_t count, int index, wire_message **out,
                             openpi_error *error) {
    int observations;
    const uint8_t *all = bytes;
    TRY(wire_observations(bytes, count, &observations, error));
    if (index < 0 || index >= observations)
        return report(error, OPENPI_BAD_ARGUMENT, "request: observation %d of a message of %d", index,
                      observations);
    if (!is_list(all)) return decode(bytes, count, observations, index, out, error);
    size_t begin;
    wire_entries(all, &begin);
    for (int i = 0; i < index; i++) begin = wire_end(all, count, begin);
    size_t end = wire_end(all, count, begin);
    TRY(wire_check_bytes(all + begin, end - begin, 0, error));
    return decode(all + begin, end - begin, 0, 0, out, error);
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
