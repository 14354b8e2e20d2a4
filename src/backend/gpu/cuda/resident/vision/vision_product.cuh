/* Products of the resident vision kernel: x · Wᵀ + bias of an image's 256 rows, with a norm of x before it or
 * added to a residual; a tile of ROWS rows and N columns at a time, sized so that each block has one.
 *
 *   ROWS 128   a warpgroup multiplies 64 rows, and a thread finishes two rows of each 16
 *   ROWS 64    both multiply the same rows, each every second 64 k; then of each 16 rows the first finishes
 *              8, the second the others, and a thread has one of them
 *
 * A residual's sums begin with the bias; what it adds to comes into the staging meanwhile. With a norm,
 * factors and bias come after the products (vision_norm.cuh).
 *
 * Note: what follows the products is most of the kernel's code, and each of its instructions runs once a
 * tile: they come from the instruction cache's second level, at two to four cycles each. Loops that stay
 * rolled are quicker where they can be had (store_normed). */
#ifndef KERNELS_CUDA_VISION_PRODUCT_CUH
#define KERNELS_CUDA_VISION_PRODUCT_CUH

#include "vision_norm.cuh"
#include "backend/gpu/cuda/weight_tile.cuh"
#include "backend/gpu/cuda/wgmma.cuh"

typedef weight_tile<GPU_WEIGHT_BF16> atom;

enum { NORMED, NORMED_GELU, RESIDUAL };

/* BOX, STORE: groups of 8 columns that a copy of weights brings, that a copy of outputs takes. */
template <int ROWS_, int N_, int BOX_, int STORE_> struct product_tile {
    enum {
        ROWS = ROWS_, N = N_, BOX = BOX_, STORE = STORE_,
        SHARED_K = ROWS == 64,             /* the warpgroups share k                                        */
        GROUPS = N / atom::COLUMNS,
        EACH = SHARED_K ? 1 : 2,           /* rows that a thread finishes,                                  */
        WARP_ROWS = 8 * EACH,              /* and a warp                                                    */
        VALUES = GROUPS * EACH * 2,        /* a thread's values: [group][row][2]                            */
        /* Groups that are finished in one turn of a loop. */
        CHUNK = !(GROUPS % 5) ? 5 : !(GROUPS % 7) ? 7 : GROUPS,
        TURNS = STORE / CHUNK,             /* that make a box                                               */
        STEP = SHARED_K ? 2 : 1,
        SLOT_X = ROWS * 128,               /* bytes of x in a slot, W after it                              */
        SLOT = SLOT_X + GROUPS * atom::BYTES,
        DEEP = (int)RING_BYTES / SLOT,
        COUNT = DEEP < (int)SLOTS ? DEEP : (int)SLOTS,
        STACK = IMAGE_KEYS / ROWS,         /* tiles on top of each other                                    */
        PITCH = STORE * 16,                /* bytes of a row of a staged box                                */
        BOX_BYTES = WARP_ROWS * PITCH,
        WARP_BYTES = GROUPS * WARP_ROWS * 16,
        SUM_BYTES = SHARED_K ? GROUPS * 128 * 16 : 0,
        /* Outputs come after the sums in the staging, or over them. */
        ROWS_AT = SUM_BYTES + CONSUMER_WARPS * WARP_BYTES <= (int)STAGING_BYTES ? SUM_BYTES : 0,
    };
    static_assert(GROUPS % BOX == 0 && GROUPS % STORE == 0 && STORE % CHUNK == 0, "a tile is whole boxes");
    static_assert(ROWS <= (int)MOST_ROWS && N <= (int)MOST_COLUMNS, "factors and columns of a tile");
    static_assert(SLOT <= PART_BYTES && CONSUMER_WARPS * WARP_BYTES <= (int)STAGING_BYTES &&
                      SUM_BYTES <= (int)STAGING_BYTES,
                  "shared memory");
};

typedef struct product {
    const gpu_tensor_map *x, *weights;
    const float *bias;                     /* [8·groups]                                                    */
    const float *norm;                     /* [8·groups] a norm's sums; of a residual the next norm's weight,
                                              NULL: there is none                                           */
    const float *norm_before;              /* [8·groups] of a residual: the weight of the norm before it    */
    int centers;                           /* which of them s before it has                                 */
    const gpu_tensor_map *out, *before;    /* where outputs go; where a residual's s before it is           */
    int groups, blocks;                    /* groups of 8 columns, blocks of 64 k                           */
    int parts;                             /* blocks that share a tile's k                                  */
    void *sums;                            /* where they give each other sums                               */
} product;

