/* How an op becomes launches: which kernels, which tiles, what of the work block.
 *
 * Everything here is decided from capacities and types, never from the numbers of a call: those live on the device
 * and a block that finds no rows left ends at once. The same walk with `measure` only adds up the work block.
 * Every op starts at the work block's beginning: kernels run in order, and none touches it before all earlier ones
 * have ended. */
#include <string.h>

#include "backend/gpu/gpu.h"

#ifndef SHORT_LIMIT
#define SHORT_LIMIT 64
#endif
enum { SHORT_ROWS = SHORT_LIMIT, SKINNY_ROWS = 64, SKINNY_CHUNK = 512, SKINNY_BUDGET = 112 << 10, FEW_ROWS = 64, MOST_SPLITS = 32, KEY_TILE = 64 };

static int ceil_div(int a, int b) { return (a + b - 1) / b; }
static size_t round_256(size_t bytes) { return (bytes + 255) & ~(size_t)255; }

/* ---- one launch ------------------------------------------------------------------------------------------- */

/* In clusters of `cluster` blocks (1: none), x a multiple of it. */
static void launch_cluster(gpu_issue *issue, gpu_kernel kernel, int x, int y, int cluster, int threads, size_t shared, const void *arguments) {
    gpu_device *self = issue->device;
    gpu_attribute attributes[2];
    unsigned count = 0;
    if (issue->measure || issue->code || x <= 0 || y <= 0) return;
    if (self->overlap && !issue->first) attributes[count++] = (gpu_attribute){.id = GPU_ATTRIBUTE_OVERLAP, .value.flag = 1};
    if (cluster > 1) attributes[count++] = (gpu_attribute){.id = GPU_ATTRIBUTE_CLUSTER, .value.cluster = {(unsigned)cluster, 1, 1}};
    gpu_launch config = {{(unsigned)x, (unsigned)y, 1}, {(unsigned)threads, 1, 1}, (unsigned)shared, issue->stream, attributes, count};
    void *list[] = {(void *)(uintptr_t)arguments};
    issue->first = 0;
    issue->code = self->driver.launch(&config, self->kernels[kernel], list, NULL);
}

static void launch(gpu_issue *issue, gpu_kernel kernel, int x, int y, int threads, size_t shared, const void *arguments) {
    launch_cluster(issue, kernel, x, y, 1, threads, shared, arguments);
}

/* `bytes` of the work block behind `*used`. */
static void *work_at(gpu_issue *issue, size_t *used, size_t bytes) {
    size_t at = *used;
    *used = at + round_256(bytes);
    if (*used > issue->work_bytes) issue->work_bytes = *used;
    return issue->measure ? NULL : issue->work + at;
}

/* ---- products --------------------------------------------------------------------------------------------- */

static void launch_norm(gpu_issue *issue, const row_set *rows, gpu_linear *p, size_t *used) {
    int f32 = p->x_type == GPU_X_F32;
    gpu_norm n = {rows->count, p->x, p->from, f32, p->ldx, p->norm, p->norm_weight, p->norm_bias, p->eps, NULL};
    n.out = work_at(issue, used, (size_t)rows->capacity * (size_t)p->ldx * (f32 ? sizeof(float) : sizeof(bf16)));
    launch(issue, !f32 && n.k % 8 == 0 && n.k <= 2048 ? GPU_norm_rows_bf16 : GPU_norm_rows, ceil_div(rows->capacity, 4), 1, 128, 0, &n);
    p->x = n.out;
    p->from = (gpu_row_map){0};
    p->norm = GPU_NORM_NONE;
}

typedef struct skinny_tile {
    gpu_kernel kernel;
    int rows, columns;
} skinny_tile;

/* Widest first: the widest that still gives every multiprocessor a block is taken. */
static const skinny_tile skinny_tiles[] = {
    {GPU_skinny_16_64, 16, 64}, {GPU_skinny_16_16, 16, 16}, {GPU_skinny_16_8, 16, 8},
    {GPU_skinny_64_32, 64, 32}, {GPU_skinny_64_16, 64, 16}, {GPU_skinny_64_8, 64, 8},
};

