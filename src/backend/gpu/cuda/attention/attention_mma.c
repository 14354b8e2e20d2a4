/* attention_mma.cu: attention in bf16 on any tensor core; over a cache with the keys whole, or split over
 * blocks and joined. */
#include <string.h>

#include "backend/gpu/cuda/attention/attention_joined.h"
#include "backend/gpu/cuda/vendor.h"

enum { IMAGE, CACHE_1, COMBINE, JOINED, CLEAR, MOST_SPLITS = 32, IMAGE_DIM = 72 };

static const gpu_kernel kernels[] = {
    [IMAGE] = {"attention_image", 1, 0},
    [CACHE_1] = {"attention_cache_1", 1, 0},
    [COMBINE] = {"attention_combine", 0, 0},
    [JOINED] = {"attention_cache_joined", 1, 0},
    [CLEAR] = {"attention_clear", 0, 0},
};

static const size_t image_shared = (2 * OPENPI_IMAGE_TOKENS + 128) * 144;

static void list_image(const gpu_device *device, const gpu_image_attention *p, gpu_choices *to) {
    if (!p->f32 && p->head_dim == IMAGE_DIM && image_shared <= gpu_shared_bytes(device))
        gpu_choices_add(to, (gpu_choice){.rank = RANK_IMAGE_MMA, .kernel = IMAGE});
}

/* One launch: few rows, and a counter each for their groups. Hopper has clusters for that. */
static int joins(const gpu_device *device, const gpu_cache_attention *p) {
    return ceil_div(p->part_rows, 16) <= least(GPU_COUNTERS, gpu_multiprocessors(device)) &&
           strcmp(gpu_path(device), "hopper");
}

/* Few rows, whose keys are split; those of many in a family of their own (attention_rows_mma.c). */
static void list_cache(const gpu_device *device, const gpu_cache_attention *p, gpu_choices *to) {
    static const int splits[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32};
    int key_tiles = ceil_div(p->capacity, KEY_TILE);
    int usual = least(least(cuda_splits(device, p), key_tiles), MOST_SPLITS);
    if (!cuda_cache_legal(device, p)) return;
    if (usual < 1) usual = 1;
    for (int i = 0, n = 1; n <= MOST_SPLITS; n++) {
        int listed = i < (int)(sizeof splits / sizeof *splits) && splits[i] == n;
        i += listed;
        if ((listed && n <= key_tiles) || n == usual)
            gpu_choices_add(to, (gpu_choice){.rank = n == usual ? RANK_CACHE_SPLIT : GPU_RANK_NEVER,
                                             .kernel = CACHE_1,
                                             .count = n});
        if (listed && n <= key_tiles && n > 1 && joins(device, p))
            gpu_choices_add(to, (gpu_choice){.rank = GPU_RANK_NEVER, .kernel = JOINED, .count = n});
    }
}

static void attention_mma_list(const gpu_device *device, const gpu_task *task, gpu_choices *to) {
    if (task->kind == GPU_IMAGE_ATTENTION) list_image(device, &task->image_attention, to);
    if (task->kind == GPU_CACHE_ATTENTION) list_cache(device, &task->cache_attention, to);
}

/* Keys of a split and, of several, the work block. */
static void split_keys(gpu_issue *issue, gpu_cache_attention *p, int splits) {
    size_t d = (size_t)p->head_dim, queries = (size_t)p->part_rows;
    p->span = cuda_span(p, splits);
    p->splits = splits = ceil_div(ceil_div(p->capacity, KEY_TILE) * KEY_TILE, p->span);
    if (splits < 2) return;
    p->part = gpu_work_take(issue, (size_t)splits * queries * d * sizeof(float));
    p->part_stats = gpu_work_take(issue, (size_t)splits * queries * 2 * sizeof(float));
}

static gpu_grid splits_grid(const gpu_cache_attention *p) {
    return (gpu_grid){
        .x = ceil_div(p->part_rows, 16), .y = p->splits, .threads = 128, .shared = cuda_cache_shared(1)};
}

static void launch_joined(gpu_issue *issue, const gpu_cache_attention *p, int splits) {
    gpu_joined_attention a = {.attention = *p, .clear = GPU_COUNTERS};
    int unclear;
    a.counts = gpu_counters(issue, &unclear);
    split_keys(issue, &a.attention, splits);
    if (unclear) gpu_emit(issue, CLEAR, (gpu_grid){.x = 1, .y = 1, .threads = 256}, &a, sizeof a);
    gpu_emit(issue, JOINED, splits_grid(&a.attention), &a, sizeof a);
}

static void launch_splits(gpu_issue *issue, gpu_cache_attention *p, int splits) {
    split_keys(issue, p, splits);
    gpu_emit(issue, CACHE_1, splits_grid(p), p, sizeof *p);
    if (p->splits > 1)
        gpu_emit(issue, COMBINE, (gpu_grid){.x = ceil_div(p->part_rows, 4), .y = 1, .threads = 256}, p,
                 sizeof *p);
}

/* Two blocks an image and head, half of the queries each. */
static void launch_image(gpu_issue *issue, const gpu_image_attention *p, int rows) {
    gpu_grid grid = {
        .x = rows / OPENPI_IMAGE_TOKENS * 2, .y = p->heads, .threads = 256, .shared = image_shared};
    gpu_emit(issue, IMAGE, grid, p, sizeof *p);
}

static void attention_mma_launch(gpu_issue *issue, gpu_task *task, const gpu_choice *choice) {
    switch (choice->kernel) {
    case IMAGE: launch_image(issue, &task->image_attention, task->rows); return;
    case CACHE_1: launch_splits(issue, &task->cache_attention, choice->count); return;
    case JOINED: launch_joined(issue, &task->cache_attention, choice->count); return;
    }
}

const gpu_family gpu_family_attention_mma = {
    .name = "attention_mma", GPU_KERNELS(kernels), .list = attention_mma_list,
    .launch = attention_mma_launch};
