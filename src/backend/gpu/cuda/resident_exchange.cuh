/* How blocks of the resident denoise kernel exchange numbers, without a fence or a barrier across the card.
 *
 *   in a cluster   slices of x and hidden values by bulk copies between shared memories, single rows by
 *                  st.async; both count bytes at a barrier of the receiver
 *   across         sums over clusters. A 64-bit word of global memory holds two sums as integers of 28 bits
 *                  and how often something was added: a reader that sees all additions sees all sums.
 *                  Integers, because then the order of additions makes no difference.
 *
 * The unit of a row's integers is 2^-14 of a power of two near the root of the mean square that all blocks
 * saw last: a cluster may add 512 times that. More, or what is not a number, is counted as bad and makes the
 * sum NaN.
 *
 * Nobody is a whole exchange ahead of a block whose numbers it needs; that decides who may write where. There
 * are three buffers of sums, since clusters that are no head's read x after a layer late: the next sums of o
 * do not need these clusters, nor do those of the embedding, which have a fourth buffer. */
#ifndef KERNELS_CUDA_RESIDENT_EXCHANGE_CUH
#define KERNELS_CUDA_RESIDENT_EXCHANGE_CUH

#include "resident_products.cuh"

DEV void copy_to_peer(u32 to, u32 from, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];"
                 ::"r"(to), "r"(from), "r"(bytes), "r"(barrier) : "memory");
}
DEV void send_words(u32 to, u32 barrier, uint4 v) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 "
                 "[%0], {%1, %2, %3, %4}, [%5];"
                 ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(barrier) : "memory");
}
DEV void send_pair(u32 to, u32 barrier, float a, float b) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];"
                 ::"r"(to), "r"(__float_as_uint(a)), "r"(__float_as_uint(b)), "r"(barrier) : "memory");
}
DEV void put_relaxed(void *p, uint4 v) {
    asm volatile("{.reg .b128 t;\nmov.b128 t, {%1, %2};\nst.relaxed.gpu.global.b128 [%0], t;}"
                 ::"l"(p), "l"((u64)v.y << 32 | v.x), "l"((u64)v.w << 32 | v.z) : "memory");
}
DEV void get_relaxed(const void *p, u64 &low, u64 &high) {
    asm volatile("{.reg .b128 t;\nld.relaxed.gpu.global.b128 t, [%2];\nmov.b128 {%0, %1}, t;}"
                 : "=l"(low), "=l"(high) : "l"(p) : "memory");
}
DEV void add_relaxed(u64 *p, u64 v) {
    asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

/* ---- x ------------------------------------------------------------------------------------------------- */

DEV u32 slice_at(const worker &w, int rank) { return w.base + AT_X + rank * SLICE; }
DEV u32 square_at(const worker &w, int rank) { return slice_at(w, rank) + SLICE_SQUARES + w.warp * 4; }

DEV float4 own_columns(const worker &w, const float *values, float otherwise) {
    if (!values) return make_float4(otherwise, otherwise, otherwise, otherwise);
    return __ldg((const float4 *)(values + w.known + 128 * w.rank) + w.lane);
}

/* Shifts apart: the warp's 64 columns of them, for this block alone, whose last product over x has ended.
 * Before they are read there is a fence and a meeting of all warps, as put_x and broadcast_x have them. */
DEV void put_shifts(const worker &w, const gpu_resident &p, const float *shift) {
    if constexpr (!APART) return;
    const int column = 64 * w.warp + 2 * w.lane;
    const u32 at = slice_at(w, w.warp >> 1) + SLICE_ROWS + 2 * X_GROUP + (u32)((column & 127) >> 3) * X_K +
                   (u32)(column & 7) * 2;
#pragma unroll
    for (int i = 0; i < RESIDENT_SHIFTS; i++) {
        if (i >= p.shifts) break;
        const float2 b = __ldg((const float2 *)(shift + (i ? p.known.at : w.later) + column));
        store4(at + i * 16, pack_bf16(b.x, b.y));
    }
}

/* Writes the own 128 columns of all rows, times 1 + scale, and the sum of the own row's squares; and shifts
 * that are rows, too. */
DEV void put_x(const worker &w, const gpu_resident &p, u32 slice, u32 square, const float4 &scale,
               const float *shift) {
    const u32 row_at = APART ? (u32)((w.warp >> 3) * X_GROUP + (w.warp & 7) * 16) : w.row_at,
              at = slice + SLICE_ROWS + (w.lane >> 1) * X_K + row_at + (w.lane & 1) * 8;
    const float *x = w.x;
    if (w.owner) {
        const float s = warp_sum(x[0] * x[0] + x[1] * x[1] + x[2] * x[2] + x[3] * x[3]);
        store8(at, pack_bf16(x[0] * (1 + scale.x), x[1] * (1 + scale.y)),
               pack_bf16(x[2] * (1 + scale.z), x[3] * (1 + scale.w)));
        if (!w.lane) store4(square, __float_as_uint(s));
    } else if (!APART && w.warp < w.rows + p.shifts) {
        const float4 b = own_columns(w, shift, 0);
        store8(at, pack_bf16(b.x, b.y), pack_bf16(b.z, b.w));
    }
    async_fence();
}

/* Copies the own columns of all rows to every other block of the cluster. */
DEV void broadcast_x(worker &w, const gpu_resident &p, const float4 &scale, const float *shift) {
    const u32 slice = slice_at(w, w.rank);
    put_x(w, p, slice, square_at(w, w.rank), scale, shift);
    parties_meet(w);
    if (w.warp < CS && !w.lane) {
        const u32 barrier = w.base + AT_SLICES + 8 * w.rank;
        if (w.warp == w.rank) barrier_arrive(barrier);
        else copy_to_peer(peer_address(slice, w.warp), slice, SLICE_SENT, peer_address(barrier, w.warp));
    }
}

/* The barriers expect the next x. Done by a warp that mostly has no row. */
DEV void arm_slices(const worker &w) {
    if (w.warp == RESIDENT_ROWS - 1 && w.lane < CS && w.lane != w.rank)
        barrier_arm(w.base + AT_SLICES + 8 * w.lane, SLICE_SENT);
}
/* Waited for before the sums of a product over x are stored: the rows' owners have read the previous sums. */
DEV void await_own_slice(const worker &w) { await(w.base + AT_SLICES + 8 * w.rank, w.parity_x); }

/* 1 / root mean square of the own row, once all slices have arrived. */
DEV float norm_factor(const worker &w, float eps) {
    float s = 0;
#pragma unroll
    for (int i = 0; i < CS; i++) s += load4(square_at(w, i));
    return rsqrtf(s * (1.f / RESIDENT_WIDTH) + eps);
}
DEV float unit_of(float factor) { return __uint_as_float(__float_as_uint(factor) & 0x7f800000) * 16384; }

/* ---- sums over clusters -------------------------------------------------------------------------------- */

enum { SUM_BITS = 28, COUNT_BITS = 8, BAD = 16 };

DEV u64 word_of(float a, float b, float unit) {
    const float most = 8388608, u = a * unit, v = b * unit;
    if (!(fabsf(u) < most && fabsf(v) < most)) return 1 + BAD;
    return ((u64)(int64_t)__float2int_rn(v) << (COUNT_BITS + SUM_BITS)) +
           ((u64)(int64_t)__float2int_rn(u) << COUNT_BITS) + 1;
}

DEV u64 *words_at(const worker &w, const gpu_resident &p, int buffer, int word) {
    return p.sums + ((buffer * CS + w.rank) * RESIDENT_ROWS + w.warp) * 64 + word;
}

DEV void send_sums(const worker &w, const gpu_resident &p, int buffer) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float2 a = load8(sums_at(w, i, w.warp, 2 * w.lane)),
                     b = load8(sums_at(w, i + 2, w.warp, 2 * w.lane));
        add_relaxed(words_at(w, p, buffer, 32 * i + w.lane), word_of(a.x + b.x, a.y + b.y, w.unit));
    }
}

