/* The argument of gemm_mma_join_norm: a residual's parts, and the norm of the x that they make. Plain C, read
 * by both compilers. */
#ifndef BACKEND_GPU_CUDA_JOIN_NORM_H
#define BACKEND_GPU_CUDA_JOIN_NORM_H

#include "backend/gpu/kernels/linear_parts.h"

typedef struct gpu_join_norm {
    gpu_linear_parts parts;
    gpu_norm norm;                         /* its x is not read                                             */
} gpu_join_norm;

#endif
