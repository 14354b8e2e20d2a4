/* Products of many rows on any tensor core since sm_80, of bf16 (gemm_mma.cu) or of 8-bit integers
 * (gemm_mma_int8.cu): x·Wᵀ by mma.sync, fed by cp.async.
 *
 * A block makes BM rows x BN packed columns (gemm_mma_BM_BN), 128 bytes of k at a time (64 of bf16, 128 of
 * int8), or half of them (gemm_mma_BM_BN_half), through STAGES stages of shared memory:
 *
 *            BN columns (W: whole atoms, as stored)         warps side by side, each WM x WN:
 *          +------------------+                             WM/16 x WN/8 tiles of m16n8k16 or k32
 *   BM     |                  |
 *   rows   |      sums        |   stage = x [BM][PITCH bytes] + W [BN][PITCH bytes], both swizzled alike
 *          +------------------+
 *
 *   swizzle  of a row, 16 bytes lie where eight rows of a column meet eight groups of banks: in stages of 128
 *            bytes at their place ^ row % 8, as in the atom; in halves at their place ^ row / 2 % 4
 *   pipeline a stage is four steps of 32 bytes, or two. While a warp multiplies a step's fragments it loads
 *            those of the next step: x's in place, each once its last product is issued; W's into a second
 *            set. Before the last step of a stage all warps meet, so that its slot is free and the next stage
 *            is there; the copies for the slot are issued between the products of the next stage's steps but
 *            the last. In stages of two steps a turn of the loop begins with this meeting: the compiler moves
 *            products over a barrier, but not over the head of a loop, and those of the last step have to
 *            hide the loads behind it.
 *   parts    gpu_linear_parts.parts blocks may share the k of a tile. Each stores its sums, and a kernel
 *            adds them in the order of the parts and runs the epilogue (join).
 *   blocks   BM/WM · BN/WN warps; grid = rows / BM x (columns / BN · parts)
 *   legal    rows of x are whole 16 bytes, no row map on x; any epilogue. The norm, where there is one, is a
 *            kernel of its own before this one. k beyond ldx comes in as zeros; rows beyond *count and
 *            columns beyond the last repeat the last one, and nobody stores their sums. Where x has more k
 *            blocks than W (the two parts of a pixel), W repeats.
 *   early    before wait_before(): W of the first stages and the scales of its columns, after start_next() */
#ifndef KERNELS_CUDA_GEMM_MMA_CUH
#define KERNELS_CUDA_GEMM_MMA_CUH

#include "backend/gpu/cuda/bounds.cuh"
#include "backend/gpu/kernels/linear_parts.h"
#include "pairs.cuh"
#include "scales.cuh"

/* What is multiplied: an element of x, the k of an atom (128 bytes), the sums, a pair of them, the matrix
 * instruction. SCALED: sums become outputs by a scale of the row and one of the column. */
struct bf16_numbers {
    typedef u16 element;
    typedef float sum;
    typedef float2 pair;
    enum { K = 64, SCALED = 0 };
    DEV void multiply(float (&c)[4], const u32 *a, u32 b0, u32 b1) { mma16(c, a, b0, b1); }
    DEV float2 pair_of(float a, float b) { return make_float2(a, b); }
};
struct int8_numbers {
    typedef int8_t element;
    typedef int sum;
    typedef int2 pair;
    enum { K = 128, SCALED = 1 };
    DEV void multiply(int (&c)[4], const u32 *a, u32 b0, u32 b1) { mma32_int8(c, a, b0, b1); }
    DEV int2 pair_of(int a, int b) { return make_int2(a, b); }
};

/* What a tile decides at compile time: numbers, rows and columns of a block and of a warp, stages of the ring
 * and how many of them make an atom. Behind the ring lie the scales of SCALED numbers: the block's rows, then
 * its columns. */
