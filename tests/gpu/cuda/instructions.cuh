/* The machine of src/backend/gpu/cuda/instructions.cuh, and what CUDA itself has of it, emulated: kernels
 * that are compiled as C++ with this file before all others (-include) run on the host (emulation.h). */
#ifndef KERNELS_CUDA_INSTRUCTIONS_CUH
#define KERNELS_CUDA_INSTRUCTIONS_CUH

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "emulation.h"

/* ---- CUDA ---------------------------------------------------------------------------------------------- */

#define __device__
#define __global__ __attribute__((visibility("default")))
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
/* Static in a function, and may be extern. */
#define __shared__ thread_local

#define threadIdx (emu_now->thread)
#define blockIdx (emu_now->block)
#define blockDim (emu_now->threads)
#define gridDim (emu_now->blocks)

struct __align__(8) uint2 { unsigned x, y; };
struct __align__(16) uint4 { unsigned x, y, z, w; };
struct __align__(8) int2 { int x, y; };
struct __align__(8) float2 { float x, y; };
struct __align__(16) float4 { float x, y, z, w; };

/* The caller's place. */
#define EMU_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static inline int2 make_int2(int x, int y) { return {x, y}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

static inline int min(int a, int b) { return a < b ? a : b; }
static inline int max(int a, int b) { return a > b ? a : b; }
static inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
static inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }

