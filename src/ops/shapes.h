/* Every op with every shape that π0 and π0.5 run, for the three named sizes of a model: what tests compare
 * and benchmarks time. Rows are those of one call with three cameras, 20 prompt tokens and 10 actions. k
 * of embed_text is the table's rows: fewer than a vocabulary has.
 *
 * X(name, kind, rows, n, k, heads, head_dim, keys, norm, activation, options) */
#ifndef OPS_SHAPES_H
#define OPS_SHAPES_H

#include "ops/ops.h"

enum {
    SHAPE_BIAS = 1,
    SHAPE_GATE = 2,              /* linear_residual: a gate                                               */
    SHAPE_SHIFT = 4,             /* NORM_RMS with a bias: adaRMS                                          */
    SHAPE_SCATTER = 8,           /* norm_linear: out_row                                                  */
    SHAPE_MLP = 16,              /* action_embed: π0's two layers more, …                                 */
    SHAPE_GATED = 32,            /* norm_linear: MATRIX_GATED                                             */
    SHAPE_MERGED = 64,           /* … the first of them merged into an fp32 `in`                          */
};

#define SHAPES_VISION(X, size, W, H, D, M, P)                                                       \
    X(size " patch_embed", OP_PATCH_EMBED, 768, W, 588, 0, 0, 0, NORM_NONE, ACT_NONE, SHAPE_BIAS)   \
    X(size " vision.qkv", OP_NORM_LINEAR, 768, 3 * W, W, 0, 0, 0, NORM_LAYER, ACT_NONE, SHAPE_BIAS) \
    X(size " vision.attention", OP_IMAGE_ATTENTION, 768, 0, 0, H, D, 256, NORM_NONE, ACT_NONE, 0)   \
    X(size " vision.out", OP_LINEAR_RESIDUAL, 768, W, W, 0, 0, 0, NORM_NONE, ACT_NONE, SHAPE_BIAS)  \
    X(size " vision.fc1", OP_NORM_LINEAR, 768, M, W, 0, 0, 0, NORM_LAYER, ACT_GELU, SHAPE_BIAS)     \
    X(size " vision.fc2", OP_LINEAR_RESIDUAL, 768, W, M, 0, 0, 0, NORM_NONE, ACT_NONE, SHAPE_BIAS)  \
    X(size " vision.projector", OP_NORM_LINEAR, 768, P, W, 0, 0, 0, NORM_LAYER, ACT_NONE, SHAPE_BIAS | SHAPE_SCATTER)

#define SHAPES_PREFIX(X, size, W, H, M)                                                                 \
    X(size " prefix.text", OP_EMBED_TEXT, 20, W, 997, 0, 0, 0, NORM_NONE, ACT_NONE, 0)                  \
    X(size " prefix.qkv", OP_NORM_QKV, 788, (H + 2) * 256, W, H, 256, 0, NORM_RMS, ACT_NONE, 0)         \
    X(size " prefix.kv", OP_NORM_QKV, 788, 2 * 256, W, 0, 256, 0, NORM_RMS, ACT_NONE, 0)                \
    X(size " prefix.attention", OP_CACHE_ATTENTION, 788, 0, 0, H, 256, 788, NORM_NONE, ACT_NONE, 0)     \
    X(size " prefix.o", OP_LINEAR_RESIDUAL, 788, W, H * 256, 0, 0, 0, NORM_NONE, ACT_NONE, 0)           \
    X(size " prefix.gate_up", OP_NORM_LINEAR, 788, 2 * M, W, 0, 0, 0, NORM_RMS, ACT_GEGLU, SHAPE_GATED) \
    X(size " prefix.down", OP_LINEAR_RESIDUAL, 788, W, M, 0, 0, 0, NORM_NONE, ACT_NONE, 0)

