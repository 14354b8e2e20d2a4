/* Products of many rows on Hopper, of bf16 (gemm_hopper.cu) or of 8-bit integers (gemm_int8_hopper.cu):
 * x·Wᵀ by wgmma fed by the TMA, tiles fitted to the card.
 *
 * A block makes BW packed columns x BT rows (the kernel's name says which). One producer thread and NC
 * consumer warpgroups share a ring of STAGES stages; a stage holds BW columns of W and BT rows of x, 128
 * bytes deep (64 k of bf16, 128 of int8):
 *
 *   producer    wait empty[s] -> arm full[s] -> copy W (whole atoms, swizzled as stored) and x (swizzled by
 *               the copy)
 *   consumers   wait full[s] -> 4 wgmma of 32 bytes of k per 64 rows -> when those of the previous stage are
 *               done, free that one
 *
 *   rows         rows of x are wgmma's M side and packed columns its N side (up to 256, any multiple of 8);
 *                bf16 only
 *   transposed   columns are the M side and rows the N side: for row counts that are no multiple of 64
 *                (788 = 4·200 - 12)
 *   pingpong     transposed; persistent, and the warpgroups take tiles alternately, so that one multiplies
 *                while the other stores; a named barrier passes the ring from one to the other, for one
 *                parity bit cannot order two tiles
 *   gated        ping-pong, gate and up together
 *   parts        transposed, by a cluster whose blocks share k: block `rank` takes the rank-th part of k and
 *                finishes every clusterth group of 16 rows, adding the sums of all in the order of ranks; for
 *                few tiles, long k
 *
 *   blocks   (NC + 1)·128 threads, one block a multiprocessor; grid = tiles (ping-pong: at most one a
 *            multiprocessor; parts: tiles x blocks of the cluster). Warpgroups 0 … NC - 1 consume, the first
 *            thread of warpgroup NC produces.
 *   shared   ring, staging (ping-pong) or the residual tile (RES), barriers, bias and gate (qkv: positions
 *            and samples), scales of integers
 *   legal    outputs bf16, rows of x whole 16 bytes and no row map on x; outputs (and head_dim / 2)
 *            multiples of 8; no split, no x_t; a gated matrix without bias and without row map in the gated
 *            kernels; transposed kernels for plain matrices only, and of these pingpong without row map,
 *            gate, rows that are added and SiLU; qkv and gated matrices need BW % 32 == 0, so 200 columns are
 *            for plain ones too. The norm, where there is one, is a kernel of its own before this one.
 *   early    start_next() comes first: the block fills its multiprocessor anyway. Before wait_before(): the
 *            maps, the weights of the first stages, bias and gate (qkv: positions and samples). After it: x,
 *            the residual tile, all stores.
 *
 * The sums leave through the ring, which is idle by then, so that every thread ends with 8 neighbouring
 * outputs of a row and reads and writes 16 bytes at a time. Note: the loops that store are rolled on purpose.
 * Unrolled they are 100 KB of instructions that every block runs once, and fetching them takes longer than
 * the arithmetic.
 *
 * gemm_hopper.h has the host's side. */
#ifndef KERNELS_CUDA_GEMM_HOPPER_CUH
#define KERNELS_CUDA_GEMM_HOPPER_CUH

#include "backend/gpu/cuda/ring.cuh"
#include "backend/gpu/cuda/weight_tile.cuh"
#include "backend/gpu/cuda/wgmma_int8.cuh"
#include "scales.cuh"

/* What is multiplied: the sums, and how weights lie. SCALED: sums become outputs by a scale of the row and
 * one of the column (scales.cuh). */
struct bf16_numbers {
    typedef float sum;
    typedef weight_tile<GPU_WEIGHT_BF16> atom;
    enum { SCALED = 0 };
};
struct int8_numbers {
    typedef int sum;
    typedef weight_tile<GPU_WEIGHT_INT8X8> atom;
    enum { SCALED = 1 };
};

/* ---- eight outputs at a time --------------------------------------------------------------------------- */

DEV void read8(float (&v)[8], const float *from) {
    float4 a = *(const float4 *)from, b = *(const float4 *)(from + 4);
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}
DEV void constant8(float (&v)[8], const float *from) {
    float4 a = __ldg((const float4 *)from), b = __ldg((const float4 *)from + 1);
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}
DEV void write8(void *out, size_t at, const float (&v)[8]) {
    *(uint4 *)((u16 *)out + at) = make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]),
                                             pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7]));
}

/* Eight outputs of a plain matrix, to `out`; x is what a residual adds to. */
DEV void plain8(const gpu_epilogue &e, int r, int o, float (&v)[8], const float (&bias)[8],
                const float (&gate)[8], const uint4 &x, u16 *out) {
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] += bias[i];
    if (e.kind == GPU_EPILOGUE_RESIDUAL) {
        v[0] = low_of(x.x) + v[0] * gate[0], v[1] = high_of(x.x) + v[1] * gate[1],
        v[2] = low_of(x.y) + v[2] * gate[2], v[3] = high_of(x.y) + v[3] * gate[3];
        v[4] = low_of(x.z) + v[4] * gate[4], v[5] = high_of(x.z) + v[5] * gate[5],
        v[6] = low_of(x.w) + v[6] * gate[6], v[7] = high_of(x.w) + v[7] * gate[7];
    } else {
        if (e.add) {
            float c[8];
            constant8(c, e.add + (size_t)(r % e.add_period) * e.n + o);
#pragma unroll
            for (int i = 0; i < 8; i++) v[i] += c[i];
        }
        if (e.activation == GPU_ACT_GELU) {
#pragma unroll
            for (int i = 0; i < 8; i++) v[i] = gelu(v[i]);
        } else if (e.activation == GPU_ACT_SILU) {
#pragma unroll
            for (int i = 0; i < 8; i++) v[i] = silu(v[i]);
        }
    }
    write8(out, 0, v);
}

