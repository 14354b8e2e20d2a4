/* x·Wᵀ for 17 to 64 rows in bf16 on Hopper: the denoise loop of long horizons and of small batches. As in
 * skinny_hopper only the time from one kernel's last store to the next kernel's last store is seen; here all
 * rows are one tile, so that every weight is fetched once.
 *
 * A cluster of KS blocks makes 64 packed columns of all rows; block `rank` takes the rank-th part of k.
 *
 *   x        stages of [64 rows][128 bytes, swizzled], one for each 64 k (residual: 4 in turn), with a TMA
 *            copy and a barrier each
 *   W        [8 groups of columns][k/64][1024 bytes], as stored, one copy a group: wgmma's A, x is its B
 *   norm     the sums of squares of the block's part of the rows go to all blocks of the cluster; then x is
 *            normed where it lies
 *   sums     8 rows each go to the block that finishes these rows, counted by a barrier, and are added in the
 *            order of ranks
 *
 *   blocks   256 threads, of which the first warpgroup multiplies; grid = columns / 64 · KS; clusters of KS
 *   shared   x, W, the sums that arrive, squares, the norm's parameters
 *   legal    17 to 64 rows; k % (64·KS) == 0, at most 16 blocks of 64 k a block; columns % 64 == 0; no row
 *            maps; outputs bf16, a multiple of 8 (qkv: head_dim % 16 == 0), no x_t and no added rows; a norm
 *            only of qkv, only RMS, and the same for all rows
 *   early    before wait_before(): weights, the norm's parameters, positions, angles, bias, gate.
 *            start_next() comes after the first copies of x have been issued, for the next kernel's weights
 *            would queue before x in the TMA.
 *
 * medium_hopper.c checks what is legal and launches. */
#include "hopper.cuh"
#include "pairs.cuh"
#include "wgmma.cuh"

enum {
    THREADS = 256,
    COPIER = 128,                          /* the thread that issues the TMA's copies                       */
    ROWS = 64,
    COLUMNS = 64, GROUPS = COLUMNS / 8,
    SLOTS = 128,                           /* threads that multiply: each has 16 bytes of every 8 rows      */
    X_BLOCK = ROWS * 128,                  /* bytes of 64 k of x                                            */
    MOST_STAGES = 16, RESIDUAL_STAGES = 4,
};

template <int KS_, int KIND_> struct medium_tile {
    enum {
        KS = KS_, KIND = KIND_,            /* blocks of the cluster; epilogue                               */
        OWN = 8 / KS,                      /* times 8 rows that the block finishes                          */
        ITEMS = (OWN * SLOTS + THREADS - 1) / THREADS, /* that a thread finishes                            */
        NORMS = KIND == GPU_EPILOGUE_QKV,  /* x may have a norm                                             */
        PAIRS = KIND == GPU_EPILOGUE_QKV ? 1 : 2,      /* of outputs of an item                             */
        STAGES = NORMS ? MOST_STAGES : RESIDUAL_STAGES, /* most of x                                        */
    };
    static_assert(8 % KS == 0, "all rows are owned");
};

/* Addresses in shared memory. */
typedef struct medium_memory {
    u32 x, w, parts;                       /* parts: [KS sources][OWN][SLOTS], 16 bytes each                */
    u32 squares;                           /* [KS sources][64 rows] floats                                  */
    float *norm;                           /* weight, then bias, of the block's part of k                   */
    u32 w_full, squares_full, parts_full, x_full, x_free;  /* x_full, x_free: one for each stage            */
    int stages;
} medium_memory;

template <class T> DEV medium_memory medium_memory_of(char *memory, const u64 *barriers, int blocks) {
    const int stages = min(blocks, (int)T::STAGES);
    const u32 x = shared_address(memory), w = x + stages * X_BLOCK, parts = w + COLUMNS * blocks * 128,
              squares = parts + 8 * SLOTS * 16, norm = squares + T::KS * ROWS * 4;
    const u32 bars = shared_address(barriers);
    return {.x = x, .w = w, .parts = parts, .squares = squares,
            .norm = (float *)(memory + (norm - x)),
            .w_full = bars, .squares_full = bars + 8, .parts_full = bars + 16, .x_full = bars + 24,
            .x_free = bars + 24 + 8 * T::STAGES, .stages = stages};
}

/* Groups of 8 rows in use that the block finishes. */
template <class T> DEV int own_groups(int rank, int rows) {
    return max(0, min((int)T::OWN, (rows + 7) / 8 - rank * T::OWN));
}

