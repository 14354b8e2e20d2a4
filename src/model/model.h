/* A model on a device: dimensions and packed weights, under the names of the field.
 *
 * Everything below lives in one device block, laid out by weights.c; after model_load only model_update_apply
 * changes it.
 * Shapes are [outputs, inputs] as in the checkpoint. */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H

#include "backend/backend.h"
#include "base/threads.h"
#include "checkpoint/checkpoint.h"
#include "model/formats.h"
#include "model/packing.h"

enum { PATCH_INPUTS = 588, IMAGE_BYTES = 224 * 224 * 3 };

typedef struct vision_layer {
    norm norm1, norm2;
    matrix qkv, out, fc1, fc2;             /* [3·width, width] [width, width] [mlp, width] [width, mlp]    */
    matrix qkv_parts[3];                   /* in qkv's place without fused-qkv                             */
    const float *qkv_bias, *out_bias, *fc1_bias, *fc2_bias;
} vision_layer;

/* A layer of either Gemma stack. */
typedef struct gemma_layer {
    matrix qkv;                            /* [(heads+2)·head_dim, width]; last prefix layer: k and v only */
    matrix o, gate_up, down;               /* [width, heads·head_dim] [2·mlp, width] [width, mlp]          */
    matrix qkv_parts[3], gate_up_parts[2]; /* in their places without fused-qkv, fused-gate-up             */
    const float *norm_in, *norm_post;      /* [width], of 1 + w; NULL in π0.5's expert                     */
    matrix ada_in, ada_post;               /* π0.5's expert: [3·width, width], rows scale | shift | gate   */
    const float *ada_in_bias, *ada_post_bias;
} gemma_layer;

/* The switches that decide which matrices there are and how they are packed. */
enum {
    MODEL_SWITCHES = 1 << SWITCH_FUSED_QKV | 1 << SWITCH_FUSED_GATE_UP | 1 << SWITCH_FUSED_POINTWISE |
                     1 << SWITCH_FOLDED_CONSTANTS | 1 << SWITCH_DEAD_WORK_REMOVAL | 1 << SWITCH_PACKED_WEIGHTS
};

typedef struct model {
    openpi_dims dims;
    openpi_variant variant;
    dtype type;                            /* act of its plans, as types.act                               */
    model_types types;
    uint32_t off;                          /* switches that are off (ops/switches.h)                       */
    const checkpoint *checkpoint;
    device *device;
    const struct tuning *tuning;           /* which choices its ops take; NULL: the backend's heuristics   */

    matrix patch;                          /* [vision width, 588]                                          */
    const float *patch_bias, *position;    /* [vision width] [256, vision width]                           */
    vision_layer *vision;                  /* [vision_depth]                                               */
    norm vision_norm;
    matrix projector;                      /* [width, vision width]                                        */
    const float *projector_bias;

    matrix embedding;                      /* [vocabulary, width], row-major: prompts take rows of it      */
    gemma_layer *prefix, *expert;          /* [depth]                                                      */
    const float *expert_norm;              /* [expert width] or NULL                                       */
    matrix expert_ada;
    const float *expert_ada_bias;

    matrix state, action_in, action_out;   /* [expert width, 32] [expert width, 32] [32, expert width]     */
    const float *state_bias, *action_in_bias, *action_out_bias;
    /* π0: action half and time half of action_time_mlp_in, and action_time_mlp_out. With folded-constants
     * there is no mlp_in: it is merged into action_in, and its bias into time_in_bias (merged.h). π0.5:
     * time_in and mlp_out are time_mlp_in and time_mlp_out; there is no mlp_in. */
    matrix mlp_in, time_in, mlp_out;
    const float *time_in_bias, *mlp_out_bias;

    block_weights blocks[BLOCK_KINDS];     /* the layers again, as devices see them (block_weights.c)      */
    layer_weights *layers;                 /* all blocks'                                                  */

    void *block;                           /* device memory of all of it, and of what is prepared          */
    size_t bytes;                          /* with what it shares                                          */
    size_t own_bytes;                      /* without: the block's                                         */
    const matrix **matrices;               /* [matrix_count] all matrices, in the order of their layout    */
    int matrix_count;
    size_t group_bytes[GROUPS];            /* matrices as they are packed, with their scales               */
    size_t embedding_bytes;
} model;

/* Packs the checkpoint's weights for the device; OPENPI_UNSUPPORTED where it has no kernels for such
 * weights. Afterwards the checkpoint's files may be closed or gone; the checkpoint itself must outlive the
 * model. */
openpi_status model_load(const checkpoint *checkpoint, device *device, model_types types, uint32_t off,
                         pool *pool, load_progress progress, void *progress_user, model **out,
                         openpi_error *error);
/* The same without weights: dims, matrix shapes and `bytes`, for telling a price beforehand. No address in it
 * may be read. */
openpi_status model_measure(const checkpoint *checkpoint, device *device, model_types types, uint32_t off,
                            model **out, openpi_error *error);
/* The same checkpoint on the same device in other formats: matrices of groups whose formats are those of
 * `base`, which is not smoothed and outlives the model, are shared with it. The checkpoint can be read. */
openpi_status model_load_beside(const model *base, model_types types, pool *pool, load_progress progress,
                                void *progress_user, model **out, openpi_error *error);
void model_close(model *model);

/* Other weights in the places of those that the model has, so that plans and recordings stay valid.
 * model_update_make packs given[count], tensors under names of the checkpoint, into memory of their own;
 * model_update_apply copies them, while nothing runs on the model. The checkpoint's files may be closed: what
 * a weight is packed with is given too, or read from `rest`, which has all of them; where that is NULL,
 * OPENPI_BAD_ARGUMENT. Stage 0 of what is read is in memory, and rounded as the model's own is. */
typedef struct model_update model_update;
openpi_status model_update_make(const model *model, const tensor *given, int count, const tensors *rest,
                                pool *pool, model_update **out, openpi_error *error);
/* 1: tensors of a JAX checkpoint are rounded for it (tensors_round). */
int model_rounds(const model *model);
openpi_status model_update_apply(model_update *update, openpi_error *error);
void model_update_close(model_update *update);

/* block_weights.c: of a model whose layers are laid out, the blocks' view of them. */
void model_fill_blocks(model *model);

#endif
