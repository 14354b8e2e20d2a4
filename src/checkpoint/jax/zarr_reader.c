/* An array, line after line: the chunks that hold one index of the first axis are decoded side by side, and
 * each line is put together from them. */
#include "checkpoint/jax/zarr_reader.h"

#include <stdlib.h>
#include <string.h>

#include "base/report.h"
#include "checkpoint/jax/zarr_chunk.h"

enum { SKIPPED = 1 << 16 };

struct zarr_reader {
    const zarr_array *array;
    int64_t index[ZARR_AXES];    /* index of the next line; the last axis stays 0                         */
    int64_t left;                /* lines from it on                                                      */
    chunk *chunks;               /* those that hold index[0]                                              */
    int64_t chunk_count, chunk_lines;
    int open;                    /* 1: the chunks are those                                               */
    int whole;                   /* 1: there is one of them, of whole lines and without padding between   */
    unsigned char *skipped;      /* SKIPPED bytes for what nobody wants                                   */
};

openpi_status zarr_reader_open(const zarr_array *array, zarr_reader **out, openpi_error *error) {
    zarr_reader *r = calloc(1, sizeof *r);
    if (!r) return report_no_memory(error, sizeof *r, array->name);
    r->array = array;
    r->left = zarr_lines(array);
    r->chunk_lines = zarr_lines_of(array, array->chunk);
    r->chunk_count = 1;
    r->whole = 1;
    for (int i = 1; i < zarr_axes(array); i++) {
        r->chunk_count *= array->grid[i];
        r->whole &= array->chunk[i] == array->shape[i];
    }
    r->chunks = calloc((size_t)r->chunk_count + 1, sizeof *r->chunks);
    r->skipped = malloc(SKIPPED);
    if (!r->chunks || !r->skipped) {
        size_t bytes = (size_t)r->chunk_count * sizeof *r->chunks + SKIPPED;
        zarr_reader_close(r);
        return report_no_memory(error, bytes, array->name);
    }
    *out = r;
    return OPENPI_OK;
}

static void close_chunks(zarr_reader *r) {
    for (int64_t i = 0; i < r->chunk_count; i++) chunk_close(&r->chunks[i]);
    r->open = 0;
}

void zarr_reader_close(zarr_reader *r) {
    if (!r) return;
    if (r->chunks) close_chunks(r);
    free(r->chunks);
    free(r->skipped);
    free(r);
}

static openpi_status open_chunks(zarr_reader *r, openpi_error *error) {
    const zarr_array *a = r->array;
    uint64_t bytes = (uint64_t)(r->chunk_lines * a->chunk[zarr_axes(a) - 1]) * dtype_bytes(a->type);
    r->open = 1;
    for (int64_t i = 0; i < r->chunk_count; i++) {
        int64_t place[ZARR_AXES] = {r->index[0] / a->chunk[0]}, rest = i;
        for (int axis = zarr_axes(a) - 1; axis > 0; axis--) {
            place[axis] = rest % a->grid[axis];
            rest /= a->grid[axis];
        }
        TRY(chunk_open(a, place, bytes, &r->chunks[i], error));
    }
    return OPENPI_OK;
}

static openpi_status pass_over(zarr_reader *r, chunk *c, size_t bytes, openpi_error *error) {
    while (bytes) {
        size_t piece = bytes < SKIPPED ? bytes : SKIPPED;
        TRY(chunk_read(c, r->skipped, piece, error));
        bytes -= piece;
    }
    return OPENPI_OK;
}

/* A chunk's part of the next line. Lines of the chunk before it that were not read yet are padding. */
static openpi_status read_part(zarr_reader *r, chunk *c, int64_t line, int64_t kept, unsigned char *out,
                               openpi_error *error) {
    const zarr_array *a = r->array;
    size_t size = dtype_bytes(a->type);
    int64_t width = a->chunk[zarr_axes(a) - 1];
    if (c->line < line) TRY(pass_over(r, c, (size_t)((line - c->line) * width) * size, error));
    TRY(out ? chunk_read(c, out, (size_t)kept * size, error) : pass_over(r, c, (size_t)kept * size, error));
    TRY(pass_over(r, c, (size_t)(width - kept) * size, error));
    c->line = line + 1;
    return OPENPI_OK;
}

