/* x·Wᵀ for at most 16 rows in bf16 with weights of 8-bit integers, on any tensor core since sm_80: half the
 * bytes of few_mma, which says how a block works; here is what differs.
 *
 *   k        a lane's 16 bytes of W are 16 of k: (g, t) takes k 64h + 16t … + 15 of a block of 128 k, in four
 *            steps of 16 k. A half h is a group of 64 k, which has a scale of its own for every column
 *   widened  a code is exact in bf16 (widen_int8); a step's products begin at 0 and their group's sum is
 *            multiplied by the scale in fp32
 *   scales   of a lane's two columns, all of k, in registers before wait_before()
 *
 *   unpack_int8  weights as fp32 [column][k], for products that no other kernel takes. A thread 4 weights
 *
 *   blocks   256 threads; grid = columns / (8·C)
 *   shared   W; the norm's weight and bias; the sums of squares
 *   legal    weights INT8; at most 16 rows; at most 8·P blocks of 128 k; ldx % 16 == 0; else as few_mma
 *   early    as few_mma, and the scales; unpack_int8 waits first
 *
 * few_mma_int8.c checks what is legal and launches. */
#include "backend/gpu/cuda/bounds.cuh"
#include "channels.cuh"
#include "few_rows.cuh"

enum { BLOCK_K = 128, GROUP_K = 64 };

/* What a kernel decides at compile time. */
template <int KIND_, int C_, int P_> struct few_int8_tile {
    enum {
        KIND = KIND_, C = C_, P = P_,
        PAIRED = KIND == GPU_EPILOGUE_QKV || KIND == GPU_EPILOGUE_GATED,
        UNIT = PAIRED ? 16 : 8,            /* columns of a task                                             */
        TASKS = C * 8 / UNIT * ROWS * 4,
        WARP_BYTES = P * C * GPU_ATOM_BYTES,
        PITCH = C == 1 ? 8 : C * 8 + 8,    /* floats of a row of sums: no bank conflicts                    */
        WINDOW = P < 2 ? P : 2,            /* blocks of 128 k whose x is in registers                       */
    };
    static_assert(TASKS <= WARPS * 32, "a thread has at most one task");
};

/* The warp's share of W, a group of copies a block of 128 k; zeros beyond the last. */
template <class T> DEV void load_weights(const gpu_linear &p, u32 to, int warp, int lane) {
    const int g = lane >> 2, t = lane & 3, blocks = p.weights.blocks;
    const char *from = (const char *)p.weights.data + (size_t)blockIdx.x * T::C * blocks * GPU_ATOM_BYTES +
                       g * 128 + ((t ^ (g & 3)) << 4);
    const int low = (g & 4) << 4;          /* the swizzle exchanges the halves of columns 4 … 7             */
#pragma unroll
    for (int i = 0; i < T::P; i++) {
        const int kb = warp + i * WARPS, there = kb < blocks;
#pragma unroll
        for (int c = 0; c < T::C; c++) {
            const char *atom = from + ((size_t)c * blocks + (there ? kb : 0)) * GPU_ATOM_BYTES;
            copy16(to + ((i * T::C + c) * 2 + 0) * 512, atom + low, there);
            copy16(to + ((i * T::C + c) * 2 + 1) * 512, atom + (low ^ 64), there);
        }
        copy_commit();
    }
}

/* Scales of the lane's columns 2t and 2t + 1 of each group of eight: [block of 128 k][c][h]. */
template <class T>
DEV void load_scales(float2 (&scales)[T::P][T::C][2], const gpu_linear &p, int warp, int lane) {
    const int groups = (p.weights.k + GROUP_K - 1) / GROUP_K;
#pragma unroll
    for (int c = 0; c < T::C; c++) {
        const int column = (blockIdx.x * T::C + c) * 8 + 2 * (lane & 3), a = channel_row(p.epilogue, column),
                  b = channel_row(p.epilogue, column + 1);
#pragma unroll
        for (int i = 0; i < T::P; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int group = (warp + i * WARPS) * 2 + h, there = group < groups;
                const float *from = p.weights.scales + group;
                scales[i][c][h].x = there && a >= 0 ? __ldg(from + (size_t)a * groups) : 0;
                scales[i][c][h].y = there && b >= 0 ? __ldg(from + (size_t)b * groups) : 0;
            }
    }
}

/* The first k of the lane's 16 bytes in half h of the warp's block i. */
DEV int lane_k(int i, int h, int warp, int t) { return (warp + i * WARPS) * BLOCK_K + h * GROUP_K + t * 16; }

