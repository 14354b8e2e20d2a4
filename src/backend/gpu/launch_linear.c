/* Products: every way to run one, the rule that picks one where nobody chose, and how each way is launched.
 *
 *   short     skinny_hopper: up to 64 rows, the denoise loop's
 *   skinny    skinny_mma: few rows, the weights stream
 *   hopper    gemm_hopper: many rows; a norm goes first
 *   mma       gemm_mma: the same on any tensor core
 *   rows      linear_rows: few rows of any type
 *   inputs    linear_short: few rows of few fp32 inputs
 *   velocity  velocity_rows: the end of a denoise step
 *   simt      linear_simt: anything
 *
 * The list's order is part of the contract (op.choice counts in it): new ways go behind those of their kind, and tables
 * name ways, not places. What is legal is said in the head of every kernel. */
#include <string.h>

#include "backend/gpu/launch.h"

enum {
    SHORT_ROWS = 64,
    SKINNY_ROWS = 64,
    SKINNY_CHUNK = 512,
    SKINNY_BUDGET = 112 << 10,
    SKINNY_STAGES = 8,
    FEW_ROWS = 64,
    NORM_ROWS = 4,
    GATED_ROWS = 48, /* from here on a gated product fills tiles of 64 rows: the kernels for few rows lose */
};

static int least(int a, int b) { return a < b ? a : b; }
/* The norm that the rule would put in front, or none. */
static int usual(int norm) { return !norm || norm == NORM_ROWS; }

/* ---- the norm in front ------------------------------------------------------------------------------------ */

/* `rows_a_block`: a warp a row, 4, 2 or 1 of them. */
static void launch_norm(gpu_issue *issue, const row_set *rows, gpu_linear *p, size_t *used, int rows_a_block) {
    int f32 = p->x_type == GPU_X_F32;
    gpu_norm n = {rows->count, p->x, p->from, f32, p->ldx, p->norm, p->norm_weight, p->norm_bias, p->eps, NULL};
    n.out = gpu_work_at(issue, used, (size_t)rows->capacity * (size_t)p->ldx * (f32 ? sizeof(float) : sizeof(bf16)));
    launch(issue, !f32 && n.k % 8 == 0 && n.k <= 2048 ? GPU_norm_rows_bf16 : GPU_norm_rows,
           ceil_div(rows->capacity, rows_a_block), 1, 32 * rows_a_block, 0, &n);
    p->x = n.out;
    p->from = (gpu_row_map){0};
    p->norm = GPU_NORM_NONE;
}

/* ---- few rows, mma ---------------------------------------------------------------------------------------- */

typedef struct skinny_tile {
    gpu_kernel kernel;
    int rows, columns;
} skinny_tile;

/* Widest first: the widest that still gives every multiprocessor a block is taken. */
static const skinny_tile skinny_tiles[] = {
    {GPU_skinny_16_64, 16, 64}, {GPU_skinny_16_16, 16, 16}, {GPU_skinny_16_8, 16, 8},
    {GPU_skinny_64_32, 64, 32}, {GPU_skinny_64_16, 64, 16}, {GPU_skinny_64_8, 64, 8},
};

enum { SKINNY_TILES = sizeof skinny_tiles / sizeof *skinny_tiles };

static int skinny_legal(const skinny_tile *t, const gpu_linear *p) {
    int plain = p->epilogue.kind == GPU_EPILOGUE_STORE || p->epilogue.kind == GPU_EPILOGUE_RESIDUAL;
    return p->weights.columns % t->columns == 0 && (t->columns >= GPU_UNIT || plain);
}

static size_t skinny_stage(const skinny_tile *t) { return (size_t)(t->rows + t->columns) * SKINNY_CHUNK * sizeof(bf16); }

static size_t skinny_shared(const skinny_tile *t, const gpu_linear *p, int stages) {
    size_t part = 8 * (size_t)t->rows * (size_t)(t->columns + 2) * sizeof(float),
           norm = p->norm ? 2 * (size_t)p->ldx * sizeof(float) : 0;
    size_t shared = (size_t)stages * skinny_stage(t) + norm;
    return shared > part ? shared : part;
}

