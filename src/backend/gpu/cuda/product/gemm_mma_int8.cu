/* x·Wᵀ in 8-bit integers for any number of rows, on any tensor core since sm_80: rows are made into codes
 * with a scale each (int8_rows.cuh), then multiplied as gemm_mma.cuh says. Sums are exact.
 *
 *   …_coded           the same of a gated product whose outputs are codes with one scale for all rows, for
 *                     the product after it (scales.cuh)
 *   pack_raw_int8     row-major codes of weights into the layout of args.h. A thread 16 bytes
 *
 *   legal    weights INT8X8; rows of any type and map, any epilogue
 *
 * gemm_mma_int8.c checks what is legal and launches. */
#include "gemm_mma.cuh"
#include "int8_rows.cuh"

/* ---- codes --------------------------------------------------------------------------------------------- */

/* A gated product without bias to codes, its rows one after the other; their scales too, by the first
 * columns' warps. As store_gated: an even lane takes four of a group of 8 outputs, an odd one of the next. */
struct coded_end {
    const gpu_int8_fixed &fixed;

    DEV float row_scale(float scale) { return fabsf(scale); }      /* gpu_int8_fixed.marks                  */

    template <class T> DEV void store_row(char *out, const u32 (&code)[T::NI / 2], int left, int t) {
        const int odd = t & 1;
#pragma unroll
        for (int u = 0; u + 1 < T::NI / 2; u += 2) {
            const u32 got = __shfl_xor_sync(0xffffffffu, odd ? code[u] : code[u + 1], 1),
                      four = odd ? pick_bytes(got, code[u + 1], 0x5410) : pick_bytes(code[u], got, 0x5410);
            if (left > 2 * (u + odd)) *(u32 *)(out + u * 8 + four_at(t)) = four;
        }
        if (T::NI / 2 & 1 && left > T::NI - 2)
            *(u16 *)(out + (T::NI / 2 - 1) * 8 + 2 * t) = code[T::NI / 2 - 1];
    }

    /* What a warp's pairs lose. Bit u of which[i]: the lane's odd[i][u], of row first + 8·i; lanes of four
     * have the same rows, and a lane counts some of them. */
    template <int ROWS, int PAIRS>
    DEV void count(const gpu_int8_fixed &f, const u32 (&odd)[ROWS][PAIRS], const u32 (&which)[ROWS],
                   int first) {
        lost_numbers lost = {};
        u32 clipped = 0, any = 0;
#pragma unroll
        for (int i = 0; i < ROWS; i++) any |= which[i];
        if (!__any_sync(0xffffffffu, any)) return;
#pragma unroll 1
        for (int i = 0; i < ROWS; i++)
            for (u32 left = which[i]; left; left &= left - 1)
                clipped |= (lose_pair(f, lost, odd[i][__ffs(left) - 1]) != 0) << i;
        for (int other = 1; other < 4; other *= 2)
            clipped |= __shfl_xor_sync(0xffffffffu, clipped, other);
        const u32 own[1] = {clipped & 0x11111111u << (threadIdx.x & 3)};
        add_lost(f, lost, own, [&](int, int i) { return first + 8 * i; });
    }

    template <class T>
    DEV void store(const coded_end &end, const gpu_epilogue &e, char *, typename T::outputs &y, int m, int n,
                   int rows, int columns, int, int lane) {
        enum { ROWS = 2 * T::MI, PAIRS = T::NI / 2 };
        const gpu_int8_fixed &f = end.fixed;
        const int g = lane >> 2, t = lane & 3;
        u32 odd[ROWS][PAIRS], which[ROWS] = {};        /* in memory, and seldom used                        */
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const int r = m + i * 8 + g, left = r < rows ? (columns - n) / 8 : 0;
            u32 code[PAIRS];
#pragma unroll
            for (int u = 0; u < PAIRS; u++) {
                const float *const gate = y[i / 2][2 * u] + i % 2 * 2, *const up = gate + 4;
                const u32 pair = pack_bf16(gelu(gate[0]) * up[0], gelu(gate[1]) * up[1]);
                u32 kept = kept_pair(f, pair);
                if (kept != pair && left > 2 * u) {
                    odd[i][u] = pair;
                    which[i] |= 1u << u;
                    kept = without_nan(pair, kept);
                }
                code[u] = kept_codes(f, kept);
            }
            store_row<T>((char *)e.out + (size_t)r * e.n + n / 2, code, left, t);
            if (!n && !t && left) f.scales[r] = f.scale;
        }
        count(f, odd, which, m + g);
    }
};

