/* Arguments of some_mma's kernels. Plain C, read by both compilers. */
#ifndef BACKEND_GPU_CUDA_SOME_H
#define BACKEND_GPU_CUDA_SOME_H

#include "backend/gpu/kernels/args.h"

enum { SOME_MOST_PARTS = 8 };

typedef struct gpu_some {
    gpu_linear linear;
    int parts;                             /* blocks that share k                                           */
    float *sums;                           /* [parts][capacity][packed columns]; not read with one part     */
    uint32_t *counts;                      /* [blocks of columns] parts that have arrived: zero between
                                              launches; not read with one part                              */
    int clear;                             /* some_clear: how many counters                                 */
} gpu_some;

#endif
