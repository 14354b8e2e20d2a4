/* x·Wᵀ for many rows in bf16 on any tensor core since sm_80 (gemm_mma.cuh). Legal where x is bf16 and ldx % 8
 * == 0. gemm_mma.c checks what is legal and launches. */
#include "gemm_mma.cuh"

KERNEL(256) gemm_mma_160_256(const __grid_constant__ gpu_linear_parts a) {
    gemm<mma_tile<bf16_numbers, 160, 256, 80, 64, 3>>(a, NULL);
}
KERNEL(256) gemm_mma_128_256(const __grid_constant__ gpu_linear_parts a) {
    gemm<mma_tile<bf16_numbers, 128, 256, 64, 64, 4>>(a, NULL);
}
KERNEL(256) gemm_mma_160_128(const __grid_constant__ gpu_linear_parts a) {
    gemm<mma_tile<bf16_numbers, 160, 128, 80, 32, 5>>(a, NULL);
}
KERNEL(256) gemm_mma_128_160(const __grid_constant__ gpu_linear_parts a) {
    gemm<mma_tile<bf16_numbers, 128, 160, 32, 80, 5>>(a, NULL);
}
/* Where a multiprocessor holds two, the compiler itself keeps to half of the registers. */
KERNEL_HELD(256, 1) gemm_mma_128_128(const __grid_constant__ gpu_linear_parts a) {
    gemm<mma_tile<bf16_numbers, 128, 128, 64, 32, 3>>(a, NULL);
}
KERNEL(128) gemm_mma_64_64(const __grid_constant__ gpu_linear_parts a) {
    gemm<mma_tile<bf16_numbers, 64, 64, 32, 32, 4>>(a, NULL);
}
/* Within the 99 KB that a block has on sm_86, sm_89 and sm_120: two stages. */
KERNEL(256) gemm_mma_160_192_2(const __grid_constant__ gpu_linear_parts a) {
    gemm<mma_tile<bf16_numbers, 160, 192, 80, 48, 2>>(a, NULL);
}
KERNEL(256) gemm_mma_128_256_2(const __grid_constant__ gpu_linear_parts a) {
    gemm<mma_tile<bf16_numbers, 128, 256, 64, 64, 2>>(a, NULL);
}
KERNEL(256) gemm_mma_160_128_2(const __grid_constant__ gpu_linear_parts a) {
    gemm<mma_tile<bf16_numbers, 160, 128, 80, 32, 2>>(a, NULL);
}
KERNEL(128) gemm_mma_64_64_2(const __grid_constant__ gpu_linear_parts a) {
    gemm<mma_tile<bf16_numbers, 64, 64, 32, 32, 2>>(a, NULL);
}

KERNEL(256) gemm_mma_join(const __grid_constant__ gpu_linear_parts a) { join<bf16_numbers>(a, NULL); }
