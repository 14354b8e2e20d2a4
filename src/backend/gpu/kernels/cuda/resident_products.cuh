/* Products in the resident kernel: how x, or any exchange, becomes the operand in shared memory, how 16 warps multiply it by the
 * pieces of the ring, and where their sums meet.
 *
 * The operand (A) lies [k/64][rows][128 bytes, swizzled]. Warp (half, kw) takes every second group of 8 columns and the k
 * blocks kw, kw + 8 …; its sums stand in `parts` [group][kw], or, of the products whose k is cut in two, in the pair_parts of
 * the block that owns the group, brought there by st.async. They are added in a fixed order.
 *
 * What surprises: registers are the limit. 17 warps leave 96 a thread, and a spilled one is read back from the second-level
 * cache, for the ring leaves the first one nothing: a version with 70 of them took twice as long. */
#ifndef KERNELS_CUDA_RESIDENT_PRODUCTS_CUH
#define KERNELS_CUDA_RESIDENT_PRODUCTS_CUH

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
DEV void put16(u32 at, uint4 v) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
/* The same for the whole warp, and the compiler knows. */
DEV int warp_of(void) { return __shfl_sync(0xffffffffu, (int)thread() >> 5, 0); }
DEV void all_sync(void) { group_sync(1, READERS); }

/* A of 64 k, at this lane's row; beyond those there are it is the last one again, and nobody looks at what comes of it. */
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

/* Everything a multiplying thread carries along. */
typedef struct worker {
    share s;
    cursor at;
    u32 a, parts;                          /* the operand's address; where in resident_memory the sums stand  */
    u32 turn;                              /* parity of pair_there                                            */
    int quads, packets;
    u32 by_packets; /* reciprocal                                                      */
    int slot, j, sub; /* which packet of a round this thread helps to make, which pair, which half of its sums */
    int row, c, mine; /* of the pair of values of the own group that it owns             */
    int operand_row; /* the row of A that it loads                                      */
    u32 x; /* the pair of x that it owns                                      */
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
    if (!(thread() & 31))
        barrier_arrive(shared_address(empty_barriers) + ((at - shared_address(resident_memory)) / RESIDENT_PIECE << 3));
}
DEV u32 operand_of(const worker &w, int kb) { return w.a + (kb * w.s.rows + w.operand_row) * 128; }

/* Units of an exchange into the operand, zeros up to whole blocks of k. */
template <int N>
DEV void gather_operand(const worker &w, const char *from, int all, int first, int units, u32 by_units, int blocks, u32 tag) {
    const int rows = w.s.rows;
    const u32 a = w.a;
    gather<N>(from, all, first, units, by_units, rows, tag,
              [&](int unit, int row, uint4 v) { put16(operand_at(a, rows, unit, row), v); });
#pragma unroll 1
    for (int i = thread(); i < (blocks * 8 - units) * rows; i += READERS)
        put16(operand_at(a, rows, units + i / rows, i % rows), make_uint4(0, 0, 0, 0));
}

DEV void load8(float (&to)[8], const float *from) {
    const float4 a = __ldg((const float4 *)from), b = __ldg((const float4 *)from + 1);
    to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w, to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
}

/* norm(x) into the operand, rounded. Rows stay in registers from the packets on; their squares meet in shared memory. */
template <int ROUNDS>
DEV void gather_norm(worker &w, const gpu_resident &p, const char *x, const float *scale, const float *shift, u32 tag) {
    const int lane = thread() & 31, units = p.width / 8, rows = w.s.rows, tasks = units * w.quads, whole = units % 32 == 0,
              shares = whole ? units / 32 : units;
    float *squares = (float *)parts_of(w); /* [row][shares] */
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
            if (row[k] + r < rows && (!whole || !lane))
                squares[(row[k] + r) * shares + (whole ? unit[k] >> 5 : unit[k])] = sum[r];
        }
    }
    all_sync();
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
                u[j] = pack_bf16(fmaf(low_of(u[j]), fmaf(m[2 * j], f, f), b[2 * j]),
                                 fmaf(high_of(u[j]), fmaf(m[2 * j + 1], f, f), b[2 * j + 1]));
            put16(operand_at(w.a, rows, unit[k], row[k] + r), make_uint4(u[0], u[1], u[2], u[3]));
        }
    }
#pragma unroll 1
    for (int i = thread(); i < (least_blocks(p.width) * 8 - units) * rows; i += READERS)
        put16(operand_at(w.a, rows, units + i / rows, i % rows), make_uint4(0, 0, 0, 0));
    all_sync();
}

/* 64 k blocks kw and kw + 8 of the operand times G groups. */
template <int G> DEV void multiply_groups(const worker &w, float (&sum)[2][4], int kw, int blocks, u32 one, u32 two) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int kb = kw + i * KWAYS;
        if (kb >= blocks) break;
        u32 a[4][4], b[G][2][4];           /* A anew for each four groups: kept, it would be spilled */
        load_operand(a, operand_of(w, kb), w.operand_row);
        load_atom(b[0], one + kb * GPU_ATOM_BYTES);
        if (G > 1) load_atom(b[G - 1], two + kb * GPU_ATOM_BYTES);
#pragma unroll
        for (int s = 0; s < 4; s++)
#pragma unroll
            for (int g = 0; g < G; g++) mma16(sum[g], a[s], b[g][s >> 1][(s & 1) * 2], b[g][s >> 1][(s & 1) * 2 + 1]);
    }
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
        if (n > 2) multiply_groups<2>(w, sum, kw, blocks, one, two);
        else multiply_groups<1>(w, sum, kw, blocks, one, two);
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
    }
    all_sync();
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
        send16(peer_address(to, half), peer_address(shared_address(pair_barrier), half), sum[0][0] + sum[1][0],
               sum[0][1] + sum[1][1], sum[0][2] + sum[1][2], sum[0][3] + sum[1][3]);
    }
    if (w.s.own) {
        barrier_wait(shared_address(pair_barrier), w.turn);
        w.turn ^= 1;
    }
    all_sync();                            /* all have seen it and all have left the operand */
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

#endif
