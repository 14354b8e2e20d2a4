/* The list of tensors: who owns names, maps and metadata; looking up; reading elements in the type asked for.
 *
 * A tensor's bytes may lie at any address, so elements are copied out before they are used. */
#include "model/tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/report.h"
#include "model/synth.h"
#include "model/tensors_build.h"

typedef struct entry {
    tensor tensor;
    char *stored;                /* the name in the file */
} entry;

typedef struct source {
    char *path;
    file_map map;
    json_t *metadata;
} source;

struct tensors {
    entry *entries;
    source *sources;
    int *order;                  /* indices of entries by name */
    int count, room, source_count;
};

/* ---- building ---- */

tensors *tensors_create(void) { return calloc(1, sizeof(tensors)); }

static char *copy_text(const char *text) {
    size_t bytes = strlen(text) + 1;
    char *copy = malloc(bytes);
    if (copy) memcpy(copy, text, bytes);
    return copy;
}

openpi_status tensors_add_file(tensors *tensors, const char *path, file_map map, json_t *metadata, const char **file,
                               openpi_error *error) {
    source *grown = realloc(tensors->sources, ((size_t)tensors->source_count + 1) * sizeof *grown);
    if (grown) tensors->sources = grown;
    char *copy = grown ? copy_text(path) : NULL;
    if (!copy) {
        file_map_close(&map);
        json_decref(metadata);
        return report_no_memory(error, strlen(path) + sizeof *grown, path);
    }
    grown[tensors->source_count++] = (source){copy, map, metadata};
    *file = copy;
    return OPENPI_OK;
}

openpi_status tensors_add(tensors *tensors, const tensor *tensor, openpi_error *error) {
    if (tensors->count == tensors->room) {
        int room = tensors->room ? 2 * tensors->room : 64;
        entry *grown = realloc(tensors->entries, (size_t)room * sizeof *grown);
        if (!grown) return report_no_memory(error, (size_t)room * sizeof *grown, "the list of tensors");
        tensors->entries = grown;
        tensors->room = room;
    }
    char *name = copy_text(tensor->name);
    if (!name) return report_no_memory(error, strlen(tensor->name) + 1, "a tensor's name");
    entry *e = &tensors->entries[tensors->count++];
    *e = (entry){*tensor, name};
    e->tensor.name = name;
    return OPENPI_OK;
}

/* qsort hands its comparison nothing but two elements: names travel with their indices. */
typedef struct named {
    const char *name;
    int index;
} named;

static int by_name(const void *a, const void *b) { return strcmp(((const named *)a)->name, ((const named *)b)->name); }

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
            status = report(error, OPENPI_BAD_FILE, "%s: tensor \"%s\" is also in %s, expected in one file", a->tensor.file,
                            a->stored, b->tensor.file);
        else
            status = report(error, OPENPI_BAD_FILE, "%s: tensors \"%s\" and \"%s\" are both there, expected one of them",
                            a->tensor.file, a->stored, b->stored);
    }
    free(sorted);
    return status;
}

void tensors_close(tensors *tensors) {
    if (!tensors) return;
    for (int i = 0; i < tensors->count; i++) free(tensors->entries[i].stored);
    for (int i = 0; i < tensors->source_count; i++) {
        free(tensors->sources[i].path);
        file_map_close(&tensors->sources[i].map);
        json_decref(tensors->sources[i].metadata);
    }
    free(tensors->entries);
    free(tensors->sources);
    free(tensors->order);
    free(tensors);
}

/* ---- names ---- */

const char *tensors_stored_name(const tensors *tensors, int index) { return tensors->entries[index].stored; }

void tensors_strip_prefix(tensors *tensors) {
    static const char prefix[] = "model.";
    for (int i = 0; i < tensors->count; i++) {
        entry *e = &tensors->entries[i];
        if (!strncmp(e->stored, prefix, sizeof prefix - 1)) e->tensor.name = e->stored + sizeof prefix - 1;
    }
}

void tensors_rename(tensors *tensors, int index, const char *name) { tensors->entries[index].tensor.name = name; }

void tensors_drop(tensors *tensors, int index) {
    free(tensors->entries[index].stored);
    tensors->count--;
    memmove(&tensors->entries[index], &tensors->entries[index + 1], (size_t)(tensors->count - index) * sizeof *tensors->entries);
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
    for (int i = 0; i < tensors->source_count; i++) {
        const char *value = json_string_value(json_object_get(tensors->sources[i].metadata, key));
        if (value) return value;
    }
    return NULL;
}

int tensors_files(const tensors *tensors) { return tensors->source_count; }

const char *tensors_file(const tensors *tensors, int index, uint64_t *bytes) {
    *bytes = tensors->sources[index].map.bytes;
    return tensors->sources[index].path;
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
    static const char *const names[DTYPES] = {"F32", "BF16", "F16", "F64", "I64", "I32", "U8"};
    return names[type];
}

/* ---- reading elements ---- */

/* One loop a type, so that the branch stands outside of it. */
#define READ(ctype, expression)                      \
    for (int64_t i = 0; i < count; i++) {            \
        ctype v;                                     \
        memcpy(&v, at + i * (int64_t)sizeof v, sizeof v); \
        out[i] = expression;                         \
    }                                                \
    return

void tensor_read_f32(const tensor *tensor, int64_t first, int64_t count, float *out) {
    if (count <= 0) return;
    if (!tensor->data) {
        synth_kernel_best()->read_f32(tensor, first, count, out);
        return;
    }
    const uint8_t *at = (const uint8_t *)tensor->data + first * (int64_t)dtype_bytes(tensor->type);
    switch (tensor->type) {
    case DTYPE_F32: memcpy(out, at, (size_t)count * 4); return;
    case DTYPE_BF16: READ(bf16, bf16_to_float(v));
    case DTYPE_F16: READ(uint16_t, f16_to_float(v));
    case DTYPE_F64: READ(double, (float)v);
    case DTYPE_I64: READ(int64_t, (float)v);
    case DTYPE_I32: READ(int32_t, (float)v);
    case DTYPE_U8: READ(uint8_t, (float)v);
    case DTYPES: return;
    }
}

void tensor_read_bf16(const tensor *tensor, int64_t first, int64_t count, bf16 *out) {
    if (count <= 0) return;
    if (!tensor->data) {
        synth_kernel_best()->read_bf16(tensor, first, count, out);
        return;
    }
    const uint8_t *at = (const uint8_t *)tensor->data + first * (int64_t)dtype_bytes(tensor->type);
    switch (tensor->type) {
    case DTYPE_F32: READ(float, float_to_bf16(v));
    case DTYPE_BF16: memcpy(out, at, (size_t)count * 2); return;
    case DTYPE_F16: READ(uint16_t, float_to_bf16(f16_to_float(v)));
    case DTYPE_F64: READ(double, float_to_bf16((float)v));
    case DTYPE_I64: READ(int64_t, float_to_bf16((float)v));
    case DTYPE_I32: READ(int32_t, float_to_bf16((float)v));
    case DTYPE_U8: READ(uint8_t, float_to_bf16((float)v));
    case DTYPES: return;
    }
}
