/* The machine of src/backend/gpu/hip/machine/machine.h, emulated: kernels that include <machine.h> and are
 * compiled with this folder before that one run on the host (emulation.h). */
#ifndef HIP_MACHINE_H
#define HIP_MACHINE_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "emulation.h"

#define DEV static inline __attribute__((always_inline, unused))
#define UNROLL
#define ROLLED

enum { WAVE = EMU_WAVE };

typedef uint16_t u16;
typedef uint32_t u32;
/* Of less alignment than the machine's: GCC 13 takes an aligned load and the four scalar loads of the other
 * branch (load_f32x4) for one, and keeps the aligned one. */
typedef emu_bf16x4 bf16x4 __attribute__((may_alias, aligned(2)));
typedef emu_bf16x8 bf16x8 __attribute__((may_alias));
typedef emu_f32x4 f32x4 __attribute__((may_alias, aligned(4)));
typedef emu_f32x16 f32x16 __attribute__((may_alias));

#define KERNEL(threads, name, type) KERNEL_(threads, name, type)
#define KERNEL_(threads, name, type)                                                                     \
    static void name##_body(const type *p);                                                              \
    static void name##_run(const void *arguments) { name##_body(arguments); }                            \
    __attribute__((constructor)) static void name##_register(void) {                                     \
        static emu_kernel kernel = {#name, name##_run, sizeof(type), threads, NULL};                     \
        emu_register(&kernel);                                                                           \
    }                                                                                                    \
    static void name##_body(const type *p)

DEV int thread_id(void) { return emu_now()->thread; }
DEV int wave_id(void) { return emu_now()->thread / EMU_WAVE; }
DEV int block_threads(void) { return emu_now()->threads; }
DEV int block_x(void) { return emu_now()->block[0]; }
DEV int block_y(void) { return emu_now()->block[1]; }
DEV int blocks_x(void) { return emu_now()->blocks[0]; }

#define LOCAL(type, name, count) LOCAL_(type, name, count)
#define LOCAL_(type, name, count)             \
    static type name##_data[count];           \
    static emu_mark name##_marks[count];      \
    static const emu_local name##_local = {#name, name##_marks, count}
#define local_get(name, i) local_get_(name, i)
#define local_get_(name, i) (name##_data[emu_get(&name##_local, i, __FILE__, __LINE__)])
#define local_put(name, i, value) local_put_(name, i, value)
#define local_put_(name, i, value) \
    ((void)(name##_data[emu_put(&name##_local, i, __FILE__, __LINE__)] = (value)))

#define block_wait() emu_block_wait(__FILE__, __LINE__)
#define lane_from(x, lane) emu_lane_from(x, lane, __FILE__, __LINE__)
#define keep_order() ((void)0)
#define mma_bf16(a, b, c) mma_bf16_(a, b, c, __LINE__)
#define mma_wide_bf16(a, b, c) mma_wide_bf16_(a, b, c, __LINE__)
#define mma_large_bf16(a, b, c) mma_large_bf16_(a, b, c, __LINE__)
#define mma_f32(a, b, c) mma_f32_(a, b, c, __LINE__)

DEV f32x4 mma_bf16_(bf16x4 a, bf16x4 b, f32x4 c, int line) {
    emu_mma(EMU_16X16X16_BF16, &a, &b, &c, __FILE__, line);
    return c;
}
DEV f32x4 mma_f32_(float a, float b, f32x4 c, int line) {
    emu_mma(EMU_16X16X4_F32, &a, &b, &c, __FILE__, line);
    return c;
}

/* One long instruction where the chip has it, else two with halves of the operands. */
DEV void machine_mma(emu_shape whole, emu_shape half, const bf16x8 *a, const bf16x8 *b, void *c, int line) {
    if (emu_has(whole)) {
        emu_mma(whole, a, b, c, __FILE__, line);
        return;
    }
    emu_mma(half, a, b, c, __FILE__, line);
    emu_mma(half, (const bf16x4 *)a + 1, (const bf16x4 *)b + 1, c, __FILE__, line);
}
DEV f32x4 mma_wide_bf16_(bf16x8 a, bf16x8 b, f32x4 c, int line) {
    machine_mma(EMU_16X16X32_BF16, EMU_16X16X16_BF16, &a, &b, &c, line);
    return c;
}
DEV f32x16 mma_large_bf16_(bf16x8 a, bf16x8 b, f32x16 c, int line) {
    machine_mma(EMU_32X32X16_BF16, EMU_32X32X8_BF16, &a, &b, &c, line);
    return c;
}

DEV float exp2_of(float x) { return emu_exp2(x); }
DEV float root_of(float x) { return sqrtf(x); }

#endif
