/* Attention over the cache on Hopper: two kernels.
 *
 * attention_cluster: few rows (the denoise loop). A cluster of up to 16 blocks takes 16 rows; block `rank`
 * attends the keys rank·span … of each row (attention.cuh), and the cluster joins the parts. The first eight
 * blocks own 32 of the 256 dims each: every block sends its unscaled sums of those dims, and all its maxima
 * and sums of weights, by st.async onto the owner's barrier; the owner adds what has arrived, in the order of
 * ranks. There is no second kernel and nothing passes through global memory. What arrives lies over Q and K,
 * which the whole cluster has read by then, so that two blocks fit beside a block of the kernel before.
 *
 *   blocks   cluster = splits (8 to 16) blocks of 128 threads; grid = 16-row tiles x splits
 *   legal    as attention.cuh; 8 to 16 blocks a cluster (more than 8 must be allowed for the kernel)
 *   early    as attention.cuh; the barrier is initialised and the next weights are prefetched before
 *            wait_before()
 *
 * attention_wgmma: many rows (the prefix). A block takes 64 of the rows f = row·heads + head; two warpgroups
 * take the tiles of 64 keys alternately, each with a K and a V buffer of its own, so that one multiplies
 * while the other computes its softmax; in the end each warpgroup finishes half of the dims.
 *
 *   thread 256   copies Q and K tiles   scores = Q·Kᵀ   Q, K in shared memory: 4 boxes of [64 rows][64 dims]
 *   thread 288   copies V tiles         out += P·V      P in registers, V as stored (transposed operand)
 *
 *   blocks   384 threads: warpgroups 0 and 1 multiply, warps 0 and 1 of warpgroup 2 copy; grid = 64-row tiles
 *   legal    bf16, head_dim 256
 *   early    only the tables of rows, which no kernel writes, are read before wait_before(); start_next()
 *            comes first of all, since the block holds a whole multiprocessor anyway
 *
 * Rows of several samples: as in attention.cuh. Note: places of the cache after a sample's keys hold
 * anything, and 0·NaN is NaN, so these rows of V are cleared in shared memory first.
 *
 * attention_hopper.c checks what is legal and launches. */
#include "attention.cuh"
#include "backend/gpu/cuda/wgmma.cuh"
#include "backend/gpu/cuda/hopper.cuh"

/* ---- few rows: a cluster ------------------------------------------------------------------------------- */

enum { OWNERS = 8 };

/* Where the parts arrive in every owner: [rank][4 blocks of 8 dims][32 lanes], 16 bytes each, then
 * [rank][16 rows] of (maximum, sum), 16 bytes each. */
typedef struct cluster_inbox {
    char *memory;
    u32 parts, stats, full;                /* addresses; full: the barrier that counts their bytes          */
} cluster_inbox;

/* The block's maxima and sums of weights to all owners, its sums of dims to the owner of each. */
DEV void send_parts(const cluster_inbox &to, const attended &a, int rank, int kg, int lane, int g, int t) {
    if (t < 2) {                           /* rows g and g + 8, to four owners a lane                       */
#pragma unroll
        for (int i = 0; i < OWNERS / 4; i++) {
            const u32 owner = kg * 2 + i;
            const float top = t ? a.top[1] : a.top[0], sum = t ? a.sum[1] : a.sum[0];
            send16(peer_address(to.stats + (rank * 16 + t * 8 + g) * 16, owner), peer_address(to.full, owner),
                   top, sum, 0, 0);
        }
    }
#pragma unroll
    for (int n = 0; n < 8; n++) {          /* dims 64·kg + 8·n …: owner 2·kg + n / 4                        */
        const u32 owner = kg * 2 + n / 4;
        send16(peer_address(to.parts + ((rank * 4 + n % 4) * 32 + lane) * 16, owner),
               peer_address(to.full, owner), a.out[n][0], a.out[n][1], a.out[n][2], a.out[n][3]);
    }
}

/* An owner's end: warp kg joins block kg of the 32 dims over all ranks and stores it. */
DEV void join_parts(const gpu_cache_attention &p, const cluster_inbox &in, const attended &a, int rank,
                    int kg, int lane, int g, int t, int d) {
    const float2 *stats = (const float2 *)(in.memory + p.splits * 2048);
    float top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0}, out[4] = {0, 0, 0, 0};