#define SHAPES_EXPERT(X, size, W, H, M)                                                                      \
    X(size " state.embed", OP_STATE_EMBED, 1, W, 32, 0, 0, 0, NORM_NONE, ACT_NONE, SHAPE_BIAS)               \
    X(size " pi0.action", OP_ACTION_EMBED, 10, W, 32, 0, 0, 0, NORM_NONE, ACT_NONE, SHAPE_MLP | SHAPE_MERGED)      \
    X(size " pi0.action apart", OP_ACTION_EMBED, 10, W, 32, 0, 0, 0, NORM_NONE, ACT_NONE, SHAPE_MLP)         \
    X(size " pi05.action", OP_ACTION_EMBED, 10, W, 32, 0, 0, 0, NORM_NONE, ACT_NONE, 0)                      \
    X(size " state.qkv", OP_NORM_QKV, 1, (H + 2) * 256, W, H, 256, 0, NORM_RMS, ACT_NONE, 0)                 \
    X(size " pi0.qkv", OP_NORM_QKV, 10, (H + 2) * 256, W, H, 256, 0, NORM_RMS, ACT_NONE, 0)                  \
    X(size " pi05.qkv", OP_NORM_QKV, 10, (H + 2) * 256, W, H, 256, 0, NORM_RMS, ACT_NONE, SHAPE_SHIFT)       \
    X(size " expert.attention", OP_CACHE_ATTENTION, 10, 0, 0, H, 256, 799, NORM_NONE, ACT_NONE, 0)           \
    X(size " pi0.o", OP_LINEAR_RESIDUAL, 10, W, H * 256, 0, 0, 0, NORM_NONE, ACT_NONE, 0)                    \
    X(size " pi05.o", OP_LINEAR_RESIDUAL, 10, W, H * 256, 0, 0, 0, NORM_NONE, ACT_NONE, SHAPE_GATE)          \
    X(size " pi0.gate_up", OP_NORM_LINEAR, 10, 2 * M, W, 0, 0, 0, NORM_RMS, ACT_GEGLU, SHAPE_GATED)          \
    X(size " pi05.gate_up", OP_NORM_LINEAR, 10, 2 * M, W, 0, 0, 0, NORM_RMS, ACT_GEGLU, SHAPE_GATED | SHAPE_SHIFT) \
    X(size " pi0.down", OP_LINEAR_RESIDUAL, 10, W, M, 0, 0, 0, NORM_NONE, ACT_NONE, 0)                       \
    X(size " pi05.down", OP_LINEAR_RESIDUAL, 10, W, M, 0, 0, 0, NORM_NONE, ACT_NONE, SHAPE_GATE)             \
    X(size " pi0.velocity", OP_VELOCITY, 10, 32, W, 0, 0, 0, NORM_RMS, ACT_NONE, SHAPE_BIAS)                 \
    X(size " pi05.velocity", OP_VELOCITY, 10, 32, W, 0, 0, 0, NORM_RMS, ACT_NONE, SHAPE_BIAS | SHAPE_SHIFT)  \
    X(size " guide", OP_GUIDE, 10, 32, 0, 0, 0, 0, NORM_NONE, ACT_NONE, 0)                                   \
    X(size " time_mlp", OP_NORM_LINEAR, 10, W, W, 0, 0, 0, NORM_NONE, ACT_SILU, SHAPE_BIAS)                  \
    X(size " modulation", OP_NORM_LINEAR, 10, 3 * W, W, 0, 0, 0, NORM_NONE, ACT_NONE, SHAPE_BIAS)

/* vision: width heads head mlp, projected; language: width heads mlp; expert: width heads mlp */
#define SHAPES_FULL(X)                                 \
    SHAPES_VISION(X, "full", 1152, 16, 72, 4304, 2048) \
    SHAPES_PREFIX(X, "full", 2048, 8, 16384)           \
    SHAPES_EXPERT(X, "full", 1024, 8, 4096)
#define SHAPES_TINY(X)                             \
    SHAPES_VISION(X, "tiny", 144, 2, 72, 208, 128) \
    SHAPES_PREFIX(X, "tiny", 128, 8, 272)          \
    SHAPES_EXPERT(X, "tiny", 64, 8, 144)
#define SHAPES_ODD(X)                          \
    SHAPES_VISION(X, "odd", 72, 1, 72, 88, 96) \
    SHAPES_PREFIX(X, "odd", 96, 3, 136)        \
    SHAPES_EXPERT(X, "odd", 40, 3, 104)

typedef struct op_shape {
    const char *name;
    op_kind kind;
    int rows, n, k, heads, head_dim, keys;
    norm_kind norm;
    activation activation;
    int options;
} op_shape;

#define SHAPE_ROW(...) {__VA_ARGS__},

#endif
