#include "checkpoint/safetensors/safetensors_write.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/ascii.h"
#include "base/file.h"
#include "base/json.h"
#include "base/report.h"
#include "checkpoint/safetensors/safetensors_data.h"
#include "checkpoint/tensors_build.h"

enum { ALIGN = 8 };

/* ---- header ---- */

static int set_tensor(json_t *header, const tensor *t, const char *prefix, uint64_t at) {
    char name[256];
    json_t *shape = json_array();
    int failed = 0;
    for (int i = 0; i < t->rank; i++) failed |= json_array_append_new(shape, json_integer(t->shape[i]));
    snprintf(name, sizeof name, "%s%s", prefix, t->name);
    /* json_pack owns the shape also where it fails. */
    json_t *entry =
        json_pack("{s:s,s:o,s:[I,I]}", "dtype", dtype_name(t->type), "shape", shape, "data_offsets",
                  (json_int_t)at, (json_int_t)(at + (uint64_t)t->count * dtype_bytes(t->type)));
    return failed | json_object_set_new(header, name, entry);
}

openpi_status safetensors_header(const tensor *const *list, int count, const char *prefix, json_t *metadata,
                                 char **out, size_t *bytes, openpi_error *error) {
    json_t *header = json_object();
    uint64_t at = 0;
    int failed = metadata ? json_object_set(header, "__metadata__", metadata) : 0;
    for (int i = 0; i < count; i++) {
        failed |= set_tensor(header, list[i], prefix, at);
        at += (uint64_t)list[i]->count * dtype_bytes(list[i]->type);
    }
    char *text = header && !failed ? json_text(header, JSON_COMPACT) : NULL;
    json_decref(header);
    size_t length = text ? strlen(text) : 0, padded = (length + ALIGN - 1) / ALIGN * ALIGN;
    char *buffer = text ? malloc(ALIGN + padded) : NULL;
    if (!buffer) {
        free(text);
        return report_no_memory(error, ALIGN + padded, "a safetensors header");
    }
    for (int i = 0; i < ALIGN; i++) buffer[i] = (char)(padded >> 8 * i & 0xff);
    memcpy(buffer + ALIGN, text, length);
    memset(buffer + ALIGN + length, ' ', padded - length);
    free(text);
    *out = buffer;
    *bytes = ALIGN + padded;
    return OPENPI_OK;
}

/* ---- layout ---- */

/* Tensors fill a shard until the next would not fit. */
static void cut_shards(safetensors_files *f) {
    const safetensors_order *o = f->order;
    uint64_t used = 0;
    for (int i = 0; i < o->count; i++) {
        uint64_t bytes = tensor_bytes(o->list[i]);
        if (i == 0 || (o->shard_bytes && used + bytes > o->shard_bytes)) {
            f->starts[f->shards++] = i;
            used = 0;
        }
        f->places[i] = (safetensors_place){f->shards - 1, used};
        used += bytes;
        if (o->sources[i]) f->total += bytes;
    }
    f->starts[f->shards] = o->count;
}

static void shard_name(char *name, size_t bytes, int shard, int shards) {
    if (shards == 1) snprintf(name, bytes, "model.safetensors");
    else snprintf(name, bytes, "model-%05d-of-%05d.safetensors", shard + 1, shards);
}

/* malloc; NULL: no memory. */
static char *shard_path(const safetensors_files *f, int shard) {
    char name[64];
    shard_name(name, sizeof name, shard, f->shards);
    return file_join(f->order->folder, name);
}

/* ---- files ---- */

static openpi_status no_path(const safetensors_files *f, openpi_error *error) {
    return report_no_memory(error, strlen(f->order->folder) + 64, "a path");
}

static openpi_status not_written(const char *path, int why, openpi_error *error) {
    return report(error, OPENPI_SYSTEM, "%s: cannot be written: %s", path, ascii_errno(why));
}

/* Returns errno. */
static int write_at(const char *path, const void *data, size_t bytes, uint64_t at) {
    int fd = open(path, O_WRONLY | O_CLOEXEC), why = fd < 0 ? errno : 0;
    for (size_t done = 0; done < bytes && !why;) {
        ssize_t put = pwrite(fd, (const char *)data + done, bytes - done, (off_t)(at + done));
        if (put >= 0) done += (size_t)put;
        else if (errno != EINTR) why = errno;
    }
    return fd >= 0 && close(fd) && !why ? errno : why;
}