template <class NUMBERS, int BM_, int BN_, int WM_, int WN_, int STAGES_, int AN_ATOM_ = 1>
struct mma_tile : NUMBERS {
    enum {
        BM = BM_, BN = BN_, WM = WM_, WN = WN_, STAGES = STAGES_, AN_ATOM = AN_ATOM_,
        THREADS = (BM / WM) * (BN / WN) * 32,
        MI = WM / 16, NI = WN / 8,         /* m16n8 tiles of a warp                                         */
        PITCH = 128 / AN_ATOM,             /* bytes of a row of a stage                                     */
        PIECES = PITCH / 16, STEPS = PITCH / 32,
        /* First stages whose copies stand one after the other. Few: less to fetch for a block that is the
         * only one on its multiprocessor. */
        IN_LINE = BM * BN < 192 * 192 ? 1 : STAGES - 1,
        STAGE_K = NUMBERS::K / AN_ATOM,
        X_COPIES = (BM * PIECES + THREADS - 1) / THREADS, /* copies of a piece for a thread and stage       */
        W_COPIES = (BN * PIECES + THREADS - 1) / THREADS, COPIES = X_COPIES + W_COPIES,
        X_LAST = BM * PIECES - (X_COPIES - 1) * THREADS,  /* threads that have the last of these            */
        W_LAST = BN * PIECES - (W_COPIES - 1) * THREADS,
        STAGE = (BM + BN) * PITCH,
        TURNED = AN_ATOM > 1,              /* a turn of the loop begins with the last step of a stage       */
    };
    typedef float outputs[MI][NI][4];      /* a lane's: rows g and g + 8 of a tile, columns 2t and 2t + 1   */
    static_assert(STAGES * STAGE >= THREADS / 32 * 16 * (WN + 8) * 4, "store_sums has its place in the ring");
    static_assert(MI >= 2 && NI % 2 == 0 && STEPS % 2 == 0, "W's fragments have two sets in turn");
};

/* Where row r of a stage has its piece c. */
template <class T> DEV u32 swizzled(int r, int c) {
    return r * T::PITCH + ((c ^ (T::AN_ATOM == 1 ? r & 7 : r >> 1 & 3)) << 4);
}

/* Where a thread's copies of a stage come from and go to. The places of its later copies, rows or
 * columns further on, are computed each time: registers are scarcer than instructions. */
template <class T> struct mma_source {
    const typename T::element *x;          /* row 0                                                         */
    const char *w;                         /* W                                                             */
    int next_row, rows, ldx;               /* the row of x after its first; those there are                 */
    int group, last_group;                 /* the same, of W's groups of 8 columns                          */
    u32 w_in;                              /* its piece of an atom's first stage                            */
    int left, w_blocks, slot;              /* left: elements of a row from the thread's first on            */
};

/* One of the COPIES of stage ks of the rows' k, into the ring's place at. `there` 0: zeros, which nobody
 * reads. The swizzle of an atom leaves both halves of a row in 64 bytes each. */
template <class T> DEV void copy_one(const mma_source<T> &s, u32 at, int ks, int there, int i) {
    enum { ROWS = T::THREADS / T::PIECES, GROUPS = ROWS / 8 };
    const int last = i == T::X_COPIES - 1 ? T::X_LAST : i == T::COPIES - 1 ? T::W_LAST : T::THREADS;
    if (last < T::THREADS && (int)threadIdx.x >= last) return;
    if (i < T::X_COPIES) {
        const u32 next_row = min(s.next_row + i * ROWS, s.rows);
        copy16(at + s.slot + i * (T::THREADS * 16),
               s.x + (next_row * (u32)s.ldx - s.left + ks * T::STAGE_K),
               there && ks * T::STAGE_K < s.left);
    } else {
        const int n = i - T::X_COPIES, kb = ks / T::AN_ATOM, wb = kb >= s.w_blocks ? kb - s.w_blocks : kb;
        const u32 group = min(s.group + n * GROUPS, s.last_group);
        copy16(at + T::BM * T::PITCH + s.slot + n * (T::THREADS * 16),
               s.w + (size_t)(group * (u32)s.w_blocks + wb) * GPU_ATOM_BYTES +
                   (s.w_in ^ ks % T::AN_ATOM * 64),
               there);
    }
}

