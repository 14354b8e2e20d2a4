/* Arguments of gemm_mma_int8's kernels. Plain C, read by both compilers. */
#ifndef BACKEND_GPU_CUDA_INT8_H
#define BACKEND_GPU_CUDA_INT8_H

#include "backend/gpu/kernels/linear_parts.h"

/* Rows as 8-bit integers with a scale each (ops.h, INPUT_INT8), after their norm where there is one. */
typedef struct gpu_int8_rows {
    gpu_norm norm;                         /* kind NONE: none; out: codes [count][pitch], zeros from k on   */
    int pitch;                             /* a multiple of 16                                              */
    float *scales;                         /* [count]                                                       */
} gpu_int8_rows;

typedef struct gpu_int8_product {
    gpu_linear_parts product;              /* x: codes; sums: integers                                      */
    const float *scales;                   /* [capacity] of the rows                                        */
} gpu_int8_product;

#endif
