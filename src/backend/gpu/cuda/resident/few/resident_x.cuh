/* Products over x, of which every rank of a cluster has 128 columns: it multiplies all columns of weights of
 * the cluster by them and sends each rank the sums that are for it, fp32; that rank adds those of all ranks.
 * So x itself goes nowhere, and a product begins as soon as its rank knows x.
 *
 *   qkv       tile 0: 16 columns of k or v for each odd rank; tiles 1 … 4: 32 of q a rank, two ranks a tile
 *   gate_up   64 columns a rank, a tile each; then tiles of fifth units, 16 columns a rank
 *
 * A warp has 16 columns of its warpgroup's tile and sends them from its registers, as a box: [pair of
 * rows][8][row of the pair][column g and g + 8], the rows of every second box the other way round, so that
 * two boxes are read at a time from all banks. */
#ifndef KERNELS_CUDA_RESIDENT_X_CUH
#define KERNELS_CUDA_RESIDENT_X_CUH

#include "resident_exchange.cuh"

DEV float4 own_columns(const worker &w, const float *values, float otherwise) {
    if (!values) return make_float4(otherwise, otherwise, otherwise, otherwise);
    return __ldg((const float4 *)(values + w.known + 128 * w.rank) + w.lane);
}

DEV void put_x4(u32 at, float a, float b, float c, float d) { store8(at, pack_bf16(a, b), pack_bf16(c, d)); }

/* Writes the own 128 columns of all rows, times 1 + scale, and those of the shifts. The sum of the own row's
 * squares. */
DEV float put_x(const worker &w, const gpu_resident &p, const float4 &scale, const float *shift) {
    const u32 row_at = APART ? (u32)((w.warp >> 3) * X_GROUP + (w.warp & 7) * 16) : w.row_at,
              at = w.base + AT_X + (w.lane >> 1) * X_K + (w.lane & 1) * 8;
    const float *x = w.x;
    float s = 0;
    if (w.owner) {
        s = warp_sum(x[0] * x[0] + x[1] * x[1] + x[2] * x[2] + x[3] * x[3]);
        put_x4(at + row_at, x[0] * (1 + scale.x), x[1] * (1 + scale.y), x[2] * (1 + scale.z),
               x[3] * (1 + scale.w));
    } else if (!APART && w.warp < w.rows + p.shifts) {
        const float4 b = own_columns(w, shift, 0);
        put_x4(at + row_at, b.x, b.y, b.z, b.w);
    }
    if (APART && w.warp < p.shifts) {
        const float *from = shift + (w.warp ? p.known.at : w.later) + 128 * w.rank;
        const float4 b = __ldg((const float4 *)from + w.lane);
        put_x4(at + 2 * X_GROUP + w.warp * 16, b.x, b.y, b.z, b.w);
    }
    async_fence();
    return s;
}

/* The same as digits. */
DEV float put_x_digits(const worker &w, const gpu_resident &p, const float4 &scale, const float *shift) {
    const float *x = w.x;
    float s = 0;
    if (w.owner) {
        s = warp_sum(x[0] * x[0] + x[1] * x[1] + x[2] * x[2] + x[3] * x[3]);
        put_digits(w, w.warp, x[0] * (1 + scale.x), x[1] * (1 + scale.y), x[2] * (1 + scale.z),
                   x[3] * (1 + scale.w));
    } else if (!APART && w.warp < w.rows + p.shifts) {
        const float4 b = own_columns(w, shift, 0);
        put_digits(w, w.warp, b.x, b.y, b.z, b.w);
    }
    if (APART && w.warp < p.shifts) {
        const float *from = shift + (w.warp ? p.known.at : w.later) + 128 * w.rank;
        const float4 b = __ldg((const float4 *)from + w.lane);
        put_digits(w, RESIDENT_ROWS + w.warp, b.x, b.y, b.z, b.w);
    }
    async_fence();
    return s;
}

