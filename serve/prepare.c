/* See prepare.h. */
#include "prepare.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/small/clock.h"
#include "serve/small/fail.h"
#include "prepare_inside.h"
#include "rtc.h"
#include "serve/small/thread.h"

enum { TRIM_MS = 4000, TRIM_MOST = 64, DIMS = OPENPI_ACTION_DIM };

/* ---- what waits, and what it waits for -------------------------------------------------------------- */

static job *first_of(lane *lane) {
    job *job = lane->first;
    lane->first = job->next;
    if (!lane->first) lane->last = NULL;
    job->next = NULL;
    return job;
}

void prepare_count(prepare *p, job *job, size_t bytes) {
    if (!p->options.in_flight) return;
    if (bytes > job->preparing_bytes) in_flight_add(p->options.in_flight, bytes - job->preparing_bytes);
    else in_flight_give(p->options.in_flight, job->preparing_bytes - bytes);
    job->preparing_bytes = bytes;
}

/* What the job may need, as far as that is known. */
static size_t needs(const prepare *p, const job *job) {
    return job->needs ? job->needs : openpi_request_bytes(p->model->policy, job->count, NULL);
}

/* Half of what is left is for messages that come. Where no other job has a request, this one gets one all the
 * same: so it goes on. */
static int fits(const prepare *p, const job *job) {
    in_flight *all = p->options.in_flight;
    if (p->jobs >= p->options.most) return 0;
    return !p->jobs || !all || needs(p, job) <= in_flight_left(all) / 2;
}

/* Gives the job a request; NULL where there has to be one more. With the lock held. */
static void give_request(prepare *p, job *job) {
    job->model = model_hold(p->model);
    job->model_number = p->model->number;
    memcpy(job->model_hash, p->model->hash, sizeof job->model_hash);
    prepare_count(p, job, needs(p, job));
    p->jobs++;
    job->request = p->free_count ? p->free[--p->free_count] : NULL;
    if (!job->request) p->made++;
    if (p->free_count < p->least_free) p->least_free = p->free_count;
}

/* ---- what threads share ------------------------------------------------------------------------------ */

static void let_reserved_pass(prepare *p) {
    if (atomic_load(&p->reserving)) serve_thread_yield();
}

/* The next part of the work. With the lock held, but not while it is done. */
static void do_part(prepare *p, work *work) {
    int part = work->begun++;
    if (work->begun == work->job->part_count) {
        struct work **at = &p->works;
        while (*at != work) at = &(*at)->next;
        *at = work->next;
    }
    pthread_mutex_unlock(&p->lock);
    work->step(p, work->job, part);
    pthread_mutex_lock(&p->lock);
    if (++work->over == work->job->part_count) pthread_cond_broadcast(&p->over);
}

