/* What every fuzz target has: libFuzzer's entry, and the one promise that holds for all of the library: a
 * failure has its status and a sentence. */
#ifndef TESTS_FUZZ_H
#define TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "openpi.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define PROMISE(condition)                                                                 \
    do {                                                                                   \
        if (!(condition)) {                                                                \
            fprintf(stderr, "%s:%d: broken promise: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                                       \
        }                                                                                  \
    } while (0)

/* Returns 1 where the call went well. */
static inline int went_well(openpi_status status, const openpi_error *error) {
    if (status == OPENPI_OK) return 1;
    PROMISE(error->status == status && error->message[0] && memchr(error->message, 0, sizeof error->message));
    return 0;
}

/* A copy in memory of exactly its size, so that a sanitizer sees every read past it; a 0 follows where
 * `text`. */
static inline void *exact_copy(const void *data, size_t size, int text) {
    char *copy = malloc(size + (text || !size));
    PROMISE(copy);
    if (size) memcpy(copy, data, size);
    if (text || !size) copy[size] = 0;
    return copy;
}

#endif
