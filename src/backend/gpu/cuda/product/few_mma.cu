/* x·Wᵀ for at most 16 rows in bf16 on any tensor core since sm_80: the denoise loop's products, where time is
 * what the weights take to arrive.
 *
 * A block makes 8·C packed columns over all of k; its warp w takes the blocks w, w + 8, … of 64 k, at most P.
 * A lane reads nothing that another has fetched: mma.sync does not care which k is which, as long as x and W
 * agree, so lane (g, t) takes the 16 bytes 8·(4h + t) … + 7 (h = 0, 1) of a block of 64 k, of column g of W
 * and of the rows g and g + 8 of x: two steps of 16 k each, without ldmatrix and without a barrier.
 *
 *   W        all of a block's share by cp.async before anything else: [P][C][h][32 lanes][16 bytes] a warp.
 *            A large share is asked for in pieces, 4 KB a warp on their way: earlier kernels still load,
 *            and would wait behind a longer queue
 *   x        from global memory into registers, at most WINDOW blocks of 64 k at a time; the norm happens
 *            there, too, only its sums of squares meet in shared memory
 *   sums     [8 warps][16 rows][PITCH] over W, which is read by then, added in the order of the warps
 *   places   registers for 256 threads of down (WINDOW decides) beside those of gate_up: 136 + 120 a thread,
 *            all that a multiprocessor has, so that down loads its W while gate_up computes
 *
 *   blocks   256 threads; grid = columns / (8·C)
 *   shared   W; the norm's weight and bias; the sums of squares
 *   legal    at most 16 rows; x has at most 8·P blocks of 64 k, a multiple of W's, which repeats; ldx % 8
 *            == 0; columns % (8·C) == 0; outputs as pairs.cuh finishes them; RMS norm only, of qkv and gated
 *            matrices only
 *   early    before wait_before(): weights, norm, positions, angles, bias, gate; start_next() after those are
 *            issued
 *
 * few_mma.c checks what is legal and launches. */
#include "few_rows.cuh"

/* What a kernel decides at compile time. */
template <int KIND_, int C_, int P_> struct few_tile {
    enum {
        KIND = KIND_, C = C_, P = P_,
        PAIRED = KIND == GPU_EPILOGUE_QKV || KIND == GPU_EPILOGUE_GATED,
        UNIT = PAIRED ? 16 : 8,            /* columns of a task                                             */
        TASKS = C * 8 / UNIT * ROWS * 4,
        WARP_BYTES = P * C * GPU_ATOM_BYTES,
        PITCH = C == 1 ? 8 : C * 8 + 8,    /* floats of a row of sums: no bank conflicts                    */
        WINDOW = P < 6 ? P : 6,            /* blocks of 64 k whose x is in registers                        */
        PIECE = C == 1 ? 1 : 2,            /* groups of columns that are asked for together                 */
        PIECES = C / PIECE,                /* that a block of 64 k has                                      */
        PACED = C == 8 || C == 1,          /* gate_up and down, with 128 and 64 KB a block                  */
        IN_FLIGHT = 4 / PIECE,             /* pieces on their way, if paced                                 */
    };
    static_assert(TASKS <= WARPS * 32, "a thread has at most one task");
    static_assert(C % PIECE == 0, "whole pieces");
};

/* The warp's share of W, a group of copies a piece; zeros beyond the last block of 64 k. */
template <class T> DEV void few_load_weights(const gpu_linear &p, u32 to, int warp, int lane) {
    const int g = lane >> 2, t = lane & 3, blocks = p.weights.blocks;
    const char *from = (const char *)p.weights.data + (size_t)blockIdx.x * T::C * blocks * GPU_ATOM_BYTES +
                       g * 128 + ((t ^ (g & 3)) << 4);
    const int low = (g & 4) << 4;          /* the swizzle exchanges the halves of columns 4 … 7             */
#pragma unroll
    for (int i = 0; i < T::P; i++) {
        const int kb = warp + i * WARPS, there = kb < p.k_blocks;
#pragma unroll
        for (int c = 0; c < T::C; c++) {
            const char *atom = from + ((size_t)c * blocks + (there ? kb % blocks : 0)) * GPU_ATOM_BYTES;
            copy16(to + ((i * T::C + c) * 2 + 0) * 512, atom + low, there);
            copy16(to + ((i * T::C + c) * 2 + 1) * 512, atom + (low ^ 64), there);
            if ((c + 1) % T::PIECE) continue;
            copy_commit();
            if (T::PACED && i * T::PIECES + c / T::PIECE + 1 >= T::IN_FLIGHT) copy_wait<T::IN_FLIGHT - 1>();
        }
    }
}

