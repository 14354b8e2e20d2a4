/* Chunks of an array: zstd frames and plain bytes, whole arrays and some that are cut along one axis or
 * two, with padding. The input's first byte selects the array; then each chunk has two bytes of length and
 * its bytes. A chunk that the input ends before is missing. An array that is read whole and one that is
 * read in pieces are the same. */
#include "fuzz.h"
#include "checkpoint/jax/zarr_reader.h"

static const struct { const char *header; int first, second; } arrays[] = {
    {"[6,10],\"chunks\":[6,10],\"dtype\":\"<f4\"", 1, 1},
    {"[6,10],\"chunks\":[3,10],\"dtype\":\"<f4\"", 2, 1},
    {"[6,10],\"chunks\":[6,4],\"dtype\":\"<f2\"", 1, 3},
    {"[7,10],\"chunks\":[4,4],\"dtype\":\"bfloat16\"", 2, 3},
};

enum { ARRAYS = sizeof arrays / sizeof *arrays, BYTES = 7 * 10 * 4 };

static void add(values *values, const char *key, const void *data, size_t bytes) {
    openpi_error error = OPENPI_ERROR_INIT;
    PROMISE(values_add(values, key, "fuzz", 0, bytes, data, &error) == OPENPI_OK);
}

/* In steps of `step` lines, of which each third is passed over. */
static int read_lines(const zarr_array *a, int64_t step, unsigned char *out) {
    openpi_error error = OPENPI_ERROR_INIT;
    zarr_reader *reader;
    size_t line = (size_t)zarr_line_length(a) * dtype_bytes(a->type);
    int well = 1;
    PROMISE(zarr_reader_open(a, &reader, &error) == OPENPI_OK);
    for (int64_t at = 0, turn = 1; at < zarr_lines(a) && well; turn++) {
        int64_t count = zarr_lines(a) - at < step ? zarr_lines(a) - at : step;
        void *to = exact_copy(out, (size_t)count * line, 0);
        well = went_well(zarr_reader_lines(reader, count, turn % 3 ? to : NULL, &error), &error);
        if (well && turn % 3) memcpy(out + (size_t)at * line, to, (size_t)count * line);
        free(to);
        at += count;
    }
    zarr_reader_close(reader);
    return well;
}

static void compare(const zarr_array *a) {
    unsigned char whole[BYTES] = {0}, pieces[BYTES] = {0};
    size_t line = (size_t)zarr_line_length(a) * dtype_bytes(a->type);
    int well = read_lines(a, zarr_lines(a), whole);
    PROMISE(well == read_lines(a, 1, pieces));
    if (!well) return;
    for (int64_t i = 0; i < zarr_lines(a); i++)
        if (i % 3 != 2) PROMISE(!memcmp(whole + (size_t)i * line, pieces + (size_t)i * line, line));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    openpi_error error = OPENPI_ERROR_INIT;
    char header[300];
    zarr_array array;
    if (!size) return 0;
    int which = data[0] % ARRAYS, zstd = data[0] / ARRAYS % 2;
    values *values = values_create();
    PROMISE(values);
    int length = snprintf(header, sizeof header,
                          "{\"zarr_format\":2,\"order\":\"C\",\"fill_value\":null,\"filters\":null,"
                          "\"compressor\":%s,\"shape\":%s}",
                          zstd ? "{\"id\":\"zstd\",\"level\":1}" : "null", arrays[which].header);
    add(values, "a/.zarray", header, (size_t)length);
    size_t at = 1;
    for (int i = 0; i < arrays[which].first * arrays[which].second && size - at >= 2; i++) {
        char key[40];
        size_t count = data[at] | (size_t)data[at + 1] << 8;
        at += 2;
        if (count > size - at) count = size - at;
        snprintf(key, sizeof key, "a/%d.%d", i / arrays[which].second, i % arrays[which].second);
        add(values, key, data + at, count);
        at += count;
    }
    PROMISE(values_finish(values, "fuzz", &error) == OPENPI_OK);
    PROMISE(zarr_open(values, "a", &array, &error) == OPENPI_OK);
    compare(&array);
    values_close(values);
    return 0;
}
