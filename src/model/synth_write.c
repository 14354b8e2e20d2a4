/* Writes a synthetic checkpoint's weights to safetensors files, one or several.
 *
 * Tensors are cut into pieces; each worker generates a piece in its own buffer and writes it to its place, so
 * that memory stays small and the order of writing does not matter. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/report.h"
#include "model/checkpoint.h"
#include "model/synth.h"
#include "model/tensors_build.h"

enum { PIECE = 1 << 20, ALIGN = 8 };

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

/* ---- data ---- */

typedef struct piece {
    const tensor *tensor;
    int64_t first, count;
    uint64_t at;                 /* in the file */
} piece;

typedef struct job {
    const piece *pieces;         /* of this pool_run */
    bf16 *scratch;               /* [threads][PIECE] */
    int fd;
    atomic_int why;              /* errno of the first failure */
} job;

static int write_at(int fd, const void *data, size_t bytes, uint64_t at) {
    for (size_t done = 0; done < bytes;) {
        ssize_t put = pwrite(fd, (const char *)data + done, bytes - done, (off_t)(at + done));
        if (put >= 0) done += (size_t)put;
        else if (errno != EINTR) return errno;
    }
    return 0;
}

static void write_piece(void *argument, int task, int worker) {
    job *j = argument;
    const piece *p = &j->pieces[task];
    bf16 *buffer = j->scratch + (size_t)worker * PIECE;
    if (atomic_load_explicit(&j->why, memory_order_relaxed)) return;
    tensor_read_bf16(p->tensor, p->first, p->count, buffer);
    int why = write_at(j->fd, buffer, (size_t)p->count * sizeof *buffer, p->at), none = 0;
    if (why) atomic_compare_exchange_strong(&j->why, &none, why);
}

/* The whole write: what is the same for every shard. */
typedef struct writer {
    const char *folder, *prefix;
    json_t *metadata;
    pool *pool;
    bf16 *scratch;
    synth_created created;
    void *created_user;
    openpi_progress progress;
    void *progress_user;
    uint64_t done, total;        /* bytes */
} writer;

static int count_pieces(const tensor *const *list, int count) {
    int64_t pieces = 0;
    for (int i = 0; i < count; i++) pieces += (list[i]->count + PIECE - 1) / PIECE;
    return (int)pieces;
}

static void cut_pieces(const tensor *const *list, int count, uint64_t at, piece *pieces) {
    for (int i = 0; i < count; i++)
        for (int64_t first = 0; first < list[i]->count; first += PIECE) {
            int64_t rest = list[i]->count - first;
            *pieces = (piece){list[i], first, rest < PIECE ? rest : PIECE, at};
            at += (uint64_t)pieces++->count * sizeof(bf16);
        }
}

/* A few pieces a worker at a time, so that progress is reported in between. */
static int write_pieces(writer *w, int fd, const piece *pieces, int count) {
    job j = {.scratch = w->scratch, .fd = fd};
    int group = 4 * pool_threads(w->pool);
    for (int i = 0; i < count; i += group) {
        int now = count - i < group ? count - i : group;
        j.pieces = pieces + i;
        pool_run(w->pool, write_piece, &j, now);
        int why = atomic_load(&j.why);
        if (why) return why;
        for (int k = 0; k < now; k++) w->done += (uint64_t)pieces[i + k].count * sizeof(bf16);
        if (w->progress) w->progress(w->progress_user, "writing weights", w->done, w->total);
    }
    return 0;
}

static openpi_status write_open_file(writer *w, int fd, const char *path, const tensor *const *list,
                                     int count, openpi_error *error) {
    char *header;
    size_t bytes;
    int pieces = count_pieces(list, count), why;
    TRY(safetensors_header(list, count, w->prefix, w->metadata, &header, &bytes, error));
    piece *cut = malloc((size_t)pieces * sizeof *cut);
    if (!cut) {
        free(header);
        return report_no_memory(error, (size_t)pieces * sizeof *cut, path);
    }
    cut_pieces(list, count, bytes, cut);
    why = write_at(fd, header, bytes, 0);
    if (!why) why = write_pieces(w, fd, cut, pieces);
    free(header);
    free(cut);
    return why ? report(error, OPENPI_SYSTEM, "%s: cannot be written: %s", path, strerror(why)) : OPENPI_OK;
}

static openpi_status write_file(writer *w, const char *name, const tensor *const *list, int count,
                                openpi_error *error) {
    char *path = file_join(w->folder, name);
    if (!path) return report_no_memory(error, strlen(w->folder) + strlen(name) + 2, "a path");
    openpi_status status = w->created(w->created_user, path, error);
    int fd = -1;
    if (status == OPENPI_OK) {
        fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        status = fd < 0 ? report(error, OPENPI_SYSTEM, "%s: cannot be created: %s", path, strerror(errno))
                        : write_open_file(w, fd, path, list, count, error);
    }
    if (fd >= 0 && close(fd) && status == OPENPI_OK)
        status = report(error, OPENPI_SYSTEM, "%s: cannot be written: %s", path, strerror(errno));
    free(path);
    return status;
}

