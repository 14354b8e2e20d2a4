/* The ring of the resident denoise kernel: four threads, each of a warp of its own, copy what a block reads
 * in a layer, in the order of use; the multiplying warps free the stages.
 *
 *   a head's block   k and v (2), q (8), keys (8), values (8), o (8), then as any block
 *   any block        gate_up (16), of fifth units (2 or 4), down (8 or 10)
 *   between steps    π0's second product of the embedding (4 in a head's block)
 *   int8             q, k and v 5, o 4, gate_up 8, of second units 4, down 4 or 6
 *
 * Note: a thread's next chunk waits until its previous one has arrived. For `down` two copies may be in
 * flight in blocks that have little of it when x' is there. Anywhere else more than 32 KB a block in flight
 * makes the kernel slower, since the exchanges queue after the weights. The number of stages is a multiple of
 * the number of threads: else a thread could run two laps ahead of another one and ask for a parity too
 * late. */
#ifndef KERNELS_CUDA_RESIDENT_RING_CUH
#define KERNELS_CUDA_RESIDENT_RING_CUH

#include "backend/gpu/cuda/weight_tile.cuh"
#include "resident_block.cuh"

typedef weight_tile<GPU_WEIGHT_BF16> atom;

/* 64 columns, 64 k or of int8 128; chunks of a tile over x, whose k are the rank's 128. */
enum { TILE_BYTES = 8 * atom::BYTES, X_CHUNKS = INT8 ? 1 : 2 };
static_assert(TILE_BYTES <= (int)STAGE, "a chunk holds a tile");

typedef struct ring {
    u32 base;
    u32 stage, parity;                     /* place of the next chunk                                       */
    u32 stages;
    u32 turn, mine;                        /* whose chunk it is; this thread's number                       */
    u32 before, before_parity;             /* this thread's previous chunk, and the one before that         */
    u32 earlier, earlier_parity;
    u32 copied;                            /* how many of them there are                                    */
    u32 two;                               /* two chunks may be in flight, else one                         */
    u64 once, keep;                        /* how the second-level cache treats weights, keys and values    */
} ring;

DEV void copy_box(u32 to, const gpu_tensor_map *map, int a, int b, int c, u32 barrier, u64 policy) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%2, %3, %4}], [%5], %6;"
                 ::"r"(to), "l"(map), "r"(a), "r"(b), "r"(c), "r"(barrier), "l"(policy) : "memory");
}

/* With int8 weights all lanes of the warp have a ring, and one copies. */
DEV int lane_of(void) { return (int)(threadIdx.x & 31); }
DEV int copies(void) { return !INT8 || !lane_of(); }

/* The next chunk: 1 if it is this thread's, which then fills it with `bytes`. */
DEV int next_chunk(ring &r, u32 bytes, u32 &to, u32 &barrier) {
    const u32 stage = r.stage, parity = r.parity, mine = r.turn == r.mine;
    if (++r.turn == RESIDENT_COPIERS) r.turn = 0;
    if (++r.stage == r.stages) r.stage = 0, r.parity ^= 1;
    if (!mine) return 0;
    barrier = r.base + AT_FULL + 8 * stage;
    to = r.base + stage * STAGE;
    await(r.base + AT_FREE + 8 * stage, parity ^ 1);
    if (r.two) {
        if (r.copied > 1) await(r.base + AT_FULL + 8 * r.earlier, r.earlier_parity);
    } else if (r.copied) await(r.base + AT_FULL + 8 * r.before, r.before_parity);
    r.earlier = r.before, r.earlier_parity = r.before_parity;
    r.before = stage, r.before_parity = parity, r.copied++;
    if (copies()) barrier_arm(barrier, bytes);
    return 1;
}

/* ---- scales of int8 weights: a warp copies a chunk's, and all its lanes arrive at its barrier --------- */

/* Each chunk: what the lane has copied so far comes before its arrival. */
DEV void end_chunk(u32 barrier) {
    if constexpr (INT8)
        asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

/* The lane has columns `lane` and `lane` + 32 of a tile, rows `one` and `two` of W; block: which 128 k. */
DEV void copy_scales(const ring &r, u32 to, const float *scales, int k, int block, int one, int two) {
    const int rows[2] = {one, two};
#pragma unroll
    for (int i = 0; i < 2; i++)
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8;"
                     ::"r"(r.base + AT_SCALES + (to - r.base) / (STAGE / RESIDENT_SCALES) +
                           (u32)(lane_of() + 32 * i) * 8),
                       "l"(scales + (size_t)rows[i] * (k / 64) + 2 * block) : "memory");
}

