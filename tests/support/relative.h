/* How far values are from those expected. */
#ifndef TESTS_RELATIVE_H
#define TESTS_RELATIVE_H

#include <math.h>
#include <stddef.h>

/* The norm of a - b over the norm of b. NaN where a value is NaN. */
static inline double relative_difference(const float *a, const float *b, size_t count) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < count; i++) {
        difference += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        norm += (double)b[i] * (double)b[i];
    }
    return sqrt(difference / (norm > 0 ? norm : 1));
}

#endif
