/* x·Wᵀ for few rows in bf16 on any tensor core since sm_80: the weights are read once at full bandwidth, and
 * everything else happens meanwhile.
 *
 * A block makes 16·MT rows x 8·C packed columns over all of k (skinny_ROWS_COLUMNS). Its part of W is one
 * piece of memory per 8 columns.
 *
 *   chunk = 512 k:  x [8 blocks of 64 k][16·MT rows][128 bytes] + W [C groups][8 atoms]; p.stages chunks in
 *                   flight
 *   warp w takes the w-th 64 k of every chunk; the 8 partial sums meet in shared memory at the end
 *
 * The norm, where there is one, happens in place in shared memory once all of x has arrived: then all chunks
 * must be resident. Note: with C = 1 a block has half a unit, which only plain matrices allow.
 *
 *   blocks   256 threads; grid = columns / (8·C) x rows / (16·MT)
 *   shared   p.stages chunks and the norm's parameters, or the partial sums where those are larger
 *   legal    x bf16, ldx % 8 == 0, W and x have the same k blocks, columns % (8·C) == 0, C = 1 only for plain
 *            matrices, and a norm only if the stages cover k
 *   early    before wait_before(): the first chunks of W and the norm's parameters; start_next() after those
 *            are issued.
 *
 * skinny_mma.c checks what is legal and launches. */
#include "backend/gpu/cuda/bounds.cuh"
#include "backend/gpu/cuda/weight_tile.cuh"
#include "epilogue.cuh"

typedef weight_tile<GPU_WEIGHT_BF16> atom;

enum { CHUNK_BLOCKS = 8, WARPS = 8 };

/* cp.async's count of groups is a constant of the instruction. */
DEV void copy_wait_but(int left) {
    switch (left) {
    case 0: copy_wait<0>(); break;
    case 1: copy_wait<1>(); break;
    case 2: copy_wait<2>(); break;
    case 3: copy_wait<3>(); break;
    case 4: copy_wait<4>(); break;
    case 5: copy_wait<5>(); break;
    case 6: copy_wait<6>(); break;
    default: copy_wait<7>(); break;
    }
}

/* The norm of row r of x, in place; unit i: 16 bytes, 64 of them a chunk. */
template <int ROWS, int STAGE>
DEV void norm_row(const gpu_linear &p, char *memory, const float *weight, const float *bias, int r,
                  int lane) {
    const int n = p.ldx / 8;
    float sum = 0, squares = 0, mean = 0;
    auto unit = [&](int i) {
        return (uint4 *)(memory + (i >> 6) * STAGE + ((i >> 3 & 7) * ROWS + r) * 128 + (((i ^ r) & 7) << 4));
    };
    if (p.norm == GPU_NORM_LAYER) {
        for (int i = lane; i < n; i += 32) {
            uint4 v = *unit(i);
            sum += low_of(v.x) + high_of(v.x) + low_of(v.y) + high_of(v.y) + low_of(v.z) + high_of(v.z) +
                   low_of(v.w) + high_of(v.w);
        }
        mean = warp_sum(sum) / p.ldx;
    }
    for (int i = lane; i < n; i += 32) {
        uint4 v = *unit(i);
        u32 w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float a = low_of(w[j]) - mean, b = high_of(w[j]) - mean;
            squares += a * a + b * b;
        }
    }
    const float factor = rsqrtf(warp_sum(squares) / p.ldx + p.eps), one = p.norm == GPU_NORM_RMS;
    for (int i = lane; i < n; i += 32) {
        uint4 v = *unit(i);
        u32 w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float2 f = *(const float2 *)(weight + i * 8 + j * 2), s = make_float2(0, 0);
            if (bias) s = *(const float2 *)(bias + i * 8 + j * 2);
            w[j] = pack_bf16((low_of(w[j]) - mean) * factor * (one + f.x) + s.x,
                             (high_of(w[j]) - mean) * factor * (one + f.y) + s.y);
        }
        *unit(i) = make_uint4(w[0], w[1], w[2], w[3]);
    }
}

/* What a tile decides at compile time: rows and columns of a block, bytes of a stage and of x in it, floats
 * of a row of partial sums. */
template <int MT, int C> struct skinny_tile {
    enum {
        ROWS = MT * 16,
        X = ROWS * CHUNK_BLOCKS * 128,
        STAGE = X + C * CHUNK_BLOCKS * atom::BYTES,
        PITCH = C * 8 + 2,
    };
};

