/* See prepare.h. */
#include "prepare.h"

#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "queue.h"
#include "thread.h"

enum { THREADS_MOST = 64, DIMS = OPENPI_ACTION_DIM };

struct prepare {
    prepare_options options;
    queue waiting;
    pthread_t threads[THREADS_MOST];
    int thread_count;
    pthread_mutex_t lock;        /* of what follows                                                        */
    pthread_cond_t returned;
    openpi_request **requests;   /* those that are free: [request_count]                                   */
    int request_count, ended;
};

static openpi_request *take_request(prepare *p) {
    pthread_mutex_lock(&p->lock);
    while (!p->request_count && !p->ended) pthread_cond_wait(&p->returned, &p->lock);
    openpi_request *request = p->ended ? NULL : p->requests[--p->request_count];
    pthread_mutex_unlock(&p->lock);
    return request;
}

void prepare_release(prepare *p, job *job) {
    if (!job->request) return;
    pthread_mutex_lock(&p->lock);
    p->requests[p->request_count++] = job->request;
    pthread_cond_signal(&p->returned);
    pthread_mutex_unlock(&p->lock);
    job->request = NULL;
}

/* The request's own noise, or what a session of one sample draws in its call of this number. */
static openpi_status set_noise(const prepare *p, job *job, openpi_error *error) {
    openpi_extras extras = OPENPI_EXTRAS_INIT;
    size_t count = (size_t)p->options.horizon * DIMS;
    SERVE_TRY(openpi_request_extras(job->request, &extras, error));
    if (!extras.noise) {
        openpi_noise(p->options.seed, job->number * OPENPI_MAX_BATCH, job->noise, count);
        return OPENPI_OK;
    }
    if (extras.noise_rows != p->options.horizon)
        return fail(error, OPENPI_BAD_INPUT,
                    "\"openpi/noise\" of the request has the shape [%d,%d], expected [%d,%d]: the horizon is "
                    "%d", extras.noise_rows, DIMS, p->options.horizon, DIMS, p->options.horizon);
    memcpy(job->noise, extras.noise, count * sizeof *job->noise);
    return OPENPI_OK;
}

static openpi_status prepare_job(const prepare *p, job *job, openpi_error *error) {
    SERVE_TRY(openpi_request_prepare_msgpack(job->request, job->bytes, job->count, NULL, error));
    job->sample = (openpi_sample)OPENPI_SAMPLE_INIT;
    SERVE_TRY(openpi_request_sample(job->request, &job->sample, error));
    return set_noise(p, job, error);
}

static void *run(void *argument) {
    prepare *p = argument;
    job *job;
    while ((job = queue_take(&p->waiting))) {
        openpi_error error = OPENPI_ERROR_INIT;
        job->request = take_request(p);
        if (!job->request) return NULL;
        openpi_status status = prepare_job(p, job, &error);
        if (status == OPENPI_OK) {
            p->options.prepared(p->options.user, job);
            continue;
        }
        prepare_release(p, job);
        job_refuse(job, status, error.message);
        p->options.refused(p->options.user, job);
    }
    return NULL;
}

static openpi_status start(prepare *p, openpi_error *error) {
    p->requests = calloc((size_t)p->options.requests, sizeof *p->requests);
    if (!p->requests) return fail(error, OPENPI_NO_MEMORY, "out of memory: the pool of requests");
    while (p->request_count < p->options.requests) {
        SERVE_TRY(openpi_request_create(p->options.policy, &p->requests[p->request_count], error));
        p->request_count++;
    }
    while (p->thread_count < p->options.threads && p->thread_count < THREADS_MOST) {
        pthread_t *thread = &p->threads[p->thread_count];
        SERVE_TRY(serve_thread_start(thread, run, p, "a thread that prepares requests", error));
        p->thread_count++;
    }
    return OPENPI_OK;
}

openpi_status prepare_open(const prepare_options *options, prepare **out, openpi_error *error) {
    prepare *made = calloc(1, sizeof *made);
    if (!made) return fail(error, OPENPI_NO_MEMORY, "out of memory: the pool of requests");
    made->options = *options;
    queue_open(&made->waiting);
    pthread_mutex_init(&made->lock, NULL);
    pthread_cond_init(&made->returned, NULL);
    openpi_status status = start(made, error);
    if (status == OPENPI_OK) *out = made;
    else prepare_close(made);
    return status;
}

void prepare_put(prepare *p, job *job) { queue_put(&p->waiting, job); }

void prepare_close(prepare *p) {
    if (!p) return;
    queue_end(&p->waiting);
    pthread_mutex_lock(&p->lock);
    p->ended = 1;
    pthread_cond_broadcast(&p->returned);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->thread_count; i++) pthread_join(p->threads[i], NULL);
    for (int i = 0; i < p->request_count; i++) openpi_request_close(p->requests[i]);
    free(p->requests);
    queue_close(&p->waiting);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->returned);
    free(p);
}
