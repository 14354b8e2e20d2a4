/* Gate and up for 17 to 64 rows: a part of medium_hopper.cu. k is not shared, since 64 columns a block are as
 * many blocks as the card has multiprocessors. Rows are wgmma's M side: x passes through registers, where it
 * is normed, and a thread ends with both halves of its outputs.
 *
 *   x        a ring of chunks of [rows][128 bytes, swizzled], 64 k each: read by ldmatrix, wgmma's A
 *   W        a ring of w_stages chunks of [8 groups of columns][1024 bytes]: wgmma's B
 *   norm     (w, w', b, b') of two neighbouring k
 *   barriers one use each, four for every chunk: x or W has arrived, has been read
 *
 * A block begins with chunk blockIdx % chunks, so that not all ask for the same bytes of x at once.
 *
 *   blocks   192 threads: a warpgroup multiplies and stores, warps 4 and 5 issue the copies of x and W;
 *            grid = columns / 64
 *   legal    as medium_hopper; k % 64 == 0, at most 16 chunks; no bias; an RMS norm, the same for all rows
 *   early    before wait_before(): the first w_stages chunks of W and the norm's parameters */
#ifndef KERNELS_CUDA_MEDIUM_GATED_CUH
#define KERNELS_CUDA_MEDIUM_GATED_CUH

#include "medium_norm.cuh"

enum {
    GATED_THREADS = 192,
    X_COPIER = 128, W_COPIER = 160,        /* the threads that issue the TMA's copies                       */
    GATED_CHUNKS = 16,                     /* most                                                          */
    W_CHUNK = GROUPS * atom::BYTES,
};

/* Addresses in shared memory, and the rings' lengths. Note: ldmatrix reads 64 rows, beyond the last ones what
 * follows the slot, be it W; sums of rows that do not exist are not stored. */
typedef struct gated_memory {
    u32 x, w;
    const float4 *norm;
    u32 x_full, x_read, w_full, w_read;    /* the barriers: [chunk]                                         */
    int chunks, first, slot, x_stages, w_stages;
} gated_memory;

DEV gated_memory gated_memory_of(char *memory, const u64 *barriers, const gpu_medium &p) {
    const gpu_linear &l = p.hopper.linear;
    const int x_stages = min(l.k_blocks, (int)GATED_X_BYTES / p.slot), w_bytes = l.stages * W_CHUNK;
    const u32 x = shared_address(memory), bars = shared_address(barriers);
    return {.x = x, .w = x + x_stages * p.slot,
            .norm = (const float4 *)(memory + x_stages * p.slot + w_bytes),
            .x_full = bars, .x_read = bars + 8 * GATED_CHUNKS, .w_full = bars + 16 * GATED_CHUNKS,
            .w_read = bars + 24 * GATED_CHUNKS,
            .chunks = l.k_blocks, .first = (int)blockIdx.x % l.k_blocks, .slot = p.slot,
            .x_stages = x_stages, .w_stages = l.stages};
}

/* Chunk c of the block, counted from its first, in the matrix. */
DEV int chunk_of(const gated_memory &m, int c) {
    return m.first + c < m.chunks ? m.first + c : m.first + c - m.chunks;
}

DEV void copy_gated_w(const gpu_hopper &p, const gated_memory &m, int c) {
    barrier_arm(m.w_full + 8 * c, W_CHUNK);
    copy_atoms(m.w + c % m.w_stages * W_CHUNK, &p.weights, blockIdx.x * GROUPS, chunk_of(m, c),
               m.w_full + 8 * c);
}

DEV void copy_gated_x(const gpu_hopper &p, const gated_memory &m, int c) {
    barrier_arm(m.x_full + 8 * c, m.slot);
    copy_box3(m.x + c % m.x_stages * m.slot, &p.x, 0, 0, chunk_of(m, c), m.x_full + 8 * c);
}

/* One thread: barriers, and the first weights, which no kernel writes. */
DEV void start_gated(const gpu_hopper &p, const gated_memory &m) {
    prefetch_map(&p.weights);
    prefetch_map(&p.x);
    for (int c = 0; c < m.chunks; c++) {
        barrier_init(m.x_full + 8 * c, 1);
        barrier_init(m.x_read + 8 * c, 4);
        barrier_init(m.w_full + 8 * c, 1);
        barrier_init(m.w_read + 8 * c, 4);
    }
    barrier_init_done();
    for (int c = 0; c < m.w_stages; c++) copy_gated_w(p, m, c);
}

/* (w, w', b, b') for every two k, into shared memory. */
DEV void load_gated_norm(const gpu_linear &l, float4 *to, int tid) {
    for (int i = tid; i < l.ldx / 2; i += GATED_THREADS) {
        const float2 w = __ldg((const float2 *)l.norm_weight + i);
        float2 b = make_float2(0, 0);
        if (l.norm_bias) b = __ldg((const float2 *)l.norm_bias + i);
        to[i] = make_float4(w.x, w.y, b.x, b.y);
    }
}

