/* The denoise loop as one resident kernel: all steps, all layers, without a single grid-wide barrier.
 *
 * A block on every multiprocessor, in clusters of two; one warp copies (resident_ring.cuh), sixteen multiply. A layer is
 * six phases, each ending in packets that the next one polls for (resident_packets.cuh):
 *
 *   qkv       norm(x)·W of the block's units -> q, new k, new v
 *   scores    one head, one split of the keys: all rows against at most 64 keys -> the split's own softmax, and log2 of its
 *             sum of weights
 *   join      16 dims of the head over all splits -> attention's output
 *   o         half of k for 16 columns, joined in the cluster by st.async; + residual -> x
 *   gate_up   norm(x)·W, GeGLU -> hidden
 *   down      as o -> x
 *
 * In front of the layers the action embedding, for π0 a phase of the kind of o over fp32 values as bf16 + bf16; behind them the
 * velocity, which every block of a group computes for itself, so that x_t needs no exchange.
 *
 * How products are made stands in resident_products.cuh, attention in resident_attention.cuh. Nothing depends on who comes
 * first, so results repeat bit for bit.
 *
 * What surprises: the suffix' keys and values never reach the cache. They are used once, by the blocks whose splits hold
 * their places, and come as packets over the stale rows that the copy engine brought. */
#include "resident_attention.cuh"

DEV float2 pair_of(const float *values, int at) { return values ? __ldg((const float2 *)(values + at)) : make_float2(0, 0); }

/* o and down: x += gate·(a·W). */
DEV void residual_phase(worker &w, const gpu_resident &p, const char *from, int columns, u32 by_half, const float *gate, char *x,
                        u32 from_tag, u32 tag) {
    if (!w.s.groups) {
        all_sync();                        /* between two uses of `parts` */
        return;
    }
    const int all = columns / 8, blocks = least_blocks(columns), first = half_first(w.s.rank, blocks) * 8,
              group = 2 * w.s.pair + w.s.rank;
    const int n = half_count(w.s.rank, blocks), units = min(n * 8, all - first);
    float2 g = {1, 1};
    if (gate && w.mine) g = pair_of(gate, group * 8 + 2 * w.c);
    if (units > 0) {
        if (units * w.quads > READERS) gather_operand<2>(w, from, all, first, units, by_half, n, from_tag);
        else gather_operand<1>(w, from, all, first, units, by_half, n, from_tag);
    }
    all_sync();
    multiply_pair(w, n);
    if (!w.s.own) return;
    const float2 v = own_sums(w);
    w.x = pack_bf16(low_of(w.x) + v.x * g.x, high_of(w.x) + v.y * g.y);
    publish_own(w, x, p.width / 8, group, w.x, tag);
}

/* Upper parts, and what is left of them, side by side. */
DEV void publish_split(const worker &w, const gpu_resident &p, char *exchange, float2 v, u32 tag) {
    const int units = p.width / 8, group = 2 * w.s.pair + w.s.rank;
    publish_own(w, exchange, 2 * units, group, pack_bf16(v.x, v.y), tag);
    publish_own(w, exchange, 2 * units, units + group, pack_bf16(v.x - round_bf16(v.x), v.y - round_bf16(v.y)), tag);
}

/* v += two outputs of the own group, from a row of x_t; weights: an atom of bf16 or eight rows of floats. */
DEV float2 actions_in_bf16(const char *weights, const float *x, int c, float2 v) {
#pragma unroll 2
    for (int k = 0; k < RESIDENT_ACTIONS; k += 2) {
        const float2 in = *(const float2 *)(x + k);
        const u32 low = *(const u32 *)(weights + 2 * c * 128 + (((k >> 3) ^ (2 * c)) & 7) * 16 + (k & 7) * 2);
        const u32 high = *(const u32 *)(weights + (2 * c + 1) * 128 + (((k >> 3) ^ (2 * c + 1)) & 7) * 16 + (k & 7) * 2);
        v.x = fmaf(in.x, low_of(low), v.x), v.x = fmaf(in.y, high_of(low), v.x);
        v.y = fmaf(in.x, low_of(high), v.y), v.y = fmaf(in.y, high_of(high), v.y);
    }
    return v;
}

