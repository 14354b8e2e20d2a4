/* Products with int8 weights in the resident denoise kernel: wgmma for 8-bit integers, weights as A straight
 * from the ring, and rows as two digits, 8 bits each. Codes widened to bf16, as in few_mma_int8.cu, take 230
 * instructions a warp and chunk, this takes 100.
 *
 * Rows are bf16 first. Neighbouring numbers share a power of two: 128 in a row of x, 32 in what blocks give
 * each other. In units of it a number is an integer with 16 bits, 256 · upper + lower digit, exact where it
 * is at least 1/128 of the largest one. Sums over 64 k or 32 k are exact; they are multiplied by the column's
 * scale and by the row's unit in fp32.
 *
 * Digits lie as [k/16][row/8][upper, lower][row%8][16], core matrices without a swizzle; units as
 * [32 k][row], those of x as [row]. */
#ifndef KERNELS_CUDA_RESIDENT_INT8_CUH
#define KERNELS_CUDA_RESIDENT_INT8_CUH

#include "resident_ring.cuh"
#include "backend/gpu/cuda/wgmma_int8.cuh"

/* ---- rows --------------------------------------------------------------------------------------------- */

/* The unit that numbers share, and its inverse. */
typedef struct digit_unit {
    float unit, inverse;
} digit_unit;

/* top: the bits of the lane's largest magnitude; of all lanes. */
DEV digit_unit unit_of_top(u32 top) {
    const u32 all = __reduce_max_sync(0xffffffffu, top) & 0x7f800000u, e = max(all, 15u << 23);
    return {__uint_as_float(all == 0x7f800000u ? 0x7fc00000u : e - (14u << 23)),
            __uint_as_float((268u << 23) - e)};
}
DEV u32 magnitude(float x) { return __float_as_uint(x) & 0x7fffffffu; }
/* The largest bf16 below a power of two is one more than two digits hold. */
DEV int integer_of(float x, float inverse) { return min(__float2int_rn(x * inverse), 127 * 256 + 127); }
DEV u32 upper_of(int q) { return (u32)(q + 128) >> 8 & 255; }
DEV u32 lower_of(int q) { return (u32)q & 255; }

/* Where digits of a row are among those of 16 k: the upper ones; the lower ones 128 bytes on. */
DEV u32 digits_at(int row) { return (u32)((row >> 3) * 256 + (row & 7) * 16); }

/* Four neighbouring numbers of a row of x, k = 4·lane …, and the row's unit. */
DEV void put_digits(const worker &w, int row, float a, float b, float c, float d) {
    const u32 pairs[2] = {pack_bf16(a, b), pack_bf16(c, d)};
    const float x[4] = {low_of(pairs[0]), high_of(pairs[0]), low_of(pairs[1]), high_of(pairs[1])};
    const digit_unit own = unit_of_top(
        max(max(magnitude(x[0]), magnitude(x[1])), max(magnitude(x[2]), magnitude(x[3]))));
    u32 upper = 0, lower = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int q = integer_of(x[i], own.inverse);
        upper |= upper_of(q) << 8 * i, lower |= lower_of(q) << 8 * i;
    }
    const u32 at = w.base + AT_X + (u32)(w.lane >> 2) * DIGITS_X_K + digits_at(row) + (u32)(w.lane & 3) * 4;
    store4(at, upper), store4(at + 128, lower);
    if (!w.lane) store4(w.base + AT_X_UNITS + row * 4, __float_as_uint(own.unit));
}

/* A number of a row, one of 32 that the lanes have. */
typedef struct digit_pair {
    int q;
    float unit;
} digit_pair;
DEV digit_pair digits_of(float x) {
    const float v = low_of(pack_bf16(x, 0));
    const digit_unit own = unit_of_top(magnitude(v));
    return {integer_of(v, own.inverse), own.unit};
}

/* Where the digits of 32 k are, and their rows' units. */
DEV u32 part_digits(const worker &w, int part) { return w.base + AT_OPERAND + (u32)part * 1024; }
DEV u32 part_units(const worker &w, int part) { return w.base + AT_ROW_UNITS + (u32)part * 64; }

