/* x·Wᵀ for many rows in bf16 on any tensor core since sm_80: mma.sync fed by cp.async.
 *
 * A block makes BM rows x BN packed columns (gemm_mma_BM_BN), 64 k at a time through STAGES stages of shared
 * memory:
 *
 *            BN columns (W: whole atoms, as stored)         warps side by side, each WM x WN:
 *          +------------------+                             WM/16 x WN/8 tiles of m16n8k16
 *   BM     |                  |
 *   rows   |      sums        |   stage = x [BM][64] + W [BN][64], both in the atom's swizzle
 *          +------------------+
 *
 *   pipeline a stage is four steps of 16 k. While a warp multiplies a step's fragments it loads those of the
 *            next step: x's in place, each once its last product is issued; W's into a second set. Before the
 *            last step of a stage all warps meet, so that its slot is free and the next stage is there; the
 *            copies for the slot are issued between the products of the next stage's first three steps.
 *   parts    gpu_linear_parts.parts blocks may share the k of a tile. Each stores its sums as fp32, and
 *            gemm_mma_join adds them in the order of the parts and runs the epilogue.
 *   blocks   BM/WM · BN/WN warps; grid = rows / BM x (columns / BN · parts)
 *   legal    x bf16, ldx % 8 == 0 (rows of x are whole 16 bytes), no row map on x; any epilogue. The norm,
 *            where there is one, is a kernel of its own before this one. k beyond ldx comes in as zeros; rows
 *            beyond *count and columns beyond the last repeat the last one, and nobody stores their sums.
 *            Where x has more k blocks than W (the two parts of a pixel), W repeats.
 *   early    before wait_before(): W of the first stages, after start_next()
 *
 * gemm_mma.c checks what is legal and launches. */
#include "backend/gpu/kernels/linear_parts.h"
#include "backend/gpu/cuda/bounds.cuh"
#include "pairs.cuh"

/* What a tile decides at compile time: rows and columns of a block and of a warp, stages of the ring. */
template <int BM_, int BN_, int WM_, int WN_, int STAGES_> struct mma_tile {
    enum {
        BM = BM_, BN = BN_, WM = WM_, WN = WN_, STAGES = STAGES_,
        THREADS = (BM / WM) * (BN / WN) * 32,
        MI = WM / 16, NI = WN / 8,         /* m16n8 tiles of a warp                                         */
        X_COPIES = BM * 8 / THREADS,       /* copies of 16 bytes for a thread and stage                     */
        W_COPIES = BN * 8 / THREADS, COPIES = X_COPIES + W_COPIES,
        STAGE = (BM + BN) * 128,
    };
    static_assert(STAGES * STAGE >= THREADS / 32 * 16 * (WN + 8) * 4, "store_sums has its place in the ring");
    static_assert(X_COPIES * THREADS == BM * 8 && W_COPIES * THREADS == BN * 8 && MI >= 2, "whole copies");
};

/* Where a thread's copies of a stage come from and go to. */
template <class T> struct mma_source {
    const u16 *x;                          /* the thread's 16 bytes of a row                                */
    const char *w;                         /* its 16 bytes of an atom                                       */
    u32 x_at[T::X_COPIES];                 /* elements to its rows                                          */
    u32 w_at[T::W_COPIES];                 /* atoms to its groups of columns                                */
    int left, w_blocks, slot;              /* left: elements of a row from the thread's first on            */
};

/* One of the COPIES of the stage of 64 k from block kb on, into the ring's place at. `there` 0: zeros, which
 * nobody reads. */
template <class T> DEV void copy_one(const mma_source<T> &s, u32 at, int kb, int there, int i) {
    if (i < T::X_COPIES) {
        copy16(at + s.slot + i * (T::THREADS * 16), s.x + (s.x_at[i] + kb * 64), there && kb * 64 < s.left);
    } else {
        const int n = i - T::X_COPIES, wb = kb >= s.w_blocks ? kb - s.w_blocks : kb;
        copy16(at + T::BM * 128 + threadIdx.x * 16 + n * (T::THREADS * 16),
               s.w + (size_t)(s.w_at[n] + wb) * GPU_ATOM_BYTES, there);
    }
}

/* W of the stages that are asked for before the products begin. */
template <class T> DEV void copy_first_w(const mma_source<T> &s, u32 ring, int first, int blocks) {
#pragma unroll
    for (int stage = 0; stage < T::STAGES - 1; stage++)
#pragma unroll
        for (int i = T::X_COPIES; i < T::COPIES; i++)
            copy_one<T>(s, ring + stage * T::STAGE, stage < blocks ? first + stage : first, stage < blocks,
                        i);
}

