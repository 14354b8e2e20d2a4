/* Attention of the resident kernel for many rows. A block has a unit (a head's rows or, of several samples,
 * one sample's rows of four heads) and a part of the keys, 64 places; its output, relative to its own keys,
 * goes to memory. Then each block joins the parts of 16 dims of a unit.
 *
 * Both warpgroups make the scores of all rows; each multiplies the weights by half of the dims. */
#ifndef KERNELS_CUDA_LONG_ATTENTION_CUH
#define KERNELS_CUDA_LONG_ATTENTION_CUH

#include "long_products.cuh"

/* The block's unit and part; of the unit, places with a key. */
typedef struct share {
    int unit, part, keys;
    int sample, head;                      /* head: its first one                                           */
    int first, rows;                       /* rows of the sample that are in use                            */
} share;

/* A whole warp. */
DEV share share_of(const block &b, const gpu_resident_long &p) {
    const int unit = b.rank / LONG_PARTS, head = unit << p.heads_log2,
              sample = head / RESIDENT_HEADS, used = sample * p.each < b.used;
    share s = {.unit = unit, .part = b.rank % LONG_PARTS, .keys = 0, .sample = sample,
               .head = head % RESIDENT_HEADS, .first = used ? sample * p.each : 0,
               .rows = used ? p.each : 0};
    for (int r = b.lane; r < s.rows; r += 32) s.keys = max(s.keys, __ldg(p.keys + s.first + r));
    s.keys = __reduce_max_sync(0xffffffffu, s.keys);
    return s;
}
/* Of a unit's row: which of the sample's rows it is. */
DEV int row_of_sample(const gpu_resident_long &p, int row) { return row & (head_rows(p) - 1); }
DEV bool has_keys(const share &s) { return s.part * LONG_PART_KEYS < s.keys; }

/* ---- the copying warps --------------------------------------------------------------------------------- */

/* The part has keys of this launch. */
DEV bool is_fresh(const gpu_resident_long &p, const share &s) {
    return (s.part + 1) * LONG_PART_KEYS > __ldg(p.position + s.first);
}

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
        const u32 to = begin_slot(b.rows, SLOT, full);
        copy_box5(to, map, 0, s.part * LONG_PART_KEYS, i * CHUNKS, layer, s.sample, full);
    }
}

/* ---- a part of the keys -------------------------------------------------------------------------------- */

/* d += A·B, A in registers, B transposed: 64 dims of 16 values. */
DEV void wgmma_dims(float (&d)[32], const u32 *a, u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 WT0 ", " WT1 ", " WT2 ", " WT3 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
                 : WRS(0), WRS(1), WRS(2), WRS(3)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

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
        h.at[i] = fresh ? ring_address(b.rows, row, SLOT) : ring_address(b.weights, weight, SLOT);
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
        for (int j = keys * 8 + threadIdx.x; j < LONG_PART_KEYS * 8; j += LONG_CONSUMERS)
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
        const u64 rows = rows_operand(ring_address(b.rows, q, SLOT)), keys = rows_operand(k.at[i]);
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

/* Scores of row h into weights; keys from `limit` on get none. Returns what they add up to; top: the largest
 * score, scaled. */
DEV float soften(float (&score)[32], int h, int limit, float scale, float &top) {
    float sum = 0;
    top = -INFINITY;
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float &x = score[4 * j + 2 * h + i];
            x = 8 * j + i < limit ? x * scale : -INFINITY;
            top = fmaxf(top, x);
        }
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    const float base = top == -INFINITY ? 0 : top;
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float &x = score[4 * j + 2 * h + i];
            x = exp2_fast(x - base);
            sum += x;
        }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    return sum + __shfl_xor_sync(0xffffffffu, sum, 2);
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

DEV char *part_at(const block &b, const gpu_resident_long &p, int unit, int part) {
    return (char *)b.progress + LONG_PARTS_AT +
           (size_t)(unit * LONG_PARTS + part) * (HEAD_KGROUPS * 16) * p.unit_height;
}
/* Of a unit's row: the part's largest score, and the sum of its weights. */
DEV float2 *stats_at(const block &b, int unit, int part, int row) {
    return (float2 *)((char *)b.progress + LONG_STATS_AT) + (unit * LONG_PARTS + part) * LONG_ROWS + row;
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
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    consumers_meet();
    if (!threadIdx.x) {
        store_bytes(part_at(b, p, s.unit, s.part), b.base + AT_ROWS,
                    (u32)(HEAD_KGROUPS * 16 * p.unit_height));
        stored();
    }
    leave_places(b, fresh);
}

/* ---- all parts ----------------------------------------------------------------------------------------- */

/* Two threads have 8 dims of a unit's row, each every second part. */
DEV void join_parts(block &b, const gpu_resident_long &p, const share &s) {
    enum { EACH = LONG_PARTS / 2 };
    const int row = threadIdx.x >> 1 & (LONG_ROWS - 1), of_sample = row_of_sample(p, row),
              head = s.head + (row << p.heads_log2) / LONG_ROWS,
              kgroup = 2 * s.part + (threadIdx.x >> 1) / LONG_ROWS,
              parts = (s.keys + LONG_PART_KEYS - 1) / LONG_PART_KEYS;
    uint4 v[EACH];
    float2 stats[EACH];
    float top = -INFINITY, sum = 0, out[8] = {};
    await_met(b);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int part = 2 * i + (b.lane & 1);
        v[i] = make_uint4(0, 0, 0, 0), stats[i] = make_float2(-INFINITY, 0);
        if (part >= parts || of_sample >= s.rows) continue;
        v[i] = __ldcg((const uint4 *)(part_at(b, p, s.unit, part) + (kgroup * p.unit_height + row) * 16));
        stats[i] = __ldcg(stats_at(b, s.unit, part, row));
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) top = fmaxf(top, stats[i].x);
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const float weight = stats[i].y > 0 ? exp2_fast(stats[i].x - top) * stats[i].y : 0;
        const u32 pairs[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
        sum += weight;
#pragma unroll
        for (int j = 0; j < 4; j++)
            out[2 * j] += weight * low_of(pairs[j]), out[2 * j + 1] += weight * high_of(pairs[j]);
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
#pragma unroll
    for (int j = 0; j < 8; j++) out[j] += __shfl_xor_sync(0xffffffffu, out[j], 1);
    const float f = 1 / sum;
    if (of_sample < s.rows && !(b.lane & 1))
        *(uint4 *)row_at(b, LONG_ATTENDED_AT, head * HEAD_KGROUPS + kgroup, s.first + of_sample) =
            make_uint4(pack_bf16(out[0] * f, out[1] * f), pack_bf16(out[2] * f, out[3] * f),
                       pack_bf16(out[4] * f, out[5] * f), pack_bf16(out[6] * f, out[7] * f));
}

#endif