static openpi_status read_line(zarr_reader *r, unsigned char *out, openpi_error *error) {
    const zarr_array *a = r->array;
    int last = zarr_axes(a) - 1;
    int64_t line = 0, first = 0, width = a->chunk[last];
    if (!r->open) TRY(open_chunks(r, error));
    for (int i = 0; i < last; i++) {
        line = line * a->chunk[i] + r->index[i] % a->chunk[i];
        if (i) first = first * a->grid[i] + r->index[i] / a->chunk[i];
    }
    for (int64_t i = 0; i < a->grid[last]; i++) {
        int64_t left = a->shape[last] - i * width, kept = left < width ? left : width;
        unsigned char *to = out ? out + (size_t)(i * width) * dtype_bytes(a->type) : NULL;
        TRY(read_part(r, &r->chunks[first * a->grid[last] + i], line, kept, to, error));
    }
    return OPENPI_OK;
}

/* Chunks whose last index of the first axis was read; where padding follows, nobody needs to know how they
 * end. */
static openpi_status finish_chunks(zarr_reader *r, openpi_error *error) {
    for (int64_t i = 0; i < r->chunk_count; i++)
        if (r->chunks[i].line == r->chunk_lines) TRY(chunk_finish(&r->chunks[i], error));
    close_chunks(r);
    return OPENPI_OK;
}

/* As many lines at once as the chunk holds. */
static openpi_status read_whole(zarr_reader *r, int64_t count, unsigned char *out, openpi_error *error) {
    const zarr_array *a = r->array;
    size_t bytes = (size_t)zarr_line_length(a) * dtype_bytes(a->type);
    while (count) {
        int64_t done = zarr_lines(a) - r->left, inside = done % r->chunk_lines;
        int64_t rest = r->chunk_lines - inside, n = count < rest ? count : rest;
        r->index[0] = done / (r->chunk_lines / a->chunk[0]);
        if (!r->open) TRY(open_chunks(r, error));
        TRY(out ? chunk_read(r->chunks, out, (size_t)n * bytes, error)
                : pass_over(r, r->chunks, (size_t)n * bytes, error));
        r->chunks->line = inside + n;
        r->left -= n;
        count -= n;
        if (out) out += (size_t)n * bytes;
        if (n == rest || !r->left) TRY(finish_chunks(r, error));
    }
    return OPENPI_OK;
}

static openpi_status read_parts(zarr_reader *r, int64_t count, unsigned char *out, openpi_error *error) {
    const zarr_array *a = r->array;
    size_t bytes = (size_t)zarr_line_length(a) * dtype_bytes(a->type);
    for (int64_t i = 0; i < count; i++, r->left--) {
        int axis = zarr_axes(a) - 2;
        TRY(read_line(r, out ? out + (size_t)i * bytes : NULL, error));
        while (axis > 0 && ++r->index[axis] == a->shape[axis]) r->index[axis--] = 0;
        if (axis) continue;
        if (++r->index[0] % a->chunk[0] == 0 || r->index[0] == a->shape[0]) TRY(finish_chunks(r, error));
    }
    return OPENPI_OK;
}

openpi_status zarr_reader_lines(zarr_reader *r, int64_t count, void *out, openpi_error *error) {
    if (count < 0 || count > r->left)
        return report(error, OPENPI_BAD_ARGUMENT, "%s: %lld lines asked for, %lld are left", r->array->name,
                      (long long)count, (long long)r->left);
    return r->whole ? read_whole(r, count, out, error) : read_parts(r, count, out, error);
}
