/* Kernels without matrix instructions: norms, gathers, and products and attention of any type and shape.
 *
 *   norm_rows         out[r] = norm(x[r]) rounded to act, up to 4 rows a block. A warp a row; _bf16 (k % 8 ==
 *                     0 and k <= 2048) a thread eight elements, whose weights are in registers before
 *                     wait_before().
 *   embed_text        rows of the embedding table, scaled, into the prefix. A block a row; 8 elements a
 *                     thread at a time where table and prefix are bf16 and rows start at multiples of 16
 *                     bytes.
 *   patches           pictures as rows of 588 inputs, each split into bf16 + bf16 so that a bf16 product of
 *                     both parts is right to 2^-17. A block a patch.
 *   linear_simt       x·Wᵀ in fp32 for any types, shapes and epilogue. 64 x 64 outputs a block, 4 x 4 a
 *                     thread, 16 k at a time. The fp32 plan runs on it; in a bf16 plan it takes what no other
 *                     kernel can.
 *   linear_rows       the same for few rows (action tokens, velocity), norm included: 16 rows and 16 packed
 *                     columns a block, a warp two columns, x in shared memory. Legal when 16·k·4 bytes fit.
 *                     Before wait_before() the weights are prefetched into the second-level cache.
 *   linear_short      the same for few rows of up to 32 fp32 inputs (state and actions into tokens): a thread
 *                     two columns of a row. Legal when x is fp32, k % 4 == 0, no norm, plain epilogue. Before
 *                     wait_before() weights and bias are in registers; start_next() comes after the loads of
 *                     x.
 *   attention_simt_*  attention by definition: a block a query row and head, scores in shared memory.
 *
 * The others call start_next() and wait_before() first: they fetch nothing before.
 *
 * simt.c checks what is legal and launches. */
#include "epilogue.cuh"
#include "row_sum.cuh"

/* ---- norm ---------------------------------------------------------------------------------------------- */

/* A block's rows and threads. */
enum { MOST_ROWS = 4, MOST_THREADS = MOST_ROWS * ROW_WARPS * 32 };

/* bf16 rows of up to 2048. Note: few instructions on purpose. A block runs each of them once, and must fetch
 * it first, which takes about ten cycles: a warp a row, with all its elements unrolled, is slower
 * (docs/speed/vision.md, C48). */
KERNEL(MOST_THREADS) norm_rows_bf16(const __grid_constant__ gpu_norm p) {
    __shared__ __align__(16) float parts[MOST_ROWS][2][ROW_WARPS];
    const int n = p.k / 8, warps = (n + 31) / 32, threads = 32 * warps, mine = threadIdx.x / threads,
              unit = threadIdx.x - mine * threads, warp = unit / 32,
              r = blockIdx.x * (blockDim.x / threads) + mine, there = r < *p.count;
    start_next();
    const int row = there ? row_of(p.from, r) : 0, own = known_at(p.known, r, there);
    const float one = p.kind == GPU_NORM_RMS, share = 1 / (float)p.k;
    float weight[8], bias[8], squares = 0;
    if (unit < 2 * ROW_WARPS) parts[mine][0][unit] = 0;
#pragma unroll
    for (int j = 0; j < 8; j += 4) {
        float4 w = make_float4(0, 0, 0, 0), b = w;
        if (unit < n) w = __ldg((const float4 *)(p.weight + own + unit * 8 + j));
        if (unit < n && p.bias) b = __ldg((const float4 *)(p.bias + own + unit * 8 + j));
        weight[j] = one + w.x, weight[j + 1] = one + w.y;
        weight[j + 2] = one + w.z, weight[j + 3] = one + w.w;
        bias[j] = b.x, bias[j + 1] = b.y, bias[j + 2] = b.z, bias[j + 3] = b.w;
    }
    __syncthreads();
    wait_before();
    if (!there) return;
    uint4 v = make_uint4(0, 0, 0, 0);
    if (unit < n) v = __ldcg((const uint4 *)((const u16 *)p.x + (size_t)row * p.k) + unit);
    float x[8] = {low_of(v.x), high_of(v.x), low_of(v.y), high_of(v.y),
                  low_of(v.z), high_of(v.z), low_of(v.w), high_of(v.w)};
    if (p.kind == GPU_NORM_LAYER) {
        const float sum = ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7])),
                    mean = row_sum(sum, parts[mine][0], warp) * share;
