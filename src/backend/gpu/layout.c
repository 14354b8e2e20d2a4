/* Packed weights (the layout is kernels/args.h's): how many columns a matrix has, in which order they are its
 * rows, how many bytes they take, and how kernels see them. pack.c and generate.c fill the layout. */
#include "backend/gpu/layout.h"

static int round_up(int value, int to) { return (value + to - 1) / to * to; }

int gpu_head_columns(int head_dim) { return round_up(head_dim / 2, 8) * 2; }

static int packed_columns(const matrix *m) {
    switch (m->form) {
    case MATRIX_GATED: return round_up(m->n / 2, 8) * 2;
    case MATRIX_QKV: return (m->heads + 1) * gpu_head_columns(m->head_dim) + round_up(m->head_dim, GPU_UNIT);
    case MATRIX_PLAIN: break;
    }
    return round_up(m->n, GPU_UNIT);
}

/* The kernels' number for a format, -1: this file has no layout for it. */
static int type_of(const matrix *m) {
    if (m->input == INPUT_INT8) return m->type == WEIGHT_INT8_ROW ? GPU_WEIGHT_INT8X8 : -1;
    switch (m->type) {
    case WEIGHT_F32: return GPU_WEIGHT_F32;
    case WEIGHT_BF16: return GPU_WEIGHT_BF16;
    case WEIGHT_INT8: return GPU_WEIGHT_INT8;
    default: return -1;
    }
}

/* A column's bytes in an atom. */
enum { ATOM_ROW = GPU_ATOM_BYTES / 8 };

static int atoms_of(const matrix *m) {
    return ((int)weight_row_bytes(&weight_formats[m->type], m->k) + ATOM_ROW - 1) / ATOM_ROW;
}

gpu_weights gpu_weights_of(const matrix *m) {
    return (gpu_weights){.data = m->data,
                         .scales = m->scales,
                         .columns = packed_columns(m),
                         .k = m->k,
                         .blocks = m->type == WEIGHT_F32 ? ceil_div(m->k, GPU_ATOM_K) : atoms_of(m),
                         .type = type_of(m)};
}

gpu_row_order gpu_row_order_of(const matrix *m) {
    gpu_row_order o = {.n = m->n};
    if (m->raw || m->form == MATRIX_PLAIN) return o;
    o.half = m->n / 2;
    o.head_columns = o.paired_columns = packed_columns(m);
    o.plain_row = m->n;
    if (m->form == MATRIX_GATED) return o;
    o.half = m->head_dim / 2;
    o.head_columns = gpu_head_columns(m->head_dim);
    o.paired_columns = (m->heads + 1) * o.head_columns;
    o.plain_row = (m->heads + 1) * m->head_dim;
    return o;
}

size_t gpu_column_bytes(const matrix *m) {
    if (m->raw) return weight_row_bytes(&weight_formats[m->type], m->k);
    return m->type == WEIGHT_F32 ? (size_t)round_up(m->k, 4) * sizeof(float)
                                 : (size_t)atoms_of(m) * ATOM_ROW;
}

size_t gpu_matrix_bytes(const device *device, const matrix *m) {
    (void)device;
    return (size_t)(m->raw ? m->n : packed_columns(m)) * gpu_column_bytes(m);
}

int gpu_matrix_blocks(const device *device, const matrix *m) {
    (void)device;
    return (m->raw ? round_up(m->n, GPU_UNIT) : packed_columns(m)) / GPU_UNIT;
}
