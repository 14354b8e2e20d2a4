/* Times a session and compares the times with the machine's roofs.
 *
 * The session runs a synthetic workload (lab/measure/workload.h) repeatedly; each stage's FLOPs and weight
 * bytes come from a walk over the session's plan. */
#ifndef MEASURE_BENCH_H
#define MEASURE_BENCH_H

#include "backend/backend.h"
#include "lab/measure/figures.h"
#include "lab/measure/workload.h"

typedef struct bench_workload {
    workload call;
    int warmup, runs;
    openpi_progress progress;    /* counts runs; may be NULL                                              */
    void *progress_user;
    int changing_prompts;        /* 1: other prompt lengths in every call, see workload_change_prompts    */
} bench_workload;

/* Measured ceilings (roofs) of the device. 0: unknown. */
typedef struct bench_roofs {
    double tflops;               /* for the engine's dtype: one of the two below                          */
    double gbs;                  /* read from memory                                                      */
    double bf16_tflops, f32_tflops;        /* for the kernels' own arithmetic                             */
    double copy_gbs;             /* read and written bytes together                                       */
    double core_mhz;             /* the clock that the products ran at                                    */
} bench_roofs;

typedef struct bench_stage {
    openpi_stage stage;
    figures ms;
    double flops, weight_bytes;  /* a call                                                                */
    double tflops, gbs;          /* at the median                                                         */
    double floor_ms;             /* time of the FLOPs or weight bytes at the roofs; 0 without roofs       */
    double roof_ratio;           /* floor / median: 1 is the roof                                         */
    int memory_bound;            /* 1: the memory roof sets the floor; 0: the compute roof                */
} bench_stage;

typedef struct bench_report {
    figures host;          /* pictures, state and tokens in host memory -> actions in host memory   */
    figures device;        /* inputs and outputs on the device; the same as host on the CPU         */
    histogram host_times, device_times;
    bench_stage stages[OPENPI_STAGES];     /* those with work or time, in order                           */
    int stage_count;
    double flops, weight_bytes;  /* a call                                                                */
    double floor_ms;             /* sum of the stages'                                                    */
    uint64_t peak_bytes;         /* largest resident size of this process                                 */
    uint64_t anonymous_bytes;    /* largest anonymous memory of the samples taken between calls           */
    uint64_t session_bytes;      /* taken when the session opened                                         */
    /* after the runs, by all processes; 0: the device has no memory of its own */
    uint64_t device_used_bytes, device_total_bytes;
} bench_report;

/* The time of this work at the roof that limits it, in ms; *memory_bound 1: the memory roof does. 0 without
 * roofs. */
double bench_floor(double flops, double weight_bytes, const bench_roofs *roofs, int *memory_bound);

/* Measures the roofs of the whole device, in about a second: those of the engine's dtype, and of the other
 * dtype where the same measurement gives it. The process's peak memory is reset afterwards, so the
 * measurement does not count. All 0 where the device has no roofs (the scalar definitions). */
openpi_status bench_measure_roofs(openpi_engine *engine, bench_roofs *roofs, openpi_error *error);
/* The same for both types, whatever the engine's. */
openpi_status bench_measure_all_roofs(openpi_engine *engine, bench_roofs *roofs, openpi_error *error);

/* `roofs` may be NULL. The workload must fit the session's max_prompt and batch. With changing prompts FLOPs
 * and bytes are those of a call of the mean length. */
openpi_status bench_run(openpi_session *session, const bench_workload *workload, const bench_roofs *roofs,
                        bench_report *report, openpi_error *error);

/* Anonymous and peak resident bytes of this process; 0: unknown. */
void bench_memory(uint64_t *anonymous, uint64_t *peak);

/* Name, driver and other facts of the engine's device; zeros: unknown. */
openpi_status bench_device_facts(openpi_engine *engine, device_facts *facts, openpi_error *error);

/* A hash of the choices in the tuner's table in use, 16 hexadecimal digits; "" without a table. */
enum { BENCH_HASH = 17 };
void bench_table_hash(const openpi_engine *engine, char text[BENCH_HASH]);

#endif
