/* The two families of the resident denoise kernel: up to 12 rows, shifts among them, or up to 16 and shifts
 * apart. */
#ifndef BACKEND_GPU_CUDA_RESIDENT_FAMILY_H
#define BACKEND_GPU_CUDA_RESIDENT_FAMILY_H

#include "backend/gpu/cuda/resident_steps.h"
#include "backend/gpu/cuda/vendor.h"

/* Asks whether the card holds the kernel, a block of which has so much shared memory, and takes the memory of
 * its exchange if so: that is the family's state. 0, or the driver's error. */
int resident_open(gpu_device *device, int family, size_t shared, void **state);
/* gpu_family.take */
int resident_take(gpu_issue *issue, const op *ops, int count, resident_rows kind);

#endif
