/* See recorded.h.
 *
 * A recording is read in order: an index before the last one begins at its start again. */
#include "recorded.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static openpi_status begin(recorded_requests *r, openpi_error *error) {
    recording_reader_close(r->reader);
    r->reader = NULL;
    r->next = 0;
    return recording_open(r->path, &r->reader, error);
}

static openpi_status fail(openpi_error *error, openpi_status status, const char *path, const char *what) {
    snprintf(error->message, sizeof error->message, "%.300s: %s", path, what);
    return error->status = status;
}

static openpi_status read_request(void *user, int index, char **bytes, size_t *count, openpi_error *error) {
    recorded_requests *r = user;
    recorded_call call;
    int more = 1;
    openpi_status status = index < r->next || !r->reader ? begin(r, error) : OPENPI_OK;
    for (; r->next <= index && status == OPENPI_OK && more; r->next++)
        status = recording_next(r->reader, &call, &more, error);
    if (status != OPENPI_OK) return status;
    if (!more) return fail(error, OPENPI_BAD_FILE, r->path, "it has become shorter while it was read");
    *bytes = malloc(call.request_bytes + 1);
    if (!*bytes) return fail(error, OPENPI_NO_MEMORY, r->path, "out of memory: a request");
    memcpy(*bytes, call.request, call.request_bytes);
    *count = call.request_bytes;
    return OPENPI_OK;
}

static void take_text(const recording_reader *reader, const char *key, char *out, size_t bytes) {
    const char *text = recording_about(reader, key);
    snprintf(out, bytes, "%s", text ? text : "");
}

openpi_status recorded_open(const char *path, recorded_requests *r, request_folder *folder,
                            openpi_error *error) {
    recorded_call call;
    int count = 0, more = 1;
    *r = (recorded_requests){.path = path};
    *folder = (request_folder){.count = 0};
    openpi_status status = begin(r, error);
    for (; status == OPENPI_OK && more && count < REQUEST_FOLDER_MOST; count += more) {
        status = recording_next(r->reader, &call, &more, error);
        if (status == OPENPI_OK && more && !count) {
            take_text(r->reader, "robot", r->robot, sizeof r->robot);
            take_text(r->reader, "config", r->config, sizeof r->config);
        }
    }
    if (status != OPENPI_OK) return status;
    if (!count) return fail(error, OPENPI_BAD_FILE, path, "has no requests");
    status = begin(r, error);
    return status == OPENPI_OK ? request_folder_over(read_request, r, path, count, folder, error) : status;
}

void recorded_close(recorded_requests *r) {
    recording_reader_close(r->reader);
    r->reader = NULL;
}

/* ---- calls as goldens --------------------------------------------------------------------------------- */

typedef struct answered {
    const char *path;
    recording_reader *reader;    /* stands before answered call `next`                                     */
    recorded_call call;
    int next, all;
    char robot[256], config[128], hash[64], weights[128];
    int count, horizon, steps;
    openpi_dtype dtype;
} answered;

int recorded_is(const char *path) {
    size_t length = strlen(path);
    return length > 5 && !strcmp(path + length - 5, ".mcap");
}

static openpi_status begin_again(answered *a, openpi_error *error) {
    recording_reader_close(a->reader);
    a->reader = NULL;
    a->next = 0;
    return recording_open(a->path, &a->reader, error);
}

/* The next call that was answered; *more 0: there is none. */
static openpi_status next(answered *a, int *more, openpi_error *error) {
    openpi_status status;
    do status = recording_next(a->reader, &a->call, more, error);
    while (status == OPENPI_OK && *more && a->call.status != OPENPI_OK);
    if (status == OPENPI_OK && *more) a->next++;
    return status;
}

static openpi_status read_call(void *user, int index, verify_call *out, openpi_error *error) {
    answered *a = user;
    int wanted = (int)((int64_t)index * a->all / a->count), more = 1;
    openpi_status status = wanted < a->next ? begin_again(a, error) : OPENPI_OK;
    while (status == OPENPI_OK && more && a->next <= wanted) status = next(a, &more, error);
    if (status != OPENPI_OK) return status;
    if (!more) return fail(error, OPENPI_BAD_FILE, a->path, "it has become shorter while it was read");
    *out = (verify_call){.request = a->call.request,
                         .request_bytes = a->call.request_bytes,
                         .seed = a->call.seed,
                         .stream = a->call.stream,
                         .rtc = &a->call.rtc,
                         .horizon = a->call.horizon,
                         .actions = a->call.model_actions};
    return OPENPI_OK;
}

/* What the model of the first call was; a server begins another file with another model. */
static void take_about(answered *a) {
    const char *steps = recording_about(a->reader, "steps"), *dtype = recording_about(a->reader, "dtype");
    take_text(a->reader, "robot", a->robot, sizeof a->robot);
    take_text(a->reader, "config", a->config, sizeof a->config);
    take_text(a->reader, "checkpoint_hash", a->hash, sizeof a->hash);
    take_text(a->reader, "weights", a->weights, sizeof a->weights);
    a->horizon = a->call.horizon;
    a->steps = steps ? atoi(steps) : 0;
    a->dtype = dtype && !strcmp(dtype, "f32") ? OPENPI_F32 : OPENPI_BF16;
}

static openpi_status count_calls(answered *a, openpi_error *error) {
    int more = 1;
    openpi_status status = begin_again(a, error);
    while (status == OPENPI_OK && more) {
        status = next(a, &more, error);
        if (status == OPENPI_OK && more && a->next == 1) take_about(a);
    }
    if (status != OPENPI_OK) return status;
    a->all = a->next;
    a->count = a->all < VERIFY_CALLS ? a->all : VERIFY_CALLS;
    if (!a->all) return fail(error, OPENPI_BAD_FILE, a->path, "has no call that was answered");
    return begin_again(a, error);
}

static const char *known(const char *text) { return *text ? text : NULL; }

openpi_status recorded_verify(const char *path, const verify_options *options, verify_each row, void *user,
                              openpi_error *error) {
    const char *slash = strrchr(path, '/');
    answered a = {.path = path};
    openpi_status status = count_calls(&a, error);
    if (status == OPENPI_OK) {
        const verify_calls calls = {.name = slash ? slash + 1 : path,
                                    .robot = known(a.robot),
                                    .config = known(a.config),
                                    .hash = known(a.hash),
                                    .weights = known(a.weights),
                                    .dtype = a.dtype,
                                    .count = a.count,
                                    .horizon = a.horizon,
                                    .steps = a.steps,
                                    .read = read_call,
                                    .user = &a};
        status = verify_recording(&calls, options, row, user, error);
    }
    recording_reader_close(a.reader);
    return status;
}
