/* What all kernels share: numbers, loads and stores of four, rows, sums over a wave. Included first. */
#ifndef KERNELS_HIP_COMMON_H
#define KERNELS_HIP_COMMON_H

#include <machine.h>

#define GPU_BOTH DEV
#define HASH_BOTH DEV
#include "backend/gpu/kernels/args.h"

/* ---- numbers ------------------------------------------------------------------------------------------ */

typedef union word {
    float f;
    u32 u;
} word;

DEV float from_bf16(u16 bits) { return ((word){.u = (u32)bits << 16}).f; }
/* To the nearest, ties to even; what is no number stays none. */
DEV u16 to_bf16(float x) {
    u32 u = ((word){.f = x}).u;
    return (u16)((x == x ? u + 0x7fffu + (u >> 16 & 1) : u | 0x400000u) >> 16);
}
DEV float round_bf16(float x) { return from_bf16(to_bf16(x)); }

DEV f32x4 widen4(bf16x4 x) {
    return (f32x4){from_bf16((u16)x[0]), from_bf16((u16)x[1]), from_bf16((u16)x[2]), from_bf16((u16)x[3])};
}
DEV bf16x4 narrow4(f32x4 x) {
    return (bf16x4){(short)to_bf16(x[0]), (short)to_bf16(x[1]), (short)to_bf16(x[2]), (short)to_bf16(x[3])};
}

/* The tanh form of GELU is x·sigmoid(2·√(2/π)·(x + 0.044715·x³)). */
DEV float gelu(float x) { return x / (1 + exp2_of(x * (-2.302208198144325f - 0.10294324f * (x * x)))); }
DEV float silu(float x) { return x / (1 + exp2_of(-1.4426950408889634f * x)); }
DEV float activated(int activation, float x) {
    return activation == GPU_ACT_GELU ? gelu(x) : activation == GPU_ACT_SILU ? silu(x) : x;
}

DEV int smaller(int a, int b) { return a < b ? a : b; }
DEV float larger(float a, float b) { return a > b ? a : b; }

/* ---- memory: activations are bf16 or fp32 -------------------------------------------------------------- */

DEV float load_act(const void *x, int f32, size_t at) {
    return f32 ? ((const float *)x)[at] : from_bf16(((const u16 *)x)[at]);
}
DEV void store_act(void *out, int f32, size_t at, float y) {
    if (f32) ((float *)out)[at] = y;
    else ((u16 *)out)[at] = to_bf16(y);
}

/* Numbers at … at + 3, of which the first `count` exist (0 or less: none); zeros for the others. */
DEV bf16x4 load_bf16x4(const void *from, size_t at, int count) {
    const u16 *x = (const u16 *)from + at;
    if (count >= 4 && !((size_t)x & 7)) return *(const bf16x4 *)x;
    return (bf16x4){count > 0 ? (short)x[0] : 0, count > 1 ? (short)x[1] : 0, count > 2 ? (short)x[2] : 0,
                    count > 3 ? (short)x[3] : 0};
}
DEV f32x4 load_f32x4(const void *from, size_t at, int count) {
    const float *x = (const float *)from + at;
    if (count >= 4 && !((size_t)x & 15)) return *(const f32x4 *)x;
    return (f32x4){count > 0 ? x[0] : 0, count > 1 ? x[1] : 0, count > 2 ? x[2] : 0, count > 3 ? x[3] : 0};
}
DEV f32x4 load4(const void *from, int f32, size_t at, int count) {
    return f32 ? load_f32x4(from, at, count) : widen4(load_bf16x4(from, at, count));
}
/* The first `count` of y. */
DEV void store4(void *out, int f32, size_t at, int count, f32x4 y) {
    float *wide = (float *)out + at;
    u16 *narrow = (u16 *)out + at;
    if (f32 && count >= 4 && !((size_t)wide & 15)) {
        *(f32x4 *)wide = y;
    } else if (!f32 && count >= 4 && !((size_t)narrow & 7)) {
        *(bf16x4 *)narrow = narrow4(y);
    } else {
        UNROLL
        for (int i = 0; i < 4; i++)
            if (i < count) store_act(out, f32, at + (size_t)i, y[i]);
    }
}

DEV int row_of(const gpu_row_map *m, int r) {
    if (m->map) return m->map[r];
    return m->group ? r / m->group * m->stride + m->offset + r % m->group : r;
}

/* What is to be added to the addresses of row r's norm weight, norm bias and gate. */
DEV size_t known_at(const gpu_known *k, int r) { return k->rows ? (size_t)(k->rows[r] * k->at) : 0; }

/* Input i (channel, row, column) of patch r, 256 an image. */
DEV float pixel_at(const void *images, int floats, int r, int i) {
    enum { PATCH = 14, IMAGE = 224, CHANNELS = 3 };
    int patch = r & 255, c = i / (PATCH * PATCH), y = (patch >> 4) * PATCH + i / PATCH % PATCH,
        x = (patch & 15) * PATCH + i % PATCH;
    size_t at = ((size_t)(r >> 8) * IMAGE * IMAGE + (size_t)(y * IMAGE + x)) * CHANNELS + (size_t)c;
    return floats ? ((const float *)images)[at] : (float)((const uint8_t *)images)[at] / 255.0f * 2.0f - 1.0f;
}
enum { PATCH_INPUTS = 588 };

/* ---- sums and maxima of a wave: every lane gets them --------------------------------------------------- */

DEV float wave_sum(float x) {
    int lane = thread_id() & (WAVE - 1);
    UNROLL
    for (int i = WAVE / 2; i; i >>= 1) x += lane_from(x, lane ^ i);
    return x;
}
DEV float wave_max(float x) {
    int lane = thread_id() & (WAVE - 1);
    UNROLL
    for (int i = WAVE / 2; i; i >>= 1) x = larger(x, lane_from(x, lane ^ i));
    return x;
}

#endif
