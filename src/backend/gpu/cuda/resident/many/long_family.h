/* What the families of the resident kernels for many rows share: they differ in their sizes. */
#ifndef BACKEND_GPU_CUDA_LONG_FAMILY_H
#define BACKEND_GPU_CUDA_LONG_FAMILY_H

#include "backend/gpu/cuda/resident/few/resident_family.h"
#include "backend/gpu/cuda/resident/many/resident_long.h"

typedef struct long_sizes {
    gpu_grid grid;
    int state;                             /* bytes of the family's memory                                  */
    int rows, samples, head_rows;          /* most: with the shift; where there are several, rows of one    */
    int tiles;
    resident_rows kind;
} long_sizes;

#define LONG_GRID(KIND)                                                                                      \
    {.x = LONG_BLOCKS,                                                                                       \
     .y = 1,                                                                                                 \
     .threads = KIND##_THREADS,                                                                              \
     .shared = KIND##_SHARED,                                                                                \
     .cluster = KIND##_CLUSTER,                                                                              \
     .together = 1}

/* 1: layers in bf16, in the kernels' sizes, whose keys all count and fit, without known rows. */
int long_layers_fit(const op_block *block);
/* 1: several samples, as many and with as few rows as the kernel takes. */
int long_samples_fit(const op_block *block, const long_sizes *sizes);
int long_open_state(gpu_device *device, int family, const long_sizes *sizes, void **state);
/* The launch; returns how many ops it computes. */
int long_emit(gpu_issue *issue, const op_block *block, const long_sizes *sizes);

#endif
