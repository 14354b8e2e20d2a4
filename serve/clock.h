/* The server's clock. */
#ifndef SERVE_CLOCK_H
#define SERVE_CLOCK_H

#include <time.h>

/* Milliseconds of the monotonic clock. */
static inline double clock_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

#endif
