/* attention_rows_mma.cu: attention of many rows over a cache on any tensor core. */
#include "backend/gpu/cuda/vendor.h"

/* percent: what a block takes of the longest one's time, on an H200. */
typedef struct block {
    gpu_kernel kernel;
    int rows, percent;
} block;

static const block blocks[] = {{{"attention_rows_64", 1, 0}, 64, 100}, {{"attention_rows_32", 1, 0}, 32, 68}};
enum { BLOCKS = sizeof blocks / sizeof *blocks, THREADS = 256 };

/* Rings, and behind them a table of rows or what key groups know of theirs. */
static const size_t shared = 3 * KEY_TILE * 512 + 768;

/* Waves over the multiprocessors, a block each. */
static int time_of(const gpu_device *device, const gpu_cache_attention *p, int b) {
    return ceil_div(ceil_div(p->part_rows, blocks[b].rows), gpu_multiprocessors(device)) * blocks[b].percent;
}

/* Many rows fill the card; with fewer the keys are split. */
static int fills(const gpu_device *device, const gpu_cache_attention *p) {
    return p->part_rows >= 16 * gpu_multiprocessors(device);
}

static void attention_rows_list(const gpu_device *device, const gpu_task *task, gpu_choices *to) {
    const gpu_cache_attention *p = &task->cache_attention;
    if (task->kind != GPU_CACHE_ATTENTION || !cuda_cache_legal(device, p)) return;
    if (shared > gpu_shared_bytes(device)) return;
    const int usual = time_of(device, p, 1) < time_of(device, p, 0);
    for (int b = 0; b < BLOCKS; b++)
        gpu_choices_add(to, (gpu_choice){.rank = b == usual && fills(device, p) ? RANK_CACHE_WHOLE
                                                                                 : GPU_RANK_NEVER,
                                         .kernel = b});
}

static void attention_rows_launch(gpu_issue *issue, gpu_task *task, const gpu_choice *choice) {
    const gpu_cache_attention *p = &task->cache_attention;
    const gpu_grid grid = {.x = ceil_div(p->part_rows, blocks[choice->kernel].rows),
                           .y = 1,
                           .threads = THREADS,
                           .shared = shared};
    gpu_emit(issue, choice->kernel, grid, p, sizeof *p);
}

const gpu_family gpu_family_attention_rows_mma = {
    .name = "attention_rows_mma", GPU_KERNELS(blocks), .list = attention_rows_list,
    .launch = attention_rows_launch};
