/* A fixed pool of worker threads for short parallel loops.
 *
 * The thread that calls pool_run works too, as one of `threads`. Several threads may call pool_run at once:
 * their loops take turns. Whoever waits, a worker for the next loop or the caller for the last task, spins
 * a few microseconds (loops follow each other closely during an inference) and then sleeps.
 *
 * Workers block every signal. They have the scheduling policy and priority of the thread that calls
 * pool_create; a caller with a higher one does not starve them, for it sleeps while they hold its tasks. */
#ifndef BASE_THREADS_H
#define BASE_THREADS_H

#include "openpi.h"

typedef struct pool pool;

/* `task` from 0 to tasks-1, each once, handed out in ascending order; `worker` from 0 to threads-1 is the
 * caller's index of per-worker scratch: no two tasks of one loop run under the same worker at once. */
typedef void (*pool_task)(void *argument, int task, int worker);

/* threads 0: as many as the process may use. pin: worker i on the i-th allowed processor (the calling
 * thread is never pinned). */
openpi_status pool_create(int threads, int pin, pool **out, openpi_error *error);
/* In a forked child too, where the threads are not: pool_run may not be called there. */
void pool_close(pool *pool);

int pool_threads(const pool *pool);

/* Returns when every task is done. Allocates nothing. */
void pool_run(pool *pool, pool_task task, void *argument, int tasks);

#endif
