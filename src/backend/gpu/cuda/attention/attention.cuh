/* Attention over the cache, bf16 on mma.sync: one block's part. Queries of all heads are rows f = row·heads +
 * head against one K/V head (MQA). A block takes 16·R such rows, 64 keys at a time; its 4·R warps stand in R
 * row groups:
 *
 *   scores  warp (row group, key group of 4): 16 rows x 16 keys, Q in registers
 *   values  warp (row group, dim group of 4): 16 rows x 64 of the 256 dims over all 64 keys; the
 *           probabilities and the row maxima pass through shared memory
 *
 * Pipeline (cp.async): K and V have one buffer each. The next K loads during softmax and values, V during
 * scores. Rows of several samples may share a block: the block walks the samples and masks the other samples'
 * rows.
 *
 * Early start: keys before the sample's first row are fetched before the previous kernel has ended, where the
 * host allows it (gpu_cache_attention.early). Queries and all other keys are fetched after wait_before().
 *
 * Legal when head_dim % 8 == 0 and head_dim <= 256; dims beyond head_dim are zeros. Softmax runs in base 2
 * with log2(e) folded into the scale. */
#ifndef KERNELS_CUDA_ATTENTION_CUH
#define KERNELS_CUDA_ATTENTION_CUH

#include "backend/gpu/cuda/common.cuh"

enum { KEYS = 64, DIM = 256 };

/* Byte address of 16-byte unit c of row r: rows of 256 bf16, swizzled. */
DEV u32 row512(u32 base, int r, int c) { return base + r * 512 + ((c ^ (r & 7)) << 4); }

/* Result of a warp: unscaled sums of its 64 dims (rows g and g + 8, pairs of columns as mma leaves them), and
 * for these rows the maximum and the block's sum of weights. */
typedef struct attended {
    float out[8][4], top[2], sum[2];
    int f0, total;                         /* first row of the block, number of rows                        */
} attended;

/* ---- shared memory ------------------------------------------------------------------------------------- */

/* Q [16R][256], K [64][256], V [64][256], P [16R][64] in bf16, rows swizzled; maxima and sums of weights
 * [4][16R]. */
typedef struct cache_memory {
    u32 q, k, v, p;
    float *maxima, *sums;
} cache_memory;

template <int R> DEV cache_memory cache_memory_of(void) {
    constexpr int ROWS = 16 * R;
    extern __shared__ __align__(1024) char memory[];
    const u32 q = shared_address(memory), k = q + ROWS * 512, v = k + KEYS * 512, p = v + KEYS * 512;
    float *maxima = (float *)(memory + (ROWS + 2 * KEYS) * 512 + ROWS * 128);
    return {.q = q, .k = k, .v = v, .p = p, .maxima = maxima, .sums = maxima + 4 * ROWS};
}

/* A thread: row group and key (or dim) group of its warp, row g and pair t of the matrix instructions. */
typedef struct cache_thread {
    int tid, lane, g, t, rg, kg;
} cache_thread;

DEV cache_thread thread_of(int tid) {
    const int lane = tid & 31, warp = tid >> 5;
    return {.tid = tid, .lane = lane, .g = lane >> 2, .t = lane & 3, .rg = warp >> 2, .kg = warp & 3};
}

/* ---- rows and keys of a block -------------------------------------------------------------------------- */

/* The block's rows, at most 49: lane i holds the tables of rows first_row + i and first_row + 32 + i. */
typedef struct cache_rows {
    int f0, total, first_row, last;        /* last: of the rows in use, counted from first_row              */
    int samples[2], ends[2];               /* a row's sample (-1: none), its number of keys                 */
    int position;                          /* position of first_row in its sample                           */
} cache_rows;

/* All loads at once. */
template <int R> DEV cache_rows load_rows(const gpu_cache_attention &p, int lane, int tile) {
    constexpr int ROWS = 16 * R;
    const int f0 = tile * ROWS, first_row = f0 / p.heads, total = *p.count * p.heads;
    int samples[2], ends[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int r = first_row + lane + 32 * i, there = r * p.heads < min(f0 + ROWS, p.part_rows);
        samples[i] = there ? __ldg(p.sample + r) : -1;
        ends[i] = there ? __ldg(p.keys + r) : 0;
    }
    const int position = f0 < p.part_rows ? __ldg(p.position + first_row) : 0;
    return {.f0 = f0,
            .total = total,
            .first_row = first_row,
            .last = 0,
            .samples = {samples[0], samples[1]},
            .ends = {ends[0], ends[1]},
            .position = position};
}

