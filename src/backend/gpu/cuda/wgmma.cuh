/* wgmma: d[64 x N] += A[64 x 16] · B[N x 16]ᵀ, bf16 operands in shared memory, fp32 sums in registers.
 *
 * One instruction a warpgroup. Warp w of it holds rows 16w + lane/4 (+ 8), and of every 8 columns 2·(lane%4)
 * (+ 1): d[4j + 2h + i] is row + 8h, column 8j + 2·(lane%4) + i. */
#ifndef KERNELS_CUDA_WGMMA_CUH
#define KERNELS_CUDA_WGMMA_CUH

#include "common.cuh"

/* Descriptor of an operand: rows of 64 bf16 in the 128-byte swizzle, 1024 bytes per 8 rows. */
DEV u64 wgmma_operand(u32 address) { return (u64)1 << 62 | (u64)64 << 32 | (u64)1 << 16 | address >> 4; }
/* The address in a descriptor, without what it carries in a cluster: the block's rank in its upper bits,
 * which would reach into the next field. */
DEV u64 matrix_at(u32 address) { return (address & 0x3ffff) >> 4; }
/* The same operand in a cluster, `apart` bytes from 8 rows to the next 8. */
DEV u64 cluster_operand(u32 address, u32 apart) {
    return (u64)1 << 62 | (u64)(apart >> 4) << 32 | (u64)1 << 16 | matrix_at(address);
}

