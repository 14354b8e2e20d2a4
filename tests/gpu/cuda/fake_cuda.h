/* A libcuda whose device is the emulated GPU (emulation.h), one of the chips of library.c: the library has
 * this as the symbol fake_cuda_state, whose `architecture` is the chip, "sm_86". OPENPI_EMULATED_CHIP in the
 * environment, when the library is loaded, sets it. */
#ifndef TESTS_GPU_CUDA_FAKE_CUDA_H
#define TESTS_GPU_CUDA_FAKE_CUDA_H

#include "fake_gpu.h"

#define STAND_IN "stand-in for CUDA kernels"                       /* for an image, in modules.c           */

#endif
