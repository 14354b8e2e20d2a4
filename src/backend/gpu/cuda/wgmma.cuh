/* wgmma: d[64 x N] += A[64 x 16] · B[N x 16]ᵀ, bf16 operands in shared memory, fp32 sums in registers.
 *
 * One instruction a warpgroup. Warp w of it holds rows 16w + lane/4 (+ 8), and of every 8 columns 2·(lane%4) (+ 1):
 * d[4j + 2h + i] is row + 8h, column 8j + 2·(lane%4) + i. */
#ifndef KERNELS_CUDA_WGMMA_CUH
#define KERNELS_CUDA_WGMMA_CUH

#include "common.cuh"

/* Descriptor of an operand: rows of 64 bf16 in the 128-byte swizzle, 1024 bytes per 8 rows. */
DEV u64 wgmma_operand(u32 address) { return (u64)1 << 62 | (u64)64 << 32 | (u64)1 << 16 | address >> 4; }

DEV void wgmma_begin(void) { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEV void wgmma_commit(void) { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> DEV void wgmma_wait(void) { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory"); }

/* Eight registers of text and of operands; SETS(n) are the first n of them. */
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
#define WR0 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define WR1 "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define WR2 "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
#define WR3 "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define WR4 "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39])
#define WR5 "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
#define WR6 "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55])
#define WR7 "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define WR8 "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71])
#define WR9 "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79])
#define WR10 "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87])
#define WR11 "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
#define WR12 "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103])
#define WR13 "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111])
#define WR14 "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119])
#define WR15 "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])

DEV void wgmma(float (&d)[64], u64 a, u64 b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" WT0 ", " WT1 ", " WT2 ", " WT3 ", " WT4 ", " WT5 ", " WT6 ", " WT7 "}, %64, %65, p, 1, 1, 0, 0;\n}"
                 : WR0, WR1, WR2, WR3, WR4, WR5, WR6, WR7
                 : "l"(a), "l"(b), "r"(add));
}

DEV void wgmma(float (&d)[72], u64 a, u64 b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %74, 0;\nwgmma.mma_async.sync.aligned.m64n144k16.f32.bf16.bf16 {" WT0 ", " WT1 ", " WT2 ", " WT3 ", " WT4 ", " WT5 ", " WT6 ", " WT7 ", " WT8 "}, %72, %73, p, 1, 1, 0, 0;\n}"
                 : WR0, WR1, WR2, WR3, WR4, WR5, WR6, WR7, WR8
                 : "l"(a), "l"(b), "r"(add));
}

DEV void wgmma(float (&d)[84], u64 a, u64 b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %86, 0;\nwgmma.mma_async.sync.aligned.m64n168k16.f32.bf16.bf16 {" WT0 ", " WT1 ", " WT2 ", " WT3 ", " WT4 ", " WT5 ", " WT6 ", " WT7 ", " WT8 ", " WT9 ", %80, %81, %82, %83" "}, %84, %85, p, 1, 1, 0, 0;\n}"
                 : WR0, WR1, WR2, WR3, WR4, WR5, WR6, WR7, WR8, WR9, "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83])
                 : "l"(a), "l"(b), "r"(add));
}

DEV void wgmma(float (&d)[92], u64 a, u64 b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %94, 0;\nwgmma.mma_async.sync.aligned.m64n184k16.f32.bf16.bf16 {" WT0 ", " WT1 ", " WT2 ", " WT3 ", " WT4 ", " WT5 ", " WT6 ", " WT7 ", " WT8 ", " WT9 ", " WT10 ", %88, %89, %90, %91" "}, %92, %93, p, 1, 1, 0, 0;\n}"
                 : WR0, WR1, WR2, WR3, WR4, WR5, WR6, WR7, WR8, WR9, WR10, "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91])
                 : "l"(a), "l"(b), "r"(add));
}

