/* kernels/thin.c: bf16 products of few rows. A norm runs first. */
#include "backend/gpu/hip/vendor.h"

typedef struct thin_kernel {
    gpu_kernel kernel;
    int rows;
} thin_kernel;

static const thin_kernel kernels[] = {
    {{"thin_16", 0, 0}, 16}, {{"thin_32", 0, 0}, 32}, {{"thin_64", 0, 0}, 64}};
enum { KERNELS = sizeof kernels / sizeof *kernels, MOST_WAVES = 8 };

/* Waves of a block, which share k: each has something to do, and loads enough to wait for at once. */
static int usual_waves(const gpu_linear *p) {
    int waves = MOST_WAVES;
    while (waves > 2 && p->k_blocks < 2 * waves) waves /= 2;
    return waves;
}

/* The heuristic takes the kernel that all rows fit in; where none is, another family's. */
static int usual_kernel(int rows) {
    int k = 0;
    while (k < KERNELS && kernels[k].rows < rows) k++;
    return k;
}

static void hip_thin_list(const gpu_device *device, const gpu_task *task, gpu_choices *to) {
    (void)device;
    if (!hip_product_bf16(task)) return;
    int kernel = usual_kernel(task->rows), usual = usual_waves(&task->product);
    for (int k = 0; k < KERNELS; k++)
        for (int waves = 2; waves <= MOST_WAVES; waves *= 2)
            for (int i = 0; i < gpu_norms_first(&task->product); i++) {
                int norm = gpu_norm_first(&task->product, i), fits = k == kernel && waves == usual;
                int rank = fits ? gpu_usual(norm, RANK_FEW_ROWS) : GPU_RANK_NEVER;
                gpu_choices_add(to,
                                (gpu_choice){.rank = rank, .kernel = k, .count = waves, .norm = norm});
            }
}

static void hip_thin_launch(gpu_issue *issue, gpu_task *task, const gpu_choice *choice) {
    gpu_grid grid = {.x = ceil_div(task->rows, kernels[choice->kernel].rows),
                     .y = task->product.weights.columns / GPU_UNIT,
                     .threads = choice->count * HIP_WAVE};
    gpu_emit(issue, choice->kernel, grid, &task->product, sizeof task->product);
}

const gpu_family gpu_family_hip_thin = {
    .name = "thin", GPU_KERNELS(kernels), .list = hip_thin_list, .launch = hip_thin_launch};
