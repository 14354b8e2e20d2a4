/* Attention of very many rows over a cache on Hopper, by wgmma fed by the TMA: the prefix of a batch, the
 * denoise loop of a large one.
 *
 * A unit is 128 of the rows f = row·heads + head; where samples have few rows (gpu_cache_attention.early), of
 * one sample's. Two warpgroups take 64 of them each and all keys of their
 * samples, 80 at a time; both read the same tiles of K and V.
 *
 *   thread 256   copies Q (two halves of [64][256]) and the K tiles    scores = Q·Kᵀ, wgmma 64 x 80 x 16
 *   thread 288   copies the V tiles                                    out += P·V, wgmma 64 x 256 x 16
 *
 * A warpgroup issues the scores of a tile together with P·V of the tile before. The two take turns in issuing
 * (ping-pong), so that one multiplies while the other does its softmax. A row's sums shrink only where its
 * maximum grew by more than 2^8: until then the weights are relative to an older maximum, which the division
 * by their sum undoes.
 *
 *   blocks   384 threads, persistent: unit blockIdx.x, + gridDim.x, …; one a multiprocessor
 *   shared   Q 64 KB, two tiles of K and two of V of 40 KB each
 *   legal    bf16, head_dim 256
 *   early    before wait_before() the tables of rows, which no kernel writes, and where samples have few rows
 *            the keys and values before the first; start_next() comes first of all, since the block holds a
 *            whole multiprocessor anyway
 *
 * Rows of several samples may share a unit: it walks the samples, and the other samples' rows have no keys.
 * Note: places of the cache after a sample's keys hold anything, and 0·NaN is NaN, so the warp that copies V
 * clears these rows in shared memory before anybody reads the tile.
 *
 * attention_rows_hopper.c checks what is legal and launches. */
#include "backend/gpu/cuda/ring.cuh"
#include "backend/gpu/cuda/wgmma.cuh"

enum {
    DIM = 256,
    KEYS = 80,
    STAGES = 2,
    HALF_BOX = 64 * 128,                   /* bytes of [64 rows][64 dims]                                   */
    HALF = 4 * HALF_BOX,
    BOX = KEYS * 128,
    TILE = 4 * BOX,
    BARRIERS = 5 + 4 * STAGES,
    TURN = 1,                              /* named barriers, one a warpgroup                               */
};
static const float grown = 8;              /* log2                                                          */

/* d = A·B or d += A·B, N = 80. */
DEV void wgmma(float (&d)[40], u64 a, u64 b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %42, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n80k16.f32.bf16.bf16 {"
                 WT0 ", " WT1 ", " WT2 ", " WT3 ", " WT4
                 "}, %40, %41, p, 1, 1, 0, 0;\n}"
                 : WRS(0), WRS(1), WRS(2), WRS(3), WRS(4)
                 : "l"(a), "l"(b), "r"(add));
}

/* ---- memory -------------------------------------------------------------------------------------------- */

/* Shared memory: halves of Q, a slot each that is filled once a unit, tiles of K, tiles of V. */
typedef struct rows_memory {
    ring q, k, v;
    u32 landed;                            /* barrier: a V tile of which rows are to be cleared             */
} rows_memory;

DEV rows_memory memory_of(const char *tiles, const u64 *barriers) {
    const u32 q = shared_address(tiles), k = q + 2 * HALF, bars = shared_address(barriers);
    return {.q = ring_of(q, 2, bars),
            .k = ring_of(k, STAGES, bars + 32),
            .v = ring_of(k + STAGES * TILE, STAGES, bars + 32 + 16 * STAGES),
            .landed = bars + 32 + 32 * STAGES};
}

