/* From the fields that a caller passes as structs (openpi_field) to those of wire.h, so that one code reads a
 * request, whether it comes as msgpack or as arrays in memory.
 *
 * Note: text and arrays are not copied; keys are. */
#include <stdlib.h>
#include <string.h>

#include "base/boundary.h"
#include "base/report.h"
#include "policy/wire/wire_parts.h"

static const struct { openpi_element from; wire_element to; size_t bytes; } elements[] = {
    {OPENPI_U8, WIRE_U8, 1}, {OPENPI_FLOAT32, WIRE_F32, 4}, {OPENPI_FLOAT64, WIRE_F64, 8},
    {OPENPI_FLOAT16, WIRE_F16, 2}};
enum { ELEMENTS = sizeof elements / sizeof elements[0] };

static openpi_status take_name(const char *name, int index, wire_field *out, openpi_error *error) {
    if (!name || !*name)
        return report(error, OPENPI_BAD_INPUT, "request: field %d has no name", index);
    size_t length = strnlen(name, WIRE_KEY_BYTES);
    if (length == WIRE_KEY_BYTES)
        return report(error, OPENPI_BAD_INPUT, "request: the key \"%.20s…\" has more than %d bytes", name,
                      WIRE_KEY_BYTES - 1);
    if (!wire_is_utf8(name, length))
        return report(error, OPENPI_BAD_INPUT, "request: the key of field %d is not valid UTF-8", index);
    memcpy(out->key, name, length + 1);
    return OPENPI_OK;
}

static openpi_status take_text(const openpi_field *field, wire_field *out) {
    out->kind = wire_is_utf8(field->text, field->text_length) ? WIRE_TEXT : WIRE_BYTES;
    out->text = field->text;
    out->bytes = field->text_length;
    return OPENPI_OK;
}

static openpi_status take_unknown(const openpi_field *field, wire_field *out) {
    out->kind = strcmp(field->unknown, "None") ? WIRE_OTHER : WIRE_NIL;
    out->text = field->unknown;
    return OPENPI_OK;
}

/* The shape, and as many elements as it says. */
static openpi_status take_shape(const openpi_field *field, wire_field *out, openpi_error *error) {
    int64_t count = 1;
    if (field->rank < 0 || field->rank > WIRE_RANK)
        return report(error, OPENPI_BAD_INPUT, "request: \"%s\" has %d dimensions, expected at most %d",
                      out->key, field->rank, WIRE_RANK);
    out->rank = field->rank;
    for (int i = 0; i < out->rank; i++) {
        out->shape[i] = field->shape[i];
        if (field->shape[i] < 0 || field->shape[i] > WIRE_MAX_BYTES)
            return report(error, OPENPI_BAD_INPUT,
                          "request: \"%s\": dimension %d of its shape is %lld, expected 0 to %d", out->key, i,
                          (long long)field->shape[i], WIRE_MAX_BYTES);
        count *= field->shape[i];                                        /* both factors <= 2^26 */
        if (count > WIRE_MAX_BYTES)
            return report(error, OPENPI_BAD_INPUT, "request: \"%s\" has more than %d elements", out->key,
                          WIRE_MAX_BYTES);
    }
    out->count = count;
    return OPENPI_OK;
}

static openpi_status take_array(const openpi_field *field, wire_field *out, openpi_error *error) {
    int known = 0;
    while (known < ELEMENTS && elements[known].from != field->element) known++;
    if (known == ELEMENTS)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "request: \"%s\": element is %d, expected OPENPI_U8, OPENPI_FLOAT32, OPENPI_FLOAT64 or "
                      "OPENPI_FLOAT16", out->key, (int)field->element);
    TRY(take_shape(field, out, error));
    if (!field->data && out->count)
        return report(error, OPENPI_BAD_ARGUMENT, "request: \"%s\": text and data are both NULL", out->key);
    if (!out->rank) {
        out->kind = WIRE_NUMBER;
        out->number = wire_element_at(field->data, elements[known].to, 0);
        return OPENPI_OK;
    }
    out->kind = WIRE_ARRAY;
    out->element = elements[known].to;
    out->bytes = (size_t)out->count * elements[known].bytes;
    out->data = field->data;
    return OPENPI_OK;
}

openpi_status wire_take_field(const openpi_field *fields, int index, wire_field *out, openpi_error *error) {
    openpi_field field;
    memset(out, 0, sizeof *out);
    TRY(BOUNDARY_TAKE_AT(openpi_field, fields, index, &field, error));
    TRY(take_name(field.name, index, out, error));
    if (field.unknown) return take_unknown(&field, out);
    return field.text ? take_text(&field, out) : take_array(&field, out, error);
}
