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

/* Rows with one scale for all. */
typedef struct gpu_int8_fixed {
    float scale, inverse;
    uint32_t most;                         /* bits of the largest bf16 that is not clipped, in both halves  */
    uint32_t *counts;                      /* as matrix.counts: [INT8_COUNTS] or NULL                       */
    float *scales;                         /* [capacity] where codes are left: `scale` for each             */
    uint32_t *marks;                       /* [capacity] where codes are left: bits of the scales of the rows
                                              that are multiplied. The sign says that a row is counted      */
} gpu_int8_fixed;

typedef struct gpu_int8_fixed_rows {
    gpu_int8_rows rows;
    gpu_int8_fixed fixed;
} gpu_int8_fixed_rows;

typedef struct gpu_int8_product {
    gpu_linear_parts product;              /* x: codes; sums: integers                                      */
    const float *scales;                   /* [capacity] of the rows                                        */
} gpu_int8_product;

/* A gated product whose outputs are codes, [.][n] of epilogue.out. */
typedef struct gpu_int8_coded {
    gpu_int8_product product;
    gpu_int8_fixed fixed;
} gpu_int8_coded;

#endif