/* Rows beyond *count belong to no sample. */
template <int R> DEV void cut_rows(const gpu_cache_attention &p, int lane, cache_rows &b) {
    b.last = (min(b.f0 + 16 * R, b.total) - 1) / p.heads - b.first_row;
#pragma unroll
    for (int i = 0; i < 2; i++)
        if (lane + 32 * i > b.last) b.samples[i] = -1;
}

/* Entry i of a table that is spread over the lanes. */
DEV int table_entry(const int (&of)[2], int i) {
    const int low = __shfl_sync(0xffffffffu, of[0], i & 31), high = __shfl_sync(0xffffffffu, of[1], i & 31);
    return i < 32 ? low : high;
}

/* The keys of sample s that some row of this block sees, cut to the block's keys, which end at `end`. */
DEV int keys_of(const cache_rows &b, int s, int end) {
    const int n = max(b.samples[0] == s ? b.ends[0] : 0, b.samples[1] == s ? b.ends[1] : 0);
    return min(__reduce_max_sync(0xffffffffu, n), end);
}

/* The walk over (sample, 64 keys) pairs. */
typedef struct key_tile {
    int sample, key0, keys;                /* keys: of the sample, as keys_of                               */
} key_tile;

/* On to the next sample that has keys left; `at.sample` > last_sample at the end. */
DEV void settle(key_tile &at, const cache_rows &b, int last_sample, int begin, int end) {
    while (at.key0 >= at.keys && ++at.sample <= last_sample)
        at.key0 = begin, at.keys = keys_of(b, at.sample, end);
}

/* Keys that stand before the sample's rows were written before this stage began, or in its first step (π0's
 * state, whose token is no row of later steps): attention of that step lets kernels begin after it only when
 * it has waited for them itself. The sample's rows begin at most first_row rows before this one, and never
 * more than the longest chunk and its state. */
DEV bool written_before(const gpu_cache_attention &p, const cache_rows &b, const key_tile &at,
                        int first_sample) {
    return p.early && at.sample == first_sample && at.key0 + KEYS <= b.position - min(b.first_row, p.early);
}

/* 64 keys (or values) of the walk's place into shared memory; zeros where there is no key. */
template <int R>
DEV void load_keys(const gpu_cache_attention &p, int tid, const void *from, u32 to, const key_tile &at, int d,
                   int units) {
    const u16 *block = (const u16 *)from + (size_t)at.sample * p.capacity * d;
#pragma unroll 4
    for (int i = tid; i < KEYS * 32; i += R * 128) {
        const int r = i >> 5, c = i & 31, there = at.key0 + r < at.keys && c < units;
        copy16(row512(to, r, c), block + (there ? (size_t)(at.key0 + r) * d + c * 8 : 0), there);
    }
}

template <int R>
DEV void load_queries(const gpu_cache_attention &p, int tid, u32 to, const cache_rows &b, int d, int units) {
    for (int i = tid; i < 16 * R * 32; i += R * 128) {
        const int r = i >> 5, c = i & 31, there = b.f0 + r < b.total && c < units;
        copy16(row512(to, r, c), (const u16 *)p.q + (there ? (size_t)(b.f0 + r) * d + c * 8 : 0), there);
    }
}

/* ---- one tile of 64 keys: scores, softmax, values ------------------------------------------------------ */

/* What a thread keeps of its rows g and g + 8. */
typedef struct cache_state {
    u32 q[DIM / 16][4];
    int sample[2], keys[2];
    float total[2];                        /* sum of the thread's own weights                               */
    float scale;
} cache_state;

