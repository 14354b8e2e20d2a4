/* x·Wᵀ in 8-bit integers for any number of rows, on any tensor core since sm_80: rows are made into codes
 * with a scale each (int8_rows.cuh), then multiplied as gemm_mma.cuh says. Sums are exact.
 *
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
