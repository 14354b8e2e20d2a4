/* From the sums of a row to outputs: bias, activation, gate, residual, RoPE, cache, rounding.
 *
 * A lane holds the sums of packed columns 4·part … + 3 of a unit of 16 (args.h); `other` are those of the
 * lane that holds columns 8 further or before, which in paired matrices belong to them. */
#ifndef KERNELS_HIP_EPILOGUE_H
#define KERNELS_HIP_EPILOGUE_H

#include "common.h"

/* Numbers o … o + 3 of [n], zeros where there is no array or no number. */
DEV f32x4 parameters4(const float *from, size_t o, int count) {
    return from ? load_f32x4(from, o, count) : (f32x4){0, 0, 0, 0};
}

DEV void epilogue_plain(const gpu_epilogue *e, int r, int o, f32x4 y) {
    int count = e->n - o;
    if (count <= 0) return;
    size_t row = (size_t)row_of(&e->to, r), at = row * (size_t)e->n + (size_t)o;
    y += parameters4(e->bias, (size_t)o, count);
    if (e->kind == GPU_EPILOGUE_RESIDUAL) {
        if (e->gate) y *= load_f32x4(e->gate, known_at(&e->known, r) + (size_t)o, count);
        store4(e->out, e->f32, at, count, load4(e->out, e->f32, at, count) + y);
        return;
    }
    if (e->add) y += load_f32x4(e->add, (size_t)(r % e->add_period) * (size_t)e->n + (size_t)o, count);
    UNROLL
    for (int i = 0; i < 4; i++) y[i] = activated(e->activation, y[i]);
    if (e->x_t && !known_at(&e->known, r))
        store4(e->x_t, 1, at, count, load_f32x4(e->x_t, at, count) + e->dt * y);
    if (e->split) {                        /* a row is [upper n | lower n]                                  */
        at += row * (size_t)e->n;
        store4(e->out, 0, at + (size_t)e->n, count, y - widen4(narrow4(y)));
    }
    store4(e->out, e->f32, at, count, y);
}

/* The lanes with the first half of a unit hold gates, and their others the up numbers. */
DEV void epilogue_gated(const gpu_epilogue *e, int r, int unit, int part, f32x4 gate, f32x4 up) {
    int o = unit * (GPU_UNIT / 2) + part * 4, count = e->n - o;
    if (part > 1 || count <= 0) return;
    gate += parameters4(e->bias, (size_t)o, count);
    up += parameters4(e->bias, (size_t)(e->n_second + o), count);
    UNROLL
    for (int i = 0; i < 4; i++) gate[i] = gelu(gate[i]) * up[i];
    store4(e->out, e->f32, (size_t)row_of(&e->to, r) * (size_t)e->n + (size_t)o, count, gate);
}

DEV void epilogue_qkv(const gpu_epilogue *e, int r, int unit, int part, f32x4 y, f32x4 other) {
    int d = e->head_dim, half = d / 2, column = unit * GPU_UNIT, head = column / e->head_columns,
        position = e->position[r];
    size_t cached = ((size_t)e->sample[r] * (size_t)e->capacity + (size_t)position) * (size_t)d;
    if (head > e->heads) {                 /* v, which is not paired                                        */
        int i = column - (e->heads + 1) * e->head_columns + part * 4;
        store4(e->v, e->f32, cached + (size_t)i, d - i, y);
        return;
    }
    int i = (column - head * e->head_columns) / 2 + (part & 1) * 4, count = half - i;
    const float *rope = e->rope + ((size_t)position * (size_t)half + (size_t)i) * 2;
    size_t at = head < e->heads ? ((size_t)r * (size_t)e->heads + (size_t)head) * (size_t)d : cached;
    UNROLL
    for (int j = 0; j < 4; j++) {
        float c = j < count ? rope[2 * j] : 0, s = j < count ? rope[2 * j + 1] : 0;
        y[j] = part < 2 ? y[j] * c - other[j] * s : y[j] * c + other[j] * s;
    }
    store4(head < e->heads ? e->out : e->k, e->f32, at + (size_t)(i + (part < 2 ? 0 : half)), count, y);
}

DEV void epilogue_unit(const gpu_epilogue *e, int r, int unit, int part, f32x4 y, f32x4 other) {
    if (e->kind == GPU_EPILOGUE_QKV) epilogue_qkv(e, r, unit, part, y, other);
    else if (e->kind == GPU_EPILOGUE_GATED) epilogue_gated(e, r, unit, part, y, other);
    else epilogue_plain(e, r, unit * GPU_UNIT + part * 4, y);
}

#endif