/* As many stages as leave room for a second block; with a norm inside all of x must be there. */
static int skinny_stages(const gpu_device *device, const skinny_tile *t, const gpu_linear *p) {
    size_t budget = device->shared_bytes < SKINNY_BUDGET ? device->shared_bytes : SKINNY_BUDGET;
    int chunks = ceil_div(p->ldx, SKINNY_CHUNK), stages = (int)(budget / skinny_stage(t));
    if (p->norm) return chunks;
    return least(least(stages < 1 ? 1 : stages, SKINNY_STAGES), chunks);
}

/* With `norm` rows a block of a norm that goes first, 0: inside. Returns 1 where the rule found its tile. */
static int add_skinny(const gpu_device *device, gpu_ways *ways, int rows, const gpu_linear *given, int norm) {
    gpu_linear p = *given;
    int wanted = device->multiprocessors * 3 / 4, found = 0, chunks = ceil_div(p.ldx, SKINNY_CHUNK);
    const skinny_tile *rule = NULL;
    if (norm) p.norm = GPU_NORM_NONE;
    for (size_t i = 0; i < SKINNY_TILES && !found; i++) {
        const skinny_tile *t = &skinny_tiles[i];
        int stages = skinny_stages(device, t, &p);
        if ((t->rows > 16) != (rows > 16) || !skinny_legal(t, &p) || stages > SKINNY_STAGES ||
            skinny_shared(t, &p, stages) > device->shared_bytes)
            continue;
        rule = t;
        found = p.weights.columns / t->columns >= wanted;
    }
    for (size_t i = 0; i < SKINNY_TILES; i++) {
        const skinny_tile *t = &skinny_tiles[i];
        int rule_stages = skinny_stages(device, t, &p);
        if (!skinny_legal(t, &p)) continue;
        for (int stages = p.norm ? chunks : 1; stages <= least(SKINNY_STAGES, chunks); stages++) {
            int step = stages == rule_stages || stages == 2 || stages == 4 || stages == 6 || stages == 8;
            if (step && skinny_shared(t, &p, stages) <= device->shared_bytes)
                gpu_ways_add(ways, (gpu_way){t->kernel, (int)i, stages, norm}, t == rule && stages == rule_stages && usual(norm));
        }
    }
    return rule != NULL;
}

static void launch_skinny(gpu_issue *issue, const row_set *rows, gpu_linear *p, const gpu_way *way) {
    const skinny_tile *t = &skinny_tiles[way->tile];
    p->stages = way->count;
    launch(issue, t->kernel, p->weights.columns / t->columns, ceil_div(rows->capacity, t->rows), 256,
           skinny_shared(t, p, way->count), p);
}

/* ---- many rows, Hopper: what a store can do is in the kernel's head --------------------------------------- */

enum { STORE_ROWS, STORE_TURNED, STORE_GATED };

typedef struct hopper_tile {
    gpu_kernel kernel;
    int columns, rows, consumers, stages, store, residual;
    int parts;                             /* most blocks of a cluster that share k; 0: not made for it       */
} hopper_tile;

/* The rule does not know of parts; when those win, a table says. */
static const hopper_tile hopper_tiles[] = {
    {GPU_hopper_160x128, 160, 128, 2, 6, STORE_ROWS, 0, 0},
    {GPU_hopper_200x128, 200, 128, 2, 5, STORE_ROWS, 0, 0},
    {GPU_hopper_256x128, 256, 128, 2, 4, STORE_ROWS, 0, 0},
    {GPU_hopper_256x64, 256, 64, 1, 5, STORE_ROWS, 0, 0},
    {GPU_hopper_128x64, 128, 64, 1, 8, STORE_ROWS, 1, 0},
    {GPU_hopper_64x200_turned, 64, 200, 1, 6, STORE_TURNED, 1, 0},
    {GPU_hopper_64x208_turned, 64, 208, 1, 5, STORE_TURNED, 1, 0},
    {GPU_hopper_128x200_gated, 128, 200, 2, 4, STORE_GATED, 0, 0},
    {GPU_hopper_128x184_gated, 128, 184, 2, 4, STORE_GATED, 0, 0},
    {GPU_hopper_128x168_gated, 128, 168, 2, 4, STORE_GATED, 0, 0},
    {GPU_hopper_128x144_gated, 128, 144, 2, 5, STORE_GATED, 0, 0},
    {GPU_hopper_128x200_parts, 128, 200, 2, 4, STORE_TURNED, 1, 8},
    {GPU_hopper_128x144_parts, 128, 144, 2, 5, STORE_TURNED, 1, 8},
    {GPU_hopper_128x128_parts, 128, 128, 2, 5, STORE_TURNED, 1, 8},
};
enum { HOPPER_TILES = sizeof hopper_tiles / sizeof *hopper_tiles, MOST_PARTS = 8 };

