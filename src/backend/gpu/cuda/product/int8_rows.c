/* int8_rows.cuh: rows as 8-bit integers, before a product. */
#include "backend/gpu/cuda/product/int8_rows.h"

enum { THREADS = 256, NORM_K = 2048, PLAIN_K = 16384 };

static gpu_int8_rows rows_of(gpu_issue *issue, const gpu_linear *p) {
    gpu_int8_rows rows = {.pitch = ceil_div(p->ldx, 16) * 16};
    rows.norm = gpu_norm_of(p, gpu_work_take(issue, (size_t)p->capacity * (size_t)rows.pitch));
    rows.scales = gpu_work_take(issue, (size_t)p->capacity * sizeof *rows.scales);
    return rows;
}

static int kernel_of(const gpu_norm *p) {
    if (p->f32 || p->k % 8) return INT8_ROWS_ANY;
    if (p->k <= NORM_K) return INT8_ROWS_NORM;
    return p->kind == GPU_NORM_NONE && p->k <= PLAIN_K ? INT8_ROWS_PLAIN : INT8_ROWS_ANY;
}

const float *cuda_int8_rows(gpu_issue *issue, int first, int rows, gpu_linear *product) {
    const gpu_int8_rows codes = rows_of(issue, product);
    gpu_emit(issue, first + kernel_of(&codes.norm), (gpu_grid){.x = rows, .y = 1, .threads = THREADS}, &codes,
             sizeof codes);
    gpu_read_normed(product, codes.norm.out);
    product->x_type = GPU_X_INT8;
    product->ldx = codes.pitch;
    return codes.scales;
}
