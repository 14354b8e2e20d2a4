/* The kernel families of this build: each with the machine code that cmake/cuda.cmake has nvcc make, or
 * without. The list itself is made by cmake/cuda_modules.cmake, of the .cu files that there are. */
#include "backend/gpu/cuda/library.h"
#include "backend/gpu/cuda/vendor.h"

#if defined(OPENPI_CUDA_VERSION)

const int cuda_compiler_version = OPENPI_CUDA_VERSION;
#define MODULE(name, path, hash)                                                                           \
    __asm__(".section .rodata\n.balign 64\n.local gpu_image_" #name "\ngpu_image_" #name ":\n"             \
            ".incbin \"" OPENPI_CUDA_FOLDER "/" #name ".fatbin\"\n.byte 0\n.previous\n");                  \
    extern const char gpu_image_##name[] __attribute__((visibility("hidden")));                            \
    extern const gpu_family gpu_family_##name;
#include "cuda_modules.inc"
#undef MODULE
#define IMAGE(name) gpu_image_##name

#else

const int cuda_compiler_version = 0;
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
