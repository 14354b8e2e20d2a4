/* How an op becomes launches: which kernels, which tiles, what of the work block.
 *
 * Everything here is decided from capacities and types, never from the numbers of a call: those live on the device
 * and a block that finds no rows left ends at once. The same walk with `measure` only adds up the work block.
 * Every op starts at the work block's beginning: kernels run in order, and none touches it before all earlier ones
 * have ended. */
#include <stdio.h>
#include <string.h>

#include "backend/gpu/launch.h"
#include "ops/limits.h"

enum { MOST_SPLITS = 32, KEY_TILE = 64 };

static size_t round_256(size_t bytes) { return (bytes + 255) & ~(size_t)255; }

/* ---- one launch ------------------------------------------------------------------------------------------- */

void gpu_launch_cluster(gpu_issue *issue, gpu_kernel kernel, int x, int y, int cluster, int threads, size_t shared,
                        const void *arguments) {
    gpu_device *self = issue->device;
    gpu_attribute attributes[2];
    unsigned count = 0;
    if (issue->measure || issue->code || x <= 0 || y <= 0) return;
    if (self->overlap && !issue->first) attributes[count++] = (gpu_attribute){.id = GPU_ATTRIBUTE_OVERLAP, .value.flag = 1};
    if (cluster > 1)
        attributes[count++] = (gpu_attribute){.id = GPU_ATTRIBUTE_CLUSTER, .value.cluster = {(unsigned)cluster, 1, 1}};
    gpu_launch config = {
        {(unsigned)x, (unsigned)y, 1}, {(unsigned)threads, 1, 1}, (unsigned)shared, issue->stream, attributes, count};
    void *list[] = {(void *)(uintptr_t)arguments};
    issue->first = 0;
    issue->code = self->driver.launch(&config, self->kernels[kernel], list, NULL);
    if (issue->recording) gpu_note_launch(issue, kernel, &config, (unsigned)cluster);
}

void *gpu_work_at(gpu_issue *issue, size_t *used, size_t bytes) {
    size_t at = *used;
    *used = at + round_256(bytes);
    if (*used > issue->work_bytes) issue->work_bytes = *used;
    return issue->measure ? NULL : issue->work + at;
}

void gpu_make_map(gpu_issue *issue, gpu_tensor_map *map, int swizzled, unsigned rank, const void *base, const uint64_t *dims,
                  const uint64_t *strides, const unsigned *box) {
    static const unsigned ones[3] = {1, 1, 1};
    if (issue->code) return;
    issue->code = issue->device->driver.tensor_map(
        map, swizzled < 0 ? GPU_MAP_FLOAT32 : GPU_MAP_BF16, rank, (void *)(uintptr_t)base, dims, strides, box, ones, 0,
        swizzled > 0 ? GPU_MAP_SWIZZLE_128 : GPU_MAP_SWIZZLE_NONE, GPU_MAP_PROMOTE_256, 0);
}

/* ---- ways ------------------------------------------------------------------------------------------------- */

void gpu_ways_add(gpu_ways *ways, gpu_way way, int is_rule) {
    if (ways->count == GPU_WAYS) return;
    if (is_rule && ways->rule < 0) ways->rule = ways->count;
    ways->list[ways->count++] = way;
}

static void name_way(const gpu_way *way, int rule, candidate *out) {
    int n = snprintf(out->name, sizeof out->name, "%s", gpu_kernel_name(way->kernel));
    if (way->count) n += snprintf(out->name + n, sizeof out->name - (size_t)n, " x%d", way->count);
    if (way->norm) snprintf(out->name + n, sizeof out->name - (size_t)n, ", norm %d", way->norm);
    out->rule = rule;
}

const gpu_way *gpu_pick(gpu_issue *issue, const gpu_ways *ways) {
    if (issue->listing) {
        for (int i = 0; i < ways->count && i < issue->list_capacity; i++)
            name_way(&ways->list[i], i == ways->rule, &issue->list[i]);
        issue->list_count = ways->count;
        return NULL;
    }
    int chosen = issue->choice - 1;
    return &ways->list[chosen >= 0 && chosen < ways->count ? chosen : ways->rule];
}

int gpu_candidates(const device *device, const op *op, candidate *out, int capacity) {
    gpu_issue issue = {
        .device = (gpu_device *)(uintptr_t)device, .measure = 1, .listing = 1, .list = out, .list_capacity = capacity};
    gpu_issue_op(&issue, op);
    return issue.list_count;
}

