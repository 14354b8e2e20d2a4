/* See shadow.h. */
#include "shadow.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/loading.h"
#include "serve/small/clock.h"
#include "serve/small/fail.h"
#include "serve/small/thread.h"

enum { DIMS = OPENPI_ACTION_DIM };

struct shadow {
    shadow_options options;
    prepare *prepare;            /* NULL: no request comes yet                                             */
    dispatch *dispatch;
    uint64_t seen;               /* requests that could have been taken; the I/O thread's                  */
    pthread_t thread;
    int started;
    pthread_mutex_t lock;        /* guards what follows                                                    */
    pthread_cond_t changed;
    int ended;
    int opened;                  /* 1: the first model is loaded, or not; `status` says which              */
    openpi_status status;
    openpi_error why;
    int busy;                    /* 1: the request below is the thread's                                   */
    /* One request, with memory that is kept: the I/O thread's while it is not busy, else the thread's. */
    uint8_t *message;            /* [count], memory of [capacity]                                          */
    size_t count, capacity;
    uint64_t model;              /* the number of the model that answered it                               */
    openpi_rtc rtc;
    float *noise, *previous, *answered;                        /* [horizon][32]                            */
    float *sent;                 /* [horizon][action_dim], the robot's                                     */
    /* The thread's alone. */
    serve_model *loaded;         /* whose weights it has, held; NULL: none                                 */
    int usable;                  /* 0: `loaded` could not be loaded                                        */
    openpi_engine *engine;
    openpi_session *session;
    openpi_request *request;
    float *computed;             /* [horizon][32]                                                          */
    double *actions;             /* [horizon][action_dim]                                                  */
    int64_t call_ns;             /* what a call takes: the longest of late                                 */
};

static size_t chunk_numbers(const shadow *s) { return (size_t)s->options.model->horizon * DIMS; }

static size_t robot_numbers(const shadow *s) {
    return (size_t)s->options.model->horizon * (size_t)s->options.model->info.action_dim;
}

/* ---- the I/O thread ----------------------------------------------------------------------------------- */

/* Among several chunks or observations none is the robot's next; what was refused has no actions. */
static int could_take(const job *job) {
    return job->status == OPENPI_OK && !job->samples && !job->many && job->answer.bytes;
}

static int copy_message(shadow *s, const job *job) {
    if (job->count > s->capacity) {
        uint8_t *larger = realloc(s->message, job->count);
        if (!larger) return 0;
        s->message = larger;
        s->capacity = job->count;
    }
    memcpy(s->message, job->bytes, job->count);
    s->count = job->count;
    return 1;
}

static int copy_request(shadow *s, const job *job) {
    size_t bytes = chunk_numbers(s) * sizeof(float);
    if (!copy_message(s, job)) return 0;
    s->model = job->model_number;
    memcpy(s->noise, job->noise, bytes);
    memcpy(s->answered, job->model_actions, bytes);
    memcpy(s->sent, job->sent, robot_numbers(s) * sizeof(float));
    s->rtc = job->rtc;
    if (job->rtc.mode == OPENPI_RTC_OFF) return 1;
    memcpy(s->previous, job->previous, bytes);
    s->rtc.previous = s->previous;
    return 1;
}

