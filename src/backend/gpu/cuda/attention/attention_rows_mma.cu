/* Attention of many rows over the cache, bf16 on mma.sync (rows f = row·heads + head and their masks as in
 * attention.cuh). A block takes 16·R rows, 64 keys at a time; its warps stand in R row groups, G key groups:
 *
 *   warp    16 rows x 64/G keys of each tile: queries, scores, weights and all 256 dims of its sums stay in
 *           registers, which are almost all that a thread can have. At the end the key groups' sums are added
 *           in their order.
 *   ring    each key group has three slots for its keys and values by turns, rows of 512 bytes, swizzled. A
 *           slot is free once the group's warps have met behind its products; what comes next into it has a
 *           whole tile's time to arrive. Key groups do not wait for each other: one multiplies while another
 *           weighs. Queries arrive in the last two slots; the sums lie over the rings at the end.
 *   table   behind the rings: sample and number of keys of each row of tokens, up to 64; then maxima and sums
 *           of weights of the key groups
 *   blocks  32·R·G threads; grid = rows·heads / (16·R)
 *   legal   as attention.cuh, keys not split
 *   early   waits before it reads anything but tables
 *
 * attention_rows_mma.c checks what is legal and launches. */
#include "attention.cuh"

enum { SLOTS = 3, TILES = DIM / 8, MOST_TOKENS = 64 };

template <int R_, int G_> struct block_shape {
    enum {
        R = R_, G = G_, ROWS = 16 * R, MINE = KEYS / G, N = MINE / 8,
        SLOT = MINE * 512, RINGS = SLOTS * KEYS * 512,
    };
};

/* A warp's place: row group, key group. */
typedef struct row_warp {
    int lane, rg, kg;
} row_warp;

/* What a thread keeps of its rows g and g + 8: queries, sums of the values, the largest score, the sum of its
 * own weights; and where the rows' tokens stand in the table. Note: what they say is looked up anew for each
 * tile, for want of registers. */
typedef struct row_state {
    u32 q[DIM / 16][4];
    float out[TILES][4], top[2], total[2];
    int first, second;
    const int2 *rows;
} row_state;

/* The warps of a key group have met. */
template <class S> DEV void meet_group(const row_warp &me) { group_sync(1 + me.kg, 32 * S::R); }

/* COUNT rows of 512 bytes, each warp of the key group its share: from `from` on, `stride` elements apart. In
 * the place of rows that are not there comes the last one, which masks hide; beyond a row's end zeros. */
template <class S, int COUNT>
DEV void load_slot(const row_warp &me, const u16 *from, u32 to, int stride, int rows) {
    enum { SHARE = COUNT / S::R };
    const int there = me.lane < stride >> 3, first = me.rg * SHARE;
    const u32 at = to + first * 512 + (me.lane << 4);
    const u16 *own = from + (there ? me.lane * 8 : 0);
#pragma unroll
    for (int i = 0; i < SHARE; i++)
        copy16((at ^ (i & 7) << 4) + i * 512, own + min(first + i, rows - 1) * stride, there);
}

template <class S>
DEV void load_tile(const gpu_cache_attention &p, const row_warp &me, const void *from, u32 to,
                   const key_tile &at) {
    const u16 *first = (const u16 *)from + ((size_t)at.sample * p.capacity + at.key0) * p.head_dim;
    load_slot<S, S::MINE>(me, first, to, p.head_dim, at.keys - at.key0);
}

/* The block's first row, the number of rows; its rows of tokens: the first, the last of those in use, counted
 * from there, and of each its sample and number of keys. Note: this and the two functions below are
 * attention.cuh's cache_rows, keys_of and settle over shared memory, for want of registers. */
typedef struct row_table {
    int f0, total, first_row, last;
    const int2 *rows;
} row_table;

/* The keys of sample s that some row of this block sees. */
DEV int most_keys(const row_table &b, int lane, int s) {
    const int2 low = b.rows[lane], high = b.rows[lane + 32];
    return __reduce_max_sync(0xffffffffu, max(low.x == s ? low.y : 0, high.x == s ? high.y : 0));
}

/* On to the next sample that has keys left; `at.sample` > last_sample at the end. */
DEV void settle_tile(key_tile &at, const row_table &b, int lane, int last_sample, int begin) {
    while (at.key0 >= at.keys && ++at.sample <= last_sample)
        at.key0 = begin, at.keys = most_keys(b, lane, at.sample);
}

