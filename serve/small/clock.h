/* The server's clock. */
#ifndef SERVE_CLOCK_H
#define SERVE_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Nanoseconds, and milliseconds, of the monotonic clock. */
static inline int64_t clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline double clock_now(void) { return (double)clock_ns() * 1e-6; }

#endif
