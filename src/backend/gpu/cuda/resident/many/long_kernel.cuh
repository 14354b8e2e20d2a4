/* What the resident kernels for many rows are: the layers of a denoise step as one kernel that is resident
 * on the whole card. A kernel's source names it (RESIDENT_NAME), says whose sizes it has (LONG(ROWS) is
 * LONG_ROWS or WIDE_ROWS, resident_long.h) and includes its attention, then this.
 *
 * 128 blocks in clusters of two; for each tile of 64 rows two multiplying warpgroups, and two copying warps.
 * A block owns 8 columns of x, in fp32 registers. Phases of a layer, between which all blocks meet:
 *
 *   qkv       32 packed columns a block, 80 blocks; RoPE; new keys and values go to the cache
 *   attention a unit's rows and 64 keys a block (long_attention.cuh, wide_attention.cuh)
 *   join      16 dims of these a block
 *   o         16 columns a cluster, each block half of k -> x, scaled for the next norm, sums of squares
 *   gate_up   64 packed columns a block -> GeGLU
 *   down      as o
 *
 * Norms come after the products (long_products.cuh). Weights come as early as their ring has room, whatever
 * the phase.
 *
 *   early   before wait_before(): barriers, weights of the first layer. Every block's multiplying threads
 *           wait, so no block ends before the previous kernels have. */
#ifndef KERNELS_CUDA_LONG_KERNEL_CUH
#define KERNELS_CUDA_LONG_KERNEL_CUH

#include "long_products.cuh"

/* The phases of a layer, in order. Before the first layer there is one more, in which x is scaled. */
enum { QKV, ATTENTION, JOIN, OUT, GATE_UP, DOWN, PHASES };
enum {
    OUT_SLOTS = RESIDENT_HEADS * RESIDENT_HEAD / LONG_SLOT_K / CLUSTER, /* slots of a block's k            */
    DOWN_SLOTS = RESIDENT_HIDDEN / LONG_SLOT_K / CLUSTER,
};

/* One thread: weights, keys and values, as soon as there is room. */
DEV void feed_all_weights(block &b, const gpu_resident_long &p, const share &s) {
    const int column = b.rank & -CLUSTER;  /* the cluster's first column, in units of 8                     */
#pragma unroll 1
    for (int layer = 0; layer < p.depth; layer++) {
        const long_layer &l = p.layers[layer];
        if (b.rank < QKV_BLOCKS)
            feed_weights<LONG_QKV_GROUPS>(b, &l.qkv, LONG_QKV_GROUPS * b.rank, 0, X_SLOTS);
        if (!layer) wait_before();
        if (has_keys(s) && !is_fresh(p, s)) {
            feed_places(b, &p.k, s, layer);
            feed_places(b, &p.v, s, layer);
        }
        feed_weights<CLUSTER>(b, &l.o, column, b.side * OUT_SLOTS * CHUNKS, OUT_SLOTS);
        feed_weights<LONG_GATE_UP_GROUPS>(b, &l.gate_up, LONG_GATE_UP_GROUPS * b.rank, 0, X_SLOTS);
        feed_weights<CLUSTER>(b, &l.down, column, b.side * DOWN_SLOTS * CHUNKS, DOWN_SLOTS);
    }
}

/* One thread: what other blocks have written, phase by phase. */
DEV void feed_all_rows(block &b, const gpu_resident_long &p, const share &s) {
#pragma unroll 1
    for (int layer = 0, phase = 0; layer < p.depth;) {
        await_phase(b, ++b.phase);
        barrier_arrive(b.base + AT_MET);
        if (phase == QKV && b.rank < QKV_BLOCKS)
            feed_rows(b, &p.state, b.height, LONG(SCALED_AT), 0, X_SLOTS,
                      first_slot(b, 8 / LONG_QKV_GROUPS, X_SLOTS));
        else if (phase == ATTENTION && has_keys(s)) feed_attention(b, p, s, layer);
        else if (phase == OUT)
            feed_rows(b, &p.state, b.height, LONG(ATTENDED_AT), b.side * OUT_SLOTS, OUT_SLOTS,
                      first_slot(b, 8 / CLUSTER, OUT_SLOTS));
        else if (phase == GATE_UP)
            feed_rows(b, &p.state, b.height, LONG(SCALED_AT), 0, X_SLOTS,
                      first_slot(b, 8 / LONG_GATE_UP_GROUPS, X_SLOTS));
        else if (phase == DOWN)
            feed_rows(b, &p.state, b.height, LONG(HIDDEN_AT), b.side * DOWN_SLOTS, DOWN_SLOTS,
                      first_slot(b, 8 / CLUSTER, DOWN_SLOTS));
        if (++phase == PHASES) phase = 0, layer++;
    }
}

