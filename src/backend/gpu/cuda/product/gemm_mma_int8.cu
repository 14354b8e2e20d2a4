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

/* ---- products ------------------------------------------------------------------------------------------ */

/* One block a multiprocessor: else the compiler keeps to fewer registers and spills some. */
#define PRODUCT_OF(name, threads, ...)                                        \
    KERNEL(threads, 1) name(const __grid_constant__ gpu_int8_product a) {     \
        gemm<mma_tile<int8_numbers, __VA_ARGS__>>(a.product, a.scales);       \
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

KERNEL(256) gemm_mma_int8_join(const __grid_constant__ gpu_int8_product a) {
    join<int8_numbers>(a.product, a.scales);
}

/* ---- codes --------------------------------------------------------------------------------------------- */

/* A gated product without bias to codes, its rows one after the other; their scales too, by the first
 * columns' warps. As store_gated: an even lane takes four of a group of 8 outputs, an odd one of the next. */
struct coded_end {
    const gpu_int8_fixed &fixed;

    template <class T>
    DEV void store_row(const gpu_int8_fixed &f, char *out, const u32 (&pair)[T::NI / 2], int r, int left,
                       int t) {
        const int odd = t & 1;
        u32 top = 0, code[T::NI / 2];
#pragma unroll
        for (int u = 0; u < T::NI / 2; u++)
            code[u] = fixed_codes(f, pair[u]), top = max(top, top_of(pair[u]));
#pragma unroll
        for (int u = 0; u + 1 < T::NI / 2; u += 2) {
            const u32 got = __shfl_xor_sync(0xffffffffu, odd ? code[u] : code[u + 1], 1),
                      four = odd ? got | code[u + 1] << 16 : code[u] | got << 16;
            if (left > 2 * (u + odd)) *(u32 *)(out + u * 8 + four_at(t)) = four;
        }
        if (T::NI / 2 & 1 && left > T::NI - 2)
            *(u16 *)(out + (T::NI / 2 - 1) * 8 + 2 * t) = code[T::NI / 2 - 1];
        if (loses(f, top))
#pragma unroll
            for (int u = 0; u < T::NI / 2; u++)
                if (left > 2 * u) count_pair(f, r, pair[u]);
    }

    template <class T>
    DEV void store(const coded_end &end, const gpu_epilogue &e, char *, typename T::outputs &y, int m, int n,
                   int rows, int columns, int, int lane) {
        const gpu_int8_fixed &f = end.fixed;
        const int g = lane >> 2, t = lane & 3;
#pragma unroll
        for (int i = 0; i < T::MI; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int r = m + i * 16 + h * 8 + g, left = r < rows ? (columns - n) / 8 : 0;
                u32 pair[T::NI / 2];
#pragma unroll
                for (int u = 0; u < T::NI / 2; u++)
                    pair[u] = pack_bf16(gelu(y[i][2 * u][2 * h]) * y[i][2 * u + 1][2 * h],
                                        gelu(y[i][2 * u][2 * h + 1]) * y[i][2 * u + 1][2 * h + 1]);
                store_row<T>(f, (char *)e.out + (size_t)r * e.n + n / 2, pair, r, left, t);
                if (!n && !t && left) f.scales[r] = f.scale;
            }
    }
};

#define CODED_OF(name, threads, ...)                                                        \
    KERNEL(threads, 1) name(const __grid_constant__ gpu_int8_coded a) {                     \
        gemm<mma_tile<int8_numbers, __VA_ARGS__>>(a.product.product, a.product.scales,      \
                                                  coded_end{a.fixed});                      \
    }
#define CODED(threads, rows, columns, ...) \
    CODED_OF(gemm_mma_int8_##rows##_##columns##_coded, threads, rows, columns, __VA_ARGS__)
#define CODED_HALF(threads, rows, columns, ...) \
    CODED_OF(gemm_mma_int8_##rows##_##columns##_half_coded, threads, rows, columns, __VA_ARGS__, 2)

CODED(256, 160, 256, 80, 64, 3)
CODED_HALF(256, 160, 256, 80, 64, 3)
CODED_HALF(256, 160, 192, 80, 48, 4)
CODED_HALF(256, 128, 256, 64, 64, 4)
CODED_HALF(256, 128, 192, 64, 48, 4)
CODED_HALF(256, 160, 128, 80, 32, 5)
CODED_HALF(256, 128, 160, 32, 80, 5)
CODED_HALF(128, 64, 64, 32, 32, 4)

/* The join of parts to codes, a quarter of a unit a thread: two outputs. */
KERNEL(256) gemm_mma_int8_join_coded(const __grid_constant__ gpu_int8_coded a) {
    const gpu_linear &p = a.product.product.linear;
    const int quarters = p.weights.columns / 4, at = blockIdx.x * 256 + threadIdx.x, r = at / quarters,
              i = at - r * quarters;
    const quarter q = {r, i / 4 * GPU_UNIT, i & 3};
    start_next();
    wait_before();
    if (r >= __ldg(p.count)) return;
    float2 gate, up;
    joined_sums<int8_numbers>(a.product.product, a.product.scales, q, gate, up);
    const u32 pair = pack_bf16(gelu(gate.x) * up.x, gelu(gate.y) * up.y);
    *(u16 *)((char *)p.epilogue.out + (size_t)r * p.epilogue.n + q.column / 2 + 2 * q.t) =
        fixed_codes(a.fixed, pair);
    if (!i) a.fixed.scales[r] = a.fixed.scale;
    if (loses(a.fixed, top_of(pair))) count_pair(a.fixed, r, pair);
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
