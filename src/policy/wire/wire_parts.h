/* What decoding a message (wire.c), its raw bytes (wire_bytes.c) and its values (wire_values.c) share. */
#ifndef POLICY_WIRE_PARTS_H
#define POLICY_WIRE_PARTS_H

#include <msgpack.h>

#include "policy/wire/wire.h"

/* The raw bytes against the limits of wire.h. Allocates nothing. `list`: 1, a list of messages may come. */
openpi_status wire_check_bytes(const uint8_t *bytes, size_t count, int list, openpi_error *error);
/* Checked bytes: the entries of the map or list that they are, and where the first begins; where the value
 * ends that begins at `at`. */
uint64_t wire_entries(const uint8_t *bytes, size_t *first);
size_t wire_end(const uint8_t *bytes, size_t count, size_t at);

/* A message's fields and the memory that they own. The walk over the values runs twice: once to check
 * everything and to measure (`fields` NULL), once to fill. */
typedef struct wire_fields {
    wire_field *fields;          /* [count]; NULL: measuring                                                */
    int count;
    char *owned;                 /* 8-byte aligned                                                          */
    size_t owned_bytes;
    openpi_error *error;
    int batch, index;            /* arrays and lists have `batch` entries, of which `index` is taken; 0: they
                                    are one observation's                                                  */
} wire_fields;

/* "a JPEG file": what bytes begin like; NULL: nothing that is known. */
const char *wire_file_kind(const void *bytes, size_t count);

/* Memory of the message itself. While measuring there is none: NULL. */
void *wire_take(wire_fields *fields, size_t bytes);

/* 1: the object is str or bin. */
int wire_as_text(const msgpack_object *object, const char **text, size_t *bytes);
int wire_is_utf8(const char *text, size_t bytes);
/* "an integer", for sentences. */
const char *wire_kind_of(const msgpack_object *object);
/* A map's value, by a key that may be str or bin; NULL where there is none. */
const msgpack_object *wire_member(const msgpack_object *map, const char *name);

/* 1: a map that stands for a numpy array or scalar. */
int wire_is_numpy(const msgpack_object *map);

/* The value of a field whose key is set: anything but a plain map or a list; and a list of numbers. */
openpi_status wire_set_value(wire_fields *fields, wire_field *field, const msgpack_object *value);
openpi_status wire_set_list(wire_fields *fields, wire_field *field, const msgpack_object *list);

/* The caller's field `index` as one of a message, its data still the caller's (wire_fields.c). */
openpi_status wire_take_field(const openpi_field *fields, int index, wire_field *out, openpi_error *error);

/* "u8", and element `index` of an array as a double. */
const char *wire_element_name(wire_element element);
double wire_element_at(const void *data, wire_element element, size_t index);

#endif
