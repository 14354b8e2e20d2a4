/* How long a device takes for a batch of 1, 2, 3, … samples, from a few measured sizes.
 *
 * Sizes between two measured ones are interpolated; larger than the largest measured one is no batch. */
#ifndef SERVE_BATCH_TIMES_H
#define SERVE_BATCH_TIMES_H

#include <stdint.h>

enum { BATCH_TIMES_MAX = 64 };

typedef struct batch_time {
    int batch;                   /* samples                                                               */
    int64_t ns;                  /* measured                                                              */
} batch_time;

typedef struct batch_times {
    int largest;                 /* batch                                                                 */
    int64_t ns[BATCH_TIMES_MAX + 1];       /* [batch]; never shrinks from one batch to the next larger one */
} batch_times;

/* 0 unless the batches begin with 1, ascend to at most BATCH_TIMES_MAX and have times above 0. A time below
 * that of a smaller batch is noise of the measurement and becomes that time. */
int batch_times_fill(batch_times *times, const batch_time *measured, int count);

/* These times, all multiplied by a factor. */
batch_times batch_times_scaled(const batch_times *times, double factor);

/* The batch of at most `count` samples and `limit` nanoseconds with the most samples a second; of equals the
 * smaller. 0: not even one sample fits. */
int batch_times_best(const batch_times *times, int count, int64_t limit);

#endif