/* The place of row i's token in the table; of rows that are not there the last one's. */
DEV int token_of(const gpu_cache_attention &p, const row_table &b, int i) {
    return min(b.f0 + i, b.total - 1) / p.heads - b.first_row;
}

DEV void begin_state(row_state &w, const gpu_cache_attention &p, const row_warp &me, const row_table &b,
                     u32 q_at) {
#pragma unroll
    for (int s = 0; s < DIM / 16; s++)
        load_matrix4(w.q[s], row512(q_at, me.rg * 16 + (me.lane & 15), 2 * s + (me.lane >> 4)));
    w.rows = b.rows;
    w.first = token_of(p, b, me.rg * 16 + (me.lane >> 2));
    w.second = token_of(p, b, me.rg * 16 + (me.lane >> 2) + 8);
    w.top[0] = w.top[1] = -INFINITY, w.total[0] = w.total[1] = 0;
#pragma unroll
    for (int n = 0; n < TILES; n++) w.out[n][0] = w.out[n][1] = w.out[n][2] = w.out[n][3] = 0;
}

/* score = q·Kᵀ over the warp's keys of the tile at k. */
template <class S>
DEV void score_keys(float (&score)[S::N][4], const row_state &w, const row_warp &me, u32 k) {
    const u32 from = row512(k, (me.lane & 7) + ((me.lane >> 4) << 3), me.lane >> 3 & 1);
#pragma unroll
    for (int s = 0; s < DIM / 16; s++) {
#pragma unroll
        for (int n = 0; n < S::N; n += 2) {
            u32 b[4];
            load_matrix4(b, (from ^ s << 5) + n * 8 * 512);
            mma16(score[n], w.q[s], b[0], b[1]);
            mma16(score[n + 1], w.q[s], b[2], b[3]);
        }
    }
}

/* A row's keys in the warp's share of the tile, counted from the thread's first. */
template <class S>
DEV void find_limits(int (&limit)[2], const row_state &w, const row_warp &me, const key_tile &at) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int2 row = w.rows[h ? w.second : w.first];
        limit[h] = (row.x == at.sample ? row.y : 0) - at.key0 - 2 * (me.lane & 3);
    }
}

template <class S> DEV void mask_keys(float (&score)[S::N][4], const int (&limit)[2]) {
#pragma unroll
    for (int i = 0; i < S::N * 4; i++)
        if (i / 4 * 8 + i % 2 >= limit[i / 2 % 2]) score[i / 4][i % 4] = -INFINITY;
}

/* How much larger than their maximum scores may become, in powers of two, before the sums shrink. */
enum { GROWTH = 8 };

/* Scores into weights relative to the row's maximum, or to an earlier one that is not much smaller; where it
 * has grown, what was summed before shrinks. */
template <class S> DEV void weigh_keys(float (&score)[S::N][4], row_state &w, float scale) {
    float shrink[2];
    int grown[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float m = -INFINITY, sum = 0;
#pragma unroll
        for (int i = 0; i < S::N * 2; i++) m = fmaxf(m, score[i / 2][2 * h + i % 2]);
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2)) * scale;
        grown[h] = m > w.top[h] + GROWTH;
        shrink[h] = grown[h] ? exp2_fast(w.top[h] - m) : 1;
        if (grown[h]) w.top[h] = m;
        const float base = w.top[h] == -INFINITY ? 0 : w.top[h];
#pragma unroll
        for (int i = 0; i < S::N * 2; i++) {
            float &s = score[i / 2][2 * h + i % 2];
            s = exp2_fast(s * scale - base);
            sum += s;
        }
        w.total[h] = w.total[h] * shrink[h] + sum;
    }
    if (!__reduce_max_sync(0xffffffffu, grown[0] | grown[1])) return;
#pragma unroll
    for (int n = 0; n < TILES; n++)
        w.out[n][0] *= shrink[0], w.out[n][1] *= shrink[0], w.out[n][2] *= shrink[1],
            w.out[n][3] *= shrink[1];
}

