/* skinny_mma.cu: products of few rows on any tensor core; the weights stream. A norm is inside, or goes
 * first. */
#include "backend/gpu/cuda/vendor.h"

enum {
    CHUNK = 512,                           /* of k                                                          */
    BUDGET = 112 << 10,                    /* of shared memory, so that a second block fits                 */
    MOST_STAGES = 8,
};

typedef struct tile {
    gpu_kernel kernel;
    int rows, columns;
} tile;

/* Widest first: the widest that still gives every multiprocessor a block is taken. */
static const tile tiles[] = {
    {{"skinny_16_64", 1, 0}, 16, 64}, {{"skinny_16_16", 1, 0}, 16, 16}, {{"skinny_16_8", 1, 0}, 16, 8},
    {{"skinny_64_32", 1, 0}, 64, 32}, {{"skinny_64_16", 1, 0}, 64, 16}, {{"skinny_64_8", 1, 0}, 64, 8},
};
enum { TILES = sizeof tiles / sizeof *tiles };

static int skinny_mma_legal(const tile *t, const gpu_linear *p) {
    int plain = p->epilogue.kind == GPU_EPILOGUE_STORE || p->epilogue.kind == GPU_EPILOGUE_RESIDUAL;
    return p->weights.columns % t->columns == 0 && (t->columns >= GPU_UNIT || plain);
}

static size_t stage_bytes(const tile *t) {
    int atoms = t->columns / 8 * (CHUNK / GPU_ATOM_K);
    return (size_t)t->rows * CHUNK * sizeof(bf16) + (size_t)atoms * cuda_atom_of(GPU_WEIGHT_BF16).bytes;
}

static size_t skinny_mma_shared_of(const tile *t, const gpu_linear *p, int stages) {
    size_t part = 8 * (size_t)t->rows * (size_t)(t->columns + 2) * sizeof(float),
           norm = p->norm ? 2 * (size_t)p->ldx * sizeof(float) : 0;
    size_t shared = (size_t)stages * stage_bytes(t) + norm;
    return shared > part ? shared : part;
}

/* As many stages as leave space for a second block; with a norm inside all of x must be there. */
static int usual_stages(const gpu_device *device, const tile *t, const gpu_linear *p) {
    size_t budget = gpu_shared_bytes(device) < BUDGET ? gpu_shared_bytes(device) : BUDGET;
    int chunks = ceil_div(p->ldx, CHUNK), stages = (int)(budget / stage_bytes(t));
    if (p->norm) return chunks;
    return least(least(stages < 1 ? 1 : stages, MOST_STAGES), chunks);
}

/* The heuristic's tile, or NULL: the first with enough blocks, else the last that fits. */
static const tile *skinny_mma_usual_tile(const gpu_device *device, int rows, const gpu_linear *p) {
    int wanted = gpu_multiprocessors(device) * 3 / 4;
    const tile *found = NULL;
    for (int i = 0; i < TILES; i++) {
        const tile *t = &tiles[i];
        int stages = usual_stages(device, t, p);
        if ((t->rows > 16) != (rows > 16) || !skinny_mma_legal(t, p) || stages > MOST_STAGES ||
            skinny_mma_shared_of(t, p, stages) > gpu_shared_bytes(device))
            continue;
        found = t;
        if (p->weights.columns / t->columns >= wanted) break;
    }
    return found;
}

/* With `norm` rows a block of a norm that goes first, 0: inside. Returns 1 where the heuristic has a tile. */
static int skinny_mma_add(const gpu_device *device, const gpu_task *task, gpu_choices *to, int norm) {
    gpu_linear p = task->product;
    int chunks = ceil_div(p.ldx, CHUNK), rank = cuda_rank_few(device, task, RANK_SKINNY_MMA);
    if (norm) p.norm = GPU_NORM_NONE;
    const tile *usual = skinny_mma_usual_tile(device, task->rows, &p);
    for (int i = 0; i < TILES; i++) {
        const tile *t = &tiles[i];
        int usually = usual_stages(device, t, &p);
        if (!skinny_mma_legal(t, &p)) continue;
        for (int stages = p.norm ? chunks : 1; stages <= least(MOST_STAGES, chunks); stages++) {
            int step = stages == usually || stages == 2 || stages == 4 || stages == 6 || stages == 8;
            if (!step || skinny_mma_shared_of(t, &p, stages) > gpu_shared_bytes(device)) continue;
            gpu_choices_add(to, (gpu_choice){.rank = t == usual && stages == usually ? gpu_usual(norm, rank)
                                                                                     : GPU_RANK_NEVER,
                                             .kernel = i,
                                             .count = stages,
                                             .norm = norm});
        }
    }
    return usual != NULL;
}

static void skinny_mma_list(const gpu_device *device, const gpu_task *task, gpu_choices *to) {
    const gpu_linear *p = &task->product;
    if (task->kind != GPU_PRODUCT || !cuda_tensor_legal(p)) return;
    if (task->rows > FEW_ROWS || p->k_blocks != p->weights.blocks ||
        skinny_mma_add(device, task, to, 0) || !p->norm)
        return;
    for (int i = 0; i < gpu_norms_first(p); i++) skinny_mma_add(device, task, to, gpu_norm_first(p, i));
}

static void skinny_mma_launch(gpu_issue *issue, gpu_task *task, const gpu_choice *choice) {
    const tile *t = &tiles[choice->kernel];
    gpu_linear *p = &task->product;
    p->stages = choice->count;
    gpu_grid grid = {.x = p->weights.columns / t->columns,
                     .y = ceil_div(task->rows, t->rows),
                     .threads = 256,
                     .shared = skinny_mma_shared_of(t, p, choice->count)};
    gpu_emit(issue, choice->kernel, grid, p, sizeof *p);
}

const gpu_family gpu_family_skinny_mma = {
    .name = "skinny_mma", GPU_KERNELS(tiles), .list = skinny_mma_list, .launch = skinny_mma_launch};
