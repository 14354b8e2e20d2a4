/* attention_rows_hopper.cu: attention of very many rows over a cache on Hopper. */
#include <string.h>

#include "backend/gpu/cuda/vendor.h"

enum { DIM = 256, HALF = 64, ROWS = 2 * HALF, KEYS = 80, STAGES = 2 };

static const gpu_kernel kernels[] = {{"attention_wgmma_128", 1, 0}};

static const size_t shared = (size_t)(ROWS + 2 * STAGES * KEYS) * DIM * sizeof(bf16);

/* Not the heuristic's yet: blocks of three units and more, which batches of 8 and more have, were timed on a
 * card and not checked there (openpi_ops has the shapes). It is quicker from two units a multiprocessor on,
 * and where samples have few rows, so that a unit is one sample's, from a quarter of a unit on. */
static void list(const gpu_device *device, const gpu_task *task, gpu_choices *to) {
    const gpu_cache_attention *p = &task->cache_attention;
    if (task->kind != GPU_CACHE_ATTENTION || !cuda_cache_legal(device, p)) return;
    if (p->head_dim == DIM && shared <= gpu_shared_bytes(device))
        gpu_choices_add(to, (gpu_choice){.rank = GPU_RANK_NEVER});
}

static void launch(gpu_issue *issue, gpu_task *task, const gpu_choice *choice) {
    const gpu_cache_attention *p = &task->cache_attention;
    const uint64_t row = (uint64_t)p->head_dim * sizeof(bf16), places = (uint64_t)p->capacity;
    const uint64_t dims[3] = {(uint64_t)p->head_dim, places, OPENPI_MAX_BATCH},
                   strides[2] = {row, row * places};
    const unsigned box[3] = {GPU_ATOM_K, KEYS, 1}, q_box[2] = {GPU_ATOM_K, HALF};
    gpu_wgmma_attention w;
    (void)choice;
    if (!gpu_emitting(issue)) return;
    memset(&w, 0, sizeof w);
    w.attention = *p;
    cuda_make_map(issue, &w.q, 1, 2, p->q, (uint64_t[]){(uint64_t)p->head_dim, (uint64_t)p->part_rows}, &row,
                  q_box);
    cuda_make_map(issue, &w.k, 1, 3, p->k, dims, strides, box);
    cuda_make_map(issue, &w.v, 1, 3, p->v, dims, strides, box);
    int units = ceil_div(p->part_rows, ROWS), multiprocessors = gpu_multiprocessors(gpu_device_of(issue));
    gpu_grid grid = {.x = p->early ? multiprocessors : least(units, multiprocessors),
                     .y = 1,
                     .threads = 384,
                     .shared = shared};
    gpu_emit(issue, 0, grid, &w, sizeof w);
}

const gpu_family gpu_family_attention_rows_hopper = {
    .name = "attention_rows_hopper", GPU_KERNELS(kernels), .list = list, .launch = launch};
