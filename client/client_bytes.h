/* msgpack, as far as requests and replies need it. A writer into a message that grows, and a reader that
 * allocates nothing: whatever a message claims to contain, only its own bytes are looked at. */
#ifndef CLIENT_BYTES_H
#define CLIENT_BYTES_H

#include "client/client.h"

/* ---- writing (client_bytes.c): 0 where there is no memory ------------------------------------------ */

int client_put_map(client_message *m, size_t entries);
int client_put_array_head(client_message *m, size_t elements);
int client_put_uint(client_message *m, uint64_t value);
int client_put_double(client_message *m, double value);
int client_put_true(client_message *m);
int client_put_text(client_message *m, const char *text);
int client_put_bin(client_message *m, const void *bytes, size_t count);
/* Bytes as they are. */
int client_put_raw(client_message *m, const void *bytes, size_t count);

/* ---- reading -------------------------------------------------------------------------------------- */

typedef enum client_value_kind {
    VALUE_NONE,                  /* there is no such value                                                  */
    VALUE_BOOL, VALUE_NUMBER, VALUE_TEXT, VALUE_BIN, VALUE_ARRAY, VALUE_MAP,
    VALUE_OTHER,                 /* nil, an extension                                                       */
} client_value_kind;

/* A value where it stands in the message. */
typedef struct client_value {
    client_value_kind kind;
    double number;               /* VALUE_NUMBER, VALUE_BOOL                                                */
    const uint8_t *bytes;        /* text and bin: theirs; array and map: where their first element begins   */
    size_t count;                /* bytes, elements or entries                                              */
    const uint8_t *end;          /* the message's end                                                       */
} client_value;

/* The one value that these bytes are, with all its elements. VALUE_NONE: they are no msgpack, or more than
 * one value. The functions below take only values of messages that this has read. */
client_value client_value_of(const uint8_t *bytes, size_t count);
/* A map's value by a key that is a str or a bin; VALUE_NONE where there is none. */
client_value client_value_find(const client_value *map, const char *key);
/* The first element of an array, and from *at the next ones. */
client_value client_value_next(const uint8_t **at, const uint8_t *end);
/* 1: text or bin that says this. */
int client_value_says(const client_value *v, const char *text);
double client_value_number(const client_value *v, double otherwise);

#endif