/* ---- products --------------------------------------------------------------------------------------------- */

static gpu_linear linear_of(const row_set *rows, const void *x, int f32, const norm *norm, const matrix *weight) {
    gpu_linear p = {.count = rows->count,
                    .capacity = rows->capacity,
                    .x_type = f32 ? GPU_X_F32 : GPU_X_BF16,
                    .x = x,
                    .ldx = weight->k,
                    .weights = gpu_weights_of(weight)};
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

/* What the op after next will read, for kernels that read little themselves: the op behind this one has its weights on the
 * way already when it starts early. */
static gpu_ahead ahead_of(const gpu_issue *issue) {
    enum { AFTER_NEXT = 2 };
    matrix *list[OP_MATRICES];
    if (!issue->device->overlap || issue->left <= AFTER_NEXT) return (gpu_ahead){0};
    op later = issue->at[AFTER_NEXT];
    if (op_matrices(&later, list) != 1 || list[0]->raw) return (gpu_ahead){0};
    return (gpu_ahead){list[0]->data, (uint32_t)gpu_matrix_bytes(&issue->device->base, list[0])};
}

static int activation_of(activation a) {
    return a == ACT_GELU || a == ACT_GEGLU ? GPU_ACT_GELU : a == ACT_SILU ? GPU_ACT_SILU : GPU_ACT_NONE;
}

static void issue_norm_linear(gpu_issue *issue, const op *op) {
    const op_norm_linear *a = &op->norm_linear;
    int f32 = op->type == DTYPE_F32, gated = a->weight.form == MATRIX_GATED;
    gpu_linear p = linear_of(&a->rows, a->x, f32, &a->norm, &a->weight);
    int n = gated ? a->weight.n / 2 : a->weight.n;
    p.epilogue = (gpu_epilogue){.kind = gated ? GPU_EPILOGUE_GATED : GPU_EPILOGUE_STORE,
                                .activation = activation_of(a->activation),
                                .f32 = f32,
                                .n = n,
                                .n_second = n,
                                .bias = a->bias,
                                .to.map = a->out_row,
                                .out = a->out};
    gpu_launch_linear(issue, &a->rows, p, 0);
}

static void issue_linear_residual(gpu_issue *issue, const op *op) {
    const op_linear_residual *a = &op->linear_residual;
    int f32 = op->type == DTYPE_F32;
    gpu_linear p = linear_of(&a->rows, a->a, f32, NULL, &a->weight);
    p.epilogue = (gpu_epilogue){
        .kind = GPU_EPILOGUE_RESIDUAL, .f32 = f32, .n = a->weight.n, .bias = a->bias, .gate = a->gate, .out = a->x};
    p.ahead = ahead_of(issue);
    gpu_launch_linear(issue, &a->rows, p, 0);
}

static void issue_norm_qkv(gpu_issue *issue, const op *op) {
    const op_norm_qkv *a = &op->norm_qkv;
    int f32 = op->type == DTYPE_F32;
    gpu_linear p = linear_of(&a->rows, a->x, f32, &a->norm, &a->weight);
    p.epilogue = (gpu_epilogue){.kind = GPU_EPILOGUE_QKV,
                                .f32 = f32,
                                .n = a->weight.n,
                                .out = a->q,
                                .rope = a->rope,
                                .sample = a->rows.sample,
                                .position = a->rows.position,
                                .k = a->cache.k,
                                .v = a->cache.v,
                                .heads = a->weight.heads,
                                .head_dim = a->weight.head_dim,
                                .capacity = a->cache.capacity,
                                .head_columns = gpu_head_columns(a->weight.head_dim)};
    gpu_launch_linear(issue, &a->rows, p, 0);
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
    split.out = gpu_work_at(issue, &used, (size_t)capacity * 2 * (size_t)split.ld * sizeof(bf16));
    launch(issue, GPU_patches, capacity, 1, 128, 0, &split);
    p.x_type = GPU_X_BF16;
    p.x = split.out;
    p.ldx = 2 * split.ld;
    p.k_blocks = 2 * p.weights.blocks;
    gpu_launch_linear(issue, &a->rows, p, used);
}

static void issue_state_embed(gpu_issue *issue, const op *op) {
    const op_state_embed *a = &op->state_embed;
    gpu_linear p = linear_of(&a->rows, a->state, 1, NULL, &a->weight);
    p.epilogue = (gpu_epilogue){.kind = GPU_EPILOGUE_STORE, .f32 = op->type == DTYPE_F32, .n = a->weight.n, .bias = a->bias,
                                .to = {NULL, 1, a->out_stride, 0}, .out = a->out};
    gpu_launch_linear(issue, &a->rows, p, 0);
}

static void issue_action_embed(gpu_issue *issue, const op *op) {
    const op_action_embed *a = &op->action_embed;
    int n = a->in.n, products = action_embed_products(a);
    size_t used = 0, bytes = (size_t)a->rows.capacity * (size_t)n * sizeof(float);
    gpu_epilogue last = {.kind = GPU_EPILOGUE_STORE,
                         .f32 = op->type == DTYPE_F32,
                         .n = n,
                         .to = {NULL, a->horizon, a->out_stride, a->out_offset},
                         .out = a->out};
    gpu_linear p = linear_of(&a->rows, a->x, 1, NULL, &a->in);
    if (products == 1) {
        p.epilogue = last;
        p.epilogue.bias = a->in_bias;
        gpu_launch_linear(issue, &a->rows, p, used);
        return;
    }
    /* fp32 between the products: as it is, or as bf16 + bf16 (a row is [upper | lower]) where tensor cores do them. */
    gpu_ways ways = {.rule = -1};
    if (!last.f32 && (products < 3 || a->mlp_in.type == WEIGHT_BF16) && a->mlp_out.type == WEIGHT_BF16 &&
        gpu_split_legal(issue->device, a->rows.capacity, n))
        gpu_ways_add(&ways, (gpu_way){GPU_skinny_hopper_store_2, 0, 0, 0}, 1);
    gpu_ways_add(&ways, (gpu_way){GPU_linear_rows, 0, 0, 0}, 1);
    const gpu_way *way = gpu_pick(issue, &ways);
    if (!way) return;
    int split = way->kernel == GPU_skinny_hopper_store_2;
    issue->choice = 0;                     /* the products inside are as the rule has them */
    float *in = products == 3 ? gpu_work_at(issue, &used, bytes) : NULL, *hidden = gpu_work_at(issue, &used, bytes);
    if (products == 3) {
        p.epilogue =
            (gpu_epilogue){.kind = GPU_EPILOGUE_STORE, .f32 = !split, .split = split, .n = n, .bias = a->in_bias, .out = in};
        gpu_launch_linear(issue, &a->rows, p, used);
        p = linear_of(&a->rows, in, !split, NULL, &a->mlp_in);
        p.ldx <<= split, p.k_blocks <<= split;
    }
    p.epilogue = (gpu_epilogue){.kind = GPU_EPILOGUE_STORE,
                                .activation = GPU_ACT_SILU,
                                .f32 = !split,
                                .split = split,
                                .n = n,
                                .bias = a->time,
                                .out = hidden};
    gpu_launch_linear(issue, &a->rows, p, used);
    p = linear_of(&a->rows, hidden, !split, NULL, &a->mlp_out);
    p.ldx <<= split, p.k_blocks <<= split;
    p.epilogue = last;
    p.epilogue.bias = a->mlp_out_bias;
    gpu_launch_linear(issue, &a->rows, p, used);
}

static void issue_velocity(gpu_issue *issue, const op *op) {
    const op_velocity *a = &op->velocity;
    gpu_linear p = linear_of(&a->rows, a->x, op->type == DTYPE_F32, &a->norm, &a->weight);
    p.from = (gpu_row_map){NULL, a->horizon, a->x_stride, a->x_offset};
    p.epilogue = (gpu_epilogue){
        .kind = GPU_EPILOGUE_STORE, .f32 = 1, .n = a->weight.n, .bias = a->bias, .out = a->velocity, .x_t = a->x_t, .dt = a->dt};
    gpu_launch_linear(issue, &a->rows, p, 0);
}

/* ---- the rest --------------------------------------------------------------------------------------------- */

static void issue_embed_text(gpu_issue *issue, const op *op) {
    const op_embed_text *a = &op->embed_text;
    gpu_text p = {.count = a->rows.count,
                  .ids = a->ids,
                  .table = a->table.data,
                  .table_f32 = a->table.type == WEIGHT_F32,
                  .width = a->table.k,
                  .scale = a->scale,
                  .out_row = a->out_row,
                  .f32 = op->type == DTYPE_F32,
                  .out = a->out};
    launch(issue, GPU_embed_text, a->rows.capacity, 1, 256, 0, &p);
}

static void issue_image_attention(gpu_issue *issue, const op *op) {
    const op_image_attention *a = &op->image_attention;
    int f32 = op->type == DTYPE_F32, images = a->rows.capacity / OPENPI_IMAGE_TOKENS;
    int width = a->heads * a->head_dim, stride = a->planar ? width : 3 * width;
    size_t next = (a->planar ? (size_t)a->rows.capacity : 1) * (size_t)width;
    gpu_image_attention p = {a->rows.count, a->qkv, f32, a->heads, a->head_dim, a->scale, a->out, stride, (int64_t)next};
    size_t shared = (2 * OPENPI_IMAGE_TOKENS + 128) * 144;
    gpu_ways ways = {.rule = -1};
    if (!f32 && a->head_dim == 72 && shared <= issue->device->shared_bytes)
        gpu_ways_add(&ways, (gpu_way){GPU_attention_image, 0, 0, 0}, 1);
    gpu_ways_add(&ways, (gpu_way){GPU_attention_simt_image, 0, 0, 0}, 1);
    const gpu_way *way = gpu_pick(issue, &ways);
    if (!way) return;
    if (way->kernel == GPU_attention_image) launch(issue, way->kernel, images * 2, a->heads, 256, shared, &p);
    else launch(issue, way->kernel, a->rows.capacity, a->heads, 128, OPENPI_IMAGE_TOKENS * sizeof(float), &p);
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
    gpu_make_map(issue, &w.q, 1, 2, p->q, (uint64_t[]){(uint64_t)p->head_dim, (uint64_t)queries}, &row, box);
    gpu_make_map(issue, &w.k, 1, 3, p->k, dims, strides, box);
    gpu_make_map(issue, &w.v, 1, 3, p->v, dims, strides, box);
    launch(issue, GPU_attention_wgmma, ceil_div(queries, TILE), 1, 384, (size_t)BUFFERS * TILE * (size_t)row, &w);
}

/* Keys in `splits` pieces, whole tiles each. */
static int span_of(const op_cache_attention *a, int splits) {
    return ceil_div(ceil_div(a->cache.capacity, KEY_TILE), splits) * KEY_TILE;
}

/* The first that is marked is the rule's: many rows fill the card, few split the keys; where a cluster can join the splits
 * itself it does. */
static void list_attention(const gpu_device *device, gpu_ways *ways, const op *op) {
    static const int splits[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32};
    const op_cache_attention *a = &op->cache_attention;
    int d = a->cache.head_dim, queries = a->rows.capacity * a->heads, sms = device->multiprocessors,
        key_tiles = ceil_div(a->cache.capacity, KEY_TILE);
    int usual = 2 * sms / ceil_div(queries, 16), most = usual < 16 ? usual : 16;
    int cluster = key_tiles < 8 || most < 13 ? 8
                  : key_tiles < most         ? key_tiles
                                             : most; /* 9 to 12 blocks leave much of every group of 16 multiprocessors idle */
    if (op->type == DTYPE_BF16 && d % 8 == 0 && d <= 256 && cache_shared(1) <= device->shared_bytes) {
        if (device->hopper && d == 256)
            gpu_ways_add(ways, (gpu_way){GPU_attention_wgmma, 0, 0, 0}, ceil_div(queries, 64) * 2 >= sms);
        if (cache_shared(3) <= device->shared_bytes)
            gpu_ways_add(ways, (gpu_way){GPU_attention_cache_3, 0, 0, 0}, ceil_div(queries, 48) * 3 >= sms * 2);
        for (int n = 8; device->hopper && n <= 16; n++)
            gpu_ways_add(ways, (gpu_way){GPU_attention_cluster, 0, n, 0}, usual >= 8 && n == cluster);
        int rule = usual < key_tiles ? usual : key_tiles;
        if (rule > MOST_SPLITS) rule = MOST_SPLITS;
        if (rule < 1) rule = 1;
        for (int i = 0, n = 1; n <= MOST_SPLITS; n++) {
            int listed = i < (int)(sizeof splits / sizeof *splits) && splits[i] == n;
            i += listed;
            if ((listed && n <= key_tiles) || n == rule) gpu_ways_add(ways, (gpu_way){GPU_attention_cache_1, 0, n, 0}, n == rule);
        }
    }
    gpu_ways_add(ways, (gpu_way){GPU_attention_simt_cache, 0, 0, 0}, 1);
}

/* What attention_simt_cache keeps of a row's scores in shared memory; every device has 48 KB a block. */
_Static_assert((LIMIT_KEYS + 31) / 32 * 32 * sizeof(float) <= 48 << 10, "the scores of the longest row fit");

static void launch_splits(gpu_issue *issue, const op_cache_attention *a, int queries, gpu_cache_attention p, int splits) {
    size_t used = 0, d = (size_t)p.head_dim;
    p.span = span_of(a, splits);
    p.splits = splits = ceil_div(ceil_div(a->cache.capacity, KEY_TILE) * KEY_TILE, p.span);
    if (splits > 1) {
        p.part = gpu_work_at(issue, &used, (size_t)splits * (size_t)queries * d * sizeof(float));
        p.part_stats = gpu_work_at(issue, &used, (size_t)splits * (size_t)queries * 2 * sizeof(float));
    }
    launch(issue, GPU_attention_cache_1, ceil_div(queries, 16), splits, 128, cache_shared(1), &p);
    if (splits > 1) launch(issue, GPU_attention_combine, ceil_div(queries, 4), 1, 256, 0, &p);
}

static void issue_cache_attention(gpu_issue *issue, const op *op) {
    const op_cache_attention *a = &op->cache_attention;
    int queries = a->rows.capacity * a->heads;
    gpu_cache_attention p = {.count = a->rows.count,
                             .sample = a->rows.sample,
                             .keys = a->rows.keys,
                             .position = a->rows.position,
                             .q = a->q,
                             .k = a->cache.k,
                             .v = a->cache.v,
                             .f32 = op->type == DTYPE_F32,
                             .heads = a->heads,
                             .head_dim = a->cache.head_dim,
                             .capacity = a->cache.capacity,
                             .scale = a->scale,
                             .out = a->out,
                             .splits = 1,
                             .part_rows = queries};
    gpu_ways ways = {.rule = -1};
    list_attention(issue->device, &ways, op);
    const gpu_way *way = gpu_pick(issue, &ways);
    if (!way) return;
    if (way->kernel != GPU_attention_simt_cache) p.early = op->stage == OPENPI_STAGE_DENOISE ? OPENPI_MAX_HORIZON + 1 : 0;
    switch (way->kernel) {
    case GPU_attention_wgmma: launch_wgmma(issue, a, queries, &p); return;
    case GPU_attention_cache_3: launch(issue, way->kernel, ceil_div(queries, 48), 1, 384, cache_shared(3), &p); return;
    case GPU_attention_cluster:
        p.splits = way->count;
        p.span = span_of(a, way->count);
        p.ahead = ahead_of(issue);
        gpu_launch_cluster(issue, way->kernel, ceil_div(queries, 16) * way->count, 1, way->count, 128,
                           cache_shared(1) + (size_t)way->count * 2304, &p);
        return;
    case GPU_attention_cache_1: launch_splits(issue, a, queries, p, way->count); return;
    default: launch(issue, way->kernel, a->rows.capacity, a->heads, 128, (size_t)a->cache.capacity * sizeof(float), &p);
    }
}

typedef void (*issue_function)(gpu_issue *issue, const op *op);

static const issue_function issue_functions[OP_KINDS] = {
#define X(kind, member, type) [kind] = issue_##member,
    OP_FUSED_LIST(X)
#undef X
#define X(kind, member, type) [kind] = gpu_issue_##member,
    OP_PART_LIST(X)
#undef X
};

void gpu_issue_op(gpu_issue *issue, const op *op) {
    struct op packed = *op;
    char *work = issue->work;
    size_t most = issue->work_bytes, raw = gpu_raw_pack(issue, &packed);
    issue->choice = op->choice;
    issue->at = op;
    issue->work_bytes = 0;
    if (raw && work) issue->work = work + raw;
    issue_functions[op->kind](issue, &packed);
    if (op->parameters) issue->first = 1;
    issue->work = work;
    issue->work_bytes = issue->work_bytes + raw > most ? issue->work_bytes + raw : most;
}
