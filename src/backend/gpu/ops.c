/* Ops in terms of tasks: a product with an epilogue, an attention, a pointwise kernel; and what of the
 * work block lies between them. Which kernels run a task is no concern here. */
#include "backend/gpu/ops.h"

#include "backend/gpu/choices.h"
#include "backend/gpu/layout.h"

static int activation_of(activation a) {
    return a == ACT_GELU || a == ACT_GEGLU ? GPU_ACT_GELU : a == ACT_SILU ? GPU_ACT_SILU : GPU_ACT_NONE;
}

static gpu_known known_of(const row_set *rows) {
    return (gpu_known){rows->known, rows->known_at, rows->times};
}

static int norm_of(norm_kind kind) { return kind == NORM_LAYER ? GPU_NORM_LAYER : GPU_NORM_RMS; }

/* ---- products --------------------------------------------------------------------------------------- */

static gpu_task product_of(const row_set *rows, const void *x, int f32, const norm *norm,
                           const matrix *weight) {
    gpu_linear p = {.count = rows->count,
                    .capacity = rows->capacity,
                    .x_type = f32 ? GPU_X_F32 : GPU_X_BF16,
                    .x = x,
                    .ldx = weight->k,
                    .weights = gpu_weights_of(weight)};
    p.k_blocks = p.weights.blocks;
    p.round = !f32;
    if (norm && norm->kind != NORM_NONE) {
        p.norm = norm_of(norm->kind);
        p.norm_weight = norm->weight;
        p.norm_bias = norm->bias;
        p.eps = norm->eps;
    }
    return (gpu_task){.kind = GPU_PRODUCT, .rows = rows->capacity, .product = p};
}

/* Products know two times of rows, the step's and 0. Where rows have times of their own, what depends on them
 * stands in kernels of its own: the norm before a product, what is added or moved after it. */
static void norm_apart(gpu_issue *issue, gpu_task *task) {
    gpu_linear *p = &task->product;
    if (p->epilogue.known.times && p->norm) {
        size_t bytes = (size_t)task->rows * (size_t)p->ldx * (p->x_type == GPU_X_F32 ? 4 : sizeof(bf16));
        gpu_task norm = {.kind = GPU_NORM, .rows = task->rows, .rows_a_block = GPU_NORM_ROWS};
        norm.norm = gpu_norm_of(p, gpu_work_take(issue, bytes));
        gpu_launch_usual(issue, &norm);
        gpu_read_normed(p, norm.norm.out);
    }
    if (p->epilogue.known.times) p->epilogue.known = (gpu_known){0};
}

/* 1: rows of `k` numbers between two ops are codes, where the plan says that they may be. Both ops ask. */
static int are_codes(const gpu_issue *issue, const op *op, int k) {
    return op->type == DTYPE_BF16 && k % GPU_UNIT == 0 && gpu_leaves_codes(issue->device);
}

static void issue_norm_linear(gpu_issue *issue, const op *op) {
    const op_norm_linear *a = &op->norm_linear;
    int f32 = op->type == DTYPE_F32, gated = a->weight.form == MATRIX_GATED;
    int n = gated ? a->weight.n / 2 : a->weight.n;
    gpu_task task = product_of(&a->rows, a->x, f32, &a->norm, &a->weight);
    task.product.epilogue = (gpu_epilogue){.kind = gated ? GPU_EPILOGUE_GATED : GPU_EPILOGUE_STORE,
                                           .activation = activation_of(a->activation),
                                           .f32 = f32,
                                           .n = n,
                                           .n_second = n,
                                           .bias = a->bias,
                                           .known = known_of(&a->rows),
                                           .to.map = a->out_row,
                                           .out = a->out};
    task.fixed = (gpu_row_scale){a->weight.row_scale, a->weight.counts};
    if (a->next_scale > 0 && are_codes(issue, op, n))
        task.leaves = (gpu_row_scale){a->next_scale, a->next_counts};
    norm_apart(issue, &task);
    gpu_launch_chosen(issue, &task);
}

