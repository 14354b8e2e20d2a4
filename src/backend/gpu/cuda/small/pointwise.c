/* pointwise.cu: the ops that fused ones are made of, and what packs raw weights before a product. */
#include "backend/gpu/cuda/vendor.h"

enum { ACTIVATE, ADD, ROPE_CACHE, SOFTMAX, SCORES_SIMT, VALUES_SIMT, SCORES_MMA, VALUES_MMA, PACK_RAW,
       NORM_TIMES };
enum { TILE = 64, COLUMNS = 1024 };

static const gpu_kernel kernels[] = {
    [ACTIVATE] = {"activate", 0, 0},
    [ADD] = {"add", 0, 0},
    [ROPE_CACHE] = {"rope_cache", 0, 0},
    [SOFTMAX] = {"softmax_rows", 0, 0},
    [SCORES_SIMT] = {"scores_simt", 0, 0},
    [VALUES_SIMT] = {"values_simt", 0, 0},
    [SCORES_MMA] = {"scores_mma", 0, 0},
    [VALUES_MMA] = {"values_mma", 0, 0},
    [PACK_RAW] = {"pack_raw", 0, 0},
    [NORM_TIMES] = {"norm_times", 0, 0},
};

/* One kernel a task, or one for fp32 and one for bf16. */
static int kernel_of(const gpu_task *task) {
    switch (task->kind) {
    case GPU_ACTIVATE: return ACTIVATE;
    case GPU_ADD: return ADD;
    case GPU_ROPE_CACHE: return ROPE_CACHE;
    case GPU_SOFTMAX: return SOFTMAX;
    case GPU_SCORES: return task->scores.f32 ? SCORES_SIMT : SCORES_MMA;
    case GPU_VALUES: return task->values.f32 ? VALUES_SIMT : VALUES_MMA;
    case GPU_PACK: return PACK_RAW;
    case GPU_NORM: return task->norm.known.times && task->norm.kind == GPU_NORM_RMS ? NORM_TIMES : -1;
    default: return -1;
    }
}

static void pointwise_list(const gpu_device *device, const gpu_task *task, gpu_choices *to) {
    int kernel = kernel_of(task);
    (void)device;
    if (task->kind == GPU_PACK && task->pack.int8) return;
    if (kernel >= 0) gpu_choices_add(to, (gpu_choice){.rank = RANK_SIMT, .kernel = kernel});
}

/* Rows of all heads in x, tiles of outputs in y; of an image a head after the other in y. */
static void launch_attend(gpu_issue *issue, int kernel, const gpu_task *task, gpu_attend p) {
    int units = task->rows * (p.stride ? 1 : p.heads);
    p.tiles = ceil_div(task->outputs, TILE);
    gpu_grid grid = {
        .x = ceil_div(units, TILE), .y = p.tiles * (p.stride ? p.heads : 1), .threads = p.f32 ? 256 : 128};
    gpu_emit(issue, kernel, grid, &p, sizeof p);
}

static void launch_pack(gpu_issue *issue, const gpu_raw *p) {
    int chunks = p->f32 ? ceil_div(p->k, 4) : p->blocks * 8;
    gpu_grid grid = {.x = (int)(((int64_t)chunks * p->columns + 255) / 256), .y = 1, .threads = 256};
    gpu_emit(issue, PACK_RAW, grid, p, sizeof *p);
}

static void pointwise_launch(gpu_issue *issue, gpu_task *task, const gpu_choice *choice) {
    int rows = task->rows, kernel = choice->kernel;
    switch (task->kind) {
    case GPU_ACTIVATE:
        gpu_emit(issue, kernel,
                 (gpu_grid){.x = rows, .y = ceil_div(task->activate.n, COLUMNS), .threads = 256},
                 &task->activate, sizeof task->activate);
        return;
    case GPU_ADD:
        gpu_emit(issue, kernel, (gpu_grid){.x = rows, .y = ceil_div(task->add.n, COLUMNS), .threads = 256},
                 &task->add, sizeof task->add);
        return;
    case GPU_ROPE_CACHE:
        gpu_emit(issue, kernel, (gpu_grid){.x = rows, .y = task->rope_cache.heads + 2, .threads = 128},
                 &task->rope_cache, sizeof task->rope_cache);
        return;
    case GPU_SOFTMAX:
        gpu_emit(issue, kernel, (gpu_grid){.x = rows, .y = task->softmax.heads, .threads = 128},
                 &task->softmax, sizeof task->softmax);
        return;
    case GPU_SCORES: launch_attend(issue, kernel, task, task->scores); return;
    case GPU_VALUES: launch_attend(issue, kernel, task, task->values); return;
    case GPU_PACK: launch_pack(issue, &task->pack); return;
    case GPU_NORM:
        gpu_emit(issue, kernel, (gpu_grid){.x = ceil_div(rows, 4), .y = 1, .threads = 128}, &task->norm,
                 sizeof task->norm);
        return;
    default: return;
    }
}

const gpu_family gpu_family_pointwise = {
    .name = "pointwise", GPU_KERNELS(kernels), .list = pointwise_list, .launch = pointwise_launch};
