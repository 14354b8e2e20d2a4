/* Attention of the resident kernel for 64 rows. A block has a unit (a head's rows or, of several samples,
 * one sample's rows of four heads) and a part of the keys, 64 places; its output, relative to its own keys,
 * goes to memory. Then each block joins the parts of 16 dims of a unit.
 *
 * Both warpgroups make the scores of all rows; each multiplies the weights by half of the dims. */
#ifndef KERNELS_CUDA_LONG_ATTENTION_CUH
#define KERNELS_CUDA_LONG_ATTENTION_CUH

#include "long_parts.cuh"

/* ---- the copying warps --------------------------------------------------------------------------------- */

enum { HEAD_SLOTS = RESIDENT_HEAD / LONG_SLOT_K }; /* slots of queries, keys or values                     */

/* Keys and values of earlier tokens, which are there already, come as weights do. */
DEV void feed_places(block &b, const gpu_tensor_map *map, const share &s, int layer) {
#pragma unroll 1
    for (int i = 0; i < HEAD_SLOTS; i++) {
        u32 full;
        const u32 to = begin_weights(b, full);
        copy_box5(to, map, 0, s.part * LONG_PART_KEYS, i * CHUNKS, layer, s.sample, full);
    }
}
/* Those of this launch come after a meeting, as rows do. */
DEV void feed_fresh(block &b, const gpu_tensor_map *map, const share &s, int layer) {
#pragma unroll 1
    for (int i = 0; i < HEAD_SLOTS; i++) {
        u32 full;
        const u32 to = begin_slot(b.rows, ROW_SLOT, SLOT, full);
        copy_box5(to, map, 0, s.part * LONG_PART_KEYS, i * CHUNKS, layer, s.sample, full);
    }
}

/* One thread: what attention reads that other blocks have written. */
DEV void feed_attention(block &b, const gpu_resident_long &p, const share &s, int layer) {
    feed_rows(b, &p.queries, p.unit_height, LONG(Q_AT), s.unit * HEAD_SLOTS, HEAD_SLOTS, 0);
    if (is_fresh(p, s)) feed_fresh(b, &p.k, s, layer), feed_fresh(b, &p.v, s, layer);
}

/* ---- a part of the keys -------------------------------------------------------------------------------- */

/* Where keys or values are: dims 0 … 127 and the others, and what to wait for. */
typedef struct halves {
    u32 at[HEAD_SLOTS], full[HEAD_SLOTS], lap[HEAD_SLOTS];
} halves;
/* which: 0 keys, 1 values. */
DEV halves halves_of(const block &b, int fresh, int which) {
    halves h;
#pragma unroll
    for (int i = 0; i < HEAD_SLOTS; i++) {
        const ring_place row = ring_ahead(b.rows, (1 + which) * HEAD_SLOTS + i),
                    weight = ring_ahead(b.weights, which * HEAD_SLOTS + i);
        h.at[i] = fresh ? ring_address(b.rows, row, ROW_SLOT) : ring_address(b.weights, weight, SLOT);
        h.full[i] = fresh ? ring_full(b.rows, row) : ring_full(b.weights, weight);
        h.lap[i] = fresh ? row.lap : weight.lap;
    }
    return h;
}