template <class T> struct mma_fragments {
    u32 x[T::MI][4], w[2][T::NI / 2][4];
};

/* The products of a step, whose W is in set `now`; from `xs` and `ws` come the next step's fragments.
 * between(i) is called after the products of row tile i. */
template <class T, class F>
DEV void multiply_step(float (&sum)[T::MI][T::NI][4], mma_fragments<T> &f, int now, u32 xs, u32 ws,
                       F between) {
    enum { LOADS = T::NI / 2, EACH = (LOADS + T::MI - 2) / (T::MI - 1) };
#pragma unroll
    for (int i = 0; i < T::MI; i++) {
#pragma unroll
        for (int j = 0; j < T::NI; j++)
            mma16(sum[i][j], f.x[i], f.w[now][j / 2][j % 2 * 2], f.w[now][j / 2][j % 2 * 2 + 1]);
        load_matrix4(f.x[i], xs + i * 2048);
#pragma unroll
        for (int j = i * EACH; j < (i + 1) * EACH && j < LOADS; j++)
            load_matrix4(f.w[now ^ 1][j], ws + j * 2048);
        between(i);
    }
}

/* From the warp's sums to outputs; its tile begins at row m, packed column n. 16 rows of sums at a time go
 * through the warp's own shared memory, and a loop takes one epilogue after the other: 40 copies of the
 * epilogue in a row, one for each pair of sums, would not fit the instruction cache. */
template <class T>
DEV void store_sums(const gpu_epilogue &e, float *box, const float (&sum)[T::MI][T::NI][4], int m, int n,
                    int rows, int columns, int lane) {
    enum { PITCH = T::WN + 8, QUARTERS = T::WN / 4 };
    const int g = lane >> 2, t = lane & 3;
#pragma unroll 1
    for (int i = 0; i < T::MI; i++) {
#pragma unroll
        for (int k = 0; k < T::MI; k++)
            if (k == i)
#pragma unroll
                for (int j = 0; j < T::NI; j++) {
                    float *to = box + g * PITCH + j * 8 + 2 * t;
                    *(float2 *)to = make_float2(sum[k][j][0], sum[k][j][1]);
                    *(float2 *)(to + 8 * PITCH) = make_float2(sum[k][j][2], sum[k][j][3]);
                }
        __syncwarp();
#pragma unroll 1
        for (int item = lane; item < 16 * QUARTERS; item += 32) {
            const int row = item / QUARTERS, q = item % QUARTERS, r = m + i * 16 + row,
                      column = n + q / 4 * GPU_UNIT;
            const float *from = box + row * PITCH + q / 4 * GPU_UNIT + 2 * (q & 3);
            const float2 low = *(const float2 *)from, high = *(const float2 *)(from + 8);
            if (r < rows && column < columns)
                epilogue_unit(e, r, column / GPU_UNIT, q & 3, low.x, low.y, high.x, high.y);
        }
        __syncwarp();
    }
}

/* A product into bf16 rows that follow each other, with a bias or without, an activation, or added to what
 * is there: no question is asked twice. */
template <class T>
DEV void store_plain(const gpu_epilogue &e, const float (&sum)[T::MI][T::NI][4], int m, int n, int rows,
                     int lane) {
    const int g = lane >> 2, t = lane & 3, adds = e.kind == GPU_EPILOGUE_RESIDUAL, gelus = e.activation;
#pragma unroll
    for (int j = 0; j < T::NI; j++) {
        const int o = n + j * 8 + 2 * t;
        if (o >= e.n) continue;
        const float2 bias = e.bias ? *(const float2 *)(e.bias + o) : make_float2(0, 0);
        u16 *out = (u16 *)e.out + (size_t)(m + g) * e.n + o;
#pragma unroll
        for (int i = 0; i < 2 * T::MI; i++, out += (size_t)8 * e.n) {
            float a = sum[i / 2][j][i % 2 * 2] + bias.x, b = sum[i / 2][j][i % 2 * 2 + 1] + bias.y;
            if (m + i * 8 + g >= rows) continue;
            if (gelus) a = gelu(a), b = gelu(b);
            if (adds) {
                const u32 before = __ldcg((const u32 *)out);
                a += low_of(before), b += high_of(before);
            }
            *(u32 *)out = pack_bf16(a, b);
        }
    }
}

DEV int is_plain(const gpu_epilogue &e) {
    int kind = e.kind == GPU_EPILOGUE_RESIDUAL ? !e.gate && e.activation == GPU_ACT_NONE
                                               : e.kind == GPU_EPILOGUE_STORE && e.activation != GPU_ACT_SILU;
    return kind && !e.f32 && !e.add && !e.split && !e.x_t && !e.to.map && !e.to.group && !(e.n & 1);
}

