/* Ceilings of any chip: reading and copying memory, fp32 multiply-adds, mma.sync with all operands in
 * registers.
 *
 * Memory: every thread has eight loads of 16 bytes in flight and reads nothing twice. Arithmetic: enough
 * independent sums a thread to hide an instruction's latency, and operands that look random, since
 * multiplying zeros draws less power and so runs at a higher clock than any real product. Never in a plan: no
 * early start.
 *
 * roof.c launches. */
#include "backend/gpu/cuda/common.cuh"

enum { THREADS = 256, FLIGHT = 8, FMA_SUMS = 16, MMA_SUMS = 8 };

DEV u32 scramble(u32 x) {
    x = (x ^ x >> 16) * 0x85ebca6bu;
    x = (x ^ x >> 13) * 0xc2b2ae35u;
    return x ^ x >> 16;
}
/* Two bf16 in ±[1, 2). */
DEV u32 scrambled_pair(u32 x) { return (scramble(x) & 0x807f807fu) | 0x3f803f80u; }

KERNEL(THREADS) roof_fill(const gpu_roof_work p) {
    const size_t all = (size_t)gridDim.x * THREADS;
    for (size_t i = blockIdx.x * (size_t)THREADS + threadIdx.x; i < p.pieces; i += all) {
        const u32 seed = (u32)i * 4;
        ((uint4 *)p.to)[i] =
            make_uint4(scramble(seed), scramble(seed + 1), scramble(seed + 2), scramble(seed + 3));
    }
}

KERNEL(THREADS) roof_read(const gpu_roof_work p) {
    const size_t all = (size_t)gridDim.x * THREADS;
    const uint4 *from = (const uint4 *)p.from;
    u32 sum = 0;
    for (size_t i = blockIdx.x * (size_t)THREADS + threadIdx.x; i < p.pieces; i += all * FLIGHT) {
        uint4 v[FLIGHT];
#pragma unroll
        for (int j = 0; j < FLIGHT; j++) v[j] = __ldcs(from + i + j * all);
#pragma unroll
        for (int j = 0; j < FLIGHT; j++) sum += v[j].x + v[j].y + v[j].z + v[j].w;
    }
    if (sum == 0x12345678u) *p.sink = 1;
}

KERNEL(THREADS) roof_copy(const gpu_roof_work p) {
    const size_t all = (size_t)gridDim.x * THREADS;
    const uint4 *from = (const uint4 *)p.from;
    uint4 *to = (uint4 *)p.to;
    for (size_t i = blockIdx.x * (size_t)THREADS + threadIdx.x; i < p.pieces; i += all * FLIGHT) {
        uint4 v[FLIGHT];
#pragma unroll
        for (int j = 0; j < FLIGHT; j++) v[j] = __ldcs(from + i + j * all);
#pragma unroll
        for (int j = 0; j < FLIGHT; j++) __stcs(to + i + j * all, v[j]);
    }
}

KERNEL(THREADS) roof_fma(const gpu_roof_work p) {
    const long long start = clock64();
    const float a = 0.25f + (float)(scramble(threadIdx.x) & 0xffff) * 0x1p-17f,
                b = (float)threadIdx.x * 0x1.3p-8f;
    float sums[FMA_SUMS], sum = 0;
#pragma unroll
    for (int j = 0; j < FMA_SUMS; j++) sums[j] = (float)j;
    for (int i = 0; i < p.loops; i++)
#pragma unroll
        for (int j = 0; j < FMA_SUMS; j++) sums[j] = __fmaf_rn(sums[j], a, b);
#pragma unroll
    for (int j = 0; j < FMA_SUMS; j++) sum += sums[j];
    if (sum == 1234.5678f) *p.sink = sum;
    __syncthreads();                       /* older warps go first, and end first                           */
    if (!(blockIdx.x | threadIdx.x)) *p.clocks = clock64() - start;
}

KERNEL(THREADS) roof_mma(const gpu_roof_work p) {
    const long long start = clock64();
    const u32 seed = (blockIdx.x * THREADS + threadIdx.x) * 8;
    u32 a[2][4], b[2][2];
    float c[MMA_SUMS][4] = {}, sum = 0;
#pragma unroll
    for (int j = 0; j < 8; j++) a[j >> 2][j & 3] = scrambled_pair(seed + j);
#pragma unroll
    for (int j = 0; j < 4; j++) b[j >> 1][j & 1] = scrambled_pair(~(seed + j));
    for (int i = 0; i < p.loops; i++)
#pragma unroll
        for (int j = 0; j < MMA_SUMS; j++) mma16(c[j], a[j & 1], b[j >> 1 & 1][0], b[j >> 1 & 1][1]);
#pragma unroll
    for (int j = 0; j < MMA_SUMS; j++) sum += c[j][0] + c[j][1] + c[j][2] + c[j][3];
    if (sum == 1234.5678f) *p.sink = sum;
    __syncthreads();
    if (!(blockIdx.x | threadIdx.x)) *p.clocks = clock64() - start;
}