DEV u32 *x_at(const gpu_resident_long &p, const owned &o) {
    return (u32 *)((u16 *)p.x + (size_t)o.row * RESIDENT_WIDTH + o.column);
}

DEV void begin_x(const block &b, const gpu_resident_long &p, owned &o) {
    const long_layer &l = p.layers[0];
    u32 x = 0;
    if (o.row < b.used) x = __ldcg(x_at(p, o));
    o.x[0] = low_of(x), o.x[1] = high_of(x);
    leave_scaled(b, p, o, two_of(l.scale_in, o.column, 0), two_of(l.shift_in, o.column, 0));
}

DEV void consume_all(block &b, const gpu_resident_long &p, const share &s) {
    owned o = {.row = tile_row(b) + 8 * b.group, .column = 8 * b.rank + 2 * (b.lane & 3)};
    begin_x(b, p, o);
    end_phase(b);
#pragma unroll 1
    for (int layer = 0;; layer++) {
        const long_layer &l = p.layers[layer];
        const bool last = layer + 1 == p.depth;
        if (b.rank < QKV_BLOCKS) make_qkv(b, p, layer);
        else await_met(b);
        forget_squares(b);
        b.norms++;
        end_phase(b);
        attend(b, p, s);
        end_phase(b);
        join_parts(b, p, s);
        end_phase(b);
        add_residual(b, p, o, OUT_SLOTS, l.gate_in, l.scale_post, l.shift_post);
        end_phase(b);
        make_hidden(b, p);
        forget_squares(b);
        b.norms++;
        end_phase(b);
        const long_layer &next = p.layers[last ? layer : layer + 1];
        add_residual(b, p, o, DOWN_SLOTS, l.gate_post, last ? NULL : next.scale_in, next.shift_in);
        if (last) break;
        end_phase(b);
    }
    if (o.row < b.used) *x_at(p, o) = pack_bf16(o.x[0], o.x[1]);
    end_launch(b);
}

DEV void make_barriers(const block &b) {
    for (u32 s = 0; s < WEIGHTS + ROWS; s++) {
        const ring &r = s < WEIGHTS ? b.weights : b.rows;
        ring_init(r, s < WEIGHTS ? s : s - WEIGHTS, CONSUMER_WARPS);
    }
    barrier_init(b.base + AT_MET, 1);
    barrier_init(b.base + AT_GIVEN, 1);
    *(u32 *)(b.memory + AT_QUIET) = 0;
    barrier_init_done();
    barrier_arm(b.base + AT_GIVEN, GIVEN_BYTES);
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(LONG(THREADS), 1)
    RESIDENT_NAME(const __grid_constant__ gpu_resident_long p) {
    extern __shared__ __align__(1024) char memory[];
    const u32 base = shared_address(memory);
    block b = {.memory = memory,
               .base = base,
               .progress = (u32 *)p.memory,
               .rank = (int)blockIdx.x,
               .side = (int)cluster_rank(),
               .lane = (int)(threadIdx.x & 31),
               .warp = same_in_warp(threadIdx.x >> 5),
               .group = same_in_warp(TILES > 1 ? threadIdx.x >> 7 & 1 : threadIdx.x >> 7),
               .tile = TILES > 1 ? same_in_warp(threadIdx.x >> 8) : 0,
               .height = LONG_HEIGHT(p.rows, p.shifts),
               .used = __ldg(p.count),
               .weights = ring_of(base, WEIGHTS, base + AT_BARRIERS),
               .rows = ring_of(base + AT_ROWS, ROWS, base + AT_BARRIERS + 16 * WEIGHTS),
               .phase = 0, .norms = 0, .exchanges = 0, .issued = 0};
    if (!threadIdx.x) make_barriers(b);
    cluster_meet();                        /* the other block's barriers are made, too                      */
    start_next();
    const share s = share_of(b, p);
    if (b.warp == CONSUMER_WARPS) {
        if (!b.lane) feed_all_weights(b, p, s);
    } else {
        wait_before();
        if (b.warp < CONSUMER_WARPS) consume_all(b, p, s);
        else if (!b.lane) feed_all_rows(b, p, s);
    }
    cluster_sync();
}

#endif
