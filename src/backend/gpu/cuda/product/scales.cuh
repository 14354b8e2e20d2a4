/* From sums of 8-bit integers to numbers: by the scale of a row of x and that of a packed column. */
#ifndef KERNELS_CUDA_SCALES_CUH
#define KERNELS_CUDA_SCALES_CUH

#include "channels.cuh"

/* The scale of a packed column; 0: the column pads. */
DEV float channel_scale(const gpu_linear &p, int column) {
    const int row = channel_row(p.epilogue, column);
    return row < 0 ? 0 : __ldg(p.weights.scales + row);
}

/* As ops.h has it: in fp32, in this order, nothing fused. */
DEV float scaled(int sum, float row, float column) {
    return __fmul_rn(__int2float_rn(sum), __fmul_rn(row, column));
}

#endif
