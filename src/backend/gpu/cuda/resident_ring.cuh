/* The ring of the resident denoise kernel: four threads, each of a warp of its own, copy what a block reads
 * in a layer, in the order of use; the multiplying warps free the stages.
 *
 *   a head's block   qkv, half a slice of x each (16 chunks), keys (8), values (8), o (8), then as any block
 *   any block        gate_up, half a slice of x each (16), before the last four those of a fifth unit (4),
 *                    down (8 or 10)
 *   between steps    π0's second product of the embedding (4 in a head's block)
 *
 * Note: a thread's next chunk waits until its previous one has arrived. More than 32 KB a block in flight
 * makes the kernel slower, since the exchanges queue after the weights: 6 threads and 18 stages cost 5 %. The
 * number of stages is a multiple of the number of threads: else a thread could run two laps ahead of another
 * one and ask for a parity too late. */
#ifndef KERNELS_CUDA_RESIDENT_RING_CUH
#define KERNELS_CUDA_RESIDENT_RING_CUH

#include "resident_block.cuh"

typedef struct ring {
    u32 base;
    u32 stage, parity;                     /* of the next chunk                                             */
    u32 turn, mine;                        /* whose chunk it is; this thread's number                       */
    u32 before, before_parity, any;        /* this thread's previous chunk, if any                          */
    u64 once, keep;                        /* how the second-level cache treats weights, keys and values    */
} ring;

DEV void copy_box(u32 to, const gpu_tensor_map *map, int a, int b, int c, u32 barrier, u64 policy) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%2, %3, %4}], [%5], %6;"
                 ::"r"(to), "l"(map), "r"(a), "r"(b), "r"(c), "r"(barrier), "l"(policy) : "memory");
}

/* The next chunk: 1 if it is this thread's, which then fills it with `bytes`. */
DEV int next_chunk(ring &r, u32 bytes, u32 &to, u32 &barrier) {
    const u32 stage = r.stage, parity = r.parity, mine = r.turn == r.mine;
    if (++r.turn == RESIDENT_COPIERS) r.turn = 0;
    if (++r.stage == STAGES) r.stage = 0, r.parity ^= 1;
    if (!mine) return 0;
    barrier = r.base + AT_BARRIERS + 8 * stage;
    to = r.base + stage * STAGE;
    await(r.base + AT_FREE + 8 * stage, parity ^ 1);
    if (r.any) await(r.base + AT_BARRIERS + 8 * r.before, r.before_parity);
    r.before = stage, r.before_parity = parity, r.any = 1;
    barrier_arm(barrier, bytes);
    return 1;
}

/* 128 columns over `blocks` of 64 k: two tiles of 64 columns for each. */
DEV void copy_tiles(ring &r, const gpu_tensor_map *map, int block, int blocks, int group) {
    u32 to, barrier;
#pragma unroll 1
    for (int c = 0; c < 2 * blocks; c++)
        if (next_chunk(r, 8192, to, barrier))
            copy_box(to, map, 0, block + (c >> 1), group + 8 * (c & 1), barrier, r.once);
}

/* Keys or values: 64 places, 64 dims. */
DEV void copy_places(ring &r, const gpu_tensor_map *map, int block, int place, int groups, int layer) {
    u32 to, barrier;
    if (!next_chunk(r, (u32)groups * 2048, to, barrier)) return;
#pragma unroll 1
    for (int g = 0; g < groups; g++)
        copy_box(to + g * 2048, map, block * 64, place + 16 * g, layer, barrier, r.keep);
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
        copy_places(r, &p.k, (c & 2) + (c >> 2), s.first + 64 * (c & 1), c & 1 ? groups[1] : groups[0],
                    layer);
#pragma unroll 1
    for (int c = 0; c < 8; c++)
        copy_places(r, &p.v, c & 3, s.first + 64 * (c >> 2), c >> 2 ? groups[1] : groups[0], layer);
}

