/* Rows as 8-bit integers with a scale each (ops.h, INPUT_INT8): kernels that go before a product of them, in
 * each family that has one.
 *
 *   int8_rows_norm    codes of bf16 rows of up to 2048, k % 8 == 0, after their norm where there is one. A
 *                     block a row, a thread eight elements
 *   int8_rows_plain   the same of up to 16384, without a norm: a row is read once
 *   int8_rows         any row
 *   int8_rows_fixed   rows without a norm that have one scale for all
 *
 *   early    int8_rows_norm has the norm's weights in registers before wait_before(); the others call it
 *            first
 *
 * int8_rows.c says which of them a row takes. */
#ifndef KERNELS_CUDA_INT8_ROWS_CUH
#define KERNELS_CUDA_INT8_ROWS_CUH

#include "backend/gpu/cuda/bounds.cuh"
#include "backend/gpu/cuda/common.cuh"
#include "int8.h"
#include "scales.cuh"

enum { THREADS = 256, WARPS = THREADS / 32, WIDE = 8 };

/* A row's scale, and its codes a unit: 0, all codes are 0. */
typedef struct row_scale {
    float scale, inverse;
} row_scale;

/* top: the bits of the row's largest magnitude. */
DEV row_scale scale_of(u32 top) {
    const float size = __uint_as_float(top);
    row_scale own = {size / 127, 127 / size};
    if (top >= 0x7f800000u) own = {__uint_as_float(0x7fc00000u), 0};
    else if (size < 0x1p-100f) own = {0, 0};
    return own;
}

DEV u32 magnitude(float x) { return __float_as_uint(x) & 0x7fffffffu; }

DEV u32 code_of(float x, float inverse) {
    return inverse > 0 ? (u32)__float2int_rn(__fmul_rn(x, inverse)) & 255 : 0;
}

/* Over the block; `parts` and `tops` are of one use only. */
DEV float block_sum(float x, float (&parts)[WARPS]) {
    x = warp_sum(x);
    if (!(threadIdx.x & 31)) parts[threadIdx.x >> 5] = x;
    __syncthreads();
    const float4 a = *(const float4 *)parts, b = *(const float4 *)(parts + 4);
    return ((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w));
}
DEV u32 block_most(u32 x, int (&tops)[WARPS]) {
    int most = __reduce_max_sync(0xffffffffu, (int)x);
    if (!(threadIdx.x & 31)) tops[threadIdx.x >> 5] = most;
    __syncthreads();
    for (int i = 0; i < WARPS; i++) most = max(most, tops[i]);
    return (u32)most;
}

/* Codes of elements 8·unit … 8·unit + 7 of row r. */
DEV void store_codes(const gpu_int8_rows &a, int r, int unit, const float (&x)[8], float inverse) {
    u32 word[2] = {};
#pragma unroll
    for (int j = 0; j < 8; j++) word[j / 4] |= code_of(x[j], inverse) << j % 4 * 8;
    *(uint2 *)((char *)a.norm.out + (size_t)r * a.pitch + unit * 8) = make_uint2(word[0], word[1]);
}

DEV void unpack(float (&x)[8], uint4 v) {
    x[0] = low_of(v.x), x[1] = high_of(v.x), x[2] = low_of(v.y), x[3] = high_of(v.y);
    x[4] = low_of(v.z), x[5] = high_of(v.z), x[6] = low_of(v.w), x[7] = high_of(v.w);
}

