/* x·Wᵀ for 17 to 64 rows in bf16 on Hopper: the denoise loop of long horizons and of small batches. As in
 * skinny_hopper only the time from one kernel's last store to the next kernel's last store is seen; here all
 * rows are one tile, so that every weight is fetched once.
 *
 * A cluster of KS blocks makes 64 packed columns of all rows; block `rank` takes the rank-th part of k. Gate
 * and up are in medium_gated.cuh, norms in medium_norm.cuh.
 *
 *   x        stages of [rows, in eights][128 bytes, swizzled], one for each 64 k (residual: 4 in turn), with
 *            a TMA copy and a barrier each
 *   W        [8 groups of columns][k/64][1024 bytes], as stored, one copy a group: wgmma's A, x is its B
 *   norm     a warp has 8 rows of x, a lane 8 columns of each, whose parameters it has in registers before x
 *            comes; x is normed where it lies
 *   sums     8 rows each go to the block that finishes these rows, counted by a barrier, and are added in the
 *            order of ranks. They arrive where x and W were: the cluster meets before they are sent
 *   squares  of the rows that a residual has finished, for the norm in the next product
 *
 *   blocks   256 threads, of which the first warpgroup multiplies; grid = columns / 64 · KS; clusters of KS
 *   shared   x, W. As little as possible: what is left holds blocks of the next kernel
 *   legal    17 to 64 rows; k % (64·KS) == 0, at most 16 blocks of 64 k a block (qkv: 4); columns % 64 == 0;
 *            no row maps; outputs bf16, a multiple of 8 (qkv: head_dim % 16 == 0), no x_t and no added rows;
 *            a norm only of qkv, only RMS, and the same for all rows
 *   early    before wait_before(): weights, the norm's parameters, positions, angles, bias, gate.
 *            start_next() comes after the first copies of x have been issued, for the next kernel's weights
 *            would queue before x in the TMA. Weights of later kernels are not fetched here: it cost 0.4 µs.
 *
 * medium_hopper.c checks what is legal and launches. */
#include "backend/gpu/cuda/ring.cuh"
#include "backend/gpu/cuda/product/medium.h"
#include "pairs.cuh"
#include "backend/gpu/cuda/weight_tile.cuh"
#include "backend/gpu/cuda/wgmma.cuh"

#include "medium_norm.cuh"

typedef weight_tile<GPU_WEIGHT_BF16> atom;

enum {
    THREADS = 256,
    COPIER = 128,                          /* the thread that issues the TMA's copies                       */
    ROWS = 64,
    COLUMNS = 64, GROUPS = COLUMNS / atom::COLUMNS,
    SLOTS = 128,                           /* threads that multiply: each has 16 bytes of every 8 rows      */
    STAGES = 4,                            /* most of x                                                     */
};

template <int KS_, int KIND_> struct medium_tile {
    enum {
        KS = KS_, KIND = KIND_,            /* blocks of the cluster; epilogue                               */
        OWN = 8 / KS,                      /* times 8 rows that the block finishes                          */
        ITEMS = (OWN * SLOTS + THREADS - 1) / THREADS, /* that a thread finishes                            */
        NORMS = KIND == GPU_EPILOGUE_QKV,  /* x may have a norm                                             */
        PAIRS = KIND == GPU_EPILOGUE_QKV ? 1 : 2,      /* pairs of outputs an item                          */
    };
    static_assert(8 % KS == 0, "all rows are owned");
};

/* Addresses in shared memory. */
typedef struct medium_memory {
    ring x;
    u32 w;
    u32 parts;                             /* [KS sources][OWN][SLOTS], 16 bytes each, over x and W         */
    u32 w_full, parts_full;                /* barriers                                                      */
    int stages, slot;                      /* stages for x in memory; bytes of one                          */
} medium_memory;

DEV medium_memory medium_memory_of(char *memory, const u64 *barriers, int blocks, int slot) {
    const int stages = min(blocks, (int)STAGES);
    const u32 x = shared_address(memory), bars = shared_address(barriers);
    return {.x = ring_of(x, STAGES, bars + 16), .w = x + stages * slot, .parts = x,
            .w_full = bars, .parts_full = bars + 8, .stages = stages, .slot = slot};
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
    for (int i = 0; i < 2 + STAGES; i++) barrier_init(m.w_full + 8 * i, 1);
    for (int i = 0; i < STAGES; i++) ring_init_empty(m.x, i, 4);
    barrier_init_done();
    barrier_arm(m.w_full, GROUPS * blocks * atom::BYTES);
    for (int c = 0; c < GROUPS; c++)
        copy_bytes_once(m.w + c * blocks * atom::BYTES,
                        atom_of<atom>(l.weights.data, l.weights.blocks, group0 + c, rank * blocks),
                        blocks * atom::BYTES, m.w_full);
    barrier_arm(m.parts_full, (T::KS - 1) * own_groups<T>(rank, rows) * SLOTS * 16);
    prefetch_map(&p.x);
}

