/* wgmma for 8-bit integers: d[64 x N] += A[64 x 32] · B[N x 32]ᵀ, operands in shared memory as those of bf16
 * (128 bytes of k a row, swizzled), exact sums of 32 bits in registers, which lie as wgmma.cuh says. Beyond
 * 32, N goes in 16s. */
#ifndef KERNELS_CUDA_WGMMA_INT8_CUH
#define KERNELS_CUDA_WGMMA_INT8_CUH

#include "wgmma.cuh"

template <int N> DEV void after_wait(int (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+r"(d[i])::"memory");
}

#define WRI(n) "+r"(d[n]), "+r"(d[n + 1]), "+r"(d[n + 2]), "+r"(d[n + 3])
#define WRIS(n) WRI(8 * n), WRI(8 * n + 4)

/* d += A·B, or with add = 0 d = A·B; one function for each N = 2·(registers). */
DEV void wgmma(int (&d)[16], u64 a, u64 b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k32.s32.s8.s8 {"
                 WT0 ", " WT1
                 "}, %16, %17, p;\n}"
                 : WRIS(0), WRIS(1)
                 : "l"(a), "l"(b), "r"(add));
}

DEV void wgmma(int (&d)[24], u64 a, u64 b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %26, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n48k32.s32.s8.s8 {"
                 WT0 ", " WT1 ", " WT2
                 "}, %24, %25, p;\n}"
                 : WRIS(0), WRIS(1), WRIS(2)
                 : "l"(a), "l"(b), "r"(add));
}

DEV void wgmma(int (&d)[64], u64 a, u64 b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8 {"
                 WT0 ", " WT1 ", " WT2 ", " WT3 ", " WT4 ", " WT5 ", " WT6 ", " WT7
                 "}, %64, %65, p;\n}"
                 : WRIS(0), WRIS(1), WRIS(2), WRIS(3), WRIS(4), WRIS(5), WRIS(6), WRIS(7)
                 : "l"(a), "l"(b), "r"(add));
}

DEV void wgmma(int (&d)[72], u64 a, u64 b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %74, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n144k32.s32.s8.s8 {"
                 WT0 ", " WT1 ", " WT2 ", " WT3 ", " WT4 ", " WT5 ", " WT6 ", " WT7 ", " WT8
                 "}, %72, %73, p;\n}"
                 : WRIS(0), WRIS(1), WRIS(2), WRIS(3), WRIS(4), WRIS(5), WRIS(6), WRIS(7), WRIS(8)
                 : "l"(a), "l"(b), "r"(add));
}

DEV void wgmma(int (&d)[80], u64 a, u64 b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %82, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n160k32.s32.s8.s8 {"
                 WT0 ", " WT1 ", " WT2 ", " WT3 ", " WT4 ", " WT5 ", " WT6 ", " WT7 ", " WT8 ", " WT9
                 "}, %80, %81, p;\n}"
                 : WRIS(0), WRIS(1), WRIS(2), WRIS(3), WRIS(4), WRIS(5), WRIS(6), WRIS(7), WRIS(8),
                   WRIS(9)
                 : "l"(a), "l"(b), "r"(add));
}

DEV void wgmma(int (&d)[96], u64 a, u64 b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %98, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n192k32.s32.s8.s8 {"
                 WT0 ", " WT1 ", " WT2 ", " WT3 ", " WT4 ", " WT5 ", " WT6 ", " WT7 ", " WT8 ", " WT9
                 ", " WT10 ", " WT11
                 "}, %96, %97, p;\n}"
                 : WRIS(0), WRIS(1), WRIS(2), WRIS(3), WRIS(4), WRIS(5), WRIS(6), WRIS(7), WRIS(8),
                   WRIS(9), WRIS(10), WRIS(11)
                 : "l"(a), "l"(b), "r"(add));
}

DEV void wgmma(int (&d)[104], u64 a, u64 b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %106, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n208k32.s32.s8.s8 {"
                 WT0 ", " WT1 ", " WT2 ", " WT3 ", " WT4 ", " WT5 ", " WT6 ", " WT7 ", " WT8 ", " WT9
                 ", " WT10 ", " WT11 ", " WT12
                 "}, %104, %105, p;\n}"
                 : WRIS(0), WRIS(1), WRIS(2), WRIS(3), WRIS(4), WRIS(5), WRIS(6), WRIS(7), WRIS(8),
                   WRIS(9), WRIS(10), WRIS(11), WRIS(12)
                 : "l"(a), "l"(b), "r"(add));
}

#undef WRI
#undef WRIS

#endif
