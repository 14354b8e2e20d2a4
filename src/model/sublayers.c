/* A layer's parts in both spellings: fused, as the model is meant to run, and taken apart where a switch is off. What the
 * switches fused-qkv, fused-gate-up, fused-pointwise and fused-attention do to a plan is decided here alone.
 *
 * What is taken apart meets in three buffers: `normed` rows, `sums` of a product before anything is done to them, `scores`.
 * What surprises: a product that writes its result where it belongs needs no `sums`: its bias and activation follow in place. */
#include "model/plan.h"

static op *add(sublayer at, op_kind kind) { return plan_add(at.plan, kind, at.stage, at.name, at.layer, at.step); }

static const norm no_norm = {NORM_NONE, NULL, NULL, 0};

/* So many elements of act behind p; nothing while sizes are only measured. */
static void *behind(const plan *plan, const void *p, size_t elements) {
    return p ? (char *)(uintptr_t)p + elements * dtype_bytes(plan->model->type) : NULL;
}

const void *plan_normed(sublayer at, row_set rows, const void *x, int n, norm *norm) {
    void *out = at.plan->buffers.normed;
    if (plan_on(at.plan, SWITCH_FUSED_POINTWISE) || norm->kind == NORM_NONE) return x;
    add(at, OP_NORM)->norm = (op_norm){rows, x, *norm, n, out};
    *norm = no_norm;
    return out;
}

static void product(sublayer at, row_set rows, const void *x, norm norm, const matrix *weight, void *out) {
    add(at, OP_NORM_LINEAR)->norm_linear = (op_norm_linear){rows, x, norm, *weight, NULL, ACT_NONE, NULL, out};
}

void plan_norm_linear(sublayer at, op_norm_linear a) {
    op_activate rest = {a.rows, a.bias, a.activation, NULL, a.out_row, a.weight.n, a.out};
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
    add(at, OP_ADD)->add = (op_add){a.rows, sums, a.bias, a.gate, a.weight.n, a.x};
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
        one.out = behind(at.plan, a.out, (size_t)i * (size_t)a.rows.capacity * (size_t)width);
        plan_norm_linear(at, one);
    }
}

void plan_norm_qkv(sublayer at, op_norm_qkv a, const matrix parts[3], int heads) {
    const plan *plan = at.plan;
    int whole = plan_on(plan, SWITCH_FUSED_QKV), d = a.cache.head_dim, q = heads * d;
    size_t rows = (size_t)a.rows.capacity;
    void *sums = plan->buffers.sums, *k = behind(plan, sums, whole ? (size_t)q : rows * (size_t)q);
    void *v = behind(plan, k, whole ? (size_t)d : rows * (size_t)d), *outs[] = {sums, k, v};
    if (whole && plan_on(plan, SWITCH_FUSED_POINTWISE)) {
        add(at, OP_NORM_QKV)->norm_qkv = a;
        return;
    }
    const void *x = plan_normed(at, a.rows, a.x, whole ? a.weight.k : parts[1].k, &a.norm);
    if (whole) product(at, a.rows, x, a.norm, &a.weight, sums);
    for (int i = heads ? 0 : 1; i < 3 && !whole; i++) product(at, a.rows, x, a.norm, &parts[i], outs[i]);
    add(at, OP_ROPE_CACHE)->rope_cache =
        (op_rope_cache){a.rows, sums, k, v, whole ? q + 2 * d : q, whole ? q + 2 * d : d, heads, a.rope, a.q, a.cache};
}

void plan_gate_up(sublayer at, op_norm_linear a, const matrix parts[2]) {
    void *sums = at.plan->buffers.sums;
    int fused = plan_on(at.plan, SWITCH_FUSED_POINTWISE), whole = plan_on(at.plan, SWITCH_FUSED_GATE_UP);
    a.x = plan_normed(at, a.rows, a.x, whole ? a.weight.k : parts[0].k, &a.norm);
    if (whole) {
        add(at, OP_NORM_LINEAR)->norm_linear = a;
        return;
    }
    add(at, OP_NORM_LINEAR)->norm_linear =
        (op_norm_linear){a.rows, a.x, a.norm, parts[0], NULL, fused ? ACT_GELU : ACT_NONE, NULL, a.out};
    product(at, a.rows, a.x, a.norm, &parts[1], sums);
    add(at, OP_ACTIVATE)->activate = (op_activate){a.rows, NULL, fused ? ACT_NONE : ACT_GELU, sums, NULL, parts[0].n, a.out};
}

/* Queries, keys and values as the three operations find them. */
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
    attended keys = {{0}, behind(at.plan, a.qkv, next), stride}, values = {{0}, behind(at.plan, a.qkv, 2 * next), stride};
    attend_apart(at, (op_scores){a.rows, a.qkv, stride, a.heads, a.head_dim, a.scale, keys, NULL, places},
                 (op_values){a.rows, NULL, a.heads, a.head_dim, places, values, a.out});
}

void plan_cache_attention(sublayer at, op_cache_attention a) {
    int d = a.cache.head_dim, places = a.cache.capacity;
    attended cache = {a.cache, NULL, 0};
    if (plan_on(at.plan, SWITCH_FUSED_ATTENTION)) {
        add(at, OP_CACHE_ATTENTION)->cache_attention = a;
        return;
    }
    attend_apart(at, (op_scores){a.rows, a.q, a.heads * d, a.heads, d, a.scale, cache, NULL, places},
                 (op_values){a.rows, NULL, a.heads, d, places, cache, a.out});
}
