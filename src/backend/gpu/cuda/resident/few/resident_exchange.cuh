/* How blocks of the resident denoise kernel exchange numbers, without a fence or a barrier across the card.
 *
 *   in a cluster   hidden values and parts of the velocity by bulk copies between shared memories, boxes of
 *                  sums, rows and squares by st.async; both count bytes at a barrier of the receiver
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
DEV void send_word(u32 to, u32 barrier, float a) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];"
                 ::"r"(to), "r"(__float_as_uint(a)), "r"(barrier) : "memory");
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

/* ---- sums over clusters -------------------------------------------------------------------------------- */

DEV float unit_of(float factor) { return __uint_as_float(__float_as_uint(factor) & 0x7f800000) * 16384; }

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

/* x += gate · the sums of `count` clusters. The first warp polls one word of its row until all have added to
 * it, then every warp reads its row: more polling slows down the blocks that still work. */
DEV void await_sums(worker &w, const gpu_resident &p, int buffer, u64 (&last)[2], u32 count,
                    const float4 &gate) {
    const u64 *from = words_at(w, p, buffer, 2 * w.lane);
    const float back = __uint_as_float((254u << 23) - __float_as_uint(w.unit)),
                g[4] = {gate.x, gate.y, gate.z, gate.w};
    u64 v[2];
    const u32 lanes = 0xffffffffu, before = __shfl_sync(lanes, (u32)last[0], 0);
    u32 n = 0;
    if (!w.warp) do {
        __nanosleep(40);
        get_relaxed(words_at(w, p, buffer, 0), v[0], v[1]);
        watch(n);
    } while (__any_sync(lanes, (((u32)v[0] - before) & (BAD - 1)) != count));
    group_sync(5, 32 * w.rows);
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

#endif