DEV void wgmma_begin(void) { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEV void wgmma_commit(void) { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/* Until at most LEFT groups of the warpgroup are unfinished. */
template <int LEFT> DEV void wgmma_wait(void) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

/* Keeps the compiler from using sums before the wait that stands above this call. */
template <int N> DEV void after_wait(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

/* Of a register list, eight at a time: the text (WT) and the operands (WRS). */
#define WT0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define WT1 "%8, %9, %10, %11, %12, %13, %14, %15"
#define WT2 "%16, %17, %18, %19, %20, %21, %22, %23"
#define WT3 "%24, %25, %26, %27, %28, %29, %30, %31"
#define WT4 "%32, %33, %34, %35, %36, %37, %38, %39"
#define WT5 "%40, %41, %42, %43, %44, %45, %46, %47"
#define WT6 "%48, %49, %50, %51, %52, %53, %54, %55"
#define WT7 "%56, %57, %58, %59, %60, %61, %62, %63"
#define WT8 "%64, %65, %66, %67, %68, %69, %70, %71"
#define WT9 "%72, %73, %74, %75, %76, %77, %78, %79"
#define WT10 "%80, %81, %82, %83, %84, %85, %86, %87"
#define WT11 "%88, %89, %90, %91, %92, %93, %94, %95"
#define WT12 "%96, %97, %98, %99, %100, %101, %102, %103"
#define WT13 "%104, %105, %106, %107, %108, %109, %110, %111"
#define WT14 "%112, %113, %114, %115, %116, %117, %118, %119"
#define WT15 "%120, %121, %122, %123, %124, %125, %126, %127"
#define WR(n) "+f"(d[n]), "+f"(d[n + 1]), "+f"(d[n + 2]), "+f"(d[n + 3])
#define WRS(n) WR(8 * n), WR(8 * n + 4)

/* d += A·B, or with add = 0 d = A·B; one function for each N = 2·(registers). */
DEV void wgmma(float (&d)[24], u64 a, u64 b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %26, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n48k16.f32.bf16.bf16 {"
                 WT0 ", " WT1 ", " WT2
                 "}, %24, %25, p, 1, 1, 0, 0;\n}"
                 : WRS(0), WRS(1), WRS(2)
                 : "l"(a), "l"(b), "r"(add));
}

DEV void wgmma(float (&d)[32], u64 a, u64 b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 WT0 ", " WT1 ", " WT2 ", " WT3
                 "}, %32, %33, p, 1, 1, 0, 0;\n}"
                 : WRS(0), WRS(1), WRS(2), WRS(3)
                 : "l"(a), "l"(b), "r"(add));
}

DEV void wgmma(float (&d)[36], u64 a, u64 b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %38, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n72k16.f32.bf16.bf16 {"
                 WT0 ", " WT1 ", " WT2 ", " WT3
                 ", %32, %33, %34, %35"
                 "}, %36, %37, p, 1, 1, 0, 0;\n}"
                 : WRS(0), WRS(1), WRS(2), WRS(3), WR(32)
                 : "l"(a), "l"(b), "r"(add));
}

DEV void wgmma(float (&d)[56], u64 a, u64 b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %58, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n112k16.f32.bf16.bf16 {"
                 WT0 ", " WT1 ", " WT2 ", " WT3 ", " WT4 ", " WT5 ", " WT6
                 "}, %56, %57, p, 1, 1, 0, 0;\n}"
                 : WRS(0), WRS(1), WRS(2), WRS(3), WRS(4), WRS(5), WRS(6)
                 : "l"(a), "l"(b), "r"(add));
}

DEV void wgmma(float (&d)[64], u64 a, u64 b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                 WT0 ", " WT1 ", " WT2 ", " WT3 ", " WT4 ", " WT5 ", " WT6 ", " WT7
                 "}, %64, %65, p, 1, 1, 0, 0;\n}"
                 : WRS(0), WRS(1), WRS(2), WRS(3), WRS(4), WRS(5), WRS(6), WRS(7)
                 : "l"(a), "l"(b), "r"(add));
}

DEV void wgmma(float (&d)[68], u64 a, u64 b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %70, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n136k16.f32.bf16.bf16 {"
                 WT0 ", " WT1 ", " WT2 ", " WT3 ", " WT4 ", " WT5 ", " WT6 ", " WT7
                 ", %64, %65, %66, %67"
                 "}, %68, %69, p, 1, 1, 0, 0;\n}"
                 : WRS(0), WRS(1), WRS(2), WRS(3), WRS(4), WRS(5), WRS(6), WRS(7), WR(64)
                 : "l"(a), "l"(b), "r"(add));
}

DEV void wgmma(float (&d)[72], u64 a, u64 b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %74, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n144k16.f32.bf16.bf16 {"
                 WT0 ", " WT1 ", " WT2 ", " WT3 ", " WT4 ", " WT5 ", " WT6 ", " WT7 ", " WT8
                 "}, %72, %73, p, 1, 1, 0, 0;\n}"
                 : WRS(0), WRS(1), WRS(2), WRS(3), WRS(4), WRS(5), WRS(6), WRS(7), WRS(8)
                 : "l"(a), "l"(b), "r"(add));
}

DEV void wgmma(float (&d)[80], u64 a, u64 b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %82, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n160k16.f32.bf16.bf16 {"
                 WT0 ", " WT1 ", " WT2 ", " WT3 ", " WT4 ", " WT5 ", " WT6 ", " WT7 ", " WT8 ", " WT9
                 "}, %80, %81, p, 1, 1, 0, 0;\n}"
                 : WRS(0), WRS(1), WRS(2), WRS(3), WRS(4), WRS(5), WRS(6), WRS(7), WRS(8), WRS(9)
                 : "l"(a), "l"(b), "r"(add));
}

DEV void wgmma(float (&d)[84], u64 a, u64 b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %86, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n168k16.f32.bf16.bf16 {"
                 WT0 ", " WT1 ", " WT2 ", " WT3 ", " WT4 ", " WT5 ", " WT6 ", " WT7 ", " WT8 ", " WT9
                 ", %80, %81, %82, %83"
                 "}, %84, %85, p, 1, 1, 0, 0;\n}"
                 : WRS(0), WRS(1), WRS(2), WRS(3), WRS(4), WRS(5), WRS(6), WRS(7), WRS(8), WRS(9), WR(80)
                 : "l"(a), "l"(b), "r"(add));
}

DEV void wgmma(float (&d)[92], u64 a, u64 b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %94, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n184k16.f32.bf16.bf16 {"
                 WT0 ", " WT1 ", " WT2 ", " WT3 ", " WT4 ", " WT5 ", " WT6 ", " WT7 ", " WT8 ", " WT9
                 ", " WT10 ", %88, %89, %90, %91"
                 "}, %92, %93, p, 1, 1, 0, 0;\n}"
                 : WRS(0), WRS(1), WRS(2), WRS(3), WRS(4), WRS(5), WRS(6), WRS(7), WRS(8), WRS(9),
                   WRS(10), WR(88)
                 : "l"(a), "l"(b), "r"(add));
}

DEV void wgmma(float (&d)[96], u64 a, u64 b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %98, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {"
                 WT0 ", " WT1 ", " WT2 ", " WT3 ", " WT4 ", " WT5 ", " WT6 ", " WT7 ", " WT8 ", " WT9
                 ", " WT10 ", " WT11
                 "}, %96, %97, p, 1, 1, 0, 0;\n}"
                 : WRS(0), WRS(1), WRS(2), WRS(3), WRS(4), WRS(5), WRS(6), WRS(7), WRS(8), WRS(9),
                   WRS(10), WRS(11)
                 : "l"(a), "l"(b), "r"(add));
}

DEV void wgmma(float (&d)[100], u64 a, u64 b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %102, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n200k16.f32.bf16.bf16 {"
                 WT0 ", " WT1 ", " WT2 ", " WT3 ", " WT4 ", " WT5 ", " WT6 ", " WT7 ", " WT8 ", " WT9
                 ", " WT10 ", " WT11 ", %96, %97, %98, %99"
                 "}, %100, %101, p, 1, 1, 0, 0;\n}"
                 : WRS(0), WRS(1), WRS(2), WRS(3), WRS(4), WRS(5), WRS(6), WRS(7), WRS(8), WRS(9),
                   WRS(10), WRS(11), WR(96)
                 : "l"(a), "l"(b), "r"(add));
}

DEV void wgmma(float (&d)[104], u64 a, u64 b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %106, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n208k16.f32.bf16.bf16 {"
                 WT0 ", " WT1 ", " WT2 ", " WT3 ", " WT4 ", " WT5 ", " WT6 ", " WT7 ", " WT8 ", " WT9
                 ", " WT10 ", " WT11 ", " WT12
                 "}, %104, %105, p, 1, 1, 0, 0;\n}"
                 : WRS(0), WRS(1), WRS(2), WRS(3), WRS(4), WRS(5), WRS(6), WRS(7), WRS(8), WRS(9),
                   WRS(10), WRS(11), WRS(12)
                 : "l"(a), "l"(b), "r"(add));
}

DEV void wgmma(float (&d)[128], u64 a, u64 b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
                 WT0 ", " WT1 ", " WT2 ", " WT3 ", " WT4 ", " WT5 ", " WT6 ", " WT7 ", " WT8 ", " WT9
                 ", " WT10 ", " WT11 ", " WT12 ", " WT13 ", " WT14 ", " WT15
                 "}, %128, %129, p, 1, 1, 0, 0;\n}"
                 : WRS(0), WRS(1), WRS(2), WRS(3), WRS(4), WRS(5), WRS(6), WRS(7), WRS(8), WRS(9),
                   WRS(10), WRS(11), WRS(12), WRS(13), WRS(14), WRS(15)
                 : "l"(a), "l"(b), "r"(add));
}

/* Descriptor of a transposed B, stored [16 k][N]: 64 of N are a row of 128 bytes, the next 8 k follow after
 * 1024 bytes, the next 64 of N after `box` bytes. */
DEV u64 wgmma_transposed(u32 address, u32 box) {
    return (u64)1 << 62 | (u64)64 << 32 | (u64)(box >> 4) << 16 | address >> 4;
}

/* N = 256, A in registers (as mma16 takes it, a warp its 16 rows), B transposed. */
DEV void wgmma_values(float (&d)[128], const u32 *a, u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
                 WT0 ", " WT1 ", " WT2 ", " WT3 ", " WT4 ", " WT5 ", " WT6 ", " WT7 ", "
                 WT8 ", " WT9 ", " WT10 ", " WT11 ", " WT12 ", " WT13 ", " WT14 ", " WT15
                 "}, {%128, %129, %130, %131}, %132, 1, 1, 1, 1;"
                 : WRS(0), WRS(1), WRS(2), WRS(3), WRS(4), WRS(5), WRS(6), WRS(7), WRS(8), WRS(9), WRS(10),
                   WRS(11), WRS(12), WRS(13), WRS(14), WRS(15)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#endif
