/* The argument of products whose k several blocks may share. */
#ifndef BACKEND_GPU_KERNELS_LINEAR_PARTS_H
#define BACKEND_GPU_KERNELS_LINEAR_PARTS_H

#include "args.h"

enum { GPU_MOST_PARTS = 8 };

/* Each part's sums are stored as fp32 and added afterwards, in the order of the parts. */
typedef struct gpu_linear_parts {
    gpu_linear linear;
    float *sums;                           /* [parts][capacity][packed columns]; not read with one part     */
    int parts;
} gpu_linear_parts;

#endif
