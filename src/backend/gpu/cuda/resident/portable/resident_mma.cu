/* The layers of a denoise step of at most 16 rows as one kernel, with sm_80's instructions. All blocks of the
 * grid, one a multiprocessor, are alive at once and meet after each phase of a layer by counting in memory:
 *
 *   qkv       norm and product, RoPE, new keys and values into the cache
 *   scores    a unit is 16 queries (rows times heads) and 64 keys: unscaled sums of values
 *   join      those of a query's tiles of keys
 *   o         product, onto x
 *   gate_up   norm and product, GeGLU
 *   down      product, onto x
 *
 * Weights never wait. Each warp knows from the beginning which atoms it will multiply, in which order: its
 * stream, through all layers. A ring of R atoms in shared memory is refilled whenever one was multiplied; so
 * while blocks wait for each other, R atoms of what comes next are on their way to every warp.
 *
 *   products  as few_mma's, in its order of sums: a unit is 16 packed columns (o and down: 8), block b has
 *             units b, b + grid, …; warp w has the blocks of 64 k w, w + 8, … Lane (g, t) reads the 16 bytes
 *             8·(4h + t) … + 7 (h = 0, 1) of a block of 64 k, of column g of W and rows g and g + 8 of x.
 *             It reads nothing from the ring but what it has copied itself: no barrier
 *   scores    by attention.cuh's functions, four of the warps; the values lie where the keys were
 *   blocks    256 threads; grid = multiprocessors, cooperative
 *   shared    [8 warps][R][h][32 lanes][16 bytes] of W; queries, keys or values, weights of keys, maxima
 *             (over these the sums of products: [2][8 warps][16 rows][PITCH]); squares of rows
 *   early     before wait_before(): the first R atoms of each warp
 *
 * resident_mma.c checks what is legal and launches. */
#include "backend/gpu/cuda/attention/attention.cuh"
#include "backend/gpu/cuda/product/few.cuh"
#include "backend/gpu/cuda/resident/counts.cuh"
#include "resident_mma.h"

enum { ROWS = RESIDENT_MMA_ROWS, THREADS = RESIDENT_MMA_THREADS };
enum { TOGETHER = 16 };                    /* tiles that join_tiles reads at once                           */
enum { PRODUCT_QKV, PRODUCT_O, PRODUCT_GATE_UP, PRODUCT_DOWN, PRODUCTS };

static_assert(THREADS == WARPS * 32, "a warp each");

/* ---- the order of weights ------------------------------------------------------------------------------ */

/* A product's weights: blocks of 64 k, units of groups of 8 columns. */
typedef struct matrix_size {
    const void *data;
    int blocks, units, groups;
} matrix_size;

DEV matrix_size size_of(const gpu_resident_mma &p, int layer, int product) {
    const resident_mma_layer &l = p.layers[layer];
    const int wide = (p.width + 63) >> 6;
    if (product == PRODUCT_QKV) return {l.qkv, wide, p.qkv_columns >> 4, 2};
    if (product == PRODUCT_O) return {l.o, p.heads * (RESIDENT_MMA_HEAD / 64), p.o_columns >> 3, 1};
    if (product == PRODUCT_GATE_UP) return {l.gate_up, wide, p.gate_up_columns >> 4, 2};
    return {l.down, (p.hidden + 63) >> 6, p.down_columns >> 3, 1};
}

/* Where a warp is in its stream. */
typedef struct weight_stream {
    matrix_size m;
    int layer, product, unit, block, group;
    u32 ring, put, take;                   /* the lane's part: where the ring begins, its next slots        */
} weight_stream;

/* On to where the warp has an atom; layer == depth at the end. */
DEV void settle_stream(const gpu_resident_mma &p, weight_stream &s, int warp) {
    while (s.layer < p.depth && (s.unit >= s.m.units || warp >= s.m.blocks)) {
        s.unit = blockIdx.x;
        if (++s.product == PRODUCTS || p.stop_early) s.product = 0, s.layer++;
        if (s.layer < p.depth) s.m = size_of(p, s.layer, s.product);
    }
}

