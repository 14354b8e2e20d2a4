/* few_mma_int8.cu: products of at most 16 rows with weights of 8-bit integers, the denoise loop's, a norm
 * inside; and such weights as fp32 for whatever else multiplies them. */
#include "backend/gpu/cuda/vendor.h"

typedef struct tile {
    gpu_kernel kernel;
    int kind, groups, blocks;              /* groups of 8 columns; most blocks of 128 k of a warp           */
} tile;

enum { WARPS = 8, ROWS = 16, UNPACK = 7, TILES = UNPACK };

/* The first of a kind that is legal is the heuristic's. */
static const tile kernels[] = {
    {{"few_int8_qkv_16_1", 2, 0}, GPU_EPILOGUE_QKV, 2, 1},
    {{"few_int8_qkv_32_1", 2, 0}, GPU_EPILOGUE_QKV, 4, 1},
    {{"few_int8_gated_64_1", 2, 0}, GPU_EPILOGUE_GATED, 8, 1},
    {{"few_int8_gated_32_1", 2, 0}, GPU_EPILOGUE_GATED, 4, 1},
    {{"few_int8_residual_8_2", 2, 0}, GPU_EPILOGUE_RESIDUAL, 1, 2},
    {{"few_int8_residual_16_2", 2, 0}, GPU_EPILOGUE_RESIDUAL, 2, 2},
    {{"few_int8_residual_8_4", 2, 0}, GPU_EPILOGUE_RESIDUAL, 1, 4},
    [UNPACK] = {.kernel = {"unpack_int8", 1, 0}},
};

/* W of all warps, or their sums where those are larger; the norm's weight and bias, and the rows' squares. */
static size_t shared_of(const tile *t, const gpu_linear *p) {
    size_t weights = (size_t)(WARPS * t->blocks * t->groups) * GPU_ATOM_BYTES,
           sums = (size_t)(WARPS * ROWS * (t->groups == 1 ? 8 : 8 * t->groups + 8)) * sizeof(float),
           norm = p->norm ? (2 * (size_t)p->ldx + ROWS * WARPS) * sizeof(float) : 0;
    return (weights > sums ? weights : sums) + norm;
}

static int few_mma_int8_legal(const gpu_device *device, const tile *t, const gpu_linear *p) {
    const gpu_epilogue *e = &p->epilogue;
    int paired = t->kind == GPU_EPILOGUE_QKV || t->kind == GPU_EPILOGUE_GATED;
    if (e->kind != t->kind || e->f32 || e->x_t || p->k_blocks != p->weights.blocks || p->ldx % 16 ||
        p->k_blocks > WARPS * t->blocks || p->weights.columns % (8 * t->groups))
        return 0;
    /* The weights lie before the norm's place, and the sums over them. */
    if (p->norm && (p->norm != GPU_NORM_RMS || !paired)) return 0;
    if (shared_of(t, p) > gpu_shared_bytes(device)) return 0;
    if (e->kind == GPU_EPILOGUE_QKV) return e->head_dim % 16 == 0;
    if (e->kind == GPU_EPILOGUE_GATED && (e->to.map || e->to.group)) return 0;
    return e->n % 8 == 0 && !(e->kind == GPU_EPILOGUE_GATED && e->bias) && !e->add;
}

static void few_mma_int8_list(const gpu_device *device, const gpu_task *task, gpu_choices *to) {
    const gpu_linear *p = &task->product;
    int rank = RANK_FEW_MMA;
    if (task->kind == GPU_UNPACK) gpu_choices_add(to, (gpu_choice){.rank = RANK_SIMT, .kernel = UNPACK});
    if (task->kind != GPU_PRODUCT || p->weights.type != GPU_WEIGHT_INT8 || p->x_type != GPU_X_BF16 ||
        task->rows > ROWS)
        return;
    for (int i = 0; i < TILES; i++) {
        if (!few_mma_int8_legal(device, &kernels[i], p)) continue;
        gpu_choices_add(to, (gpu_choice){.rank = rank, .kernel = i});
        rank = GPU_RANK_NEVER;
    }
}

static void few_mma_int8_launch(gpu_issue *issue, gpu_task *task, const gpu_choice *choice) {
    const tile *t = &kernels[choice->kernel];
    const gpu_linear *p = &task->product;
    if (task->kind == GPU_PRODUCT) {
        gpu_grid grid = {.x = p->weights.columns / (8 * t->groups),
                         .y = 1,
                         .threads = 32 * WARPS,
                         .shared = shared_of(t, p)};
        gpu_emit(issue, choice->kernel, grid, p, sizeof *p);
        return;
    }
    const gpu_unpack *unpack = &task->unpack;
    const int64_t pieces = (int64_t)ceil_div(unpack->weights.k, 4) * unpack->weights.columns;
    gpu_emit(issue, UNPACK, (gpu_grid){.x = (int)((pieces + 255) / 256), .y = 1, .threads = 256}, unpack,
             sizeof *unpack);
}

const gpu_family gpu_family_few_mma_int8 = {.name = "few_mma_int8",
                                            GPU_KERNELS(kernels),
                                            .list = few_mma_int8_list,
                                            .launch = few_mma_int8_launch};
