/* kernels/attention.c: attention over images and caches. */
#include "backend/gpu/hip/vendor.h"

typedef struct attention_kernel {
    gpu_kernel kernel;
    gpu_task_kind kind;
    int f32, head_dim;                     /* head_dim: at most                                            */
} attention_kernel;

static const attention_kernel kernels[] = {
    {{"attention_image_bf16_80", 0, 0}, GPU_IMAGE_ATTENTION, 0, 80},
    {{"attention_image_bf16_256", 0, 0}, GPU_IMAGE_ATTENTION, 0, 256},
    {{"attention_image_f32_80", 0, 0}, GPU_IMAGE_ATTENTION, 1, 80},
    {{"attention_image_f32_256", 0, 0}, GPU_IMAGE_ATTENTION, 1, 256},
    {{"attention_cache_bf16_80", 0, 0}, GPU_CACHE_ATTENTION, 0, 80},
    {{"attention_cache_bf16_256", 0, 0}, GPU_CACHE_ATTENTION, 0, 256},
    {{"attention_cache_f32_80", 0, 0}, GPU_CACHE_ATTENTION, 1, 80},
    {{"attention_cache_f32_256", 0, 0}, GPU_CACHE_ATTENTION, 1, 256},
};
enum { KERNELS = sizeof kernels / sizeof *kernels, QUERIES = 64 };

static void list(const gpu_device *device, const gpu_task *task, gpu_choices *to) {
    const gpu_image_attention *image = &task->image_attention;
    const gpu_cache_attention *cache = &task->cache_attention;
    int is_image = task->kind == GPU_IMAGE_ATTENTION;
    (void)device;
    if (!is_image && task->kind != GPU_CACHE_ATTENTION) return;
    int f32 = is_image ? image->f32 : cache->f32, head_dim = is_image ? image->head_dim : cache->head_dim;
    for (int i = 0; i < KERNELS; i++)
        if (kernels[i].kind == task->kind && kernels[i].f32 == f32 && head_dim <= kernels[i].head_dim)
            gpu_choices_add(to, (gpu_choice){.rank = kernels[i].head_dim, .kernel = i});
}

static void launch(gpu_issue *issue, gpu_task *task, const gpu_choice *choice) {
    gpu_grid grid = {.x = ceil_div(task->rows, QUERIES), .y = 1, .threads = HIP_THREADS};
    if (task->kind == GPU_IMAGE_ATTENTION) {
        grid.y = task->image_attention.heads;
        gpu_emit(issue, choice->kernel, grid, &task->image_attention, sizeof task->image_attention);
        return;
    }
    task->cache_attention.early = 0;
    grid.x = ceil_div(task->rows * task->cache_attention.heads, QUERIES);
    gpu_emit(issue, choice->kernel, grid, &task->cache_attention, sizeof task->cache_attention);
}

const gpu_family gpu_family_hip_attention = {
    .name = "attention", GPU_KERNELS(kernels), .list = list, .launch = launch};
