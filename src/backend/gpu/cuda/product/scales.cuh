/* From sums of 8-bit integers to numbers: by the scale of a row of x and that of a packed column. */
#ifndef KERNELS_CUDA_SCALES_CUH
#define KERNELS_CUDA_SCALES_CUH

#include "backend/gpu/cuda/clamp.cuh"
#include "channels.cuh"
#include "int8.h"

/* The scale of a packed column; 0: the column pads. */
DEV float channel_scale(const gpu_linear &p, int column) {
    const int row = channel_row(p.epilogue, column);
    return row < 0 ? 0 : __ldg(p.weights.scales + row);
}

/* As ops.h has it: in fp32, in this order, nothing fused. */
DEV float scaled(int sum, float row, float column) {
    return __fmul_rn(__int2float_rn(sum), __fmul_rn(row, column));
}

/* ---- codes ---------------------------------------------------------------------------------------------
 *
 * A pair of numbers is first made one that is not clipped. Where that changes it, which is seldom, the pair
 * is put aside, and looked at when all codes have left. */

/* NaN becomes 0, and what is too large for an integer the largest: so the instruction converts. */
DEV u32 fixed_code(const gpu_int8_fixed &f, float x) {
    return (u32)min(max(__float2int_rn(__fmul_rn(x, f.inverse)), -127), 127) & 255;
}

/* A pair of bf16 as near as two can be that are not clipped; NaN becomes one of these. The largest has 127
 * as its code, for the numbers of bf16 are less than a scale apart there. */
DEV u32 kept_pair(const gpu_int8_fixed &f, u32 pair) {
    return clamp_bf16(pair, f.most ^ 0x80008000u, f.most);
}

/* The pair that was kept of one that differs from it: NaN's code is 0. */
DEV u32 without_nan(u32 pair, u32 kept) {
    if ((pair & 0x7fffu) > 0x7f80u) kept &= 0xffff0000u;
    if ((pair & 0x7fff0000u) > 0x7f800000u) kept &= 0xffffu;
    return kept;
}

/* The lowest byte is the code of a number that is not clipped: the sum has its integer in its last bits. */
DEV u32 code_byte(const gpu_int8_fixed &f, float x) {
    return __float_as_uint(__fadd_rn(__fmul_rn(x, f.inverse), 0x1.8p23f));
}
/* The low half: codes of a kept pair. */
DEV u32 kept_codes(const gpu_int8_fixed &f, u32 pair) {
    return pick_bytes(code_byte(f, low_of(pair)), code_byte(f, high_of(pair)), 0x7740);
}

/* ---- what codes lose ----------------------------------------------------------------------------------- */

/* A thread's: how many numbers. */
typedef struct lost_numbers {
    u32 clipped, not_finite;
} lost_numbers;

/* Counts a number, by the bits of its magnitude; 1: it was clipped. */
DEV u32 lose_number(const gpu_int8_fixed &f, lost_numbers &l, u32 size) {
    const u32 not_finite = size >= 0x7f80u, clipped = !not_finite && size > (f.most & 0xffffu);
    l.not_finite += not_finite;
    l.clipped += clipped;
    return clipped;
}
/* Counts a pair. Bit 0: the low one was clipped, bit 1: the high one. */
DEV u32 lose_pair(const gpu_int8_fixed &f, lost_numbers &l, u32 pair) {
    return lose_number(f, l, pair & 0x7fffu) | lose_number(f, l, pair >> 16 & 0x7fffu) << 1;
}

/* 1: row r was not counted yet. */
DEV u32 first_of_row(const gpu_int8_fixed &f, int r) {
    const u32 sign = 0x80000000u;
    return !(__ldcg(f.marks + r) & sign) && !(atomicOr(f.marks + r, sign) & sign);
}

/* All lanes of a warp: what their numbers lose to the session's counters, and the rows of which some were
 * clipped: bit i of word w of `rows` is row row_of(w, i). A row's bit is best set by few lanes. */
template <int WORDS, class ROW>
DEV void add_lost(const gpu_int8_fixed &f, const lost_numbers &l, const u32 (&rows)[WORDS], ROW row_of) {
    if (!f.counts || !__any_sync(0xffffffffu, l.clipped | l.not_finite)) return;
    u32 fresh = 0;
#pragma unroll
    for (int w = 0; w < WORDS; w++)
        for (u32 left = rows[w]; left; left &= left - 1) fresh += first_of_row(f, row_of(w, __ffs(left) - 1));
    const u32 lost[] = {l.clipped, fresh, l.not_finite};       /* as int8_count has them                    */
#pragma unroll
    for (int i = 0; i < 3; i++) {
        const u32 sum = __reduce_add_sync(0xffffffffu, lost[i]);
        if (!(threadIdx.x & 31) && sum) atomicAdd(f.counts + i, sum);
    }
}

#endif
