#include "model/zarr.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/report.h"
#include "base/unzstd.h"

enum {
    HEADER_LIMIT = 1 << 16,
    INPUT = 1 << 17,
    SKIPPED = 1 << 16,
    MOST_CHUNKS = 1 << 16,       /* of an array                                                           */
    MOST_STREAMS = 256,          /* of chunks that are decoded side by side                               */
};

/* ---- the header ---- */

static openpi_status refuse(const char *label, const char *key, const json_t *value, const char *expected,
                            openpi_error *error) {
    char *text = value ? json_text(value, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    openpi_status status = report(error, OPENPI_UNSUPPORTED, "%s: \"%s\" is %.100s, expected %s", label, key,
                                  value ? text ? text : json_kind(value) : "missing", expected);
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
    return refuse(label, "dtype", value, "\"<f4\", \"bfloat16\" or \"<f2\"", error);
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

static int axes(const zarr_array *a) { return a->rank < 2 ? 2 : a->rank; }

/* Bytes of the array and of a chunk must not overflow, and the chunks be few enough to be a checkpoint's. */
static openpi_status check_sizes(zarr_array *a, const char *label, openpi_error *error) {
    int64_t all = (int64_t)dtype_bytes(a->type), chunk = all, chunks = 1;
    for (int i = a->rank; i < 2; i++) a->shape[i] = a->chunk[i] = 1;
    for (int i = 0; i < axes(a); i++) {
        a->grid[i] = (a->shape[i] + a->chunk[i] - 1) / a->chunk[i];
        if (__builtin_mul_overflow(all, a->shape[i], &all) ||
            __builtin_mul_overflow(chunk, a->chunk[i], &chunk) ||
            __builtin_mul_overflow(chunks, a->grid[i], &chunks))
            return report(error, OPENPI_BAD_FILE, "%s: its shape or chunks have too many elements", label);
    }
    if (chunks > MOST_CHUNKS)
        return report(error, OPENPI_BAD_FILE, "%s: it has %lld chunks, expected at most %d", label,
                      (long long)chunks, MOST_CHUNKS);
    if (a->grid[0] && chunks / a->grid[0] > MOST_STREAMS)
        return report(error, OPENPI_BAD_FILE, "%s: it has %lld chunks side by side, expected at most %d",
                      label, (long long)(chunks / a->grid[0]), MOST_STREAMS);
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

static int64_t lines_of(const zarr_array *a, const int64_t *extents) {
    int64_t count = 1;
    for (int i = 0; i < axes(a) - 1; i++) count *= extents[i];
    return count;
}

int64_t zarr_lines(const zarr_array *a) { return lines_of(a, a->shape); }

int64_t zarr_line_length(const zarr_array *a) { return a->shape[axes(a) - 1]; }

/* ---- one chunk, in order ---- */

typedef struct stream {
    const stored_value *value;   /* NULL: the chunk is missing and holds zeros                            */
    char label[700];             /* "FILE: tensor NAME, chunk 0.1"                                        */
    file_reader reader;
    unzstd *decoder;             /* NULL: plain bytes                                                     */
    int64_t line;                /* of the chunk: the next                                                */
    uint64_t fetched;            /* bytes of the value that were read from the file                       */
    unsigned char *input;        /* INPUT bytes                                                           */
    size_t input_at, input_count;
    int ended;
} stream;

static void stream_close(stream *s) {
    if (s->value) file_reader_close(&s->reader);
    unzstd_close(s->decoder);
    free(s->input);
    *s = (stream){.value = NULL};
}

static openpi_status stream_open(const zarr_array *a, const int64_t *index, uint64_t chunk_bytes, stream *s,
                                 openpi_error *error) {
    char key[1100], number[2] = "";
    int at = snprintf(key, sizeof key, "%s/", a->name);
    for (int i = 0; i < a->rank && at < (int)sizeof key - 24; i++) {
        if (i) number[0] = a->separator;
        at += snprintf(key + at, sizeof key - (size_t)at, "%s%lld", number, (long long)index[i]);
    }
    if (!a->rank) snprintf(key + at, sizeof key - (size_t)at, "0");
    const stored_value *value = values_find(a->values, key);
    *s = (stream){.reader = {-1, 0}};
    if (!value) return OPENPI_OK;
    snprintf(s->label, sizeof s->label, "%.400s: tensor %.200s, chunk %.40s", value->file, a->name,
             key + strlen(a->name) + 1);
    if (!a->compressed && value->bytes != chunk_bytes)
        return report(error, OPENPI_BAD_FILE, "%s has %llu bytes, expected %llu", s->label,
                      (unsigned long long)value->bytes, (unsigned long long)chunk_bytes);
    if (!value->data) {
        TRY(file_reader_open(value->file, &s->reader, error));
        s->value = value;
        if (value->at > s->reader.bytes || value->bytes > s->reader.bytes - value->at)
            return report(error, OPENPI_BAD_FILE,
                          "%s lies at bytes %llu to %llu, but the file has %llu: download or copy it again",
                          s->label, (unsigned long long)value->at,
                          (unsigned long long)(value->at + value->bytes),
                          (unsigned long long)s->reader.bytes);
    }
    s->value = value;
    if (a->compressed) TRY(unzstd_create(s->label, &s->decoder, error));
    if (!(s->input = malloc(INPUT))) return report_no_memory(error, INPUT, s->label);
    return OPENPI_OK;
}

/* More of the value's bytes into the empty input. */
static openpi_status refill(stream *s, openpi_error *error) {
    uint64_t left = s->value->bytes - s->fetched;
    size_t count = left < INPUT ? (size_t)left : INPUT;
    s->input_at = 0;
    s->input_count = count;
    if (s->value->data)
        memcpy(s->input, s->value->data + s->fetched, count);
    else
        TRY(file_reader_read(&s->reader, s->value->file, s->value->at + s->fetched, count, s->input, error));
    s->fetched += count;
    return OPENPI_OK;
}

static openpi_status stream_plain(stream *s, unsigned char *out, size_t bytes, openpi_error *error) {
    if (s->value->data)
        memcpy(out, s->value->data + s->fetched, bytes);
    else
        TRY(file_reader_read(&s->reader, s->value->file, s->value->at + s->fetched, bytes, out, error));
    s->fetched += bytes;
    return OPENPI_OK;
}

/* The chunk's next bytes. */
static openpi_status stream_read(stream *s, unsigned char *out, size_t bytes, openpi_error *error) {
    if (!s->value) {
        memset(out, 0, bytes);
        return OPENPI_OK;
    }
    if (!s->decoder) return stream_plain(s, out, bytes, error);
    while (bytes) {
        size_t taken, given;
        if (s->ended)
            return report(error, OPENPI_BAD_FILE, "%s: its zstd data ends early, expected %zu bytes more",
                          s->label, bytes);
        if (s->input_at == s->input_count && s->fetched < s->value->bytes) TRY(refill(s, error));
        TRY(unzstd_step(s->decoder, s->input + s->input_at, s->input_count - s->input_at, &taken, out, bytes,
                        &given, &s->ended, error));
        if (!taken && !given && !s->ended && s->fetched == s->value->bytes)
            return report(error, OPENPI_BAD_FILE, "%s: its zstd data is cut short", s->label);
        s->input_at += taken;
        out += given;
        bytes -= given;
    }
    return OPENPI_OK;
}

/* Nothing may follow the chunk's last byte. */
static openpi_status stream_finish(stream *s, openpi_error *error) {
    unsigned char more;
    if (!s->value || !s->decoder) return OPENPI_OK;
    while (!s->ended) {
        size_t taken, given;
        if (s->input_at == s->input_count && s->fetched < s->value->bytes) TRY(refill(s, error));
        TRY(unzstd_step(s->decoder, s->input + s->input_at, s->input_count - s->input_at, &taken, &more, 1,
                        &given, &s->ended, error));
        s->input_at += taken;
        if (given)
            return report(error, OPENPI_BAD_FILE, "%s: its zstd data is larger than the chunk", s->label);
        if (!taken && !s->ended && s->fetched == s->value->bytes)
            return report(error, OPENPI_BAD_FILE, "%s: its zstd data is cut short", s->label);
    }
    if (s->input_at == s->input_count && s->fetched == s->value->bytes) return OPENPI_OK;
    return report(error, OPENPI_BAD_FILE, "%s: bytes follow its zstd data, expected none", s->label);
}

/* ---- an array, line after line ---- */

struct zarr_reader {
    const zarr_array *array;
    int64_t index[ZARR_AXES];    /* of the next line; the last axis stays 0                               */
    int64_t left;                /* lines from it on                                                      */
    stream *streams;             /* of the chunks that hold index[0]                                      */
    int64_t stream_count, chunk_lines;
    int open;                    /* 1: the streams are those                                              */
    unsigned char *skipped;      /* SKIPPED bytes for what nobody wants                                   */
};

openpi_status zarr_reader_open(const zarr_array *array, zarr_reader **out, openpi_error *error) {
    zarr_reader *r = calloc(1, sizeof *r);
    if (!r) return report_no_memory(error, sizeof *r, array->name);
    r->array = array;
    r->left = zarr_lines(array);
    r->chunk_lines = lines_of(array, array->chunk);
    r->stream_count = 1;
    for (int i = 1; i < axes(array); i++) r->stream_count *= array->grid[i];
    r->streams = calloc((size_t)r->stream_count + 1, sizeof *r->streams);
    r->skipped = malloc(SKIPPED);
    if (!r->streams || !r->skipped) {
        zarr_reader_close(r);
        return report_no_memory(error, (size_t)r->stream_count * sizeof *r->streams + SKIPPED, array->name);
    }
    *out = r;
    return OPENPI_OK;
}

static void close_streams(zarr_reader *r) {
    for (int64_t i = 0; i < r->stream_count; i++) stream_close(&r->streams[i]);
    r->open = 0;
}

void zarr_reader_close(zarr_reader *r) {
    if (!r) return;
    if (r->streams) close_streams(r);
    free(r->streams);
    free(r->skipped);
    free(r);
}

static openpi_status open_streams(zarr_reader *r, openpi_error *error) {
    const zarr_array *a = r->array;
    uint64_t bytes = (uint64_t)(r->chunk_lines * a->chunk[axes(a) - 1]) * dtype_bytes(a->type);
    r->open = 1;
    for (int64_t i = 0; i < r->stream_count; i++) {
        int64_t place[ZARR_AXES] = {r->index[0] / a->chunk[0]}, rest = i;
        for (int axis = axes(a) - 1; axis > 0; axis--) {
            place[axis] = rest % a->grid[axis];
            rest /= a->grid[axis];
        }
        TRY(stream_open(a, place, bytes, &r->streams[i], error));
    }
    return OPENPI_OK;
}

static openpi_status pass_over(zarr_reader *r, stream *s, size_t bytes, openpi_error *error) {
    while (bytes) {
        size_t piece = bytes < SKIPPED ? bytes : SKIPPED;
        TRY(stream_read(s, r->skipped, piece, error));
        bytes -= piece;
    }
    return OPENPI_OK;
}

/* A chunk's part of the next line. Lines of the chunk before it that were not read yet are padding. */
static openpi_status read_part(zarr_reader *r, stream *s, int64_t line, int64_t kept, unsigned char *out,
                               openpi_error *error) {
    const zarr_array *a = r->array;
    size_t size = dtype_bytes(a->type);
    int64_t width = a->chunk[axes(a) - 1];
    if (s->line < line) TRY(pass_over(r, s, (size_t)((line - s->line) * width) * size, error));
    TRY(out ? stream_read(s, out, (size_t)kept * size, error) : pass_over(r, s, (size_t)kept * size, error));
    TRY(pass_over(r, s, (size_t)(width - kept) * size, error));
    s->line = line + 1;
    return OPENPI_OK;
}

static openpi_status read_line(zarr_reader *r, unsigned char *out, openpi_error *error) {
    const zarr_array *a = r->array;
    int last = axes(a) - 1;
    int64_t line = 0, first = 0, width = a->chunk[last];
    if (!r->open) TRY(open_streams(r, error));
    for (int i = 0; i < last; i++) {
        line = line * a->chunk[i] + r->index[i] % a->chunk[i];
        if (i) first = first * a->grid[i] + r->index[i] / a->chunk[i];
    }
    for (int64_t i = 0; i < a->grid[last]; i++) {
        int64_t left = a->shape[last] - i * width, kept = left < width ? left : width;
        unsigned char *to = out ? out + (size_t)(i * width) * dtype_bytes(a->type) : NULL;
        TRY(read_part(r, &r->streams[first * a->grid[last] + i], line, kept, to, error));
    }
    return OPENPI_OK;
}

/* Chunks whose last index of the first axis was read; where padding follows, nobody needs to know how they
 * end. */
static openpi_status finish_streams(zarr_reader *r, openpi_error *error) {
    for (int64_t i = 0; i < r->stream_count; i++)
        if (r->streams[i].line == r->chunk_lines) TRY(stream_finish(&r->streams[i], error));
    close_streams(r);
    return OPENPI_OK;
}

openpi_status zarr_reader_lines(zarr_reader *r, int64_t count, void *out, openpi_error *error) {
    const zarr_array *a = r->array;
    size_t bytes = (size_t)zarr_line_length(a) * dtype_bytes(a->type);
    if (count < 0 || count > r->left)
        return report(error, OPENPI_BAD_ARGUMENT, "%s: %lld lines asked for, %lld are left", a->name,
                      (long long)count, (long long)r->left);
    for (int64_t i = 0; i < count; i++, r->left--) {
        int axis = axes(a) - 2;
        TRY(read_line(r, out ? (unsigned char *)out + (size_t)i * bytes : NULL, error));
        while (axis > 0 && ++r->index[axis] == a->shape[axis]) r->index[axis--] = 0;
        if (axis) continue;
        if (++r->index[0] % a->chunk[0] == 0 || r->index[0] == a->shape[0]) TRY(finish_streams(r, error));
    }
    return OPENPI_OK;
}
