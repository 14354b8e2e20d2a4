/* One block of memory, laid out by a function that runs twice: once to measure (base NULL), once to bind.
 * arena_take never fails: it returns base + offset, or NULL while measuring. */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include <stddef.h>
#include <stdint.h>

enum { ARENA_ALIGN = 256 };

typedef struct arena {
    char *base;                  /* NULL: measuring */
    size_t used;
} arena;

static inline void *arena_take(arena *arena, size_t bytes) {
    size_t at = arena->used;
    arena->used = (at + bytes + ARENA_ALIGN - 1) & ~(size_t)(ARENA_ALIGN - 1);
    return arena->base ? (void *)(arena->base + at) : NULL;
}

#endif