/* The row of W that a packed column is (channels.cuh). */
DEV int gated_row(int column) {
    return column / GPU_UNIT * 8 + (column & 7) + (column >> 3 & 1) * RESIDENT_HIDDEN;
}
DEV int qkv_row(int column) {
    const int head = column / RESIDENT_HEAD, in = column % RESIDENT_HEAD;
    return head > RESIDENT_HEADS
               ? column
               : head * RESIDENT_HEAD + in / GPU_UNIT * 8 + (in & 7) + (in >> 3 & 1) * (RESIDENT_HEAD / 2);
}

/* ---- what is copied ---------------------------------------------------------------------------------- */

/* Tiles of 64 columns over x, each of the rank's 128 k. */
enum { QKV_TILES = 5 };

/* 128 columns over `blocks` of 64 k, or of int8, which has scales, 128: two tiles of 64 columns for each. */
DEV void copy_tiles(ring &r, const gpu_tensor_map *map, int block, int blocks, int group,
                    const float *scales = NULL, int k = 0) {
    u32 to, barrier;
#pragma unroll 1
    for (int c = 0; c < 2 * blocks; c++)
        if (next_chunk(r, TILE_BYTES, to, barrier)) {
            if (copies()) copy_box(to, map, 0, block + (c >> 1), group + 8 * (c & 1), barrier, r.once);
            const int column = 8 * group + 64 * (c & 1) + lane_of();
            if (INT8 && scales) copy_scales(r, to, scales, k, block + (c >> 1), column, column + 32);
            end_chunk(barrier);
        }
}

/* Keys or values: 64 places, 64 dims. FILLED: zeros where there are no groups, copied from beyond the cache:
 * the ring may have codes there, and 0 times these as bf16 may be no number. */
template <int FILLED>
DEV void copy_places(ring &r, const gpu_tensor_map *map, int block, int place, int groups, int layer) {
    u32 to, barrier;
    const int all = FILLED ? 4 : groups;
    if (!next_chunk(r, (u32)all * 2048, to, barrier)) return;
#pragma unroll 1
    for (int g = 0; g < all && copies(); g++)
        copy_box(to + g * 2048, map, block * 64, FILLED && g >= groups ? 1 << 24 : place + 16 * g, layer,
                 barrier, r.keep);
    end_chunk(barrier);
}

/* A rank's share of the keys before the new ones: its first key, and how many groups of 16. */
typedef struct key_share {
    int first, groups;
} key_share;

DEV key_share share_of(int keys, int rank) {
    const int all = keys / RESIDENT_KEY_GROUP,
              each = min((all + CS - 2) / (CS - 1), (int)RESIDENT_BLOCK_GROUPS), left = all - rank * each;
    return {rank * each * RESIDENT_KEY_GROUP, max(0, rank < CS - 1 ? min(left, each) : left)};
}

DEV void copy_keys(ring &r, const gpu_resident &p, const key_share &s, int layer) {
    const int groups[2] = {min(s.groups, 4), max(s.groups - 4, 0)};
#pragma unroll 1
    for (int c = 0; c < 8; c++)
        copy_places<0>(r, &p.k, (c & 2) + (c >> 2), s.first + 64 * (c & 1), c & 1 ? groups[1] : groups[0],
                       layer);
#pragma unroll 1
    for (int c = 0; c < 8; c++)
        copy_places<INT8>(r, &p.v, c & 3, s.first + 64 * (c >> 2), c >> 2 ? groups[1] : groups[0], layer);
}

/* The unit of k or v that an odd rank has besides its two of q. */
DEV int new_unit(int cluster, int rank) { return cluster * 4 + rank / 2; }

DEV void copy_head_layer(ring &r, const gpu_resident &p, int cluster, int rank, int layer, int first,
                         key_share &s) {
    const resident_layer &l = p.layers[layer];
    u32 to, barrier;
#pragma unroll 1
    for (int c = 0; c < X_CHUNKS * QKV_TILES; c++)
        if (next_chunk(r, TILE_BYTES, to, barrier)) {
            const int group = c < X_CHUNKS ? 256 + 2 * new_unit(cluster, 0)
                                           : cluster * 32 + 8 * (c / X_CHUNKS - 1),
                      column = 8 * group + lane_of();
            if (copies())
                copy_box(to, &l.qkv, 0, X_CHUNKS * rank + (c & (X_CHUNKS - 1)), group, barrier, r.once);
            if (INT8)
                copy_scales(r, to, p.scales[layer].qkv, RESIDENT_WIDTH, rank, qkv_row(column),
                            qkv_row(column + 32));
            end_chunk(barrier);
        }
    if (first) {
        wait_before();                     /* the keys are written                                          */
        s = share_of(__ldg(p.position), rank);
    }
    copy_keys(r, p, s, layer);
    copy_tiles(r, &l.o, 2 * X_CHUNKS * cluster, 2 * X_CHUNKS, 16 * rank, p.scales[layer].o,
               RESIDENT_HEADS * RESIDENT_HEAD);
}

/* The first of a cluster's hidden units, in units of 8; how many of its ranks have a fifth one; the first of
 * a rank's, counted from that of the cluster. With int8 weights the last two clusters have 384 hidden values
 * instead of 256, four more units for each of the first four ranks. */