/* Asks for the next atom: a group of copies, an empty one at the end. */
template <int R> DEV void push(const gpu_resident_mma &p, weight_stream &s, int warp, int lane) {
    if (s.layer < p.depth) {
        const int g = lane >> 2, t = lane & 3, low = (g & 4) << 4;     /* as in few_mma                     */
        const char *atom = (const char *)s.m.data +
                           ((size_t)(s.unit * s.m.groups + s.group) * s.m.blocks + s.block) * GPU_ATOM_BYTES +
                           g * 128 + ((t ^ (g & 3)) << 4);
        copy16(s.put, atom + low, 1);
        copy16(s.put + 512, atom + (low ^ 64), 1);
        if (++s.group == s.m.groups) {
            s.group = 0;
            s.block += WARPS;
            if (s.block >= s.m.blocks) {
                s.block = warp;
                s.unit += gridDim.x;
                settle_stream(p, s, warp);
            }
        }
    }
    copy_commit();
    s.put = s.put + 1024 == s.ring + R * 1024 ? s.ring : s.put + 1024;
}

template <int R>
DEV weight_stream begin_stream(const gpu_resident_mma &p, u32 memory, int warp, int lane) {
    const u32 ring = memory + warp * (R * 1024) + lane * 16;
    weight_stream s = {size_of(p, 0, 0), 0, 0, (int)blockIdx.x, warp, 0, ring, ring, ring};
    settle_stream(p, s, warp);
    for (int i = 0; i < R; i++) push<R>(p, s, warp, lane);
    return s;
}

/* ---- meetings ------------------------------------------------------------------------------------------ */

/* Where blocks meet: how many have arrived when all have. */
typedef struct meeting {
    u64 *count, all;
} meeting;

/* Launches before this one have left a multiple of the grid. */
DEV meeting begin_meeting(const gpu_resident_mma &p) {
    return {(u64 *)p.arrivals, arrivals((u64 *)p.arrivals) / gridDim.x * gridDim.x};
}

DEV void meet(meeting &m, int tid) {
    m.all += gridDim.x;
    __syncthreads();
    if (!tid) {
        count_arrival(m.count);
        await_arrivals(m.count, m.all);
    }
    __syncthreads();
}

/* ---- a product ----------------------------------------------------------------------------------------- */

/* What a thread is, and where its block's shared memory is. */
typedef struct resident_thread {
    int tid, lane, warp, rows;
    char *beside;                          /* after the ring                                                */
    float *squares;
} resident_thread;

typedef struct resident_product {
    const void *x;
    int ldx;
    const float *norm_weight, *norm_bias;  /* NULL: no norm                                                 */
    float eps;
    gpu_epilogue epilogue;
} resident_product;

DEV int resident_k(int i, int h, const resident_thread &me) {
    return (me.warp + i * WARPS) * GPU_ATOM_K + h * 32 + (me.lane & 3) * 8;
}

/* x of the warp's blocks: [block][row g or g + 8][h]. Beyond k, where W is zero, the row's first numbers. */
template <int P>
DEV void load_rows(uint4 (&x)[P][2][2], const resident_product &w, int blocks, const resident_thread &me) {
#pragma unroll
    for (int i = 0; i < P; i++)
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int k = resident_k(i, h, me);
                if (me.warp + i * WARPS >= blocks) continue;
                const u16 *row = (const u16 *)w.x + (size_t)min((me.lane >> 2) + 8 * r, me.rows - 1) * w.ldx;
                x[i][r][h] = __ldcg((const uint4 *)(row + (k < w.ldx ? k : 0)));
            }
    __syncwarp();                          /* no load moves to where it is used                             */
}

/* What the norm multiplies and adds to the lane's numbers of rows that are not known. */
template <int P> struct norm_numbers {
    few_affine of[P * 2];
};

template <int P>
DEV norm_numbers<P> load_numbers(const resident_product &w, int has_units, const resident_thread &me) {
    norm_numbers<P> n = {};
#pragma unroll
    for (int i = 0; i < P * 2; i++) {
        const int k = resident_k(i / 2, i % 2, me);
        if (w.norm_weight && has_units && k < w.ldx)
            n.of[i] = few_affine_at(w.norm_weight + k, w.norm_bias ? w.norm_bias + k : NULL);
    }
    return n;
}

