/* Attention of the resident kernel for 96 rows. A block has a sample's rows of all heads, head after head, in
 * two tiles of 64, and 64 keys: both tiles read the same keys and values.
 *
 * The two warpgroups of a tile make the scores of its rows; each multiplies the weights by half of the
 * dims. */
#ifndef KERNELS_CUDA_WIDE_ATTENTION_CUH
#define KERNELS_CUDA_WIDE_ATTENTION_CUH

#include "long_parts.cuh"

enum {
    HEAD_CHUNKS = RESIDENT_HEAD / 64,      /* a slot each of queries, half a one of keys and values         */
    AT_FRESH = 64 * TILES * LONG_LINE,     /* keys as new as the queries, behind these in a slot            */
};
static_assert(AT_FRESH + BOX_BYTES <= ROW_SLOT && HEAD_CHUNKS == ROWS, "queries and new keys are one lap");
static_assert(HEAD_CHUNKS * BOX_BYTES <= LONG(SUMS_BYTES), "new values lie where sums do");

/* ---- the copying warps --------------------------------------------------------------------------------- */

/* Keys or values of earlier tokens, which are there already, come as weights do. */
DEV void feed_places(block &b, const gpu_tensor_map *map, const share &s, int layer) {
#pragma unroll 1
    for (int i = 0; i < HEAD_CHUNKS; i += CHUNKS) {
        u32 full;
        const u32 to = begin_weights(b, full);
        for (int c = 0; c < CHUNKS; c++)
            copy_box5(to + c * BOX_BYTES, map, 0, s.part * LONG_PART_KEYS, i + c, layer, s.sample, full);
    }
}

/* One thread: what attention reads that other blocks have written: queries, and with them keys and values
 * where these are as new. */
DEV void feed_attention(block &b, const gpu_resident_long &p, const share &s, int layer) {
    const bool fresh = is_fresh(p, s);
    const u32 bytes = (u32)p.unit_height * LONG_LINE + (fresh ? 2 * BOX_BYTES : 0);
#pragma unroll 1
    for (int i = 0; i < HEAD_CHUNKS; i++) {
        u32 full;
        const u32 to = begin_slot(b.rows, ROW_SLOT, bytes, full);
        copy_box2(to, &p.queries, 0, LONG(Q_AT) / LONG_LINE + (s.unit * HEAD_CHUNKS + i) * p.unit_height,
                  full);
        if (!fresh) continue;
        copy_box5(to + AT_FRESH, &p.k, 0, s.part * LONG_PART_KEYS, i, layer, s.sample, full);
        copy_box5(b.base + AT_SUMS + i * BOX_BYTES, &p.v, 0, s.part * LONG_PART_KEYS, i, layer, s.sample,
                  full);
    }
}

/* ---- a part of the keys -------------------------------------------------------------------------------- */

/* Where 64 dims of keys or values are, and what to wait for. */
typedef struct box {
    u32 at, full, lap;
} box;
DEV box keys_of(const block &b, int fresh, int i) {
    const ring_place row = ring_ahead(b.rows, i), weight = ring_ahead(b.weights, i / CHUNKS);
    return {fresh ? ring_address(b.rows, row, ROW_SLOT) + AT_FRESH
                  : ring_address(b.weights, weight, SLOT) + i % CHUNKS * BOX_BYTES,
            fresh ? ring_full(b.rows, row) : ring_full(b.weights, weight), fresh ? row.lap : weight.lap};
}
DEV box values_of(const block &b, int fresh, int i) {
    const ring_place row = ring_ahead(b.rows, i),
                     weight = ring_ahead(b.weights, (HEAD_CHUNKS + i) / CHUNKS);
    return {fresh ? b.base + AT_SUMS + i * BOX_BYTES
                  : ring_address(b.weights, weight, SLOT) + i % CHUNKS * BOX_BYTES,
            fresh ? ring_full(b.rows, row) : ring_full(b.weights, weight), fresh ? row.lap : weight.lap};
}

