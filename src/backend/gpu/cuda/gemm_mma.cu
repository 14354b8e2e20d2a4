/* x·Wᵀ for many rows in bf16 on any tensor core since sm_80: mma.sync fed by cp.async.
 *
 * A block makes BM rows x BN packed columns (gemm_mma_BM_BN), 64 k at a time through STAGES stages of shared
 * memory:
 *
 *            BN columns (W: whole atoms, as stored)         warps side by side, each WM x WN:
 *          +------------------+                             WM/16 x WN/8 tiles of m16n8k16
 *   BM     |                  |
 *   rows   |      sums        |   stage = x [BM][64] + W [BN][64], both in the atom's swizzle
 *          +------------------+
 *
 *   blocks   BM/WM · BN/WN warps; grid = rows / BM x columns / BN
 *   legal    x bf16, ldx % 8 == 0 (rows of x are whole 16 bytes), no row map on x; any epilogue. The norm,
 *            where there is one, is a kernel of its own before this one. k beyond ldx and rows beyond *count
 *            come in as zeros. Where x has more k blocks than W (the two parts of a pixel), W repeats.
 *   early    start_next() and wait_before() come first: nothing is fetched before.
 *
 * gemm_mma.c checks what is legal and launches. */
#include "epilogue.cuh"

/* What a tile decides at compile time: rows and columns of a block and of a warp, stages of the ring. */
template <int BM_, int BN_, int WM_, int WN_, int STAGES_> struct mma_tile {
    enum {
        BM = BM_, BN = BN_, WM = WM_, WN = WN_, STAGES = STAGES_,
        THREADS = (BM / WM) * (BN / WN) * 32,
        MI = WM / 16, NI = WN / 8,         /* m16n8 tiles of a warp                                         */
        STAGE = (BM + BN) * 128,
    };
};

/* Stage of 64 k: x from row m0 on, W from packed column n0 on. */
template <class T>
DEV void load_stage(const gpu_linear &p, u32 ring, int tid, int m0, int n0, int rows, int groups, int kb) {
    const u32 a = ring + kb % T::STAGES * T::STAGE, b = a + T::BM * 128;
#pragma unroll
    for (int i = tid; i < T::BM * 8; i += T::THREADS) {
        const int r = i >> 3, c = i & 7, k = kb * 64 + c * 8, there = m0 + r < rows && k < p.ldx;
        copy16(a + r * 128 + ((c ^ (r & 7)) << 4),
               (const u16 *)p.x + (there ? (size_t)(m0 + r) * p.ldx + k : 0), there);
    }
    const int wb = kb >= p.weights.blocks ? kb - p.weights.blocks : kb;
#pragma unroll
    for (int i = tid; i < T::BN * 8; i += T::THREADS) {
        const int g = (n0 >> 3) + (i >> 6), there = g < groups;
        copy16(b + i * 16,
               (const char *)p.weights.data +
                   (there ? ((size_t)g * p.weights.blocks + wb) * GPU_ATOM_BYTES + (i & 63) * 16 : 0),
               there);
    }
}

/* sum += x·W of a stage, for the warp's tile at (wm, wn). */
template <class T>
DEV void multiply_stage(float (&sum)[T::MI][T::NI][4], u32 a, u32 b, int wm, int wn, int lane) {
#pragma unroll
    for (int s = 0; s < 4; s++) {
        u32 x[T::MI][4], w[T::NI / 2][4];
#pragma unroll
        for (int i = 0; i < T::MI; i++) {
            const int r = wm + i * 16 + (lane & 15), c = 2 * s + (lane >> 4);
            load_matrix4(x[i], a + r * 128 + ((c ^ (r & 7)) << 4));
        }
#pragma unroll
        for (int j = 0; j < T::NI / 2; j++) {
            const int n = wn + j * 16 + (lane & 7) + ((lane >> 4) << 3), c = 2 * s + (lane >> 3 & 1);
            load_matrix4(w[j], b + n * 128 + ((c ^ (n & 7)) << 4));
        }
#pragma unroll
        for (int i = 0; i < T::MI; i++)
#pragma unroll
            for (int j = 0; j < T::NI; j++)
                mma16(sum[i][j], x[i], w[j / 2][j % 2 * 2], w[j / 2][j % 2 * 2 + 1]);
    }
}

/* From the warp's sums to outputs; its tile begins at row m, packed column n. */
template <class T>
DEV void store_sums(const gpu_linear &p, const float (&sum)[T::MI][T::NI][4], int m, int n, int rows,
                    int lane) {
    const int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int i = 0; i < T::MI; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int r = m + i * 16 + h * 8 + g;
            if (r >= rows) continue;
#pragma unroll
            for (int j = 0; j < T::NI; j += 2) {
                const int column = n + j * 8;
                if (column < p.weights.columns)
                    epilogue_unit(p.epilogue, r, column / GPU_UNIT, t, sum[i][j][2 * h], sum[i][j][2 * h + 1],
                                  sum[i][j + 1][2 * h], sum[i][j + 1][2 * h + 1]);
            }
        }
}

template <class T> DEV void gemm(const gpu_linear &p) {
    extern __shared__ __align__(1024) char memory[];
    const u32 ring = shared_address(memory);
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, m0 = blockIdx.x * T::BM,
              n0 = blockIdx.y * T::BN;
    const int wm = warp / (T::BN / T::WN) * T::WM, wn = warp % (T::BN / T::WN) * T::WN,
              groups = p.weights.columns >> 3, blocks = p.k_blocks;

    start_next();
    wait_before();
    const int rows = *p.count;
    if (m0 >= rows) return;

    float sum[T::MI][T::NI][4] = {};
#pragma unroll
    for (int s = 0; s < T::STAGES - 1; s++) {
        if (s < blocks) load_stage<T>(p, ring, tid, m0, n0, rows, groups, s);
        copy_commit();
    }
    for (int kb = 0; kb < blocks; kb++) {
        copy_wait<T::STAGES - 2>();
        __syncthreads();
        if (kb + T::STAGES - 1 < blocks)
            load_stage<T>(p, ring, tid, m0, n0, rows, groups, kb + T::STAGES - 1);
        copy_commit();
        const u32 a = ring + kb % T::STAGES * T::STAGE;
        multiply_stage<T>(sum, a, a + T::BM * 128, wm, wn, lane);
    }
    store_sums<T>(p, sum, m0 + wm, n0 + wn, rows, lane);
}

KERNEL(256) gemm_mma_128_128(const __grid_constant__ gpu_linear p) { gemm<mma_tile<128, 128, 64, 32, 3>>(p); }
KERNEL(128) gemm_mma_64_64(const __grid_constant__ gpu_linear p) { gemm<mma_tile<64, 64, 32, 32, 4>>(p); }
