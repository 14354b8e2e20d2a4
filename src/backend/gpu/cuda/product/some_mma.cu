/* x·Wᵀ for 17 to 64 rows in bf16 on any tensor core since sm_80, as few_mma does it for 16: a lane fetches
 * what it multiplies itself, k is permuted alike in x and W, so there is no ldmatrix and no barrier in the
 * loop.
 *
 * A block makes 16·M rows x 8·C·PASSES packed columns, over all of k or, of a residual, over one of p.parts
 * parts of it. Its warp w takes the blocks w, w + 8, … of 64 k of that, at most P, and multiplies them with
 * 8·C columns in each pass: the sums of a pass and the x of some blocks of 64 k fill the registers.
 *
 *   W        all of a block's share by cp.async before anything else: a warp has
 *            [PASSES][P][C][h][32 lanes][16 bytes], h and the lane's bytes as in few_mma
 *   x        from global memory into registers, at most WINDOW blocks of 64 k at a time; the norm happens
 *            there, too, only its sums of squares meet in shared memory
 *   sums     a warp's [16·M rows][8·C columns] of a pass over what it has read of W, so warps meet once,
 *            after the last pass; added in the order of the warps. Groups of 8 columns are swizzled by the
 *            row: no bank conflicts
 *   parts    every part leaves its sums in memory, and counts itself; the block that comes last adds those of
 *            all parts, in their order, and finishes the outputs. The count is back at zero then
 *
 *   blocks   256 threads; grid = columns / (8·C·PASSES) x parts
 *   shared   [8 warps][PASSES][REGION]; the sums of squares; the norm's weight and bias, and again of known
 *            rows
 *   legal    at most 16·M rows; a part has at most 8·P blocks of 64 k; k_blocks is a multiple of W's, which
 *            repeats; ldx % 8 == 0; columns % (8·C·PASSES) == 0; outputs as pairs.cuh finishes them; RMS norm
 *            only, of qkv and gated matrices only; parts of residuals only
 *   early    before wait_before(): weights, norm; start_next() after those are issued
 *
 * some_mma.c checks what is legal and launches. */
#include "backend/gpu/cuda/arrival.cuh"
#include "few.cuh"
#include "some.h"

/* What a kernel decides at compile time. */
template <int KIND_, int M_, int C_, int P_, int PASSES_> struct some_tile {
    enum {
        KIND = KIND_, M = M_, C = C_, P = P_, PASSES = PASSES_, ROWS = 16 * M,
        PAIRED = KIND == GPU_EPILOGUE_QKV || KIND == GPU_EPILOGUE_GATED,
        WHOLE = KIND != GPU_EPILOGUE_RESIDUAL,             /* k is not shared                               */
        UNIT = PAIRED ? 16 : 8,            /* columns of a task                                             */
        TASKS = PASSES * C * 8 / UNIT * ROWS * 4,
        EACH = (TASKS + WARPS * 32 - 1) / (WARPS * 32),    /* tasks of a thread                             */
        FITS = 8 / M,                      /* blocks of 64 k whose x leaves space for the sums              */
        WINDOW = P < FITS ? P : FITS,
        W_BYTES = P * C * GPU_ATOM_BYTES,
        SUM_BYTES = ROWS * C * 32,
        REGION = W_BYTES > SUM_BYTES ? W_BYTES : SUM_BYTES,
        WARP_BYTES = PASSES * REGION,
    };
    static_assert(C == 1 || C == 2 || C == 4, "the swizzle of sums");
    static_assert(WINDOW == P || (PASSES == 1 && !PAIRED), "x is here as a whole");
};

/* The blocks of 64 k that a warp of this block takes: first, first + 8, … below `end`. */
typedef struct some_share {
    int part, first, end;
} some_share;

template <class T> DEV some_share some_share_of(const gpu_some &a, int warp) {
    const int part = T::WHOLE ? 0 : blockIdx.y, blocks = a.linear.k_blocks;
    if (T::WHOLE) return {0, warp, blocks};
    return {part, part * blocks / a.parts + warp, (part + 1) * blocks / a.parts};
}

