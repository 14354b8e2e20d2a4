/* Writes PEFT adapters, as peft saves them, and whole safetensors files of given tensors. Include after
 * cmocka.h. */
#ifndef TESTS_ADAPTER_WRITE_H
#define TESTS_ADAPTER_WRITE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "checkpoint/safetensors/safetensors_write.h"
#include "checkpoint/tensors_build.h"
#include "scratch.h"

enum { FILE_TENSORS = 1024 };

/* Tensors with their values in fp32, as they are after rounding to their type. */
typedef struct tensor_list {
    tensor list[FILE_TENSORS];
    float *values[FILE_TENSORS];
    int count;
    uint32_t seed;
} tensor_list;

/* Adds a tensor whose fp32 values are to be filled in; a vector where `columns` is 0. */
static inline float *list_add(tensor_list *l, const char *name, dtype type, int64_t rows, int64_t columns) {
    tensor *t = &l->list[l->count];
    assert_true(l->count < FILE_TENSORS);
    *t = (tensor){.name = strdup(name), .type = type, .rank = columns ? 2 : 1, .shape = {rows, columns}};
    t->count = rows * (columns ? columns : 1);
    l->values[l->count] = malloc((size_t)t->count * sizeof(float) + 1);
    assert_non_null(l->values[l->count]);
    return l->values[l->count++];
}

/* The same with random numbers in -scale … scale. */
static inline const float *list_random(tensor_list *l, const char *name, dtype type, int64_t rows,
                                       int64_t columns, float scale) {
    float *values = list_add(l, name, type, rows, columns);
    for (int64_t i = 0; i < l->list[l->count - 1].count; i++) {
        l->seed = l->seed * 1664525 + 1013904223;
        values[i] = scale * ((float)(l->seed >> 8) * 0x1p-23f - 1);
        if (type == DTYPE_BF16) values[i] = bf16_to_float(float_to_bf16(values[i]));
    }
    return values;
}

static inline void list_free(tensor_list *l) {
    for (int i = 0; i < l->count; i++) {
        free((char *)(uintptr_t)l->list[i].name);
        free(l->values[i]);
    }
    *l = (tensor_list){.seed = l->seed};
}

static inline void list_put(FILE *file, const tensor *t, const float *values) {
    for (int64_t i = 0; i < t->count; i++) {
        bf16 narrow = float_to_bf16(values[i]);
        if (t->type == DTYPE_F32) assert_int_equal(fwrite(&values[i], sizeof *values, 1, file), 1);
        else assert_int_equal(fwrite(&narrow, sizeof narrow, 1, file), 1);
    }
}

/* folder/name, in place of what is there. Types: F32 and BF16. */
static inline void list_write(const tensor_list *l, const char *folder, const char *name) {
    openpi_error error = OPENPI_ERROR_INIT;
    const tensor *order[FILE_TENSORS];
    char *header, *path = file_join(folder, name);
    size_t bytes;
    for (int i = 0; i < l->count; i++) order[i] = &l->list[i];
    assert_non_null(path);
    unlink(path);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    if (safetensors_header(order, l->count, "", NULL, &header, &bytes, &error) != OPENPI_OK)
        fail_msg("%s", error.message);
    assert_int_equal(fwrite(header, 1, bytes, file), bytes);
    for (int i = 0; i < l->count; i++) list_put(file, &l->list[i], l->values[i]);
    assert_int_equal(fclose(file), 0);
    free(header);
    free(path);
}

static inline void text_write(const char *folder, const char *name, const char *text) {
    openpi_error error = OPENPI_ERROR_INIT;
    char *path = file_join(folder, name);
    assert_non_null(path);
    unlink(path);
    if (file_write(path, text, strlen(text), &error) != OPENPI_OK) fail_msg("%s", error.message);
    free(path);
}

/* A module's pair, "base_model.model.MODULE.lora_A.weight" and B. */
typedef struct pair_values {
    const float *a, *b;
} pair_values;

static inline pair_values pair_add(tensor_list *l, const char *module, dtype type, int64_t rank, int64_t in,
                                   int64_t out, float scale) {
    char name[400];
    pair_values pair;
    snprintf(name, sizeof name, "base_model.model.%s.lora_A.weight", module);
    pair.a = list_random(l, name, type, rank, in, scale);
    snprintf(name, sizeof name, "base_model.model.%s.lora_B.weight", module);
    pair.b = list_random(l, name, type, out, rank, scale);
    return pair;
}

/* An adapter's folder: the tensors, and a config of which `fields` is a part, "\"r\": 4, …". */
static inline void adapter_write(const tensor_list *l, const char *folder, const char *fields) {
    char config[4096];
    snprintf(config, sizeof config, "{\"peft_type\": \"LORA\", \"bias\": \"none\", %s}", fields);
    text_write(folder, "adapter_config.json", config);
    list_write(l, folder, "adapter_model.safetensors");
}

#endif
