/* Synthetic matrices that a device makes itself against the same packed on the host, byte for byte: single
 * ones of every form, and all of a model. For any device, the driver that is not there included. */
#ifndef TESTS_GENERATED_MATRIX_H
#define TESTS_GENERATED_MATRIX_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "model/model.h"
#include "checkpoint/synthetic/synth.h"

typedef struct generated_case {
    matrix_form form;
    int heads, head_dim;
    int rows[GENERATED_PARTS], k;
    int column, row_length;                /* 0, 0: all of a row                                       */
    int64_t raise_from;                    /* where the last part rises; 0: nothing is raised          */
} generated_case;

/* n and k multiples of everything and of nothing, units and atoms that end early, ranges of columns, a raise
 * in the middle. */
static const generated_case generated_cases[] = {
    {MATRIX_PLAIN, 0, 0, {16}, 64, 0, 0, 0},
    {MATRIX_PLAIN, 0, 0, {1}, 1, 0, 0, 0},
    {MATRIX_PLAIN, 0, 0, {37}, 70, 0, 0, 1111},
    {MATRIX_PLAIN, 0, 0, {24, 8, 8}, 129, 0, 0, 0},
    {MATRIX_PLAIN, 0, 0, {7, 30, 5}, 63, 0, 0, 100},
    {MATRIX_PLAIN, 0, 0, {33}, 65, 65, 130, 2222},
    {MATRIX_PLAIN, 0, 0, {20, 9}, 30, 11, 50, 333},
    {MATRIX_PLAIN, 0, 0, {96}, 1152, 0, 0, 96 * 768},
    {MATRIX_PLAIN, 0, 0, {3}, 8200, 0, 0, 9000},           /* more units than one block makes */
    {MATRIX_PLAIN, 0, 0, {20}, 66, 268435000, 268435456, 0}, /* more elements before than 32 bits count */
    {MATRIX_GATED, 0, 0, {32, 32}, 64, 0, 0, 0},
    {MATRIX_GATED, 0, 0, {27, 27}, 67, 0, 0, 555},
    {MATRIX_GATED, 0, 0, {5, 5}, 3, 2, 9, 20},
    {MATRIX_GATED, 0, 0, {136, 136}, 192, 0, 0, 0},
    {MATRIX_QKV, 4, 16, {64, 16, 16}, 64, 0, 0, 0},
    {MATRIX_QKV, 3, 10, {30, 10, 10}, 77, 0, 0, 123},
    {MATRIX_QKV, 2, 36, {72, 36, 36}, 130, 0, 0, 0},
    {MATRIX_QKV, 0, 16, {16, 16}, 64, 0, 0, 0},
    {MATRIX_QKV, 0, 22, {22, 22}, 69, 4, 80, 801},
    {MATRIX_QKV, 1, 256, {256, 256, 256}, 72, 0, 0, 0},
};
enum { GENERATED_CASES = sizeof generated_cases / sizeof *generated_cases };

typedef struct generated_source {
    const generated_case *c;
    tensor_recipe parts[GENERATED_PARTS];
    int k, column, row_length, f32;
} generated_source;

static inline void generated_read(const void *context, int row, int count, void *out) {
    const generated_source *s = context;
    const synth_kernel *kernel = synth_kernel_best();
    for (int i = 0; i < count; i++) {
        int part = 0, at = row + i;
        for (; at >= s->c->rows[part]; part++) at -= s->c->rows[part];
        int64_t first = (int64_t)at * s->row_length + s->column;
        if (s->f32) kernel->read_f32(&s->parts[part], first, s->k, (float *)out + (size_t)i * (size_t)s->k);
        else kernel->read_bf16(&s->parts[part], first, s->k, (bf16 *)out + (size_t)i * (size_t)s->k);
    }
}

static inline void generated_ok(openpi_status status, const openpi_error *error) {
    if (status != OPENPI_OK) fail_msg("%s", error->message);
}

/* What is in `at` now; the caller frees it. */
static inline unsigned char *generated_bytes(device *device, const void *at, size_t bytes) {
    openpi_error error = OPENPI_ERROR_INIT;
    unsigned char *out = malloc(bytes);
    assert_non_null(out);
    generated_ok(device->backend->download(device, out, at, bytes, &error), &error);
    return out;
}

static inline void generated_same(const unsigned char *made, const unsigned char *packed, size_t bytes,
                                  const char *what) {
    size_t at = 0;
    while (at < bytes && made[at] == packed[at]) at++;
    if (at < bytes)
        fail_msg("%s: byte %zu of %zu is %02x where the device makes it, %02x where the host does", what, at,
                 bytes, made[at], packed[at]);
}

