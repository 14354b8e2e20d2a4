#include "checkpoint/jax/zarr.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/report.h"

enum {
    HEADER_LIMIT = 1 << 16,
    MOST_CHUNKS = 1 << 16,       /* most chunks of an array                                               */
    MOST_STREAMS = 256,          /* most chunks that are decoded side by side                             */
};

/* ---- the header ---- */

static openpi_status refuse(const char *label, const char *key, const json_t *value, const char *expected,
                            openpi_error *error) {
    char *text = value ? json_text(value, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    openpi_status status = report(
        error, OPENPI_UNSUPPORTED,
        "%s: \"%s\" is %.100s, expected %s: restore the checkpoint with Orbax and save it with its defaults",
        label, key, value ? text ? text : json_kind(value) : "missing", expected);
    free(text);
    return status;
}

static openpi_status take_type(const json_t *header, const char *label, dtype *out, openpi_error *error) {
    static const struct { const char *text; dtype type; } types[] = {
        {"<f4", DTYPE_F32}, {"bfloat16", DTYPE_BF16}, {"<f2", DTYPE_F16}};
    const json_t *value = json_object_get(header, "dtype");
    for (size_t i = 0; json_is_string(value) && i < sizeof types / sizeof *types; i++)
        if (!strcmp(json_string_value(value), types[i].text)) {
            *out = types[i].type;
            return OPENPI_OK;
        }
    return refuse(label, "dtype", value, "little-endian \"<f4\", \"bfloat16\" or \"<f2\"", error);
}

static openpi_status take_extents(const json_t *header, const char *key, const char *label, int least,
                                  int *rank, int64_t *out, openpi_error *error) {
    const json_t *value = json_object_get(header, key);
    if (!json_is_array(value) || json_array_size(value) > ZARR_AXES)
        return refuse(label, key, value, "an array of at most 5 integers", error);
    *rank = (int)json_array_size(value);
    for (int i = 0; i < *rank; i++) {
        const json_t *extent = json_array_get(value, (size_t)i);
        if (!json_is_integer(extent) || json_integer_value(extent) < least ||
            json_integer_value(extent) > INT32_MAX)
            return refuse(label, key, value, least ? "integers of at least 1" : "integers of at least 0",
                          error);
        out[i] = json_integer_value(extent);
    }
    return OPENPI_OK;
}

static openpi_status take_compressor(const json_t *header, const char *label, int *compressed,
                                     openpi_error *error) {
    const json_t *value = json_object_get(header, "compressor");
    const char *id = json_string_value(json_object_get(value, "id"));
    *compressed = !json_is_null(value);
    if (value && (!*compressed || (id && !strcmp(id, "zstd")))) return OPENPI_OK;
    return refuse(label, "compressor", value, "zstd or null", error);
}

static openpi_status take_rest(const json_t *header, const char *label, zarr_array *a, openpi_error *error) {
    const json_t *format = json_object_get(header, "zarr_format"), *order = json_object_get(header, "order");
    const json_t *filters = json_object_get(header, "filters"), *fill = json_object_get(header, "fill_value");
    const json_t *separator = json_object_get(header, "dimension_separator");
    const char *text = json_string_value(separator);
    if (!json_is_integer(format) || json_integer_value(format) != 2)
        return refuse(label, "zarr_format", format, "2", error);
    if (!json_is_string(order) || strcmp(json_string_value(order), "C"))
        return refuse(label, "order", order, "\"C\"", error);
    if (filters && !json_is_null(filters)) return refuse(label, "filters", filters, "null", error);
    if (fill && !json_is_null(fill) && !(json_is_number(fill) && json_number_value(fill) == 0))
        return refuse(label, "fill_value", fill, "null or 0", error);
    if (separator && (!text || (strcmp(text, ".") && strcmp(text, "/"))))
        return refuse(label, "dimension_separator", separator, "\".\" or \"/\"", error);
    a->separator = text ? *text : '.';
    return OPENPI_OK;
}

int zarr_axes(const zarr_array *a) { return a->rank < 2 ? 2 : a->rank; }

/* Bytes of the array and of a chunk must not overflow, and the chunks be few enough to be a checkpoint's. */
static openpi_status check_sizes(zarr_array *a, const char *label, openpi_error *error) {
    int64_t all = (int64_t)dtype_bytes(a->type), chunk = all, chunks = 1;
    for (int i = a->rank; i < 2; i++) a->shape[i] = a->chunk[i] = 1;
    for (int i = 0; i < zarr_axes(a); i++) {
        a->grid[i] = (a->shape[i] + a->chunk[i] - 1) / a->chunk[i];
        /* An axis of 0 counts as 1 here, so that it hides nothing of what the other axes ask for. */
        if (__builtin_mul_overflow(all, a->shape[i] ? a->shape[i] : 1, &all) ||
            __builtin_mul_overflow(chunk, a->chunk[i], &chunk) ||
            __builtin_mul_overflow(chunks, a->grid[i] ? a->grid[i] : 1, &chunks))
            return report(error, OPENPI_BAD_FILE, "%s: its shape or chunks have too many elements", label);
    }
    if (chunks > MOST_CHUNKS)
        return report(error, OPENPI_BAD_FILE, "%s: it has %lld chunks, expected at most %d", label,
                      (long long)chunks, MOST_CHUNKS);
    int64_t streams = chunks / (a->grid[0] ? a->grid[0] : 1);
    if (streams > MOST_STREAMS)
        return report(error, OPENPI_BAD_FILE, "%s: it has %lld chunks side by side, expected at most %d",
                      label, (long long)streams, MOST_STREAMS);
    return OPENPI_OK;
}

static openpi_status parse_header(const json_t *header, const char *label, zarr_array *a,
                                  openpi_error *error) {
    int chunk_rank;
    if (!json_is_object(header))
        return report(error, OPENPI_BAD_FILE, "%s is %s, expected an object", label, json_kind(header));
    TRY(take_rest(header, label, a, error));
    TRY(take_type(header, label, &a->type, error));
    TRY(take_compressor(header, label, &a->compressed, error));
    TRY(take_extents(header, "shape", label, 0, &a->rank, a->shape, error));
    TRY(take_extents(header, "chunks", label, 1, &chunk_rank, a->chunk, error));
    if (chunk_rank != a->rank)
        return report(error, OPENPI_BAD_FILE, "%s: \"chunks\" has %d extents, expected %d as \"shape\" has",
                      label, chunk_rank, a->rank);
    return check_sizes(a, label, error);
}

openpi_status zarr_open(const values *values, const char *name, zarr_array *out, openpi_error *error) {
    char key[1100], label[700], *text;
    json_t *header;
    snprintf(key, sizeof key, "%s/.zarray", name);
    const stored_value *value = values_find(values, key);
    if (!value) return report(error, OPENPI_BAD_FILE, "\"%s\" has no .zarray, expected one", name);
    snprintf(label, sizeof label, "%.400s: %.256s", value->file, key);
    TRY(value_read(value, HEADER_LIMIT, &text, error));
    openpi_status status = json_parse(text, (size_t)value->bytes, label, &header, error);
    free(text);
    TRY(status);
    *out = (zarr_array){.name = name, .values = values};
    status = parse_header(header, label, out, error);
    json_decref(header);
    return status;
}

void zarr_chunk_key(const zarr_array *a, const int64_t *index, char key[ZARR_KEY]) {
    char between[2] = "";
    int at = snprintf(key, ZARR_KEY, "%s/", a->name);
    for (int i = 0; i < a->rank && at < ZARR_KEY - 24; i++) {
        if (i) between[0] = a->separator;
        at += snprintf(key + at, ZARR_KEY - (size_t)at, "%s%lld", between, (long long)index[i]);
    }
    if (!a->rank && at < ZARR_KEY) snprintf(key + at, ZARR_KEY - (size_t)at, "0");
}

int64_t zarr_lines_of(const zarr_array *a, const int64_t *extents) {
    int64_t count = 1;
    for (int i = 0; i < zarr_axes(a) - 1; i++) count *= extents[i];
    return count;
}

int64_t zarr_lines(const zarr_array *a) { return zarr_lines_of(a, a->shape); }

int64_t zarr_line_length(const zarr_array *a) { return a->shape[zarr_axes(a) - 1]; }
