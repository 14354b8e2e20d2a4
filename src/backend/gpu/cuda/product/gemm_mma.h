/* Host sides of gemm_mma.cuh: which tile and how many parts, for bf16 (gemm_mma.c, where the functions are)
 * and for 8-bit integers (gemm_mma_int8.c). */
#ifndef BACKEND_GPU_CUDA_GEMM_MMA_H
#define BACKEND_GPU_CUDA_GEMM_MMA_H

#include "backend/gpu/cuda/vendor.h"
#include "backend/gpu/kernels/linear_parts.h"

typedef struct gemm_tile {
    gpu_kernel kernel;
    int rows, columns, threads;
    double ahead;                          /* atoms of k on their way while one is multiplied               */
    int blocks;                            /* that a multiprocessor holds where shared memory is not short  */
    size_t shared;
    int products, cost;                    /* time of an atom of k (gemm_mma.c): at best, and on an H200    */
} gemm_tile;

/* an_atom: stages of an atom of k. percent: cost in % of products. behind: bytes behind the ring for each row
 * and column. */
#define GEMM_TILE(name, an_atom, behind, rows, columns, threads, stages, blocks, percent)                 \
    {{name, 1, 0}, rows, columns, threads, (stages - 1.0) / an_atom, blocks,                              \
     ((size_t)(stages) * 128 / an_atom + behind) * (rows + columns), rows / 16 * (columns / 8),           \
     rows / 16 * (columns / 8) * percent / 100}

typedef struct gemm_numbers {
    const gemm_tile *tiles;
    int count, small, join;                /* tiles; the smallest; the kernel that adds parts               */
    double rate, fitted_rate;              /* a multiprocessor's, here and where costs were fitted; 0: not
                                              known                                                         */
} gemm_numbers;

/* What the heuristic takes. */
typedef struct gemm_usual {
    int tile, parts;
} gemm_usual;

gemm_usual gemm_mma_usual(const gpu_device *device, const gemm_numbers *numbers, int rows,
                          const gpu_linear *p);
/* All tiles that this device has, with parts for as few rows as a call of one camera has; the usual ones with
 * choice.rank. */
void gemm_mma_add(const gpu_device *device, const gemm_numbers *numbers, const gpu_task *task,
                  gemm_usual usual, gpu_choice choice, gpu_choices *to);
/* The product, and the kernel that adds its parts; `parts` lies in `arguments`, and only its linear is filled
 * in. */
void gemm_mma_emit(gpu_issue *issue, const gemm_numbers *numbers, int rows, const gpu_choice *choice,
                   gpu_linear_parts *parts, const void *arguments, size_t bytes);

#endif