#pragma unroll
        for (int j = 0; j < 8; j++) x[j] -= mean;
    }
#pragma unroll
    for (int j = 0; j < 8; j++) squares += x[j] * x[j];
    if (unit >= n) squares = 0;
    const float factor = rsqrtf(row_sum(squares, parts[mine][1], warp) * share + p.eps);
#pragma unroll
    for (int j = 0; j < 8; j++) x[j] = x[j] * factor * weight[j] + bias[j];
    v = make_uint4(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]),
                   pack_bf16(x[6], x[7]));
    if (unit < n) *((uint4 *)((u16 *)p.out + (size_t)r * p.k) + unit) = v;
}

KERNEL(128) norm_rows(const __grid_constant__ gpu_norm p) {
    int lane = threadIdx.x & 31, r = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
    start_next();
    wait_before();
    if (r >= *p.count) return;
    size_t from = (size_t)row_of(p.from, r) * p.k, to = (size_t)r * p.k;
    float sum = 0, squares = 0, mean = 0;
    if (p.kind == GPU_NORM_LAYER) {
        for (int i = lane; i < p.k; i += 32) sum += load_act(p.x, p.f32, from + i);
        mean = warp_sum(sum) / p.k;
    }
    for (int i = lane; i < p.k; i += 32) {
        float d = load_act(p.x, p.f32, from + i) - mean;
        squares += d * d;
    }
    float factor = rsqrtf(warp_sum(squares) / p.k + p.eps), one = p.kind == GPU_NORM_RMS;
    const int own = known_at(p.known, r, 1);
    const float *weight = p.weight + own, *bias = p.bias ? p.bias + own : NULL;
    for (int i = lane; i < p.k; i += 32) {
        float y =
            (load_act(p.x, p.f32, from + i) - mean) * factor * (one + weight[i]) + (bias ? bias[i] : 0);
        if (p.f32) ((float *)p.out)[to + i] = y;
        else ((u16 *)p.out)[to + i] = to_bf16(y);
    }
}

/* ---- gathers ------------------------------------------------------------------------------------------- */

DEV u32 scaled_pair(u32 pair, float by) { return pack_bf16(low_of(pair) * by, high_of(pair) * by); }

KERNEL(256) embed_text(const __grid_constant__ gpu_text p) {
    start_next();
    wait_before();
    if (blockIdx.x >= *p.count) return;
    size_t from = (size_t)p.ids[blockIdx.x] * p.width, to = (size_t)p.out_row[blockIdx.x] * p.width;
    if (!p.table_f32 && !p.f32 && p.width % 8 == 0) {
        const uint4 *in = (const uint4 *)((const u16 *)p.table + from);
        uint4 *out = (uint4 *)((u16 *)p.out + to);
        for (int i = threadIdx.x; i < p.width / 8; i += 256) {
            uint4 v = __ldcg(in + i);
            out[i] = make_uint4(scaled_pair(v.x, p.scale), scaled_pair(v.y, p.scale),
                                scaled_pair(v.z, p.scale), scaled_pair(v.w, p.scale));
        }
        return;
    }
    for (int i = threadIdx.x; i < p.width; i += 256) {
        float y = load_act(p.table, p.table_f32, from + i) * p.scale;
        if (p.f32) ((float *)p.out)[to + i] = y;
        else ((u16 *)p.out)[to + i] = to_bf16(y);
    }
}

enum { PATCH = 14, IMAGE = 224, CHANNELS = 3, PATCH_INPUTS = PATCH * PATCH * CHANNELS };

/* Input i (channel, row, column) of patch r (256 an image). */
DEV float pixel_at(const void *images, int floats, int r, int i) {
    int patch = r & 255, c = i / (PATCH * PATCH), y = (patch >> 4) * PATCH + i / PATCH % PATCH,
        x = (patch & 15) * PATCH + i % PATCH;
    size_t at = (size_t)(r >> 8) * IMAGE * IMAGE * CHANNELS + (y * IMAGE + x) * CHANNELS + c;
    return floats ? ((const float *)images)[at]
                  : __fadd_rn(__fmul_rn(__fdiv_rn(((const uint8_t *)images)[at], 255.0f), 2.0f), -1.0f);
}