static inline float __uint_as_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static inline uint32_t __float_as_uint(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
static inline float __int2float_rn(int x) { return (float)x; }
static inline int __float2int_rn(float x) {
    return isnan(x) ? 0 : x >= 0x1p31f ? INT32_MAX : x <= -0x1p31f ? INT32_MIN : (int)nearbyintf(x);
}
static inline float rsqrtf(float x) { return 1 / sqrtf(x); }
#define __expf(x) expf(x)                  /* glibc has the name, but no function                           */
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dmul_rn(double a, double b) { return a * b; }

template <class T> static inline T __ldg(const T *p) { return *p; }
template <class T> static inline T __ldcg(const T *p) { return *p; }
template <class T> static inline T __ldcs(const T *p) { return *p; }
template <class T> static inline void __stcs(T *p, T x) { *p = x; }
/* One thread runs at a time. */
static inline unsigned atomicAdd(unsigned *p, unsigned x) {
    *p += x;
    return *p - x;
}
static inline unsigned atomicOr(unsigned *p, unsigned x) {
    unsigned before = *p;
    *p |= x;
    return before;
}
static inline int __ffs(unsigned x) { return __builtin_ffs((int)x); }
template <class T> static inline T atomicMax(T *p, T x) {
    T before = *p;
    if (x > before) *p = x;
    return before;
}
static inline unsigned atomicInc(unsigned *p, unsigned most) {
    unsigned before = *p;
    *p = before >= most ? 0 : before + 1;
    return before;
}
static inline void __threadfence(void) {}
/* A clock that only says that time passes. */
static inline long long clock64(void) {
    static long long now;
    return ++now;
}

static inline void __syncthreads(EMU_HERE) { emu_block_wait(file, line); }
static inline void __syncwarp(uint32_t mask = 0xffffffffu, EMU_HERE) { emu_warp_wait(mask, file, line); }
static inline int emu_lane(void) { return (int)(emu_now->thread.x % EMU_WARP); }
static inline float __shfl_sync(uint32_t mask, float x, int from, EMU_HERE) {
    return __uint_as_float(emu_shuffle(mask, __float_as_uint(x), from % EMU_WARP, file, line));
}
static inline uint32_t __shfl_sync(uint32_t mask, uint32_t x, int from, EMU_HERE) {
    return emu_shuffle(mask, x, from % EMU_WARP, file, line);
}
static inline int __shfl_sync(uint32_t mask, int x, int from, EMU_HERE) {
    return (int)emu_shuffle(mask, (uint32_t)x, from % EMU_WARP, file, line);
}
template <class T> static inline T __shfl_xor_sync(uint32_t mask, T x, int other, EMU_HERE) {
    return __shfl_sync(mask, x, emu_lane() ^ other, file, line);
}
/* In the order of five exchanges. */
static inline unsigned __reduce_add_sync(uint32_t mask, unsigned x, EMU_HERE) {
    for (int other = 1; other < EMU_WARP; other *= 2) x += __shfl_xor_sync(mask, x, other, file, line);
    return x;
}
static inline int __any_sync(uint32_t mask, int x, EMU_HERE) { return emu_most(mask, x != 0, file, line); }
static inline int __reduce_max_sync(uint32_t mask, int x, EMU_HERE) { return emu_most(mask, x, file, line); }

/* ---- resident/counts.cuh ------------------------------------------------------------------------------- */

#define KERNELS_CUDA_COUNTS_CUH
static inline void count_arrival(uint64_t *count) { ++*count; }
static inline uint64_t arrivals(const uint64_t *count) { return *count; }
static inline void await_arrivals(const uint64_t *count, uint64_t target, EMU_HERE) {
    emu_await(count, target, file, line);
}
static inline void compute_again(int &) {}

/* ---- instructions.cuh ---------------------------------------------------------------------------------- */

#include "backend/gpu/cuda/compiler.cuh"

typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;

#define DEV static inline __attribute__((unused))
#define KERNEL(...) __global__ void

DEV void start_next(void) {}
DEV void wait_before(void) {}

/* To the nearest, ties to even. */
DEV u32 emu_bf16(float x) {
    const u32 bits = __float_as_uint(x);
    return x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
DEV u32 pack_bf16(float low, float high) { return emu_bf16(low) | emu_bf16(high) << 16; }
DEV u32 subtract_bf16(u32 a, u32 b) {
    const float low = __uint_as_float(a << 16) - __uint_as_float(b << 16),
                high = __uint_as_float(a & 0xffff0000u) - __uint_as_float(b & 0xffff0000u);
    return pack_bf16(low, high);
}
DEV u32 pick_bytes(u32 a, u32 b, u32 which) {
    const u64 all = a | (u64)b << 32;
    u32 r = 0;
    for (int i = 0; i < 4; i++) r |= (u32)(all >> (which >> 4 * i & 7) * 8 & 255) << 8 * i;
    return r;
}
DEV float exp2_fast(float x) { return exp2f(x); }
DEV void compute_now(float &) {}

DEV u32 shared_address(const void *p) { return emu_shared_address(p); }
DEV uint4 load_shared16(u32 at, EMU_HERE) { return *(const uint4 *)emu_shared(at, 16, file, line); }
DEV void store_shared4(u32 to, u32 word, EMU_HERE) { *(u32 *)emu_shared(to, 4, file, line) = word; }
DEV void copy16(u32 to, const void *from, int there, EMU_HERE) { emu_copy16(to, from, there, file, line); }
DEV void copy_commit(void) { emu_copy_commit(); }
template <int LEFT> DEV void copy_wait(void) { emu_copy_wait(LEFT); }
DEV void prefetch(const void *) {}
DEV void group_sync(int id, int threads, EMU_HERE) { emu_group_wait(id, threads, file, line); }

DEV void load_matrix4(u32 (&r)[4], u32 at, EMU_HERE) { emu_load_matrix(r, 4, 0, at, file, line); }
DEV void load_matrix2(u32 (&r)[2], u32 at, EMU_HERE) { emu_load_matrix(r, 2, 0, at, file, line); }
DEV void load_transposed4(u32 (&r)[4], u32 at, EMU_HERE) { emu_load_matrix(r, 4, 1, at, file, line); }
DEV void load_transposed2(u32 (&r)[2], u32 at, EMU_HERE) { emu_load_matrix(r, 2, 1, at, file, line); }
DEV void mma16(float (&c)[4], const u32 *a, u32 b0, u32 b1, EMU_HERE) {
    const u32 b[2] = {b0, b1};
    emu_mma(c, a, b, 16, file, line);
}
DEV void mma8(float (&c)[4], const u32 *a, u32 b0, EMU_HERE) { emu_mma(c, a, &b0, 8, file, line); }
DEV void mma32_int8(int (&c)[4], const u32 *a, u32 b0, u32 b1, EMU_HERE) {
    const u32 b[2] = {b0, b1};
    emu_mma_int8(c, a, b, file, line);
}

/* ---- clamp.cuh ----------------------------------------------------------------------------------------- */

#define KERNELS_CUDA_CLAMP_CUH
DEV float emu_clamp(u32 x, u32 least, u32 most) {
    return fmaxf(fminf(__uint_as_float(x), __uint_as_float(most)), __uint_as_float(least));
}
DEV u32 clamp_bf16(u32 x, u32 least, u32 most) {
    const u32 high = 0xffff0000u;
    return pack_bf16(emu_clamp(x << 16, least << 16, most << 16),
                     emu_clamp(x & high, least & high, most & high));
}

#endif
