/* Attention of one head in a cluster of the resident denoise kernel. The ranks share the head's dims for q
 * and for the output, and the keys in between:
 *
 *   q, k, v   32 dims of q a rank, in pairs that RoPE rotates -> all ranks; odd ranks, first of all, 16
 *             columns of k or v -> the last ranks of all clusters, through global memory, and the cache
 *   scores    of the rank's keys, two tiles of 64; a warpgroup has one tile and half of the dims
 *   weights   a warp a row; maximum and sum -> all ranks
 *   values    64 dims a warpgroup -> the ranks that own 32 of them each
 *   join      a warp a row, 32 dims -> all ranks
 *
 * Note: the second half of the last rank's second tile are the new keys, 16 places, and after them up to 15
 * old ones that are no whole group. */
#ifndef KERNELS_CUDA_RESIDENT_ATTENTION_CUH
#define KERNELS_CUDA_RESIDENT_ATTENTION_CUH

#include "resident_x.cuh"

typedef struct attention {
    float cos, sin;                        /* angle of the lane's pair of dims at the row's place           */
    int place, visible;                    /* place of the row in the cache; new keys that it attends       */
    int before;                            /* keys before the new ones                                      */
    key_share share;
} attention;

/* New keys are made by the last four warps, 8 lanes a row, which are no rows' owners unless shifts are
 * apart. */
enum { NEW_WARP = RESIDENT_READERS / 32 - 4 };
static_assert(APART || NEW_WARP >= RESIDENT_FEW_ROWS, "warps without a row");
DEV int new_row(const worker &w) { return 4 * (w.warp - NEW_WARP) + (w.lane >> 3); }
/* The lane's pair of dims of k; -1: it has one of v. */
DEV int new_pair(const worker &w) {
    const int unit = new_unit(w.cluster, w.rank);
    return unit < 16 ? 8 * unit + (w.lane & 7) : -1;
}

DEV float2 angle_of(const gpu_resident &p, int place, int pair) {
    if (pair < 0) return make_float2(1, 0);
    return __ldg((const float2 *)p.rope + (size_t)place * (RESIDENT_HEAD / 2) + pair);
}

DEV attention attention_of(const worker &w, const gpu_resident &p) {
    attention a = {1, 0};
    const int makes = !APART && w.warp >= NEW_WARP, row = makes ? new_row(w) : w.warp;
    a.before = __ldg(p.position);
    a.share = share_of(a.before, w.rank);
    if (row >= w.rows) return a;
    a.place = __ldg(p.position + row);
    a.visible = __ldg(p.keys + row) - a.before;
    const float2 angle = angle_of(p, a.place, makes ? new_pair(w) : 16 * w.rank + (w.lane & 15));
    a.cos = angle.x, a.sin = angle.y;
    return a;
}

/* Where 8 dims of a row of a unit of k or v begin among the new ones. Units below 16 are k's, pairs of
 * dims. */
DEV int new_dims(int unit, int second) {
    return unit < 16 ? 8 * unit + second * (RESIDENT_HEAD / 2) : 16 * (unit - 16) + 8 * second;
}
DEV char *new_at(const gpu_resident &p, int layer, int unit, int second, int row) {
    return p.fresh + (size_t)layer * RESIDENT_NEW_BYTES + ((unit >> 4) * RESIDENT_ROWS + row) * 512 +
           new_dims(unit, second) * 2;
}

/* 8 dims of a row and 8 more, in every lane of 8, out of a pair of columns each, after RoPE. */
typedef struct dims {
    uint4 first, second;
} dims;
DEV dims rotated(const float2 &v, float cos, float sin, int lane) {
    return {pack_lanes(v.x * cos - v.y * sin, lane), pack_lanes(v.y * cos + v.x * sin, lane)};
}

/* New keys and values of an odd rank: to the last ranks, and to the cache. */
DEV void send_new(const worker &w, const gpu_resident &p, const attention &at, int layer) {
    const int row = new_row(w), unit = new_unit(w.cluster, w.rank), second = w.lane & 1;
    int place = at.place, shift = w.shift;
    float2 angle = make_float2(at.cos, at.sin);
    if (APART && row < w.rows) {
        place = __ldg(p.position + row);
        shift = first_shift(p) + (known_at(p.known, row, 1) != 0);
        angle = angle_of(p, place, new_pair(w));
    }
    await(w.base + AT_EARLY, w.parity_x);
    const float factor = norm_factor(w, row, p.eps);
    const float2 sums = normed_sums(w, p, QKV_UNITS, BOX, row, shift, 0, factor);
    const dims d = rotated(sums, angle.x, angle.y, w.lane);
    if (row >= w.rows || (w.lane & 7) > 1) return;
    const uint4 v = second ? d.second : d.first;
    char *cache = unit < 16 ? (char *)p.k_cache + layer * p.k_layer : (char *)p.v_cache + layer * p.v_layer;
    put_relaxed(new_at(p, layer, unit, second, row), v);
    *(uint4 *)(cache + (size_t)place * 512 + new_dims(unit, second) * 2) = v;
}

