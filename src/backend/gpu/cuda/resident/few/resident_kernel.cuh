/* The layers of denoise steps, and what is between the steps, as one kernel that is resident on the whole
 * card.
 *
 * 120 blocks in 15 clusters of 8; 16 multiplying warps and four copying threads each. Cluster h < 8 is head
 * h: q, attention, its 256 columns of o, and 256 hidden values; the other clusters have hidden values only,
 * 288 or 320. Rank r of every cluster owns columns 128r … of x, in fp32 registers, warp t of it row t.
 *
 *   qkv       the rank's 128 columns of x times all of the head's weights -> sums to the ranks that they
 *             are for -> q to the cluster, k and v to the last ranks
 *   attention (resident_attention.cuh)                       -> the head's output to the cluster
 *   o         128 outputs a rank over the head's 256         -> sums of 8 clusters -> x
 *   gate_up   likewise, all hidden units of the cluster -> GeGLU -> hidden values to the cluster
 *   down      128 outputs a rank over the cluster's hidden units -> sums of 15 clusters -> x
 *
 * After the last layer: velocity, Euler's step and the next embedding (resident_step.cuh).
 *
 * Norms: x goes into a product times 1 + scale, the sums come out times the row's factor, plus the shift's
 * own sums, for the shift is one more row of x. Where rows may be known, their shift is a row, too. Where
 * that makes more than 12 rows, shifts are apart (resident_shifts_hopper.cu).
 *
 * The ring and its copying threads: resident_ring.cuh; products: resident_products.cuh, those over x:
 * resident_x.cuh; exchanges: resident_exchange.cuh; shared memory: resident_block.cuh.
 *
 * With int8 weights x and what is sent on are digits, and a hidden cluster has 256 or 384 hidden values
 * (resident_int8.cuh).
 *
 *   legal   one sample, bf16, the sizes in resident.h, the whole grid resident at once (a cooperative launch)
 *   early   before wait_before(): barriers, zeros, weights of the first layer. Every block's multiplying
 *           threads wait, so no block ends before the previous kernels have.
 *
 * resident_hopper.c checks what is legal and launches. Four files compile this one: resident_hopper.cu,
 * resident_shifts_hopper.cu with RESIDENT_APART, and both with RESIDENT_INT8 for int8 weights
 * (resident_int8.cuh). */
#ifndef KERNELS_CUDA_RESIDENT_KERNEL_CUH
#define KERNELS_CUDA_RESIDENT_KERNEL_CUH

#include "resident_attention.cuh"
#include "resident_step.cuh"

/* Makes the barriers, some of which expect the first exchanges already; zeros rows of operands that no warp
 * writes. */
DEV void prepare(const worker &w) {
    const u32 full = w.base + AT_FULL;
    for (u32 at = w.base + threadIdx.x * 16; at < w.base + SHARED; at += RESIDENT_THREADS * 16)
        store16(at, make_uint4(0, 0, 0, 0));
    __syncthreads();
    if (!threadIdx.x) {
        for (int s = 0; s < MOST_STAGES; s++)
            barrier_init(full + 8 * s, INT8 ? 1 + 32 : 1), barrier_init(w.base + AT_FREE + 8 * s, 4);
        for (u32 b = w.base + AT_GIVEN; b < w.base + AT_END; b += 8) barrier_init(b, 1);
        barrier_init_done();
        barrier_arm(w.base + AT_Q, q_bytes(w));
        barrier_arm(w.base + AT_PARTS, parts_bytes(w));
        barrier_arm(w.base + AT_ATTENDED, attended_bytes(w));
        barrier_arm(w.base + AT_QUIET, CS * 4);
    }
    async_fence();
    cluster_meet();                        /* nothing is being copied yet: its release costs nothing here   */
}

/* The own columns of the own row, and the unit of the first sums from all of it. */
DEV void load_x(worker &w, const gpu_resident &p) {
    const char *row = (const char *)p.x + (size_t)w.warp * RESIDENT_WIDTH * 2;
    const uint2 mine = __ldcg((const uint2 *)(row + w.rank * 256) + w.lane);
    float s = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint4 v = __ldcg((const uint4 *)row + i * 32 + w.lane);
        const u32 pairs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int j = 0; j < 4; j++)
            s += low_of(pairs[j]) * low_of(pairs[j]) + high_of(pairs[j]) * high_of(pairs[j]);
    }
    w.x[0] = low_of(mine.x), w.x[1] = high_of(mine.x), w.x[2] = low_of(mine.y), w.x[3] = high_of(mine.y);
    w.unit = unit_of(rsqrtf(warp_sum(s) * (1.f / RESIDENT_WIDTH) + p.eps));
    if (!w.lane) store4(w.base + AT_UNITS + w.warp * 4, __float_as_uint(w.unit));
    __syncwarp();
}

/* x after the last layers, and sums as the next launch expects them: every reader of them has sent something
 * since. */