void prepare_each(prepare *p, job *job, part_step *step) {
    work own = {.job = job, .step = step};
    work **at = &p->works;
    pthread_mutex_lock(&p->lock);
    while (*at && (!job->reserved || (*at)->job->reserved)) at = &(*at)->next;
    own.next = *at;
    *at = &own;
    if (job->part_count > 1) pthread_cond_broadcast(&p->lanes[SCHEDULER_SHARED].changed);
    while (own.begun < job->part_count) do_part(p, &own);
    while (own.over < job->part_count) pthread_cond_wait(&p->over, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

/* ---- threads ----------------------------------------------------------------------------------------- */

/* One thread of the lane does. With the lock held, but not while it looks. */
static void look(lane *lane) {
    unsigned long long seen = atomic_load(&lane->coming.came);
    lane->looking = 1;
    pthread_mutex_unlock(&lane->prepare->lock);
    alert_look(&lane->coming, seen);
    pthread_mutex_lock(&lane->prepare->lock);
    lane->looking = 0;
}

static void help(prepare *p) {
    let_reserved_pass(p);
    do_part(p, p->works);
}

/* Waits for a job that a thread of this lane may prepare, and gives it a request; works for others' jobs
 * meanwhile. NULL at the end. */
static job *take(lane *own) {
    prepare *p = own->prepare;
    lane *shared = &p->lanes[SCHEDULER_SHARED], *reserved = &p->lanes[SCHEDULER_RESERVED];
    job *job = NULL;
    pthread_mutex_lock(&p->lock);
    own->busy--;
    while (!p->ended && !job) {
        if (reserved->first) job = first_of(reserved);
        else if (own == shared && shared->first && fits(p, shared->first))
            job = first_of(shared);
        else if (own == shared && p->works) help(p);
        else if (!own->first && !own->looking && alert_is_on(&own->coming)) look(own);
        else pthread_cond_wait(&own->changed, &p->lock);
    }
    own->busy++;
    if (job) give_request(p, job);
    pthread_mutex_unlock(&p->lock);
    return job;
}

/* One more for the pool, which counts it already. */
static openpi_status make_request(prepare *p, const serve_model *model, openpi_request **out,
                                  openpi_error *error) {
    openpi_status status = openpi_request_create(model->policy, out, error);
    if (status == OPENPI_OK) openpi_request_borrow(*out, 1);   /* the job keeps its message                */
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
    openpi_request_close(*out);
    *out = NULL;
    return status;
}

openpi_status prepare_more(prepare *p, const serve_model *model, openpi_request **out,
                           openpi_error *error) {
    pthread_mutex_lock(&p->lock);
    int is_current = model == p->model;
    *out = is_current && p->free_count ? p->free[--p->free_count] : NULL;
    if (!*out) p->made++;
    if (p->free_count < p->least_free) p->least_free = p->free_count;
    pthread_mutex_unlock(&p->lock);
    return *out ? OPENPI_OK : make_request(p, model, out, error);
}

/* A reserved job goes to a thread of the others where its own is not free. */
void prepare_put(prepare *p, job *job) {
    lane *lane = &p->lanes[job->reserved], *shared = &p->lanes[SCHEDULER_SHARED];
    job->next = NULL;
    if (job->reserved) atomic_store(&p->reserving, 1);
    pthread_mutex_lock(&p->lock);
    int others = p->lanes[0].first || p->lanes[1].first;       /* who looks takes one of them               */
    if (lane->last) lane->last->next = job;
    else lane->first = job;
    lane->last = job;
    alert_end(&lane->coming);
    if (!lane->looking || others) pthread_cond_signal(&lane->changed);
    if (lane != shared && (lane->busy || others)) pthread_cond_signal(&shared->changed);
    pthread_mutex_unlock(&p->lock);
}

/* A message of several observations needs more than was known when it was taken. 0: more than is left. */
static int goes_on(prepare *p, job *job) {
    if (job->observations >= 0) return 1;
    if (openpi_message_observations(job->bytes, job->count, &job->observations, NULL) != OPENPI_OK)
        job->observations = -1;
    if (job->observations <= 0) return 1;
    job->needs = parts_needs(p, job);
    pthread_mutex_lock(&p->lock);
    in_flight *all = p->options.in_flight;
    int good = job->reserved || p->jobs == 1 || !all ||
               job->needs <= (in_flight_left(all) + job->preparing_bytes) / 2;
    if (good) prepare_count(p, job, job->needs);
    pthread_mutex_unlock(&p->lock);
    return good;
}

/* It waits again, as the first. */
static void put_back(prepare *p, job *job) {
    lane *lane = &p->lanes[job->reserved];
    prepare_release(p, job);
    pthread_mutex_lock(&p->lock);
    job->next = lane->first;
    lane->first = job;
    if (!lane->last) lane->last = job;
    pthread_cond_signal(&lane->changed);
    pthread_mutex_unlock(&p->lock);
}

void prepare_expect(prepare *p, int reserved) {
    lane *lane = &p->lanes[reserved];
    if (alert_raise(&lane->coming)) pthread_cond_signal(&lane->changed);
}

static void wake_all(prepare *p) {
    for (int i = 0; i < SCHEDULER_CLASSES; i++) pthread_cond_broadcast(&p->lanes[i].changed);
}

/* A request of a model that is no longer served is closed. */
static void release_request(prepare *p, const serve_model *model, openpi_request *request) {
    openpi_request_clear(request);
    pthread_mutex_lock(&p->lock);
    int keep = request && model == p->model;
    if (keep) p->free[p->free_count++] = request;
    else if (request) p->made--;
    pthread_cond_signal(&p->lanes[SCHEDULER_SHARED].changed);
    pthread_mutex_unlock(&p->lock);
    if (!keep) openpi_request_close(request);
}

void prepare_release(prepare *p, job *job) {
    serve_model *model = job->model;
    if (!model) return;
    job->model = NULL;
    prepare_count(p, job, 0);
    release_request(p, model, job->request);
    job->request = NULL;
    for (int i = 0; i < job->part_count; i++)
        if (job->parts[i].request) release_request(p, model, job->parts[i].request);
    job_drop_parts(job);
    pthread_mutex_lock(&p->lock);
    p->jobs--;
    pthread_cond_signal(&p->lanes[SCHEDULER_SHARED].changed);
    pthread_mutex_unlock(&p->lock);
    model_drop(model);
}

int prepare_trim(prepare *p, double now_ms) {
    openpi_request *closing[TRIM_MOST];
    int count = 0;
    pthread_mutex_lock(&p->lock);
    if (now_ms - p->trimmed_ms >= TRIM_MS) {
        int idle = p->least_free < p->free_count ? p->least_free : p->free_count;
        while (count < TRIM_MOST && count < idle - p->options.threads)
            closing[count++] = p->free[--p->free_count];
        p->made -= count;
        p->least_free = p->free_count;
        p->trimmed_ms = now_ms;
    }
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < count; i++) openpi_request_close(closing[i]);
    return count;
}

serve_model *prepare_model(prepare *p) {
    pthread_mutex_lock(&p->lock);
    serve_model *held = model_hold(p->model);
    pthread_mutex_unlock(&p->lock);
    return held;
}

void prepare_renew(prepare *p, serve_model *model) {
    pthread_mutex_lock(&p->lock);
    struct serve_model *before = p->model;
    openpi_request **closing = p->free;
    int count = p->free_count;
    p->model = model_hold(model);
    p->free = NULL;
    p->free_count = 0;
    p->made -= count;
    wake_all(p);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < count; i++) openpi_request_close(closing[i]);
    free(closing);
    model_drop(before);
}

