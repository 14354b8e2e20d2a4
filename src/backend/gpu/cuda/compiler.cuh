/* What headers that the host reads too (row_order.h, generate.h, base/hash.h) need to be code of a kernel.
 * Included first. */
#ifndef KERNELS_CUDA_COMPILER_CUH
#define KERNELS_CUDA_COMPILER_CUH

#define GPU_BOTH static __device__ __forceinline__
#define HASH_BOTH GPU_BOTH
#define GPU_PRODUCT(a, b) __dmul_rn(a, b)
#define GPU_SUM(a, b) __dadd_rn(a, b)

#endif
