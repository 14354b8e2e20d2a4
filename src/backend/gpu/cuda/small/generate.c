/* generate.cu: synthetic weights, made where they will lie. */
#include "backend/gpu/cuda/vendor.h"

static const gpu_kernel kernels[] = {{"generate", 0, 0}};

static void generate_list(const gpu_device *device, const gpu_task *task, gpu_choices *to) {
    (void)device;
    if (task->kind == GPU_GENERATE) gpu_choices_add(to, (gpu_choice){.rank = RANK_SIMT});
}

static void generate_launch(gpu_issue *issue, gpu_task *task, const gpu_choice *choice) {
    const gpu_generate *p = &task->generate;
    gpu_grid grid = {
        .x = task->rows, .y = ceil_div(p->units, GPU_GENERATE_UNITS), .threads = GPU_GENERATE_THREADS};
    gpu_emit(issue, choice->kernel, grid, p, sizeof *p);
}

const gpu_family gpu_family_generate = {
    .name = "generate", GPU_KERNELS(kernels), .list = generate_list, .launch = generate_launch};