/* One thread: prefetches the maps, makes the barriers. At `empty` the warps arrive that have read. */
DEV void prepare(const gpu_wgmma_attention &w, const rows_memory &m) {
    prefetch_map(&w.q);
    prefetch_map(&w.k);
    prefetch_map(&w.v);
    for (int i = 0; i < 2; i++) {
        ring_init_full(m.q, i);
        ring_init_empty(m.q, i, 4);
    }
    for (int i = 0; i < STAGES; i++) {
        ring_init_full(m.k, i);
        ring_init_full(m.v, i);
        ring_init_empty(m.k, i, 8);
        ring_init_empty(m.v, i, 8);
    }
    barrier_init(m.landed, 1);
    barrier_init_done();
}

/* ---- units and their tiles ----------------------------------------------------------------------------- */

/* Rows f0 … end - 1; none: there is no unit left. Cache places before `written` are long written. */
typedef struct row_unit {
    int f0, end, written;
} row_unit;

/* Unit of a sample: its rows follow each other. Units of later parts of samples come last. */
DEV row_unit unit_of_sample(const gpu_cache_attention &p, int sample, int part, int rows, int lane) {
    int before = 0, own = 0;
    for (int r = lane; r < rows; r += 32) before += p.sample[r] < sample, own += p.sample[r] == sample;
    before = __reduce_add_sync(0xffffffffu, before), own = __reduce_add_sync(0xffffffffu, own);
    const int f0 = before * p.heads + part * 128, end = min(f0 + 128, (before + own) * p.heads);
    return {f0, end, own ? p.position[before] : 0};
}

/* The block's first unit from number `unit` on that has rows; `unit`: the one after it. All warps of the
 * block ask alike. */
DEV row_unit next_unit(const gpu_cache_attention &p, int &unit, int lane) {
    const int rows = *p.count, total = rows * p.heads;
    if (!p.early) {
        const int f0 = unit * 128;
        unit += gridDim.x;
        return {f0, min(f0 + 128, total), 0};
    }
    const int samples = rows ? p.sample[rows - 1] + 1 : 0, parts = (p.early * p.heads + 127) / 128;
    while (unit < samples * parts) {
        const row_unit u = unit_of_sample(p, unit % samples, unit / samples, rows, lane);
        unit += gridDim.x;
        if (u.f0 < u.end) return u;
    }
    return {0, 0, 0};
}

/* A walk over a unit's tiles of keys. */
typedef struct tile_walk {
    int first_row, last_row, last_sample;
    int sample, keys, key0;                /* keys: most that a row of the sample in this unit sees         */
} tile_walk;

DEV int most_keys(const gpu_cache_attention &p, const tile_walk &w, int lane) {
    int n = 0;
    for (int r = w.first_row + lane; r <= w.last_row; r += 32)
        if (p.sample[r] == w.sample) n = max(n, p.keys[r]);
    return __reduce_max_sync(0xffffffffu, n);
}

/* At the unit's first tile: every row sees a key at least. */
DEV tile_walk begin_walk(const gpu_cache_attention &p, const row_unit &u, int lane) {
    tile_walk w;
    w.first_row = u.f0 / p.heads, w.last_row = (u.end - 1) / p.heads;
    w.sample = p.sample[w.first_row], w.last_sample = p.sample[w.last_row];
    w.key0 = 0;
    w.keys = most_keys(p, w, lane);
    return w;
}

/* To the next tile; 0: there is none. */
DEV int next_tile(const gpu_cache_attention &p, tile_walk &w, int lane) {
    w.key0 += KEYS;
    if (w.key0 < w.keys) return 1;
    w.key0 = 0;
    while (w.sample < w.last_sample) {
        w.sample++;
        w.keys = most_keys(p, w, lane);
        if (w.keys) return 1;
    }
    return 0;
}

/* ---- copies -------------------------------------------------------------------------------------------- */

DEV void copy_queries(const gpu_wgmma_attention &w, const rows_memory &m, int f0, int n) {
    for (int half = 0; half < 2; half++) {
        const ring_place at = {(u32)half, (u32)n & 1};
        const u32 full = ring_begin(m.q, at, HALF);
        for (int c = 0; c < 4; c++)
            copy_box2(m.q.at + half * HALF + c * HALF_BOX, &w.q, c * 64, f0 + half * 64, full);
    }
}