/* The own row's 32 dims of q: lanes 0 to 15. */
DEV void send_q(const worker &w, const gpu_resident &p, const attention &at) {
    const int unit = w.lane >> 3 & 1;
    await(w.base + AT_EARLY, w.parity_x);
    const float factor = norm_factor(w, w.warp, p.eps);
    await(w.base + AT_GIVEN, w.parity_x);
    const float2 sums = normed_sums(w, p, unit * BOX, 2 * BOX, w.warp, w.shift, unit, factor);
    const dims q = rotated(sums, at.cos, at.sin, w.lane);
    if (w.lane < 16) {
        const u32 to = peer_address(w.base + AT_OPERAND + (2 * w.rank + unit) * 256 + w.row_at, w.lane & 7),
                  barrier = peer_address(w.base + AT_Q, w.lane & 7);
        send_words(to, barrier, q.first);
        send_words(to + 16 * 256, barrier, q.second);
    }
}

/* The layer's new keys have been read: their memory becomes again what the next launch expects. */
DEV void forget_new(const worker &w, const gpu_resident &p, int layer) {
    const u32 none = 0xffffffffu;
    if ((w.rank & 1) && (w.lane & ~1) == 16)
        put_relaxed(new_at(p, layer, new_unit(w.cluster, w.rank), w.lane - 16, w.warp),
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

/* The last rank: new keys into shared memory by odd warpgroups, new values by even ones; and old ones that
 * are no whole group, zeros where there is none. Two loads a thread: with four or eight, by fewer warps, it
 * takes longer. */
DEV void fetch_new(const worker &w, const gpu_resident &p, const attention &at, int layer) {
    const int values = !(w.group & 1), u = (w.group >> 1) * 128 + (threadIdx.x & 127),
              whole = at.before & ~(RESIDENT_KEY_GROUP - 1);
    const char *cache = values ? (const char *)p.v_cache + layer * p.v_layer
                               : (const char *)p.k_cache + layer * p.k_layer,
               *from = p.fresh + (size_t)layer * RESIDENT_NEW_BYTES +
                       (size_t)values * (RESIDENT_NEW_BYTES / 2);
    u64 a[2][2];
    uint4 old[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int n = u + 256 * i, place = whole + (n >> 5);
        old[i] = make_uint4(0, 0, 0, 0);
        if (place < at.before) old[i] = __ldcg((const uint4 *)(cache + (size_t)place * 512) + (n & 31));
    }
    for (u32 tries = 0;;) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            a[i][0] = a[i][1] = 0;
            if ((u >> 5) + 8 * i < w.rows) get_relaxed(from + (u + 256 * i) * 16, a[i][0], a[i][1]);
        }
        if (all_there(a[0][0], a[0][1]) && all_there(a[1][0], a[1][1])) break;
        watch(tries);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 2; i++) {
        store_new(w, values * 512 + u + 256 * i, 0,
                  make_uint4((u32)a[i][0], (u32)(a[i][0] >> 32), (u32)a[i][1], (u32)(a[i][1] >> 32)));
        store_new(w, values * 512 + u + 256 * i, 16, old[i]);
    }
    async_fence();
    if (!values) group_sync(3, 256);
}

/* Scores of the warpgroup's tile over its half of the dims. Of the last rank's second tile the ring has rows
 * 0 to 31 at most, the new keys are 32 to 63. */
