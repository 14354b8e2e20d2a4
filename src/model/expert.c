/* One pass of the action expert. Its attention sees the cached prefix and its own rows, whose K and V the qkv
 * op has just written after the prefix's; the rows' keys say how far each row looks.
 *
 * Note: adaRMS is the same norm as everywhere, with 1 + scale in place of 1 + w and the shift as bias. The
 * gate that multiplies a sub-layer's output comes from the norm before that sub-layer. */
#include <math.h>

#include "model/plan.h"

static const float *modulation(const plan *plan, int which, int step, int chunk) {
    size_t width = (size_t)plan->model->dims.expert_width, steps = (size_t)plan->shape.steps;
    if (!plan->buffers.modulation) return NULL;
    return plan->buffers.modulation + (((size_t)which * steps + (size_t)step) * 3 + (size_t)chunk) * width;
}

norm plan_expert_norm(const plan *plan, int which, const float *weight, int step) {
    if (variant_of(plan->model->variant)->adaptive_norms)
        return (norm){NORM_RMS, modulation(plan, which, step, 0), modulation(plan, which, step, 1), 1e-6f};
    return (norm){NORM_RMS, weight, NULL, 1e-6f};
}

const float *plan_expert_gate(const plan *plan, int which, int step) {
    return variant_of(plan->model->variant)->adaptive_norms ? modulation(plan, which, step, 2) : NULL;
}

static sublayer at(plan *plan, const char *name, int layer, int step) {
    return (sublayer){
        .plan = plan, .stage = OPENPI_STAGE_DENOISE, .name = name, .layer = layer, .step = step};
}

static void expert_layer(plan *plan, row_set rows, int i, int step) {
    const plan_buffers *b = &plan->buffers;
    const model *m = plan->model;
    const gemma_layer *layer = &m->expert[i];
    kv_cache cache = plan_cache(plan, i);
    const float *gate_in = plan_expert_gate(plan, 2 * i, step);
    const float *gate_post = plan_expert_gate(plan, 2 * i + 1, step);

    plan_norm_qkv(at(plan, "expert.qkv", i, step),
                  (op_norm_qkv){.rows = rows,
                                .x = b->suffix_x,
                                .norm = plan_expert_norm(plan, 2 * i, layer->norm_in, step),
                                .weight = layer->qkv,
                                .rope = b->rope,
                                .q = b->suffix_q,
                                .cache = cache},
                  layer->qkv_parts, m->dims.heads);
    plan_cache_attention(at(plan, "expert.attention", i, step),
                         (op_cache_attention){.rows = rows,
                                              .q = b->suffix_q,
                                              .heads = m->dims.heads,
                                              .scale = 1 / sqrtf((float)m->dims.head_dim),
                                              .cache = cache,
                                              .out = b->suffix_o});
    plan_linear_residual(at(plan, "expert.o", i, step),
                         (op_linear_residual){.rows = rows,
                                              .a = b->suffix_o,
                                              .weight = layer->o,
                                              .gate = gate_in,
                                              .x = b->suffix_x});
    plan_gate_up(at(plan, "expert.gate_up", i, step),
                 (op_norm_linear){.rows = rows,
                                  .x = b->suffix_x,
                                  .norm = plan_expert_norm(plan, 2 * i + 1, layer->norm_post, step),
                                  .weight = layer->gate_up,
                                  .activation = ACT_GEGLU,
                                  .out = b->suffix_h},
                 layer->gate_up_parts);
    plan_linear_residual(at(plan, "expert.down", i, step),
                         (op_linear_residual){.rows = rows,
                                              .a = b->suffix_h,
                                              .weight = layer->down,
                                              .gate = gate_post,
                                              .x = b->suffix_x});
}

void plan_expert(plan *plan, const row_table *table, int step) {
    row_set rows = plan_rows(table);
    for (int i = 0; i < plan->model->dims.depth; i++) expert_layer(plan, rows, i, step);
}