/* A part of a tile: columns from group `first` on, rows from `row` on, `blocks` of 64 k from block `kb`
 * on. */
typedef struct work {
    int tile, part, first, row, kb, blocks;
} work;

template <class T> DEV int works_of(const product &p) {
    return (p.groups + T::GROUPS - 1) / T::GROUPS * T::STACK * p.parts;
}
template <class T> DEV work work_of(const block &b, const product &p, int i) {
    const int tile = i / p.parts, part = i - tile * p.parts, kb = part * p.blocks / p.parts;
    return {tile, part, tile / T::STACK * T::GROUPS, b.row0 + tile % T::STACK * T::ROWS, kb,
            (part + 1) * p.blocks / p.parts - kb};
}

/* ---- the copying warp ---------------------------------------------------------------------------------- */

template <class T> DEV void copy_weights(const block &b, const product &p, int first, int kb, int slot) {
    const u32 full = full_of(b, slot);
    if (!b.lane) barrier_arm(full, T::SLOT);
    __syncwarp();
    if (b.lane < T::GROUPS / T::BOX)
        copy_atoms(b.ring + slot * T::SLOT + T::SLOT_X + b.lane * T::BOX * atom::BYTES, p.weights,
                   first + b.lane * T::BOX, kb, full);
}

template <class T> DEV void copy_rows(const block &b, const product &p, int row, int kb, int slot) {
    if (b.lane < T::ROWS / IMAGE_ROWS)
        copy_box2(b.ring + slot * T::SLOT + b.lane * IMAGE_ROWS * 128, p.x, kb * 64,
                  row + b.lane * IMAGE_ROWS, full_of(b, slot));
}

/* Weights of the first two slots come before the meeting, x after it. More would be in the way: the fence of
 * a meeting waits for copies in flight, too. */
template <class T> DEV void feed_product(block &b, const product &p) {
    enum { EARLY = 2 };
    const int works = works_of<T>(p);
    await_all_empty(b);
#pragma unroll 1
    for (int i = b.rank; i < works; i += b.blocks) {
        const work w = work_of<T>(b, p, i);
        const int early = i == b.rank ? min(w.blocks, (int)EARLY) : 0;
        int s = 0;
        u32 lap = 0;
        if (i == b.rank) {
#pragma unroll 1
            for (int k = 0; k < early; k++) copy_weights<T>(b, p, w.first, w.kb + k, k);
            await_phase(b);
            if (!b.lane) barrier_arrive(met_of(b));
        }
#pragma unroll 1
        for (int k = 0; k < w.blocks; k++) {
            if (k >= early) {
                await_empty(b, s, lap);
                copy_weights<T>(b, p, w.first, w.kb + k, s);
            }
            copy_rows<T>(b, p, w.row, w.kb + k, s);
            if (++s == T::COUNT) s = 0, lap ^= 1;
        }
        used(b, T::COUNT, w.blocks);
    }
}

/* ---- the warps that make factors ----------------------------------------------------------------------- */

/* The part of a tile that finishes the rows of warp `warp`. */
DEV int finisher(int warp, const product &p) { return warp * p.parts / CONSUMER_WARPS; }

/* The tiles of a product, for those that do not multiply. Not a template: copies of that code leave too few
 * registers. */
typedef struct tile_shape {
    int rows, groups, store, chunk;        /* as in product_tile                                            */
} tile_shape;

/* What a residual adds to, into the boxes of the warps that finish it. One warp, a lane a box. */
DEV void fetch_residual(const block &b, const product &p, const tile_shape &t, int part, int first, int row) {
    const bool shared_k = t.rows == 64;
    const int boxes = t.groups / t.store, warp_rows = shared_k ? 8 : 16, box_bytes = t.store * warp_rows * 16;
    const u32 to = b.ring + AT_STAGING + (shared_k ? t.groups * 128 * 16 : 0);
    int count = 0;
    for (int w = 0; w < CONSUMER_WARPS; w++) count += finisher(w, p) == part;
    if (!b.lane) barrier_expect(factors_full(b), count * boxes * box_bytes);
    __syncwarp();
    for (int i = b.lane; i < CONSUMER_WARPS * boxes; i += 32) {
        const int w = i / boxes, box = i - w * boxes;
        if (finisher(w, p) == part)
            copy_box2(to + i * box_bytes, p.before, (first + box * t.store) * 8,
                      row + (shared_k ? (w & 3) * 16 + (w >> 2) * 8 : w * 16), factors_full(b));
    }
}

