/* A model's layers as blocks of weights (ops/blocks.h): by operation, as the operations of vision.c, prefix.c
 * and expert.c read them. A block has no layers where a switch has taken their matrices or norms apart; those
 * that only take a plan's attention apart leave it whole. */
#include "model/model.h"

/* Without a weight where each step has its own. */
static norm rms(const float *weight) { return (norm){NORM_RMS, weight, NULL, 1e-6f}; }

static layer_weights vision_weights(const vision_layer *v) {
    return (layer_weights){{[LAYER_QKV] = {v->norm1, v->qkv, v->qkv_bias},
                            [LAYER_OUT] = {.weight = v->out, .bias = v->out_bias},
                            [LAYER_UP] = {v->norm2, v->fc1, v->fc1_bias},
                            [LAYER_DOWN] = {.weight = v->fc2, .bias = v->fc2_bias}}};
}

static layer_weights gemma_weights(const gemma_layer *g) {
    return (layer_weights){{[LAYER_QKV] = {rms(g->norm_in), g->qkv, NULL},
                            [LAYER_OUT] = {.weight = g->o},
                            [LAYER_UP] = {rms(g->norm_post), g->gate_up, NULL},
                            [LAYER_DOWN] = {.weight = g->down}}};
}

/* 1: the model has all of these switches on. */
static int whole(const model *m, uint32_t switches) { return !(m->off & switches); }

static void set(model *m, block_kind kind, int layers, const layer_weights *first) {
    block_weights *block = &m->blocks[kind];
    block->kind = kind;
    block->type = m->type;
    block->layers = layers;
    block->layer = first;
}

void model_fill_blocks(model *m) {
    const uint32_t vision = 1u << SWITCH_FUSED_QKV | 1u << SWITCH_FUSED_POINTWISE,
                   gemma = vision | 1u << SWITCH_FUSED_GATE_UP;
    int tower = m->dims.vision_depth, depth = m->dims.depth;
    layer_weights *prefix = m->layers + tower, *expert = prefix + depth;
    for (int i = 0; i < tower; i++) m->layers[i] = vision_weights(&m->vision[i]);
    for (int i = 0; i < depth; i++) prefix[i] = gemma_weights(&m->prefix[i]);
    for (int i = 0; i < depth; i++) expert[i] = gemma_weights(&m->expert[i]);
    set(m, BLOCK_VISION_LAYERS, whole(m, vision) ? tower : 0, m->layers);
    /* The last layer of the prefix may stop at K and V. */
    const int stops = whole(m, 1u << SWITCH_DEAD_WORK_REMOVAL);
    set(m, BLOCK_PREFIX_LAYERS, whole(m, gemma) ? depth - stops : 0, prefix);
    set(m, BLOCK_EXPERT_STEPS, whole(m, gemma) ? depth : 0, expert);
}
