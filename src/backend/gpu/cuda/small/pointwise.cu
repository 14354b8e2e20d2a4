/* The parts of fused operations, each as a kernel of its own: what a plan runs on when switches are off.
 *
 *   activate       x = activation(x + bias)·up. A block a row and 1024 columns, neighbours in pairs.
 *   add            x += gate·(y + bias). The same.
 *   norm_times     RMS norm of rows that have times of their own. A block 4 rows.
 *   rope_cache     rotates q and k (RoPE), stores k and v in the cache. A block a row and head; the last two
 *                  are k and v.
 *   softmax_rows   scores to probabilities. A block a row and head.
 *   scores_simt, values_simt   fp32: 64 x 64 outputs a block, 4 x 4 a thread.
 *   scores_mma, values_mma     bf16: the same tile on tensor cores, 16 x 64 a warp.
 *   pack_raw       row-major weights into the layout of args.h. A thread 16 bytes.
 *
 * A tile of scores or values holds 64 units. A unit is a row of one head (images; y counts heads, and tiles
 * in them) or a row and a head (caches, whose heads share their keys); where units of several samples meet in
 * a tile, it runs once for each sample.
 *
 *   legal    any shape and type; the _mma kernels bf16 only
 *   early    every kernel calls start_next() and wait_before() first: nothing is fetched before.
 *
 * pointwise.c checks what is legal and launches. */
#include "backend/gpu/cuda/bounds.cuh"
#include "backend/gpu/cuda/product/epilogue.cuh"

/* ---- element by element -------------------------------------------------------------------------------- */

DEV float2 load_pair(const void *x, int f32, size_t at, int there) {
    if (!f32 && there > 1 && !((size_t)((const u16 *)x + at) & 3)) {
        u32 v = __ldcg((const unsigned *)((const u16 *)x + at));
        return make_float2(low_of(v), high_of(v));
    }
    return make_float2(load_act(x, f32, at), there > 1 ? load_act(x, f32, at + 1) : 0);
}

DEV float activated(int activation, float x) {
    return activation == GPU_ACT_GELU ? gelu(x) : activation == GPU_ACT_SILU ? silu(x) : x;
}

/* As known_at, also for rows with times of their own. */
DEV int time_at(const gpu_known &k, int r) { return k.rows ? k.rows[r] * k.at : 0; }

KERNEL(256) activate(const __grid_constant__ gpu_activate p) {
    start_next();
    wait_before();
    if (blockIdx.x >= *p.count) return;
    size_t to = (size_t)(p.row ? p.row[blockIdx.x] : blockIdx.x) * p.n, from = (size_t)blockIdx.x * p.n;
    const float *bias = p.bias ? p.bias + time_at(p.known, blockIdx.x) : NULL;
    int end = min(p.n, (int)(blockIdx.y + 1) * 1024);
    for (int i = blockIdx.y * 1024 + threadIdx.x * 2; i < end; i += 512) {
        int two = i + 1 < p.n;
        float2 y = load_pair(p.x, p.f32, to + i, two ? 2 : 1);
        if (bias) y.x += bias[i], y.y += two ? bias[i + 1] : 0;
        y.x = activated(p.activation, y.x), y.y = activated(p.activation, y.y);
        if (p.up) {
            float2 u = load_pair(p.up, p.f32, from + i, two ? 2 : 1);
            y.x *= u.x, y.y *= u.y;
        }
        store_pair(p.x, p.f32, to + i, i, p.n, y.x, y.y);
    }
}

KERNEL(256) add(const __grid_constant__ gpu_add p) {
    start_next();
    wait_before();
    if (blockIdx.x >= *p.count) return;
    const float *gate = p.gate ? p.gate + time_at(p.known, blockIdx.x) : NULL;
    const float factor = p.factor ? p.factor[blockIdx.x] : 1;
    if (factor == 0) return;
    size_t row = (size_t)blockIdx.x * p.n;
    int end = min(p.n, (int)(blockIdx.y + 1) * 1024);
    for (int i = blockIdx.y * 1024 + threadIdx.x * 2; i < end; i += 512) {
        int two = i + 1 < p.n;
        float2 y = load_pair(p.y, p.f32, row + i, two ? 2 : 1),
               x = load_pair(p.x, p.f32, row + i, two ? 2 : 1);
        if (p.bias) y.x += p.bias[i], y.y += two ? p.bias[i + 1] : 0;
        if (gate) y.x *= gate[i], y.y *= two ? gate[i + 1] : 0;
        if (p.factor) y.x *= factor, y.y *= factor;
        store_pair(p.x, p.f32, row + i, i, p.n, x.x + y.x, x.y + y.y);
    }
}

