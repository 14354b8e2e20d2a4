/* The list of tensors: owns names, files and metadata; finds tensors by name; reads elements in a wanted
 * type.
 *
 * Threads read at the same time and cannot report: the first read of a file that fails leaves its sentence
 * in the file's record, for tensors_check. A tensor's bytes in memory may lie at any address, so elements
 * are copied out before they are used. */
#include "checkpoint/tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/convert.h"
#include "base/first_failure.h"
#include "base/report.h"
#include "checkpoint/adapter/adapter.h"
#include "checkpoint/jax/orbax.h"
#include "checkpoint/synthetic/synth.h"
#include "checkpoint/tensor_names.h"
#include "checkpoint/tensors_build.h"

typedef struct entry {
    tensor tensor;
    char *stored;                /* the name in the file */
} entry;

struct tensor_file {
    char *path;
    file_reader reader;
    json_t *metadata;
    char *bytes;                 /* all of them, once they are loaded          */
    first_failure failure;       /* the first failed read                      */
};

struct tensors {
    entry *entries;
    struct tensor_file **files;
    int *order;                  /* indices of entries by name */
    int count, capacity, file_count;
    orbax *orbax;                /* the arrays of a JAX checkpoint; NULL: it is none */
    adapter *adapter;            /* what changes tensors; NULL: nothing             */
};

/* ---- building ---- */

tensors *tensors_create(void) { return calloc(1, sizeof(tensors)); }

static char *copy_text(const char *text) {
    size_t bytes = strlen(text) + 1;
    char *copy = malloc(bytes);
    if (copy) memcpy(copy, text, bytes);
    return copy;
}

openpi_status tensors_add_file(tensors *tensors, const char *path, file_reader reader, json_t *metadata,
                               struct tensor_file **file, openpi_error *error) {
    struct tensor_file **grown =
        realloc(tensors->files, ((size_t)tensors->file_count + 1) * sizeof(struct tensor_file *));
    if (grown) tensors->files = grown;
    struct tensor_file *added = grown ? calloc(1, sizeof *added) : NULL;
    char *copy = added ? copy_text(path) : NULL;
    if (!copy) {
        free(added);
        file_reader_close(&reader);
        json_decref(metadata);
        return report_no_memory(error, strlen(path) + sizeof *added, path);
    }
    added->path = copy;
    added->reader = reader;
    added->metadata = metadata;
    *file = grown[tensors->file_count++] = added;
    return OPENPI_OK;
}

const char *tensor_file_path(const struct tensor_file *file) { return file->path; }

openpi_status tensors_add(tensors *tensors, const tensor *tensor, openpi_error *error) {
    if (tensors->count == tensors->capacity) {
        int capacity = tensors->capacity ? 2 * tensors->capacity : 64;
        entry *grown = realloc(tensors->entries, (size_t)capacity * sizeof *grown);
        if (!grown) return report_no_memory(error, (size_t)capacity * sizeof *grown, "the list of tensors");
        tensors->entries = grown;
        tensors->capacity = capacity;
    }
    char *name = copy_text(tensor->name);
    if (!name) return report_no_memory(error, strlen(tensor->name) + 1, "a tensor's name");
    entry *e = &tensors->entries[tensors->count++];
    *e = (entry){*tensor, name};
    e->tensor.name = name;
    return OPENPI_OK;
}

/* qsort passes its comparison two elements only, so each name is sorted together with its index. */
typedef struct named {
    const char *name;
    int index;
} named;

static int by_name(const void *a, const void *b) {
    return strcmp(((const named *)a)->name, ((const named *)b)->name);
}

openpi_status tensors_finish(tensors *tensors, openpi_error *error) {
    size_t count = (size_t)tensors->count;
    named *sorted = malloc((count + 1) * sizeof *sorted);
    int *order = realloc(tensors->order, (count + 1) * sizeof *order);
    if (order) tensors->order = order;
    if (!sorted || !order) {
        free(sorted);
        return report_no_memory(error, (count + 1) * sizeof *sorted, "the list of tensors");
    }
    for (int i = 0; i < tensors->count; i++) sorted[i] = (named){tensors->entries[i].tensor.name, i};
    qsort(sorted, count, sizeof *sorted, by_name);
    openpi_status status = OPENPI_OK;
    for (int i = 0; i < tensors->count; i++) {
        order[i] = sorted[i].index;
        if (status != OPENPI_OK || i == 0 || strcmp(sorted[i - 1].name, sorted[i].name)) continue;
        const entry *a = &tensors->entries[sorted[i - 1].index], *b = &tensors->entries[sorted[i].index];
        if (a->tensor.file != b->tensor.file)
            status = report(error, OPENPI_BAD_FILE, "%s: tensor \"%s\" is also in %s, expected in one file",
                            a->tensor.file, a->stored, b->tensor.file);
        else
            status = report(error, OPENPI_BAD_FILE,
                            "%s: tensors \"%s\" and \"%s\" are both there, expected one of them",
                            a->tensor.file, a->stored, b->stored);
    }
    free(sorted);
    return status;
}

