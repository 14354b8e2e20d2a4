/* Attention without materialised scores, bf16 on mma.sync.
 *
 * attention_image     SigLIP's, head_dim 72, 256 keys. A block takes one image, one head, 128 queries; a warp
 * 16 of
 *                     them. K and V of the head stay in shared memory, rows 144 bytes apart (free of bank
 *                     conflicts, and 72 = 4·16 + 8 needs no padding).
 *     blocks   256 threads; grid = images·2 x heads
 *     legal    bf16, head_dim 72, 256 rows an image
 *     early    start_next() and wait_before() come first
 *
 * attention_cache_1   over the cache (attention.cuh), 16 rows a block. With splits > 1 block y takes keys
 *                     y·span … and leaves unscaled sums, and attention_combine joins them.
 *     blocks   128 threads; grid = rows·heads / 16 x splits
 *     legal    as attention.cuh
 *     early    as attention.cuh, key by key; attention_combine waits first.
 *
 * attention_cache_joined  the same as attention_cache_1 with splits and attention_combine, in one launch: the
 *                     block that comes last of a group of 16 rows joins its splits. Never timed.
 *
 * attention_mma.c checks what is legal and launches. */
#include "attention.cuh"
#include "attention_joined.h"
#include "backend/gpu/cuda/arrival.cuh"

/* ---- SigLIP -------------------------------------------------------------------------------------------- */

enum { HEAD = 72, PITCH = HEAD * 2, IMAGE_KEYS = 256, QUERIES = 128 };

/* Shared memory: K and V of the head, then the block's queries. */
typedef struct image_memory {
    u32 k, v, q;
} image_memory;

/* Rows row … of one part (0 q, 1 k, 2 v) of the head's qkv. */
DEV void load_rows(const gpu_image_attention &p, const u16 *qkv, int tid, u32 to, int part, int row,
                   int rows) {
    for (int i = tid; i < rows * 9; i += 256) {
        const int r = i / 9, c = i - r * 9;
        copy16(to + r * PITCH + c * 16, qkv + (size_t)(row + r) * p.stride + part * p.next + c * 8, 1);
    }
}

/* Four groups of copies: queries and the first half of K, the first half of V, the second of K, the second of
 * V. */
DEV void load_head(const gpu_image_attention &p, const u16 *qkv, int tid, const image_memory &m, int first) {
    load_rows(p, qkv, tid, m.q, 0, first, QUERIES);
    load_rows(p, qkv, tid, m.k, 1, 0, 128);
    copy_commit();
    load_rows(p, qkv, tid, m.v, 2, 0, 128);
    copy_commit();
    load_rows(p, qkv, tid, m.k + 128 * PITCH, 1, 128, 128);
    copy_commit();
    load_rows(p, qkv, tid, m.v + 128 * PITCH, 2, 128, 128);
    copy_commit();
}

/* A warp's 16 queries: dims 0 … 63 and 64 … 71. */
typedef struct image_queries {
    u32 whole[4][4], rest[2];
} image_queries;

DEV void load_queries(image_queries &q, u32 q_at, int warp, int lane) {
    const u32 at = q_at + (warp * 16 + (lane & 15)) * PITCH;
#pragma unroll
    for (int s = 0; s < 4; s++) load_matrix4(q.whole[s], at + s * 32 + (lane >> 4) * 16);
    load_matrix2(q.rest, at + 128);
}

/* score = q·Kᵀ over the 64 keys at k. */
DEV void multiply_keys(float (&score)[8][4], const image_queries &q, u32 k, int lane) {
#pragma unroll
    for (int n = 0; n < 8; n++) {          /* 8 keys: dims 0 … 31, 32 … 63, 64 … 71                         */
        u32 b[4], c[4], d[2];
        const u32 at = k + (n * 8 + (lane & 7)) * PITCH + (lane >> 3) * 16;
        load_matrix4(b, at);
        load_matrix4(c, at + 64);
        load_matrix2(d, k + (n * 8 + (lane & 7)) * PITCH + 128);
        mma16(score[n], q.whole[0], b[0], b[1]);
        mma16(score[n], q.whole[1], b[2], b[3]);
        mma16(score[n], q.whole[2], c[0], c[1]);
        mma16(score[n], q.whole[3], c[2], c[3]);
        mma8(score[n], q.rest, d[0]);
    }
}

