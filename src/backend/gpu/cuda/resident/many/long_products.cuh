/* Products of the resident kernel for many rows: wgmma with all rows as A, N columns of weights as B. The
 * warpgroups of a block multiply every second slot of rows each, and add up in the end.
 *
 * Norms come after the products: of a row x, with the norm's scale and shift,
 *   norm(x)·Wᵀ = (x·(1 + scale))·Wᵀ·f + shift·Wᵀ,   f = 1 / root mean square of x
 * x·(1 + scale) is what blocks leave for the others, the shift is one more row of it. x itself stays in
 * registers, fp32. */
#ifndef KERNELS_CUDA_LONG_PRODUCTS_CUH
#define KERNELS_CUDA_LONG_PRODUCTS_CUH

#include "backend/gpu/cuda/weight_tile.cuh"
#include "long_block.cuh"

typedef weight_tile<GPU_WEIGHT_BF16> atom;

DEV u64 rows_operand(u32 address) { return cluster_operand(address, 1024); }

DEV void wgmma(float (&d)[8], u64 a, u64 b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %10, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {" WT0 "}, %8, %9, p, 1, 1, 0, 0;\n}"
                 : WRS(0) : "l"(a), "l"(b), "r"(add));
}
DEV void wgmma(float (&d)[16], u64 a, u64 b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
                 WT0 ", " WT1 "}, %16, %17, p, 1, 1, 0, 0;\n}"
                 : WRS(0), WRS(1) : "l"(a), "l"(b), "r"(add));
}

/* ---- the copying warps --------------------------------------------------------------------------------- */

/* Blocks begin with different slots, so that not all ask for the same bytes at once: the first one of so
 * many, a power of two; a slot of weights belongs to `span` slots of rows. */
DEV int first_slot(const block &b, int span, int slots) { return b.rank * span & (slots - 1); }

/* Boxes of GROUPS groups of 8 columns, from group `first` on, for `slots` slots of rows; from chunk `kb` of
 * 64 k on. */
template <int GROUPS>
DEV void feed_weights(block &b, const gpu_tensor_map *map, int first, int kb, int slots) {
    enum { SPAN = 8 / GROUPS };            /* slots of rows that a slot of weights is for                   */
    const int begin = first_slot(b, SPAN, slots);
#pragma unroll 1
    for (int i = 0; i < slots; i += SPAN) {
        u32 full;
        const u32 to = begin_weights(b, full);
        copy_atoms_once(to, map, first, kb + ((begin + i) & (slots - 1)) * CHUNKS, full);
    }
}

/* Copies `slots` slots of `height` rows from `at` in the state, starting at slot `first`, in rotated order
 * from `begin`. */
DEV void feed_rows(block &b, const gpu_tensor_map *state, int height, int at, int first, int slots,
                   int begin) {
    const int lines = height * CHUNKS;
    const u32 bytes = (u32)lines * LONG_LINE;
#pragma unroll 1
    for (int i = 0; i < slots; i++) {
        u32 full;
        const u32 to = begin_slot(b.rows, ROW_SLOT, bytes, full);
        copy_box2(to, state, 0, at / LONG_LINE + (first + ((begin + i) & (slots - 1))) * lines, full);
    }
}

/* ---- the consumers ------------------------------------------------------------------------------------- */

/* The warpgroup's half of the sums over so many slots of rows: every second one. Note: it waits for its own
 * slots only, and each slot of the ring is always the same warpgroup's: a wait for another one's could come
 * too late, when that slot has been filled twice, and a parity would not tell. */
template <int N> DEV void multiply(float (&d)[N / 2], block &b, int slots) {
    enum { SPAN = 64 / N, TILE_BYTES = 64 * LONG_LINE }; /* slots of rows that a slot of weights is for     */
    const u32 chunk = (u32)b.height * LONG_LINE / 16;
    ring_place x = ring_ahead(b.rows, b.group), w = ring_ahead(b.weights, SPAN == 1 ? b.group : 0);
#pragma unroll
    for (int i = 0; i < N / 2; i++) d[i] = 0;
#pragma unroll 1
    for (int i = b.group;; i += 2) {
        ring_await_full(b.weights, w);
        ring_await_full(b.rows, x);
        const u64 rows = rows_operand(ring_address(b.rows, x, ROW_SLOT) + b.tile * TILE_BYTES),
                  weights = cluster_operand(ring_address(b.weights, w, SLOT) +
                                                i % SPAN * (CHUNKS * atom::BYTES),
                                            SPAN * CHUNKS * atom::BYTES);
        wgmma_begin();
#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
#pragma unroll
            for (int k = 0; k < atom::STEPS; k++)
                wgmma(d, rows + c * chunk + atom::STEP * k, weights + c * atom::NEXT + atom::STEP * k, 1);
        wgmma_commit();
        wgmma_wait<0>();
        leave(b, b.rows, x, 2);
        const bool last = i + 2 >= slots;
        if (SPAN == 1) leave(b, b.weights, w, 2);
        else if (last || i % SPAN + 2 >= SPAN) leave(b, b.weights, w, 1);
        if (last) break;
        x = ring_after(b.rows, x, 2);
        if (SPAN == 1) w = ring_after(b.weights, w, 2);
        else if (i % SPAN + 2 >= SPAN) w = ring_after(b.weights, w, 1);
    }
    after_wait(d);
    ring_move(b.rows, ring_after(b.rows, x, 2 - b.group));
    ring_move(b.weights, ring_after(b.weights, w, SPAN == 1 ? 2 - b.group : 1));
}

