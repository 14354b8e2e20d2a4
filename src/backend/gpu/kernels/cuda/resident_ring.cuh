/* What a block of the resident kernel does, and the ring through which all that is long comes to it: weights,
 * the prefix' keys and values, fetched by one thread in the order in which they will be used, phases ahead.
 *
 * Shares of a grid of `blocks` in clusters of two:
 *   qkv      unit u of 16 packed columns: block u % blocks
 *   keys     split s of head h: block 16·h + s; the first 16 heads of blocks
 *   gate_up  unit u: from the last block down, so that who has more qkv has less of these
 *   o, down, action embedding: the pair of groups 2·pair, 2·pair + 1 of 8 columns, pairs from the last cluster down; rank r
 *            multiplies the r-th half of k for both groups and finishes group 2·pair + r */
#ifndef KERNELS_CUDA_RESIDENT_RING_CUH
#define KERNELS_CUDA_RESIDENT_RING_CUH

#include "resident_packets.cuh"

typedef struct share {
    int rows, block, blocks, rank;
    int keys, first_new, span, splits;     /* of the sample; places from first_new are this step's            */
    int head, split, begin, mine;          /* keys begin … begin + mine - 1; mine 0: none                     */
    int qkv, gated;                        /* units                                                           */
    int pair, groups, own;                 /* groups of the pair that exist; 1: group 2·pair + rank is mine   */
} share;

DEV int least_blocks(int columns) { return (columns + GPU_ATOM_K - 1) / GPU_ATOM_K; }
DEV int units_of(int units, int first, int blocks) { return first < units ? (units - 1 - first) / blocks + 1 : 0; }

DEV share share_of(const gpu_resident &p) {
    share s;
    s.rows = p.capacity;
    s.keys = __shfl_sync(0xffffffffu, p.keys[0], 0), s.first_new = __shfl_sync(0xffffffffu, p.position[0], 0);
    s.block = blockIdx.x, s.blocks = gridDim.x, s.rank = blockIdx.x & 1;
    s.span = ((s.keys + RESIDENT_SPLITS - 1) / RESIDENT_SPLITS + 7) & ~7;
    s.splits = (s.keys + s.span - 1) / s.span;
    s.head = s.block / RESIDENT_SPLITS, s.split = s.block % RESIDENT_SPLITS;
    s.begin = s.split * s.span;
    s.mine = s.head < p.heads ? max(0, min(s.span, s.keys - s.begin)) : 0;
    s.qkv = units_of((p.heads + 2) * 16, s.block, s.blocks);
    s.gated = units_of(p.mlp / 8, s.blocks - 1 - s.block, s.blocks);
    s.pair = s.blocks / 2 - 1 - s.block / 2;
    s.groups = max(0, min(2, p.width / 8 - 2 * s.pair));
    s.own = s.rank < s.groups;
    return s;
}

/* Rank's part of k: blocks first … first + n - 1 of `blocks`. */
DEV int half_first(int rank, int blocks) { return rank ? (blocks + 1) / 2 : 0; }
DEV int half_count(int rank, int blocks) { return rank ? blocks / 2 : (blocks + 1) / 2; }

typedef struct cursor {
    int stage, stages;
    u32 parity;
} cursor;
DEV void advance(cursor &c) {
    if (++c.stage == c.stages) c.stage = 0, c.parity ^= 1;
}

/* A run of pieces of one kind, each `bytes` long but for the outer loop's last. */
enum { FETCH_WEIGHTS, FETCH_KEYS };
typedef struct segment {
    const char *from;
    const gpu_tensor_map *map;             /* KEYS                                                            */
    size_t inner_step, outer_step;
    int kind, inner, outer, bytes, last;
} segment;

/* Both groups of `count` units of 16 columns, all of k. */
DEV segment unit_segment(const void *weights, int blocks, int first, int step, int count) {
    const size_t group = (size_t)blocks * GPU_ATOM_BYTES;
    const int bytes = blocks * GPU_ATOM_BYTES;
    return {(const char *)weights + 2 * first * group, NULL, group, 2 * step * group, FETCH_WEIGHTS, 2, count, bytes, bytes};
}