/* `s`: how the moments are shared, with a norm; met: how many products the block has had part in. */
DEV void factor_product(block &b, const product &p, int kind, const tile_shape &t, const parting &s, u32 &met,
                        float eps) {
    const int stack = IMAGE_KEYS / t.rows, works = (p.groups + t.groups - 1) / t.groups * stack * p.parts;
#pragma unroll 1
    for (int i = b.rank; i < works; i += b.blocks) {
        const int tile = i / p.parts, first = tile / stack * t.groups, row = tile % stack * t.rows;
        await_unused(b);
        fetch_columns(b, kind == RESIDUAL, p.norm, kind == RESIDUAL ? p.norm_before : p.bias, first * 8,
                      t.groups * 4, p.groups * 8);
        if (i == b.rank) {
            await(met_of(b), met++ & 1);
            async_fence();
        }
        const float *const centers = centers_of(b, p.centers, row);
        float *const others = centers_of(b, p.centers ^ 1, row);
        if (kind == RESIDUAL) {
            if (b.warp == CONSUMER_WARPS + 1)
                fetch_residual(b, p, t, i - tile * p.parts, first, b.row0 + row);
            fetch_centers(b, centers, p.norm ? others : NULL, t.rows);
        } else {
            fetch_moments(b, s.parts, row, t.rows);
            make_factors(b, s, centers, first ? NULL : others, t.rows, eps);
        }
        give_factors(b);
    }
}

/* GELU of two, as gelu() but with one reciprocal. 2^60 is as good as infinity. */
DEV u32 gelu_pair(float x, float y) {
    const float a = 1 + exp2_fast(fminf(gelu_exponent(x), 60)),
                b = 1 + exp2_fast(fminf(gelu_exponent(y), 60));
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(a * b));
    return pack_bf16(x * (b * r), y * (a * r));
}

/* ---- the consumers ------------------------------------------------------------------------------------- */

/* The first of the rows that the warp finishes, in the tile; of these the thread's, and 8 more. */
template <class T> DEV int warp_row(const block &b) {
    return (b.warp & 3) * 16 + (T::SHARED_K ? b.group * 8 : b.group * 64);
}

/* The warp's boxes in the staging. */
template <class T> DEV char *staged_boxes(const block &b) {
    return staging_of(b) + T::ROWS_AT + b.warp * T::WARP_BYTES;
}
/* Where in a box 16 bytes of row r are, those of group j. */
template <class T> DEV int staged_at(int r, int j) { return r * T::PITCH + j * 16; }
/* Where the outputs of a thread begin. */
template <class T> DEV char *staged_outputs(const block &b) {
    return staged_boxes<T>(b) + (b.lane >> 2) * T::PITCH + (b.lane & 3) * 4;
}

/* The sums begin with the bias; with zeros where somebody else finishes them, and with a norm. Note: the sums
 * with 0 keep the compiler from copying registers among the wgmmas, which it then serialises. */
template <class T>
DEV void begin_sums(float (&d)[T::N / 2], const block &b, const float *bias, int first, int groups,
                    bool biased) {
#pragma unroll
    for (int j = 0; j < T::GROUPS; j++) {
        float2 c = make_float2(0, 0);
        if (biased && first + j < groups)
            c = __ldg((const float2 *)(bias + (first + j) * 8 + 2 * (b.lane & 3)));
        d[4 * j] = c.x + 0, d[4 * j + 1] = c.y + 0, d[4 * j + 2] = c.x + 0, d[4 * j + 3] = c.y + 0;
    }
}