/* Device memory full of 0xff. */
static inline void *generated_poisoned(device *device, size_t bytes) {
    openpi_error error = OPENPI_ERROR_INIT;
    void *memory = NULL, *ff = malloc(bytes);
    assert_non_null(ff);
    memset(ff, 0xff, bytes);
    generated_ok(device->backend->allocate(device, bytes, "a test", &memory, &error), &error);
    generated_ok(device->backend->upload(device, memory, ff, bytes, &error), &error);
    free(generated_bytes(device, memory, bytes));          /* waits for the copy */
    free(ff);
    return memory;
}

static inline void check_generated_case(device *device, int number, int f32, int raw) {
    const generated_case *c = &generated_cases[number];
    const backend *b = device->backend;
    generated_source source = {.c = c,
                               .k = c->k,
                               .column = c->column,
                               .row_length = c->row_length ? c->row_length : c->k,
                               .f32 = f32};
    generated_matrix from = {.column = source.column, .row_length = source.row_length};
    matrix m = {.k = c->k, .type = f32 ? WEIGHT_F32 : WEIGHT_BF16, .form = c->form, .heads = c->heads,
                .head_dim = c->head_dim, .raw = raw};
    openpi_error error = OPENPI_ERROR_INIT;
    char what[80];
    snprintf(what, sizeof what, "matrix %d, %s%s", number, f32 ? "f32" : "bf16", raw ? ", raw" : "");
    for (int i = 0; i < GENERATED_PARTS && c->rows[i]; i++) {
        int64_t count = (int64_t)c->rows[i] * source.row_length;
        int raised = c->raise_from && (i + 1 == GENERATED_PARTS || !c->rows[i + 1]);
        tensor_recipe r = {.key = 0x9876543210abcdefu * (uint64_t)(3 * number + i + 1),
                           .offset = i * 0.37 - 0.1,
                           .scale = 0.31 + 0.17 * number,
                           .raise = SYNTH_RAISE,
                           .raise_from = raised ? c->raise_from : count};
        source.parts[i] = r;
        from.parts[i] = (generated_part){r.key, r.offset, r.scale, r.raise, r.raise_from, c->rows[i]};
        from.count++;
        m.n += c->rows[i];
    }
    matrix_source rows = {generated_read, &source};
    size_t bytes = b->matrix_bytes(device, &m);
    void *packed = generated_poisoned(device, bytes), *made = generated_poisoned(device, bytes);
    void *scratch = malloc(b->matrix_scratch(device, &m));
    assert_non_null(scratch);
    generated_ok(b->matrix_pack(device, &m, 0, b->matrix_blocks(device, &m), &rows, packed, scratch, &error),
                 &error);
    generated_ok(b->matrix_generate(device, &m, &from, made, &error), &error);
    unsigned char *a = generated_bytes(device, made, bytes), *e = generated_bytes(device, packed, bytes);
    generated_same(a, e, bytes, what);
    free(a);
    free(e);
    free(scratch);
    b->release(device, packed);
    b->release(device, made);
}

static inline void check_generated_cases(device *device) {
    for (int number = 0; number < GENERATED_CASES; number++)
        for (int f32 = 0; f32 < 2; f32++)
            for (int raw = 0; raw < 2; raw++) check_generated_case(device, number, f32, raw);
}

/* All weights of a model, `off` switched off, by the device and by the host. */
static inline void check_generated_model(device *device, pool *pool, const checkpoint *checkpoint,
                                         uint32_t off, const char *what) {
    const backend *whole = device->backend;
    backend without = *whole;
    unsigned char *bytes[2];
    size_t count = 0;
    openpi_error error = OPENPI_ERROR_INIT;
    without.matrix_generate = NULL;
    for (int way = 0; way < 2; way++) {
        model *m;
        device->backend = way ? &without : whole;
        model_types types = formats_all(DTYPE_BF16, FORMAT_BF16);
        openpi_status status = model_load(checkpoint, device, types, off, pool, NULL, NULL, &m, &error);
        if (status == OPENPI_OK) {
            count = m->bytes;
            bytes[way] = generated_bytes(device, m->block, count);
            model_close(m);
        }
        device->backend = whole;
        generated_ok(status, &error);
    }
    generated_same(bytes[0], bytes[1], count, what);
    free(bytes[0]);
    free(bytes[1]);
}

#endif
