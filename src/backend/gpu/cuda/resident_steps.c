/* Legal are all layers of a step in bf16, in the sizes of resident.h, with caches at even distances. For up
 * to 16 rows of one sample also the velocity after them and the guide after that; and then any number of
 * steps more, each with its embedding, that differ from the first one in their modulations and their gain
 * only. Else a launch ends: before a velocity whose weights have another format, before rows of another
 * number (π0's second step). The embedding of a launch's first step is computed by the ops' kernels, and so
 * is everything that is not legal. */
#include "backend/gpu/cuda/resident_steps.h"

#include <math.h>
#include <stdlib.h>

#include "backend/gpu/cuda/resident_long.h"

enum { MOST_FLOATS = 1 << 24 };            /* from the first step's modulations to those of another         */
#define TIME_ROUNDING 1e-4f                /* more than the sums of 100 steps differ by, less than a step   */

/* ---- are these the layers --------------------------------------------------------------------------- */

static int is_matrix(const matrix *m, matrix_form form, int n, int k) {
    return m->data && !m->raw && m->type == WEIGHT_BF16 && m->form == form && m->n == n && m->k == k;
}

static int same_rows(const row_set *a, const row_set *b) {
    return a->capacity == b->capacity && a->count == b->count && a->position == b->position &&
           a->keys == b->keys && a->known == b->known && a->known_at == b->known_at;
}

/* The modulation: all norms have a shift, or none has. */
static int is_rms(const norm *n, const norm *first) {
    return n->kind == NORM_RMS && n->weight && n->eps == first->eps && !n->bias == !first->bias;
}

static int is_layer(const op *ops, const op *first) {
    static const op_kind kinds[LAYER_OPS] = {OP_NORM_QKV, OP_CACHE_ATTENTION, OP_LINEAR_RESIDUAL,
                                             OP_NORM_LINEAR, OP_LINEAR_RESIDUAL};
    const op_norm_qkv *q = &ops[QKV].norm_qkv, *q0 = &first[QKV].norm_qkv;
    const op_cache_attention *a = &ops[ATTENTION].cache_attention;
    const op_linear_residual *o = &ops[OUT].linear_residual, *d = &ops[DOWN].linear_residual;
    const op_norm_linear *g = &ops[GATE_UP].norm_linear;
    const row_set *rows = &q0->rows;
    for (int i = 0; i < LAYER_OPS; i++)
        if (ops[i].kind != kinds[i] || ops[i].type != DTYPE_BF16 || ops[i].stage != OPENPI_STAGE_DENOISE)
            return 0;
    if (!same_rows(&q->rows, rows) || !same_rows(&a->rows, rows) || !same_rows(&o->rows, rows) ||
        !same_rows(&g->rows, rows) || !same_rows(&d->rows, rows))
        return 0;
    if (q->x != q0->x || g->x != q0->x || o->x != q0->x || d->x != q0->x || a->q != q->q || o->a != a->out ||
        d->a != g->out)
        return 0;
    if (!is_rms(&q->norm, &q0->norm) || !is_rms(&g->norm, &q0->norm) || q->rope != q0->rope) return 0;
    if (a->heads != RESIDENT_HEADS || a->scale != first[ATTENTION].cache_attention.scale ||
        a->cache.k != q->cache.k || a->cache.v != q->cache.v || q->cache.capacity != q0->cache.capacity ||
        q->cache.head_dim != RESIDENT_HEAD)
        return 0;
    if (q->weight.heads != RESIDENT_HEADS || q->weight.head_dim != RESIDENT_HEAD ||
        g->activation != ACT_GEGLU || g->bias || g->out_row || o->bias || d->bias)
        return 0;
    return is_matrix(&q->weight, MATRIX_QKV, (RESIDENT_HEADS + 2) * RESIDENT_HEAD, RESIDENT_WIDTH) &&
           is_matrix(&o->weight, MATRIX_PLAIN, RESIDENT_WIDTH, RESIDENT_HEADS * RESIDENT_HEAD) &&
           is_matrix(&g->weight, MATRIX_GATED, 2 * RESIDENT_HIDDEN, RESIDENT_WIDTH) &&
           is_matrix(&d->weight, MATRIX_PLAIN, RESIDENT_WIDTH, RESIDENT_HIDDEN);
}

