/* Text that grows as it is written: the pages of the admin port. */
#ifndef SERVE_TEXT_H
#define SERVE_TEXT_H

#include <stddef.h>

typedef struct text {
    char *data;                  /* [count], memory of [capacity]; NULL: nothing written yet               */
    size_t count, capacity;
    int failed;                  /* 1: there was no memory, and the text is not complete                   */
} text;

/* Empties the text and keeps its memory. */
void text_clear(text *text);
void text_close(text *text);

void text_put(text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* "value" with its quotes, as JSON and Prometheus's labels both read it. Control characters become spaces. */
void text_quote(text *text, const char *value);

#endif