/* out += weights·V over the warp's keys of the tile at v. */
template <class S>
DEV void sum_values(row_state &w, const float (&score)[S::N][4], const row_warp &me, u32 v) {
    const u32 from = row512(v, me.lane & 15, me.lane >> 4);
#pragma unroll
    for (int s = 0; s < S::N / 2; s++) {
        const u32 a[4] = {pack_bf16(score[2 * s][0], score[2 * s][1]),
                          pack_bf16(score[2 * s][2], score[2 * s][3]),
                          pack_bf16(score[2 * s + 1][0], score[2 * s + 1][1]),
                          pack_bf16(score[2 * s + 1][2], score[2 * s + 1][3])};
#pragma unroll
        for (int n = 0; n < TILES; n += 2) {
            u32 b[4];
            load_transposed4(b, (from ^ n << 4) + s * 16 * 512);
            mma16(w.out[n], a, b[0], b[1]);
            mma16(w.out[n + 1], a, b[2], b[3]);
        }
    }
}

/* A key group's sums as its threads hold them: [R][32 fours][32 lanes]; then each row's maximum and sum of
 * weights. */
template <class S> DEV float4 *box_of(char *memory, const row_warp &me, int kg) {
    return (float4 *)memory + ((kg - 1) * S::R + me.rg) * TILES * 32 + me.lane;
}
template <class S> DEV float2 *stats_of(char *memory, const row_warp &me, int kg, int h) {
    return (float2 *)(memory + S::RINGS) + (kg - 1) * S::ROWS + me.rg * 16 + h * 8 + (me.lane >> 2);
}

template <class S> DEV void leave_sums(const row_state &w, const row_warp &me, char *memory) {
#pragma unroll
    for (int h = 0; h < 2; h++)
        if (!(me.lane & 3)) *stats_of<S>(memory, me, me.kg, h) = make_float2(w.top[h], w.total[h]);
    float4 *to = box_of<S>(memory, me, me.kg);
#pragma unroll
    for (int n = 0; n < TILES; n++)
        to[n * 32] = make_float4(w.out[n][0], w.out[n][1], w.out[n][2], w.out[n][3]);
}

/* What the key groups' sums of row g + 8·h are multiplied with; w.total: of all of them. */
template <class S>
DEV void weigh_groups(float (&weight)[S::G][2], row_state &w, const row_warp &me, char *memory, int h) {
    float2 stats[S::G];
    stats[0] = make_float2(w.top[h], w.total[h]);
    float top = w.top[h];
#pragma unroll
    for (int g = 1; g < S::G; g++) {
        stats[g] = *stats_of<S>(memory, me, g, h);
        top = fmaxf(top, stats[g].x);
    }
    w.total[h] = 0;
#pragma unroll
    for (int g = 0; g < S::G; g++) {
        weight[g][h] = exp2_fast(stats[g].x - top);
        w.total[h] += stats[g].y * weight[g][h];
    }
}

/* The sums of all key groups, in the warps of the first. */
template <class S> DEV void join_groups(row_state &w, const row_warp &me, char *memory) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        w.total[h] += __shfl_xor_sync(0xffffffffu, w.total[h], 1);
        w.total[h] += __shfl_xor_sync(0xffffffffu, w.total[h], 2);
    }
    __syncthreads();                       /* rings and table have been read                                */
    if (me.kg) leave_sums<S>(w, me, memory);
    __syncthreads();
    if (me.kg) return;
    float weight[S::G][2];
    weigh_groups<S>(weight, w, me, memory, 0);
    weigh_groups<S>(weight, w, me, memory, 1);
#pragma unroll
    for (int n = 0; n < TILES; n++) {
        float *o = w.out[n];
        o[0] *= weight[0][0], o[1] *= weight[0][0], o[2] *= weight[0][1], o[3] *= weight[0][1];
#pragma unroll
        for (int g = 1; g < S::G; g++) {
            const float4 more = box_of<S>(memory, me, g)[n * 32];
            o[0] += more.x * weight[g][0], o[1] += more.y * weight[g][0];
            o[2] += more.z * weight[g][1], o[3] += more.w * weight[g][1];
        }
    }
}