DEV void copy_tile(u32 to, const gpu_tensor_map *map, const tile_walk &walk, u32 full) {
    barrier_arm(full, TILE);
    for (int c = 0; c < 4; c++) copy_box3(to + c * BOX, map, c * 64, walk.key0, walk.sample, full);
}

/* wait_before(), the first time. */
DEV void wait_once(bool &waited) {
    if (!waited) wait_before();
    waited = true;
}

/* Warp 0 of the copying warpgroup: the K tiles, and Q after the first that fit. */
DEV void copy_keys(const gpu_wgmma_attention &w, const rows_memory &m, int lane) {
    bool waited = false;
    int item = 0, next = blockIdx.x;
    row_unit u = next_unit(w.attention, next, lane);
    for (int n = 0; u.f0 < u.end; u = next_unit(w.attention, next, lane), n++) {
        tile_walk walk = begin_walk(w.attention, u, lane);
        int tiles = 0;
        do {
            const ring_place at = ring_use(m.k, item);
            if (walk.key0 + KEYS > u.written) wait_once(waited);
            if (!lane) {
                ring_await_empty(m.k, at);
                copy_tile(ring_address(m.k, at, TILE), &w.k, walk, ring_full(m.k, at));
            }
            item++;
            if (++tiles != STAGES) continue;
            wait_once(waited);
            if (!lane) copy_queries(w, m, u.f0, n);
        } while (next_tile(w.attention, walk, lane));
        wait_once(waited);
        if (!lane && tiles < STAGES) copy_queries(w, m, u.f0, n);
    }
    wait_once(waited);
}

/* The whole warp: rows of a V tile from `keys` on become zeros. */
DEV void clear_values(char *v, int keys, int lane) {
    for (int r = keys; r < KEYS; r++)
        *(uint4 *)(v + (lane >> 3) * BOX + r * 128 + (lane & 7) * 16) = make_uint4(0, 0, 0, 0);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
}

/* Warp 1: the V tiles. One that has rows to clear is full when they are cleared. */
DEV void copy_values(const gpu_wgmma_attention &w, const rows_memory &m, char *tiles, int lane) {
    bool waited = false;
    int item = 0, landed = 0, next = blockIdx.x;
    row_unit u = next_unit(w.attention, next, lane);
    for (; u.f0 < u.end; u = next_unit(w.attention, next, lane)) {
        tile_walk walk = begin_walk(w.attention, u, lane);
        do {
            const ring_place at = ring_use(m.v, item);
            const int keys = walk.keys - walk.key0;
            if (walk.key0 + KEYS > u.written) wait_once(waited);
            ring_await_empty(m.v, at);
            if (!lane)
                copy_tile(ring_address(m.v, at, TILE), &w.v, walk,
                          keys < KEYS ? m.landed : ring_full(m.v, at));
            if (keys < KEYS) {
                barrier_wait(m.landed, landed++ & 1);
                clear_values(tiles + 2 * HALF + (STAGES + at.slot) * TILE, keys, lane);
                if (!lane) barrier_arrive(ring_full(m.v, at));
            }
            item++;
        } while (next_tile(w.attention, walk, lane));
    }
    wait_once(waited);
}

/* ---- scores, softmax, values --------------------------------------------------------------------------- */

/* Issues the scores of 64 rows x 80 keys. */
DEV void multiply_keys(float (&score)[40], u32 q, u32 k) {
    const u64 a = wgmma_operand(q), b = wgmma_operand(k);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < DIM / 16; i++)
        wgmma(score, a + (i / 4 * HALF_BOX + i % 4 * 32) / 16, b + (i / 4 * BOX + i % 4 * 32) / 16, i);
    wgmma_commit();
}

