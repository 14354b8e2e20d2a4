/* x·Wᵀ for many rows in bf16 on any tensor core since sm_80 (gemm_mma.cuh). Legal where x is bf16 and ldx % 8
 * == 0. gemm_mma.c checks what is legal and launches. */
#include "gemm_mma.cuh"
#include "join_norm.h"
#include "row_sum.cuh"

/* As KERNEL_HELD; on chips of 228 KB after Hopper this kernel spills in half of the registers. */
#if __CUDA_ARCH__ >= 1000 && __CUDA_ARCH__ < 1200
#define KERNEL_HELD_ELSEWHERE(threads, blocks) KERNEL(threads, 1)
#else
#define KERNEL_HELD_ELSEWHERE(threads, blocks) KERNEL_HELD(threads, blocks)
#endif

#define PRODUCT_OF(name, bounds, ...)                                           \
    bounds name(const __grid_constant__ gpu_linear_parts a) {                   \
        gemm<mma_tile<bf16_numbers, __VA_ARGS__>>(a, NULL);                     \
    }
#define PRODUCT(bounds, rows, columns, ...) \
    PRODUCT_OF(gemm_mma_##rows##_##columns, bounds, rows, columns, __VA_ARGS__)
#define PRODUCT_HALF(bounds, rows, columns, ...) \
    PRODUCT_OF(gemm_mma_##rows##_##columns##_half, bounds, rows, columns, __VA_ARGS__, 2)

PRODUCT(KERNEL(256), 160, 256, 80, 64, 3)
/* For a part of few stages, which waits for what it asked for. */
PRODUCT(KERNEL(256, 1), 128, 128, 64, 32, 3)
PRODUCT(KERNEL_HELD(128, 4), 64, 64, 32, 32, 4)
/* Within the 99 KB that a block has on sm_86, sm_89 and sm_120. */
PRODUCT_HALF(KERNEL(256), 160, 256, 80, 64, 3)
PRODUCT_HALF(KERNEL(256), 160, 192, 80, 48, 4)
PRODUCT_HALF(KERNEL(256), 192, 192, 96, 48, 4)
PRODUCT_HALF(KERNEL(256), 128, 256, 64, 64, 4)
PRODUCT_HALF(KERNEL(256), 128, 192, 64, 48, 4)
PRODUCT_HALF(KERNEL(256), 160, 128, 80, 32, 5)
PRODUCT_HALF(KERNEL(256), 128, 160, 32, 80, 5)
PRODUCT_HALF(KERNEL_HELD_ELSEWHERE(256, 2), 128, 128, 64, 32, 3)
PRODUCT_HALF(KERNEL(128, 4), 64, 64, 32, 32, 4)

KERNEL(256) gemm_mma_join(const __grid_constant__ gpu_linear_parts a) { join<bf16_numbers>(a, NULL); }

/* 8 neighbouring numbers of a row, `other` where there are none. */
DEV void eight_of(float (&to)[8], const float *from, int there, float other) {
    float4 a = make_float4(other, other, other, other), b = a;
    if (there) a = __ldg((const float4 *)from), b = __ldg((const float4 *)from + 1);
    to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w;
    to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
}

/* Four columns more, of AT_ONCE parts from `first` on, in their order; all are asked for at once. */
enum { AT_ONCE = 4 };
DEV void add_four(float4 (&sum)[2], const float *from, size_t next, int first, int parts) {
    float4 part[AT_ONCE][2] = {};
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++)
        if (first + i < parts)
#pragma unroll
            for (int h = 0; h < 2; h++) part[i][h] = __ldcg((const float4 *)(from + i * next) + 2 * h);
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++)
        if (first + i < parts)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                sum[h].x += part[i][h].x, sum[h].y += part[i][h].y;
                sum[h].z += part[i][h].z, sum[h].w += part[i][h].w;
            }
}

/* The sums of 8 neighbouring columns, the unit'th of a row. Of the columns of two lanes each asks for four
 * and four, so that together they ask for 32 bytes that follow each other, a whole sector; then they trade.
 * -0: what is added to it stays as it is. */
