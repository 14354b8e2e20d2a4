/* NVML's counter of the energy of a whole board, since the driver was loaded. */
#ifndef BACKEND_GPU_CUDA_COUNTER_H
#define BACKEND_GPU_CUDA_COUNTER_H

#include "backend/gpu/cuda/nvml.h"
#include "backend/power_counter.h"

extern const power_counter power_counter_cuda;

/* Tests: its `open` with `nvml` instead of the machine's, with the reason `why` where it is NULL. */
openpi_status cuda_counter_open(const char *device, const nvml *nvml, const char *why, power_facts *facts,
                                void **state, openpi_error *error);

#endif
