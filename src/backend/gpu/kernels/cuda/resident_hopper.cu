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
 * In front of the layers the action embedding, phases of the kind of o over fp32 values as bf16 + bf16; behind them the
 * velocity, which every block of a group computes for itself, so that x_t needs no exchange.
 *
 * Products: the operand (A) lies [k/64][rows][128 bytes, swizzled]; warp (half, kw) takes every second group of 8 columns
 * and the k blocks kw, kw + 8 …; sums meet in shared memory and are added in a fixed order. Nothing depends on who comes
 * first, so results repeat bit for bit.
 *
 * What surprises: the suffix' keys and values never reach the cache. They are used once, by the blocks whose splits hold
 * their places, and come as packets over the stale rows that the copy engine brought. */
#include "resident_ring.cuh"


extern __shared__ __align__(1024) char resident_memory[];
static __shared__ __align__(8) u64 full_barriers[RESIDENT_STAGES], empty_barriers[RESIDENT_STAGES], pair_barrier[1];
static __shared__ float stats[RESIDENT_ROWS][2];

enum { WARPS = 16, KWAYS = 8, SLOTS = WARPS * 5, JOIN_PITCH = 9 };

DEV u64 nanoseconds(void) {
    u64 t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

/* 16 bytes of row r, columns 8·unit … of the operand. */
DEV u32 operand_at(u32 a, int rows, int unit, int r) { return a + (unit >> 3) * rows * 128 + r * 128 + (((unit ^ r) & 7) << 4); }
DEV void put16(u32 at, uint4 v) { asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory"); }
/* The same for the whole warp, and the compiler knows. */
DEV int warp_of(void) { return __shfl_sync(0xffffffffu, (int)thread() >> 5, 0); }
DEV void all_sync(void) { group_sync(1, READERS); }

/* A of 64 k, `at` + kb·rows·128: this lane's row, the last one again beyond those there are (nobody looks at what comes of it). */
DEV void load_operand(u32 (&a)[4][4], u32 at, int row) {
    const int lane = thread() & 31;
#pragma unroll
    for (int s = 0; s < 4; s++) load_matrix4(a[s], at + (((2 * s + (lane >> 4)) ^ row) & 7) * 16);
}
/* The B of 8 columns and 64 k. */
DEV void load_atom(u32 (&b)[2][4], u32 atom) {
    const int lane = thread() & 31;
#pragma unroll
    for (int s = 0; s < 2; s++) load_matrix4(b[s], atom + (lane & 7) * 128 + (((4 * s + (lane >> 3)) ^ (lane & 7)) << 4));
}

/* Pair (row, c) of a group: every second of the sums of `count` warps. */
DEV float2 add_parts(const char *parts, int count, int row, int c, int sub) {
    const char *at = parts + sub * 512 + ((row & 7) * 4 + c) * 16 + (row >> 3) * 8;
    float2 sum = {0, 0};
#pragma unroll 4
    for (int i = 0; i < count / 2; i++) {
        const float2 a = *(const float2 *)(at + i * 1024);
        sum.x += a.x, sum.y += a.y;
    }
    return sum;
}
DEV float with_neighbour(float x) { return x + __shfl_xor_sync(0xffffffffu, x, 1); }

#ifdef RESIDENT_PROFILE
#define MARK(w, id) do { if ((w).prof) *(w).prof++ = ((u64)clock64() << 8) | (id); } while (0)
#else
#define MARK(w, id)
#endif
/* Everything a multiplying thread carries along. */
typedef struct worker {
    share s;
    cursor at;
    u32 a, parts;                          /* the operand's address; where in resident_memory the sums stand  */
    u32 turn;                              /* parity of pair_there                                            */
    int quads, packets;
    u32 by_packets;                        /* reciprocal                                                      */
    int slot, j, sub;                      /* which packet of a round this thread helps to make, which pair, which half of its sums */
    int row, c, mine;                      /* of the pair of values of the own group that it owns             */
    int operand_row;                       /* the row of A that it loads                                      */
    u32 x;                                 /* the pair of x that it owns                                      */
#ifdef RESIDENT_PROFILE
    u64 *prof;
#endif
} worker;

DEV char *parts_of(const worker &w) { return resident_memory + w.parts; }
DEV char *pair_parts_of(const worker &w) { return parts_of(w) + RESIDENT_PARTS; }
DEV char *small_of(const worker &w) { return pair_parts_of(w) + RESIDENT_PAIR_PARTS; }

/* The next piece is there: where. */
DEV u32 await_piece(worker &w) {
    barrier_wait(shared_address(full_barriers) + 8 * w.at.stage, w.at.parity);
    const u32 at = shared_address(resident_memory) + w.at.stage * RESIDENT_PIECE;
    advance(w.at);
    return at;
}
DEV void release_piece(u32 at) {
    if (!(thread() & 31)) barrier_arrive(shared_address(empty_barriers) + ((at - shared_address(resident_memory)) / RESIDENT_PIECE << 3));
}
DEV u32 operand_of(const worker &w, int kb) { return w.a + (kb * w.s.rows + w.operand_row) * 128; }

/* Units of an exchange into the operand, zeros up to whole blocks of k. */
template <int N> DEV void gather_operand(const worker &w, const char *from, int all, int first, int units, u32 by_units, int blocks, u32 tag) {
    const int rows = w.s.rows;
    const u32 a = w.a;
    gather<N>(from, all, first, units, by_units, rows, tag, [&](int unit, int row, uint4 v) { put16(operand_at(a, rows, unit, row), v); });
#pragma unroll 1
    for (int i = thread(); i < (blocks * 8 - units) * rows; i += READERS) put16(operand_at(a, rows, units + i / rows, i % rows), make_uint4(0, 0, 0, 0));
}

DEV void load8(float (&to)[8], const float *from) {
    const float4 a = __ldg((const float4 *)from), b = __ldg((const float4 *)from + 1);
    to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w, to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
}

/* norm(x) into the operand, rounded. Rows stay in registers from the packets on; their squares meet in shared memory. */
template <int ROUNDS> DEV void gather_norm(worker &w, const gpu_resident &p, const char *x, const float *scale, const float *shift, u32 tag) {
    const int lane = thread() & 31, units = p.width / 8, rows = w.s.rows, tasks = units * w.quads, whole = units % 32 == 0, shares = whole ? units / 32 : units;
    float *squares = (float *)parts_of(w);     /* [row][shares] */
    uint4 v[ROUNDS][3];
    float m[8], b[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    int unit[ROUNDS], row[ROUNDS];
#pragma unroll
    for (int k = 0; k < ROUNDS; k++) {
        const int i = thread() + k * READERS, quad = divide(i, p.by_units);
        unit[k] = i - quad * units, row[k] = quad * 3;
        if (i >= tasks) row[k] = RESIDENT_ROWS;
    }
    load8(m, scale + unit[0] * 8);
    if (shift) load8(b, shift + unit[0] * 8);
#pragma unroll
    for (int k = 0; k < ROUNDS; k++) {
        if (k && tasks <= k * READERS) break;
        float sum[3] = {0, 0, 0};
        if (row[k] < RESIDENT_ROWS) {
            uint4 q[1][4];
            const char *const at[1] = {x + (row[k] / 3 * 4 * units + unit[k]) * 16};
            read_quads<1>(q, at, units * 16, tag);
            v[k][0] = row_of_quad<0>(q[0]), v[k][1] = row_of_quad<1>(q[0]), v[k][2] = row_of_quad<2>(q[0]);
#pragma unroll
            for (int r = 0; r < 3; r++) {
                const u32 u[4] = {v[k][r].x, v[k][r].y, v[k][r].z, v[k][r].w};
#pragma unroll
                for (int j = 0; j < 4; j++) sum[r] = fmaf(low_of(u[j]), low_of(u[j]), fmaf(high_of(u[j]), high_of(u[j]), sum[r]));
            }
        }
#pragma unroll
        for (int r = 0; r < 3; r++) {
            if (whole) sum[r] = warp_sum(sum[r]);
            if (row[k] + r < rows && (!whole || !lane)) squares[(row[k] + r) * shares + (whole ? unit[k] >> 5 : unit[k])] = sum[r];
        }
    }
    MARK(w, 2);
    all_sync();
    MARK(w, 3);
#pragma unroll
    for (int k = 0; k < ROUNDS; k++) {
        if (k && tasks <= k * READERS) break;
        if (k && unit[k] != unit[0] && row[k] < RESIDENT_ROWS) {
            load8(m, scale + unit[k] * 8);
            if (shift) load8(b, shift + unit[k] * 8);
        }
#pragma unroll
        for (int r = 0; r < 3; r++) {
            if (row[k] + r >= rows) break;
            float sum = 0;
            if (shares == 4) {
                const float4 t = *(const float4 *)(squares + (row[k] + r) * 4);
                sum = (t.x + t.y) + (t.z + t.w);
            } else {
#pragma unroll 1
                for (int i = 0; i < shares; i++) sum += squares[(row[k] + r) * shares + i];
            }
            const float f = rsqrtf(sum * p.by_width + p.eps);
            u32 u[4] = {v[k][r].x, v[k][r].y, v[k][r].z, v[k][r].w};
#pragma unroll
            for (int j = 0; j < 4; j++)
                u[j] = pack_bf16(fmaf(low_of(u[j]), fmaf(m[2 * j], f, f), b[2 * j]), fmaf(high_of(u[j]), fmaf(m[2 * j + 1], f, f), b[2 * j + 1]));
            put16(operand_at(w.a, rows, unit[k], row[k] + r), make_uint4(u[0], u[1], u[2], u[3]));
        }
    }
#pragma unroll 1
    for (int i = thread(); i < (least_blocks(p.width) * 8 - units) * rows; i += READERS) put16(operand_at(w.a, rows, units + i / rows, i % rows), make_uint4(0, 0, 0, 0));
    all_sync();
    MARK(w, 4);
}

/* The operand times `groups` groups of 8 columns, a piece each, all of k: sums to parts[group][kw]. */
DEV void multiply_units(worker &w, int groups, int blocks) {
    const int lane = thread() & 31, warp = warp_of(), kw = warp & 7, half = warp >> 3;
#pragma unroll 1
    for (int g0 = 0; g0 < groups; g0 += 4) {
        const int n = min(4, groups - g0);
        float sum[2][4] = {};
        const u32 p0 = await_piece(w), p1 = await_piece(w);
        u32 p2 = p0, p3 = p1;
        if (n > 2) p2 = await_piece(w), p3 = await_piece(w);
        const u32 one = half ? p1 : p0, two = half ? p3 : p2;
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (kw + i * KWAYS < blocks) {
                u32 a[4][4], b[2][2][4];     /* A anew for each four groups: kept, it would be spilled */
                load_operand(a, operand_of(w, kw + i * KWAYS), w.operand_row);
                load_atom(b[0], one + (kw + i * KWAYS) * GPU_ATOM_BYTES);
                if (n > 2) load_atom(b[1], two + (kw + i * KWAYS) * GPU_ATOM_BYTES);
#pragma unroll
                for (int s = 0; s < 4; s++) {
                    mma16(sum[0], a[s], b[0][s >> 1][(s & 1) * 2], b[0][s >> 1][(s & 1) * 2 + 1]);
                    if (n > 2) mma16(sum[1], a[s], b[1][s >> 1][(s & 1) * 2], b[1][s >> 1][(s & 1) * 2 + 1]);
                }
            }
        char *to = parts_of(w) + ((g0 + half) * KWAYS + kw) * 512 + lane * 16;
        *(float4 *)to = make_float4(sum[0][0], sum[0][1], sum[0][2], sum[0][3]);
        if (n > 2) *(float4 *)(to + 2 * KWAYS * 512) = make_float4(sum[1][0], sum[1][1], sum[1][2], sum[1][3]);
        __syncwarp();
        release_piece(p0);
        release_piece(p1);
        if (n > 2) {
            release_piece(p2);
            release_piece(p3);
        }
        MARK(w, 5);
    }
    all_sync();
    MARK(w, 6);
}

/* The pair's two groups over this rank's `blocks` of k, joined in the cluster: the own group's sums are in pair_parts. */
DEV void multiply_pair(worker &w, int blocks) {
    const int lane = thread() & 31, warp = warp_of(), kw = warp & 7, half = warp >> 3;
    float sum[2][4] = {};
#pragma unroll 1
    for (int b = 0; b < blocks; b += 16) {
        const u32 p0 = await_piece(w);
        u32 p1 = p0;
        if (w.s.groups > 1) p1 = await_piece(w);
        const u32 piece = half ? p1 : p0;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int kb = kw + i * KWAYS;
            if (b + kb < blocks) {
                u32 a[4][4], f[2][4];
                load_operand(a, operand_of(w, b + kb), w.operand_row);
                load_atom(f, piece + kb * GPU_ATOM_BYTES);
#pragma unroll
                for (int s = 0; s < 4; s++) mma16(sum[s & 1], a[s], f[s >> 1][(s & 1) * 2], f[s >> 1][(s & 1) * 2 + 1]);
            }
        }
        __syncwarp();
        release_piece(p0);
        if (w.s.groups > 1) release_piece(p1);
    }
    if (half < w.s.groups) {
        const u32 to = shared_address(pair_parts_of(w)) + (w.s.rank * KWAYS + kw) * 512 + lane * 16;
        send16(peer_address(to, half), peer_address(shared_address(pair_barrier), half), sum[0][0] + sum[1][0], sum[0][1] + sum[1][1], sum[0][2] + sum[1][2], sum[0][3] + sum[1][3]);
    }
    MARK(w, 20);
    if (w.s.own) {
        barrier_wait(shared_address(pair_barrier), w.turn);
        w.turn ^= 1;
    }
    MARK(w, 21);
    all_sync();                            /* all have seen it and all have left the operand */
    MARK(w, 22);
    if (w.s.own && !thread()) barrier_arm(shared_address(pair_barrier), RESIDENT_PAIR_PARTS);
}

/* The sums of this thread's pair of the own group. The whole warp takes part. */
DEV float2 own_sums(const worker &w) {
    float2 v = {0, 0};
    if (w.mine) v = add_parts(pair_parts_of(w), 2 * KWAYS, w.row, w.c, w.sub);
    return make_float2(with_neighbour(v.x), with_neighbour(v.y));
}

/* This thread's pair of the own group, as packets: units of an exchange of `all`. */
DEV void publish_own(const worker &w, char *exchange, int all, int unit, u32 pair, u32 tag) {
    send_pairs(w.mine ? pair : 0, (thread() & 31) < 30 && w.slot < w.packets, exchange + (u32)(w.slot * all + unit) * 16, tag);
}

DEV float2 pair_of(const float *values, int at) { return values ? __ldg((const float2 *)(values + at)) : make_float2(0, 0); }

/* o and down: x += gate·(a·W). */
DEV void residual_phase(worker &w, const gpu_resident &p, const char *from, int columns, u32 by_half, const float *gate, char *x, u32 from_tag, u32 tag) {
    if (!w.s.groups) {
        all_sync();                        /* between two uses of `parts` */
        return;
    }
    const int all = columns / 8, blocks = least_blocks(columns), first = half_first(w.s.rank, blocks) * 8, group = 2 * w.s.pair + w.s.rank;
    const int n = half_count(w.s.rank, blocks), units = min(n * 8, all - first);
    float2 g = {1, 1};
    if (gate && w.mine) g = pair_of(gate, group * 8 + 2 * w.c);
    MARK(w, 17);
    if (units > 0) {
        if (units * w.quads > READERS) gather_operand<2>(w, from, all, first, units, by_half, n, from_tag);
        else gather_operand<1>(w, from, all, first, units, by_half, n, from_tag);
    }
    MARK(w, 18);
    all_sync();
    MARK(w, 19);
    multiply_pair(w, n);
    if (!w.s.own) return;
    const float2 v = own_sums(w);
    w.x = pack_bf16(low_of(w.x) + v.x * g.x, high_of(w.x) + v.y * g.y);
    publish_own(w, x, p.width / 8, group, w.x, tag);
    MARK(w, 23);
}

/* Upper parts, and what is left of them, side by side. */
DEV void publish_split(const worker &w, const gpu_resident &p, char *exchange, float2 v, u32 tag) {
    const int units = p.width / 8, group = 2 * w.s.pair + w.s.rank;
    publish_own(w, exchange, 2 * units, group, pack_bf16(v.x, v.y), tag);
    publish_own(w, exchange, 2 * units, units + group, pack_bf16(v.x - round_bf16(v.x), v.y - round_bf16(v.y)), tag);
}

/* Action tokens from x_t: three products, or one. */
DEV void embed(worker &w, const gpu_resident &p, const float *x_t, const char *weights, int step, char *x, u32 tag) {
    if (!w.s.groups) return;
    const int units = p.width / 8, wide = least_blocks(p.width), group = 2 * w.s.pair + w.s.rank, o = group * 8 + 2 * w.c;
    float2 time = {0, 0}, last = time, v = time;
    if (w.mine) {
        v = pair_of(p.in_bias, o);
        if (p.mlp_in) time = pair_of(p.time + (size_t)step * p.width, o), last = pair_of(p.mlp_out_bias, o);
#pragma unroll 2
        for (int k = 0; k < RESIDENT_ACTIONS; k += 2) {
            const float2 in = *(const float2 *)(x_t + w.row * RESIDENT_ACTIONS + k);
            const u32 low = *(const u32 *)(weights + 2 * w.c * 128 + (((k >> 3) ^ (2 * w.c)) & 7) * 16 + (k & 7) * 2);
            const u32 high = *(const u32 *)(weights + (2 * w.c + 1) * 128 + (((k >> 3) ^ (2 * w.c + 1)) & 7) * 16 + (k & 7) * 2);
            v.x = fmaf(in.x, low_of(low), v.x), v.x = fmaf(in.y, high_of(low), v.x);
            v.y = fmaf(in.x, low_of(high), v.y), v.y = fmaf(in.y, high_of(high), v.y);
        }
    }
#pragma unroll 1
    for (int i = 0; i < 2 && p.mlp_in; i++) {
        if (w.s.own) publish_split(w, p, p.embed[i], v, tag);
        gather_operand<1>(w, p.embed[i], 2 * units, w.s.rank * units, units, p.by_units, wide, tag);
        all_sync();
        multiply_pair(w, wide);
        v = own_sums(w);
        if (i) v.x += last.x, v.y += last.y;
        else v.x = silu(v.x + time.x), v.y = silu(v.y + time.y);
    }
    if (!w.s.own) return;
    w.x = pack_bf16(v.x, v.y);
    publish_own(w, x, units, group, w.x, tag);
}

/* Pair (row, c) of both groups of a unit. The whole warp takes part. */
DEV void unit_sums(const worker &w, int unit, int row, int c, int there, float2 &a, float2 &b) {
    a = b = make_float2(0, 0);
    if (there) a = add_parts(parts_of(w) + 2 * unit * KWAYS * 512, KWAYS, row, c, w.sub), b = add_parts(parts_of(w) + (2 * unit + 1) * KWAYS * 512, KWAYS, row, c, w.sub);
    a.x = with_neighbour(a.x), a.y = with_neighbour(a.y), b.x = with_neighbour(b.x), b.y = with_neighbour(b.y);
}

/* qkv's sums to q, new k or new v: two units of 8 dims each of the block's units. */
DEV void publish_qkv(const worker &w, const gpu_resident &p, const float *rope, int unit, int i, int there, u32 tag) {
    const int pair = 3 * i + w.j, row = pair >> 2, c = pair & 3, u = w.s.block + unit * w.s.blocks, part = u >> 4, i0 = u & 15;
    float2 a, b;
    float4 r = {1, 0, 1, 0};
    unit_sums(w, unit, row, c, there && row < w.s.rows, a, b);
    if (there && row < w.s.rows && part <= p.heads) r = *(const float4 *)(rope + ((unit * RESIDENT_ROWS + row) * 4 + c) * 4);
    const u32 low = pack_bf16(a.x * r.x - b.x * r.y, a.y * r.z - b.y * r.w), high = pack_bf16(b.x * r.x + a.x * r.y, b.y * r.z + a.y * r.w);
    char *to = part < p.heads ? p.q : part == p.heads ? p.k_new : p.v_new;
    const int all = part < p.heads ? p.heads * 32 : 32;
    const int first = (part < p.heads ? part * 32 : 0) + (part <= p.heads ? i0 : 2 * i0), second = part <= p.heads ? first + 16 : first + 1;
    send_pairs(low, there, to + (u32)(i * all + first) * 16, tag);
    send_pairs(high, there, to + (u32)(i * all + second) * 16, tag);
}

DEV void publish_gated(const worker &w, const gpu_resident &p, int unit, int i, int there, u32 tag) {
    const int pair = 3 * i + w.j, row = pair >> 2, c = pair & 3;
    float2 a, b;
    unit_sums(w, unit, row, c, there && row < w.s.rows, a, b);
    send_pairs(pack_bf16(gelu(a.x) * b.x, gelu(a.y) * b.y), there, p.hidden + (u32)(i * (p.mlp / 8) + w.s.blocks - 1 - w.s.block + unit * w.s.blocks) * 16, tag);
}

/* qkv, or gate_up with `gated`. */
template <int ROUNDS> DEV void norm_phase(worker &w, const gpu_resident &p, const float *scale, const float *shift, int gated, const char *x, const float *rope, u32 x_tag, u32 tag) {
    const int units = gated ? w.s.gated : w.s.qkv, total = units * w.packets;
    if (!units) return;
    MARK(w, 1);
    gather_norm<ROUNDS>(w, p, x, scale, shift, x_tag);
    multiply_units(w, 2 * units, least_blocks(p.width));
#pragma unroll 1
    for (int s0 = 0; s0 < total; s0 += SLOTS) {
        const int s = s0 + w.slot, unit = divide(s, w.by_packets), i = s - unit * w.packets, there = (thread() & 31) < 30 && s < total;
        if (s0 + warp_of() * 5 >= total) break;      /* a warp that has nothing left */
        if (gated) publish_gated(w, p, unit, i, there, tag);
        else publish_qkv(w, p, rope, unit, i, there, tag);
    }
    MARK(w, 7);
}

/* The block's keys or values: places from first_new on come as packets; with `clear`, what lies behind the last key is zero. */
DEV void patch_keys(const worker &w, const char *from, u32 piece0, u32 piece1, int clear, u32 tag) {
    const share &s = w.s;
    auto at = [&](int unit, int place) { return (place >> 5 ? piece1 : piece0) + (unit >> 3) * RESIDENT_BOX_KEYS * 128 + (place & 31) * 128 + (((unit ^ place) & 7) << 4); };
    const int loaded = (s.mine + RESIDENT_BOX_KEYS - 1) / RESIDENT_BOX_KEYS * RESIDENT_BOX_KEYS, fresh = max(0, s.first_new - s.begin);
    if (clear)
#pragma unroll 1
        for (int i = thread(); i < (loaded - fresh) * 32; i += READERS) {
            const int place = fresh + (i >> 5);
            if (place >= s.mine) put16(at(i & 31, place), make_uint4(0, 0, 0, 0));
        }
    if (s.begin + s.mine <= s.first_new) return;
    gather<1>(from, 32, 0, 32, 1u << 27, s.rows, tag, [&](int unit, int row, uint4 v) {
        const int place = s.first_new + row - s.begin;
        if (place >= 0 && place < s.mine) put16(at(unit, place), v);
    });
}

/* Packets of (head, 16 dims, split, row): eight pairs of bf16, as mma leaves them, and the log2. */
DEV u32 part_at(const worker &w, int chunk, int split) { return (u32)(((w.s.head * 16 + chunk) * RESIDENT_SPLITS + split) * w.s.rows) * 48; }

DEV void scores_phase(worker &w, const gpu_resident &p, u32 qkv_tag, u32 tag) {
    const share &s = w.s;
    const int lane = thread() & 31, warp = warp_of(), g = lane >> 2, t = lane & 3;
    if (!s.mine) {
        all_sync();                        /* the join may write where sums are still read */
        return;
    }
    const int many = s.mine > RESIDENT_BOX_KEYS, touched = s.begin + s.mine + RESIDENT_BOX_KEYS > s.first_new;
    float *scores = (float *)parts_of(w);      /* [16][68] */
    const u32 p_at = shared_address(parts_of(w)) + 8192;
    u32 k[2], v[2];
    k[0] = await_piece(w);
    k[1] = many ? await_piece(w) : k[0];
    v[0] = await_piece(w);
    v[1] = many ? await_piece(w) : v[0];
    MARK(w, 8);
    gather_operand<1>(w, p.q, p.heads * 32, s.head * 32, 32, 1u << 27, 4, qkv_tag);
    if (touched)
#pragma unroll 1
        for (int i = 0; i < 2; i++) patch_keys(w, i ? p.v_new : p.k_new, i ? v[0] : k[0], i ? v[1] : k[1], i, qkv_tag);
    MARK(w, 9);
    all_sync();
    MARK(w, 10);
    if (warp * 8 < s.mine && warp < 8) {
        float sum[2][4] = {};
        const u32 at = (warp >> 2 ? k[1] : k[0]) + (warp & 3) * 1024;
#pragma unroll
        for (int b = 0; b < 4; b++) {
            u32 a[4][4], f[2][4];
            load_operand(a, operand_of(w, b), w.operand_row);
            load_atom(f, at + b * RESIDENT_BOX_KEYS * 128);
#pragma unroll
            for (int i = 0; i < 4; i++) mma16(sum[i & 1], a[i], f[i >> 1][(i & 1) * 2], f[i >> 1][(i & 1) * 2 + 1]);
        }
        float *to = scores + g * 68 + warp * 8 + 2 * t;
        *(float2 *)to = make_float2(sum[0][0] + sum[1][0], sum[0][1] + sum[1][1]);
        *(float2 *)(to + 8 * 68) = make_float2(sum[0][2] + sum[1][2], sum[0][3] + sum[1][3]);
    }
    all_sync();
    MARK(w, 11);
    if (warp < s.rows) {
        const float scale = p.scale * 1.4426950408889634f;
        float a = lane < s.mine ? scores[warp * 68 + lane] * scale : -INFINITY, b = lane + 32 < s.mine ? scores[warp * 68 + lane + 32] * scale : -INFINITY;
        const float top = warp_max(fmaxf(a, b));
        a = exp2_fast(a - top), b = exp2_fast(b - top);
        const float sum = warp_sum(a + b);
        const u32 at = p_at + warp * 128 + (lane & 7) * 2;
        asm volatile("st.shared.b16 [%0], %1;" ::"r"(at + (((lane >> 3) ^ warp) & 7) * 16), "h"(to_bf16(a)) : "memory");
        asm volatile("st.shared.b16 [%0], %1;" ::"r"(at + (((lane >> 3) + 4) ^ (warp & 7)) * 16), "h"(to_bf16(b)) : "memory");
        if (!lane) stats[warp][0] = __fdividef(1, sum), stats[warp][1] = top + __log2f(sum);
    }
    all_sync();
    MARK(w, 12);
    float out[2][4] = {};
#pragma unroll
    for (int i = 0; i < 4; i++) {          /* 16 keys; dims 16·warp … */
        if (i * 16 >= s.mine) break;
        u32 a[4], b[4];
        const int place = (i & 1) * 16 + (lane & 15), unit = 2 * warp + (lane >> 4);
        load_matrix4(a, p_at + w.operand_row * 128 + (((2 * i + (lane >> 4)) ^ w.operand_row) & 7) * 16);
        load_turned4(b, (i >> 1 ? v[1] : v[0]) + (unit >> 3) * RESIDENT_BOX_KEYS * 128 + place * 128 + (((unit ^ place) & 7) << 4));
        mma16(out[0], a, b[0], b[1]);
        mma16(out[1], a, b[2], b[3]);
    }
    MARK(w, 24);
    char *to = p.part + part_at(w, warp, s.split);
    const int r8 = (lane * 11) >> 5, part = lane - 3 * r8;       /* lane is packet `part` of row r8 (of 8): lane / 3 */
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = r8 + 8 * h, from = r8 * 4;
        const float f = g + 8 * h < s.rows ? stats[g + 8 * h][0] : 0;
        const u32 low = pack_bf16(out[0][2 * h] * f, out[0][2 * h + 1] * f), high = pack_bf16(out[1][2 * h] * f, out[1][2 * h + 1] * f);
        /* of the row: low 0 1 2 | low 3, high 0 1 | high 2 3, log2 */
        const u32 l0 = __shfl_sync(0xffffffffu, low, from + (part ? 3 : 0)), l1 = __shfl_sync(0xffffffffu, low, from + 1), l2 = __shfl_sync(0xffffffffu, low, from + 2);
        const u32 h0 = __shfl_sync(0xffffffffu, high, from + (part == 1 ? 0 : 2)), h1 = __shfl_sync(0xffffffffu, high, from + (part == 1 ? 1 : 3));
        if (lane < 24 && row < s.rows)
            put_packet(to + row * 48 + part * 16, part < 2 ? l0 : h0, part == 0 ? l1 : part == 1 ? h0 : h1, part == 0 ? l2 : part == 1 ? h1 : __float_as_uint(stats[row][1]), tag);
    }
    if (touched) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
    release_piece(k[0]);
    if (many) release_piece(k[1]);
    release_piece(v[0]);
    if (many) release_piece(v[1]);
}

DEV void join_phase(worker &w, const gpu_resident &p, u32 part_tag, u32 tag) {
    const share &s = w.s;
    if (s.head >= p.heads) return;
    MARK(w, 13);
    u32 *values = (u32 *)(parts_of(w) + 12288);              /* [split][row][9] */
    const int chunk = s.split, tasks = s.splits * s.rows * 3;
    const char *from = p.part + part_at(w, chunk, 0);
#pragma unroll 1
    for (int i = thread(); i < tasks; i += READERS) {
        uint4 v;
        u32 tries = 0;
        do {
            v = get_packet(from + i * 16);
            lose_patience(tries);
        } while (v.w != part_tag);
        u32 *to = values + i * 3;
        to[0] = v.x, to[1] = v.y, to[2] = v.z;
    }
    MARK(w, 14);
    all_sync();
    MARK(w, 15);
    const int total = 2 * w.packets, unit = divide(w.slot, w.by_packets), i = w.slot - unit * w.packets, pair = 3 * i + w.j, row = pair >> 2, c = pair & 3;
    if (warp_of() * 5 >= total) return;
    const int there = (thread() & 31) < 30 && w.slot < total, known = there && row < s.rows;
    const u32 *at = values + (known ? row : 0) * JOIN_PITCH;
    const int pitch = s.rows * JOIN_PITCH, word = unit * 4 + c;
    float top = -INFINITY, sum = 0, a = 0, b = 0;
#pragma unroll 4
    for (int k = w.sub; k < s.splits; k += 2) top = fmaxf(top, __uint_as_float(at[k * pitch + 8]));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
#pragma unroll 4
    for (int k = w.sub; k < s.splits; k += 2) {
        const float f = exp2_fast(__uint_as_float(at[k * pitch + 8]) - top);
        const u32 v = at[k * pitch + (known ? word : 0)];
        sum += f, a = fmaf(low_of(v), f, a), b = fmaf(high_of(v), f, b);
    }
    const float f = __fdividef(1, with_neighbour(sum));
    a = with_neighbour(a) * f, b = with_neighbour(b) * f;
    send_pairs(known ? pack_bf16(a, b) : 0, there, p.attended + (u32)(i * p.heads * 32 + s.head * 32 + 2 * chunk + unit) * 16, tag);
    MARK(w, 16);
}

template <int ROUNDS> DEV void velocity_phase(worker &w, const gpu_resident &p, const char *x, const float *scale, const float *shift, float *x_t, u32 x_tag, int last) {
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
            *(float2 *)(rope + i * 2) = __ldg((const float2 *)(p.rope + ((size_t)p.position[row] * (RESIDENT_HEAD / 2) + (u & 15) * 8 + dim) * 2));
    }
    if (w.s.own && thread() < GPU_ATOM_BYTES / 16)
        ((uint4 *)weights)[thread()] = __ldg((const uint4 *)((const char *)p.in + (size_t)(2 * w.s.pair + w.s.rank) * GPU_ATOM_BYTES) + thread());
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
    w.row = (3 * w.slot + w.j) >> 2, w.c = (3 * w.slot + w.j) & 3, w.mine = w.s.own && lane < 30 && w.slot < w.packets && w.row < w.s.rows;
    w.operand_row = min(lane & 15, w.s.rows - 1);
    w.x = 0, w.turn = 0;
#ifdef RESIDENT_PROFILE
    w.prof = NULL;
#endif
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
#ifdef RESIDENT_PROFILE
            const int who = w.s.block == 20 ? 0 : w.s.block == 60 ? 1 : w.s.block == 130 ? 2 : -1;
            if (p.stamps && step == 1 && half == 8 && !thread() && who >= 0) w.prof = p.stamps + 1024 + who * 1024;
            if (half == 20) w.prof = NULL;
#endif
            const float *shift = mlp ? l.shift_post : l.shift_in;
            norm_phase<ROUNDS>(w, p, (mlp ? l.scale_post : l.scale_in) + at, shift ? shift + at : shift, mlp, p.x[turn], rope, tag, tag + 1);
            ++tag;
            if (!mlp) {
                scores_phase(w, p, tag, tag + 1);
                join_phase(w, p, tag + 1, tag + 2);
                tag += 2;
            }
            const float *gate = mlp ? l.gate_post : l.gate_in;
            residual_phase(w, p, mlp ? p.hidden : p.attended, mlp ? p.mlp : p.heads * RESIDENT_HEAD,
                           w.s.rank ? (mlp ? p.by_mlp[1] : p.by_heads[1]) : mlp ? p.by_mlp[0] : p.by_heads[0], gate ? gate + at : gate, p.x[turn ^ 1], tag, tag + 1);
            ++tag;
            if (mlp) stamp(w, p, step * (p.depth + 1) + 1 + (half >> 1));
        }
        velocity_phase<ROUNDS>(w, p, p.x[turn], p.scale_out + at, p.shift_out ? p.shift_out + at : p.shift_out, x_t, tag, step == p.steps - 1);
        turn ^= 1;
    }
    stamp(w, p, p.steps * (p.depth + 1));
}

template <int ROUNDS> DEV void resident(const gpu_resident &p) {
    wait_before();
    const share s = share_of(p);
    if (!threadIdx.x) {
        for (int i = 0; i < p.stages; i++) barrier_init(shared_address(full_barriers) + 8 * i, 1), barrier_init(shared_address(empty_barriers) + 8 * i, WARPS);
        barrier_init(shared_address(pair_barrier), 1);
        barrier_init_done();
        barrier_arm(shared_address(pair_barrier), RESIDENT_PAIR_PARTS);
    }
    __syncthreads();
    cluster_sync();                        /* the neighbour's barrier is made */
    if (threadIdx.x >= READERS) {
        if (threadIdx.x == READERS) produce(p, s, shared_address(resident_memory), shared_address(full_barriers), shared_address(empty_barriers));
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
extern "C" __global__ void __launch_bounds__(RESIDENT_THREADS, 1) resident_denoise_12(const __grid_constant__ gpu_resident p) { resident<1>(p); }
extern "C" __global__ void __launch_bounds__(RESIDENT_THREADS, 1) resident_denoise_16(const __grid_constant__ gpu_resident p) { resident<2>(p); }