/* RMS norm of rows with times of their own. A warp a row. */
KERNEL(128) norm_times(const __grid_constant__ gpu_norm p) {
    const int lane = threadIdx.x & 31, r = blockIdx.x * 4 + (threadIdx.x >> 5);
    start_next();
    wait_before();
    if (r >= *p.count) return;
    const size_t from = (size_t)row_of(p.from, r) * p.k, to = (size_t)r * p.k;
    float squares = 0;
    for (int i = lane; i < p.k; i += 32) {
        const float x = load_act(p.x, p.f32, from + i);
        squares += x * x;
    }
    const float factor = rsqrtf(warp_sum(squares) / p.k + p.eps);
    const int own = time_at(p.known, r);
    const float *weight = p.weight + own, *bias = p.bias ? p.bias + own : NULL;
    for (int i = lane; i < p.k; i += 32) {
        const float y = load_act(p.x, p.f32, from + i) * factor * (1 + weight[i]) + (bias ? bias[i] : 0);
        if (p.f32) ((float *)p.out)[to + i] = y;
        else ((u16 *)p.out)[to + i] = to_bf16(y);
    }
}

DEV void put_act(void *out, int f32, size_t at, float y) {
    if (f32) ((float *)out)[at] = y;
    else ((u16 *)out)[at] = to_bf16(y);
}

KERNEL(128) rope_cache(const __grid_constant__ gpu_rope_cache p) {
    int r = blockIdx.x, h = blockIdx.y, d = p.head_dim, half = d / 2;
    start_next();
    wait_before();
    if (r >= *p.count) return;
    int place = p.position[r];
    size_t cached = ((size_t)p.sample[r] * p.capacity + place) * d, kv = (size_t)r * p.kv_stride;
    if (h == p.heads + 1) {
        for (int i = threadIdx.x; i < d; i += 128)
            put_act(p.v, p.f32, cached + i, load_act(p.v_in, p.f32, kv + i));
        return;
    }
    const void *in = h < p.heads ? p.q_in : p.k_in;
    void *out = h < p.heads ? p.q : p.k;
    size_t from = h < p.heads ? (size_t)r * p.q_stride + (size_t)h * d : kv,
           to = h < p.heads ? ((size_t)r * p.heads + h) * d : cached;
    const float2 *rope = (const float2 *)(p.rope + (size_t)place * d);
    for (int i = threadIdx.x; i < half; i += 128) {
        float2 t = __ldg(rope + i);
        float x = load_act(in, p.f32, from + i), y = load_act(in, p.f32, from + i + half);
        put_act(out, p.f32, to + i, x * t.x - y * t.y);
        put_act(out, p.f32, to + i + half, y * t.x + x * t.y);
    }
}

KERNEL(128) softmax_rows(const __grid_constant__ gpu_softmax p) {
    __shared__ float shares[4];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    start_next();
    wait_before();
    if (blockIdx.x >= *p.count) return;
    float *s = p.scores + ((size_t)blockIdx.x * p.heads + blockIdx.y) * p.places, top = -INFINITY, sum = 0;
    int keys = p.keys[blockIdx.x];
    for (int j = threadIdx.x; j < keys; j += 128) top = fmaxf(top, __ldcg(s + j));
    top = warp_max(top);
    if (!lane) shares[warp] = top;
    __syncthreads();
    top = fmaxf(fmaxf(shares[0], shares[1]), fmaxf(shares[2], shares[3]));
    __syncthreads();
    for (int j = threadIdx.x; j < keys; j += 128) sum += __expf(__ldcg(s + j) - top);
    sum = warp_sum(sum);
    if (!lane) shares[warp] = sum;
    __syncthreads();
    float factor = 1 / (shares[0] + shares[1] + shares[2] + shares[3]);
    for (int j = threadIdx.x; j < keys; j += 128) {
        float y = __expf(__ldcg(s + j) - top) * factor;
        s[j] = p.f32 ? y : round_bf16(y);
    }
}

