/* Ceiling of Hopper's tensor cores: two warpgroups a multiprocessor, each multiplying 64 x 256 x 16 from
 * shared memory again and again; they share B, as in gemm_hopper, and nothing is copied. Operands look random
 * (roof.cu says why). Never in a plan: no early start.
 *
 * roof_hopper.c launches. */
#include "backend/gpu/cuda/hopper.cuh"
#include "backend/gpu/cuda/wgmma.cuh"

enum { THREADS = 256, STAGES = 4, A_BYTES = 128 * 128, B_BYTES = 256 * 128, STAGE = A_BYTES + B_BYTES };

extern __shared__ char roof_shared[];

DEV u32 scrambled_pair(u32 x) {
    x = (x ^ x >> 16) * 0x85ebca6bu;
    x = (x ^ x >> 13) * 0xc2b2ae35u;
    return ((x ^ x >> 16) & 0x807f807fu) | 0x3f803f80u;
}

KERNEL(THREADS) roof_wgmma(const gpu_roof_work p) {
    const long long start = clock64();
    const u32 base = (shared_address(roof_shared) + 1023) & ~1023u;
    u32 *words = (u32 *)(roof_shared + (base - shared_address(roof_shared)));
    float d[128] = {}, sum = 0;
    for (int i = threadIdx.x; i < STAGES * STAGE / 4; i += THREADS)
        words[i] = scrambled_pair(blockIdx.x * (STAGES * STAGE / 4) + i);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    for (int i = 0; i < p.loops; i++) {
        const u32 stage = base + (i % STAGES) * STAGE;
        const u64 a = wgmma_operand(stage + threadIdx.x / 128 * (64 * 128)),
                  b = wgmma_operand(stage + A_BYTES);
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < 4; k++) wgmma(d, a + 2 * k, b + 2 * k, 1);
        wgmma_commit();
        wgmma_wait<1>();
    }
    wgmma_wait<0>();
#pragma unroll
    for (int j = 0; j < 128; j++) sum += d[j];
    if (sum == 1234.5678f) *p.sink = sum;
    __syncthreads();
    if (!(blockIdx.x | threadIdx.x)) *p.clocks = clock64() - start;
}