#pragma unroll 4
    for (int s = 0; s < p.splits; s++)
#pragma unroll
        for (int h = 0; h < 2; h++) top[h] = fmaxf(top[h], stats[(s * 16 + h * 8 + g) * 2].x);
#pragma unroll 4
    for (int s = 0; s < p.splits; s++) {
        const float4 v = *(const float4 *)(in.memory + ((s * 4 + kg) * 32 + lane) * 16);
        const float2 low = stats[(s * 16 + g) * 2], high = stats[(s * 16 + 8 + g) * 2];
        const float w0 = exp2_fast(low.x - top[0]), w1 = exp2_fast(high.x - top[1]);
        sum[0] += low.y * w0, sum[1] += high.y * w1;
        out[0] += v.x * w0, out[1] += v.y * w0, out[2] += v.z * w1, out[3] += v.w * w1;
    }
    const int i = rank * 32 + kg * 8 + 2 * t;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int f = a.f0 + h * 8 + g;
        const float factor = 1 / sum[h];
        if (f < a.total && i < d)
            *(u32 *)((u16 *)p.out + (size_t)f * d + i) =
                pack_bf16(out[2 * h] * factor, out[2 * h + 1] * factor);
    }
}

/* The block's Q and K may be written over, and its barrier is initialised. */
struct keys_end {
    static __device__ __forceinline__ void free(void) { cluster_arrive(); }
};

KERNEL(128) attention_cluster(const __grid_constant__ gpu_cache_attention p) {
    extern __shared__ __align__(1024) char cluster_memory[];
    __shared__ __align__(8) u64 barriers[1];
    const int tid = threadIdx.x, lane = tid & 31, g = lane >> 2, t = lane & 3, kg = tid >> 5, d = p.head_dim,
              rank = cluster_rank();
    const u32 parts = shared_address(cluster_memory);
    const cluster_inbox inbox = {cluster_memory, parts, parts + p.splits * 2048, shared_address(barriers)};
    attended a;

    if (!tid) {
        barrier_init(inbox.full, 1);
        barrier_init_done();
    }
    if (tid == 32) fetch_ahead(p.ahead);
    const int begin = rank * p.span;
    /* without rows: the same in the whole cluster */
    if (!attend_cache<1, keys_end>(p, blockIdx.x / p.splits, begin, begin + p.span, a)) return;
    cluster_wait();
    send_parts(inbox, a, rank, kg, lane, g, t);
    if (rank >= OWNERS) return;
    if (!tid) barrier_arm(inbox.full, p.splits * (2048 + 256));    /* bytes that arrived earlier count too  */
    barrier_wait(inbox.full, 0);
    join_parts(p, inbox, a, rank, kg, lane, g, t, d);
}

/* ---- many rows: two warpgroups ------------------------------------------------------------------------- */

enum { TILE_BYTES = 64 * 512, BOX_BYTES = 64 * 128, WGMMA_BARRIERS = 10 };

/* Addresses in shared memory: Q, two K tiles, two V tiles, and the barriers. Tile i of K and V is warpgroup
 * i's. */
typedef struct wgmma_memory {
    u32 q, k, v;
    u32 q_full, k_full, k_empty, v_full, v_empty;  /* k_full … v_empty: two each                            */
    u32 halves;                            /* both warpgroups have written what the other finishes          */
} wgmma_memory;

DEV wgmma_memory wgmma_memory_of(const char *tiles, const u64 *barriers) {
    wgmma_memory m;
    m.q = shared_address(tiles), m.k = m.q + TILE_BYTES, m.v = m.k + 2 * TILE_BYTES;
    m.q_full = shared_address(barriers), m.k_full = m.q_full + 8, m.k_empty = m.k_full + 16,
    m.v_full = m.k_empty + 16, m.v_empty = m.v_full + 16, m.halves = m.v_empty + 16;
    return m;
}

/* One thread: the maps come nearer, the barriers are made. */
DEV void prepare_copies(const gpu_wgmma_attention &w, const wgmma_memory &m) {
    prefetch_map(&w.q);
    prefetch_map(&w.k);
    prefetch_map(&w.v);
    barrier_init(m.q_full, 1);
    barrier_init(m.halves, 256);
    for (int i = 0; i < 2; i++) {
        barrier_init(m.k_full + 8 * i, 1);
        barrier_init(m.v_full + 8 * i, 1);
        barrier_init(m.k_empty + 8 * i, 4);
        barrier_init(m.v_empty + 8 * i, 4);
    }
    barrier_init_done();
}