KERNEL(128) patches(const __grid_constant__ gpu_patches p) {
    int r = blockIdx.x, floats = *p.pixels;
    start_next();
    wait_before();
    if (r >= *p.count) return;
    u16 *high = (u16 *)p.out + (size_t)r * 2 * p.ld, *low = high + p.ld;
    for (int i = threadIdx.x; i < p.ld; i += 128) {
        float x = i < PATCH_INPUTS ? pixel_at(p.images, floats, r, i) : 0, upper = round_bf16(x);
        high[i] = to_bf16(upper);
        low[i] = to_bf16(x - upper);
    }
}

/* ---- products ------------------------------------------------------------------------------------------ */

/* 4 weights of a packed column from i, a multiple of 4; zeros from k on. */
DEV float4 weights4(const gpu_weights &w, int column, int i) {
    if (column >= w.columns || i >= w.k) return make_float4(0, 0, 0, 0);
    if (w.type == GPU_WEIGHT_F32)
        return __ldg((const float4 *)((const float *)w.data + (size_t)column * ((w.k + 3) & ~3) + i));
    uint2 v = __ldg((const uint2 *)((const char *)w.data + atom_at(w.blocks, column, i & ~7) + (i & 4) * 2));
    return make_float4(low_of(v.x), high_of(v.x), low_of(v.y), high_of(v.y));
}

DEV float x_at(const gpu_linear &p, size_t row, int r, int i, int floats) {
    if (i >= p.ldx) return 0;
    if (p.x_type == GPU_X_PIXELS) return pixel_at(p.x, floats, r, i);
    return load_act(p.x, p.x_type == GPU_X_F32, row * p.ldx + i);
}

KERNEL(256) linear_simt(const __grid_constant__ gpu_linear p) {
    __shared__ float a[16][68], b[16][68];
    int row0 = blockIdx.x * 64, column0 = blockIdx.y * 64, tid = threadIdx.x, ty = tid / 16, u = tid % 16 / 4,
        t = tid % 4;
    start_next();
    wait_before();
    int rows = *p.count, floats = p.x_type == GPU_X_PIXELS ? *p.pixels : 0;
    if (row0 >= rows) return;
    float sum[4][4] = {};
    int load_row = row0 + tid / 4, load_k = tid % 4 * 4;
    size_t from = load_row < rows ? row_of(p.from, load_row) : 0;
    for (int k0 = 0; k0 < p.weights.k; k0 += 16) {
        float4 w = weights4(p.weights, column0 + tid / 4, k0 + load_k);
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[load_k + i][tid / 4] = load_row < rows ? x_at(p, from, load_row, k0 + load_k + i, floats) : 0;
        b[load_k][tid / 4] = w.x, b[load_k + 1][tid / 4] = w.y;
        b[load_k + 2][tid / 4] = w.z, b[load_k + 3][tid / 4] = w.w;
        __syncthreads();
#pragma unroll
        for (int k = 0; k < 16; k++) {
            float4 x = *(const float4 *)&a[k][ty * 4];
            float2 v = *(const float2 *)&b[k][u * 16 + 2 * t],
                   w2 = *(const float2 *)&b[k][u * 16 + 8 + 2 * t];
            float xs[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                sum[i][0] += xs[i] * v.x, sum[i][1] += xs[i] * v.y;
                sum[i][2] += xs[i] * w2.x, sum[i][3] += xs[i] * w2.y;
            }
        }
        __syncthreads();
    }
    if (column0 + u * 16 >= p.weights.columns) return;
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (row0 + ty * 4 + i < rows)
            epilogue_unit(p.epilogue, row0 + ty * 4 + i, column0 / 16 + u, t, sum[i][0], sum[i][1], sum[i][2],
                          sum[i][3]);
}