/* A unit of 16 packed columns of a gated matrix. */
DEV void gated16(const gpu_epilogue &e, int r, int column, float (&a)[8], const float (&b)[8]) {
    if (column / 2 >= e.n) return;
#pragma unroll
    for (int i = 0; i < 8; i++) a[i] = gelu(a[i]) * b[i];
    write8(e.out, (size_t)row_of(e.to, r) * e.n + column / 2, a);
}

/* ---- from sums to outputs ------------------------------------------------------------------------------ */

/* Eight sums of the block; with PARTS of all blocks of the cluster, added in the order of ranks. */
template <int PARTS> DEV void read_sums(float (&v)[8], const float *from, int parts) {
    if (!PARTS) {
        read8(v, from);
        return;
    }
    const u32 at = shared_address(from);
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = 0;
    for (int rank = 0; rank < parts; rank++) {
        const float4 a = peer_read16(peer_address(at, rank)), b = peer_read16(peer_address(at + 16, rank));
        v[0] += a.x, v[1] += a.y, v[2] += a.z, v[3] += a.w;
        v[4] += b.x, v[5] += b.y, v[6] += b.z, v[7] += b.w;
    }
}

DEV void add_bits(int (&sum)[8], const float4 &a, const float4 &b) {
    sum[0] += __float_as_int(a.x), sum[1] += __float_as_int(a.y);
    sum[2] += __float_as_int(a.z), sum[3] += __float_as_int(a.w);
    sum[4] += __float_as_int(b.x), sum[5] += __float_as_int(b.y);
    sum[6] += __float_as_int(b.z), sum[7] += __float_as_int(b.w);
}

/* The same of integers, whose bits lie there, as numbers. */
template <int PARTS>
DEV void read_scaled(float (&v)[8], const float *from, int parts, float row, const float (&columns)[8]) {
    int sum[8] = {};
    if (!PARTS) {
        add_bits(sum, *(const float4 *)from, *(const float4 *)(from + 4));
    } else {
        const u32 at = shared_address(from);
        for (int rank = 0; rank < parts; rank++)
            add_bits(sum, peer_read16(peer_address(at, rank)), peer_read16(peer_address(at + 16, rank)));
    }
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = scaled(sum[i], row, columns[i]);
}

/* Plain outputs of a lane: 8 columns, rows `first`, first + step … of `count`. */
typedef struct plain_walk {
    const float *sums;                     /* in shared memory, `pitch` floats a row                        */
    const float *constants;                /* the tile's bias [columns] and gate [columns]                  */
    const char *residual;                  /* NULL, or boxes of [rows of a box][64 columns], see tile_row   */
    const float *column_scales;            /* SCALED: the columns', and the rows' of the tile               */
    const float *row_scales;
    int pitch, columns;
    int tile_row;                          /* row 0 of the sums is this row of the tile                     */
    int c8;                                /* the lane's columns: 8·c8 … of the tile                        */
    int first, step, count;
    int row0, rows, column0;               /* row 0 of the sums, end of the rows, first column of the tile  */
    int parts;                             /* blocks of the cluster                                         */
} plain_walk;

/* KNOWN: rows may have a gate of their own (known_at). Without it the gate stays in its registers. */
template <int SCALED, int BOX_ROWS, int PARTS, int KNOWN>
DEV void walk_rows(const gpu_epilogue &e, const plain_walk &w) {
    const int o = w.column0 + w.c8 * 8;
    float bias[8], gate[8], scales[8];
    if (o >= e.n) return;
    if (SCALED) read8(scales, w.column_scales + w.c8 * 8);
    read8(bias, w.constants + w.c8 * 8);
    read8(gate, w.constants + w.columns + w.c8 * 8);
    u16 *out = (u16 *)e.out + (size_t)(w.row0 + w.first) * e.n + o;
#pragma unroll 1
    for (int r = w.first; r < w.count && w.row0 + r < w.rows; r += w.step, out += (size_t)w.step * e.n) {
        const int box_row = (w.c8 >> 3) * BOX_ROWS + w.tile_row + r;
        float v[8];
        if (SCALED)
            read_scaled<PARTS>(v, w.sums + r * w.pitch + w.c8 * 8, w.parts,
                               w.row_scales[w.tile_row + r], scales);
        else read_sums<PARTS>(v, w.sums + r * w.pitch + w.c8 * 8, w.parts);
        uint4 x = make_uint4(0, 0, 0, 0);
        if (w.residual) x = *(const uint4 *)(w.residual + box_row * 128 + (w.c8 & 7) * 16);
        else if (e.kind == GPU_EPILOGUE_RESIDUAL) x = __ldcg((const uint4 *)out);
        if (KNOWN) constant8(gate, e.gate + known_at(e.known, w.row0 + r, 1) + o);
        plain8(e, w.row0 + r, o, v, bias, gate, x,
               e.to.map ? (u16 *)e.out + (size_t)__ldg(e.to.map + w.row0 + r) * e.n + o : out);
    }
}

template <int SCALED, int BOX_ROWS, int PARTS>
DEV void walk_plain(const gpu_epilogue &e, const plain_walk &w) {
    if (e.gate && e.known.rows) walk_rows<SCALED, BOX_ROWS, PARTS, 1>(e, w);
    else walk_rows<SCALED, BOX_ROWS, PARTS, 0>(e, w);
}

/* A unit of 16 packed columns of q, k or v, down a warp's 16 rows, every second one: the angles of the next
 * row load while RoPE rotates this one. `tables`: positions of the tile's rows, then their samples. */