/* The rows of a block and their samples. */
typedef struct wgmma_rows {
    int f0, total;
    int first_row, last_row, first_sample, last_sample;
} wgmma_rows;

/* Most keys that one of the block's rows of sample s sees. */
DEV int most_keys(const gpu_cache_attention &p, const wgmma_rows &b, int lane, int s) {
    int n = 0;
    for (int r = b.first_row + lane; r <= b.last_row; r += 32)
        if (p.sample[r] == s) n = max(n, p.keys[r]);
    return __reduce_max_sync(0xffffffffu, n);
}

/* The copying warpgroup: warp 0 copies Q and the K tiles, warp 1 the V tiles. */
DEV void copy_tiles(const gpu_wgmma_attention &w, const wgmma_memory &m, const wgmma_rows &b, int tid,
                    int lane) {
    const int which = tid >> 5 & 3;
    if (which > 1) return;
    if (tid == 256) {
        barrier_arm(m.q_full, TILE_BYTES);
        for (int i = 0; i < 4; i++) copy_box2(m.q + i * BOX_BYTES, &w.q, i * 64, b.f0, m.q_full);
    }
    const u32 to = which ? m.v : m.k;
    const u32 full = which ? m.v_full : m.k_full, empty = which ? m.v_empty : m.k_empty;
    const gpu_tensor_map *map = which ? &w.v : &w.k;
    int item = 0;
    for (int s = b.first_sample; s <= b.last_sample; s++) {
        const int keys = most_keys(w.attention, b, lane, s);
        for (int key0 = 0; key0 < keys; key0 += KEYS, item++) {
            const int i = item & 1;
            if (lane) continue;
            barrier_wait(empty + 8 * i, (item >> 1 & 1) ^ 1);
            barrier_arm(full + 8 * i, TILE_BYTES);
            for (int c = 0; c < 4; c++)
                copy_box3(to + i * TILE_BYTES + c * BOX_BYTES, map, c * 64, key0, s, full + 8 * i);
        }
    }
}

/* Scores of 64 rows x 64 keys. */
DEV void multiply_keys(float (&score)[32], u32 q, u32 k) {
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < DIM / 16; i++)
        wgmma(score, wgmma_operand(q + i / 4 * BOX_BYTES + i % 4 * 32),
              wgmma_operand(k + i / 4 * BOX_BYTES + i % 4 * 32), i);
    wgmma_commit();
    wgmma_wait<0>();
}

/* Scores of one of the thread's two rows (h) into weights, relative to the row's new maximum; keys from
 * `limit` on have none. Returns the factor by which everything summed before shrinks. */
DEV float soften_row(float (&score)[32], int h, int limit, float scale, float &top, float &sum) {
    float m = top;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float &x = score[4 * n + 2 * h + i];
            x = n * 8 + i < limit ? x * scale : -INFINITY;
            m = fmaxf(m, x);
        }
    m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
    m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
    const float base = m == -INFINITY ? 0 : m;
    float part = 0;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float &x = score[4 * n + 2 * h + i];
            x = exp2_fast(x - base);
            part += x;
        }
    const float shrink = exp2_fast(top - base);
    sum = sum * shrink + part;
    top = m;
    return shrink;
}

DEV void shrink_sums(float (&out)[128], const float (&shrink)[2]) {
    if (__any_sync(0xffffffffu, shrink[0] != 1 || shrink[1] != 1)) {
#pragma unroll
        for (int n = 0; n < 32; n++) {
            out[4 * n] *= shrink[0], out[4 * n + 1] *= shrink[0];
            out[4 * n + 2] *= shrink[1], out[4 * n + 3] *= shrink[1];
        }
    }
}