DEV float2 actions_in_f32(const char *weights, const float *x, int c, float2 v) {
    const float *row = (const float *)weights + 2 * c * RESIDENT_ACTIONS;
#pragma unroll 2
    for (int i = 0; i < RESIDENT_ACTIONS; i += 2) {
        const int k = (i + 8 * c) % RESIDENT_ACTIONS;      /* so that the four c read from banks of their own */
        const float2 in = *(const float2 *)(x + k), low = *(const float2 *)(row + k),
                     high = *(const float2 *)(row + RESIDENT_ACTIONS + k);
        v.x = fmaf(in.x, low.x, v.x), v.x = fmaf(in.y, low.y, v.x);
        v.y = fmaf(in.x, high.x, v.y), v.y = fmaf(in.y, high.y, v.y);
    }
    return v;
}

/* Action tokens from x_t: one product, or one, SiLU and another. */
DEV void embed(worker &w, const gpu_resident &p, const float *x_t, const char *weights, int step, char *x, u32 tag) {
    if (!w.s.groups) return;
    const int units = p.width / 8, wide = least_blocks(p.width), group = 2 * w.s.pair + w.s.rank, o = group * 8 + 2 * w.c;
    const float *x_row = x_t + w.row * RESIDENT_ACTIONS;
    float2 last = {0, 0}, v = last;
    if (w.mine && p.mlp_out) {
        last = pair_of(p.mlp_out_bias, o);
        v = actions_in_f32(weights, x_row, w.c, pair_of(p.time + (size_t)step * p.width, o));
        v.x = silu(v.x), v.y = silu(v.y);
    } else if (w.mine) {
        v = actions_in_bf16(weights, x_row, w.c, pair_of(p.in_bias, o));
    }
    if (p.mlp_out) {
        if (w.s.own) publish_split(w, p, p.embed, v, tag);
        gather_operand<1>(w, p.embed, 2 * units, w.s.rank * units, units, p.by_units, wide, tag);
        all_sync();
        multiply_pair(w, wide);
        v = own_sums(w);
        v.x += last.x, v.y += last.y;
    }
    if (!w.s.own) return;
    w.x = pack_bf16(v.x, v.y);
    publish_own(w, x, units, group, w.x, tag);
}

/* Pair (row, c) of both groups of a unit. The whole warp takes part. */
DEV void unit_sums(const worker &w, int unit, int row, int c, int there, float2 &a, float2 &b) {
    a = b = make_float2(0, 0);
    if (there)
        a = add_parts(parts_of(w) + 2 * unit * KWAYS * 512, KWAYS, row, c, w.sub),
        b = add_parts(parts_of(w) + (2 * unit + 1) * KWAYS * 512, KWAYS, row, c, w.sub);
    a.x = with_neighbour(a.x), a.y = with_neighbour(a.y), b.x = with_neighbour(b.x), b.y = with_neighbour(b.y);
}

/* qkv's sums to q, new k or new v: two units of 8 dims each of the block's units. */
DEV void publish_qkv(const worker &w, const gpu_resident &p, const float *rope, int unit, int i, int there, u32 tag) {
    const int pair = 3 * i + w.j, row = pair >> 2, c = pair & 3, u = w.s.block + unit * w.s.blocks, part = u >> 4, i0 = u & 15;
    float2 a, b;
    float4 r = {1, 0, 1, 0};
    unit_sums(w, unit, row, c, there && row < w.s.rows, a, b);
    if (there && row < w.s.rows && part <= p.heads) r = *(const float4 *)(rope + ((unit * RESIDENT_ROWS + row) * 4 + c) * 4);
    const u32 low = pack_bf16(a.x * r.x - b.x * r.y, a.y * r.z - b.y * r.w),
              high = pack_bf16(b.x * r.x + a.x * r.y, b.y * r.z + a.y * r.w);
    char *to = part < p.heads ? p.q : part == p.heads ? p.k_new : p.v_new;
    const int all = part < p.heads ? p.heads * 32 : 32;
    const int first = (part < p.heads ? part * 32 : 0) + (part <= p.heads ? i0 : 2 * i0),
              second = part <= p.heads ? first + 16 : first + 1;
    send_pairs(low, there, to + (u32)(i * all + first) * 16, tag);
    send_pairs(high, there, to + (u32)(i * all + second) * 16, tag);
}

DEV void publish_gated(const worker &w, const gpu_resident &p, int unit, int i, int there, u32 tag) {
    const int pair = 3 * i + w.j, row = pair >> 2, c = pair & 3;
    float2 a, b;
    unit_sums(w, unit, row, c, there && row < w.s.rows, a, b);
    send_pairs(pack_bf16(gelu(a.x) * b.x, gelu(a.y) * b.y), there,
               p.hidden + (u32)(i * (p.mlp / 8) + w.s.blocks - 1 - w.s.block + unit * w.s.blocks) * 16, tag);
}