/* The warp's share of W, a group of copies a pass and block of 64 k; zeros beyond the last block. */
template <class T>
DEV void some_load_weights(const gpu_linear &p, u32 to, const some_share &share, int lane) {
    const int g = lane >> 2, t = lane & 3, blocks = p.weights.blocks;
    const char *from = (const char *)p.weights.data +
                       (size_t)blockIdx.x * (T::PASSES * T::C) * blocks * GPU_ATOM_BYTES + g * 128 +
                       ((t ^ (g & 3)) << 4);
    const int low = (g & 4) << 4;          /* the swizzle exchanges the halves of columns 4 … 7             */
#pragma unroll
    for (int pass = 0; pass < T::PASSES; pass++)
#pragma unroll
        for (int i = 0; i < T::P; i++) {
            const int kb = share.first + i * WARPS, there = kb < share.end,
                      at_block = !there ? 0 : T::KIND == GPU_EPILOGUE_STORE ? kb % blocks : kb;
#pragma unroll
            for (int c = 0; c < T::C; c++) {
                const char *atom =
                    from + ((size_t)(pass * T::C + c) * blocks + at_block) * GPU_ATOM_BYTES;
                const u32 at = to + pass * T::REGION + (i * T::C + c) * GPU_ATOM_BYTES;
                copy16(at, atom + low, there);
                copy16(at + 512, atom + (low ^ 64), there);
            }
            copy_commit();
        }
}

/* The norm's weight and bias, and those of known rows, `ldx` floats each. */
DEV void some_load_norm(const gpu_linear &p, u32 to, int tid) {
    const int sets = p.epilogue.known.rows ? 2 : 1;
    for (int i = tid * 4; i < sets * p.ldx; i += WARPS * 128) {
        const int set = i >= p.ldx, at = i - set * p.ldx, from = at + set * p.epilogue.known.at;
        const u32 place = to + (set * 2 * p.ldx + at) * 4;
        copy16(place, p.norm_weight + from, 1);
        if (p.norm_bias) copy16(place + p.ldx * 4, p.norm_bias + from, 1);
    }
    copy_commit();
}

/* Rows g and g + 8 of each group of 16, or the last: elements from p.x on. */
template <class T> struct some_rows {
    u32 at[2 * T::M];
};

template <class T> DEV some_rows<T> some_rows_of(const gpu_linear &p, int rows, int lane) {
    some_rows<T> x;
#pragma unroll
    for (int r = 0; r < 2 * T::M; r++)
        x.at[r] = (u32)row_of(p.from, min((lane >> 2) + 8 * r, rows - 1)) * (u32)p.ldx;
    return x;
}

/* The first k of the lane's 16 bytes in half h of the warp's block i. */
DEV int some_k(const some_share &share, int i, int h, int t) {
    return (share.first + i * WARPS) * GPU_ATOM_K + h * 32 + t * 8;
}

/* x of the lane in the warp's block i: [rows g, g + 8, …][h]. Beyond k, where W is zero, the row's first
 * numbers. */
template <class T>
DEV void some_load_block(uint4 (&x)[2 * T::M][2], const gpu_linear &p, const some_rows<T> &from,
                         const some_share &share, int i, int lane) {
    const int there = share.first + i * WARPS < share.end;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int k = some_k(share, i, h, lane & 3), at = there && k < p.ldx ? k : 0;
#pragma unroll
        for (int r = 0; r < 2 * T::M; r++)
            x[r][h] = __ldcg((const uint4 *)((const u16 *)p.x + from.at[r] + at));
    }
}

/* RMS norm of x in registers. `norm`: weights and biases in shared memory, behind them those of known rows;
 * `squares` [16·M rows][8 warps]. What lies beyond k stays as it is. */