KERNEL(256) linear_rows(const __grid_constant__ gpu_linear p) {
    extern __shared__ __align__(16) float x[]; /* [16][k rounded up to 4]                                   */
    __shared__ float sums[16][18];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, row0 = blockIdx.y * 16, k = p.weights.k,
        pitch = (k + 3) & ~3;
    int column = blockIdx.x * GPU_UNIT + warp * 2;
    start_next();
    for (int i = lane * 4; i < k; i += 128)    /* the weights into the second-level cache meanwhile         */
        for (int c = 0; c < 2; c++) {
            const size_t at = p.weights.type == GPU_WEIGHT_F32 ? ((size_t)(column + c) * pitch + i) * 4
                                            : atom_at(p.weights.blocks, column + c, i & ~7);
            prefetch((const char *)p.weights.data + at);
        }
    wait_before();
    int rows = *p.count - row0;
    if (rows <= 0) return;
    if (rows > 16) rows = 16;
    for (int r = warp; r < 16; r += 8) {
        float *to = x + r * pitch;
        size_t from = r < rows ? (size_t)row_of(p.from, row0 + r) * p.ldx : 0;
        float sum = 0, squares = 0, mean = 0;
        for (int i = lane; i < pitch; i += 32) {
            to[i] = r < rows && i < k ? load_act(p.x, p.x_type == GPU_X_F32, from + i) : 0;
            sum += to[i];
        }
        if (p.norm == GPU_NORM_NONE || r >= rows) continue;
        if (p.norm == GPU_NORM_LAYER) mean = warp_sum(sum) / k;
        for (int i = lane; i < k; i += 32) squares += (to[i] - mean) * (to[i] - mean);
        float factor = rsqrtf(warp_sum(squares) / k + p.eps), one = p.norm == GPU_NORM_RMS;
        const int own = known_at(p.epilogue.known, row0 + r, 1);
        const float *weight = p.norm_weight + own, *bias = p.norm_bias ? p.norm_bias + own : NULL;
        for (int i = lane; i < k; i += 32) {
            float y = (to[i] - mean) * factor * (one + weight[i]) + (bias ? bias[i] : 0);
            to[i] = p.round ? round_bf16(y) : y;
        }
    }
    __syncthreads();
    float sum[2][16] = {};
    for (int i = lane * 4; i < k; i += 128) {
        float4 w0 = weights4(p.weights, column, i), w1 = weights4(p.weights, column + 1, i);
#pragma unroll
        for (int r = 0; r < 16; r++) {
            if (r >= rows) break;
            float4 v = *(const float4 *)(x + r * pitch + i);
            sum[0][r] += v.x * w0.x + v.y * w0.y + v.z * w0.z + v.w * w0.w;
            sum[1][r] += v.x * w1.x + v.y * w1.y + v.z * w1.z + v.w * w1.w;
        }
    }
#pragma unroll
    for (int r = 0; r < 16; r++) {
        if (r >= rows) break;
        float s0 = warp_sum(sum[0][r]), s1 = warp_sum(sum[1][r]);
        if (!lane) sums[r][warp * 2] = s0, sums[r][warp * 2 + 1] = s1;
    }
    __syncthreads();
    int r = threadIdx.x / 4, t = threadIdx.x % 4;
    if (r < rows)
        epilogue_unit(p.epilogue, row0 + r, blockIdx.x, t, sums[r][2 * t], sums[r][2 * t + 1],
                      sums[r][8 + 2 * t], sums[r][9 + 2 * t]);
}

KERNEL(128) linear_short(const __grid_constant__ gpu_linear p) {
    enum { PIECES = 8 };                   /* pieces of 4 k                                                 */
    const int o = (blockIdx.x * 32 + (threadIdx.x & 31)) * 2, r = blockIdx.y * 4 + (threadIdx.x >> 5),
              pieces = p.weights.k / 4;
    gpu_epilogue e = p.epilogue;
    float4 w0[PIECES], w1[PIECES], v[PIECES];
#pragma unroll
    for (int i = 0; i < PIECES; i++)
        w0[i] = weights4(p.weights, o, i * 4), w1[i] = weights4(p.weights, o + 1, i * 4);
    const float b0 = e.bias && o < e.n ? __ldg(e.bias + o) : 0,
                b1 = e.bias && o + 1 < e.n ? __ldg(e.bias + o + 1) : 0;
    const int there = r < *p.count;
    const float4 *from =
        (const float4 *)((const float *)p.x + (there ? (size_t)row_of(p.from, r) * p.ldx : 0));
    const size_t to = there ? row_of(e.to, r) : 0;
    e.bias = NULL;                         /* added below, from b0 and b1                                   */
    wait_before();
#pragma unroll
    for (int i = 0; i < PIECES; i++) v[i] = there && i < pieces ? __ldcg(from + i) : make_float4(0, 0, 0, 0);
    start_next();
    if (!there) return;
    float y0 = 0, y1 = 0;
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        y0 += v[i].x * w0[i].x + v[i].y * w0[i].y + v[i].z * w0[i].z + v[i].w * w0[i].w;
        y1 += v[i].x * w1[i].x + v[i].y * w1[i].y + v[i].z * w1[i].z + v[i].w * w1[i].w;
    }
    epilogue_plain(e, r, to, o, y0 + b0, y1 + b1);
}