/* Blocks first … first + count - 1 of k of the pair's groups, 16 blocks at a time. */
DEV segment pair_segment(const share &s, const void *weights, int blocks, int first, int count) {
    const int outer = (count + 15) / 16;
    return {(const char *)weights + ((size_t)2 * s.pair * blocks + first) * GPU_ATOM_BYTES,
            NULL,
            (size_t)blocks * GPU_ATOM_BYTES,
            RESIDENT_PIECE,
            FETCH_WEIGHTS,
            s.groups,
            outer,
            RESIDENT_PIECE,
            (count - 16 * (outer - 1)) * GPU_ATOM_BYTES};
}

DEV segment keys_segment(const share &s, const gpu_tensor_map *map) {
    return {NULL, map, 0, 0, FETCH_KEYS, 1, (s.mine + RESIDENT_BOX_KEYS - 1) / RESIDENT_BOX_KEYS, RESIDENT_PIECE, RESIDENT_PIECE};
}

/* Segment `i` of a layer; layer -1 is the embedding, `depth` the velocity. */
DEV segment segment_of(const gpu_resident &p, const share &s, int layer, int i) {
    const int wide = least_blocks(p.width), tall = least_blocks(p.mlp), out = p.heads * RESIDENT_HEAD / GPU_ATOM_K,
              last = s.blocks - 1 - s.block;
    segment none = {NULL, NULL, 0, 0, 0, 0, 0, 0, 0};
    if (layer < 0) return i || !p.mlp_out ? none : pair_segment(s, p.mlp_out, wide, 0, wide);
    if (layer == p.depth) {
        return i || !s.own ? none : unit_segment(p.out, wide, 0, 1, RESIDENT_ACTIONS / GPU_UNIT);
    }
    const resident_layer &l = p.layers[layer];
    switch (i) {
    case 0: return unit_segment(l.qkv, wide, s.block, s.blocks, s.qkv);
    case 1: return keys_segment(s, &p.k);
    case 2: return keys_segment(s, &p.v);
    case 3: return pair_segment(s, l.o, out, half_first(s.rank, out), half_count(s.rank, out));
    case 4: return unit_segment(l.gate_up, wide, last, s.blocks, s.gated);
    case 5: return pair_segment(s, l.down, tall, half_first(s.rank, tall), half_count(s.rank, tall));
    }
    return none;
}

/* One thread. full: an arrival and the bytes; empty: an arrival of each reading warp. Never more than `flight` pieces are
 * on their way: more would buy no bandwidth and cost everybody latency. */
DEV void produce(const gpu_resident &p, const share &s, u32 ring, u32 full, u32 empty) {
    cursor at = {0, p.stages, 0}, landed = at;
    int flying = 0;
    u64 once;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(once));
#pragma unroll 1
    for (int n = 0; n < p.steps * (p.depth + 2) * 8; n++) {
        const int layer = (n >> 3) % (p.depth + 2) - 1;
        const segment g = segment_of(p, s, layer, n & 7);
        const int count = g.inner * g.outer;
#pragma unroll 1
        for (int i = 0; i < count; i++) {
            const int outer = g.inner == 2 ? i >> 1 : i, inner = g.inner == 2 ? i & 1 : 0,
                      bytes = outer == g.outer - 1 ? g.last : g.bytes;
            const u32 to = ring + at.stage * RESIDENT_PIECE, there = full + 8 * at.stage;
            barrier_wait(empty + 8 * at.stage, at.parity ^ 1);
            if (flying == p.flight) {
                barrier_wait(full + 8 * landed.stage, landed.parity);
                advance(landed);
            } else {
                flying++;
            }
            barrier_arm(there, bytes);
            advance(at);
            if (g.kind == FETCH_KEYS) {
#pragma unroll 1
                for (int box = 0; box < 4; box++)
                    copy_box3(to + box * RESIDENT_BOX_KEYS * 128, g.map, box * 64, s.begin + i * RESIDENT_BOX_KEYS, layer, there);
            } else {
                asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
                             "[%3], %4;" ::"r"(to),
                             "l"(g.from + inner * g.inner_step + outer * g.outer_step), "r"(bytes), "r"(there), "l"(once)
                             : "memory");
            }
        }
    }
}

#endif
