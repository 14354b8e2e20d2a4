/* See parts.h. The types' first bytes: github.com/msgpack/msgpack/blob/master/spec.md. */
#include "recording/parts.h"

/* Bytes of a value's own after its first one, and how many values it holds. */
typedef struct msgpack_size {
    uint64_t bytes, values;
} msgpack_size;

static uint64_t take_big_endian(span *s, int width) {
    const uint8_t *at = take_bytes(s, (size_t)width);
    uint64_t value = 0;
    for (int i = 0; at && i < width; i++) value = value << 8 | at[i];
    return value;
}

/* 0xc0 … 0xdf: the lengths that stand behind the first byte are taken. */
static msgpack_size size_of_long(span *s, int type) {
    static const uint8_t numbers[] = {4, 8, 1, 2, 4, 8, 1, 2, 4, 8};                 /* 0xca … 0xd3      */
    switch (type) {
    case 0xc4: case 0xc5: case 0xc6: return (msgpack_size){take_big_endian(s, 1 << (type - 0xc4)), 0};
    case 0xc7: case 0xc8: case 0xc9: return (msgpack_size){take_big_endian(s, 1 << (type - 0xc7)) + 1, 0};
    case 0xd4: case 0xd5: case 0xd6: case 0xd7: case 0xd8:
        return (msgpack_size){(UINT64_C(1) << (type - 0xd4)) + 1, 0};
    case 0xd9: case 0xda: case 0xdb: return (msgpack_size){take_big_endian(s, 1 << (type - 0xd9)), 0};
    case 0xdc: case 0xdd: return (msgpack_size){0, take_big_endian(s, 2 << (type - 0xdc))};
    case 0xde: case 0xdf: return (msgpack_size){0, 2 * take_big_endian(s, 2 << (type - 0xde))};
    default: return (msgpack_size){type >= 0xca && type <= 0xd3 ? numbers[type - 0xca] : 0, 0};
    }
}

static msgpack_size size_of_value(span *s) {
    int type = (int)take_number(s, 1);
    if (type < 0x80 || type >= 0xe0) return (msgpack_size){0, 0};
    if (type < 0x90) return (msgpack_size){0, 2 * (uint64_t)(type & 15)};
    if (type < 0xa0) return (msgpack_size){0, (uint64_t)(type & 15)};
    if (type < 0xc0) return (msgpack_size){(uint64_t)(type & 31), 0};
    return size_of_long(s, type);
}

int msgpack_fits(const uint8_t *data, size_t count) {
    span s = {data, count, 0};
    uint64_t values = 1;
    while (values && !s.bad) {
        msgpack_size size = size_of_value(&s);
        values += size.values - 1;
        if (size.bytes > s.left || values > s.left) return 0;
        take_bytes(&s, (size_t)size.bytes);
    }
    return !s.bad;
}