/* A gated product without bias into bf16, its rows one after the other. Neighbouring lanes trade the pairs of
 * two units, so that a row's four lanes write 32 bytes that follow each other, a whole sector of memory. */
template <class T>
DEV void store_gated(const gpu_epilogue &e, const float (&sum)[T::MI][T::NI][4], int m, int n, int rows,
                     int columns, int lane) {
    const int g = lane >> 2, t = lane & 3, odd = t & 1, left = (columns - n) / 8;
#pragma unroll
    for (int i = 0; i < T::MI; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int r = m + i * 16 + h * 8 + g;
            u16 *out = (u16 *)e.out + (size_t)r * e.n + n / 2;
            u32 pair[T::NI / 2];
#pragma unroll
            for (int u = 0; u < T::NI / 2; u++)
                pair[u] = pack_bf16(gelu(sum[i][2 * u][2 * h]) * sum[i][2 * u + 1][2 * h],
                                    gelu(sum[i][2 * u][2 * h + 1]) * sum[i][2 * u + 1][2 * h + 1]);
#pragma unroll
            for (int u = 0; u + 1 < T::NI / 2; u += 2) {
                const u32 got = __shfl_xor_sync(0xffffffffu, odd ? pair[u] : pair[u + 1], 1);
                if (r < rows && 2 * (u + odd) < left)
                    *(uint2 *)(out + (u + odd) * 8 + (t - odd) * 2) =
                        odd ? make_uint2(got, pair[u + 1]) : make_uint2(pair[u], got);
            }
            if (T::NI / 2 & 1 && r < rows && T::NI - 2 < left)
                *(u32 *)(out + (T::NI / 2 - 1) * 8 + 2 * t) = pair[T::NI / 2 - 1];
        }
}

/* The sums of a part: to [rows][columns]. */
template <class T>
DEV void store_part(float *to, const float (&sum)[T::MI][T::NI][4], int m, int n, int rows, int columns,
                    int lane) {
    const int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int i = 0; i < T::MI; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int r = m + i * 16 + h * 8 + g;
            if (r >= rows) continue;
#pragma unroll
            for (int j = 0; j < T::NI; j++)
                if (n + j * 8 < columns)
                    *(float2 *)(to + (size_t)r * columns + n + j * 8 + 2 * t) =
                        make_float2(sum[i][j][2 * h], sum[i][j][2 * h + 1]);
        }
}

DEV int plain_gated(const gpu_epilogue &e, int columns) {
    return e.kind == GPU_EPILOGUE_GATED && !e.bias && !e.f32 && !e.to.map && !e.to.group &&
           e.n * 2 == columns && !(e.n & 3);
}

