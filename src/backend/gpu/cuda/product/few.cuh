/* What few_mma and some_mma share: the norm of a product of few rows whose x is in registers. */
#ifndef KERNELS_CUDA_FEW_CUH
#define KERNELS_CUDA_FEW_CUH

#include "pairs.cuh"

enum { WARPS = 8 };

DEV float few_squares(const uint4 &v) {
    const u32 w[4] = {v.x, v.y, v.z, v.w};
    float sum = 0;
#pragma unroll
    for (int j = 0; j < 4; j++)
        sum = fmaf(low_of(w[j]), low_of(w[j]), sum), sum = fmaf(high_of(w[j]), high_of(w[j]), sum);
    return sum;
}

/* What the norm multiplies and adds to eight numbers of a row: 1 + weight, bias. */
typedef struct few_affine {
    float times[8], plus[8];
} few_affine;

DEV few_affine few_affine_at(const float *weight, const float *bias) {
    const float4 a = *(const float4 *)weight, b = *(const float4 *)(weight + 4);
    few_affine m = {{1 + a.x, 1 + a.y, 1 + a.z, 1 + a.w, 1 + b.x, 1 + b.y, 1 + b.z, 1 + b.w}, {}};
    if (bias) {
        const float4 c = *(const float4 *)bias, d = *(const float4 *)(bias + 4);
        m.plus[0] = c.x, m.plus[1] = c.y, m.plus[2] = c.z, m.plus[3] = c.w;
        m.plus[4] = d.x, m.plus[5] = d.y, m.plus[6] = d.z, m.plus[7] = d.w;
    }
    return m;
}

DEV void few_scale(uint4 &v, float factor, const few_affine &m) {
    u32 w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int j = 0; j < 4; j++)
        w[j] = pack_bf16(fmaf(low_of(w[j]) * factor, m.times[2 * j], m.plus[2 * j]),
                         fmaf(high_of(w[j]) * factor, m.times[2 * j + 1], m.plus[2 * j + 1]));
    v = make_uint4(w[0], w[1], w[2], w[3]);
}

#endif
