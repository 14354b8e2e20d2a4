/* int8_rows.cuh: rows as 8-bit integers, before a product. */
#include "backend/gpu/cuda/product/int8_rows.h"

#include <string.h>

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

/* Scales lie behind codes that a product has left. */
static float *scales_behind(const void *codes, int rows, int k) {
    return codes ? (float *)((char *)(uintptr_t)codes + (size_t)rows * (size_t)k) : NULL;
}

static float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* gpu_int8_fixed.most, by trying. */
static uint32_t most_of(float inverse) {
    uint32_t low = 0, high = 0x7f80;       /* the upper halves of bits: 0 is not clipped, infinity is       */
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (float_of(middle << 16) * inverse >= 127.5f) high = middle;
        else low = middle;
    }
    return low << 16 | low;
}

static gpu_int8_fixed fixed_of(const gpu_row_scale *rows) {
    const float inverse = 1 / rows->scale;
    return (gpu_int8_fixed){
        .scale = rows->scale, .inverse = inverse, .most = most_of(inverse), .counts = rows->counts};
}

gpu_int8_fixed cuda_int8_left(const gpu_row_scale *rows, const gpu_linear *product, const float *scales) {
    gpu_int8_fixed fixed = fixed_of(rows);
    fixed.scales = scales_behind(product->epilogue.out, product->capacity, product->epilogue.n);
    fixed.marks = (uint32_t *)(uintptr_t)scales;
    return fixed;
}

static void emit_rows(gpu_issue *issue, int first, const gpu_task *task, const gpu_int8_rows *codes) {
    const gpu_grid grid = {.x = task->rows, .y = 1, .threads = THREADS};
    if (task->fixed.scale > 0) {
        const gpu_int8_fixed_rows all = {*codes, fixed_of(&task->fixed)};
        gpu_emit(issue, first + INT8_ROWS_FIXED, grid, &all, sizeof all);
    } else {
        gpu_emit(issue, first + kernel_of(&codes->norm), grid, codes, sizeof *codes);
    }
}

const float *cuda_int8_rows(gpu_issue *issue, int first, const gpu_task *task, gpu_linear *product) {
    if (task->coded) {
        product->x_type = GPU_X_INT8;
        return scales_behind(product->x, product->capacity, product->ldx);
    }
    const gpu_int8_rows codes = rows_of(issue, product);
    emit_rows(issue, first, task, &codes);
    gpu_read_normed(product, codes.norm.out);
    product->x_type = GPU_X_INT8;
    product->ldx = codes.pitch;
    return codes.scales;
}
