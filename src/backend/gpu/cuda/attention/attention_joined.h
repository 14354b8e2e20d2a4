/* Arguments of attention_mma's kernels whose splits meet in one launch. Plain C, read by both compilers. */
#ifndef BACKEND_GPU_CUDA_ATTENTION_JOINED_H
#define BACKEND_GPU_CUDA_ATTENTION_JOINED_H

#include "backend/gpu/kernels/args.h"

typedef struct gpu_joined_attention {
    gpu_cache_attention attention;
    uint32_t *counts;                      /* [groups of 16 rows] splits that have arrived: zero between
                                              launches                                                      */
    int clear;                             /* attention_clear: how many counters                            */
} gpu_joined_attention;

#endif
