/* The kernel families of this build: each with the machine code that cmake/cuda.cmake has nvcc make, where it
 * has a second nvcc with that of both, or without. The list itself is made by cmake/cuda_modules.cmake from
 * the .cu files that there are. */
#include "backend/gpu/cuda/library.h"
#include "backend/gpu/cuda/vendor.h"

#define EMBEDDED(name, folder)                                                                             \
    __asm__(".section .rodata\n.balign 64\n.local " #name "\n" #name ":\n"                                 \
            ".incbin \"" folder ".fatbin\"\n.byte 0\n.previous\n");                                        \
    extern const char name[] __attribute__((visibility("hidden")));

#if defined(OPENPI_CUDA_OLDER_VERSION)
#define MODULE(name, path, hash) EMBEDDED(gpu_older_##name, OPENPI_CUDA_OLDER_FOLDER "/" #name)
#include "cuda_modules.inc"
#undef MODULE
#define OLDER(name) gpu_older_##name
#else
#define OPENPI_CUDA_OLDER_VERSION 0
#define OLDER(name) NULL
#endif

#if defined(OPENPI_CUDA_VERSION)

const int cuda_compilers[CUDA_COMPILERS] = {OPENPI_CUDA_VERSION, OPENPI_CUDA_OLDER_VERSION};
#define MODULE(name, path, hash)                                                                           \
    EMBEDDED(gpu_image_##name, OPENPI_CUDA_FOLDER "/" #name)                                               \
    static const cuda_image image_##name = {{gpu_image_##name, OLDER(name)}};                              \
    extern const gpu_family gpu_family_##name;
#include "cuda_modules.inc"
#undef MODULE
#define IMAGE(name) &image_##name

#else

const int cuda_compilers[CUDA_COMPILERS] = {0};
#define MODULE(name, path, hash) extern const gpu_family gpu_family_##name;
#include "cuda_modules.inc"
#undef MODULE
#define IMAGE(name) NULL

#endif

const gpu_module cuda_modules[] = {
#define MODULE(name, path, hash) {&gpu_family_##name, IMAGE(name), path, hash},
#include "cuda_modules.inc"
#undef MODULE
    {NULL, NULL, NULL, 0},
};
