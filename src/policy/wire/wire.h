/* The observation that an openpi client sends: msgpack with numpy arrays (openpi_client's msgpack_numpy.py),
 * decoded to a flat list of named fields. Nested maps' keys are joined by '/': ALOHA's images map gives
 * "images/cam_high", DROID's own "observation/wrist_image_left" stays as it is.
 *
 * Types
 *   str, bin that is UTF-8, np.str_, '<U…' or '|S…' array of one element    WIRE_TEXT
 *   int, float, bool (0 or 1), numpy scalar, 0-d numeric array    WIRE_NUMBER
 *   numeric array of rank 1 … 8                    WIRE_ARRAY over the caller's bytes
 *   list of numbers                                WIRE_ARRAY of WIRE_F64, rank 1
 *   other bin                                      WIRE_BYTES
 *   nil                                            WIRE_NIL
 *   map                                            WIRE_MAP, and a field for each of its entries
 *   anything else                                  WIRE_OTHER, with the sentence of who reads it
 * WIRE_OTHER are big-endian arrays, all kinds but b, i, u, f, U and S, arrays of several strings, lists of
 * anything but numbers, extension types.
 * Numpy's values are maps as openpi_client packs them, or as the package msgpack-numpy does; their types are
 * in any of numpy's spellings ("<f4", "f4", "float32", "f"). Refused at once: bytes that are no map, repeated
 * keys, anything over the limits below.
 *
 * The bytes are first walked without allocating and checked against the limits, and only then passed to
 * msgpack-c, which allocates for every map and list. Keys inside a numpy map may be str or bin, in any order.
 */
#ifndef POLICY_WIRE_H
#define POLICY_WIRE_H

#include "openpi.h"

enum {
    WIRE_MAX_BYTES = 64 << 20,   /* longest message */
    WIRE_MAX_TEXT = 1 << 20,     /* bytes of a string (a bin may fill the message) */
    WIRE_MAX_DEPTH = 8,          /* maps and lists in each other, the message's own map included */
    WIRE_MAX_FIELDS = 256,
    WIRE_MAX_VALUES = 1 << 16,   /* keys, values and list elements of the whole message */
    WIRE_KEY_BYTES = 128,        /* a joined key with its NUL */
    WIRE_RANK = 8,
    WIRE_MAX_OBSERVATIONS = OPENPI_MAX_OBSERVATIONS,
};

typedef enum wire_kind {
    WIRE_TEXT, WIRE_NUMBER, WIRE_ARRAY, WIRE_BYTES, WIRE_NIL, WIRE_MAP, WIRE_OTHER
} wire_kind;

typedef enum wire_element {
    WIRE_BOOL,
    WIRE_U8,
    WIRE_U16,
    WIRE_U32,
    WIRE_U64,
    WIRE_I8,
    WIRE_I16,
    WIRE_I32,
    WIRE_I64,
    WIRE_F16,
    WIRE_F32,
    WIRE_F64
} wire_element;

typedef struct wire_field {
    char key[WIRE_KEY_BYTES];    /* joined, NUL-terminated, valid UTF-8 */
    wire_kind kind;
    const char *text;            /* WIRE_TEXT: valid UTF-8, not NUL-terminated; WIRE_BYTES: they themselves;
                                    WIRE_OTHER: what it is, or NULL where there is a sentence */
    const char *sentence;        /* WIRE_OTHER: the error of who reads it */
    size_t bytes;                /* WIRE_TEXT, WIRE_BYTES: how many; WIRE_ARRAY: of data */
    double number;               /* WIRE_NUMBER */
    wire_element element;        /* WIRE_ARRAY */
    int rank;                    /* WIRE_ARRAY: 1 … WIRE_RANK */
    int64_t shape[WIRE_RANK];    /* WIRE_ARRAY: every one >= 0 */
    int64_t count;               /* WIRE_ARRAY: product of shape; WIRE_MAP: entries */
    const void *data;            /* WIRE_ARRAY: little-endian, C order, any alignment */
} wire_field;

typedef struct wire_message wire_message;

/* `bytes` must outlive the message: text and arrays point into them. */
openpi_status wire_decode(const void *bytes, size_t count, wire_message **out, openpi_error *error);
/* How many observations the message is of: a list of maps, or one map with "openpi/batch", whose arrays and
 * lists have one entry for each; *observations 0: one map without it. At most WIRE_MAX_OBSERVATIONS. */
openpi_status wire_observations(const void *bytes, size_t count, int *observations, openpi_error *error);
/* Observation `index` of such a message, as wire_decode. */
openpi_status wire_decode_at(const void *bytes, size_t count, int index, wire_message **out,
                             openpi_error *error);
/* A message of fields[count] that lie in memory: what their pointers lead to must outlive it. */
openpi_status wire_from_fields(const openpi_field *fields, int count, wire_message **out,
                               openpi_error *error);
void wire_message_free(wire_message *message);
/* 1: the text lies in memory of the message and not in the bytes that it was decoded from. */
int wire_owns(const wire_message *message, const char *text);

/* At most so many bytes of memory decoding takes for a message of `count`. */
size_t wire_most_bytes(size_t count);

int wire_count(const wire_message *message);
const wire_field *wire_at(const wire_message *message, int index);                /* in the message's order */
const wire_field *wire_find(const wire_message *message, const char *key);        /* NULL if absent */

/* "text", "a number", "an array u8 [224,224,3]" into `out`, for sentences. Returns out. */
const char *wire_describe(const wire_field *field, char *out, size_t bytes);

/* The error of who expected something else of the field. */
openpi_status wire_refuse(const wire_field *field, const char *expected, openpi_error *error);

/* A number, or an array of rank 1 of any element type, as doubles. Not checked for NaN. More than `capacity`:
 * an error. */
openpi_status wire_read_doubles(const wire_field *field, double *out, int capacity, int *count,
                                openpi_error *error);

/* The field's text. */
openpi_status wire_text(const wire_field *field, const char **text, size_t *bytes, openpi_error *error);

/* An array of rank 3, u8, f16, f32 or f64, as a picture whose name is the field's key and whose data lie in
 * the message. CHW if `always_chw` (ALOHA) or if the first dimension is 3 (every other robot), else HWC, as
 * in
 * openpi src/openpi/policies/. */
openpi_status wire_image(const wire_field *field, int always_chw, openpi_image *image, openpi_error *error);

#endif