/* Scores into weights relative to the rows' new maxima; what was summed before shrinks. */
DEV void soften_scores(float (&score)[8][4], float (&out)[9][4], float (&top)[2], float (&total)[2],
                       float scale) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float m = top[h];
#pragma unroll
        for (int n = 0; n < 8; n++) m = fmaxf(m, fmaxf(score[n][2 * h], score[n][2 * h + 1]) * scale);
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
        const float shrink = exp2_fast(top[h] - m);
        float sum = 0;
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                score[n][2 * h + i] = exp2_fast(score[n][2 * h + i] * scale - m);
                sum += score[n][2 * h + i];
            }
        total[h] = total[h] * shrink + sum;
        top[h] = m;
#pragma unroll
        for (int n = 0; n < 9; n++) out[n][2 * h] *= shrink, out[n][2 * h + 1] *= shrink;
    }
}

/* out += weights·V over the 64 keys at v. */
DEV void add_values(float (&out)[9][4], const float (&score)[8][4], u32 v, int lane) {
#pragma unroll
    for (int s = 0; s < KEYS / 16; s++) {
        const u32 a[4] = {pack_bf16(score[2 * s][0], score[2 * s][1]),
                          pack_bf16(score[2 * s][2], score[2 * s][3]),
                          pack_bf16(score[2 * s + 1][0], score[2 * s + 1][1]),
                          pack_bf16(score[2 * s + 1][2], score[2 * s + 1][3])};
        const u32 at = v + (s * 16 + (lane & 15)) * PITCH + (lane >> 4) * 16;
#pragma unroll
        for (int n = 0; n < 8; n += 2) {
            u32 b[4];
            load_transposed4(b, at + n * 16);
            mma16(out[n], a, b[0], b[1]);
            mma16(out[n + 1], a, b[2], b[3]);
        }
        u32 b[2];
        load_transposed2(b, v + (s * 16 + (lane & 15)) * PITCH + 128);
        mma16(out[8], a, b[0], b[1]);
    }
}

/* Rows g and g + 8 of the warp, from `to` on: the sums over the row's sum of weights. */
DEV void store_rows(u16 *to, const float (&out)[9][4], const float (&total)[2], int width) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float sum = total[h];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        const float factor = 1 / sum;
#pragma unroll
        for (int n = 0; n < 9; n++)
            *(u32 *)(to + (size_t)h * 8 * width + n * 8) =
                pack_bf16(out[n][2 * h] * factor, out[n][2 * h + 1] * factor);
    }
}

