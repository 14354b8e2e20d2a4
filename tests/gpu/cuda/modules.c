/* The kernel families with a stand-in for their machine code: a program that is linked with this file runs
 * the portable ones on the emulated GPU whether the build has nvcc or not. It stands in for
 * src/backend/gpu/cuda/modules.c. */
#include "backend/gpu/cuda/library.h"
#include "backend/gpu/cuda/vendor.h"
#include "fake_cuda.h"

const int cuda_compilers[CUDA_COMPILERS] = {12040};
static const cuda_image stand_in = {{STAND_IN, NULL}};

#define MODULE(name, path, hash) extern const gpu_family gpu_family_##name;
#include "cuda_modules.inc"
#undef MODULE

const gpu_module cuda_modules[] = {
#define MODULE(name, path, hash) {&gpu_family_##name, &stand_in, path, hash},
#include "cuda_modules.inc"
#undef MODULE
    {NULL, NULL, NULL, 0},
};
