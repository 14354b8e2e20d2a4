/* x·Wᵀ for few rows in bf16 on Hopper, 16 a block: the denoise loop's products, a chain of short kernels of
 * which only the time from one kernel's last store to the next kernel's last store is seen. So a block
 * fetches all its weights, its norm and its positions before the previous kernel has ended; after that: one
 * copy of x, the sums, one exchange, the outputs.
 *
 * A cluster of KS blocks makes 8·C packed columns; block `rank` takes the rank-th part of k, at most 1024:
 *
 *   x       [k/64][16 rows][128 bytes, swizzled], one TMA copy of a box of three dimensions
 *   W       [C groups of 8 columns][k/64][1024 bytes], as stored, one TMA copy a group
 *   sums    warp (gw, kw) takes the gw-th part of the groups and the blocks kw, kw + KW … of 64 k; it sends
 *           its part of a group to the block that owns the group (KS > 1: over the cluster, counted by a
 *           barrier), where the parts are added in a fixed order
 *
 * The norm happens in place, 16 threads a row. With split the fp32 outputs leave as bf16 + bf16
 * beside each other, [row][upper n | lower n], and k of the next product runs over both: W repeats (args.h).
 *
 *   blocks   256 threads; grid = columns / (8·C) · KS x rows / 16; clusters of KS
 *   shared   x and W; the partial sums (KS = 1: over x and W once these are read, KS > 1: after them); the
 *            norm's parameters
 *   legal    k % 64 == 0, k / 64 = KS·(1 … 16) and W has a whole multiple of k / 64 / KS blocks; columns %
 *            (8·C) == 0; no row map on x; outputs bf16, a multiple of 8 (qkv: head_dim % 16 == 0), no x_t and
 *            no added rows; a gated matrix without bias; RMS norm only, only of qkv and gated matrices, and
 *            only with KS = 1
 *   early    before wait_before(): weights, norm, positions, angles, bias, gate. start_next() comes after the
 *            copy of x has been issued, for the next kernel's weights would queue before x in the TMA.
 *
 * skinny_hopper.c checks what is legal and launches. */
#include "backend/gpu/cuda/hopper.cuh"
#include "backend/gpu/cuda/weight_tile.cuh"
#include "pairs.cuh"

typedef weight_tile<GPU_WEIGHT_BF16> atom;

/* The norm of x in place: 16 threads a row, 8 units of 16 bytes each; parameters in shared memory, after them
 * those of known rows. */
template <int BIAS>
DEV void norm_row(const gpu_linear &l, char *memory, const float *parameters, const int *known, int rows) {
    const int row = threadIdx.x >> 4, first = threadIdx.x & 15, units = l.ldx / 8;
    char *at = memory + (first >> 3) * 2048 + row * 128 + (((first ^ row) & 7) << 4);
    const float *weight = parameters + (l.epilogue.known.rows ? known[row] : 0) + first * 8;
    uint4 v[8];
    float even = 0, odd = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        v[i] = make_uint4(0, 0, 0, 0);
        if (row < rows && first + i * 16 < units) v[i] = *(const uint4 *)(at + i * 4096);
        const u32 w[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
#pragma unroll
        for (int j = 0; j < 4; j++)
            even = fmaf(low_of(w[j]), low_of(w[j]), even), odd = fmaf(high_of(w[j]), high_of(w[j]), odd);
    }
    even += odd;
#pragma unroll
    for (int i = 8; i; i >>= 1) even += __shfl_xor_sync(0xffffffffu, even, i);
    const float f = rsqrtf(even / l.ldx + l.eps);
    if (row >= rows) return;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        u32 w[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
        if (first + i * 16 >= units) break;
#pragma unroll
        for (int j = 0; j < 4; j += 2) {
            const float4 m = *(const float4 *)(weight + i * 128 + j * 2);
            float4 b = make_float4(0, 0, 0, 0);
            if (BIAS) b = *(const float4 *)(weight + l.ldx + i * 128 + j * 2);
            w[j] = pack_bf16(fmaf(low_of(w[j]), fmaf(m.x, f, f), b.x),
                             fmaf(high_of(w[j]), fmaf(m.y, f, f), b.y));
            w[j + 1] = pack_bf16(fmaf(low_of(w[j + 1]), fmaf(m.z, f, f), b.z),
                                 fmaf(high_of(w[j + 1]), fmaf(m.w, f, f), b.w));
        }
        *(uint4 *)(at + i * 4096) = make_uint4(w[0], w[1], w[2], w[3]);
    }
}

/* ---- the kernel ---------------------------------------------------------------------------------------- */

enum {
    WARPS = 8,
    COPIER = 128,                          /* the thread that issues the TMA's copies: not a busy one       */
};