void tensors_close(tensors *tensors) {
    if (!tensors) return;
    for (int i = 0; i < tensors->count; i++) free(tensors->entries[i].stored);
    tensors_close_files(tensors);
    for (int i = 0; i < tensors->file_count; i++) {
        free(tensors->files[i]->path);
        free(tensors->files[i]->bytes);
        json_decref(tensors->files[i]->metadata);
        free(tensors->files[i]);
    }
    adapter_close(tensors->adapter);
    orbax_close(tensors->orbax);
    free(tensors->entries);
    free(tensors->files);
    free(tensors->order);
    free(tensors);
}

/* ---- names ---- */

const char *tensors_stored_name(const tensors *tensors, int index) { return tensors->entries[index].stored; }

/* The length of what stands before openpi's names; LeRobot's prefix counts as a part of the name. */
static size_t wrapper_of(const char *name) {
    static const char *const firsts[] = {"paligemma_with_expert.", "action_in_proj.", "action_out_proj."};
    const size_t lerobot = sizeof LEROBOT_PREFIX - 1;
    for (size_t i = 0; i < sizeof firsts / sizeof *firsts; i++) {
        const char *at = strstr(name, firsts[i]);
        size_t length = at ? (size_t)(at - name) : 0;
        if (!length || name[length - 1] != '.') continue;
        int own = length >= lerobot && !strncmp(at - lerobot, LEROBOT_PREFIX, lerobot) &&
                  (length == lerobot || at[-(ptrdiff_t)lerobot - 1] == '.');
        return length - (own ? lerobot : 0);
    }
    return 0;
}

void tensors_unwrap(tensors *tensors, char *prefix, size_t bytes) {
    size_t length = 0;
    *prefix = 0;
    for (int i = 0; i < tensors->count && !length; i++) length = wrapper_of(tensors->entries[i].stored);
    if (!length || length >= bytes) return;
    for (int i = 0; i < tensors->count; i++)
        if (strncmp(tensors->entries[i].stored, tensors->entries[0].stored, length)) return;
    snprintf(prefix, bytes, "%.*s", (int)length, tensors->entries[0].stored);
    for (int i = 0; i < tensors->count; i++) {
        char *name = tensors->entries[i].stored;
        memmove(name, name + length, strlen(name + length) + 1);
    }
}

void tensors_strip_prefix(tensors *tensors) {
    for (int i = 0; i < tensors->count; i++)
        tensors->entries[i].tensor.name = without_lerobot_prefix(tensors->entries[i].stored);
}

void tensors_rename(tensors *tensors, int index, const char *name) {
    tensors->entries[index].tensor.name = name;
}

void tensors_drop(tensors *tensors, int index) {
    free(tensors->entries[index].stored);
    tensors->count--;
    memmove(&tensors->entries[index], &tensors->entries[index + 1],
            (size_t)(tensors->count - index) * sizeof *tensors->entries);
}

/* ---- looking ---- */

int tensors_count(const tensors *tensors) { return tensors->count; }

const tensor *tensors_at(const tensors *tensors, int index) { return &tensors->entries[index].tensor; }

int tensors_index(const tensors *tensors, const char *name) {
    for (int low = 0, high = tensors->count - 1; low <= high;) {
        int middle = low + (high - low) / 2;
        int index = tensors->order[middle], side = strcmp(name, tensors->entries[index].tensor.name);
        if (!side) return index;
        if (side < 0)
            high = middle - 1;
        else
            low = middle + 1;
    }
    return -1;
}

const tensor *tensors_find(const tensors *tensors, const char *name) {
    int index = tensors_index(tensors, name);
    return index < 0 ? NULL : &tensors->entries[index].tensor;
}

const char *tensors_metadata(const tensors *tensors, const char *key) {
    for (int i = 0; i < tensors->file_count; i++) {
        const char *value = json_string_value(json_object_get(tensors->files[i]->metadata, key));
        if (value) return value;
    }
    return NULL;
}

int tensors_files(const tensors *tensors) {
    return tensors->orbax ? orbax_files(tensors->orbax) : tensors->file_count;
}

const char *tensors_file(const tensors *tensors, int index, uint64_t *bytes) {
    if (tensors->orbax) return orbax_file(tensors->orbax, index, bytes);
    *bytes = tensors->files[index]->reader.bytes;
    return tensors->files[index]->path;
}

/* ---- files ---- */