static int skinny_legal(const skinny_tile *t, const gpu_linear *p) {
    int plain = p->epilogue.kind == GPU_EPILOGUE_STORE || p->epilogue.kind == GPU_EPILOGUE_RESIDUAL;
    return p->weights.columns % t->columns == 0 && (t->columns >= GPU_UNIT || plain);
}

static void launch_skinny(gpu_issue *issue, const row_set *rows, gpu_linear *p, size_t *used) {
    int tall = rows->capacity > 16, wanted = issue->device->multiprocessors * 3 / 4, chunks = ceil_div(p->ldx, SKINNY_CHUNK);
    size_t most = issue->device->shared_bytes, norm_bytes = p->norm ? 2 * (size_t)p->ldx * sizeof(float) : 0;
    const skinny_tile *tile = NULL;
    for (size_t i = 0; i < sizeof skinny_tiles / sizeof *skinny_tiles; i++) {
        const skinny_tile *t = &skinny_tiles[i];
        size_t stage = (size_t)(t->rows + t->columns) * SKINNY_CHUNK * sizeof(bf16);
        int fits = p->norm ? chunks <= 8 && (size_t)chunks * stage + norm_bytes <= most : stage <= most;
        if ((t->rows > 16) != tall || !skinny_legal(t, p) || !fits) continue;
        tile = t;
        if (p->weights.columns / t->columns >= wanted) break;
    }
    if (!tile) {                           /* x does not fit whole: its norm goes first */
        launch_norm(issue, rows, p, used);
        launch_skinny(issue, rows, p, used);
        return;
    }
    size_t stage = (size_t)(tile->rows + tile->columns) * SKINNY_CHUNK * sizeof(bf16);
    size_t part = 8 * (size_t)tile->rows * (size_t)(tile->columns + 2) * sizeof(float), budget = most < SKINNY_BUDGET ? most : SKINNY_BUDGET;
    int stages = p->norm ? chunks : (int)(budget / stage);
    if (stages < 1) stages = 1;
    if (stages > 8) stages = 8;
    if (stages > chunks) stages = chunks;
    p->stages = stages;
    size_t shared = (size_t)stages * stage + norm_bytes;
    launch(issue, tile->kernel, p->weights.columns / tile->columns, ceil_div(rows->capacity, tile->rows), 256, shared > part ? shared : part, p);
}

/* gemm_hopper's tiles; what a store can do is in the kernel's head. */
enum { STORE_ROWS, STORE_TURNED, STORE_GATED };

typedef struct hopper_tile {
    gpu_kernel kernel;
    int columns, rows, consumers, stages, store, residual;
} hopper_tile;

static const hopper_tile hopper_tiles[] = {
    {GPU_hopper_160x128, 160, 128, 2, 6, STORE_ROWS, 0}, {GPU_hopper_200x128, 200, 128, 2, 5, STORE_ROWS, 0},
    {GPU_hopper_256x128, 256, 128, 2, 4, STORE_ROWS, 0}, {GPU_hopper_256x64, 256, 64, 1, 5, STORE_ROWS, 0},
    {GPU_hopper_128x64, 128, 64, 1, 8, STORE_ROWS, 1},   {GPU_hopper_64x200_turned, 64, 200, 1, 6, STORE_TURNED, 1},
    {GPU_hopper_128x200_gated, 128, 200, 2, 4, STORE_GATED, 0},
};

static int hopper_legal(const hopper_tile *t, const gpu_linear *p) {
    const gpu_epilogue *e = &p->epilogue;
    if (e->f32 || e->x_t || e->split || e->to.group) return 0;
    switch (e->kind) {
    case GPU_EPILOGUE_GATED: return t->store != STORE_TURNED && t->columns % 32 == 0 && !e->bias && e->n % 8 == 0;
    case GPU_EPILOGUE_QKV: return t->store == STORE_ROWS && t->columns % 32 == 0 && e->head_dim % 16 == 0;
    }
    return t->store != STORE_GATED && e->n % 8 == 0;
}