/* Places after the last key hold anything, and 0·NaN is NaN: their values become zeros. */
DEV void clear_values(const block &b, const halves &v, int keys) {
#pragma unroll
    for (int i = 0; i < HEAD_SLOTS; i++) {
        uint4 *const boxes = (uint4 *)(b.memory + (v.at[i] - b.base));
        await(v.full[i], v.lap[i]);
        for (int j = keys * 8 + threadIdx.x; j < LONG_PART_KEYS * 8; j += CONSUMERS)
            boxes[j] = boxes[BOX_BYTES / 16 + j] = make_uint4(0, 0, 0, 0);
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    consumers_meet();
}

DEV void multiply_queries(float (&score)[32], const block &b, const halves &k, int height) {
    const u32 chunk = (u32)height * LONG_LINE / 16;
#pragma unroll
    for (int i = 0; i < 32; i++) score[i] = 0;
#pragma unroll
    for (int i = 0; i < HEAD_SLOTS; i++) {
        const ring_place q = ring_ahead(b.rows, i);
        await(k.full[i], k.lap[i]);
        ring_await_full(b.rows, q);
        const u64 rows = rows_operand(ring_address(b.rows, q, ROW_SLOT)), keys = rows_operand(k.at[i]);
        wgmma_begin();
#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                wgmma(score, rows + c * chunk + 2 * j, keys + c * (BOX_BYTES / 16) + 2 * j, 1);
        wgmma_commit();
    }
    wgmma_wait<0>();
    after_wait(score);
}

DEV void multiply_values(float (&out)[2][32], const block &b, const u32 (&a)[4][4], const halves &v) {
#pragma unroll
    for (int i = 0; i < 64; i++) out[i / 32][i % 32] = 0;
    await(b.group ? v.full[1] : v.full[0], b.group ? v.lap[1] : v.lap[0]);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        const u64 values = rows_operand((b.group ? v.at[1] : v.at[0]) + i * BOX_BYTES);
#pragma unroll
        for (int j = 0; j < 4; j++) wgmma_dims(out[i], a[j], values + j * (2048 / 16));
    }
    wgmma_commit();
    wgmma_wait<0>();
    after_wait(out[0]);
    after_wait(out[1]);
}

/* All that attention has read is free. A lane a slot: after a loop the compiler would serialise wgmma. */
DEV void leave_places(block &b, int fresh) {
    const int rows = fresh ? 3 * HEAD_SLOTS : HEAD_SLOTS, weights = fresh ? 0 : 2 * HEAD_SLOTS;
    __syncwarp();
    if (b.lane < rows) barrier_arrive(ring_empty(b.rows, ring_ahead(b.rows, b.lane)));
    if (b.lane < weights) barrier_arrive(ring_empty(b.weights, ring_ahead(b.weights, b.lane)));
    __syncwarp();
    ring_move(b.rows, ring_ahead(b.rows, rows));
    ring_move(b.weights, ring_ahead(b.weights, weights));
}

DEV void attend(block &b, const gpu_resident_long &p, const share &s) {
    const int first = s.part * LONG_PART_KEYS, keys = s.keys - first, fresh = same_in_warp(is_fresh(p, s));
    const halves k = halves_of(b, fresh, 0), v = halves_of(b, fresh, 1);
    int limit[2];
    float score[32], out[2][32], top[2], sum[2];
    u32 a[4][4];
#pragma unroll
    for (int h = 0; h < 2; h++)
        limit[h] = __ldg(p.keys + min(s.first + row_of_sample(p, tile_row(b) + 8 * h), p.rows - 1)) - first -
                   2 * (b.lane & 3);
    await_met(b);
    if (!has_keys(s)) return;
    if (keys < LONG_PART_KEYS) clear_values(b, v, keys);
    multiply_queries(score, b, k, p.unit_height);
#pragma unroll
    for (int h = 0; h < 2; h++) sum[h] = soften(score, h, limit[h], p.scale * 1.4426950408889634f, top[h]);
#pragma unroll
    for (int i = 0; i < 16; i++)
        a[i / 4][i % 4] = pack_bf16(score[2 * i], score[2 * i + 1]);
    multiply_values(out, b, a, v);
    consumers_meet();                      /* nobody reads the rows any more                                */
    be_quiet(b, 1);
    char *const staged = b.memory + AT_ROWS + (b.lane & 3) * 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = tile_row(b) + 8 * h;
        const float f = sum[h] > 0 ? 1 / sum[h] : 0;
        if (row_of_sample(p, row) >= s.rows) continue;
#pragma unroll
        for (int j = 0; j < 16; j++)
            *(u32 *)(staged + ((16 * b.group + j) * p.unit_height + row) * 16) =
                pack_bf16(out[j / 8][4 * (j % 8) + 2 * h] * f, out[j / 8][4 * (j % 8) + 2 * h + 1] * f);
        if (!b.group && !(b.lane & 3)) *stats_at(b, s.unit, s.part, row) = make_float2(top[h], sum[h]);
    }
    store_part(b, p, s);
    leave_places(b, fresh);
}

#endif
