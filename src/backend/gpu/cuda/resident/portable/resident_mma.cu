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
 *             It reads nothing from the ring but what it has copied itself: no barrier. Up to 4 units are
 *             multiplied before the warps' sums meet; then 64 threads finish each
 *   scores    by attention.cuh's functions, four of the warps; the values lie where the keys were
 *   rows      what all blocks read of each other lies in pieces of 32 columns; x as it is in memory, too
 *   blocks    256 threads; grid = multiprocessors, cooperative
 *   shared    [8 warps][R][h][32 lanes][16 bytes] of W; queries, keys or values, weights of keys, maxima
 *             (over these the sums of products: [8 warps][16 rows][PITCH]); what each warp has of the
 *             products; squares of rows
 *   early     before wait_before(): the first R atoms of each warp
 *
 * resident_mma.c checks what is legal and launches. */
#include "backend/gpu/cuda/attention/attention.cuh"
#include "backend/gpu/cuda/product/few.cuh"
#include "backend/gpu/cuda/resident/counts.cuh"
#include "resident_mma.h"

#include <limits.h>

enum { ROWS = RESIDENT_MMA_ROWS, THREADS = RESIDENT_MMA_THREADS };
enum { TOGETHER = 16 };                    /* tiles that join_tiles reads at once                           */
enum { UNITS = THREADS / (ROWS * 4) };     /* finished together: a thread has a pair of one                 */
enum { PITCH = UNITS * 16 + 8 };           /* floats of a row of their sums: no bank conflicts              */
static_assert(THREADS == WARPS * 32, "a warp each");
static_assert(WARPS * ROWS * PITCH * 4 <= RESIDENT_MMA_TILE, "sums lie over attention's memory");

/* ---- the order of weights ------------------------------------------------------------------------------ */

/* What a warp has of a product, the same in each layer: where its first atom is, atoms of a unit, units,
 * bytes from an atom to the next one and to the one after it, from behind a unit to the next. The atoms of a
 * block of 64 k lie a group apart; `step` and `steps - step` take turns. */
typedef struct weight_share {
    int first, atoms, units, step, steps, jump;
} weight_share;
static_assert(WARPS * RESIDENT_MMA_PRODUCTS * sizeof(weight_share) == RESIDENT_MMA_SHARES, "their memory");

/* Where a warp is in its stream: the next atom, how many are left of its unit and units of the product. */
typedef struct weight_stream {
    const char *from;                      /* the lane's 16 bytes of the atom's first half                  */
    int left, units, step, steps;
    int place;                             /* layer · RESIDENT_MMA_PRODUCTS + product                       */
    u32 ring, put, take;                   /* the lane's part: where the ring begins, its next slots        */
} weight_stream;

/* The warp's, [product]. */
template <int R> DEV weight_share *shares_of(int warp) {
    extern __shared__ __align__(1024) char memory[];
    char *const all = memory + R * RESIDENT_MMA_SLOT + RESIDENT_MMA_TILE;
    return (weight_share *)all + warp * RESIDENT_MMA_PRODUCTS;
}

template <int R> DEV const weight_share *share_at(const weight_stream &s, int warp) {
    return shares_of<R>(warp) + (u32)s.place % RESIDENT_MMA_PRODUCTS;
}