/* The first of the two rows that a thread has in its tile; the other one is 8 further. */
DEV int tile_row(const block &b) { return b.tile * 64 + (b.warp & 3) * 16 + (b.lane >> 2); }

/* The warpgroups add up: each gets the sums of half of the columns. Where there is a shift, its sums of these
 * columns come out, too, two in each 8. */
template <int N>
DEV void share_sums(float (&v)[N / 4], float (&shift)[N / 8], const float (&d)[N / 2], const block &b,
                    const gpu_resident_long &p) {
    enum { FLOAT4S = N / 16 };
    float4 *const box = (float4 *)(b.memory + AT_SUMS) + b.tile * 1024 + (threadIdx.x & 127);
    float2 *const shifted = (float2 *)(b.memory + AT_SHIFTED) + (b.lane & 3);
#pragma unroll
    for (int i = 0; i < FLOAT4S; i++) {
        const float *const first = d + 4 * i, *const second = d + N / 4 + 4 * i;
        box[(b.group * FLOAT4S + i) * 128] =
            b.group ? make_float4(first[0], first[1], first[2], first[3])
                    : make_float4(second[0], second[1], second[2], second[3]);
#pragma unroll
        for (int j = 0; j < 4; j++) v[4 * i + j] = b.group ? second[j] : first[j];
    }
    if (p.shifts && (p.rows & ~8) == tile_row(b)) {
        const int h = p.rows >> 3 & 1;
#pragma unroll
        for (int j = 0; j < N / 8; j++)
            shifted[b.group * 32 + 4 * j] = h ? make_float2(d[4 * j + 2], d[4 * j + 3])
                                              : make_float2(d[4 * j], d[4 * j + 1]);
    }
    consumers_meet();
    be_quiet(b, 1);
#pragma unroll
    for (int i = 0; i < FLOAT4S; i++) {
        const float4 o = box[((b.group ^ 1) * FLOAT4S + i) * 128];
        v[4 * i] += o.x, v[4 * i + 1] += o.y, v[4 * i + 2] += o.z, v[4 * i + 3] += o.w;
    }
#pragma unroll
    for (int j = 0; j < N / 16; j++) {
        shift[2 * j] = shift[2 * j + 1] = 0;
        if (!p.shifts) continue;
        const int at = 4 * (b.group * (N / 16) + j);
        const float2 one = shifted[at], two = shifted[32 + at];
        shift[2 * j] = one.x + two.x, shift[2 * j + 1] = one.y + two.y;
    }
}

/* Where 8 k of a row are, in rows of products that begin at `at`. */
DEV char *row_at(const block &b, int at, int kgroup, int row) {
    return (char *)b.progress + at + ((kgroup >> 3) * b.height + row) * LONG_LINE + (kgroup & 7) * 16;
}

/* ---- x and its norms ----------------------------------------------------------------------------------- */

/* A thread's part of x: a row, and two columns from `column` on. */
typedef struct owned {
    int row, column;
    float x[2];
} owned;

DEV float2 two_of(const float *values, int column, float otherwise) {
    return values ? __ldg((const float2 *)(values + column)) : make_float2(otherwise, otherwise);
}

/* Sums of squares of norm n, a row: two numbers, of 2^-36 and of 2^-4. Integers, so that their order does not
 * matter. */