ptrdiff_t resident_cache_distance(const op *ops, int layer, int values) {
    const kv_cache *a = &ops[0].norm_qkv.cache, *b = &ops[layer * LAYER_OPS].norm_qkv.cache;
    return values ? (const char *)b->v - (const char *)a->v : (const char *)b->k - (const char *)a->k;
}

int resident_shifts_of(const op_norm_qkv *q) { return q->norm.bias ? 1 + (q->rows.known != NULL) : 0; }

static int rows_fit(int samples, int each, int shifts, resident_rows kind) {
    const int rows = samples * each;
    if (kind == RESIDENT_LONG && samples > 1)
        return samples <= LONG_SAMPLES && each <= LONG_HEAD_ROWS && rows + shifts <= LONG_ROWS;
    if (kind == RESIDENT_LONG) return rows > RESIDENT_ROWS && rows + shifts <= LONG_ROWS;
    return samples == 1 && rows <= RESIDENT_ROWS &&
           (rows + shifts > RESIDENT_FEW_ROWS) == (kind == RESIDENT_APART);
}

/* Keys of earlier tokens; of all for long horizons, which know no known rows. */
static int keys_fit(const op_norm_qkv *q, resident_rows kind) {
    const int all = q->cache.capacity;
    if (kind == RESIDENT_LONG) return !q->rows.known && all <= LONG_PARTS * LONG_PART_KEYS;
    return all - q->rows.capacity <= RESIDENT_MOST_KEYS;
}

/* Samples of the step whose velocity this is; 0: its rows are not those of the layers. */
static int samples_of(const op_velocity *v, const row_set *rows) {
    const int each = v->x_stride, samples = each ? rows->capacity / each : 0;
    return samples * each == rows->capacity && samples * v->horizon == v->rows.capacity ? samples : 0;
}

/* Layers of the step that begins at ops[0]; 0: this is no such step, or not for this kernel. */
static int depth_of(const op *ops, int count, resident_rows kind) {
    int depth = 0;
    while ((depth + 1) * LAYER_OPS <= count && ops[depth * LAYER_OPS].step == ops[0].step &&
           is_layer(ops + depth * LAYER_OPS, ops))
        depth++;
    if (!depth || depth > RESIDENT_LAYERS || depth * LAYER_OPS == count) return 0;
    const op_velocity *v = &ops[depth * LAYER_OPS].velocity;
    const row_set *rows = &ops[QKV].norm_qkv.rows;
    if (ops[depth * LAYER_OPS].kind != OP_VELOCITY || v->x != ops[QKV].norm_qkv.x) return 0;
    const int samples = samples_of(v, rows);
    if (!samples || !rows_fit(samples, v->x_stride, resident_shifts_of(&ops[QKV].norm_qkv), kind)) return 0;
    if (!keys_fit(&ops[QKV].norm_qkv, kind)) return 0;
    for (int values = 0; values < 2 && depth > 1; values++) {
        const ptrdiff_t distance = resident_cache_distance(ops, 1, values);
        if (distance <= 0) return 0;
        for (int i = 2; i < depth; i++)
            if (resident_cache_distance(ops, i, values) != i * distance) return 0;
    }
    return depth;
}

/* ---- a chain of steps ------------------------------------------------------------------------------- */

static int is_exact(const matrix *m, int n, int k) {
    return is_matrix(m, MATRIX_PLAIN, n, k) ||
           (m->data && !m->raw && m->type == WEIGHT_F32 && m->form == MATRIX_PLAIN && m->n == n && m->k == k);
}

/* The velocity after the layers of the step at `first`. Its rows may begin after others (π0's state token).
 * Rows may be known where there are modulations: a known row then differs in those alone. */
