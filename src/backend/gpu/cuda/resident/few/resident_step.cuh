/* From the layers of one step of the resident denoise kernel to those of the next one.
 *
 *   velocity    32 dims over the rank's 128 columns of x -> all ranks of the cluster
 *   Euler       a warp an action, a lane a dimension; every block has all of x_t; the guide likewise
 *   embedding   π0.5: the rank's 128 columns of x over the 32 dims
 *               π0: 128 hidden values of the MLP a head's cluster, and its products with them -> sums of 8
 *               clusters -> x
 *
 * All clusters compute the same velocity, bit for bit, so none has to send it to the others. Those of π0 that
 * are no head's need no velocity. After the last step the first cluster alone computes it.
 *
 * Products here are of mma.sync: rows as A, weights as B, fp32 numbers as bf16 + bf16. */
#ifndef KERNELS_CUDA_RESIDENT_STEP_CUH
#define KERNELS_CUDA_RESIDENT_STEP_CUH

#include "resident_x.cuh"

/* Two numbers as bf16 + bf16: upper parts, and what is left of them. */
DEV uint2 split_pair(float a, float b) {
    const u32 upper = pack_bf16(a, b);
    return make_uint2(upper, pack_bf16(a - low_of(upper), b - high_of(upper)));
}

/* Weights k, k + 1 of a column. */
DEV uint2 weight_pair(const gpu_weights &m, int column, int k) {
    if (m.type == GPU_WEIGHT_F32) {
        const float2 v = __ldg((const float2 *)((const float *)m.data + (size_t)column * m.k + k));
        return split_pair(v.x, v.y);
    }
    const char *at = (const char *)m.data + atom_at(m.blocks, column, k & ~7) + (k & 7) * 2;
    return make_uint2(__ldg((const u32 *)at), 0);
}

/* ---- velocity ------------------------------------------------------------------------------------------ */

/* The own part lies apart: its copies may still read it when sums go over the others. */
DEV u32 part_at(const worker &w, int rank) {
    return w.base + (rank == w.rank ? (int)AT_WEIGHTS : AT_VELOCITY_PARTS + rank * PART);
}
DEV u32 action_at(const worker &w, int row, int dim) {
    return w.base + AT_ACTIONS + row * RESIDENT_ACTION * 4 + ((dim >> 2 ^ row) & 7) * 16 + (dim & 3) * 4;
}

/* The rank's part of the sums, 8 dims a warp of the first warpgroup, copied to every other block of the
 * cluster. The norm's factor and shift come in as in any product.
 *
 * The parts of others lie over sums. A rank says when it has read its own, and waits until all have. */
