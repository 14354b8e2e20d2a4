/* Products of the resident denoise kernel: wgmma with weights as A, straight from the ring, and the rows as
 * its N = 16; over x N = 24 where shifts are apart.
 *
 * Weights keep the layout that all kernels share: atoms of 8 columns x 64 k in the 128-byte swizzle are
 * wgmma's own. Rows lie as [k/8][row][8], core matrices without a swizzle. A chunk belongs to one warpgroup,
 * every fourth one to the same; of products over x a tile, which is two chunks.
 *
 * Note: a chunk is waited for only when all chunks before it in its stage are known to have been used. Else
 * the barrier might still be in the phase before, and its parity would let the wait pass at once. */
#ifndef KERNELS_CUDA_RESIDENT_PRODUCTS_CUH
#define KERNELS_CUDA_RESIDENT_PRODUCTS_CUH

#include "resident_int8.cuh"
#include "backend/gpu/cuda/wgmma.cuh"

/* 64 rows of weights: 8 atoms, one after the other. */
DEV u64 weights_operand(u32 address) { return cluster_operand(address, atom::BYTES); }
DEV u64 rows_operand(u32 address) { return (u64)8 << 32 | (u64)16 << 16 | matrix_at(address); }
DEV u64 x_operand(u32 address) {
    return (u64)(X_GROUP / 16) << 32 | (u64)(X_K / 16) << 16 | matrix_at(address);
}

/* ADD 0: d = A·B. */
template <int TRANSPOSED, int ADD = 1> DEV void wgmma_rows(float (&d)[8], u64 a, u64 b) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %11, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, p, 1, 1, %10, 0;\n}"
                 : WRS(0)
                 : "l"(a), "l"(b), "n"(TRANSPOSED), "n"(ADD));
}

template <int TRANSPOSED, int ADD = 1> DEV void wgmma_rows(float (&d)[12], u64 a, u64 b) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %15, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n24k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11}, %12, %13, p, 1, 1, %14, 0;\n}"
                 : WRS(0), WR(8)
                 : "l"(a), "l"(b), "n"(TRANSPOSED), "n"(ADD));
}

/* 64 k. */
DEV void issue(float (&d)[8], u32 a, u32 b) {
    const u64 weights = weights_operand(a), rows = rows_operand(b);
#pragma unroll
    for (int i = 0; i < atom::STEPS; i++) wgmma_rows<0>(d, weights + i * atom::STEP, rows + i * 32);
}
template <int ADD> DEV void issue_x(float (&d)[X_SUMS], u32 a, u32 b) {
    const u64 weights = weights_operand(a), rows = x_operand(b);
    wgmma_rows<0, ADD>(d, weights, rows);
#pragma unroll
    for (int i = 1; i < atom::STEPS; i++)
        wgmma_rows<0>(d, weights + i * atom::STEP, rows + i * (2 * X_K / 16));
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

/* Where chunk `c`, counted from the next one, is in the ring; at most 20. */
typedef struct place {
    u32 stage, parity;
} place;

DEV place place_of(const worker &w, u32 c) {
    const u32 stages = stages_of(w);
    place at = {w.stage + c, w.lap};
    if (at.stage >= stages) at.stage -= stages, at.parity ^= 1;
    if (APART && at.stage >= stages) at.stage -= stages, at.parity ^= 1;
    return at;
}
DEV void advance(worker &w, u32 chunks) {
    const place at = place_of(w, chunks);
    w.stage = at.stage, w.lap = at.parity;
}
DEV void await_chunk(const worker &w, const place &at) {
    await(w.base + AT_FULL + 8 * at.stage, at.parity);
}
DEV void free_stage(const worker &w, u32 stage) { barrier_arrive(w.base + AT_FREE + 8 * stage); }

/* Adds one more chunk to d and frees the stage of the warpgroup's previous one. */
DEV void add_chunk(float (&d)[8], const worker &w, const place &at, u32 rows, int first, u32 &before) {
    wgmma_begin();
    issue(d, w.base + at.stage * STAGE, rows);
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

/* All lanes of the warp have read the chunk. */
DEV void free_read(const worker &w, const place &at) {
    __syncwarp();
    if (!w.lane) free_stage(w, at.stage);
}

/* d = this warpgroup's share of two tiles over `blocks` times 64 k of the operand, or of int8 128; first: the
 * place of its first chunk, which may be computed before the operand is there, but not waited for: a stage's
 * chunk before that is known to have come only then. */
DEV void multiply_tiles(float (&d)[8], worker &w, int blocks, const place &first) {
    u32 before = 0;
    clear(d);
    if constexpr (INT8) {
#pragma unroll 1
        for (int c = w.group; c < 2 * blocks; c += 4) {
            const place at = place_of(w, c);
            await_chunk(w, at);
            multiply_codes<4, 512>(d, w, at.stage, part_digits(w, 4 * (c >> 1)), part_units(w, 4 * (c >> 1)));
            free_read(w, at);
        }
        advance(w, 2 * blocks);
        return;
    }
    await_chunk(w, first);
    add_chunk(d, w, first, w.base + AT_OPERAND + (w.group >> 1) * 2048, 1, before);
#pragma unroll 2
    for (int c = w.group + 4; c < 2 * blocks; c += 4) {
        const place at = place_of(w, c);
        await_chunk(w, at);
        add_chunk(d, w, at, w.base + AT_OPERAND + (c >> 1) * 2048, 0, before);
    }
    end_chunks(d, w, before);
    advance(w, 2 * blocks);
}

DEV u32 sums_at(const worker &w, int slot, int row, int column) {
    return w.base + AT_SUMS + (u32)((slot * SUM_ROWS + row) * PITCH + column) * 4;
}

DEV void store_sums(const float (&d)[8], const worker &w) {
    const u32 at = sums_at(w, w.group, 2 * (w.lane & 3), 16 * w.quarter + (w.lane >> 2));
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (8 * i + 2 * (w.lane & 3) >= SUM_ROWS) break;
        const u32 to = at + i * 8 * PITCH * 4;
        store4(to, __float_as_uint(d[4 * i])), store4(to + PITCH * 4, __float_as_uint(d[4 * i + 1]));
        store4(to + 32, __float_as_uint(d[4 * i + 2]));
        store4(to + PITCH * 4 + 32, __float_as_uint(d[4 * i + 3]));
    }
}

#endif