/* ---- scores and values --------------------------------------------------------------------------------- */

enum { TILE = 64, STEP = 64, PITCH = STEP + 8 };

/* The units of a tile. Unit i has row (first + i) / heads_a_row and head `head` + (first + i) %
 * heads_a_row. */
typedef struct units {
    int first, heads_a_row, head, rows;
} units;

DEV units units_of(const gpu_attend &p) {
    units u = {(int)blockIdx.x * TILE, p.stride ? 1 : p.heads,
               p.stride ? (int)blockIdx.y / p.tiles : 0, *p.count};
    return u;
}
/* -1: there is none. */
DEV int row_of_unit(const units &u, int i) {
    int r = (u.first + i) / u.heads_a_row;
    return r < u.rows ? r : -1;
}
DEV int head_of_unit(const units &u, int i) { return u.head + (u.first + i) % u.heads_a_row; }

/* Element at which the keys (or values) of sample (or image) s begin. */
DEV size_t attended_at(const gpu_attend &p, const units &u, int s) {
    return p.stride ? (size_t)(u.first & ~255) * p.stride + (size_t)u.head * p.head_dim
                    : (size_t)s * p.capacity * p.head_dim;
}
DEV int place_stride(const gpu_attend &p) { return p.stride ? p.stride : p.head_dim; }

/* Most keys of any unit of sample s; 0 where the tile has none. Uniform in the block. */
DEV int most_keys(const gpu_attend &p, const units &u, int s, int *shared) {
    __syncthreads();
    if (!threadIdx.x) *shared = 0;
    __syncthreads();
    if (threadIdx.x < TILE) {
        int r = row_of_unit(u, threadIdx.x);
        if (r >= 0 && (p.stride || p.sample[r] == s)) atomicMax(shared, p.keys[r]);
    }
    __syncthreads();
    return *shared;
}

DEV void sample_range(const gpu_attend &p, const units &u, int *first, int *last) {
    int r = row_of_unit(u, 0), end = min(u.rows - 1, (u.first + TILE - 1) / u.heads_a_row);
    *first = r < 0 ? 0 : p.stride ? 0 : p.sample[r];
    *last = r < 0 ? -1 : p.stride ? 0 : p.sample[end];
}

/* Elements at … at + 7 of a row of `limit`, zeros from there on or where there is no row. */
DEV uint4 load8(const u16 *row, int at, int limit, int whole) {
    u32 v[4];
    if (!row || at >= limit) return make_uint4(0, 0, 0, 0);
    if (whole) return __ldcg((const uint4 *)(row + at));
#pragma unroll
    for (int i = 0; i < 4; i++)
        v[i] = (at + 2 * i < limit ? __ldcg((const unsigned short *)row + at + 2 * i) : 0) |
               (at + 2 * i + 1 < limit ? (u32)__ldcg((const unsigned short *)row + at + 2 * i + 1) << 16 : 0);
    return make_uint4(v[0], v[1], v[2], v[3]);
}

/* Rows can be read 16 bytes at a time. */
DEV int whole_units(const void *base, int stride, int head_dim) {
    return !((size_t)base & 15) && !((stride | head_dim) & 7);
}

/* 16 k of a warp's 16 units: the first operand of mma16. */
DEV void load_operand(u32 (&f)[4], const u16 (*a)[PITCH], int row, int at) {
    f[0] = *(const u32 *)&a[row][at], f[1] = *(const u32 *)&a[row + 8][at];
    f[2] = *(const u32 *)&a[row][at + 8], f[3] = *(const u32 *)&a[row + 8][at + 8];
}

/* Scores c of a warp's units (rows g and g + 8) for the places from j0 on. */
DEV void store_scores(const gpu_attend &p, const units &u, int s, const float (&c)[8][4], int first, int j0) {
    const int g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int i = first + g + half * 8, r = row_of_unit(u, i);
        if (r < 0 || (!p.stride && p.sample[r] != s)) continue;
        const int keys = p.keys[r];
        float *out = p.scores + ((size_t)r * p.heads + head_of_unit(u, i)) * p.places;
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const int j = j0 + n * 8 + 2 * t;
            if (j < keys) out[j] = c[n][half * 2] * p.scale;
            if (j + 1 < keys) out[j + 1] = c[n][half * 2 + 1] * p.scale;
        }
    }
}

