/* Queues of jobs between threads, first in, first out. */
#ifndef SERVE_QUEUE_H
#define SERVE_QUEUE_H

#include <pthread.h>

#include "job.h"

typedef struct queue {
    pthread_mutex_t lock;
    pthread_cond_t filled;
    job *first, *last;
    int closed;
} queue;

void queue_open(queue *queue);
void queue_close(queue *queue);

void queue_put(queue *queue, job *job);
/* Waits for a job; NULL once the queue has ended. */
job *queue_take(queue *queue);
/* All jobs that are there, in order, or NULL. Never waits. */
job *queue_take_all(queue *queue);
/* From now on queue_take gives NULL. */
void queue_end(queue *queue);

#endif
