/* How the blocks of a grid that is alive as a whole wait for each other, with the instructions of any card:
 * they count in memory. A count only grows. tests/gpu/cuda/instructions.cuh is the same, emulated. */
#ifndef KERNELS_CUDA_COUNTS_CUH
#define KERNELS_CUDA_COUNTS_CUH

#include "backend/gpu/cuda/instructions.cuh"

/* What was written before, also by threads that this one has met at a barrier, is visible to whoever then
 * sees the count. */
DEV void count_arrival(u64 *count) {
    asm volatile("red.release.gpu.global.add.u64 [%0], 1;" ::"l"(count) : "memory");
}
DEV u64 arrivals(const u64 *count) {
    u64 n;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(n) : "l"(count) : "memory");
    return n;
}
DEV void await_arrivals(const u64 *count, u64 target) {
#ifdef RESIDENT_WATCHDOG
    for (u32 n = 0; arrivals(count) < target;)
        if (++n == 1 << 22) asm volatile("trap;");
#else
    while (arrivals(count) < target) {}
#endif
}

/* What follows from x is computed again after this, not kept in registers. */
DEV void compute_again(int &x) { asm volatile("" : "+r"(x)); }

#endif