/* Sums are those of norm_rows_bf16 (simt.cu), in its order. */
KERNEL(THREADS) int8_rows_norm(const __grid_constant__ gpu_int8_rows a) {
    __shared__ __align__(16) float parts[2][WARPS];
    __shared__ int tops[WARPS];
    const gpu_norm &p = a.norm;
    const int unit = threadIdx.x, n = p.k / 8, r = blockIdx.x, there = r < *p.count, mine = unit < n;
    start_next();
    const int row = there ? row_of(p.from, r) : 0, own = known_at(p.known, r, there);
    const float one = p.kind == GPU_NORM_RMS, share = 1 / (float)p.k;
    float weight[8] = {}, bias[8] = {}, x[8];
    if (p.kind != GPU_NORM_NONE && mine)
#pragma unroll
        for (int j = 0; j < 8; j++) {
            weight[j] = one + __ldg(p.weight + own + unit * 8 + j);
            if (p.bias) bias[j] = __ldg(p.bias + own + unit * 8 + j);
        }
    wait_before();
    if (!there) return;
    uint4 v = make_uint4(0, 0, 0, 0);
    if (mine) v = __ldcg((const uint4 *)((const u16 *)p.x + (size_t)row * p.k) + unit);
    unpack(x, v);
    if (p.kind == GPU_NORM_LAYER) {
        const float sum = ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7])),
                    mean = block_sum(sum, parts[0]) * share;
#pragma unroll
        for (int j = 0; j < 8; j++) x[j] -= mean;
    }
    if (p.kind != GPU_NORM_NONE) {
        float squares = 0;
#pragma unroll
        for (int j = 0; j < 8; j++) squares += x[j] * x[j];
        const float factor = rsqrtf(block_sum(mine ? squares : 0, parts[1]) * share + p.eps);
#pragma unroll
        for (int j = 0; j < 8; j++) x[j] = round_bf16(x[j] * factor * weight[j] + bias[j]);
    }
    u32 top = 0;
#pragma unroll
    for (int j = 0; j < 8; j++) top = max(top, magnitude(x[j]));
    const row_scale s = scale_of(block_most(mine ? top : 0, tops));
    if (!unit) a.scales[r] = s.scale;
    if (unit * 8 < a.pitch) store_codes(a, r, unit, x, mine ? s.inverse : 0);
}

KERNEL(THREADS) int8_rows_plain(const __grid_constant__ gpu_int8_rows a) {
    __shared__ int tops[WARPS];
    const gpu_norm &p = a.norm;
    const int n = p.k / 8, r = blockIdx.x;
    start_next();
    wait_before();
    if (r >= *p.count) return;
    const uint4 *from = (const uint4 *)((const u16 *)p.x + (size_t)row_of(p.from, r) * p.k);
    uint4 v[WIDE] = {};
    u32 top = 0;
    float x[8];
#pragma unroll
    for (int i = 0; i < WIDE; i++) {
        const int unit = i * THREADS + threadIdx.x;
        if (unit < n) v[i] = __ldcg(from + unit);
    }
#pragma unroll
    for (int i = 0; i < WIDE; i++) {
        unpack(x, v[i]);
#pragma unroll
        for (int j = 0; j < 8; j++) top = max(top, magnitude(x[j]));
    }
    const row_scale s = scale_of(block_most(top, tops));
    if (!threadIdx.x) a.scales[r] = s.scale;
#pragma unroll
    for (int i = 0; i < WIDE; i++) {
        const int unit = i * THREADS + threadIdx.x;
        unpack(x, v[i]);
        if (unit * 8 < a.pitch) store_codes(a, r, unit, x, s.inverse);
    }
}

/* What norm_rows makes of element i of a row, and 0 behind its end. */
typedef struct normed_row {
    size_t from;
    int own;
    float mean, factor, one;
} normed_row;

DEV float normed(const gpu_norm &p, const normed_row &row, int i) {
    if (i >= p.k) return 0;
    float x = load_act(p.x, p.f32, row.from + i);
    if (p.kind == GPU_NORM_NONE) return x;
    x = (x - row.mean) * row.factor * (row.one + p.weight[row.own + i]) + (p.bias ? p.bias[row.own + i] : 0);
    return p.f32 ? x : round_bf16(x);
}