/* Issues out += P·V over 80 keys. */
DEV void add_values(float (&out)[128], const u32 (&a)[5][4], u32 v) {
    const u64 b = wgmma_transposed(v, BOX);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < KEYS / 16; i++) wgmma_values(out, a[i], b + i * 2048 / 16);
    wgmma_commit();
}

/* What a thread knows of its two rows; top and the weights are in base 2, scaled. */
typedef struct row_pair {
    int keys[2];                           /* keys of the walk's current sample; 0: a row of another        */
    float top[2], sum[2];
} row_pair;

/* Keys that a row does not see get no weight; those of row h begin at limit[h]. */
DEV void mask_scores(float (&score)[40], const int (&limit)[2]) {
    if (!__any_sync(0xffffffffu, min(limit[0], limit[1]) < KEYS)) return;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (n * 8 + (i & 1) >= limit[i >> 1]) score[4 * n + i] = -INFINITY;
}

/* Scores of row h into weights. Returns the factor by which everything summed before shrinks. */
DEV float soften_row(float (&score)[40], int h, float scale, float &top, float &sum) {
    float m = score[2 * h];
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++) m = fmaxf(m, fmaxf(score[4 * n + 2 * h], score[4 * n + 2 * h + 1]));
    m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
    m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2)) * scale;
    float shrink = 1;
    if (m > top + grown) shrink = exp2_fast(top - m), top = m;
    const float base = top == -INFINITY ? 0 : top;
    float part = 0;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float &x = score[4 * n + 2 * h + i];
            x = exp2_fast(x * scale - base);
            part += x;
        }
    sum = sum * shrink + part;
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

DEV void pack_weights(u32 (&a)[5][4], const float (&score)[40]) {
#pragma unroll
    for (int i = 0; i < 5; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) a[i][j] = pack_bf16(score[8 * i + 2 * j], score[8 * i + 2 * j + 1]);
}

/* A thread of a warpgroup: its warp has 16 of the 64 rows, the thread rows g and g + 8 of these. */
typedef struct rows_thread {
    int tid, lane, group, warp, g, t;
} rows_thread;

DEV int row_of_unit(const rows_thread &me, const row_unit &u, int h) {
    return u.f0 + me.group * 64 + me.warp * 16 + h * 8 + me.g;
}

/* The keys of the thread's rows that the walk's sample has. */
DEV void read_keys(const gpu_cache_attention &p, row_pair &rows, int sample, const row_unit &u,
                   const rows_thread &me) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int f = row_of_unit(me, u, h), row = min(f, u.end - 1) / p.heads;
        rows.keys[h] = f < u.end && p.sample[row] == sample ? p.keys[row] : 0;
    }
}

DEV void soften(float (&score)[40], row_pair &rows, float (&shrink)[2], int key0, float scale, int t) {
    const int limit[2] = {rows.keys[0] - key0 - 2 * t, rows.keys[1] - key0 - 2 * t};
    mask_scores(score, limit);
#pragma unroll
    for (int h = 0; h < 2; h++) shrink[h] = soften_row(score, h, scale, rows.top[h], rows.sum[h]);
}

/* The warpgroups issue alternately, warpgroup 0 first; `first`: of all, `last`: of the warpgroup's. */
DEV void take_turn(const rows_thread &me, bool first) {
    if (me.group || !first) group_sync(TURN + me.group, 256);
}
DEV void end_turn(const rows_thread &me, bool last) {
    if (!me.group || !last) group_arrive(TURN + (me.group ^ 1), 256);
}

DEV void store_rows(const gpu_cache_attention &p, const float (&out)[128], const row_pair &rows,
                    const row_unit &u, const rows_thread &me) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int f = row_of_unit(me, u, h);
        float sum = rows.sum[h];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        const float factor = 1 / sum;
        if (f >= u.end) continue;
        u16 *to = (u16 *)p.out + (size_t)f * DIM + 2 * me.t;
#pragma unroll
        for (int n = 0; n < 32; n++)
            *(u32 *)(to + n * 8) = pack_bf16(out[4 * n + 2 * h] * factor, out[4 * n + 2 * h + 1] * factor);
    }
}