DEV void finish(const worker &w, const gpu_resident &p) {
    const uint2 v = make_uint2(pack_bf16(w.x[0], w.x[1]), pack_bf16(w.x[2], w.x[3]));
    *((uint2 *)((char *)p.x + ((size_t)w.warp * RESIDENT_WIDTH + w.rank * 128) * 2) + w.lane) = v;
#pragma unroll
    for (int b = 0; b < 4; b++) put_relaxed(words_at(w, p, b, 2 * w.lane), make_uint4(0, 0, 0, 0));
}

/* x' = x + o, then the hidden units and down's sums. */
DEV void feed_forward(worker &w, const gpu_resident &p, int layer, int odd) {
    const resident_layer &l = p.layers[layer];
    float d[8];
    if (w.warp < w.parties) {
        const float4 gate = own_columns(w, l.gate_in, 1), scale = own_columns(w, l.scale_post, 0);
        if (w.owner) {
            await_sums(w, p, 0, w.last[0], RESIDENT_HEADS, gate);
            if (w.head) forget_new(w, p, layer);
        }
        put_operand(w, p, scale, l.shift_post);
    }
    expect_boxes(w, p, w.units, 0);
    readers_meet();
    multiply_gate_up(w, p);
    if (w.warp < w.parties) broadcast_hidden(w, p);
    w.parity_x ^= 1;
    const place first = place_of(w, w.group);
    await(w.base + AT_HIDDEN, w.parity);
    multiply_tiles(d, w, hidden_blocks(w.extra), first);
    store_sums(d, w);
    readers_meet();
    if (w.owner) send_sums(w, p, 1 + odd);
}

/* The velocity of a step, and what the next one begins with. */
DEV void end_step(worker &w, const gpu_resident &p, const float4 &scale, int step) {
    const int last = step == p.steps - 1;
    if (p.actions.rows && (last || w.head || !p.actions.mlp)) send_velocity(w, p, scale, step);
    if (last) {
        take_velocity(w, p, step);
        return;
    }
    if (w.shift == first_shift(p)) w.known += p.step_floats;
    if constexpr (APART) w.later += p.step_floats;
    embed(w, p, step);
}

DEV void run_layers(worker &w, const gpu_resident &p) {
    attention at = {};
    int layer = 0, step = 0, odd = 0;      /* odd: of layers, over all steps                                */
    wait_before();
    if (w.head) at = attention_of(w, p);
    if (w.owner) load_x(w, p);
    load_actions(w, p);
#pragma unroll 1
    for (;;) {
        const int end = layer == p.depth - 1, last = end && step == p.steps - 1;
        if (!layer && w.head && w.warp < w.parties)
            put_operand(w, p, own_columns(w, p.layers[0].scale_in, 0), p.layers[0].shift_in);
        if (w.head) attend(w, p, at, layer);
        feed_forward(w, p, layer, odd);
        if (last && w.cluster) break;      /* only the cluster that writes x reads the last sums           */
        float4 scale = {};
        if (w.warp < w.parties) {
            const float4 gate = own_columns(w, p.layers[layer].gate_post, 1);
            scale = own_columns(w, end ? p.actions.scale : p.layers[layer + 1].scale_in, 0);
            if (w.owner) await_sums(w, p, 1 + odd, w.last[1], RESIDENT_CLUSTERS, gate);
            if (w.head && !end) put_operand(w, p, scale, p.layers[layer + 1].shift_in);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const u64 other = w.last[2][i];
            w.last[2][i] = w.last[1][i], w.last[1][i] = other;
        }
        w.parity ^= 1, odd ^= 1, layer++;
        if (!end) continue;
        end_step(w, p, scale, step);
        if (last) break;
        layer = 0, step++;
    }
    if (w.owner && !w.cluster) finish(w, p);
}

extern "C" __global__ void __cluster_dims__(RESIDENT_CLUSTER, 1, 1) __launch_bounds__(RESIDENT_THREADS, 1)
    resident_denoise(const __grid_constant__ gpu_resident p) {
    extern __shared__ __align__(1024) char shared[];
    const int rank = (int)cluster_rank(), cluster = blockIdx.x / CS,
              warp = __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0);
    worker w = {.base = shared_address(shared), .rank = rank, .cluster = cluster};
    w.head = cluster < RESIDENT_HEADS;
    w.extra = extra_of(cluster);
    w.units = RESIDENT_UNITS + (rank < w.extra) * (INT8 ? RESIDENT_UNITS : 1);
    w.rows = p.rows;
    w.parties = APART ? RESIDENT_ROWS : max(p.rows + p.shifts, CS);
    w.lane = threadIdx.x & 31, w.warp = warp, w.group = warp >> 2, w.quarter = warp & 3;
    w.owner = warp < p.rows;
    const int row = !APART && warp >= NEW_WARP ? new_row(w) : warp;
    w.known = !APART && warp > p.rows && warp < NEW_WARP ? p.known.at : known_at(p.known, row, row < p.rows);
    w.shift = first_shift(p) + (w.known != 0);
    w.row_at = (u32)((warp >> 3) * 128 + (warp & 7) * 16);
    prepare(w);
    start_next();
    if (threadIdx.x < RESIDENT_READERS) run_layers(w, p);
    else if (INT8 || !w.lane) copy_all(p, w, (u32)(warp - RESIDENT_READERS / 32));
    __syncwarp();
    cluster_sync();
}

#endif
