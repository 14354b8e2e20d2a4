/* What resident kernels share: their blocks meet by counting in memory, and waiting for a count. */
#ifndef KERNELS_CUDA_MEETING_CUH
#define KERNELS_CUDA_MEETING_CUH

#include "backend/gpu/cuda/hopper.cuh"

/* What was written before is visible to whoever then sees the count. Of one thread, for all that it has
 * met. */
DEV void count_up(u32 *count) {
    asm volatile("fence.acq_rel.gpu;\nred.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(count) : "memory");
}
/* Until the count is so high; as await in hopper.cuh. */
DEV void await_count(const u32 *count, u32 target) {
#ifdef RESIDENT_WATCHDOG
    asm volatile("{\n.reg .pred p, q;\n.reg .u32 n, v;\nmov.u32 n, 0;\nagain:\n"
                 "ld.acquire.gpu.global.u32 v, [%0];\nsetp.ge.u32 p, v, %1;\n@p bra done;\n"
                 "add.u32 n, n, 1;\nsetp.lt.u32 q, n, 4194304;\n@q bra again;\ntrap;\ndone:\n}"
                 ::"l"(count), "r"(target) : "memory");
#else
    asm volatile("{\n.reg .pred p;\n.reg .u32 v;\nagain:\nld.acquire.gpu.global.u32 v, [%0];\n"
                 "setp.ge.u32 p, v, %1;\n@p bra done;\nbra again;\ndone:\n}"
                 ::"l"(count), "r"(target) : "memory");
#endif
}
/* For what threads wrote and the TMA reads, and the other way round. */
DEV void async_fence(void) { asm volatile("fence.proxy.async.global;" ::: "memory"); }

/* Tells the compiler that all lanes have the same number: a branch on any other parts the warp for it, and
 * then it serialises wgmma. */
DEV int same_in_warp(int x) { return __shfl_sync(0xffffffffu, x, 0); }

#endif
