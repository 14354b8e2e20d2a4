/* Attention of one head in a cluster of the resident denoise kernel. The ranks share the head's dims for q
 * and for the output, and the keys in between:
 *
 *   q, k, v   32 dims of q a rank, in pairs that RoPE rotates -> all ranks; odd ranks 16 columns of k or v ->
 *             the last ranks of all clusters, through global memory, and the cache
 *   scores    of the rank's keys, two tiles of 64; a warpgroup has one tile and half of the dims
 *   weights   a warp a row; maximum and sum -> all ranks
 *   values    64 dims a warpgroup -> the ranks that own 32 of them each
 *   join      a warp a row, 32 dims -> all ranks
 *
 * Note: the second half of the last rank's second tile are the new keys, 16 places, and after them up to 15
 * old ones that are no whole group. */
#ifndef KERNELS_CUDA_RESIDENT_ATTENTION_CUH
#define KERNELS_CUDA_RESIDENT_ATTENTION_CUH

#include "resident_exchange.cuh"

typedef struct attention {
    float cos, sin;                        /* of the lane's pair of dims, in the row's place                */
    int place, visible;                    /* of the row in the cache; how many new keys it attends         */
    int before;                            /* keys before the new ones                                      */
    key_share share;
} attention;

DEV attention attention_of(const worker &w, const gpu_resident &p) {
    attention a = {1, 0};
    a.before = __ldg(p.position);
    a.share = share_of(a.before, w.rank);
    if (!w.owner) return a;
    const int unit = new_unit(w.cluster, w.rank), lane = w.lane;
    const int pair = lane < 16                                ? 16 * w.rank + lane
                     : lane < 24 && (w.rank & 1) && unit < 16 ? 8 * unit + (lane & 7)
                                                              : -1;
    a.place = __ldg(p.position + w.warp);
    a.visible = __ldg(p.keys + w.warp) - a.before;
    if (pair >= 0) {
        const float2 angle = __ldg((const float2 *)p.rope + (size_t)a.place * (RESIDENT_HEAD / 2) + pair);
        a.cos = angle.x, a.sin = angle.y;
    }
    return a;
}

/* Where 8 dims of a row of a unit of k or v begin among the new ones. Units below 16 are k's, pairs of
 * dims. */
DEV int new_dims(int unit, int second) {
    return unit < 16 ? 8 * unit + second * (RESIDENT_HEAD / 2) : 16 * (unit - 16) + 8 * second;
}
DEV char *new_at(const worker &w, const gpu_resident &p, int layer, int unit, int second) {
    return p.fresh + (size_t)layer * RESIDENT_NEW_BYTES + ((unit >> 4) * RESIDENT_ROWS + w.warp) * 512 +
           new_dims(unit, second) * 2;
}

/* q, k and v of the own row out of the sums. */
DEV void send_qkv(const worker &w, const gpu_resident &p, const attention &at, int layer) {
    const int low = (w.lane >> 3) * 16 + (w.lane & 7);
    const float f = norm_factor(w, p.eps);
    float a = sum_all(w, w.warp, low) * f, b = sum_all(w, w.warp, low + 8) * f;
    if (p.shifts) a += sum_all(w, w.shift, low), b += sum_all(w, w.shift, low + 8);
    const uint4 first = pack_lanes(a * at.cos - b * at.sin, w.lane),
                second = pack_lanes(b * at.cos + a * at.sin, w.lane);
    if (w.lane < 16) {
        const u32 to = peer_address(w.base + AT_OPERAND + (2 * w.rank + (w.lane >> 3)) * 256 + w.row_at,
                                    w.lane & 7),
                  barrier = peer_address(w.base + AT_Q, w.lane & 7);
        send_words(to, barrier, first);
        send_words(to + 16 * 256, barrier, second);
    } else if (w.lane < 18 && (w.rank & 1)) {
        const int unit = new_unit(w.cluster, w.rank), other = w.lane - 16;
        const uint4 v = other ? second : first;
        char *cache = unit < 16 ? (char *)p.k_cache + layer * p.k_layer
                                : (char *)p.v_cache + layer * p.v_layer;
        put_relaxed(new_at(w, p, layer, unit, other), v);
        *(uint4 *)(cache + (size_t)at.place * 512 + new_dims(unit, other) * 2) = v;
    }
}

/* The layer's new keys have been read: their memory becomes again what the next launch expects. */
DEV void forget_new(const worker &w, const gpu_resident &p, int layer) {
    const u32 none = 0xffffffffu;
    if ((w.rank & 1) && (w.lane & ~1) == 16)
        put_relaxed(new_at(w, p, layer, new_unit(w.cluster, w.rank), w.lane - 16),
                    make_uint4(none, none, none, none));
}

/* 16 bytes of a key or value into [dim/64][32 keys][64], swizzled. u: which, of [k, v][16 keys][32 units]. */
DEV void store_new(const worker &w, int u, int after, uint4 v) {
    const int unit = u & 31, key = after + (u >> 5 & 15);
    store16(w.base + (u >> 9 ? AT_NEW_V : AT_NEW_K) + (unit >> 3) * (NEW_KEYS * 128) + key * 128 +
                (((unit ^ key) & 7) << 4),
            v);
}

