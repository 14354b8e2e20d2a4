/* See prepare.h. */
#include "prepare.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alert.h"
#include "clock.h"
#include "fail.h"
#include "rtc.h"
#include "thread.h"

enum { THREADS_MOST = 64, DIMS = OPENPI_ACTION_DIM };

typedef struct line {
    job *first, *last;
} line;

struct prepare {
    prepare_options options;
    pthread_t threads[THREADS_MOST];
    int thread_count;
    pthread_mutex_t lock;        /* of what follows                                                        */
    pthread_cond_t changed;
    alert coming;                /* of its own: jobs                                                       */
    int looking;                 /* threads that look for one                                              */
    line waiting[2];             /* shared, reserved                                                       */
    model *model;                /* that requests are prepared for                                         */
    openpi_request **free;       /* [free_count], of that model                                            */
    int free_count, made;        /* made: of all models                                                    */
    int ended;
};

/* ---- what waits, and what it waits for -------------------------------------------------------------- */

static job *first_of(line *line) {
    job *job = line->first;
    line->first = job->next;
    if (!line->first) line->last = NULL;
    job->next = NULL;
    return job;
}

/* Gives the job a request of the model; NULL where there has to be one more. With the lock held. */
static void give_request(prepare *p, job *job, model *model) {
    job->model = model_hold(model);
    job->model_number = model->number;
    job->request = model == p->model && p->free_count ? p->free[--p->free_count] : NULL;
    if (!job->request) p->made++;
}

/* One thread does. With the lock held, but not while it looks. */
static void look(prepare *p) {
    unsigned long long seen = atomic_load(&p->coming.came);
    p->looking = 1;
    pthread_mutex_unlock(&p->lock);
    alert_look(&p->coming, seen);
    pthread_mutex_lock(&p->lock);
    p->looking = 0;
}

/* Waits for a job that may be prepared, and gives it a request. NULL at the end. */
static job *take(prepare *p) {
    job *job = NULL;
    pthread_mutex_lock(&p->lock);
    while (!p->ended && !job) {
        if (p->waiting[1].first) job = first_of(&p->waiting[1]);
        else if (p->waiting[0].first && (p->free_count || p->made < p->options.most))
            job = first_of(&p->waiting[0]);
        else if (!p->waiting[0].first && !p->looking && alert_is_on(&p->coming)) look(p);
        else pthread_cond_wait(&p->changed, &p->lock);
    }
    if (job) give_request(p, job, p->model);
    pthread_mutex_unlock(&p->lock);
    return job;
}

/* One more for the pool, which give_request has counted. */
static openpi_status make_request(prepare *p, job *job, openpi_error *error) {
    openpi_status status = openpi_request_create(job->model->policy, &job->request, error);
    if (status == OPENPI_OK) openpi_request_borrow(job->request, 1);       /* the job keeps its message     */
    pthread_mutex_lock(&p->lock);
    openpi_request **larger = NULL;
    if (status == OPENPI_OK) {
        larger = realloc(p->free, (size_t)p->made * sizeof(openpi_request *));
        if (!larger) status = fail(error, OPENPI_NO_MEMORY, "out of memory: the pool of requests");
    }
    if (larger) p->free = larger;
    if (status != OPENPI_OK) p->made--;
    pthread_mutex_unlock(&p->lock);
    if (status == OPENPI_OK) return status;
    openpi_request_close(job->request);
    job->request = NULL;
    return status;
}