/* What a kernel decides at compile time. */
template <int C_, int KS_, int KIND_, int GW_, int KEPT_> struct skinny_tile {
    enum {
        C = C_, KS = KS_, KIND = KIND_,    /* groups of 8 columns; blocks that share k; epilogue            */
        KW = WARPS / GW_, MINE = C / GW_,  /* warps that share k; groups of a warp                          */
        OWN = C / KS,                      /* groups that the block finishes                                */
        KEPT = KEPT_,                      /* blocks of 64 k whose weights wait in registers                */
        PAIRED = KIND == GPU_EPILOGUE_QKV || KIND == GPU_EPILOGUE_GATED,
        UNITS = PAIRED ? OWN / 2 : OWN,    /* that a task has one of                                        */
        TASKS = UNITS * 64,
        MOST_SUBS = WARPS * 32 / TASKS < 4 ? WARPS * 32 / TASKS : 4,
        SUBS = KIND == GPU_EPILOGUE_QKV ? 2 : MOST_SUBS,   /* threads that share a task's adding            */
    };
    static_assert(WARPS == 8 && MINE * GW_ == C, "16 threads a row, and every group is somebody's");
    static_assert(TASKS * SUBS <= WARPS * 32, "a thread has at most one task");
};

/* Addresses in shared memory: operands, partial sums, and the barriers that count what arrives. */
typedef struct skinny_memory {
    u32 x, w, parts;
    u32 w_full, x_full, parts_full;
    float4 *sums;                          /* the parts: [KS·KW sources][OWN][32 lanes]                     */
} skinny_memory;

/* Without a cluster the parts lie over x and W, which are read by then; a cluster's parts arrive at any
 * time. */
template <class T> DEV skinny_memory skinny_memory_of(char *memory, const u64 *barriers, int blocks) {
    const u32 x = shared_address(memory), w = x + blocks * 2048,
              parts = T::KS > 1 ? w + T::C * blocks * atom::BYTES : x;
    const u32 w_full = shared_address(barriers);
    return {.x = x, .w = w, .parts = parts, .w_full = w_full, .x_full = w_full + 8, .parts_full = w_full + 16,
            .sums = (float4 *)(memory + (parts - x))};
}

/* One thread: barriers, and the copies of all the block's weights, which no kernel writes. */
template <class T>
DEV void start_weights(const gpu_hopper &p, const skinny_memory &m, int blocks, int rank, int group0) {
    const gpu_linear &l = p.linear;
    barrier_init(m.w_full, 1);
    barrier_init(m.x_full, 1);
    barrier_init(m.parts_full, 1);
    barrier_init_done();
    barrier_arm(m.w_full, T::C * blocks * atom::BYTES);
    const int first = rank * blocks % l.weights.blocks;
    for (int c = 0; c < T::C; c++)
        copy_bytes_once(m.w + c * blocks * atom::BYTES,
                        atom_of<atom>(l.weights.data, l.weights.blocks, group0 + c, first),
                        blocks * atom::BYTES, m.w_full);
    barrier_arm(m.x_full, blocks * 2048);
    if (T::KS > 1) barrier_arm(m.parts_full, T::KS * T::KW * T::OWN * 512);
    prefetch_map(&p.x);
}

/* The norm's weight and, where there is one, its bias, l.stages bytes after x; where rows may be known,
 * theirs follow, and known[r] says where the parameters of the block's row r begin. */
DEV void load_norm(const gpu_linear &l, u32 x, int *known, int row0, int tid) {
    const gpu_known &k = l.epilogue.known;
    const int sets = k.rows ? 2 : 1, floats = (l.norm_bias ? 2 : 1) * l.ldx;
#pragma unroll 1
    for (int s = 0; s < sets; s++)
        for (int i = tid * 4; i < l.ldx; i += WARPS * 128) {
            const u32 to = x + l.stages + (s * floats + i) * 4;
            copy16(to, l.norm_weight + s * k.at + i, 1);
            if (l.norm_bias) copy16(to + l.ldx * 4, l.norm_bias + s * k.at + i, 1);
        }
    if (k.rows && tid < 16) known[tid] = known_at(k, row0 + tid, row0 + tid < l.capacity) ? floats : 0;
    copy_commit();
}

/* The outputs that a thread finishes: thread (task, sub), of qkv in the first four warps, has one row half h,
 * lane slot `slot`, and unit or group u. */
typedef struct skinny_task {
    int task, sub, h, slot, u;
} skinny_task;

template <class T> DEV skinny_task task_of(int tid) {
    const int task = tid / T::SUBS;
    return {.task = task, .sub = tid % T::SUBS, .h = task & 1, .slot = task >> 1 & 31, .u = task >> 6};
}

