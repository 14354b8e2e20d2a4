/* Products of the resident vision kernel: x · Wᵀ + bias of an image's 256 rows, a tile of ROWS rows and N
 * columns at a time, sized so that each block has one.
 *
 *   ROWS 128   a warpgroup multiplies 64 rows
 *   ROWS 64    both multiply the same rows, each every second 64 k; then each finishes half of the columns
 *
 * The sums begin with the bias. What a residual adds to is fetched into the staging before the products. */
#ifndef KERNELS_CUDA_VISION_PRODUCT_CUH
#define KERNELS_CUDA_VISION_PRODUCT_CUH

#include "vision_block.cuh"
#include "wgmma.cuh"

enum { PLAIN, GELU, RESIDUAL };

template <int ROWS_, int N_, int BOX_> struct product_tile {
    enum {
        ROWS = ROWS_, N = N_,
        BOX = BOX_,                        /* groups of 8 columns that one copy brings                      */
        SHARED_K = ROWS == 64,             /* the warpgroups share k                                        */
        GROUPS = N / 8,                    /* of 8 columns                                                  */
        FIRST = SHARED_K ? (GROUPS + 1) / 2 : GROUPS, /* that the first warpgroup finishes                  */
        STEP = SHARED_K ? 2 : 1,
        SLOT = (ROWS + N) * 128,
        DEEP = (int)RING_BYTES / SLOT,
        COUNT = DEEP < (int)SLOTS ? DEEP : (int)SLOTS,
        STACK = IMAGE_KEYS / ROWS,      /* tiles on top of each other                                    */
        PITCH = (FIRST | 1) * 16,          /* bytes of a row in staging: an odd number of 16                */
        ROW_BYTES = CONSUMER_WARPS * 16 * PITCH,
        SUM_BYTES = SHARED_K ? GROUPS * 128 * 16 : 0,
        ROWS_AT = SUM_BYTES + ROW_BYTES <= (int)STAGING_BYTES ? SUM_BYTES : 0, /* 0: over the sums          */
    };
    static_assert(GROUPS % BOX == 0, "a tile is whole boxes");
    static_assert(SLOT <= PART_BYTES && ROW_BYTES <= (int)STAGING_BYTES && SUM_BYTES <= (int)STAGING_BYTES,
                  "shared memory");
};

typedef struct product {
    const gpu_tensor_map *x, *weights;
    const float *bias;                     /* [8·groups]                                                    */
    void *out;                             /* bf16 [rows][8·pitch]                                          */
    int pitch;
    int groups, blocks;                    /* of 8 columns, of 64 k                                         */
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
    const u32 full = b.full + 8 * slot;
    if (!b.lane) barrier_arm(full, T::SLOT);
    __syncwarp();
    if (b.lane < T::GROUPS / T::BOX)
        copy_box3(b.ring + slot * T::SLOT + T::ROWS * 128 + b.lane * T::BOX * GPU_ATOM_BYTES, p.weights, 0,
                  kb, first + b.lane * T::BOX, full);
}

template <class T> DEV void copy_rows(const block &b, const product &p, int row, int kb, int slot) {
    if (b.lane < T::ROWS / IMAGE_ROWS)
        copy_box2(b.ring + slot * T::SLOT + b.lane * IMAGE_ROWS * 128, p.x, kb * 64,
                  row + b.lane * IMAGE_ROWS, b.full + 8 * slot);
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

/* GELU of two, as gelu() but with one reciprocal. 2^60 is as good as infinity. */
DEV u32 gelu_pair(float x, float y) {
    const float a = 1 + exp2_fast(fminf(gelu_exponent(x), 60)),
                b = 1 + exp2_fast(fminf(gelu_exponent(y), 60));
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(a * b));
    return pack_bf16(x * (b * r), y * (a * r));
}

/* ---- the consumers ------------------------------------------------------------------------------------- */

