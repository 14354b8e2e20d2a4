/* Synthetic weights, made in their place.
 *
 *   generate       a block: 1,024 units of 16 bytes of 8 packed columns (generate.h), neighbours in memory
 *
 *   blocks   256 threads; grid = packed columns / 8 x units / 1,024
 *   legal    any matrix. Runs when a model is loaded, never in a plan: no early start.
 *
 * generate.c launches. */
#include "backend/gpu/cuda/common.cuh"
#include "backend/gpu/kernels/generate.h"

KERNEL(256) generate(const __grid_constant__ gpu_generate p) {
    int end = min(p.units, (int)(blockIdx.y + 1) * GPU_GENERATE_UNITS);
    for (int unit = blockIdx.y * GPU_GENERATE_UNITS + threadIdx.x; unit < end; unit += GPU_GENERATE_THREADS)
        gpu_generate_unit(&p, blockIdx.x, unit);
}
