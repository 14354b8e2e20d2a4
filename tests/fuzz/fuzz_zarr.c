/* An array's .zarray and a reader that opens it: a header that is accepted has sizes that hang together,
 * and an array without a chunk is zeros. */
#include "fuzz.h"
#include "checkpoint/jax/zarr_reader.h"

enum { SMALL = 1 << 16 };

static void look(const zarr_array *a) {
    int64_t count = 1, chunks = 1;
    int axes = a->rank < 2 ? 2 : a->rank;
    PROMISE(a->rank >= 0 && a->rank <= ZARR_AXES && dtype_bytes(a->type) > 0);
    PROMISE(a->separator == '.' || a->separator == '/');
    for (int i = 0; i < axes; i++) {
        PROMISE(a->shape[i] >= 0 && a->chunk[i] > 0);
        PROMISE(a->grid[i] * a->chunk[i] >= a->shape[i] && (a->grid[i] - 1) * a->chunk[i] < a->shape[i]);
        PROMISE(!__builtin_mul_overflow(count, a->shape[i], &count));
        PROMISE(!__builtin_mul_overflow(chunks, a->grid[i], &chunks));
    }
    PROMISE(zarr_lines(a) >= 0 && zarr_lines(a) * zarr_line_length(a) == count);
}

static void read_zeros(const zarr_array *a) {
    openpi_error error = OPENPI_ERROR_INIT;
    size_t bytes = (size_t)(zarr_lines(a) * zarr_line_length(a)) * dtype_bytes(a->type);
    unsigned char *out = malloc(bytes + 1);
    zarr_reader *reader;
    PROMISE(out);
    memset(out, 0xff, bytes);
    if (went_well(zarr_reader_open(a, &reader, &error), &error)) {
        if (went_well(zarr_reader_lines(reader, zarr_lines(a), out, &error), &error))
            for (size_t i = 0; i < bytes; i++) PROMISE(!out[i]);
        zarr_reader_close(reader);
    }
    free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    openpi_error error = OPENPI_ERROR_INIT;
    values *values = values_create();
    zarr_array array;
    PROMISE(values && values_add(values, "a/.zarray", "fuzz", 0, size, data, &error) == OPENPI_OK);
    PROMISE(values_finish(values, "fuzz", &error) == OPENPI_OK);
    if (went_well(zarr_open(values, "a", &array, &error), &error)) {
        look(&array);
        if (zarr_lines(&array) <= SMALL && zarr_line_length(&array) <= SMALL &&
            zarr_lines(&array) * zarr_line_length(&array) <= SMALL)
            read_zeros(&array);
    }
    values_close(values);
    return 0;
}
