/* One chunk of a zarr array, read from its first byte to its last: plain bytes or one zstd frame, in a file
 * or in memory. */
#ifndef MODEL_CHUNK_H
#define MODEL_CHUNK_H

#include "base/file.h"
#include "base/unzstd.h"
#include "checkpoint/jax/zarr.h"

/* Zeros: closed. */
typedef struct chunk {
    const stored_value *value;   /* NULL: the chunk is not there and holds zeros (orbax_gaps.h)           */
    char label[700];             /* "FILE: tensor NAME, chunk 0.1"                                        */
    file_reader reader;
    unzstd *decoder;             /* NULL: plain bytes                                                     */
    int64_t line;                /* the chunk's next line; kept by zarr_reader.c                          */
    uint64_t fetched;            /* bytes of the value that were read from the file                       */
    unsigned char *input;        /* fetched, and not yet decoded: input_at … input_count                  */
    size_t input_at, input_count;
    int ended;
} chunk;

/* The chunk at `index` of the array's grid; it has `bytes` when decoded. To be closed also where this
 * fails. */
openpi_status chunk_open(const zarr_array *array, const int64_t *index, uint64_t bytes, chunk *c,
                         openpi_error *error);
/* The next bytes. */
openpi_status chunk_read(chunk *c, unsigned char *out, size_t bytes, openpi_error *error);
/* After the last byte: nothing may follow. */
openpi_status chunk_finish(chunk *c, openpi_error *error);
void chunk_close(chunk *c);

#endif