/* W of the stages that are asked for before the products begin. */
template <class T> DEV void copy_first_w(const mma_source<T> &s, u32 ring, int first, int stages) {
#pragma unroll T::IN_LINE
    for (int stage = 0; stage < T::STAGES - 1; stage++)
#pragma unroll
        for (int i = T::X_COPIES; i < T::COPIES; i++)
            copy_one<T>(s, ring + stage * T::STAGE, stage < stages ? first + stage : first, stage < stages,
                        i);
}

template <class T> struct mma_fragments {
    u32 x[T::MI][4], w[2][T::NI / 2][4];
};

/* The products of a step, whose W is in set `now`; from `xs` and `ws` come the next step's fragments.
 * between(i) is called after the products of row tile i. */
template <class T, class F>
DEV void multiply_step(typename T::sum (&sum)[T::MI][T::NI][4], mma_fragments<T> &f, int now, u32 xs, u32 ws,
                       F between) {
    enum { LOADS = T::NI / 2, EACH = (LOADS + T::MI - 2) / (T::MI - 1) };
#pragma unroll
    for (int i = 0; i < T::MI; i++) {
#pragma unroll
        for (int j = 0; j < T::NI; j++)
            T::multiply(sum[i][j], f.x[i], f.w[now][j / 2][j % 2 * 2], f.w[now][j / 2][j % 2 * 2 + 1]);
        load_matrix4(f.x[i], xs + i * 16 * T::PITCH);
#pragma unroll
        for (int j = i * EACH; j < (i + 1) * EACH && j < LOADS; j++)
            load_matrix4(f.w[now ^ 1][j], ws + j * 16 * T::PITCH);
        between(i);
    }
}

/* The products of the last step of all. */
template <class T>
DEV void multiply_last(typename T::sum (&sum)[T::MI][T::NI][4], const mma_fragments<T> &f) {
#pragma unroll
    for (int i = 0; i < T::MI; i++)
#pragma unroll
        for (int j = 0; j < T::NI; j++)
            T::multiply(sum[i][j], f.x[i], f.w[1][j / 2][j % 2 * 2], f.w[1][j / 2][j % 2 * 2 + 1]);
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

/* ---- ends without branches ------------------------------------------------------------------------------
 *
 * A question asked for each pair of sums makes the end three times as long: what becomes of them is decided
 * once and done to all. Of two groups of 8 outputs a lane has a pair each; to store them, an even lane takes
 * four of the first group and an odd one four of the second, so that a row's four lanes write 32 bytes that
 * follow each other, a whole sector of memory. */

DEV uint2 four_of(u32 first, u32 second, int odd) {
    const u32 got = __shfl_xor_sync(0xffffffffu, odd ? first : second, 1);
    return odd ? make_uint2(got, second) : make_uint2(first, got);
}
/* Where a lane's four stand among the 16. */
DEV int four_at(int t) { return (t & 1) * 8 + (t >> 1) * 4; }

/* Row tiles in turn, each as number 0, by a loop: a block runs its end once, and an instruction that is not
 * there yet takes about ten cycles, one that moves a number a single one. */
template <class T, class F> DEV void each_row_tile(typename T::outputs &y, F store) {
#pragma unroll 1
    for (int i = 0; i < T::MI; i++) {
        store();
#pragma unroll
        for (int n = T::NI * 4; n < T::MI * T::NI * 4; n++)
            y[n / 4 / T::NI - 1][n / 4 % T::NI][n % 4] = y[n / 4 / T::NI][n / 4 % T::NI][n % 4];
    }
}

/* A lane's rows of a row tile. */
typedef struct two_rows {
    int m, n, t;                           /* the first one, its first column, and the lane's of four       */
    int rows;                              /* there are; more are read as the last and not stored           */
} two_rows;

/* Where the lane's first pair of a row goes. */
DEV u16 *out_of(const gpu_epilogue &e, const two_rows &w, int h) {
    return (u16 *)e.out + (size_t)row_of(e.to, min(w.m + h * 8, w.rows - 1)) * e.n + w.n;
}

template <class T> DEV void add_bias(float (&y)[T::NI][4], const gpu_epilogue &e, const two_rows &w) {
#pragma unroll
    for (int j = 0; j < T::NI; j++) {
        if (w.n + j * 8 >= e.n) continue;
        const float2 b = __ldg((const float2 *)(e.bias + w.n + j * 8));
        y[j][0] += b.x, y[j][1] += b.y, y[j][2] += b.x, y[j][3] += b.y;
    }
}

/* e.add's rows. */
template <class T> DEV void add_rows(float (&y)[T::NI][4], const gpu_epilogue &e, const two_rows &w) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float *add = e.add + (size_t)((w.m + h * 8) % e.add_period) * e.n + w.n;
#pragma unroll
        for (int j = 0; j < T::NI; j++) {
            if (w.n + j * 8 >= e.n) continue;
            const float2 b = __ldg((const float2 *)(add + j * 8));
            y[j][h * 2] += b.x, y[j][h * 2 + 1] += b.y;
        }
    }
}