/* RMS norm of x in registers; the sums of squares meet in shared memory. */
template <int P>
DEV void norm_rows(uint4 (&x)[P][2][2], const resident_product &w, const norm_numbers<P> &numbers,
                   const resident_thread &me) {
    const int g = me.lane >> 2, t = me.lane & 3;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < P; i++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                if (resident_k(i, h, me) < w.ldx) sum += few_squares(x[i][r][h]);
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (!t) me.squares[(g + 8 * r) * WARPS + me.warp] = sum;
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float4 a = *(const float4 *)(me.squares + (g + 8 * r) * WARPS),
                     b = *(const float4 *)(me.squares + (g + 8 * r) * WARPS + 4);
        const float factor = rsqrtf((a.x + a.y + a.z + a.w + b.x + b.y + b.z + b.w) / w.ldx + w.eps);
        const int known = known_at(w.epilogue.known, g + 8 * r, g + 8 * r < me.rows);
#pragma unroll
        for (int i = 0; i < P * 2; i++) {
            const int k = resident_k(i / 2, i % 2, me), at = k + known;
            if (k >= w.ldx) continue;
            if (known)
                few_scale(x[i / 2][r][i % 2], factor,
                          few_affine_at(w.norm_weight + at, w.norm_bias ? w.norm_bias + at : NULL));
            else few_scale(x[i / 2][r][i % 2], factor, numbers.of[i]);
        }
    }
}

/* A block of 64 k, whose atoms are the ring's next. */
template <int R, int C>
DEV void multiply_block(float (&sum)[C][2][4], const uint4 (&x)[2][2], weight_stream &s) {
    copy_wait<R - C>();
#pragma unroll
    for (int c = 0; c < C; c++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const u32 a[2][4] = {{x[0][h].x, x[1][h].x, x[0][h].y, x[1][h].y},
                                 {x[0][h].z, x[1][h].z, x[0][h].w, x[1][h].w}};
            const uint4 b = load_shared16(s.take + h * 512);
            mma16(sum[c][0], a[0], b.x, b.y);
            mma16(sum[c][1], a[1], b.z, b.w);
        }
        s.take = s.take + 1024 == s.ring + R * 1024 ? s.ring : s.take + 1024;
    }
}

/* What a thread needs to finish its pair of a unit, and what stands there: x of such a pair is written by
 * this thread alone, in o and in down. */
typedef struct unit_finish {
    finish f;
    u32 before;
} unit_finish;

template <int KIND, int C>
DEV unit_finish prepare_unit(const resident_product &w, int there, int unit, const resident_thread &me) {
    unit_finish u = {};
    if (there && me.tid < ROWS * 4)
        u.f = prepare<KIND>(w.epilogue, me.tid >> 2, me.rows, unit * C * 8, me.tid & 3);
    if (KIND == GPU_EPILOGUE_RESIDUAL && u.f.there)
        u.before = __ldcg((const u32 *)((const u16 *)w.epilogue.out + u.f.at));
    return u;
}