/* Cycles, roughly: a tile's multiplications or its bytes from the second-level cache, whichever is longer, times the waves. */
static double hopper_cost(const gpu_issue *issue, const hopper_tile *t, int rows, const gpu_linear *p) {
    int tiles = ceil_div(rows, t->rows) * ceil_div(p->weights.columns, t->columns), k = p->k_blocks * GPU_ATOM_K;
    double multiply = (double)t->columns * t->rows * k / 2048, move = (double)(t->columns + t->rows) * 2 * k / 72;
    return ceil_div(tiles, issue->device->multiprocessors) * ((multiply > move ? multiply : move) + (t->store == STORE_GATED ? 0 : 1500));
}

static size_t hopper_shared(const hopper_tile *t) {
    size_t stage = (size_t)(t->columns + t->rows) * 128, behind = t->residual ? (size_t)t->columns * (size_t)t->rows * sizeof(bf16) : 0;
    if (t->store == STORE_GATED) behind = (size_t)t->consumers * (size_t)t->rows * 128;
    return (size_t)t->stages * (stage + 16) + 16 + behind + (t->store == STORE_GATED ? 0 : 2 * (size_t)t->columns * sizeof(float));
}

/* A map of rank 2 or 3 over bf16, `swizzled` by 128 bytes, or over fp32 words. */
static void make_map(gpu_issue *issue, gpu_tensor_map *map, int swizzled, unsigned rank, const void *base, const uint64_t *dims, const uint64_t *strides,
                     const unsigned *box) {
    static const unsigned ones[3] = {1, 1, 1};
    if (issue->code) return;
    issue->code = issue->device->driver.tensor_map(map, swizzled < 0 ? GPU_MAP_FLOAT32 : GPU_MAP_BF16, rank, (void *)(uintptr_t)base, dims, strides, box, ones, 0,
                                                   swizzled > 0 ? GPU_MAP_SWIZZLE_128 : GPU_MAP_SWIZZLE_NONE, GPU_MAP_PROMOTE_256, 0);
}

/* 1 if the product runs on the Hopper kernels. */
static int launch_hopper(gpu_issue *issue, const row_set *rows, const gpu_linear *p) {
    const hopper_tile *best = NULL;
    double least = 0;
    gpu_hopper h;
    for (size_t i = 0; i < sizeof hopper_tiles / sizeof *hopper_tiles; i++) {
        if (!hopper_legal(&hopper_tiles[i], p)) continue;
        double cost = hopper_cost(issue, &hopper_tiles[i], rows->capacity, p);
        if (best && cost >= least) continue;
        best = &hopper_tiles[i];
        least = cost;
    }
    if (!best) return 0;
    if (issue->measure || issue->code) return 1;
    uint64_t capacity = (uint64_t)rows->capacity, blocks = (uint64_t)p->weights.blocks, n = (uint64_t)p->epilogue.n, ldx = (uint64_t)p->ldx;
    memset(&h, 0, sizeof h);
    h.linear = *p;
    make_map(issue, &h.weights, -1, 3, p->weights.data, (uint64_t[]){GPU_ATOM_BYTES / 4, blocks, (uint64_t)p->weights.columns / 8},
             (uint64_t[]){GPU_ATOM_BYTES, GPU_ATOM_BYTES * blocks}, (unsigned[]){GPU_ATOM_BYTES / 4, 1, (unsigned)best->columns / 8});
    make_map(issue, &h.x, 1, 2, p->x, (uint64_t[]){ldx, capacity}, (uint64_t[]){ldx * sizeof(bf16)}, (unsigned[]){GPU_ATOM_K, (unsigned)best->rows});
    if (best->residual && p->epilogue.kind == GPU_EPILOGUE_RESIDUAL)
        make_map(issue, &h.residual, 0, 2, p->epilogue.out, (uint64_t[]){n, capacity}, (uint64_t[]){n * sizeof(bf16)}, (unsigned[]){64, (unsigned)best->rows});
    int tiles = ceil_div(rows->capacity, best->rows) * ceil_div(p->weights.columns, best->columns), sms = issue->device->multiprocessors;
    launch(issue, best->kernel, best->store == STORE_GATED && tiles > sms ? sms : tiles, 1, (best->consumers + 1) * 128, hopper_shared(best), &h);
    return 1;
}