DEV void send_velocity(const worker &w, const gpu_resident &p, const float4 &scale, int step) {
    const u32 part = part_at(w, w.rank), x = w.base + AT_X;
    const int g = w.lane >> 2, t = w.lane & 3;
    if (w.warp < w.parties) {
        const float s = put_x(w, p, scale, p.actions.shift);
        if (w.owner && !w.lane) store4(square_at(w, w.rank, w.warp), __float_as_uint(s));
    }
    readers_meet();
    if (threadIdx.x < CS)
        send_word(peer_address(w.base + AT_SIGNALS + w.rank * 4, w.lane),
                  peer_address(w.base + AT_QUIET, w.lane), 0);
    if (w.group) return;
    float sums[4] = {}, shifted[4] = {};
#pragma unroll
    for (int s = 0; s < 8; s++) {
        const int column = 8 * w.quarter + g, k = 128 * w.rank + 16 * s + 2 * t;
        const uint2 low = weight_pair(p.actions.out, column, k),
                    high = weight_pair(p.actions.out, column, k + 8);
        u32 rows[4];
        const u32 from = x + (2 * s + (w.lane >> 4)) * X_K;
        const u32 row = APART ? (w.lane >> 3 & 1) * X_GROUP + (w.lane & 7) * 16 : (w.lane & 15) * 16;
        load_matrix4(rows, from + row);
        mma16(sums, rows, low.x, high.x);
        mma16(sums, rows, low.y, high.y);
        if constexpr (!APART) continue;
        load_matrix4(rows, from + 2 * X_GROUP + (w.lane & 7) * 16);
        mma16(shifted, rows, low.x, high.x);
        mma16(shifted, rows, low.y, high.y);
    }
    const u32 at = part + PART_ROWS + (g * RESIDENT_ACTION + 8 * w.quarter + 2 * t) * 4;
    store8(at, __float_as_uint(sums[0]), __float_as_uint(sums[1]));
    if (g + 8 < SENT_ROWS)
        store8(at + 8 * RESIDENT_ACTION * 4, __float_as_uint(sums[2]), __float_as_uint(sums[3]));
    if (APART && g < p.shifts)
        store8(at + RESIDENT_ROWS * RESIDENT_ACTION * 4, __float_as_uint(shifted[0]),
               __float_as_uint(shifted[1]));
    if (threadIdx.x < RESIDENT_ROWS)
        store4(part + w.lane * 4,
               __float_as_uint(load4(w.base + AT_SQUARES + (w.rank * RESIDENT_ROWS + w.lane) * 4)));
    async_fence();
    group_sync(4, 128);
    if (w.lane < 2) {
        const int peer = 2 * w.quarter + w.lane;
        const u32 barrier = w.base + AT_VELOCITY,
                  bytes = PART_ROWS + (u32)(first_shift(p) + p.shifts) * (RESIDENT_ACTION * 4);
        await(w.base + AT_QUIET, step & 1);
        if (peer == w.rank) barrier_arm(w.base + AT_QUIET, CS * 4);
        if (peer == w.rank) barrier_arm(barrier, (CS - 1) * bytes);
        else
            copy_to_peer(peer_address(w.base + AT_VELOCITY_PARTS + w.rank * PART, peer), part, bytes,
                         peer_address(barrier, peer));
    }
}

/* v = velocity of the warp's action, x_t += dt·v where it is not known; then the guide, as guide.cu has it.
 * Note: the target of a row without weight holds anything. */
DEV void take_velocity(const worker &w, const gpu_resident &p, int step) {
    const resident_actions &a = p.actions;
    if (w.warp >= a.rows) return;
    const int row = w.warp + a.first;
    float y = 0, square = 0, v = a.out_bias ? __ldg(a.out_bias + w.lane) : 0;
    float weight = 0, gain = 0, target = 0;
    if (a.gain) {
        weight = __ldg(a.weight + w.warp), gain = __ldg(a.gain + step);
        target = __ldg(a.target + w.warp * RESIDENT_ACTION + w.lane);
    }
    await(w.base + AT_VELOCITY, step & 1);
#pragma unroll
    for (int i = 0; i < CS; i++) {
        const u32 part = part_at(w, i), at = part + PART_ROWS + w.lane * 4;
        square += load4(part + row * 4);
        y += load4(at + row * RESIDENT_ACTION * 4);
        if (p.shifts) v += load4(at + w.shift * RESIDENT_ACTION * 4);
    }
    v += y * rsqrtf(square * (1.f / RESIDENT_WIDTH) + p.eps);
    const u32 at = action_at(w, w.warp, w.lane);
    float x = load4(at) + (w.shift == first_shift(p) ? a.dt * v : 0);
    if (weight != 0) x += gain * ((target - (x - (a.t + (float)step * a.dt) * v)) * weight);
    store4(at, __float_as_uint(x));
    if (step < p.steps - 1 || w.rank) return;
    a.velocity[w.warp * RESIDENT_ACTION + w.lane] = v;
    a.x_t[w.warp * RESIDENT_ACTION + w.lane] = x;
}

DEV void load_actions(const worker &w, const gpu_resident &p) {
    const float *x_t = p.actions.x_t + w.warp * RESIDENT_ACTION + w.lane;
    if (w.warp < p.actions.rows) store4(action_at(w, w.warp, w.lane), __float_as_uint(__ldcg(x_t)));
}

/* ---- embedding ----------------------------------------------------------------------------------------- */

typedef struct embedding {
    uint2 weights[2][2];                   /* weights of the thread's column: 16 k a step, 8 a half         */
    float2 bias;                           /* bias of the thread's two columns of the sums                  */
} embedding;