/* What is there already is added to both rows. */
template <class T> DEV void add_before(float (&y)[T::NI][4], const gpu_epilogue &e, const two_rows &w) {
    u32 before[2 * T::NI];
    const u16 *const out[2] = {out_of(e, w, 0), out_of(e, w, 1)};
#pragma unroll
    for (int i = 0; i < 2 * T::NI; i++)
        before[i] = w.n + i / 2 * 8 < e.n ? __ldcg((const u32 *)(out[i % 2] + i / 2 * 8)) : 0;
#pragma unroll
    for (int i = 0; i < 2 * T::NI; i++) {
        y[i / 2][i % 2 * 2] += low_of(before[i]);
        y[i / 2][i % 2 * 2 + 1] += high_of(before[i]);
    }
}

template <class T>
DEV void store_fours(const float (&y)[T::NI][4], const gpu_epilogue &e, const two_rows &w) {
    const int to = four_at(w.t) - 2 * w.t, left = e.n - w.n - to;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        u16 *const out = out_of(e, w, h) + to;
#pragma unroll
        for (int j = 0; j < T::NI; j += 2) {
            const uint2 four = four_of(pack_bf16(y[j][h * 2], y[j][h * 2 + 1]),
                                       pack_bf16(y[j + 1][h * 2], y[j + 1][h * 2 + 1]), w.t & 1);
            if (w.m + h * 8 < w.rows && j * 8 < left) *(uint2 *)(out + j * 8) = four;
        }
    }
}

/* A product into bf16, whose outputs are whole fours. */
template <class T>
DEV void store_plain(const gpu_epilogue &e, typename T::outputs &y, int m, int n, int rows, int lane) {
    const int t = lane & 3;
    two_rows w = {m + (lane >> 2), n + 2 * t, t, rows};
    each_row_tile<T>(y, [&]() {
        if (e.bias) add_bias<T>(y[0], e, w);
        if (e.add) add_rows<T>(y[0], e, w);
        if (e.activation)
#pragma unroll
            for (int i = 0; i < T::NI * 4; i++) y[0][i / 4][i % 4] = gelu(y[0][i / 4][i % 4]);
        if (e.kind == GPU_EPILOGUE_RESIDUAL) add_before<T>(y[0], e, w);
        store_fours<T>(y[0], e, w);
        w.m += 16;
    });
}

DEV int is_plain(const gpu_epilogue &e) {
    int kind = e.kind == GPU_EPILOGUE_RESIDUAL ? !e.gate && e.activation == GPU_ACT_NONE
                                               : e.kind == GPU_EPILOGUE_STORE && e.activation != GPU_ACT_SILU;
    return kind && !e.f32 && !e.split && !e.x_t && !(e.n & 3);
}

/* A gated product without bias into bf16, its rows one after the other. */
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
                const uint2 four = four_of(pair[u], pair[u + 1], odd);
                if (r < rows && 2 * (u + odd) < left) *(uint2 *)(out + u * 8 + four_at(t)) = four;
            }
            if (T::NI / 2 & 1 && r < rows && T::NI - 2 < left)
                *(u32 *)(out + (T::NI / 2 - 1) * 8 + 2 * t) = pair[T::NI / 2 - 1];
        }
}

DEV int plain_gated(const gpu_epilogue &e, int columns) {
    return e.kind == GPU_EPILOGUE_GATED && !e.bias && !e.f32 && !e.to.map && !e.to.group &&
           e.n * 2 == columns && !(e.n & 3);
}