DEV int all_there(u64 a, u64 b) {
    return (u32)a != ~0u && (u32)(a >> 32) != ~0u && (u32)b != ~0u && (u32)(b >> 32) != ~0u;
}

/* New keys and values into shared memory, by the last rank's odd warpgroups; zeros where there is no key. */
DEV void fetch_new(const worker &w, const gpu_resident &p, const attention &at, int layer) {
    const int u = (w.group >> 1) * 128 + w.quarter * 32 + w.lane,
              whole = at.before & ~(RESIDENT_KEY_GROUP - 1);
    const char *new_ones = p.fresh + (size_t)layer * RESIDENT_NEW_BYTES;
    u64 a[4][2];
    uint4 old[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int n = u + 256 * i, place = whole + (n >> 5 & 15);
        const char *cache = (n >> 9 ? (const char *)p.v_cache + layer * p.v_layer
                                    : (const char *)p.k_cache + layer * p.k_layer);
        old[i] = make_uint4(0, 0, 0, 0);
        if (place < at.before) old[i] = __ldcg((const uint4 *)(cache + (size_t)place * 512) + (n & 31));
    }
    for (u32 tries = 0;;) {
        int there = 1;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int n = u + 256 * i;
            a[i][0] = a[i][1] = 0;
            if ((n >> 5 & 15) < w.rows) get_relaxed(new_ones + n * 16, a[i][0], a[i][1]);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) there &= all_there(a[i][0], a[i][1]);
        if (there) break;
        watch(tries);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; i++) {
        store_new(w, u + 256 * i, 0,
                  make_uint4((u32)a[i][0], (u32)(a[i][0] >> 32), (u32)a[i][1], (u32)(a[i][1] >> 32)));
        store_new(w, u + 256 * i, 16, old[i]);
    }
    async_fence();
    group_sync(3, 256);
}

/* Scores of the warpgroup's tile over its half of the dims. Of the last rank's second tile the ring has rows
 * 0 to 31 at most, the new keys are 32 to 63. */
DEV void scores(worker &w, const attention &at) {
    const int tile = w.group & 1, half = w.group >> 1, fresh = w.rank == CS - 1 && tile;
    const u32 q = w.base + AT_OPERAND + half * 4096;
    float d[8], e[8];
    clear(d);
    await_chunk(w, place_of(w, w.group));  /* awaited before it is freed, also where it is empty            */
    await_chunk(w, place_of(w, w.group + 4));
    if (!fresh || at.share.groups > 4) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const place from = place_of(w, w.group + 4 * i);
            wgmma_begin();
            issue(d, w.base + from.stage * STAGE, q + i * 2048);
            wgmma_commit();
        }
        wgmma_wait<0>();
        hold(d);
    }
    if (fresh) {
        clear(e);
        wgmma_begin();
        for (int i = 0; i < 2; i++)
            issue(e, w.base + AT_NEW_K + ((2 * half + i) * NEW_KEYS - 32) * 128, q + i * 2048);
        wgmma_commit();
        wgmma_wait<0>();
        hold(e);
        if (w.quarter >= 2) {
#pragma unroll
            for (int i = 0; i < 8; i++) d[i] = e[i];
        }
    }
    if (w.lane < 2) free_stage(w, place_of(w, w.group + 4 * w.lane).stage);
    w.chunk += 8;
    store_sums(d, w);
}

/* The row's weights, relative to the rank's maximum. */
DEV void softmax(const worker &w, const gpu_resident &p, const attention &at) {
    const int lane = w.lane, first = min(at.share.groups, 4) * 16, second = (at.share.groups - 4) * 16,
              fresh = w.rank == CS - 1;
    const float scale = p.scale * 1.4426950408889634f;
    float v[4];
#pragma unroll
    for (int tile = 0; tile < 2; tile++) {
        const float2 a = load8(sums_at(w, tile, w.warp, 2 * lane)),
                     b = load8(sums_at(w, tile + 2, w.warp, 2 * lane));
        v[2 * tile] = (a.x + b.x) * scale, v[2 * tile + 1] = (a.y + b.y) * scale;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int key = 2 * lane + (i & 1);
        const int there = i < 2                ? key < first
                          : !fresh || key < 32 ? key < second
                          : key < 48           ? key < 32 + at.visible
                                               : key < 48 + (at.before & 15);
        if (!there) v[i] = -INFINITY;
    }
    const float top = fmaxf(warp_max(fmaxf(fmaxf(v[0], v[1]), fmaxf(v[2], v[3]))), -1e30f);
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = exp2_fast(v[i] - top);
    const u32 to = w.base + AT_WEIGHTS + (lane >> 2) * 256 + w.row_at + (lane & 3) * 4;
    store4(to, pack_bf16(v[0], v[1]));
    store4(to + 8 * 256, pack_bf16(v[2], v[3]));
    const float sum = warp_sum(v[0] + v[1] + v[2] + v[3]);
    if (lane < CS)
        send_pair(peer_address(w.base + AT_STATS + (w.rank * RESIDENT_ROWS + w.warp) * 8, lane),
                  peer_address(w.base + AT_PARTS, lane), top, sum);
}