void tensors_close_files(tensors *tensors) {
    for (int i = 0; i < tensors->file_count; i++) file_reader_close(&tensors->files[i]->reader);
    if (tensors->orbax) orbax_release(tensors->orbax);
    if (tensors->adapter) adapter_release(tensors->adapter);
}

openpi_status tensors_load(tensors *tensors, openpi_error *error) {
    for (int i = 0; i < tensors->file_count; i++) {
        struct tensor_file *file = tensors->files[i];
        size_t bytes = (size_t)file->reader.bytes;
        if (!file->bytes && !(file->bytes = malloc(bytes))) return report_no_memory(error, bytes, file->path);
        TRY(file_reader_read(&file->reader, file->path, 0, bytes, file->bytes, error));
    }
    for (int i = 0; i < tensors->count; i++) {
        tensor *t = &tensors->entries[i].tensor;
        if (t->stored) t->data = t->stored->bytes + t->at;
    }
    return OPENPI_OK;
}

openpi_status tensors_check(const tensors *tensors, openpi_error *error) {
    for (int i = 0; i < tensors->file_count; i++)
        TRY(first_failure_report(&tensors->files[i]->failure, error));
    if (tensors->adapter) TRY(adapter_check(tensors->adapter, error));
    return tensors->orbax ? orbax_check(tensors->orbax, error) : OPENPI_OK;
}

const char *tensor_shape_text(int rank, const int64_t *shape, char *text, size_t bytes) {
    size_t at = 0;
    text[0] = 0;
    for (int i = 0; i < rank && at < bytes; i++)
        at += (size_t)snprintf(text + at, bytes - at, "%s%lld", i ? ", " : "[", (long long)shape[i]);
    if (at < bytes) snprintf(text + at, bytes - at, rank ? "]" : "[]");
    return text;
}

const char *dtype_name(dtype type) {
    static const char *const names[DTYPES] = {"F32", "BF16", "F16", "F64", "I64",  "I32",     "U8",     "I8",
                                              "I16", "U16",  "U32", "U64", "BOOL", "F8_E4M3", "F8_E5M2"};
    return names[type];
}

/* ---- stages ---- */

openpi_status tensors_add_orbax(tensors *tensors, const char *params, const tensors_options *options,
                                openpi_error *error) {
    return orbax_open(params, options, tensors, &tensors->orbax, error);
}

void tensors_widen(tensors *tensors, int place, int64_t rows, int64_t columns) {
    tensor *t = &tensors->entries[place].tensor;
    if (!rows && !t->narrow_rows) return;
    if (!rows) {
        rows = t->narrow_rows;
        columns = t->narrow_columns;
        t->narrow_rows = t->narrow_columns = 0;
    } else {
        t->narrow_rows = t->shape[0];
        t->narrow_columns = t->rank > 1 ? t->shape[1] : 1;
    }
    t->shape[0] = rows;
    if (t->rank > 1) t->shape[1] = columns;
    t->count = t->raise_from = rows * (t->rank > 1 ? columns : 1);
}

void tensors_add_adapter(tensors *tensors, adapter *adapter) { tensors->adapter = adapter; }

openpi_status tensors_change(tensors *tensors, int place, int index, openpi_error *error) {
    tensor *t = &tensors->entries[place].tensor;
    struct orbax_part *part = t->part;
    TRY(adapter_apply(tensors->adapter, index, t, error));
    if (part && t->change) orbax_part_keep(part);
    return OPENPI_OK;
}

const adapter *tensors_adapter(const tensors *tensors) { return tensors->adapter; }

int tensors_stages(const tensors *tensors) { return tensors->orbax ? orbax_stages(tensors->orbax) : 1; }

int tensor_stage(const tensor *tensor) { return tensor->part ? orbax_part_stage(tensor->part) : 0; }

openpi_status tensors_stage(const tensors *tensors, int stage, struct pool *pool, openpi_error *error) {
    if (tensors->adapter) TRY(adapter_stage(tensors->adapter, error));
    return tensors->orbax ? orbax_stage(tensors->orbax, stage, pool, error) : OPENPI_OK;
}

int tensor_is_sequential(const tensor *tensor) {
    return tensor->part && orbax_part_is_sequential(tensor->part);
}

const void *tensor_array(const tensor *tensor) {
    return tensor->part ? orbax_part_array(tensor->part) : NULL;
}

openpi_status tensor_hold(const tensor *tensor, const decode_watch *watch, openpi_error *error) {
    return tensor_array(tensor) ? orbax_part_hold(tensor->part, watch, error) : OPENPI_OK;
}

void tensor_release(const tensor *tensor) {
    if (tensor_array(tensor)) orbax_part_release(tensor->part);
}

dtype tensor_stored_type(const tensor *tensor) {
    return tensor->part ? orbax_part_stored_type(tensor->part) : tensor->type;
}