/* Queries, keys and values in bf16 (epilogue_qkv), a unit of packed columns after the other: whether it is
 * rotated is the same for the whole warp. Rows beyond the last are read as the last and not stored. */
typedef struct qkv_rows {
    int r, last;                           /* the lane's first row; the last there is                       */
} qkv_rows;

DEV int position_of(const gpu_epilogue &e, const qkv_rows &rows, int n) {
    return __ldg(e.position + min(rows.r + n * 8, rows.last));
}
/* Its place among a sample's keys or values. */
DEV size_t cached_at(const gpu_epilogue &e, const qkv_rows &rows, int n, int position) {
    return ((size_t)__ldg(e.sample + min(rows.r + n * 8, rows.last)) * e.capacity + position) * e.head_dim;
}

template <class T>
DEV void store_values(const gpu_epilogue &e, const typename T::outputs &y, const qkv_rows &rows, int u,
                      int i) {
#pragma unroll
    for (int n = 0; n < 2 * T::MI; n++) {
        const size_t at = cached_at(e, rows, n, position_of(e, rows, n)) + i;
        if (rows.r + n * 8 > rows.last || i >= e.head_dim) continue;
        put2(e.v, at, y[n / 2][u][n % 2 * 2], y[n / 2][u][n % 2 * 2 + 1]);
        put2(e.v, at + 8, y[n / 2][u + 1][n % 2 * 2], y[n / 2][u + 1][n % 2 * 2 + 1]);
    }
}

/* Half of the rows at a time, or two, where tiles share a multiprocessor or have the most sums: registers. */
template <class T>
DEV void store_rotated(const gpu_epilogue &e, const typename T::outputs &y, const qkv_rows &rows, int u,
                       int head, int i) {
    enum { SUMS = T::MI * T::NI, TOGETHER = SUMS >= 20 && SUMS <= 32 ? T::MI : 2 };
    const int half = e.head_dim / 2, key = head == e.heads;
    u16 *const out = (u16 *)(key ? e.k : e.out) + i;
    if (i >= half) return;
#pragma unroll
    for (int n0 = 0; n0 < 2 * T::MI; n0 += TOGETHER) {
        float4 factors[TOGETHER];
        size_t at[TOGETHER];
#pragma unroll
        for (int n = n0; n < n0 + TOGETHER; n++) {
            const int position = position_of(e, rows, n);
            factors[n - n0] = __ldg((const float4 *)(e.rope + ((size_t)position * half + i) * 2));
            at[n - n0] = key ? cached_at(e, rows, n, position)
                             : ((size_t)(rows.r + n * 8) * e.heads + head) * e.head_dim;
        }
#pragma unroll
        for (int n = n0; n < n0 + TOGETHER; n++) {
            const float4 f = factors[n - n0];
            const float a0 = y[n / 2][u][n % 2 * 2], a1 = y[n / 2][u][n % 2 * 2 + 1],
                        b0 = y[n / 2][u + 1][n % 2 * 2], b1 = y[n / 2][u + 1][n % 2 * 2 + 1];
            if (rows.r + n * 8 > rows.last) continue;
            put2(out, at[n - n0], a0 * f.x - b0 * f.y, a1 * f.z - b1 * f.w);
            put2(out, at[n - n0] + half, b0 * f.x + a0 * f.y, b1 * f.z + a1 * f.w);
        }
    }
}

template <class T>
DEV void store_qkv(const gpu_epilogue &e, const typename T::outputs &y, int m, int n, int rows, int columns,
                   int lane) {
    const qkv_rows q = {m + (lane >> 2), rows - 1};
#pragma unroll
    for (int u = 0; u < T::NI; u += 2) {
        const int column = n + u * 8, head = column / e.head_columns,
                  i = column - min(head, e.heads + 1) * e.head_columns;
        if (column >= columns) continue;
        if (head > e.heads) store_values<T>(e, y, q, u, i + 2 * (lane & 3));
        else store_rotated<T>(e, y, q, u, head, i / 2 + 2 * (lane & 3));
    }
}

DEV int plain_qkv(const gpu_epilogue &e) {
    return e.kind == GPU_EPILOGUE_QKV && !e.f32 && e.head_dim % GPU_UNIT == 0;
}

