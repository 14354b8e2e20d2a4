/* What an op costs: multiply-adds count two, every operand moves once, weights in the format that they are
 * kept in. Every GFLOP/s, GB/s and % of roof that is printed comes from here. */
#include "ops/ops.h"

const char *op_kind_name(op_kind kind) {
    static const char *const names[OP_KINDS] = {
#define X(kind, member, type) [kind] = #member,
        OP_LIST(X)
#undef X
    };
    return (unsigned)kind < OP_KINDS ? names[kind] : "unknown";
}

/* A row of weights: codes and scales. */
static double weight_bytes(const matrix *w) {
    const weight_format *format = &weight_formats[w->type];
    return (double)weight_row_bytes(format, w->k) + weight_groups(format, w->k) * (double)sizeof *w->scales;
}

/* y = x·Wᵀ: `in` and `out` are bytes a row of x and of what is written (and read, where it is added to). */
static op_cost linear(const matrix *w, double rows, double in, double out) {
    double weights = w->n * weight_bytes(w);
    return (op_cost){2.0 * rows * w->n * w->k, rows * (in + out) + weights, weights};
}

static op_cost plus(op_cost a, op_cost b) {
    return (op_cost){a.flops + b.flops, a.bytes + b.bytes, a.weight_bytes + b.weight_bytes};
}

/* Scores or values: a product of queries with what they attend (a cache counts once, as one sample's), and
 * the scores. */
static op_cost half_attention(const attended *a, double rows, double keys, int heads, int head_dim,
                              double act) {
    double width = (double)heads * head_dim, shared = a->stride ? rows * width : keys * head_dim;
    return (op_cost){2 * rows * keys * width,
                     act * (rows * width + shared) + (double)sizeof(float) * rows * heads * keys, 0};
}

static op_cost fused_cost(const op *op, double r, double keys) {
    double act = (double)dtype_bytes(op->type), fp32 = sizeof(float);
    switch (op->kind) {
    case OP_PATCH_EMBED: {
        const op_patch_embed *a = &op->patch_embed;
        return linear(&a->weight, r, a->weight.k, act * a->weight.n);
    }
    case OP_NORM_LINEAR: {
        const op_norm_linear *a = &op->norm_linear;
        int out = a->weight.form == MATRIX_GATED ? a->weight.n / 2 : a->weight.n;
        return linear(&a->weight, r, act * a->weight.k, act * out);
    }
    case OP_IMAGE_ATTENTION: {
        const op_image_attention *a = &op->image_attention;
        double width = (double)a->heads * a->head_dim;
        return (op_cost){4 * r * OPENPI_IMAGE_TOKENS * width, 4 * r * width * act, 0};
    }
    case OP_LINEAR_RESIDUAL: {
        const op_linear_residual *a = &op->linear_residual;
        return linear(&a->weight, r, act * a->weight.k, 2 * act * a->weight.n);
    }
    case OP_EMBED_TEXT: {               /* a few rows of a large table: operands, not streamed weights */
        const op_embed_text *a = &op->embed_text;
        double row = weight_bytes(&a->table) + a->table.k * act + (double)sizeof *a->ids;
        return (op_cost){r * a->table.k, r * row, 0};
    }
    case OP_NORM_QKV: {
        const op_norm_qkv *a = &op->norm_qkv;
        return linear(&a->weight, r, act * a->weight.k, act * a->weight.n);
    }
    case OP_CACHE_ATTENTION: {          /* rows share their sample's K and V: counted once, as one sample's */
        const op_cache_attention *a = &op->cache_attention;
        double width = (double)a->heads * a->cache.head_dim;
        return (op_cost){4 * r * keys * width, act * (2 * r * width + 2 * keys * a->cache.head_dim), 0};
    }
    case OP_STATE_EMBED: {
        const op_state_embed *a = &op->state_embed;
        return linear(&a->weight, r, fp32 * a->weight.k, act * a->weight.n);
    }
    case OP_ACTION_EMBED: {
        const op_action_embed *a = &op->action_embed;
        op_cost cost = linear(&a->in, r, fp32 * a->in.k, act * a->in.n);
        if (action_embed_products(a) > 1) cost = plus(cost, linear(&a->mlp_out, r, 0, 0));
        if (action_embed_products(a) > 2) cost = plus(cost, linear(&a->mlp_in, r, 0, 0));
        return cost;
    }
    case OP_VELOCITY: {
        const op_velocity *a = &op->velocity;
        return linear(&a->weight, r, act * a->weight.k, 3 * fp32 * a->weight.n);
    }
    case OP_GUIDE: return (op_cost){6 * r * op->guide.n, 4 * r * op->guide.n * fp32 + 2 * r * fp32, 0};
    default: return (op_cost){0, 0, 0};
    }
}