/* ---- preparing -------------------------------------------------------------------------------------- */

openpi_status prepare_check_noise(const job *job, const openpi_extras *extras, openpi_error *error) {
    int horizon = job->model->horizon;
    if (!extras->noise || extras->noise_rows == horizon) return OPENPI_OK;
    return fail(error, OPENPI_BAD_INPUT,
                "\"openpi/noise\" of the request has %d rows, expected %d, the horizon", extras->noise_rows,
                horizon);
}

void prepare_noise(const prepare *p, job *job, const openpi_extras *extras, int first, int chunks) {
    size_t count = (size_t)job->model->horizon * DIMS;
    float *noise = job->noise + (size_t)first * count;
    if (extras->noise) memcpy(noise, extras->noise, (size_t)chunks * count * sizeof *noise);
    for (int c = 0; c < chunks && !extras->noise; c++)
        openpi_noise(p->options.seed, job->order * OPENPI_MAX_BATCH + (uint64_t)(first + c),
                     noise + (size_t)c * count, count);
}

/* Several chunks of one observation, and memory for them. */
static openpi_status check_samples(prepare *p, job *job, const openpi_extras *extras, openpi_error *error) {
    int horizon = job->model->horizon, dims = job->model->info.action_dim;
    job->samples = extras->samples;
    if (!extras->samples) return OPENPI_OK;
    if (extras->rtc)
        return fail(error, OPENPI_BAD_INPUT,
                    "\"openpi/samples\" and \"openpi/rtc\" of the request contradict each other: expected "
                    "one of them");
    prepare_count(p, job, job->preparing_bytes + job_room_bytes(extras->samples, horizon, dims));
    if (job_make_room(job, extras->samples, horizon, dims)) return OPENPI_OK;
    return fail(error, OPENPI_NO_MEMORY, "out of memory: %d chunks of a request", extras->samples);
}

/* The deadline, real-time chunking and the noise's shape: what the extras ask for is there. */
static openpi_status check_extras(prepare *p, job *job, openpi_extras *extras, openpi_error *error) {
    *extras = (openpi_extras)OPENPI_EXTRAS_INIT;
    SERVE_TRY(openpi_request_extras(job->request, extras, error));
    job->deadline_ms = extras->deadline_ms;
    if (extras->runner) {
        job->executed = extras->runner_executed;
        job->held_ms = extras->runner_held_ms;
        job->held_reason = extras->runner_reason;
    }
    if (extras->rtc) job->executed = extras->rtc_executed;
    SERVE_TRY(rtc_check(&job->model->rtc, extras, error));
    SERVE_TRY(check_samples(p, job, extras, error));
    return prepare_check_noise(job, extras, error);
}

