/* Sums over a row of up to 2048 elements, 8 a thread: of norm_rows_bf16 (simt.cu) and of the join of parts
 * that norms what it makes (gemm_mma.cu), in one order, so both give the same bits. */
#ifndef KERNELS_CUDA_ROW_SUM_CUH
#define KERNELS_CUDA_ROW_SUM_CUH

#include "backend/gpu/cuda/common.cuh"

enum { ROW_WARPS = 8 };                    /* most of a row                                                 */

/* The sum over a row's threads. `parts`: of the row's warps, zero where there is none. */
DEV float row_sum(float x, float (&parts)[ROW_WARPS], int warp) {
    x = warp_sum(x);
    if (!(threadIdx.x & 31)) parts[warp] = x;
    __syncthreads();
    const float4 a = *(const float4 *)parts, b = *(const float4 *)(parts + 4);
    return ((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w));
}

#endif