DEV weight_share share_of(const resident_mma_size &m, int warp) {
    const int blocks = (m.blocks - warp + WARPS - 1) / WARPS, unit = m.groups * m.blocks * GPU_ATOM_BYTES,
              step = (m.groups == 1 ? WARPS : m.blocks) * GPU_ATOM_BYTES,
              steps = (m.groups == 1 ? 2 * WARPS : WARPS) * GPU_ATOM_BYTES,
              units = warp < m.blocks ? (m.units - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x : 0;
    return {(int)blockIdx.x * unit + warp * GPU_ATOM_BYTES, blocks * m.groups, max(units, 0), step, steps,
            (int)gridDim.x * unit - blocks * WARPS * GPU_ATOM_BYTES};
}

/* On to the first unit of the next product of which the warp has an atom. At the end the warp's last atom
 * again and again, which is not multiplied: so push() has nothing to ask. (One atom for all warps of the card
 * took 160 us at the end of a launch: they queue for one line of the second-level cache.) */
template <int R>
DEV void begin_product(const gpu_resident_mma &p, weight_stream &s, int warp, int lane) {
    const int g = lane >> 2, t = lane & 3;
    const weight_share *share;
    do {
        s.place += p.stop_early ? RESIDENT_MMA_PRODUCTS : 1;
        if (s.place == p.depth * RESIDENT_MMA_PRODUCTS) {
            s.from = s.from ? s.from - (s.steps - s.step) : (const char *)p.layers[0].weights[0];
            s.step = s.steps = 0;
            s.left = INT_MAX;
            return;
        }
        share = share_at<R>(s, warp);
    } while (!share->units);
    const weight_share w = *share;
    const u32 layer = (u32)s.place / RESIDENT_MMA_PRODUCTS, product = (u32)s.place % RESIDENT_MMA_PRODUCTS;
    s.from = (const char *)p.layers[layer].weights[product] + w.first + g * 128 + ((t ^ (g & 3)) << 4);
    s.left = w.atoms, s.units = w.units;
    s.step = w.step, s.steps = w.steps;
}

/* Asks for the next atom, a group of copies. As in few_mma the swizzle exchanges the halves of columns 4 … 7:
 * `put` is where the first half goes. */
template <int R> DEV void push(const gpu_resident_mma &p, weight_stream &s, int warp, int lane) {
    copy16(s.put, s.from, 1);
    copy16(s.put ^ 512, s.from + 64, 1);
    copy_commit();
    s.put = s.put + 1024 < s.ring + R * 1024 ? s.put + 1024 : s.put - (R - 1) * 1024;
    s.from += s.step;
    s.step = s.steps - s.step;
    if (__builtin_expect(!--s.left, 0)) {
        if (--s.units) {
            s.left = share_at<R>(s, warp)->atoms;
            s.from += share_at<R>(s, warp)->jump;
        } else {
            begin_product<R>(p, s, warp, lane);
        }
    }
}

template <int R>
DEV weight_stream begin_stream(const gpu_resident_mma &p, u32 memory, int warp, int lane) {
    const u32 ring = memory + warp * (R * 1024) + lane * 16;
    if (lane < RESIDENT_MMA_PRODUCTS) shares_of<R>(warp)[lane] = share_of(p.sizes[lane], warp);
    __syncwarp();
    const int before = p.stop_early ? -RESIDENT_MMA_PRODUCTS : -1;
    weight_stream s = {NULL, 0, 0, 0, 0, before, ring, ring + ((lane & 16) << 5), ring};
    begin_product<R>(p, s, warp, lane);
#pragma unroll 1
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

DEV void arrive(meeting &m, int tid) {
    m.all += gridDim.x;
    __syncthreads();
    if (!tid) count_arrival(m.count);
}

/* What is asked for between arriving and this is on its way while others arrive. */
DEV void await_others(const meeting &m, int tid) {
    if (!tid) await_arrivals(m.count, m.all);
    __syncthreads();
}

/* ---- rows that blocks send each other ------------------------------------------------------------------ */

/* PIECE numbers of each of the 16 rows follow one another: what a warp asks for at once is whole lines of the
 * second-level cache. All blocks ask for all of x at once, and by halves of lines that took twice as long. */
enum { PIECE = 32 };

/* The place of row r's number k. */
DEV int piece_at(int r, int k) { return (k / PIECE * ROWS + r) * PIECE + k % PIECE; }

/* ---- a product ----------------------------------------------------------------------------------------- */

/* What a thread is, and where its block's shared memory is. */
typedef struct resident_thread {
    int tid, lane, warp, rows;
    int seen;                              /* keys that some row sees                                       */
    char *beside;                          /* after the ring                                                */
} resident_thread;

DEV float *squares_of(const resident_thread &me) {
    return (float *)(me.beside + RESIDENT_MMA_TILE + RESIDENT_MMA_SHARES);
}

typedef struct resident_product {
    const void *x;
    int ldx, row_step, piece_step;         /* x's columns; from a row, from PIECE columns to the next       */
    u16 *pieces;                           /* where the result goes, but for qkv                            */
    const float *norm_weight, *norm_bias;  /* qkv and gate_up; the bias may be NULL                         */
    float eps;
    gpu_epilogue epilogue;
} resident_product;

DEV int resident_k(int i, int h, const resident_thread &me) {
    return (me.warp + i * WARPS) * GPU_ATOM_K + h * 32 + (me.lane & 3) * 8;
}

/* x of the warp's blocks: [block][row g or g + 8][h], asked for in the order in which they are multiplied.
 * Beyond k, where W is zero or not there, the row's first numbers. */
template <int P, int WHOLE>
DEV void ask_for_rows(uint4 (&x)[P][2][2], const resident_product &w, const resident_thread &me) {
    u32 row[2];
#pragma unroll
    for (int r = 0; r < 2; r++) row[r] = min((me.lane >> 2) + 8 * r, me.rows - 1) * w.row_step;
#pragma unroll
    for (int i = 0; i < P; i++) {
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const u32 at = (me.warp * 2 + i * WARPS * 2 + h) * w.piece_step + (me.lane & 3) * 8;
                const int there = WHOLE || resident_k(i, h, me) < w.ldx;
                x[i][r][h] = __ldcg((const uint4 *)((const u16 *)w.x + (there ? row[r] + at : row[r])));
            }
        __syncwarp();                      /* no load moves: to another block's, or to where it is used     */
    }
}

/* Where each warp has P whole blocks, all addresses are known from the first one. */
template <int P>
DEV void load_rows(uint4 (&x)[P][2][2], const resident_product &w, const resident_thread &me) {
    if (w.ldx == P * WARPS * GPU_ATOM_K) ask_for_rows<P, 1>(x, w, me);
    else ask_for_rows<P, 0>(x, w, me);
}

/* The norm's weights and biases for the lane's numbers of rows that are not known: as they are in memory, so
 * that nothing waits for them before they are used. */
template <int P> struct norm_numbers {
    float4 weight[P * 2][2], bias[P * 2][2];
};

template <int KIND, int P>
DEV norm_numbers<P> load_numbers(const resident_product &w, int has_units, const resident_thread &me) {
    norm_numbers<P> n = {};
#pragma unroll
    for (int i = 0; i < P * 2; i++) {
        const int k = resident_k(i / 2, i % 2, me);
        const int there = KIND != GPU_EPILOGUE_RESIDUAL && has_units && k < w.ldx;
#pragma unroll
        for (int j = 0; j < 2 && there; j++) {
            n.weight[i][j] = __ldg((const float4 *)(w.norm_weight + k) + j);
            if (w.norm_bias) n.bias[i][j] = __ldg((const float4 *)(w.norm_bias + k) + j);
        }
    }
    return n;
}

/* As few_affine_at makes it from memory. */
template <int P> DEV few_affine affine_of(const norm_numbers<P> &n, int i) {
    const float4 a = n.weight[i][0], b = n.weight[i][1], c = n.bias[i][0], d = n.bias[i][1];
    return {{1 + a.x, 1 + a.y, 1 + a.z, 1 + a.w, 1 + b.x, 1 + b.y, 1 + b.z, 1 + b.w},
            {c.x, c.y, c.z, c.w, d.x, d.y, d.z, d.w}};
}

/* x as mma16 takes it: [block][h][step of 16 k][part]. */
template <int P> struct fragments {
    u32 of[P][2][2][4];
};

/* Eight numbers of row g + 8·r. */
template <int P> DEV void set_fragments(fragments<P> &a, int i, int h, int r, const uint4 &v) {
    a.of[i][h][0][r] = v.x, a.of[i][h][0][r + 2] = v.y;
    a.of[i][h][1][r] = v.z, a.of[i][h][1][r + 2] = v.w;
}

template <int P> DEV void keep_rows(fragments<P> &a, const uint4 (&x)[P][2][2]) {
#pragma unroll
    for (int i = 0; i < P; i++)
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int h = 0; h < 2; h++) set_fragments(a, i, h, r, x[i][r][h]);
}