DEV void store_state(const gpu_cache_attention &p, const row_state &w, const row_warp &me, int f0) {
    const int first = f0 + me.rg * 16 + (me.lane >> 2), total = __ldg(p.count) * p.heads;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int f = first + h * 8;
        const float factor = 1 / w.total[h];
        u16 *to = (u16 *)p.out + (size_t)f * p.head_dim + 2 * (me.lane & 3);
        if (f >= total) continue;
#pragma unroll
        for (int n = 0; n < TILES; n++)
            if (n * 8 < p.head_dim)
                *(u32 *)(to + n * 8) = pack_bf16(w.out[n][2 * h] * factor, w.out[n][2 * h + 1] * factor);
    }
}

/* The block's rows. 0: there are none. */
template <class S> DEV int find_rows(row_table &b, int2 *table, const gpu_cache_attention &p) {
    b.rows = table;
    b.f0 = blockIdx.x * S::ROWS;
    b.first_row = b.f0 / p.heads;
    b.total = __ldg(p.count) * p.heads;
    if (b.f0 >= b.total) return 0;
    b.last = (min(b.f0 + S::ROWS, b.total) - 1) / p.heads - b.first_row;
    if (threadIdx.x < MOST_TOKENS) {
        const int r = b.first_row + min((int)threadIdx.x, b.last);
        table[threadIdx.x] = make_int2(__ldg(p.sample + r), __ldg(p.keys + r));
    }
    __syncthreads();
    return 1;
}

template <class S> DEV void attend_many(const gpu_cache_attention &p) {
    extern __shared__ __align__(1024) char memory[];
    /* Note: the shuffle tells the compiler that it is the same in the whole warp, which saves registers. */
    const int warp = __shfl_sync(0xffffffffu, (int)threadIdx.x >> 5, 0);
    const row_warp me = {(int)threadIdx.x & 31, warp % S::R, warp / S::R};
    row_table rows;
    const int any = find_rows<S>(rows, (int2 *)(memory + S::RINGS), p);
    wait_before();
    if (!any) return;
    const int last = rows.rows[rows.last].x, begin = me.kg * S::MINE;
    key_tile at = {rows.rows[0].x, begin, most_keys(rows, me.lane, rows.rows[0].x)};
    settle_tile(at, rows, me.lane, last, begin);
    u32 k = shared_address(memory) + me.kg * SLOTS * S::SLOT, v = k + S::SLOT, free = v + S::SLOT;
    load_slot<S, S::ROWS>(me, (const u16 *)p.q + (size_t)rows.f0 * p.head_dim, v, p.head_dim,
                          rows.total - rows.f0);
    if (at.sample <= last) load_tile<S>(p, me, p.k, k, at);
    copy_commit();
    start_next();
    copy_wait<0>();
    meet_group<S>(me);
    row_state w;
    begin_state(w, p, me, rows, v);
    meet_group<S>(me);                     /* queries are in registers                                      */
    if (at.sample <= last) load_tile<S>(p, me, p.v, v, at);
    copy_commit();

    const float scale = p.scale * 1.4426950408889634f;
    while (at.sample <= last) {
        key_tile next = {at.sample, at.key0 + KEYS, at.keys};
        settle_tile(next, rows, me.lane, last, begin);
        const bool more = next.sample <= last;
        if (more) load_tile<S>(p, me, p.k, free, next);
        copy_commit();
        int limit[2];
        float score[S::N][4] = {};
        find_limits<S>(limit, w, me, at);
        const int cut = __reduce_max_sync(0xffffffffu, min(limit[0], limit[1]) < S::MINE);
        score_keys<S>(score, w, me, k);
        if (cut) mask_keys<S>(score, limit);
        weigh_keys<S>(score, w, scale);
        copy_wait<1>();
        meet_group<S>(me);                 /* V has arrived, K is free                                      */
        if (more) load_tile<S>(p, me, p.v, k, next);
        copy_commit();
        sum_values<S>(w, score, me, v);
        copy_wait<1>();
        meet_group<S>(me);                 /* the next K has arrived, V is free                             */
        const u32 was = k;
        k = free, free = v, v = was;
        at = next;
    }
    join_groups<S>(w, me, memory);
    if (!me.kg) store_state(p, w, me, blockIdx.x * S::ROWS);
}

KERNEL(256, 1) attention_rows_64(const __grid_constant__ gpu_cache_attention p) {
    attend_many<block_shape<4, 2>>(p);
}
KERNEL(256, 1) attention_rows_32(const __grid_constant__ gpu_cache_attention p) {
    attend_many<block_shape<2, 4>>(p);
}
