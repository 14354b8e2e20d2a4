/* One pass of the action expert. Its attention sees the cached prefix and its own rows, whose K and V the qkv
 * op has just written after the prefix's; the rows' keys say how far each row looks.
 *
 * Note: adaRMS is the same norm as everywhere, with 1 + scale in place of 1 + w and the shift as bias. The
 * gate that multiplies a sub-layer's output comes from the norm before that sub-layer.
 *
 * Actions that are known beforehand (trained real-time chunking) are at time 0, the others at the step's:
 * each row takes its column of the modulations (row_set.known). In a timed step all rows have
 * columns of their own. */
#include <math.h>

#include "model/plan.h"

/* Of a step: scale 0, shift 1, gate 2 of the norm `which`. */
static const float *modulation(const plan *plan, int which, int step, int chunk) {
    size_t width = (size_t)plan->model->dims.expert_width, columns = (size_t)plan_columns(plan);
    if (!plan->buffers.modulation) return NULL;
    size_t row = ((size_t)which * columns + (size_t)plan_column(plan, step)) * 3 + (size_t)chunk;
    return plan->buffers.modulation + row * width;
}

int plan_norm_floats(const plan *plan) {
    return variant_of(plan->model->variant)->adaptive_norms ? 3 * plan->model->dims.expert_width : 0;
}

norm plan_expert_norm(const plan *plan, int which, const float *weight, int step) {
    if (variant_of(plan->model->variant)->adaptive_norms)
        return (norm){NORM_RMS, modulation(plan, which, step, 0), modulation(plan, which, step, 1), 1e-6f};
    return (norm){NORM_RMS, weight, NULL, 1e-6f};
}

static const float *gate(const plan *plan, int which, int step) {
    return variant_of(plan->model->variant)->adaptive_norms ? modulation(plan, which, step, 2) : NULL;
}

row_set plan_timed(const plan *plan, row_set rows, int floats) {
    if (!floats) return rows;
    rows.known = plan->buffers.in.tables.time_of;
    rows.known_at = floats;
    rows.times = plan->shape.times;
    return rows;
}

row_set plan_expert_rows(const plan *plan, const row_table *table, int step) {
    row_set rows = plan_rows(table);
    if (plan->kind == PLAN_TIMED)
        return plan_timed(plan, rows, plan_norm_floats(plan));
    /* Beside others a sample may be in any of a session's plans. A device chooses kernels by what an
     * operation has, so all of them have known rows: the sample has the same bits in each. */
    int shared = plan->shape.known && plan->shape.batch > 1;
    if (plan->kind != PLAN_TRAINED && !shared) return rows;
    rows.known = plan->buffers.in.tables.known;
    rows.known_at = (plan_known_column(plan) - step) * 3 * plan->model->dims.expert_width;
    return rows;
}

static sublayer at(plan *plan, const char *name, int layer, int step) {
    return (sublayer){
        .plan = plan, .stage = OPENPI_STAGE_DENOISE, .name = name, .layer = layer, .step = step};
}

static void attention(plan *plan, row_set rows, int i, int step) {
    const model *m = plan->model;
    const plan_buffers *b = &plan->buffers;
    const gemma_layer *layer = &m->expert[i];
    plan_norm_qkv(at(plan, "expert.qkv", i, step),
                  (op_norm_qkv){.rows = rows,
                                .x = b->suffix_x,
                                .norm = plan_expert_norm(plan, 2 * i, layer->norm_in, step),
                                .weight = layer->qkv,
                                .rope = b->rope,
                                .q = b->suffix_q,
                                .cache = plan_cache(plan, i)},
                  layer->qkv_parts, m->dims.heads);
    plan_cache_attention(at(plan, "expert.attention", i, step),
                         (op_cache_attention){.rows = rows,
                                              .q = b->suffix_q,
                                              .heads = m->dims.heads,
                                              .scale = 1 / sqrtf((float)m->dims.head_dim),
                                              .cache = plan_cache(plan, i),
                                              .out = b->suffix_o});
    plan_linear_residual(at(plan, "expert.o", i, step),
                         (op_linear_residual){.rows = rows,
                                              .a = b->suffix_o,
                                              .weight = layer->o,
                                              .gate = gate(plan, 2 * i, step),
                                              .x = b->suffix_x,
                                              .normed_next = 1});
}

static void feed_forward(plan *plan, row_set rows, int i, int step) {
    const plan_buffers *b = &plan->buffers;
    const gemma_layer *layer = &plan->model->expert[i];
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
                                              .gate = gate(plan, 2 * i + 1, step),
                                              .x = b->suffix_x,
                                              .normed_next = i + 1 < plan->model->dims.depth});
}

void plan_expert(plan *plan, const row_table *table, int step) {
    const row_set rows = plan_expert_rows(plan, table, step);
    for (int i = 0; i < plan->model->dims.depth; i++) {
        attention(plan, rows, i, step);
        feed_forward(plan, rows, i, step);
    }
}