/* RMS norm of x; the sums of squares meet in shared memory. */
template <int P, int KNOWN>
DEV void norm_rows(fragments<P> &a, const uint4 (&x)[P][2][2], const resident_product &w,
                   const norm_numbers<P> &numbers, const resident_thread &me) {
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
        if (!t) squares_of(me)[(g + 8 * r) * WARPS + me.warp] = sum;
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float4 s = *(const float4 *)(squares_of(me) + (g + 8 * r) * WARPS),
                     z = *(const float4 *)(squares_of(me) + (g + 8 * r) * WARPS + 4);
        const float factor = rsqrtf((s.x + s.y + s.z + s.w + z.x + z.y + z.z + z.w) / w.ldx + w.eps);
        const int known = KNOWN ? known_at(w.epilogue.known, g + 8 * r, g + 8 * r < me.rows) : 0;
#pragma unroll
        for (int i = 0; i < P * 2; i++) {
            uint4 v = x[i / 2][r][i % 2];
            few_affine m = affine_of<P>(numbers, i);
            if (KNOWN) {
                __syncwarp();              /* one after another: registers                                  */
                const int k = resident_k(i / 2, i % 2, me), at = known + (k < w.ldx ? k : 0);
                m = few_affine_at(w.norm_weight + at, w.norm_bias ? w.norm_bias + at : NULL);
            }
            few_scale(v, factor, m);
            set_fragments(a, i / 2, i % 2, r, v);
        }
    }
}

