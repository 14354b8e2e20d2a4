/* What the server counts about itself, and the text of it that Prometheus reads (docs/serve-admin.md).
 *
 * A request passes moments, in this order, and the time from one to the next is a stage:
 *
 *   FIRST_BYTE  receive  ARRIVED  turn  TURN  prepare_wait  PREPARE  prepare  PREPARED  queue  RUN  run  RAN
 *   send  SENT
 *
 * A moment that a request did not reach is 0, and the two stages around it are not counted.
 *
 * Pure: nothing here knows clocks, sockets or threads, but that one lock lets every thread report. No label
 * has a value that a client chooses. */
#ifndef SERVE_METRICS_H
#define SERVE_METRICS_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "openpi.h"
#include "serve/who/drops.h"
#include "process.h"
#include "serve/schedule/scheduler.h"
#include "serve/small/text.h"

typedef enum moment {
    MOMENT_FIRST_BYTE,
    MOMENT_ARRIVED,              /* the last byte                                                          */
    MOMENT_TURN,                 /* the connection's request before is answered                            */
    MOMENT_PREPARE,              /* a prepare thread begins                                                */
    MOMENT_PREPARED,
    MOMENT_RUN,                  /* its batch begins                                                       */
    MOMENT_RAN,
    MOMENT_SENT,                 /* the kernel has all of the reply                                        */
    MOMENTS
} moment;

enum { METRICS_LIMITS = 4 };     /* min, max, max_step, max_start_jump                                      */
enum { METRICS_STAGES = MOMENTS - 1 };         /* stage i: from moment i to moment i + 1                   */

typedef enum request_result {
    REQUEST_OK,
    REQUEST_REFUSED,             /* it does not fit: a sentence                                            */
    REQUEST_LATE,                /* not computed because of its deadline                                   */
    REQUEST_FAILED,              /* the server or its device could not                                     */
    REQUEST_STOPPED,             /* its actions are beyond a limit of the robot, and none were sent        */
    REQUEST_GONE,                /* its connection has left                                                */
    REQUEST_RESULTS
} request_result;

typedef enum rejection {         /* why somebody got no WebSocket                                          */
    REJECTED_TOKEN,
    REJECTED_CONNECTIONS,        /* --max-connections                                                      */
    REJECTED_ADDRESS,            /* --max-per-address                                                      */
    REJECTED_RESERVED,           /* too many calls a second are reserved                                   */
    REJECTED_ATTEMPTS,           /* --max-attempts                                                         */
    REJECTED_ORIGIN,             /* a web page that --allow-origin does not name                           */
    REJECTIONS
} rejection;

enum { HISTOGRAM_BOUNDS = 24 };

typedef struct histogram {
    uint64_t counts[HISTOGRAM_BOUNDS + 1];     /* each bucket's alone; the last is above all bounds        */
    uint64_t count;
    double sum;
} histogram;

typedef enum shadow_result {     /* what became of a request that --shadow was to compute again            */
    SHADOW_WITHIN,               /* the bound                                                              */
    SHADOW_ABOVE,
    SHADOW_LEFT_OUT,             /* robots would have waited, or the model was being loaded                */
    SHADOW_FAILED,
    SHADOW_RESULTS
} shadow_result;

/* How far a chunk is from the shadow's. */
typedef struct metrics_shadow {
    double rms, max;             /* in σ                                                                   */
    double robot_max;            /* in the robot's units                                                   */
} metrics_shadow;

typedef struct metrics_device {
    char name[32];               /* "cuda:0"                                                               */
    double busy_seconds;
} metrics_device;

/* Numbers that 8-bit codes could not say (openpi_session_info.w8_clipped …). */
typedef struct metrics_lost {
    uint64_t clipped, rows, not_finite;
} metrics_lost;

/* What has been counted so far. */
typedef struct metrics_counts {
    uint64_t requests[SCHEDULER_CLASSES][REQUEST_RESULTS];
    uint64_t rejected[REJECTIONS];
    uint64_t dropped[DROP_REASONS];
    uint64_t received_bytes, sent_bytes;       /* messages without the frames around them                  */
    histogram duration;          /* seconds from ARRIVED to SENT, of all that were answered                */
    histogram queue;             /* seconds from PREPARED to RUN                                           */
    histogram stages[METRICS_STAGES];
    histogram batch, message_bytes, rtc_delay;
    uint64_t truncated;          /* prompts that were cut                                                  */
    uint64_t kept;               /* calls whose prefix was kept                                            */
    metrics_lost lost;
    uint64_t limited;            /* replies whose actions a limit of the robot changed                     */
    uint64_t beyond[METRICS_LIMITS];           /* numbers that were beyond a limit, by its kind            */
    uint64_t updated[2];         /* updates of weights that were refused; that were done                   */
    uint64_t recorded[2];        /* requests that a recording left out; that it has                        */
    uint64_t shadow[SHADOW_RESULTS];
    histogram shadow_rms, shadow_max;          /* where it was computed                                     */
    double shadow_robot_max;     /* the largest so far                                                     */
    metrics_device devices[SCHEDULER_DEVICES];
    int device_count;
} metrics_counts;

typedef struct metrics {
    pthread_mutex_t lock;
    metrics_counts counts;
} metrics;

void metrics_open(metrics *metrics);
void metrics_close(metrics *metrics);
/* Before any thread reports. */
void metrics_add_device(metrics *metrics, const char *name);

/* ---- what happens, from any thread --------------------------------------------------------------- */

typedef struct metrics_request {
    scheduler_class class;
    request_result result;
    const double *at_ms;         /* [MOMENTS]                                                              */
    size_t bytes;                /* its message's                                                          */
    int rtc_delay;               /* steps that its chunk was computed for; negative: none                  */
    int truncated;               /* 1: its prompt was cut                                                  */
    const openpi_limited *limited;             /* what the robot's limits did; NULL: nothing               */
} metrics_request;

/* A request was answered, or will not be. */
void metrics_add_request(metrics *metrics, const metrics_request *request);
void metrics_add_batch(metrics *metrics, int device, int requests, double seconds);
void metrics_add_kept(metrics *metrics, int calls);
void metrics_add_lost(metrics *metrics, metrics_lost lost);
void metrics_add_rejected(metrics *metrics, rejection reason);
void metrics_add_dropped(metrics *metrics, drop_reason reason);
/* 1: weights were replaced; 0: that was refused. */
void metrics_add_updated(metrics *metrics, int done);
/* 1: a request is in a recording; 0: it was left out. */
void metrics_add_recorded(metrics *metrics, int written);
/* `difference`: of WITHIN and ABOVE, else NULL. */
void metrics_add_shadow(metrics *metrics, shadow_result result, const metrics_shadow *difference);
void metrics_add_received(metrics *metrics, size_t bytes);
void metrics_add_sent(metrics *metrics, size_t bytes);

/* ---- what it knows ------------------------------------------------------------------------------- */

/* What is not counted but is as it is now. */
typedef struct metrics_now {
    int connections;
    int queued[SCHEDULER_CLASSES];
    process process;
    const char *version;
    int notes, warnings;         /* the running model's; a warning is no note here                         */
} metrics_now;

metrics_counts metrics_get(metrics *metrics);
/* Appends the text format of Prometheus, version 0.0.4. */
void metrics_write(const metrics_counts *counts, const metrics_now *now, text *out);

const char *metrics_class(scheduler_class class);
const char *metrics_stage(int stage);
const char *metrics_result(request_result result);

#endif
