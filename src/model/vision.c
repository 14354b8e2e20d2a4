/* SigLIP: pictures to image tokens, all cameras of all samples in one batch; without batched-vision one pass
 * for every camera slot.
 *
 * Note: the projector writes straight into the prefix rows, and nothing scales its output. */
#include <math.h>

#include "model/plan.h"

static sublayer at(plan *plan, const char *name, int layer) {
    return (sublayer){.plan = plan, .stage = OPENPI_STAGE_VISION, .name = name, .layer = layer, .step = -1};
}

static void vision_layer_ops(plan *plan, row_set rows, int i) {
    const plan_buffers *b = &plan->buffers;
    const vision_layer *layer = &plan->model->vision[i];
    const openpi_dims *dims = &plan->model->dims;
    int head_dim = dims->vision_width / dims->vision_heads;

    plan_vision_qkv(at(plan, "vision.qkv", i),
                    (op_norm_linear){.rows = rows,
                                     .x = b->vision_x,
                                     .norm = layer->norm1,
                                     .weight = layer->qkv,
                                     .bias = layer->qkv_bias,
                                     .out = b->vision_qkv},
                    layer->qkv_parts);
    plan_image_attention(at(plan, "vision.attention", i),
                         (op_image_attention){.rows = rows,
                                              .qkv = b->vision_qkv,
                                              .heads = dims->vision_heads,
                                              .head_dim = head_dim,
                                              .scale = 1 / sqrtf((float)head_dim),
                                              .out = b->vision_o});
    plan_linear_residual(at(plan, "vision.out", i), (op_linear_residual){.rows = rows,
                                                                         .a = b->vision_o,
                                                                         .weight = layer->out,
                                                                         .bias = layer->out_bias,
                                                                         .x = b->vision_x,
                                                                         .normed_next = 1});
    plan_norm_linear(at(plan, "vision.fc1", i), (op_norm_linear){.rows = rows,
                                                                 .x = b->vision_x,
                                                                 .norm = layer->norm2,
                                                                 .weight = layer->fc1,
                                                                 .bias = layer->fc1_bias,
                                                                 .activation = ACT_GELU,
                                                                 .out = b->vision_h});
    plan_linear_residual(at(plan, "vision.fc2", i), (op_linear_residual){.rows = rows,
                                                                         .a = b->vision_h,
                                                                         .weight = layer->fc2,
                                                                         .bias = layer->fc2_bias,
                                                                         .x = b->vision_x,
                                                                         .normed_next = 1});
}

static void vision_pass(plan *plan, const row_table *table, const void *images) {
    const plan_buffers *b = &plan->buffers;
    const model *m = plan->model;
    row_set rows = plan_rows(table);

    plan_add(plan, OP_PATCH_EMBED, OPENPI_STAGE_VISION, "vision.patch", -1, -1)->patch_embed =
        (op_patch_embed){.rows = rows,
                         .images = images,
                         .pixels = b->in.tables.pixels,
                         .weight = m->patch,
                         .bias = m->patch_bias,
                         .position = m->position,
                         .out = b->vision_x};
    int first = plan->count;
    for (int i = 0; i < m->dims.vision_depth; i++) vision_layer_ops(plan, rows, i);
    op_block *block = plan_block(plan, BLOCK_VISION_LAYERS, first, m->dims.vision_depth, rows.capacity);
    if (block) block->samples = rows.capacity / OPENPI_IMAGE_TOKENS, block->cache_bytes = 0;
    plan_norm_linear(at(plan, "vision.projector", -1), (op_norm_linear){.rows = rows,
                                                                        .x = b->vision_x,
                                                                        .norm = m->vision_norm,
                                                                        .weight = m->projector,
                                                                        .bias = m->projector_bias,
                                                                        .out_row = table->out_row,
                                                                        .out = b->prefix_x});
}

void plan_vision(plan *plan) {
    const plan_inputs *in = &plan->buffers.in;
    if (plan_on(plan, SWITCH_BATCHED_VISION)) {
        vision_pass(plan, &in->tables.vision, in->images);
        return;
    }
    for (int c = 0; c < OPENPI_CAMERAS; c++)
        vision_pass(plan, &in->tables.camera[c],
                    in->images ? (const char *)in->images + (size_t)c * call_slot_bytes(plan) : NULL);
}