/* skinny_hopper's forms: 16 rows and 8·groups columns a cluster, k in `parts`. */
typedef struct short_tile {
    gpu_kernel kernel;
    int kind, groups, parts;
} short_tile;

static const short_tile short_tiles[] = {
    {GPU_skinny_hopper_qkv, GPU_EPILOGUE_QKV, 2, 1},
    {GPU_skinny_hopper_gated, GPU_EPILOGUE_GATED, 4, 1},
    {GPU_skinny_hopper_residual_2, GPU_EPILOGUE_RESIDUAL, 2, 2},
    {GPU_skinny_hopper_residual_4, GPU_EPILOGUE_RESIDUAL, 4, 4},
    {GPU_skinny_hopper_store_2, GPU_EPILOGUE_STORE, 2, 2},
};

static int short_legal(const short_tile *t, const gpu_linear *p) {
    const gpu_epilogue *e = &p->epilogue;
    int blocks = p->k_blocks / t->parts;
    if (e->kind != t->kind || e->f32 || e->x_t || p->ldx % GPU_ATOM_K || p->from.map || p->from.group) return 0;
    if (p->k_blocks % t->parts || blocks < 1 || blocks > 16 || p->weights.blocks % blocks || p->weights.columns % (8 * t->groups)) return 0;
    if (p->norm && (p->norm != GPU_NORM_RMS || t->parts > 1 || t->kind == GPU_EPILOGUE_STORE)) return 0;
    if (e->kind == GPU_EPILOGUE_QKV) return e->head_dim % 16 == 0;
    return e->n % 8 == 0 && !(e->kind == GPU_EPILOGUE_GATED && e->bias) && !e->add;
}

static int launch_short(gpu_issue *issue, const row_set *rows, const gpu_linear *p) {
    const short_tile *t = NULL;
    for (size_t i = 0; i < sizeof short_tiles / sizeof *short_tiles && !t; i++)
        if (short_legal(&short_tiles[i], p)) t = &short_tiles[i];
    if (!t || rows->capacity > SHORT_ROWS) return 0;
    if (issue->measure || issue->code) return 1;
    size_t blocks = (size_t)(p->k_blocks / t->parts), operands = blocks * (2048 + (size_t)t->groups * GPU_ATOM_BYTES);
    size_t sums = (size_t)t->parts * 8 * (size_t)(t->groups / t->parts) * 512;
    size_t shared = t->parts > 1 ? operands + sums : operands > sums ? operands : sums;
    gpu_hopper h;
    memset(&h, 0, sizeof h);
    h.linear = *p;
    h.linear.stages = (int)shared;
    if (p->norm) shared += 2 * (size_t)p->ldx * sizeof(float);
    make_map(issue, &h.x, 1, 3, p->x, (uint64_t[]){GPU_ATOM_K, (uint64_t)rows->capacity, (uint64_t)p->k_blocks},
             (uint64_t[]){(uint64_t)p->ldx * sizeof(bf16), GPU_ATOM_K * sizeof(bf16)}, (unsigned[]){GPU_ATOM_K, 16, (unsigned)blocks});
    launch_cluster(issue, t->kernel, p->weights.columns / (8 * t->groups) * t->parts, ceil_div(rows->capacity, 16), t->parts, 256, shared, &h);
    return 1;
}