/* Weights of 64 k (block kb) of the warp's groups: [half of the 64 k][four matrices]. */
template <class T> DEV void load_weights(u32 (&b)[T::MINE][2][4], u32 w_row, int blocks, int kb, int lane) {
#pragma unroll
    for (int c = 0; c < T::MINE; c++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            load_fragment<atom>(b[c][h], w_row + (c * blocks + kb) * atom::BYTES, h, lane);
}

template <class T>
DEV void keep_weights(u32 (&kept)[T::KEPT][T::MINE][2][4], u32 w_row, int blocks, int kw, int lane) {
#pragma unroll
    for (int i = 0; i < T::KEPT; i++)
        if (kw + i * T::KW < blocks) load_weights<T>(kept[i], w_row, blocks, kw + i * T::KW, lane);
}

/* Until x and W have arrived and x is normed. Weights that arrive before x wait in registers, for reading
 * shared memory is what limits the products. */
template <class T>
DEV void await_operands(u32 (&kept)[T::KEPT][T::MINE][2][4], const gpu_linear &l, const skinny_memory &m,
                        char *memory, const int *known, u32 w_row, int blocks, int kw, int lane, int rows,
                        bool normed) {
    const float *norm = (const float *)(memory + l.stages);    /* l.stages: where the norm's parameters lie */
    int ready = 0;
    while (!(ready = __all_sync(0xffffffffu, barrier_passed(m.w_full, 0))) &&
           !__all_sync(0xffffffffu, barrier_passed(m.x_full, 0)))
        continue;
    if (ready) keep_weights<T>(kept, w_row, blocks, kw, lane);
    barrier_wait(m.x_full, 0);
    if (normed) {
        if (l.norm_bias) norm_row<1>(l, memory, norm, known, rows);
        else norm_row<0>(l, memory, norm, known, rows);
        __syncthreads();
    }
    if (!ready) {
        barrier_wait(m.w_full, 0);
        keep_weights<T>(kept, w_row, blocks, kw, lane);
    }
}

/* sum += x·W over 64 k, block kb; even and odd steps add up apart. */
template <class T>
DEV void multiply_block(float (&sum)[T::MINE][2][4], const u32 (&b)[T::MINE][2][4], u32 x_at, int kb,
                        int lane) {
    const u32 x = x_at + kb * 2048 + (lane & 15) * 128;
#pragma unroll
    for (int s = 0; s < 4; s++) {
        u32 a[4];
        load_matrix4(a, x + (((2 * s + (lane >> 4)) ^ (lane & 7)) << 4));
#pragma unroll
        for (int c = 0; c < T::MINE; c++)
            mma16(sum[c][s & 1], a, b[c][s >> 1][(s & 1) * 2], b[c][s >> 1][(s & 1) * 2 + 1]);
    }
}

/* The warp's part of every group to the block that owns the group. */
template <class T>
DEV void send_parts(const float (&sum)[T::MINE][2][4], const skinny_memory &m, int rank, int kw, int own0,
                    int lane) {
    if (T::KS == 1) __syncthreads();
    else cluster_wait();
#pragma unroll
    for (int c = 0; c < T::MINE; c++) {
        const int group = own0 + c;
        const u32 to = m.parts + (((rank * T::KW + kw) * T::OWN + group % T::OWN) * 32 + lane) * 16;
        float v[4];
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = sum[c][0][i] + sum[c][1][i];
        if (T::KS > 1)
            send16(peer_address(to, group / T::OWN), peer_address(m.parts_full, group / T::OWN), v[0], v[1],
                   v[2], v[3]);
        else m.sums[(to - m.parts) / 16] = make_float4(v[0], v[1], v[2], v[3]);
    }
    if (T::KS > 1) barrier_wait(m.parts_full, 0);
    else __syncthreads();
}

/* The parts of the thread's outputs, added in a fixed order, and what becomes of them. */
template <class T>
DEV void add_parts(const gpu_linear &l, const skinny_memory &m, const skinny_task &k, const finish &f,
                   u32 before) {
    if (k.task >= T::TASKS) return;
    float a0 = 0, a1 = 0, b0 = 0, b1 = 0;
#pragma unroll
    for (int i = k.sub; i < T::KS * T::KW; i += T::SUBS) {
        const float2 *from =
            (const float2 *)(m.sums + (i * T::OWN + k.u * (T::PAIRED ? 2 : 1)) * 32 + k.slot) + k.h;
        float2 v = from[0];
        a0 += v.x, a1 += v.y;
        if (T::PAIRED) {
            v = from[64];
            b0 += v.x, b1 += v.y;
        }
    }
#pragma unroll
    for (int i = 1; i < T::SUBS; i <<= 1) {
        a0 += __shfl_xor_sync(0xffffffffu, a0, i), a1 += __shfl_xor_sync(0xffffffffu, a1, i);
        if (T::PAIRED) b0 += __shfl_xor_sync(0xffffffffu, b0, i), b1 += __shfl_xor_sync(0xffffffffu, b1, i);
    }
    complete<T::KIND>(l.epilogue, f, before, a0, a1, b0, b1);
}

template <class T> DEV void skinny(const gpu_hopper &p) {
    extern __shared__ __align__(1024) char memory[];
    __shared__ __align__(8) u64 barriers[3];
    __shared__ int known[16];
    const gpu_linear &l = p.linear;
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, blocks = l.k_blocks / T::KS,
              rank = T::KS > 1 ? cluster_rank() : 0;
    const int group0 = blockIdx.x / T::KS * T::C, row0 = blockIdx.y * 16;
    const skinny_memory m = skinny_memory_of<T>(memory, barriers, blocks);
    const bool normed = T::PAIRED && l.norm != GPU_NORM_NONE;

    if (tid == COPIER) start_weights<T>(p, m, blocks, rank, group0);
    if (T::KS > 1) cluster_arrive();       /* waited for before anything is sent                            */
    if (normed) load_norm(l, m.x, known, row0, tid);
    const skinny_task k = task_of<T>(tid);
    const int r = row0 + (k.slot >> 2) + 8 * k.h, rows = *l.count,
              column = (group0 + rank * T::OWN) * 8 + k.u * (T::PAIRED ? 16 : 8);
    finish f = {};
    if (k.task < T::TASKS && !k.sub && r < l.capacity)
        f = prepare<T::KIND>(l.epilogue, r, l.capacity, column, k.slot & 3);

    wait_before();
    if (tid == COPIER) copy_box3(m.x, &p.x, 0, row0, rank * blocks, m.x_full);
    start_next();                          /* not earlier: its weights would queue before x in the TMA      */
    if (tid == COPIER) fetch_ahead(l.ahead);
    f.there &= r < rows;
    u32 before = 0;
    if (T::KIND == GPU_EPILOGUE_RESIDUAL && f.there)
        before = __ldcg((const u32 *)((const u16 *)l.epilogue.out + f.at));
    copy_wait<0>();
    __syncthreads();                       /* the barriers are made, the norm's parameters have arrived     */

    const int kw = warp % T::KW, own0 = warp / T::KW * T::MINE;    /* groups own0 … own0 + MINE - 1         */
    const u32 w_row = m.w + own0 * blocks * atom::BYTES + fragment_column<atom>(lane);
    u32 kept[T::KEPT][T::MINE][2][4];
    await_operands<T>(kept, l, m, memory, known, w_row, blocks, kw, lane, rows - row0, normed);
    float sum[T::MINE][2][4] = {};
#pragma unroll
    for (int i = 0; i < T::KEPT; i++)
        if (kw + i * T::KW < blocks) multiply_block<T>(sum, kept[i], m.x, kw + i * T::KW, lane);
#pragma unroll 1
    for (int kb = kw + T::KEPT * T::KW; kb < blocks; kb += T::KW) {
        u32 b[T::MINE][2][4];
        load_weights<T>(b, w_row, blocks, kb, lane);
        multiply_block<T>(sum, b, m.x, kb, lane);
    }
    send_parts<T>(sum, m, rank, kw, own0, lane);
    add_parts<T>(l, m, k, f, before);
}

/* KEPT: as many as leave registers of the multiprocessor to a block of the previous or the next kernel. */
#define SKINNY(name, C, KS, KIND, GW, KEPT)                                                                  \
    KERNEL(256) name(const __grid_constant__ gpu_hopper p) {                                                 \
        skinny<skinny_tile<C, KS, GPU_EPILOGUE_##KIND, GW, KEPT>>(p);                                        \
    }
SKINNY(skinny_hopper_qkv_2, 2, 1, QKV, 1, 2)
SKINNY(skinny_hopper_qkv_4, 4, 1, QKV, 2, 3)
SKINNY(skinny_hopper_gated_4, 4, 1, GATED, 1, 1)
SKINNY(skinny_hopper_gated_8, 8, 1, GATED, 2, 2)
SKINNY(skinny_hopper_residual_2, 2, 2, RESIDUAL, 1, 2)
SKINNY(skinny_hopper_residual_4, 4, 4, RESIDUAL, 2, 4)
SKINNY(skinny_hopper_store_2, 2, 2, STORE, 1, 2)
