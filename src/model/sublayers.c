/* A layer's parts in both forms: fused, as the model is meant to run, and taken apart where a switch is off.
 * What the switches fused-qkv, fused-gate-up, fused-pointwise and fused-attention do to a plan is decided
 * here alone.
 *
 * Operations that were taken apart pass their numbers on in three buffers: `normed` rows, `sums` of a product
 * before anything is done to them, and `scores`.
 *
 * Note: a product that writes to its result's final place needs no `sums`; its bias and activation follow in
 * place. */
#include "model/plan.h"

static op *add(sublayer at, op_kind kind) {
    return plan_add(at.plan, kind, at.stage, at.name, at.layer, at.step);
}

static const norm no_norm = {NORM_NONE, NULL, NULL, 0};

/* The address `elements` of act after p; NULL while sizes are only measured. */
static void *after(const plan *plan, const void *p, size_t elements) {
    return p ? (char *)(uintptr_t)p + elements * dtype_bytes(plan->model->type) : NULL;
}

const void *plan_normed(sublayer at, row_set rows, const void *x, int n, norm *norm) {
    void *out = at.plan->buffers.normed;
    if (plan_on(at.plan, SWITCH_FUSED_POINTWISE) || norm->kind == NORM_NONE) return x;
    add(at, OP_NORM)->norm = (op_norm){.rows = rows, .x = x, .norm = *norm, .n = n, .out = out};
    *norm = no_norm;
    return out;
}

static void product(sublayer at, row_set rows, const void *x, norm norm, const matrix *weight, void *out) {
    add(at, OP_NORM_LINEAR)->norm_linear =
        (op_norm_linear){.rows = rows, .x = x, .norm = norm, .weight = *weight, .out = out};
}

void plan_norm_linear(sublayer at, op_norm_linear a) {
    op_activate rest = {.rows = a.rows,
                        .bias = a.bias,
                        .activation = a.activation,
                        .row = a.out_row,
                        .n = a.weight.n,
                        .x = a.out};
    if (plan_on(at.plan, SWITCH_FUSED_POINTWISE)) {
        add(at, OP_NORM_LINEAR)->norm_linear = a;
        return;
    }
    a.x = plan_normed(at, a.rows, a.x, a.weight.k, &a.norm);
    a.bias = NULL;
    a.activation = ACT_NONE;
    add(at, OP_NORM_LINEAR)->norm_linear = a;
    add(at, OP_ACTIVATE)->activate = rest;
}

void plan_linear_residual(sublayer at, op_linear_residual a) {
    void *sums = at.plan->buffers.sums;
    if (plan_on(at.plan, SWITCH_FUSED_POINTWISE)) {
        add(at, OP_LINEAR_RESIDUAL)->linear_residual = a;
        return;
    }
    product(at, a.rows, a.a, no_norm, &a.weight, sums);
    add(at, OP_ADD)->add =
        (op_add){.rows = a.rows, .y = sums, .bias = a.bias, .gate = a.gate, .n = a.weight.n, .x = a.x};
}

void plan_vision_qkv(sublayer at, op_norm_linear a, const matrix parts[3]) {
    int width = at.plan->model->dims.vision_width;
    a.x = plan_normed(at, a.rows, a.x, width, &a.norm);
    if (plan_on(at.plan, SWITCH_FUSED_QKV)) {
        plan_norm_linear(at, a);
        return;
    }
    for (int i = 0; i < 3; i++) {
        op_norm_linear one = a;
        one.weight = parts[i];
        if (a.bias) one.bias = a.bias + (size_t)i * (size_t)width;
        one.out = after(at.plan, a.out, (size_t)i * (size_t)a.rows.capacity * (size_t)width);
        plan_norm_linear(at, one);
    }
}