/* One thread: barriers, and the copies of all the block's weights, which no kernel writes. */
template <class T>
DEV void start_weights(const gpu_hopper &p, const medium_memory &m, int blocks, int rank, int rows) {
    const gpu_linear &l = p.linear;
    const int group0 = blockIdx.x / T::KS * GROUPS;
    for (int i = 0; i < 3 + T::STAGES; i++) barrier_init(m.w_full + 8 * i, 1);
    for (int i = 0; i < T::STAGES; i++) barrier_init(m.x_free + 8 * i, 4);
    barrier_init_done();
    barrier_arm(m.w_full, GROUPS * blocks * GPU_ATOM_BYTES);
    for (int c = 0; c < GROUPS; c++)
        copy_bytes_once(m.w + c * blocks * GPU_ATOM_BYTES,
                        (const char *)l.weights.data +
                            ((size_t)(group0 + c) * l.weights.blocks + rank * blocks) * GPU_ATOM_BYTES,
                        blocks * GPU_ATOM_BYTES, m.w_full);
    barrier_arm(m.squares_full, (T::KS - 1) * ROWS * 4);
    barrier_arm(m.parts_full, (T::KS - 1) * own_groups<T>(rank, rows) * SLOTS * 16);
    prefetch_map(&p.x);
}

/* The norm's parameters for the block's part of k. */
DEV void load_norm(const gpu_linear &l, const medium_memory &m, int blocks, int rank, int tid) {
    const int k = blocks * GPU_ATOM_K, first = rank * k;
    for (int i = tid * 4; i < k; i += THREADS * 4) {
        copy16(shared_address(m.norm + i), l.norm_weight + first + i, 1);
        if (l.norm_bias) copy16(shared_address(m.norm + k + i), l.norm_bias + first + i, 1);
    }
    copy_commit();
}

/* The thread COPIER: block kb of the block's part of x. */
DEV void copy_x(const gpu_hopper &p, const medium_memory &m, int first, int kb) {
    const int stage = kb % m.stages;
    barrier_arm(m.x_full + 8 * stage, X_BLOCK);
    copy_box3(m.x + stage * X_BLOCK, &p.x, 0, 0, first + kb, m.x_full + 8 * stage);
}

/* ---- norm ---------------------------------------------------------------------------------------------- */

/* Four threads a row; unit i of 8 columns. Neighbouring rows take different halves of 64 k: no bank
 * conflicts. */
DEV int unit_of(int i, int row, int part) { return part + 4 * ((i ^ row) & 1); }
DEV uint4 *unit_at(char *memory, int kb, int row, int unit) {
    return (uint4 *)(memory + kb * X_BLOCK + row * 128 + (((unit ^ row) & 7) << 4));
}

/* The row's sum of squares over the block's part of k, once x has arrived. */
DEV float sum_squares(const medium_memory &m, char *memory, int blocks, int row, int part) {
    float even = 0, odd = 0;
    for (int kb = 0; kb < blocks; kb++) {
        barrier_wait(m.x_full + 8 * kb, 0);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint4 v = *unit_at(memory, kb, row, unit_of(i, row, part));
            const u32 w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int j = 0; j < 4; j++)
                even = fmaf(low_of(w[j]), low_of(w[j]), even), odd = fmaf(high_of(w[j]), high_of(w[j]), odd);
        }
    }
    even += odd;
    even += __shfl_xor_sync(0xffffffffu, even, 1);
    return even + __shfl_xor_sync(0xffffffffu, even, 2);
}

/* The squares of a warp's 8 rows to all other blocks of the cluster, four rows a packet. */
template <class T> DEV void send_squares(const medium_memory &m, float squares, int rank, int lane, int row) {
    const int half = lane & 16, to = lane & 15;
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = __shfl_sync(0xffffffffu, squares, half + 4 * i);
    if (to < T::KS && to != rank)
        send16(peer_address(m.squares + (rank * ROWS + (row & ~7) + half / 4) * 4, to),
               peer_address(m.squares_full, to), v[0], v[1], v[2], v[3]);
}

/* 1 / root mean square of the row, the parts added in the order of ranks. */
template <class T>
DEV float row_factor(const gpu_linear &l, const medium_memory &m, const char *memory, float own, int rank,
                     int row) {
    const float *squares = (const float *)(memory + (m.squares - m.x)) + row;
    float sum = 0;
    barrier_wait(m.squares_full, 0);
#pragma unroll
    for (int i = 0; i < T::KS; i++) sum += i == rank ? own : squares[i * ROWS];
    return rsqrtf(sum / l.ldx + l.eps);
}