void shadow_put(shadow *s, const job *job) {
    if (!could_take(job) || s->seen++ % (uint64_t)s->options.serve->shadow) return;
    pthread_mutex_lock(&s->lock);
    int taken = !s->busy && !s->ended && copy_request(s, job);
    if (taken) {
        s->busy = 1;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    if (!taken) metrics_add_shadow(s->options.metrics, SHADOW_LEFT_OUT, NULL);
}

/* ---- its model ---------------------------------------------------------------------------------------- */

static int is_ended(void *user) {
    shadow *s = user;
    pthread_mutex_lock(&s->lock);
    int ended = s->ended, opened = s->opened;
    pthread_mutex_unlock(&s->lock);
    return ended || (!opened && s->options.cancel && s->options.cancel(NULL));
}

static void unload(shadow *s) {
    openpi_request_close(s->request);
    openpi_session_close(s->session);
    openpi_engine_close(s->engine);
    model_drop(s->loaded);
    s->request = NULL;
    s->session = NULL;
    s->engine = NULL;
    s->loaded = NULL;
}

static openpi_status open_engine(shadow *s, openpi_error *error) {
    const serve_options *o = s->options.serve;
    char resolved[LOADING_PATH];
    const char *path = loading_resolve(o->checkpoint, resolved);
    openpi_engine_options options = o->engine;
    options.device = s->options.device;
    options.weights = OPENPI_WEIGHTS_AUTO;
    options.formats = o->shadow_weights ? o->shadow_weights : "bf16";
    options.progress = NULL;
    options.progress_user = s;                       /* cancel's as well                                   */
    options.cancel = is_ended;
    SERVE_TRY(openpi_engine_open(path, &options, &s->engine, error));
    return openpi_session_create(s->engine, &s->options.session, &s->session, error);
}

static openpi_status check_weights(const shadow *s, openpi_error *error) {
    openpi_engine_info info = OPENPI_ENGINE_INFO_INIT;
    SERVE_TRY(openpi_engine_get_info(s->engine, &info, error));
    if (!strcmp(info.checkpoint_hash, s->loaded->hash)) return OPENPI_OK;
    return fail(error, OPENPI_BAD_FILE, "the checkpoint has other weights now than those that are served");
}

/* One call of no request: what a call takes is known before robots come. */
static openpi_status first_call(shadow *s, openpi_error *error) {
    float state[DIMS] = {0};
    int32_t token = 2;
    openpi_sample sample = OPENPI_SAMPLE_INIT;
    sample.state = state;
    sample.tokens = &token;
    sample.token_count = 1;
    int64_t began = clock_ns();
    SERVE_TRY(openpi_session_run(s->session, &sample, 1, NULL, s->computed, NULL, error));
    s->call_ns = clock_ns() - began;
    return OPENPI_OK;
}

static openpi_status load(shadow *s, serve_model *model, openpi_error *error) {
    unload(s);
    s->loaded = model_hold(model);
    SERVE_TRY(open_engine(s, error));
    SERVE_TRY(check_weights(s, error));
    SERVE_TRY(openpi_request_create(model->policy, &s->request, error));
    return first_call(s, error);
}

static void say_unusable(shadow *s, const char *sentence) {
    log_entry entry = {.level = LOG_LEVEL_WARNING, .event = "shadow"};
    log_entry_write(s->options.log, &entry, "no request is computed again until the next reload: %s",
                    sentence);
}

/* After a reload the old weights say nothing. 0: the request's model is not there, so the request is left. */
static int follow_reload(shadow *s) {
    openpi_error error = OPENPI_ERROR_INIT;
    serve_model *model = prepare_model(s->prepare);
    if (model->number == s->model && (!s->loaded || s->loaded->number != s->model)) {
        s->usable = load(s, model, &error) == OPENPI_OK;
        if (!s->usable && !is_ended(s)) say_unusable(s, error.message);
    }
    model_drop(model);
    return s->usable && s->loaded && s->loaded->number == s->model;
}

/* ---- a request ---------------------------------------------------------------------------------------- */

static int is_quiet(shadow *s) {
    return s->options.shared < 0 || dispatch_quiet(s->dispatch, s->options.shared, s->call_ns);
}

static openpi_status prepare_again(shadow *s, openpi_sample *sample, openpi_error *error) {
    SERVE_TRY(openpi_request_read_msgpack(s->request, s->message, s->count, error));
    SERVE_TRY(openpi_request_prepare_read(s->request, NULL, error));
    return openpi_request_sample(s->request, sample, error);
}

static openpi_status compute(shadow *s, const openpi_sample *sample, openpi_error *error) {
    int64_t began = clock_ns();
    SERVE_TRY(openpi_session_run_rtc(s->session, sample, &s->rtc, 1, s->noise, s->computed, NULL, error));
    int64_t took = clock_ns() - began;
    s->call_ns = took > s->call_ns ? took : s->call_ns - (s->call_ns - took) / 8;
    return OPENPI_OK;
}

/* Limits may stop a chunk whose twin was sent; then there is nothing to compare in the robot's units. */
static double robot_difference(shadow *s) {
    int horizon = s->options.model->horizon;
    double most = 0;
    if (openpi_request_finish(s->request, s->computed, horizon, s->actions, robot_numbers(s), NULL) !=
        OPENPI_OK)
        return 0;
    for (size_t i = 0; i < robot_numbers(s); i++)
        most = fmax(most, fabs(s->actions[i] - (double)s->sent[i]));
    return most;
}

static void tell(shadow *s, const shadow_difference *d) {
    double bound = s->options.serve->shadow_bound;
    int within = d->rms <= bound;
    metrics_add_shadow(s->options.metrics, within ? SHADOW_WITHIN : SHADOW_ABOVE,
                       &(metrics_shadow){d->rms, d->max, d->robot_max});
    if (within) return;
    log_entry entry = {.level = LOG_LEVEL_WARNING, .event = "shadow", .reason = "above the bound"};
    log_entry_write(s->options.log, &entry,
                    "a chunk differs from that of the shadow by rms %.4g, more than the %.4g of "
                    "--shadow-bound; the largest difference is %.4g, action %d of step %d, and %.4g in the "
                    "robot's units", d->rms, bound, d->max, d->column + 1, d->row + 1, d->robot_max);
}

static openpi_status shadow_once(shadow *s, openpi_error *error) {
    openpi_sample sample = OPENPI_SAMPLE_INIT;
    SERVE_TRY(prepare_again(s, &sample, error));
    if (!is_quiet(s)) {
        metrics_add_shadow(s->options.metrics, SHADOW_LEFT_OUT, NULL);
        return OPENPI_OK;
    }
    SERVE_TRY(compute(s, &sample, error));
    shadow_difference d = shadow_compare(s->answered, s->computed, s->options.model->horizon,
                                         s->options.model->info.action_dim);
    if (isfinite(d.rms)) d.robot_max = robot_difference(s);
    tell(s, &d);
    return OPENPI_OK;
}

static void shadow_request(shadow *s) {
    openpi_error error = OPENPI_ERROR_INIT;
    if (!follow_reload(s)) {
        metrics_add_shadow(s->options.metrics, SHADOW_LEFT_OUT, NULL);
        return;
    }
    if (shadow_once(s, &error) == OPENPI_OK) return;
    metrics_add_shadow(s->options.metrics, SHADOW_FAILED, NULL);
    log_entry entry = {.level = LOG_LEVEL_WARNING, .event = "shadow", .reason = "failed"};
    log_entry_write(s->options.log, &entry, "a request could not be computed again: %s", error.message);
}

/* ---- the thread --------------------------------------------------------------------------------------- */

static void load_first(shadow *s) {
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_status status = load(s, s->options.model, &error);
    s->usable = status == OPENPI_OK;
    pthread_mutex_lock(&s->lock);
    s->status = status;
    s->why = error;
    s->opened = 1;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* 0: it is over. */
static int wait_for_request(shadow *s) {
    pthread_mutex_lock(&s->lock);
    while (!s->busy && !s->ended) pthread_cond_wait(&s->changed, &s->lock);
    int go = !s->ended;
    pthread_mutex_unlock(&s->lock);
    return go;
}

static void *run(void *argument) {
    shadow *s = argument;
    serve_thread_yield();        /* the engine's threads, which begin here, too                            */
    load_first(s);
    while (wait_for_request(s)) {
        shadow_request(s);
        pthread_mutex_lock(&s->lock);
        s->busy = 0;
        pthread_mutex_unlock(&s->lock);
    }
    return NULL;
}

/* ---- opening and closing ------------------------------------------------------------------------------ */

static int take_memory(shadow *s) {
    size_t bytes = chunk_numbers(s) * sizeof(float);
    s->noise = malloc(bytes);
    s->previous = malloc(bytes);
    s->answered = malloc(bytes);
    s->computed = malloc(bytes);
    s->sent = malloc(robot_numbers(s) * sizeof *s->sent);
    s->actions = malloc(robot_numbers(s) * sizeof *s->actions);
    return s->noise && s->previous && s->answered && s->computed && s->sent && s->actions;
}

static openpi_status start(shadow *s, openpi_error *error) {
    if (!take_memory(s)) return fail(error, OPENPI_NO_MEMORY, "out of memory: the shadow");
    SERVE_TRY(serve_thread_start(&s->thread, run, s, "shadow", "the thread of --shadow", error));
    s->started = 1;
    pthread_mutex_lock(&s->lock);
    while (!s->opened) pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
    return s->status == OPENPI_OK ? OPENPI_OK : fail(error, s->status, "--shadow: %.480s", s->why.message);
}

openpi_status shadow_open(const shadow_options *options, shadow **out, openpi_error *error) {
    shadow *s = calloc(1, sizeof *s);
    if (!s) return fail(error, OPENPI_NO_MEMORY, "out of memory: the shadow");
    s->options = *options;
    model_hold(options->model);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    openpi_status status = start(s, error);
    if (status == OPENPI_OK) *out = s;
    else shadow_close(s);
    return status;
}

void shadow_begin(shadow *s, prepare *prepare, dispatch *dispatch) {
    s->prepare = prepare;
    s->dispatch = dispatch;
}

void shadow_close(shadow *s) {
    if (!s) return;
    pthread_mutex_lock(&s->lock);
    s->ended = 1;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    if (s->started) pthread_join(s->thread, NULL);
    unload(s);
    model_drop(s->options.model);
    free(s->message);
    free(s->noise);
    free(s->previous);
    free(s->answered);
    free(s->computed);
    free(s->sent);
    free(s->actions);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->changed);
    free(s);
}
