/* See loading.h. */
#define _XOPEN_SOURCE 700       /* realpath */
#include "loading.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/small/fail.h"
#include "rtc.h"

openpi_status loading_devices(loading *l, openpi_error *error) {
    const char *at = l->options->engine.device ? l->options->engine.device : "cpu";
    for (;; at++) {
        size_t length = strcspn(at, ",");
        if (!length || length >= DEVICE_NAME || l->count == SCHEDULER_DEVICES)
            return fail(error, OPENPI_BAD_ARGUMENT,
                        "--device is '%s', expected 1 to %d names of devices with commas between them",
                        l->options->engine.device, SCHEDULER_DEVICES);
        memcpy(l->names[l->count++], at, length);
        at += length;
        if (!*at) return OPENPI_OK;
    }
}

_Static_assert((int)LOADING_PATH >= PATH_MAX, "realpath writes so much");

const char *loading_resolve(const char *checkpoint, char resolved[LOADING_PATH]) {
    return checkpoint && realpath(checkpoint, resolved) ? resolved : checkpoint;
}

/* The largest batch that could be worth running within the block. */
static int largest_batch(double max_block) {
    if (max_block <= 1) return 1;
    return max_block * 2 < OPENPI_MAX_BATCH ? (int)(max_block * 2) : OPENPI_MAX_BATCH;
}

static openpi_status open_all(const loading *l, device_options *options, serve_device *const *beside,
                              serve_device **devices, openpi_error *error) {
    for (int i = 0; i < l->count; i++) {
        options->name = l->names[i];
        options->like = beside ? beside[i] : NULL;
        SERVE_TRY(device_open(options, &devices[i], error));
    }
    return OPENPI_OK;
}

openpi_status loading_run(const loading *l, const char *checkpoint, serve_model *model,
                          serve_device *const *beside, int (*cancel)(void *user), void *user,
                          serve_device **devices, openpi_error *error) {
    const serve_options *o = l->options;
    openpi_engine_options engine = o->engine;
    engine.cancel = cancel;
    if (user) {
        engine.progress = NULL;
        engine.progress_user = user;           /* cancel's as well                                         */
    }
    device_options options = {.checkpoint = checkpoint,
                              .engine = &engine,
                              .session = OPENPI_SESSION_OPTIONS_INIT,
                              .model = model};
    options.session.batch = largest_batch(o->max_block);
    options.session.horizon = model->horizon;
    options.session.steps = o->steps;
    options.session.max_prompt = model->info.max_prompt;
    options.prefixes = o->kept_prefixes;
    options.samples = o->samples ? o->samples : 1;
    for (int i = 0; i < l->count; i++) devices[i] = NULL;
    openpi_status status = open_all(l, &options, beside, devices, error);
    for (int i = 0; status != OPENPI_OK && i < l->count; i++) {
        device_close(devices[i]);
        devices[i] = NULL;
    }
    if (status != OPENPI_OK) return status;
    model->rtc = rtc_offered(device_engine_info(devices[0]), device_session_info(devices[0]));
    model->horizon = model->rtc.horizon;
    model->variant = device_engine_info(devices[0])->variant;
    snprintf(model->hash, sizeof model->hash, "%s", device_engine_info(devices[0])->checkpoint_hash);
    return OPENPI_OK;
}