static int hopper_legal(const hopper_tile *t, const gpu_linear *p) {
    const gpu_epilogue *e = &p->epilogue;
    if (e->f32 || e->x_t || e->split || e->to.group) return 0;
    switch (e->kind) {
    case GPU_EPILOGUE_GATED:
        return t->store != STORE_TURNED && t->columns % 32 == 0 && !e->bias && e->n % 8 == 0 &&
               !(t->store == STORE_GATED && e->to.map);
    case GPU_EPILOGUE_QKV: return t->store == STORE_ROWS && t->columns % 32 == 0 && e->head_dim % 16 == 0;
    }
    return t->store != STORE_GATED && e->n % 8 == 0;
}

/* Cycles, roughly: a tile's multiplications or its bytes from the second-level cache, whichever is longer, times the waves. */
static double hopper_cost(const gpu_device *device, const hopper_tile *t, int rows, const gpu_linear *p) {
    int tiles = ceil_div(rows, t->rows) * ceil_div(p->weights.columns, t->columns), k = p->k_blocks * GPU_ATOM_K;
    double multiply = (double)t->columns * t->rows * k / 2048, move = (double)(t->columns + t->rows) * 2 * k / 72;
    double store = t->store == STORE_GATED                   ? 0
                   : p->epilogue.kind == GPU_EPILOGUE_GATED ? 6000.0 / (256 * 128) * t->columns * t->rows
                                                            : 1500;
    return ceil_div(tiles, device->multiprocessors) * ((multiply > move ? multiply : move) + store);
}

static size_t hopper_shared(const hopper_tile *t) {
    size_t stage = (size_t)(t->columns + t->rows) * 128,
           behind = t->residual ? (size_t)t->columns * (size_t)t->rows * sizeof(bf16) : 0;
    if (t->store == STORE_GATED) behind = (size_t)t->consumers * (size_t)t->rows * 128;
    return (size_t)t->stages * (stage + 16) + 16 + behind +
           (t->store == STORE_GATED ? 0 : 2 * (size_t)t->columns * sizeof(float));
}

/* `norm` as in add_skinny. */
static void add_hopper(const gpu_device *device, gpu_ways *ways, int rows, const gpu_linear *p, int norm) {
    const hopper_tile *best = NULL;
    double least_cost = 0;
    for (int i = 0; i < HOPPER_TILES; i++) {
        if (hopper_tiles[i].parts || !hopper_legal(&hopper_tiles[i], p)) continue;
        double cost = hopper_cost(device, &hopper_tiles[i], rows, p);
        if (best && cost >= least_cost) continue;
        best = &hopper_tiles[i];
        least_cost = cost;
    }
    for (int i = 0; i < HOPPER_TILES; i++) {
        const hopper_tile *t = &hopper_tiles[i];
        if (!hopper_legal(t, p) || hopper_shared(t) > device->shared_bytes) continue;
        if (!t->parts) gpu_ways_add(ways, (gpu_way){t->kernel, i, 0, norm}, t == best && usual(norm));
        for (int parts = 1; parts <= t->parts && parts <= p->k_blocks; parts++)
            if (parts <= 4 || parts == MOST_PARTS) gpu_ways_add(ways, (gpu_way){t->kernel, i, parts, norm}, 0);
    }
}