/* p.x is act or fp32 (not pixels), k_blocks as W's. */
static void launch_linear(gpu_issue *issue, const row_set *rows, gpu_linear p, size_t used) {
    int mapped = p.from.map || p.from.group, columns = p.weights.columns;
    int tensor = p.x_type == GPU_X_BF16 && !p.weights.f32 && p.ldx % 8 == 0;
    if (tensor && issue->device->hopper && launch_short(issue, rows, &p)) return;
    if (tensor && rows->capacity <= SKINNY_ROWS && p.k_blocks == p.weights.blocks) {
        launch_skinny(issue, rows, &p, &used);
        return;
    }
    if (tensor && (p.norm || !mapped)) {
        if (p.norm) launch_norm(issue, rows, &p, &used);
        if (issue->device->hopper && launch_hopper(issue, rows, &p)) return;
        int big = ceil_div(rows->capacity, 128) * ceil_div(columns, 128) >= issue->device->multiprocessors / 2;
        if (big) launch(issue, GPU_gemm_mma_128_128, ceil_div(rows->capacity, 128), ceil_div(columns, 128), 256, 3 * 256 * 128, &p);
        else launch(issue, GPU_gemm_mma_64_64, ceil_div(rows->capacity, 64), ceil_div(columns, 64), 128, 4 * 128 * 128, &p);
        return;
    }
    size_t x_bytes = 16 * (size_t)((p.weights.k + 3) & ~3) * sizeof(float);
    if (rows->capacity <= FEW_ROWS && x_bytes <= issue->device->shared_bytes) {
        launch(issue, GPU_linear_rows, columns / GPU_UNIT, ceil_div(rows->capacity, 16), 256, x_bytes, &p);
        return;
    }
    if (p.norm) launch_norm(issue, rows, &p, &used);
    launch(issue, GPU_linear_simt, ceil_div(rows->capacity, 64), ceil_div(columns, 64), 256, 0, &p);
}

static gpu_linear linear_of(const row_set *rows, const void *x, int f32, const norm *norm, const matrix *weight) {
    gpu_linear p = {.count = rows->count, .capacity = rows->capacity, .x_type = f32 ? GPU_X_F32 : GPU_X_BF16, .x = x, .ldx = weight->k, .weights = gpu_weights_of(weight)};
    p.k_blocks = p.weights.blocks;
    p.round = !f32;
    if (norm && norm->kind != NORM_NONE) {
        p.norm = norm->kind == NORM_LAYER ? GPU_NORM_LAYER : GPU_NORM_RMS;
        p.norm_weight = norm->weight;
        p.norm_bias = norm->bias;
        p.eps = norm->eps;
    }
    return p;
}

static int activation_of(activation a) { return a == ACT_GELU || a == ACT_GEGLU ? GPU_ACT_GELU : a == ACT_SILU ? GPU_ACT_SILU : GPU_ACT_NONE; }

static void issue_norm_linear(gpu_issue *issue, const op *op) {
    const op_norm_linear *a = &op->norm_linear;
    int f32 = op->type == DTYPE_F32, gated = a->weight.form == MATRIX_GATED;
    gpu_linear p = linear_of(&a->rows, a->x, f32, &a->norm, &a->weight);
    int n = gated ? a->weight.n / 2 : a->weight.n;
    p.epilogue = (gpu_epilogue){.kind = gated ? GPU_EPILOGUE_GATED : GPU_EPILOGUE_STORE, .activation = activation_of(a->activation), .f32 = f32,
                                .n = n, .n_second = n, .bias = a->bias, .to.map = a->out_row, .out = a->out};
    launch_linear(issue, &a->rows, p, 0);
}

static void issue_linear_residual(gpu_issue *issue, const op *op) {
    const op_linear_residual *a = &op->linear_residual;
    int f32 = op->type == DTYPE_F32;
    gpu_linear p = linear_of(&a->rows, a->a, f32, NULL, &a->weight);
    p.epilogue = (gpu_epilogue){.kind = GPU_EPILOGUE_RESIDUAL, .f32 = f32, .n = a->weight.n, .bias = a->bias, .gate = a->gate, .out = a->x};
    launch_linear(issue, &a->rows, p, 0);
}