/* 8 columns a warp: of the rank's 128, or of the cluster's (π0). */
DEV embedding load_embedding(const worker &w, const gpu_resident &p, int step) {
    const resident_actions &a = p.actions;
    const int first = 128 * (a.mlp ? w.cluster : w.rank) + 8 * w.warp, t = 2 * (w.lane & 3);
    embedding e;
#pragma unroll
    for (int i = 0; i < 4; i++)
        e.weights[i >> 1][i & 1] = weight_pair(a.in, first + (w.lane >> 2), 8 * i + t);
    e.bias = __ldg((const float2 *)(a.in_bias + step * a.in_floats + first + t));
    return e;
}

DEV void multiply_actions(float (&c)[4], const worker &w, const embedding &e) {
    c[0] = c[2] = e.bias.x, c[1] = c[3] = e.bias.y;
#pragma unroll
    for (int s = 0; s < 2; s++) {
        u32 upper[4], lower[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 v =
                load8(action_at(w, (w.lane >> 2) + 8 * (i & 1), 16 * s + 8 * (i >> 1) + 2 * (w.lane & 3)));
            const uint2 parts = split_pair(v.x, v.y);
            upper[i] = parts.x, lower[i] = parts.y;
        }
        mma16(c, upper, e.weights[s][0].x, e.weights[s][1].x);
        mma16(c, lower, e.weights[s][0].x, e.weights[s][1].x);
        mma16(c, upper, e.weights[s][0].y, e.weights[s][1].y);
    }
}

/* π0.5: the sums are x. */
DEV void embed_directly(worker &w, const float (&c)[4]) {
    const u32 sums = w.base + AT_SUMS, pitch = 528,
              at = sums + (w.lane >> 2) * pitch + (8 * w.warp + 2 * (w.lane & 3)) * 4;
    store8(at, __float_as_uint(c[0]), __float_as_uint(c[1]));
    store8(at + 8 * pitch, __float_as_uint(c[2]), __float_as_uint(c[3]));
    readers_meet();
    if (!w.owner) return;
    const float2 a = load8(sums + w.warp * pitch + w.lane * 16),
                 b = load8(sums + w.warp * pitch + w.lane * 16 + 8);
    w.x[0] = a.x, w.x[1] = a.y, w.x[2] = b.x, w.x[3] = b.y;
}

/* π0: hidden values as bf16 + bf16, an operand each, times the cluster's 128 k of the second product. */
DEV void send_embedded(worker &w, const gpu_resident &p, const float (&c)[4]) {
    const u32 operand = w.base + AT_OPERAND,
              at = operand + w.warp * 256 + (w.lane >> 2) * 16 + (w.lane & 3) * 4;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint2 h = split_pair(silu(c[2 * i]), silu(c[2 * i + 1]));
        store4(at + i * 128, h.x), store4(at + 4096 + i * 128, h.y);
    }
    async_fence();
    readers_meet();
    const place from = place_of(w, w.group);
    const u32 rows = operand + (w.group >> 1) * 2048;
    float d[8];
    clear(d);
    await_chunk(w, from);
    wgmma_begin();
    issue(d, w.base + from.stage * STAGE, rows);
    issue(d, w.base + from.stage * STAGE, rows + 4096);
    wgmma_commit();
    end_chunks(d, w, from.stage);
    advance(w, 4);
    store_sums(d, w);
    readers_meet();
    if (w.owner) send_sums(w, p, 3);
}

/* The sums' unit is the one of the launch's beginning, for all clusters have that. */
DEV void embed(worker &w, const gpu_resident &p, int step) {
    const resident_actions &a = p.actions;
    if (w.owner) w.unit = load4(w.base + AT_UNITS + w.warp * 4);
    if (w.head || !a.mlp) {
        const embedding e = load_embedding(w, p, step);
        float c[4];
        take_velocity(w, p, step);
        readers_meet();
        multiply_actions(c, w, e);
        if (a.mlp) send_embedded(w, p, c);
        else embed_directly(w, c);
    }
    if (a.mlp && w.owner) {
        const float4 bias = __ldg((const float4 *)(a.mlp_bias + 128 * w.rank) + w.lane);
        w.x[0] = bias.x, w.x[1] = bias.y, w.x[2] = bias.z, w.x[3] = bias.w;
        await_sums(w, p, 3, w.last[3], RESIDENT_HEADS, make_float4(1, 1, 1, 1));
    }
}

#endif