/* The first k of the lane's 16 bytes in half h of the warp's block i. */
DEV int few_k(int i, int h, int warp, int t) { return (warp + i * WARPS) * GPU_ATOM_K + h * 32 + t * 8; }

/* x of the lane in the warp's block i: [row g or g + 8][h]. Beyond k, where W is zero, the row's first
 * numbers. */
DEV void few_load_block(uint4 (&x)[2][2], const few_rows &from, int k_end, int i, int warp, int lane) {
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int k = few_k(i, h, warp, lane & 3);
            x[r][h] = __ldcg((const uint4 *)(from.row[r] + (k < k_end ? k : 0)));
        }
}

/* The first WINDOW blocks. All are asked for here: __syncwarp() keeps the compiler from moving loads to where
 * they are used. */
template <class T>
DEV void few_load_x(uint4 (&x)[T::WINDOW][2][2], const few_rows &from, int k_end, int warp, int lane) {
#pragma unroll
    for (int i = 0; i < T::WINDOW; i++) few_load_block(x[i], from, k_end, i, warp, lane);
    __syncwarp();
}

/* RMS norm of x in registers. `norm`: weight and bias in shared memory; those of known rows are read where
 * they are; `squares` [16 rows][8 warps]. What lies beyond k is scaled by the first weights. */
template <class T>
DEV void few_norm(uint4 (&x)[T::WINDOW][2][2], const gpu_linear &p, const float *norm, float *squares,
                  int rows, int warp, int lane) {
    static_assert(T::WINDOW == T::P || !T::PAIRED, "x is here as a whole");
    const int g = lane >> 2, t = lane & 3;
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < T::WINDOW; i++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                if (few_k(i, h, warp, t) < p.ldx) sum += few_squares(x[i][r][h]);
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (!t) squares[(g + 8 * r) * WARPS + warp] = sum;
    }
    copy_wait<T::P * T::PIECES>();         /* the norm, which was asked for before W                        */
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float4 a = *(const float4 *)(squares + (g + 8 * r) * WARPS),
                     b = *(const float4 *)(squares + (g + 8 * r) * WARPS + 4);
        factor[r] = rsqrtf((a.x + a.y + a.z + a.w + b.x + b.y + b.z + b.w) / p.ldx + p.eps);
    }
    if (p.epilogue.known.rows) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int known = known_at(p.epilogue.known, g + 8 * r, g + 8 * r < rows);
#pragma unroll
            for (int i = 0; i < T::WINDOW * 2; i++) {
                const int k = few_k(i / 2, i % 2, warp, t), at = k + known;
                if (k >= p.ldx) continue;
                few_scale(x[i / 2][r][i % 2], factor[r],
                          few_affine_at(p.norm_weight + at, p.norm_bias ? p.norm_bias + at : NULL));
            }
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < T::WINDOW * 2; i++) {
        const int at = few_k(i / 2, i % 2, warp, t);
        if (at >= p.ldx) continue;
        const few_affine m = few_affine_at(norm + at, p.norm_bias ? norm + p.ldx + at : NULL);
#pragma unroll
        for (int r = 0; r < 2; r++) few_scale(x[i / 2][r][i % 2], factor[r], m);
    }
}

