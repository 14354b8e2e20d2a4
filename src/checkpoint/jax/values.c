#include "checkpoint/jax/values.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/report.h"

struct values {
    stored_value *list;
    char **owned;                /* every copy of a key, a path or bytes                                  */
    int count, capacity, owned_count, owned_capacity;
    const char **files;          /* each once when finished                                               */
    int file_count, file_capacity;
};

values *values_create(void) { return calloc(1, sizeof(values)); }

void values_close(values *v) {
    if (!v) return;
    for (int i = 0; i < v->owned_count; i++) free(v->owned[i]);
    free(v->owned);
    free(v->files);
    free(v->list);
    free(v);
}

static openpi_status own(values *v, const void *from, size_t bytes, char **out, openpi_error *error) {
    if (v->owned_count == v->owned_capacity) {
        int capacity = v->owned_capacity ? 2 * v->owned_capacity : 256;
        char **grown = realloc(v->owned, (size_t)capacity * sizeof *grown);
        if (!grown) return report_no_memory(error, (size_t)capacity * sizeof *grown, "a list of keys");
        v->owned = grown;
        v->owned_capacity = capacity;
    }
    char *copy = malloc(bytes + 1);
    if (!copy) return report_no_memory(error, bytes + 1, "a key and its value");
    if (bytes) memcpy(copy, from, bytes);
    copy[bytes] = 0;
    *out = v->owned[v->owned_count++] = copy;
    return OPENPI_OK;
}

openpi_status values_note_file(values *v, const char *file, openpi_error *error) {
    char *copy;
    if (v->file_count && !strcmp(v->files[v->file_count - 1], file)) return OPENPI_OK;
    if (v->file_count == v->file_capacity) {
        int capacity = v->file_capacity ? 2 * v->file_capacity : 16;
        const char **grown = realloc(v->files, (size_t)capacity * sizeof *grown);
        if (!grown) return report_no_memory(error, (size_t)capacity * sizeof *grown, "a list of files");
        v->files = grown;
        v->file_capacity = capacity;
    }
    TRY(own(v, file, strlen(file), &copy, error));
    v->files[v->file_count++] = copy;
    return OPENPI_OK;
}

openpi_status values_add(values *v, const char *key, const char *file, uint64_t at, uint64_t bytes,
                         const void *data, openpi_error *error) {
    char *own_key, *own_data = NULL;
    if (v->count == v->capacity) {
        int capacity = v->capacity ? 2 * v->capacity : 128;
        stored_value *grown = realloc(v->list, (size_t)capacity * sizeof *grown);
        if (!grown) return report_no_memory(error, (size_t)capacity * sizeof *grown, "a list of keys");
        v->list = grown;
        v->capacity = capacity;
    }
    TRY(own(v, key, strlen(key), &own_key, error));
    if (data) TRY(own(v, data, (size_t)bytes, &own_data, error));
    const char *path = v->count ? v->list[v->count - 1].file : NULL;       /* neighbours often share it */
    if (!path || strcmp(path, file)) {
        char *copy;
        TRY(own(v, file, strlen(file), &copy, error));
        path = copy;
    }
    if (!data) TRY(values_note_file(v, path, error));
    v->list[v->count++] = (stored_value){own_key, path, at, bytes, (const unsigned char *)own_data};
    return OPENPI_OK;
}

static int by_key(const void *a, const void *b) {
    return strcmp(((const stored_value *)a)->key, ((const stored_value *)b)->key);
}

static int by_text(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void unite_files(values *v) {
    int count = 0;
    if (v->file_count) qsort(v->files, (size_t)v->file_count, sizeof *v->files, by_text);
    for (int i = 0; i < v->file_count; i++)
        if (!count || strcmp(v->files[count - 1], v->files[i])) v->files[count++] = v->files[i];
    v->file_count = count;
}

openpi_status values_finish(values *v, const char *name, openpi_error *error) {
    unite_files(v);
    if (v->count) qsort(v->list, (size_t)v->count, sizeof *v->list, by_key);
    for (int i = 1; i < v->count; i++)
        if (!strcmp(v->list[i - 1].key, v->list[i].key))
            return report(error, OPENPI_BAD_FILE, "%s: key \"%s\" is there twice, expected once", name,
                          v->list[i].key);
    return OPENPI_OK;
}

int values_count(const values *v) { return v->count; }

const stored_value *values_at(const values *v, int index) { return &v->list[index]; }

int values_files(const values *v) { return v->file_count; }

const char *values_file(const values *v, int index) { return v->files[index]; }

const stored_value *values_find(const values *v, const char *key) {
    stored_value wanted = {.key = key};
    return v->count ? bsearch(&wanted, v->list, (size_t)v->count, sizeof *v->list, by_key) : NULL;
}

openpi_status value_read(const stored_value *value, size_t limit, char **data, openpi_error *error) {
    file_reader reader;
    if (value->bytes > limit)
        return report(error, OPENPI_BAD_FILE, "%s: the value of \"%s\" has %llu bytes, expected at most %zu",
                      value->file, value->key, (unsigned long long)value->bytes, limit);
    char *copy = malloc((size_t)value->bytes + 1);
    if (!copy) return report_no_memory(error, (size_t)value->bytes + 1, value->key);
    openpi_status status = OPENPI_OK;
    if (value->data) {
        memcpy(copy, value->data, (size_t)value->bytes);
    } else if ((status = file_reader_open(value->file, &reader, error)) == OPENPI_OK) {
        status = file_reader_read(&reader, value->file, value->at, (size_t)value->bytes, copy, error);
        file_reader_close(&reader);
    }
    if (status != OPENPI_OK) {
        free(copy);
        return status;
    }
    copy[value->bytes] = 0;
    *data = copy;
    return OPENPI_OK;
}