DEV void scores(worker &w, const attention &at, const place &one, const place &two) {
    const int tile = w.group & 1, half = w.group >> 1, fresh = w.rank == CS - 1 && tile;
    const u32 q = w.base + AT_OPERAND + half * 4096;
    float d[8], e[8];
    clear(d);
    if (!fresh || at.share.groups > 4) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            wgmma_begin();
            issue(d, w.base + (i ? two : one).stage * STAGE, q + i * 2048);
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
    if (w.lane < 2) free_stage(w, w.lane ? two.stage : one.stage);
    advance(w, 8);
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
 * finite values: what the ring held there before, or with int8 weights zeros. */
DEV void values(worker &w, const attention &at, const place &one, const place &two) {
    const u32 weights = w.base + AT_WEIGHTS;
    float d[8];
    clear(d);
    wgmma_begin();
    issue_values<4>(d, w.base + one.stage * STAGE, weights);
    wgmma_commit();
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
    advance(w, 8);
    const int to = 2 * w.group + (w.quarter >> 1), c = w.lane & 3;
    const u32 parts = peer_address(w.base + AT_INBOX + w.rank * 2048 + (w.quarter & 1) * 1024 +
                                       (c * 8 + (w.lane >> 2)) * 16,
                                   to),
              barrier = peer_address(w.base + AT_PARTS, to);
#pragma unroll
    for (int i = 0; i < 2; i++)            /* rows 2c, 2c + 1, and 8 after those                            */
        if (8 * i + 2 * c < w.rows) send_words(parts + 512 * i, barrier,
                   make_uint4(__float_as_uint(d[4 * i]), __float_as_uint(d[4 * i + 1]),
                              __float_as_uint(d[4 * i + 2]), __float_as_uint(d[4 * i + 3])));
}
enum { ROW_PAIR_BYTES = CS * 256, Q_ROW_BYTES = CS * 64 };
DEV u32 parts_bytes(const worker &w) {
    return (u32)(w.rows + 1) / 2 * ROW_PAIR_BYTES + (u32)w.rows * CS * 8;
}
DEV u32 q_bytes(const worker &w) { return (u32)w.rows * Q_ROW_BYTES; }

/* What all ranks send of attention's output: of int8 with a unit a row. */
DEV u32 attended_bytes(const worker &w) { return q_bytes(w) + (INT8 ? (u32)w.rows * CS * 4 : 0); }

/* The lane's number of the rank's 32 dims to all ranks, as digits. */
DEV void send_part(const worker &w, float x) {
    const digit_pair d = digits_of(x);
    const uint4 v = gather_digits(d.q, w.lane);
    const int peer = w.lane & 7;
    const u32 at = peer_address(part_digits(w, w.rank) + (u32)(w.lane >> 4) * 512 + digits_at(w.warp) +
                                    (u32)(w.lane & 8),
                                peer),
              barrier = peer_address(w.base + AT_ATTENDED, peer);
    send_pair(at, barrier, __uint_as_float(v.x), __uint_as_float(v.y));
    send_pair(at + 128, barrier, __uint_as_float(v.z), __uint_as_float(v.w));
    if (w.lane < CS) send_word(peer_address(part_units(w, w.rank) + w.warp * 4, peer), barrier, d.unit);
}

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
    if constexpr (INT8) {
        send_part(w, __fdividef(o, sum));
        return;
    }
    send_words(peer_address(w.base + AT_OPERAND + (4 * w.rank + (lane >> 3)) * 256 + w.row_at, lane & 7),
               peer_address(w.base + AT_ATTENDED, lane & 7), pack_lanes(__fdividef(o, sum), lane));
}

/* From x to the cluster's sums of o. */
DEV void attend(worker &w, const gpu_resident &p, const attention &at, int layer) {
    float d[8];
    expect_boxes(w, p, 2, w.rank & 1);
    readers_meet();
    multiply_qkv(w, p);
    if ((w.rank & 1) && w.warp >= NEW_WARP) send_new(w, p, at, layer);
    __syncwarp();
    if (w.owner) send_q(w, p, at);
    w.parity_x ^= 1;
    if (w.rank == CS - 1) fetch_new(w, p, at, layer);
    place one = place_of(w, w.group), two = place_of(w, w.group + 4);
    await(w.base + AT_Q, w.parity);
    if (!w.warp && !w.lane) barrier_arm(w.base + AT_Q, q_bytes(w));
    await_chunk(w, one), await_chunk(w, two);        /* also where they are empty                           */
    async_fence();
    scores(w, at, one, two);
    readers_meet();
    if (w.owner) softmax(w, p, at);
    async_fence();
    one = place_of(w, w.group), two = place_of(w, w.group + 4);
    await_chunk(w, one), await_chunk(w, two);
    readers_meet();
    values(w, at, one, two);
    if (w.owner) join(w);
    const place first = place_of(w, w.group);
    await(w.base + AT_ATTENDED, w.parity);
    if (!w.warp && !w.lane) barrier_arm(w.base + AT_ATTENDED, attended_bytes(w));
    async_fence();
    multiply_tiles(d, w, RESIDENT_HEAD / (INT8 ? 128 : GPU_ATOM_K), first);
    store_sums(d, w);
    readers_meet();
    if (w.owner) send_sums(w, p, 0);
}

#endif
