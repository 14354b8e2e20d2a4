/* See text.h. */
#include "text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { FIRST_BYTES = 4096 };

void text_clear(text *t) {
    t->count = 0;
    t->failed = 0;
}

void text_close(text *t) {
    free(t->data);
    *t = (text){.data = NULL};
}

/* Space for so many bytes and a NUL. */
static int reserve(text *t, size_t bytes) {
    size_t capacity = t->capacity ? t->capacity : FIRST_BYTES;
    while (capacity - t->count <= bytes) capacity *= 2;
    if (capacity == t->capacity) return 1;
    char *larger = realloc(t->data, capacity);
    if (!larger) {
        t->failed = 1;
        return 0;
    }
    t->data = larger;
    t->capacity = capacity;
    return 1;
}

void text_put(text *t, const char *format, ...) {
    va_list list;
    int bytes = 0, fits = 0;
    while (!fits && bytes >= 0 && !t->failed && reserve(t, (size_t)bytes)) {
        size_t left = t->capacity - t->count;
        va_start(list, format);
        bytes = vsnprintf(t->data + t->count, left, format, list);
        va_end(list);
        fits = bytes >= 0 && (size_t)bytes < left;
    }
    if (fits) t->count += (size_t)bytes;
}

void text_quote(text *t, const char *value) {
    text_put(t, "\"");
    for (; *value; value++) {
        if (*value == '"' || *value == '\\') text_put(t, "\\%c", *value);
        else text_put(t, "%c", (unsigned char)*value < ' ' ? ' ' : *value);
    }
    text_put(t, "\"");
}
