/* One step through UTF-8, strict: no overlong forms, no surrogates, nothing above U+10FFFF. */
#ifndef BASE_UTF8_H
#define BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* The number of bytes of the character at `text`, where `left` >= 1 bytes remain; 0: not UTF-8. *code
 * receives the code point. */
static inline size_t utf8_decode(const char *text, size_t left, uint32_t *code) {
    static const uint32_t smallest[5] = {0, 0, 0x80, 0x800, 0x10000};
    uint8_t lead = (uint8_t)text[0];
    size_t bytes = lead < 0x80   ? 1
                   : lead < 0xc0 ? 0
                   : lead < 0xe0 ? 2
                   : lead < 0xf0 ? 3
                   : lead < 0xf8 ? 4
                                 : 0;
    if (!bytes || bytes > left) return 0;
    uint32_t value = bytes == 1 ? lead : lead & (0x7fu >> bytes);
    for (size_t i = 1; i < bytes; i++) {
        uint8_t next = (uint8_t)text[i];
        if ((next & 0xc0) != 0x80) return 0;
        value = value << 6 | (next & 0x3f);
    }
    if (value < smallest[bytes] || value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff)) return 0;
    *code = value;
    return bytes;
}

/* Writes a code point to `out`, which holds 4 bytes or is NULL; returns its bytes, 0: no character has this
 * code. */
static inline size_t utf8_encode(uint32_t code, char *out) {
    static const uint8_t leads[5] = {0, 0, 0xc0, 0xe0, 0xf0};
    if (code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) return 0;
    size_t bytes = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t i = bytes; out && i-- > 0; code >>= 6)
        out[i] = (char)(i ? 0x80 | (code & 63) : leads[bytes] | code);
    return bytes;
}

/* The index of the first byte that is not UTF-8; `bytes`: all are. */
static inline size_t utf8_valid_prefix(const char *text, size_t bytes) {
    uint32_t code;
    for (size_t at = 0; at < bytes;) {
        size_t step = utf8_decode(text + at, bytes - at, &code);
        if (!step) return at;
        at += step;
    }
    return bytes;
}

#endif
