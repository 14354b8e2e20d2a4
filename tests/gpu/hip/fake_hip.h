/* A libamdhip64 whose device is the emulated GPU. The library has this as the symbol fake_hip_state; who
 * has not opened the library finds it with dlsym. */
#ifndef TESTS_GPU_HIP_FAKE_HIP_H
#define TESTS_GPU_HIP_FAKE_HIP_H

#include "fake_gpu.h"

typedef fake_gpu fake_hip;

#endif