/* A block of 64 k, whose atoms are the ring's next. */
template <int R, int C>
DEV void multiply_block(float (&sum)[C][2][4], const u32 (&a)[2][2][4], weight_stream &s) {
    copy_wait<R - C>();
#pragma unroll
    for (int c = 0; c < C; c++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint4 b = load_shared16(s.take + h * 512);
            mma16(sum[c][0], a[h][0], b.x, b.y);
            mma16(sum[c][1], a[h][1], b.z, b.w);
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

/* Thread tid has a pair in unit tid / 64 of those that are finished together, from `first` on. */
template <int KIND, int C>
DEV unit_finish prepare_unit(const resident_product &w, int first, int units, const resident_thread &me) {
    const int unit = first + (me.tid >> 6) * gridDim.x;
    unit_finish u = {};
    if (unit < units) u.f = prepare<KIND>(w.epilogue, me.tid >> 2 & 15, me.rows, unit * C * 8, me.tid & 3);
    if (KIND == GPU_EPILOGUE_RESIDUAL && u.f.there)
        u.before = __ldcg((const u32 *)((const u16 *)w.epilogue.out + u.f.at));
    return u;
}

/* A warp's sums of a unit, of which `parts` is the first number. */
template <int C>
DEV void store_sums(float *parts, const float (&sum)[C][2][4], const resident_thread &me) {
    const int g = me.lane >> 2, t = me.lane & 3;
#pragma unroll
    for (int c = 0; c < C; c++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            *(float2 *)(parts + (me.warp * ROWS + h * 8 + g) * PITCH + c * 8 + 2 * t) =
                make_float2(sum[c][0][2 * h] + sum[c][1][2 * h], sum[c][0][2 * h + 1] + sum[c][1][2 * h + 1]);
}

/* A thread adds the warps' sums of its pair and finishes it. */
template <int KIND, int C>
DEV void finish_unit(const resident_product &w, const float *parts, const unit_finish &u,
                     const resident_thread &me) {
    const int t = me.tid & 3, r = me.tid >> 2 & 15;
    if (!u.f.there) return;
    float2 a = make_float2(0, 0), b = make_float2(0, 0);
#pragma unroll
    for (int v = 0; v < WARPS; v++) {
        const float *from = parts + (v * ROWS + r) * PITCH + (me.tid >> 6) * C * 8 + 2 * t;
        float2 one = *(const float2 *)from;
        a.x += one.x, a.y += one.y;
        if (C == 2) {
            one = *(const float2 *)(from + 8);
            b.x += one.x, b.y += one.y;
        }
    }
    if (KIND == GPU_EPILOGUE_QKV) {
        complete<KIND>(w.epilogue, u.f, u.before, a.x, a.y, b.x, b.y);
        return;
    }
    const u32 pair = KIND == GPU_EPILOGUE_GATED ? pack_bf16(gelu(a.x) * b.x, gelu(a.y) * b.y)
                                                : residual_pair(u.f, u.before, a.x, a.y);
    if (KIND == GPU_EPILOGUE_RESIDUAL) *(u32 *)((u16 *)w.epilogue.out + u.f.at) = pair;
    *(u32 *)(w.pieces + piece_at(r, (int)u.f.at - r * w.epilogue.n)) = pair;
}

/* All of the block's units of a product, UNITS at a time; a warp has at most P blocks of 64 k. What does not
 * depend on other blocks is asked for while they arrive. */
template <int R, int KIND, int P>
DEV void multiply(const gpu_resident_mma &p, const resident_product &w, const resident_mma_size &m,
                  weight_stream &s, meeting &all, int meets, const resident_thread &me) {
    enum { C = KIND == GPU_EPILOGUE_RESIDUAL ? 1 : 2 };
    uint4 x[P][2][2];
    fragments<P> a;
    float *const parts = (float *)me.beside;
    const int has_units = (int)blockIdx.x < m.units;
    if (meets) arrive(all, me.tid);
    const norm_numbers<P> numbers = load_numbers<KIND, P>(w, has_units, me);
    unit_finish u = prepare_unit<KIND, C>(w, blockIdx.x, m.units, me);
    if (meets) await_others(all, me.tid);
    if (!has_units) return;
    load_rows<P>(x, w, me);
    if (KIND == GPU_EPILOGUE_RESIDUAL) keep_rows<P>(a, x);
    else if (w.epilogue.known.rows) norm_rows<P, 1>(a, x, w, numbers, me);
    else norm_rows<P, 0>(a, x, w, numbers, me);
    for (int first = blockIdx.x;;) {
#pragma unroll 1
        for (int i = 0, unit = first; i < UNITS && unit < m.units; i++, unit += gridDim.x) {
            float sum[C][2][4] = {};
#pragma unroll
            for (int b = 0; b < P; b++) {
                if (me.warp + b * WARPS >= m.blocks) break;
                multiply_block<R, C>(sum, a.of[b], s);
#pragma unroll
                for (int c = 0; c < C; c++) push<R>(p, s, me.warp, me.lane);
            }
            store_sums<C>(parts + i * C * 8, sum, me);
        }
        __syncthreads();
        finish_unit<KIND, C>(w, parts, u, me);
        if ((first += UNITS * gridDim.x) >= m.units) break;
        __syncthreads();                   /* sums are read                                                 */
        u = prepare_unit<KIND, C>(w, first, m.units, me);
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

/* The keys that some row sees, and their tiles. They are the same in all layers. */
DEV int seen_keys(const gpu_resident_mma &p, const resident_thread &me) {
    const int keys = me.lane < me.rows ? __ldg(p.keys + me.lane) : 0;
    return __reduce_max_sync(0xffffffffu, keys);
}
DEV int tiles_of(int keys) { return (keys + KEYS - 1) / KEYS; }

/* WARPS·N rows of 256 numbers, through registers: a wait for cp.async would be one for the ring, too. */
template <int N> DEV void ask_for_cached(uint4 (&v)[N], const void *from, int there, int tid) {
#pragma unroll
    for (int j = 0; j < N; j++)
        v[j] = __ldcg((const uint4 *)from + (WARPS * j + (tid >> 5) < there ? tid + j * THREADS : 0));
    __syncwarp();                          /* no load moves to where it is used                             */
}

/* They into shared memory, zeros beyond `there`. */
template <int N> DEV void keep_cached(char *to, const uint4 (&v)[N], int there, int tid) {
    to += row512(0, tid >> 5, tid & 31);
#pragma unroll
    for (int j = 0; j < N; j++)
        *(uint4 *)(to + j * WARPS * 512) = WARPS * j + (tid >> 5) < there ? v[j] : make_uint4(0, 0, 0, 0);
}

/* 16 queries from `first` on against the 64 keys of a tile. */
DEV void attend_tile(const gpu_resident_mma &p, int layer, int first, int tile, const resident_thread &me) {
    const u32 q = shared_address(me.beside), kv = q + ROWS * 512;
    float *const maxima = (float *)(me.beside + (ROWS + KEYS) * 512 + ROWS * 128);
    const cache_memory memory = {q, kv, kv, kv + KEYS * 512, maxima, maxima + 4 * ROWS};
    const cache_thread one = thread_of(me.tid);
    const int queries = me.rows * p.heads, key0 = tile * KEYS, there = me.seen - key0,
              multiplies = me.warp < 4;
    const size_t at = (size_t)layer * p.cache_bytes + (size_t)key0 * DIM * sizeof(u16);
    const key_tile keys = {0, key0, me.seen};
    attended a = {};
    cache_state w = {};
    float score[2][4] = {};

    uint4 query[ROWS / WARPS], key[KEYS / WARPS], value[KEYS / WARPS];
    ask_for_cached(query, (const u16 *)p.q + (size_t)first * DIM, queries - first, me.tid);
    ask_for_cached(key, (const char *)p.k + at, there, me.tid);
    ask_for_cached(value, (const char *)p.v + at, there, me.tid);
    __syncthreads();                       /* whatever lay here before was read                             */
    keep_cached(me.beside, query, queries - first, me.tid);
    keep_cached(me.beside + ROWS * 512, key, there, me.tid);
    a.top[0] = a.top[1] = -INFINITY;
    w.scale = p.scale * 1.4426950408889634f;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int f = first + h * 8 + one.g;
        w.sample[h] = f < queries ? 0 : -1;
        w.keys[h] = f < queries ? __ldg(p.keys + f / p.heads) : 0;
    }
    __syncthreads();
    if (multiplies) {
#pragma unroll
        for (int i = 0; i < DIM / 16; i++)
            load_matrix4(w.q[i], row512(q, me.lane & 15, 2 * i + (me.lane >> 4)));
        multiply_scores(score, w, one, kv);
        mask_scores<1>(score, w, one, keys, maxima);
    }
    __syncthreads();                       /* maxima are written, keys are read                             */
    keep_cached(me.beside + ROWS * 512, value, there, me.tid);
    if (multiplies) weigh_scores<1>(a, score, w, one, memory);
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
    const int groups = (me.rows * p.heads + ROWS - 1) / ROWS, units = groups * tiles_of(me.seen);
#pragma unroll 1
    for (int unit = blockIdx.x; unit < units; unit += gridDim.x) {
        const int first = unit % groups * ROWS, tile = unit / groups;
        resident_thread one = me;
        compute_again(one.tid);
        one.lane = one.tid & 31, one.warp = one.tid >> 5;
        attend_tile(p, layer, first, tile, one);
        store_totals(p, first, tile, one);
    }
}

/* The block's first tile, keys and values, into the second-level cache while blocks wait for each other: most
 * of it was written long ago. */
DEV void ask_for_tiles(const gpu_resident_mma &p, int layer, const resident_thread &me) {
    enum { LINE = 128, LINES = KEYS * DIM * 2 / LINE };
    const int groups = (me.rows * p.heads + ROWS - 1) / ROWS, tile = blockIdx.x / groups;
    const size_t at = layer * p.cache_bytes + (size_t)tile * KEYS * DIM * 2;
    for (int i = me.tid; i < LINES; i += THREADS) {
        if (tile * KEYS + i / (DIM * 2 / LINE) >= me.seen) break;
        prefetch((const char *)p.k + at + i * LINE);
        prefetch((const char *)p.v + at + i * LINE);
    }
}

/* A query's tiles: 128 threads, 2 dims each. */
DEV void join_tiles(const gpu_resident_mma &p, const resident_thread &me) {
    const int tiles = tiles_of(me.seen), i = (me.tid & 127) * 2;
    for (int f = blockIdx.x + gridDim.x * (me.tid >> 7); f < me.rows * p.heads; f += gridDim.x * 2) {
        float2 stats = make_float2(-INFINITY, 0), out = make_float2(0, 0);
        if (me.lane < tiles) stats = __ldcg((const float2 *)stats_at(p, me.lane, f));
        float top = 0, weight = 0;
        for (int first = 0; first < tiles; first += TOGETHER) {
            float2 part[TOGETHER];
#pragma unroll
            for (int s = 0; s < TOGETHER; s++)
                part[s] = __ldcg((const float2 *)(sums_at(p, min(first + s, tiles - 1), f) + i));
            __syncwarp();                  /* no load moves to where it is used                             */
            if (!first) {
                top = warp_max(stats.x);
                weight = exp2_fast(stats.x - top);
            }
#pragma unroll
            for (int s = 0; s < TOGETHER; s++) {           /* beyond the tiles the weight is 0              */
                const float w = __shfl_sync(0xffffffffu, weight, (first + s) & 31);
                out.x += part[s].x * w, out.y += part[s].y * w;
            }
        }
        const float factor = 1 / warp_sum(stats.y * weight);
        const int row = f / p.heads;
        *(u32 *)((u16 *)p.attended + piece_at(row, (f - row * p.heads) * DIM + i)) =
            pack_bf16(out.x * factor, out.y * factor);
    }
}

/* ---- the kernel ---------------------------------------------------------------------------------------- */

DEV resident_product qkv_of(const gpu_resident_mma &p, int layer) {
    const resident_mma_layer &l = p.layers[layer];
    resident_product w = {p.x, p.width, p.width, PIECE, NULL, l.scale_in, l.shift_in, p.eps, {}};
    gpu_epilogue &e = w.epilogue;
    if (layer) w.x = p.x_pieces, w.row_step = PIECE, w.piece_step = ROWS * PIECE;
    e.known = p.known;
    e.out = p.q;
    e.rope = p.rope;
    e.sample = p.sample, e.position = p.position;
    e.k = (char *)p.k + layer * p.cache_bytes;
    e.v = (char *)p.v + layer * p.cache_bytes;
    e.heads = p.heads, e.head_dim = DIM, e.capacity = p.capacity, e.head_columns = DIM;
    return w;
}

/* Its rows are in pieces. */
DEV resident_product product_of(const void *x, int ldx, void *to, const gpu_resident_mma &p, int n) {
    resident_product w = {x, ldx, PIECE, ROWS * PIECE, (u16 *)to, NULL, NULL, p.eps, {}};
    w.epilogue.known = p.known;
    w.epilogue.n = n;
    return w;
}

DEV resident_product gate_up_of(const gpu_resident_mma &p, const resident_mma_layer &l) {
    resident_product w = product_of(p.x_pieces, p.width, p.hidden_rows, p, p.hidden);
    w.norm_weight = l.scale_post, w.norm_bias = l.shift_post;
    return w;
}

DEV resident_product residual_of(const gpu_resident_mma &p, const void *x, int ldx, const float *gate) {
    resident_product w = product_of(x, ldx, p.x_pieces, p, p.width);
    w.epilogue.gate = gate;
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
    resident_thread me = {(int)threadIdx.x, (int)threadIdx.x & 31, (int)threadIdx.x >> 5, 0, 0,
                          memory + R * RESIDENT_MMA_SLOT};
    weight_stream s = begin_stream<R>(p, shared_address(memory), me.warp, me.lane);
    me.rows = __ldg(p.count);
    wait_before();
    me.seen = p.stop_early ? 0 : seen_keys(p, me);
    meeting all = begin_meeting(p);
#pragma unroll 1
    for (int layer = 0; layer < p.depth && me.rows > 0; layer++) {
        const resident_mma_layer &l = p.layers[layer];
        compute_again(me.tid);             /* what follows from it would fill the registers                 */
        me.lane = me.tid & 31, me.warp = me.tid >> 5;
        multiply<R, GPU_EPILOGUE_QKV, WIDE>(p, qkv_of(p, layer), p.sizes[RESIDENT_MMA_QKV], s,
                                            all, layer > 0, me);
        if (p.stop_early) break;
        arrive(all, me.tid);
        ask_for_tiles(p, layer, me);
        await_others(all, me.tid);
        attend_tiles(p, layer, me);
        arrive(all, me.tid);
        await_others(all, me.tid);
        join_tiles(p, me);
        multiply<R, GPU_EPILOGUE_RESIDUAL, O>(p, residual_of(p, p.attended, p.heads * DIM, l.gate_in),
                                              p.sizes[RESIDENT_MMA_O], s, all, 1, me);
        multiply<R, GPU_EPILOGUE_GATED, WIDE>(p, gate_up_of(p, l), p.sizes[RESIDENT_MMA_GATE_UP], s,
                                              all, 1, me);
        multiply<R, GPU_EPILOGUE_RESIDUAL, DOWN>(p, residual_of(p, p.hidden_rows, p.hidden, l.gate_post),
                                                 p.sizes[RESIDENT_MMA_DOWN], s, all, 1, me);
    }
    copy_wait<0>();
}

#define RESIDENT(name, slots) \
    KERNEL(256, 1) name(const __grid_constant__ gpu_resident_mma p) { resident<slots>(p); }
RESIDENT(resident_mma_6, 6)
RESIDENT(resident_mma_14, 14)
RESIDENT(resident_mma_22, 22)
