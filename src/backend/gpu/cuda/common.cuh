/* What all kernels share, over their instructions: loads, rounding, activations, places of rows and weights.
 *
 * Early start (programmatic dependent launch): a kernel may begin while the previous kernel of the plan still
 * runs.
 *   - start_next() allows the next kernel to begin once every block of this kernel has called it or has
 *     ended.
 *   - wait_before() returns when all earlier kernels have ended and their writes are visible.
 *   - Before wait_before() a thread touches only what no kernel of the plan writes: packed weights, biases,
 *     gates and norms, the RoPE table, and the tables of rows (count, sample, position, keys, maps), which
 *     come with the upload. After a kernel that does write norms or gates (op.parameters) the host launches
 *     the next one without early start.
 *   - Every thread calls wait_before(), also a thread that finds nothing to do: the next kernel may already
 *     run, and it counts on everything before this kernel having ended too.
 * Activations are read past the first-level cache (ld.cg, cp.async.cg), because the multiprocessor may hold
 * lines from before they were written. */
#ifndef KERNELS_CUDA_COMMON_CUH
#define KERNELS_CUDA_COMMON_CUH

#include "backend/gpu/cuda/instructions.cuh"
#include "backend/gpu/kernels/args.h"

/* ---- numbers ------------------------------------------------------------------------------------------- */

DEV float from_bf16(u16 bits) { return __uint_as_float((u32)bits << 16); }
DEV float low_of(u32 pair) { return __uint_as_float(pair << 16); }
DEV float high_of(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
DEV u16 to_bf16(float x) { return (u16)pack_bf16(x, 0); }
DEV float round_bf16(float x) { return from_bf16(to_bf16(x)); }

/* The tanh form of GELU is x·sigmoid(2·√(2/π)·(x + 0.044715·x³)), that is x/(1 + 2^z): z. */
DEV float gelu_exponent(float x) { return x * (-2.302208198144325f - 0.10294324f * (x * x)); }
/* Relative error under 2e-6. */
DEV float gelu(float x) { return __fdividef(x, 1 + exp2_fast(gelu_exponent(x))); }
DEV float silu(float x) { return __fdividef(x, 1 + exp2_fast(-1.4426950408889634f * x)); }

DEV float warp_sum(float x) {
#pragma unroll
    for (int i = 16; i; i >>= 1) x += __shfl_xor_sync(0xffffffffu, x, i);
    return x;
}
DEV float warp_max(float x) {
#pragma unroll
    for (int i = 16; i; i >>= 1) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, i));
    return x;
}

/* ---- memory -------------------------------------------------------------------------------------------- */

DEV float load_act(const void *x, int f32, size_t at) {
    return f32 ? __ldcg((const float *)x + at) : from_bf16(__ldcg((const unsigned short *)x + at));
}
/* Two neighbouring outputs `index` and index + 1, of which those below `limit` exist. */
DEV void store_pair(void *out, int f32, size_t at, int index, int limit, float a, float b) {
    if (f32) {
        float *to = (float *)out + at;
        if (index < limit) to[0] = a;
        if (index + 1 < limit) to[1] = b;
    } else {
        u16 *to = (u16 *)out + at;
        if (index + 1 < limit && !((size_t)to & 3)) {
            *(u32 *)to = pack_bf16(a, b);
        } else {
            if (index < limit) to[0] = to_bf16(a);
            if (index + 1 < limit) to[1] = to_bf16(b);
        }
    }
}


DEV int row_of(const gpu_row_map &m, int r) {
    if (m.map) return __ldg(m.map + r);
    return m.group ? r / m.group * m.stride + m.offset + r % m.group : r;
}

/* What is to be added to the addresses of row r's norm weight, norm bias and gate. `there`: the row
 * exists. */
DEV int known_at(const gpu_known &k, int r, int there) {
    return k.rows && there && __ldg(k.rows + r) ? k.at : 0;
}

/* Byte offset of weights i … i + 7 (i a multiple of 8) of a packed column, in the atoms of args.h: an atom is
 * 8 columns x 64 k, and the eight 16-byte units of a column are swizzled by the column's number. */
DEV size_t atom_at(int blocks, int column, int i) {
    return ((size_t)(column >> 3) * blocks + (i >> 6)) * GPU_ATOM_BYTES + (column & 7) * 128 +
           ((((i >> 3) ^ column) & 7) << 4);
}


#endif
