/* Parts of attention in the resident kernels for many rows. A block has a unit of rows and a part of the
 * keys, 64 places; its output, relative to its own keys, goes to memory. Then each block joins the parts of
 * 16 dims of a unit.
 *
 * A unit is a head's rows or, of several samples, one sample's rows of four heads (of all heads where a block
 * has two tiles). */
#ifndef KERNELS_CUDA_LONG_PARTS_CUH
#define KERNELS_CUDA_LONG_PARTS_CUH

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
DEV int row_of_sample(const gpu_resident_long &p, int row) {
    return TILES > 1 ? row % p.each : row & (head_rows(p) - 1);
}
/* Which of the unit's heads it belongs to, and whether it is no sample's. */
DEV int head_of_row(const gpu_resident_long &p, int row) {
    return TILES > 1 ? row / p.each : (row << p.heads_log2) / LONG_ROWS;
}
DEV bool row_is_free(const share &s, int row, int of_sample) {
    return TILES > 1 ? row >= RESIDENT_HEADS * s.rows : of_sample >= s.rows;
}
DEV bool has_keys(const share &s) { return s.part * LONG_PART_KEYS < s.keys; }

/* The part has keys of this launch. */
DEV bool is_fresh(const gpu_resident_long &p, const share &s) {
    return (s.part + 1) * LONG_PART_KEYS > __ldg(p.position + s.first);
}

/* d += A·B, A in registers, B transposed: 64 dims of 16 values. */
DEV void wgmma_dims(float (&d)[32], const u32 *a, u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 WT0 ", " WT1 ", " WT2 ", " WT3 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
                 : WRS(0), WRS(1), WRS(2), WRS(3)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
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

DEV char *part_at(const block &b, const gpu_resident_long &p, int unit, int part) {
    return (char *)b.progress + LONG(PARTS_AT) +
           (size_t)(unit * LONG_PARTS + part) * (HEAD_KGROUPS * 16) * p.unit_height;
}
/* Of a unit's row: the part's largest score, and the sum of its weights. */
DEV float2 *stats_at(const block &b, int unit, int part, int row) {
    return (float2 *)((char *)b.progress + LONG(STATS_AT)) +
           (unit * LONG_PARTS + part) * LONG(TILE_ROWS) + row;
}

/* All consumers: the part's output, which they have left at AT_ROWS. */
DEV void store_part(const block &b, const gpu_resident_long &p, const share &s) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    consumers_meet();
    if (threadIdx.x) return;
    store_bytes(part_at(b, p, s.unit, s.part), b.base + AT_ROWS,
                (u32)(HEAD_KGROUPS * 16 * p.unit_height));
    stored();
}

/* ---- all parts ----------------------------------------------------------------------------------------- */

/* Two threads have 8 dims of a unit's row, each every second part. */
DEV void join_parts(block &b, const gpu_resident_long &p, const share &s) {
    enum { EACH = LONG_PARTS / 2 };
    const int row = threadIdx.x >> 1 & (LONG(TILE_ROWS) - 1), of_sample = row_of_sample(p, row),
              head = s.head + head_of_row(p, row),
              kgroup = 2 * s.part + (threadIdx.x >> 1) / LONG(TILE_ROWS),
              parts = (s.keys + LONG_PART_KEYS - 1) / LONG_PART_KEYS;
    uint4 v[EACH];
    float2 stats[EACH];
    float top = -INFINITY, sum = 0, out[8] = {};
    await_met(b);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int part = 2 * i + (b.lane & 1);
        v[i] = make_uint4(0, 0, 0, 0), stats[i] = make_float2(-INFINITY, 0);
        if (part >= parts || row_is_free(s, row, of_sample)) continue;
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
    if (!row_is_free(s, row, of_sample) && !(b.lane & 1))
        *(uint4 *)row_at(b, LONG(ATTENDED_AT), head * HEAD_KGROUPS + kgroup, s.first + of_sample) =
            make_uint4(pack_bf16(out[0] * f, out[1] * f), pack_bf16(out[2] * f, out[3] * f),
                       pack_bf16(out[4] * f, out[5] * f), pack_bf16(out[6] * f, out[7] * f));
}

#endif
