/* Are a plan's blocks what they promise (ops/blocks.h)? The one place that compares them with the operations
 * that they span. */
#ifndef TESTS_BLOCK_CHECK_H
#define TESTS_BLOCK_CHECK_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "model/plan.h"
#include "ops/reference.h"

#define TIME_ROUNDING 1e-4f                /* more than the sums of 100 steps differ by, less than a step   */

/* The op that is compared, for the sentence of a check that fails. */
typedef struct block_place {
    const op_block *block;
    const op *op;
    int step, layer;             /* counted from the block's first ones                                    */
} block_place;

#define HOLDS(at, claim)                                                                                    \
    do {                                                                                                    \
        if (!(claim))                                                                                       \
            fail_msg("block of kind %d, step %d, layer %d, %s: %s", (int)(at)->block->kind, (at)->step,      \
                     (at)->layer, (at)->op->name, #claim);                                                  \
    } while (0)

static const op_kind block_kinds[2][LAYER_OPS] = {
    {OP_NORM_LINEAR, OP_IMAGE_ATTENTION, OP_LINEAR_RESIDUAL, OP_NORM_LINEAR, OP_LINEAR_RESIDUAL},
    {OP_NORM_QKV, OP_CACHE_ATTENTION, OP_LINEAR_RESIDUAL, OP_NORM_LINEAR, OP_LINEAR_RESIDUAL}};

static inline int block_same_layer(const op *a, const op *b) {
    return a->stage == b->stage && a->layer == b->layer && a->step == b->step;
}

/* 1: the five ops from place i on are a layer, and all of it. */
static inline int block_layer_begins(const plan *p, int i) {
    const op *ops = p->ops + i;
    int same = i && i + LAYER_OPS < p->count && ops->layer >= 0 && !block_same_layer(ops, ops - 1) &&
               !block_same_layer(ops, ops + LAYER_OPS);
    for (int k = 0; k < LAYER_OPS && same; k++)
        same = ops[k].kind == block_kinds[ops->stage != OPENPI_STAGE_VISION][k] &&
               block_same_layer(ops, ops + k);
    return same;
}

/* ---- parts of an op ------------------------------------------------------------------------------------ */

static inline int block_moved(const void *from, const void *to, ptrdiff_t bytes) {
    return from && to ? (const char *)to - (const char *)from == bytes : from == to;
}

static inline int block_moved_floats(const float *from, const float *to, int floats) {
    return block_moved(from, to, (ptrdiff_t)floats * (ptrdiff_t)sizeof(float));
}

/* Rows of a later step: the time 0 of known ones is nearer by what the step's norms are further. */
static inline int block_rows_same(const row_set *a, const row_set *b, int nearer) {
    return a->capacity == b->capacity && a->count == b->count && a->sample == b->sample &&
           a->position == b->position && a->keys == b->keys && a->known == b->known &&
           b->known_at == a->known_at - (a->known ? nearer : 0);
}

static inline int block_matrix_alike(const matrix *a, const matrix *b) {
    return a->n == b->n && a->k == b->k && a->type == b->type && a->input == b->input && a->form == b->form &&
           a->raw == b->raw && a->heads == b->heads && a->head_dim == b->head_dim && !a->scales == !b->scales;
}

static inline int block_matrix_same(const matrix *a, const matrix *b) {
    return block_matrix_alike(a, b) && a->data == b->data && a->scales == b->scales;
}

static inline int block_norm_alike(const norm *a, const norm *b) {
    return a->kind == b->kind && a->eps == b->eps && !a->weight == !b->weight && !a->bias == !b->bias;
}

static inline int block_norm_moved(const norm *a, const norm *b, int floats) {
    return block_norm_alike(a, b) && block_moved_floats(a->weight, b->weight, floats) &&
           block_moved_floats(a->bias, b->bias, floats);
}

/* ---- a layer ------------------------------------------------------------------------------------------- */

/* What layers do not differ in: `f` is the block's first one. */
static inline void block_check_product(const block_place *at, const op_norm_linear *a,
                                       const op_norm_linear *f) {
    HOLDS(at, a->x == f->x && a->out == f->out && a->activation == f->activation && !a->out_row);
    HOLDS(at, !a->bias == !f->bias && block_norm_alike(&a->norm, &f->norm));
    HOLDS(at, block_matrix_alike(&a->weight, &f->weight));
}

static inline void block_check_residual(const block_place *at, const op_linear_residual *a,
                                        const op_linear_residual *f, const void *from, const void *x) {
    HOLDS(at, a->a == from && a->x == x && !a->bias == !f->bias && !a->gate == !f->gate);
    HOLDS(at, block_matrix_alike(&a->weight, &f->weight));
}

/* Layer norms, biases and GELU. */
static inline void block_check_vision(const block_place *at, const op *o, const op *f) {
    const op_norm_linear *qkv = &o[LAYER_QKV].norm_linear, *up = &o[LAYER_UP].norm_linear;
    const op_image_attention *a = &o[LAYER_ATTENTION].image_attention,
                             *a0 = &f[LAYER_ATTENTION].image_attention;
    const op_linear_residual *out = &o[LAYER_OUT].linear_residual, *down = &o[LAYER_DOWN].linear_residual;
    block_check_product(at, qkv, &f[LAYER_QKV].norm_linear);
    block_check_product(at, up, &f[LAYER_UP].norm_linear);
    HOLDS(at, a->qkv == qkv->out && a->out == a0->out && a->scale == a0->scale && !a->planar);
    HOLDS(at, a->heads == a0->heads && a->head_dim == a0->head_dim);
    HOLDS(at, qkv->norm.kind == NORM_LAYER && up->norm.kind == NORM_LAYER && up->x == qkv->x);
    HOLDS(at, qkv->norm.eps == up->norm.eps && qkv->norm.bias && up->norm.bias);
    HOLDS(at, qkv->bias && out->bias && up->bias && down->bias && !out->gate && !down->gate);
    HOLDS(at, qkv->activation == ACT_NONE && up->activation == ACT_GELU);
    block_check_residual(at, out, &f[LAYER_OUT].linear_residual, a->out, qkv->x);
    block_check_residual(at, down, &f[LAYER_DOWN].linear_residual, up->out, qkv->x);
}

/* RMS norms, no biases, GeGLU, a cache for each layer. */
static inline void block_check_gemma(const block_place *at, const op *o, const op *f) {
    const op_norm_qkv *qkv = &o[LAYER_QKV].norm_qkv, *qkv0 = &f[LAYER_QKV].norm_qkv;
    const op_norm_linear *up = &o[LAYER_UP].norm_linear;
    const op_cache_attention *a = &o[LAYER_ATTENTION].cache_attention,
                             *a0 = &f[LAYER_ATTENTION].cache_attention;
    const op_linear_residual *out = &o[LAYER_OUT].linear_residual, *down = &o[LAYER_DOWN].linear_residual;
    const ptrdiff_t bytes = (ptrdiff_t)at->block->cache_bytes * at->layer;
    HOLDS(at, qkv->x == qkv0->x && qkv->q == qkv0->q && qkv->rope == qkv0->rope && up->x == qkv->x);
    HOLDS(at, block_norm_alike(&qkv->norm, &qkv0->norm) && block_norm_alike(&qkv->norm, &up->norm));
    HOLDS(at, block_matrix_alike(&qkv->weight, &qkv0->weight) && qkv->weight.heads == a->heads);
    HOLDS(at, block_moved(qkv0->cache.k, qkv->cache.k, bytes));
    HOLDS(at, block_moved(qkv0->cache.v, qkv->cache.v, bytes));
    HOLDS(at, qkv->cache.capacity == qkv0->cache.capacity && qkv->cache.head_dim == qkv->weight.head_dim);
    HOLDS(at, a->q == qkv->q && a->out == a0->out && a->scale == a0->scale && a->heads == a0->heads);
    HOLDS(at, a->cache.k == qkv->cache.k && a->cache.v == qkv->cache.v);
    HOLDS(at, a->cache.capacity == qkv->cache.capacity && a->cache.head_dim == qkv->cache.head_dim);
    block_check_product(at, up, &f[LAYER_UP].norm_linear);
    HOLDS(at, qkv->norm.kind == NORM_RMS && up->activation == ACT_GEGLU);
    HOLDS(at, !up->bias && !out->bias && !down->bias);
    block_check_residual(at, out, &f[LAYER_OUT].linear_residual, a->out, qkv->x);
    block_check_residual(at, down, &f[LAYER_DOWN].linear_residual, up->out, qkv->x);
}

static inline const matrix *block_weight(const op *o) {
    return o->kind == OP_NORM_LINEAR ? &o->norm_linear.weight : o->kind == OP_NORM_QKV ? &o->norm_qkv.weight
           : o->kind == OP_LINEAR_RESIDUAL ? &o->linear_residual.weight : NULL;
}

/* A layer against the same one of the first step. */
static inline void block_check_again(const block_place *at, const op *o, const op *f) {
    const int floats = at->block->norm_floats * at->step;
    for (int k = 0; k < LAYER_OPS; k++) {
        const matrix *weight = block_weight(&o[k]);
        if (weight) HOLDS(at, block_matrix_same(weight, block_weight(&f[k])));
        if (o[k].kind == OP_LINEAR_RESIDUAL) {
            const op_linear_residual *a = &o[k].linear_residual, *a0 = &f[k].linear_residual;
            HOLDS(at, a->bias == a0->bias && block_moved_floats(a0->gate, a->gate, floats));
        }
    }
    if (at->block->kind == BLOCK_VISION_LAYERS) return;
    HOLDS(at, block_norm_moved(&f[LAYER_QKV].norm_qkv.norm, &o[LAYER_QKV].norm_qkv.norm, floats));
    HOLDS(at, block_norm_moved(&f[LAYER_UP].norm_linear.norm, &o[LAYER_UP].norm_linear.norm, floats));
    HOLDS(at, o[LAYER_QKV].norm_qkv.cache.k == f[LAYER_QKV].norm_qkv.cache.k &&
                  o[LAYER_QKV].norm_qkv.cache.v == f[LAYER_QKV].norm_qkv.cache.v);
}

static inline const norm *block_norm(const op *o) {
    return o->kind == OP_NORM_LINEAR ? &o->norm_linear.norm
           : o->kind == OP_NORM_QKV  ? &o->norm_qkv.norm : NULL;
}

static inline const float *block_bias(const op *o) {
    return o->kind == OP_NORM_LINEAR     ? o->norm_linear.bias
           : o->kind == OP_LINEAR_RESIDUAL ? o->linear_residual.bias : NULL;
}

/* What a device is shown as the layer's weights when a model is loaded is what the operations read. Norms
 * that each step has for itself are no weights. */
static inline void block_check_weights(const block_place *at, const op *o, int k) {
    const block_weights *weights = at->block->weights;
    HOLDS(at, weights && weights->kind == at->block->kind && weights->type == o->type);
    HOLDS(at, o->layer >= 0 && o->layer < weights->layers);
    const op_weights *w = &weights->layer[o->layer].ops[k];
    const matrix none = {0}, *weight = block_weight(o);
    const norm *norm = block_norm(o);
    HOLDS(at, block_matrix_same(&w->weight, weight ? weight : &none) && w->bias == block_bias(o));
    HOLDS(at, norm ? w->norm.kind == norm->kind && w->norm.eps == norm->eps : w->norm.kind == NORM_NONE);
    HOLDS(at, !norm || at->block->norm_floats
                  ? !w->norm.weight && !w->norm.bias
                  : w->norm.weight == norm->weight && w->norm.bias == norm->bias);
}

static inline void block_check_layer(const op_block *block, int step, int layer) {
    const int is_vision = block->kind == BLOCK_VISION_LAYERS, is_steps = block->kind == BLOCK_EXPERT_STEPS;
    const op *first = block->ops, *o = block_layer(block, layer) + step * block->step_ops;
    block_place at = {block, o, step, layer};
    for (int k = 0; k < LAYER_OPS; k++) {
        at.op = &o[k];
        HOLDS(&at, o[k].kind == block_kinds[!is_vision][k] && o[k].type == first->type && !o[k].parameters);
        HOLDS(&at, o[k].stage == first->stage && o[k].layer == first->layer + layer);
        HOLDS(&at, o[k].step == (is_steps ? first->step + step : -1));
        HOLDS(&at, block_rows_same(op_rows(first), op_rows(&o[k]), step * block->norm_floats));
        /* Weights of their own. */
        const matrix *weight = block_weight(&o[k]);
        if (weight) HOLDS(&at, weight->data && (!layer || weight->data != block_weight(&first[k])->data));
        block_check_weights(&at, &o[k], k);
    }
    at.op = o;
    if (is_vision) block_check_vision(&at, o, first);
    else block_check_gemma(&at, o, first);
    block_check_again(&at, o, block_layer(block, layer));
}

/* ---- a step -------------------------------------------------------------------------------------------- */

static inline void block_check_velocity(const op_block *block, int step) {
    const op *o = block_velocity(block) + step * block->step_ops;
    const block_place at = {block, o, step, block->layers};
    const op_velocity *v = &o->velocity, *v0 = &block_velocity(block)->velocity;
    const int floats = step * block->norm_floats;
    HOLDS(&at, o->kind == OP_VELOCITY && o->type == block->ops->type && !o->parameters);
    HOLDS(&at, block_rows_same(&v0->rows, &v->rows, floats));
    HOLDS(&at, v->rows.known == op_rows(block->ops)->known);
    HOLDS(&at, !v->rows.known || v->rows.known_at == op_rows(block->ops)->known_at - floats);
    HOLDS(&at, v->rows.capacity == v->horizon * block->samples);
    HOLDS(&at, block->rows == v->x_stride * block->samples);
    HOLDS(&at, v->horizon == v0->horizon && v->x_stride == v0->x_stride && v->x_offset == v0->x_offset);
    HOLDS(&at, v->x_offset + v->horizon == v->x_stride && v->x == block->ops->norm_qkv.x);
    HOLDS(&at, block_norm_alike(&v->norm, &block->ops->norm_qkv.norm));
    HOLDS(&at, block_norm_moved(&v0->norm, &v->norm, floats) && block_matrix_same(&v0->weight, &v->weight));
    HOLDS(&at, v->bias == v0->bias && v->dt == v0->dt && v->velocity == v0->velocity && v->x_t == v0->x_t);
}

static inline void block_check_guide(const op_block *block, int step) {
    const op *o = block_guide(block) + step * block->step_ops;
    const block_place at = {block, o, step, block->layers};
    const op_guide *g = &o->guide, *g0 = &block_guide(block)->guide;
    const op_velocity *v = &block_velocity(block)->velocity;
    HOLDS(&at, o->kind == OP_GUIDE && g->rows.capacity == v->rows.capacity && g->rows.count == v->rows.count);
    HOLDS(&at, g->rows.sample == v->rows.sample && !g->rows.known && g->n == v->weight.n);
    HOLDS(&at, g->velocity == v->velocity && g->x_t == v->x_t);
    HOLDS(&at, g->target == g0->target && g->weight == g0->weight);
    HOLDS(&at, g->gain && block_moved_floats(g0->gain, g->gain, step * block->samples));
    HOLDS(&at, fabsf(g->t - (g0->t + (float)step * v->dt)) <= TIME_ROUNDING);
}

/* The embedding before a step, which is not the first one. */
static inline void block_check_embedding(const op_block *block, int step) {
    const op *o = block_embedding(block) + (step - 1) * block->step_ops;
    const block_place at = {block, o, step, -1};
    const op_action_embed *a = &o->action_embed, *a0 = &block_embedding(block)->action_embed;
    const op_velocity *v = &block_velocity(block)->velocity;
    const float *bias = embedding_bias(a), *bias0 = embedding_bias(a0);
    HOLDS(&at, o->kind == OP_ACTION_EMBED && o->type == block->ops->type);
    HOLDS(&at, a->x == v->x_t && a->out == v->x && a->horizon == v->horizon && !v->x_offset);
    HOLDS(&at, a->out_stride == a->horizon && !a->out_offset && a->rows.capacity == v->rows.capacity);
    HOLDS(&at, a->rows.count == v->rows.count && bias);
    HOLDS(&at, block_matrix_same(&a0->in, &a->in) && block_matrix_same(&a0->mlp_in, &a->mlp_in));
    HOLDS(&at, block_matrix_same(&a0->mlp_out, &a->mlp_out) && a->mlp_out_bias == a0->mlp_out_bias);
    HOLDS(&at, !a->mlp_out.n || !a->in_bias == !a->mlp_in.n);
    HOLDS(&at, block_moved_floats(bias0, bias, (step - 1) * block->embed_floats));
}

/* ---- a plan -------------------------------------------------------------------------------------------- */

static inline void block_check_sizes(const plan *p, const op_block *block) {
    static const openpi_stage stages[] = {OPENPI_STAGE_VISION, OPENPI_STAGE_PREFIX, OPENPI_STAGE_DENOISE};
    const block_place at = {block, block->ops, 0, 0};
    const int is_steps = block->kind == BLOCK_EXPERT_STEPS, is_vision = block->kind == BLOCK_VISION_LAYERS;
    const int length = block->layers * LAYER_OPS + is_steps * (1 + block->guided);
    HOLDS(&at, block->ops->stage == stages[block->kind] && block->layers > 0 && block->steps > 0);
    HOLDS(&at, block->step_ops == length + is_steps);
    HOLDS(&at, block->count == block->steps * block->step_ops - is_steps && (is_steps || block->steps == 1));
    HOLDS(&at, block->rows == op_rows(block->ops)->capacity && block->rows % block->samples == 0);
    HOLDS(&at, is_vision ? block->rows == block->samples * OPENPI_IMAGE_TOKENS && !block->cache_bytes
                         : block->samples == p->shape.batch && block->cache_bytes > 0);
    HOLDS(&at, is_steps || (!block->guided && !block->norm_floats && !block->embed_floats));
}

static inline void block_check(const plan *p, const op_block *block) {
    block_check_sizes(p, block);
    for (int step = 0; step < block->steps; step++) {
        for (int layer = 0; layer < block->layers; layer++) block_check_layer(block, step, layer);
        if (block->kind != BLOCK_EXPERT_STEPS) continue;
        block_check_velocity(block, step);
        if (block->guided) block_check_guide(block, step);
        if (step) block_check_embedding(block, step);
    }
}

/* Steps with nothing but an embedding between them are steps of one block. */
static inline void block_check_apart(const op_block *a, const op_block *b) {
    const block_place at = {b, b->ops, 0, 0};
    HOLDS(&at, b->ops >= a->ops + a->count);
    if (a->kind != BLOCK_EXPERT_STEPS || b->kind != a->kind || a->rows != b->rows) return;
    HOLDS(&at, b->ops - (a->ops + a->count) > 1);
}

/* Every block is what it promises, every whole layer is in one, and block_at finds the rest of a block where
 * a layer or step begins and nowhere else. Returns how many blocks there are. */
static inline int block_check_plan(const plan *p) {
    const op_list list = plan_list(p);
    op_block rest;
    int layers = 0, found = 0;
    for (int i = 0; i < p->block_count; i++) {
        const op_block *block = &p->blocks[i];
        assert_true(block->ops >= p->ops && block->ops + block->count <= p->ops + p->count);
        block_check(p, block);
        if (i) block_check_apart(block - 1, block);
        const op *next = block->ops + block->count;
        if (next < p->ops + p->count) assert_int_not_equal(next->kind, OP_GUIDE);
        layers += block->steps * block->layers;
    }
    for (int i = 0; i < p->count; i++) {
        const int here = block_layer_begins(p, i), begins = block_at(&list, i, &rest);
        found += here;
        if (!begins) continue;
        assert_true(here && rest.ops == &p->ops[i]);
        block_check(p, &rest);
    }
    assert_int_equal(layers, found);
    return p->block_count;
}

#endif
