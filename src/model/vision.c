/* SigLIP: pictures to image tokens, all cameras of all samples in one batch; without batched-vision a pass a camera slot.
 * What surprises: the projector writes straight into the prefix rows, and nothing scales its output. */
#include <math.h>

#include "model/plan.h"

static sublayer at(plan *plan, const char *name, int layer) { return (sublayer){plan, OPENPI_STAGE_VISION, name, layer, -1}; }

static void vision_block(plan *plan, row_set rows, int i) {
    const plan_buffers *b = &plan->buffers;
    const vision_layer *layer = &plan->model->vision[i];
    const openpi_dims *dims = &plan->model->dims;
    int head_dim = dims->vision_width / dims->vision_heads;

    plan_vision_qkv(at(plan, "vision.qkv", i),
                    (op_norm_linear){rows, b->vision_x, layer->norm1, layer->qkv, layer->qkv_bias, ACT_NONE, NULL, b->vision_qkv},
                    layer->qkv_parts);
    plan_image_attention(at(plan, "vision.attention", i), (op_image_attention){rows, b->vision_qkv, dims->vision_heads, head_dim,
                                                                             1 / sqrtf((float)head_dim), b->vision_o, 0});
    plan_linear_residual(at(plan, "vision.out", i),
                         (op_linear_residual){rows, b->vision_o, layer->out, layer->out_bias, NULL, b->vision_x});
    plan_norm_linear(at(plan, "vision.fc1", i),
                     (op_norm_linear){rows, b->vision_x, layer->norm2, layer->fc1, layer->fc1_bias, ACT_GELU, NULL, b->vision_h});
    plan_linear_residual(at(plan, "vision.fc2", i),
                         (op_linear_residual){rows, b->vision_h, layer->fc2, layer->fc2_bias, NULL, b->vision_x});
}

static void vision_pass(plan *plan, const row_table *table, const void *images) {
    const plan_buffers *b = &plan->buffers;
    const model *m = plan->model;
    row_set rows = plan_rows(table);

    plan_add(plan, OP_PATCH_EMBED, OPENPI_STAGE_VISION, "vision.patch", -1, -1)->patch_embed =
        (op_patch_embed){rows, images, b->in.tables.pixels, m->patch, m->patch_bias, m->position, b->vision_x};
    for (int i = 0; i < m->dims.vision_depth; i++) vision_block(plan, rows, i);
    plan_norm_linear(at(plan, "vision.projector", -1),
                     (op_norm_linear){rows, b->vision_x, m->vision_norm, m->projector, m->projector_bias, ACT_NONE,
                                      table->out_row, b->prefix_x});
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
