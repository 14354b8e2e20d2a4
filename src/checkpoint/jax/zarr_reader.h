/* Reading a zarr array in order, line after line. */
#ifndef MODEL_ZARR_READER_H
#define MODEL_ZARR_READER_H

#include "checkpoint/jax/zarr.h"

/* One thread's at a time. Memory: 128 kB and zstd's window for each chunk of those that hold one index of the
 * first axis. The array must stay. */
typedef struct zarr_reader zarr_reader;
openpi_status zarr_reader_open(const zarr_array *array, zarr_reader **out, openpi_error *error);
/* The next `count` lines into `out`; NULL: they are passed over. After the last line of a chunk its bytes
 * must have ended. */
openpi_status zarr_reader_lines(zarr_reader *reader, int64_t count, void *out, openpi_error *error);
void zarr_reader_close(zarr_reader *reader);

#endif