/* 1: this warpgroup finishes group j of the tile's columns. */
template <class T> DEV bool mine(const block &b, int j) {
    return !T::SHARED_K || (b.group ? j >= T::FIRST : j < T::FIRST);
}

/* The thread's warp's 16 rows in the staging. */
template <class T> DEV char *staged_rows(const block &b) {
    return b.staging + T::ROWS_AT + b.warp * 16 * T::PITCH;
}
/* The first group that the warpgroup finishes; how many groups that are, of those that exist. */
template <class T> DEV int own_first(const block &b) { return T::SHARED_K && b.group ? (int)T::FIRST : 0; }
template <class T> DEV int own_count(const block &b, int first, int groups) {
    const int left = groups - first - own_first<T>(b),
              most = T::SHARED_K && b.group ? T::GROUPS - T::FIRST : (int)T::FIRST;
    return left < most ? left : most;
}

/* The sums begin with the bias; with zeros where another block finishes them. Note: the sums with 0 keep the
 * compiler from copying registers among the wgmmas, which it then serialises; likewise in store_rows. */
template <class T>
DEV void begin_sums(float (&d)[T::N / 2], const block &b, const float *bias, int first, int groups,
                    bool finished_here) {
#pragma unroll
    for (int j = 0; j < T::GROUPS; j++) {
        float2 c = make_float2(0, 0);
        if (finished_here && mine<T>(b, j) && first + j < groups)
            c = __ldg((const float2 *)(bias + (first + j) * 8 + 2 * (b.lane & 3)));
        d[4 * j] = c.x + 0, d[4 * j + 1] = c.y + 0, d[4 * j + 2] = c.x + 0, d[4 * j + 3] = c.y + 0;
    }
}

/* Before the products: what a residual adds to, into the staging. */
template <class T> DEV void fetch_residual(const block &b, const product &p, int row, int first) {
    const u16 *const x = (const u16 *)p.out;
    const int count = own_count<T>(b, first, p.groups), begin = first + own_first<T>(b);
    const u32 memory = shared_address(staged_rows<T>(b));
#pragma unroll 1
    for (int i = b.lane; i < 16 * T::FIRST; i += 32) {
        const int r = i / T::FIRST, j = i - r * T::FIRST;
        if (j < count)
            copy16(memory + r * T::PITCH + j * 16, x + ((size_t)(row + r) * p.pitch + begin + j) * 8, 1);
    }
    copy_commit();
}