static void launch_hopper(gpu_issue *issue, const row_set *rows, const gpu_linear *p, const gpu_way *way) {
    const hopper_tile *t = &hopper_tiles[way->tile];
    gpu_hopper h;
    if (issue->measure || issue->code) return;
    uint64_t capacity = (uint64_t)rows->capacity, blocks = (uint64_t)p->weights.blocks, n = (uint64_t)p->epilogue.n,
             ldx = (uint64_t)p->ldx;
    memset(&h, 0, sizeof h);
    h.linear = *p;
    gpu_make_map(
        issue, &h.weights, -1, 3, p->weights.data, (uint64_t[]){GPU_ATOM_BYTES / 4, blocks, (uint64_t)p->weights.columns / 8},
        (uint64_t[]){GPU_ATOM_BYTES, GPU_ATOM_BYTES * blocks}, (unsigned[]){GPU_ATOM_BYTES / 4, 1, (unsigned)t->columns / 8});
    gpu_make_map(issue, &h.x, 1, 2, p->x, (uint64_t[]){ldx, capacity}, (uint64_t[]){ldx * sizeof(bf16)},
                 (unsigned[]){GPU_ATOM_K, (unsigned)t->rows});
    if (t->residual && p->epilogue.kind == GPU_EPILOGUE_RESIDUAL)
        gpu_make_map(issue, &h.residual, 0, 2, p->epilogue.out, (uint64_t[]){n, capacity}, (uint64_t[]){n * sizeof(bf16)},
                     (unsigned[]){64, (unsigned)t->rows});
    int tiles = ceil_div(rows->capacity, t->rows) * ceil_div(p->weights.columns, t->columns),
        sms = issue->device->multiprocessors, parts = way->count ? way->count : 1;
    gpu_launch_cluster(issue, t->kernel, t->store == STORE_GATED && tiles > sms ? sms : tiles * parts, 1, parts,
                       (t->consumers + 1) * 128, hopper_shared(t), &h);
}

/* ---- up to 64 rows, Hopper: 16 rows and 8·groups columns a cluster, k in `parts` -------------------------- */

typedef struct short_tile {
    gpu_kernel kernel;
    int kind, groups, parts;
    int ways;                              /* that its warps share the groups in                              */
} short_tile;

/* The first that is legal is the rule's: wide ones leave a multiprocessor one block, so that all blocks of a kernel are there,
 * and fetch their weights, while the one in front still runs. */
static const short_tile short_tiles[] = {
    {GPU_skinny_hopper_qkv_4, GPU_EPILOGUE_QKV, 4, 1, 2},
    {GPU_skinny_hopper_qkv_2, GPU_EPILOGUE_QKV, 2, 1, 1},
    {GPU_skinny_hopper_gated_8, GPU_EPILOGUE_GATED, 8, 1, 2},
    {GPU_skinny_hopper_gated_4, GPU_EPILOGUE_GATED, 4, 1, 1},
    {GPU_skinny_hopper_residual_4, GPU_EPILOGUE_RESIDUAL, 4, 4, 2},
    {GPU_skinny_hopper_residual_2, GPU_EPILOGUE_RESIDUAL, 2, 2, 1},
    {GPU_skinny_hopper_store_2, GPU_EPILOGUE_STORE, 2, 2, 1},
};

enum { SHORT_TILES = sizeof short_tiles / sizeof *short_tiles };

static int short_legal(const short_tile *t, const gpu_linear *p) {
    const gpu_epilogue *e = &p->epilogue;
    int blocks = p->k_blocks / t->parts;
    if (e->kind != t->kind || e->f32 || e->x_t || p->ldx % GPU_ATOM_K || p->from.map || p->from.group) return 0;
    if (p->k_blocks % t->parts || blocks < 1 || blocks > 16 || p->weights.blocks % blocks || p->weights.columns % (8 * t->groups))
        return 0;
    if (p->norm && (p->norm != GPU_NORM_RMS || t->parts > 1 || t->kind == GPU_EPILOGUE_STORE)) return 0;
    if (e->kind == GPU_EPILOGUE_QKV) return e->head_dim % 16 == 0;
    return e->n % 8 == 0 && !(e->kind == GPU_EPILOGUE_GATED && e->bias) && !e->add;
}

int gpu_split_legal(const gpu_device *device, int rows, int k) {
    return device->hopper && rows <= SHORT_ROWS && k % GPU_ATOM_K == 0 && k <= 16 * GPU_ATOM_K;
}

