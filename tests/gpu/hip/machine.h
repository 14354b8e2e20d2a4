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

enum { WAVE = EMU_WAVE };

typedef uint16_t u16;
typedef uint32_t u32;
typedef emu_bf16x4 bf16x4 __attribute__((may_alias));
typedef emu_f32x4 f32x4 __attribute__((may_alias));

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
#define mma_bf16(a, b, c) emu_mma_bf16(a, b, c, __FILE__, __LINE__)
#define mma_f32(a, b, c) emu_mma_f32(a, b, c, __FILE__, __LINE__)

DEV float exp2_of(float x) { return exp2f(x); }
DEV float root_of(float x) { return sqrtf(x); }

#endif
