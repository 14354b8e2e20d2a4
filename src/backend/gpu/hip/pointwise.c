/* kernels/pointwise.c: norms, gathers, the parts of fused operations, weights. Each task has one kernel. */
#include "backend/gpu/hip/vendor.h"

/* How a grid is made of a task. */
typedef enum grid_kind {
    ROWS,                                  /* a block a row                                                */
    ROWS_HEADS,                            /* a block a row and head                                       */
    ROWS_WAVES,                            /* a wave a row, task.rows_a_block of them                      */
    UNITS                                  /* a block some units of a group of columns                     */
} grid_kind;

typedef struct pointwise_kernel {
    gpu_kernel kernel;
    gpu_task_kind kind;
    grid_kind grid;
    size_t arguments, bytes;               /* where in a task they stand, and how many                     */
} pointwise_kernel;

/* X(kernel, kind of task, its member, its grid) */
#define KERNEL_LIST(X)                                     \
    X(norm_rows, GPU_NORM, norm, ROWS_WAVES)               \
    X(embed_text, GPU_EMBED_TEXT, embed_text, ROWS)        \
    X(patches, GPU_PATCHES, patches, ROWS)                 \
    X(guide, GPU_GUIDE, guide, ROWS)                       \
    X(activate, GPU_ACTIVATE, activate, ROWS)              \
    X(add, GPU_ADD, add, ROWS)                             \
    X(rope_cache, GPU_ROPE_CACHE, rope_cache, ROWS_HEADS)  \
    X(softmax_rows, GPU_SOFTMAX, softmax, ROWS_HEADS)      \
    X(scores, GPU_SCORES, scores, ROWS_HEADS)              \
    X(values, GPU_VALUES, values, ROWS_HEADS)              \
    X(pack_raw, GPU_PACK, pack, ROWS)                      \
    X(generate, GPU_GENERATE, generate, UNITS)

static const pointwise_kernel kernels[] = {
#define X(name, kind, member, grid) \
    {{#name, 0, 0}, kind, grid, offsetof(gpu_task, member), sizeof ((gpu_task *)0)->member},
    KERNEL_LIST(X)
#undef X
};

static void hip_pointwise_list(const gpu_device *device, const gpu_task *task, gpu_choices *to) {
    (void)device;
    for (int i = 0; i < (int)(sizeof kernels / sizeof *kernels); i++)
        if (kernels[i].kind == task->kind) gpu_choices_add(to, (gpu_choice){.rank = RANK_ANY, .kernel = i});
}

/* rope_cache has two blocks more: k and v. */
static int heads_of(const gpu_task *task) {
    return task->kind == GPU_ROPE_CACHE ? task->rope_cache.heads + 2
         : task->kind == GPU_SOFTMAX    ? task->softmax.heads
                                        : task->scores.heads;
}

static void hip_pointwise_launch(gpu_issue *issue, gpu_task *task, const gpu_choice *choice) {
    const pointwise_kernel *k = &kernels[choice->kernel];
    gpu_grid grid = {.x = task->rows, .y = 1, .threads = HIP_THREADS};
    switch (k->grid) {
    case ROWS: break;
    case ROWS_HEADS: grid.y = heads_of(task); break;
    case ROWS_WAVES:
        grid.x = ceil_div(task->rows, task->rows_a_block);
        grid.threads = HIP_WAVE * task->rows_a_block;
        break;
    case UNITS: grid.y = ceil_div(task->generate.units, GPU_GENERATE_UNITS); break;
    }
    gpu_emit(issue, choice->kernel, grid, (const char *)task + k->arguments, k->bytes);
}

const gpu_family gpu_family_hip_pointwise = {
    .name = "pointwise", GPU_KERNELS(kernels), .list = hip_pointwise_list, .launch = hip_pointwise_launch};