static int is_velocity(const op *end, const op *first) {
    const op_velocity *v = &end->velocity;
    const row_set *rows = &first[QKV].norm_qkv.rows;
    if (end->type != DTYPE_BF16 || !is_rms(&v->norm, &first[QKV].norm_qkv.norm) ||
        !is_exact(&v->weight, RESIDENT_ACTION, RESIDENT_WIDTH) || v->rows.known != rows->known)
        return 0;
    if (rows->known && (!v->norm.bias || v->rows.known_at != rows->known_at)) return 0;
    return v->x_offset + v->horizon == rows->capacity && (!v->x_offset || !v->norm.bias);
}

/* The guide of the rows that the velocity before it has moved. */
static int is_guide(const op *op, const op_velocity *before) {
    const op_guide *g = &op->guide;
    return op->kind == OP_GUIDE && g->n == RESIDENT_ACTION && g->rows.capacity == before->horizon &&
           g->gain && g->velocity == before->velocity && g->x_t == before->x_t;
}

/* The embedding of the rows that the velocity before it has moved. */
static int is_embedding(const op *op, const op_velocity *before) {
    const op_action_embed *a = &op->action_embed;
    if (op->kind != OP_ACTION_EMBED || op->type != DTYPE_BF16 || a->x != before->x_t || a->out != before->x ||
        a->horizon != before->horizon || a->out_stride != a->horizon || a->out_offset || before->x_offset)
        return 0;
    if (!is_exact(&a->in, RESIDENT_WIDTH, RESIDENT_ACTION)) return 0;
    if (action_embed_products(a) == 1) return a->in_bias != NULL;
    return action_embed_products(a) == 2 && a->time && a->mlp_out_bias && !a->in_bias &&
           is_matrix(&a->mlp_out, MATRIX_PLAIN, RESIDENT_WIDTH, RESIDENT_WIDTH);
}

const float *resident_embedding_bias(const op_action_embed *a) {
    return a->mlp_out.n ? a->time : a->in_bias;
}

static int64_t floats_between(const float *from, const float *to) {
    return ((intptr_t)to - (intptr_t)from) / (intptr_t)sizeof *to;
}

/* 1: `to` is so many floats after `from`, or there is neither. */
static int moved(const float *from, const float *to, int floats) {
    return from && to ? floats_between(from, to) == floats : from == to;
}

static int norm_moved(const norm *from, const norm *to, int floats) {
    return moved(from->weight, to->weight, floats) && moved(from->bias, to->bias, floats);
}

/* The kernel computes the time after a step from that after the first one, which may round otherwise. */
static int guide_again(const op *from, const op *to, int steps, float dt) {
    const op_guide *g = &from->guide, *g2 = &to->guide;
    return g2->gain == g->gain + steps && g2->target == g->target && g2->weight == g->weight &&
           fabsf(g2->t - (g->t + (float)steps * dt)) <= TIME_ROUNDING;
}

/* Rows of a later step: the time 0 of known ones is nearer by what the step is further. */
static int rows_again(const row_set *from, const row_set *to, int floats) {
    row_set moved = *to;
    if (to->known) moved.known_at += floats;
    return same_rows(from, &moved);
}

/* A layer of a later step is that of the first one, with other modulations. */
static int layer_again(const op *from, const op *to, int floats) {
    const op_norm_qkv *q = &from[QKV].norm_qkv, *q2 = &to[QKV].norm_qkv;
    const op_linear_residual *o = &from[OUT].linear_residual, *o2 = &to[OUT].linear_residual,
                             *d = &from[DOWN].linear_residual, *d2 = &to[DOWN].linear_residual;
    const op_norm_linear *g = &from[GATE_UP].norm_linear, *g2 = &to[GATE_UP].norm_linear;
    const op_cache_attention *a = &from[ATTENTION].cache_attention, *a2 = &to[ATTENTION].cache_attention;
    return q->x == q2->x && q->cache.k == q2->cache.k && q->cache.v == q2->cache.v &&
           q->cache.capacity == q2->cache.capacity && q->norm.eps == q2->norm.eps && a->scale == a2->scale &&
           q->rope == q2->rope && rows_again(&q->rows, &q2->rows, floats) &&
           q->weight.data == q2->weight.data && o->weight.data == o2->weight.data &&
           g->weight.data == g2->weight.data && d->weight.data == d2->weight.data &&
           norm_moved(&q->norm, &q2->norm, floats) && norm_moved(&g->norm, &g2->norm, floats) &&
           moved(o->gate, o2->gate, floats) && moved(d->gate, d2->gate, floats);
}