/* x of the lane in the warp's block i: [row g or g + 8][h][first or last eight]. Beyond k, where W is zero,
 * the row's first numbers. */
DEV void load_block(uint4 (&x)[2][2][2], const few_rows &from, int k_end, int i, int warp, int lane) {
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int k = lane_k(i, h, warp, lane & 3);
            const uint4 *at = (const uint4 *)(from.row[r] + (k < k_end ? k : 0));
            x[r][h][0] = __ldcg(at), x[r][h][1] = __ldcg(at + 1);
        }
}

/* RMS norm of x in registers, as few_mma's. */
template <class T>
DEV void norm_block(uint4 (&x)[T::WINDOW][2][2][2], const gpu_linear &p, const float *norm, float *squares,
                    int rows, int warp, int lane) {
    const int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < T::WINDOW * 4; i++)
            if (lane_k(i / 4, i / 2 % 2, warp, t) < p.ldx) sum += few_squares(x[i / 4][r][i / 2 % 2][i % 2]);
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (!t) squares[(g + 8 * r) * WARPS + warp] = sum;
    }
    copy_wait<T::P>();                     /* the norm, which was asked for before W                        */
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float4 a = *(const float4 *)(squares + (g + 8 * r) * WARPS),
                     b = *(const float4 *)(squares + (g + 8 * r) * WARPS + 4);
        const float factor = rsqrtf((a.x + a.y + a.z + a.w + b.x + b.y + b.z + b.w) / p.ldx + p.eps);
        const int own = known_at(p.epilogue.known, g + 8 * r, g + 8 * r < rows);
        const float *weight = own ? p.norm_weight + own : norm,
                    *bias = !p.norm_bias ? NULL : own ? p.norm_bias + own : norm + p.ldx;
#pragma unroll
        for (int i = 0; i < T::WINDOW * 4; i++) {
            const int k = lane_k(i / 4, i / 2 % 2, warp, t) + i % 2 * 8;
            if (k < p.ldx)
                few_scale(x[i / 4][r][i / 2 % 2][i % 2], factor,
                          few_affine_at(weight + k, bias ? bias + k : NULL));
        }
    }
}

/* Four codes as bf16. A half of v is 128 + u in bf16's bits where u has 7 bits, so that its byte c is
 * (128 + c % 128) - (128 or, of a negative code, 256); both are exact. */
DEV void widen_int8(u32 (&out)[2], u32 codes) {
    const u32 v[2] = {pick_bytes(codes, 0x43434343u, 0x4140), pick_bytes(codes, 0x43434343u, 0x4342)};
#pragma unroll
    for (int i = 0; i < 2; i++) out[i] = subtract_bf16(v[i] & 0xff7fff7fu, v[i] & 0xff80ff80u);
}

/* The word `i` of eight numbers. */
DEV u32 word_of(const uint4 &v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

/* A block of 128 k: of each half four steps of 16 k, whose sum is scaled. `w`: the lane's bytes. */
template <class T>
DEV void multiply(float (&sum)[T::C][2][4], const uint4 (&x)[2][2][2], const float2 (&scales)[T::C][2],
                  u32 w) {
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int c = 0; c < T::C; c++) {
            const uint4 codes = load_shared16(w + (c * 2 + h) * 512);
            float group[4] = {};
#pragma unroll
            for (int s = 0; s < 4; s++) {
                const uint4 &low = x[0][h][s / 2], &high = x[1][h][s / 2];
                const int i = s % 2 * 2;
                const u32 a[4] = {word_of(low, i), word_of(high, i), word_of(low, i + 1),
                                  word_of(high, i + 1)};
                u32 b[2];
                widen_int8(b, word_of(codes, s));
                mma16(group, a, b[0], b[1]);
            }
            const float by[2] = {scales[c][h].x, scales[c][h].y};
#pragma unroll
            for (int i = 0; i < 4; i++) sum[c][h][i] = fmaf(group[i], by[i & 1], sum[c][h][i]);
        }
}

/* Blocks I … P - 1 of the warp. Where one is multiplied, that of WINDOW blocks later is asked for. */
template <class T, int I = 0>
DEV void multiply_all(float (&sum)[T::C][2][4], uint4 (&x)[T::WINDOW][2][2][2],
                      const float2 (&scales)[T::P][T::C][2], const few_rows &from, int k_end, u32 w, int warp,
                      int lane) {
    if constexpr (I < T::P) {
        copy_wait<T::P - 1 - I>();
        multiply<T>(sum, x[I % T::WINDOW], scales[I], w + I * T::C * GPU_ATOM_BYTES);
        if constexpr (I + T::WINDOW < T::P) {
            load_block(x[I % T::WINDOW], from, k_end, I + T::WINDOW, warp, lane);
            __syncwarp();
        }
        multiply_all<T, I + 1>(sum, x, scales, from, k_end, w, warp, lane);
    }
}

