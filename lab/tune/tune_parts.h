/* Inside tuning: what tune.c (plans, winners in place) and tune_shape.c (the candidates of one shape) share.
 */
#ifndef MEASURE_TUNE_PARTS_H
#define MEASURE_TUNE_PARTS_H

#include "lab/tune/tune.h"
#include "lab/measure/workload.h"
#include "openpi_internal.h"

/* A session whose buffers hold a call, and a copy of its ops whose choices may differ from the session's. */
typedef struct tune_bench {
    tune *tune;
    openpi_session *session;
    device *device;
    workload_inputs inputs;
    int cameras;
    op *ops;                     /* [plan count] the plan's, with the choices so far                      */
    void *work;
    size_t work_bytes;
    size_t cache_bytes;
} tune_bench;

enum { TUNE_ROUNDS = 64 };       /* most rounds of a comparison */

typedef struct tune_run {
    op *ops;
    int count;
    struct recording *recording; /* NULL: the device runs them one by one                                 */
} tune_run;

/* Grows the work block for these ops. Recordings keep its address, so this precedes the first recording. */
openpi_status tune_hold_work(tune_bench *b, const op *ops, int count, openpi_error *error);
openpi_status tune_prepare(tune_bench *b, tune_run *r, openpi_error *error);
void tune_forget(tune_bench *b, tune_run *r);
/* stages may be NULL. */
openpi_status tune_run_once(tune_bench *b, const tune_run *r, double *ms, double *stages,
                            openpi_error *error);
/* Rounds of `round_ms` that fit into `limit_ms`: 3 at least (a median), `most` at most. */
int tune_rounds_within(double limit_ms, double round_ms, int most);

/* Two versions that ran by turns, base and trial. */
typedef struct paired {
    double gain, spread;         /* pairs' differences: median, standard deviation without outliers         */
    int rounds, slower;          /* rounds in which the trial was slower                                  */
} paired;
paired tune_paired(const double *base, const double *trial, int rounds);
/* 1: the trial's gain exceeds the spread of the pairs; else it is noise. */
int tune_gains(const paired *p);
double tune_median(const double *times, int count);

/* The op's shape, with the number of cameras where it changes the rows in use or the keys and sessions choose
 * by it. */
tuning_key tune_key(const tune_bench *b, const op *op);
/* The time of plan->ops[index] at the roofs with the rows of the latest call; 0: a roof is unknown. */
double tune_op_us(const tune_bench *b, int index);
/* The same of so many operations and bytes. */
double tune_roof_us(const tune *t, dtype type, double flops, double bytes);
/* Times every choice for ops[index]'s shape, which `calls` ops of the plan have, and adds the row. */
openpi_status tune_measure_shape(tune_bench *b, int index, const tuning_key *key, int calls,
                                 openpi_error *error);

#endif