/* A warpgroup's half of unit n of the block; `item` counts tiles from the kernel's beginning. */
DEV void attend_unit(const gpu_cache_attention &p, const rows_memory &m, const row_unit &u, int n, bool last,
                     int &item, const rows_thread &me) {
    const float scale = p.scale * 1.4426950408889634f;
    const u32 q = m.q.at + me.group * HALF;
    tile_walk walk = begin_walk(p, u, me.lane);
    row_pair rows = {{0, 0}, {-INFINITY, -INFINITY}, {0, 0}};
    int sample = walk.sample;
    float out[128], score[40], shrink[2];
    u32 a[5][4];
    read_keys(p, rows, sample, u, me);
#pragma unroll
    for (int i = 0; i < 128; i++) out[i] = 0;

    const ring_place half = {(u32)me.group, (u32)n & 1};
    ring_await_full(m.q, half);
    const ring_place first = ring_use(m.k, item);
    ring_await_full(m.k, first);
    take_turn(me, !n);
    multiply_keys(score, q, ring_address(m.k, first, TILE));
    end_turn(me, false);
    wgmma_wait<0>();
    ring_leave(m.k, first, me.lane);
    after_wait(score);
    soften(score, rows, shrink, 0, scale, me.t);
    pack_weights(a, score);
    while (next_tile(p, walk, me.lane)) {
        const ring_place next = ring_use(m.k, item + 1);
        ring_await_full(m.k, next);
        const ring_place now = ring_use(m.v, item);
        ring_await_full(m.v, now);
        take_turn(me, false);
        multiply_keys(score, q, ring_address(m.k, next, TILE));
        add_values(out, a, ring_address(m.v, now, TILE));
        end_turn(me, false);
        wgmma_wait<1>();
        ring_leave(m.k, next, me.lane);
        after_wait(score);
        if (walk.sample != sample) read_keys(p, rows, sample = walk.sample, u, me);
        soften(score, rows, shrink, walk.key0, scale, me.t);
        wgmma_wait<0>();
        ring_leave(m.v, now, me.lane);
        after_wait(out);
        shrink_sums(out, shrink);
        pack_weights(a, score);
        item++;
    }
    ring_leave(m.q, half, me.lane);
    const ring_place end_tile = ring_use(m.v, item);
    ring_await_full(m.v, end_tile);
    take_turn(me, false);
    add_values(out, a, ring_address(m.v, end_tile, TILE));
    end_turn(me, last);
    wgmma_wait<0>();
    ring_leave(m.v, end_tile, me.lane);
    after_wait(out);
    store_rows(p, out, rows, u, me);
    item++;
}

extern "C" __global__ void __launch_bounds__(384, 1)
attention_wgmma_128(const __grid_constant__ gpu_wgmma_attention w) {
    extern __shared__ __align__(1024) char rows_tiles[];
    __shared__ __align__(8) u64 barriers[BARRIERS];
    const rows_memory m = memory_of(rows_tiles, barriers);
    const int tid = threadIdx.x, lane = tid & 31, group = tid >> 7;

    start_next();
    if (tid == 256) prepare(w, m);
    __syncthreads();
    if (group == 2) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (tid < 288) copy_keys(w, m, lane);
        else if (tid < 320) copy_values(w, m, rows_tiles, lane);
        else wait_before();
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    wait_before();
    const rows_thread me = {
        .tid = tid, .lane = lane, .group = group, .warp = tid >> 5 & 3, .g = lane >> 2, .t = lane & 3};
    int item = 0, next = blockIdx.x;
    row_unit u = next_unit(w.attention, next, lane);
    for (int n = 0; u.f0 < u.end; n++) {
        const row_unit after = next_unit(w.attention, next, lane);
        attend_unit(w.attention, m, u, n, after.f0 >= after.end, item, me);
        u = after;
    }
}
