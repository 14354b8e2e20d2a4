/* What an op costs: multiply-adds count two, every operand moves once, weights at their packed type. These are
 * the figures behind every GFLOP/s, GB/s and % of roof that is printed. */
#include "ops/ops.h"

const char *op_kind_name(op_kind kind) {
    static const char *const names[OP_KINDS] = {
#define X(kind, member, type) [kind] = #member,
        OP_LIST(X)
#undef X
    };
    return (unsigned)kind < OP_KINDS ? names[kind] : "unknown";
}

/* y = x·Wᵀ: `in` and `out` are bytes a row of x and of what is written (and read, where it is added to). */
static op_cost linear(const matrix *w, double rows, double in, double out) {
    double weights = (double)w->n * w->k * (double)dtype_bytes(w->type);
    return (op_cost){2.0 * rows * w->n * w->k, rows * (in + out) + weights, weights};
}

static op_cost plus(op_cost a, op_cost b) { return (op_cost){a.flops + b.flops, a.bytes + b.bytes, a.weight_bytes + b.weight_bytes}; }

op_cost op_get_cost(const op *op, int rows, double keys) {
    double r = rows, act = (double)dtype_bytes(op->type), fp32 = sizeof(float);
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
    case OP_EMBED_TEXT: return (op_cost){r * op->embed_text.width, r * op->embed_text.width * (fp32 + act), 0};
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
        if (!a->mlp_in.data) return cost;
        return plus(cost, plus(linear(&a->mlp_in, r, 0, 0), linear(&a->mlp_out, r, 0, 0)));
    }
    case OP_VELOCITY: {
        const op_velocity *a = &op->velocity;
        return linear(&a->weight, r, act * a->weight.k, 3 * fp32 * a->weight.n);
    }
    case OP_KINDS: break;
    }
    return (op_cost){0, 0, 0};
}
