/* Arguments of medium_hopper's kernels. Plain C, read by both compilers. */
#ifndef BACKEND_GPU_CUDA_MEDIUM_H
#define BACKEND_GPU_CUDA_MEDIUM_H

#include "backend/gpu/cuda/maps.h"

enum { GATED_X_BYTES = 48 << 10 };         /* shared memory for most of the gated kernel's ring of x        */

typedef struct gpu_medium {
    gpu_hopper hopper;
    float *squares;                        /* [rows][columns of x / 16]: sums of squares of 16 columns each;
                                              a residual leaves them for the norm after it. NULL: none      */
    int slot;                              /* bytes of 64 k of x in shared memory: rows, in eights, of 128  */
} gpu_medium;

#endif
