/* A runner: the schedule on the control thread, and a thread that computes chunks (runner_thread.c).
 *
 *   any thread        observes               -> sights -> the runner's thread
 *   runner's thread   computes               -> chunks -> the control thread
 *   control thread    schedule_next          -> the board, which the others read
 *
 * Nothing that the control thread does takes a lock. */
#ifndef RUNNER_RUNNER_H
#define RUNNER_RUNNER_H

#include <pthread.h>
#include <semaphore.h>

#include "policy/policy.h"
#include "runner/arm.h"
#include "runner/exchange.h"
#include "runner/fields.h"
#include "runner/schedule.h"
#include "runner/watch.h"

enum { RUNNER_LATENCIES = 10 };

/* What is asked of the control thread. */
enum { WISH_NONE, WISH_STOP, WISH_RESUME };

struct openpi_runner {
    openpi_runner_options options;                     /* nothing is left to its default                  */
    arm arm;
    openpi_source source;
    const openpi_policy *keys;   /* which request keys are what                                           */
    openpi_policy *own_keys;     /* over a source: a policy that has nothing but the robot; else NULL     */
    /* The control thread's. */
    schedule schedule;
    uint64_t offered;            /* the newest chunk that came                                            */
    /* Between the threads. */
    exchange chunks, sights;
    schedule_chunk chunk[EXCHANGE_PLACES];
    sight sight[EXCHANGE_PLACES];
    pthread_mutex_t observing;   /* one observer at a time                                                */
    sem_t wake; /* wakes the runner's thread                                                */
    pthread_t thread;
    atomic_int closing, wish;
    atomic_int camera, trouble;  /* openpi_reason: of the cameras, of the source                          */
    atomic_int wants;            /* 1: an observation waits for its time to be computed                   */
    atomic_uint cancels;
    _Atomic uint64_t cancelled;  /* calls that were given up                                              */
    _Atomic double newest;       /* when the newest observation was taken                                  */
    /* The board: written by the control thread. */
    _Atomic double now;          /* its last call's; -infinite: none                                     */
    _Atomic uint64_t seen, in_use;                     /* the newest chunk offered; the newest that is used */
    _Atomic uint64_t ticks, holds, refused, limited;
    _Atomic double held_ms;      /* the robot was held so long in all                                     */
    atomic_int held_reason;      /* openpi_reason, at last                                                */
    atomic_int delay;
    /* The newest chunk: written by the runner's thread. */
    _Atomic uint64_t board_published, board_base;      /* its number, 0: none; its base                   */
    atomic_int board_rows;
    /* The runner's thread's. */
    watch watch;
    fields fields;
    uint64_t published, published_base;                /* the newest chunk                                 */
    int published_rows;
    double held_told;            /* what the source was told so far                                      */
    double latencies[RUNNER_LATENCIES];                /* ms                                              */
    uint64_t answered;           /* calls that gave a chunk                                               */
    double retry_at;             /* no call before, by clock_ms                                           */
    /* What openpi_runner_get_info tells. */
    pthread_mutex_t telling;
    openpi_runner_info told;
};

/* The runner's thread, until `closing`. */
void *runner_main(void *runner);
/* 1: the newest observation is to be computed. On the control thread and the runner's. */
int runner_due(openpi_runner *runner);

#endif