/* ---- attention by definition --------------------------------------------------------------------------- */

/* One query row and head: elements at which its operands begin, stride between keys. */
typedef struct attend {
    const void *q, *k, *v;
    void *out;
    size_t q_at, k_at, v_at, out_at, stride;
    int keys, head_dim, f32;
    float scale;
} attend;

DEV void attend_block(const attend &a) {
    extern __shared__ float scores[];      /* [keys]                                                        */
    __shared__ float shares[4];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    float top = -INFINITY, sum = 0;
    for (int j = warp; j < a.keys; j += 4) {
        float s = 0;
        for (int i = lane; i < a.head_dim; i += 32)
            s += load_act(a.q, a.f32, a.q_at + i) * load_act(a.k, a.f32, a.k_at + j * a.stride + i);
        s = warp_sum(s) * a.scale;
        if (!lane) scores[j] = s;
        top = fmaxf(top, s);
    }
    if (!lane) shares[warp] = top;
    __syncthreads();
    top = fmaxf(fmaxf(shares[0], shares[1]), fmaxf(shares[2], shares[3]));
    __syncthreads();
    for (int j = threadIdx.x; j < a.keys; j += 128) {
        float p = __expf(scores[j] - top);
        scores[j] = p;
        sum += p;
    }
    sum = warp_sum(sum);
    if (!lane) shares[warp] = sum;
    __syncthreads();
    float factor = 1 / (shares[0] + shares[1] + shares[2] + shares[3]);
    for (int i = threadIdx.x; i < a.head_dim; i += 128) {
        float y = 0;
        for (int j = 0; j < a.keys; j++) {
            float p = scores[j] * factor;
            y += (a.f32 ? p : round_bf16(p)) * load_act(a.v, a.f32, a.v_at + j * a.stride + i);
        }
        if (a.f32) ((float *)a.out)[a.out_at + i] = y;
        else ((u16 *)a.out)[a.out_at + i] = to_bf16(y);
    }
}

KERNEL(128) attention_simt_image(const __grid_constant__ gpu_image_attention p) {
    int r = blockIdx.x, h = blockIdx.y;
    start_next();
    wait_before();
    if (r >= *p.count) return;
    size_t width = (size_t)p.heads * p.head_dim, stride = p.stride, image = (size_t)(r & ~255) * stride,
           head = (size_t)h * p.head_dim;
    attend a = {.q = p.qkv, .k = p.qkv, .v = p.qkv, .out = p.out,
                .q_at = r * stride + head, .k_at = image + p.next + head, .v_at = image + 2 * p.next + head,
                .out_at = r * width + head, .stride = stride,
                .keys = 256, .head_dim = p.head_dim, .f32 = p.f32, .scale = p.scale};
    attend_block(a);
}

KERNEL(128) attention_simt_cache(const __grid_constant__ gpu_cache_attention p) {
    int r = blockIdx.x, h = blockIdx.y;
    start_next();
    wait_before();
    if (r >= *p.count) return;
    size_t q = ((size_t)r * p.heads + h) * p.head_dim, block = (size_t)p.sample[r] * p.capacity * p.head_dim;
    attend a = {.q = p.q, .k = p.k, .v = p.v, .out = p.out,
                .q_at = q, .k_at = block, .v_at = block, .out_at = q, .stride = (size_t)p.head_dim,
                .keys = p.keys[r], .head_dim = p.head_dim, .f32 = p.f32, .scale = p.scale};
    attend_block(a);
}