KERNEL(256) attention_image(const __grid_constant__ gpu_image_attention p) {
    extern __shared__ __align__(1024) char image_tiles[];
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, g = lane >> 2, t = lane & 3;
    const int head = blockIdx.y, image = blockIdx.x >> 1, first = (blockIdx.x & 1) * QUERIES,
              width = p.heads * HEAD;
    const u32 k_at = shared_address(image_tiles), v_at = k_at + IMAGE_KEYS * PITCH,
              q_at = v_at + IMAGE_KEYS * PITCH;
    start_next();
    wait_before();
    if (image * IMAGE_KEYS >= *p.count) return;
    load_head(p, (const u16 *)p.qkv + (size_t)image * IMAGE_KEYS * p.stride + head * HEAD, tid,
              {k_at, v_at, q_at}, first);

    float out[9][4] = {}, top[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
    image_queries q;
    const float scale = p.scale * 1.4426950408889634f;
#pragma unroll 1
    for (int tile = 0; tile < IMAGE_KEYS / KEYS; tile++) {
        if (tile == 0) copy_wait<3>();
        if (tile == 2) copy_wait<1>();
        if (tile == 0 || tile == 2) __syncthreads();   /* a half of K has arrived                           */
        if (tile == 0) load_queries(q, q_at, warp, lane);
        float score[8][4] = {};
        multiply_keys(score, q, k_at + tile * KEYS * PITCH, lane);
        soften_scores(score, out, top, total, scale);
        if (tile == 0) copy_wait<2>();
        if (tile == 2) copy_wait<0>();
        if (tile == 0 || tile == 2) __syncthreads();   /* a half of V has arrived                           */
        add_values(out, score, v_at + tile * KEYS * PITCH, lane);
    }
    const size_t row = (size_t)image * IMAGE_KEYS + first + warp * 16 + g;
    store_rows((u16 *)p.out + row * width + head * HEAD + 2 * t, out, total, width);
}

/* ---- over the cache ------------------------------------------------------------------------------------ */

enum { TOGETHER = 16 };                    /* splits that attention_combine reads at once                   */

/* Keys of the tile that were written before this stage began: see written_before, which asks for whole
 * tiles. */
DEV int old_keys(const gpu_cache_attention &p, const cache_rows &b, const key_tile &at, int first_sample) {
    const int old = b.position - min(b.first_row, p.early) - at.key0;
    return p.early && at.sample == first_sample ? min(max(old, 0), KEYS) : 0;
}

/* Keys (or values) low … high - 1 of the walk's tile into shared memory; zeros where there is no key. */
template <int R>
DEV void load_part(const gpu_cache_attention &p, int tid, const void *from, u32 to, const key_tile &at,
                   int low, int high) {
    const int d = p.head_dim, units = d >> 3;
    const u16 *block = (const u16 *)from + (size_t)at.sample * p.capacity * d;
#pragma unroll 4
    for (int i = low * 32 + tid; i < high * 32; i += R * 128) {
        const int r = i >> 5, c = i & 31, there = at.key0 + r < at.keys && c < units;
        copy16(row512(to, r, c), block + (there ? (size_t)(at.key0 + r) * d + c * 8 : 0), there);
    }
}

/* Queries, K and V of the walk's first tile, in two groups of copies: queries and K, then V. Of a tile with
 * new keys only those are fetched after wait_before(). */
template <int R>
DEV void load_first(const gpu_cache_attention &p, int tid, const cache_memory &m, const cache_rows &rows,
                    const key_tile &at, int first_sample, bool any) {
    const int old = any ? old_keys(p, rows, at, first_sample) : 0, all = any ? KEYS : 0;
    load_part<R>(p, tid, p.k, m.k, at, 0, old);
    load_part<R>(p, tid, p.v, m.v, at, 0, old);
    wait_before();
    load_queries<R>(p, tid, m.q, rows, p.head_dim, p.head_dim >> 3);
    load_part<R>(p, tid, p.k, m.k, at, old, all);
    copy_commit();
    start_next();                          /* after this kernel's own copies: they are needed first         */
    load_part<R>(p, tid, p.v, m.v, at, old, all);
    copy_commit();
}

/* attend_cache with load_first. */
template <int R>
DEV int attend_rows(const gpu_cache_attention &p, int tile, int begin, int end, attended &a) {
    const cache_memory memory = cache_memory_of<R>();
    const cache_thread me = thread_of(threadIdx.x);
    cache_rows rows = load_rows<R>(p, me.lane, tile);
    a.f0 = rows.f0, a.total = rows.total;
    if (rows.f0 >= rows.total) {
        wait_before();
        return 0;
    }
    cut_rows<R>(p, me.lane, rows);
    const int first_sample = table_entry(rows.samples, 0), last_sample = table_entry(rows.samples, rows.last);
    key_tile at = {first_sample, begin, keys_of(rows, first_sample, end)};
    settle(at, rows, last_sample, begin, end);
    load_first<R>(p, me.tid, memory, rows, at, first_sample, at.sample <= last_sample);
    copy_wait<1>();
    __syncthreads();

    cache_state w;
    begin_rows<R>(a, w, p, me, rows, memory.q, end);
    for (int first = 1; at.sample <= last_sample; first = 0) {
        if (!first) {
            copy_wait<0>();
            __syncthreads();               /* K has arrived, V and P are free                               */
            load_part<R>(p, me.tid, p.v, memory.v, at, 0, KEYS);
            copy_commit();
        }
        float score[2][4];
        multiply_scores(score, w, me, memory.k);
        mask_scores<R>(score, w, me, at, memory.maxima);
        __syncthreads();                   /* maxima are written, K is free                                 */
        key_tile next = {at.sample, at.key0 + KEYS, at.keys};
        settle(next, rows, last_sample, begin, end);
        if (next.sample <= last_sample) load_part<R>(p, me.tid, p.k, memory.k, next, 0, KEYS);
        copy_commit();
        weigh_scores<R>(a, score, w, me, memory);
        copy_wait<1>();
        __syncthreads();                   /* V has arrived, P is written                                   */
        multiply_values(a.out, me, memory);
        at = next;
    }
    copy_wait<0>();
    sum_weights<R>(a, w, me, memory.sums);
    return 1;
}

/* The block's keys: all, or of split blockIdx.y. */
template <int R> DEV void attend(const gpu_cache_attention &p) {
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, g = lane >> 2, t = lane & 3,
              rg = warp >> 2, kg = warp & 3, d = p.head_dim;
    const int begin = p.splits > 1 ? blockIdx.y * p.span : 0,
              end = p.splits > 1 ? begin + p.span : 0x7fffffff;
    attended a;
    if (!attend_rows<R>(p, blockIdx.x, begin, end, a)) return;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int f = a.f0 + rg * 16 + h * 8 + g;
        if (f >= a.total) continue;
        if (p.splits > 1) {
            const size_t at = (size_t)blockIdx.y * p.part_rows + f;
            if (kg == 0 && t == 0) *(float2 *)(p.part_stats + at * 2) = make_float2(a.top[h], a.sum[h]);
#pragma unroll
            for (int n = 0; n < 8; n++) {
                const int i = kg * 64 + n * 8 + 2 * t;
                if (i < d)
                    *(float2 *)(p.part + at * d + i) = make_float2(a.out[n][2 * h], a.out[n][2 * h + 1]);
            }
        } else {
            const float factor = 1 / a.sum[h];
#pragma unroll
            for (int n = 0; n < 8; n++) {
                const int i = kg * 64 + n * 8 + 2 * t;
                if (i < d)
                    *(u32 *)((u16 *)p.out + (size_t)f * d + i) =
                        pack_bf16(a.out[n][2 * h] * factor, a.out[n][2 * h + 1] * factor);
            }
        }
    }
}