void prepare_put(prepare *p, job *job) {
    line *line = &p->waiting[job->reserved];
    job->next = NULL;
    pthread_mutex_lock(&p->lock);
    int others = p->waiting[0].first || p->waiting[1].first;   /* who looks takes one of them               */
    if (line->last) line->last->next = job;
    else line->first = job;
    line->last = job;
    alert_end(&p->coming);
    if (!p->looking || others) pthread_cond_signal(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

void prepare_expect(prepare *p) {
    if (alert_raise(&p->coming)) pthread_cond_signal(&p->changed);
}

/* A request of a model that is no longer served is closed. */
void prepare_release(prepare *p, job *job) {
    openpi_request *request = job->request;
    model *model = job->model;
    if (!model) return;
    job->request = NULL;
    job->model = NULL;
    pthread_mutex_lock(&p->lock);
    int keep = request && model == p->model;
    if (keep) p->free[p->free_count++] = request;
    else if (request) p->made--;
    pthread_cond_signal(&p->changed);
    pthread_mutex_unlock(&p->lock);
    if (!keep) openpi_request_close(request);
    model_drop(model);
}

void prepare_renew(prepare *p, model *model) {
    pthread_mutex_lock(&p->lock);
    struct model *before = p->model;
    openpi_request **closing = p->free;
    int count = p->free_count;
    p->model = model_hold(model);
    p->free = NULL;
    p->free_count = 0;
    p->made -= count;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < count; i++) openpi_request_close(closing[i]);
    free(closing);
    model_drop(before);
}

/* ---- preparing -------------------------------------------------------------------------------------- */

/* The deadline; real-time chunking; the request's own noise, or what a session of one sample draws in its
 * call of this number. */
static openpi_status set_extras(const prepare *p, job *job, openpi_error *error) {
    openpi_extras extras = OPENPI_EXTRAS_INIT;
    int horizon = job->model->horizon;
    size_t count = (size_t)horizon * DIMS;
    SERVE_TRY(openpi_request_extras(job->request, &extras, error));
    job->deadline_ms = extras.deadline_ms;
    SERVE_TRY(rtc_prepare(&job->model->rtc, &extras, job, error));
    if (!extras.noise) {
        openpi_noise(p->options.seed, job->order * OPENPI_MAX_BATCH, job->noise, count);
        return OPENPI_OK;
    }
    if (extras.noise_rows != horizon)
        return fail(error, OPENPI_BAD_INPUT,
                    "\"openpi/noise\" of the request has the shape [%d,%d], expected [%d,%d]: the horizon is "
                    "%d", extras.noise_rows, DIMS, horizon, DIMS, horizon);
    memcpy(job->noise, extras.noise, count * sizeof *job->noise);
    return OPENPI_OK;
}

static openpi_status prepare_job(prepare *p, job *job, openpi_error *error) {
    if (!job->request) SERVE_TRY(make_request(p, job, error));
    SERVE_TRY(openpi_request_prepare_msgpack(job->request, job->bytes, job->count, NULL, error));
    const char *note = openpi_request_note(job->request, 0, NULL);
    job->truncated = openpi_request_prompt_truncated(job->request);
    snprintf(job->note, sizeof job->note, "%s", note ? note : "");
    job->sample = (openpi_sample)OPENPI_SAMPLE_INIT;
    SERVE_TRY(openpi_request_sample(job->request, &job->sample, error));
    snapshot_see(job->snapshot, &job->sample);
    return set_extras(p, job, error);
}

static openpi_status prepare_or_refuse(prepare *p, job *job) {
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_status status = prepare_job(p, job, &error);
    if (status == OPENPI_OK) return status;
    prepare_release(p, job);
    job_refuse(job, status, error.message);
    return status;
}

openpi_status prepare_again(prepare *p, job *job, model *model) {
    prepare_release(p, job);
    pthread_mutex_lock(&p->lock);
    give_request(p, job, model);
    pthread_mutex_unlock(&p->lock);
    return prepare_or_refuse(p, job);
}

static void *run(void *argument) {
    prepare *p = argument;
    job *job;
    while ((job = take(p))) {
        job->at_ms[MOMENT_PREPARE] = clock_now();
        p->options.preparing(p->options.user);
        openpi_status status = prepare_or_refuse(p, job);
        job->at_ms[MOMENT_PREPARED] = clock_now();
        if (status == OPENPI_OK) p->options.prepared(p->options.user, job);
        else p->options.refused(p->options.user, job);
    }
    return NULL;
}

/* ---- opening and closing ---------------------------------------------------------------------------- */

static openpi_status start(prepare *p, openpi_error *error) {
    while (p->thread_count < p->options.threads && p->thread_count < THREADS_MOST) {
        pthread_t *thread = &p->threads[p->thread_count];
        SERVE_TRY(serve_thread_start(thread, run, p, "prepare", "a thread that prepares requests", error));
        p->thread_count++;
    }
    return OPENPI_OK;
}

openpi_status prepare_open(const prepare_options *options, prepare **out, openpi_error *error) {
    prepare *made = calloc(1, sizeof *made);
    if (!made) return fail(error, OPENPI_NO_MEMORY, "out of memory: the pool of requests");
    made->options = *options;
    made->model = model_hold(options->model);
    alert_open(&made->coming);
    pthread_mutex_init(&made->lock, NULL);
    pthread_cond_init(&made->changed, NULL);
    openpi_status status = start(made, error);
    if (status == OPENPI_OK) *out = made;
    else prepare_close(made);
    return status;
}

void prepare_end(prepare *p) {
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    p->ended = 1;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    while (p->thread_count) pthread_join(p->threads[--p->thread_count], NULL);
}

void prepare_close(prepare *p) {
    if (!p) return;
    prepare_end(p);
    for (int i = 0; i < p->free_count; i++) openpi_request_close(p->free[i]);
    free(p->free);
    model_drop(p->model);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->changed);
    free(p);
}