template <int BIAS> DEV uint4 norm8(const uint4 &v, float f, const float *weight, const float *bias) {
    const u32 x[4] = {v.x, v.y, v.z, v.w};
    u32 y[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 m = *(const float2 *)(weight + 2 * i);
        float2 b = make_float2(0, 0);
        if (BIAS) b = *(const float2 *)(bias + 2 * i);
        y[i] = pack_bf16(fmaf(low_of(x[i]), fmaf(m.x, f, f), b.x), fmaf(high_of(x[i]), fmaf(m.y, f, f), b.y));
    }
    return make_uint4(y[0], y[1], y[2], y[3]);
}

template <class T, int BIAS>
DEV void norm_rows(const gpu_linear &l, const medium_memory &m, char *memory, int blocks, int rank, int tid) {
    const int row = tid >> 2, part = tid & 3;
    const float own = sum_squares(m, memory, blocks, row, part);
    send_squares<T>(m, own, rank, tid & 31, row);
    const float f = row_factor<T>(l, m, memory, own, rank, row);
    for (int kb = 0; kb < blocks; kb++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int unit = unit_of(i, row, part);
            const float *weight = m.norm + kb * GPU_ATOM_K + unit * 8;
            uint4 *at = unit_at(memory, kb, row, unit);
            *at = norm8<BIAS>(*at, f, weight, weight + blocks * GPU_ATOM_K);
        }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ---- product and exchange ------------------------------------------------------------------------------ */

DEV u64 operand_of(u32 address, u32 group_bytes) {
    return (u64)1 << 62 | (u64)(group_bytes >> 4) << 32 | (u64)1 << 16 | (address & 0x3ffff) >> 4;
}

/* d = 64 columns x 64 rows over the block's part of k. */
template <class T>
DEV void multiply_rows(float (&d)[32], const medium_memory &m, int blocks, int lane, bool normed) {
    const u64 a = operand_of(m.w, blocks * GPU_ATOM_BYTES), b = operand_of(m.x, 1024);
    barrier_wait(m.w_full, 0);
    for (int kb = 0; kb < blocks; kb++) {
        const int stage = kb % T::STAGES;
        if (!normed) barrier_wait(m.x_full + 8 * stage, kb / T::STAGES & 1);
        wgmma_begin();
#pragma unroll
        for (int i = 0; i < 4; i++)
            wgmma(d, a + kb * (GPU_ATOM_BYTES / 16) + 2 * i, b + stage * (X_BLOCK / 16) + 2 * i, kb | i);
        wgmma_commit();
        if (!T::NORMS) {
            wgmma_wait<1>();
            if (kb && !lane) barrier_arrive(m.x_free + 8 * ((kb - 1) % T::STAGES));
        }
    }
    wgmma_wait<0>();
    after_wait(d);
}

/* Every 8 rows in use to the block that finishes them. */
template <class T>
DEV void send_sums(const float (&d)[32], const medium_memory &m, char *memory, int rank, int tid, int rows) {
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const u32 owner = j / T::OWN, to = m.parts + ((rank * T::OWN + j % T::OWN) * SLOTS + tid) * 16;
        if (8 * j >= rows) break;
        if (owner == rank)
            *(float4 *)(memory + (to - m.x)) =
                make_float4(d[4 * j], d[4 * j + 1], d[4 * j + 2], d[4 * j + 3]);
        else
            send16(peer_address(to, owner), peer_address(m.parts_full, owner), d[4 * j], d[4 * j + 1],
                   d[4 * j + 2], d[4 * j + 3]);
    }
}

/* Item i of a thread: a unit of 16 columns, a pair of columns in each half of it, and a row. A thread's 16
 * bytes are two rows of one column of each half; neighbours swap, so that each has a row of two columns. */
template <class T> DEV int item_row(int item, int rank) {
    const int lane = item & 31;
    return (rank * T::OWN + item / SLOTS) * 8 + 2 * (lane & 3) + (lane >> 2 & 1);
}

template <class T> DEV float4 add_item(const medium_memory &m, char *memory, int item) {
    const float4 *from = (const float4 *)(memory + (m.parts - m.x)) + item;
    const int odd = item >> 2 & 1;
    float4 v = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < T::KS; i++) {
        const float4 s = from[i * T::OWN * SLOTS];
        v.x += s.x, v.y += s.y, v.z += s.z, v.w += s.w;
    }
    const float a = __shfl_xor_sync(0xffffffffu, odd ? v.x : v.y, 4),
                b = __shfl_xor_sync(0xffffffffu, odd ? v.z : v.w, 4);
    return odd ? make_float4(a, v.y, b, v.w) : make_float4(v.x, a, v.z, b);
}

