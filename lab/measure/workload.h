/* A synthetic call: a number of samples, cameras and prompt tokens, with random contents from a seed. All
 * instruments run it. */
#ifndef MEASURE_WORKLOAD_H
#define MEASURE_WORKLOAD_H

#include "openpi.h"

typedef struct workload {
    int batch;
    uint8_t cameras[OPENPI_CAMERAS];       /* 1: the camera is there                                      */
    int prompt;                  /* tokens, at most the session's max_prompt                              */
    uint64_t seed;               /* seed for pictures, tokens, state, noise and previous chunks           */
    openpi_rtc_mode rtc;         /* real-time chunking of all samples; the session was made for it        */
    int delay;
} workload;

typedef struct workload_inputs {
    openpi_sample *samples;      /* [batch]                                                               */
    uint8_t *pixels;             /* [batch][3][224][224][3]                                               */
    int32_t *tokens;             /* [batch][prompt]                                                       */
    float *state;                /* [batch][32]                                                           */
    float *noise, *actions;      /* [batch][horizon][32]                                                  */
    float *previous;             /* the same, and                                                         */
    openpi_rtc *rtc;             /* [batch]: NULL without real-time chunking                              */
    int batch;
} workload_inputs;

/* Allocates; workload_free in any case. */
openpi_status workload_make(const openpi_session *session, const workload *workload, workload_inputs *inputs,
                            openpi_error *error);
void workload_free(workload_inputs *inputs);
/* Sets another prompt length in 1 … prompt for every sample of the next call, in an order drawn from the
 * seed: `prompt` calls in a row have every length once. `call` counts the calls; -1: the mean length for all
 * samples. */
void workload_change_prompts(workload_inputs *inputs, const workload *workload, int call);
/* One call; `timing` may be NULL. */
openpi_status workload_run(openpi_session *session, workload_inputs *inputs, openpi_timing *timing,
                           openpi_error *error);

#endif
