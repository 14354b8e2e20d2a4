/* A safetensors file: opened, listed, and the first and last elements of every tensor read. The file is no file: the
 * linker puts the mapping below in place of base/file.c's, memory of exactly the input's size, since a sanitizer cannot
 * see a read past the end of a real mapping. */
#include "base/file.h"
#include "fuzz.h"
#include "model/tensors.h"

openpi_status __wrap_file_map_open(const char *path, file_map *map, openpi_error *error);
void __wrap_file_map_close(file_map *map);

static const uint8_t *input;
static size_t input_bytes;

openpi_status __wrap_file_map_open(const char *path, file_map *map, openpi_error *error) {
    (void)path, (void)error;
    map->data = exact_copy(input, input_bytes, 0);
    map->bytes = input_bytes;
    return OPENPI_OK;
}

void __wrap_file_map_close(file_map *map) {
    free((void *)(uintptr_t)map->data);
    map->data = NULL;
    map->bytes = 0;
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