template <class T> DEV void multiply(float (&d)[T::N / 2], block &b, int blocks) {
    const u32 a_at = b.ring + (T::SHARED_K ? 0 : b.group * 64 * 128), b_at = b.ring + T::SLOT_X;
    int s = T::SHARED_K ? b.group : 0, before = -1;
    u32 lap = 0;
#pragma unroll 1
    for (int kb = s; kb < blocks; kb += T::STEP) {
        await_full(b, s, lap);
        const u64 a = wgmma_operand(a_at + s * T::SLOT), w = wgmma_operand(b_at + s * T::SLOT);
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < atom::STEPS; k++) wgmma(d, a + atom::STEP * k, w + atom::STEP * k, 1);
        wgmma_commit();
        wgmma_wait<1>();
        if (before >= 0) leave(b, before, T::STEP);
        before = s;
        s += T::STEP;
        if (s >= T::COUNT) s -= T::COUNT, lap ^= 1;
    }
    wgmma_wait<0>();
    leave(b, before, T::STEP);
    after_wait(d);
    used(b, T::COUNT, blocks);
}

/* The warpgroups add their sums: each gives the other the rows that that one finishes. */
template <class T>
DEV void share_sums(float (&v)[T::VALUES], const float (&d)[T::N / 2], const block &b) {
    float2 *const from_second = (float2 *)staging_of(b) + (threadIdx.x & 127),
           *const from_first = from_second + T::GROUPS * 128;
    float2 *const give = b.group ? from_second : from_first, *const take = b.group ? from_first : from_second;
#pragma unroll
    for (int j = 0; j < T::GROUPS; j++) {
        v[2 * j] = b.group ? d[4 * j + 2] : d[4 * j], v[2 * j + 1] = b.group ? d[4 * j + 3] : d[4 * j + 1];
        give[j * 128] = b.group ? make_float2(d[4 * j], d[4 * j + 1])
                                : make_float2(d[4 * j + 2], d[4 * j + 3]);
    }
    consumers_meet();
#pragma unroll
    for (int j = 0; j < T::GROUPS; j++) {
        const float2 other = take[j * 128];
        v[2 * j] += other.x, v[2 * j + 1] += other.y;
    }
    consumers_meet();                      /* the staging is free                                           */
}

/* A turn's outputs are staged: the box that they complete goes out. Returns where the next turn's begin. */
template <class T> DEV char *end_turn(const block &b, const product &p, const work &w, int turn, char *to) {
    const int box = turn / T::TURNS;
    if (turn % T::TURNS + 1 < T::TURNS) return to + T::CHUNK * 16;
    begin_store(b, p.out, staged_boxes<T>(b) + box * T::BOX_BYTES, (w.first + box * T::STORE) * 8,
                w.row + warp_row<T>(b));
    return staged_outputs<T>(b) + (box + 1) * T::BOX_BYTES;
}

/* After the products: the norm, the bias, GELU. Note: in a turn nothing is stored before everything has been
 * read, or the compiler reads one by one; likewise in store_residual. */
template <class T, int KIND>
DEV void store_normed(float (&v)[T::VALUES], const block &b, const product &p, const work &w) {
    enum { TURN = T::CHUNK * T::EACH * 2 };
    const float2 *const own = factors_of(b) + warp_row<T>(b) + (b.lane >> 2);
    const float4 *columns = columns_of(b) + (b.lane & 3);
    char *to = staged_outputs<T>(b);
    float2 f[T::EACH];
#pragma unroll
    for (int h = 0; h < T::EACH; h++) f[h] = own[8 * h];
#pragma unroll 1
    for (int turn = 0; turn < T::GROUPS / T::CHUNK; turn++) {
#pragma unroll
        for (int j = 0; j < T::CHUNK; j++) {
            const float4 c = columns[4 * j];
#pragma unroll
            for (int h = 0; h < T::EACH; h++) {
                float *const two = v + (j * T::EACH + h) * 2;
                two[0] = fmaf(two[0], f[h].x, fmaf(f[h].y, c.x, c.z));
                two[1] = fmaf(two[1], f[h].x, fmaf(f[h].y, c.y, c.w));
            }
        }
#pragma unroll
        for (int j = 0; j < T::CHUNK; j++)
#pragma unroll
            for (int h = 0; h < T::EACH; h++) {
                const float *const two = v + (j * T::EACH + h) * 2;
                *(u32 *)(to + staged_at<T>(8 * h, j)) =
                    KIND == NORMED_GELU ? gelu_pair(two[0], two[1]) : pack_bf16(two[0], two[1]);
            }
        columns += 4 * T::CHUNK;
        to = end_turn<T>(b, p, w, turn, to);
#pragma unroll
        for (int i = 0; i < T::VALUES - TURN; i++) v[i] = v[i + TURN];
    }
    end_store();
}