/* A thread fetches 32 elements of one row of each operand while the previous step is multiplied. */
KERNEL(128) scores_mma(const __grid_constant__ gpu_attend p) {
    __shared__ __align__(16) u16 a[TILE][PITCH], b[TILE][PITCH];
    __shared__ int most;
    const int tid = threadIdx.x, warp = tid >> 5, g = (tid & 31) >> 2, t = tid & 3,
              j0 = (int)blockIdx.y % p.tiles * TILE;
    const int mine = tid >> 1, first = (tid & 1) * 32, stride = place_stride(p);
    int s, last;
    start_next();
    wait_before();
    units u = units_of(p);
    const int own = row_of_unit(u, mine),
              whole = whole_units(p.q, p.q_stride, p.head_dim) && whole_units(p.from, stride, p.head_dim);
    const size_t q_at = (size_t)own * p.q_stride + (size_t)head_of_unit(u, mine) * p.head_dim;
    const u16 *q = own < 0 ? NULL : (const u16 *)p.q + q_at;
    for (sample_range(p, u, &s, &last); s <= last; s++) {
        if (most_keys(p, u, s, &most) <= j0) continue;
        const u16 *key = j0 + mine < p.capacity
                             ? (const u16 *)p.from + attended_at(p, u, s) + (size_t)(j0 + mine) * stride
                             : NULL;
        uint4 x[4], y[4];
        float c[8][4] = {};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[i] = load8(q, first + i * 8, p.head_dim, whole);
            y[i] = load8(key, first + i * 8, p.head_dim, whole);
        }
        for (int k0 = 0; k0 < p.head_dim; k0 += STEP) {
            __syncthreads();
#pragma unroll
            for (int i = 0; i < 4; i++)
                *(uint4 *)&a[mine][first + i * 8] = x[i], *(uint4 *)&b[mine][first + i * 8] = y[i];
            __syncthreads();
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int at = k0 + STEP + first + i * 8;
                x[i] = load8(q, at, p.head_dim, whole), y[i] = load8(key, at, p.head_dim, whole);
            }
#pragma unroll
            for (int k = 0; k < STEP; k += 16) {
                const int at = k + 2 * t;
                u32 f[4];
                load_operand(f, a, warp * 16 + g, at);
#pragma unroll
                for (int n = 0; n < 8; n++)
                    mma16(c[n], f, *(u32 *)&b[n * 8 + g][at], *(u32 *)&b[n * 8 + g][at + 8]);
            }
        }
        store_scores(p, u, s, c, warp * 16, j0);
    }
}

/* The probability of unit i for place j, 0 where the unit has none. */
DEV float weight_of(const gpu_attend &p, const units &u, int i, int s, int j) {
    int r = row_of_unit(u, i);
    if (r < 0 || (!p.stride && p.sample[r] != s) || j >= p.keys[r]) return 0;
    return __ldcg(p.scores + ((size_t)r * p.heads + head_of_unit(u, i)) * p.places + j);
}

/* Four probabilities of a line from j, as bf16; zeros from `keys` on. */
DEV uint2 shares4(const float *line, int j, int keys) {
    if (!line || j >= keys) return make_uint2(0, 0);
    float4 v = __ldcg((const float4 *)(line + j));
    if (j + 1 >= keys) v.y = 0;
    if (j + 2 >= keys) v.z = 0;
    if (j + 3 >= keys) v.w = 0;
    return make_uint2(pack_bf16(v.x, v.y), pack_bf16(v.z, v.w));
}

/* Values c of a warp's units (rows g and g + 8) from dimension d0 on. */
DEV void store_values(const gpu_attend &p, const units &u, const float (&c)[8][4], int first, int d0) {
    const int g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int i = first + g + half * 8, r = row_of_unit(u, i);
        if (r < 0) continue;
        const size_t to = ((size_t)r * p.heads + head_of_unit(u, i)) * p.head_dim;
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const int at = d0 + n * 8 + 2 * t;
            store_pair(p.out, 0, to + at, at, p.head_dim, c[n][half * 2], c[n][half * 2 + 1]);
        }
    }
}

