/* kernels/attention.c: attention over images, and over caches with the keys whole, or split over blocks and
 * joined. */
#include "backend/gpu/hip/vendor.h"

typedef struct attention_kernel {
    gpu_kernel kernel;
    int kind;                              /* a gpu_task_kind, -1: after one that splits keys              */
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
    {{"attention_combine", 0, 0}, -1, 0, 0},
};
enum { KERNELS = sizeof kernels / sizeof *kernels, COMBINE = KERNELS - 1 };
enum { QUERIES = 64, KEY_TILE = 32, MOST_SPLITS = 16 };

/* Parts of the keys, so that blocks fill the device: each of two tiles of keys or more. */
static int usual_splits(const gpu_device *device, const gpu_cache_attention *p) {
    int blocks = ceil_div(p->part_rows, QUERIES), splits = 1;
    while (splits < MOST_SPLITS && blocks * splits * 2 <= gpu_multiprocessors(device) &&
           splits * 4 * KEY_TILE <= p->capacity)
        splits *= 2;
    return splits;
}

/* A cache's keys in 1, 2, 4, … parts. */
static void list_splits(const gpu_device *device, const gpu_cache_attention *p, gpu_choice choice,
                        gpu_choices *to) {
    int usual = usual_splits(device, p), rank = choice.rank;
    for (int n = 1; n <= MOST_SPLITS && (n - 1) * KEY_TILE < p->capacity; n *= 2) {
        choice.rank = n == usual ? rank : GPU_RANK_NEVER;
        choice.count = n;
        gpu_choices_add(to, choice);
    }
}


static void hip_attention_list(const gpu_device *device, const gpu_task *task, gpu_choices *to) {
    const gpu_image_attention *image = &task->image_attention;
    const gpu_cache_attention *cache = &task->cache_attention;
    int is_image = task->kind == GPU_IMAGE_ATTENTION;
    if (!is_image && task->kind != GPU_CACHE_ATTENTION) return;
    int f32 = is_image ? image->f32 : cache->f32, head_dim = is_image ? image->head_dim : cache->head_dim;
    for (int i = 0; i < COMBINE; i++) {
        gpu_choice choice = {.rank = kernels[i].head_dim, .kernel = i};
        if (kernels[i].kind != (int)task->kind || kernels[i].f32 != f32 || head_dim > kernels[i].head_dim)
            continue;
        if (is_image) gpu_choices_add(to, choice);
        else list_splits(device, cache, choice, to);
    }
}

static void launch_cache(gpu_issue *issue, gpu_cache_attention *p, int rows, const gpu_choice *choice) {
    int tiles = ceil_div(p->capacity, KEY_TILE);
    size_t d = (size_t)p->head_dim, queries = (size_t)p->part_rows;
    p->early = 0;
    p->span = ceil_div(tiles, choice->count) * KEY_TILE;
    p->splits = ceil_div(tiles * KEY_TILE, p->span);
    if (p->splits > 1) {
        p->part = gpu_work_take(issue, (size_t)p->splits * queries * d * sizeof(float));
        p->part_stats = gpu_work_take(issue, (size_t)p->splits * queries * 2 * sizeof(float));
    }
    gpu_grid grid = {.x = ceil_div(rows * p->heads, QUERIES), .y = p->splits, .threads = HIP_THREADS};
    gpu_emit(issue, choice->kernel, grid, p, sizeof *p);
    grid = (gpu_grid){.x = ceil_div(rows * p->heads, HIP_THREADS / HIP_WAVE), .y = 1, .threads = HIP_THREADS};
    if (p->splits > 1) gpu_emit(issue, COMBINE, grid, p, sizeof *p);
}

static void hip_attention_launch(gpu_issue *issue, gpu_task *task, const gpu_choice *choice) {
    if (task->kind == GPU_CACHE_ATTENTION) {
        launch_cache(issue, &task->cache_attention, task->rows, choice);
        return;
    }
    gpu_grid grid = {.x = ceil_div(task->rows, QUERIES),
                     .y = task->image_attention.heads,
                     .threads = HIP_THREADS};
    gpu_emit(issue, choice->kernel, grid, &task->image_attention, sizeof task->image_attention);
}

const gpu_family gpu_family_hip_attention = {
    .name = "attention", GPU_KERNELS(kernels), .list = hip_attention_list, .launch = hip_attention_launch};