/* d += A·B, A in registers (rows x k as mma16 has it), B in shared memory. */
DEV void wgmma_registers(float (&d)[32], const u32 (&a)[4], u64 b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 WT0 ", " WT1 ", " WT2 ", " WT3
                 "}, {%32, %33, %34, %35}, %36, p, 1, 1, 0;\n}"
                 : WRS(0), WRS(1), WRS(2), WRS(3)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

/* Keeps registers that a wgmma reads from being used anew before the wait that stands above this call. */
DEV void keep(u32 (&a)[4][4]) {
#pragma unroll
    for (int i = 0; i < 16; i++) asm volatile("" : "+r"(a[i / 4][i % 4])::"memory");
}

/* 16 rows of chunk c, normed where f says so: rows lane / 4 and 8 more have factors f[0] and f[1]. */
DEV void load_rows(u32 (&a)[4][4], const gated_memory &m, int c, const float (&f)[2], bool normed, int warp,
                   int lane) {
    const u32 at = m.x + c % m.x_stages * m.slot + (warp * 16 + (lane & 15)) * 128;
    const float4 *norm = m.norm + chunk_of(m, c) * (GPU_ATOM_K / 2) + (lane & 3);
    barrier_wait(m.x_full + 8 * c, 0);
#pragma unroll
    for (int s = 0; s < 4; s++) load_matrix4(a[s], at + (((2 * s + (lane >> 4)) ^ (lane & 7)) << 4));
    if (normed)
#pragma unroll
        for (int s = 0; s < 4; s++)
#pragma unroll
            for (int i = 0; i < 4; i++) a[s][i] = norm_pair(a[s][i], f[i & 1], norm[8 * s + 4 * (i >> 1)]);
    __syncwarp();
    if (!lane) barrier_arrive(m.x_read + 8 * c);
}

/* One chunk: a is normed while the products of the chunk before run; these have ended when it returns. */
DEV void multiply_chunk(float (&d)[32], u32 (&a)[4][4], u32 (&before)[4][4], const gated_memory &m, int c,
                        const float (&f)[2], bool normed, int warp, int lane) {
    load_rows(a, m, c, f, normed, warp, lane);
    barrier_wait(m.w_full + 8 * c, 0);
    const u64 b = wgmma_operand(m.w + c % m.w_stages * W_CHUNK);
    wgmma_begin();
#pragma unroll
    for (int s = 0; s < atom::STEPS; s++) wgmma_registers(d, a[s], b + atom::STEP * s, c | s);
    wgmma_commit();
    wgmma_wait<1>();
    keep(before);
    if (c && !lane) barrier_arrive(m.w_read + 8 * (c - 1));
}

/* d = 64 rows x 64 columns. */
DEV void multiply_gated(float (&d)[32], const gated_memory &m, const float (&f)[2], bool normed, int warp,
                        int lane) {
    u32 even[4][4] = {}, odd[4][4] = {};
    for (int c = 0; c < m.chunks; c += 2) {
        multiply_chunk(d, even, odd, m, c, f, normed, warp, lane);
        if (c + 1 < m.chunks) multiply_chunk(d, odd, even, m, c + 1, f, normed, warp, lane);
    }
    wgmma_wait<0>();
    keep(even);
    keep(odd);
    after_wait(d);
}

/* Of every unit of 16 columns a thread has two of gate and two of up, in rows lane / 4 and 8 more. */
DEV void store_gated(const gpu_epilogue &e, const float (&d)[32], int warp, int lane, int rows) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = warp * 16 + h * 8 + (lane >> 2);
        u16 *out = (u16 *)e.out + (size_t)row * e.n;
#pragma unroll
        for (int u = 0; u < COLUMNS / GPU_UNIT; u++) {
            const int o = blockIdx.x * (COLUMNS / 2) + u * 8 + 2 * (lane & 3), i = 8 * u + 2 * h;
            if (row < rows && o < e.n)
                *(u32 *)(out + o) = pack_bf16(gelu(d[i]) * d[i + 4], gelu(d[i + 1]) * d[i + 5]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(GATED_THREADS, 2)
    medium_hopper_gated(const __grid_constant__ gpu_medium p) {
    extern __shared__ __align__(1024) char gated_space[];
    __shared__ __align__(8) u64 barriers[4 * GATED_CHUNKS];
    const gpu_linear &l = p.hopper.linear;
    const gated_memory m = gated_memory_of(gated_space, barriers, p);
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, rows = *l.count;
    const bool normed = l.norm != GPU_NORM_NONE;

    if (tid == W_COPIER) start_gated(p.hopper, m);
    if (normed) load_gated_norm(l, (float4 *)m.norm, tid);
    __syncthreads();                       /* the barriers are made, the norm's parameters are there        */
    wait_before();
    if (tid == X_COPIER)
        for (int c = 0; c < m.x_stages; c++) copy_gated_x(p.hopper, m, c);
    start_next();                          /* not earlier: its weights would queue before x in the TMA      */
    if (tid == X_COPIER)
        for (int c = m.x_stages; c < m.chunks; c++) {
            barrier_wait(m.x_read + 8 * (c - m.x_stages), 0);
            copy_gated_x(p.hopper, m, c);
        }
    if (tid == W_COPIER)
        for (int c = m.w_stages; c < m.chunks; c++) {
            barrier_wait(m.w_read + 8 * (c - m.w_stages), 0);
            copy_gated_w(p.hopper, m, c);
        }
    if (warp >= 4) return;
    float d[32], f[2] = {1, 1};
    if (normed)
#pragma unroll
        for (int h = 0; h < 2; h++)
            f[h] = row_factor(l, p.squares, warp * 16 + h * 8 + (lane >> 2), lane & 3, rows);
    multiply_gated(d, m, f, normed, warp, lane);
    store_gated(l.epilogue, d, warp, lane, rows);
}

#endif