/* The sums of a part: to [rows][columns]. */
template <class T>
DEV void store_part(typename T::sum *to, const typename T::sum (&sum)[T::MI][T::NI][4], int m, int n,
                    int rows, int columns, int lane) {
    const int r = m + (lane >> 2);
    to += (size_t)r * columns + n + 2 * (lane & 3);
#pragma unroll
    for (int i = 0; i < 2 * T::MI; i++, to += (size_t)8 * columns) {
        if (r + i * 8 >= rows) return;
#pragma unroll
        for (int j = 0; j < T::NI; j++)
            if (n + j * 8 < columns)
                *(typename T::pair *)(to + j * 8) =
                    T::pair_of(sum[i / 2][j][i % 2 * 2], sum[i / 2][j][i % 2 * 2 + 1]);
    }
}

/* ---- scales -------------------------------------------------------------------------------------------- */

/* From integers to numbers; `rows`, `columns`: the scales of the warp's. */
template <class T>
DEV void scale_sums(float (&y)[T::MI][T::NI][4], const int (&sum)[T::MI][T::NI][4], const float *rows,
                    const float *columns, int lane) {
    const int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int j = 0; j < T::NI; j++) {
        const float2 column = *(const float2 *)(columns + j * 8 + 2 * t);
#pragma unroll
        for (int i = 0; i < T::MI; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float row = rows[i * 16 + h * 8 + g];
                y[i][j][2 * h] = scaled(sum[i][j][2 * h], row, column.x);
                y[i][j][2 * h + 1] = scaled(sum[i][j][2 * h + 1], row, column.y);
            }
    }
}

/* From numbers to outputs. */
template <class T>
DEV void store_all(const gpu_epilogue &e, char *memory, typename T::outputs &y, int m, int n, int rows,
                   int columns, int warp, int lane) {
    if (plain_gated(e, columns)) store_gated<T>(e, y, m, n, rows, columns, lane);
    else if (plain_qkv(e)) store_qkv<T>(e, y, m, n, rows, columns, lane);
    else if (is_plain(e)) store_plain<T>(e, y, m, n, rows, lane);
    else {
        __syncthreads();
        store_sums<T>(e, (float *)memory + warp * (16 * (T::WN + 8)), y, m, n, rows, columns, lane);
    }
}

/* What becomes of a warp's numbers: what the epilogue says. */
struct any_end {
    DEV float row_scale(float scale) { return scale; }

    template <class T>
    DEV void store(const any_end &, const gpu_epilogue &e, char *memory, typename T::outputs &y, int m, int n,
                   int rows, int columns, int warp, int lane) {
        store_all<T>(e, memory, y, m, n, rows, columns, warp, lane);
    }
};

/* a / b, by fewer instructions than a division of integers; right for a < 2^20. */
DEV int quotient(int a, int b) { return (int)__fdividef((float)a + 0.5f, (float)b); }

