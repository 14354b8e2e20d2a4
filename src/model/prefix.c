/* The language stack over image tokens and prompt, once a call: its only product is every layer's K and V.
 * What surprises: the last layer stops at K and V, for nothing reads the rest of it. */
#include <math.h>

#include "model/plan.h"

static sublayer at(plan *plan, const char *name, int layer) { return (sublayer){plan, OPENPI_STAGE_PREFIX, name, layer, -1}; }

static norm rms(const float *weight) { return (norm){NORM_RMS, weight, NULL, 1e-6f}; }

static void prefix_layer(plan *plan, int i) {
    const plan_buffers *b = &plan->buffers;
    const model *m = plan->model;
    const gemma_layer *layer = &m->prefix[i];
    row_set rows = plan_rows(&b->in.tables.prefix);
    kv_cache cache = plan_cache(plan, i);
    float scale = 1 / sqrtf((float)m->dims.head_dim);
    int stop = i == m->dims.depth - 1 && plan_on(plan, SWITCH_DEAD_WORK_REMOVAL);

    plan_norm_qkv(at(plan, "prefix.qkv", i),
                  (op_norm_qkv){rows, b->prefix_x, rms(layer->norm_in), layer->qkv, b->rope, b->prefix_q, cache},
                  layer->qkv_parts, stop ? 0 : m->dims.heads);
    if (stop) return;
    plan_cache_attention(at(plan, "prefix.attention", i),
                         (op_cache_attention){rows, b->prefix_q, m->dims.heads, scale, cache, b->prefix_o});
    plan_linear_residual(at(plan, "prefix.o", i), (op_linear_residual){rows, b->prefix_o, layer->o, NULL, NULL, b->prefix_x});
    plan_gate_up(at(plan, "prefix.gate_up", i),
                 (op_norm_linear){rows, b->prefix_x, rms(layer->norm_post), layer->gate_up, NULL, ACT_GEGLU, NULL, b->prefix_h},
                 layer->gate_up_parts);
    plan_linear_residual(at(plan, "prefix.down", i),
                         (op_linear_residual){rows, b->prefix_h, layer->down, NULL, NULL, b->prefix_x});
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
    for (int i = 0; i < plan->model->dims.depth; i++) prefix_layer(plan, i);
}
