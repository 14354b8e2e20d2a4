/* Calls of a session on one time axis: the host's work, every launch, power and clocks in between.
 *
 * Times are milliseconds of the host's clock since the trace began.
 *
 * Note: a device has its own clock. Its run is shifted so that it ends when the host's wait for it ends,
 * which is late by the few microseconds that waking up takes. */
#ifndef MEASURE_TRACE_H
#define MEASURE_TRACE_H

#include "lab/measure/profile.h"

enum { TRACE_HOST_SPANS = 8 };

typedef struct trace_span {
    const char *name;            /* "picture", "replay"                                                   */
    double start_ms, end_ms;
} trace_span;

typedef struct trace_reading {
    double at_ms, watts, core_mhz, memory_mhz;       /* 0: unknown                                        */
} trace_reading;

typedef struct trace_call {
    double start_ms, end_ms;
    trace_span spans[TRACE_HOST_SPANS];    /* spans of the host, in order                                 */
    int span_count, run;                   /* run: which of them runs the plan                            */
    double device_ms;                      /* where the launches' times begin                             */
    double *starts, *ends;                 /* [launches], from device_ms                                  */
    trace_reading before, after;
} trace_call;

/* What a launch computes; the same in every call. */
typedef struct trace_launch {
    launch_record record;                  /* without its times                                           */
    profile_op what;                       /* without its time                                            */
    const char *group;                     /* trace_group                                                 */
    int place, places;                     /* which of its op's launches, counted from 1                  */
} trace_launch;

typedef struct trace {
    timed_method method;
    char not_replayed[200];
    int policy;                            /* 1: from observations, 0: from prepared samples              */
    char not_policy[300];                  /* why not                                                     */
    int prompt, steps;                     /* tokens; denoising steps                                     */
    trace_launch *launches;
    int launch_count;
    trace_call *calls;
    int count;
    char power[48], no_power[300];         /* the source of power ("RAPL"), or why there is none          */
} trace;

typedef struct trace_options {
    workload call;
    int calls, warmup;
    const char *device;                    /* for power, as --device takes it                             */
    const openpi_policy *policy;           /* NULL: model level, because of:                              */
    const char *not_policy;
    openpi_progress progress;              /* counts calls; may be NULL                                   */
    void *progress_user;
} trace_options;

/* The session's batch is 1. trace_free in any case. */
openpi_status trace_run(openpi_session *session, const trace_options *options, trace *out,
                        openpi_error *error);
void trace_free(trace *trace);

/* The group of kernels that an op of this kind counts in: "GEMM", "attention", "activation", "norm", "RoPE",
 * "several in one" (whole layers in one kernel) or "other". tools/trace-analyze knows them by these names. */
const char *trace_group(const char *kind);

#endif
