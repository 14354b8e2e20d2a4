/* kernels/linear.c: any product; gemm and thin are before it where they can run one. A norm runs first. */
#include "backend/gpu/hip/vendor.h"

typedef struct tile {
    gpu_kernel kernel;
    int rows, bf16;                        /* bf16: both operands are                                      */
} tile;

enum { TILE_COLUMNS = 64 };

static const tile tiles[] = {
    {{"linear_bf16_64", 0, 0}, 64, 1},
    {{"linear_bf16_16", 0, 0}, 16, 1},
    {{"linear_f32_64", 0, 0}, 64, 0},
    {{"linear_f32_16", 0, 0}, 16, 0},
};
enum { TILES = sizeof tiles / sizeof *tiles };

/* Tiles of 64 rows from where they are half full on. */
static int usual_rows(int rows) { return rows > 32 ? 64 : 16; }

static void hip_linear_list_product(const gpu_task *task, gpu_choices *to) {
    const gpu_linear *p = &task->product;
    int bf16 = p->x_type == GPU_X_BF16 && p->weights.type == GPU_WEIGHT_BF16;
    if (p->weights.type != GPU_WEIGHT_F32 && p->weights.type != GPU_WEIGHT_BF16) return;
    for (int t = 0; t < TILES; t++)
        for (int i = 0; i < gpu_norms_first(p) && tiles[t].bf16 == bf16; i++) {
            int norm = gpu_norm_first(p, i), fits = tiles[t].rows == usual_rows(task->rows);
            int rank = fits ? gpu_usual(norm, RANK_ANY) : GPU_RANK_NEVER;
            gpu_choices_add(to, (gpu_choice){.rank = rank, .kernel = t, .norm = norm});
        }
}

/* What is between the products of a chain is fp32. */
static void hip_linear_list(const gpu_device *device, const gpu_task *task, gpu_choices *to) {
    (void)device;
    if (task->kind == GPU_PRODUCT) hip_linear_list_product(task, to);
    if (task->kind == GPU_PRODUCT_CHAIN) gpu_choices_add(to, (gpu_choice){.rank = RANK_ANY});
}

static void hip_linear_launch(gpu_issue *issue, gpu_task *task, const gpu_choice *choice) {
    const gpu_linear *p = &task->product;
    gpu_grid grid = {.x = ceil_div(task->rows, tiles[choice->kernel].rows),
                     .y = ceil_div(p->weights.columns, TILE_COLUMNS),
                     .threads = HIP_THREADS};
    gpu_emit(issue, choice->kernel, grid, p, sizeof *p);
}

const gpu_family gpu_family_hip_linear = {
    .name = "linear", GPU_KERNELS(tiles), .list = hip_linear_list, .launch = hip_linear_launch};
