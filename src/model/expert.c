/* One pass of the action expert. Its attention sees the cached prefix and its own rows, whose K and V the qkv
 * op has just written after the prefix's; the rows' keys say how far each row looks.
 *
 * Note: adaRMS is the same norm as everywhere, with 1 + scale in place of 1 + w and the shift as bias. The
 * gate that multiplies a sub-layer's output comes from the norm before that sub-layer.
 *
 * Actions that are known beforehand (trained real-time chunking) are at time 0, the others at the step's: two
 * segments, each with its column of the modulations. Both write K and V of a layer before either attends. */
#include <math.h>

#include "model/plan.h"

static const float *modulation(const plan *plan, int which, int column, int chunk) {
    size_t width = (size_t)plan->model->dims.expert_width, columns = (size_t)plan_columns(plan);
    if (!plan->buffers.modulation) return NULL;
    size_t row = ((size_t)which * columns + (size_t)column) * 3 + (size_t)chunk;
    return plan->buffers.modulation + row * width;
}

norm plan_expert_norm(const plan *plan, int which, const float *weight, int column) {
    if (variant_of(plan->model->variant)->adaptive_norms)
        return (norm){NORM_RMS, modulation(plan, which, column, 0), modulation(plan, which, column, 1),
                      1e-6f};
    return (norm){NORM_RMS, weight, NULL, 1e-6f};
}

static const float *gate(const plan *plan, int which, int column) {
    return variant_of(plan->model->variant)->adaptive_norms ? modulation(plan, which, column, 2) : NULL;
}

static sublayer at(plan *plan, const char *name, int layer, int step) {
    return (sublayer){
        .plan = plan, .stage = OPENPI_STAGE_DENOISE, .name = name, .layer = layer, .step = step};
}

/* Rows that run through the expert with one column of the schedule. */
typedef struct segment {
    row_set rows;
    void *x, *q, *o, *h;
    int step, column;
    int apart;                   /* 1: the chunk has rows of another segment too                           */
} segment;

static segment segment_of(plan *plan, const row_table *table, int step) {
    const plan_buffers *b = &plan->buffers;
    return (segment){.rows = plan_rows(table),
                     .x = b->suffix_x,
                     .q = b->suffix_q,
                     .o = b->suffix_o,
                     .h = b->suffix_h,
                     .step = step,
                     .column = step,
                     .apart = plan->kind == PLAN_TRAINED};
}

static segment known_segment(plan *plan, int step) {
    const plan_buffers *b = &plan->buffers;
    return (segment){.rows = plan_rows(&b->in.tables.known),
                     .x = b->known_act,
                     .q = b->known_q,
                     .o = b->known_o,
                     .h = b->known_h,
                     .step = step,
                     .column = plan_known_column(plan),
                     .apart = 1};
}

/* Q of the segment, and K and V into the cache. */
static void project(plan *plan, const segment *s, int i) {
    const model *m = plan->model;
    const gemma_layer *layer = &m->expert[i];
    plan_norm_qkv(at(plan, "expert.qkv", i, s->step),
                  (op_norm_qkv){.rows = s->rows,
                                .x = s->x,
                                .norm = plan_expert_norm(plan, 2 * i, layer->norm_in, s->column),
                                .weight = layer->qkv,
                                .rope = plan->buffers.rope,
                                .q = s->q,
                                .cache = plan_cache(plan, i)},
                  layer->qkv_parts, m->dims.heads);
}

/* The rest of the layer, with all of its K and V there. */
static void attend_and_mix(plan *plan, const segment *s, int i) {
    const model *m = plan->model;
    const gemma_layer *layer = &m->expert[i];
    plan_cache_attention(at(plan, "expert.attention", i, s->step),
                         (op_cache_attention){.rows = s->rows,
                                              .q = s->q,
                                              .heads = m->dims.heads,
                                              .scale = 1 / sqrtf((float)m->dims.head_dim),
                                              .cache = plan_cache(plan, i),
                                              .out = s->o,
                                              .apart = s->apart});
    plan_linear_residual(at(plan, "expert.o", i, s->step),
                         (op_linear_residual){.rows = s->rows,
                                              .a = s->o,
                                              .weight = layer->o,
                                              .gate = gate(plan, 2 * i, s->column),
                                              .x = s->x});
    plan_gate_up(at(plan, "expert.gate_up", i, s->step),
                 (op_norm_linear){.rows = s->rows,
                                  .x = s->x,
                                  .norm = plan_expert_norm(plan, 2 * i + 1, layer->norm_post, s->column),
                                  .weight = layer->gate_up,
                                  .activation = ACT_GEGLU,
                                  .out = s->h},
                 layer->gate_up_parts);
    plan_linear_residual(at(plan, "expert.down", i, s->step),
                         (op_linear_residual){.rows = s->rows,
                                              .a = s->h,
                                              .weight = layer->down,
                                              .gate = gate(plan, 2 * i + 1, s->column),
                                              .x = s->x});
}

/* Known rows need nothing of the last layer but their K and V. */
void plan_expert(plan *plan, const row_table *table, int step) {
    const segment own = segment_of(plan, table, step), known = known_segment(plan, step);
    int depth = plan->model->dims.depth, trained = plan->kind == PLAN_TRAINED;
    for (int i = 0; i < depth; i++) {
        project(plan, &own, i);
        if (trained) project(plan, &known, i);
        attend_and_mix(plan, &own, i);
        if (trained && i + 1 < depth) attend_and_mix(plan, &known, i);
    }
}
