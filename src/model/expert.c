/* One pass of the action expert. Its attention sees the cached prefix and its own rows, whose K and V the qkv
 * op has just put behind them; who sees whom is in the rows' keys.
 * What surprises: adaRMS is the same norm as everywhere, 1 + scale instead of 1 + w and a shift as bias, and
 * the gate that multiplies a sub-layer's output comes from the norm in front of it. */
#include <math.h>

#include "model/plan.h"

static const float *modulation(const plan *plan, int which, int step, int chunk) {
    size_t width = (size_t)plan->model->dims.expert_width;
    if (!plan->buffers.modulation) return NULL;
    return plan->buffers.modulation + (((size_t)which * (size_t)plan->shape.steps + (size_t)step) * 3 + (size_t)chunk) * width;
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
    return (sublayer){plan, OPENPI_STAGE_DENOISE, name, layer, step};
}

void plan_expert(plan *plan, const row_table *table, int step) {
    const plan_buffers *b = &plan->buffers;
    const model *m = plan->model;
    row_set rows = plan_rows(table);
    float scale = 1 / sqrtf((float)m->dims.head_dim);

    for (int i = 0; i < m->dims.depth; i++) {
        const gemma_layer *layer = &m->expert[i];
        kv_cache cache = plan_cache(plan, i);
        norm norm_in = plan_expert_norm(plan, 2 * i, layer->norm_in, step);
        norm norm_post = plan_expert_norm(plan, 2 * i + 1, layer->norm_post, step);
        const float *gate_in = plan_expert_gate(plan, 2 * i, step);
        const float *gate_post = plan_expert_gate(plan, 2 * i + 1, step);

        plan_norm_qkv(at(plan, "expert.qkv", i, step),
                      (op_norm_qkv){rows, b->suffix_x, norm_in, layer->qkv, b->rope, b->suffix_q, cache},
                      layer->qkv_parts, m->dims.heads);
        plan_cache_attention(at(plan, "expert.attention", i, step),
                             (op_cache_attention){rows, b->suffix_q, m->dims.heads, scale, cache, b->suffix_o});
        plan_linear_residual(at(plan, "expert.o", i, step),
                             (op_linear_residual){rows, b->suffix_o, layer->o, NULL, gate_in, b->suffix_x});
        plan_gate_up(at(plan, "expert.gate_up", i, step),
                     (op_norm_linear){rows, b->suffix_x, norm_post, layer->gate_up, NULL, ACT_GEGLU, NULL, b->suffix_h},
                     layer->gate_up_parts);
        plan_linear_residual(at(plan, "expert.down", i, step),
                             (op_linear_residual){rows, b->suffix_h, layer->down, NULL, gate_post, b->suffix_x});
    }
}
