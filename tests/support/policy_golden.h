/* What the policy tests share: golden tensors, JSON metadata, sentences, messages. A missing file or tensor
 * fails the test. Include after cmocka.h. */
#ifndef TESTS_POLICY_GOLDEN_H
#define TESTS_POLICY_GOLDEN_H

#include <jansson.h>
#include <msgpack.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "checkpoint/open.h"
#include "openpi.h"

#define WORKS(call)                                                                        \
    do {                                                                                   \
        error.message[0] = 0;                                                              \
        openpi_status status_ = (call);                                                    \
        if (status_ != OPENPI_OK) fail_msg("%s: %s", openpi_status_text(status_), error.message); \
    } while (0)

/* The call fails with this status and a sentence that has `part` in it. */
#define REFUSES(call, expected, part) \
    do { \
        error.message[0] = 0; \
        openpi_status status_ = (call); \
        if (status_ != (expected) || !strstr(error.message, part)) \
            fail_msg("status %s, sentence \"%s\", expected %s with \"%s\"", openpi_status_text(status_), \
                     error.message, openpi_status_text(expected), part); \
    } while (0)

static inline tensors *golden_open(const char *path) {
    openpi_error error = OPENPI_ERROR_INIT;
    tensors *file = NULL;
    WORKS(tensors_open(path, &file, &error));
    WORKS(tensors_load(file, &error));
    return file;
}

/* The bytes of a tensor of this type and size. */
static inline const void *golden_data(const tensors *file, const char *name, dtype type, int64_t count) {
    const tensor *t = tensors_find(file, name);
    if (!t) fail_msg("no tensor %s", name);
    if (t->type != type || (count >= 0 && t->count != count))
        fail_msg("tensor %s has %lld elements of type %d, expected %lld of type %d", name,
                 (long long)t->count, (int)t->type, (long long)count, (int)type);
    return t->data;
}

/* Aligned copies, to be freed. */
static inline void *golden_copy(const tensors *file, const char *name, dtype type, int64_t count) {
    const void *data = golden_data(file, name, type, count);
    size_t bytes = (size_t)tensors_find(file, name)->count * dtype_bytes(type);
    void *copy = malloc(bytes ? bytes : 1);
    assert_non_null(copy);
    return memcpy(copy, data, bytes);
}

/* A metadata value, parsed; a new reference, NULL where absent. */
static inline json_t *golden_metadata(const tensors *file, const char *key) {
    const char *text = tensors_metadata(file, key);
    return text ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;
}

static inline int golden_flag(const tensors *file, const char *key, int otherwise) {
    json_t *value = golden_metadata(file, key);
    int flag = value ? json_is_true(value) : otherwise;
    json_decref(value);
    return flag;
}

/* The ids, and that the padded golden row says the same. */
static inline void golden_tokens(const openpi_sample *sample, const int32_t *tokens, const uint8_t *mask,
                                 int length) {
    int count = 0;
    while (count < length && mask[count]) count++;
    for (int i = count; i < length; i++) assert_int_equal(mask[i] | tokens[i], 0);
    assert_int_equal(sample->token_count, count);
    for (int i = 0; i < count; i++) assert_int_equal(sample->tokens[i], tokens[i]);
}

static inline char *golden_read(const char *path, size_t *bytes) {
    openpi_error error = OPENPI_ERROR_INIT;
    char *data = NULL;
    WORKS(file_read(path, 64 << 20, &data, bytes, &error));
    return data;
}

/* ---- messages as clients send them ---- */

static inline void pack_text(msgpack_packer *packer, const char *text) {
    msgpack_pack_str(packer, strlen(text));
    msgpack_pack_str_body(packer, text, strlen(text));
}

static inline void pack_array(msgpack_packer *packer, const char *type, const int *shape, int rank,
                              const void *data, size_t bytes) {
    msgpack_pack_map(packer, 4);
    pack_text(packer, "__ndarray__"), msgpack_pack_true(packer);
    pack_text(packer, "data"), msgpack_pack_bin(packer, bytes), msgpack_pack_bin_body(packer, data, bytes);
    pack_text(packer, "dtype"), pack_text(packer, type);
    pack_text(packer, "shape"), msgpack_pack_array(packer, (size_t)rank);
    for (int i = 0; i < rank; i++) msgpack_pack_int(packer, shape[i]);
}

#endif
