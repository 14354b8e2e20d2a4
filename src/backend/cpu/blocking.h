/* How a CPU op is cut into tasks and pieces: the numbers that may differ without changing a bit of the
 * result.
 *
 * Which of them is fastest depends on the machine and the number of threads, so they are candidates for
 * the tuner. The first of every list is the level's own default. */
#ifndef CPU_BLOCKING_H
#define CPU_BLOCKING_H

#include "ops/ops.h"

typedef struct cpu_blocking {
    const char *name;
    int tasks;                   /* products of few rows: stretches of panels a thread; 0: the level's own  */
    int share;                   /* products of few rows: 1: x is packed once, by all                       */
    int panels, cut;             /* products of many rows: most panels of a task, k of a piece; 0: own      */
    int fit;                     /* bytes of A under new panels; 0: own, -1: no limit                       */
    int units;                   /* attention: queries that are worked on at once                           */
    int rows;                    /* copies: rows of a task                                                  */
} cpu_blocking;

enum { MOST_UNITS = 96 };

/* The list for an op; stream: a product of few rows. */
const cpu_blocking *cpu_blockings(op_kind kind, int stream, int *count);
/* Number `choice` of it as op.choice counts; the first where there is no such. */
cpu_blocking cpu_blocking_of(op_kind kind, int stream, int choice);
/* 1 where a list of any op has the name. */
int cpu_blocking_known(const char *name);

#endif