/* Chunk `chunk` of the block's W: C groups of 8 columns from group0 on. */
template <int MT, int C>
DEV void load_weights(const gpu_linear &p, u32 stage, int tid, int blocks, int group0, int chunk) {
    const int n = min(blocks - chunk * CHUNK_BLOCKS, (int)CHUNK_BLOCKS) * (atom::BYTES / 16);
#pragma unroll
    for (int c = 0; c < C; c++) {
        const char *from = atom_of<atom>(p.weights.data, blocks, group0 + c, chunk * CHUNK_BLOCKS);
        const u32 to = stage + skinny_tile<MT, C>::X + c * CHUNK_BLOCKS * atom::BYTES;
#pragma unroll
        for (int i = tid; i < CHUNK_BLOCKS * atom::BYTES / 16; i += WARPS * 32)
            if (i < n) copy16(to + i * 16, from + i * 16, 1);
    }
}

/* Chunk `chunk` of the block's `rows` rows of x. */
template <int MT, int C>
DEV void load_x(const gpu_linear &p, u32 stage, int tid, int row0, int rows, int chunk) {
    constexpr int ROWS = skinny_tile<MT, C>::ROWS;
#pragma unroll
    for (int i = tid; i < ROWS * 64; i += WARPS * 32) {
        const int r = i >> 6, c = i & 63, k = chunk * 512 + c * 8, there = r < rows && k < p.ldx;
        copy16(stage + ((c >> 3) * ROWS + r) * 128 + (((c ^ r) & 7) << 4),
               (const u16 *)p.x + (there ? (size_t)row_of(p.from, row0 + r) * p.ldx + k : 0), there);
    }
}

/* The norm's parameters, constants of the model or of the schedule: `to` [ldx], then the bias. */
DEV void load_norm(const gpu_linear &p, float *to, int tid) {
    if (p.norm == GPU_NORM_NONE) return;
    for (int i = tid; i < p.ldx; i += WARPS * 32) to[i] = __ldg(p.norm_weight + i);
    if (p.norm_bias)
        for (int i = tid; i < p.ldx; i += WARPS * 32) to[p.ldx + i] = __ldg(p.norm_bias + i);
}

/* sum += x·W over the warp's 64 k of a chunk. */
template <int MT, int C> DEV void multiply_chunk(float (&sum)[MT][C][4], u32 stage, int warp, int lane) {
    const u32 x = stage + warp * skinny_tile<MT, C>::ROWS * 128,
              w = stage + skinny_tile<MT, C>::X + warp * atom::BYTES;
#pragma unroll
    for (int s = 0; s < atom::STEPS; s += 2) {
        u32 b[C][4];                       /* b0, b1 of two k steps                                         */
#pragma unroll
        for (int c = 0; c < C; c++)
            load_fragment<atom>(b[c], w + c * CHUNK_BLOCKS * atom::BYTES + fragment_column<atom>(lane), s / 2,
                                lane);
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int m = 0; m < MT; m++) {
                u32 a[4];
                const int r = m * 16 + (lane & 15), c16 = 2 * (s + h) + (lane >> 4);
                load_matrix4(a, x + r * 128 + ((c16 ^ (r & 7)) << 4));
#pragma unroll
                for (int c = 0; c < C; c++) mma16(sum[m][c], a, b[c][2 * h], b[c][2 * h + 1]);
            }
    }
}

/* The warp's partial sums into `part` [warp][row][PITCH]. */
template <int MT, int C> DEV void store_parts(float *part, const float (&sum)[MT][C][4], int warp, int lane) {
    typedef skinny_tile<MT, C> tile;
    const int g = lane >> 2, t4 = lane & 3;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int c = 0; c < C; c++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                *(float2 *)(part + ((size_t)warp * tile::ROWS + m * 16 + h * 8 + g) * tile::PITCH +
                            c * 8 + 2 * t4) = make_float2(sum[m][c][2 * h], sum[m][c][2 * h + 1]);
}

/* Adds the parts of all warps and finishes the outputs: a thread a row, a unit (with C = 1 half of one) and a
 * pair. */