/* ---- tiles --------------------------------------------------------------------------------------------- */

/* With both ends. One block a multiprocessor: else the compiler keeps to fewer registers and spills some. */
#define PRODUCT_OF(name, threads, ...)                                                      \
    KERNEL(threads, 1) name(const __grid_constant__ gpu_int8_product a) {                   \
        gemm<mma_tile<int8_numbers, __VA_ARGS__>>(a.product, a.scales);                     \
    }                                                                                       \
    KERNEL(threads, 1) name##_coded(const __grid_constant__ gpu_int8_coded a) {             \
        gemm<mma_tile<int8_numbers, __VA_ARGS__>>(a.product.product, a.product.scales,      \
                                                  coded_end{a.fixed});                      \
    }
#define PRODUCT(threads, rows, columns, ...) \
    PRODUCT_OF(gemm_mma_int8_##rows##_##columns, threads, rows, columns, __VA_ARGS__)
#define PRODUCT_HALF(threads, rows, columns, ...) \
    PRODUCT_OF(gemm_mma_int8_##rows##_##columns##_half, threads, rows, columns, __VA_ARGS__, 2)

PRODUCT(256, 160, 256, 80, 64, 3)
/* Within the 99 KB that a block has on sm_86, sm_89 and sm_120. */
PRODUCT_HALF(256, 160, 256, 80, 64, 3)
PRODUCT_HALF(256, 160, 192, 80, 48, 4)
PRODUCT_HALF(256, 128, 256, 64, 64, 4)
PRODUCT_HALF(256, 128, 192, 64, 48, 4)
PRODUCT_HALF(256, 160, 128, 80, 32, 5)
PRODUCT_HALF(256, 128, 160, 32, 80, 5)
PRODUCT_HALF(128, 64, 64, 32, 32, 4)

/* ---- joins --------------------------------------------------------------------------------------------- */

KERNEL(256) gemm_mma_int8_join(const __grid_constant__ gpu_int8_product a) {
    join<int8_numbers>(a.product, a.scales);
}

/* The join of parts to codes, a quarter of a unit a thread: two outputs. */
KERNEL(256) gemm_mma_int8_join_coded(const __grid_constant__ gpu_int8_coded a) {
    const gpu_linear &p = a.product.product.linear;
    const int quarters = p.weights.columns / 4, at = blockIdx.x * 256 + threadIdx.x, r = at / quarters,
              i = at - r * quarters;
    const quarter q = {r, i / 4 * GPU_UNIT, i & 3};
    lost_numbers lost = {};
    u32 rows[1] = {};
    start_next();
    wait_before();
    if (r < __ldg(p.count)) {
        float2 gate, up;
        joined_sums<int8_numbers, coded_end>(a.product.product, a.product.scales, q, gate, up);
        const u32 pair = pack_bf16(gelu(gate.x) * up.x, gelu(gate.y) * up.y);
        u32 kept = kept_pair(a.fixed, pair);
        if (kept != pair) {
            rows[0] = lose_pair(a.fixed, lost, pair) != 0;
            kept = without_nan(pair, kept);
        }
        *(u16 *)((char *)p.epilogue.out + (size_t)r * p.epilogue.n + q.column / 2 + 2 * q.t) =
            kept_codes(a.fixed, kept);
        if (!i) a.fixed.scales[r] = a.fixed.scale;
    }
    add_lost(a.fixed, lost, rows, [&](int, int) { return r; });
}

/* ---- weights ------------------------------------------------------------------------------------------- */

KERNEL(256) pack_raw_int8(const __grid_constant__ gpu_raw p) {
    start_next();
    wait_before();
    const size_t index = (size_t)blockIdx.x * 256 + threadIdx.x;
    const int chunks = p.blocks * 8, column = (int)(index / chunks), chunk = (int)(index % chunks);
    int there;
    if (column >= p.columns) return;
    const int row = gpu_group_rows(&p.order, column >> 3, &there) + (column & 7);
    const unsigned char *from = (const unsigned char *)p.rows + (size_t)row * p.k + chunk * 16;
    u32 v[4] = {};
    for (int j = 0; j < 16 && (column & 7) < there; j++)
        if (chunk * 16 + j < p.k) v[j / 4] |= (u32)from[j] << j % 4 * 8;
    *(uint4 *)((char *)p.out + ((size_t)(column >> 3) * p.blocks + (chunk >> 3)) * GPU_ATOM_BYTES +
               (column & 7) * 128 + (((chunk ^ column) & 7) << 4)) = make_uint4(v[0], v[1], v[2], v[3]);
}