DEV u32 square_at(const worker &w, int rank, int row) {
    return w.base + AT_SQUARES + (rank * RESIDENT_ROWS + row) * 4;
}

/* x for a product; the row's sum of squares to all ranks. */
DEV void put_operand(const worker &w, const gpu_resident &p, const float4 &scale, const float *shift) {
    const float s = INT8 ? put_x_digits(w, p, scale, shift) : put_x(w, p, scale, shift);
    const u32 square = square_at(w, w.rank, w.warp);
    if (w.owner && w.lane < CS)
        send_word(peer_address(square, w.lane), peer_address(w.base + AT_EARLY, w.lane), s);
}

/* 1 / root mean square of a row, once the squares are there (AT_EARLY). */
DEV float norm_factor(const worker &w, int row, float eps) {
    float s = 0;
#pragma unroll
    for (int i = 0; i < CS; i++) s += load4(square_at(w, i, row));
    return rsqrtf(s * (1.f / RESIDENT_WIDTH) + eps);
}

/* ---- boxes --------------------------------------------------------------------------------------------- */

/* Rows of a product with its shifts, in pairs. */
DEV int row_pairs(const gpu_resident &p) { return ((p.shifts ? first_shift(p) + p.shifts : p.rows) + 1) / 2; }

/* So many boxes of each rank. */
DEV u32 box_bytes(const gpu_resident &p, int boxes) { return (u32)(CS * boxes * row_pairs(p) * 128); }

/* The warp's 16 columns to a box of rank `to`, counted at a barrier there; odd: of neighbouring boxes every
 * second one. */
DEV void send_box(const float (&d)[X_SUMS], const worker &w, const gpu_resident &p, int to, u32 barrier,
                  u32 box, int odd) {
    const u32 at = peer_address(w.base + AT_INBOX + box + (w.lane & 3) * 128 + (w.lane >> 2) * 16, to),
              given = peer_address(w.base + barrier, to);
#pragma unroll
    for (int i = 0; i < X_SUMS / 4; i++) {
        const uint2 v = make_uint2(__float_as_uint(d[4 * i]), __float_as_uint(d[4 * i + 2])),
                    u = make_uint2(__float_as_uint(d[4 * i + 1]), __float_as_uint(d[4 * i + 3]));
        if (4 * i + (w.lane & 3) < row_pairs(p))
            send_words(at + i * 512, given,
                       odd ? make_uint4(u.x, u.y, v.x, v.y) : make_uint4(v.x, v.y, u.x, u.y));
    }
}

/* Columns g and g + 8 of a row, over all ranks. */
DEV float2 take_sums(const worker &w, u32 boxes, u32 bytes, int row, int g, int odd) {
    const u32 at = w.base + AT_INBOX + boxes + (u32)(row >> 1) * 128 + (u32)g * 16 +
                   (u32)((row ^ odd) & 1) * 8;
    float2 s = {0, 0};
#pragma unroll
    for (int i = 0; i < CS; i++) {
        const float2 v = load8(at + i * bytes);
        s.x += v.x, s.y += v.y;
    }
    return s;
}

/* ---- products ------------------------------------------------------------------------------------------ */

/* Begins a tile's sums over the rank's k. */
DEV void begin_tile(float (&d)[X_SUMS], const worker &w, int tile) {
    const u32 x = w.base + AT_X;
    if constexpr (INT8) {
        const place at = place_of(w, tile);
        clear(d);
        await_chunk(w, at);
        multiply_codes<2, DIGITS_X_K>(d, w, at.stage, x, w.base + AT_X_UNITS);
        free_read(w, at);
        return;
    }
    const place one = place_of(w, 2 * tile), two = place_of(w, 2 * tile + 1);
    await_chunk(w, one);
    await_chunk(w, two);
    wgmma_begin();
    issue_x<0>(d, w.base + one.stage * STAGE, x);
    issue_x<1>(d, w.base + two.stage * STAGE, x + 8 * X_K);
    wgmma_commit();
}

