/* An instruction of product/scales.cuh. */
#ifndef KERNELS_CUDA_CLAMP_CUH
#define KERNELS_CUDA_CLAMP_CUH

#include "backend/gpu/cuda/instructions.cuh"

/* Both halves, not below that of `least` and not above that of `most`; NaN becomes one of these. */
DEV u32 clamp_bf16(u32 x, u32 least, u32 most) {
    u32 r;
    asm("min.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(x), "r"(most));
    asm("max.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(r), "r"(least));
    return r;
}

#endif
