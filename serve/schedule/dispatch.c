/* See dispatch.h. */
#include "dispatch.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "serve/small/alert.h"
#include "serve/small/clock.h"
#include "serve/small/fail.h"
#include "serve/small/thread.h"

typedef struct device_worker {
    dispatch *dispatch;
    int number;                  /* the device's                                                           */
    pthread_t thread;
    job *jobs[BATCH_TIMES_MAX];  /* being computed                                                         */
    int count;
    int64_t began;               /* when the batch that runs did; 0: none does. Of the lock                */
    serve_device *next;          /* dispatch_renew: takes the device's place, then is the one before       */
    int renewed;                 /* 1: it has taken it                                                     */
} device_worker;

struct dispatch {
    dispatch_options options;
    scheduler *scheduler;
    pthread_mutex_t lock;        /* guards the scheduler, `ended`, the devices and the workers' `next`, and
                                    of jobs' `submitted` and `abandoned`                                   */
    pthread_cond_t changed;
    alert coming;                /* its own requests                                                       */
    int ended;
    uint64_t model_number;       /* that jobs have to be prepared for; of the lock                         */
    device_worker workers[SCHEDULER_DEVICES];
    int started;
};

/* ---- a device's thread ------------------------------------------------------------------------------ */

/* Copies the action's jobs, which the scheduler forgets when it is asked again. */
static void take(device_worker *w, const scheduler_action *action) {
    w->count = action->count;
    for (int i = 0; i < action->count; i++) {
        w->jobs[i] = action->requests[i];
        if (action->samples) w->jobs[i]->turn = action->samples[i];
    }
}

static void answer(device_worker *w) {
    const dispatch_options *o = &w->dispatch->options;
    for (int i = 0; i < w->count; i++)
        if (w->jobs[i]) o->answered(o->user, w->jobs[i]);
}

/* After a call, with the lock held: jobs that have their answer, or whose connection has left, are answered;
 * what has failed is not computed further. The others stay with the scheduler, for another call; those that
 * were taken from it meanwhile are listed in *again, to be prepared anew. */
static void keep_unfinished(device_worker *w, job **again) {
    for (int i = 0; i < w->count; i++) {
        job *job = w->jobs[i];
        job->running = 0;
        if (job_is_over(job)) {
            if (job->part_count && job->submitted && !job->abandoned)
                scheduler_forget_request(w->dispatch->scheduler, job->number, job);
            continue;
        }
        if (job->abandoned) continue;
        w->jobs[i] = NULL;
        if (job->submitted) continue;
        job->next = *again;
        *again = job;
    }
}

static void refuse_late(device_worker *w) {
    for (int i = 0; i < w->count; i++) {
        char sentence[160];
        snprintf(sentence, sizeof sentence,
                 "the reply would come later than the %g ms that \"openpi/deadline_ms\" of the request "
                 "allows", w->jobs[i]->deadline_ms);
        job_refuse(w->jobs[i], OPENPI_BAD_INPUT, sentence);
        w->jobs[i]->result = REQUEST_LATE;
    }
}

/* Until the time comes, or something happens. */
static void sleep_until(dispatch *d, int64_t until) {
    if (until == SCHEDULER_NEVER) {
        pthread_cond_wait(&d->changed, &d->lock);
        return;
    }
    struct timespec at = {.tv_sec = until / 1000000000, .tv_nsec = until % 1000000000};
    pthread_cond_timedwait(&d->changed, &d->lock, &at);
}

/* As sleep_until; looks for a request where one is about to come. */
static void wait(dispatch *d, int64_t until) {
    if (until != SCHEDULER_NEVER || !alert_is_on(&d->coming)) {
        sleep_until(d, until);
        return;
    }
    unsigned long long seen = atomic_load(&d->coming.came);
    pthread_mutex_unlock(&d->lock);
    alert_look(&d->coming, seen);
    pthread_mutex_lock(&d->lock);
}

static void stamp(device_worker *w, moment moment, double now) {
    for (int i = 0; i < w->count; i++) w->jobs[i]->at_ms[moment] = now;
}

/* With the lock held, between two calls. The device that is replaced is left in `next` for dispatch_renew. */
static void renew(device_worker *w) {
    dispatch *d = w->dispatch;
    if (!w->next || w->renewed) return;
    serve_device *before = d->options.devices[w->number];
    d->options.devices[w->number] = w->next;
    w->next = before;
    w->renewed = 1;
    scheduler_measured(d->scheduler, w->number, device_times(d->options.devices[w->number]));
    pthread_cond_broadcast(&d->changed);
}