static void launch_short(gpu_issue *issue, const row_set *rows, const gpu_linear *p, const gpu_way *way) {
    const short_tile *t = &short_tiles[way->tile];
    if (issue->measure || issue->code) return;
    size_t blocks = (size_t)(p->k_blocks / t->parts), operands = blocks * (2048 + (size_t)t->groups * GPU_ATOM_BYTES);
    size_t sums = (size_t)(8 / t->ways * t->groups) * 512;
    size_t shared = t->parts > 1 ? operands + sums : operands > sums ? operands : sums;
    gpu_hopper h;
    memset(&h, 0, sizeof h);
    h.linear = *p;
    h.linear.stages = (int)shared;
    if (p->norm) shared += (p->norm_bias ? 2 : 1) * (size_t)p->ldx * sizeof(float);
    gpu_make_map(issue, &h.x, 1, 3, p->x, (uint64_t[]){GPU_ATOM_K, (uint64_t)rows->capacity, (uint64_t)p->k_blocks},
                 (uint64_t[]){(uint64_t)p->ldx * sizeof(bf16), GPU_ATOM_K * sizeof(bf16)},
                 (unsigned[]){GPU_ATOM_K, 16, (unsigned)blocks});
    gpu_launch_cluster(issue, t->kernel, p->weights.columns / (8 * t->groups) * t->parts, ceil_div(rows->capacity, 16), t->parts,
                       256, shared, &h);
}

/* ---- both ends of a denoise step -------------------------------------------------------------------------- */

enum { SHORT_INPUTS = 32, VELOCITY_INPUTS = 1024, VELOCITY_ROWS = 8 };

static int inputs_legal(const gpu_linear *p) {
    return p->x_type == GPU_X_F32 && !p->norm && p->epilogue.kind == GPU_EPILOGUE_STORE && p->weights.k % 4 == 0 &&
           p->weights.k <= SHORT_INPUTS;
}

static int velocity_legal(const gpu_linear *p) {
    const gpu_epilogue *e = &p->epilogue;
    return p->x_type == GPU_X_BF16 && p->round && p->norm != GPU_NORM_LAYER && p->weights.k % 8 == 0 &&
           p->weights.k <= VELOCITY_INPUTS && e->kind == GPU_EPILOGUE_STORE && e->x_t && e->f32 && !e->split && !e->add &&
           e->activation == GPU_ACT_NONE && !e->to.map && !e->to.group;
}

/* What is made for one product is the rule's wherever it can run. */
static void add_special(gpu_ways *ways, int rows, const gpu_linear *p) {
    if (rows <= FEW_ROWS && inputs_legal(p)) ways->rule = -1, gpu_ways_add(ways, (gpu_way){GPU_linear_short, 0, 0, 0}, 1);
    if (velocity_legal(p)) {
        ways->rule = -1;
        gpu_ways_add(ways, (gpu_way){p->weights.f32 ? GPU_velocity_rows_f32 : GPU_velocity_rows, 0, 0, 0}, 1);
    }
}

/* ---- all of them ------------------------------------------------------------------------------------------ */

static size_t rows_shared(const gpu_linear *p) { return 16 * (size_t)((p->weights.k + 3) & ~3) * sizeof(float); }

/* Rows a block of a norm that goes first, the usual first; without a norm once 0. */
static const int norm_rows[] = {NORM_ROWS, 2, 1};
static int norm_ways(const gpu_linear *p) { return p->norm ? (int)(sizeof norm_rows / sizeof *norm_rows) : 1; }
static int norm_way(const gpu_linear *p, int i) { return p->norm ? norm_rows[i] : 0; }

