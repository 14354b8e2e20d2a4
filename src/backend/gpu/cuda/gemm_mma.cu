/* x·Wᵀ for many rows in bf16 on any tensor core since sm_80: mma.sync fed by cp.async.
 *
 * A block makes BM rows x BN packed columns, 64 k at a time through STAGES stages of shared memory:
 *
 *            BN columns (W: whole atoms, as they lie)       warps side by side, each WM x WN:
 *          +------------------+                             WM/16 x WN/8 tiles of m16n8k16
 *   BM     |                  |
 *   rows   |      sums        |   stage = x [BM][64] + W [BN][64], both in the atom's swizzle
 *          +------------------+
 *
 * Legal when ldx % 8 == 0 (rows of x are whole 16 bytes). k beyond ldx and rows beyond *count come in as zeros.
 * Where x has more k blocks than W (the two parts of a pixel), W repeats. */
#include "epilogue.cuh"

template <int BM, int BN, int WM, int WN, int STAGES> DEV void gemm(const gpu_linear &p) {
    constexpr int THREADS = (BM / WM) * (BN / WN) * 32, MI = WM / 16, NI = WN / 8, STAGE = (BM + BN) * 128;
    extern __shared__ __align__(1024) char memory[];
    const u32 ring = shared_address(memory);
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, m0 = blockIdx.x * BM, n0 = blockIdx.y * BN;
    const int wm = warp / (BN / WN) * WM, wn = warp % (BN / WN) * WN, groups = p.weights.columns >> 3, blocks = p.k_blocks;

    start_next();
    wait_before();
    const int rows = *p.count;
    if (m0 >= rows) return;

    auto load = [&](int kb) {
        const u32 a = ring + kb % STAGES * STAGE, b = a + BM * 128;
#pragma unroll
        for (int i = tid; i < BM * 8; i += THREADS) {
            const int r = i >> 3, c = i & 7, k = kb * 64 + c * 8, there = m0 + r < rows && k < p.ldx;
            copy16(a + r * 128 + ((c ^ (r & 7)) << 4), (const u16 *)p.x + (there ? (size_t)(m0 + r) * p.ldx + k : 0), there);
        }
        const int wb = kb >= p.weights.blocks ? kb - p.weights.blocks : kb;
#pragma unroll
        for (int i = tid; i < BN * 8; i += THREADS) {
            const int g = (n0 >> 3) + (i >> 6), there = g < groups;
            copy16(b + i * 16, (const char *)p.weights.data + (there ? ((size_t)g * p.weights.blocks + wb) * GPU_ATOM_BYTES + (i & 63) * 16 : 0), there);
        }
    };

    float sum[MI][NI][4] = {};
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < blocks) load(s);
        copy_commit();
    }
    for (int kb = 0; kb < blocks; kb++) {
        copy_wait<STAGES - 2>();
        __syncthreads();
        if (kb + STAGES - 1 < blocks) load(kb + STAGES - 1);
        copy_commit();
        const u32 a = ring + kb % STAGES * STAGE, b = a + BM * 128;
#pragma unroll
        for (int s = 0; s < 4; s++) {
            u32 x[MI][4], w[NI / 2][4];
#pragma unroll
            for (int i = 0; i < MI; i++) {
                const int r = wm + i * 16 + (lane & 15), c = 2 * s + (lane >> 4);
                load_matrix4(x[i], a + r * 128 + ((c ^ (r & 7)) << 4));
            }
#pragma unroll
            for (int j = 0; j < NI / 2; j++) {
                const int n = wn + j * 16 + (lane & 7) + ((lane >> 4) << 3), c = 2 * s + (lane >> 3 & 1);
                load_matrix4(w[j], b + n * 128 + ((c ^ (n & 7)) << 4));
            }
#pragma unroll
            for (int i = 0; i < MI; i++)
#pragma unroll
                for (int j = 0; j < NI; j++) mma16(sum[i][j], x[i], w[j / 2][j % 2 * 2], w[j / 2][j % 2 * 2 + 1]);
        }
    }
    const int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int i = 0; i < MI; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int r = m0 + wm + i * 16 + h * 8 + g;
            if (r >= rows) continue;
#pragma unroll
            for (int j = 0; j < NI; j += 2) {
                const int column = n0 + wn + j * 8;
                if (column < p.weights.columns)
                    epilogue_unit(p.epilogue, r, column / GPU_UNIT, t, sum[i][j][2 * h], sum[i][j][2 * h + 1], sum[i][j + 1][2 * h], sum[i][j + 1][2 * h + 1]);
            }
        }
}

KERNEL(256) gemm_mma_128_128(const __grid_constant__ gpu_linear p) { gemm<128, 128, 64, 32, 3>(p); }
KERNEL(128) gemm_mma_64_64(const __grid_constant__ gpu_linear p) { gemm<64, 64, 32, 32, 4>(p); }
