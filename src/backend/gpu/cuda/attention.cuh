/* Attention over the cache, bf16 on mma.sync: one block's part. Queries of all heads are rows f = row·heads + head
 * against one K/V head (MQA). A block takes 16·R such rows, 64 keys at a time:
 *
 *   scores  warp (row group, key group of 4): 16 rows x 16 keys, Q in registers
 *   values  warp (row group, dim group of 4): 16 rows x 64 of the 256 dims over all 64 keys; the probabilities travel
 *           through shared memory, the row maxima too
 *
 * K and V have one buffer each: the next K loads during softmax and values, V during scores. Rows of several samples
 * may share a block: it walks the samples and masks the others' rows. Keys in front of the sample's rows are fetched
 * before the kernel in front has ended, where that is allowed.
 *
 * Legal when head_dim % 8 == 0 and head_dim <= 256; what is missing to 256 is zeros. Softmax runs in base 2 with
 * log2(e) folded into the scale. */
#ifndef KERNELS_CUDA_ATTENTION_CUH
#define KERNELS_CUDA_ATTENTION_CUH

#include "common.cuh"

enum { KEYS = 64, DIM = 256 };

/* Shared memory: Q [16R][256], K [64][256], V [64][256], P [16R][64] in bf16, rows swizzled; maxima and sums [4][16R]. */
DEV u32 row512(u32 base, int r, int c) { return base + r * 512 + ((c ^ (r & 7)) << 4); }

/* What a warp has in the end: unscaled sums of its 64 dims (rows g and g + 8, pairs of columns as mma leaves them), and of
 * its rows the maximum and the whole block's sum of weights. */
typedef struct attended {
    float out[8][4], top[2], sum[2];
    int f0, total;                         /* first row of the block, rows there are                          */
} attended;

/* Rows of `tile`, keys begin … end-1 only. 0 if the block has no rows; wait_before() has been called either way. */
template <int R> DEV int attend_cache(const gpu_cache_attention &p, int tile, int begin, int end, attended &a) {
    constexpr int ROWS = 16 * R, THREADS = R * 128;
    extern __shared__ __align__(1024) char memory[];
    const u32 q_at = shared_address(memory), k_at = q_at + ROWS * 512, v_at = k_at + KEYS * 512, p_at = v_at + KEYS * 512;
    float *maxima = (float *)(memory + (ROWS + 2 * KEYS) * 512 + ROWS * 128), *sums = maxima + 4 * ROWS;
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, g = lane >> 2, t = lane & 3, rg = warp >> 2, kg = warp & 3;
    const int f0 = tile * ROWS, units = p.head_dim >> 3, d = p.head_dim;

    /* The block's rows, at most 49: lane i holds the tables of rows first_row + i and + 32 + i. All loads at once. */
    const int first_row = f0 / p.heads, total = *p.count * p.heads;
    int samples[2], row_ends[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int r = first_row + lane + 32 * i, there = r * p.heads < min(f0 + ROWS, p.part_rows);
        samples[i] = there ? __ldg(p.sample + r) : -1;
        row_ends[i] = there ? __ldg(p.keys + r) : 0;
    }
    const int position = f0 < p.part_rows ? __ldg(p.position + first_row) : 0;
    a.f0 = f0;
    a.total = total;
    if (f0 >= total) {
        wait_before();
        return 0;
    }
    auto table = [&](const int (&of)[2], int i) {
        const int low = __shfl_sync(0xffffffffu, of[0], i & 31), high = __shfl_sync(0xffffffffu, of[1], i & 31);
        return i < 32 ? low : high;
    };
    const int last = (min(f0 + ROWS, total) - 1) / p.heads - first_row;          /* of the rows that are there */
#pragma unroll
    for (int i = 0; i < 2; i++)
        if (lane + 32 * i > last) samples[i] = -1;
    const int first_sample = table(samples, 0), last_sample = table(samples, last);

    /* The keys of sample s that some row of this block sees, cut to this split. */
    auto keys_of = [&](int s) {
        const int n = max(samples[0] == s ? row_ends[0] : 0, samples[1] == s ? row_ends[1] : 0);
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

    /* Keys that stand in front of the sample's rows were written before this stage began. Its rows begin at most
     * first_row rows before this one, and never more than the longest chunk and its state. */
    const bool early = p.early && sample == first_sample && sample <= last_sample && key0 + KEYS <= position - min(first_row, p.early);
    if (early) load_keys(p.k, k_at, sample, key0, keys), load_keys(p.v, v_at, sample, key0, keys);
    wait_before();
    for (int i = tid; i < ROWS * 32; i += THREADS) {
        const int r = i >> 5, c = i & 31, there = f0 + r < total && c < units;
        copy16(row512(q_at, r, c), (const u16 *)p.q + (there ? (size_t)(f0 + r) * d + c * 8 : 0), there);
    }
    if (!early && sample <= last_sample) load_keys(p.k, k_at, sample, key0, keys);
    copy_commit();
    start_next();                          /* what it fetches comes behind what this kernel waits for */
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
        const int f = f0 + rg * 16 + h * 8 + g, i = f < total ? f / p.heads - first_row : 0, s = table(samples, i), e = table(row_ends, i);
        row_sample[h] = f < total ? s : -1;
        row_keys[h] = min(e, end);
    }
    float total_p[2] = {0, 0};
    float (&out)[8][4] = a.out, (&top)[2] = a.top;
#pragma unroll
    for (int n = 0; n < 8; n++) out[n][0] = out[n][1] = out[n][2] = out[n][3] = 0;
    top[0] = top[1] = -INFINITY;
    const float scale = p.scale * 1.4426950408889634f;
    for (int first = 1; sample <= last_sample; first = 0) {
        if (!first) {
            copy_wait<0>();
            __syncthreads();               /* K is there, V and P are free */
            load_keys(p.v, v_at, sample, key0, keys);
            copy_commit();
        }
        float score[2][4], half[2][2][4] = {};                  /* even and odd s: chains half as long            */
#pragma unroll
        for (int s = 0; s < DIM / 16; s++) {
            u32 b[4];
            load_matrix4(b, row512(k_at, kg * 16 + (lane & 7) + ((lane >> 4) << 3), 2 * s + (lane >> 3 & 1)));
            mma16(half[s & 1][0], q[s], b[0], b[1]);
            mma16(half[s & 1][1], q[s], b[2], b[3]);
        }
#pragma unroll
        for (int i = 0; i < 8; i++) score[i / 4][i % 4] = half[0][i / 4][i % 4] + half[1][i / 4][i % 4];
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
            u32 w[4];
            const int r = rg * 16 + (lane & 15);
            load_matrix4(w, p_at + r * 128 + (((2 * s + (lane >> 4)) ^ (r & 7)) << 4));
#pragma unroll
            for (int n = 0; n < 8; n += 2) {
                u32 b[4];
                load_turned4(b, row512(v_at, s * 16 + (lane & 15), kg * 8 + n + (lane >> 4)));
                mma16(out[n], w, b[0], b[1]);
                mma16(out[n + 1], w, b[2], b[3]);
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
        const int r = rg * 16 + h * 8 + g;
        a.sum[h] = sums[r] + sums[ROWS + r] + sums[2 * ROWS + r] + sums[3 * ROWS + r];
    }
    return 1;
}

#endif