/* 64 dims of the rank's values, each half to the rank that owns it. Places without a key have weight 0 and
 * finite values: what the ring held there before. */
DEV void values(worker &w, const attention &at) {
    const u32 weights = w.base + AT_WEIGHTS;
    const place one = place_of(w, w.group), two = place_of(w, w.group + 4);
    float d[8];
    clear(d);
    await_chunk(w, one);
    wgmma_begin();
    issue_values<4>(d, w.base + one.stage * STAGE, weights);
    wgmma_commit();
    await_chunk(w, two);
    wgmma_begin();
    if (w.rank < CS - 1) {
        issue_values<4>(d, w.base + two.stage * STAGE, weights + 2048);
    } else {
        if (at.share.groups > 4) issue_values<2>(d, w.base + two.stage * STAGE, weights + 2048);
        issue_values<2>(d, w.base + AT_NEW_V + w.group * (NEW_KEYS * 128), weights + 3072);
    }
    wgmma_commit();
    wgmma_wait<0>();
    hold(d);
    if (w.lane < 2) free_stage(w, w.lane ? two.stage : one.stage);
    w.chunk += 8;
    const int to = 2 * w.group + (w.quarter >> 1), c = w.lane & 3;
    const u32 parts = peer_address(w.base + AT_INBOX + w.rank * 2048 + (w.quarter & 1) * 1024 +
                                       (c * 8 + (w.lane >> 2)) * 16,
                                   to),
              barrier = peer_address(w.base + AT_PARTS, to);
#pragma unroll
    for (int i = 0; i < 2; i++)            /* rows 2c, 2c + 1, and 8 after those                            */
        send_words(parts + 512 * i, barrier,
                   make_uint4(__float_as_uint(d[4 * i]), __float_as_uint(d[4 * i + 1]),
                              __float_as_uint(d[4 * i + 2]), __float_as_uint(d[4 * i + 3])));
}
enum { PART_BYTES = CS * 2048, Q_ROW_BYTES = CS * 64 };
DEV u32 parts_bytes(const worker &w) { return PART_BYTES + (u32)w.rows * CS * 8; }
DEV u32 q_bytes(const worker &w) { return (u32)w.rows * Q_ROW_BYTES; }

/* The row's 32 dims over all ranks. */
DEV void join(const worker &w) {
    const int lane = w.lane, row = w.warp;
    await(w.base + AT_PARTS, w.parity);
    if (!w.warp && !lane) barrier_arm(w.base + AT_PARTS, parts_bytes(w));
    const u32 at = w.base + AT_INBOX + (lane >> 4) * 1024 + (row >> 3) * 512 +
                   (((row & 7) >> 1) * 8 + (lane & 7)) * 16 + ((lane >> 3 & 1) * 2 + (row & 1)) * 4;
    float2 stats[CS];
    float top = -INFINITY, sum = 0, o = 0;
#pragma unroll
    for (int i = 0; i < CS; i++)
        stats[i] = load8(w.base + AT_STATS + (i * RESIDENT_ROWS + row) * 8), top = fmaxf(top, stats[i].x);
#pragma unroll
    for (int i = 0; i < CS; i++) {
        const float f = exp2_fast(stats[i].x - top);
        sum += f * stats[i].y, o += f * load4(at + i * 2048);
    }
    send_words(peer_address(w.base + AT_OPERAND + (4 * w.rank + (lane >> 3)) * 256 + w.row_at, lane & 7),
               peer_address(w.base + AT_ATTENDED, lane & 7), pack_lanes(__fdividef(o, sum), lane));
}

/* From x to the cluster's sums of o. */
DEV void attend(worker &w, const gpu_resident &p, const attention &at, int layer) {
    float d[8], qkv[X_SUMS], none[X_GROUPS][4];
    multiply_x(qkv, none, w, 0);
    await_own_slice(w);
    store_sums(qkv, w);
    readers_meet();
    arm_slices(w);
    if (w.owner) send_qkv(w, p, at, layer);
    w.parity_x ^= 1;
    if (w.rank == CS - 1 && (w.group & 1)) fetch_new(w, p, at, layer);
    await(w.base + AT_Q, w.parity);
    if (!w.warp && !w.lane) barrier_arm(w.base + AT_Q, q_bytes(w));
    async_fence();
    scores(w, at);
    readers_meet();
    if (w.owner) softmax(w, p, at);
    async_fence();
    readers_meet();
    values(w, at);
    if (w.owner) join(w);
    await(w.base + AT_ATTENDED, w.parity);
    if (!w.warp && !w.lane) barrier_arm(w.base + AT_ATTENDED, q_bytes(w));
    async_fence();
    multiply_tiles(d, w, RESIDENT_HEAD / GPU_ATOM_K);
    store_sums(d, w);
    readers_meet();
    if (w.owner) send_sums(w, p, 0);
}

#endif