/* 16 rows x 16 keys. Even and odd steps of 16 dims add up apart: chains half as long. */
DEV void multiply_scores(float (&score)[2][4], const cache_state &w, const cache_thread &me, u32 k_at) {
    float half[2][2][4] = {};
#pragma unroll
    for (int s = 0; s < DIM / 16; s++) {
        const int r = me.kg * 16 + (me.lane & 7) + ((me.lane >> 4) << 3);
        u32 b[4];
        load_matrix4(b, row512(k_at, r, 2 * s + (me.lane >> 3 & 1)));
        mma16(half[s & 1][0], w.q[s], b[0], b[1]);
        mma16(half[s & 1][1], w.q[s], b[2], b[3]);
    }
#pragma unroll
    for (int i = 0; i < 8; i++) score[i / 4][i % 4] = half[0][i / 4][i % 4] + half[1][i / 4][i % 4];
}

/* Scales and masks the scores; the warp's maximum of every row goes to shared memory. */
template <int R>
DEV void mask_scores(float (&score)[2][4], const cache_state &w, const cache_thread &me, const key_tile &at,
                     float *maxima) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int limit = w.sample[h] == at.sample ? w.keys[h] : 0;
        float m = -INFINITY;
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float &s = score[n][2 * h + i];
                s = at.key0 + me.kg * 16 + n * 8 + 2 * me.t + i < limit ? s * w.scale : -INFINITY;
                m = fmaxf(m, s);
            }
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
        if (!me.t) maxima[me.kg * 16 * R + me.rg * 16 + h * 8 + me.g] = m;
    }
}

/* Probabilities relative to the new maxima, to shared memory as bf16; what was summed before shrinks. */
template <int R>
DEV void weigh_scores(attended &a, const float (&score)[2][4], cache_state &w, const cache_thread &me,
                      const cache_memory &at) {
    constexpr int ROWS = 16 * R;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int r = me.rg * 16 + h * 8 + me.g;
        const float m = fmaxf(a.top[h], fmaxf(fmaxf(at.maxima[r], at.maxima[ROWS + r]),
                                              fmaxf(at.maxima[2 * ROWS + r], at.maxima[3 * ROWS + r])));
        const float base = m == -INFINITY ? 0 : m, shrink = exp2_fast(a.top[h] - base);
        float sum = 0;
        a.top[h] = m;
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const float x = exp2_fast(score[n][2 * h] - base), y = exp2_fast(score[n][2 * h + 1] - base);
            sum += x + y;
            const u32 to = at.p + r * 128 + (((2 * me.kg + n) ^ (r & 7)) << 4) + 4 * me.t;
            store_shared4(to, pack_bf16(x, y));
        }
        w.total[h] = w.total[h] * shrink + sum;
#pragma unroll
        for (int n = 0; n < 8; n++) a.out[n][2 * h] *= shrink, a.out[n][2 * h + 1] *= shrink;
    }
}

/* out += P·V: 16 rows x 64 dims over 64 keys. */
DEV void multiply_values(float (&out)[8][4], const cache_thread &me, const cache_memory &at) {
#pragma unroll
    for (int s = 0; s < KEYS / 16; s++) {
        u32 w[4];
        const int r = me.rg * 16 + (me.lane & 15);
        load_matrix4(w, at.p + r * 128 + (((2 * s + (me.lane >> 4)) ^ (r & 7)) << 4));
#pragma unroll
        for (int n = 0; n < 8; n += 2) {
            u32 b[4];
            load_transposed4(b, row512(at.v, s * 16 + (me.lane & 15), me.kg * 8 + n + (me.lane >> 4)));
            mma16(out[n], w, b[0], b[1]);
            mma16(out[n + 1], w, b[2], b[3]);
        }
    }
}

/* ---- the block ----------------------------------------------------------------------------------------- */

/* Q into registers, the limits of the thread's rows, empty sums. */
template <int R>
DEV void begin_rows(attended &a, cache_state &w, const gpu_cache_attention &p, const cache_thread &me,
                    const cache_rows &b, u32 q_at, int end) {
#pragma unroll
    for (int s = 0; s < DIM / 16; s++)
        load_matrix4(w.q[s], row512(q_at, me.rg * 16 + (me.lane & 15), 2 * s + (me.lane >> 4)));
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int f = b.f0 + me.rg * 16 + h * 8 + me.g, i = f < b.total ? f / p.heads - b.first_row : 0;
        const int s = table_entry(b.samples, i), e = table_entry(b.ends, i);
        w.sample[h] = f < b.total ? s : -1;
        w.keys[h] = min(e, end);
    }
    w.total[0] = w.total[1] = 0;
