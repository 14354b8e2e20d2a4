/* guide.cu: guidance of real-time chunking. */
#include "backend/gpu/cuda/vendor.h"

enum { ROWS = 8, THREADS = 256 };

static const gpu_kernel kernels[] = {{"guide", 0, 0}};

static void guide_list(const gpu_device *device, const gpu_task *task, gpu_choices *to) {
    (void)device;
    if (task->kind == GPU_GUIDE) gpu_choices_add(to, (gpu_choice){.rank = RANK_SIMT});
}

static void guide_launch(gpu_issue *issue, gpu_task *task, const gpu_choice *choice) {
    gpu_grid grid = {.x = ceil_div(task->rows, ROWS), .y = 1, .threads = THREADS};
    gpu_emit(issue, choice->kernel, grid, &task->guide, sizeof task->guide);
}

const gpu_family gpu_family_guide = {
    .name = "guide", GPU_KERNELS(kernels), .list = guide_list, .launch = guide_launch};