/* ---- shards ---- */

/* Tensors fill a shard until the next would not fit; starts[i]: the first tensor of shard i. */
static int cut_shards(const tensor *const *list, int count, uint64_t shard_bytes, int *starts) {
    uint64_t used = 0;
    int shards = 0;
    for (int i = 0; i < count; i++) {
        uint64_t bytes = (uint64_t)list[i]->count * sizeof(bf16);
        if (i == 0 || (shard_bytes && used + bytes > shard_bytes)) {
            starts[shards++] = i;
            used = 0;
        }
        used += bytes;
    }
    starts[shards] = count;
    return shards;
}

static void shard_name(char *name, size_t bytes, int shard, int shards) {
    if (shards == 1) snprintf(name, bytes, "model.safetensors");
    else snprintf(name, bytes, "model-%05d-of-%05d.safetensors", shard + 1, shards);
}

static openpi_status write_index(writer *w, const tensor *const *list, const int *starts, int shards,
                                 openpi_error *error) {
    char name[300], file[64];
    json_t *map = json_object();
    int failed = 0;
    for (int s = 0; s < shards; s++)
        for (int i = starts[s]; i < starts[s + 1]; i++) {
            snprintf(name, sizeof name, "%s%s", w->prefix, list[i]->name);
            shard_name(file, sizeof file, s, shards);
            failed |= json_object_set_new(map, name, json_string(file));
        }
    json_t *root =
        json_pack("{s:{s:I},s:o}", "metadata", "total_size", (json_int_t)w->total, "weight_map", map);
    char *text = root && !failed ? json_text(root, JSON_INDENT(2)) : NULL;
    char *path = text ? file_join(w->folder, "model.safetensors.index.json") : NULL;
    openpi_status status = path ? w->created(w->created_user, path, error)
                                : report_no_memory(error, 4096, "model.safetensors.index.json");
    if (status == OPENPI_OK) status = file_write(path, text, strlen(text), error);
    json_decref(root);
    free(text);
    free(path);
    return status;
}

static openpi_status write_shards(writer *w, const tensor *const *list, int count, uint64_t shard_bytes,
                                  int *starts, openpi_error *error) {
    int shards = cut_shards(list, count, shard_bytes, starts);
    for (int s = 0; s < shards; s++) {
        char name[64];
        shard_name(name, sizeof name, s, shards);
        TRY(write_file(w, name, list + starts[s], starts[s + 1] - starts[s], error));
    }
    return shards > 1 ? write_index(w, list, starts, shards, error) : OPENPI_OK;
}

/* Metadata: the format as torch's tools expect it, and the sizes; the tensors' shapes give all but the number
 * of vision heads. */
static json_t *make_metadata(const openpi_dims *dims) {
    json_t *object = dims_json(dims);
    char *text = object ? json_text(object, JSON_COMPACT) : NULL;
    json_t *metadata = text ? json_pack("{s:s,s:s}", "format", "pt", "openpi_dims", text) : NULL;
    json_decref(object);
    free(text);
    return metadata;
}

openpi_status synth_write_weights(const openpi_synthetic *synthetic, const char *folder, uint64_t shard_bytes,
                                  pool *pool, synth_created created, void *created_user,
                                  openpi_progress progress, void *progress_user, openpi_error *error) {
    tensors *tensors;
    TRY(tensors_synthetic(synthetic, &tensors, error));
    int count = tensors_count(tensors);
    size_t scratch = (size_t)pool_threads(pool) * PIECE * sizeof(bf16);
    writer w = {.folder = folder,
                .prefix = synthetic->lerobot ? "model." : "",
                .metadata = make_metadata(&synthetic->dims),
                .pool = pool,
                .scratch = malloc(scratch),
                .created = created,
                .created_user = created_user,
                .progress = progress,
                .progress_user = progress_user};
    const tensor **list = malloc((size_t)count * sizeof *list);
    int *starts = malloc(((size_t)count + 1) * sizeof *starts);
    openpi_status status = OPENPI_OK;
    if (!w.metadata || !w.scratch || !list || !starts)
        status = report_no_memory(error, scratch, "writing weights");
    for (int i = 0; status == OPENPI_OK && i < count; i++) {
        list[i] = tensors_at(tensors, i);
        w.total += (uint64_t)list[i]->count * sizeof(bf16);
    }
    if (status == OPENPI_OK) status = write_shards(&w, list, count, shard_bytes, starts, error);
    free(starts);
    free(list);
    free(w.scratch);
    json_decref(w.metadata);
    tensors_close(tensors);
    return status;
}