/* Kernels on tensor cores. */
static void list_tensor(const gpu_device *device, gpu_ways *ways, int rows, const gpu_linear *p) {
    int mapped = p->from.map || p->from.group, few = rows <= SKINNY_ROWS && p->k_blocks == p->weights.blocks, inside = 0;
    if (device->hopper && rows <= SHORT_ROWS)
        for (size_t i = 0; i < SHORT_TILES; i++)
            if (short_legal(&short_tiles[i], p)) gpu_ways_add(ways, (gpu_way){short_tiles[i].kernel, (int)i, 0, 0}, 1);
    if (few) inside = add_skinny(device, ways, rows, p, 0);
    for (int i = 0; i < norm_ways(p); i++) {
        int norm = norm_way(p, i), big = ceil_div(rows, 128) * ceil_div(p->weights.columns, 128) >= device->multiprocessors / 2;
        if (few && !inside) add_skinny(device, ways, rows, p, norm);
        if (mapped && !norm) continue;
        if (device->hopper && !i && p->epilogue.kind == GPU_EPILOGUE_GATED && rows > GATED_ROWS) ways->rule = -1;
        if (device->hopper) add_hopper(device, ways, rows, p, norm);
        gpu_ways_add(ways, (gpu_way){GPU_gemm_mma_128_128, 0, 0, norm}, big && usual(norm));
        gpu_ways_add(ways, (gpu_way){GPU_gemm_mma_64_64, 0, 0, norm}, !big && usual(norm));
    }
}

static void list_ways(const gpu_device *device, gpu_ways *ways, int rows, const gpu_linear *p) {
    ways->count = 0;
    ways->rule = -1;
    if (p->x_type == GPU_X_BF16 && !p->weights.f32 && p->ldx % 8 == 0) list_tensor(device, ways, rows, p);
    if (p->k_blocks != p->weights.blocks && ways->count) return;              /* x in two parts: tensor cores only */
    if (rows <= FEW_ROWS && rows_shared(p) <= device->shared_bytes) gpu_ways_add(ways, (gpu_way){GPU_linear_rows, 0, 0, 0}, 1);
    add_special(ways, rows, p);
    for (int i = 0; i < norm_ways(p); i++)
        gpu_ways_add(ways, (gpu_way){GPU_linear_simt, 0, 0, norm_way(p, i)}, usual(norm_way(p, i)));
}

static void launch_big(gpu_issue *issue, const row_set *rows, const gpu_linear *p, gpu_kernel kernel) {
    int columns = p->weights.columns, capacity = rows->capacity;
    switch (kernel) {
    case GPU_gemm_mma_128_128:
        launch(issue, kernel, ceil_div(capacity, 128), ceil_div(columns, 128), 256, 3 * 256 * 128, p);
        return;
    case GPU_gemm_mma_64_64: launch(issue, kernel, ceil_div(capacity, 64), ceil_div(columns, 64), 128, 4 * 128 * 128, p); return;
    case GPU_linear_rows: launch(issue, kernel, columns / GPU_UNIT, ceil_div(capacity, 16), 256, rows_shared(p), p); return;
    case GPU_linear_short: launch(issue, kernel, ceil_div(columns, 64), ceil_div(capacity, 4), 128, 0, p); return;
    case GPU_velocity_rows:
    case GPU_velocity_rows_f32:
        launch(issue, kernel, columns / (kernel == GPU_velocity_rows ? 16 : 8), ceil_div(capacity, VELOCITY_ROWS), 256, 0, p);
        return;
    default: launch(issue, GPU_linear_simt, ceil_div(capacity, 64), ceil_div(columns, 64), 256, 0, p); return;
    }
}

void gpu_launch_linear(gpu_issue *issue, const row_set *rows, gpu_linear p, size_t used) {
    gpu_ways ways;
    list_ways(issue->device, &ways, rows->capacity, &p);
    const gpu_way *way = gpu_pick(issue, &ways);
    if (!way) return;
    gpu_kernel kernel = way->kernel;
    if (way->norm) launch_norm(issue, rows, &p, &used, way->norm);
    if (way->tile < (int)SHORT_TILES && short_tiles[way->tile].kernel == kernel) launch_short(issue, rows, &p, way);
    else if (way->tile < (int)SKINNY_TILES && skinny_tiles[way->tile].kernel == kernel) launch_skinny(issue, rows, &p, way);
    else if (way->tile < (int)HOPPER_TILES && hopper_tiles[way->tile].kernel == kernel) launch_hopper(issue, rows, &p, way);
    else launch_big(issue, rows, &p, kernel);
}
