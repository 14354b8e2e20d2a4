/* A safetensors file: opened, listed, and the first and last elements of every tensor read. The file is no
 * file: the linker puts the functions below in place of base/file.c's, which copy out of the input and keep a
 * reader to its bounds. */
#include "base/file.h"
#include "fuzz.h"
#include "checkpoint/open.h"

openpi_status __wrap_file_reader_open(const char *path, file_reader *reader, openpi_error *error);
void __wrap_file_reader_close(file_reader *reader);
openpi_status __wrap_file_reader_read(const file_reader *reader, const char *path, uint64_t from,
                                      size_t bytes, void *to, openpi_error *error);

static const uint8_t *input;
static size_t input_bytes;

openpi_status __wrap_file_reader_open(const char *path, file_reader *reader, openpi_error *error) {
    (void)path, (void)error;
    *reader = (file_reader){-1, input_bytes};
    return OPENPI_OK;
}

void __wrap_file_reader_close(file_reader *reader) { reader->bytes = 0; }

openpi_status __wrap_file_reader_read(const file_reader *reader, const char *path, uint64_t from,
                                      size_t bytes, void *to, openpi_error *error) {
    (void)path, (void)error;
    PROMISE(from <= reader->bytes && bytes <= reader->bytes - from);
    if (bytes) memcpy(to, input + from, bytes);
    return OPENPI_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    openpi_error error = OPENPI_ERROR_INIT;
    tensors *tensors;
    input = data;
    input_bytes = size;
    if (!went_well(tensors_open("fuzz.safetensors", &tensors, &error), &error)) return 0;
    for (int i = 0; i < tensors_count(tensors); i++) {
        enum { ENDS = 16 };
        const tensor *t = tensors_at(tensors, i);
        float floats[ENDS];
        bf16 halves[ENDS];
        int64_t count = t->count < ENDS ? t->count : ENDS;
        PROMISE(t->rank >= 0 && t->rank <= TENSOR_RANK && t->count >= 0 && t->name && t->file);
        PROMISE(tensors_find(tensors, t->name) == t);
        tensor_read_f32(t, 0, count, floats);
        tensor_read_f32(t, t->count - count, count, floats);
        tensor_read_bf16(t, 0, count, halves);
        tensor_read_bf16(t, t->count - count, count, halves);
    }
    const char *format = tensors_metadata(tensors, "format");
    PROMISE(!format || strlen(format) <= size);
    tensors_close(tensors);
    return 0;
}
