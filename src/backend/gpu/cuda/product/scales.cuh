/* From sums of 8-bit integers to numbers, by the scale of a row of x and that of a packed column; and from
 * numbers to codes with one scale for all rows (ops.h, matrix.row_scale), with what these lose. */
#ifndef KERNELS_CUDA_SCALES_CUH
#define KERNELS_CUDA_SCALES_CUH

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

/* ---- codes --------------------------------------------------------------------------------------------- */

/* NaN becomes 0, and what is too large for an integer the largest: so the instruction converts. */
DEV u32 fixed_code(const gpu_int8_fixed &f, float x) {
    return (u32)min(max(__float2int_rn(__fmul_rn(x, f.inverse)), -127), 127) & 255;
}
/* Codes of a pair of bf16. */
DEV u32 fixed_codes(const gpu_int8_fixed &f, u32 pair) {
    return fixed_code(f, low_of(pair)) | fixed_code(f, high_of(pair)) << 8;
}

/* To the session's counters, of row r; a row is counted by the first that finds it without this layer's
 * mark. */
DEV void count_lost(const gpu_int8_fixed &f, int r, u32 clipped, u32 not_finite) {
    if (!f.counts) return;
    if (not_finite) atomicAdd(f.counts + 2, not_finite);
    if (!clipped) return;
    atomicAdd(f.counts, clipped);
    if (atomicExch(f.counts + GPU_INT8_COUNTS + r, f.mark) != f.mark) atomicAdd(f.counts + 1, 1u);
}

/* The larger magnitude of a pair of bf16, twice: what is below the upper half of a word decides nothing. */
DEV u32 top_of(u32 pair) { return max(pair << 1, pair << 17); }
/* 1: one of the pairs whose top this is has no code of its own. */
DEV int loses(const gpu_int8_fixed &f, u32 top) { return top >= f.limit << 1; }

/* What a number of bf16, given by its bits, or a pair of row r loses. */
DEV void count_number(const gpu_int8_fixed &f, int r, u32 bits) {
    const u32 size = bits & 0x7fffffffu;
    if (size >= f.limit) count_lost(f, r, size < 0x7f800000u, size >= 0x7f800000u);
}
DEV void count_pair(const gpu_int8_fixed &f, int r, u32 pair) {
    count_number(f, r, pair << 16);
    count_number(f, r, pair & 0xffff0000u);
}

#endif
