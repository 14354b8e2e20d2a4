/* The memory of all requests that are under way, against --max-in-flight: messages as they come, and what
 * preparing them takes. From any thread. */
#ifndef SERVE_IN_FLIGHT_H
#define SERVE_IN_FLIGHT_H

#include <stdatomic.h>
#include <stddef.h>

typedef struct in_flight {
    size_t most;                 /* bytes                                                                  */
    atomic_size_t taken;         /* may be more: reserved requests are prepared all the same               */
} in_flight;

/* Bytes that are left. */
static inline size_t in_flight_left(in_flight *f) {
    size_t taken = atomic_load(&f->taken);
    return taken < f->most ? f->most - taken : 0;
}

/* 0: so many are not left, and nothing is taken. */
static inline int in_flight_take(in_flight *f, size_t bytes) {
    size_t taken = atomic_load(&f->taken);
    do {
        if (taken > f->most || bytes > f->most - taken) return 0;
    } while (!atomic_compare_exchange_weak(&f->taken, &taken, taken + bytes));
    return 1;
}

/* Also where they are not left. */
static inline void in_flight_add(in_flight *f, size_t bytes) { atomic_fetch_add(&f->taken, bytes); }

static inline void in_flight_give(in_flight *f, size_t bytes) { atomic_fetch_sub(&f->taken, bytes); }

#endif