static int velocity_again(const op *from, const op *to, int floats) {
    const op_velocity *v = &from->velocity, *v2 = &to->velocity;
    return v->horizon == v2->horizon && v->x_offset == v2->x_offset && v->norm.eps == v2->norm.eps &&
           norm_moved(&v->norm, &v2->norm, floats) && v->weight.data == v2->weight.data &&
           v->bias == v2->bias && v->dt == v2->dt && v->velocity == v2->velocity && v->x_t == v2->x_t;
}

static int embedding_again(const op *from, const op *to, int floats) {
    const op_action_embed *a = &from->action_embed, *a2 = &to->action_embed;
    return a->in.data == a2->in.data && a->mlp_out.data == a2->mlp_out.data &&
           a->mlp_out_bias == a2->mlp_out_bias &&
           moved(resident_embedding_bias(a), resident_embedding_bias(a2), floats);
}

/* Floats from one step to the next, where `to` is so many steps after `from`: a multiple of `grain`, for
 * aligned loads. 0 where the distance is no such one: the addresses then do not fit. */
static int floats_a_step(const float *from, const float *to, int steps, int grain) {
    const int64_t all = floats_between(from, to);
    return steps && llabs(all) <= MOST_FLOATS && all % (steps * grain) == 0 ? (int)all / steps : 0;
}

/* 1: ops[c->ops] … are one more step of the chain, which then has it. */
static int add_step(const op *ops, int count, resident_chain *c) {
    const int length = c->depth * LAYER_OPS, ends = 1 + c->guided, steps = c->steps;
    const op *first_embedding = ops + length + ends, *embedding = ops + c->ops, *next = embedding + 1;
    if (c->ops + 1 + length + ends > count || !is_embedding(embedding, &ops[length].velocity)) return 0;
    if (depth_of(next, count - c->ops - 1, c->kind) != c->depth || !is_velocity(next + length, next))
        return 0;
    if (c->guided && (!is_guide(next + length + 1, &next[length].velocity) ||
                      !guide_again(ops + length + 1, next + length + 1, steps, ops[length].velocity.dt)))
        return 0;
    const int floats =
                  floats_a_step(ops[QKV].norm_qkv.norm.weight, next[QKV].norm_qkv.norm.weight, steps, 4),
              in_floats = floats_a_step(resident_embedding_bias(&first_embedding->action_embed),
                                        resident_embedding_bias(&embedding->action_embed), steps - 1, 2);
    if ((steps > 1 && floats != c->floats) || (steps > 2 && in_floats != c->in_floats)) return 0;
    for (int i = 0; i < length; i += LAYER_OPS)
        if (!layer_again(ops + i, next + i, steps * floats)) return 0;
    if (!velocity_again(ops + length, next + length, steps * floats) ||
        !embedding_again(first_embedding, embedding, (steps - 1) * in_floats))
        return 0;
    c->steps++;
    c->ops += 1 + length + ends;
    c->floats = floats, c->in_floats = in_floats;
    return 1;
}

resident_chain resident_chain_of(const op *ops, int count, resident_rows kind) {
    resident_chain c = {.depth = depth_of(ops, count, kind), .steps = 1, .kind = kind};
    const int length = c.depth * LAYER_OPS;
    c.ops = length;
    if (length) c.samples = samples_of(&ops[length].velocity, &ops[QKV].norm_qkv.rows);
    if (!length || kind == RESIDENT_LONG || !is_velocity(ops + length, ops)) return c;
    c.velocity = 1, c.ops++;
    if (c.ops < count && is_guide(ops + c.ops, &ops[length].velocity)) c.guided = 1, c.ops++;
    while (add_step(ops, count, &c)) continue;
    return c;
}