/* The thread COPIER: block kb of the block's part of x. */
DEV void copy_x(const gpu_hopper &p, const medium_memory &m, int first, int kb) {
    const int stage = kb % m.stages;
    const u32 full = ring_full(m.x, {(u32)stage, 0});
    barrier_arm(full, m.slot);
    copy_box3(m.x.at + stage * m.slot, &p.x, 0, 0, first + kb, full);
}

/* ---- norm ---------------------------------------------------------------------------------------------- */

/* A lane's 8 columns: unit lane % 8 of block lane / 8. */
DEV uint4 *unit_at(char *memory, int slot, int row, int lane) {
    return (uint4 *)(memory + (lane >> 3) * slot + row * 128 + (((lane ^ row) & 7) << 4));
}

/* The norm's parameters of a lane's columns: (w, w', b, b') of two each. */
typedef struct lane_norm {
    float4 pairs[4];
} lane_norm;

DEV lane_norm load_norm(const gpu_linear &l, int blocks, int rank, int lane) {
    lane_norm n = {};
    const int k = rank * blocks * GPU_ATOM_K + lane * 8;
    if (lane >= blocks * 8) return n;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 w = __ldg((const float2 *)(l.norm_weight + k) + i);
        float2 b = make_float2(0, 0);
        if (l.norm_bias) b = __ldg((const float2 *)(l.norm_bias + k) + i);
        n.pairs[i] = make_float4(w.x, w.y, b.x, b.y);
    }
    return n;
}

