/* A queue of jobs from many threads to one that never waits, first in, first out. */
#ifndef SERVE_QUEUE_H
#define SERVE_QUEUE_H

#include <pthread.h>

#include "serve/job.h"

typedef struct queue {
    pthread_mutex_t lock;
    job *first, *last;
} queue;

void queue_open(queue *queue);
void queue_close(queue *queue);

/* `first`, where it is not NULL, is called with the job while the queue is locked: whoever has seen what it
 * did, and then takes all jobs, gets this one too. */
void queue_put(queue *queue, job *job, void (*first)(struct job *job));
/* All jobs that are there, in order, or NULL. */
job *queue_take_all(queue *queue);

#endif
