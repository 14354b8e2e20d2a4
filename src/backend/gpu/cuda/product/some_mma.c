/* some_mma.cu: products of 17 to 64 rows on any tensor core, the denoise loop's with long chunks or small
 * batches. A norm is inside, or goes first. */
#include <string.h>

#include "backend/gpu/cuda/product/some.h"
#include "backend/gpu/cuda/vendor.h"

typedef struct tile {
    gpu_kernel kernel;
    int rows, kind, passes, groups;        /* groups of 8 columns a pass                                    */
    int blocks;                            /* most blocks of 64 k of a warp                                 */
} tile;

#define TILES_OF(rows)                                                                     \
    {{"some_" #rows "_qkv_32", 2, 0}, rows, GPU_EPILOGUE_QKV, 1, 4, 2},                    \
    {{"some_" #rows "_gated_32", 2, 0}, rows, GPU_EPILOGUE_GATED, 1, 4, 2},                \
    {{"some_" #rows "_gated_64", 2, 0}, rows, GPU_EPILOGUE_GATED, 2, 4, 2},                \
    {{"some_" #rows "_residual_32_1", 2, 0}, rows, GPU_EPILOGUE_RESIDUAL, 1, 4, 1},        \
    {{"some_" #rows "_residual_32_2", 2, 0}, rows, GPU_EPILOGUE_RESIDUAL, 1, 4, 2}

/* The first that is legal is its kind's usual one. */
static const tile tiles[] = {
    {{"some_32_residual_16_4", 2, 0}, 32, GPU_EPILOGUE_RESIDUAL, 1, 2, 4},
    {{"some_64_residual_16_4", 2, 0}, 64, GPU_EPILOGUE_RESIDUAL, 1, 2, 4},
    TILES_OF(32),
    TILES_OF(48),
    TILES_OF(64),
    {{"some_64_store_16_4", 2, 0}, 64, GPU_EPILOGUE_STORE, 1, 2, 4},
    {{"some_clear", 0, 0}, 0, 0, 0, 0, 0},
};
enum { CLEAR = sizeof tiles / sizeof *tiles - 1, TILES = CLEAR, STORE = TILES - 1 };
enum { WARPS = 8, LEAST_ROWS = 17 };

static int columns_of(const tile *t) { return 8 * t->groups * t->passes; }

/* W of all warps, or their sums where those are larger; the rows' squares and the norm's parameters. */
static size_t shared_of(const tile *t, const gpu_linear *p) {
    size_t weights = (size_t)(t->blocks * t->groups) * GPU_ATOM_BYTES,
           sums = (size_t)(t->rows * t->groups) * 32,
           sets = p->epilogue.known.rows ? 2 : 1,
           norm = (size_t)(t->rows * WARPS) + 2 * sets * (size_t)p->ldx;
    return (size_t)(WARPS * t->passes) * (weights > sums ? weights : sums) +
           (p->norm ? norm * sizeof(float) : 0);
}

/* Rows of the smallest tiles that have them all. */
static int rows_of(int rows) { return ceil_div(rows, 16) * 16; }

static int some_mma_legal(const gpu_device *device, const tile *t, const gpu_linear *p, int rows) {
    const gpu_epilogue *e = &p->epilogue;
    int paired = t->kind == GPU_EPILOGUE_QKV || t->kind == GPU_EPILOGUE_GATED;
    if (e->kind != t->kind || e->f32 || e->x_t || p->k_blocks % p->weights.blocks ||
        p->weights.columns % columns_of(t) || rows > t->rows)
        return 0;
    if (t->kind != GPU_EPILOGUE_STORE && (rows_of(rows) != t->rows || p->k_blocks != p->weights.blocks))
        return 0;
    if (p->norm && (p->norm != GPU_NORM_RMS || !paired)) return 0;
    if (shared_of(t, p) > gpu_shared_bytes(device)) return 0;
    if (e->kind == GPU_EPILOGUE_QKV) return e->head_dim % 16 == 0;
    if (e->kind == GPU_EPILOGUE_GATED && (e->to.map || e->to.group)) return 0;
    return e->n % 8 == 0 && !(e->kind == GPU_EPILOGUE_GATED && e->bias) && !e->add;
}

/* As many parts fit; 0: too few are allowed. */
static int least_parts(const tile *t, const gpu_linear *p) {
    int parts = ceil_div(p->k_blocks, WARPS * t->blocks),
        most = t->kind == GPU_EPILOGUE_RESIDUAL && p->weights.columns / columns_of(t) <= GPU_COUNTERS
                   ? SOME_MOST_PARTS
                   : 1;
    return parts > most ? 0 : parts;
}

/* Where they won on an H200 (--as rtx4090): up to 32 rows everywhere, up to 48 where a norm is. */
static int rank_of(const tile *t, int rows) {
    int wins = t->kind == GPU_EPILOGUE_QKV || rows <= 32 || (t->kind == GPU_EPILOGUE_GATED && rows <= 48);
    return wins ? RANK_FEW_MMA : GPU_RANK_NEVER;
}

/* Numbers between products as bf16 + bf16, over W twice. */
static void some_mma_list_chain(const gpu_task *task, gpu_choices *to) {
    int blocks = 2 * task->chain.k / GPU_ATOM_K;
    if (task->chain.bf16 && task->rows >= LEAST_ROWS && task->rows <= tiles[STORE].rows &&
        task->chain.k % GPU_ATOM_K == 0 && blocks <= WARPS * tiles[STORE].blocks)
        gpu_choices_add(to, (gpu_choice){.rank = RANK_FEW_MMA, .kernel = STORE, .split = 1});
}

/* The tiles, with `norm` rows a block of a norm that goes first, 0: inside. Of those that are legal the first
 * is the usual one; a norm is quicker as a kernel of its own, a row a block. */
static void some_mma_add(const gpu_device *device, const gpu_task *task, int norm, gpu_choices *to) {
    gpu_linear p = task->product;
    int usual = norm == 1 || !p.norm;
    if (norm) p.norm = GPU_NORM_NONE, p.from = (gpu_row_map){0};
    for (int i = 0; i < TILES; i++) {
        int parts = some_mma_legal(device, &tiles[i], &p, task->rows) ? least_parts(&tiles[i], &p) : 0;
        if (!parts) continue;
        gpu_choices_add(to, (gpu_choice){.rank = usual ? rank_of(&tiles[i], task->rows) : GPU_RANK_NEVER,
                                         .kernel = i,
                                         .count = parts > 1 ? parts : 0,
                                         .norm = norm});
        usual = 0;
    }
}

/* Hopper has kernels of its own for these rows. */
static void some_mma_list(const gpu_device *device, const gpu_task *task, gpu_choices *to) {
    const gpu_linear *p = &task->product;
    if (!strcmp(gpu_path(device), "hopper")) return;
    if (task->kind == GPU_PRODUCT_CHAIN) some_mma_list_chain(task, to);
    if (task->kind != GPU_PRODUCT || task->rows < LEAST_ROWS || !cuda_tensor_legal(p)) return;
    some_mma_add(device, task, 0, to);
    for (int i = 0; p->norm && i < gpu_norms_first(p); i++)
        some_mma_add(device, task, gpu_norm_first(p, i), to);
}

/* The parts' sums and counts. */
static void share_k(gpu_issue *issue, gpu_some *a) {
    const gpu_linear *p = &a->linear;
    size_t sums = (size_t)p->capacity * (size_t)p->weights.columns;
    int unclear;
    a->counts = gpu_counters(issue, &unclear);
    a->clear = GPU_COUNTERS;
    a->sums = gpu_work_take(issue, (size_t)a->parts * sums * sizeof *a->sums);
    if (unclear) gpu_emit(issue, CLEAR, (gpu_grid){.x = 1, .y = 1, .threads = 256}, a, sizeof *a);
}

static void some_mma_launch(gpu_issue *issue, gpu_task *task, const gpu_choice *choice) {
    const tile *t = &tiles[choice->kernel];
    gpu_some a = {.linear = task->product, .parts = choice->count ? choice->count : 1};
    const gpu_linear *p = &a.linear;
    if (a.parts > 1) share_k(issue, &a);
    gpu_grid grid = {.x = p->weights.columns / columns_of(t),
                     .y = a.parts,
                     .threads = 32 * WARPS,
                     .shared = shared_of(t, p)};
    gpu_emit(issue, choice->kernel, grid, &a, sizeof a);
}

const gpu_family gpu_family_some_mma = {
    .name = "some_mma", GPU_KERNELS(tiles), .list = some_mma_list, .launch = some_mma_launch};