/* row_scales: [capacity], of SCALED numbers. */
template <class T, class END = any_end>
DEV void gemm(const gpu_linear_parts &a, const float *row_scales, const END &at_end = END{}) {
    extern __shared__ __align__(1024) char memory[];
    const gpu_linear &p = a.linear;
    const u32 ring = shared_address(memory);
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, columns = p.weights.columns,
              tiles = (columns + T::BN - 1) / T::BN, part = quotient(blockIdx.y, tiles),
              m0 = blockIdx.x * T::BM, n0 = (blockIdx.y - part * tiles) * T::BN;
    const int wm = warp / (T::BN / T::WN) * T::WM, wn = warp % (T::BN / T::WN) * T::WN;
    const int first = quotient(part * p.k_blocks, a.parts) * T::AN_ATOM,
              stages = quotient((part + 1) * p.k_blocks, a.parts) * T::AN_ATOM - first;
    const int row = tid / T::PIECES, piece = tid % T::PIECES; /* the thread's first copy */

    start_next();
    mma_source<T> from;
    from.x = (const typename T::element *)p.x;
    from.w = (const char *)p.weights.data;
    from.w_in = (row & 7) * 128 + ((piece ^ (row & 7)) << 4);
    from.group = (n0 + row) >> 3;
    from.last_group = (columns >> 3) - 1;
    from.next_row = m0 + row + 1;
    from.ldx = p.ldx;
    from.left = p.ldx - piece * (T::K / 8);
    from.w_blocks = p.weights.blocks;
    from.slot = swizzled<T>(row, piece);
    const int rows = __ldg(p.count);
    float *scales = (float *)(memory + T::STAGES * T::STAGE);
    copy_first_w<T>(from, ring, first, stages);
    if (T::SCALED)
        for (int i = tid; i < T::BN; i += T::THREADS) scales[T::BM + i] = channel_scale(p, n0 + i);
    wait_before();
    if (m0 >= rows) {
        copy_wait<0>();
        return;
    }
    if (T::SCALED)
        for (int i = tid; i < T::BM; i += T::THREADS)
            scales[i] = END::row_scale(__ldcg(row_scales + min(m0 + i, rows - 1)));
    from.rows = rows;

    typename T::sum sum[T::MI][T::NI][4] = {};
    mma_fragments<T> f = {};
#pragma unroll T::IN_LINE
    for (int s = 0; s < T::STAGES - 1; s++) {
#pragma unroll
        for (int i = 0; i < T::X_COPIES; i++)
            copy_one<T>(from, ring + s * T::STAGE, s < stages ? first + s : first, s < stages, i);
        copy_commit();
    }
    /* Of a step's fragments in a stage: row or column of the lane, and its 16 bytes in the swizzle. */
    const u32 xs = swizzled<T>(wm + (lane & 15), lane >> 4),
              ws = T::BM * T::PITCH + swizzled<T>(wn + (lane & 7) + (lane >> 4) * 8, lane >> 3 & 1);
    u32 at = ring + (T::STAGES - 1) * T::STAGE, free_at = at;
    const u32 end = ring + T::STAGES * T::STAGE;
    /* The last step of a stage (at first zeros), while the first fragments of the next one arrive. */
    auto next_stage = [&]() {
        copy_wait<T::STAGES - 2>();
        __syncthreads();
        free_at = at;
        at = at + T::STAGE == end ? ring : at + T::STAGE;
        multiply_step<T>(sum, f, 1, at + xs, at + ws, [](int) {});
    };
    if (!T::TURNED) next_stage();
    for (int ks = 0; ks < stages; ks++) {
        enum { OVER = (T::STEPS - 1) * T::MI, EACH = (T::COPIES + OVER - 1) / OVER };
        const int ahead = ks + T::STAGES - 1, there = ahead < stages, fetch = there ? first + ahead : first;
        if (T::TURNED) next_stage();
#pragma unroll
        for (int s = 0; s < T::STEPS - 1; s++) {
            auto copies = [&](int i) {
#pragma unroll
                for (int n = (s * T::MI + i) * EACH; n < (s * T::MI + i + 1) * EACH && n < T::COPIES; n++)
                    copy_one<T>(from, free_at, fetch, there, n);
            };
            const int next = (s + 1) << 5;
            multiply_step<T>(sum, f, s & 1, (at + xs) ^ next, (at + ws) ^ next, copies);
        }
        copy_commit();
        if (!T::TURNED) next_stage();
    }
    if (T::TURNED) multiply_last<T>(sum, f);
    copy_wait<0>();
    if (a.parts > 1)
        store_part<T>((typename T::sum *)a.sums + (size_t)part * p.capacity * columns, sum, m0 + wm, n0 + wn,
                      rows, columns, lane);
    else if constexpr (T::SCALED) {
        float y[T::MI][T::NI][4];
        scale_sums<T>(y, sum, scales + wm, scales + T::BM + wn, lane);
        END::template store<T>(at_end, p.epilogue, memory, y, m0 + wm, n0 + wn, rows, columns, warp, lane);
    } else store_all<T>(p.epilogue, memory, sum, m0 + wm, n0 + wn, rows, columns, warp, lane);
}

/* ---- parts --------------------------------------------------------------------------------------------- */

/* What a thread of the join adds up: a quarter of a row's unit, columns 2t, 2t + 1 and 8 + 2t, 9 + 2t. */
typedef struct quarter {
    int r, column, t;
} quarter;

