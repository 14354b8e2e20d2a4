/* See device.h. */
#include "device.h"

#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "fail.h"
#include "messages.h"
#include "thread.h"

enum { DIMS = OPENPI_ACTION_DIM, PIXELS = OPENPI_IMAGE_SIZE * OPENPI_IMAGE_SIZE * 3 };

struct device {
    device_options options;
    openpi_engine *engine;
    openpi_session *session;
    openpi_engine_info engine_info;
    openpi_session_info session_info;
    float *model_actions;        /* [horizon][32]                                                          */
    double *actions;             /* [horizon][action_dim]                                                  */
    pthread_t thread;
    int started;
};

/* Unnormalises and packs the job's actions. */
static openpi_status write_reply(device *d, job *job, double model_ms, openpi_error *error) {
    int horizon = d->session_info.horizon, dims = d->options.action_dim;
    SERVE_TRY(openpi_request_finish(job->request, d->model_actions, horizon, d->actions,
                                    (size_t)horizon * (size_t)dims, error));
    reply reply = {.actions = d->actions,
                   .horizon = horizon,
                   .action_dim = dims,
                   .model_ms = model_ms,
                   .infer_ms = clock_now() - job->arrived_ms,
                   .prev_total_ms = job->prev_total_ms};
    job->answer.bytes = reply_write(&reply, job->answer.data, job->answer_capacity);
    return OPENPI_OK;
}

static void run_job(device *d, job *job) {
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_timing timing = OPENPI_TIMING_INIT;
    openpi_status status =
        openpi_session_run(d->session, &job->sample, 1, job->noise, d->model_actions, &timing, &error);
    if (status == OPENPI_OK) status = write_reply(d, job, timing.total_ms, &error);
    if (status != OPENPI_OK) job_refuse(job, status, error.message);
}

static void *run(void *argument) {
    device *d = argument;
    job *job;
    while ((job = queue_take(d->options.prepared))) {
        run_job(d, job);
        d->options.answered(d->options.user, job);
    }
    return NULL;
}

/* A call with a picture in every slot, the longest prompt and no state. */
static openpi_status first_call(device *d, openpi_error *error) {
    int tokens = d->session_info.max_prompt;
    float state[DIMS] = {0};
    uint8_t *picture = calloc(PIXELS, 1);
    int32_t *ids = calloc((size_t)tokens, sizeof *ids);
    openpi_status status = OPENPI_NO_MEMORY;
    if (picture && ids) {
        openpi_sample sample = OPENPI_SAMPLE_INIT;
        for (int slot = 0; slot < OPENPI_CAMERAS; slot++) {
            sample.images[slot] = picture;
            sample.image_mask[slot] = 1;
        }
        for (int i = 0; i < tokens; i++) ids[i] = 2;
        sample.tokens = ids;
        sample.token_count = tokens;
        sample.state = state;
        status = openpi_session_run(d->session, &sample, 1, NULL, d->model_actions, NULL, error);
    } else {
        fail(error, status, "out of memory: the first call");
    }
    free(picture);
    free(ids);
    return status;
}

static openpi_status load(device *d, openpi_error *error) {
    SERVE_TRY(openpi_engine_open(d->options.checkpoint, d->options.engine, &d->engine, error));
    d->engine_info = (openpi_engine_info)OPENPI_ENGINE_INFO_INIT;
    SERVE_TRY(openpi_engine_get_info(d->engine, &d->engine_info, error));
    SERVE_TRY(openpi_session_create(d->engine, &d->options.session, &d->session, error));
    d->session_info = (openpi_session_info)OPENPI_SESSION_INFO_INIT;
    SERVE_TRY(openpi_session_get_info(d->session, &d->session_info, error));
    size_t steps = (size_t)d->session_info.horizon;
    d->model_actions = malloc(steps * DIMS * sizeof *d->model_actions);
    d->actions = malloc(steps * (size_t)d->options.action_dim * sizeof *d->actions);
    if (!d->model_actions || !d->actions)
        return fail(error, OPENPI_NO_MEMORY, "out of memory: the actions of a call");
    return first_call(d, error);
}

openpi_status device_open(const device_options *options, device **out, openpi_error *error) {
    device *made = calloc(1, sizeof *made);
    if (!made) return fail(error, OPENPI_NO_MEMORY, "out of memory: a device");
    made->options = *options;
    openpi_status status = load(made, error);
    if (status == OPENPI_OK) *out = made;
    else device_close(made);
    return status;
}

openpi_status device_start(device *d, openpi_error *error) {
    SERVE_TRY(serve_thread_start(&d->thread, run, d, "the device's thread", error));
    d->started = 1;
    return OPENPI_OK;
}

void device_close(device *d) {
    if (!d) return;
    if (d->started) pthread_join(d->thread, NULL);
    openpi_session_close(d->session);
    openpi_engine_close(d->engine);
    free(d->model_actions);
    free(d->actions);
    free(d);
}

const openpi_engine_info *device_engine_info(const device *d) { return &d->engine_info; }
const openpi_session_info *device_session_info(const device *d) { return &d->session_info; }