/* Ends it when all but LEFT tiles are done. */
template <int LEFT> DEV void end_tile(float (&d)[X_SUMS], const worker &w, int tile) {
    if constexpr (INT8) return;
    wgmma_wait<LEFT>();
    hold(d);
    if (w.lane < 2) free_stage(w, place_of(w, 2 * tile + w.lane).stage);
}

/* Where the warp's columns of a tile go. */
template <int QKV>
DEV void send_tile(const float (&d)[X_SUMS], const worker &w, const gpu_resident &p, int t) {
    const int odd = w.quarter & 1;
    if (INT8 && !QKV && t >= CS)
        send_box(d, w, p, t - CS, AT_GIVEN, GATE_UNITS + (4 * w.rank + w.quarter) * BOX, odd);
    else if (QKV ? !t : t >= CS)
        send_box(d, w, p, QKV ? 2 * w.quarter + 1 : 4 * (t - CS) + w.quarter, QKV ? AT_EARLY : AT_GIVEN,
                 (QKV ? QKV_UNITS : GATE_UNITS) + w.rank * BOX, 0);
    else if (QKV)
        send_box(d, w, p, 2 * (t - 1) + (w.quarter >> 1), AT_GIVEN, (2 * w.rank + odd) * BOX, odd);
    else send_box(d, w, p, rank_of_tile(t, w.rank), AT_GIVEN, (4 * w.rank + w.quarter) * BOX, odd);
}

/* The barriers expect boxes; early ones, with the rows' squares, at one of their own. */
DEV void expect_boxes(const worker &w, const gpu_resident &p, int boxes, int early) {
    if (threadIdx.x != RESIDENT_READERS - 1) return; /* its warp mostly has no row, and waits             */
    barrier_arm(w.base + AT_GIVEN, box_bytes(p, boxes));
    barrier_arm(w.base + AT_EARLY, box_bytes(p, early) + (u32)(CS * 4 * p.rows));
}

/* ---- q, k, v ------------------------------------------------------------------------------------------- */

/* The first warpgroup has the first and the last tile. */
DEV void multiply_qkv(worker &w, const gpu_resident &p) {
    float d[X_SUMS], e[X_SUMS];
    begin_tile(d, w, w.group);
    end_tile<0>(d, w, w.group);
    send_tile<1>(d, w, p, w.group);
    if (!w.group) {
        begin_tile(e, w, 4);
        end_tile<0>(e, w, 4);
        send_tile<1>(e, w, p, 4);
    }
    advance(w, X_CHUNKS * QKV_TILES);
}

/* Columns g and g + 8 of a box, normed; `bytes` from a rank's box to the next one's; shift: the row's. */
DEV float2 normed_sums(const worker &w, const gpu_resident &p, u32 boxes, u32 bytes, int row, int shift,
                       int odd, float factor) {
    float2 v = take_sums(w, boxes, bytes, row, w.lane & 7, odd);
    v.x *= factor, v.y *= factor;
    if (p.shifts) {
        const float2 s = take_sums(w, boxes, bytes, shift, w.lane & 7, odd);
        v.x += s.x, v.y += s.y;
    }
    return v;
}

/* ---- hidden values ------------------------------------------------------------------------------------- */

/* Two tiles a warpgroup; where there are fifth units the first one or two have a third. */
DEV void multiply_gate_up(worker &w, const gpu_resident &p) {
    float d[X_SUMS], e[X_SUMS];
    const int t = w.group;
    if constexpr (INT8) {
#pragma unroll 1
        for (int i = t; i < CS + w.extra; i += 4) begin_tile(d, w, i), send_tile<0>(d, w, p, i);
        advance(w, CS + w.extra);
        return;
    }
    begin_tile(d, w, t);
    begin_tile(e, w, t + 4);
    end_tile<1>(d, w, t);
    send_tile<0>(d, w, p, t);
    if (4 * t < w.extra) {
        begin_tile(d, w, t + 8);
        end_tile<1>(e, w, t + 4);
        send_tile<0>(e, w, p, t + 4);
        end_tile<0>(d, w, t + 8);
        send_tile<0>(d, w, p, t + 8);
    } else {
        end_tile<0>(e, w, t + 4);
        send_tile<0>(e, w, p, t + 4);
    }
    advance(w, 2 * CS + w.extra / 2);
}

