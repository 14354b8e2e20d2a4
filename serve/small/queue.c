/* See queue.h. */
#include "queue.h"

void queue_open(queue *q) {
    *q = (queue){.first = NULL};
    pthread_mutex_init(&q->lock, NULL);
}

void queue_close(queue *q) { pthread_mutex_destroy(&q->lock); }

void queue_put(queue *q, job *job, void (*first)(struct job *job)) {
    job->next = NULL;
    pthread_mutex_lock(&q->lock);
    if (first) first(job);
    if (q->last) q->last->next = job;
    else q->first = job;
    q->last = job;
    pthread_mutex_unlock(&q->lock);
}

job *queue_take_all(queue *q) {
    pthread_mutex_lock(&q->lock);
    job *list = q->first;
    q->first = q->last = NULL;
    pthread_mutex_unlock(&q->lock);
    return list;
}