#pragma unroll
    for (int n = 0; n < 8; n++) a.out[n][0] = a.out[n][1] = a.out[n][2] = a.out[n][3] = 0;
    a.top[0] = a.top[1] = -INFINITY;
    w.scale = p.scale * 1.4426950408889634f;
}

/* The sums of weights of a row: over its four lanes, then over its four warps. */
template <int R>
DEV void sum_weights(attended &a, const cache_state &w, const cache_thread &me, float *sums) {
    constexpr int ROWS = 16 * R;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float sum = w.total[h];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (!me.t) sums[me.kg * ROWS + me.rg * 16 + h * 8 + me.g] = sum;
    }
    __syncthreads();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int r = me.rg * 16 + h * 8 + me.g;
        a.sum[h] = sums[r] + sums[ROWS + r] + sums[2 * ROWS + r] + sums[3 * ROWS + r];
    }
}

/* What a block does once Q and K in shared memory are not read any more: nothing. */
struct keys_stay {
    static __device__ __forceinline__ void free(void) {}
};

/* Attends rows of `tile` to keys begin … end-1. 0: the block has no rows. Calls wait_before() in any case,
 * and KEYS_USE::free() once where the block has rows. */
template <int R, class KEYS_USE = keys_stay>
DEV int attend_cache(const gpu_cache_attention &p, int tile, int begin, int end, attended &a) {
    const cache_memory memory = cache_memory_of<R>();
    const cache_thread me = thread_of(threadIdx.x);
    const int units = p.head_dim >> 3, d = p.head_dim;
    cache_rows rows = load_rows<R>(p, me.lane, tile);
    a.f0 = rows.f0;
    a.total = rows.total;
    if (rows.f0 >= rows.total) {
        wait_before();
        return 0;
    }
    cut_rows<R>(p, me.lane, rows);
    const int first_sample = table_entry(rows.samples, 0), last_sample = table_entry(rows.samples, rows.last);
    key_tile at = {first_sample, begin, keys_of(rows, first_sample, end)};
    settle(at, rows, last_sample, begin, end);

    const bool any = at.sample <= last_sample, early = any && written_before(p, rows, at, first_sample);
    if (early) {
        load_keys<R>(p, me.tid, p.k, memory.k, at, d, units);
        load_keys<R>(p, me.tid, p.v, memory.v, at, d, units);
    }
    wait_before();
    load_queries<R>(p, me.tid, memory.q, rows, d, units);
    if (!early && any) load_keys<R>(p, me.tid, p.k, memory.k, at, d, units);
    copy_commit();
    start_next();                          /* after this kernel's own copies: they are needed first         */
    if (!early && any) load_keys<R>(p, me.tid, p.v, memory.v, at, d, units);
    copy_commit();
    copy_wait<1>();
    __syncthreads();

    cache_state w;
    begin_rows<R>(a, w, p, me, rows, memory.q, end);
    for (int first = 1; at.sample <= last_sample; first = 0) {
        if (!first) {
            copy_wait<0>();
            __syncthreads();               /* K has arrived, V and P are free                               */
            load_keys<R>(p, me.tid, p.v, memory.v, at, d, units);
            copy_commit();
        }
        float score[2][4];
        multiply_scores(score, w, me, memory.k);
        mask_scores<R>(score, w, me, at, memory.maxima);
        __syncthreads();                   /* maxima are written, K is free                                 */
        key_tile next = {at.sample, at.key0 + KEYS, at.keys};
        settle(next, rows, last_sample, begin, end);
        if (next.sample <= last_sample) load_keys<R>(p, me.tid, p.k, memory.k, next, d, units);
        else KEYS_USE::free();
        copy_commit();
        weigh_scores<R>(a, score, w, me, memory);
        copy_wait<1>();
        __syncthreads();                   /* V has arrived, P is written                                   */
        multiply_values(a.out, me, memory);
        at = next;
    }
    if (!any) KEYS_USE::free();
    copy_wait<0>();
    sum_weights<R>(a, w, me, memory.sums);
    return 1;
}

#endif
