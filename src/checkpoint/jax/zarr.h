/* Arrays in zarr's second format, as Orbax writes them: a JSON header and chunks, each one zstd frame or
 * plain bytes (https://zarr-specs.readthedocs.io/en/latest/v2/v2.0.html).
 *
 * A chunk may be far larger than memory allows (4.8 GB) and is one frame, so an array is read in order, line
 * after line (zarr_reader.h), a line being what the last axis has. */
#ifndef MODEL_ZARR_H
#define MODEL_ZARR_H

#include "base/dtype.h"
#include "checkpoint/jax/values.h"

enum { ZARR_AXES = 5 };

typedef struct zarr_array {
    const char *name;            /* for sentences: its key without "/.zarray", which must outlive the array */
    dtype type;                  /* F32, BF16 or F16                                                      */
    int rank;
    int64_t shape[ZARR_AXES];    /* at least two: of a vector or a scalar the missing last axes are 1     */
    int64_t chunk[ZARR_AXES]; /* shape of a chunk; those at the edge are full size, the surplus is padding */
    int64_t grid[ZARR_AXES];     /* chunks along each axis                                                */
    int compressed;
    const values *values;
    char separator;              /* between the numbers of a chunk's key                                  */
} zarr_array;

/* Reads NAME/.zarray. Anything that openpi's Orbax does not write (zarr v3, other compressors, filters, byte
 * orders) is refused with a sentence that names it and says what to do. */
openpi_status zarr_open(const values *values, const char *name, zarr_array *out, openpi_error *error);

/* The key of the chunk at `index` of the array's grid: "params.….kernel/0.1". */
enum { ZARR_KEY = 1100 };
void zarr_chunk_key(const zarr_array *array, const int64_t *index, char key[ZARR_KEY]);

/* Axes that shape, chunk and grid have: rank, but at least two. */
int zarr_axes(const zarr_array *array);
/* Lines of an array and elements of a line; a vector's lines have one element. */
int64_t zarr_lines(const zarr_array *array);
/* Lines of a block of these extents. */
int64_t zarr_lines_of(const zarr_array *array, const int64_t *extents);
int64_t zarr_line_length(const zarr_array *array);

#endif