/* Of the columns of a turn that exist, in a thread's rows: mean, and squares around it. */
template <class T>
DEV void leave_moments(const float (&v)[T::VALUES], const block &b, const work &w, int part, int count) {
    const int row = w.row - b.row0 + warp_row<T>(b) + (b.lane >> 2);
    float mean[T::EACH] = {}, squares[T::EACH] = {};
    if (count <= 0) return;
#pragma unroll
    for (int j = 0; j < T::CHUNK; j++)
        if (j < count)
#pragma unroll
            for (int i = 0; i < 2 * T::EACH; i++) mean[i / 2] += v[j * 2 * T::EACH + i];
#pragma unroll
    for (int h = 0; h < T::EACH; h++) {
        mean[h] += __shfl_xor_sync(0xffffffffu, mean[h], 1);
        mean[h] += __shfl_xor_sync(0xffffffffu, mean[h], 2);
        mean[h] = __fdividef(mean[h], 8 * count);
    }
#pragma unroll
    for (int j = 0; j < T::CHUNK; j++)
        if (j < count)
#pragma unroll
            for (int i = 0; i < 2 * T::EACH; i++) {
                const float x = v[j * 2 * T::EACH + i] - mean[i / 2];
                squares[i / 2] += x * x;
            }
#pragma unroll
    for (int h = 0; h < T::EACH; h++) {
        squares[h] += __shfl_xor_sync(0xffffffffu, squares[h], 1);
        squares[h] += __shfl_xor_sync(0xffffffffu, squares[h], 2);
        if (!(b.lane & 3)) *moments_of(b, part, row + 8 * h) = make_float2(mean[h], squares[h]);
    }
}

/* After the products: x before it is added; moments of x are left, and s for the next norm goes out, or x. */
template <class T>
DEV void store_residual(float (&v)[T::VALUES], const block &b, const product &p, const work &w) {
    enum { TURN = T::CHUNK * T::EACH * 2 };
    const float2 *const own = factors_of(b) + warp_row<T>(b) + (b.lane >> 2);
    const float4 *columns = columns_of(b) + (b.lane & 3);
    char *to = staged_outputs<T>(b);
    float2 centers[T::EACH];
#pragma unroll
    for (int h = 0; h < T::EACH; h++) centers[h] = own[8 * h];
#pragma unroll 1
    for (int turn = 0; turn < T::GROUPS / T::CHUNK; turn++) {
        u32 s[T::CHUNK][T::EACH];
#pragma unroll
        for (int j = 0; j < T::CHUNK; j++)
#pragma unroll
            for (int h = 0; h < T::EACH; h++) s[j][h] = *(u32 *)(to + staged_at<T>(8 * h, j));
#pragma unroll
        for (int j = 0; j < T::CHUNK; j++) {
            const float4 weight = columns[4 * j];              /* after it, 1 / before it                   */
#pragma unroll
            for (int h = 0; h < T::EACH; h++) {
                float *const x = v + (j * T::EACH + h) * 2;
                x[0] += fmaf(low_of(s[j][h]), weight.z, centers[h].x);
                x[1] += fmaf(high_of(s[j][h]), weight.w, centers[h].x);
                s[j][h] = pack_bf16((x[0] - centers[h].y) * weight.x, (x[1] - centers[h].y) * weight.y);
            }
        }
#pragma unroll
        for (int j = 0; j < T::CHUNK; j++)
#pragma unroll
            for (int h = 0; h < T::EACH; h++) *(u32 *)(to + staged_at<T>(8 * h, j)) = s[j][h];
        to = end_turn<T>(b, p, w, turn, to);
        leave_moments<T>(v, b, w, w.first / T::CHUNK + turn,
                         min((int)T::CHUNK, p.groups - w.first - turn * T::CHUNK));
        columns += 4 * T::CHUNK;
#pragma unroll
        for (int i = 0; i < T::VALUES - TURN; i++) v[i] = v[i + TURN];
    }
    end_store();
}

