/* SigLIP: pictures to image tokens, all cameras of all samples in one batch.
 * What surprises: the projector writes straight into the prefix rows, and nothing scales its output. */
#include <math.h>

#include "model/plan.h"

static op *add(plan *plan, op_kind kind, const char *name, int layer) {
    return plan_add(plan, kind, OPENPI_STAGE_VISION, name, layer, -1);
}

static void vision_block(plan *plan, int i) {
    const plan_buffers *b = &plan->buffers;
    const vision_layer *layer = &plan->model->vision[i];
    const openpi_dims *dims = &plan->model->dims;
    int head_dim = dims->vision_width / dims->vision_heads;
    row_set rows = plan_rows(&b->in.tables.vision);

    add(plan, OP_NORM_LINEAR, "vision.qkv", i)->norm_linear =
        (op_norm_linear){rows, b->vision_x, layer->norm1, layer->qkv, layer->qkv_bias, ACT_NONE, NULL, b->vision_qkv};
    add(plan, OP_IMAGE_ATTENTION, "vision.attention", i)->image_attention =
        (op_image_attention){rows, b->vision_qkv, dims->vision_heads, head_dim, 1 / sqrtf((float)head_dim), b->vision_o};
    add(plan, OP_LINEAR_RESIDUAL, "vision.out", i)->linear_residual =
        (op_linear_residual){rows, b->vision_o, layer->out, layer->out_bias, NULL, b->vision_x};
    add(plan, OP_NORM_LINEAR, "vision.fc1", i)->norm_linear =
        (op_norm_linear){rows, b->vision_x, layer->norm2, layer->fc1, layer->fc1_bias, ACT_GELU, NULL, b->vision_h};
    add(plan, OP_LINEAR_RESIDUAL, "vision.fc2", i)->linear_residual =
        (op_linear_residual){rows, b->vision_h, layer->fc2, layer->fc2_bias, NULL, b->vision_x};
}

void plan_vision(plan *plan) {
    const plan_buffers *b = &plan->buffers;
    const model *m = plan->model;
    row_set rows = plan_rows(&b->in.tables.vision);

    add(plan, OP_PATCH_EMBED, "vision.patch", -1)->patch_embed =
        (op_patch_embed){rows, b->in.images, b->in.tables.pixels, m->patch, m->patch_bias, m->position, b->vision_x};
    for (int i = 0; i < m->dims.vision_depth; i++) vision_block(plan, i);
    add(plan, OP_NORM_LINEAR, "vision.projector", -1)->norm_linear =
        (op_norm_linear){rows, b->vision_x, m->vision_norm, m->projector, m->projector_bias, ACT_NONE, b->in.tables.vision.out_row, b->prefix_x};
}