/* Places after the last key hold anything, and 0·NaN is NaN: their values become zeros. */
DEV void clear_values(const block &b, int fresh, int keys) {
#pragma unroll
    for (int i = 0; i < HEAD_CHUNKS; i++) {
        const box v = values_of(b, fresh, i);
        uint4 *const to = (uint4 *)(b.memory + (v.at - b.base));
        await(v.full, v.lap);
        for (int j = keys * 8 + threadIdx.x; j < LONG_PART_KEYS * 8; j += CONSUMERS)
            to[j] = make_uint4(0, 0, 0, 0);
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    consumers_meet();
}

DEV void multiply_queries(float (&score)[32], const block &b, int fresh) {
#pragma unroll
    for (int i = 0; i < 32; i++) score[i] = 0;
#pragma unroll
    for (int i = 0; i < HEAD_CHUNKS; i++) {
        const ring_place q = ring_ahead(b.rows, i);
        const box k = keys_of(b, fresh, i);
        await(k.full, k.lap);
        ring_await_full(b.rows, q);
        const u64 rows = rows_operand(ring_address(b.rows, q, ROW_SLOT) + b.tile * 64 * LONG_LINE),
                  keys = rows_operand(k.at);
        wgmma_begin();
#pragma unroll
        for (int j = 0; j < 4; j++) wgmma(score, rows + 2 * j, keys + 2 * j, 1);
        wgmma_commit();
    }
    wgmma_wait<0>();
    after_wait(score);
}

/* 64 dims of the values, of each row as bf16 pairs, times the row's factor. A half of the warpgroup's dims at
 * a time: both would take more registers than a thread has. */
DEV void multiply_values(u32 (&pairs)[2][8], const block &b, const u32 (&a)[4][4], const box &v,
                         const float (&f)[2]) {
    float out[32];
#pragma unroll
    for (int i = 0; i < 32; i++) out[i] = 0;
    await(v.full, v.lap);
    const u64 values = rows_operand(v.at);
    wgmma_begin();
#pragma unroll
    for (int j = 0; j < 4; j++) wgmma_dims(out, a[j], values + j * (2048 / 16));
    wgmma_commit();
    wgmma_wait<0>();
    after_wait(out);
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int j = 0; j < 8; j++)
            pairs[h][j] = pack_bf16(out[4 * j + 2 * h] * f[h], out[4 * j + 2 * h + 1] * f[h]);
}

/* All that attention has read is free. A lane a slot: after a loop the compiler would serialise wgmma. */
DEV void leave_places(block &b, int fresh) {
    const int weights = fresh ? 0 : 2 * HEAD_CHUNKS / CHUNKS;
    __syncwarp();
    if (b.lane < HEAD_CHUNKS) barrier_arrive(ring_empty(b.rows, ring_ahead(b.rows, b.lane)));
    if (b.lane < weights) barrier_arrive(ring_empty(b.weights, ring_ahead(b.weights, b.lane)));
    __syncwarp();
    ring_move(b.rows, ring_ahead(b.rows, HEAD_CHUNKS));
    ring_move(b.weights, ring_ahead(b.weights, weights));
}

DEV void attend(block &b, const gpu_resident_long &p, const share &s) {
    const int first = s.part * LONG_PART_KEYS, keys = s.keys - first, fresh = same_in_warp(is_fresh(p, s));
    int limit[2];
    float score[32], top[2], sum[2], f[2];
    u32 a[4][4], out[2][2][8];             /* out: of each 64 dims, each row's                              */
#pragma unroll
    for (int h = 0; h < 2; h++)
        limit[h] = __ldg(p.keys + min(s.first + row_of_sample(p, tile_row(b) + 8 * h), p.rows - 1)) - first -
                   2 * (b.lane & 3);
    await_met(b);
    if (!has_keys(s)) return;
    if (keys < LONG_PART_KEYS) clear_values(b, fresh, keys);
    multiply_queries(score, b, fresh);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        sum[h] = soften(score, h, limit[h], p.scale * 1.4426950408889634f, top[h]);
        f[h] = sum[h] > 0 ? 1 / sum[h] : 0;
    }
#pragma unroll
    for (int i = 0; i < 16; i++)
        a[i / 4][i % 4] = pack_bf16(score[2 * i], score[2 * i + 1]);
#pragma unroll
    for (int i = 0; i < 2; i++) multiply_values(out[i], b, a, values_of(b, fresh, 2 * b.group + i), f);
    consumers_meet();                      /* the rows are read                                             */
    be_quiet(b, 1);
    char *const staged = b.memory + AT_ROWS + (b.lane & 3) * 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = tile_row(b) + 8 * h;
        if (row_is_free(s, row, row_of_sample(p, row))) continue;
#pragma unroll
        for (int j = 0; j < 16; j++)
            *(u32 *)(staged + ((16 * b.group + j) * p.unit_height + row) * 16) = out[j / 8][h][j % 8];
        if (!b.group && !(b.lane & 3)) *stats_at(b, s.unit, s.part, row) = make_float2(top[h], sum[h]);
    }
    store_part(b, p, s);
    leave_places(b, fresh);
}

#endif
