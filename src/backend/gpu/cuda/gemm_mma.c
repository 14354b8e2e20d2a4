/* gemm_mma.cu: products of many rows on any tensor core. A norm goes first. */
#include "backend/gpu/cuda/vendor.h"

typedef struct tile {
    gpu_kernel kernel;
    int rows, columns, threads;
    size_t shared;
} tile;

static const tile tiles[] = {
    {{"gemm_mma_128_128", 1, 0}, 128, 128, 256, 3 * 256 * 128},
    {{"gemm_mma_64_64", 1, 0}, 64, 64, 128, 4 * 128 * 128},
};
enum { BIG, SMALL, TILES };

/* The big tile, where it gives half of the multiprocessors a block. */
static int usual_tile(const gpu_device *device, int rows, const gpu_linear *p) {
    int blocks = ceil_div(rows, tiles[BIG].rows) * ceil_div(p->weights.columns, tiles[BIG].columns);
    return blocks >= gpu_multiprocessors(device) / 2 ? BIG : SMALL;
}

/* Numbers between products as bf16 + bf16, over W twice; few rows have kernels of their own for that. */
static void list_chain(const gpu_task *task, gpu_choices *to) {
    if (task->chain.bf16 && task->rows > FEW_ROWS && task->chain.k % GPU_ATOM_K == 0)
        gpu_choices_add(to, (gpu_choice){.rank = RANK_GEMM_MMA, .kernel = SMALL, .split = 1});
}

static void list(const gpu_device *device, const gpu_task *task, gpu_choices *to) {
    const gpu_linear *p = &task->product;
    if (task->kind == GPU_PRODUCT_CHAIN) list_chain(task, to);
    if (task->kind != GPU_PRODUCT || !cuda_tensor_legal(p)) return;
    for (int i = 0; i < gpu_norms_first(p); i++) {
        int norm = gpu_norm_first(p, i);
        if (cuda_scattered(p) && !norm) continue;
        for (int t = 0; t < TILES; t++) {
            int rank =
                t == usual_tile(device, task->rows, p) ? gpu_usual(norm, RANK_GEMM_MMA) : GPU_RANK_NEVER;
            gpu_choices_add(to, (gpu_choice){.rank = rank, .kernel = t, .norm = norm});
        }
    }
}

static void launch(gpu_issue *issue, gpu_task *task, const gpu_choice *choice) {
    const tile *t = &tiles[choice->kernel];
    const gpu_linear *p = &task->product;
    gpu_grid grid = {.x = ceil_div(task->rows, t->rows),
                     .y = ceil_div(p->weights.columns, t->columns),
                     .threads = t->threads,
                     .shared = t->shared};
    gpu_emit(issue, choice->kernel, grid, p, sizeof *p);
}

const gpu_family gpu_family_gemm_mma = {
    .name = "gemm_mma", GPU_KERNELS(tiles), .list = list, .launch = launch};
