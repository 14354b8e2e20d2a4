/* Layers from what was prepared alone: when a model is loaded, everything that an operation of a block reads
 * of it is copied, and whole blocks are then computed by the ops' own kernels over the copies. Nothing is
 * faster for it, but a test sees whether a block finds what was prepared for its layers, behind what another
 * family has prepared of them. On the path "copied". */
#include "backend/gpu/gpu.h"
#include "kernels.h"

/* ---- the copies ---------------------------------------------------------------------------------------- */

typedef struct copy_arguments {
    const void *from;
    void *to;
    size_t bytes;
} copy_arguments;

static void copy(const void *arguments, host_block block) {
    const copy_arguments *p = arguments;
    (void)block;
    memcpy(p->to, p->from, p->bytes);
}

static void mark(const void *arguments, host_block block) {
    char *place;
    (void)block;
    memcpy(&place, arguments, sizeof place);
    memset(place, HOST_MARK, HOST_MARKS);
}

static const gpu_kernel kernels[] = {{"copy", 0, 0}, {"mark", 0, 0}};
const host_function host_image_copies[] = {{"copy", copy}, {"mark", mark}, {NULL, NULL}};

/* The family before it, which prepares marks and takes nothing. */
static size_t prepare_marks(gpu_issue *issue, const block_weights *block, void *place) {
    (void)block;
    gpu_emit(issue, 1, (gpu_grid){.x = 1, .y = 1, .threads = 1}, &place, sizeof place);
    return HOST_MARKS;
}

const gpu_family gpu_family_host_marks = {
    .name = "marks", GPU_KERNELS(kernels), .prepare = prepare_marks,
};

/* The copies of an op, at an offset of the block's: 0 where there is no original. */
typedef struct op_copies {
    size_t weight, bias, norm_weight, norm_bias;
} op_copies;

/* A walk over a block's copies, in order. */
typedef struct copies {
    gpu_issue *issue;
    char *place;                           /* NULL: they are only measured                                 */
    size_t used;
} copies;

/* Offset 0 is no copy's. */
enum { FIRST = 64 };

static size_t take(copies *c, const void *from, size_t bytes) {
    const size_t at = c->used;
    if (!bytes) return 0;
    c->used += (bytes + FIRST - 1) / FIRST * FIRST;
    if (c->place) {
        const copy_arguments p = {from, c->place + at, bytes};
        gpu_emit(c->issue, 0, (gpu_grid){.x = 1, .y = 1, .threads = 1}, &p, sizeof p);
    }
    return at;
}

static op_copies take_op(copies *c, const op_weights *w) {
    const device *device = (const struct device *)gpu_device_of(c->issue);
    const size_t k = (size_t)w->weight.k * sizeof(float), n = (size_t)w->weight.n * sizeof(float);
    op_copies at;
    at.weight = take(c, w->weight.data, w->weight.n ? gpu_matrix_bytes(device, &w->weight) : 0);
    at.bias = take(c, w->bias, w->bias ? n : 0);
    at.norm_weight = take(c, w->norm.weight, w->norm.weight ? k : 0);
    at.norm_bias = take(c, w->norm.bias, w->norm.bias ? k : 0);
    return at;
}

/* Those of one op of one layer. */
static op_copies copies_of(gpu_issue *issue, const block_weights *weights, int layer, int k) {
    copies c = {issue, NULL, FIRST};
    for (int i = 0; i < layer * LAYER_OPS + k; i++)
        take_op(&c, &weights->layer[i / LAYER_OPS].ops[i % LAYER_OPS]);
    return take_op(&c, &weights->layer[layer].ops[k]);
}

static size_t prepare(gpu_issue *issue, const block_weights *block, void *place) {
    copies c = {issue, gpu_emitting(issue) ? place : NULL, FIRST};
    for (int i = 0; i < block->layers; i++)
        for (int k = 0; k < LAYER_OPS; k++) take_op(&c, &block->layer[i].ops[k]);
    return c.used;
}

/* ---- layers over them ---------------------------------------------------------------------------------- */

static void use_norm(norm *norm, const op_copies *at, char *place) {
    if (at->norm_weight) norm->weight = (const float *)(const void *)(place + at->norm_weight);
    if (at->norm_bias) norm->bias = (const float *)(const void *)(place + at->norm_bias);
}

static const float *bias_of(const op_copies *at, char *place) {
    return at->bias ? (const float *)(const void *)(place + at->bias) : NULL;
}

/* The op, over the copies. */
static op over_copies(const op *original, const op_copies *at, char *place) {
    op o = *original;
    matrix *weight[OP_MATRICES];
    if (op_matrices(&o, weight)) weight[0]->data = place + at->weight;
    if (o.kind == OP_NORM_QKV) use_norm(&o.norm_qkv.norm, at, place);
    if (o.kind == OP_NORM_LINEAR) use_norm(&o.norm_linear.norm, at, place);
    if (o.kind == OP_NORM_LINEAR) o.norm_linear.bias = bias_of(at, place);
    if (o.kind == OP_LINEAR_RESIDUAL) o.linear_residual.bias = bias_of(at, place);
    return o;
}

/* A layer at a time, of which the next one is the rest of the block; of steps all layers of the first. */
static int take_block(gpu_issue *issue, const op_block *block) {
    char *const place = gpu_prepared(issue, block);
    const int family = gpu_family_of(issue), layers = block->kind == BLOCK_EXPERT_STEPS ? block->layers : 1;
    if (!place) return 0;
    for (int i = 0; i < layers; i++) {
        if (i) gpu_take_next(issue);
        gpu_take(issue, LAYER_OPS);
        for (int k = 0; k < LAYER_OPS; k++) {
            const op *original = block_layer(block, i) + k;
            const op_copies at = copies_of(issue, block->weights, original->layer, k);
            const op o = over_copies(original, &at, place);
            gpu_work_begin(&issue->work);
            issue->choice = original->choice;
            gpu_op_tasks(issue, &o);
            issue->family = family;
        }
    }
    return layers * LAYER_OPS;
}

const gpu_family gpu_family_host_copies = {
    .name = "copies", GPU_KERNELS(kernels), .take_block = take_block, .prepare = prepare,
};
