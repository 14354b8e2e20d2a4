/* medium_hopper.cu: products of 17 to 64 rows on Hopper, the denoise loop's at long horizons: all rows and 64
 * columns a cluster, k in `parts`. A norm is inside. */
#include <string.h>

#include "backend/gpu/cuda/vendor.h"

typedef struct tile {
    gpu_kernel kernel;
    int kind, parts;
    int usual;                             /* from so many rows on the heuristic's                          */
} tile;

enum {
    LEAST_ROWS = 17,
    ROWS = 64,
    COLUMNS = 64,
    MOST_BLOCKS = 16,                      /* of 64 k a block                                               */
    RESIDUAL_STAGES = 4,                   /* of x                                                          */
};

static const tile tiles[] = {
    {{"medium_hopper_qkv", 1, 0}, GPU_EPILOGUE_QKV, 4, 48},
    {{"medium_hopper_residual", 1, 0}, GPU_EPILOGUE_RESIDUAL, 8, LEAST_ROWS},
};
enum { TILES = sizeof tiles / sizeof *tiles };

/* Note: 112 KB for down (k = 4096), so that a multiprocessor holds two blocks: where gate_up before it has
 * left half of the card free, all of down's blocks start early there. 2 KB more cost 2 µs. */
static size_t shared_of(const tile *t, const gpu_linear *p) {
    size_t blocks = (size_t)(p->k_blocks / t->parts),
           stages = t->kind == GPU_EPILOGUE_RESIDUAL && blocks > RESIDUAL_STAGES ? RESIDUAL_STAGES : blocks,
           operands = 128 * (stages * ROWS + blocks * COLUMNS), sums = ROWS * COLUMNS * sizeof(float),
           squares = (size_t)t->parts * ROWS * sizeof(float),
           parameters = blocks * GPU_ATOM_K * sizeof(float) * (p->norm_bias ? 2 : 1);
    return operands + sums + (p->norm ? squares + parameters : 0);
}

static int legal(const gpu_device *device, const tile *t, const gpu_linear *p, int rows) {
    const gpu_epilogue *e = &p->epilogue;
    if (e->kind != t->kind || e->f32 || e->x_t || e->add || e->split || e->to.map || e->to.group ||
        p->ldx % GPU_ATOM_K || cuda_scattered(p))
        return 0;
    if (rows < LEAST_ROWS || rows > ROWS) return 0;
    if (p->k_blocks % t->parts || p->k_blocks / t->parts > MOST_BLOCKS || p->weights.blocks != p->k_blocks ||
        p->weights.columns % COLUMNS || shared_of(t, p) > gpu_shared_bytes(device))
        return 0;
    if (p->norm && (p->norm != GPU_NORM_RMS || t->kind == GPU_EPILOGUE_RESIDUAL || e->known.rows)) return 0;
    return e->kind == GPU_EPILOGUE_QKV ? e->head_dim % 16 == 0 : e->n % 8 == 0;
}

static void list(const gpu_device *device, const gpu_task *task, gpu_choices *to) {
    if (task->kind != GPU_PRODUCT || !cuda_tensor_legal(&task->product)) return;
    for (int i = 0; i < TILES; i++) {
        int rank = task->rows >= tiles[i].usual ? RANK_MEDIUM_HOPPER : GPU_RANK_NEVER;
        if (legal(device, &tiles[i], &task->product, task->rows))
            gpu_choices_add(to, (gpu_choice){.rank = rank, .kernel = i});
    }
}

static void launch(gpu_issue *issue, gpu_task *task, const gpu_choice *choice) {
    const tile *t = &tiles[choice->kernel];
    const gpu_linear *p = &task->product;
    gpu_hopper h;
    if (!gpu_emitting(issue)) return;
    memset(&h, 0, sizeof h);
    h.linear = *p;
    cuda_make_map(issue, &h.x, 1, 3, p->x,
                  (uint64_t[]){GPU_ATOM_K, (uint64_t)task->rows, (uint64_t)p->k_blocks},
                  (uint64_t[]){(uint64_t)p->ldx * sizeof(bf16), GPU_ATOM_K * sizeof(bf16)},
                  (unsigned[]){GPU_ATOM_K, ROWS, 1});
    gpu_grid grid = {.x = p->weights.columns / COLUMNS * t->parts,
                     .y = 1,
                     .threads = 256,
                     .shared = shared_of(t, p),
                     .cluster = t->parts};
    gpu_emit(issue, choice->kernel, grid, &h, sizeof h);
}

const gpu_family gpu_family_medium_hopper = {
    .name = "medium_hopper", GPU_KERNELS(tiles), .list = list, .launch = launch};