DEV void store1(u32 at, u32 v) {
    asm volatile("st.shared.b8 [%0], %1;" ::"r"(at), "r"(v) : "memory");
}
/* Into the own shared memory. */
DEV void put_part(const worker &w, int part, float x) {
    const digit_pair d = digits_of(x);
    const u32 at = part_digits(w, part) + (u32)(w.lane >> 4) * 512 + digits_at(w.warp) + (w.lane & 15);
    store1(at, upper_of(d.q)), store1(at + 128, lower_of(d.q));
    if (!w.lane) store4(part_units(w, part) + w.warp * 4, __float_as_uint(d.unit));
}

/* The digits of 8 neighbouring lanes: 8 upper ones, 8 lower ones. */
DEV uint4 gather_digits(int q, int lane) {
    const u32 all = 0xffffffffu, own = upper_of(q) | lower_of(q) << 16, a = __shfl_xor_sync(all, own, 1),
              pair = lane & 1 ? a | own << 8 : own | a << 8, b = __shfl_xor_sync(all, pair, 2),
              first = lane & 2 ? b : pair, second = lane & 2 ? pair : b,
              upper = pick_bytes(first, second, 0x5410), lower = pick_bytes(first, second, 0x7632),
              u = __shfl_xor_sync(all, upper, 4), l = __shfl_xor_sync(all, lower, 4);
    return lane & 4 ? make_uint4(u, upper, l, lower) : make_uint4(upper, u, lower, l);
}

/* ---- products ----------------------------------------------------------------------------------------- */

/* The sums of a part of 128 k, of which there are PARTS, begin. */
template <int PARTS, int N> DEV void begin_part(int (&d)[N], u64 a, u64 b, int part, u32 step) {
    const int first = part * (4 / PARTS);
    wgmma(d, a + 2 * first, b + first * step, 0);
    if (PARTS == 2) wgmma(d, a + 2 * first + 2, b + (first + 1) * step, 1);
    wgmma_commit();
}

/* Adds a part's sums times scales: of the lane's two columns, and of its rows from `units` on. */
template <int N> DEV void add_part(float (&d)[N], const int (&sums)[2 * N], float one, float two, u32 units) {
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        const float2 unit = load8(units + 32 * i);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float sum = (float)(sums[8 * i + j] * 256 + sums[8 * i + 4 + j]);
            d[4 * i + j] = fmaf(sum * (j & 2 ? two : one), j & 1 ? unit.y : unit.x, d[4 * i + j]);
        }
    }
}

/* Adds a chunk to d: 128 k of rows, K bytes from 16 k to the next; 4 PARTS have units of their own, 2 share
 * them. */
template <int PARTS, int K, int N>
DEV void multiply_codes(float (&d)[N], const worker &w, u32 stage, u32 rows, u32 units) {
    const u32 scales = w.base + AT_SCALES + stage * RESIDENT_SCALES +
                       (u32)(16 * w.quarter + (w.lane >> 2)) * 8;
    const u64 a = cluster_operand(w.base + stage * STAGE, atom::BYTES),
              b = (u64)8 << 32 | (u64)(K / 16) << 16 | matrix_at(rows);
    const float2 one = load8(scales), two = load8(scales + 64);
    units += 2 * (w.lane & 3) * 4;
#pragma unroll
    for (int part = 0; part < PARTS; part += 2) {
        int low[2 * N], high[2 * N];
        wgmma_begin();
        begin_part<PARTS>(low, a, b, part, 2 * K / 16);
        begin_part<PARTS>(high, a, b, part + 1, 2 * K / 16);
        wgmma_wait<1>();
        after_wait(low);
        const int last = PARTS == 2 || part;         /* that 64 k which the column's second scale is for   */
        add_part(d, low, PARTS == 2 || !part ? one.x : one.y, PARTS == 2 || !part ? two.x : two.y,
                 units + (PARTS == 4) * part * 64);
        wgmma_wait<0>();
        after_wait(high);
        add_part(d, high, last ? one.y : one.x, last ? two.y : two.x, units + (PARTS == 4) * (part + 1) * 64);
    }
}

#endif
