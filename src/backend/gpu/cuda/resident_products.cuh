/* Products of the resident denoise kernel: wgmma with weights as A, straight from the ring, and the rows as
 * its N = 16; over x N = 24 where shifts are apart.
 *
 * Weights keep the layout that all kernels share: atoms of 8 columns x 64 k in the 128-byte swizzle are
 * wgmma's own. Rows lie as [k/8][row][8], core matrices without a swizzle. A chunk belongs to one warpgroup,
 * every fourth one to the same. */
#ifndef KERNELS_CUDA_RESIDENT_PRODUCTS_CUH
#define KERNELS_CUDA_RESIDENT_PRODUCTS_CUH

#include "resident_ring.cuh"
#include "wgmma.cuh"

/* The address without the rank in its upper bits, which would reach into the descriptor's next field. */
DEV u64 matrix_at(u32 address) { return (address & 0x3ffff) >> 4; }
/* 64 rows of weights: 8 atoms, one after the other. */
DEV u64 weights_operand(u32 address) {
    return (u64)1 << 62 | (u64)64 << 32 | (u64)1 << 16 | matrix_at(address);
}
DEV u64 rows_operand(u32 address) { return (u64)8 << 32 | (u64)16 << 16 | matrix_at(address); }
DEV u64 x_operand(u32 address) {
    return (u64)(X_GROUP / 16) << 32 | (u64)(X_K / 16) << 16 | matrix_at(address);
}

template <int TRANSPOSED> DEV void wgmma_rows(float (&d)[8], u64 a, u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, 1, 1, 1, %10, 0;"
                 : WRS(0)
                 : "l"(a), "l"(b), "n"(TRANSPOSED));
}

template <int TRANSPOSED> DEV void wgmma_rows(float (&d)[12], u64 a, u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n24k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11}, %12, %13, 1, 1, 1, %14, 0;"
                 : WRS(0), WR(8)
                 : "l"(a), "l"(b), "n"(TRANSPOSED));
}

/* 64 k. */
DEV void issue(float (&d)[8], u32 a, u32 b) {
    const u64 weights = weights_operand(a), rows = rows_operand(b);
#pragma unroll
    for (int i = 0; i < 4; i++) wgmma_rows<0>(d, weights + i * 2, rows + i * 32);
}
DEV void issue_x(float (&d)[X_SUMS], u32 a, u32 b) {
    const u64 weights = weights_operand(a), rows = x_operand(b);
#pragma unroll
    for (int i = 0; i < 4; i++) wgmma_rows<0>(d, weights + i * 2, rows + i * (2 * X_K / 16));
}

/* 64 dims of values, STEPS times 16 keys, [key][64]. */
template <int STEPS> DEV void issue_values(float (&d)[8], u32 a, u32 b) {
    const u64 values = weights_operand(a), rows = rows_operand(b);
#pragma unroll
    for (int i = 0; i < STEPS; i++) wgmma_rows<1>(d, values + i * 128, rows + i * 32);
}

template <int N> DEV void clear(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) d[i] = 0;
}
/* The sums are in their registers from here on. */
template <int N> DEV void hold(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

/* Where chunk `c`, counted from the next one, is in the ring. */
typedef struct place {
    u32 stage, parity;
} place;

DEV place place_of(const worker &w, u32 c) {
    const u32 n = w.chunk + c, turn = n / STAGES;
    return {n - turn * STAGES, turn & 1};
}
DEV void await_chunk(const worker &w, const place &at) {
    await(w.base + AT_BARRIERS + 8 * at.stage, at.parity);
}
DEV void free_stage(const worker &w, u32 stage) { barrier_arrive(w.base + AT_FREE + 8 * stage); }

/* Adds one more chunk to d and frees the stage of the warpgroup's previous one. OVER_X: the operand is x. */
template <int OVER_X, int N>
DEV void add_chunk(float (&d)[N], const worker &w, const place &at, u32 rows, int first, u32 &before) {
    wgmma_begin();
    if constexpr (OVER_X) issue_x(d, w.base + at.stage * STAGE, rows);
    else issue(d, w.base + at.stage * STAGE, rows);
    wgmma_commit();
    if (!first) {
        wgmma_wait<1>();
        if (!w.lane) free_stage(w, before);
    }
    before = at.stage;
}
template <int N> DEV void end_chunks(float (&d)[N], const worker &w, u32 before) {
    wgmma_wait<0>();
    hold(d);
    if (!w.lane) free_stage(w, before);
}

/* d = this warpgroup's share of two tiles over `blocks` times 64 k of the operand. */
DEV void multiply_tiles(float (&d)[8], worker &w, int blocks) {
    u32 before = 0;
    clear(d);
#pragma unroll 2
    for (int c = w.group; c < 2 * blocks; c += 4) {
        const place at = place_of(w, c);
        await_chunk(w, at);
        add_chunk<0>(d, w, at, w.base + AT_OPERAND + (c >> 1) * 2048, c < 4, before);
    }
    end_chunks(d, w, before);
    w.chunk += 2 * blocks;
}

DEV u32 sums_at(const worker &w, int slot, int row, int column) {
    return w.base + AT_SUMS + (u32)((slot * SUM_ROWS + row) * PITCH + column) * 4;
}

template <int N> DEV void store_sums(const float (&d)[N], const worker &w) {
    const u32 at = sums_at(w, w.group, 2 * (w.lane & 3), 16 * w.quarter + (w.lane >> 2));
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const u32 to = at + i * 8 * PITCH * 4;
        store4(to, __float_as_uint(d[4 * i])), store4(to + PITCH * 4, __float_as_uint(d[4 * i + 1]));
        store4(to + 32, __float_as_uint(d[4 * i + 2]));
        store4(to + PITCH * 4 + 32, __float_as_uint(d[4 * i + 3]));
    }
    if constexpr (N == 12) {
        if (w.lane & 3) return;            /* rows 18 to 23 are nothing                                     */
        const u32 to = at + 2 * 8 * PITCH * 4;
        store4(to, __float_as_uint(d[8])), store4(to + PITCH * 4, __float_as_uint(d[9]));
        store4(to + 32, __float_as_uint(d[10])), store4(to + PITCH * 4 + 32, __float_as_uint(d[11]));
    }
}