DEV int first_unit(int cluster) {
    if (INT8) return CS * RESIDENT_UNITS * cluster + 16 * max(cluster - (RESIDENT_CLUSTERS - 2), 0);
    return CS * RESIDENT_UNITS * cluster + 4 * max(cluster - RESIDENT_HEADS, 0);
}
DEV int extra_of(int cluster) {
    if (INT8) return cluster < RESIDENT_CLUSTERS - 2 ? 0 : 4;
    return cluster < RESIDENT_HEADS ? 0 : cluster < RESIDENT_CLUSTERS - 1 ? 4 : 8;
}
DEV int rank_unit(int rank, int extra) { return RESIDENT_UNITS * rank + min(rank, extra); }

/* Blocks of 64 k, or of int8 128, that the cluster's hidden units are in; what is not theirs has hidden
 * values 0. */
DEV int hidden_blocks(int extra) { return CS * RESIDENT_UNITS / (INT8 ? 16 : 8) + !!extra; }
/* Where a rank's hidden values are in the operand, in units of 8. */
DEV int hidden_place(int cluster, int rank, int extra) {
    return (first_unit(cluster) & 7) + rank_unit(rank, extra);
}

/* The rank that a block's tile t of gate and up is for: the own one comes last. */
DEV int rank_of_tile(int t, int rank) { return (t + rank + 1) & (CS - 1); }
/* The same of int8: four units, which are 32 hidden values, the rank's or its second ones. */
DEV int part_of_tile(int t, int rank) { return t < CS ? rank_of_tile(t, rank) : t; }

DEV void copy_hidden_layer(ring &r, const gpu_resident &p, int cluster, int rank, int layer) {
    const resident_layer &l = p.layers[layer];
    const int unit = first_unit(cluster), extra = extra_of(cluster);
    u32 to, barrier;
    if constexpr (INT8) {
#pragma unroll 1
        for (int t = 0; t < CS + extra; t++)
            if (next_chunk(r, TILE_BYTES, to, barrier)) {
                const int group = 2 * (unit + RESIDENT_UNITS * part_of_tile(t, rank)),
                          column = 8 * group + lane_of();
                if (copies()) copy_box(to, &l.gate_up, 0, rank, group, barrier, r.once);
                copy_scales(r, to, p.scales[layer].gate_up, RESIDENT_WIDTH, rank, gated_row(column),
                            gated_row(column + 32));
                end_chunk(barrier);
            }
    } else {
#pragma unroll 1
        for (int c = 0; c < 2 * CS; c++)
            if (next_chunk(r, TILE_BYTES, to, barrier))
                copy_box(to, &l.gate_up, 0, 2 * rank + (c & 1),
                         2 * (unit + rank_unit(rank_of_tile(c >> 1, rank), extra)), barrier, r.once);
#pragma unroll 1
        for (int c = 0; c < extra / 2; c++)
            if (next_chunk(r, TILE_BYTES, to, barrier))
#pragma unroll 1
                for (int i = 0; i < 4; i++)
                    copy_box(to + i * 2 * atom::BYTES, &l.fifth, 0, 2 * rank + (c & 1),
                             2 * (unit + rank_unit(4 * (c >> 1) + i, extra) + RESIDENT_UNITS), barrier,
                             r.once);
    }
    r.two = cluster >= RESIDENT_HEADS || rank == CS - 1;
    copy_tiles(r, &l.down, unit / (INT8 ? 16 : 8), hidden_blocks(extra), 16 * rank, p.scales[layer].down,
               RESIDENT_HIDDEN);
    r.two = 0;
}

/* One thread of a copying warp, or of int8 all of them. */
DEV void copy_all(const gpu_resident &p, const worker &w, u32 mine) {
    ring r = {.base = w.base, .stages = stages_of(w), .mine = mine};
    key_share s = {0, 0};
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(r.once));
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(r.keep));
    int layer = 0;
#pragma unroll 1
    for (int left = p.steps * p.depth; left; left--) {
        if (mine == 0 && copies() && layer + 1 < p.depth) {
            const resident_layer &next = p.layers[layer + 1];
            if (w.head) prefetch_map(&next.qkv), prefetch_map(&next.o);
            prefetch_map(&next.gate_up), prefetch_map(&next.down);
            if (w.extra) prefetch_map(&next.fifth);
        }
        if (w.head) copy_head_layer(r, p, w.cluster, w.rank, layer, left == p.steps * p.depth, s);
        copy_hidden_layer(r, p, w.cluster, w.rank, layer);
        if (++layer < p.depth) continue;
        layer = 0;
        if (left > 1 && w.head && p.actions.mlp) copy_tiles(r, &p.mlp, 2 * w.cluster, 2, 16 * w.rank);
    }
}

#endif