/* The parts' sums in order; all are asked for at once. */
template <class NUMBERS>
DEV void add_parts(const gpu_linear_parts &a, const quarter &q, typename NUMBERS::pair &low,
                   typename NUMBERS::pair &high) {
    typedef typename NUMBERS::pair pair;
    const gpu_linear &p = a.linear;
    const typename NUMBERS::sum *from =
        (const typename NUMBERS::sum *)a.sums + (size_t)q.r * p.weights.columns + q.column + 2 * q.t;
    const size_t next = (size_t)p.capacity * p.weights.columns;
    pair l[GPU_MOST_PARTS] = {}, h[GPU_MOST_PARTS] = {};
#pragma unroll
    for (int i = 0; i < GPU_MOST_PARTS; i++)
        if (i < a.parts) {
            l[i] = __ldcg((const pair *)(from + i * next));
            h[i] = __ldcg((const pair *)(from + i * next + 8));
        }
    low = l[0], high = h[0];
#pragma unroll
    for (int i = 1; i < GPU_MOST_PARTS; i++)
        low.x += l[i].x, low.y += l[i].y, high.x += h[i].x, high.y += h[i].y;
}

/* The same, as numbers. */
template <class NUMBERS, class END = any_end>
DEV void joined_sums(const gpu_linear_parts &a, const float *row_scales, const quarter &q, float2 &low,
                     float2 &high) {
    if constexpr (NUMBERS::SCALED) {
        const gpu_linear &p = a.linear;
        const float row = END::row_scale(__ldcg(row_scales + q.r));
        const int column = q.column + 2 * q.t;
        int2 l, h;
        add_parts<NUMBERS>(a, q, l, h);
        low.x = scaled(l.x, row, channel_scale(p, column));
        low.y = scaled(l.y, row, channel_scale(p, column + 1));
        high.x = scaled(h.x, row, channel_scale(p, column + 8));
        high.y = scaled(h.y, row, channel_scale(p, column + 9));
    } else {
        add_parts<NUMBERS>(a, q, low, high);
    }
}

/* As pairs.cuh finishes them: what does not depend on sums is fetched before the kernel before this one has
 * ended, what is added to beside the sums. */
template <class NUMBERS, int KIND>
DEV void join_pairs(const gpu_linear_parts &a, const float *row_scales, const quarter &q) {
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
    joined_sums<NUMBERS>(a, row_scales, q, low, high);
    complete<KIND>(e, f, before, low.x, low.y, high.x, high.y);
    if (!PAIRED) complete<KIND>(e, g, after, high.x, high.y, 0, 0);
}

DEV int in_pairs(const gpu_epilogue &e) {
    return !e.f32 && !e.x_t && !e.add && (e.kind == GPU_EPILOGUE_QKV ? e.head_dim % 16 == 0 : e.n % 8 == 0);
}

/* The parts' sums to outputs, a quarter of a unit a thread. */
template <class NUMBERS> DEV void join(const gpu_linear_parts &a, const float *row_scales) {
    const gpu_linear &p = a.linear;
    const int quarters = p.weights.columns / 4, at = blockIdx.x * 256 + threadIdx.x, r = at / quarters,
              i = at - r * quarters;
    const quarter q = {r, i / 4 * GPU_UNIT, i & 3};
    start_next();
    if (in_pairs(p.epilogue) && p.epilogue.kind == GPU_EPILOGUE_RESIDUAL)
        join_pairs<NUMBERS, GPU_EPILOGUE_RESIDUAL>(a, row_scales, q);
    else if (in_pairs(p.epilogue) && p.epilogue.kind == GPU_EPILOGUE_QKV)
        join_pairs<NUMBERS, GPU_EPILOGUE_QKV>(a, row_scales, q);
    else {
        wait_before();
        if (r >= __ldg(p.count)) return;
        float2 low, high;
        joined_sums<NUMBERS>(a, row_scales, q, low, high);
        epilogue_unit(p.epilogue, r, q.column / GPU_UNIT, q.t, low.x, low.y, high.x, high.y);
    }
}

#endif
