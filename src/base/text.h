/* Small questions about strings. */
#ifndef BASE_TEXT_H
#define BASE_TEXT_H

#include <string.h>

/* Whether the last characters of `text` are `tail`. */
static inline int text_ends_with(const char *text, const char *tail) {
    size_t length = strlen(text), end = strlen(tail);
    return length >= end && !strcmp(text + length - end, tail);
}

#endif
