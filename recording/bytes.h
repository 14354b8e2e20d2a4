/* Bytes that grow, and numbers in little-endian order, as MCAP's records and CDR have them. */
#ifndef RECORDING_BYTES_H
#define RECORDING_BYTES_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* `failed` stays 1 once there was no memory: checked at the end of a record, not at each number. */
typedef struct byte_buffer {
    uint8_t *data;               /* [count], memory of [capacity]; freed by its owner     **/
    size_t count, capacity;
    int failed;
} byte_buffer;

/* Room for `more`: where they go; NULL: there is no memory, or nothing was ever asked for. */
static inline uint8_t *bytes_room(byte_buffer *b, size_t more) {
    enum { FIRST = 4096 };
    if (!b->failed && more > b->capacity - b->count) {
        size_t capacity = b->capacity ? b->capacity : FIRST;
        while (capacity - b->count < more && capacity <= SIZE_MAX / 2) capacity *= 2;
        uint8_t *larger = capacity - b->count < more ? NULL : realloc(b->data, capacity);
        if (larger) {
            b->data = larger;
            b->capacity = capacity;
        } else {
            b->failed = 1;
        }
    }
    if (b->failed || !b->data) return NULL;
    uint8_t *at = b->data + b->count;
    b->count += more;
    return at;
}

static inline void put_bytes(byte_buffer *b, const void *data, size_t count) {
    uint8_t *at = bytes_room(b, count);
    if (at && count) memcpy(at, data, count);
}

static inline void put_number(byte_buffer *b, uint64_t value, int width) {
    uint8_t *at = bytes_room(b, (size_t)width);
    for (int i = 0; at && i < width; i++) at[i] = (uint8_t)(value >> (8 * i));
}

static inline void put_u16(byte_buffer *b, uint16_t value) { put_number(b, value, 2); }
static inline void put_u32(byte_buffer *b, uint32_t value) { put_number(b, value, 4); }
static inline void put_u64(byte_buffer *b, uint64_t value) { put_number(b, value, 8); }

/* MCAP's string: its length in four bytes, then itself. */
static inline void put_string(byte_buffer *b, const char *text) {
    size_t length = strlen(text);
    put_u32(b, (uint32_t)length);
    put_bytes(b, text, length);
}

/* A number that was left open is known now. */
static inline void set_number(byte_buffer *b, size_t at, uint64_t value, int width) {
    for (int i = 0; !b->failed && i < width; i++) b->data[at + (size_t)i] = (uint8_t)(value >> (8 * i));
}

/* Reading: what is left of given bytes. `bad` stays 1 once something was asked for that is not
 * there; what was read then is 0. */
typedef struct span {
    const uint8_t *at;
    size_t left;
    int bad;
} span;

static inline const uint8_t *take_bytes(span *s, size_t count) {
    if (s->bad || count > s->left) {
        s->bad = 1;
        return NULL;
    }
    const uint8_t *at = s->at;
    if (count) s->at += count;
    s->left -= count;
    return at;
}

static inline uint64_t take_number(span *s, int width) {
    const uint8_t *at = take_bytes(s, (size_t)width);
    uint64_t value = 0;
    for (int i = 0; at && i < width; i++) value |= (uint64_t)at[i] << (8 * i);
    return value;
}

static inline uint16_t take_u16(span *s) { return (uint16_t)take_number(s, 2); }
static inline uint32_t take_u32(span *s) { return (uint32_t)take_number(s, 4); }
static inline uint64_t take_u64(span *s) { return take_number(s, 8); }

static inline span take_span(span *s, size_t count) {
    const uint8_t *at = take_bytes(s, count);
    return (span){at, at ? count : 0, at == NULL};
}

/* MCAP's string as a span. */
static inline span take_string(span *s) { return take_span(s, take_u32(s)); }

#endif