/* The warps' sums of a unit meet in `parts`; a thread adds those of a pair and finishes it. */
template <int KIND, int C>
DEV void finish_unit(const resident_product &w, float *parts, const float (&sum)[C][2][4],
                     const unit_finish &u, const resident_thread &me) {
    enum { PITCH = C == 1 ? 8 : 24 };
    const int g = me.lane >> 2, t = me.lane & 3, r = me.tid >> 2 & 15;
#pragma unroll
    for (int c = 0; c < C; c++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            *(float2 *)(parts + (me.warp * ROWS + h * 8 + g) * PITCH + c * 8 + 2 * t) =
                make_float2(sum[c][0][2 * h] + sum[c][1][2 * h], sum[c][0][2 * h + 1] + sum[c][1][2 * h + 1]);
    __syncthreads();
    if (!u.f.there) return;
    float2 a = make_float2(0, 0), b = make_float2(0, 0);
#pragma unroll
    for (int v = 0; v < WARPS; v++) {
        const float *from = parts + (v * ROWS + r) * PITCH + 2 * t;
        float2 one = *(const float2 *)from;
        a.x += one.x, a.y += one.y;
        if (C == 2) {
            one = *(const float2 *)(from + 8);
            b.x += one.x, b.y += one.y;
        }
    }
    complete<KIND>(w.epilogue, u.f, u.before, a.x, a.y, b.x, b.y);
}

/* All of the block's units of a product; a warp has at most P blocks of 64 k. What does not depend on other
 * blocks is asked for before they meet. */
template <int R, int KIND, int P>
DEV void multiply(const gpu_resident_mma &p, const resident_product &w, const matrix_size &m,
                  weight_stream &s, meeting &all, int meets, const resident_thread &me) {
    enum { C = KIND == GPU_EPILOGUE_RESIDUAL ? 1 : 2, PARTS = WARPS * ROWS * 24 };
    uint4 x[P][2][2] = {};
    float *parts = (float *)me.beside;
    const int first = blockIdx.x, has_units = first < m.units;
    const norm_numbers<P> numbers = load_numbers<P>(w, has_units, me);
    unit_finish u = prepare_unit<KIND, C>(w, has_units, first, me);
    if (meets) meet(all, me.tid);
    if (!has_units) return;
    load_rows<P>(x, w, m.blocks, me);
    if (w.norm_weight) norm_rows<P>(x, w, numbers, me);
#pragma unroll 1
    for (int unit = first; unit < m.units; unit += gridDim.x) {
        float sum[C][2][4] = {};
        if (unit != first) u = prepare_unit<KIND, C>(w, 1, unit, me);
#pragma unroll
        for (int i = 0; i < P; i++) {
            if (me.warp + i * WARPS >= m.blocks) continue;
            multiply_block<R, C>(sum, x[i], s);
#pragma unroll
            for (int c = 0; c < C; c++) push<R>(p, s, me.warp, me.lane);
        }
        finish_unit<KIND, C>(w, parts, sum, u, me);
        parts = parts == (float *)me.beside ? parts + PARTS : (float *)me.beside;
    }
}

/* ---- attention ----------------------------------------------------------------------------------------- */

/* What a tile of keys leaves of each query. */
DEV float *stats_at(const gpu_resident_mma &p, int tile, int query) {
    return p.parts + ((size_t)tile * RESIDENT_MMA_QUERIES + query) * 2;
}
DEV float *sums_at(const gpu_resident_mma &p, int tile, int query) {
    return p.parts + (size_t)p.tiles * RESIDENT_MMA_QUERIES * 2 +
           ((size_t)tile * RESIDENT_MMA_QUERIES + query) * RESIDENT_MMA_HEAD;
}

/* The keys that some row sees, and their tiles. */
DEV int seen_keys(const gpu_resident_mma &p, const resident_thread &me) {
    const int keys = me.lane < me.rows ? __ldg(p.keys + me.lane) : 0;
    return __reduce_max_sync(0xffffffffu, keys);
}
DEV int tiles_of(int keys) { return (keys + KEYS - 1) / KEYS; }

/* `count` rows of 256 numbers into shared memory, zeros beyond `there`. */
DEV void copy_rows(u32 to, const void *from, int count, int there, int tid) {
#pragma unroll 4
    for (int i = tid; i < count * 32; i += THREADS) {
        const int r = i >> 5, c = i & 31;
        copy16(row512(to, r, c), (const u16 *)from + (r < there ? (size_t)r * DIM + c * 8 : 0), r < there);
    }
    copy_commit();
}

/* 16 queries from `first` on against the 64 keys of a tile. */
DEV void attend_tile(const gpu_resident_mma &p, int layer, int first, int tile, int seen,
                     const resident_thread &me) {
    const u32 q = shared_address(me.beside), kv = q + ROWS * 512;
    float *const maxima = (float *)(me.beside + (ROWS + KEYS) * 512 + ROWS * 128);
    const cache_memory memory = {q, kv, kv, kv + KEYS * 512, maxima, maxima + 4 * ROWS};
    const cache_thread one = thread_of(me.tid);
    const int queries = me.rows * p.heads, key0 = tile * KEYS, there = seen - key0,
              multiplies = me.warp < 4;
    const size_t at = (size_t)layer * p.cache_bytes + (size_t)key0 * DIM * sizeof(u16);
    const key_tile keys = {0, key0, seen};
    attended a = {};
    cache_state w = {};
    float score[2][4] = {};

    __syncthreads();                       /* whatever lay here before was read                             */
    copy_rows(q, (const u16 *)p.q + (size_t)first * DIM, ROWS, queries - first, me.tid);
    copy_rows(kv, (const char *)p.k + at, KEYS, there, me.tid);
    a.top[0] = a.top[1] = -INFINITY;
    w.scale = p.scale * 1.4426950408889634f;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int f = first + h * 8 + one.g;
        w.sample[h] = f < queries ? 0 : -1;
        w.keys[h] = f < queries ? __ldg(p.keys + f / p.heads) : 0;
    }
    copy_wait<0>();
    __syncthreads();
    if (multiplies) {
#pragma unroll
        for (int i = 0; i < DIM / 16; i++)
            load_matrix4(w.q[i], row512(q, me.lane & 15, 2 * i + (me.lane >> 4)));
        multiply_scores(score, w, one, kv);
        mask_scores<1>(score, w, one, keys, maxima);
    }
    __syncthreads();                       /* maxima are written, keys are read                             */
    copy_rows(kv, (const char *)p.v + at, KEYS, there, me.tid);
    if (multiplies) weigh_scores<1>(a, score, w, one, memory);
    copy_wait<0>();
    __syncthreads();
    if (!multiplies) return;
    multiply_values(a.out, one, memory);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int f = first + h * 8 + one.g;
        float sum = w.total[h];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (!one.t) memory.sums[one.kg * ROWS + h * 8 + one.g] = sum;
#pragma unroll
        for (int n = 0; n < 8; n++)
            if (f < queries)
                *(float2 *)(sums_at(p, tile, f) + one.kg * 64 + n * 8 + 2 * one.t) =
                    make_float2(a.out[n][2 * h], a.out[n][2 * h + 1]);
        if (f < queries && !one.kg && !one.t) *stats_at(p, tile, f) = a.top[h];
    }
}