DEV u64 *squares_of(const block &b, u32 n, int row) {
    return (u64 *)((char *)b.progress + LONG_SQUARES_AT) + (n % LONG_SQUARES * LONG(TILE_ROWS) + row) * 2;
}
DEV void add_square(u64 *to, u64 square) {
    asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(to), "l"(square) : "memory");
}
DEV float factor_of(const block &b, const gpu_resident_long &p, int row) {
    const ulonglong2 s = __ldcg((const ulonglong2 *)squares_of(b, b.norms, row));
    const float sum = __ull2float_rn(s.x) * 0x1p-36f + __ull2float_rn(s.y) * 0x1p-4f;
    return rsqrtf(sum * (1.f / RESIDENT_WIDTH) + p.eps);
}

/* x for the next product, and its squares. A row whose squares are too large for the sums is no number from
 * here on. */
DEV void leave_scaled(const block &b, const gpu_resident_long &p, const owned &o, const float2 &scale,
                      const float2 &shift) {
    float square = o.x[0] * o.x[0] + o.x[1] * o.x[1];
    u32 scaled = pack_bf16(o.x[0] * (1 + scale.x), o.x[1] * (1 + scale.y));
    square += __shfl_xor_sync(0xffffffffu, square, 1);
    square += __shfl_xor_sync(0xffffffffu, square, 2);
    if (!(square < 0x1p50f)) scaled = 0x7fff7fff;
    if (o.row == p.rows) scaled = pack_bf16(shift.x, shift.y);
    if (o.row < p.rows + p.shifts)
        *(u32 *)(row_at(b, LONG(SCALED_AT), b.rank, o.row) + (b.lane & 3) * 4) = scaled;
    if (o.row >= p.rows || b.lane & 3) return;
    u64 *const to = squares_of(b, b.norms, o.row);
    if (square < 0x1p16f) add_square(to, __float2ull_rn(square * 0x1p36f));
    else add_square(to + 1, __float2ull_rn(fminf(square, 0x1p50f) * 0x1p4f));
}

/* Three buffers of squares rotate. While the one of a norm is read, one block clears the one that the norm
 * after the next will add to. */
DEV void forget_squares(const block &b) {
    if (!b.rank && threadIdx.x < 2 * LONG(TILE_ROWS)) squares_of(b, b.norms + 2, 0)[threadIdx.x] = 0;
}

/* ---- the products of a layer --------------------------------------------------------------------------- */

/* x += gate · product, 8 columns of it: the cluster has 16, each block multiplies its half of k by them, so
 * many slots, and sends each block the sums that are for it. Then x for the next norm; `scales` NULL: there
 * is none. */
DEV void add_residual(block &b, const gpu_resident_long &p, owned &o, int slots, const float *gates,
                      const float *scales, const float *shifts) {
    const float2 gate = two_of(gates, o.column, 1), scale = two_of(scales, o.column, 0),
                 shift = two_of(shifts, o.column, 0);
    const u32 given = b.base + AT_GIVEN;
    float d[4 * CLUSTER], v[2] = {};
    await_met(b);
    multiply<8 * CLUSTER>(d, b, slots);
    const u32 to = b.base + AT_SUMS +
                   (u32)(((b.side * 2 + b.group) * TILES + b.tile) * 128 + (threadIdx.x & 127)) * 16;
#pragma unroll
    for (int i = 0; i < CLUSTER; i++)
        send16(peer_address(to, i), peer_address(given, i), d[4 * i], d[4 * i + 1], d[4 * i + 2],
               d[4 * i + 3]);
    await(given, b.exchanges++ & 1);
    be_quiet(b, 1);
    const float2 *const sums =
        (const float2 *)(b.memory + AT_SUMS) + b.tile * 256 + 2 * (threadIdx.x & 127) + b.group;
#pragma unroll
    for (int i = 0; i < 2 * CLUSTER; i++) {
        const float2 s = sums[i * 256 * TILES];
        v[0] += s.x, v[1] += s.y;
    }
    if (!threadIdx.x) barrier_arm(given, GIVEN_BYTES);
    o.x[0] += gate.x * v[0], o.x[1] += gate.y * v[1];
    if (scales) leave_scaled(b, p, o, scale, shift);
}

/* The lane's two numbers of 8 k of a row. */
DEV void put_pair(const block &b, char *to, float x, float y) {
    *(u32 *)(to + (b.lane & 3) * 4) = pack_bf16(x, y);
}