template <int BT>
DEV void walk_qkv(const gpu_epilogue &e, const float *memory, int pitch, const int *tables, int tile_row,
                  int first, int count, int row0, int column) {
    const int d = e.head_dim, half = d / 2, head = column / e.head_columns, value = head > e.heads;
    const int i = value ? column - (e.heads + 1) * e.head_columns : (column - head * e.head_columns) / 2;
    const float *rope = e.rope + 2 * i;
    u16 *cache = (u16 *)(value ? e.v : e.k);
    float4 next[4] = {}, angles[4];
    if (first >= count || (value && i >= d)) return;
    if (!value)
#pragma unroll
        for (int j = 0; j < 4; j++)
            next[j] = __ldg((const float4 *)(rope + (size_t)tables[tile_row + first] * d) + j);
#pragma unroll 1
    for (int r = first; r < count; r += 2) {
        const size_t place = ((size_t)tables[BT + tile_row + r] * e.capacity + tables[tile_row + r]) * d;
        float a[8], b[8], x[8], y[8];
#pragma unroll
        for (int j = 0; j < 4; j++) angles[j] = next[j];
        if (!value && r + 2 < count)
#pragma unroll
            for (int j = 0; j < 4; j++)
                next[j] = __ldg((const float4 *)(rope + (size_t)tables[tile_row + r + 2] * d) + j);
        read8(a, memory + r * pitch);
        read8(b, memory + r * pitch + 8);
        if (value) {
            write8(cache, place + i, a);
            write8(cache, place + i + 8, b);
            continue;
        }
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
            const float4 cs = angles[j / 2];
            x[j] = a[j] * cs.x - b[j] * cs.y, y[j] = b[j] * cs.x + a[j] * cs.y;
            x[j + 1] = a[j + 1] * cs.z - b[j + 1] * cs.w, y[j + 1] = b[j + 1] * cs.z + a[j + 1] * cs.w;
        }
        u16 *out = head == e.heads ? cache : (u16 *)e.out;
        const size_t at = (head == e.heads ? place : ((size_t)(row0 + r) * e.heads + head) * d) + i;
        write8(out, at, x);
        write8(out, at + half, y);
    }
}

/* Rows on the M side: a warp's 16 rows, from row `first` of the tile on, through memory of its own. */
template <int N, int BT>
DEV void store_rows(const gpu_epilogue &e, const float (&d)[N / 2], float *memory, const float *constants,
                    const char *residual, int first, int row0, int rows, int column0, int columns) {
    constexpr int PITCH = N + 8, GROUPS = N / 8, TWO = GROUPS <= 16;
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        *(float2 *)(memory + g * PITCH + j * 8 + 2 * t) = make_float2(d[4 * j], d[4 * j + 1]);
        *(float2 *)(memory + (g + 8) * PITCH + j * 8 + 2 * t) = make_float2(d[4 * j + 2], d[4 * j + 3]);
    }
    __syncwarp();
    if (e.kind == GPU_EPILOGUE_QKV || e.kind == GPU_EPILOGUE_GATED) {
        const int u = lane & 15, column = column0 + u * 16, left = rows - row0 - first,
                  count = left < 16 ? left : 16;
        if (u >= N / 16 || column >= columns) return;
        if (e.kind == GPU_EPILOGUE_QKV) {
            walk_qkv<BT>(e, memory + u * 16, PITCH, (const int *)constants, first, lane >> 4, count,
                         row0 + first, column);
            return;
        }
#pragma unroll 1
        for (int r = lane >> 4; r < count; r += 2) {
            float a[8], b[8];
            read8(a, memory + r * PITCH + u * 16);
            read8(b, memory + r * PITCH + u * 16 + 8);
            gated16(e, row0 + first + r, column, a, b);
        }
    } else {
        const int c8 = TWO ? lane & 15 : lane;
        if (c8 < GROUPS)
            walk_plain<0, BT, 0>(e, {.sums = memory,
                                     .constants = constants,
                                     .residual = residual,
                                     .column_scales = NULL,
                                     .row_scales = NULL,
                                     .pitch = PITCH,
                                     .columns = N,
                                     .tile_row = first,
                                     .c8 = c8,
                                     .first = TWO ? lane >> 4 : 0,
                                     .step = TWO ? 2 : 1,
                                     .count = 16,
                                     .row0 = row0 + first,
                                     .rows = rows,
                                     .column0 = column0,
                                     .parts = 1});
    }
}

/* Bits of a sum as they go through shared memory. */
DEV float bits_of(float x) { return x; }
DEV float bits_of(int x) { return __int_as_float(x); }

/* Columns on the M side, 64 a warpgroup: transposed in words of 32 bits through memory of the warpgroup. */
template <class T>
DEV void store_transposed(const gpu_epilogue &e, const typename T::sum (&d)[T::N / 2], float *memory,
                          const float *constants, const char *residual, const float *column_scales,
                          const float *row_scales, int barrier, int row0, int rows, int column0, int rank,
                          int parts) {
    constexpr int PITCH = 68;
    const int tid = threadIdx.x & 127, lane = tid & 31, c = (tid >> 5) * 16 + (lane >> 2), t = lane & 3;
#pragma unroll
    for (int j = 0; j < T::N / 8; j++) {
        float *to = memory + (j * 8 + 2 * t) * PITCH + c;
        to[0] = bits_of(d[4 * j]), to[PITCH] = bits_of(d[4 * j + 1]);
        to[8] = bits_of(d[4 * j + 2]), to[PITCH + 8] = bits_of(d[4 * j + 3]);
    }
    if (T::PARTS) cluster_meet();
    else group_sync(barrier, 128);
    walk_plain<T::SCALED, T::N, T::PARTS>(e, {.sums = memory,
                                              .constants = constants,
                                              .residual = residual,
                                              .column_scales = column_scales,
                                              .row_scales = row_scales,
                                              .pitch = PITCH,
                                              .columns = T::BW,
                                              .tile_row = 0,
                                              .c8 = tid & 7,
                                              .first = (tid >> 3) + 16 * rank,
                                              .step = 16 * parts,
                                              .count = T::N,
                                              .row0 = row0,
                                              .rows = rows,
                                              .column0 = column0,
                                              .parts = parts});
    if (T::PARTS) cluster_meet();          /* no block ends while its sums are read                         */
}

