/* kernels/gemm.c: bf16 products of many rows. A norm runs first. */
#include "backend/gpu/hip/vendor.h"

typedef struct tile {
    gpu_kernel kernel;
    int rows, columns;
    int waves_rows;                        /* waves along the rows, among the block's four                  */
} tile;

static const tile tiles[] = {
    {{"gemm_128x256", 0, 0}, 128, 256, 1},
    {{"gemm_160x128", 0, 0}, 160, 128, 1},
    {{"gemm_128x128", 0, 0}, 128, 128, 1},
    {{"gemm_96x128", 0, 0}, 96, 128, 1},
    {{"gemm_64x128", 0, 0}, 64, 128, 1},
    {{"gemm_64x64", 0, 0}, 64, 64, 2},
    {{"gemm_32x128", 0, 0}, 32, 128, 1},
};
enum { TILES = sizeof tiles / sizeof *tiles };

/* Cycles of a compute unit, roughly, for a tile and 16 k: a gfx942 does 2,048 operations of its matrix
 * instructions, reads or writes 128 bytes of local memory, and gets 64 bytes from caches. */
static double cycles_of(const tile *t) {
    int waves_columns = 4 / t->waves_rows;
    double multiply = t->rows * t->columns * 16 * 2 / 2048.0,
           local = (t->rows * waves_columns + t->rows) * 32 / 128.0,
           fetch = (t->rows + t->columns * t->waves_rows) * 32 / 64.0;
    double most = multiply > local ? multiply : local;
    return most > fetch ? most : fetch;
}

/* Of a whole product: what begins and ends a block is worth some 64 k. */
static double hip_gemm_cost(const gpu_device *device, const tile *t, int rows, const gpu_linear *p) {
    enum { ENDS = 4 };
    int blocks = ceil_div(rows, t->rows) * ceil_div(p->weights.columns, t->columns),
        turns = ceil_div(blocks, gpu_multiprocessors(device));
    return turns * (p->k_blocks * (GPU_ATOM_K / 16) + ENDS) * cycles_of(t);
}

static int hip_gemm_usual_tile(const gpu_device *device, const gpu_task *task) {
    int best = 0;
    for (int i = 1; i < TILES; i++)
        if (hip_gemm_cost(device, &tiles[i], task->rows, &task->product) <
            hip_gemm_cost(device, &tiles[best], task->rows, &task->product))
            best = i;
    return best;
}

static void hip_gemm_list(const gpu_device *device, const gpu_task *task, gpu_choices *to) {
    if (!hip_product_bf16(task)) return;
    int usual = hip_gemm_usual_tile(device, task);
    for (int t = 0; t < TILES; t++)
        for (int i = 0; i < gpu_norms_first(&task->product); i++) {
            int norm = gpu_norm_first(&task->product, i);
            int rank = t == usual ? gpu_usual(norm, RANK_MANY_ROWS) : GPU_RANK_NEVER;
            gpu_choices_add(to, (gpu_choice){.rank = rank, .kernel = t, .norm = norm});
        }
}

static void hip_gemm_launch(gpu_issue *issue, gpu_task *task, const gpu_choice *choice) {
    const tile *t = &tiles[choice->kernel];
    gpu_grid grid = {.x = ceil_div(task->rows, t->rows),
                     .y = ceil_div(task->product.weights.columns, t->columns),
                     .threads = HIP_THREADS};
    gpu_emit(issue, choice->kernel, grid, &task->product, sizeof task->product);
}

const gpu_family gpu_family_hip_gemm = {
    .name = "gemm", GPU_KERNELS(tiles), .list = hip_gemm_list, .launch = hip_gemm_launch};
