#include "checkpoint/safetensors/file_source.h"

#include <stdlib.h>
#include <string.h>

#include "base/first_failure.h"
#include "base/report.h"
#include "checkpoint/source.h"

struct file_source {
    char *path;
    file_reader reader;
    json_t *metadata;
    char *bytes;                 /* all of them, once they are loaded          */
    first_failure failure;       /* the first failed read                      */
};

/* ---- a tensor ---- */

static void file_bytes(const tensor *tensor, uint64_t from, size_t bytes, void *to) {
    file_source *file = tensor->place;
    openpi_error error = OPENPI_ERROR_INIT;
    if (file_reader_read(&file->reader, file->path, tensor->at + from, bytes, to, &error) == OPENPI_OK)
        return;
    memset(to, 0, bytes);
    first_failure_keep(&file->failure, &error);
}

static const void *file_loaded(const tensor *tensor) {
    const file_source *file = tensor->place;
    return file->bytes ? file->bytes + tensor->at : NULL;
}

static const tensor_source source = {.bytes = file_bytes, .loaded = file_loaded};

void file_source_set(file_source *file, uint64_t at, tensor *tensor) {
    tensor->source = &source;
    tensor->place = file;
    tensor->at = at;
}

/* ---- the file ---- */

static void close_reader(void *store) {
    file_source *file = store;
    file_reader_close(&file->reader);
}

static void close_file(void *store) {
    file_source *file = store;
    file_reader_close(&file->reader);
    json_decref(file->metadata);
    free(file->bytes);
    free(file->path);
    free(file);
}

static openpi_status check_file(const void *store, openpi_error *error) {
    const file_source *file = store;
    return first_failure_report(&file->failure, error);
}

static openpi_status load_file(void *store, openpi_error *error) {
    file_source *file = store;
    size_t bytes = (size_t)file->reader.bytes;
    if (!file->bytes && !(file->bytes = malloc(bytes))) return report_no_memory(error, bytes, file->path);
    return file_reader_read(&file->reader, file->path, 0, bytes, file->bytes, error);
}

static int count_file(const void *store) {
    (void)store;
    return 1;
}

static const char *name_file(const void *store, int index, uint64_t *bytes) {
    const file_source *file = store;
    (void)index;
    *bytes = file->reader.bytes;
    return file->path;
}

static const char *file_metadata(const void *store, const char *key) {
    const file_source *file = store;
    return json_string_value(json_object_get(file->metadata, key));
}

static const tensor_store store_functions = {.close = close_file,
                                             .close_files = close_reader,
                                             .check = check_file,
                                             .load = load_file,
                                             .files = count_file,
                                             .file = name_file,
                                             .metadata = file_metadata};

openpi_status file_source_add(tensors *tensors, const char *path, file_reader reader, json_t *metadata,
                              file_source **out, openpi_error *error) {
    file_source *file = calloc(1, sizeof *file);
    char *copy = file ? strdup(path) : NULL;
    if (!copy) {
        free(file);
        file_reader_close(&reader);
        json_decref(metadata);
        return report_no_memory(error, strlen(path) + sizeof *file, path);
    }
    *file = (file_source){.path = copy, .reader = reader, .metadata = metadata};
    TRY(tensors_own(tensors, &store_functions, file, error));
    *out = file;
    return OPENPI_OK;
}

const char *file_source_path(const file_source *file) { return file->path; }