KERNEL(128) attention_cache_1(const __grid_constant__ gpu_cache_attention p) { attend<1>(p); }

/* Joins the splits of a row: 64 threads a row, 4 dims each; 4 rows a block. A lane holds the maximum and the
 * sum of one split, and all that a thread reads is asked for at once. */
KERNEL(256) attention_combine(const __grid_constant__ gpu_cache_attention p) {
    const int f = blockIdx.x * 4 + (threadIdx.x >> 6), i = (threadIdx.x & 63) * 4, lane = threadIdx.x & 31;
    const int rows = __ldg(p.count) * p.heads;
    start_next();
    wait_before();
    if (f >= rows) return;
    float2 stats = make_float2(-INFINITY, 0);
    if (lane < p.splits)
        stats = __ldcg((const float2 *)(p.part_stats + ((size_t)lane * p.part_rows + f) * 2));
    const float *from = p.part + (size_t)f * p.head_dim + (i < p.head_dim ? i : 0);
    const size_t next = (size_t)p.part_rows * p.head_dim;
    float4 out = make_float4(0, 0, 0, 0);
    float top = 0, weight = 0;
    for (int first = 0; first < p.splits; first += TOGETHER) {
        float4 part[TOGETHER];
#pragma unroll
        for (int s = 0; s < TOGETHER; s++)
            part[s] = __ldcg((const float4 *)(from + next * min(first + s, p.splits - 1)));
        __syncwarp();                      /* no load moves to where it is used                             */
        if (!first) {
            top = warp_max(stats.x);
            weight = exp2_fast(stats.x - top);
        }
#pragma unroll
        for (int s = 0; s < TOGETHER; s++) {
            const float w = __shfl_sync(0xffffffffu, weight, (first + s) & 31);
            if (first + s >= p.splits) break;
            out.x += part[s].x * w, out.y += part[s].y * w, out.z += part[s].z * w, out.w += part[s].w * w;
        }
    }
    const float factor = 1 / warp_sum(stats.y * weight);
    if (i >= p.head_dim) return;
    *(uint2 *)((u16 *)p.out + (size_t)f * p.head_dim + i) =
        make_uint2(pack_bf16(out.x * factor, out.y * factor), pack_bf16(out.z * factor, out.w * factor));
}