/* A warp's 8 rows, where they exist. */
DEV void norm_rows(const gpu_linear &l, const medium_memory &m, const float *squares, char *memory,
                   const lane_norm &norm, int blocks, int tid, int rows) {
    const int lane = tid & 31, row0 = tid >> 5 << 3;
    if (row0 >= rows) return;
    const float f = row_factor(l, squares, row0 + (lane >> 2), lane & 3, rows);
    for (int kb = 0; kb < blocks; kb++) ring_await_full(m.x, {(u32)kb, 0});
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float factor = __shfl_sync(0xffffffffu, f, 4 * i);
        if (lane >= blocks * 8) continue;
        uint4 *at = unit_at(memory, m.slot, row0 + i, lane), v = *at;
        *at = make_uint4(norm_pair(v.x, factor, norm.pairs[0]), norm_pair(v.y, factor, norm.pairs[1]),
                         norm_pair(v.z, factor, norm.pairs[2]), norm_pair(v.w, factor, norm.pairs[3]));
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ---- product and exchange ------------------------------------------------------------------------------ */

/* d = 64 columns x 64 rows over the block's part of k. Beyond the rows of a stage what follows it is read:
 * sums of rows that do not exist are not stored. */
template <class T>
DEV void multiply_rows(float (&d)[32], const medium_memory &m, int blocks, int lane, bool normed) {
    const u64 a = cluster_operand(m.w, blocks * atom::BYTES), b = cluster_operand(m.x.at, 1024);
    barrier_wait(m.w_full, 0);
    for (int kb = 0; kb < blocks; kb++) {
        const ring_place at = ring_use(m.x, kb);
        if (!normed) ring_await_full(m.x, at);
        wgmma_begin();
#pragma unroll
        for (int i = 0; i < atom::STEPS; i++)
            wgmma(d, a + kb * atom::NEXT + atom::STEP * i, b + (int)at.slot * (m.slot / 16) + 2 * i, kb | i);
        wgmma_commit();
        if (!T::NORMS) {
            wgmma_wait<1>();
            if (kb) ring_leave(m.x, ring_use(m.x, kb - 1), lane);
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
            *(float4 *)(memory + (to - m.x.at)) =
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
    const float4 *from = (const float4 *)(memory + (m.parts - m.x.at)) + item;
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

/* A residual's sums of squares of 16 columns: four lanes have them, 8 lanes apart. */
template <class T>
DEV void leave_squares(const gpu_medium &p, const u32 (&out)[T::PAIRS], int item, int rank, int rows) {
    const float s = sum_squares(out[0], out[T::PAIRS - 1], 8);
    const int r = item_row<T>(item, rank), units = p.hopper.linear.epilogue.n / GPU_UNIT,
              unit = blockIdx.x / T::KS * (COLUMNS / GPU_UNIT) + item % SLOTS / 32;
    if ((item & 31) < 8 && r < rows && unit < units) p.squares[(size_t)r * units + unit] = s;
}

template <class T>
DEV void complete_items(const gpu_medium &p, const medium_memory &m, char *memory,
                        const finish (&f)[T::ITEMS][T::PAIRS], const u32 (&before)[T::ITEMS][T::PAIRS],
                        int rank, int tid, int rows) {
    const gpu_epilogue &e = p.hopper.linear.epilogue;
#pragma unroll
    for (int i = 0; i < T::ITEMS; i++) {
        const int item = tid + i * THREADS;
        if (item >= T::OWN * SLOTS || (rank * T::OWN + item / SLOTS) * 8 >= rows) continue;
        const float4 v = add_item<T>(m, memory, item);
        if (T::KIND == GPU_EPILOGUE_RESIDUAL) {
            u32 out[T::PAIRS];
#pragma unroll
            for (int h = 0; h < T::PAIRS; h++) {
                out[h] = residual_pair(f[i][h], before[i][h], h ? v.z : v.x, h ? v.w : v.y);
                if (f[i][h].there) *(u32 *)((u16 *)e.out + f[i][h].at) = out[h];
            }
            if (p.squares) leave_squares<T>(p, out, item, rank, rows);
        } else {
            complete<T::KIND>(e, f[i][0], before[i][0], v.x, v.y, v.z, v.w);
        }
    }
}

template <class T> DEV void medium(const gpu_medium &arguments) {
    extern __shared__ __align__(1024) char memory[];
    __shared__ __align__(8) u64 barriers[2 + 2 * STAGES];
    const gpu_hopper &p = arguments.hopper;
    const gpu_linear &l = p.linear;
    const int tid = threadIdx.x, blocks = l.k_blocks / T::KS, rank = cluster_rank(), rows = *l.count,
              multiplies = tid < SLOTS;
    const medium_memory m = medium_memory_of(memory, barriers, blocks, arguments.slot);
    const bool normed = T::NORMS && l.norm != GPU_NORM_NONE;

    if (tid == COPIER) start_weights<T>(p, m, blocks, rank, rows);
    lane_norm norm;
    if (normed) norm = load_norm(l, blocks, rank, tid & 31);
    finish f[T::ITEMS][T::PAIRS];
    prepare_items<T>(f, l, rank, tid, rows);
    wait_before();
    if (tid == COPIER)
        for (int kb = 0; kb < m.stages; kb++) copy_x(p, m, rank * blocks, kb);
    start_next();                          /* not earlier: its weights would queue before x in the TMA      */
    u32 before[T::ITEMS][T::PAIRS] = {};
    if (T::KIND == GPU_EPILOGUE_RESIDUAL)
#pragma unroll
        for (int i = 0; i < T::ITEMS * T::PAIRS; i++) {
            const finish &to = f[i / T::PAIRS][i % T::PAIRS];
            const u16 *x = (const u16 *)l.epilogue.out + to.at;
            if (to.there) before[i / T::PAIRS][i % T::PAIRS] = __ldcg((const u32 *)x);
        }
    __syncthreads();                       /* the barriers are made                                         */

    if (normed) {
        norm_rows(l, m, arguments.squares, memory, norm, blocks, tid, rows);
        __syncthreads();
    }
    float d[32];
    if (multiplies) {
        multiply_rows<T>(d, m, blocks, tid & 31, normed);
    } else if (!T::NORMS && tid == COPIER) {
        for (int kb = m.stages; kb < blocks; kb++) {
            ring_await_empty(m.x, ring_use(m.x, kb));
            copy_x(p, m, rank * blocks, kb);
        }
    }
    cluster_sync();                        /* nobody reads x or W any more: sums may arrive there           */
    if (multiplies) send_sums<T>(d, m, memory, rank, tid, rows);
    __syncthreads();                       /* the block's own part                                          */
    barrier_wait(m.parts_full, 0);
    complete_items<T>(arguments, m, memory, f, before, rank, tid, rows);
}

/* Three blocks, so up to 80 registers: a block of qkv leaves those of two blocks of attention_cluster. */
#define MEDIUM(name, KS, KIND)                                                                               \
    extern "C" __global__ void __launch_bounds__(THREADS, 3) name(const __grid_constant__ gpu_medium p) {    \
        medium<medium_tile<KS, GPU_EPILOGUE_##KIND>>(p);                                                     \
    }
MEDIUM(medium_hopper_qkv, 4, QKV)
MEDIUM(medium_hopper_residual, 8, RESIDUAL)

#include "medium_gated.cuh"