template <class T>
DEV void some_norm(uint4 (&x)[T::WINDOW][2 * T::M][2], const gpu_linear &p, const float *norm,
                   float *squares, const some_share &share, int rows, int warp, int lane) {
    const int g = lane >> 2, t = lane & 3;
    float factor[2 * T::M];
#pragma unroll
    for (int r = 0; r < 2 * T::M; r++) {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < T::WINDOW * 2; i++)
            if (some_k(share, i / 2, i % 2, t) < p.ldx) sum += few_squares(x[i / 2][r][i % 2]);
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (!t) squares[(g + 8 * r) * WARPS + warp] = sum;
    }
    copy_wait<T::P * T::PASSES>();         /* the norm, which was asked for before W                        */
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 2 * T::M; r++) {
        const float4 a = *(const float4 *)(squares + (g + 8 * r) * WARPS),
                     b = *(const float4 *)(squares + (g + 8 * r) * WARPS + 4);
        factor[r] = rsqrtf((a.x + a.y + a.z + a.w + b.x + b.y + b.z + b.w) / p.ldx + p.eps);
    }
    u32 known = 0;                         /* a bit a row                                                   */
    if (p.epilogue.known.rows) {
#pragma unroll
        for (int r = 0; r < 2 * T::M; r++)
            known |= (u32)(known_at(p.epilogue.known, g + 8 * r, g + 8 * r < rows) != 0) << r;
    }
#pragma unroll 1
    for (u32 set = 0; set <= (p.epilogue.known.rows != NULL); set++, norm += 2 * p.ldx)
#pragma unroll
        for (int i = 0; i < T::WINDOW * 2; i++) {
            const int at = some_k(share, i / 2, i % 2, t);
            if (at >= p.ldx) continue;
            const few_affine m = few_affine_at(norm + at, p.norm_bias ? norm + p.ldx + at : NULL);
#pragma unroll
            for (int r = 0; r < 2 * T::M; r++)
                if ((known >> r & 1) == set) few_scale(x[i / 2][r][i % 2], factor[r], m);
        }
}

/* A block of 64 k: both halves, two steps of 16 k each. `w`: the lane's bytes. */
template <class T>
DEV void some_multiply(float (&sum)[T::M][T::C][4], const uint4 (&x)[2 * T::M][2], u32 w) {
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int c = 0; c < T::C; c++) {
            const uint4 b = load_shared16(w + (c * 2 + h) * 512);
#pragma unroll
            for (int m = 0; m < T::M; m++) {
                const uint4 &low = x[2 * m][h], &high = x[2 * m + 1][h];
                const u32 a[4] = {low.x, high.x, low.y, high.y};
                mma16(sum[m][c], a, b.x, b.y);
            }
#pragma unroll
            for (int m = 0; m < T::M; m++) {
                const uint4 &low = x[2 * m][h], &high = x[2 * m + 1][h];
                const u32 a[4] = {low.z, high.z, low.w, high.w};
                mma16(sum[m][c], a, b.z, b.w);
            }
        }
}

/* Floats from the beginning of a warp's sums to group c of 8 columns of row r. */
template <class T> DEV int some_place(int r, int c) {
    const int swizzle = T::C == 4 ? r & 3 : T::C == 2 ? r >> 1 & 1 : 0;
    return r * (T::C * 8) + (c ^ swizzle) * 8;
}

/* The warp's sums over W that it has read. */
template <class T> DEV void some_leave(float *to, const float (&sum)[T::M][T::C][4], int lane) {
    const int g = lane >> 2, t = lane & 3;
    __syncwarp();                          /* all lanes have read                                           */
#pragma unroll
    for (int m = 0; m < T::M; m++)
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int c = 0; c < T::C; c++)
                *(float2 *)(to + some_place<T>(m * 16 + h * 8 + g, c) + 2 * t) =
                    make_float2(sum[m][c][2 * h], sum[m][c][2 * h + 1]);
}

/* Blocks I … P - 1 of the warp in a pass. Where one is multiplied, the one that comes WINDOW blocks later is
 * asked for. */
template <class T, int PASS, int I = 0>
DEV void some_multiply_blocks(float (&sum)[T::M][T::C][4], uint4 (&x)[T::WINDOW][2 * T::M][2],
                              const gpu_linear &p, const some_rows<T> &from, const some_share &share, u32 w,
                              int lane) {
    if constexpr (I < T::P) {
        copy_wait<(T::PASSES - PASS) * T::P - 1 - I>();
        some_multiply<T>(sum, x[I % T::WINDOW], w + PASS * T::REGION + I * T::C * GPU_ATOM_BYTES);
        if constexpr (I + T::WINDOW < T::P) {
            some_load_block<T>(x[I % T::WINDOW], p, from, share, I + T::WINDOW, lane);
            __syncwarp();
        }
        some_multiply_blocks<T, PASS, I + 1>(sum, x, p, from, share, w, lane);
    }
}

