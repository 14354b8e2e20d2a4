/* The end of a denoise step: v = norm(x)·Wᵀ + bias and x_t += dt·v, a link of the denoise loop's chain of
 * which only the time from the previous kernel's last store to this one's is seen. So weights, norm and bias
 * are in registers before the previous kernel has ended; after that: one load of x, the sums, two exchanges
 * between the warps, the outputs.
 *
 *   velocity_rows       bf16 weights. A block takes 8 rows and 16 packed columns, all of k: warp w has the
 *                       groups of 32 k w, w + 8, … A matrix instruction multiplies 16 weight rows with 8 rows
 *                       of x; thread (g, t) holds 8 neighbouring k of weight rows g, g + 8 and of x's row g:
 *                       any order of k will do, if it is the same for both.
 *   velocity_rows_f32   fp32 weights, 8 columns a block: a weight is exactly the sum of three bf16, the first
 *                       two of which are the 16 weight rows of one instruction, the third half of another.
 *
 * Sums have one order, whatever rows are computed beside a row.
 *
 *   blocks   256 threads; grid = columns / 16 (fp32: 8) x rows / 8
 *   legal    x bf16, k % 8 == 0, k <= 1024, no norm or RMS, and an epilogue that has nothing but a bias and
 *            x_t: fp32 out, no activation, no row map
 *   early    before wait_before(): weights, norm, bias. start_next() comes after the loads of x and x_t.
 *
 * velocity.c checks what is legal and launches. */
#include "backend/gpu/cuda/common.cuh"

enum { WARPS = 8, ROWS = 8, GROUPS = 4, GROUP_K = 32 };

/* Subtracts from two weights their upper bf16 parts and returns these. */
DEV u32 take_part(float &a, float &b) {
    const u32 part = pack_bf16(a, b);
    a -= low_of(part), b -= high_of(part);
    return part;
}

DEV void take_parts(float4 w, u32 (&first)[2], u32 (&second)[2], u32 (&third)[2]) {
    first[0] = take_part(w.x, w.y), first[1] = take_part(w.z, w.w);
    second[0] = take_part(w.x, w.y), second[1] = take_part(w.z, w.w);
    third[0] = pack_bf16(w.x, w.y), third[1] = pack_bf16(w.z, w.w);
}

/* Weights of one group. Step s has 16 k: upper[s], lower[s] are weight rows g and g + 8, rest[s] the third
 * parts. */
typedef struct group {
    u32 upper[2][2], lower[2][2], rest[2][2];
} group;

template <int F32> DEV group load_group(const gpu_weights &w, int column, int at) {
    group v = {};
    if (at >= w.k) return v;
    if (F32) {
        const float4 *from = (const float4 *)((const float *)w.data + (size_t)column * w.k + at);
#pragma unroll
        for (int s = 0; s < 2; s++) take_parts(__ldg(from + s), v.upper[s], v.lower[s], v.rest[s]);
    } else {
        const uint4 a = __ldg((const uint4 *)((const char *)w.data + atom_at(w.blocks, column, at)));
        const uint4 b = __ldg((const uint4 *)((const char *)w.data + atom_at(w.blocks, column + 8, at)));
        v.upper[0][0] = a.x, v.upper[0][1] = a.y, v.upper[1][0] = a.z, v.upper[1][1] = a.w;
        v.lower[0][0] = b.x, v.lower[0][1] = b.y, v.lower[1][0] = b.z, v.lower[1][1] = b.w;
    }
    return v;
}

/* The norm's parameters for 8 neighbouring k of each of the thread's groups, from k `first` on; `own`: where
 * those of the thread's row begin. */
DEV void load_norm(const gpu_linear &p, float (&scale)[GROUPS][8], float (&shift)[GROUPS][8], int own,
                   int first, int k) {
#pragma unroll
    for (int i = 0; i < GROUPS; i++)
#pragma unroll
        for (int j = 0; j < 8; j += 4) {
            const int at = first + i * WARPS * GROUP_K + j;
            float4 w = make_float4(0, 0, 0, 0), b = w;
            if (at < k && p.norm != GPU_NORM_NONE) w = __ldg((const float4 *)(p.norm_weight + own + at));
            if (at < k && p.norm != GPU_NORM_NONE && p.norm_bias)
                b = __ldg((const float4 *)(p.norm_bias + own + at));
            scale[i][j] = 1 + w.x, scale[i][j + 1] = 1 + w.y;
            scale[i][j + 2] = 1 + w.z, scale[i][j + 3] = 1 + w.w;
            shift[i][j] = b.x, shift[i][j + 1] = b.y, shift[i][j + 2] = b.z, shift[i][j + 3] = b.w;
        }
}

/* x = v·scale in fp32; returns the thread's part of the mean square of its row, over its four lanes. */
DEV float scale_row(float (&x)[GROUPS][8], const uint4 (&v)[GROUPS], const float (&scale)[GROUPS][8],
                    float share) {
    float even = 0, odd = 0;
#pragma unroll
    for (int i = 0; i < GROUPS; i++) {
        const u32 w[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float a = low_of(w[j]), b = high_of(w[j]);
            even = fmaf(a, a, even), odd = fmaf(b, b, odd);
            x[i][2 * j] = a * scale[i][2 * j], x[i][2 * j + 1] = b * scale[i][2 * j + 1];
        }
    }
    even = (even + odd) * share;
    even += __shfl_xor_sync(0xffffffffu, even, 1);
    even += __shfl_xor_sync(0xffffffffu, even, 2);
    return even;
}

