/* Host sides of few_mma.cu (few_mma.c, where the functions are) and of few_mma_int8.cu: tiles of columns over
 * all of k, for at most 16 rows. */
#ifndef BACKEND_GPU_CUDA_FEW_MMA_H
#define BACKEND_GPU_CUDA_FEW_MMA_H

#include "backend/gpu/cuda/vendor.h"

enum { FEW_MMA_ROWS = 16 };

typedef struct few_tile {
    gpu_kernel kernel;
    int kind, groups, blocks;              /* groups of 8 columns; most atoms of k of a warp                */
} few_tile;

/* The legal ones of these tiles, by columns, epilogue, norm and shared memory; the first of them is the
 * heuristic's. */
void few_mma_add(const gpu_device *device, const few_tile *tiles, int count, const gpu_linear *p,
                 gpu_choices *to);
void few_mma_emit(gpu_issue *issue, const few_tile *tiles, int kernel, const gpu_linear *p);

#endif
