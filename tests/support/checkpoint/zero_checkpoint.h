/* Checkpoints whose weights are all zero: names, shapes and types are what opening looks at. */
#ifndef TESTS_ZERO_CHECKPOINT_H
#define TESTS_ZERO_CHECKPOINT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "structs.h"
#include "scratch.h"

static openpi_error error = OPENPI_ERROR_INIT;

static inline void check(openpi_status status) {
    if (status != OPENPI_OK) fail_msg("%s: %s", openpi_status_text(status), error.message);
}

static inline void check_fails(openpi_status status, openpi_status expected, const char *sentence) {
    if (status != expected || !strstr(error.message, sentence))
        fail_msg("%s: \"%s\", expected %s: \"%s\"", openpi_status_text(status), error.message,
                 openpi_status_text(expected), sentence);
}

static const openpi_dims small = DIMS_OF(72, 2, 1, 8, 16, 3, 2, 4, 8, 6, 10, 12);

/* A header as {"name": [dtype, [shape]]}. */
static inline void put(json_t *header, const char *name, const char *dtype, int rank, const int64_t *shape) {
    json_t *list = json_array();
    for (int i = 0; i < rank; i++) json_array_append_new(list, json_integer(shape[i]));
    assert_int_equal(json_object_set_new(header, name, json_pack("[s,o]", dtype, list)), 0);
}

static inline openpi_status put_tensor(void *user, const char *name, int rank, const int64_t *shape,
                                openpi_error *unused) {
    (void)unused;
    put(user, name, "BF16", rank, shape);
    return OPENPI_OK;
}

static inline json_t *make_header(const openpi_dims *dims, openpi_variant variant) {
    json_t *header = json_object();
    assert_int_equal(checkpoint_tensors(dims, variant, put_tensor, header, NULL), OPENPI_OK);
    return header;
}

/* metadata: NULL or an object of strings. Data are zeros. */
static inline void write_header(scratch *s, const char *file_name, const json_t *header, json_t *metadata) {
    json_t *root = json_object(), *value;
    const char *name;
    json_int_t at = 0;
    if (metadata) json_object_set(root, "__metadata__", metadata);
    json_object_foreach((json_t *)(uintptr_t)header, name, value) {
        const char *dtype = json_string_value(json_array_get(value, 0));
        json_t *shape = json_array_get(value, 1);
        json_int_t bytes = !strcmp(dtype, "F32") ? 4 : !strcmp(dtype, "U8") ? 1 : 2;
        for (size_t i = 0; i < json_array_size(shape); i++)
            bytes *= json_integer_value(json_array_get(shape, i));
        json_object_set_new(
            root, name,
            json_pack("{s:s,s:O,s:[I,I]}", "dtype", dtype, "shape", shape, "data_offsets", at, at + bytes));
        at += bytes;
    }
    char *text = json_dumps(root, JSON_COMPACT);
    size_t length = strlen(text);
    FILE *file = fopen(scratch_path(s, file_name), "wb");
    assert_non_null(file);
    for (int i = 0; i < 8; i++) fputc((int)(length >> 8 * i & 0xff), file);
    fwrite(text, 1, length, file);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(truncate(s->path, (off_t)(8 + length + (size_t)at)), 0);
    free(text);
    json_decref(root);
}

static inline json_t *prefixed(const json_t *header) {
    json_t *out = json_object(), *value;
    const char *name;
    json_object_foreach((json_t *)(uintptr_t)header, name, value) {
        char longer[300];
        snprintf(longer, sizeof longer, "model.%s", name);
        json_object_set(out, longer, value);
    }
    return out;
}

static inline void write_text(scratch *s, const char *name, const char *text) {
    assert_int_equal(scratch_write(s, name, text, strlen(text)), 0);
}

static inline void rename_key(json_t *header, const char *from, const char *to) {
    json_t *value = json_object_get(header, from);
    assert_non_null(value);
    json_object_set(header, to, value);
    json_object_del(header, from);
}

#endif