template <int MT, int C>
DEV void finish_parts(const gpu_linear &p, const float *part, int tid, int row0, int rows, int group0) {
    typedef skinny_tile<MT, C> tile;
    constexpr int UNITS = C == 1 ? 1 : C / 2;
    for (int i = tid; i < tile::ROWS * UNITS * 4; i += WARPS * 32) {
        const int t = i & 3, u = (i >> 2) % UNITS, r = (i >> 2) / UNITS;
        if (r >= rows) continue;
        float2 a = make_float2(0, 0), b = make_float2(0, 0);
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            const float *from = part + ((size_t)w * tile::ROWS + r) * tile::PITCH + u * 16 + 2 * t;
            float2 v = *(const float2 *)from;
            a.x += v.x, a.y += v.y;
            if (C > 1) {
                v = *(const float2 *)(from + 8);
                b.x += v.x, b.y += v.y;
            }
        }
        if (C > 1) epilogue_unit(p.epilogue, row0 + r, group0 / 2 + u, t, a.x, a.y, b.x, b.y);
        else
            epilogue_plain(p.epilogue, row0 + r, row_of(p.epilogue.to, row0 + r), group0 * 8 + 2 * t, a.x,
                           a.y);
    }
}

template <int MT, int C> DEV void skinny(const gpu_linear &p) {
    constexpr int ROWS = skinny_tile<MT, C>::ROWS, STAGE = skinny_tile<MT, C>::STAGE;
    extern __shared__ __align__(1024) char memory[];
    const u32 ring = shared_address(memory);
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, blocks = p.weights.blocks,
              stages = p.stages;
    const int chunks = (blocks + CHUNK_BLOCKS - 1) / CHUNK_BLOCKS, row0 = blockIdx.y * ROWS,
              group0 = blockIdx.x * C;
    float *norm = (float *)(memory + stages * STAGE);

    for (int s = 0; s < stages; s++) {
        if (s < chunks) load_weights<MT, C>(p, ring + s * STAGE, tid, blocks, group0, s);
        copy_commit();
    }
    start_next();
    load_norm(p, norm, tid);
    wait_before();
    const int rows = *p.count - row0;
    if (rows <= 0) {
        copy_wait<0>();
        return;
    }
    for (int s = 0; s < stages; s++) {
        if (s < chunks) load_x<MT, C>(p, ring + s * STAGE, tid, row0, rows, s);
        copy_commit();
    }
    if (p.norm != GPU_NORM_NONE) {
        copy_wait<0>();
        __syncthreads();
        for (int r = warp; r < ROWS && r < rows; r += WARPS) {
            const int known = known_at(p.epilogue.known, row0 + r, 1);
            if (known)                     /* their parameters are read where they are                      */
                norm_row<ROWS, STAGE>(p, memory, p.norm_weight + known,
                                      p.norm_bias ? p.norm_bias + known : NULL, r, lane);
            else
                norm_row<ROWS, STAGE>(p, memory, norm, p.norm_bias ? norm + p.ldx : NULL, r, lane);
        }
    }

    float sum[MT][C][4] = {};
    for (int chunk = 0, stage = 0; chunk < chunks; chunk++) {
        copy_wait_but(stages - 1);
        __syncthreads();
        if (chunk * CHUNK_BLOCKS + warp < blocks)
            multiply_chunk<MT, C>(sum, ring + stage * STAGE, warp, lane);
        if (chunk + stages < chunks) {
            __syncthreads();
            load_weights<MT, C>(p, ring + stage * STAGE, tid, blocks, group0, chunk + stages);
            load_x<MT, C>(p, ring + stage * STAGE, tid, row0, rows, chunk + stages);
        }
        copy_commit();
        if (++stage == stages) stage = 0;
    }
    copy_wait<0>();
    __syncthreads();
    store_parts<MT, C>((float *)memory, sum, warp, lane);
    __syncthreads();
    finish_parts<MT, C>(p, (const float *)memory, tid, row0, rows, group0);
}

KERNEL(256) skinny_16_8(const __grid_constant__ gpu_linear p) { skinny<1, 1>(p); }
KERNEL(256) skinny_16_16(const __grid_constant__ gpu_linear p) { skinny<1, 2>(p); }
KERNEL(256) skinny_16_64(const __grid_constant__ gpu_linear p) { skinny<1, 8>(p); }
KERNEL_HELD(256, 3) skinny_64_8(const __grid_constant__ gpu_linear p) { skinny<4, 1>(p); }
KERNEL(256) skinny_64_16(const __grid_constant__ gpu_linear p) { skinny<4, 2>(p); }
KERNEL(256) skinny_64_32(const __grid_constant__ gpu_linear p) { skinny<4, 4>(p); }
