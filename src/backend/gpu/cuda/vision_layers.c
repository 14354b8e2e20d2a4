/* Legal are layers of up to three images in bf16, in the sizes of vision.h, that work on the same rows and
 * the same buffers, differ in their weights only and have folds of their norms. More layers than
 * VISION_LAYERS become several launches. What is not legal is computed by the ops' kernels. */
#include "backend/gpu/cuda/vision_layers.h"

#include "backend/gpu/cuda/vision.h"

/* ---- one op ------------------------------------------------------------------------------------------ */

static int is_matrix(const matrix *m, int n, int k) {
    return m->data && !m->raw && m->type == WEIGHT_BF16 && m->form == MATRIX_PLAIN && m->n == n && m->k == k;
}

static int is_norm(const op_norm_linear *a, const op_norm_linear *first) {
    return a->norm.kind == NORM_LAYER && a->norm.weight && a->norm.bias && a->folded &&
           a->norm.eps == first->norm.eps;
}

/* Whole images, as many as the kernel holds. Products and attention of these ops read no more of a row_set
 * than what is compared here. */
static int is_rows(const row_set *rows, const row_set *first) {
    return rows->count && rows->count == first->count && rows->capacity == first->capacity && !rows->known &&
           rows->capacity > 0 && rows->capacity % IMAGE_KEYS == 0 &&
           rows->capacity <= VISION_IMAGES * IMAGE_KEYS;
}

static int is_norm_linear(const op_norm_linear *a, const op_norm_linear *first, activation activation,
                          int n) {
    return is_rows(&a->rows, &first->rows) && a->x == first->x && is_norm(a, first) &&
           is_matrix(&a->weight, n, VISION_WIDTH) && a->bias && a->activation == activation && !a->out_row;
}

static int is_linear_residual(const op_linear_residual *a, const op_norm_linear *first, const void *from,
                              int k) {
    return is_rows(&a->rows, &first->rows) && a->a == from && a->x == first->x &&
           is_matrix(&a->weight, VISION_WIDTH, k) && a->bias && !a->gate;
}

static int is_attention(const op_image_attention *a, const op_norm_linear *first, const void *from) {
    return is_rows(&a->rows, &first->rows) && a->qkv == from && a->heads == VISION_HEADS &&
           a->head_dim == IMAGE_HEAD && !a->planar;
}

/* ---- a layer ----------------------------------------------------------------------------------------- */

/* 1: ops[0] … are a layer that goes with the one at `first`. */
static int is_layer(const op *ops, const op *first) {
    static const op_kind kinds[VISION_OPS] = {OP_NORM_LINEAR, OP_IMAGE_ATTENTION, OP_LINEAR_RESIDUAL,
                                              OP_NORM_LINEAR, OP_LINEAR_RESIDUAL};
    const op_norm_linear *qkv = &ops[VISION_QKV].norm_linear, *fc1 = &ops[VISION_FC1].norm_linear,
                         *qkv0 = &first[VISION_QKV].norm_linear, *fc10 = &first[VISION_FC1].norm_linear;
    const op_image_attention *a = &ops[VISION_ATTENTION].image_attention,
                             *a0 = &first[VISION_ATTENTION].image_attention;
    for (int i = 0; i < VISION_OPS; i++)
        if (ops[i].kind != kinds[i] || ops[i].type != DTYPE_BF16 || ops[i].stage != OPENPI_STAGE_VISION ||
            ops[i].parameters)
            return 0;
    if (qkv->out != qkv0->out || a->out != a0->out || fc1->out != fc10->out || a->scale != a0->scale)
        return 0;
    return is_norm_linear(qkv, qkv0, ACT_NONE, 3 * VISION_WIDTH) && is_attention(a, qkv0, qkv->out) &&
           is_linear_residual(&ops[VISION_OUT].linear_residual, qkv0, a->out, VISION_WIDTH) &&
           is_norm_linear(fc1, qkv0, ACT_GELU, VISION_HIDDEN) &&
           is_linear_residual(&ops[VISION_FC2].linear_residual, qkv0, fc1->out, VISION_HIDDEN);
}

int vision_depth_of(const op *ops, int count) {
    int depth = 0;
    while (depth < VISION_LAYERS && (depth + 1) * VISION_OPS <= count &&
           is_layer(ops + depth * VISION_OPS, ops))
        depth++;
    return depth;
}
