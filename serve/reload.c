/* See reload.h.
 *
 * Note: the checkpoint's path is resolved once for each reload (loading.h). */
#include "reload.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "serve/small/clock.h"
#include "serve/small/fail.h"
#include "serve/small/thread.h"

struct reload {
    reload_options options;
    serve_model *running, *fresh;  /* the thread's                                                          */
    pthread_t thread;
    int started;
    pthread_mutex_t lock;        /* of what follows                                                        */
    pthread_cond_t changed;
    int asked, cancelled, busy;
    char text[RELOAD_TEXT];      /* of the last one that ended                                             */
    char update[UPDATE_NAME];    /* the file of the update that was asked for, or is under way; "": none   */
    char update_text[RELOAD_TEXT];
    update_served served;
};

static const char own_weights[] = "the checkpoint";        /* no file's name: it has a space               */

static int is_cancelled(void *user) {
    reload *r = user;
    pthread_mutex_lock(&r->lock);
    int cancelled = r->cancelled;
    pthread_mutex_unlock(&r->lock);
    return cancelled;
}

/* ---- one reload ------------------------------------------------------------------------------------- */

/* The caller holds *out, and owns the devices. */
static openpi_status load(reload *r, serve_model **out, serve_device **devices, openpi_error *error) {
    const reload_options *o = &r->options;
    const serve_options *serve = o->loading->options;
    char resolved[LOADING_PATH];
    const char *path = loading_resolve(serve->checkpoint, resolved);
    serve_model *fresh;
    SERVE_TRY(model_open(path, &serve->policy, serve->horizon, r->running->number + 1, &fresh, error));
    openpi_status status = model_default_prompt(fresh, serve->default_prompt, error);
    if (status == OPENPI_OK) status = model_fits(r->running, fresh, error);
    if (status == OPENPI_OK)
        status = loading_run(o->loading, path, fresh, o->devices, is_cancelled, r, devices, error);
    if (status == OPENPI_OK) {
        *out = fresh;
        status = model_fits(r->running, fresh, error);
        if (status == OPENPI_OK) return status;
        for (int i = 0; i < o->loading->count; i++) device_close(devices[i]);
    }
    model_drop(fresh);
    return status;
}

/* Requests from now on are prepared for the new model. */
static void renew_preparing(void *user) {
    reload *r = user;
    prepare_renew(r->options.prepare, r->fresh);
}

static openpi_status reload_once(reload *r, openpi_error *error) {
    const reload_options *o = &r->options;
    serve_device *devices[SCHEDULER_DEVICES];
    SERVE_TRY(load(r, &r->fresh, devices, error));
    dispatch_renew(o->dispatch, devices, renew_preparing, r);
    for (int i = 0; i < o->loading->count; i++) device_close(devices[i]);
    model_drop(r->running);
    r->running = r->fresh;
    return OPENPI_OK;
}

/* ---- other weights ---------------------------------------------------------------------------------- */

static openpi_status replace_weights(reload *r, const char *name, int *tensors, openpi_error *error) {
    const reload_options *o = &r->options;
    openpi_engine *engines[SCHEDULER_DEVICES];
    char path[LOADING_PATH];
    int count = o->loading->count;
    for (int i = 0; i < count; i++) engines[i] = device_engine(o->devices[i]);
    if (!strcmp(name, own_weights)) return openpi_engine_restore(engines, count, tensors, error);
    int length = snprintf(path, sizeof path, "%s/%s", o->loading->options->updates, name);
    if (length >= (int)sizeof path)
        return fail(error, OPENPI_BAD_ARGUMENT, "the path of %s is longer than %zu bytes", name, sizeof path);
    return openpi_engine_update_file(engines, count, path, tensors, error);
}

/* What is served now. With the lock. */
static void note_served(reload *r, int tensors, double ms) {
    update_served *s = &r->served;
    time_t now = time(NULL);
    struct tm utc;
    *s = (update_served){.tensors = tensors};
    if (gmtime_r(&now, &utc)) strftime(s->when, sizeof s->when, "%Y-%m-%d %H:%M:%S UTC", &utc);
    if (strcmp(r->update, own_weights)) snprintf(s->name, sizeof s->name, "%s", r->update);
    snprintf(r->update_text, sizeof r->update_text, "updated at %s: %d tensors of %s in %.1f ms", s->when,
             tensors, r->update, ms);
}

/* The sentence of GET /weights. The name stays the thread's until it is over. */
static void end_update(reload *r, openpi_status status, int tensors, double ms, const char *sentence) {
    pthread_mutex_lock(&r->lock);
    if (status == OPENPI_OK) note_served(r, tensors, ms);
    else snprintf(r->update_text, sizeof r->update_text, "refused: %s", sentence);
    r->update[0] = 0;
    pthread_mutex_unlock(&r->lock);
}

static void update_once(reload *r) {
    openpi_error error = OPENPI_ERROR_INIT;
    log_entry refused = {.level = LOG_LEVEL_WARNING, .event = "not updated"};
    int tensors = 0;
    double began = clock_now();
    openpi_status status = replace_weights(r, r->update, &tensors, &error);
    double ms = clock_now() - began;
    metrics_add_updated(r->options.metrics, status == OPENPI_OK);
    if (status != OPENPI_OK)
        log_entry_write(r->options.log, &refused, "not updated, the weights stay: %s", error.message);
    else
        log_line(r->options.log, "updated", "updated: %d tensors of %s in %.1f ms", tensors, r->update, ms);
    end_update(r, status, tensors, ms, error.message);
}

