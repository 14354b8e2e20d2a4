/* From the sums of one row to outputs: bias, activation, gate, residual, RoPE, cache, rounding.
 *
 * One thread holds four sums of a row r and a unit of 16 packed columns (args.h): a0, a1 of columns 2t, 2t +
 * 1 and b0, b1 of columns 8 + 2t, 8 + 2t + 1. In paired matrices a and b belong together. */
#ifndef KERNELS_CUDA_EPILOGUE_CUH
#define KERNELS_CUDA_EPILOGUE_CUH

#include "backend/gpu/cuda/common.cuh"

DEV float activate(int activation, float x) {
    return activation == GPU_ACT_NONE ? x : activation == GPU_ACT_GELU ? gelu(x) : silu(x);
}

/* Outputs o, o + 1 of a plain matrix; `row`: the row of `out`. */
DEV void epilogue_plain(const gpu_epilogue &e, int r, size_t row, int o, float y0, float y1) {
    if (o >= e.n) return;
    int both = o + 1 < e.n;
    size_t at = row * e.n + o;
    if (e.bias) {
        y0 += __ldg(e.bias + o);
        if (both) y1 += __ldg(e.bias + o + 1);
    }
    if (e.kind == GPU_EPILOGUE_RESIDUAL) {
        if (e.gate) {
            const float *gate = e.gate + known_at(e.known, r, 1) + o;
            y0 *= __ldg(gate);
            if (both) y1 *= __ldg(gate + 1);
        }
        if (!e.f32 && both && !(at & 1)) {
            u32 x = __ldcg((const u32 *)((const u16 *)e.out + at));
            *(u32 *)((u16 *)e.out + at) = pack_bf16(low_of(x) + y0, high_of(x) + y1);
            return;
        }
        y0 += load_act(e.out, e.f32, at);
        if (both) y1 += load_act(e.out, e.f32, at + 1);
    } else {
        if (e.add) {
            const float *add = e.add + (size_t)(r % e.add_period) * e.n + o;
            y0 += __ldg(add);
            if (both) y1 += __ldg(add + 1);
        }
        y0 = activate(e.activation, y0);
        y1 = activate(e.activation, y1);
        if (e.x_t && !known_at(e.known, r, 1)) {
            e.x_t[at] = __ldcg(e.x_t + at) + e.dt * y0;
            if (both) e.x_t[at + 1] = __ldcg(e.x_t + at + 1) + e.dt * y1;
        }
    }
    if (e.split) {                         /* a row is [upper n | lower n]                                  */
        at = row * 2 * e.n + o;
        store_pair(e.out, 0, at + e.n, o, e.n, y0 - round_bf16(y0), y1 - round_bf16(y1));
    }
    store_pair(e.out, e.f32, at, o, e.n, y0, y1);
}

DEV void epilogue_gated(const gpu_epilogue &e, size_t row, int o, float a0, float a1, float b0, float b1) {
    if (o >= e.n) return;
    int both = o + 1 < e.n;
    if (e.bias) {
        a0 += __ldg(e.bias + o), b0 += __ldg(e.bias + e.n_second + o);
        if (both) a1 += __ldg(e.bias + o + 1), b1 += __ldg(e.bias + e.n_second + o + 1);
    }
    store_pair(e.out, e.f32, row * e.n + o, o, e.n, gelu(a0) * b0, gelu(a1) * b1);
}

DEV void epilogue_qkv(const gpu_epilogue &e, int r, int column, int t, float a0, float a1, float b0,
                      float b1) {
    int d = e.head_dim, half = d / 2, head = column / e.head_columns;
    if (head < e.heads + 1) {
        int i = (column - head * e.head_columns) / 2 + 2 * t;
        int position = __ldg(e.position + r);
        if (i >= half) return;
        void *out = e.out;
        size_t at = ((size_t)r * e.heads + head) * d + i;
        if (head == e.heads) {
            out = e.k;
            at = ((size_t)__ldg(e.sample + r) * e.capacity + position) * d + i;
        }
        const float *rope = e.rope + ((size_t)position * half + i) * 2;
        float c0 = __ldg(rope), s0 = __ldg(rope + 1), c1 = 0, s1 = 0;
        if (i + 1 < half) c1 = __ldg(rope + 2), s1 = __ldg(rope + 3);
        store_pair(out, e.f32, at, i, half, a0 * c0 - b0 * s0, a1 * c1 - b1 * s1);
        store_pair(out, e.f32, at + half, i, half, b0 * c0 + a0 * s0, b1 * c1 + a1 * s1);
    } else {
        int i = column - (e.heads + 1) * e.head_columns + 2 * t;
        size_t at = ((size_t)__ldg(e.sample + r) * e.capacity + __ldg(e.position + r)) * d + i;
        store_pair(e.v, e.f32, at, i, d, a0, a1);
        store_pair(e.v, e.f32, at + 8, i + 8, d, b0, b1);
    }
}

DEV void epilogue_unit(const gpu_epilogue &e, int r, int unit, int t, float a0, float a1, float b0,
                       float b1) {
    if (e.kind == GPU_EPILOGUE_QKV) {
        epilogue_qkv(e, r, unit * GPU_UNIT, t, a0, a1, b0, b1);
        return;
    }
    size_t row = row_of(e.to, r);
    if (e.kind == GPU_EPILOGUE_GATED) {
        epilogue_gated(e, row, unit * (GPU_UNIT / 2) + 2 * t, a0, a1, b0, b1);
    } else {
        epilogue_plain(e, r, row, unit * GPU_UNIT + 2 * t, a0, a1);
        epilogue_plain(e, r, row, unit * GPU_UNIT + 8 + 2 * t, b0, b1);
    }
}

#endif