template <class T> DEV void few_int8(const gpu_linear &p) {
    extern __shared__ __align__(1024) char memory[];
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
    const u32 w = shared_address(memory) + warp * T::WARP_BYTES + lane * 16;
    float *const norm = (float *)(memory + WARPS * T::WARP_BYTES), *const squares = norm + 2 * p.ldx;
    const bool normed = T::PAIRED && p.norm != GPU_NORM_NONE;

    if (normed) few_load_norm(p, shared_address(norm), tid);
    load_weights<T>(p, w, warp, lane);
    start_next();
    const few_task task = few_task_of<T>(tid);
    const int rows = __ldg(p.count);       /* beyond them the tables of rows may hold anything              */
    float2 scales[T::P][T::C][2];
    load_scales<T>(scales, p, warp, lane);
    finish f = {};
    if (task.there)
        f = prepare<T::KIND>(p.epilogue, task.r, rows, blockIdx.x * T::C * 8 + task.u * T::UNIT, task.t);
    wait_before();
    if (rows <= 0) {
        copy_wait<0>();
        return;
    }
    uint4 x[T::WINDOW][2][2][2];
    const few_rows from = few_rows_of(p, rows, lane);
#pragma unroll
    for (int i = 0; i < T::WINDOW; i++) load_block(x[i], from, p.ldx, i, warp, lane);
    __syncwarp();                          /* keeps the loads here, all asked for at once                   */
    u32 before = 0;
    if (T::KIND == GPU_EPILOGUE_RESIDUAL && f.there)
        before = __ldcg((const u32 *)((const u16 *)p.epilogue.out + f.at));
    if constexpr (T::WINDOW == T::P)
        if (normed) norm_block<T>(x, p, norm, squares, rows, warp, lane);
    float sum[T::C][2][4] = {};
    multiply_all<T>(sum, x, scales, from, p.ldx, w, warp, lane);
    few_finish<T>(p, (float *)memory, sum, task, f, before, warp, lane);
}

#define FEW_AS(head, name, kind, groups, blocks)                         \
    head name(const __grid_constant__ gpu_linear p) {                    \
        few_int8<few_int8_tile<GPU_EPILOGUE_##kind, groups, blocks>>(p); \
    }
#define FEW(...) FEW_AS(KERNEL(256), __VA_ARGS__)
FEW(few_int8_qkv_16_1, QKV, 2, 1)
FEW(few_int8_qkv_32_1, QKV, 4, 1)
FEW(few_int8_gated_32_1, GATED, 4, 1)
FEW(few_int8_gated_64_1, GATED, 8, 1)
FEW(few_int8_residual_8_2, RESIDUAL, 1, 2)
FEW(few_int8_residual_16_2, RESIDUAL, 2, 2)
/* 128 registers, as many as gate_up leaves, spill on sm_120. */
FEW_AS(KERNEL_HELD(256, 1), few_int8_residual_8_4, RESIDUAL, 1, 4)

/* ---- for all other kernels ----------------------------------------------------------------------------- */

KERNEL(256) unpack_int8(const __grid_constant__ gpu_unpack p) {
    start_next();
    wait_before();
    const int pieces = (p.weights.k + 3) / 4, groups = (p.weights.k + GROUP_K - 1) / GROUP_K;
    const size_t index = (size_t)blockIdx.x * 256 + threadIdx.x;
    const int column = (int)(index / pieces), k = (int)(index % pieces) * 4;
    if (column >= p.weights.columns) return;
    const int row = channel_row(p.epilogue, column);
    const signed char *codes =
        (const signed char *)p.weights.data +
        ((size_t)(column >> 3) * p.weights.blocks + k / BLOCK_K) * GPU_ATOM_BYTES + (column & 7) * 128 +
        (((k / 16 ^ column) & 7) << 4) + k % 16;
    const float scale = row < 0 ? 0 : __ldg(p.weights.scales + (size_t)row * groups + k / GROUP_K);
    *(float4 *)(p.out + index * 4) =
        make_float4(codes[0] * scale, codes[1] * scale, codes[2] * scale, codes[3] * scale);
}