/* Letters and the like, so that no name leads out of the folder. */
static int is_name(const char *name) {
    static const char may[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t count = strlen(name);
    return count && count < UPDATE_NAME && name[0] != '.' && strspn(name, may) == count;
}

update_wish update_ask(reload *r, const char *name) {
    if (!r->options.loading->options->updates) return UPDATE_OFF;
    if (name && !is_name(name)) return UPDATE_NO_NAME;
    pthread_mutex_lock(&r->lock);
    update_wish wish = r->update[0] || r->cancelled ? UPDATE_BUSY : UPDATE_ASKED;
    if (wish == UPDATE_ASKED) snprintf(r->update, sizeof r->update, "%s", name ? name : own_weights);
    pthread_cond_signal(&r->changed);
    pthread_mutex_unlock(&r->lock);
    return wish;
}

void update_look(reload *r, char text[RELOAD_TEXT]) {
    pthread_mutex_lock(&r->lock);
    snprintf(text, RELOAD_TEXT, "%s", r->update[0] ? "updating" : r->update_text);
    pthread_mutex_unlock(&r->lock);
}

update_served update_look_served(reload *r) {
    pthread_mutex_lock(&r->lock);
    update_served served = r->served;
    pthread_mutex_unlock(&r->lock);
    return served;
}

/* ---- the thread ------------------------------------------------------------------------------------- */

static void write_text(reload *r, openpi_status status, const char *sentence) {
    time_t now = time(NULL);
    struct tm utc;
    pthread_mutex_lock(&r->lock);
    if (status != OPENPI_OK) snprintf(r->text, sizeof r->text, "refused: %s", sentence);
    else if (gmtime_r(&now, &utc))
        strftime(r->text, sizeof r->text, "reloaded at %Y-%m-%d %H:%M:%S UTC", &utc);
    if (status == OPENPI_OK) {
        r->served = (update_served){.tensors = 0};
        snprintf(r->update_text, sizeof r->update_text, "not updated since the reload");
    }
    r->busy = 0;
    pthread_mutex_unlock(&r->lock);
}

static void say(reload *r, openpi_status status, const char *sentence) {
    log_entry refused = {.level = LOG_LEVEL_WARNING, .event = "not reloaded"};
    if (status != OPENPI_OK)
        log_entry_write(r->options.log, &refused, "not reloaded, the old model stays: %s", sentence);
    else
        log_line(r->options.log, "reloaded", "reloaded: model %llu", (unsigned long long)r->running->number);
    if (status == OPENPI_OK) model_say_notes(r->running, r->options.log);
}

typedef enum work { WORK_NONE, WORK_RELOAD, WORK_UPDATE } work;

/* Waits until somebody asks. WORK_NONE: it is over. */
static work wait(reload *r) {
    pthread_mutex_lock(&r->lock);
    while (!r->asked && !r->update[0] && !r->cancelled) pthread_cond_wait(&r->changed, &r->lock);
    work work = r->cancelled ? WORK_NONE : r->asked ? WORK_RELOAD : WORK_UPDATE;
    r->busy = work == WORK_RELOAD;
    r->asked = 0;
    pthread_mutex_unlock(&r->lock);
    return work;
}

static void reload_and_say(reload *r) {
    openpi_error error = OPENPI_ERROR_INIT;
    log_line(r->options.log, "reloading", "reloading");
    openpi_status status = reload_once(r, &error);
    write_text(r, status, error.message);
    say(r, status, error.message);
    r->options.over(r->options.user);
}

static void *run(void *argument) {
    reload *r = argument;
    work work;
    while ((work = wait(r)) != WORK_NONE) {
        if (work == WORK_RELOAD) reload_and_say(r);
        else update_once(r);
    }
    return NULL;
}

void reload_ask(reload *r) {
    pthread_mutex_lock(&r->lock);
    r->asked = !r->cancelled;
    pthread_cond_signal(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

int reload_is_over(reload *r) {
    pthread_mutex_lock(&r->lock);
    int over = !r->asked && !r->busy;
    pthread_mutex_unlock(&r->lock);
    return over;
}

void reload_look(reload *r, char text[RELOAD_TEXT]) {
    pthread_mutex_lock(&r->lock);
    snprintf(text, RELOAD_TEXT, "%s", r->asked || r->busy ? "reloading" : r->text);
    pthread_mutex_unlock(&r->lock);
}

/* ---- opening and closing ---------------------------------------------------------------------------- */

openpi_status reload_open(const reload_options *options, reload **out, openpi_error *error) {
    reload *made = calloc(1, sizeof *made);
    if (!made) return fail(error, OPENPI_NO_MEMORY, "out of memory: the thread that reloads");
    made->options = *options;
    made->running = model_hold(options->model);
    snprintf(made->text, sizeof made->text, "not reloaded since the start");
    snprintf(made->update_text, sizeof made->update_text, "not updated since the start");
    pthread_mutex_init(&made->lock, NULL);
    pthread_cond_init(&made->changed, NULL);
    openpi_status status =
        serve_thread_start(&made->thread, run, made, "reload", "the thread that reloads", error);
    made->started = status == OPENPI_OK;
    if (made->started) *out = made;
    else reload_close(made);
    return status;
}

void reload_cancel(reload *r) {
    if (!r) return;
    pthread_mutex_lock(&r->lock);
    r->cancelled = 1;
    pthread_cond_signal(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

void reload_abandon(reload *r) {
    reload_cancel(r);
    if (r && r->started) pthread_detach(r->thread);
}

void reload_close(reload *r) {
    if (!r) return;
    reload_cancel(r);
    if (r->started) pthread_join(r->thread, NULL);
    model_drop(r->running);
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->changed);
    free(r);
}