/* x += gate · the sums of `count` clusters. Until the first sum has arrived a warp polls one word only:
 * blocks that wait and poll whole rows slow down the others and heat the card. */
DEV void await_sums(worker &w, const gpu_resident &p, int buffer, u64 (&last)[2], u32 count,
                    const float4 &gate) {
    const u64 *from = words_at(w, p, buffer, 2 * w.lane);
    const float back = __uint_as_float((254u << 23) - __float_as_uint(w.unit)),
                g[4] = {gate.x, gate.y, gate.z, gate.w};
    u64 v[2];
    u32 n = 0;
    do {
        __nanosleep(40);
        get_relaxed(words_at(w, p, buffer, 0), v[0], v[1]);
        watch(n);
    } while (!(((u32)v[0] - __shfl_sync(0xffffffffu, (u32)last[0], 0)) & (BAD - 1)));
    for (;;) {
        get_relaxed(from, v[0], v[1]);
        if (((u32)(v[0] - last[0]) & (BAD - 1)) == count && ((u32)(v[1] - last[1]) & (BAD - 1)) == count)
            break;
        watch(n);
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const u64 all = v[i] - last[i], s = all - (all & 0xff);
        const int low = (int)((u32)(s >> COUNT_BITS) << 4) >> 4,
                  high = (int)((int64_t)(s - ((u64)(int64_t)low << COUNT_BITS)) >> (COUNT_BITS + SUM_BITS));
        const float bad = (all & 0xff) > count ? __uint_as_float(0x7fffffff) : 0;
        w.x[2 * i] += g[2 * i] * ((float)low * back + bad);
        w.x[2 * i + 1] += g[2 * i + 1] * ((float)high * back + bad);
        last[i] = v[i];
    }
}