/* The sums of weights of a unit's queries, after its warps have met. */
DEV void store_totals(const gpu_resident_mma &p, int first, int tile, const resident_thread &me) {
    const float *sums = (const float *)(me.beside + (ROWS + KEYS) * 512 + ROWS * 128) + 4 * ROWS + me.tid;
    __syncthreads();
    if (me.tid < ROWS && first + me.tid < me.rows * p.heads)
        stats_at(p, tile, first + me.tid)[1] = sums[0] + sums[ROWS] + sums[2 * ROWS] + sums[3 * ROWS];
}

DEV void attend_tiles(const gpu_resident_mma &p, int layer, const resident_thread &me) {
    const int groups = (me.rows * p.heads + ROWS - 1) / ROWS, seen = seen_keys(p, me),
              units = groups * tiles_of(seen);
#pragma unroll 1
    for (int unit = blockIdx.x; unit < units; unit += gridDim.x) {
        const int first = unit % groups * ROWS, tile = unit / groups;
        attend_tile(p, layer, first, tile, seen, me);
        store_totals(p, first, tile, me);
    }
}

/* The block's first tile, keys and values, into the second-level cache while blocks wait for each other: most
 * of it was written long ago. */
DEV void ask_for_tiles(const gpu_resident_mma &p, int layer, const resident_thread &me) {
    enum { LINE = 128, LINES = KEYS * DIM * 2 / LINE };
    const int groups = (me.rows * p.heads + ROWS - 1) / ROWS, seen = seen_keys(p, me),
              tile = blockIdx.x / groups;
    const size_t at = layer * p.cache_bytes + (size_t)tile * KEYS * DIM * 2;
    for (int i = me.tid; i < LINES; i += THREADS) {
        if (tile * KEYS + i / (DIM * 2 / LINE) >= seen) break;
        prefetch((const char *)p.k + at + i * LINE);
        prefetch((const char *)p.v + at + i * LINE);
    }
}

/* A query's tiles: 64 threads, 4 dims each. */
DEV void join_tiles(const gpu_resident_mma &p, const resident_thread &me) {
    const int tiles = tiles_of(seen_keys(p, me)), i = (me.tid & 63) * 4;
    for (int f = blockIdx.x + gridDim.x * (me.tid >> 6); f < me.rows * p.heads; f += gridDim.x * 4) {
        float2 stats = make_float2(-INFINITY, 0);
        if (me.lane < tiles) stats = __ldcg((const float2 *)stats_at(p, me.lane, f));
        float4 out = make_float4(0, 0, 0, 0);
        float top = 0, weight = 0;
        for (int first = 0; first < tiles; first += TOGETHER) {
            float4 part[TOGETHER];
#pragma unroll
            for (int s = 0; s < TOGETHER; s++)
                part[s] = __ldcg((const float4 *)(sums_at(p, min(first + s, tiles - 1), f) + i));
            __syncwarp();                  /* no load moves to where it is used                             */
            if (!first) {
                top = warp_max(stats.x);
                weight = exp2_fast(stats.x - top);
            }
#pragma unroll
            for (int s = 0; s < TOGETHER; s++) {
                const float w = __shfl_sync(0xffffffffu, weight, (first + s) & 31);
                if (first + s >= tiles) break;
                out.x += part[s].x * w, out.y += part[s].y * w;
                out.z += part[s].z * w, out.w += part[s].w * w;
            }
        }
        const float factor = 1 / warp_sum(stats.y * weight);
        *(uint2 *)((u16 *)p.attended + (size_t)f * DIM + i) =
            make_uint2(pack_bf16(out.x * factor, out.y * factor), pack_bf16(out.z * factor, out.w * factor));
    }
}