/* Rows of a unit of attention for each of its heads: a power of two, or with two tiles the sample's own. */
DEV int head_rows(const gpu_resident_long &p) { return TILES > 1 ? p.each : LONG_ROWS >> p.heads_log2; }
/* Where a head's rows are among its unit's. */
DEV int head_row(const gpu_resident_long &p, int head) {
    return TILES > 1 ? head % RESIDENT_HEADS * p.each : head * head_rows(p) & (LONG_ROWS - 1);
}
/* Where 8 k of a head's query are. */
DEV char *query_at(const block &b, const gpu_resident_long &p, int sample, int row, int head, int kgroup) {
    const int all = sample * RESIDENT_HEADS + head,
              chunk = (all >> p.heads_log2) * (HEAD_KGROUPS / 8) + (kgroup >> 3);
    return (char *)b.progress + LONG(Q_AT) + (chunk * p.unit_height + head_row(p, all) + row) * LONG_LINE +
           (kgroup & 7) * 16;
}

/* q, k and v of 32 packed columns: a unit of 16 each warpgroup. */
enum { QKV_BLOCKS = (RESIDENT_HEADS + 2) * RESIDENT_HEAD / 32, X_SLOTS = RESIDENT_WIDTH / LONG_SLOT_K };
DEV void make_qkv(block &b, const gpu_resident_long &p, int layer) {
    const int unit = 2 * b.rank + b.group, head = unit >> 4, i = (unit & 15) * 8 + 2 * (b.lane & 3);
    float d[16], v[8], s[4], f[2];
    float4 angles[2];
    int position[2], sample[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = min(tile_row(b) + 8 * h, b.used - 1);
        sample[h] = row / p.each;
        position[h] = __ldg(p.position + row);
        angles[h] = __ldg((const float4 *)(p.rope + ((size_t)position[h] * (RESIDENT_HEAD / 2) + i) * 2));
    }
    await_met(b);
#pragma unroll
    for (int h = 0; h < 2; h++) f[h] = factor_of(b, p, tile_row(b) + 8 * h);
    multiply<32>(d, b, X_SLOTS);
    share_sums<32>(v, s, d, b, p);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = tile_row(b) + 8 * h;
        float y[2], z[2];
#pragma unroll
        for (int c = 0; c < 2; c++)
            y[c] = v[2 * h + c] * f[h] + s[c], z[c] = v[4 + 2 * h + c] * f[h] + s[2 + c];
        if (row >= b.used) continue;
        if (head == RESIDENT_HEADS + 1) {
            char *const to = (char *)p.v_cache + layer * p.v_layer + sample[h] * p.sample_bytes +
                             ((size_t)position[h] * RESIDENT_HEAD + (unit & 15) * 16 + 2 * (b.lane & 3)) * 2;
            *(u32 *)to = pack_bf16(y[0], y[1]), *(u32 *)(to + 16) = pack_bf16(z[0], z[1]);
            continue;
        }
        const float4 a = angles[h];        /* cosine and sine of two dims                                   */
        const float first[2] = {y[0] * a.x - z[0] * a.y, y[1] * a.z - z[1] * a.w},
                    second[2] = {z[0] * a.x + y[0] * a.y, z[1] * a.z + y[1] * a.w};
        if (head == RESIDENT_HEADS) {
            char *const to = (char *)p.k_cache + layer * p.k_layer + sample[h] * p.sample_bytes +
                             ((size_t)position[h] * RESIDENT_HEAD + i) * 2;
            *(u32 *)to = pack_bf16(first[0], first[1]);
            *(u32 *)(to + RESIDENT_HEAD) = pack_bf16(second[0], second[1]);
        } else {
            const int of_sample = row - sample[h] * p.each;
            put_pair(b, query_at(b, p, sample[h], of_sample, head, unit & 15), first[0], first[1]);
            put_pair(b, query_at(b, p, sample[h], of_sample, head, (unit & 15) + HEAD_KGROUPS / 2), second[0],
                     second[1]);
        }
    }
}

/* 32 hidden values: of 64 packed columns two units of 16 each warpgroup. */
DEV void make_hidden(block &b, const gpu_resident_long &p) {
    float d[32], v[16], s[8], f[2];
    await_met(b);
#pragma unroll
    for (int h = 0; h < 2; h++) f[h] = factor_of(b, p, tile_row(b) + 8 * h);
    multiply<64>(d, b, X_SLOTS);
    share_sums<64>(v, s, d, b, p);
#pragma unroll
    for (int u = 0; u < 2; u++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int row = tile_row(b) + 8 * h;
            float y[2];
#pragma unroll
            for (int c = 0; c < 2; c++)
                y[c] = gelu(v[8 * u + 2 * h + c] * f[h] + s[4 * u + c]) *
                       (v[8 * u + 4 + 2 * h + c] * f[h] + s[4 * u + 2 + c]);
            if (row < p.rows)
                put_pair(b, row_at(b, LONG(HIDDEN_AT), 4 * b.rank + 2 * b.group + u, row), y[0], y[1]);
        }
}

#endif
