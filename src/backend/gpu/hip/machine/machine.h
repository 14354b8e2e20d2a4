/* The machine that kernels are written for, as AMD's CDNA chips have it. Kernels are plain C over these
 * names; clang --target=amdgcn-amd-amdhsa compiles them with this file, and the tests compile the same
 * kernels for the host with a file of the same name that emulates the machine (tests/gpu/hip/machine.h).
 *
 *   threads      a block has up to 1,024, in waves of 64 lanes
 *   collectives  lane_from and mma_* are executed by a whole wave, block_wait by a whole block: all threads
 *                arrive at the same one, or the result is undefined
 *   local memory LOCAL declares an array that a block shares, undefined when the block begins; local_get and
 *                local_put are the only access. What one thread puts, another may get after block_wait
 *   bf16x4, f32x4  four numbers of a lane, of bf16x8 eight
 *   mma_*        a matrix instruction, or two where the chip has none that long. Lane l holds of A (and of B
 *                transposed) row l % 16 and of k its share; of the result column l % 16 (B's row) and of A's
 *                rows the numbers 4·(l / 16) … + 3. mma_large_bf16 is of 32 x 32: row and column l % 32, and
 *                number r of the result is of A's row 8·(r / 4) + 4·(l / 32) + r % 4.
 *                Which k a lane's numbers are depends on the chip: a kernel gives both operands the same */
#ifndef HIP_MACHINE_H
#define HIP_MACHINE_H

#include <stddef.h>
#include <stdint.h>

#define DEV static inline __attribute__((always_inline))
#define UNROLL _Pragma("clang loop unroll(full)")
#define ROLLED _Pragma("clang loop unroll(disable)")

enum { WAVE = 64 };

typedef uint16_t u16;
typedef uint32_t u32;
typedef short bf16x4 __attribute__((vector_size(8), may_alias));
typedef short bf16x8 __attribute__((vector_size(16), may_alias));
typedef float f32x4 __attribute__((vector_size(16), may_alias));
typedef float f32x16 __attribute__((vector_size(64), may_alias));
typedef uint32_t u32x4 __attribute__((vector_size(16), may_alias));
typedef uint32_t u32x2 __attribute__((vector_size(8), may_alias));

/* A kernel `name` of blocks of at most `threads`; what follows is its body, which reads *p: the arguments
 * where the driver has put them. */
#define KERNEL(threads, name, type) KERNEL_(threads, name, type)
#define KERNEL_(threads, name, type)                                                                        \
    DEV void name##_body(const type *p);                                                                    \
    __attribute__((amdgpu_kernel, visibility("protected"), amdgpu_flat_work_group_size(1, threads)))        \
    void name(__attribute__((unused)) const type arguments) {                                               \
        name##_body((const type *)(uintptr_t)__builtin_amdgcn_kernarg_segment_ptr());                       \
    }                                                                                                       \
    DEV void name##_body(const type *p)

/* ---- places ------------------------------------------------------------------------------------------ */

DEV int thread_id(void) { return (int)__builtin_amdgcn_workitem_id_x(); }
DEV int wave_id(void) { return __builtin_amdgcn_readfirstlane(thread_id() / WAVE); }
DEV int block_threads(void) { return (int)__builtin_amdgcn_workgroup_size_x(); }
DEV int block_x(void) { return (int)__builtin_amdgcn_workgroup_id_x(); }
DEV int block_y(void) { return (int)__builtin_amdgcn_workgroup_id_y(); }
DEV int blocks_x(void) { return (int)(__builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x()); }
DEV long long clock_ticks(void) { return (long long)__builtin_readcyclecounter(); }

/* ---- local memory ------------------------------------------------------------------------------------ */

#define LOCAL(type, name, count) \
    __attribute__((loader_uninitialized)) static __attribute__((address_space(3))) type name[count]
#define local_get(name, i) ((name)[i])
#define local_put(name, i, value) ((void)((name)[i] = (value)))

/* ---- collectives ------------------------------------------------------------------------------------- */

/* Note: the fences order local memory only, so that loads from device memory stay in flight. The barrier
 * instruction by itself does not wait for a thread's own stores. */
DEV void block_wait(void) {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup", "local");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup", "local");
}

/* The compiler moves nothing across: loads that come before are issued before what follows. */
DEV void keep_order(void) { __builtin_amdgcn_sched_barrier(0); }

/* x of lane `lane`. */
DEV float lane_from(float x, int lane) {
    union {
        float f;
        int i;
    } bits = {.f = x};
    bits.i = __builtin_amdgcn_ds_bpermute(lane << 2, bits.i);
    return bits.f;
}

/* c + A·Bᵀ, 16 x 16 x 16. */
DEV f32x4 mma_bf16(bf16x4 a, bf16x4 b, f32x4 c) {
    return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(a, b, c, 0, 0, 0);
}

/* c + A·Bᵀ, 16 x 16 x 32 and 32 x 32 x 16. */
#if defined(__gfx950__)
typedef __bf16 machine_bf16x8 __attribute__((vector_size(16)));
DEV f32x4 mma_wide_bf16(bf16x8 a, bf16x8 b, f32x4 c) {
    return __builtin_amdgcn_mfma_f32_16x16x32_bf16((machine_bf16x8)a, (machine_bf16x8)b, c, 0, 0, 0);
}
DEV f32x16 mma_large_bf16(bf16x8 a, bf16x8 b, f32x16 c) {
    return __builtin_amdgcn_mfma_f32_32x32x16_bf16((machine_bf16x8)a, (machine_bf16x8)b, c, 0, 0, 0);
}
#else
#define HALF(x, from) __builtin_shufflevector(x, x, from, from + 1, from + 2, from + 3)
DEV f32x4 mma_wide_bf16(bf16x8 a, bf16x8 b, f32x4 c) {
    return mma_bf16(HALF(a, 4), HALF(b, 4), mma_bf16(HALF(a, 0), HALF(b, 0), c));
}
DEV f32x16 mma_large_bf16(bf16x8 a, bf16x8 b, f32x16 c) {
    c = __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(HALF(a, 0), HALF(b, 0), c, 0, 0, 0);
    return __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(HALF(a, 4), HALF(b, 4), c, 0, 0, 0);
}
#undef HALF
#endif

/* c + A·Bᵀ, 16 x 16 x 4: of k lane l holds the number l / 16. */
DEV f32x4 mma_f32(float a, float b, f32x4 c) {
    return __builtin_amdgcn_mfma_f32_16x16x4f32(a, b, c, 0, 0, 0);
}

/* ---- functions --------------------------------------------------------------------------------------- */

DEV float exp2_of(float x) { return __builtin_exp2f(x); }
DEV float root_of(float x) { return __builtin_sqrtf(x); }

#endif