KERNEL(THREADS) int8_rows(const __grid_constant__ gpu_int8_rows a) {
    __shared__ __align__(16) float parts[2][WARPS];
    __shared__ int tops[WARPS];
    const gpu_norm &p = a.norm;
    const int r = blockIdx.x, tid = threadIdx.x;
    start_next();
    wait_before();
    if (r >= *p.count) return;
    normed_row row = {(size_t)row_of(p.from, r) * p.k, known_at(p.known, r, 1), 0, 1, 0};
    row.one = p.kind == GPU_NORM_RMS;
    float sum = 0, squares = 0;
    u32 top = 0;
    if (p.kind == GPU_NORM_LAYER) {
        for (int i = tid; i < p.k; i += THREADS) sum += load_act(p.x, p.f32, row.from + i);
        row.mean = block_sum(sum, parts[0]) / p.k;
    }
    if (p.kind != GPU_NORM_NONE) {
        for (int i = tid; i < p.k; i += THREADS) {
            const float d = load_act(p.x, p.f32, row.from + i) - row.mean;
            squares += d * d;
        }
        row.factor = rsqrtf(block_sum(squares, parts[1]) / p.k + p.eps);
    }
    for (int i = tid; i < p.k; i += THREADS) top = max(top, magnitude(normed(p, row, i)));
    const row_scale s = scale_of(block_most(top, tops));
    if (!tid) a.scales[r] = s.scale;
    char *out = (char *)p.out + (size_t)r * a.pitch;
    for (int i = tid; i < a.pitch; i += THREADS) out[i] = (char)code_of(normed(p, row, i), s.inverse);
}

/* ---- one scale for all rows ---------------------------------------------------------------------------- */

/* Elements 8·unit … 8·unit + 7 of a row, zeros behind its end. */
DEV void load_unit(const gpu_norm &p, size_t from, int unit, float (&x)[8]) {
    if (!p.f32 && p.k % 8 == 0) {
        uint4 v = make_uint4(0, 0, 0, 0);
        if (unit * 8 < p.k) v = __ldcg((const uint4 *)((const u16 *)p.x + from) + unit);
        unpack(x, v);
        return;
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
        x[j] = unit * 8 + j < p.k ? load_act(p.x, p.f32, from + unit * 8 + j) : 0;
}

/* What a row loses, by its block. */
DEV void count_row(const gpu_int8_fixed &f, u32 clipped, u32 not_finite, uint2 (&parts)[WARPS]) {
    clipped = __reduce_add_sync(0xffffffffu, clipped);
    not_finite = __reduce_add_sync(0xffffffffu, not_finite);
    if (!(threadIdx.x & 31)) parts[threadIdx.x >> 5] = make_uint2(clipped, not_finite);
    __syncthreads();
    if (threadIdx.x || !f.counts) return;
    for (int i = 1; i < WARPS; i++) clipped += parts[i].x, not_finite += parts[i].y;
    if (clipped) {
        atomicAdd(f.counts, clipped);
        atomicAdd(f.counts + 1, 1u);
    }
    if (not_finite) atomicAdd(f.counts + 2, not_finite);
}

KERNEL(THREADS) int8_rows_fixed(const __grid_constant__ gpu_int8_fixed_rows all) {
    __shared__ uint2 parts[WARPS];
    const gpu_int8_rows &a = all.rows;
    const gpu_norm &p = a.norm;
    const int r = blockIdx.x;
    start_next();
    wait_before();
    if (r >= *p.count) return;
    const size_t from = (size_t)row_of(p.from, r) * p.k;
    u32 clipped = 0, not_finite = 0;
    if (!threadIdx.x) a.scales[r] = all.fixed.scale;
    for (int unit = threadIdx.x; unit * 8 < a.pitch; unit += THREADS) {
        u32 word[2] = {};
        float x[8];
        load_unit(p, from, unit, x);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const int finite = magnitude(x[j]) < 0x7f800000u;
            word[j / 4] |= fixed_code(all.fixed, x[j]) << j % 4 * 8;
            not_finite += !finite;
            clipped += finite && fabsf(__fmul_rn(x[j], all.fixed.inverse)) >= 127.5f;
        }
        *(uint2 *)((char *)p.out + (size_t)r * a.pitch + unit * 8) = make_uint2(word[0], word[1]);
    }
    count_row(all.fixed, clipped, not_finite, parts);
}

#endif