/* Passes PASS …; `sums`: where the warp leaves them. */
template <class T, int PASS = 0>
DEV void some_multiply_all(float *sums, uint4 (&x)[T::WINDOW][2 * T::M][2], const gpu_linear &p,
                           const some_rows<T> &from, const some_share &share, u32 w, int lane) {
    if constexpr (PASS < T::PASSES) {
        float sum[T::M][T::C][4] = {};
        some_multiply_blocks<T, PASS>(sum, x, p, from, share, w, lane);
        some_leave<T>(sums + PASS * (T::REGION / 4), sum, lane);
        some_multiply_all<T, PASS + 1>(sums, x, p, from, share, w, lane);
    }
}

/* ---- outputs ------------------------------------------------------------------------------------------- */

/* The output pairs that a thread finishes: row, first packed column of the block's, pair of it. */
typedef struct some_task {
    int r, column, t, there;
} some_task;

template <class T> DEV some_task some_task_of(int i) {
    const int at = threadIdx.x + i * (WARPS * 32);
    return {.r = (at >> 2) % T::ROWS, .column = (at >> 2) / T::ROWS * T::UNIT, .t = at & 3,
            .there = at < T::TASKS};
}

template <class T> DEV finish some_prepare(const gpu_linear &p, const some_task &task, int rows) {
    finish f = {};
    if (task.there)
        f = prepare<T::KIND>(p.epilogue, task.r, rows, blockIdx.x * (T::PASSES * T::C * 8) + task.column,
                             task.t);
    return f;
}

/* The sums of all warps of a pair of columns, and of the pair that belongs to it in the other half of a
 * unit. */
template <class T>
DEV void some_add(const char *memory, const some_task &task, float2 &a, float2 &b) {
    const int pass = task.column / (T::C * 8), c = task.column / 8 % T::C;
    a = b = make_float2(0, 0);
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        const float *from = (const float *)(memory + w * T::WARP_BYTES + pass * T::REGION) + 2 * task.t;
        float2 v = *(const float2 *)(from + some_place<T>(task.r, c));
        a.x += v.x, a.y += v.y;
        if (T::PAIRED) {
            v = *(const float2 *)(from + some_place<T>(task.r, c + 1));
            b.x += v.x, b.y += v.y;
        }
    }
}

template <class T>
DEV void some_finish(const gpu_linear &p, const char *memory, const some_task &task, const finish &f) {
    float2 a, b;
    if (!f.there) return;
    some_add<T>(memory, task, a, b);
    complete<T::KIND>(p.epilogue, f, 0, a.x, a.y, b.x, b.y);
}

/* Adds the other parts' sums of a pair, all in the order of the parts. */
DEV float2 some_add_parts(const gpu_some &a, size_t at, int part, float2 own) {
    const size_t next = (size_t)a.linear.capacity * a.linear.weights.columns;
    float2 v[SOME_MOST_PARTS], sum = make_float2(0, 0);
#pragma unroll
    for (int i = 0; i < SOME_MOST_PARTS; i++)
        v[i] = i < a.parts && i != part ? __ldcg((const float2 *)(a.sums + i * next + at)) : own;
#pragma unroll
    for (int i = 0; i < SOME_MOST_PARTS; i++)
        if (i < a.parts) sum.x += v[i].x, sum.y += v[i].y;
    return sum;
}

/* A residual's pairs, after the warps have left their sums. */
template <class T> DEV void some_finish_residual(const gpu_some &a, const char *memory, int part, int rows) {
    const gpu_linear &p = a.linear;
    float2 sum[T::EACH];
    size_t at[T::EACH];
#pragma unroll
    for (int i = 0; i < T::EACH; i++) {
        const some_task task = some_task_of<T>(i);
        float2 none;
        at[i] = (size_t)task.r * p.weights.columns + blockIdx.x * (T::PASSES * T::C * 8) + task.column +
                2 * task.t;
        if (!task.there || task.r >= rows) continue;
        some_add<T>(memory, task, sum[i], none);
        if (a.parts > 1)
            *(float2 *)(a.sums + (size_t)part * p.capacity * p.weights.columns + at[i]) = sum[i];
    }
    if (a.parts > 1 && !arrives_last(a.counts + blockIdx.x, a.parts)) return;
#pragma unroll
    for (int i = 0; i < T::EACH; i++) {
        const some_task task = some_task_of<T>(i);
        const finish f = some_prepare<T>(p, task, rows);
        if (!f.there) continue;
        const u32 before = __ldcg((const u32 *)((const u16 *)p.epilogue.out + f.at));
        if (a.parts > 1) sum[i] = some_add_parts(a, at[i], part, sum[i]);
        complete<T::KIND>(p.epilogue, f, before, sum[i].x, sum[i].y, 0, 0);
    }
}

