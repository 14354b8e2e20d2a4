/* Arguments of the kernels whose operands come by the TMA (Tensor Memory Accelerator). Plain C, read by
 * both compilers. */
#ifndef BACKEND_GPU_CUDA_MAPS_H
#define BACKEND_GPU_CUDA_MAPS_H

#include "backend/gpu/kernels/args.h"

/* The TMA's description of a matrix: opaque, made by the driver. */
typedef struct gpu_tensor_map {
    uint64_t words[16];
} __attribute__((aligned(64))) gpu_tensor_map;

/* gemm_hopper, skinny_hopper: operands come by the TMA. */
typedef struct gpu_hopper {
    gpu_tensor_map weights;                /* gemm: atoms as [column/8][k/64][256 words]                    */
    gpu_tensor_map x;                      /* gemm: [capacity][ldx] bf16, boxes of 64 k, swizzled;
                                              skinny: [k/64][capacity][64]                                  */
    gpu_tensor_map residual;               /* gemm: [capacity][n] bf16, boxes of 64 columns                 */
    gpu_linear linear;
} gpu_hopper;

typedef struct gpu_wgmma_attention {
    gpu_tensor_map q, k, v; /* [rows·heads][256]; [samples][capacity][256]; boxes of 64 x 64, swizzled */
    gpu_cache_attention attention;
} gpu_wgmma_attention;

#endif
