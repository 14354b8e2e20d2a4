/* few_mma.cu: products of at most 16 rows on any tensor core, the denoise loop's. A norm is inside. */
#include "backend/gpu/cuda/product/few_mma.h"

/* Of a kind the first that is legal is the heuristic's. */
static const few_tile tiles[] = {
    {{"few_qkv_16_2", 2, 0}, GPU_EPILOGUE_QKV, 2, 2},
    {{"few_qkv_32_2", 2, 0}, GPU_EPILOGUE_QKV, 4, 2},
    {{"few_gated_64_2", 2, 0}, GPU_EPILOGUE_GATED, 8, 2},
    {{"few_gated_32_2", 2, 0}, GPU_EPILOGUE_GATED, 4, 2},
    {{"few_residual_16_4", 2, 0}, GPU_EPILOGUE_RESIDUAL, 2, 4},
    {{"few_residual_8_4", 2, 0}, GPU_EPILOGUE_RESIDUAL, 1, 4},
    {{"few_residual_8_8", 2, 0}, GPU_EPILOGUE_RESIDUAL, 1, 8},
    {{"few_store_8_4", 2, 0}, GPU_EPILOGUE_STORE, 1, 4},
};
enum { TILES = sizeof tiles / sizeof *tiles, STORE = TILES - 1, WARPS = 8 };

/* W of all warps, or their sums where those are larger; the norm's weight and bias, and the rows' squares. */
static size_t shared_of(const few_tile *t, const gpu_linear *p) {
    size_t weights = (size_t)(WARPS * t->blocks * t->groups) * GPU_ATOM_BYTES,
           sums = (size_t)(WARPS * FEW_MMA_ROWS * (t->groups == 1 ? 8 : 8 * t->groups + 8)) * sizeof(float),
           norm = p->norm ? (2 * (size_t)p->ldx + FEW_MMA_ROWS * WARPS) * sizeof(float) : 0;
    return (weights > sums ? weights : sums) + norm;
}

static int legal(const gpu_device *device, const few_tile *t, const gpu_linear *p) {
    const gpu_epilogue *e = &p->epilogue;
    int paired = t->kind == GPU_EPILOGUE_QKV || t->kind == GPU_EPILOGUE_GATED;
    if (e->kind != t->kind || e->f32 || e->x_t || p->k_blocks % p->weights.blocks ||
        p->k_blocks > WARPS * t->blocks || p->weights.columns % (8 * t->groups))
        return 0;
    if (p->norm && (p->norm != GPU_NORM_RMS || !paired)) return 0;
    if (shared_of(t, p) > gpu_shared_bytes(device)) return 0;
    if (e->kind == GPU_EPILOGUE_QKV) return e->head_dim % 16 == 0;
    if (e->kind == GPU_EPILOGUE_GATED && (e->to.map || e->to.group)) return 0;
    return e->n % 8 == 0 && !(e->kind == GPU_EPILOGUE_GATED && e->bias) && !e->add;
}

void few_mma_add(const gpu_device *device, const few_tile *list, int count, const gpu_linear *p,
                 gpu_choices *to) {
    int rank = RANK_FEW_MMA;
    for (int i = 0; i < count; i++) {
        if (!legal(device, &list[i], p)) continue;
        gpu_choices_add(to, (gpu_choice){.rank = rank, .kernel = i});
        rank = GPU_RANK_NEVER;
    }
}

void few_mma_emit(gpu_issue *issue, const few_tile *list, int kernel, const gpu_linear *p) {
    const few_tile *t = &list[kernel];
    gpu_grid grid = {.x = p->weights.columns / (8 * t->groups),
                     .y = 1,
                     .threads = 32 * WARPS,
                     .shared = shared_of(t, p)};
    gpu_emit(issue, kernel, grid, p, sizeof *p);
}

/* Numbers between products as bf16 + bf16, over W twice. */
static void few_mma_list_chain(const gpu_task *task, gpu_choices *to) {
    int blocks = 2 * task->chain.k / GPU_ATOM_K;
    if (task->chain.bf16 && task->rows <= FEW_MMA_ROWS && task->chain.k % GPU_ATOM_K == 0 &&
        blocks <= WARPS * tiles[STORE].blocks)
        gpu_choices_add(to, (gpu_choice){.rank = RANK_FEW_MMA, .kernel = STORE, .split = 1});
}

static void few_mma_list(const gpu_device *device, const gpu_task *task, gpu_choices *to) {
    if (task->kind == GPU_PRODUCT_CHAIN) few_mma_list_chain(task, to);
    if (task->kind == GPU_PRODUCT && task->rows <= FEW_MMA_ROWS && cuda_tensor_legal(&task->product))
        few_mma_add(device, tiles, TILES, &task->product, to);
}

static void few_mma_launch(gpu_issue *issue, gpu_task *task, const gpu_choice *choice) {
    few_mma_emit(issue, tiles, choice->kernel, &task->product);
}

const gpu_family gpu_family_few_mma = {
    .name = "few_mma", GPU_KERNELS(tiles), .list = few_mma_list, .launch = few_mma_launch};