/* A column's sum over all warpgroups. */
DEV float sum_all(const worker &w, int row, int column) {
    float s = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) s += load4(sums_at(w, i, row, column));
    return s;
}

/* ---- a fifth unit -------------------------------------------------------------------------------------- */

/* 16 columns do not pay a tile of 64: two warps of a warpgroup multiply them with mma.sync, a slice of x
 * each. */
DEV void multiply_fifth(float (&e)[X_GROUPS][4], const worker &w, u32 weights, u32 slice) {
    const int lane = w.lane;
    weights += (lane >> 3 & 1) * 4096 + 2 * w.quarter * 1024 + (lane & 7) * 128;
    slice += SLICE_ROWS + (lane >> 3 & 1) * X_K + (lane & 7) * 16;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        u32 a[4], b[4];
        load_matrix4(a, weights + (i >> 2) * 1024 + ((2 * (i & 3) + (lane >> 4) ^ lane) & 7) * 16);
        load_matrix4(b, slice + (lane >> 4) * X_GROUP + i * 2 * X_K);
        mma16(e[0], a, b[0], b[1]);
        mma16(e[1], a, b[2], b[3]);
        if constexpr (APART) {
            load_matrix4(b, slice + 2 * X_GROUP + i * 2 * X_K);
            mma16(e[2], a, b[0], b[1]);
        }
    }
}

DEV u32 fifth_at(const worker &w, int warp, int row, int column) {
    return w.base + AT_FIFTH + (u32)((warp * SUM_ROWS + row) * 16 + column) * 4;
}

DEV void store_fifth(const float (&e)[X_GROUPS][4], const worker &w) {
    const int g = w.lane >> 2, c = 2 * (w.lane & 3);
#pragma unroll
    for (int i = 0; i < 8; i++)            /* column g or g + 8, rows c, c + 1, and 8 after those           */
        store4(fifth_at(w, 2 * w.group + w.quarter, 8 * (i >> 2) + c + (i & 1), g + 8 * (i >> 1 & 1)),
               __float_as_uint(e[i >> 2][i & 3]));
    if constexpr (APART) {
        if (c) return;
#pragma unroll
        for (int i = 0; i < 4; i++)
            store4(fifth_at(w, 2 * w.group + w.quarter, RESIDENT_ROWS + (i & 1), g + 8 * (i >> 1)),
                   __float_as_uint(e[2][i]));
    }
}

DEV float sum_fifth(const worker &w, int row, int column) {
    float s = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) s += load4(fifth_at(w, i, row, column));
    return s;
}

/* ---- over x -------------------------------------------------------------------------------------------- */

/* d = this warpgroup's share of one tile over x, 16 chunks of 64 k from the own slice on; with `fifth` e has
 * its part of that. */
DEV void multiply_x(float (&d)[X_SUMS], float (&e)[X_GROUPS][4], worker &w, int fifth) {
    const u32 x = w.base + AT_X, slices = w.base + AT_SLICES;
    u32 before = 0;
    clear(d);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (i == 3 && fifth) {
            const place at = place_of(w, 12 + w.group);
            const u32 slice = 2 * fifth_quarter(w.group, w.rank) + w.quarter;
            await_chunk(w, at);
            if (w.quarter < 2) {
                await(slices + 8 * slice, w.parity_x);
                multiply_fifth(e, w, w.base + at.stage * STAGE, x + slice * SLICE);
            }
            if (!w.lane) free_stage(w, at.stage);
        }
        const int c = w.group + 4 * i;
        const place at = place_of(w, i == 3 && fifth ? c + 4 : c);
        const u32 slice = ((c >> 1) + w.rank) & 7;
        await_chunk(w, at);
        await(slices + 8 * slice, w.parity_x);
        add_chunk<1>(d, w, at, x + slice * SLICE + SLICE_ROWS + (c & 1) * 8 * X_K, !i, before);
    }
    end_chunks(d, w, before);
    w.chunk += fifth ? 20 : 16;
}

#endif