void plan_norm_qkv(sublayer at, op_norm_qkv a, const matrix parts[3], int heads) {
    const plan *plan = at.plan;
    int whole = plan_on(plan, SWITCH_FUSED_QKV), d = a.cache.head_dim, q = heads * d;
    size_t rows = (size_t)a.rows.capacity;
    void *sums = plan->buffers.sums, *k = after(plan, sums, whole ? (size_t)q : rows * (size_t)q);
    void *v = after(plan, k, whole ? (size_t)d : rows * (size_t)d), *outs[] = {sums, k, v};
    if (whole && plan_on(plan, SWITCH_FUSED_POINTWISE)) {
        add(at, OP_NORM_QKV)->norm_qkv = a;
        return;
    }
    const void *x = plan_normed(at, a.rows, a.x, whole ? a.weight.k : parts[1].k, &a.norm);
    if (whole) product(at, a.rows, x, a.norm, &a.weight, sums);
    for (int i = heads ? 0 : 1; i < 3 && !whole; i++) product(at, a.rows, x, a.norm, &parts[i], outs[i]);
    add(at, OP_ROPE_CACHE)->rope_cache = (op_rope_cache){.rows = a.rows,
                                                         .q_in = sums,
                                                         .k_in = k,
                                                         .v_in = v,
                                                         .q_stride = whole ? q + 2 * d : q,
                                                         .kv_stride = whole ? q + 2 * d : d,
                                                         .heads = heads,
                                                         .rope = a.rope,
                                                         .q = a.q,
                                                         .cache = a.cache};
}

void plan_gate_up(sublayer at, op_norm_linear a, const matrix parts[2]) {
    void *sums = at.plan->buffers.sums;
    int fused = plan_on(at.plan, SWITCH_FUSED_POINTWISE), whole = plan_on(at.plan, SWITCH_FUSED_GATE_UP);
    a.x = plan_normed(at, a.rows, a.x, whole ? a.weight.k : parts[0].k, &a.norm);
    if (whole) {
        add(at, OP_NORM_LINEAR)->norm_linear = a;
        return;
    }
    add(at, OP_NORM_LINEAR)->norm_linear = (op_norm_linear){.rows = a.rows,
                                                            .x = a.x,
                                                            .norm = a.norm,
                                                            .weight = parts[0],
                                                            .activation = fused ? ACT_GELU : ACT_NONE,
                                                            .out = a.out};
    product(at, a.rows, a.x, a.norm, &parts[1], sums);
    add(at, OP_ACTIVATE)->activate = (op_activate){.rows = a.rows,
                                                   .activation = fused ? ACT_NONE : ACT_GELU,
                                                   .up = sums,
                                                   .n = parts[0].n,
                                                   .x = a.out};
}

/* Attention as three operations. */
static void attend_apart(sublayer at, op_scores q, op_values v) {
    float *scores = at.plan->buffers.scores;
    q.scores = scores;
    v.scores = scores;
    add(at, OP_SCORES)->scores = q;
    add(at, OP_SOFTMAX)->softmax = (op_softmax){q.rows, q.heads, q.places, scores};
    add(at, OP_VALUES)->values = v;
}

void plan_image_attention(sublayer at, op_image_attention a) {
    int width = a.heads * a.head_dim, places = OPENPI_IMAGE_TOKENS, stride;
    a.planar = !plan_on(at.plan, SWITCH_FUSED_QKV);
    if (plan_on(at.plan, SWITCH_FUSED_ATTENTION)) {
        add(at, OP_IMAGE_ATTENTION)->image_attention = a;
        return;
    }
    stride = a.planar ? width : 3 * width;
    size_t next = (a.planar ? (size_t)a.rows.capacity : 1) * (size_t)width;
    attended keys = {{0}, after(at.plan, a.qkv, next), stride};
    attended values = {{0}, after(at.plan, a.qkv, 2 * next), stride};
    attend_apart(at,
                 (op_scores){.rows = a.rows,
                             .q = a.qkv,
                             .q_stride = stride,
                             .heads = a.heads,
                             .head_dim = a.head_dim,
                             .scale = a.scale,
                             .keys = keys,
                             .places = places},
                 (op_values){.rows = a.rows,
                             .heads = a.heads,
                             .head_dim = a.head_dim,
                             .places = places,
                             .values = values,
                             .out = a.out});
}

void plan_cache_attention(sublayer at, op_cache_attention a) {
    int d = a.cache.head_dim, places = a.cache.capacity;
    attended cache = {a.cache, NULL, 0};
    if (plan_on(at.plan, SWITCH_FUSED_ATTENTION)) {
        add(at, OP_CACHE_ATTENTION)->cache_attention = a;
        return;
    }
    attend_apart(at,
                 (op_scores){.rows = a.rows,
                             .q = a.q,
                             .q_stride = a.heads * d,
                             .heads = a.heads,
                             .head_dim = d,
                             .scale = a.scale,
                             .keys = cache,
                             .places = places},
                 (op_values){.rows = a.rows,
                             .heads = a.heads,
                             .head_dim = d,
                             .places = places,
                             .values = cache,
                             .out = a.out});
}