DEV void store_matrix4(u32 at, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(at), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
DEV void store_matrix1(u32 at, u32 a) {
    asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" ::"r"(at), "r"(a) : "memory");
}

/* A warpgroup: 64 outputs of `count` rows from the staging, [row][64] with units of 16 bytes swizzled, to
 * rows `row0` …, from output `first` on. */
DEV void leave_staging(const gpu_epilogue &e, const char *memory, int row0, int count, int first) {
#pragma unroll 4
    for (int i = threadIdx.x & 127; i < count * 8; i += 128) {
        const int r = i >> 3, c = i & 7, o = first + c * 8;
        uint4 v = *(const uint4 *)(memory + r * 128 + ((c ^ (r & 7)) << 4));
        if (o < e.n) *(uint4 *)((u16 *)e.out + (size_t)(row0 + r) * e.n + o) = v;
    }
}
/* The same outputs as they are, into the staging. */
DEV void fetch_staging(const gpu_epilogue &e, char *memory, int row0, int count, int first) {
#pragma unroll 2
    for (int i = threadIdx.x & 127; i < count * 8; i += 128) {
        const int r = i >> 3, c = i & 7, o = first + c * 8;
        if (o < e.n)
            *(uint4 *)(memory + r * 128 + ((c ^ (r & 7)) << 4)) =
                __ldcg((const uint4 *)((u16 *)e.out + (size_t)(row0 + r) * e.n + o));
    }
}

/* A warp's N columns of staging, v their pairs of rows; at: its chunk of the first one. */
template <int N> DEV void store_matrices(u32 at, const u32 (&v)[N / 8], int lane) {
#pragma unroll
    for (int j = 0; j + 3 < N / 8; j += 4)
        store_matrix4(at + (j * 8 + lane) * 128, v[j], v[j + 1], v[j + 2], v[j + 3]);
#pragma unroll
    for (int j = N / 8 / 4 * 4; j < N / 8; j++) store_matrix1(at + (j * 8 + (lane & 7)) * 128, v[j]);
}

/* A gated matrix with columns on the M side: a thread holds gate (row g) and up (row g + 8) of one output, so
 * GeGLU happens in registers; 128 packed columns leave as 64 outputs a row. */
template <int N>
DEV void store_gated(const gpu_epilogue &e, const float (&d)[2][N / 2], char *memory, int barrier, int row0,
                     int rows, int column0) {
    const int tid = threadIdx.x & 127, lane = tid & 31, warp = tid >> 5;
    const u32 base = shared_address(memory);
    group_sync(barrier, 128);
#pragma unroll
    for (int m = 0; m < 2; m++) {
        u32 v[N / 8];
#pragma unroll
        for (int j = 0; j < N / 8; j++)
            v[j] = pack_bf16(gelu(d[m][4 * j]) * d[m][4 * j + 2], gelu(d[m][4 * j + 1]) * d[m][4 * j + 3]);
        const u32 chunk = ((m * 4 + warp) ^ (lane & 7)) << 4;
        store_matrices<N>(base + chunk, v, lane);
    }
    group_sync(barrier, 128);
    leave_staging(e, memory, row0, min(rows - row0, N), column0 / 2);
}

/* ---- codes (scales.cuh) ------------------------------------------------------------------------------- */

/* A warpgroup: 64 codes of `count` rows from the staging, to outputs from `first` on. Outputs 32 apart are
 * neighbours there. */
DEV void leave_codes(const gpu_epilogue &e, const char *memory, int row0, int count, int first) {
    for (int i = threadIdx.x & 127; i < count * 2; i += 128) {
        const int r = i >> 1, c = (i & 1) * 2, o = first + c * 8;
        const uint4 a = *(const uint4 *)(memory + r * 128 + ((c ^ (r & 7)) << 4)),
                    b = *(const uint4 *)(memory + r * 128 + (((c + 1) ^ (r & 7)) << 4));
        char *out = (char *)e.out + (size_t)(row0 + r) * e.n + o;
        if (o < e.n)
            *(uint4 *)out = make_uint4(__byte_perm(a.x, a.y, 0x6420), __byte_perm(a.z, a.w, 0x6420),
                                       __byte_perm(b.x, b.y, 0x6420), __byte_perm(b.z, b.w, 0x6420));
        if (o + 32 < e.n)
            *(uint4 *)(out + 32) = make_uint4(__byte_perm(a.x, a.y, 0x7531), __byte_perm(a.z, a.w, 0x7531),
                                              __byte_perm(b.x, b.y, 0x7531), __byte_perm(b.z, b.w, 0x7531));
    }
}

/* What a warp's pairs lose. Bit j of `which`: the lane's two in odd[j], outputs o and o + 32, two rows among
 * the j-th 8. Every quarter of the lanes has the same rows, and a lane counts some of them. */
template <int J>
DEV void count_lost(const gpu_epilogue &e, const gpu_int8_fixed &f, const uint2 (&odd)[J], u32 which,
                    int row0, int rows, int o) {
    const int lane = threadIdx.x & 31, first = row0 + 2 * (lane & 3);
    u64 clipped = 0;
    lost_numbers lost = {};
    if (!__any_sync(0xffffffffu, which)) return;
#pragma unroll 1
    for (; which; which &= which - 1) {
        const int j = __ffs(which) - 1, left = rows - first - 8 * j;
        const u32 there = left > 1 ? 0xffffffffu : left > 0 ? 0xffffu : 0;
        u32 both = o < e.n ? lose_pair(f, lost, odd[j].x & there) : 0;
        if (o + 32 < e.n) both |= lose_pair(f, lost, odd[j].y & there);
        clipped |= (u64)both << 2 * j;
    }
    u32 own[2] = {(u32)clipped, (u32)(clipped >> 32)};
#pragma unroll
    for (int w = 0; w < 2; w++) {
        for (int other = 4; other < 32; other *= 2) own[w] |= __shfl_xor_sync(0xffffffffu, own[w], other);
        own[w] &= 0x01010101u << (lane >> 2);
    }
    add_lost(f, lost, own, [&](int w, int i) { return first + (w * 16 + i / 2) * 8 + (i & 1); });
}

/* As store_gated, but outputs are codes. An element of the staging is the codes of two outputs 32 apart, so
 * that it is turned as a number of bf16 is. */
template <int N>
DEV void store_coded(const gpu_epilogue &e, const gpu_int8_fixed &f, const float (&d)[2][N / 2], char *memory,
                     int barrier, int row0, int rows, int column0) {
    const int tid = threadIdx.x & 127, lane = tid & 31, warp = tid >> 5, count = min(rows - row0, N),
              own = column0 / 2 + warp * 8 + (lane >> 2);
    const u32 base = shared_address(memory), chunk = (warp ^ (lane & 7)) << 4;
    u32 v[N / 8], which = 0;
    uint2 odd[N / 8];                      /* in memory, and seldom used                                    */
    group_sync(barrier, 128);
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        u32 pair[2], kept[2];
#pragma unroll
        for (int m = 0; m < 2; m++) {
            const float *const y = d[m] + 4 * j;
            pair[m] = pack_bf16(gelu(y[0]) * y[2], gelu(y[1]) * y[3]);
            kept[m] = kept_pair(f, pair[m]);
        }
        if (kept[0] != pair[0] || kept[1] != pair[1]) {
            odd[j] = make_uint2(pair[0], pair[1]);
            which |= 1u << j;
            for (int m = 0; m < 2; m++) kept[m] = without_nan(pair[m], kept[m]);
        }
        v[j] = pick_bytes(kept_codes(f, kept[0]), kept_codes(f, kept[1]), 0x5140);
    }
    store_matrices<N>(base + chunk, v, lane);
    group_sync(barrier, 128);
    leave_codes(e, memory, row0, count, column0 / 2);
    count_lost(e, f, odd, which, row0, rows, own);
    for (int r = tid; !column0 && r < count; r += 128) f.scales[row0 + r] = f.scale;
}