DEV void wgmma(float (&d)[80], u64 a, u64 b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %82, 0;\nwgmma.mma_async.sync.aligned.m64n160k16.f32.bf16.bf16 {" WT0 ", " WT1 ", " WT2 ", " WT3 ", " WT4 ", " WT5 ", " WT6 ", " WT7 ", " WT8 ", " WT9 "}, %80, %81, p, 1, 1, 0, 0;\n}"
                 : WR0, WR1, WR2, WR3, WR4, WR5, WR6, WR7, WR8, WR9
                 : "l"(a), "l"(b), "r"(add));
}

DEV void wgmma(float (&d)[100], u64 a, u64 b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %102, 0;\nwgmma.mma_async.sync.aligned.m64n200k16.f32.bf16.bf16 {" WT0 ", " WT1 ", " WT2 ", " WT3 ", " WT4 ", " WT5 ", " WT6 ", " WT7 ", " WT8 ", " WT9 ", " WT10 ", " WT11 ", %96, %97, %98, %99" "}, %100, %101, p, 1, 1, 0, 0;\n}"
                 : WR0, WR1, WR2, WR3, WR4, WR5, WR6, WR7, WR8, WR9, WR10, WR11, "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99])
                 : "l"(a), "l"(b), "r"(add));
}

DEV void wgmma(float (&d)[104], u64 a, u64 b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %106, 0;\nwgmma.mma_async.sync.aligned.m64n208k16.f32.bf16.bf16 {" WT0 ", " WT1 ", " WT2 ", " WT3 ", " WT4 ", " WT5 ", " WT6 ", " WT7 ", " WT8 ", " WT9 ", " WT10 ", " WT11 ", " WT12 "}, %104, %105, p, 1, 1, 0, 0;\n}"
                 : WR0, WR1, WR2, WR3, WR4, WR5, WR6, WR7, WR8, WR9, WR10, WR11, WR12
                 : "l"(a), "l"(b), "r"(add));
}

DEV void wgmma(float (&d)[128], u64 a, u64 b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\nwgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" WT0 ", " WT1 ", " WT2 ", " WT3 ", " WT4 ", " WT5 ", " WT6 ", " WT7 ", " WT8 ", " WT9 ", " WT10 ", " WT11 ", " WT12 ", " WT13 ", " WT14 ", " WT15 "}, %128, %129, p, 1, 1, 0, 0;\n}"
                 : WR0, WR1, WR2, WR3, WR4, WR5, WR6, WR7, WR8, WR9, WR10, WR11, WR12, WR13, WR14, WR15
                 : "l"(a), "l"(b), "r"(add));
}

DEV void wgmma(float (&d)[32], u64 a, u64 b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" WT0 ", " WT1 ", " WT2 ", " WT3 "}, %32, %33, p, 1, 1, 0, 0;\n}"
                 : WR0, WR1, WR2, WR3
                 : "l"(a), "l"(b), "r"(add));
}

/* Descriptor of a transposed B, stored [16 k][N]: 64 of N are a row of 128 bytes, the next 8 k follow after 1024 bytes, the
 * next 64 of N after `box` bytes. */
DEV u64 wgmma_transposed(u32 address, u32 box) { return (u64)1 << 62 | (u64)64 << 32 | (u64)(box >> 4) << 16 | address >> 4; }

/* N = 256, A in registers (as mma16 takes it, a warp its 16 rows), B transposed. */
DEV void wgmma_values(float (&d)[128], const u32 *a, u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" WT0 ", " WT1 ", " WT2 ", " WT3 ", " WT4 ", " WT5 ", " WT6 ", " WT7 ", " WT8 ", " WT9 ", " WT10 ", " WT11 ", " WT12 ", " WT13 ", " WT14 ", " WT15 "}, {%128, %129, %130, %131}, %132, 1, 1, 1, 1;"
                 : WR0, WR1, WR2, WR3, WR4, WR5, WR6, WR7, WR8, WR9, WR10, WR11, WR12, WR13, WR14, WR15
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#endif
