/* Attention without materialised scores, bf16 on mma.sync.
 *
 * attention_image     SigLIP's, head_dim 72, 256 keys. A block takes one image, one head, 128 queries; a warp 16 of
 *                     them. K and V of the head stay in shared memory, rows 144 bytes apart (free of bank conflicts,
 *                     and 72 = 4·16 + 8 needs no padding). Legal when head_dim is 72.
 *
 * attention_cache_R   queries of all heads are rows f = row·heads + head against one K/V head (MQA). A block takes 16·R
 *                     such rows, 64 keys at a time:
 *                       scores  warp (row group, key group of 4): 16 rows x 16 keys, Q in registers
 *                       values  warp (row group, dim group of 4): 16 rows x 64 of the 256 dims over all 64 keys; the
 *                               probabilities travel through shared memory, the row maximum too
 *                     K and V have one buffer each: the next K loads during softmax and values, V during scores.
 *                     Rows of several samples may share a block: it walks the samples and masks the others' rows.
 *                     With splits > 1 block y takes keys y·span …, leaves unscaled sums, and attention_combine joins.
 *                     Legal when head_dim % 8 == 0 and head_dim <= 256; what is missing to 256 is zeros.
 *
 * Softmax runs in base 2 with log2(e) folded into the scale. */
#include "common.cuh"

enum { KEYS = 64, DIM = 256 };

/* ---- SigLIP ----------------------------------------------------------------------------------------------- */

enum { HEAD = 72, PITCH = HEAD * 2, IMAGE_KEYS = 256, QUERIES = 128 };