static void issue_norm_qkv(gpu_issue *issue, const op *op) {
    const op_norm_qkv *a = &op->norm_qkv;
    int f32 = op->type == DTYPE_F32;
    gpu_linear p = linear_of(&a->rows, a->x, f32, &a->norm, &a->weight);
    p.epilogue = (gpu_epilogue){.kind = GPU_EPILOGUE_QKV, .f32 = f32, .n = a->weight.n, .out = a->q, .rope = a->rope, .sample = a->rows.sample,
                                .position = a->rows.position, .k = a->cache.k, .v = a->cache.v, .heads = a->weight.heads,
                                .head_dim = a->weight.head_dim, .capacity = a->cache.capacity, .head_columns = gpu_head_columns(a->weight.head_dim)};
    launch_linear(issue, &a->rows, p, 0);
}

static void issue_patch_embed(gpu_issue *issue, const op *op) {
    const op_patch_embed *a = &op->patch_embed;
    int f32 = op->type == DTYPE_F32, capacity = a->rows.capacity;
    gpu_linear p = linear_of(&a->rows, a->images, f32, NULL, &a->weight);
    size_t used = 0;
    p.pixels = a->pixels;
    p.epilogue = (gpu_epilogue){.kind = GPU_EPILOGUE_STORE, .f32 = f32, .n = a->weight.n, .bias = a->bias, .add = a->position,
                                .add_period = OPENPI_IMAGE_TOKENS, .out = a->out};
    if (f32 || p.weights.f32) {
        p.x_type = GPU_X_PIXELS;
        launch(issue, GPU_linear_simt, ceil_div(capacity, 64), ceil_div(p.weights.columns, 64), 256, 0, &p);
        return;
    }
    /* Pixels are not rounded to bf16: each goes in as two numbers, over the same weights twice. */
    gpu_patches split = {a->rows.count, a->images, a->pixels, NULL, p.weights.blocks * GPU_ATOM_K};
    split.out = work_at(issue, &used, (size_t)capacity * 2 * (size_t)split.ld * sizeof(bf16));
    launch(issue, GPU_patches, capacity, 1, 128, 0, &split);
    p.x_type = GPU_X_BF16;
    p.x = split.out;
    p.ldx = 2 * split.ld;
    p.k_blocks = 2 * p.weights.blocks;
    launch_linear(issue, &a->rows, p, used);
}

static void issue_state_embed(gpu_issue *issue, const op *op) {
    const op_state_embed *a = &op->state_embed;
    gpu_linear p = linear_of(&a->rows, a->state, 1, NULL, &a->weight);
    p.epilogue = (gpu_epilogue){.kind = GPU_EPILOGUE_STORE, .f32 = op->type == DTYPE_F32, .n = a->weight.n, .bias = a->bias,
                                .to = {NULL, 1, a->out_stride, 0}, .out = a->out};
    launch_linear(issue, &a->rows, p, 0);
}