/* What will be refused is refused before pictures are resized and the prompt is tokenised. */
static openpi_status prepare_job(prepare *p, job *job, openpi_error *error) {
    openpi_extras extras;
    job->samples = 0;
    job->deadline_ms = 0;
    job->note[0] = 0;
    job->rtc = (openpi_rtc)OPENPI_RTC_INIT;
    job->rtc_asked = 0;
    if (!job->request) SERVE_TRY(make_request(p, job->model, &job->request, error));
    if (job->observations < 0)             /* the message is wrong: why?                                    */
        SERVE_TRY(openpi_message_observations(job->bytes, job->count, &job->observations, error));
    if (job->observations) return parts_prepare(p, job, error);
    SERVE_TRY(openpi_request_read_msgpack(job->request, job->bytes, job->count, error));
    SERVE_TRY(check_extras(p, job, &extras, error));
    SERVE_TRY(openpi_request_prepare_read(job->request, NULL, error));
    size_t kept;
    openpi_request_bytes(job->model->policy, job->count, &kept);
    prepare_count(p, job, kept + job_room_bytes(job->samples, job->model->horizon,
                                              job->model->info.action_dim));
    const char *note = openpi_request_note(job->request, 0, NULL);
    job->truncated = openpi_request_prompt_truncated(job->request);
    snprintf(job->note, sizeof job->note, "%s", note ? note : "");
    job->sample = (openpi_sample)OPENPI_SAMPLE_INIT;
    SERVE_TRY(openpi_request_sample(job->request, &job->sample, error));
    snapshot_see(job->snapshot, job->request, &job->sample);
    prepare_noise(p, job, &extras, 0, extras.samples ? extras.samples : 1);
    return rtc_prepare(&job->model->rtc, &extras, job, error);
}

static openpi_status prepare_or_refuse(prepare *p, job *job) {
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_status status = prepare_job(p, job, &error);
    if (status == OPENPI_OK) return status;
    prepare_release(p, job);
    job_refuse(job, status, error.message);
    return status;
}

static void *run(void *argument) {
    lane *own = argument;
    prepare *p = own->prepare;
    job *job;
    while ((job = take(own))) {
        if (own == &p->lanes[SCHEDULER_SHARED]) let_reserved_pass(p);
        if (!goes_on(p, job)) {
            put_back(p, job);
            continue;
        }
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

/* The first one is for reserved jobs only. */
static openpi_status start(prepare *p, openpi_error *error) {
    while (p->thread_count <= p->options.threads && p->thread_count < PREPARE_THREADS_MOST) {
        lane *lane = &p->lanes[p->thread_count ? SCHEDULER_SHARED : SCHEDULER_RESERVED];
        pthread_t *thread = &p->threads[p->thread_count];
        const char *name = p->thread_count ? "prepare" : "prepare first";
        pthread_mutex_lock(&p->lock);
        lane->busy++;            /* until it takes its first job                                           */
        pthread_mutex_unlock(&p->lock);
        SERVE_TRY(serve_thread_start(thread, run, lane, name, "a thread that prepares requests", error));
        p->thread_count++;
    }
    return OPENPI_OK;
}

openpi_status prepare_open(const prepare_options *options, prepare **out, openpi_error *error) {
    prepare *made = calloc(1, sizeof *made);
    if (!made) return fail(error, OPENPI_NO_MEMORY, "out of memory: the pool of requests");
    made->options = *options;
    made->model = model_hold(options->model);
    pthread_mutex_init(&made->lock, NULL);
    pthread_cond_init(&made->over, NULL);
    for (int i = 0; i < SCHEDULER_CLASSES; i++) {
        made->lanes[i].prepare = made;
        alert_open(&made->lanes[i].coming);
        pthread_cond_init(&made->lanes[i].changed, NULL);
    }
    openpi_status status = start(made, error);
    if (status == OPENPI_OK) *out = made;
    else prepare_close(made);
    return status;
}

void prepare_end(prepare *p) {
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    p->ended = 1;
    wake_all(p);
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
    pthread_cond_destroy(&p->over);
    for (int i = 0; i < SCHEDULER_CLASSES; i++) pthread_cond_destroy(&p->lanes[i].changed);
    free(p);
}