/* The columns of qkv that the block has after its 32 of q: odd ranks a unit of k or v. */
DEV int qkv_units(int rank) { return 2 + (rank & 1); }
DEV int new_unit(int cluster, int rank) { return cluster * 4 + rank / 2; }

DEV void copy_head_layer(ring &r, const gpu_resident &p, int cluster, int rank, int layer, int first,
                         key_share &s) {
    const resident_layer &l = p.layers[layer];
    u32 to, barrier;
#pragma unroll 1
    for (int c = 0; c < 16; c++) {
        if (!next_chunk(r, (u32)qkv_units(rank) * 2048, to, barrier)) continue;
        const int k = (c + 2 * rank) & 15, q = cluster * 32 + rank * 4;
        copy_box(to, &l.qkv, 0, k, q, barrier, r.once);
        copy_box(to + 2048, &l.qkv, 0, k, q + 2, barrier, r.once);
        if (rank & 1) copy_box(to + 4096, &l.qkv, 0, k, 256 + 2 * new_unit(cluster, rank), barrier, r.once);
    }
    if (first) {
        wait_before();                     /* the keys are written                                          */
        s = share_of(__ldg(p.position), rank);
    }
    copy_keys(r, p, s, layer);
    copy_tiles(r, &l.o, 4 * cluster, 4, 16 * rank);
}

/* The first of a cluster's hidden units, in units of 8. */
DEV int first_unit(int cluster) {
    const int wide = min(max(cluster - RESIDENT_HEADS, 0), (int)RESIDENT_WIDE_CLUSTERS);
    return CS * (cluster * RESIDENT_UNITS + wide);
}

/* The quarter of k that chunk f of a fifth unit has. */
DEV int fifth_quarter(int f, int rank) { return (f + rank / 2) & 3; }

DEV void copy_hidden_layer(ring &r, const gpu_resident &p, int cluster, int rank, int units, int layer) {
    const resident_layer &l = p.layers[layer];
    const int unit = first_unit(cluster), group = 2 * (unit + rank * units);
    u32 to, barrier;
#pragma unroll 1
    for (int c = 0; c < 16; c++) {
        if (c == 12 && units > RESIDENT_UNITS)
#pragma unroll 1
            for (int f = 0; f < 4; f++)
                if (next_chunk(r, 8192, to, barrier))
                    copy_box(to, &l.fifth, 0, 4 * fifth_quarter(f, rank), group + 2 * RESIDENT_UNITS, barrier,
                             r.once);
        if (next_chunk(r, 8192, to, barrier))
            copy_box(to, &l.gate_up, 0, (c + 2 * rank) & 15, group, barrier, r.once);
    }
    copy_tiles(r, &l.down, unit / 8, units, 16 * rank);
}

/* One thread of a copying warp. */
DEV void copy_all(const gpu_resident &p, const worker &w, u32 mine) {
    ring r = {.base = w.base, .mine = mine};
    key_share s = {0, 0};
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(r.once));
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(r.keep));
    int layer = 0;
#pragma unroll 1
    for (int left = p.steps * p.depth; left; left--) {
        if (mine == 0 && layer + 1 < p.depth) {
            const resident_layer &next = p.layers[layer + 1];
            if (w.head) prefetch_map(&next.qkv), prefetch_map(&next.o);
            prefetch_map(&next.gate_up), prefetch_map(&next.down);
            if (w.units > RESIDENT_UNITS) prefetch_map(&next.fifth);
        }
        if (w.head) copy_head_layer(r, p, w.cluster, w.rank, layer, left == p.steps * p.depth, s);
        copy_hidden_layer(r, p, w.cluster, w.rank, w.units, layer);
        if (++layer < p.depth) continue;
        layer = 0;
        if (left > 1 && w.head && p.actions.mlp) copy_tiles(r, &p.mlp, 2 * w.cluster, 2, 16 * w.rank);
    }
}

#endif
