/* attention_rows_hopper.cu: attention of very many rows over a cache on Hopper. */
#include "backend/gpu/cuda/vendor.h"

enum { DIM = 256, HALF = 64, ROWS = 2 * HALF, KEYS = 80, STAGES = 2 };

static const gpu_kernel kernels[] = {{"attention_wgmma_128", 1, 0}};

static const size_t shared = (size_t)(ROWS + 2 * STAGES * KEYS) * DIM * sizeof(bf16);

/* From two units a multiprocessor on; fewer rows get blocks of 64 (attention_hopper.c). Where samples have
 * few rows, a unit is one sample's: from a quarter of the multiprocessors on. */
static int attention_rows_many(const gpu_device *device, const gpu_cache_attention *p) {
    int units = ceil_div(p->part_rows, ROWS), multiprocessors = gpu_multiprocessors(device);
    return p->early ? 4 * units >= multiprocessors : units >= 2 * multiprocessors;
}

static void attention_rows_list(const gpu_device *device, const gpu_task *task, gpu_choices *to) {
    const gpu_cache_attention *p = &task->cache_attention;
    if (task->kind != GPU_CACHE_ATTENTION || !cuda_cache_legal(device, p)) return;
    if (p->head_dim == DIM && shared <= gpu_shared_bytes(device))
        gpu_choices_add(to, (gpu_choice){.rank = attention_rows_many(device, p) ? RANK_CACHE_WGMMA_128
                                                                                : GPU_RANK_NEVER});
}

static void attention_rows_launch(gpu_issue *issue, gpu_task *task, const gpu_choice *choice) {
    const gpu_cache_attention *p = &task->cache_attention;
    gpu_wgmma_attention w;
    (void)choice;
    if (!gpu_emitting(issue)) return;
    cuda_make_cache_maps(issue, &w, p, HALF, KEYS);
    int units = ceil_div(p->part_rows, ROWS), multiprocessors = gpu_multiprocessors(gpu_device_of(issue));
    gpu_grid grid = {.x = p->early ? multiprocessors : least(units, multiprocessors),
                     .y = 1,
                     .threads = 384,
                     .shared = shared};
    gpu_emit(issue, 0, grid, &w, sizeof w);
}

const gpu_family gpu_family_attention_rows_hopper = {
    .name = "attention_rows_hopper", GPU_KERNELS(kernels),
    .list = attention_rows_list, .launch = attention_rows_launch};