/* What the norm multiplies a row with: from the parts of its mean square that all warps have. */
DEV float norm_factor(const gpu_linear &p, const float (&parts)[WARPS]) {
    const float4 s0 = *(const float4 *)&parts[0], s1 = *(const float4 *)&parts[4];
    const float mean = ((s0.x + s0.y) + (s0.z + s0.w)) + ((s1.x + s1.y) + (s1.z + s1.w));
    return p.norm == GPU_NORM_NONE ? 1 : rsqrtf(mean + p.eps);
}

/* The warp's sums over its groups: sum[s] of steps s, third[s] of the third parts of fp32 weights. */
template <int F32>
DEV void multiply(float (&sum)[2][4], float (&third)[2][4], const group (&weights)[GROUPS],
                  const float (&x)[GROUPS][8], const float (&shift)[GROUPS][8], float factor) {
#pragma unroll
    for (int i = 0; i < GROUPS; i++)
#pragma unroll
        for (int s = 0; s < 2; s++) {
            u32 h[2];
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const int at = 4 * s + 2 * j;
                h[j] = pack_bf16(fmaf(x[i][at], factor, shift[i][at]),
                                 fmaf(x[i][at + 1], factor, shift[i][at + 1]));
            }
            const group &w = weights[i];
            const u32 both[4] = {w.upper[s][0], w.lower[s][0], w.upper[s][1], w.lower[s][1]};
            const u32 rest[4] = {w.rest[s][0], 0, w.rest[s][1], 0};
            mma16(sum[s], both, h[0], h[1]);
            if (F32) mma16(third[s], rest, h[0], h[1]);
        }
}

template <int F32> DEV void velocity(const gpu_linear &p) {
    /* A quarter of the outputs: 4 rows and 8 columns, one output for each lane. */
    constexpr int COLUMNS = F32 ? 8 : 16, QUARTERS = COLUMNS / 4;
    __shared__ __align__(16) float squares[ROWS][WARPS], parts[WARPS][QUARTERS][32];
    const gpu_epilogue &e = p.epilogue;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3, k = p.weights.k;
    const int column = blockIdx.x * COLUMNS + g, row0 = blockIdx.y * ROWS, rows = *p.count,
              first = warp * GROUP_K + t * 8;

    group weights[GROUPS];
    float scale[GROUPS][8], shift[GROUPS][8];
#pragma unroll
    for (int i = 0; i < GROUPS; i++)
        weights[i] = load_group<F32>(p.weights, column, first + i * WARPS * GROUP_K);
    const int there = row0 + g < rows;
    load_norm(p, scale, shift, known_at(e.known, row0 + g, there), first, k);
    /* The quarter of warp q: rows 2t + q % 2, columns 8·(q / 2) + g. */
    const int r = row0 + 2 * t + (warp & 1), o = column + 8 * (warp >> 1),
              mine = warp < QUARTERS && r < rows && o < e.n;
    float *x_t = e.x_t + (size_t)r * e.n + o, *out = (float *)e.out + (size_t)r * e.n + o;
    const float bias = mine && e.bias ? __ldg(e.bias + o) : 0;
    const int known = known_at(e.known, r, mine);
    const uint4 *from =
        (const uint4 *)((const u16 *)p.x + (there ? (size_t)row_of(p.from, row0 + g) * p.ldx : 0) + first);
    const float share = __fdividef(1, k);
#pragma unroll
    for (int i = 0; i < GROUPS; i++)
#pragma unroll
        for (int j = 0; j < 8; j++) compute_now(scale[i][j]);   /* while activations load                   */

    wait_before();
    uint4 v[GROUPS];
#pragma unroll
    for (int i = 0; i < GROUPS; i++)
        v[i] = there && first + i * WARPS * GROUP_K < k ? __ldcg(from + i * WARPS * GROUP_K / 8)
                                                        : make_uint4(0, 0, 0, 0);
    const float before = mine ? __ldcg(x_t) : 0;
    start_next();                          /* after this kernel's own loads: they are needed first          */
    if (row0 >= rows) return;

    float x[GROUPS][8], sum[2][4] = {}, third[2][4] = {};
    const float square = scale_row(x, v, scale, share);
    if (!t) squares[g][warp] = square;
    __syncthreads();
    multiply<F32>(sum, third, weights, x, shift, norm_factor(p, squares[g]));
#pragma unroll
    for (int i = 0; i < 4; i++) sum[0][i] += sum[1][i];
#pragma unroll
    for (int i = 0; i < QUARTERS; i++)
        parts[warp][i][lane] = F32 ? sum[0][i] + (sum[0][i + 2] + (third[0][i] + third[1][i])) : sum[0][i];
    __syncthreads();
    if (!mine) return;
    float y = 0;
#pragma unroll
    for (int i = 0; i < WARPS; i++) y += parts[i][warp][lane];
    y += bias;
    if (!known) *x_t = before + e.dt * y;
    *out = y;
}

KERNEL(256) velocity_rows(const __grid_constant__ gpu_linear p) { velocity<0>(p); }
/* As few registers as 352 threads could have: a block of the previous kernel (skinny_hopper) is on the
 * multiprocessor too. */
KERNEL(352) velocity_rows_f32(const __grid_constant__ gpu_linear p) { velocity<1>(p); }
