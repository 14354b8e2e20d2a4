/* x·Wᵀ for many rows in bf16 on any tensor core since sm_80 (gemm_mma.cuh). Legal where x is bf16 and ldx % 8
 * == 0. gemm_mma.c checks what is legal and launches. */
#include "gemm_mma.cuh"

/* As KERNEL_HELD; on chips of 228 KB after Hopper this kernel spills in half of the registers. */
#if __CUDA_ARCH__ >= 1000 && __CUDA_ARCH__ < 1200
#define KERNEL_HELD_ELSEWHERE(threads, blocks) KERNEL(threads, 1)
#else
#define KERNEL_HELD_ELSEWHERE(threads, blocks) KERNEL_HELD(threads, blocks)
#endif

#define PRODUCT_OF(name, bounds, ...)                                           \
    bounds name(const __grid_constant__ gpu_linear_parts a) {                   \
        gemm<mma_tile<bf16_numbers, __VA_ARGS__>>(a, NULL);                     \
    }
#define PRODUCT(bounds, rows, columns, ...) \
    PRODUCT_OF(gemm_mma_##rows##_##columns, bounds, rows, columns, __VA_ARGS__)
#define PRODUCT_HALF(bounds, rows, columns, ...) \
    PRODUCT_OF(gemm_mma_##rows##_##columns##_half, bounds, rows, columns, __VA_ARGS__, 2)

PRODUCT(KERNEL(256), 160, 256, 80, 64, 3)
PRODUCT(KERNEL(256), 128, 256, 64, 64, 4)
PRODUCT(KERNEL(256), 160, 128, 80, 32, 5)
PRODUCT(KERNEL(256), 128, 160, 32, 80, 5)
/* Where a multiprocessor holds two, the compiler itself keeps to half of the registers. */
PRODUCT(KERNEL_HELD(256, 1), 128, 128, 64, 32, 3)
PRODUCT(KERNEL(128), 64, 64, 32, 32, 4)
/* Within the 99 KB that a block has on sm_86, sm_89 and sm_120. */
PRODUCT_HALF(KERNEL(256), 160, 256, 80, 64, 3)
PRODUCT_HALF(KERNEL(256), 160, 192, 80, 48, 4)
PRODUCT_HALF(KERNEL(256), 128, 256, 64, 64, 4)
PRODUCT_HALF(KERNEL(256), 160, 128, 80, 32, 5)
PRODUCT_HALF(KERNEL(256), 128, 160, 32, 80, 5)
PRODUCT_HALF(KERNEL_HELD_ELSEWHERE(256, 2), 128, 128, 64, 32, 3)
PRODUCT_HALF(KERNEL(128), 64, 64, 32, 32, 4)

KERNEL(256) gemm_mma_join(const __grid_constant__ gpu_linear_parts a) { join<bf16_numbers>(a, NULL); }