template <class T> DEV void gemm(const gpu_linear_parts &a) {
    extern __shared__ __align__(1024) char memory[];
    const gpu_linear &p = a.linear;
    const u32 ring = shared_address(memory);
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, columns = p.weights.columns,
              tiles = (columns + T::BN - 1) / T::BN, part = blockIdx.y / tiles, m0 = blockIdx.x * T::BM,
              n0 = (blockIdx.y - part * tiles) * T::BN;
    const int wm = warp / (T::BN / T::WN) * T::WM, wn = warp % (T::BN / T::WN) * T::WN;
    const int first = part * p.k_blocks / a.parts, blocks = (part + 1) * p.k_blocks / a.parts - first;

    start_next();
    mma_source<T> from;
    from.x = (const u16 *)p.x + (tid & 7) * 8;
    from.w = (const char *)p.weights.data + (tid & 63) * 16;
#pragma unroll
    for (int i = 0; i < T::W_COPIES; i++)
        from.w_at[i] =
            (u32)min((n0 >> 3) + (tid >> 6) + i * (T::THREADS / 64), (columns >> 3) - 1) * p.weights.blocks;
    from.left = p.ldx - (tid & 7) * 8;
    from.w_blocks = p.weights.blocks;
    from.slot = (tid >> 3) * 128 + (((tid & 7) ^ (tid >> 3 & 7)) << 4);
    const int rows = __ldg(p.count);
    if (m0 < rows) copy_first_w<T>(from, ring, first, blocks);
    wait_before();
    if (m0 >= rows) return;
#pragma unroll
    for (int i = 0; i < T::X_COPIES; i++)
        from.x_at[i] = (u32)min(m0 + (tid >> 3) + i * (T::THREADS / 8), rows - 1) * p.ldx;

    float sum[T::MI][T::NI][4] = {};
    mma_fragments<T> f;
#pragma unroll
    for (int s = 0; s < T::STAGES - 1; s++) {
#pragma unroll
        for (int i = 0; i < T::X_COPIES; i++)
            copy_one<T>(from, ring + s * T::STAGE, s < blocks ? first + s : first, s < blocks, i);
        copy_commit();
    }
    /* Of a step's fragments in a stage: row or column of the lane, and its 16 bytes in the swizzle. */
    const u32 xs = (wm + (lane & 15)) * 128 + (((lane >> 4) ^ (lane & 7)) << 4),
              ws = T::BM * 128 + (wn + (lane & 7) + (lane >> 4) * 8) * 128 +
                   (((lane >> 3 & 1) ^ (lane & 7)) << 4);
    copy_wait<T::STAGES - 2>();
    __syncthreads();
#pragma unroll
    for (int i = 0; i < T::MI; i++) load_matrix4(f.x[i], ring + xs + i * 2048);
#pragma unroll
    for (int j = 0; j < T::NI / 2; j++) load_matrix4(f.w[0][j], ring + ws + j * 2048);

    u32 at = ring, free_at = ring + (T::STAGES - 1) * T::STAGE;
    const u32 end = ring + T::STAGES * T::STAGE;
    for (int kb = 0; kb < blocks; kb++) {
        /* With two stages the next is wanted at this one's end: its copies go out during the first step. */
        enum { OVER = (T::STAGES > 2 ? 3 : 1) * T::MI, EACH = (T::COPIES + OVER - 1) / OVER };
        const int ahead = kb + T::STAGES - 1, there = ahead < blocks, fetch = there ? first + ahead : first;
#pragma unroll
        for (int s = 0; s < 3; s++) {
            auto copies = [&](int i) {
#pragma unroll
                for (int n = (s * T::MI + i) * EACH; n < (s * T::MI + i + 1) * EACH && n < T::COPIES; n++)
                    copy_one<T>(from, free_at, fetch, there, n);
            };
            const int next = (s + 1) << 5;
            multiply_step<T>(sum, f, s & 1, (at + xs) ^ next, (at + ws) ^ next, copies);
        }
        copy_commit();
        copy_wait<T::STAGES - 2>();
        __syncthreads();
        free_at = at;
        at = at + T::STAGE == end ? ring : at + T::STAGE;
        multiply_step<T>(sum, f, 1, at + xs, at + ws, [](int) {});
    }
    copy_wait<0>();
    if (a.parts > 1)
        store_part<T>(a.sums + (size_t)part * p.capacity * columns, sum, m0 + wm, n0 + wn, rows, columns,
                      lane);
    else if (plain_gated(p.epilogue, columns))
        store_gated<T>(p.epilogue, sum, m0 + wm, n0 + wn, rows, columns, lane);
    else if (is_plain(p.epilogue)) store_plain<T>(p.epilogue, sum, m0 + wm, n0 + wn, rows, lane);
    else {
        __syncthreads();
        store_sums<T>(p.epilogue, (float *)memory + warp * (16 * (T::WN + 8)), sum, m0 + wm, n0 + wn, rows,
                      columns, lane);
    }
}

KERNEL(256) gemm_mma_160_256(const __grid_constant__ gpu_linear_parts a) {
    gemm<mma_tile<160, 256, 80, 64, 3>>(a);
}
KERNEL(256) gemm_mma_128_256(const __grid_constant__ gpu_linear_parts a) {
    gemm<mma_tile<128, 256, 64, 64, 4>>(a);
}
KERNEL(256) gemm_mma_160_128(const __grid_constant__ gpu_linear_parts a) {
    gemm<mma_tile<160, 128, 80, 32, 5>>(a);
}
KERNEL(256) gemm_mma_128_160(const __grid_constant__ gpu_linear_parts a) {
    gemm<mma_tile<128, 160, 32, 80, 5>>(a);
}
/* Where a multiprocessor holds two, the compiler itself keeps to half of the registers. */
KERNEL_HELD(256, 1) gemm_mma_128_128(const __grid_constant__ gpu_linear_parts a) {
    gemm<mma_tile<128, 128, 64, 32, 3>>(a);
}
KERNEL(128) gemm_mma_64_64(const __grid_constant__ gpu_linear_parts a) {
    gemm<mma_tile<64, 64, 32, 32, 4>>(a);
}
/* Within the 99 KB that a block has on sm_86, sm_89 and sm_120: two stages. */
KERNEL(256) gemm_mma_160_192_2(const __grid_constant__ gpu_linear_parts a) {
    gemm<mma_tile<160, 192, 80, 48, 2>>(a);
}
KERNEL(256) gemm_mma_128_256_2(const __grid_constant__ gpu_linear_parts a) {
    gemm<mma_tile<128, 256, 64, 64, 2>>(a);
}
KERNEL(256) gemm_mma_160_128_2(const __grid_constant__ gpu_linear_parts a) {
    gemm<mma_tile<160, 128, 80, 32, 2>>(a);
}
KERNEL(128) gemm_mma_64_64_2(const __grid_constant__ gpu_linear_parts a) {
    gemm<mma_tile<64, 64, 32, 32, 2>>(a);
}

