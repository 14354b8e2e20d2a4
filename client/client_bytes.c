/* See client_bytes.h. */
#include "client/client_bytes.h"

#include <stdlib.h>
#include <string.h>

/* ---- writing -------------------------------------------------------------------------------------- */

/* Room for `count` bytes at the message's end, which belong to it from now on. NULL: no memory. */
static uint8_t *extend(client_message *m, size_t count) {
    if (m->capacity - m->count < count) {
        size_t capacity = 2 * (m->count + count);
        uint8_t *larger = realloc(m->bytes, capacity);
        if (!larger) return NULL;
        m->bytes = larger;
        m->capacity = capacity;
    }
    m->count += count;
    return m->bytes + m->count - count;
}

int client_put_raw(client_message *m, const void *bytes, size_t count) {
    uint8_t *at = extend(m, count);
    if (at && count) memcpy(at, bytes, count);
    return at != NULL;
}

/* A type and a number of `bytes` bytes, the highest first. */
static int put_number(client_message *m, uint8_t type, uint64_t number, int bytes) {
    uint8_t *at = extend(m, 1 + (size_t)bytes);
    if (!at) return 0;
    *at++ = type;
    for (int i = bytes - 1; i >= 0; i--) *at++ = (uint8_t)(number >> 8 * i);
    return 1;
}

/* The shortest head for a count: the types with the count in them, of 8 bits (0: there is none), 16, 32. */
static int put_head(client_message *m, uint8_t fix, size_t most, uint8_t one, uint8_t two, size_t count) {
    if (count < most) return put_number(m, (uint8_t)(fix | count), 0, 0);
    if (one && count <= UINT8_MAX) return put_number(m, one, count, 1);
    if (count <= UINT16_MAX) return put_number(m, two, count, 2);
    return put_number(m, (uint8_t)(two + 1), count, 4);
}

int client_put_map(client_message *m, size_t entries) { return put_head(m, 0x80, 16, 0, 0xde, entries); }
int client_put_array_head(client_message *m, size_t elements) {
    return put_head(m, 0x90, 16, 0, 0xdc, elements);
}

int client_put_true(client_message *m) { return put_number(m, 0xc3, 0, 0); }

int client_put_uint(client_message *m, uint64_t value) {
    if (value <= UINT32_MAX) return put_head(m, 0, 128, 0xcc, 0xcd, value);
    return put_number(m, 0xcf, value, 8);
}

int client_put_double(client_message *m, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return put_number(m, 0xcb, bits, 8);
}

int client_put_text(client_message *m, const char *text) {
    size_t count = strlen(text);
    return put_head(m, 0xa0, 32, 0xd9, 0xda, count) && client_put_raw(m, text, count);
}

int client_put_bin(client_message *m, const void *bytes, size_t count) {
    return put_head(m, 0, 0, 0xc4, 0xc5, count) && client_put_raw(m, bytes, count);
}

/* ---- reading -------------------------------------------------------------------------------------- */

static const client_value none = {VALUE_NONE, 0, NULL, 0, NULL};

/* A number of `bytes` bytes at `at`, the highest first. */
static uint64_t big_endian(const uint8_t *at, int bytes) {
    uint64_t number = 0;
    for (int i = 0; i < bytes; i++) number = number << 8 | at[i];
    return number;
}

static double floating(uint64_t bits, int bytes) {
    uint32_t narrow = (uint32_t)bits;
    float single;
    double wide;
    memcpy(&single, &narrow, sizeof single);
    memcpy(&wide, &bits, sizeof wide);
    return bytes == 4 ? (double)single : wide;
}

/* Sign-extended from `bytes` bytes. */
static double negative(uint64_t bits, int bytes) {
    uint64_t sign = (uint64_t)1 << (8 * bytes - 1);
    return bits & sign ? -(double)((sign << 1) - bits) : (double)bits;
}

/* What follows the types from 0xc0 to 0xdf: bytes of a number after the type, and what that number is. */
static const struct {
    client_value_kind kind;
    uint8_t bytes;
    enum { PLAIN, COUNT, UNSIGNED, SIGNED, FLOATING, EXTENSION, FIXED } what;
} types[32] = {
    {VALUE_OTHER, 0, PLAIN},      {VALUE_NONE, 0, PLAIN},       {VALUE_BOOL, 0, PLAIN},
    {VALUE_BOOL, 0, PLAIN},       {VALUE_BIN, 1, COUNT},        {VALUE_BIN, 2, COUNT},
    {VALUE_BIN, 4, COUNT},        {VALUE_OTHER, 1, EXTENSION},  {VALUE_OTHER, 2, EXTENSION},
    {VALUE_OTHER, 4, EXTENSION},  {VALUE_NUMBER, 4, FLOATING},  {VALUE_NUMBER, 8, FLOATING},
    {VALUE_NUMBER, 1, UNSIGNED},  {VALUE_NUMBER, 2, UNSIGNED},  {VALUE_NUMBER, 4, UNSIGNED},
    {VALUE_NUMBER, 8, UNSIGNED},  {VALUE_NUMBER, 1, SIGNED},    {VALUE_NUMBER, 2, SIGNED},
    {VALUE_NUMBER, 4, SIGNED},    {VALUE_NUMBER, 8, SIGNED},    {VALUE_OTHER, 0, FIXED},
    {VALUE_OTHER, 0, FIXED},      {VALUE_OTHER, 0, FIXED},      {VALUE_OTHER, 0, FIXED},
    {VALUE_OTHER, 0, FIXED},      {VALUE_TEXT, 1, COUNT},       {VALUE_TEXT, 2, COUNT},
    {VALUE_TEXT, 4, COUNT},       {VALUE_ARRAY, 2, COUNT},      {VALUE_ARRAY, 4, COUNT},
    {VALUE_MAP, 2, COUNT},        {VALUE_MAP, 4, COUNT},
};