KERNEL(128) values_mma(const __grid_constant__ gpu_attend p) {
    __shared__ __align__(16) u16 a[TILE][PITCH], b[TILE][PITCH];   /* b: [place][dimension]                 */
    __shared__ int most;
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, g = lane >> 2, t = tid & 3,
              d0 = (int)blockIdx.y % p.tiles * TILE;
    const int mine = tid >> 1, first = (tid & 1) * 32, stride = place_stride(p);
    int s, last;
    start_next();
    wait_before();
    units u = units_of(p);
    const int own = row_of_unit(u, mine), whole = whole_units(p.from, stride, p.head_dim);
    const float *shares =
        own < 0 ? NULL : p.scores + ((size_t)own * p.heads + head_of_unit(u, mine)) * p.places;
    float c[8][4] = {};
    for (sample_range(p, u, &s, &last); s <= last; s++) {
        const int keys = most_keys(p, u, s, &most),
                  own_keys = own < 0 || (!p.stride && p.sample[own] != s) ? 0 : p.keys[own];
        const u16 *values = (const u16 *)p.from + attended_at(p, u, s);
        uint2 x[8];
        uint4 y[4];
        auto fetch = [&](int j0) {
            const u16 *row = j0 + mine < keys ? values + (size_t)(j0 + mine) * stride : NULL;
#pragma unroll
            for (int i = 0; i < 8; i++) x[i] = shares4(shares, j0 + first + i * 4, own_keys);
#pragma unroll
            for (int i = 0; i < 4; i++) y[i] = load8(row, d0 + first + i * 8, p.head_dim, whole);
        };
        fetch(0);
        for (int j0 = 0; j0 < keys; j0 += STEP) {
            __syncthreads();
#pragma unroll
            for (int i = 0; i < 8; i++) *(uint2 *)&a[mine][first + i * 4] = x[i];
#pragma unroll
            for (int i = 0; i < 4; i++) *(uint4 *)&b[mine][first + i * 8] = y[i];
            __syncthreads();
            fetch(j0 + STEP);
#pragma unroll
            for (int k = 0; k < STEP; k += 16) {
                u32 f[4], v[2];
                load_operand(f, a, warp * 16 + g, k + 2 * t);
#pragma unroll
                for (int n = 0; n < 8; n++) {
                    load_transposed2(v, shared_address(&b[k + (lane & 15)][n * 8]));
                    mma16(c[n], f, v[0], v[1]);
                }
            }
        }
    }
    store_values(p, u, c, warp * 16, d0);
}

/* c[4][4] += a·b of one step: a [16][68] by unit, b [16][68] by output. */
DEV void multiply(float (&c)[4][4], const float (*a)[68], const float (*b)[68]) {
    int ty = threadIdx.x / 16 * 4, tx = threadIdx.x % 16 * 4;
#pragma unroll
    for (int k = 0; k < 16; k++)
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) c[i][j] += a[k][ty + i] * b[k][tx + j];
}

KERNEL_HELD(256, 4) scores_simt(const __grid_constant__ gpu_attend p) {
    __shared__ float a[16][68], b[16][68];
    __shared__ int most;
    int tid = threadIdx.x, j0 = (int)blockIdx.y % p.tiles * TILE, s, last;
    start_next();
    wait_before();
    units u = units_of(p);
    for (sample_range(p, u, &s, &last); s <= last; s++) {
        if (most_keys(p, u, s, &most) <= j0) continue;
        size_t base = attended_at(p, u, s);
        float c[4][4] = {};
        for (int k0 = 0; k0 < p.head_dim; k0 += 16) {
            __syncthreads();
            for (int i = tid; i < TILE * 16; i += 256) {
                int row = i / 16, k = k0 + i % 16, r = row_of_unit(u, row);
                a[i % 16][row] =
                    r >= 0 && k < p.head_dim
                        ? load_act(p.q, p.f32,
                                   (size_t)r * p.q_stride + (size_t)head_of_unit(u, row) * p.head_dim + k)
                        : 0;
                b[i % 16][row] =
                    j0 + row < p.capacity && k < p.head_dim
                        ? load_act(p.from, p.f32, base + (size_t)(j0 + row) * place_stride(p) + k)
                        : 0;
            }
            __syncthreads();
            multiply(c, a, b);
        }
        for (int i = 0; i < 4; i++) {
            int unit = tid / 16 * 4 + i, r = row_of_unit(u, unit);
            if (r < 0 || (!p.stride && p.sample[r] != s)) continue;
            float *out = p.scores + ((size_t)r * p.heads + head_of_unit(u, unit)) * p.places;
            for (int n = 0; n < 4; n++) {
                int j = j0 + tid % 16 * 4 + n;
                if (j < p.keys[r]) out[j] = c[i][n] * p.scale;
            }
        }
    }
}

