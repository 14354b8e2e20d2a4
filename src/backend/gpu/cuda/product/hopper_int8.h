/* Arguments of gemm_int8_hopper's kernels. Plain C, read by both compilers. */
#ifndef BACKEND_GPU_CUDA_HOPPER_INT8_H
#define BACKEND_GPU_CUDA_HOPPER_INT8_H

#include "backend/gpu/cuda/maps.h"
#include "int8.h"

typedef struct gpu_hopper_int8 {
    gpu_hopper product;                    /* x: codes, two of them an element of the map                   */
    const float *scales;                   /* [capacity] of the rows                                        */
} gpu_hopper_int8;

/* A gated product whose outputs are codes, [.][n] of epilogue.out. */
typedef struct gpu_hopper_coded {
    gpu_hopper_int8 product;
    gpu_int8_fixed fixed;
} gpu_hopper_coded;

#endif
