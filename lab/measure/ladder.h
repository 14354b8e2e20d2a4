/* The ladder: the effect of every optimisation. A rung is one state of the switches. The first has all
 * switches off, each further rung switches one more on in the order of openpi_switches, and the top has all
 * on; then the top is measured with one switch off at a time. Every rung runs the same synthetic call, whose
 * actions must agree with the top's: in fp32 within the goldens' bound, in bf16 within what rounding explains
 * (rounding.h).
 *
 * Note: the engine is opened again only when a switch that packs weights changes; the others are set on the
 * open engine. */
#ifndef MEASURE_LADDER_H
#define MEASURE_LADDER_H

#include "lab/measure/bench.h"
#include "lab/measure/workload.h"

enum { LADDER_SWITCHES = 32 };

typedef struct ladder_job {
    const char *checkpoint;                /* NULL: engine.synthetic                                      */
    openpi_engine_options engine;          /* without: switches that stay off on every rung               */
    openpi_session_options session;
    workload call;
    int warmup, runs;
    openpi_progress progress;              /* rungs done; may be NULL                                     */
    void *progress_user;
} ladder_job;

/* One state of the switches. */
typedef struct ladder_rung {
    int which;        /* index in openpi_switches; -1: the first rung, all off, or the top, all on */
    char reason[128]; /* why the switch has no effect here; "": it has, and the fields below are set */
    double p50_ms, device_ms;              /* a call from host to host; the same without the copies        */
    double before_ms; /* p50 without the switch: of the rung below; leave-one-out: p50_ms itself */
    int operations, nodes;                 /* ops in the plan; nodes in its graph, 0 where there is none  */
    uint64_t weight_bytes, session_bytes;
    double deviation_max, deviation_rms;   /* distance of the actions from the top rung's                 */
    int within;                            /* 1: within the bound                                         */
} ladder_rung;

typedef struct ladder_report {
    ladder_rung climb[LADDER_SWITCHES + 1];      /* from all off to the top                                */
    ladder_rung without[LADDER_SWITCHES];  /* leave one out                                               */
    int climb_count, without_count;
    double foot_ms, top_ms;
    double bound_max, bound_rms;           /* 0: not bounded                                              */
    int failed;                            /* rungs beyond the bound                                      */
    double ready_ms;                       /* opening an engine, as last done                             */
    openpi_engine_info info;               /* engine of the top rung                                      */
    device_facts facts;
} ladder_report;

openpi_status ladder_run(const ladder_job *job, ladder_report *report, openpi_error *error);

/* Why a switch (its index in openpi_switches) has no effect on this engine and call; "": it has, as far as is
 * known without running it. */
const char *ladder_reason(const openpi_engine *engine, const workload *call, int which);

#endif