template <class T> DEV void some(const gpu_some &a) {
    extern __shared__ __align__(1024) char memory[];
    const gpu_linear &p = a.linear;
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
    const u32 w = shared_address(memory) + warp * T::WARP_BYTES + lane * 16;
    float *const squares = (float *)(memory + WARPS * T::WARP_BYTES), *const norm = squares + T::ROWS * WARPS;
    const bool normed = T::PAIRED && p.norm != GPU_NORM_NONE;
    const some_share share = some_share_of<T>(a, warp);

    if (normed) some_load_norm(p, shared_address(norm), tid);
    some_load_weights<T>(p, w, share, lane);
    start_next();
    const int rows = __ldg(p.count);       /* beyond them the tables of rows may hold anything              */
    wait_before();
    if (rows <= 0) {
        copy_wait<0>();
        return;
    }
    const some_rows<T> from = some_rows_of<T>(p, rows, lane);
    uint4 x[T::WINDOW][2 * T::M][2];
#pragma unroll
    for (int i = 0; i < T::WINDOW; i++) some_load_block<T>(x[i], p, from, share, i, lane);
    __syncwarp();                          /* no load moves to where it is used                             */
    if (T::PAIRED && normed) some_norm<T>(x, p, norm, squares, share, rows, warp, lane);
    some_multiply_all<T>((float *)(memory + warp * T::WARP_BYTES), x, p, from, share, w, lane);
    if constexpr (T::KIND == GPU_EPILOGUE_RESIDUAL) {
        __syncthreads();
        some_finish_residual<T>(a, memory, share.part, rows);
    } else if constexpr (T::KIND == GPU_EPILOGUE_GATED) {
        __syncthreads();
#pragma unroll 1
        for (int i = 0; i < T::EACH; i++)
            some_finish<T>(p, memory, some_task_of<T>(i), some_prepare<T>(p, some_task_of<T>(i), rows));
    } else {
        finish f[T::EACH];
#pragma unroll
        for (int i = 0; i < T::EACH; i++) f[i] = some_prepare<T>(p, some_task_of<T>(i), rows);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < T::EACH; i++) some_finish<T>(p, memory, some_task_of<T>(i), f[i]);
    }
}

KERNEL(256) some_clear(const __grid_constant__ gpu_some a) { clear_counters(a.counts, a.clear); }

#define SOME(name, kind, rows, groups, blocks, passes)                               \
    KERNEL(256) name(const __grid_constant__ gpu_some a) {                           \
        some<some_tile<GPU_EPILOGUE_##kind, rows / 16, groups, blocks, passes>>(a);  \
    }
#define SOME_OF_ROWS(rows)                                     \
    SOME(some_##rows##_qkv_32, QKV, rows, 4, 2, 1)             \
    SOME(some_##rows##_gated_64, GATED, rows, 4, 2, 2)         \
    SOME(some_##rows##_gated_32, GATED, rows, 4, 2, 1)         \
    SOME(some_##rows##_residual_32_1, RESIDUAL, rows, 4, 1, 1) \
    SOME(some_##rows##_residual_32_2, RESIDUAL, rows, 4, 2, 1)

SOME_OF_ROWS(32)
SOME_OF_ROWS(48)
SOME_OF_ROWS(64)
SOME(some_32_residual_16_4, RESIDUAL, 32, 2, 4, 1)
SOME(some_64_residual_16_4, RESIDUAL, 64, 2, 4, 1)
SOME(some_64_store_16_4, STORE, 64, 2, 4, 1)
