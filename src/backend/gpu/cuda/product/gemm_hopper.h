/* Host sides of gemm_hopper.cuh: what its tiles are and what they can do, for bf16 (gemm_hopper.c, where the
 * functions are) and for 8-bit integers (gemm_int8_hopper.c). */
#ifndef BACKEND_GPU_CUDA_GEMM_HOPPER_H
#define BACKEND_GPU_CUDA_GEMM_HOPPER_H

#include "backend/gpu/cuda/vendor.h"

enum { STORE_ROWS, STORE_TRANSPOSED, STORE_GATED, STORE_PLAIN };

typedef struct hopper_tile {
    gpu_kernel kernel;
    int columns, rows, consumers, stages, store, residual;
    int parts;                             /* most blocks of a cluster that share k; 0: not made for it     */
} hopper_tile;

static inline int hopper_pingpong(const hopper_tile *t) {
    return t->store == STORE_GATED || t->store == STORE_PLAIN;
}

/* Whether the tile's epilogue can do what the product wants. */
int hopper_tile_legal(const hopper_tile *t, const gpu_linear *p);
/* Bytes of shared memory; `scaled`: with scales of the sums. */
size_t hopper_tile_shared(const hopper_tile *t, int scaled);
/* Fills in h, whose product is *p, and emits it; `arguments` hold *h. */
void hopper_tile_emit(gpu_issue *issue, const hopper_tile *t, int kernel, int rows, int parts, int scaled,
                      const gpu_linear *p, gpu_hopper *h, const void *arguments, size_t bytes);

#endif