/* qkv, or gate_up with `gated`. */
template <int ROUNDS> DEV void norm_phase(worker &w, const gpu_resident &p, const float *scale, const float *shift, int gated,
                                          const char *x, const float *rope, u32 x_tag, u32 tag) {
    const int units = gated ? w.s.gated : w.s.qkv, total = units * w.packets;
    if (!units) return;
    gather_norm<ROUNDS>(w, p, x, scale, shift, x_tag);
    multiply_units(w, 2 * units, least_blocks(p.width));
#pragma unroll 1
    for (int s0 = 0; s0 < total; s0 += SLOTS) {
        const int s = s0 + w.slot, unit = divide(s, w.by_packets), i = s - unit * w.packets,
                  there = (thread() & 31) < 30 && s < total;
        if (s0 + warp_of() * 5 >= total) break; /* a warp that has nothing left */
        if (gated) publish_gated(w, p, unit, i, there, tag);
        else publish_qkv(w, p, rope, unit, i, there, tag);
    }
}

template <int ROUNDS> DEV void velocity_phase(worker &w, const gpu_resident &p, const char *x, const float *scale,
                                              const float *shift, float *x_t, u32 x_tag, int last) {
    if (!w.s.own) return;
    gather_norm<ROUNDS>(w, p, x, scale, shift, x_tag);
    multiply_units(w, RESIDENT_ACTIONS / 8, least_blocks(p.width));
    const int row = thread() / 32, pair = thread() / 2 % 16, sub = thread() & 1;
    float2 v = {0, 0};
    if (row < w.s.rows) v = add_parts(parts_of(w) + (pair >> 2) * KWAYS * 512, KWAYS, row, pair & 3, sub);
    v.x = with_neighbour(v.x), v.y = with_neighbour(v.y);
    if (row < w.s.rows && !sub) {
        const float2 bias = pair_of(p.out_bias, pair * 2);
        float2 *at = (float2 *)(x_t + row * RESIDENT_ACTIONS + pair * 2);
        v.x += bias.x, v.y += bias.y;
        *at = make_float2(at->x + p.dt * v.x, at->y + p.dt * v.y);
        if (last && w.s.pair == 0 && w.s.rank == 0) {
            *(float2 *)(p.velocity + row * RESIDENT_ACTIONS + pair * 2) = v;
            *(float2 *)(p.x_t + row * RESIDENT_ACTIONS + pair * 2) = *at;
        }
    }
    all_sync();
}

/* What stays the same for the whole call: rotary factors of the block's units, weights of the own group, the actions. */
DEV void keep(const worker &w, const gpu_resident &p, float *rope, char *weights, float *x_t) {
#pragma unroll 1
    for (int i = thread(); i < w.s.qkv * RESIDENT_ROWS * 8; i += READERS) {
        const int unit = i / (RESIDENT_ROWS * 8), row = i / 8 % RESIDENT_ROWS, dim = i % 8, u = w.s.block + unit * w.s.blocks;
        if (u >> 4 <= p.heads && row < w.s.rows)
            *(float2 *)(rope + i * 2) =
                __ldg((const float2 *)(p.rope + ((size_t)p.position[row] * (RESIDENT_HEAD / 2) + (u & 15) * 8 + dim) * 2));
    }
    if (w.s.own && thread() < GPU_ATOM_BYTES / 16)
        ((uint4 *)weights)[thread()] =
            __ldg((const uint4 *)((const char *)p.in + (size_t)(2 * w.s.pair + w.s.rank) * GPU_ATOM_BYTES) + thread());
#pragma unroll 1
    for (int i = thread(); i < w.s.rows * RESIDENT_ACTIONS; i += READERS) x_t[i] = __ldcg(p.x_t + i);
}

DEV void stamp(const worker &w, const gpu_resident &p, int at) {
    if (p.stamps && w.s.pair == 0 && w.s.rank == 0 && !thread()) p.stamps[at] = nanoseconds();
}