/* ---- splits that meet in one launch -------------------------------------------------------------------- */

enum { GROUP = 16, STATS = 4 };            /* rows of a block; splits of which a thread has the statistics  */

/* What each split's sums of each of the 16 rows from `first` on are multiplied with: 8 threads a row. */
DEV void weigh_splits(const gpu_cache_attention &p, float (&weights)[8 * STATS][GROUP], int first,
                      int rows) {
    const int r = threadIdx.x >> 3, f = min(first + r, rows - 1);
    float2 stats[STATS];
    float top = -INFINITY, total = 0;
#pragma unroll
    for (int j = 0; j < STATS; j++) {
        const int s = (threadIdx.x & 7) + 8 * j;
        stats[j] = make_float2(-INFINITY, 0);
        const float *from = p.part_stats + ((size_t)s * p.part_rows + f) * 2;
        if (s < p.splits) stats[j] = __ldcg((const float2 *)from);
    }
#pragma unroll
    for (int j = 0; j < STATS; j++) top = fmaxf(top, stats[j].x);
#pragma unroll
    for (int i = 1; i < 8; i <<= 1) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, i));
#pragma unroll
    for (int j = 0; j < STATS; j++) {
        stats[j].x = exp2_fast(stats[j].x - top);
        total += stats[j].x * stats[j].y;
    }
#pragma unroll
    for (int i = 1; i < 8; i <<= 1) total += __shfl_xor_sync(0xffffffffu, total, i);
#pragma unroll
    for (int j = 0; j < STATS; j++) weights[(threadIdx.x & 7) + 8 * j][r] = stats[j].x / total;
}

/* The sums of the splits of 16 rows, in the order of the splits: a thread has 4 dims of every second row. */
DEV void join_splits(const gpu_cache_attention &p, const float (&weights)[8 * STATS][GROUP], int first,
                     int rows) {
    const int odd = threadIdx.x >> 6, i = (threadIdx.x & 63) * 4;
    const float *from = p.part + (i < p.head_dim ? i : 0);
    float4 out[GROUP / 2] = {};
#pragma unroll 2
    for (int s = 0; s < p.splits; s++) {
        float4 part[GROUP / 2];
#pragma unroll
        for (int r = 0; r < GROUP / 2; r++)
            part[r] = __ldcg((const float4 *)(from + ((size_t)s * p.part_rows +
                                                      min(first + 2 * r + odd, rows - 1)) * p.head_dim));
#pragma unroll
        for (int r = 0; r < GROUP / 2; r++) {
            const float w = weights[s][2 * r + odd];
            out[r].x += part[r].x * w, out[r].y += part[r].y * w;
            out[r].z += part[r].z * w, out[r].w += part[r].w * w;
        }
    }
#pragma unroll
    for (int r = 0; r < GROUP / 2; r++)
        if (first + 2 * r + odd < rows && i < p.head_dim)
            *(uint2 *)((u16 *)p.out + (size_t)(first + 2 * r + odd) * p.head_dim + i) =
                make_uint2(pack_bf16(out[r].x, out[r].y), pack_bf16(out[r].z, out[r].w));
}

/* attention_cache_1 whose splits meet: the block that comes last of 16 rows' splits joins them. */
KERNEL(128) attention_cache_joined(const __grid_constant__ gpu_joined_attention a) {
    extern __shared__ __align__(1024) char scores[];
    auto &weights = *(float (*)[8 * STATS][GROUP])scores;          /* over what attend has read             */
    const gpu_cache_attention &p = a.attention;
    const int rows = __ldg(p.count) * p.heads, first = blockIdx.x * GROUP;
    attend<1>(p);
    if (first >= rows || !arrives_last(a.counts + blockIdx.x, p.splits)) return;
    weigh_splits(p, weights, first, rows);
    __syncthreads();
    join_splits(p, weights, first, rows);
}

KERNEL(256) attention_clear(const __grid_constant__ gpu_joined_attention a) {
    clear_counters(a.counts, a.clear);
}
