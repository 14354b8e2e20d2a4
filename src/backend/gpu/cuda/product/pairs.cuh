/* From the sums of a pair of neighbouring outputs to the outputs: what skinny_hopper and medium_hopper do
 * after their products. What does not depend on sums is fetched while they are made. */
#ifndef KERNELS_CUDA_PAIRS_CUH
#define KERNELS_CUDA_PAIRS_CUH

#include "epilogue.cuh"

/* What a thread needs to finish an output pair, all of it known before the sums are. */
typedef struct finish {
    float c0, s0, c1, s1;                  /* RoPE; or bias and gate of two outputs                         */
    size_t at;                             /* element of out                                                */
    size_t place;                          /* QKV: element of k or v                                        */
    int section;                           /* QKV: 0 q, 1 k, 2 v                                            */
    int there;
} finish;

/* Row r, packed unit or group at `column`, pair t of it. */
template <int KIND> DEV finish prepare(const gpu_epilogue &e, int r, int capacity, int column, int t) {
    finish f = {};
    f.there = r < capacity;
    if (!f.there) return f;
    if (KIND == GPU_EPILOGUE_QKV) {
        int d = e.head_dim, half = d / 2, head = column / e.head_columns, position = __ldg(e.position + r);
        size_t place = ((size_t)__ldg(e.sample + r) * e.capacity + position) * d;
        f.section = head < e.heads ? 0 : head == e.heads ? 1 : 2;
        if (f.section == 2) {
            int i = column - (e.heads + 1) * e.head_columns + 2 * t;
            f.at = place + i;
            f.there = i < d;
        } else {
            int i = (column - head * e.head_columns) / 2 + 2 * t;
            f.there = i < half;
            f.at = (f.section ? place : ((size_t)r * e.heads + head) * d) + i;
            if (f.there) {
                float4 cs = __ldg((const float4 *)(e.rope + ((size_t)position * half + i) * 2));
                f.c0 = cs.x, f.s0 = cs.y, f.c1 = cs.z, f.s1 = cs.w;
            }
        }
    } else if (KIND == GPU_EPILOGUE_GATED) {
        int o = column / 2 + 2 * t;
        f.there = o < e.n;
        f.at = (size_t)r * e.n + o;
    } else {
        int o = column + 2 * t;
        f.there = o < e.n;
        if (!f.there) return f;
        f.at = (size_t)row_of(e.to, r) * e.n + o;
        if (e.split) f.at = (size_t)r * 2 * e.n + o;
        if (e.bias) f.c0 = __ldg(e.bias + o), f.c1 = __ldg(e.bias + o + 1);
        f.s0 = f.s1 = 1;
        if (KIND == GPU_EPILOGUE_RESIDUAL && e.gate) {
            const float *gate = e.gate + known_at(e.known, r, 1) + o;
            f.s0 = __ldg(gate), f.s1 = __ldg(gate + 1);
        }
    }
    return f;
}

DEV void put2(void *out, size_t at, float a, float b) { *(u32 *)((u16 *)out + at) = pack_bf16(a, b); }

/* A residual's pair: what was there and the sums a. */
DEV u32 residual_pair(const finish &f, u32 before, float a0, float a1) {
    return pack_bf16(low_of(before) + (a0 + f.c0) * f.s0, high_of(before) + (a1 + f.c1) * f.s1);
}

/* The pair's sums a (and b, its partner in a paired matrix) into outputs. A residual adds to `before`. */
template <int KIND>
DEV void complete(const gpu_epilogue &e, const finish &f, u32 before, float a0, float a1, float b0,
                  float b1) {
    if (!f.there) return;
    if (KIND == GPU_EPILOGUE_QKV) {
        int half = e.head_dim / 2;
        if (f.section == 2) {
            put2(e.v, f.at, a0, a1);
            put2(e.v, f.at + 8, b0, b1);
        } else {
            void *out = f.section ? e.k : e.out;
            put2(out, f.at, a0 * f.c0 - b0 * f.s0, a1 * f.c1 - b1 * f.s1);
            put2(out, f.at + half, b0 * f.c0 + a0 * f.s0, b1 * f.c1 + a1 * f.s1);
        }
    } else if (KIND == GPU_EPILOGUE_GATED) {
        put2(e.out, f.at, gelu(a0) * b0, gelu(a1) * b1);
    } else if (KIND == GPU_EPILOGUE_RESIDUAL) {
        *(u32 *)((u16 *)e.out + f.at) = residual_pair(f, before, a0, a1);
    } else {
        a0 = activate(e.activation, a0 + f.c0), a1 = activate(e.activation, a1 + f.c1);
        put2(e.out, f.at, a0, a1);
        if (e.split) put2(e.out, f.at + e.n, a0 - round_bf16(a0), a1 - round_bf16(a1));
    }
}

#endif
