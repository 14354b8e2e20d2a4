/* Which log lines are written when there are many: the first LOG_PER_SECOND of a second, for each reason. The
 * rest is counted. Pure: the time is an argument, in nanoseconds from any beginning. */
#ifndef SERVE_LOG_SAMPLE_H
#define SERVE_LOG_SAMPLE_H

#include <stdint.h>

enum { LOG_PER_SECOND = 10, LOG_REASONS = 32 };

typedef struct log_count {
    char event[32], reason[96];  /* whose lines are counted together                                       */
    int64_t since;               /* when the second began                                                  */
    int written;                 /* in it                                                                  */
    uint64_t more;               /* that were not                                                          */
} log_count;

typedef struct log_sampler {
    log_count items[LOG_REASONS];          /* [count]                                                      */
    int count;
} log_sampler;

/* 1: the line is to be written. First log_sampler_over has to be asked until it returns 0. */
int log_sampler_take(log_sampler *sampler, const char *event, const char *reason, int64_t now);
/* 1: a second is over in which lines were counted, and *over says which; they are forgotten then.
 * INT64_MAX: every second is over. */
int log_sampler_over(log_sampler *sampler, int64_t now, log_count *over);

#endif