/* A column's outputs for two rows; x is what a residual adds to. */
DEV u32 plain2(const gpu_epilogue &e, float a, float b, float bias, u32 x) {
    a += bias, b += bias;
    if (e.kind == GPU_EPILOGUE_RESIDUAL) a += low_of(x), b += high_of(x);
    else if (e.activation == GPU_ACT_GELU) a = gelu(a), b = gelu(b);
    return pack_bf16(a, b);
}

/* A plain matrix with columns on the M side, in two turns of 64 columns: what a residual adds to comes into
 * the staging, and outputs take its place. */
template <int N>
DEV void store_plain(const gpu_epilogue &e, const float (&d)[2][N / 2], char *memory, int barrier, int row0,
                     int rows, int column0) {
    static_assert(N % 16 == 0, "groups of 8 rows, two at a time");
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5 & 3, count = min(rows - row0, N);
    /* Of a lane, 16 bytes: rows of a group and of the next one, columns 0 - 7 and 8 - 15 of the warp's. */
    const u32 at = shared_address(memory) + ((lane >> 4) * 8 + (lane & 7)) * 128 +
                   (((2 * warp + (lane >> 3 & 1)) ^ (lane & 7)) << 4);
    const bool residual = e.kind == GPU_EPILOGUE_RESIDUAL;
#pragma unroll
    for (int m = 0; m < 2; m++) {
        const int first = column0 + m * 64, own = first + warp * 16 + (lane >> 2);
        const float bias = e.bias && own < e.n ? __ldg(e.bias + own) : 0,
                    bias8 = e.bias && own + 8 < e.n ? __ldg(e.bias + own + 8) : 0;
        group_sync(barrier, 128);
        if (residual) {
            fetch_staging(e, memory, row0, count, first);
            group_sync(barrier, 128);
        }
#pragma unroll
        for (int j = 0; j < N / 8; j += 2) {
            u32 x[4] = {};
            if (residual) load_transposed4(x, at + j * 1024);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float *const v = d[m] + 4 * (j + i);
                x[2 * i] = plain2(e, v[0], v[1], bias, x[2 * i]);
                x[2 * i + 1] = plain2(e, v[2], v[3], bias8, x[2 * i + 1]);
            }
            store_matrix4(at + j * 1024, x[0], x[1], x[2], x[3]);
        }
        group_sync(barrier, 128);
        leave_staging(e, memory, row0, count, first);
    }
}

/* ---- the kernel ---------------------------------------------------------------------------------------- */

enum { ROWS, TRANSPOSED, GATED, PLAIN, CODED };

/* What a kernel's tile decides at compile time. */
template <class NUMBERS, int BW_, int BT_, int NC_, int STAGES_, int STORE_, int RES_, int PARTS_>
struct gemm_tile {
    typedef typename NUMBERS::sum sum;
    typedef typename NUMBERS::atom atom;
    enum {
        SCALED = NUMBERS::SCALED,
        BW = BW_, BT = BT_,                /* packed columns and rows of a block                            */
        NC = NC_, STAGES = STAGES_,        /* consumer warpgroups; stages of the ring                       */
        STORE = STORE_, RES = RES_,        /* how sums become outputs; 1: a residual tile is fetched        */
        PARTS = PARTS_,                    /* 1: the blocks of a cluster share k                            */
        SWAP = STORE != ROWS,              /* columns on the M side                                         */
        /* Ping-pong: persistent, and the warpgroups take tiles alternately. */
        PP = STORE == GATED || STORE == PLAIN || STORE == CODED,
        N = SWAP ? BT : BW,                /* columns of a wgmma                                            */
        M_ROWS = (SWAP ? BW : BT) / (PP ? 1 : NC), /* M of a warpgroup                                      */
        MI = M_ROWS / 64,                  /* wgmmas for these                                              */
        GROUPS = BW / atom::COLUMNS,       /* of W                                                          */
        STAGE_W = GROUPS * atom::BYTES,    /* bytes                                                         */
        STAGE = STAGE_W + BT * 128,
        PP_STAGING = NC * BT * 128,
        RESIDUAL_TILE = RES ? BW * BT * 2 : 0,
        AFTER_RING = PP ? PP_STAGING : RESIDUAL_TILE,
        BOX_K = 64,                        /* a stage's k in the map of x, whose elements have two bytes    */
        SCALES = BW + BT,                  /* floats of a tile                                              */
    };
    static_assert(!SCALED || SWAP, "rows on the M side are not scaled");
    static_assert(PP || MI == 1, "the ring is staging for one tile of 64 rows a warpgroup");
    static_assert(!PARTS || STORE == TRANSPOSED, "sums of a cluster meet where they are transposed");
    static_assert(STORE != ROWS || BT <= BW, "the tables of rows lie where bias and gate would");
};