template <class T, int KIND>
DEV void store_tile(float (&v)[T::VALUES], const block &b, const product &p, const work &w) {
    if constexpr (KIND == RESIDUAL) store_residual<T>(v, b, p, w);
    else store_normed<T, KIND>(v, b, p, w);
}

/* Sums of a warp from all parts, added by the part that finishes them; the others send theirs. */
template <class T> DEV void add_parts(float (&d)[T::N / 2], const block &b, const product &p, const work &w) {
    enum { FLOAT4S = T::GROUPS * 32 };     /* float4 a warp                                                 */
    static_assert(!T::SHARED_K && T::ROWS * T::N * 4 <= (int)VISION_SUMS, "memory of sums");
    u32 *const got = b.progress + VISION_GOT_AT / 4 + w.tile * CONSUMER_WARPS + b.warp;
    float4 *const sums = (float4 *)p.sums + (size_t)(w.tile * p.parts * CONSUMER_WARPS + b.warp) * FLOAT4S +
                         b.lane;
    if (finisher(b.warp, p) != w.part) {
        float4 *const to = sums + w.part * CONSUMER_WARPS * FLOAT4S;
#pragma unroll
        for (int j = 0; j < T::GROUPS; j++)
            __stcg(to + j * 32, make_float4(d[4 * j], d[4 * j + 1], d[4 * j + 2], d[4 * j + 3]));
        __syncwarp();
        if (!b.lane) count_up(got);
        return;
    }
    await_count(got, (u32)(p.parts - 1) * (b.shared + 1));
    /* Two at a time: they take no longer to come than one. */
#pragma unroll 1
    for (int other = 0; other < p.parts - 1; other += 2) {
        const bool both = other + 1 < p.parts - 1;
        const float4 *const from = sums + (other + (other >= w.part)) * CONSUMER_WARPS * FLOAT4S,
                     *const next = sums + (other + 1 + (other + 1 >= w.part)) * CONSUMER_WARPS * FLOAT4S;
        float4 v[T::GROUPS], u[T::GROUPS];
#pragma unroll
        for (int j = 0; j < T::GROUPS; j++) {
            v[j] = __ldcg(from + j * 32);
            u[j] = both ? __ldcg(next + j * 32) : make_float4(0, 0, 0, 0);
        }
#pragma unroll
        for (int j = 0; j < T::GROUPS; j++) {
            d[4 * j] += v[j].x, d[4 * j + 1] += v[j].y, d[4 * j + 2] += v[j].z, d[4 * j + 3] += v[j].w;
            d[4 * j] += u[j].x, d[4 * j + 1] += u[j].y, d[4 * j + 2] += u[j].z, d[4 * j + 3] += u[j].w;
        }
    }
}

/* Returns whether the block had any of it. PARTS 1: blocks may share k. */
template <class T, int KIND, int PARTS> DEV bool make_product(block &b, const product &p) {
    static_assert(KIND != RESIDUAL || (int)T::ROWS_AT == (int)T::SUM_BYTES,
                  "what a residual adds to is there before the sums");
    const int works = works_of<T>(p);
#pragma unroll 1
    for (int i = b.rank; i < works; i += b.blocks) {
        const work w = work_of<T>(b, p, i);
        const bool finished_here = !PARTS || finisher(b.warp, p) == w.part,
                   biased = KIND == RESIDUAL && finished_here && !(T::SHARED_K && b.group);
        float d[T::N / 2];
        begin_sums<T>(d, b, p.bias, w.first, p.groups, biased);
        multiply<T>(d, b, w.blocks);
        await_factors(b);                  /* the staging is the consumers' from here on                    */
        if constexpr (T::SHARED_K) {
            float v[T::VALUES];
            share_sums<T>(v, d, b);
            store_tile<T, KIND>(v, b, p, w);
            if (i + b.blocks < works) consumers_meet();    /* the staging is free                           */
        } else {
            if constexpr (PARTS)
                if (p.parts > 1) add_parts<T>(d, b, p, w);
            if (finished_here) store_tile<T, KIND>(d, b, p, w);
        }
        leave_factors(b);
    }
    if (PARTS) b.shared++;
    return b.rank < works;
}

#endif