KERNEL(256) attention_image(const __grid_constant__ gpu_image_attention p) {
    extern __shared__ __align__(1024) char image_memory[];
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, g = lane >> 2, t = lane & 3;
    const int head = blockIdx.y, image = blockIdx.x >> 1, first = (blockIdx.x & 1) * QUERIES, width = p.heads * HEAD;
    const u32 k_at = shared_address(image_memory), v_at = k_at + IMAGE_KEYS * PITCH, q_at = v_at + IMAGE_KEYS * PITCH;
    start_next();
    wait_before();
    if (image * IMAGE_KEYS >= *p.count) return;
    const u16 *qkv = (const u16 *)p.qkv + (size_t)image * IMAGE_KEYS * 3 * width + head * HEAD;

    auto load = [&](u32 to, int part, int row, int rows) {
        for (int i = tid; i < rows * 9; i += 256) {
            const int r = i / 9, c = i - r * 9;
            copy16(to + r * PITCH + c * 16, qkv + (size_t)(row + r) * 3 * width + part * width + c * 8, 1);
        }
    };
    load(q_at, 0, first, QUERIES);
    load(k_at, 1, 0, 128);
    copy_commit();
    load(v_at, 2, 0, 128);
    copy_commit();
    load(k_at + 128 * PITCH, 1, 128, 128);
    copy_commit();
    load(v_at + 128 * PITCH, 2, 128, 128);
    copy_commit();

    float out[9][4] = {}, top[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
    u32 q[4][4], q8[2];
    const float scale = p.scale * 1.4426950408889634f;
#pragma unroll 1
    for (int tile = 0; tile < IMAGE_KEYS / KEYS; tile++) {
        if (tile == 0) copy_wait<3>();
        if (tile == 2) copy_wait<1>();
        if (tile == 0 || tile == 2) __syncthreads();
        if (tile == 0) {
            const u32 at = q_at + (warp * 16 + (lane & 15)) * PITCH;
#pragma unroll
            for (int s = 0; s < 4; s++) load_matrix4(q[s], at + s * 32 + (lane >> 4) * 16);
            load_matrix2(q8, at + 128);
        }
        float score[8][4] = {};
        const u32 k = k_at + tile * KEYS * PITCH, v = v_at + tile * KEYS * PITCH;
#pragma unroll
        for (int n = 0; n < 8; n++) {      /* 8 keys: k 0 … 31, 32 … 63, 64 … 71 */
            u32 b[4], c[4], d[2];
            const u32 at = k + (n * 8 + (lane & 7)) * PITCH + (lane >> 3) * 16;
            load_matrix4(b, at);
            load_matrix4(c, at + 64);
            load_matrix2(d, k + (n * 8 + (lane & 7)) * PITCH + 128);
            mma16(score[n], q[0], b[0], b[1]);
            mma16(score[n], q[1], b[2], b[3]);
            mma16(score[n], q[2], c[0], c[1]);
            mma16(score[n], q[3], c[2], c[3]);
            mma8(score[n], q8, d[0]);
        }
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
        if (tile == 0) copy_wait<2>();
        if (tile == 2) copy_wait<0>();
        if (tile == 0 || tile == 2) __syncthreads();
#pragma unroll
        for (int s = 0; s < KEYS / 16; s++) {
            const u32 a[4] = {pack_bf16(score[2 * s][0], score[2 * s][1]), pack_bf16(score[2 * s][2], score[2 * s][3]),
                              pack_bf16(score[2 * s + 1][0], score[2 * s + 1][1]), pack_bf16(score[2 * s + 1][2], score[2 * s + 1][3])};
            const u32 at = v + (s * 16 + (lane & 15)) * PITCH + (lane >> 4) * 16;
#pragma unroll
            for (int n = 0; n < 8; n += 2) {
                u32 b[4];
                load_turned4(b, at + n * 16);
                mma16(out[n], a, b[0], b[1]);
                mma16(out[n + 1], a, b[2], b[3]);
            }
            u32 b[2];
            load_turned2(b, v + (s * 16 + (lane & 15)) * PITCH + 128);
            mma16(out[8], a, b[0], b[1]);
        }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float sum = total[h];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        const float factor = 1 / sum;
        u16 *to = (u16 *)p.out + ((size_t)image * IMAGE_KEYS + first + warp * 16 + h * 8 + g) * width + head * HEAD + 2 * t;
#pragma unroll
        for (int n = 0; n < 9; n++) *(u32 *)(to + n * 8) = pack_bf16(out[n][2 * h] * factor, out[n][2 * h + 1] * factor);
    }
}

/* ---- over the cache --------------------------------------------------------------------------------------- */

/* Shared memory: Q [16R][256], K [64][256], V [64][256], P [16R][64] in bf16, rows swizzled; maxima and sums [4][16R]. */
DEV u32 row512(u32 base, int r, int c) { return base + r * 512 + ((c ^ (r & 7)) << 4); }

template <int R> DEV void attend_cache(const gpu_cache_attention &p) {
    constexpr int ROWS = 16 * R, THREADS = R * 128;
    extern __shared__ __align__(1024) char memory[];
    const u32 q_at = shared_address(memory), k_at = q_at + ROWS * 512, v_at = k_at + KEYS * 512, p_at = v_at + KEYS * 512;
    float *maxima = (float *)(memory + (ROWS + 2 * KEYS) * 512 + ROWS * 128), *sums = maxima + 4 * ROWS;
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, g = lane >> 2, t = lane & 3, rg = warp >> 2, kg = warp & 3;
    const int f0 = blockIdx.x * ROWS, units = p.head_dim >> 3, d = p.head_dim;

    start_next();
    const int total = *p.count * p.heads;
    if (f0 >= total) {
        wait_before();
        return;
    }
    const int first_row = f0 / p.heads, last_row = (min(f0 + ROWS, total) - 1) / p.heads;
    const int first_sample = p.sample[first_row], last_sample = p.sample[last_row];
    const int begin = p.splits > 1 ? blockIdx.y * p.span : 0, end = p.splits > 1 ? begin + p.span : 0x7fffffff;

    /* The keys of sample s that some row of this block sees, cut to this split. */
    auto keys_of = [&](int s) {
        int n = 0;
        for (int r = first_row + lane; r <= last_row; r += 32)
            if (p.sample[r] == s) n = max(n, p.keys[r]);
        return min(__reduce_max_sync(0xffffffffu, n), end);
    };
    auto load_keys = [&](const void *from, u32 to, int sample, int key0, int keys) {
        const u16 *block = (const u16 *)from + (size_t)sample * p.capacity * d;
#pragma unroll 4
        for (int i = tid; i < KEYS * 32; i += THREADS) {
            const int r = i >> 5, c = i & 31, there = key0 + r < keys && c < units;
            copy16(row512(to, r, c), block + (there ? (size_t)(key0 + r) * d + c * 8 : 0), there);
        }
    };
    /* Walks (sample, 64 keys) pairs; sample > last_sample at the end. */
    int sample = first_sample, key0 = begin, keys = keys_of(sample);
    auto settle = [&](int &s, int &k0, int &n) {
        while (k0 >= n && ++s <= last_sample) k0 = begin, n = keys_of(s);
    };
    settle(sample, key0, keys);

    /* Keys that stand in front of the sample's rows were written before this stage began. */
    bool early = p.early && sample == first_sample && sample <= last_sample;
    if (early) {
        int start = first_row;             /* the sample's first row: rows of a sample stand together */
        for (u32 same = ~0u; same == ~0u;) {
            const int r = start - 1 - lane;
            same = __ballot_sync(0xffffffffu, r >= 0 && p.sample[r] == sample);
            start -= same == ~0u ? 32 : __ffs(~same) - 1;
        }
        early = key0 + KEYS <= p.position[start];
    }
    if (early) load_keys(p.k, k_at, sample, key0, keys), load_keys(p.v, v_at, sample, key0, keys);
    wait_before();
    for (int i = tid; i < ROWS * 32; i += THREADS) {
        const int r = i >> 5, c = i & 31, there = f0 + r < total && c < units;
        copy16(row512(q_at, r, c), (const u16 *)p.q + (there ? (size_t)(f0 + r) * d + c * 8 : 0), there);
    }
    if (!early && sample <= last_sample) load_keys(p.k, k_at, sample, key0, keys);
    copy_commit();
    if (!early && sample <= last_sample) load_keys(p.v, v_at, sample, key0, keys);
    copy_commit();
    copy_wait<1>();
    __syncthreads();
    u32 q[DIM / 16][4];
#pragma unroll
    for (int s = 0; s < DIM / 16; s++) load_matrix4(q[s], row512(q_at, rg * 16 + (lane & 15), 2 * s + (lane >> 4)));

    int row_sample[2], row_keys[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int f = f0 + rg * 16 + h * 8 + g, r = f < total ? f / p.heads : first_row;
        row_sample[h] = f < total ? p.sample[r] : -1;
        row_keys[h] = min(p.keys[r], end);
    }
    float out[8][4] = {}, top[2] = {-INFINITY, -INFINITY}, total_p[2] = {0, 0};
    const float scale = p.scale * 1.4426950408889634f;
    for (int first = 1; sample <= last_sample; first = 0) {
        if (!first) {
            copy_wait<0>();
            __syncthreads();               /* K is there, V and P are free */
            load_keys(p.v, v_at, sample, key0, keys);
            copy_commit();
        }
        float score[2][4] = {};
#pragma unroll
        for (int s = 0; s < DIM / 16; s++) {
            u32 b[4];
            load_matrix4(b, row512(k_at, kg * 16 + (lane & 7) + ((lane >> 4) << 3), 2 * s + (lane >> 3 & 1)));
            mma16(score[0], q[s], b[0], b[1]);
            mma16(score[1], q[s], b[2], b[3]);
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int limit = row_sample[h] == sample ? row_keys[h] : 0;
            float m = -INFINITY;
#pragma unroll
            for (int n = 0; n < 2; n++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    float &s = score[n][2 * h + i];
                    s = key0 + kg * 16 + n * 8 + 2 * t + i < limit ? s * scale : -INFINITY;
                    m = fmaxf(m, s);
                }
            m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
            m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
            if (!t) maxima[kg * ROWS + rg * 16 + h * 8 + g] = m;
        }
        __syncthreads();                   /* maxima are there, K is free */
        const int before = key0;
        int next = sample, next0 = before + KEYS, next_keys = keys;
        settle(next, next0, next_keys);
        if (next <= last_sample) load_keys(p.k, k_at, next, next0, next_keys);
        copy_commit();
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int r = rg * 16 + h * 8 + g;
            const float m = fmaxf(top[h], fmaxf(fmaxf(maxima[r], maxima[ROWS + r]), fmaxf(maxima[2 * ROWS + r], maxima[3 * ROWS + r])));
            const float base = m == -INFINITY ? 0 : m, shrink = exp2_fast(top[h] - base);
            float sum = 0;
            top[h] = m;
#pragma unroll
            for (int n = 0; n < 2; n++) {
                const float a = exp2_fast(score[n][2 * h] - base), b = exp2_fast(score[n][2 * h + 1] - base);
                sum += a + b;
                const u32 at = p_at + r * 128 + (((2 * kg + n) ^ (r & 7)) << 4) + 4 * t;
                asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(pack_bf16(a, b)) : "memory");
            }
            total_p[h] = total_p[h] * shrink + sum;
#pragma unroll
            for (int n = 0; n < 8; n++) out[n][2 * h] *= shrink, out[n][2 * h + 1] *= shrink;
        }
        copy_wait<1>();
        __syncthreads();                   /* V and P are there */
#pragma unroll
        for (int s = 0; s < KEYS / 16; s++) {
            u32 a[4];
            const int r = rg * 16 + (lane & 15);
            load_matrix4(a, p_at + r * 128 + (((2 * s + (lane >> 4)) ^ (r & 7)) << 4));
#pragma unroll
            for (int n = 0; n < 8; n += 2) {
                u32 b[4];
                load_turned4(b, row512(v_at, s * 16 + (lane & 15), kg * 8 + n + (lane >> 4)));
                mma16(out[n], a, b[0], b[1]);
                mma16(out[n + 1], a, b[2], b[3]);
            }
        }
        sample = next, key0 = next0, keys = next_keys;
    }
    copy_wait<0>();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float sum = total_p[h];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (!t) sums[kg * ROWS + rg * 16 + h * 8 + g] = sum;
    }
    __syncthreads();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int r = rg * 16 + h * 8 + g, f = f0 + r;
        if (f >= total) continue;
        const float sum = sums[r] + sums[ROWS + r] + sums[2 * ROWS + r] + sums[3 * ROWS + r];
        if (p.splits > 1) {
            const size_t at = (size_t)blockIdx.y * p.part_rows + f;
            if (kg == 0 && t == 0) *(float2 *)(p.part_stats + at * 2) = make_float2(top[h], sum);
#pragma unroll
            for (int n = 0; n < 8; n++) {
                const int i = kg * 64 + n * 8 + 2 * t;
                if (i < d) *(float2 *)(p.part + at * d + i) = make_float2(out[n][2 * h], out[n][2 * h + 1]);
            }
        } else {
            const float factor = 1 / sum;
#pragma unroll
            for (int n = 0; n < 8; n++) {
                const int i = kg * 64 + n * 8 + 2 * t;
                if (i < d) *(u32 *)((u16 *)p.out + (size_t)f * d + i) = pack_bf16(out[n][2 * h] * factor, out[n][2 * h + 1] * factor);
            }
        }
    }
}

