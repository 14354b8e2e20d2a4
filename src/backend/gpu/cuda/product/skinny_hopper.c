/* skinny_hopper.cu: products of few rows on Hopper, the denoise loop's: 16 rows and 8·groups columns a
 * cluster, k in `parts`. A norm is inside. */
#include <string.h>

#include "backend/gpu/cuda/vendor.h"

typedef struct tile {
    gpu_kernel kernel;
    int kind, groups, parts;
    int sharers;                           /* of its warps, that share the groups between them              */
} tile;

/* The first that is legal is the heuristic's: wide ones leave a multiprocessor one block, so that all
 * blocks of a kernel are there, and fetch their weights, while the one before still runs. */
static const tile tiles[] = {
    {{"skinny_hopper_qkv_4", 1, 0}, GPU_EPILOGUE_QKV, 4, 1, 2},
    {{"skinny_hopper_qkv_2", 1, 0}, GPU_EPILOGUE_QKV, 2, 1, 1},
    {{"skinny_hopper_gated_8", 1, 0}, GPU_EPILOGUE_GATED, 8, 1, 2},
    {{"skinny_hopper_gated_4", 1, 0}, GPU_EPILOGUE_GATED, 4, 1, 1},
    {{"skinny_hopper_residual_4", 1, 0}, GPU_EPILOGUE_RESIDUAL, 4, 4, 2},
    {{"skinny_hopper_residual_2", 1, 0}, GPU_EPILOGUE_RESIDUAL, 2, 2, 1},
    {{"skinny_hopper_store_2", 1, 0}, GPU_EPILOGUE_STORE, 2, 2, 1},
};
enum { TILES = sizeof tiles / sizeof *tiles, STORE = TILES - 1, MOST_BLOCKS = 16 };

static int skinny_hopper_legal(const tile *t, const gpu_linear *p) {
    const gpu_epilogue *e = &p->epilogue;
    int blocks = p->k_blocks / t->parts;
    if (e->kind != t->kind || e->f32 || e->x_t || p->ldx % GPU_ATOM_K || cuda_scattered(p)) return 0;
    if (p->k_blocks % t->parts || blocks < 1 || blocks > MOST_BLOCKS || p->weights.blocks % blocks ||
        p->weights.columns % (8 * t->groups))
        return 0;
    if (p->norm && (p->norm != GPU_NORM_RMS || t->parts > 1 || t->kind == GPU_EPILOGUE_STORE)) return 0;
    if (e->kind == GPU_EPILOGUE_QKV) return e->head_dim % 16 == 0;
    return e->n % 8 == 0 && !(e->kind == GPU_EPILOGUE_GATED && e->bias) && !e->add;
}

/* Numbers between products as bf16 + bf16, over W twice. */
static void skinny_hopper_list_chain(const gpu_task *task, gpu_choices *to) {
    if (task->chain.bf16 && task->rows <= FEW_ROWS && task->chain.k % GPU_ATOM_K == 0 &&
        task->chain.k <= MOST_BLOCKS * GPU_ATOM_K)
        gpu_choices_add(to, (gpu_choice){.rank = RANK_SKINNY_HOPPER, .kernel = STORE, .split = 1});
}

static void skinny_hopper_list(const gpu_device *device, const gpu_task *task, gpu_choices *to) {
    if (task->kind == GPU_PRODUCT_CHAIN) skinny_hopper_list_chain(task, to);
    if (task->kind != GPU_PRODUCT || task->rows > FEW_ROWS || !cuda_tensor_legal(&task->product)) return;
    for (int i = 0; i < TILES; i++)
        if (skinny_hopper_legal(&tiles[i], &task->product))
            gpu_choices_add(
                to, (gpu_choice){.rank = cuda_rank_few(device, task, RANK_SKINNY_HOPPER), .kernel = i});
}

static void skinny_hopper_launch(gpu_issue *issue, gpu_task *task, const gpu_choice *choice) {
    const tile *t = &tiles[choice->kernel];
    const gpu_linear *p = &task->product;
    gpu_hopper h;
    if (!gpu_emitting(issue)) return;
    size_t blocks = (size_t)(p->k_blocks / t->parts),
           operands = blocks * (2048 + (size_t)t->groups * cuda_atom_of(p->weights.type).bytes),
           sums = (size_t)(8 / t->sharers * t->groups) * 512,
           shared = t->parts > 1    ? operands + sums
                  : operands > sums ? operands
                                    : sums;
    memset(&h, 0, sizeof h);
    h.linear = *p;
    h.linear.stages = (int)shared;
    size_t sets = (p->norm_bias ? 2 : 1) * (p->epilogue.known.rows ? 2 : 1);
    if (p->norm) shared += sets * (size_t)p->ldx * sizeof(float);
    cuda_make_map(issue, &h.x, 1, 3, p->x,
                  (uint64_t[]){GPU_ATOM_K, (uint64_t)task->rows, (uint64_t)p->k_blocks},
                  (uint64_t[]){(uint64_t)p->ldx * sizeof(bf16), GPU_ATOM_K * sizeof(bf16)},
                  (unsigned[]){GPU_ATOM_K, 16, (unsigned)blocks});
    gpu_grid grid = {.x = p->weights.columns / (8 * t->groups) * t->parts,
                     .y = ceil_div(task->rows, 16),
                     .threads = 256,
                     .shared = shared,
                     .cluster = t->parts};
    gpu_emit(issue, choice->kernel, grid, &h, sizeof h);
}

const gpu_family gpu_family_skinny_hopper = {
    .name = "skinny_hopper", GPU_KERNELS(tiles), .list = skinny_hopper_list, .launch = skinny_hopper_launch};
