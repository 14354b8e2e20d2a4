/* The compiled kernels, inside the binary: the files that cmake/cuda.cmake has nvcc make, or nothing. */
#include "backend/gpu/driver.h"

#if defined(OPENPI_CUDA_VERSION)

#define IMAGE(name)                                                                                        \
    __asm__(".section .rodata\n.balign 64\n.local gpu_image_" #name "\ngpu_image_" #name ":\n"             \
            ".incbin \"" OPENPI_CUDA_FOLDER "/" #name ".fatbin\"\n.byte 0\n.previous\n");                  \
    extern const char gpu_image_##name[] __attribute__((visibility("hidden")));

IMAGE(simt)
IMAGE(pointwise)
IMAGE(generate)
IMAGE(velocity)
IMAGE(gemm_mma)
IMAGE(skinny_mma)
IMAGE(attention_mma)
IMAGE(roof)
IMAGE(gemm_hopper)
IMAGE(skinny_hopper)
IMAGE(attention_hopper)
IMAGE(resident_hopper)
IMAGE(roof_hopper)

const gpu_image gpu_images_cuda[] = {
    {"simt", gpu_image_simt, 0},
    {"pointwise", gpu_image_pointwise, 0},
    {"generate", gpu_image_generate, 0},
    {"velocity", gpu_image_velocity, 0},
    {"gemm_mma", gpu_image_gemm_mma, 0},
    {"skinny_mma", gpu_image_skinny_mma, 0},
    {"attention_mma", gpu_image_attention_mma, 0},
    {"roof", gpu_image_roof, 0},
    {"gemm_hopper", gpu_image_gemm_hopper, 1},
    {"skinny_hopper", gpu_image_skinny_hopper, 1},
    {"attention_hopper", gpu_image_attention_hopper, 1},
    {"resident_hopper", gpu_image_resident_hopper, 1},
    {"roof_hopper", gpu_image_roof_hopper, 1},
    {NULL, NULL, 0},
};
const int gpu_images_cuda_version = OPENPI_CUDA_VERSION;

#else

const gpu_image gpu_images_cuda[] = {{NULL, NULL, 0}};
const int gpu_images_cuda_version = 0;

#endif