/* Rows of V from `keys` on become zeros. */
DEV void clear_values(char *v, int keys, int tid, int barrier) {
    for (int i = tid & 127; i < (KEYS - keys) * 32; i += 128) {
        const int r = keys + (i >> 5), c = i & 31;
        *(uint4 *)(v + (c >> 3) * BOX_BYTES + r * 128 + (c & 7) * 16) = make_uint4(0, 0, 0, 0);
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    group_sync(barrier, 128);
}

/* out += P·V over 64 keys. */
DEV void add_values(float (&out)[128], const u32 (&a)[4][4], u32 v) {
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < 4; i++) wgmma_values(out, a[i], wgmma_transposed(v + i * 2048, BOX_BYTES));
    wgmma_commit();
    wgmma_wait<0>();
}

/* A thread of a warpgroup: its warp has 16 of the 64 rows, the thread rows g and g + 8 of these. */
typedef struct wgmma_thread {
    int tid, lane, group, warp, g, t;
} wgmma_thread;

/* What a thread knows of its two rows. */
typedef struct row_pair {
    int sample[2], keys[2];
    float top[2], sum[2];                  /* maximum of the scores; sum of the weights                     */
} row_pair;

DEV row_pair begin_pair(const gpu_cache_attention &p, const wgmma_rows &b, const wgmma_thread &me) {
    row_pair r = {{0, 0}, {0, 0}, {-INFINITY, -INFINITY}, {0, 0}};
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int f = b.f0 + me.warp * 16 + h * 8 + me.g, row = f < b.total ? f / p.heads : b.first_row;
        r.sample[h] = f < b.total ? p.sample[row] : -1;
        r.keys[h] = p.keys[row];
    }
    return r;
}

/* A warpgroup's tiles: every second one of the block's. `tiles`: its shared memory. */
DEV void attend_tiles(float (&out)[128], row_pair &rows, const gpu_cache_attention &p, const wgmma_memory &m,
                      const wgmma_rows &b, const wgmma_thread &me, char *tiles) {
    const float scale = p.scale * 1.4426950408889634f;
    const u32 k = m.k + me.group * TILE_BYTES, v = m.v + me.group * TILE_BYTES;
    char *v_memory = tiles + 3 * TILE_BYTES + me.group * TILE_BYTES;
    int item = 0;
    barrier_wait(m.q_full, 0);
    for (int s = b.first_sample; s <= b.last_sample; s++) {
        const int keys = most_keys(p, b, me.lane, s);
        for (int key0 = 0; key0 < keys; key0 += KEYS, item++) {
            if ((item & 1) != me.group) continue;
            const int phase = item >> 1 & 1;
            float score[32], shrink[2];
            barrier_wait(m.k_full + 8 * me.group, phase);
            multiply_keys(score, m.q, k);
            if (!me.lane) barrier_arrive(m.k_empty + 8 * me.group);
            after_wait(score);
#pragma unroll
            for (int h = 0; h < 2; h++)
                shrink[h] = soften_row(score, h, (rows.sample[h] == s ? rows.keys[h] : 0) - key0 - 2 * me.t,
                                       scale, rows.top[h], rows.sum[h]);
            u32 a[4][4];
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    a[i][j] = pack_bf16(score[8 * i + 2 * j], score[8 * i + 2 * j + 1]);
            shrink_sums(out, shrink);
            barrier_wait(m.v_full + 8 * me.group, phase);
            if (key0 + KEYS > keys) clear_values(v_memory, keys - key0, me.tid, 1 + me.group);
            add_values(out, a, v);
            if (!me.lane) barrier_arrive(m.v_empty + 8 * me.group);
            after_wait(out);
        }
    }
}

/* Row statistics of both warpgroups: [warpgroup][row][maximum, sum of weights]. */
typedef float wgmma_stats[2][64][2];

/* Each warpgroup finishes half of the dims. It writes its sums of the other half into its own K buffer, where
 * the other warpgroup reads them. */
DEV void write_half(const float (&out)[128], row_pair &rows, const wgmma_memory &m, const wgmma_thread &me,
                    char *tiles, wgmma_stats &stats) {
    float4 *mine = (float4 *)(tiles + TILE_BYTES + me.group * TILE_BYTES);
    group_sync(1 + me.group, 128);         /* the warpgroup's four warps have read their last K             */
#pragma unroll
    for (int n = 0; n < 16; n++) {
        const float *low = out + 4 * n, *high = out + 4 * (n + 16);
        float4 x;
        if (me.group) x = make_float4(low[0], low[1], low[2], low[3]);
        else x = make_float4(high[0], high[1], high[2], high[3]);
        mine[n * 128 + (me.tid & 127)] = x;
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float *to = stats[me.group][me.warp * 16 + h * 8 + me.g];
        rows.sum[h] += __shfl_xor_sync(0xffffffffu, rows.sum[h], 1);
        rows.sum[h] += __shfl_xor_sync(0xffffffffu, rows.sum[h], 2);
        if (!me.t) to[0] = rows.top[h], to[1] = rows.sum[h];
    }
    barrier_arrive(m.halves);              /* bar.sync would do, but racecheck does not follow it here      */
    barrier_wait(m.halves, 0);
}

