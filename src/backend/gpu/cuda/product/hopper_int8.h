/* Arguments of gemm_int8_hopper's kernels. Plain C, read by both compilers. */
#ifndef BACKEND_GPU_CUDA_HOPPER_INT8_H
#define BACKEND_GPU_CUDA_HOPPER_INT8_H

#include "backend/gpu/cuda/maps.h"

typedef struct gpu_hopper_int8 {
    gpu_hopper product;                    /* x: codes, two of them an element of the map                   */
    const float *scales;                   /* [capacity] of the rows                                        */
} gpu_hopper_int8;

#endif
