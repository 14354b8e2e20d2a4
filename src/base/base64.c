#include "base/base64.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

static size_t text_length(size_t count) { return (count + 2) / 3 * 4; }

char *base64_text(const void *bytes, size_t count) {
    const uint8_t *from = bytes;
    char *text = malloc(text_length(count) + 1), *to = text;
    if (!text) return NULL;
    for (size_t i = 0; i < count; i += 3) {
        size_t left = count - i;
        uint32_t three = (uint32_t)from[i] << 16 | (uint32_t)(left > 1 ? from[i + 1] : 0) << 8 |
                         (uint32_t)(left > 2 ? from[i + 2] : 0);
        *to++ = digits[three >> 18];
        *to++ = digits[three >> 12 & 63];
        *to++ = left > 1 ? digits[three >> 6 & 63] : '=';
        *to++ = left > 2 ? digits[three & 63] : '=';
    }
    *to = 0;
    return text;
}

static int digit_of(char c) {
    const char *at = c ? strchr(digits, c) : NULL;
    return at ? (int)(at - digits) : -1;
}

int base64_bytes(const char *text, void *bytes, size_t count) {
    uint8_t *to = bytes;
    if (strlen(text) != text_length(count)) return 0;
    for (size_t i = 0; i < count; i += 3, text += 4) {
        uint32_t four = 0;
        size_t there = count - i < 3 ? count - i : 3;
        for (size_t k = 0; k < 4; k++) {
            int digit = k > there ? (text[k] == '=' ? 0 : -1) : digit_of(text[k]);
            if (digit < 0) return 0;
            four = four << 6 | (uint32_t)digit;
        }
        for (size_t k = 0; k < there; k++) to[i + k] = (uint8_t)(four >> (16 - 8 * k));
    }
    return 1;
}
