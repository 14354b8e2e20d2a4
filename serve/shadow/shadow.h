/* --shadow: every Nth request once more, with weights in another format, after its reply has left. What the
 * actions differ by is counted (admin/metrics.h) and logged where it is above a bound: so the error of 8-bit
 * weights is known on what the robots see today, not only on what `openpi quantize` was given.
 *
 * A thread of the lowest priority has an engine of its own. No robot waits for it: it begins only where its
 * device is quiet, one request at a time, and what it cannot take at once is left out and counted. */
#ifndef SERVE_SHADOW_SHADOW_H
#define SERVE_SHADOW_SHADOW_H

#include "serve/job.h"
#include "serve/log/log.h"
#include "serve/schedule/dispatch.h"
#include "serve/prepare.h"
#include "serve/serve.h"

typedef struct shadow shadow;

typedef struct shadow_options {
    const serve_options *serve;  /* its shadow_… fields, and what the model is loaded with                 */
    const char *device;          /* where it computes                                                      */
    int shared;                  /* the number of the server's device that this is; -1: none               */
    serve_model *model;          /* the one that is loaded first                                           */
    openpi_session_options session;
    int (*cancel)(void *user);   /* while the first model is loaded                                        */
    logger *log;
    metrics *metrics;
} shadow_options;

/* Starts the thread, and waits until it has loaded the model. */
openpi_status shadow_open(const shadow_options *options, shadow **out, openpi_error *error);
/* Before the first request, and only once. */
void shadow_begin(shadow *shadow, prepare *prepare, dispatch *dispatch);

/* The reply has left: takes a copy of the request where its turn has come. On the I/O thread. */
void shadow_put(shadow *shadow, const job *job);

/* Waits for the call that runs. Before prepare and dispatch are closed. NULL: nothing. */
void shadow_close(shadow *shadow);

/* How far two chunks are apart. */
typedef struct shadow_difference {
    double rms, max;             /* in σ, over the columns that the robot has                              */
    double robot_max;            /* in the robot's units; 0: not known                                     */
    int row, column;             /* where `max` is                                                          */
} shadow_difference;

/* [horizon][32] each, of which `columns` count. Where a number is not finite, rms and max are infinite. */
shadow_difference shadow_compare(const float *a, const float *b, int horizon, int columns);

#endif
