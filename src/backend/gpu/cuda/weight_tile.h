/* What a format of packed weights (kernels/args.h) is to kernels that use tensor cores: a row a format. Plain
 * C, read by both compilers: kernels address weights with it (weight_tile.cuh), their host sides make tensor
 * maps and count shared memory with it (cuda_weight_tile). */
#ifndef BACKEND_GPU_CUDA_WEIGHT_TILE_H
#define BACKEND_GPU_CUDA_WEIGHT_TILE_H

#include "backend/gpu/kernels/args.h"

/* TILE(format, columns of an atom, its k, bytes of a column in it, k of a matrix instruction) */
#define GPU_WEIGHT_TILES(TILE)         \
    TILE(BF16, 8, GPU_ATOM_K, 128, 16) \
    TILE(INT8X8, 8, 128, 128, 32)      \
    TILE(INT8, 8, 128, 128, 16)

#endif
