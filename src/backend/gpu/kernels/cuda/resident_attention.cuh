/* Attention in the resident kernel, flash style over blocks: a block has one head and one split of its keys, and then one 16th
 * of the head's dims over all splits. All rows of the head are one tile, since all heads share K and V.
 *
 * The split's keys come through the ring while qkv is still at work; those that this step makes come as packets, over the stale
 * rows that the copy engine brought. A split sends its own softmax, rounded, and log2 of its sum of weights: the join weighs by
 * that. */
#ifndef KERNELS_CUDA_RESIDENT_ATTENTION_CUH
#define KERNELS_CUDA_RESIDENT_ATTENTION_CUH

#include "resident_products.cuh"

/* The block's keys or values: places from first_new on come as packets; with `clear`, what lies behind the last key is zero. */
DEV void patch_keys(const worker &w, const char *from, u32 piece0, u32 piece1, int clear, u32 tag) {
    const share &s = w.s;
    auto at = [&](int unit, int place) {
        return (place >> 5 ? piece1 : piece0) + (unit >> 3) * RESIDENT_BOX_KEYS * 128 + (place & 31) * 128 +
               (((unit ^ place) & 7) << 4);
    };
    const int loaded = (s.mine + RESIDENT_BOX_KEYS - 1) / RESIDENT_BOX_KEYS * RESIDENT_BOX_KEYS,
              fresh = max(0, s.first_new - s.begin);
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
DEV u32 part_at(const worker &w, int chunk, int split) {
    return (u32)(((w.s.head * 16 + chunk) * RESIDENT_SPLITS + split) * w.s.rows) * 48;
}

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
    gather_operand<1>(w, p.q, p.heads * 32, s.head * 32, 32, 1u << 27, 4, qkv_tag);
    if (touched)
#pragma unroll 1
        for (int i = 0; i < 2; i++) patch_keys(w, i ? p.v_new : p.k_new, i ? v[0] : k[0], i ? v[1] : k[1], i, qkv_tag);
    all_sync();
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
    if (warp < s.rows) {
        const float scale = p.scale * 1.4426950408889634f;
        float a = lane < s.mine ? scores[warp * 68 + lane] * scale : -INFINITY,
              b = lane + 32 < s.mine ? scores[warp * 68 + lane + 32] * scale : -INFINITY;
        const float top = warp_max(fmaxf(a, b));
        a = exp2_fast(a - top), b = exp2_fast(b - top);
        const float sum = warp_sum(a + b);
        const u32 at = p_at + warp * 128 + (lane & 7) * 2;
        asm volatile("st.shared.b16 [%0], %1;" ::"r"(at + (((lane >> 3) ^ warp) & 7) * 16), "h"(to_bf16(a)) : "memory");
        asm volatile("st.shared.b16 [%0], %1;" ::"r"(at + (((lane >> 3) + 4) ^ (warp & 7)) * 16), "h"(to_bf16(b)) : "memory");
        if (!lane) stats[warp][0] = __fdividef(1, sum), stats[warp][1] = top + __log2f(sum);
    }
    all_sync();
    float out[2][4] = {};
#pragma unroll
    for (int i = 0; i < 4; i++) {          /* 16 keys; dims 16·warp … */
        if (i * 16 >= s.mine) break;
        u32 a[4], b[4];
        const int place = (i & 1) * 16 + (lane & 15), unit = 2 * warp + (lane >> 4);
        load_matrix4(a, p_at + w.operand_row * 128 + (((2 * i + (lane >> 4)) ^ w.operand_row) & 7) * 16);
        load_turned4(b,
                     (i >> 1 ? v[1] : v[0]) + (unit >> 3) * RESIDENT_BOX_KEYS * 128 + place * 128 + (((unit ^ place) & 7) << 4));
        mma16(out[0], a, b[0], b[1]);
        mma16(out[1], a, b[2], b[3]);
    }
    char *to = p.part + part_at(w, warp, s.split);
    const int r8 = (lane * 11) >> 5, part = lane - 3 * r8;       /* lane is packet `part` of row r8 (of 8): lane / 3 */
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = r8 + 8 * h, from = r8 * 4;
        const float f = g + 8 * h < s.rows ? stats[g + 8 * h][0] : 0;
        const u32 low = pack_bf16(out[0][2 * h] * f, out[0][2 * h + 1] * f),
                  high = pack_bf16(out[1][2 * h] * f, out[1][2 * h + 1] * f);
        /* of the row: low 0 1 2 | low 3, high 0 1 | high 2 3, log2 */
        const u32 l0 = __shfl_sync(0xffffffffu, low, from + (part ? 3 : 0)), l1 = __shfl_sync(0xffffffffu, low, from + 1),
                  l2 = __shfl_sync(0xffffffffu, low, from + 2);
        const u32 h0 = __shfl_sync(0xffffffffu, high, from + (part == 1 ? 0 : 2)),
                  h1 = __shfl_sync(0xffffffffu, high, from + (part == 1 ? 1 : 3));
        if (lane < 24 && row < s.rows)
            put_packet(to + row * 48 + part * 16, part < 2 ? l0 : h0,
                       part == 0   ? l1
                       : part == 1 ? h0
                                   : h1,
                       part == 0   ? l2
                       : part == 1 ? h1
                                   : __float_as_uint(stats[row][1]),
                       tag);
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
    all_sync();
    const int total = 2 * w.packets, unit = divide(w.slot, w.by_packets), i = w.slot - unit * w.packets, pair = 3 * i + w.j,
              row = pair >> 2, c = pair & 3;
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
    send_pairs(known ? pack_bf16(a, b) : 0, there, p.attended + (u32)(i * p.heads * 32 + s.head * 32 + 2 * chunk + unit) * 16,
               tag);
}

#endif
