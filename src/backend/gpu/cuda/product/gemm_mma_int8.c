/* gemm_mma_int8.cu: products of 8-bit integers on any tensor core, behind a kernel that makes rows into them
 * and takes the norm, where there is one. */
#include "backend/gpu/cuda/product/gemm_mma.h"
#include "backend/gpu/cuda/product/int8_rows.h"

#define TILE(end, rows, columns, ...) \
    GEMM_TILE("gemm_mma_int8_" #rows "_" #columns end, 1, sizeof(float), rows, columns, __VA_ARGS__)
#define TILE_HALF(end, rows, columns, ...) \
    GEMM_TILE("gemm_mma_int8_" #rows "_" #columns "_half" end, 2, sizeof(float), rows, columns, __VA_ARGS__)
/* `end`: of a kernel's name. */
#define ALL_TILES(end)                        \
    TILE(end, 160, 256, 256, 3, 1, 103),      \
    TILE_HALF(end, 160, 256, 256, 3, 1, 110), \
    TILE_HALF(end, 160, 192, 256, 4, 1, 114), \
    TILE_HALF(end, 128, 256, 256, 4, 1, 109), \
    TILE_HALF(end, 128, 192, 256, 4, 1, 111), \
    TILE_HALF(end, 160, 128, 256, 5, 1, 137), \
    TILE_HALF(end, 128, 160, 256, 5, 1, 121), \
    TILE_HALF(end, 64, 64, 128, 4, 3, 171)

/* Tiles that leave codes follow the others in the same order: choices name the others. */
enum {
    SMALL = 7,
    TILES = 8,
    CODED = TILES,
    JOIN = 2 * TILES,
    JOIN_CODED,
    ROWS,
    PACK = ROWS + INT8_ROWS_KERNELS
};

/* Costs are gemm_mma's: an atom of k has the same bytes, and twice the products in the same time. */
static const gemm_tile kernels[] = {
    ALL_TILES(""),
    ALL_TILES("_coded"),
    [JOIN_CODED] = {.kernel = {"gemm_mma_int8_join_coded", 1, 0}},
    [JOIN] = {.kernel = {"gemm_mma_int8_join", 1, 0}},
    INT8_ROWS_TABLE(.kernel, ROWS),
    [PACK] = {.kernel = {"pack_raw_int8", 1, 0}},
};

static gemm_numbers int8_of(const gpu_device *device) {
    return (gemm_numbers){kernels, TILES, SMALL, JOIN, gpu_multiprocessor_int8_tops(device), 1315.0 / 132};
}

static void gemm_mma_int8_list(const gpu_device *device, const gpu_task *task, gpu_choices *to) {
    const gpu_linear *p = &task->product;
    const gemm_numbers int8 = int8_of(device);
    if (task->kind == GPU_PACK && task->pack.int8)
        gpu_choices_add(to, (gpu_choice){.rank = RANK_SIMT, .kernel = PACK});
    if (task->kind != GPU_PRODUCT || !cuda_int8_product(p)) return;
    gemm_mma_add(device, &int8, task, gemm_mma_usual(device, &int8, task->rows, p),
                 (gpu_choice){.rank = RANK_GEMM_MMA}, to);
}

static void launch_product(gpu_issue *issue, const gpu_task *task, const gpu_choice *choice) {
    gemm_numbers int8 = int8_of(gpu_device_of(issue));
    gpu_choice own = *choice;
    gpu_int8_coded a = {.product.product.linear = task->product};
    gpu_linear_parts *parts = &a.product.product;
    a.product.scales = cuda_int8_rows(issue, ROWS, task, &parts->linear);
    if (!(task->leaves.scale > 0)) {
        gemm_mma_emit(issue, &int8, task->rows, choice, parts, &a.product, sizeof a.product);
        return;
    }
    a.fixed = cuda_int8_left(&task->leaves, &task->product, a.product.scales);
    own.kernel += CODED;
    int8.join = JOIN_CODED;
    gemm_mma_emit(issue, &int8, task->rows, &own, parts, &a, sizeof a);
}

static void gemm_mma_int8_launch(gpu_issue *issue, gpu_task *task, const gpu_choice *choice) {
    const gpu_raw *raw = &task->pack;
    if (task->kind == GPU_PRODUCT) {
        launch_product(issue, task, choice);
        return;
    }
    const int64_t pieces = (int64_t)raw->blocks * 8 * raw->columns;
    gpu_grid grid = {.x = (int)((pieces + 255) / 256), .y = 1, .threads = 256};
    gpu_emit(issue, PACK, grid, raw, sizeof *raw);
}

const gpu_family gpu_family_gemm_mma_int8 = {.name = "gemm_mma_int8",
                                             GPU_KERNELS(kernels),
                                             .list = gemm_mma_int8_list,
                                             .launch = gemm_mma_int8_launch};
