/* A fixed pool of worker threads for short parallel loops.
 *
 * The thread that calls pool_run works too, as one of `threads`. Several threads may call pool_run at once:
 * their loops run one after the other. A waiting thread (a worker before the next loop, the caller before the
 * last task ends) spins a few microseconds, because loops follow each other closely during an inference, and
 * then sleeps.
 *
 * Workers block every signal. They have the scheduling policy and priority of the thread that calls
 * pool_create; a caller of higher priority does not starve them, because it sleeps while they hold its tasks.
 */
#ifndef BASE_THREADS_H
#define BASE_THREADS_H

#include <pthread.h>

#include "openpi.h"

/* Starts a thread with every signal blocked, so that handlers run in the program's own threads. 0, or an
 * errno. */
int thread_start(pthread_t *thread, void *(*main)(void *argument), void *argument);

typedef struct pool pool;

/* Called once for each `task` in 0 … tasks-1, started in ascending order. `worker` in 0 … threads-1 is the
 * index of per-worker scratch: no two tasks of one loop run with the same worker at once. */
typedef void (*pool_task)(void *argument, int task, int worker);

/* threads 0: as many as the process has processors. pin 1: worker i runs on the i-th allowed processor (the
 * calling thread is never pinned). */
openpi_status pool_create(int threads, int pin, pool **out, openpi_error *error);
/* May be called in a forked child, which has none of the threads; pool_run may not. */
void pool_close(pool *pool);

int pool_threads(const pool *pool);

/* Returns when every task is done. Allocates nothing. */
void pool_run(pool *pool, pool_task task, void *argument, int tasks);

#endif
