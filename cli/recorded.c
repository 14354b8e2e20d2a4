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