KERNEL(256) values_simt(const __grid_constant__ gpu_attend p) {
    __shared__ float a[16][68], b[16][68];
    __shared__ int most;
    int tid = threadIdx.x, d0 = (int)blockIdx.y % p.tiles * TILE, s, last;
    start_next();
    wait_before();
    units u = units_of(p);
    float c[4][4] = {};
    for (sample_range(p, u, &s, &last); s <= last; s++) {
        int keys = most_keys(p, u, s, &most);
        size_t base = attended_at(p, u, s);
        for (int j0 = 0; j0 < keys; j0 += 16) {
            __syncthreads();
            for (int i = tid; i < TILE * 16; i += 256) {
                int place = i / TILE, at = d0 + i % TILE;
                a[i % 16][i / 16] = weight_of(p, u, i / 16, s, j0 + i % 16);
                b[place][i % TILE] =
                    j0 + place < keys && at < p.head_dim
                        ? load_act(p.from, p.f32, base + (size_t)(j0 + place) * place_stride(p) + at)
                        : 0;
            }
            __syncthreads();
            multiply(c, a, b);
        }
    }
    for (int i = 0; i < 4; i++) {
        int unit = tid / 16 * 4 + i, r = row_of_unit(u, unit);
        if (r < 0) continue;
        size_t to = ((size_t)r * p.heads + head_of_unit(u, unit)) * p.head_dim;
        for (int n = 0; n < 4; n++) {
            int at = d0 + tid % 16 * 4 + n;
            if (at < p.head_dim) put_act(p.out, p.f32, to + at, c[i][n]);
        }
    }
}

/* ---- weights ------------------------------------------------------------------------------------------- */

KERNEL(256) pack_raw(const __grid_constant__ gpu_raw p) {
    start_next();
    wait_before();
    int chunk = p.f32 ? 4 : 8, chunks = p.f32 ? (p.k + 3) / 4 : p.blocks * 8;
    size_t index = (size_t)blockIdx.x * 256 + threadIdx.x;
    if (index >= (size_t)chunks * p.columns) return;
    int column = (int)(index / chunks), i = (int)(index % chunks) * chunk, there;
    int row = gpu_group_rows(&p.order, column >> 3, &there) + (column & 7);
    if ((column & 7) >= there) row = -1;   /* padding                                                       */
    size_t from = (size_t)row * p.k + i;
    if (p.f32) {
        float v[4];
        for (int j = 0; j < 4; j++) v[j] = row >= 0 && i + j < p.k ? ((const float *)p.rows)[from + j] : 0;
        float *to = (float *)p.out + (size_t)column * ((p.k + 3) & ~3) + i;
        *(float4 *)to = make_float4(v[0], v[1], v[2], v[3]);
        return;
    }
    u32 v[4];
    const u16 *rows = (const u16 *)p.rows;
    if (row >= 0 && p.k % 8 == 0 && i < p.k) {
        uint4 all = *(const uint4 *)(rows + from);
        v[0] = all.x, v[1] = all.y, v[2] = all.z, v[3] = all.w;
    } else {
        for (int j = 0; j < 4; j++) {
            u32 low = row >= 0 && i + 2 * j < p.k ? rows[from + 2 * j] : 0,
                high = row >= 0 && i + 2 * j + 1 < p.k ? rows[from + 2 * j + 1] : 0;
            v[j] = low | high << 16;
        }
    }
    *(uint4 *)((char *)p.out + atom_at(p.blocks, column, i)) = make_uint4(v[0], v[1], v[2], v[3]);
}
