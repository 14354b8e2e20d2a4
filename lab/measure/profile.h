/* The time of a call, operation by operation, compared with this machine's roofs.
 *
 * Plain and timed calls (lab/measure/timed.h) alternate, so that both run with the same clocks and
 * temperature. A time is the median over the timed calls. Rows can be grouped by any of profile_by.
 *
 * An op's floor is its time at the roof that limits it: FLOPs at the compute rate, or its weights at the rate
 * of reading memory.
 *
 * Note: activations do not count for the floor. They fit the caches, so counting them would allow more time
 * than a good kernel needs. */
#ifndef MEASURE_PROFILE_H
#define MEASURE_PROFILE_H

#include "lab/measure/bench.h"
#include "lab/measure/timed.h"

typedef struct profile_options {
    workload call;
    int warmup, runs;            /* pairs of a plain and a timed call                                     */
    openpi_progress progress;    /* counts pairs; may be NULL                                             */
    void *progress_user;
} profile_options;

/* One op of the plan, or the several that one launch computes. */
typedef struct profile_op {
    char name[64];               /* "prefix.gate_up"; of several "action.embed … action.velocity"         */
    const char *kind;            /* "norm_linear"; of several "several"                                   */
    openpi_stage stage;
    int step, layer;             /* -1 where there is none                                                */
    int first, ops;              /* place in the plan                                                     */
    int calls;                   /* launches                                                              */
    char shape[48]; /* product: m x n x k; attention: heads x rows x keys; else rows x columns  */
    char kernel[96];             /* names of its launches                                                 */
    op_cost cost;
    double ms;                   /* p50                                                                   */
    double floor_ms;             /* 0 without roofs                                                       */
    int memory_bound;            /* that the floor is computed from                                       */
} profile_op;

typedef struct profile {
    profile_op *ops;
    int count;
    timed_method method;
    char not_replayed[200];
    int runs;
    int launches, nodes;         /* launches a call; nodes of the plain recording's graph, 0 without one  */
    figures host;                /* a plain call, host to host                                            */
    figures replay;              /* its stages on the device                                              */
    figures timed;               /* the same of a timed call                                              */
    double sum_ms;               /* sum of all ops' medians                                               */
    double coverage_ratio;       /* median of (ops' times / stages' times) within one timed call          */
} profile;

/* If the coverage is within this of 1, all time of a timed call is assigned to operations. */
#define PROFILE_COVERAGE 0.02

/* `roofs` may be NULL. profile_free in any case. */
openpi_status profile_run(openpi_session *session, const profile_options *options, const bench_roofs *roofs,
                          profile *out, openpi_error *error);
void profile_free(profile *profile);

typedef enum profile_by {
    PROFILE_BY_STAGE, PROFILE_BY_STEP, PROFILE_BY_OP, PROFILE_BY_KIND, PROFILE_BY_LAYER, PROFILE_BY_SHAPE,
} profile_by;

typedef struct profile_group {
    char name[112];
    int ops, calls;
    op_cost cost;
    double ms, floor_ms, memory_ms;        /* memory_ms: the part of the floor that memory binds          */
} profile_group;

/* Groups rows into `out`, which holds profile->count; returns how many. Stages and steps are in the plan's
 * order, other groups sorted by time. */
int profile_groups(const profile *profile, profile_by by, profile_group *out);

/* The row of `ops` ops of the session's plan from `first` on, for its latest call; without kernel, calls and
 * time. */
profile_op profile_row(const openpi_session *session, int first, int ops, const bench_roofs *roofs);

#endif