gpu_ahead gpu_ahead_of(const gpu_issue *issue) {
    enum { AFTER_NEXT = 2 };
    matrix *list[OP_MATRICES];
    if (!issue->device->overlap || issue->left <= AFTER_NEXT) return (gpu_ahead){0};
    op later = issue->op[AFTER_NEXT];
    if (op_matrices(&later, list) != 1 || list[0]->raw) return (gpu_ahead){0};
    return (gpu_ahead){list[0]->data, (uint32_t)gpu_matrix_bytes(&issue->device->base, list[0])};
}

/* x[r] += gate·y[r], or dt[r]·y[r], where y [rows][n] is what a product stored. */
static void add_apart(gpu_issue *issue, const row_set *rows, gpu_add add) {
    gpu_task task = {.kind = GPU_ADD, .rows = rows->capacity};
    add.count = rows->count;
    add.known = known_of(rows);
    task.add = add;
    gpu_launch_usual(issue, &task);
}

static void residual_apart(gpu_issue *issue, const op *op, gpu_task *task) {
    const op_linear_residual *a = &op->linear_residual;
    int f32 = op->type == DTYPE_F32;
    size_t bytes = (size_t)a->rows.capacity * (size_t)a->weight.n * (f32 ? sizeof(float) : sizeof(bf16));
    void *sums = gpu_work_take(issue, bytes);
    task->product.epilogue = (gpu_epilogue){
        .kind = GPU_EPILOGUE_STORE, .f32 = f32, .n = a->weight.n, .bias = a->bias, .out = sums};
    gpu_launch_chosen(issue, task);
    add_apart(issue, &a->rows,
              (gpu_add){.y = sums, .gate = a->gate, .n = a->weight.n, .f32 = f32, .x = a->x});
}

static void issue_linear_residual(gpu_issue *issue, const op *op) {
    const op_linear_residual *a = &op->linear_residual;
    int f32 = op->type == DTYPE_F32;
    gpu_task task = product_of(&a->rows, a->a, f32, NULL, &a->weight);
    task.fixed = (gpu_row_scale){a->weight.row_scale, a->weight.counts};
    task.coded = a->coded && are_codes(issue, op, a->weight.k);
    if (a->rows.times && a->gate) {
        residual_apart(issue, op, &task);
        return;
    }
    task.product.epilogue = (gpu_epilogue){.kind = GPU_EPILOGUE_RESIDUAL,
                                           .f32 = f32,
                                           .n = a->weight.n,
                                           .bias = a->bias,
                                           .gate = a->gate,
                                           .known = known_of(&a->rows),
                                           .out = a->x};
    task.product.ahead = gpu_ahead_of(issue);
    gpu_launch_chosen(issue, &task);
}