template <class T> DEV void multiply(float (&d)[T::N / 2], block &b, int blocks) {
    const u32 a_at = b.ring + (T::SHARED_K ? 0 : b.group * 64 * 128), b_at = b.ring + T::ROWS * 128;
    int s = T::SHARED_K ? b.group : 0, before = -1;
    u32 lap = 0;
#pragma unroll 1
    for (int kb = s; kb < blocks; kb += T::STEP) {
        await_full(b, s, lap);
        const u64 a = wgmma_operand(a_at + s * T::SLOT), w = wgmma_operand(b_at + s * T::SLOT);
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < 4; k++) wgmma(d, a + 2 * k, w + 2 * k, 1);
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

/* The warpgroups add their sums: each gives the other what that one finishes. */
template <class T> DEV void share_sums(float (&d)[T::N / 2], const block &b) {
    float4 *const from_second = (float4 *)b.staging, *const from_first = from_second + T::FIRST * 128;
    const int tid = threadIdx.x & 127;
#pragma unroll
    for (int j = 0; j < T::GROUPS; j++)
        if (!mine<T>(b, j))
            (b.group ? from_second + j * 128 : from_first + (j - T::FIRST) * 128)[tid] =
                make_float4(d[4 * j], d[4 * j + 1], d[4 * j + 2], d[4 * j + 3]);
    consumers_meet();
#pragma unroll
    for (int j = 0; j < T::GROUPS; j++)
        if (mine<T>(b, j)) {
            const float4 v = (b.group ? from_first + (j - T::FIRST) * 128 : from_second + j * 128)[tid];
            d[4 * j] += v.x, d[4 * j + 1] += v.y, d[4 * j + 2] += v.z, d[4 * j + 3] += v.w;
        }
    consumers_meet();                      /* the staging is free                                           */
}

/* A warp's 16 rows through its part of the staging, to where they belong. `row`: the warp's first. */
template <class T, int KIND>
DEV void store_rows(const float (&d)[T::N / 2], const block &b, const product &p, int row, int first) {
    char *const memory = staged_rows<T>(b);
    char *const to = memory + (b.lane >> 2) * T::PITCH + (b.lane & 3) * 4;
    const int offset = own_first<T>(b), count = own_count<T>(b, first, p.groups);
    if (KIND == RESIDUAL) {
        copy_wait<0>();
        __syncwarp();
    }
#pragma unroll
    for (int j = 0; j < T::GROUPS; j++)
        if (mine<T>(b, j))
#pragma unroll
            for (int h = 0; h < 2; h++) {
                u32 *const at = (u32 *)(to + (j - offset) * 16 + h * 8 * T::PITCH);
                const float v = d[4 * j + 2 * h], w = d[4 * j + 2 * h + 1];
                if (KIND == RESIDUAL) *at = pack_bf16(low_of(*at) + v, high_of(*at) + w);
                else if (KIND == GELU) *at = gelu_pair(v, w);
                else *at = pack_bf16(v + 0, w + 0);
            }
    store_staged(b, memory, T::PITCH, (u16 *)p.out + ((size_t)row * p.pitch + first + offset) * 8,
                 (size_t)p.pitch * 16, 16, count * 16);
}

/* The part of the tile that finishes a warp's 16 rows. */
DEV int finisher(const block &b, const product &p) { return b.warp * p.parts / CONSUMER_WARPS; }

/* Sums of a warp from all parts, added by the part that finishes them; the others send theirs. */
template <class T> DEV void add_parts(float (&d)[T::N / 2], const block &b, const product &p, const work &w) {
    enum { FLOAT4S = T::GROUPS * 32 };     /* of a warp                                                     */
    static_assert(!T::SHARED_K && T::ROWS * T::N * 4 <= (int)VISION_SUMS, "memory of sums");
    u32 *const got = b.progress + VISION_GOT_AT / 4 + w.tile * CONSUMER_WARPS + b.warp;
    float4 *const sums = (float4 *)p.sums + (size_t)(w.tile * p.parts * CONSUMER_WARPS + b.warp) * FLOAT4S +
                         b.lane;
    if (finisher(b, p) != w.part) {
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
    static_assert(KIND != RESIDUAL || T::ROWS_AT == T::SUM_BYTES, "what a residual adds to is there before");
    const int works = works_of<T>(p);
#pragma unroll 1
    for (int i = b.rank; i < works; i += b.blocks) {
        const work w = work_of<T>(b, p, i);
        const int row = w.row + (T::SHARED_K ? 0 : b.group * 64) + (b.warp & 3) * 16;
        const bool finished_here = !PARTS || finisher(b, p) == w.part;
        float d[T::N / 2];
        if (KIND == RESIDUAL && finished_here) fetch_residual<T>(b, p, row, w.first);
        begin_sums<T>(d, b, p.bias, w.first, p.groups, finished_here);
        multiply<T>(d, b, w.blocks);
        if (T::SHARED_K) share_sums<T>(d, b);
        if constexpr (PARTS)
            if (p.parts > 1) add_parts<T>(d, b, p, w);
        if (finished_here) store_rows<T, KIND>(d, b, p, row, w.first);
        if (T::SHARED_K && i + b.blocks < works) consumers_meet(); /* the staging is free                   */
    }
    if (PARTS) b.shared++;
    return b.rank < works;
}

#endif