/* Of the ops that fused ones are made of. */
static op_cost part_cost(const op *op, double r, double keys) {
    double act = (double)dtype_bytes(op->type), fp32 = sizeof(float);
    switch (op->kind) {
    case OP_NORM: return (op_cost){6 * r * op->norm.n, 2 * r * op->norm.n * act, 0};
    case OP_ACTIVATE: {                 /* a bias, a function or both, a product: counted as one each */
        const op_activate *a = &op->activate;
        int operations = (a->bias != NULL) + (a->activation != ACT_NONE) + (a->up != NULL);
        return (op_cost){r * a->n * operations, r * a->n * act * (a->up ? 3 : 2), 0};
    }
    case OP_ADD: {
        const op_add *a = &op->add;
        return (op_cost){r * a->n * (1 + (a->bias != NULL) + (a->gate != NULL)), 3 * r * a->n * act, 0};
    }
    case OP_ROPE_CACHE: {
        const op_rope_cache *a = &op->rope_cache;
        double rotated = r * (a->heads + 1) * a->cache.head_dim;
        return (op_cost){3 * rotated, 2 * act * (rotated + r * a->cache.head_dim), 0};
    }
    case OP_SCORES: {
        const op_scores *a = &op->scores;
        return half_attention(&a->keys, r, a->keys.stride ? OPENPI_IMAGE_TOKENS : keys, a->heads, a->head_dim,
                              act);
    }
    case OP_SOFTMAX:
        return (op_cost){4 * r * keys * op->softmax.heads, 2 * fp32 * r * keys * op->softmax.heads, 0};
    case OP_VALUES: {
        const op_values *a = &op->values;
        return half_attention(&a->values, r, a->values.stride ? OPENPI_IMAGE_TOKENS : keys, a->heads,
                              a->head_dim, act);
    }
    default: return (op_cost){0, 0, 0};
    }
}

op_cost op_get_cost(const op *op, int rows, double keys) {
    switch (op->kind) {
#define X(kind, member, type) case kind:
        OP_FUSED_LIST(X)
#undef X
        return fused_cost(op, rows, keys);
    default: return part_cost(op, rows, keys);
    }
}

int op_matrices(op *op, matrix *list[OP_MATRICES]) {
    switch (op->kind) {
    case OP_PATCH_EMBED: list[0] = &op->patch_embed.weight; return 1;
    case OP_NORM_LINEAR: list[0] = &op->norm_linear.weight; return 1;
    case OP_LINEAR_RESIDUAL: list[0] = &op->linear_residual.weight; return 1;
    case OP_NORM_QKV: list[0] = &op->norm_qkv.weight; return 1;
    case OP_STATE_EMBED: list[0] = &op->state_embed.weight; return 1;
    case OP_VELOCITY: list[0] = &op->velocity.weight; return 1;
    case OP_ACTION_EMBED:
        list[0] = &op->action_embed.in;
        list[1] = &op->action_embed.mlp_out;
        list[2] = &op->action_embed.mlp_in;
        return action_embed_products(&op->action_embed);
    default: return 0;
    }
}