static int batch_samples(const device_worker *w) {
    int samples = 0;
    for (int i = 0; i < w->count; i++) samples += w->jobs[i]->turn ? w->jobs[i]->turn : 1;
    return samples;
}

/* With the lock held, which it gives up while it computes. */
static void run_batch(device_worker *w) {
    dispatch *d = w->dispatch;
    serve_device *device = d->options.devices[w->number];
    openpi_error error = OPENPI_ERROR_INIT;
    job *next, *again = NULL;
    w->began = clock_ns();
    for (int i = 0; i < w->count; i++) w->jobs[i]->running = 1;
    pthread_mutex_unlock(&d->lock);
    double begin = clock_now();
    stamp(w, MOMENT_RUN, begin);
    openpi_status status = device_run(device, w->jobs, w->count, &error);
    double end = clock_now();
    stamp(w, MOMENT_RAN, end);
    metrics_add_batch(d->options.metrics, w->number, batch_samples(w), (end - begin) * 1e-3);
    int kept = device_kept(device);
    metrics_add_kept(d->options.metrics, kept);
    metrics_add_lost(d->options.metrics, device_losses(device));
    pthread_mutex_lock(&d->lock);
    if (kept) scheduler_shorter(d->scheduler, w->number);
    w->began = 0;
    scheduler_finish(d->scheduler, w->number, clock_ns());
    keep_unfinished(w, &again);
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
    answer(w);
    for (; again; again = next) {
        next = again->next;
        d->options.again(d->options.user, again);
    }
    if (status == OPENPI_DEVICE_LOST) d->options.lost(d->options.user, error.message);
    pthread_mutex_lock(&d->lock);
}

