/* Kernels whose registers the compiler counts too few on some chips, so that sums spill. Chips of 228 KB a
 * multiprocessor (sm_90 to sm_110) need nothing said. */
#ifndef KERNELS_CUDA_BOUNDS_CUH
#define KERNELS_CUDA_BOUNDS_CUH

#include "common.cuh"

/* As KERNEL, with the registers that `blocks` blocks on a multiprocessor leave each of them. */
#if __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200
#define KERNEL_HELD(threads, blocks) KERNEL(threads)
#else
#define KERNEL_HELD(threads, blocks) KERNEL(threads, blocks)
#endif

#endif
