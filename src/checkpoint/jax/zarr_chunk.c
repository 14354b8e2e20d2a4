#include "checkpoint/jax/zarr_chunk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/report.h"

enum { INPUT = 1 << 17 };        /* bytes that are fetched at once */

void chunk_close(chunk *c) {
    if (c->value) file_reader_close(&c->reader);
    unzstd_close(c->decoder);
    free(c->input);
    *c = (chunk){.value = NULL};
}

openpi_status chunk_open(const zarr_array *a, const int64_t *index, uint64_t bytes, chunk *c,
                         openpi_error *error) {
    char key[ZARR_KEY];
    zarr_chunk_key(a, index, key);
    const stored_value *value = values_find(a->values, key);
    *c = (chunk){.reader = {-1, 0}};
    if (!value) return OPENPI_OK;
    snprintf(c->label, sizeof c->label, "%.400s: tensor %.200s, chunk %.40s", value->file, a->name,
             key + strlen(a->name) + 1);
    if (!a->compressed && value->bytes != bytes)
        return report(error, OPENPI_BAD_FILE, "%s has %llu bytes, expected %llu", c->label,
                      (unsigned long long)value->bytes, (unsigned long long)bytes);
    if (!value->data) {
        openpi_error why = OPENPI_ERROR_INIT;
        openpi_status status = file_reader_open(value->file, &c->reader, &why);
        if (status != OPENPI_OK) return report(error, status, "%s: %s", c->label, why.message);
        c->value = value;
        if (value->at > c->reader.bytes || value->bytes > c->reader.bytes - value->at)
            return report(error, OPENPI_BAD_FILE,
                          "%s lies at bytes %llu to %llu, but the file has %llu: download or copy it again",
                          c->label, (unsigned long long)value->at,
                          (unsigned long long)(value->at + value->bytes),
                          (unsigned long long)c->reader.bytes);
    }
    c->value = value;
    if (a->compressed) TRY(unzstd_create(c->label, &c->decoder, error));
    size_t input = value->bytes < INPUT ? (size_t)value->bytes + 1 : INPUT;
    if (!(c->input = malloc(input))) return report_no_memory(error, input, c->label);
    return OPENPI_OK;
}

/* More of the value's bytes into the empty input. */
static openpi_status refill(chunk *c, openpi_error *error) {
    uint64_t left = c->value->bytes - c->fetched;
    size_t count = left < INPUT ? (size_t)left : INPUT;
    c->input_at = 0;
    c->input_count = count;
    if (c->value->data)
        memcpy(c->input, c->value->data + c->fetched, count);
    else
        TRY(file_reader_read(&c->reader, c->value->file, c->value->at + c->fetched, count, c->input, error));
    c->fetched += count;
    return OPENPI_OK;
}

static openpi_status read_plain(chunk *c, unsigned char *out, size_t bytes, openpi_error *error) {
    if (c->value->data)
        memcpy(out, c->value->data + c->fetched, bytes);
    else
        TRY(file_reader_read(&c->reader, c->value->file, c->value->at + c->fetched, bytes, out, error));
    c->fetched += bytes;
    return OPENPI_OK;
}

openpi_status chunk_read(chunk *c, unsigned char *out, size_t bytes, openpi_error *error) {
    if (!c->value) {
        memset(out, 0, bytes);
        return OPENPI_OK;
    }
    if (!c->decoder) return read_plain(c, out, bytes, error);
    while (bytes) {
        size_t taken, given;
        if (c->ended)
            return report(error, OPENPI_BAD_FILE, "%s: its zstd data ends early, expected %zu bytes more",
                          c->label, bytes);
        if (c->input_at == c->input_count && c->fetched < c->value->bytes) TRY(refill(c, error));
        TRY(unzstd_step(c->decoder, c->input + c->input_at, c->input_count - c->input_at, &taken, out, bytes,
                        &given, &c->ended, error));
        if (!taken && !given && !c->ended && c->fetched == c->value->bytes)
            return report(error, OPENPI_BAD_FILE, "%s: its zstd data is cut short", c->label);
        c->input_at += taken;
        out += given;
        bytes -= given;
    }
    return OPENPI_OK;
}

openpi_status chunk_finish(chunk *c, openpi_error *error) {
    unsigned char more;
    if (!c->value || !c->decoder) return OPENPI_OK;
    while (!c->ended) {
        size_t taken, given;
        if (c->input_at == c->input_count && c->fetched < c->value->bytes) TRY(refill(c, error));
        TRY(unzstd_step(c->decoder, c->input + c->input_at, c->input_count - c->input_at, &taken, &more, 1,
                        &given, &c->ended, error));
        c->input_at += taken;
        if (given)
            return report(error, OPENPI_BAD_FILE, "%s: its zstd data is larger than the chunk", c->label);
        if (!taken && !c->ended && c->fetched == c->value->bytes)
            return report(error, OPENPI_BAD_FILE, "%s: its zstd data is cut short", c->label);
    }
    if (c->input_at == c->input_count && c->fetched == c->value->bytes) return OPENPI_OK;
    return report(error, OPENPI_BAD_FILE, "%s: bytes follow its zstd data, expected none", c->label);
}
