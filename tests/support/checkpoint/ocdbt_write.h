/* Writes OCDBT databases and zstd frames byte by byte, to see what a reader makes of hostile ones. Include
 * after cmocka.h. */
#ifndef TESTS_OCDBT_WRITE_H
#define TESTS_OCDBT_WRITE_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"

enum { OCDBT_MANIFEST = 0x0CDB3A2A, OCDBT_NODE = 0x0CDB20DE, ZSTD_BLOCK = 1 << 17 };

typedef struct bytes {
    uint8_t *at;
    size_t count, capacity;
} bytes;

static inline void put(bytes *b, const void *from, size_t count) {
    if (b->count + count > b->capacity) {
        b->capacity = 2 * (b->count + count);
        b->at = realloc(b->at, b->capacity);
        assert_non_null(b->at);
    }
    if (count) memcpy(b->at + b->count, from, count);
    b->count += count;
}

static inline void put_fixed(bytes *b, uint64_t value, int count) {
    for (int i = 0; i < count; i++) put(b, &(uint8_t){(uint8_t)(value >> 8 * i)}, 1);
}

static inline void put_varint(bytes *b, uint64_t value) {
    for (; value >> 7; value >>= 7) put_fixed(b, value | 128, 1);
    put_fixed(b, value, 1);
}

static inline void put_text(bytes *b, const char *text) { put(b, text, strlen(text)); }

/* ---- zstd ---- */

/* A frame's head that asks for a window of 2^log bytes and says no size. */
static inline void zstd_head(bytes *b, int window_log) {
    put(b, "\x28\xb5\x2f\xfd\x00", 5);
    put_fixed(b, (uint64_t)(window_log - 10) << 3, 1);
}

static inline void zstd_block(bytes *b, int last, int type, size_t count) {
    put_fixed(b, (uint64_t)last | (uint64_t)type << 1 | (uint64_t)count << 3, 3);
}

static inline void zstd_stored(bytes *b, int last, const void *from, size_t count) {
    zstd_block(b, last, 0, count);
    put(b, from, count);
}

/* `count` zero bytes in blocks of four bytes each, and the frame's end. */
static inline void zstd_zeros(bytes *b, size_t count) {
    do {
        size_t now = count < ZSTD_BLOCK ? count : ZSTD_BLOCK;
        count -= now;
        zstd_block(b, !count, 1, now);
        put_fixed(b, 0, 1);
    } while (count);
}

/* ---- manifests and nodes ---- */

/* `body` in its envelope, appended to `out`; compression 1: the body is a zstd frame. */
static inline void ocdbt_block(bytes *out, uint32_t magic, int compression, const bytes *body) {
    bytes b = {0};
    for (int i = 3; i >= 0; i--) put_fixed(&b, magic >> 8 * i, 1);
    put_fixed(&b, 12 + 2 + body->count + 4, 8);
    put_varint(&b, 0);
    put_varint(&b, (uint64_t)compression);
    put(&b, body->at, body->count);
    put_fixed(&b, crc32c(b.at, b.count), 4);
    put(out, b.at, b.count);
    free(b.at);
}

/* Length and CRC-32C of a block that was changed. */
static inline void ocdbt_repair(uint8_t *block, size_t count) {
    bytes tail = {0};
    put_fixed(&tail, crc32c(block, count - 4), 4);
    memcpy(block + count - 4, tail.at, 4);
    free(tail.at);
}

#endif