uint64_t tensor_stored_bytes(const tensor *tensor) {
    return (uint64_t)tensor_stored_count(tensor) * dtype_bytes(tensor_stored_type(tensor));
}

int tensors_lora(const tensors *tensors, int index, const char **array, int *layers) {
    return tensors->orbax ? orbax_lora(tensors->orbax, index, array, layers) : 0;
}

int tensors_lora_left_out(const tensors *tensors) {
    return tensors->orbax ? orbax_lora_left_out(tensors->orbax) : 0;
}

int tensors_missing_chunks(const tensors *tensors, const char **why) {
    *why = "";
    return tensors->orbax ? orbax_missing_chunks(tensors->orbax, why) : 0;
}

openpi_status tensors_describe_orbax(const tensors *tensors, json_t **out, openpi_error *error) {
    *out = NULL;
    return tensors->orbax ? orbax_describe(tensors->orbax, out, error) : OPENPI_OK;
}

int tensors_vision_heads(const tensors *tensors) {
    return tensors->orbax ? orbax_vision_heads(tensors->orbax) : 0;
}

void tensors_round(tensors *tensors, int on) {
    if (!tensors->orbax) return;
    orbax_round(tensors->orbax, on);
    for (int i = 0; i < tensors->count; i++) {
        tensor *t = &tensors->entries[i].tensor;
        t->rounded = on;
        if (t->part && !t->change) t->type = orbax_part_type(t->part);
    }
}

/* ---- reading elements ---- */

/* Bytes of a tensor that is not generated, from its memory or its file. */
static void copy_bytes(const tensor *tensor, uint64_t from, size_t bytes, void *to) {
    struct tensor_file *file = tensor->stored;
    openpi_error error = OPENPI_ERROR_INIT;
    if (tensor->part) {
        orbax_part_read(tensor->part, from, bytes, to);
        return;
    }
    if (tensor->data) {
        memcpy(to, (const char *)tensor->data + from, bytes);
        return;
    }
    if (file_reader_read(&file->reader, file->path, tensor->at + from, bytes, to, &error) == OPENPI_OK)
        return;
    memset(to, 0, bytes);
    first_failure_keep(&file->failure, &error);
}

/* Elements that are converted at once, on the reading thread's stack. */
enum { PIECE = 2048, WIDEST = 8 };

/* Of a tensor with zeros around what is stored: row after row of what is wanted. */
static void read_wide(const tensor *wide, dtype type, int64_t first, int64_t count, char *out) {
    int64_t columns = wide->rank > 1 ? wide->shape[1] : 1, stored = wide->narrow_columns;
    size_t size = dtype_bytes(type);
    tensor narrow = *wide;
    narrow.narrow_rows = narrow.narrow_columns = 0;
    memset(out, 0, (size_t)count * size);
    for (int64_t at = first, end = first + count; at < end;) {
        int64_t row = at / columns, column = at % columns, next = (row + 1) * columns;
        int64_t last = next < end ? next : end, kept = row * columns + stored;
        if (kept > last) kept = last;
        if (row < wide->narrow_rows && at < kept)
            tensor_read(&narrow, type, row * stored + column, kept - at, out + (size_t)(at - first) * size);
        at = last;
    }
}

void tensor_read(const tensor *tensor, dtype type, int64_t first, int64_t count, void *out) {
    size_t stored = dtype_bytes(tensor->type), wanted = dtype_bytes(type);
    char piece[PIECE * WIDEST];
    if (count <= 0) return;
    if (tensor->narrow_rows) {
        read_wide(tensor, type, first, count, out);
        return;
    }
    if (tensor->change) {
        adapter_read(tensor->change, tensor->rounded, type, first, count, out);
        return;
    }
    if (tensor_is_generated(tensor)) {
        const synth_kernel *synth = synth_kernel_best();
        if (type == DTYPE_BF16) synth->read_bf16(tensor, first, count, out);
        else synth->read_f32(tensor, first, count, out);
        return;
    }
    if (tensor->type == type && !(tensor->rounded && type == DTYPE_F32)) {
        copy_bytes(tensor, (uint64_t)first * stored, (size_t)count * stored, out);
        return;
    }
    for (int64_t at = 0; at < count; at += PIECE) {
        int n = count - at < PIECE ? (int)(count - at) : PIECE;
        void *to = (char *)out + (size_t)at * wanted;
        copy_bytes(tensor, (uint64_t)(first + at) * stored, (size_t)n * stored, piece);
        if (type == DTYPE_BF16) convert_to_bf16(tensor->type, piece, (size_t)n, to);
        else convert_to_f32(tensor->type, piece, (size_t)n, to);
        if (tensor->rounded && type == DTYPE_F32) convert_round(to, (size_t)n);
    }
}