/* The lane's hidden value of a unit. */
DEV void put_hidden(const worker &w, const gpu_resident &p, u32 slice, u32 boxes, u32 bytes, int unit,
                    float factor) {
    const float2 v = normed_sums(w, p, boxes, bytes, w.warp, w.shift, unit & 1, factor);
    store2(slice + unit * 256 + w.row_at + (w.lane & 7) * 2, pack_bf16(gelu(v.x) * v.y, 0));
}

/* The same of int8: 32 values, and where the rank has them 32 more, as parts of the operand. */
DEV void broadcast_parts(worker &w, const gpu_resident &p) {
    const int parts = w.units / RESIDENT_UNITS, unit = w.lane >> 3;
    if (w.owner) {
        await(w.base + AT_EARLY, w.parity_x);
        const float factor = norm_factor(w, w.warp, p.eps);
        await(w.base + AT_GIVEN, w.parity_x);
        w.unit = unit_of(factor);
#pragma unroll 1
        for (int i = 0; i < parts; i++) {
            const u32 boxes = (u32)(i * GATE_UNITS + unit * BOX);
            const float2 v = normed_sums(w, p, boxes, 4 * BOX, w.warp, w.shift, unit & 1, factor);
            put_part(w, w.rank + CS * i, gelu(v.x) * v.y);
        }
        __syncwarp();
    }
    async_fence();
    parties_meet(w);
    if (w.warp >= CS || w.lane) return;
    const u32 barrier = w.base + AT_HIDDEN, to = peer_address(barrier, w.warp);
    if (w.warp == w.rank) {
        barrier_arm(barrier, (u32)(CS + w.extra - parts) * (1024 + 64));
        return;
    }
#pragma unroll 1
    for (int i = 0; i < parts; i++) {
        const u32 digits = part_digits(w, w.rank + CS * i), units = part_units(w, w.rank + CS * i);
        copy_to_peer(peer_address(digits, w.warp), digits, 1024, to);
        copy_to_peer(peer_address(units, w.warp), units, 64, to);
    }
}

/* GeGLU of the own units, copied to every other block of the cluster. */
DEV void broadcast_hidden(worker &w, const gpu_resident &p) {
    if constexpr (INT8) {
        broadcast_parts(w, p);
        return;
    }
    const u32 slice = w.base + AT_OPERAND + hidden_place(w.cluster, w.rank, w.extra) * 256;
    const int unit = w.lane >> 3;
    if (w.owner) {
        await(w.base + AT_EARLY, w.parity_x);
        const float factor = norm_factor(w, w.warp, p.eps);
        await(w.base + AT_GIVEN, w.parity_x);
        w.unit = unit_of(factor);
        put_hidden(w, p, slice, unit * BOX, 4 * BOX, unit, factor);
        if (w.units > RESIDENT_UNITS && !unit)
            put_hidden(w, p, slice, GATE_UNITS, BOX, RESIDENT_UNITS, factor);
        __syncwarp();
    }
    async_fence();
    parties_meet(w);
    if (w.warp < CS && !w.lane) {
        const u32 barrier = w.base + AT_HIDDEN, bytes = (u32)w.units * 256;
        if (w.warp == w.rank) barrier_arm(barrier, (u32)(CS * RESIDENT_UNITS + w.extra - w.units) * 256);
        else copy_to_peer(peer_address(slice, w.warp), slice, bytes, peer_address(barrier, w.warp));
    }
}

#endif