/* Shared memory: the ring of stages (W, then x), staging or the residual tile, barriers, constants of the
 * epilogue, scales of SCALED numbers: columns, then rows, of ping-pong for each warpgroup. */
typedef struct gemm_memory {
    ring stages;
    u32 residual_full;
    char *residual;
    float *constants, *scales;
} gemm_memory;

template <class T> DEV gemm_memory gemm_memory_of(char *memory) {
    const u32 stages = shared_address(memory), barriers = stages + T::STAGES * T::STAGE + T::AFTER_RING;
    float *constants = (float *)(memory + T::STAGES * T::STAGE + T::AFTER_RING + T::STAGES * 16 + 16);
    return {.stages = ring_of(stages, T::STAGES, barriers),
            .residual_full = barriers + T::STAGES * 16,
            .residual = memory + T::STAGES * T::STAGE,
            .constants = constants,
            .scales = constants + (T::PP ? 0 : 2 * T::BW)};
}

/* Tiles that read the same weights run at the same time. Beyond BAND tiles of rows the columns of a band all
 * come before the next band: its rows then stay in the second-level cache. */
enum { BAND = 32 };
typedef struct tile_place {
    int group, row;                        /* first group of 8 columns, first row                           */
} tile_place;

template <class T> DEV tile_place place_of(int tiles_x, int tiles_w, int unit) {
    int band = 0, high = tiles_x;
    if (tiles_x > BAND) {
        band = unit / (BAND * tiles_w) * BAND;
        high = max(1, min(tiles_x - band, (int)BAND));
    }
    const int in = unit - band * tiles_w, column = in / high;
    return {column * T::GROUPS, (band + in - column * high) * T::BT};
}

/* The block's tiles, from first_unit on, and its part of k. */
typedef struct gemm_work {
    int first_unit, units;
    int tiles_x, tiles_w;                  /* over the rows, over the columns                               */
    tile_place first;                      /* place of first_unit                                           */
    int rows, parts, rank, k0, blocks;     /* blocks of 64 k from block k0 on                               */
    int wrap;                              /* blocks of W, which repeats where x has more                   */
    int early;                             /* stages whose weights are fetched before wait_before()         */
    bool residual;
} gemm_work;

template <class T> DEV gemm_work gemm_work_of(const gpu_linear &l) {
    const int wrap = l.weights.blocks;
    const int parts = T::PARTS ? cluster_blocks() : 1, rank = T::PARTS ? cluster_rank() : 0;
    const int first_unit = T::PARTS ? blockIdx.x / parts : blockIdx.x;
    const int k0 = rank * l.k_blocks / parts, blocks = (rank + 1) * l.k_blocks / parts - k0;
    const int rows = *l.count, tiles_x = (rows + T::BT - 1) / T::BT,
              tiles_w = (l.weights.columns + T::BW - 1) / T::BW;
    return {.first_unit = first_unit,
            .units = tiles_x * tiles_w,
            .tiles_x = tiles_x,
            .tiles_w = tiles_w,
            .first = place_of<T>(tiles_x, tiles_w, first_unit),
            .rows = rows,
            .parts = parts,
            .rank = rank,
            .k0 = k0,
            .blocks = blocks,
            .wrap = wrap,
            .early = blocks < T::STAGES ? blocks : T::STAGES,
            .residual = T::RES && l.epilogue.kind == GPU_EPILOGUE_RESIDUAL};
}

/* Where tile u is; a block that is not persistent has only the first one, whose place is known. */
template <class T> DEV tile_place tile_of(const gemm_work &w, int u) {
    return T::PP ? place_of<T>(w.tiles_x, w.tiles_w, u) : w.first;
}

/* The block of W for block kb of the block's part of k. */
DEV int block_of(const gemm_work &w, int kb) { return w.k0 + kb >= w.wrap ? w.k0 + kb - w.wrap : w.k0 + kb; }

/* One thread: barriers, and the first weights, which no kernel writes. */
template <class T> DEV void prepare_ring(const gpu_hopper &p, const gemm_memory &m, const gemm_work &w) {
    prefetch_map(&p.weights);
    prefetch_map(&p.x);
    if (w.residual) prefetch_map(&p.residual);
    for (int s = 0; s < T::STAGES; s++) ring_init(m.stages, s, T::PP ? 4 : 4 * T::NC);
    barrier_init(m.residual_full, 1);
    barrier_init_done();
    if (w.first_unit < w.units)
        for (int s = 0; s < w.early; s++) {
            const ring_place at = {(u32)s, 0};
            barrier_arm(ring_full(m.stages, at), T::STAGE);
            copy_atoms(ring_address(m.stages, at, T::STAGE), &p.weights, w.first.group, block_of(w, s),
                       ring_full(m.stages, at));
        }
}

