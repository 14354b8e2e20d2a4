/* attention_hopper.cu: attention over a cache on Hopper: wgmma for many rows; for few a cluster that
 * splits the keys and joins the splits itself. */
#include "backend/gpu/cuda/vendor.h"

enum {
    CLUSTER,
    WGMMA,
    WGMMA_DIM = 256,
    LEAST_CLUSTER = 8,
    MOST_CLUSTER = 16,
    WGMMA_TILE = 64,
    WGMMA_BUFFERS = 5,
    AHEAD_ROWS = 16                        /* most, for which weights of later kernels are fetched          */
};

static const gpu_kernel kernels[] = {
    [CLUSTER] = {"attention_cluster", 1, 1}, [WGMMA] = {"attention_wgmma", 1, 0}};

/* Blocks of the heuristic's cluster. 9 to 12 leave much of every group of 16 multiprocessors idle. */
static int usual_cluster(int splits, int key_tiles) {
    int most = least(splits, MOST_CLUSTER);
    return key_tiles < LEAST_CLUSTER || most < 13 ? LEAST_CLUSTER : least(key_tiles, most);
}

static void attention_hopper_list(const gpu_device *device, const gpu_task *task, gpu_choices *to) {
    const gpu_cache_attention *p = &task->cache_attention;
    if (task->kind != GPU_CACHE_ATTENTION || !cuda_cache_legal(device, p)) return;
    int splits = cuda_splits(device, p), usual = usual_cluster(splits, ceil_div(p->capacity, KEY_TILE)),
        full = ceil_div(p->part_rows, WGMMA_TILE) * 2 >= gpu_multiprocessors(device);
    if (p->head_dim == WGMMA_DIM)
        gpu_choices_add(to, (gpu_choice){.rank = full ? RANK_CACHE_WGMMA : GPU_RANK_NEVER, .kernel = WGMMA});
    for (int n = LEAST_CLUSTER; n <= MOST_CLUSTER; n++) {
        int usually = splits >= LEAST_CLUSTER && n == usual;
        gpu_choices_add(to, (gpu_choice){.rank = usually ? RANK_CACHE_CLUSTER : GPU_RANK_NEVER,
                                         .kernel = CLUSTER,
                                         .count = n});
    }
}

static void launch_wgmma(gpu_issue *issue, const gpu_cache_attention *p) {
    gpu_wgmma_attention w;
    if (!gpu_emitting(issue)) return;
    cuda_make_cache_maps(issue, &w, p, WGMMA_TILE, WGMMA_TILE);
    gpu_grid grid = {.x = ceil_div(p->part_rows, WGMMA_TILE),
                     .y = 1,
                     .threads = 384,
                     .shared = (size_t)WGMMA_BUFFERS * WGMMA_TILE * WGMMA_DIM * sizeof(bf16)};
    gpu_emit(issue, WGMMA, grid, &w, sizeof w);
}

static void launch_cluster(gpu_issue *issue, gpu_cache_attention *p, int blocks) {
    p->splits = blocks;
    p->span = cuda_span(p, blocks);
    if (p->part_rows <= AHEAD_ROWS * p->heads) p->ahead = gpu_ahead_of(issue);
    gpu_grid grid = {.x = ceil_div(p->part_rows, 16) * blocks,
                     .y = 1,
                     .threads = 128,
                     .shared = cuda_cache_shared(1),
                     .cluster = blocks};
    gpu_emit(issue, CLUSTER, grid, p, sizeof *p);
}

static void attention_hopper_launch(gpu_issue *issue, gpu_task *task, const gpu_choice *choice) {
    gpu_cache_attention *p = &task->cache_attention;
    if (choice->kernel == WGMMA) launch_wgmma(issue, p);
    else launch_cluster(issue, p, choice->count);
}

const gpu_family gpu_family_attention_hopper = {
    .name = "attention_hopper", GPU_KERNELS(kernels),
    .list = attention_hopper_list, .launch = attention_hopper_launch};