/* ---- hidden values ------------------------------------------------------------------------------------- */

DEV void put_hidden(const worker &w, u32 slice, int unit, float factor, float gate, float up,
                    float gate_shift, float up_shift) {
    store2(slice + unit * 256 + w.row_at + (w.lane & 7) * 2,
           pack_bf16(gelu(gate * factor + gate_shift) * (up * factor + up_shift), 0));
}

/* GeGLU of the own units, copied to every other block of the cluster. */
DEV void broadcast_hidden(worker &w, const gpu_resident &p) {
    const u32 slice = w.base + AT_OPERAND + w.rank * w.units * 256;
    if (w.owner) {
        const float factor = norm_factor(w, p.eps);
        const int gate = (w.lane >> 3) * 16 + (w.lane & 7), up = gate + 8;
        w.unit = unit_of(factor);
        put_hidden(w, slice, w.lane >> 3, factor, sum_all(w, w.warp, gate), sum_all(w, w.warp, up),
                   p.shifts ? sum_all(w, w.shift, gate) : 0, p.shifts ? sum_all(w, w.shift, up) : 0);
        if (w.units > RESIDENT_UNITS && w.lane < 8)
            put_hidden(w, slice, RESIDENT_UNITS, factor, sum_fifth(w, w.warp, w.lane),
                       sum_fifth(w, w.warp, w.lane + 8), p.shifts ? sum_fifth(w, w.shift, w.lane) : 0,
                       p.shifts ? sum_fifth(w, w.shift, w.lane + 8) : 0);
        __syncwarp();
    }
    async_fence();
    parties_meet(w);
    if (w.warp < CS && !w.lane) {
        const u32 barrier = w.base + AT_HIDDEN, bytes = (u32)w.units * 256;
        if (w.warp == w.rank) barrier_arm(barrier, (CS - 1) * bytes);
        else copy_to_peer(peer_address(slice, w.warp), slice, bytes, peer_address(barrier, w.warp));
    }
}

#endif
