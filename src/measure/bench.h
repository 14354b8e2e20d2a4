/* Times a session and sets the times against the machine's roofs.
 *
 * The session runs a made-up workload (measure/workload.h) again and again;
 * every stage's FLOPs and weight bytes come from walking the session's plan. */
#ifndef MEASURE_BENCH_H
#define MEASURE_BENCH_H

#include "measure/figures.h"
#include "measure/workload.h"

typedef struct bench_workload {
    workload call;
    int warmup, runs;
    openpi_progress progress;    /* counts runs; may be NULL                                              */
    void *progress_user;
} bench_workload;

/* Measured ceilings of the device. 0: not known. */
typedef struct bench_roofs {
    double tflops;               /* of the kernels' own arithmetic                                        */
    double gbs;                  /* read from memory                                                      */
} bench_roofs;

typedef struct bench_stage {
    openpi_stage stage;
    figures ms;
    double flops, weight_bytes;  /* a call                                                                */
    double tflops, gbs;          /* at the median                                                         */
    double roof;                 /* floor(flops, weight bytes) / median; 0 without roofs                  */
    int memory_bound;            /* which of the two ceilings is the floor                                */
} bench_stage;

typedef struct bench_report {
    figures host;          /* pictures, state and tokens in host memory -> actions in host memory   */
    figures device;        /* inputs and outputs on the device; the same as host on the CPU         */
    bench_stage stages[OPENPI_STAGES];     /* those with work or time, in order                           */
    int stage_count;
    double flops, weight_bytes;  /* a call                                                                */
    uint64_t peak_bytes;         /* largest resident size of this process, mapped files included          */
    uint64_t anonymous_bytes;    /* largest anonymous memory seen at the samples                          */
} bench_report;

/* Measures the ceilings of the engine's device with as many threads as it has, in about a second. What that takes of
 * memory is not to count: the process's peak starts anew afterwards. */
openpi_status bench_measure_roofs(openpi_engine *engine, bench_roofs *roofs, openpi_error *error);

/* `roofs` may be NULL. The session's max_prompt and batch must hold the workload. */
openpi_status bench_run(openpi_session *session, const bench_workload *workload, const bench_roofs *roofs, bench_report *report,
                        openpi_error *error);

/* Anonymous and peak resident bytes of this process now; 0 where the system does not say. */
void bench_memory(uint64_t *anonymous, uint64_t *peak);

#endif