/* For the epilogue: bias and gate of the tile's columns; of qkv the positions and samples of its rows. */
template <class T> DEV void load_constants(const gpu_linear &l, const gemm_memory &m, const gemm_work &w) {
    if (T::STORE == ROWS && l.epilogue.kind == GPU_EPILOGUE_QKV) {
        const int r = w.first.row + threadIdx.x, there = r < l.capacity;
        int *tables = (int *)m.constants;
        if (threadIdx.x < T::BT) {
            tables[threadIdx.x] = there ? __ldg(l.epilogue.position + r) : 0;
            tables[T::BT + threadIdx.x] = there ? __ldg(l.epilogue.sample + r) : 0;
        }
    } else if (!T::PP && threadIdx.x < T::BW) {
        const int o = w.first.group * 8 + threadIdx.x,
                  there = o < l.epilogue.n && w.first_unit < w.units;
        m.constants[threadIdx.x] = there && l.epilogue.bias ? __ldg(l.epilogue.bias + o) : 0;
        m.constants[T::BW + threadIdx.x] = there && l.epilogue.gate ? __ldg(l.epilogue.gate + o) : 1;
        if (T::SCALED) m.scales[threadIdx.x] = channel_scale(l, o);
    }
}

/* Scales of a tile's rows, by `threads` threads; after wait_before(). */
template <class T>
DEV void load_row_scales(const gemm_work &w, const float *from, float *to, int row0, int tid, int threads) {
    for (int i = tid; i < T::BT; i += threads) {
        const float scale = row0 + i < w.rows ? __ldcg(from + row0 + i) : 0;
        to[i] = T::STORE == CODED ? fabsf(scale) : scale;      /* gpu_int8_fixed.marks                      */
    }
}
/* A warpgroup of ping-pong: both. Its tile before has been scaled when any of its threads has stored. */
template <class T>
DEV void load_scales(const gpu_linear &l, const gemm_work &w, const float *from, float *to, int unit) {
    const tile_place at = tile_of<T>(w, unit);
    const int tid = threadIdx.x & 127;
    for (int i = tid; i < T::BW; i += 128) to[i] = channel_scale(l, at.group * 8 + i);
    load_row_scales<T>(w, from, to + T::BW, at.row, tid, 128);
}

/* A warpgroup of ping-pong: its sums as numbers. */
template <class T>
DEV void scale_sums(float (&y)[T::MI][T::N / 2], const int (&sum)[T::MI][T::N / 2], const float *scales) {
    const int lane = threadIdx.x & 31;
    const float *columns = scales + (threadIdx.x >> 5 & 3) * 16 + (lane >> 2);
    const float *rows = scales + T::BW + 2 * (lane & 3);
    float own[T::MI][2];
#pragma unroll
    for (int i = 0; i < T::MI; i++) own[i][0] = columns[i * 64], own[i][1] = columns[i * 64 + 8];
#pragma unroll
    for (int j = 0; j < T::N / 8; j++) {
        const float2 row = *(const float2 *)(rows + 8 * j);
#pragma unroll
        for (int i = 0; i < T::MI; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                y[i][4 * j + 2 * h] = scaled(sum[i][4 * j + 2 * h], row.x, own[i][h]);
                y[i][4 * j + 2 * h + 1] = scaled(sum[i][4 * j + 2 * h + 1], row.y, own[i][h]);
            }
    }
}

/* The producer: one thread fills the ring, tile after tile. */
template <class T> DEV void produce(const gpu_hopper &p, const gemm_memory &m, const gemm_work &w) {
    u32 slot = 0, lap = 0;
    int turn = 0;
    for (int u = w.first_unit; u < w.units; u += gridDim.x) {
        const tile_place tile = tile_of<T>(w, u);
        const int group = tile.group, r = tile.row;
        for (int kb = 0; kb < w.blocks; kb++, turn++) {
            const ring_place at = {slot, lap};
            const u32 full = ring_full(m.stages, at);
            if (turn >= w.early) {
                ring_begin(m.stages, at, T::STAGE);
                copy_atoms(ring_address(m.stages, at, T::STAGE), &p.weights, group, block_of(w, kb), full);
            }
            copy_box2(ring_address(m.stages, at, T::STAGE) + T::STAGE_W, &p.x, (w.k0 + kb) * T::BOX_K, r,
                      full);
            if (w.residual && kb == w.early - 1) {
                barrier_arm(m.residual_full, T::BW * T::BT * 2);
                for (int c = 0; c < T::BW / 64; c++)
                    copy_box2(m.stages.at + T::STAGES * T::STAGE + c * T::BT * 128, &p.residual,
                              group * 8 + c * 64, r, m.residual_full);
            }
            if (++slot == T::STAGES) slot = 0, lap ^= 1;
        }
        if (!T::PP) break;
    }
}

/* d = the warpgroup's part of a tile; `turn` counts the ring's stages from the kernel's beginning. Returns
 * the last stage, which is not free yet. Note: integers are zeroed before, since with a first product that
 * does not add the compiler spills some. */
template <class T>
DEV u32 multiply_tile(typename T::sum (&d)[T::MI][T::N / 2], const gemm_memory &m, int blocks, int group,
                      int lane, int turn) {
    typedef typename T::atom atom;
    const u32 a_at = m.stages.at + (T::SWAP ? 0 : T::STAGE_W) + (T::PP ? 0 : group * T::MI * 64 * 128),
              b_at = m.stages.at + (T::SWAP ? T::STAGE_W : 0);
    const ring_place first = ring_use(m.stages, turn);
    u32 slot = first.slot, lap = first.lap, before = 0;
    if (T::SCALED)
#pragma unroll
        for (int i = 0; i < T::MI * T::N / 2; i++) d[i / (T::N / 2)][i % (T::N / 2)] = 0;
    for (int kb = 0; kb < blocks; kb++) {
        const ring_place at = {slot, lap};
        ring_await_full(m.stages, at);
        const u64 a = wgmma_operand(a_at + at.slot * T::STAGE),
                  b = wgmma_operand(b_at + at.slot * T::STAGE);
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < atom::STEPS; k++)
#pragma unroll
            for (int i = 0; i < T::MI; i++)
                wgmma(d[i], a + i * (64 * 128 / 16) + atom::STEP * k, b + atom::STEP * k,
                      T::SCALED ? 1 : kb | k);
        wgmma_commit();
        wgmma_wait<1>();
        if (kb) ring_leave(m.stages, {before, 0}, lane);
        before = slot;
        if (++slot == T::STAGES) slot = 0, lap ^= 1;
    }
    return before;
}