/* What the thread's items need; what a residual adds to comes later. */
template <class T>
DEV void prepare_items(finish (&f)[T::ITEMS][T::PAIRS], const gpu_linear &l, int rank, int tid, int rows) {
#pragma unroll
    for (int i = 0; i < T::ITEMS; i++)
#pragma unroll
        for (int h = 0; h < T::PAIRS; h++) {
            const int item = tid + i * THREADS, r = item_row<T>(item, rank),
                      column = blockIdx.x / T::KS * COLUMNS + item % SLOTS / 32 * 16 + 8 * h;
            f[i][h] = {};
            if (item < T::OWN * SLOTS && r < rows)
                f[i][h] = prepare<T::KIND>(l.epilogue, r, l.capacity, column, (item & 31) >> 3);
        }
}

template <class T>
DEV void complete_items(const gpu_linear &l, const medium_memory &m, char *memory,
                        const finish (&f)[T::ITEMS][T::PAIRS], const u32 (&before)[T::ITEMS][T::PAIRS],
                        int rank, int tid, int rows) {
#pragma unroll
    for (int i = 0; i < T::ITEMS; i++) {
        const int item = tid + i * THREADS;
        if (item >= T::OWN * SLOTS || (rank * T::OWN + item / SLOTS) * 8 >= rows) continue;
        const float4 v = add_item<T>(m, memory, item);
        complete<T::KIND>(l.epilogue, f[i][0], before[i][0], v.x, v.y, v.z, v.w);
        if (T::PAIRS == 2)
            complete<T::KIND>(l.epilogue, f[i][T::PAIRS - 1], before[i][T::PAIRS - 1], v.z, v.w, 0, 0);
    }
}

template <class T> DEV void medium(const gpu_hopper &p) {
    extern __shared__ __align__(1024) char memory[];
    __shared__ __align__(8) u64 barriers[3 + 2 * T::STAGES];
    const gpu_linear &l = p.linear;
    const int tid = threadIdx.x, blocks = l.k_blocks / T::KS, rank = cluster_rank(), rows = *l.count,
              multiplies = tid < SLOTS;
    const medium_memory m = medium_memory_of<T>(memory, barriers, blocks);
    const bool normed = T::NORMS && l.norm != GPU_NORM_NONE;

    if (tid == COPIER) start_weights<T>(p, m, blocks, rank, rows);
    cluster_arrive();                      /* waited for before anything is sent                            */
    if (normed) load_norm(l, m, blocks, rank, tid);
    finish f[T::ITEMS][T::PAIRS];
    prepare_items<T>(f, l, rank, tid, rows);
    wait_before();
    if (tid == COPIER)
        for (int kb = 0; kb < m.stages; kb++) copy_x(p, m, rank * blocks, kb);
    start_next();                          /* not earlier: its weights would queue before x in the TMA      */
    if (tid == COPIER) fetch_ahead(l.ahead);
    u32 before[T::ITEMS][T::PAIRS] = {};
    if (T::KIND == GPU_EPILOGUE_RESIDUAL)
#pragma unroll
        for (int i = 0; i < T::ITEMS * T::PAIRS; i++) {
            const finish &to = f[i / T::PAIRS][i % T::PAIRS];
            const u16 *x = (const u16 *)l.epilogue.out + to.at;
            if (to.there) before[i / T::PAIRS][i % T::PAIRS] = __ldcg((const u32 *)x);
        }
    copy_wait<0>();
    __syncthreads();                       /* the barriers are made, the norm's parameters have arrived     */
    cluster_wait();

    if (normed) {
        if (l.norm_bias) norm_rows<T, 1>(l, m, memory, blocks, rank, tid);
        else norm_rows<T, 0>(l, m, memory, blocks, rank, tid);
        __syncthreads();
    }
    float d[32];
    if (multiplies) {
        multiply_rows<T>(d, m, blocks, tid & 31, normed);
    } else if (!T::NORMS && tid == COPIER) {
        for (int kb = m.stages; kb < blocks; kb++) {
            barrier_wait(m.x_free + 8 * (kb % T::STAGES), kb / T::STAGES - 1 & 1);
            copy_x(p, m, rank * blocks, kb);
        }
    }
    if (multiplies) send_sums<T>(d, m, memory, rank, tid, rows);
    __syncthreads();                       /* the block's own part                                          */
    barrier_wait(m.parts_full, 0);
    complete_items<T>(l, m, memory, f, before, rank, tid, rows);
}

#define MEDIUM(name, KS, KIND)                                                                               \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) name(const __grid_constant__ gpu_hopper p) {    \
        medium<medium_tile<KS, GPU_EPILOGUE_##KIND>>(p);                                                     \
    }
MEDIUM(medium_hopper_qkv, 4, QKV)
MEDIUM(medium_hopper_residual, 8, RESIDUAL)