template <int ROUNDS> DEV void consume(worker &w, const gpu_resident &p) {
    float *rope = (float *)small_of(w), *x_t = (float *)(small_of(w) + RESIDENT_ROPE + GPU_ATOM_BYTES);
    char *weights = small_of(w) + RESIDENT_ROPE;
    const int lane = thread() & 31;
    w.quads = quads_of(w.s.rows), w.packets = 4 * w.quads, w.by_packets = reciprocal_of(w.packets);
    w.j = lane / 2 % 3, w.sub = lane & 1, w.slot = (thread() >> 5) * 5 + lane / 6;
    w.row = (3 * w.slot + w.j) >> 2, w.c = (3 * w.slot + w.j) & 3,
    w.mine = w.s.own && lane < 30 && w.slot < w.packets && w.row < w.s.rows;
    w.operand_row = min(lane & 15, w.s.rows - 1);
    w.x = 0, w.turn = 0;
    keep(w, p, rope, weights, x_t);
    all_sync();
    u32 tag = 0;                           /* a tag for every phase, so that packets are never mistaken for later ones */
    int turn = 0;                          /* x's two exchanges */
#pragma unroll 1
    for (int step = 0; step < p.steps; step++) {
        const int at = step * p.step_floats;
        stamp(w, p, step * (p.depth + 1));
        embed(w, p, x_t, weights, step, p.x[turn], ++tag);
#pragma unroll 1
        for (int half = 0; half < 2 * p.depth; half++, turn ^= 1) {            /* attention, MLP */
            const int mlp = half & 1;
            const resident_layer &l = p.layers[half >> 1];
            const float *shift = mlp ? l.shift_post : l.shift_in;
            norm_phase<ROUNDS>(w, p, (mlp ? l.scale_post : l.scale_in) + at, shift ? shift + at : shift, mlp, p.x[turn], rope,
                               tag, tag + 1);
            ++tag;
            if (!mlp) {
                scores_phase(w, p, tag, tag + 1);
                join_phase(w, p, tag + 1, tag + 2);
                tag += 2;
            }
            const float *gate = mlp ? l.gate_post : l.gate_in;
            residual_phase(w, p, mlp ? p.hidden : p.attended, mlp ? p.mlp : p.heads * RESIDENT_HEAD,
                           w.s.rank ? (mlp ? p.by_mlp[1] : p.by_heads[1])
                           : mlp    ? p.by_mlp[0]
                                    : p.by_heads[0],
                           gate ? gate + at : gate, p.x[turn ^ 1], tag, tag + 1);
            ++tag;
            if (mlp) stamp(w, p, step * (p.depth + 1) + 1 + (half >> 1));
        }
        velocity_phase<ROUNDS>(w, p, p.x[turn], p.scale_out + at, p.shift_out ? p.shift_out + at : p.shift_out, x_t, tag,
                               step == p.steps - 1);
        turn ^= 1;
    }
    stamp(w, p, p.steps * (p.depth + 1));
}

template <int ROUNDS> DEV void resident(const gpu_resident &p) {
    wait_before();
    const share s = share_of(p);
    if (!threadIdx.x) {
        for (int i = 0; i < p.stages; i++)
            barrier_init(shared_address(full_barriers) + 8 * i, 1), barrier_init(shared_address(empty_barriers) + 8 * i, WARPS);
        barrier_init(shared_address(pair_barrier), 1);
        barrier_init_done();
        barrier_arm(shared_address(pair_barrier), RESIDENT_PAIR_PARTS);
    }
    __syncthreads();
    cluster_sync();                        /* the neighbour's barrier is made */
    if (threadIdx.x >= READERS) {
        if (threadIdx.x == READERS)
            produce(p, s, shared_address(resident_memory), shared_address(full_barriers), shared_address(empty_barriers));
        __syncwarp();
    } else {
        worker w;
        w.s = s;
        w.at = {0, p.stages, 0};
        w.a = shared_address(resident_memory) + p.stages * RESIDENT_PIECE, w.parts = p.stages * RESIDENT_PIECE + p.operand;
        consume<ROUNDS>(w, p);
    }
    cluster_sync();                        /* nobody leaves while a neighbour may send */
}

/* For up to 12 rows, and 16: how many quads of packets a thread's share of x is. */
extern "C" __global__ void __launch_bounds__(RESIDENT_THREADS, 1) resident_denoise_12(const __grid_constant__ gpu_resident p) {
    resident<1>(p);
}
extern "C" __global__ void __launch_bounds__(RESIDENT_THREADS, 1) resident_denoise_16(const __grid_constant__ gpu_resident p) {
    resident<2>(p);
}
