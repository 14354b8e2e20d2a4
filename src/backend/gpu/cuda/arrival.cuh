/* Blocks of one kernel that count who has arrived, so that the last of them finishes what all have begun:
 * none waits. The counters are those of the work block (gpu_counters in family.h), 0 between launches. */
#ifndef KERNELS_CUDA_ARRIVAL_CUH
#define KERNELS_CUDA_ARRIVAL_CUH

#include "common.cuh"

/* 1 in the block that comes last of `blocks`: what all of them have written before is visible to its threads.
 * All threads of a block call it, once a launch. */
DEV int arrives_last(u32 *counter, int blocks) {
    __shared__ u32 before;
    __threadfence();
    __syncthreads();
    if (!threadIdx.x) before = atomicInc(counter, (u32)blocks - 1);    /* the last leaves 0                 */
    __syncthreads();
    __threadfence();
    return before == (u32)blocks - 1;
}

/* All counters, by one block. */
DEV void clear_counters(u32 *counters, int count) {
    start_next();
    wait_before();
    for (int i = threadIdx.x; i < count; i += blockDim.x) counters[i] = 0;
}

#endif