static void issue_action_embed(gpu_issue *issue, const op *op) {
    const op_action_embed *a = &op->action_embed;
    int n = a->in.n, deep = a->mlp_in.data != NULL;
    size_t used = 0, bytes = (size_t)a->rows.capacity * (size_t)n * sizeof(float);
    gpu_epilogue last = {.kind = GPU_EPILOGUE_STORE, .f32 = op->type == DTYPE_F32, .n = n, .to = {NULL, a->horizon, a->out_stride, a->out_offset}, .out = a->out};
    gpu_linear p = linear_of(&a->rows, a->x, 1, NULL, &a->in);
    if (!deep) {
        p.epilogue = last;
        p.epilogue.bias = a->in_bias;
        launch_linear(issue, &a->rows, p, used);
        return;
    }
    /* fp32 between the products: as it is, or as bf16 + bf16 (a row is [upper | lower]) where tensor cores do them. */
    int split = !last.f32 && issue->device->hopper && a->rows.capacity <= SHORT_ROWS && a->mlp_in.type == DTYPE_BF16 && a->mlp_out.type == DTYPE_BF16 && n % GPU_ATOM_K == 0 &&
                n <= 16 * GPU_ATOM_K;
    float *in = work_at(issue, &used, bytes), *hidden = work_at(issue, &used, bytes);
    p.epilogue = (gpu_epilogue){.kind = GPU_EPILOGUE_STORE, .f32 = !split, .split = split, .n = n, .bias = a->in_bias, .out = in};
    launch_linear(issue, &a->rows, p, used);
    p = linear_of(&a->rows, in, !split, NULL, &a->mlp_in);
    p.ldx <<= split, p.k_blocks <<= split;
    p.epilogue = (gpu_epilogue){.kind = GPU_EPILOGUE_STORE, .activation = GPU_ACT_SILU, .f32 = !split, .split = split, .n = n, .bias = a->time, .out = hidden};
    launch_linear(issue, &a->rows, p, used);
    p = linear_of(&a->rows, hidden, !split, NULL, &a->mlp_out);
    p.ldx <<= split, p.k_blocks <<= split;
    p.epilogue = last;
    p.epilogue.bias = a->mlp_out_bias;
    launch_linear(issue, &a->rows, p, used);
}

static void issue_velocity(gpu_issue *issue, const op *op) {
    const op_velocity *a = &op->velocity;
    gpu_linear p = linear_of(&a->rows, a->x, op->type == DTYPE_F32, &a->norm, &a->weight);
    p.from = (gpu_row_map){NULL, a->horizon, a->x_stride, a->x_offset};
    p.epilogue = (gpu_epilogue){.kind = GPU_EPILOGUE_STORE, .f32 = 1, .n = a->weight.n, .bias = a->bias, .out = a->velocity, .x_t = a->x_t, .dt = a->dt};
    launch_linear(issue, &a->rows, p, 0);
}

/* ---- the rest --------------------------------------------------------------------------------------------- */

static void issue_embed_text(gpu_issue *issue, const op *op) {
    const op_embed_text *a = &op->embed_text;
    gpu_text p = {a->rows.count, a->text, a->width, a->scale, a->out_row, op->type == DTYPE_F32, a->out};
    launch(issue, GPU_embed_text, a->rows.capacity, 1, 256, 0, &p);
}

static void issue_image_attention(gpu_issue *issue, const op *op) {
    const op_image_attention *a = &op->image_attention;
    int f32 = op->type == DTYPE_F32, images = a->rows.capacity / OPENPI_IMAGE_TOKENS;
    gpu_image_attention p = {a->rows.count, a->qkv, f32, a->heads, a->head_dim, a->scale, a->out};
    size_t shared = (2 * OPENPI_IMAGE_TOKENS + 128) * 144;
    if (!f32 && a->head_dim == 72 && shared <= issue->device->shared_bytes)
        launch(issue, GPU_attention_image, images * 2, a->heads, 256, shared, &p);
    else
        launch(issue, GPU_attention_simt_image, a->rows.capacity, a->heads, 128, OPENPI_IMAGE_TOKENS * sizeof(float), &p);
}

static size_t cache_shared(int row_groups) {
    size_t rows = 16 * (size_t)row_groups;
    return (rows + 2 * KEY_TILE) * 512 + rows * (128 + 32);
}

static void launch_wgmma(gpu_issue *issue, const op_cache_attention *a, int queries, const gpu_cache_attention *p) {
    enum { TILE = 64, BUFFERS = 5 };
    gpu_wgmma_attention w;
    if (issue->measure || issue->code) return;
    uint64_t row = (uint64_t)p->head_dim * sizeof(bf16), places = (uint64_t)a->cache.capacity;
    uint64_t dims[3] = {(uint64_t)p->head_dim, places, OPENPI_MAX_BATCH}, strides[2] = {row, row * places};
    unsigned box[3] = {GPU_ATOM_K, TILE, 1};
    memset(&w, 0, sizeof w);
    w.attention = *p;
    make_map(issue, &w.q, 1, 2, p->q, (uint64_t[]){(uint64_t)p->head_dim, (uint64_t)queries}, &row, box);
    make_map(issue, &w.k, 1, 3, p->k, dims, strides, box);
    make_map(issue, &w.v, 1, 3, p->v, dims, strides, box);
    launch(issue, GPU_attention_wgmma, ceil_div(queries, TILE), 1, 384, (size_t)BUFFERS * TILE * (size_t)row, &w);
}

