/* See queue.h. */
#include "queue.h"

void queue_open(queue *q) {
    *q = (queue){.first = NULL};
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->filled, NULL);
}

void queue_close(queue *q) {
    pthread_mutex_destroy(&q->lock);
    pthread_cond_destroy(&q->filled);
}

void queue_put(queue *q, job *job) {
    job->next = NULL;
    pthread_mutex_lock(&q->lock);
    if (q->last) q->last->next = job;
    else q->first = job;
    q->last = job;
    pthread_cond_signal(&q->filled);
    pthread_mutex_unlock(&q->lock);
}

job *queue_take(queue *q) {
    pthread_mutex_lock(&q->lock);
    while (!q->first && !q->closed) pthread_cond_wait(&q->filled, &q->lock);
    job *job = q->closed ? NULL : q->first;
    if (job) {
        q->first = job->next;
        if (!q->first) q->last = NULL;
        job->next = NULL;
    }
    pthread_mutex_unlock(&q->lock);
    return job;
}

job *queue_take_all(queue *q) {
    pthread_mutex_lock(&q->lock);
    job *list = q->first;
    q->first = q->last = NULL;
    pthread_mutex_unlock(&q->lock);
    return list;
}

void queue_end(queue *q) {
    pthread_mutex_lock(&q->lock);
    q->closed = 1;
    pthread_cond_broadcast(&q->filled);
    pthread_mutex_unlock(&q->lock);
}