KERNEL(128) attention_cache_1(const __grid_constant__ gpu_cache_attention p) { attend_cache<1>(p); }
KERNEL(384) attention_cache_3(const __grid_constant__ gpu_cache_attention p) { attend_cache<3>(p); }

/* Joins the splits of a row: 64 threads a row, 4 dims each; 4 rows a block. */
KERNEL(256) attention_combine(const __grid_constant__ gpu_cache_attention p) {
    const int f = blockIdx.x * 4 + (threadIdx.x >> 6), i = (threadIdx.x & 63) * 4;
    start_next();
    wait_before();
    if (f >= *p.count * p.heads || i >= p.head_dim) return;
    float top = -INFINITY, sum = 0;
    for (int s = 0; s < p.splits; s++) top = fmaxf(top, __ldcg(p.part_stats + ((size_t)s * p.part_rows + f) * 2));
    float4 out = make_float4(0, 0, 0, 0);
#pragma unroll 4
    for (int s = 0; s < p.splits; s++) {
        const size_t at = (size_t)s * p.part_rows + f;
        const float2 stats = __ldcg((const float2 *)(p.part_stats + at * 2));
        const float4 v = __ldcg((const float4 *)(p.part + at * p.head_dim + i));
        const float weight = exp2_fast(stats.x - top);
        sum += stats.y * weight;
        out.x += v.x * weight, out.y += v.y * weight, out.z += v.z * weight, out.w += v.w * weight;
    }
    const float factor = 1 / sum;
    *(uint2 *)((u16 *)p.out + (size_t)f * p.head_dim + i) = make_uint2(pack_bf16(out.x * factor, out.y * factor), pack_bf16(out.z * factor, out.w * factor));
}