static void issue_cache_attention(gpu_issue *issue, const op *op) {
    const op_cache_attention *a = &op->cache_attention;
    int f32 = op->type == DTYPE_F32, d = a->cache.head_dim, queries = a->rows.capacity * a->heads, sms = issue->device->multiprocessors;
    gpu_cache_attention p = {a->rows.count, a->rows.sample, a->rows.keys, a->rows.position, a->q, a->cache.k, a->cache.v, f32, a->heads, d,
                             a->cache.capacity, a->scale, a->out, 1, 0, NULL, NULL, queries, 0};
    if (f32 || d % 8 || d > 256 || cache_shared(1) > issue->device->shared_bytes) {
        launch(issue, GPU_attention_simt_cache, a->rows.capacity, a->heads, 128, (size_t)a->cache.capacity * sizeof(float), &p);
        return;
    }
    p.early = op->stage == OPENPI_STAGE_DENOISE || op->stage == OPENPI_STAGE_STATE ? OPENPI_MAX_HORIZON + 1 : 0;
    if (issue->device->hopper && d == 256 && ceil_div(queries, 64) * 2 >= sms) {
        launch_wgmma(issue, a, queries, &p);
        return;
    }
    if (ceil_div(queries, 48) * 3 >= sms * 2 && cache_shared(3) <= issue->device->shared_bytes) {
        launch(issue, GPU_attention_cache_3, ceil_div(queries, 48), 1, 384, cache_shared(3), &p);
        return;
    }
    int tiles = ceil_div(queries, 16), key_tiles = ceil_div(a->cache.capacity, KEY_TILE), splits = 2 * sms / tiles;
    if (issue->device->hopper && splits >= 8) {        /* the splits are a cluster, which joins them itself */
        int most = splits < 16 ? splits : 16, cluster = key_tiles < 8 ? 8 : key_tiles < most ? key_tiles : most;
        p.splits = cluster;
        p.span = ceil_div(key_tiles, cluster) * KEY_TILE;
        launch_cluster(issue, GPU_attention_cluster, tiles * cluster, 1, cluster, 128, cache_shared(1) + (size_t)cluster * 2304, &p);
        return;
    }
    if (splits > key_tiles) splits = key_tiles;
    if (splits > MOST_SPLITS) splits = MOST_SPLITS;
    if (splits < 1) splits = 1;
    int span = ceil_div(key_tiles, splits) * KEY_TILE;
    p.span = span;
    p.splits = splits = ceil_div(key_tiles * KEY_TILE, span);
    if (splits > 1) {
        size_t used = 0;
        p.part = work_at(issue, &used, (size_t)splits * (size_t)queries * (size_t)d * sizeof(float));
        p.part_stats = work_at(issue, &used, (size_t)splits * (size_t)queries * 2 * sizeof(float));
    }
    launch(issue, GPU_attention_cache_1, tiles, splits, 128, cache_shared(1), &p);
    if (splits > 1) launch(issue, GPU_attention_combine, ceil_div(queries, 4), 1, 256, 0, &p);
}

typedef void (*issue_function)(gpu_issue *issue, const op *op);

static const issue_function issue_functions[OP_KINDS] = {
#define X(kind, member, type) [kind] = issue_##member,
    OP_LIST(X)
#undef X
};

void gpu_issue_op(gpu_issue *issue, const op *op) { issue_functions[op->kind](issue, op); }