static void issue_norm_qkv(gpu_issue *issue, const op *op) {
    const op_norm_qkv *a = &op->norm_qkv;
    int f32 = op->type == DTYPE_F32;
    gpu_task task = product_of(&a->rows, a->x, f32, &a->norm, &a->weight);
    task.product.epilogue = (gpu_epilogue){.kind = GPU_EPILOGUE_QKV,
                                           .f32 = f32,
                                           .n = a->weight.n,
                                           .known = known_of(&a->rows),
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
    norm_apart(issue, &task);
    gpu_launch_chosen(issue, &task);
}

/* Pixels are not rounded to bf16. An fp32 product reads them as they are; for one of bf16 each becomes two
 * numbers, over the same weights twice. */
static void issue_patch_embed(gpu_issue *issue, const op *op) {
    const op_patch_embed *a = &op->patch_embed;
    int f32 = op->type == DTYPE_F32, capacity = a->rows.capacity;
    gpu_task task = product_of(&a->rows, a->images, f32, NULL, &a->weight);
    gpu_linear *p = &task.product;
    p->pixels = a->pixels;
    p->epilogue = (gpu_epilogue){.kind = GPU_EPILOGUE_STORE,
                                 .f32 = f32,
                                 .n = a->weight.n,
                                 .bias = a->bias,
                                 .add = a->position,
                                 .add_period = OPENPI_IMAGE_TOKENS,
                                 .out = a->out};
    if (f32 || p->weights.type != GPU_WEIGHT_BF16) {
        p->x_type = GPU_X_PIXELS;
        gpu_launch_usual(issue, &task);
        return;
    }
    gpu_task split = {.kind = GPU_PATCHES, .rows = capacity};
    split.patches = (gpu_patches){.count = a->rows.count,
                                  .images = a->images,
                                  .pixels = a->pixels,
                                  .ld = p->weights.blocks * GPU_ATOM_K};
    split.patches.out = gpu_work_take(issue, (size_t)capacity * 2 * (size_t)split.patches.ld * sizeof(bf16));
    gpu_launch_usual(issue, &split);
    p->x_type = GPU_X_BF16;
    p->x = split.patches.out;
    p->ldx = 2 * split.patches.ld;
    p->k_blocks = 2 * p->weights.blocks;
    gpu_launch_chosen(issue, &task);
}

static void issue_state_embed(gpu_issue *issue, const op *op) {
    const op_state_embed *a = &op->state_embed;
    gpu_task task = product_of(&a->rows, a->state, 1, NULL, &a->weight);
    task.product.epilogue = (gpu_epilogue){.kind = GPU_EPILOGUE_STORE,
                                           .f32 = op->type == DTYPE_F32,
                                           .n = a->weight.n,
                                           .bias = a->bias,
                                           .to = {NULL, 1, a->out_stride, 0},
                                           .out = a->out};
    gpu_launch_chosen(issue, &task);
}

/* A product of a chain, from numbers that another one stored. */
static gpu_task next_in_chain(const op_action_embed *a, const void *x, const matrix *weight, int split) {
    gpu_task task = product_of(&a->rows, x, !split, NULL, weight);
    task.product.ldx <<= split;
    task.product.k_blocks <<= split;
    return task;
}

static void activate_apart(gpu_issue *issue, const op_action_embed *a, float *hidden) {
    gpu_task task = {.kind = GPU_ACTIVATE, .rows = a->rows.capacity};
    task.activate = (gpu_activate){.count = a->rows.count,
                                   .bias = a->time,
                                   .activation = GPU_ACT_SILU,
                                   .n = a->in.n,
                                   .f32 = 1,
                                   .x = hidden,
                                   .known = known_of(&a->rows)};
    gpu_launch_usual(issue, &task);
}

/* Two or three products. What is between them is fp32, or bf16 + bf16 (a row is [upper | lower]). */
static void issue_action_chain(gpu_issue *issue, const op_action_embed *a, const gpu_epilogue *last,
                               int split) {
    int n = a->in.n;
    size_t bytes = (size_t)a->rows.capacity * (size_t)n * sizeof(float);
    gpu_epilogue between = {.kind = GPU_EPILOGUE_STORE, .f32 = !split, .split = split, .n = n};
    gpu_task task = product_of(&a->rows, a->x, 1, NULL, &a->in);
    if (action_embed_products(a) == 3) {
        float *in = gpu_work_take(issue, bytes);
        task.product.epilogue = between;
        task.product.epilogue.bias = a->in_bias;
        task.product.epilogue.out = in;
        gpu_launch_usual(issue, &task);
        task = next_in_chain(a, in, &a->mlp_in, split);
    }
    float *hidden = gpu_work_take(issue, bytes);
    task.product.epilogue = between;
    task.product.epilogue.out = hidden;
    if (!a->rows.times) {
        task.product.epilogue.activation = GPU_ACT_SILU;
        task.product.epilogue.bias = a->time;
    }
    gpu_launch_usual(issue, &task);
    if (a->rows.times) activate_apart(issue, a, hidden);
    task = next_in_chain(a, hidden, &a->mlp_out, split);
    task.product.epilogue = *last;
    task.product.epilogue.bias = a->mlp_out_bias;
    gpu_launch_usual(issue, &task);
}

static void issue_action_embed(gpu_issue *issue, const op *op) {
    const op_action_embed *a = &op->action_embed;
    int products = action_embed_products(a);
    gpu_epilogue last = {.kind = GPU_EPILOGUE_STORE,
                         .f32 = op->type == DTYPE_F32,
                         .n = a->in.n,
                         .to = {NULL, a->horizon, a->out_stride, a->out_offset},
                         .out = a->out};
    gpu_choices choices;
    if (products == 1) {
        gpu_task task = product_of(&a->rows, a->x, 1, NULL, &a->in);
        task.product.epilogue = last;
        task.product.epilogue.bias = a->in_bias;
        gpu_launch_chosen(issue, &task);
        return;
    }
    gpu_task chain = {.kind = GPU_PRODUCT_CHAIN, .rows = a->rows.capacity};
    chain.chain.k = a->in.n;
    chain.chain.bf16 =
        !last.f32 && (products < 3 || a->mlp_in.type == WEIGHT_BF16) && a->mlp_out.type == WEIGHT_BF16;
    gpu_choices_of(issue->device, &chain, &choices);
    const gpu_choice *choice = gpu_choices_pick(issue, &choices);
    if (choice) issue_action_chain(issue, a, &last, choice->split && !a->rows.times);
}

static void issue_velocity(gpu_issue *issue, const op *op) {
    const op_velocity *a = &op->velocity;
    gpu_task task = product_of(&a->rows, a->x, op->type == DTYPE_F32, &a->norm, &a->weight);
    task.product.from = (gpu_row_map){NULL, a->horizon, a->x_stride, a->x_offset};
    task.product.epilogue = (gpu_epilogue){.kind = GPU_EPILOGUE_STORE,
                                           .f32 = 1,
                                           .n = a->weight.n,
                                           .bias = a->bias,
                                           .known = known_of(&a->rows),
                                           .out = a->velocity,
                                           .x_t = a->own_dt ? NULL : a->x_t,
                                           .dt = a->dt};
    norm_apart(issue, &task);
    gpu_launch_chosen(issue, &task);
    if (a->own_dt)
        add_apart(
            issue, &a->rows,
            (gpu_add){.y = a->velocity, .factor = a->own_dt, .n = a->weight.n, .f32 = 1, .x = a->x_t});
}

static void issue_guide(gpu_issue *issue, const op *op) {
    const op_guide *a = &op->guide;
    gpu_task task = {.kind = GPU_GUIDE, .rows = a->rows.capacity};
    task.guide = (gpu_guide){.count = a->rows.count,
                             .sample = a->rows.sample,
                             .target = a->target,
                             .weight = a->weight,
                             .gain = a->gain,
                             .velocity = a->velocity,
                             .x_t = a->x_t,
                             .t = a->t,
                             .n = a->n};
    gpu_launch_usual(issue, &task);
}

/* ---- attention -------------------------------------------------------------------------------------- */

static void issue_image_attention(gpu_issue *issue, const op *op) {
    const op_image_attention *a = &op->image_attention;
    int width = a->heads * a->head_dim;
    gpu_task task = {.kind = GPU_IMAGE_ATTENTION, .rows = a->rows.capacity};
    task.image_attention = (gpu_image_attention){
        .count = a->rows.count,
        .qkv = a->qkv,
        .f32 = op->type == DTYPE_F32,
        .heads = a->heads,
        .head_dim = a->head_dim,
        .scale = a->scale,
        .out = a->out,
        .stride = a->planar ? width : 3 * width,
        .next = (int64_t)((a->planar ? (size_t)a->rows.capacity : 1) * (size_t)width),
    };
    gpu_launch_chosen(issue, &task);
}

static void issue_cache_attention(gpu_issue *issue, const op *op) {
    const op_cache_attention *a = &op->cache_attention;
    gpu_task task = {.kind = GPU_CACHE_ATTENTION, .rows = a->rows.capacity};
    task.cache_attention = (gpu_cache_attention){
        .count = a->rows.count,
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
        .part_rows = a->rows.capacity * a->heads,
        .early = op->stage == OPENPI_STAGE_DENOISE ? OPENPI_MAX_HORIZON + 1 : 0,
    };
    gpu_launch_chosen(issue, &task);
}

/* ---- the rest, and what fused ops are made of ------------------------------------------------------- */

static void issue_embed_text(gpu_issue *issue, const op *op) {
    const op_embed_text *a = &op->embed_text;
    gpu_task task = {.kind = GPU_EMBED_TEXT, .rows = a->rows.capacity};
    task.embed_text = (gpu_text){.count = a->rows.count,
                                 .ids = a->ids,
                                 .table = a->table.data,
                                 .table_f32 = a->table.type == WEIGHT_F32,
                                 .width = a->table.k,
                                 .scale = a->scale,
                                 .out_row = a->out_row,
                                 .f32 = op->type == DTYPE_F32,
                                 .out = a->out};
    gpu_launch_usual(issue, &task);
}

static void issue_norm(gpu_issue *issue, const op *op) {
    const op_norm *a = &op->norm;
    gpu_task task = {.kind = GPU_NORM, .rows = a->rows.capacity, .rows_a_block = GPU_NORM_ROWS};
    task.norm = (gpu_norm){.count = a->rows.count,
                           .x = a->x,
                           .f32 = op->type == DTYPE_F32,
                           .k = a->n,
                           .kind = norm_of(a->norm.kind),
                           .weight = a->norm.weight,
                           .bias = a->norm.bias,
                           .known = known_of(&a->rows),
                           .eps = a->norm.eps,
                           .out = a->out};
    gpu_launch_usual(issue, &task);
}

static void issue_activate(gpu_issue *issue, const op *op) {
    const op_activate *a = &op->activate;
    gpu_task task = {.kind = GPU_ACTIVATE, .rows = a->rows.capacity};
    task.activate = (gpu_activate){.count = a->rows.count,
                                   .bias = a->bias,
                                   .activation = activation_of(a->activation),
                                   .up = a->up,
                                   .row = a->row,
                                   .n = a->n,
                                   .f32 = op->type == DTYPE_F32,
                                   .x = a->x};
    gpu_launch_usual(issue, &task);
}

static void issue_add(gpu_issue *issue, const op *op) {
    const op_add *a = &op->add;
    gpu_task task = {.kind = GPU_ADD, .rows = a->rows.capacity};
    task.add = (gpu_add){.count = a->rows.count,
                         .y = a->y,
                         .bias = a->bias,
                         .gate = a->gate,
                         .known = known_of(&a->rows),
                         .n = a->n,
                         .f32 = op->type == DTYPE_F32,
                         .x = a->x};
    gpu_launch_usual(issue, &task);
}

static void issue_rope_cache(gpu_issue *issue, const op *op) {
    const op_rope_cache *a = &op->rope_cache;
    gpu_task task = {.kind = GPU_ROPE_CACHE, .rows = a->rows.capacity};
    task.rope_cache = (gpu_rope_cache){.count = a->rows.count,
                                       .sample = a->rows.sample,
                                       .position = a->rows.position,
                                       .q_in = a->q_in,
                                       .k_in = a->k_in,
                                       .v_in = a->v_in,
                                       .q_stride = a->q_stride,
                                       .kv_stride = a->kv_stride,
                                       .heads = a->heads,
                                       .head_dim = a->cache.head_dim,
                                       .capacity = a->cache.capacity,
                                       .f32 = op->type == DTYPE_F32,
                                       .rope = a->rope,
                                       .q = a->q,
                                       .k = a->cache.k,
                                       .v = a->cache.v};
    gpu_launch_usual(issue, &task);
}

static void issue_softmax(gpu_issue *issue, const op *op) {
    const op_softmax *a = &op->softmax;
    gpu_task task = {.kind = GPU_SOFTMAX, .rows = a->rows.capacity};
    task.softmax = (gpu_softmax){.count = a->rows.count,
                                 .keys = a->rows.keys,
                                 .heads = a->heads,
                                 .places = a->places,
                                 .f32 = op->type == DTYPE_F32,
                                 .scores = a->scores};
    gpu_launch_usual(issue, &task);
}

/* Rows against keys or values: of the row's sample, or of its image. */
static gpu_attend attend_of(const op *op, const row_set *rows, const attended *from, const void *cache) {
    return (gpu_attend){.count = rows->count,
                        .sample = rows->sample,
                        .keys = rows->keys,
                        .f32 = op->type == DTYPE_F32,
                        .from = from->stride ? from->image : cache,
                        .stride = from->stride,
                        .capacity = from->stride ? OPENPI_IMAGE_TOKENS : from->cache.capacity};
}

static void issue_scores(gpu_issue *issue, const op *op) {
    const op_scores *a = &op->scores;
    gpu_task task = {.kind = GPU_SCORES, .rows = a->rows.capacity};
    task.scores = attend_of(op, &a->rows, &a->keys, a->keys.cache.k);
    task.outputs = task.scores.capacity;
    task.scores.q = a->q;
    task.scores.q_stride = a->q_stride;
    task.scores.heads = a->heads;
    task.scores.head_dim = a->head_dim;
    task.scores.scale = a->scale;
    task.scores.scores = a->scores;
    task.scores.places = a->places;
    gpu_launch_usual(issue, &task);
}

static void issue_values(gpu_issue *issue, const op *op) {
    const op_values *a = &op->values;
    gpu_task task = {.kind = GPU_VALUES, .rows = a->rows.capacity, .outputs = a->head_dim};
    task.values = attend_of(op, &a->rows, &a->values, a->values.cache.v);
    task.values.heads = a->heads;
    task.values.head_dim = a->head_dim;
    task.values.scores = (float *)(uintptr_t)a->scores;
    task.values.places = a->places;
    task.values.out = a->out;
    gpu_launch_usual(issue, &task);
}

/* ---- raw weights ------------------------------------------------------------------------------------ */

/* Packs the op's raw weights into the work block and points it there. */
static void pack_raw(gpu_issue *issue, op *op) {
    matrix *list[OP_MATRICES];
    for (int i = 0, count = op_matrices(op, list); i < count; i++) {
        matrix packed = *list[i];
        if (!packed.raw) continue;
        packed.raw = 0;
        packed.data = gpu_work_take(issue, gpu_matrix_bytes(&issue->device->base, &packed));
        gpu_weights w = gpu_weights_of(&packed);
        gpu_task task = {.kind = GPU_PACK, .rows = w.columns / 8};
        task.pack = (gpu_raw){.rows = list[i]->data,
                              .out = (void *)(uintptr_t)packed.data,
                              .k = w.k,
                              .columns = w.columns,
                              .blocks = w.blocks,
                              .f32 = w.type == GPU_WEIGHT_F32,
                              .int8 = w.type == GPU_WEIGHT_INT8X8 || w.type == GPU_WEIGHT_INT8,
                              .order = gpu_row_order_of(&packed)};
        gpu_launch_usual(issue, &task);
        *list[i] = packed;
        issue->emit.alone = 1;             /* products fetch weights before they wait for the kernel before */
    }
}

typedef void (*issue_function)(gpu_issue *issue, const op *op);

static const issue_function issue_functions[OP_KINDS] = {
#define X(kind, member, type) [kind] = issue_##member,
    OP_LIST(X)
#undef X
};

void gpu_op_tasks(gpu_issue *issue, const op *op) {
    struct op packed = *op;
    pack_raw(issue, &packed);
    issue_functions[op->kind](issue, &packed);
}

gpu_task gpu_product_of(const gpu_issue *issue, const op *op) {
    gpu_task task = {.kind = GPU_PRODUCT};
    gpu_issue build = {.device = issue->device, .purpose = GPU_BUILD, .built = &task, .op = op};
    gpu_op_tasks(&build, op);
    return task;
}

int gpu_choice_of(const gpu_issue *issue, const op *op, const gpu_task *product, gpu_choice *choice) {
    gpu_choices choices;
    gpu_choices_of(issue->device, product, &choices);
    if (!choices.count) return 0;
    *choice = choices.list[gpu_choices_place(&choices, op->choice)];
    return 1;
}

static int is_whole(const op *op, const matrix *weight) {
    return op->type == DTYPE_BF16 && !op->parameters && weight->data && !weight->raw;
}

int gpu_is_pair(const op *ops, int count) {
    if (count < 2 || ops[0].kind != OP_LINEAR_RESIDUAL || !ops[0].linear_residual.normed_next) return 0;
    if (ops[0].linear_residual.rows.times) return 0;
    const int is_qkv = ops[1].kind == OP_NORM_QKV;
    return (is_qkv || ops[1].kind == OP_NORM_LINEAR) && is_whole(&ops[0], &ops[0].linear_residual.weight) &&
           is_whole(&ops[1], is_qkv ? &ops[1].norm_qkv.weight : &ops[1].norm_linear.weight);
}