/* A warpgroup of ping-pong: its numbers to outputs. */
template <class T>
DEV void store_pingpong(const gpu_linear &l, const float (&y)[T::MI][T::N / 2], char *memory,
                        const gemm_work &w, const gpu_int8_fixed *codes, int group, int row0, int column0) {
    char *staging = memory + T::STAGES * T::STAGE + group * T::BT * 128;
    if constexpr (T::STORE == CODED)
        store_coded<T::N>(l.epilogue, *codes, y, staging, 1 + group, row0, w.rows, column0);
    else if constexpr (T::STORE == GATED)
        store_gated<T::N>(l.epilogue, y, staging, 1 + group, row0, w.rows, column0);
    else
        store_plain<T::N>(l.epilogue, y, staging, 1 + group, row0, w.rows, column0);
}

/* From sums to outputs, as the kernel's STORE says. */
template <class T>
DEV void store_tile(const gpu_linear &l, const typename T::sum (&d)[T::MI][T::N / 2], char *memory,
                    const gemm_memory &m, const gemm_work &w, const gpu_int8_fixed *codes, int group,
                    int unit) {
    const tile_place at = tile_of<T>(w, unit);
    const int row0 = at.row, column0 = at.group * 8;
    const char *residual = w.residual ? m.residual : NULL;
    if constexpr (T::PP && T::SCALED) {
        float y[T::MI][T::N / 2];
        group_sync(1 + group, 128);        /* the scales are there                                          */
        scale_sums<T>(y, d, m.scales + group * T::SCALES);
        store_pingpong<T>(l, y, memory, w, codes, group, row0, column0);
    } else if constexpr (T::PP) {
        store_pingpong<T>(l, d, memory, w, codes, group, row0, column0);
    } else {
        group_sync(7, T::NC * 128);        /* all have read their last stage: the ring is staging now       */
        if (w.residual) barrier_wait(m.residual_full, 0);
        if constexpr (T::STORE == TRANSPOSED)
            store_transposed<T>(l.epilogue, d[0], (float *)memory + group * T::N * 68,
                                m.constants + group * 64, residual ? residual + group * T::BT * 128 : NULL,
                                m.scales + group * 64, m.scales + T::BW, 1 + group, row0, w.rows,
                                column0 + group * 64, w.rank, w.parts);
        else
            store_rows<T::N, T::BT>(l.epilogue, d[0],
                                    (float *)memory + (group * 4 + (threadIdx.x >> 5 & 3)) * 16 * (T::N + 8),
                                    m.constants, residual, group * 64 + (threadIdx.x >> 5 & 3) * 16, row0,
                                    w.rows, column0, l.weights.columns);
    }
}

/* A consumer warpgroup: its tiles, or its part of the only one. */
template <class T>
DEV void consume(const gpu_linear &l, char *memory, const gemm_memory &m, const gemm_work &w,
                 const float *row_scales, const gpu_int8_fixed *codes, int group, int lane) {
    typename T::sum d[T::MI][T::N / 2];
    for (int u = w.first_unit, i = 0; u < w.units; u += gridDim.x, i++) {
        if (T::PP && i % T::NC != group) continue;
        if (T::SCALED && T::PP) load_scales<T>(l, w, row_scales, m.scales + group * T::SCALES, u);
        if (T::SCALED && !T::PP)
            load_row_scales<T>(w, row_scales, m.scales + T::BW, w.first.row, threadIdx.x, T::NC * 128);
        if (T::PP && i) group_sync(3 + group, 256);    /* the ring is this warpgroup's                      */
        const u32 last = multiply_tile<T>(d, m, w.blocks, group, lane, i * w.blocks);
        if (T::PP && u + gridDim.x < w.units) group_arrive(3 + (group ^ 1), 256);
        wgmma_wait<0>();
        ring_leave(m.stages, {last, 0}, lane);
#pragma unroll
        for (int j = 0; j < T::MI; j++) after_wait(d[j]);
        store_tile<T>(l, d, memory, m, w, codes, group, u);
        if (!T::PP) break;
    }
}

/* row_scales: [capacity], of SCALED numbers; codes: how they become outputs, of CODED tiles. */
template <class T>
DEV void gemm(const gpu_hopper &p, const float *row_scales, const gpu_int8_fixed *codes = NULL) {
    extern __shared__ __align__(1024) char memory[];
    const int group = threadIdx.x >> 7, lane = threadIdx.x & 31;
    const gemm_memory m = gemm_memory_of<T>(memory);
    const gemm_work w = gemm_work_of<T>(p.linear);

    start_next();
    if (threadIdx.x == T::NC * 128) prepare_ring<T>(p, m, w);
    __syncthreads();
    load_constants<T>(p.linear, m, w);
    if (T::BW > T::NC * 128) __syncthreads();        /* the producer's warpgroup has written some of them   */
    if (group == T::NC) {
        if (T::NC == 2) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(T::SCALED ? 24 : 40));
        wait_before();
        if (threadIdx.x == T::NC * 128) produce<T>(p, m, w);
        if (T::PARTS && w.first_unit < w.units) {
            cluster_meet();                /* the consumers' two meetings (store_transposed)                */
            cluster_meet();
        }
    } else {
        if (T::NC == 2) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(T::SCALED ? 240 : 232));
        wait_before();
        consume<T>(p.linear, memory, m, w, row_scales, codes, group, lane);
    }
}


#endif
