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
    if (plan->model->variant == OPENPI_PI05)
        return (norm){NORM_RMS, modulation(plan, which, step, 0), modulation(plan, which, step, 1), 1e-6f};
    return (norm){NORM_RMS, weight, NULL, 1e-6f};
}

const float *plan_expert_gate(const plan *plan, int which, int step) {
    return plan->model->variant == OPENPI_PI05 ? modulation(plan, which, step, 2) : NULL;
}

void plan_expert(plan *plan, const row_table *table, int step) {
    const plan_buffers *b = &plan->buffers;
    const model *m = plan->model;
    row_set rows = plan_rows(table);

    for (int i = 0; i < m->dims.depth; i++) {
        const gemma_layer *layer = &m->expert[i];
        kv_cache cache = plan_cache(plan, i);
        norm norm_in = plan_expert_norm(plan, 2 * i, layer->norm_in, step);
        norm norm_post = plan_expert_norm(plan, 2 * i + 1, layer->norm_post, step);
        const float *gate_in = plan_expert_gate(plan, 2 * i, step), *gate_post = plan_expert_gate(plan, 2 * i + 1, step);

        plan_add(plan, OP_NORM_QKV, OPENPI_STAGE_DENOISE, "expert.qkv", i, step)->norm_qkv =
            (op_norm_qkv){rows, b->suffix_x, norm_in, layer->qkv, b->rope, b->suffix_q, cache};
        plan_add(plan, OP_CACHE_ATTENTION, OPENPI_STAGE_DENOISE, "expert.attention", i, step)->cache_attention =
            (op_cache_attention){rows, b->suffix_q, m->dims.heads, 1 / sqrtf((float)m->dims.head_dim), cache, b->suffix_o};
        plan_add(plan, OP_LINEAR_RESIDUAL, OPENPI_STAGE_DENOISE, "expert.o", i, step)->linear_residual =
            (op_linear_residual){rows, b->suffix_o, layer->o, NULL, gate_in, b->suffix_x};
        plan_add(plan, OP_NORM_LINEAR, OPENPI_STAGE_DENOISE, "expert.gate_up", i, step)->norm_linear =
            (op_norm_linear){rows, b->suffix_x, norm_post, layer->gate_up, NULL, ACT_GEGLU, NULL, b->suffix_h};
        plan_add(plan, OP_LINEAR_RESIDUAL, OPENPI_STAGE_DENOISE, "expert.down", i, step)->linear_residual =
            (op_linear_residual){rows, b->suffix_h, layer->down, NULL, gate_post, b->suffix_x};
    }
}