/* a·u + b·v, the same when both pairs change places: which warpgroup has a sample's first tile depends on the
 * samples before it. */
DEV float join(float a, float u, float b, float v) { return __fadd_rn(__fmul_rn(a, u), __fmul_rn(b, v)); }

/* The warpgroup's 128 dims: its own sums and the other's, each weighted by its share of the row. */
DEV void store_half(const gpu_cache_attention &p, const float (&out)[128], const row_pair &rows,
                    const wgmma_rows &b, const wgmma_thread &me, const char *tiles,
                    const wgmma_stats &stats) {
    const float4 *theirs = (const float4 *)(tiles + TILE_BYTES + (me.group ^ 1) * TILE_BYTES);
    float w0[2], w1[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float *other = stats[me.group ^ 1][me.warp * 16 + h * 8 + me.g],
                    top = fmaxf(rows.top[h], other[0]);
        w0[h] = exp2_fast(rows.top[h] - top), w1[h] = exp2_fast(other[0] - top);
        const float factor = 1 / join(rows.sum[h], w0[h], other[1], w1[h]);
        w0[h] *= factor, w1[h] *= factor;
    }
#pragma unroll
    for (int n = 0; n < 16; n++) {
        const float4 x = theirs[n * 128 + (me.tid & 127)];
        float y[4];
#pragma unroll
        for (int i = 0; i < 4; i++) y[i] = me.group ? out[4 * (n + 16) + i] : out[4 * n + i];
        const int column = me.group * 128 + n * 8 + 2 * me.t;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int f = b.f0 + me.warp * 16 + h * 8 + me.g;
            if (f < b.total)
                *(u32 *)((u16 *)p.out + (size_t)f * DIM + column) =
                    pack_bf16(join(y[2 * h], w0[h], h ? x.z : x.x, w1[h]),
                              join(y[2 * h + 1], w0[h], h ? x.w : x.y, w1[h]));
        }
    }
}

KERNEL(384) attention_wgmma(const __grid_constant__ gpu_wgmma_attention w) {
    extern __shared__ __align__(1024) char wgmma_tiles[];
    __shared__ __align__(8) u64 barriers[WGMMA_BARRIERS];
    __shared__ wgmma_stats stats;
    const gpu_cache_attention &p = w.attention;
    const wgmma_memory m = wgmma_memory_of(wgmma_tiles, barriers);
    const int tid = threadIdx.x, lane = tid & 31, group = tid >> 7, f0 = blockIdx.x * 64,
              total = *p.count * p.heads;

    if (tid == 256) prepare_copies(w, m);
    __syncthreads();
    start_next();
    if (f0 >= total) {
        wait_before();
        return;
    }
    const int first_row = f0 / p.heads, last_row = (min(f0 + 64, total) - 1) / p.heads;
    const wgmma_rows rows = {.f0 = f0,
                             .total = total,
                             .first_row = first_row,
                             .last_row = last_row,
                             .first_sample = p.sample[first_row],
                             .last_sample = p.sample[last_row]};
    if (group == 2) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        wait_before();
        copy_tiles(w, m, rows, tid, lane);
        return;
    }

    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    wait_before();
    const wgmma_thread me = {
        .tid = tid, .lane = lane, .group = group, .warp = tid >> 5 & 3, .g = lane >> 2, .t = lane & 3};
    row_pair pair = begin_pair(p, rows, me);
    float out[128];
#pragma unroll
    for (int i = 0; i < 128; i++) out[i] = 0;
    attend_tiles(out, pair, p, m, rows, me, wgmma_tiles);
    write_half(out, pair, m, me, wgmma_tiles, stats);
    store_half(p, out, pair, rows, me, wgmma_tiles, stats);
}