DEV void row_sums(float (&sum)[8], const gpu_linear_parts &a, int r, int unit, int n) {
    const int odd = unit & 1, columns = a.linear.weights.columns;
    const float *from = a.sums + (size_t)r * columns + (unit - odd) * 8 + odd * 4;
    const size_t next = (size_t)a.linear.capacity * columns;
    float4 four[2];
    four[0] = four[1] = make_float4(-0.0f, -0.0f, -0.0f, -0.0f);
    if ((unit - odd) * 8 < n)
#pragma unroll 1
        for (int i = 0; i < a.parts; i += AT_ONCE) add_four(four, from + i * next, next, i, a.parts);
    const float own[2][4] = {{four[0].x, four[0].y, four[0].z, four[0].w},
                             {four[1].x, four[1].y, four[1].z, four[1].w}};
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const float got = __shfl_xor_sync(0xffffffffu, odd ? own[0][j] : own[1][j], 1);
        sum[j] = odd ? got : own[0][j];
        sum[4 + j] = odd ? own[1][j] : got;
    }
}

/* x and what is added to it, 8 neighbouring outputs. */
DEV uint4 residual_eight(const gpu_epilogue &e, uint4 x, const float (&sum)[8], int r, int unit, int mine) {
    float bias[8], gate[8];
    eight_of(bias, e.bias + unit * 8, mine && e.bias, 0);
    eight_of(gate, e.gate + known_at(e.known, r, 1) + unit * 8, mine && e.gate, 1);
    const u32 before[4] = {x.x, x.y, x.z, x.w};
    u32 y[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        finish f = {};
        f.c0 = bias[2 * i], f.c1 = bias[2 * i + 1], f.s0 = gate[2 * i], f.s1 = gate[2 * i + 1];
        y[i] = residual_pair(f, before[i], sum[2 * i], sum[2 * i + 1]);
    }
    return make_uint4(y[0], y[1], y[2], y[3]);
}

/* A row's norm, its elements 8 a thread: as norm_rows_bf16 (simt.cu), in the same order. */
DEV uint4 norm_row(const gpu_norm &p, uint4 v, float (&parts)[2][ROW_WARPS], int r, int mine) {
    const int warp = threadIdx.x / 32, own = known_at(p.known, r, 1) + threadIdx.x * 8;
    const float share = 1 / (float)p.k, one = p.kind == GPU_NORM_RMS;
    float weight[8], bias[8], squares = 0, x[8] = {low_of(v.x), high_of(v.x), low_of(v.y), high_of(v.y),
                               low_of(v.z), high_of(v.z), low_of(v.w), high_of(v.w)};
    eight_of(weight, p.weight + own, mine, 0);
    eight_of(bias, p.bias + own, mine && p.bias, 0);
    if (p.kind == GPU_NORM_LAYER) {
        const float sum = ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7])),
                    mean = row_sum(sum, parts[0], warp) * share;
#pragma unroll
        for (int j = 0; j < 8; j++) x[j] -= mean;
    }
#pragma unroll
    for (int j = 0; j < 8; j++) squares += x[j] * x[j];
    const float factor = rsqrtf(row_sum(mine ? squares : 0, parts[1], warp) * share + p.eps);
#pragma unroll
    for (int j = 0; j < 8; j++) x[j] = x[j] * factor * (one + weight[j]) + bias[j];
    return make_uint4(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]),
                      pack_bf16(x[6], x[7]));
}

/* As gemm_mma_join of a residual, and the norm of each row with it: a block a row. */
KERNEL(32 * ROW_WARPS, 4) gemm_mma_join_norm(const __grid_constant__ gpu_join_norm a) {
    __shared__ __align__(16) float parts[2][ROW_WARPS];
    const gpu_epilogue &e = a.parts.linear.epilogue;
    const int unit = threadIdx.x, r = blockIdx.x, rows = __ldg(a.parts.linear.count), mine = unit * 8 < e.n;
    uint4 v = make_uint4(0, 0, 0, 0), *const x = (uint4 *)((u16 *)e.out + (size_t)r * e.n) + unit;
    float sum[8];
    start_next();
    if (unit < 2 * ROW_WARPS) parts[0][unit] = 0;
    wait_before();
    if (r >= rows) return;
    if (mine) v = __ldcg(x);
    row_sums(sum, a.parts, r, unit, e.n);
    __syncthreads();
    v = residual_eight(e, v, sum, r, unit, mine);
    if (mine) *x = v;
    v = norm_row(a.norm, v, parts, r, mine);
    if (mine) *((uint4 *)((u16 *)a.norm.out + (size_t)r * e.n) + unit) = v;
}
