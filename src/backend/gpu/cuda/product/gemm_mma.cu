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
PRODUCT(KERNEL(128), 64, 64, 32, 32, 4)
/* Within the 99 KB that a block has on sm_86, sm_89 and sm_120. */
PRODUCT_HALF(KERNEL(256), 160, 256, 80, 64, 3)
PRODUCT_HALF(KERNEL(256), 160, 192, 80, 48, 4)
PRODUCT_HALF(KERNEL(256), 128, 256, 64, 64, 4)
PRODUCT_HALF(KERNEL(256), 128, 192, 64, 48, 4)
PRODUCT_HALF(KERNEL(256), 160, 128, 80, 32, 5)
PRODUCT_HALF(KERNEL(256), 128, 160, 32, 80, 5)
PRODUCT_HALF(KERNEL_HELD_ELSEWHERE(256, 2), 128, 128, 64, 32, 3)
PRODUCT_HALF(KERNEL(128, 4), 64, 64, 32, 32, 4)

KERNEL(256) gemm_mma_join(const __grid_constant__ gpu_linear_parts a) { join<bf16_numbers>(a, NULL); }

/* What a thread needs for its 8 neighbouring outputs and their norm before there are sums. */
typedef struct row_before {
    finish f[4];
    float weight[8], bias[8];
} row_before;

/* Also of rows beyond *count, which is not there yet. */
DEV row_before before_sums(const gpu_epilogue &e, const gpu_norm &p, int r, int unit, int mine) {
    const float one = p.kind == GPU_NORM_RMS;
    const int own = known_at(p.known, r, 1) + unit * 8;
    row_before b;
#pragma unroll
    for (int t = 0; t < 4; t++) b.f[t] = prepare<GPU_EPILOGUE_RESIDUAL>(e, r, r + 1, unit * 8, t);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        b.weight[j] = one + (mine ? __ldg(p.weight + own + j) : 0);
        b.bias[j] = mine && p.bias ? __ldg(p.bias + own + j) : 0;
    }
    return b;
}

/* The sums of 8 neighbouring columns, parts in their order; all are asked for at once. */
DEV void row_sums(float (&sum)[8], const gpu_linear_parts &a, int r, int unit) {
    const float *from = a.sums + (size_t)r * a.linear.weights.columns + unit * 8;
    const size_t next = (size_t)a.linear.capacity * a.linear.weights.columns;
    float4 part[GPU_MOST_PARTS][2] = {};
#pragma unroll
    for (int i = 0; i < GPU_MOST_PARTS; i++)
        if (i < a.parts)
            part[i][0] = __ldcg((const float4 *)(from + i * next)),
            part[i][1] = __ldcg((const float4 *)(from + i * next) + 1);
#pragma unroll
    for (int i = 1; i < GPU_MOST_PARTS; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            part[0][h].x += part[i][h].x, part[0][h].y += part[i][h].y;
            part[0][h].z += part[i][h].z, part[0][h].w += part[i][h].w;
        }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        sum[4 * h] = part[0][h].x, sum[4 * h + 1] = part[0][h].y;
        sum[4 * h + 2] = part[0][h].z, sum[4 * h + 3] = part[0][h].w;
    }
}

/* A row's norm, its elements 8 a thread: as norm_rows_bf16 (simt.cu), in the same order. */
DEV uint4 norm_row(const gpu_norm &p, uint4 v, const row_before &b, float (&parts)[2][ROW_WARPS], int mine) {
    const int warp = threadIdx.x / 32;
    const float share = 1 / (float)p.k;
    float squares = 0, x[8] = {low_of(v.x), high_of(v.x), low_of(v.y), high_of(v.y),
                               low_of(v.z), high_of(v.z), low_of(v.w), high_of(v.w)};
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
    for (int j = 0; j < 8; j++) x[j] = x[j] * factor * b.weight[j] + b.bias[j];
    return make_uint4(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]),
                      pack_bf16(x[6], x[7]));
}

/* As gemm_mma_join of a residual, and the norm of each row with it: a block a row. */
KERNEL(32 * ROW_WARPS) gemm_mma_join_norm(const __grid_constant__ gpu_join_norm a) {
    __shared__ __align__(16) float parts[2][ROW_WARPS];
    const gpu_epilogue &e = a.parts.linear.epilogue;
    const int unit = threadIdx.x, r = blockIdx.x, rows = __ldg(a.parts.linear.count), mine = unit * 8 < e.n;
    start_next();
    if (unit < 2 * ROW_WARPS) parts[0][unit] = 0;
    const row_before b = before_sums(e, a.norm, r, unit, mine);
    __syncthreads();
    wait_before();
    if (r >= rows) return;
    uint4 v = make_uint4(0, 0, 0, 0), *const x = (uint4 *)((u16 *)e.out + (size_t)r * e.n) + unit;
    if (mine) {
        float sum[8];
        v = __ldcg(x);
        row_sums(sum, a.parts, r, unit);
        v = make_uint4(
            residual_pair(b.f[0], v.x, sum[0], sum[1]), residual_pair(b.f[1], v.y, sum[2], sum[3]),
            residual_pair(b.f[2], v.z, sum[4], sum[5]), residual_pair(b.f[3], v.w, sum[6], sum[7]));
        *x = v;
    }
    v = norm_row(a.norm, v, b, parts, mine);
    if (mine) *((uint4 *)((u16 *)a.norm.out + (size_t)r * e.n) + unit) = v;
}