/* ---- the kernel ---------------------------------------------------------------------------------------- */

DEV resident_product qkv_of(const gpu_resident_mma &p, int layer) {
    const resident_mma_layer &l = p.layers[layer];
    resident_product w = {p.x, p.width, l.scale_in, l.shift_in, p.eps, {}};
    gpu_epilogue &e = w.epilogue;
    e.known = p.known;
    e.out = p.q;
    e.rope = p.rope;
    e.sample = p.sample, e.position = p.position;
    e.k = (char *)p.k + layer * p.cache_bytes;
    e.v = (char *)p.v + layer * p.cache_bytes;
    e.heads = p.heads, e.head_dim = DIM, e.capacity = p.capacity, e.head_columns = DIM;
    return w;
}

DEV resident_product gate_up_of(const gpu_resident_mma &p, int layer) {
    const resident_mma_layer &l = p.layers[layer];
    resident_product w = {p.x, p.width, l.scale_post, l.shift_post, p.eps, {}};
    w.epilogue.known = p.known;
    w.epilogue.n = p.hidden;
    w.epilogue.out = p.hidden_rows;
    return w;
}

DEV resident_product residual_of(const gpu_resident_mma &p, const void *x, int ldx, const float *gate) {
    resident_product w = {x, ldx, NULL, NULL, 0, {}};
    w.epilogue.known = p.known;
    w.epilogue.gate = gate;
    w.epilogue.n = p.width;
    w.epilogue.out = p.x;
    return w;
}

template <int R> DEV void resident(const gpu_resident_mma &p) {
    enum {
        WIDE = RESIDENT_MMA_WIDTH / 512,
        O = RESIDENT_MMA_ATTENDED / 512,
        DOWN = RESIDENT_MMA_HIDDEN / 512
    };
    extern __shared__ __align__(1024) char memory[];
    resident_thread me = {(int)threadIdx.x, (int)threadIdx.x & 31, (int)threadIdx.x >> 5, 0,
                          memory + R * RESIDENT_MMA_SLOT, NULL};
    me.squares = (float *)(me.beside + RESIDENT_MMA_TILE);
    weight_stream s = begin_stream<R>(p, shared_address(memory), me.warp, me.lane);
    me.rows = __ldg(p.count);
    wait_before();
    meeting all = begin_meeting(p);
#pragma unroll 1
    for (int layer = 0; layer < p.depth && me.rows > 0; layer++) {
        const resident_mma_layer &l = p.layers[layer];
        multiply<R, GPU_EPILOGUE_QKV, WIDE>(p, qkv_of(p, layer), size_of(p, layer, PRODUCT_QKV), s,
                                            all, layer > 0, me);
        if (p.stop_early) break;
        ask_for_tiles(p, layer, me);
        meet(all, me.tid);
        attend_tiles(p, layer, me);
        meet(all, me.tid);
        join_tiles(p, me);
        multiply<R, GPU_EPILOGUE_RESIDUAL, O>(p, residual_of(p, p.attended, p.heads * DIM, l.gate_in),
                                              size_of(p, layer, PRODUCT_O), s, all, 1, me);
        multiply<R, GPU_EPILOGUE_GATED, WIDE>(p, gate_up_of(p, layer), size_of(p, layer, PRODUCT_GATE_UP), s,
                                              all, 1, me);
        multiply<R, GPU_EPILOGUE_RESIDUAL, DOWN>(p, residual_of(p, p.hidden_rows, p.hidden, l.gate_post),
                                                 size_of(p, layer, PRODUCT_DOWN), s, all, 1, me);
    }
    copy_wait<0>();
}

#define RESIDENT(name, slots) \
    KERNEL(256, 1) name(const __grid_constant__ gpu_resident_mma p) { resident<slots>(p); }
RESIDENT(resident_mma_6, 6)
RESIDENT(resident_mma_14, 14)
RESIDENT(resident_mma_22, 22)