/* The types that have their number in them. */
static client_value short_value(uint8_t type) {
    if (type < 0x80) return (client_value){VALUE_NUMBER, type, NULL, 0, NULL};
    if (type < 0x90) return (client_value){VALUE_MAP, 0, NULL, type & 15, NULL};
    if (type < 0xa0) return (client_value){VALUE_ARRAY, 0, NULL, type & 15, NULL};
    if (type < 0xc0) return (client_value){VALUE_TEXT, 0, NULL, type & 31, NULL};
    return (client_value){VALUE_NUMBER, type - 256.0, NULL, 0, NULL};
}

/* The types from 0xc0 to 0xdf, whose number begins at `at`, within the message. */
static client_value long_value(uint8_t type, const uint8_t *at) {
    const int row = type - 0xc0, bytes = types[row].bytes;
    const uint64_t number = big_endian(at, bytes);
    client_value v = {.kind = types[row].kind};
    switch (types[row].what) {
    case PLAIN: v.number = type == 0xc3; break;
    case COUNT: v.count = (size_t)number; break;
    case UNSIGNED: v.number = (double)number; break;
    case SIGNED: v.number = negative(number, bytes); break;
    case FLOATING: v.number = floating(number, bytes); break;
    case EXTENSION: v.count = (size_t)number + 1; break;         /* with the byte that names it             */
    case FIXED: v.count = ((size_t)1 << (type - 0xd4)) + 1; break;
    }
    return v;
}

/* The value at *at, which moves behind it, of an array or a map to its first element. VALUE_NONE: the message
 * ends within, or has a type that there is none of. */
static client_value read_value(const uint8_t **at, const uint8_t *end) {
    if (*at == end) return none;
    const uint8_t type = *(*at)++;
    const int is_long = type >= 0xc0 && type < 0xe0, bytes = is_long ? types[type - 0xc0].bytes : 0;
    if (end - *at < bytes) return none;
    client_value v = is_long ? long_value(type, *at) : short_value(type);
    *at += bytes;
    v.bytes = *at;
    v.end = end;
    if (v.kind == VALUE_ARRAY || v.kind == VALUE_MAP) return v;
    if ((size_t)(end - *at) < v.count) return none;
    *at += v.count;
    return v;
}

/* Moves *at behind a value with all its elements. 0: the message ends within. */
static int skip(const uint8_t **at, const uint8_t *end) {
    for (size_t left = 1; left; left--) {
        client_value v = read_value(at, end);
        if (v.kind == VALUE_NONE) return 0;
        if (v.kind == VALUE_MAP) left += 2 * v.count;
        if (v.kind == VALUE_ARRAY) left += v.count;
        if (left > (size_t)(end - *at) + 1) return 0;          /* an element has a byte at least            */
    }
    return 1;
}

client_value client_value_of(const uint8_t *bytes, size_t count) {
    const uint8_t *at = bytes, *end = bytes + count;
    if (!skip(&at, end) || at != end) return none;
    at = bytes;
    return read_value(&at, end);
}

client_value client_value_next(const uint8_t **at, const uint8_t *end) {
    const uint8_t *begin = *at;
    if (!skip(at, end)) return none;
    return read_value(&begin, end);
}

int client_value_says(const client_value *v, const char *text) {
    size_t count = strlen(text);
    return (v->kind == VALUE_TEXT || v->kind == VALUE_BIN) && v->count == count &&
           !memcmp(v->bytes, text, count);
}

client_value client_value_find(const client_value *map, const char *key) {
    const uint8_t *at = map->bytes;
    for (size_t i = 0; map->kind == VALUE_MAP && i < map->count; i++) {
        client_value name = client_value_next(&at, map->end), found = client_value_next(&at, map->end);
        if (client_value_says(&name, key)) return found;
    }
    return none;
}

double client_value_number(const client_value *v, double otherwise) {
    return v->kind == VALUE_NUMBER || v->kind == VALUE_BOOL ? v->number : otherwise;
}