/* A block of 64 k: both halves, two steps of 16 k each; steps in turn add up apart. `w`: the lane's bytes. */
template <class T>
DEV void few_multiply(float (&sum)[T::C][2][4], const uint4 (&x)[2][2], u32 w) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const u32 a[2][4] = {{x[0][h].x, x[1][h].x, x[0][h].y, x[1][h].y},
                             {x[0][h].z, x[1][h].z, x[0][h].w, x[1][h].w}};
#pragma unroll
        for (int c = 0; c < T::C; c++) {
            const uint4 b = load_shared16(w + (c * 2 + h) * 512);
            mma16(sum[c][0], a[0], b.x, b.y);
            mma16(sum[c][1], a[1], b.z, b.w);
        }
    }
}

/* Blocks I … P - 1 of the warp. Where one is multiplied, the one that comes WINDOW blocks later is asked
 * for. */
template <class T, int I = 0>
DEV void few_multiply_all(float (&sum)[T::C][2][4], uint4 (&x)[T::WINDOW][2][2], const few_rows &from,
                          int k_end, u32 w, int warp, int lane) {
    if constexpr (I < T::P) {
        copy_wait<(T::P - 1 - I) * T::PIECES>();
        few_multiply<T>(sum, x[I % T::WINDOW], w + I * T::C * GPU_ATOM_BYTES);
        if constexpr (I + T::WINDOW < T::P) {
            few_load_block(x[I % T::WINDOW], from, k_end, I + T::WINDOW, warp, lane);
            __syncwarp();
        }
        few_multiply_all<T, I + 1>(sum, x, from, k_end, w, warp, lane);
    }
}

template <class T> DEV void few(const gpu_linear &p) {
    extern __shared__ __align__(1024) char memory[];
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
    const u32 w = shared_address(memory) + warp * T::WARP_BYTES + lane * 16;
    float *const norm = (float *)(memory + WARPS * T::WARP_BYTES), *const squares = norm + 2 * p.ldx;
    const bool normed = T::PAIRED && p.norm != GPU_NORM_NONE;

    if (normed) few_load_norm(p, shared_address(norm), tid);
    few_load_weights<T>(p, w, warp, lane);
    start_next();
    const few_task task = few_task_of<T>(tid);
    const int rows = __ldg(p.count);       /* beyond them the tables of rows may hold anything              */
    finish f = {};
    if (task.there)
        f = prepare<T::KIND>(p.epilogue, task.r, rows, blockIdx.x * T::C * 8 + task.u * T::UNIT, task.t);
    wait_before();
    if (rows <= 0) {
        copy_wait<0>();
        return;
    }
    uint4 x[T::WINDOW][2][2];
    const few_rows from = few_rows_of(p, rows, lane);
    few_load_x<T>(x, from, p.ldx, warp, lane);
    u32 before = 0;
    if (T::KIND == GPU_EPILOGUE_RESIDUAL && f.there)
        before = __ldcg((const u32 *)((const u16 *)p.epilogue.out + f.at));
    if (normed) few_norm<T>(x, p, norm, squares, rows, warp, lane);
    float sum[T::C][2][4] = {};
    few_multiply_all<T>(sum, x, from, p.ldx, w, warp, lane);
    few_finish<T>(p, (float *)memory, sum, task, f, before, warp, lane);
}

#define FEW(name, kind, groups, blocks)                        \
    KERNEL(256) name(const __grid_constant__ gpu_linear p) {   \
        few<few_tile<GPU_EPILOGUE_##kind, groups, blocks>>(p); \
    }
FEW(few_qkv_16_2, QKV, 2, 2)
FEW(few_qkv_32_2, QKV, 4, 2)
FEW(few_gated_32_2, GATED, 4, 2)
FEW(few_gated_64_2, GATED, 8, 2)
FEW(few_residual_8_4, RESIDUAL, 1, 4)
FEW(few_residual_8_8, RESIDUAL, 1, 8)
FEW(few_residual_16_4, RESIDUAL, 2, 4)
FEW(few_store_8_4, STORE, 1, 4)
