/* The RMS norm of x inside medium_hopper's products: a part of medium_hopper.cu.
 *
 * Sums of squares of x, 16 columns each, are in memory: the residual that made x has left them, or
 * medium_hopper_squares has made them, in the same order. So the norm before a product needs x only once, and
 * no block needs more of it than its part of k. */
#ifndef KERNELS_CUDA_MEDIUM_NORM_CUH
#define KERNELS_CUDA_MEDIUM_NORM_CUH

#include "pairs.cuh"

/* Of 16 columns that four lanes have, two pairs each: lanes `step` and 2·step apart. */
DEV float sum_squares(u32 a, u32 b, int step) {
    float s = fmaf(low_of(a), low_of(a), high_of(a) * high_of(a));
    s = fmaf(low_of(b), low_of(b), s);
    s = fmaf(high_of(b), high_of(b), s);
    s += __shfl_xor_sync(0xffffffffu, s, step);
    return s + __shfl_xor_sync(0xffffffffu, s, 2 * step);
}

/* 1 / root mean square of a row, in all four lanes that share it (lane = 4·i + part). */
DEV float row_factor(const gpu_linear &l, const float *squares, int row, int part, int rows) {
    const int units = l.ldx / GPU_UNIT;
    float sum = 0;
    if (row < rows)
        for (int i = part * 4; i < units; i += 16) {
            const float4 s = __ldcg((const float4 *)(squares + (size_t)row * units + i));
            sum += s.x + s.y + (s.z + s.w);
        }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    return rsqrtf(sum / l.ldx + l.eps);
}

/* Two neighbouring columns of a row of factor f; norm: (w, w', b, b'). */
DEV u32 norm_pair(u32 x, float f, const float4 &norm) {
    return pack_bf16(fmaf(low_of(x), fmaf(norm.x, f, f), norm.z),
                     fmaf(high_of(x), fmaf(norm.y, f, f), norm.w));
}

/* Where no residual has left them: a warp a row, 8 units of 16 columns at a time. */
KERNEL(128) medium_hopper_squares(const __grid_constant__ gpu_medium p) {
    const gpu_linear &l = p.hopper.linear;
    const int lane = threadIdx.x & 31, r = blockIdx.x * 4 + (threadIdx.x >> 5), units = l.ldx / GPU_UNIT;
    start_next();
    wait_before();
    if (r >= *l.count) return;
    const u16 *x = (const u16 *)l.x + (size_t)r * l.ldx;
    for (int i = 0; i < units; i += 8) {
        const int unit = i + (lane >> 2), there = unit < units;
        const u32 *at = (const u32 *)(x + (there ? unit : 0) * GPU_UNIT) + (lane & 3);
        const float s = sum_squares(__ldcg(at), __ldcg(at + 4), 1);
        if (there && !(lane & 3)) p.squares[(size_t)r * units + unit] = s;
    }
}

#endif