/* ---- parts --------------------------------------------------------------------------------------------- */

/* What a thread of the join adds up: a quarter of a row's unit, columns 2t, 2t + 1 and 8 + 2t, 9 + 2t. */
typedef struct quarter {
    int r, column, t;
} quarter;

/* The parts' sums in order; all are asked for at once. */
DEV void add_parts(const gpu_linear_parts &a, const quarter &q, float2 &low, float2 &high) {
    const gpu_linear &p = a.linear;
    const float *from = a.sums + (size_t)q.r * p.weights.columns + q.column + 2 * q.t;
    const size_t next = (size_t)p.capacity * p.weights.columns;
    float2 l[GPU_MOST_PARTS] = {}, h[GPU_MOST_PARTS] = {};
#pragma unroll
    for (int i = 0; i < GPU_MOST_PARTS; i++)
        if (i < a.parts) {
            l[i] = __ldcg((const float2 *)(from + i * next));
            h[i] = __ldcg((const float2 *)(from + i * next + 8));
        }
    low = l[0], high = h[0];
#pragma unroll
    for (int i = 1; i < GPU_MOST_PARTS; i++)
        low.x += l[i].x, low.y += l[i].y, high.x += h[i].x, high.y += h[i].y;
}

/* As pairs.cuh finishes them: what does not depend on sums is fetched before the kernel before this one has
 * ended, what is added to beside the sums. */
template <int KIND> DEV void join_pairs(const gpu_linear_parts &a, const quarter &q) {
    enum { PAIRED = KIND == GPU_EPILOGUE_QKV, ADDS = KIND == GPU_EPILOGUE_RESIDUAL };
    const gpu_linear &p = a.linear;
    const gpu_epilogue &e = p.epilogue;
    const int rows = __ldg(p.count);
    const finish f = prepare<KIND>(e, q.r, rows, q.column, q.t),
                 g = PAIRED ? f : prepare<KIND>(e, q.r, rows, q.column + 8, q.t);
    wait_before();
    if (q.r >= rows) return;
    u32 before = 0, after = 0;
    if (ADDS && f.there) before = __ldcg((const u32 *)((const u16 *)e.out + f.at));
    if (ADDS && g.there) after = __ldcg((const u32 *)((const u16 *)e.out + g.at));
    float2 low, high;
    add_parts(a, q, low, high);
    complete<KIND>(e, f, before, low.x, low.y, high.x, high.y);
    if (!PAIRED) complete<KIND>(e, g, after, high.x, high.y, 0, 0);
}

DEV int in_pairs(const gpu_epilogue &e) {
    return !e.f32 && !e.x_t && !e.add && (e.kind == GPU_EPILOGUE_QKV ? e.head_dim % 16 == 0 : e.n % 8 == 0);
}

/* The parts' sums to outputs, a quarter of a unit a thread. */
KERNEL(256) gemm_mma_join(const __grid_constant__ gpu_linear_parts a) {
    const gpu_linear &p = a.linear;
    const int quarters = p.weights.columns / 4, at = blockIdx.x * 256 + threadIdx.x, r = at / quarters,
              i = at - r * quarters;
    const quarter q = {r, i / 4 * GPU_UNIT, i & 3};
    start_next();
    if (in_pairs(p.epilogue) && p.epilogue.kind == GPU_EPILOGUE_RESIDUAL)
        join_pairs<GPU_EPILOGUE_RESIDUAL>(a, q);
    else if (in_pairs(p.epilogue) && p.epilogue.kind == GPU_EPILOGUE_QKV) join_pairs<GPU_EPILOGUE_QKV>(a, q);
    else {
        wait_before();
        if (r >= __ldg(p.count)) return;
        float2 low, high;
        add_parts(a, q, low, high);
        epilogue_unit(p.epilogue, r, q.column / GPU_UNIT, q.t, low.x, low.y, high.x, high.y);
    }
}