openpi_status safetensors_put(const safetensors_files *f, int shard, const void *data, size_t bytes,
                              uint64_t at, openpi_error *error) {
    char *path = shard_path(f, shard);
    if (!path) return no_path(f, error);
    int why = write_at(path, data, bytes, at);
    openpi_status status = why ? not_written(path, why, error) : OPENPI_OK;
    free(path);
    return status;
}

/* A file of that length, of which nothing is written. */
static openpi_status create_file(const safetensors_files *f, int shard, uint64_t bytes, openpi_error *error) {
    char *path = shard_path(f, shard);
    if (!path) return no_path(f, error);
    openpi_status status = f->order->created(f->order->created_user, path, error);
    int fd = -1, why = 0;
    if (status == OPENPI_OK) {
        fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd < 0)
            status = report(error, OPENPI_SYSTEM, "%s: cannot be created: %s", path, ascii_errno(errno));
    }
    if (fd >= 0 && ftruncate(fd, (off_t)bytes)) why = errno;
    if (fd >= 0 && close(fd) && !why) why = errno;
    if (why) status = not_written(path, why, error);
    free(path);
    return status;
}

/* The file with its header; its tensors' places move behind that. */
static openpi_status begin_file(const safetensors_files *f, int shard, openpi_error *error) {
    const safetensors_order *o = f->order;
    int first = f->starts[shard], count = f->starts[shard + 1] - first;
    char *header;
    size_t bytes;
    TRY(safetensors_header(o->list + first, count, o->prefix, o->metadata, &header, &bytes, error));
    for (int i = first; i < first + count; i++) f->places[i].at += bytes;
    uint64_t end = count ? f->places[first + count - 1].at + tensor_bytes(o->list[first + count - 1]) : bytes;
    openpi_status status = create_file(f, shard, end, error);
    if (status == OPENPI_OK) status = safetensors_put(f, shard, header, bytes, 0, error);
    free(header);
    return status;
}

static openpi_status write_index(const safetensors_files *f, openpi_error *error) {
    const safetensors_order *o = f->order;
    char name[300], file[64];
    json_t *map = json_object();
    uint64_t size = 0;
    int failed = 0;
    for (int i = 0; i < o->count; i++) {
        snprintf(name, sizeof name, "%s%s", o->prefix, o->list[i]->name);
        shard_name(file, sizeof file, f->places[i].shard, f->shards);
        failed |= json_object_set_new(map, name, json_string(file));
        size += tensor_bytes(o->list[i]);
    }
    json_t *root =
        json_pack("{s:{s:I},s:o}", "metadata", "total_size", (json_int_t)size, "weight_map", map);
    char *text = root && !failed ? json_text(root, JSON_INDENT(2)) : NULL;
    char *path = text ? file_join(o->folder, "model.safetensors.index.json") : NULL;
    openpi_status status = path ? o->created(o->created_user, path, error)
                                : report_no_memory(error, 4096, "model.safetensors.index.json");
    if (status == OPENPI_OK) status = file_write(path, text, strlen(text), error);
    json_decref(root);
    free(text);
    free(path);
    return status;
}

static openpi_status check_space(const safetensors_files *f, openpi_error *error) {
    uint64_t space = file_free_space(f->order->folder);
    if (space >= f->total) return OPENPI_OK;
    return report(error, OPENPI_SYSTEM,
                  "%s: the weights take %.2f GB, but %.2f GB are free on its file system", f->order->folder,
                  (double)f->total * 1e-9, (double)space * 1e-9);
}

openpi_status safetensors_write(const safetensors_order *order, openpi_error *error) {
    size_t count = (size_t)order->count + 1;
    safetensors_files f = {.order = order,
                           .places = malloc(count * sizeof *f.places),
                           .starts = malloc(count * sizeof *f.starts)};
    openpi_status status = OPENPI_OK;
    if (!f.places || !f.starts)
        status = report_no_memory(error, count * sizeof *f.places, "writing weights");
    if (status == OPENPI_OK) cut_shards(&f);
    if (status == OPENPI_OK) status = check_space(&f, error);
    for (int shard = 0; shard < f.shards && status == OPENPI_OK; shard++)
        status = begin_file(&f, shard, error);
    if (status == OPENPI_OK) status = safetensors_write_data(&f, error);
    if (status == OPENPI_OK && f.shards > 1) status = write_index(&f, error);
    free(f.starts);
    free(f.places);
    return status;
}
