/* Blocks: runs of operations that the model names while it builds a list of them. It knows what a device
 * could only find out by comparing operations with each other: that these are the layers of one tower, and
 * that those are steps of one loop, each like the one before it.
 *
 *   vision layers   the layers of the vision tower, in one pass over the pictures
 *   prefix layers   the whole layers of the language stack, without a last one that stops at K and V
 *   expert steps    denoising steps. A step is the action expert's layers, the velocity and, where there is
 *                   one, the guide. Before each step but the first stands its embedding.
 *
 * A device may compute a block as a whole, or its first layers or steps, or each operation by itself. To
 * decide it asks the block and the first operations: all others are like those. That is a block's promise:
 *
 *   every layer   LAYER_OPS operations in the order of layer_op, of one type and stage, over the same rows.
 *                 Each reads what the one before it wrote; x is one buffer, in and out. Layers differ in the
 *                 addresses of weights, biases, norms and gates, not in which of them there are. Their caches
 *                 are cache_bytes apart.
 *                 Vision: layer norms, a bias for each product, GELU, no gates. Else: RMS norms, no biases,
 *                 GeGLU.
 *   every step    the operations of the first one. Norms and gates are norm_floats further each step, and
 *                 row_set.known_at is as much less; what the embedding adds is embed_floats further, the
 *                 guide's gain `samples` floats, its t one dt. The velocity moves the x_t that the guide and
 *                 the next embedding read.
 *
 * A layer that a switch has taken apart is in no block. tests/model/test_plan.c compares blocks with their
 * operations.
 *
 * What a block's layers read of the model is there before any plan is: block_weights. A device may derive
 * from it what its kernels want (scales, sums, copies in another order), once a model, and finds that again
 * by the block (backend.prepare). */
#ifndef OPS_BLOCKS_H
#define OPS_BLOCKS_H

#include "ops/ops.h"

typedef enum block_kind {
    BLOCK_VISION_LAYERS,
    BLOCK_PREFIX_LAYERS,
    BLOCK_EXPERT_STEPS,
    BLOCK_KINDS
} block_kind;

/* The operations of a layer, after it those of each kind of block. */
typedef enum layer_op {
    LAYER_QKV,                   /* vision: norm_linear; else norm_qkv                                     */
    LAYER_ATTENTION,             /* vision: image_attention; else cache_attention                          */
    LAYER_OUT,                   /* linear_residual                                                        */
    LAYER_UP,                    /* norm_linear: fc1, or gate and up                                       */
    LAYER_DOWN,                  /* linear_residual                                                        */
    LAYER_OPS
} layer_op;

/* What an operation reads of the model; attention reads nothing. */
typedef struct op_weights {
    norm norm;                   /* before the product; without weight and bias where each step has its own */
    matrix weight;
    const float *bias;           /* [weight.n] or NULL                                                     */
} op_weights;

typedef struct layer_weights {
    op_weights ops[LAYER_OPS];
} layer_weights;

/* The layers of the tower, the prefix or the expert: one a kind and model, for the blocks of all plans. */
typedef struct block_weights {
    block_kind kind;
    dtype type;                  /* the activations'                                                       */
    int layers;                  /* 0: a switch has taken them apart                                       */
    const layer_weights *layer;  /* [layers]                                                               */
    void *prepared;              /* what the device has derived, in its memory; NULL: nothing              */
} block_weights;

typedef struct op_block {
    block_kind kind;
    const block_weights *weights;          /* all layers'; the block's first one is layer ops->layer       */
    const op *ops;               /* the first one, which begins a layer                                    */
    int count;                   /* operations                                                             */
    int layers;                  /* of a step                                                              */
    int rows, samples;           /* capacity of the rows; samples that have as many each (vision: images)  */
    size_t cache_bytes;          /* from a layer's keys to the next one's, and from values to values       */
    /* Expert steps, else 1, `count` and zeros: */
    int steps, step_ops;         /* step_ops: from an operation to the same one of the next step           */
    int guided;                  /* 1: a guide follows each velocity                                       */
    int norm_floats, embed_floats;
} op_block;

/* Operations in order, and the blocks among them: in order, apart from each other. */
typedef struct op_list {
    const op *ops;
    int count;
    const op_block *blocks;      /* NULL where block_count is 0                                            */
    int block_count;
} op_list;

static inline op_list op_alone(const op *op) { return (op_list){op, 1, NULL, 0}; }

/* Where the operations of the first step are. */
static inline const op *block_layer(const op_block *block, int layer) {
    return block->ops + layer * LAYER_OPS;
}
static inline const op *block_velocity(const op_block *block) { return block_layer(block, block->layers); }
static inline const op *block_guide(const op_block *block) { return block_velocity(block) + 1; }
/* The embedding of the second step. */
static inline const op *block_embedding(const op_block *block) { return block->ops + block->step_ops - 1; }
/* What is added inside the embedding: π0's half of the MLP for the time, or π0.5's bias. */
static inline const float *embedding_bias(const op_action_embed *embed) {
    return embed->mlp_out.n ? embed->time : embed->in_bias;
}

/* 1: a layer of a block (expert: a step) begins at the list's operation `place`, and *rest is the block from
 * there on. */
int block_at(const op_list *list, int place, op_block *rest);

#endif
