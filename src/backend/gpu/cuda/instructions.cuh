/* The instructions that portable kernels are made of, and what the compiler has to be told: all assembly of
 * theirs is here. tests/gpu/cuda/instructions.cuh is the same machine, emulated on a CPU: what is added
 * here is added there, too. */
#ifndef KERNELS_CUDA_INSTRUCTIONS_CUH
#define KERNELS_CUDA_INSTRUCTIONS_CUH

#include "compiler.cuh"

#include <stddef.h>
#include <stdint.h>

typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;

#define DEV static __device__ __forceinline__
/* Before a kernel's name: most threads of a block and, where it is said, blocks on a multiprocessor. */
#define KERNEL(...) extern "C" __global__ void __launch_bounds__(__VA_ARGS__)

/* ---- early start (common.cuh) -------------------------------------------------------------------------- */

/* The next kernel may start: it fetches weights and then waits. */
DEV void start_next(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Until all earlier kernels have ended; what they wrote is visible from here on. */
DEV void wait_before(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* ---- numbers ------------------------------------------------------------------------------------------- */

DEV u32 pack_bf16(float low, float high) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
/* Both halves: a - b. */
DEV u32 subtract_bf16(u32 a, u32 b) {
    u32 r;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(b), "r"(0xbf80bf80u), "r"(a));
    return r;
}
/* Bytes of a (0 to 3) and b (4 to 7): those that the digits of `which` name, the lowest first. */
DEV u32 pick_bytes(u32 a, u32 b, u32 which) {
    u32 r;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(which));
    return r;
}
DEV float exp2_fast(float x) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
/* Computes x here, where the compiler would do it later, before x is used. */
DEV void compute_now(float &x) { asm volatile("" : "+f"(x)); }

/* ---- memory: an address in shared memory has 32 bits --------------------------------------------------- */

DEV u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }
DEV uint4 load_shared16(u32 at) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at) : "memory");
    return v;
}
DEV void store_shared4(u32 to, u32 word) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(word) : "memory");
}
/* 16 bytes into shared memory; zeros where `there` is 0. */
DEV void copy16(u32 to, const void *from, int there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}
DEV void copy_commit(void) { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> DEV void copy_wait(void) {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}
DEV void prefetch(const void *p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

/* A barrier for `threads` threads, whole warps; id 1 to 15. */
DEV void group_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* ---- matrix instructions ------------------------------------------------------------------------------- */

/* 16 x 8 tile += A 16 x 16 · B 16 x 8. Thread (g = lane/4, t = lane%4) holds rows g, g + 8 of the
 * tile and of these columns 2t, 2t + 1. Transposed loads take a B that is stored [k][n]. */
DEV void load_matrix4(u32 (&r)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
DEV void load_matrix2(u32 (&r)[2], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1]) : "r"(at) : "memory");
}
DEV void load_transposed4(u32 (&r)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
DEV void load_transposed2(u32 (&r)[2], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1]) : "r"(at) : "memory");
}
DEV void mma16(float (&c)[4], const u32 *a, u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
DEV void mma8(float (&c)[4], const u32 *a, u32 b0) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(b0));
}
/* The same with A 16 x 32 and B 32 x 8 of 8-bit integers: fragments lie in bytes as those of mma16, and sums
 * are exact. */
DEV void mma32_int8(int (&c)[4], const u32 *a, u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#endif