static void *run(void *argument) {
    device_worker *w = argument;
    dispatch *d = w->dispatch;
    pthread_mutex_lock(&d->lock);
    while (!d->ended) {
        renew(w);
        scheduler_action action = scheduler_next(d->scheduler, w->number, clock_ns());
        take(w, &action);
        switch (action.verb) {
        case SCHEDULER_RUN: run_batch(w); break;
        case SCHEDULER_LATE:
            pthread_mutex_unlock(&d->lock);
            refuse_late(w);
            answer(w);
            pthread_mutex_lock(&d->lock);
            break;
        case SCHEDULER_WAIT: wait(d, action.until); break;
        }
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

/* What the worker's batch takes at most; with the lock held. */
static int64_t usual_time(const device_worker *w, const batch_times *times) {
    int samples = w->count == 1 ? w->jobs[0]->samples : 0, all = batch_samples(w);
    return samples ? samples * times->ns[1] : times->ns[all < times->largest ? all : times->largest];
}

int dispatch_hung(dispatch *d, int64_t patience, int64_t now) {
    int hung = -1;
    pthread_mutex_lock(&d->lock);
    for (int i = 0; i < d->started && hung < 0; i++) {
        const device_worker *w = &d->workers[i];
        if (!w->began) continue;
        int64_t ran = now - w->began, usual = usual_time(w, device_times(d->options.devices[i]));
        if (ran > patience && ran / DISPATCH_SLOW > usual) hung = i;
    }
    pthread_mutex_unlock(&d->lock);
    return hung;
}

/* ---- connections and jobs --------------------------------------------------------------------------- */

scheduler_joined dispatch_join(dispatch *d, scheduler_class class, double rate, int other, int *number) {
    pthread_mutex_lock(&d->lock);
    int64_t now = clock_ns();
    scheduler_joined joined = other < 0 ? scheduler_join(d->scheduler, class, rate, now, number)
                                        : scheduler_join_token(d->scheduler, other, now, number);
    pthread_mutex_unlock(&d->lock);
    return joined;
}

scheduler_state dispatch_state(dispatch *d) {
    pthread_mutex_lock(&d->lock);
    scheduler_state state = scheduler_get_state(d->scheduler);
    pthread_mutex_unlock(&d->lock);
    return state;
}

int dispatch_quiet(dispatch *d, int device, int64_t ns) {
    pthread_mutex_lock(&d->lock);
    int quiet = !alert_is_on(&d->coming) && scheduler_quiet(d->scheduler, device, ns, clock_ns());
    pthread_mutex_unlock(&d->lock);
    return quiet;
}

job *dispatch_leave(dispatch *d, int number, job *running) {
    pthread_mutex_lock(&d->lock);
    job *queued = scheduler_leave(d->scheduler, number, clock_ns());
    if (running && !queued) running->abandoned = 1;            /* it may come back to be prepared anew      */
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
    return queued;
}

/* Jobs that wait, as a list; each may be abandoned from now on. With the lock held. */
static job *withdraw_all(dispatch *d) {
    job *list = NULL, *job;
    while ((job = scheduler_withdraw(d->scheduler))) {
        job->submitted = 0;
        if (job->running) continue;                  /* its thread does, when its call has ended           */
        job->next = list;
        list = job;
    }
    return list;
}

void dispatch_renew(dispatch *d, serve_device **fresh, void (*first)(void *user), void *user) {
    int left = d->options.device_count;
    pthread_mutex_lock(&d->lock);
    first(user);
    d->model_number = device_model(fresh[0])->number;
    for (int i = 0; i < d->options.device_count; i++) {
        d->workers[i].next = fresh[i];
        d->workers[i].renewed = 0;
    }
    job *next, *list = withdraw_all(d);
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
    for (; list; list = next) {
        next = list->next;
        d->options.again(d->options.user, list);
    }
    pthread_mutex_lock(&d->lock);
    while (left && !d->ended) {
        left = 0;
        for (int i = 0; i < d->options.device_count; i++) left += !d->workers[i].renewed;
        if (left) pthread_cond_wait(&d->changed, &d->lock);
    }
    for (int i = 0; i < d->options.device_count; i++) {
        fresh[i] = d->workers[i].next;
        d->workers[i].next = NULL;
    }
    pthread_mutex_unlock(&d->lock);
}

void dispatch_expect(dispatch *d) {
    if (!alert_raise(&d->coming)) return;
    pthread_mutex_lock(&d->lock);
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
}

void dispatch_submit(dispatch *d, job *job) {
    int64_t deadline = SCHEDULER_NEVER;
    if (job->deadline_ms > 0 && job->deadline_ms < 1e9)
        deadline = (int64_t)((job->at_ms[MOMENT_ARRIVED] + job->deadline_ms) * 1e6);
    pthread_mutex_lock(&d->lock);
    int old = job->model_number != d->model_number && !job->abandoned;
    int taken = !old && !job->abandoned &&
                scheduler_submit_many(d->scheduler, job->number, job, job_samples(job), job->samples > 0,
                                      deadline, clock_ns());
    job->submitted = taken;
    alert_end(&d->coming);
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
    if (old) d->options.again(d->options.user, job);
    else if (!taken) d->options.answered(d->options.user, job);
}

/* ---- opening and closing ---------------------------------------------------------------------------- */

static openpi_status start(dispatch *d, openpi_error *error) {
    const dispatch_options *o = &d->options;
    batch_times times[SCHEDULER_DEVICES];
    d->model_number = device_model(o->devices[0])->number;
    for (int i = 0; i < o->device_count; i++) times[i] = *device_times(o->devices[i]);
    scheduler_options options = {.devices = o->device_count,
                                 .times = times,
                                 .connections = o->connections,
                                 .max_block = o->max_block};
    d->scheduler = scheduler_create(&options);
    if (!d->scheduler) return fail(error, OPENPI_NO_MEMORY, "out of memory: the scheduler");
    for (; d->started < o->device_count; d->started++) {
        device_worker *w = &d->workers[d->started];
        char name[24];
        w->dispatch = d;
        w->number = d->started;
        snprintf(name, sizeof name, "device %d", w->number);
        SERVE_TRY(serve_thread_start(&w->thread, run, w, name, "the thread of a device", error));
    }
    return OPENPI_OK;
}

openpi_status dispatch_open(const dispatch_options *options, dispatch **out, openpi_error *error) {
    dispatch *made = calloc(1, sizeof *made);
    pthread_condattr_t monotonic;
    if (!made) return fail(error, OPENPI_NO_MEMORY, "out of memory: the scheduler");
    made->options = *options;
    alert_open(&made->coming);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&made->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&made->lock, NULL);
    openpi_status status = start(made, error);
    if (status == OPENPI_OK) *out = made;
    else dispatch_close(made);
    return status;
}

void dispatch_end(dispatch *d) {
    if (!d) return;
    pthread_mutex_lock(&d->lock);
    d->ended = 1;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
    while (d->started) pthread_join(d->workers[--d->started].thread, NULL);
}

void dispatch_close(dispatch *d) {
    if (!d) return;
    dispatch_end(d);
    scheduler_destroy(d->scheduler);
    pthread_mutex_destroy(&d->lock);
    pthread_cond_destroy(&d->changed);
    free(d);
}
