/* The language stack over image tokens and prompt, once a call: its only product is every layer's K and V.
 *
 * Note: the last layer stops at K and V, because nothing reads the rest of it. */
#include <math.h>

#include "model/plan.h"

static sublayer at(plan *plan, const char *name, int layer) {
    return (sublayer){.plan = plan, .stage = OPENPI_STAGE_PREFIX, .name = name, .layer = layer, .step = -1};
}

static norm rms(const float *weight) { return (norm){NORM_RMS, weight, NULL, 1e-6f}; }

/* 1: the layer stops at K and V. */
static int stops(const plan *plan, int i) {
    return i == plan->model->dims.depth - 1 && plan_on(plan, SWITCH_DEAD_WORK_REMOVAL);
}

/* down, whose rows may have one scale: what that loses is counted. */
static matrix counted(const plan *plan, matrix down) {
    if (down.row_scale > 0) down.counts = plan->buffers.in.counts;
    return down;
}

/* The scale of the integers that gate_up may leave for down; 0: neither is whole, or rows have their own. */
static float left_scale(const plan *plan, const matrix *down) {
    int whole = plan_on(plan, SWITCH_FUSED_GATE_UP) && plan_on(plan, SWITCH_FUSED_POINTWISE);
    return whole ? down->row_scale : 0;
}

static void prefix_layer(plan *plan, int i) {
    const plan_buffers *b = &plan->buffers;
    const model *m = plan->model;
    const gemma_layer *layer = &m->prefix[i];
    row_set rows = plan_rows(&b->in.tables.prefix);
    kv_cache cache = plan_cache(plan, i);

    plan_norm_qkv(at(plan, "prefix.qkv", i),
                  (op_norm_qkv){.rows = rows,
                                .x = b->prefix_x,
                                .norm = rms(layer->norm_in),
                                .weight = layer->qkv,
                                .rope = b->rope,
                                .q = b->prefix_q,
                                .cache = cache},
                  layer->qkv_parts, stops(plan, i) ? 0 : m->dims.heads);
    if (stops(plan, i)) return;
    plan_cache_attention(at(plan, "prefix.attention", i),
                         (op_cache_attention){.rows = rows,
                                              .q = b->prefix_q,
                                              .heads = m->dims.heads,
                                              .scale = 1 / sqrtf((float)m->dims.head_dim),
                                              .cache = cache,
                                              .out = b->prefix_o});
    plan_linear_residual(
        at(plan, "prefix.o", i),
        (op_linear_residual){
            .rows = rows, .a = b->prefix_o, .weight = layer->o, .x = b->prefix_x, .normed_next = 1});
    plan_gate_up(at(plan, "prefix.gate_up", i),
                 (op_norm_linear){.rows = rows,
                                  .x = b->prefix_x,
                                  .norm = rms(layer->norm_post),
                                  .weight = layer->gate_up,
                                  .activation = ACT_GEGLU,
                                  .out = b->prefix_h,
                                  .next_scale = left_scale(plan, &layer->down),
                                  .next_counts = b->in.counts},
                 layer->gate_up_parts);
    plan_linear_residual(at(plan, "prefix.down", i),
                         (op_linear_residual){.rows = rows,
                                              .a = b->prefix_h,
                                              .weight = counted(plan, layer->down),
                                              .x = b->prefix_x,
                                              .normed_next = i + 1 < plan->model->dims.depth,
                                              .coded = left_scale(plan, &layer->down) > 0});
}

void plan_prefix(plan *plan) {
    const call_tables *tables = &plan->buffers.in.tables;
    const matrix *table = &plan->model->embedding;

    plan_add(plan, OP_EMBED_TEXT, OPENPI_STAGE_PREFIX, "prefix.text", -1, -1)->embed_text =
        (op_embed_text){.rows = plan_rows(&tables->text),
                        .ids = tables->ids,
                        .table = *table,
                        .scale = (float)sqrt(table->k),
                        .out_row = tables->text.out_row,
                        .out = plan->buffers.prefix_x};
    int depth = plan->model->dims.depth, first = plan->count, whole = depth - stops(plan, depth - 1);
    for (int i = 0; i < whole; i++) prefix_layer(plan, i);
    plan_block(plan, BLOCK_PREFIX_LAYERS, first, whole, tables->prefix.capacity);
    if (whole < depth) prefix_layer(plan, whole);
}
