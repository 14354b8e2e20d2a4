/* Observations from files, or made up. */
#include "lab/quantize/observations.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <msgpack.h>

#include "base/file.h"
#include "base/report.h"
#include "checkpoint/open.h"
#include "lab/measure/observation.h"
#include "lab/measure/request_folder.h"

enum { NAME = 32 };

/* One walk counts, the next one prepares those of the count that are taken. */
typedef struct walk {
    observations *out;
    int seen, total, most;       /* total 0: only count                                                   */
} walk;

/* Is number `i` one of `most` that are evenly spread over `total`? */
static int taken(int i, int total, int most) {
    return total <= most || (long long)i * most / total != (long long)(i + 1) * most / total;
}

static openpi_status prepare(walk *w, const char *path, const void *bytes, size_t count,
                             openpi_error *error) {
    openpi_error why = OPENPI_ERROR_INIT;
    observations *o = w->out;
    int place = w->seen++;
    if (!w->total || !taken(place, w->total, w->most)) return OPENPI_OK;
    TRY(openpi_request_create(o->policy, &o->requests[o->count], error));
    openpi_status status =
        openpi_request_prepare_msgpack(o->requests[o->count++], bytes, count, NULL, &why);
    return status == OPENPI_OK ? status : report(error, status, "%s: %s", path, why.message);
}

/* ---- kinds of files ------------------------------------------------------------------------------------ */

/* Where the first value of a message ends; 0: it is no msgpack. */
static size_t value_end(const char *bytes, size_t count) {
    msgpack_unpacked value;
    size_t end = 0;
    msgpack_unpacked_init(&value);
    msgpack_unpack_return result = msgpack_unpack_next(&value, bytes, count, &end);
    msgpack_unpacked_destroy(&value);
    return result == MSGPACK_UNPACK_SUCCESS || result == MSGPACK_UNPACK_EXTRA_BYTES ? end : 0;
}

static openpi_status split(walk *w, const char *path, const char *bytes, size_t count, openpi_error *error) {
    for (size_t at = 0, length; at < count; at += length) {
        length = value_end(bytes + at, count - at);
        if (!length)
            return report(error, OPENPI_BAD_INPUT,
                          "%s: byte %zu begins no whole msgpack value, expected requests as openpi clients "
                          "send them",
                          path, at);
        TRY(prepare(w, path, bytes + at, length, error));
    }
    return OPENPI_OK;
}

static openpi_status walk_requests(walk *w, const char *path, openpi_error *error) {
    request_folder folder;
    openpi_status status = OPENPI_OK;
    TRY(request_folder_open(path, &folder, error));
    for (int i = 0; i < folder.count && status == OPENPI_OK; i++) {
        char *bytes = NULL;
        size_t count;
        status = request_folder_read(&folder, i, &bytes, &count, error);
        if (status == OPENPI_OK) status = split(w, folder.paths[i], bytes, count, error);
        free(bytes);
    }
    request_folder_close(&folder);
    return status;
}

static openpi_status walk_golden(walk *w, const char *path, openpi_error *error) {
    tensors *file;
    const tensor *t;
    char name[NAME];
    int i = 0;
    TRY(tensors_open(path, &file, error));
    openpi_status status = tensors_load(file, error);
    for (; status == OPENPI_OK; i++) {
        snprintf(name, sizeof name, "request.%d", i);
        if (!(t = tensors_find(file, name))) break;
        status = prepare(w, path, t->data, (size_t)t->count * dtype_bytes(t->type), error);
    }
    tensors_close(file);
    if (status == OPENPI_OK && !i)
        return report(error, OPENPI_BAD_INPUT,
                      "%s: has no tensor request.0, expected a file of tools/record-golden with requests",
                      path);
    return status;
}

openpi_status observations_read(const openpi_policy *policy, const char *path, int most, observations *out,
                                openpi_error *error) {
    openpi_status (*kind)(walk *, const char *, openpi_error *) =
        file_has_ending(path, ".safetensors") ? walk_golden : walk_requests;
    walk w = {.out = out, .most = most < OBSERVATIONS_MAX ? most : OBSERVATIONS_MAX};
    *out = (observations){.policy = policy};
    TRY(kind(&w, path, error));
    out->found = w.total = w.seen;
    w.seen = 0;
    return kind(&w, path, error);
}

/* ---- made up ------------------------------------------------------------------------------------------- */

static openpi_status make_one(observations *o, const workload *call, openpi_error *error) {
    observation made;
    TRY(openpi_request_create(o->policy, &o->requests[o->count], error));
    openpi_request *request = o->requests[o->count++];
    openpi_status status = observation_make(o->policy, call, &made, error);
    if (status == OPENPI_OK) status = openpi_request_prepare(request, &made.view, NULL, error);
    observation_free(&made);
    return status;
}

openpi_status observations_make(const openpi_policy *policy, int count, uint64_t seed, observations *out,
                                openpi_error *error) {
    *out = (observations){.policy = policy, .synthetic = 1, .found = count};
    for (int i = 0; i < count && i < OBSERVATIONS_MAX; i++) {
        workload call = {.batch = 1, .cameras = {1, 1, 1}, .prompt = 4 + i % 5 * 4};
        call.seed = seed * OBSERVATIONS_MAX + (uint64_t)i;
        TRY(make_one(out, &call, error));
    }
    return OPENPI_OK;
}

void observations_free(observations *o) {
    for (int i = 0; i < o->count; i++) openpi_request_close(o->requests[i]);
    o->count = 0;
}
