/* The language stack over image tokens and prompt, once a call: its only product is every layer's K and V.
 * What surprises: the last layer stops at K and V, for nothing reads the rest of it. */
#include <math.h>

#include "model/plan.h"

static op *add(plan *plan, op_kind kind, const char *name, int layer) {
    return plan_add(plan, kind, OPENPI_STAGE_PREFIX, name, layer, -1);
}

static norm rms(const float *weight) { return (norm){NORM_RMS, weight, NULL, 1e-6f}; }

static void prefix_layer(plan *plan, int i) {
    const plan_buffers *b = &plan->buffers;
    const model *m = plan->model;
    const gemma_layer *layer = &m->prefix[i];
    row_set rows = plan_rows(&b->in.tables.prefix);
    kv_cache cache = plan_cache(plan, i);

    add(plan, OP_NORM_QKV, "prefix.qkv", i)->norm_qkv =
        (op_norm_qkv){rows, b->prefix_x, rms(layer->norm_in), layer->qkv, b->rope, b->prefix_q, cache};
    if (i == m->dims.depth - 1) return;
    add(plan, OP_CACHE_ATTENTION, "prefix.attention", i)->cache_attention =
        (op_cache_attention){rows, b->prefix_q, m->dims.heads, 1 / sqrtf((float)m->dims.head_dim), cache, b->prefix_o};
    add(plan, OP_LINEAR_RESIDUAL, "prefix.o", i)->linear_residual =
        (op_linear_residual){rows, b->prefix_o, layer->o, NULL, NULL, b->prefix_x};
    add(plan, OP_NORM_LINEAR, "prefix.gate_up", i)->norm_linear =
        (op_norm_linear){rows, b->prefix_x, rms(layer->norm_post), layer->gate_up, NULL, ACT_GEGLU, NULL, b->prefix_h};
    add(plan, OP_LINEAR_RESIDUAL, "prefix.down", i)->linear_residual =
        (op_linear_residual){rows, b->prefix_h, layer->down, NULL, NULL, b->prefix_x};
}

void plan_prefix(plan *plan) {
    const plan_buffers *b = &plan->buffers;
    int width = plan->model->dims.width;

    add(plan, OP_EMBED_TEXT, "prefix.text", -1)->embed_text =
        (op_embed_text){plan_rows(&b->in.tables.text), b->in.text, width, (float)sqrt(width), b->in.tables.text.out_row, b->prefix_x};
    for (int i = 0; i < plan->model->dims.depth; i++) prefix_layer(plan, i);
}
