/* The denoise loop on one resident kernel (kernels/cuda/resident_hopper.cu): is this run of ops that loop, can the kernel
 * run it here, and with what arguments.
 *
 * Taken are whole denoise steps of one sample with at most 16 action rows and nothing but those, in bf16, one after the
 * other over the same buffers. What differs between them (the modulations of π0.5, the time) must stand at even distances.
 * Everything else, π0's first step with its state token too, is left to the ops' own kernels.
 *
 * What surprises: the grid is as large as the card can hold at once and not a block larger, since blocks wait for each
 * other; the driver is asked. */
#include <string.h>

#include "backend/gpu/gpu.h"
#include "backend/gpu/kernels/resident.h"

enum { EMBED, FIRST_LAYER, LAYER_OPS = 5, QKV = 0, ATTENTION, OUT, GATE_UP, DOWN, FLIGHT = 5, LEAST_STAGES = 6 };

static int ceil_div(int a, int b) { return (a + b - 1) / b; }
static int least_blocks(int columns) { return ceil_div(columns, GPU_ATOM_K); }
/* For divisions by what stays, as divide() of resident_packets.cuh wants it: 0 is by one. */
static uint32_t reciprocal_of(int divisor) { return divisor > 1 ? UINT32_MAX / (uint32_t)divisor + 1 : 0; }
static int larger(int a, int b) { return a > b ? a : b; }

/* ---- is it the loop ----------------------------------------------------------------------------------------- */

static int plain(const matrix *m, dtype type, int n, int k) {
    return m->data && !m->raw && m->type == type && m->form == MATRIX_PLAIN && m->n == n && m->k == k;
}

static int plain_bf16(const matrix *m, int n, int k) { return plain(m, DTYPE_BF16, n, k); }

static int same_rows(const row_set *a, const row_set *b) {
    return a->capacity == b->capacity && a->count == b->count && a->position == b->position && a->keys == b->keys;
}

static int rms(const norm *n) { return n->kind == NORM_RMS && n->weight; }

/* Layers of the step that begins at ops[0]; 0: it is no step. */
static int step_depth(const op *ops, int count) {
    static const op_kind kinds[LAYER_OPS] = {OP_NORM_QKV, OP_CACHE_ATTENTION, OP_LINEAR_RESIDUAL, OP_NORM_LINEAR,
                                             OP_LINEAR_RESIDUAL};
    int depth = 0;
    if (count < 1 || ops[0].kind != OP_ACTION_EMBED) return 0;
    for (int i = FIRST_LAYER;; i += LAYER_OPS, depth++) {
        if (i >= count) return 0;
        if (ops[i].kind == OP_VELOCITY) break;
        for (int j = 0; j < LAYER_OPS; j++)
            if (i + j >= count || ops[i + j].kind != kinds[j]) return 0;
    }
    for (int i = 0; i <= depth * LAYER_OPS + 1; i++)
        if (ops[i].type != DTYPE_BF16 || ops[i].stage != OPENPI_STAGE_DENOISE || ops[i].step != ops[0].step) return 0;
    return depth;
}

static int layer_legal(const op *ops, const op *embed, const op *first) {
    const op_norm_qkv *q = &ops[QKV].norm_qkv;
    const op_cache_attention *a = &ops[ATTENTION].cache_attention, *a0 = &first[ATTENTION].cache_attention;
    const op_linear_residual *o = &ops[OUT].linear_residual, *d = &ops[DOWN].linear_residual;
    const op_norm_linear *g = &ops[GATE_UP].norm_linear;
    const row_set *rows = &first[QKV].norm_qkv.rows;
    int width = embed->action_embed.in.n, mlp = first[DOWN].linear_residual.weight.k, heads = first[QKV].norm_qkv.weight.heads;
    const void *x = embed->action_embed.out;
    if (!same_rows(&q->rows, rows) || !same_rows(&a->rows, rows) || !same_rows(&o->rows, rows) || !same_rows(&g->rows, rows) ||
        !same_rows(&d->rows, rows))
        return 0;
    if (q->x != x || g->x != x || o->x != x || d->x != x || a->q != q->q || o->a != a->out || d->a != g->out) return 0;
    if (!rms(&q->norm) || !rms(&g->norm) || q->norm.eps != first[QKV].norm_qkv.norm.eps || g->norm.eps != q->norm.eps) return 0;
    if (q->weight.type != DTYPE_BF16 || q->weight.form != MATRIX_QKV || q->weight.k != width || q->weight.heads != heads ||
        q->weight.head_dim != RESIDENT_HEAD)
        return 0;
    if (a->heads != heads || a->scale != a0->scale || a->cache.k != q->cache.k || a->cache.v != q->cache.v ||
        a->cache.capacity != a0->cache.capacity)
        return 0;
    if (g->weight.type != DTYPE_BF16 || g->weight.form != MATRIX_GATED || g->weight.k != width || g->weight.n != 2 * mlp ||
        g->bias || g->out_row)
        return 0;
    return !q->weight.raw && !g->weight.raw && g->activation == ACT_GEGLU && q->rope == first[QKV].norm_qkv.rope &&
           plain_bf16(&o->weight, width, heads * RESIDENT_HEAD) && plain_bf16(&d->weight, width, mlp) && !o->bias && !d->bias;
}

/* One product in bf16, or one in fp32 and one in bf16. */
static int embed_legal(const op_action_embed *e) {
    int n = e->in.n;
    switch (action_embed_products(e)) {
    case 1: return plain_bf16(&e->in, n, RESIDENT_ACTIONS) && e->in_bias;
    case 2: return plain(&e->in, DTYPE_F32, n, RESIDENT_ACTIONS) && plain_bf16(&e->mlp_out, n, n) && e->time && e->mlp_out_bias;
    default: return 0;
    }
}

/* The first step of a run, by itself. */
static int step_legal(const op *ops, int depth) {
    const op_action_embed *e = &ops[EMBED].action_embed;
    const op *first = &ops[FIRST_LAYER];
    const op_velocity *v = &ops[FIRST_LAYER + depth * LAYER_OPS].velocity;
    const row_set *rows = &first[QKV].norm_qkv.rows;
    int width = e->in.n;
    if (depth > RESIDENT_LAYERS || rows->capacity > RESIDENT_ROWS || width % 8 || width > 16 * GPU_ATOM_K) return 0;
    if (e->rows.capacity != e->horizon || rows->capacity != e->horizon || e->out_offset || v->x_offset)
        return 0; /* one sample, actions alone */
    if (!embed_legal(e) || e->x != v->x_t) return 0;
    if (v->x != e->out || !rms(&v->norm) || !v->bias || !plain_bf16(&v->weight, RESIDENT_ACTIONS, width)) return 0;
    if (first[DOWN].linear_residual.weight.k % 8 ||
        first[ATTENTION].cache_attention.cache.capacity > RESIDENT_SPLITS * RESIDENT_SPAN)
        return 0;
    for (int i = 0; i < depth; i++) {
        const op *layer = first + i * LAYER_OPS;
        const kv_cache *c = &layer[ATTENTION].cache_attention.cache, *c0 = &first[ATTENTION].cache_attention.cache, *c1 = c0;
        if (depth > 1) c1 = &first[LAYER_OPS + ATTENTION].cache_attention.cache;
        ptrdiff_t k = (const char *)c1->k - (const char *)c0->k, v_step = (const char *)c1->v - (const char *)c0->v;
        if (!layer_legal(layer, &ops[EMBED], first)) return 0;
        if ((const char *)c->k - (const char *)c0->k != i * k || (const char *)c->v - (const char *)c0->v != i * v_step ||
            k < 0 || v_step < 0)
            return 0;
    }
    return 1;
}

/* `floats` behind, or nothing in either. */
static int behind(const float *later, const float *first, ptrdiff_t floats) { return first ? later == first + floats : !later; }

static int norm_follows(const norm *n, const norm *first, ptrdiff_t floats) {
    return n->kind == first->kind && n->eps == first->eps && behind(n->weight, first->weight, floats) &&
           behind(n->bias, first->bias, floats);
}

/* Step `at` is the first step again, its parameters at·floats further on. */
static int step_follows(const op *ops, const op *base, int depth, int at, ptrdiff_t floats) {
    const op_action_embed *e = &ops[EMBED].action_embed, *e0 = &base[EMBED].action_embed;
    const op_velocity *v = &ops[FIRST_LAYER + depth * LAYER_OPS].velocity, *v0 = &base[FIRST_LAYER + depth * LAYER_OPS].velocity;
    if (e->x != e0->x || e->out != e0->out || e->in.data != e0->in.data || e->mlp_in.data != e0->mlp_in.data ||
        e->mlp_out.data != e0->mlp_out.data || !behind(e->time, e0->time, at * (ptrdiff_t)e0->in.n) ||
        e->horizon != e0->horizon || e->out_offset != e0->out_offset)
        return 0;
    if (v->x != v0->x || v->x_t != v0->x_t || v->velocity != v0->velocity || v->weight.data != v0->weight.data ||
        v->dt != v0->dt || !norm_follows(&v->norm, &v0->norm, at * floats))
        return 0;
    for (int i = FIRST_LAYER; i < FIRST_LAYER + depth * LAYER_OPS; i += LAYER_OPS) {
        const op *l = ops + i, *l0 = base + i;
        if (!layer_legal(l, &base[EMBED], base + FIRST_LAYER)) return 0;
        if (l[QKV].norm_qkv.weight.data != l0[QKV].norm_qkv.weight.data ||
            l[ATTENTION].cache_attention.cache.k != l0[ATTENTION].cache_attention.cache.k)
            return 0;
        if (l[OUT].linear_residual.weight.data != l0[OUT].linear_residual.weight.data ||
            l[GATE_UP].norm_linear.weight.data != l0[GATE_UP].norm_linear.weight.data)
            return 0;
        if (l[DOWN].linear_residual.weight.data != l0[DOWN].linear_residual.weight.data) return 0;
        if (!norm_follows(&l[QKV].norm_qkv.norm, &l0[QKV].norm_qkv.norm, at * floats) ||
            !norm_follows(&l[GATE_UP].norm_linear.norm, &l0[GATE_UP].norm_linear.norm, at * floats))
            return 0;
        if (!behind(l[OUT].linear_residual.gate, l0[OUT].linear_residual.gate, at * floats) ||
            !behind(l[DOWN].linear_residual.gate, l0[DOWN].linear_residual.gate, at * floats))
            return 0;
    }
    return 1;
}

/* ---- arguments ---------------------------------------------------------------------------------------------- */

typedef struct layout {
    gpu_kernel kernel;
    int clusters;
    size_t shared, bytes;                  /* of shared memory, of the work block                             */
} layout;

static char *exchange(gpu_issue *issue, size_t *used, size_t bytes) {
    size_t at = *used;
    *used = at + ((bytes + 255) & ~(size_t)255);
    return issue->measure ? NULL : issue->work + at;
}

/* The exchanges; first of all the stamps. */
static size_t lay_out(gpu_issue *issue, gpu_resident *p) {
    size_t used = 0, packets = (size_t)ceil_div(p->capacity, 3) * 4 * 16, units = (size_t)p->width / 8, heads = (size_t)p->heads;
    char *stamps = exchange(issue, &used, ((size_t)p->steps * (size_t)(p->depth + 1) + 1) * sizeof(uint64_t));
    p->stamps = issue->device->resident_stamps ? (uint64_t *)stamps : NULL;
    for (int i = 0; i < 2; i++) p->x[i] = exchange(issue, &used, units * packets);
    p->embed = exchange(issue, &used, 2 * units * packets);
    p->q = exchange(issue, &used, heads * 32 * packets);
    p->k_new = exchange(issue, &used, 32 * packets);
    p->v_new = exchange(issue, &used, 32 * packets);
    p->attended = exchange(issue, &used, heads * 32 * packets);
    p->hidden = exchange(issue, &used, (size_t)p->mlp / 8 * packets);
    p->part = exchange(issue, &used, heads * 16 * RESIDENT_SPLITS * (size_t)p->capacity * 3 * 16);
    return used;
}

static int cache_map(gpu_issue *issue, gpu_tensor_map *map, const void *base, ptrdiff_t layer_bytes, int capacity, int depth) {
    const uint64_t row = RESIDENT_HEAD * sizeof(bf16), dims[3] = {RESIDENT_HEAD, (uint64_t)capacity, (uint64_t)depth};
    const uint64_t strides[2] = {row, depth > 1 ? (uint64_t)layer_bytes : row * (uint64_t)capacity};
    static const unsigned box[3] = {GPU_ATOM_K, RESIDENT_BOX_KEYS, 1}, ones[3] = {1, 1, 1};
    return issue->device->driver.tensor_map(map, GPU_MAP_BF16, 3, (void *)(uintptr_t)base, dims, strides, box, ones, 0,
                                            GPU_MAP_SWIZZLE_128, GPU_MAP_PROMOTE_256, 0);
}

static void fill_layers(gpu_resident *p, const op *ops) {
    for (int i = 0; i < p->depth; i++) {
        const op *l = ops + FIRST_LAYER + i * LAYER_OPS;
        const norm *in = &l[QKV].norm_qkv.norm, *post = &l[GATE_UP].norm_linear.norm;
        p->layers[i] = (resident_layer){l[QKV].norm_qkv.weight.data,
                                        l[OUT].linear_residual.weight.data,
                                        l[GATE_UP].norm_linear.weight.data,
                                        l[DOWN].linear_residual.weight.data,
                                        in->weight,
                                        in->bias,
                                        l[OUT].linear_residual.gate,
                                        post->weight,
                                        post->bias,
                                        l[DOWN].linear_residual.gate};
    }
}

static void fill(gpu_resident *p, const op *ops, int depth, int steps, ptrdiff_t floats) {
    const op_action_embed *e = &ops[EMBED].action_embed;
    const op_norm_qkv *q = &ops[FIRST_LAYER + QKV].norm_qkv;
    const op_velocity *v = &ops[FIRST_LAYER + depth * LAYER_OPS].velocity;
    int half_out, half_down;
    memset(p, 0, sizeof *p);
    *p = (gpu_resident){.position = q->rows.position,
                        .keys = q->rows.keys,
                        .capacity = q->rows.capacity,
                        .width = e->in.n,
                        .mlp = ops[FIRST_LAYER + DOWN].linear_residual.weight.k,
                        .heads = q->weight.heads,
                        .depth = depth,
                        .steps = steps,
                        .flight = FLIGHT,
                        .step_floats = (int)floats,
                        .eps = q->norm.eps,
                        .scale = ops[FIRST_LAYER + ATTENTION].cache_attention.scale,
                        .dt = v->dt,
                        .rope = q->rope,
                        .in = e->in.data,
                        .mlp_out = e->mlp_out.data,
                        .out = v->weight.data,
                        .in_bias = e->in_bias,
                        .time = e->time,
                        .mlp_out_bias = e->mlp_out_bias,
                        .out_bias = v->bias,
                        .scale_out = v->norm.weight,
                        .shift_out = v->norm.bias,
                        .x_t = v->x_t,
                        .velocity = v->velocity};
    half_out = ceil_div(least_blocks(p->heads * RESIDENT_HEAD), 2);
    half_down = ceil_div(least_blocks(p->mlp), 2);
    p->operand =
        larger(larger(least_blocks(p->width), RESIDENT_HEAD / GPU_ATOM_K), larger(half_out, half_down)) * p->capacity * 128;
    p->operand = (p->operand + 127) & ~127;
    p->by_width = 1 / (float)p->width;
    p->by_units = reciprocal_of(p->width / 8);
    for (int rank = 0; rank < 2; rank++) {
        int heads = p->heads * RESIDENT_HEAD / 8, hidden = p->mlp / 8;
        p->by_heads[rank] = reciprocal_of(rank ? heads - 8 * half_out : heads < 8 * half_out ? heads : 8 * half_out);
        p->by_mlp[rank] = reciprocal_of(rank ? hidden - 8 * half_down : hidden < 8 * half_down ? hidden : 8 * half_down);
    }
    fill_layers(p, ops);
}

/* 1 if a grid that the card holds at once does the work. */
static int fits(gpu_issue *issue, gpu_resident *p, layout *at) {
    gpu_device *self = issue->device;
    const size_t rest = (size_t)p->operand + RESIDENT_PARTS + RESIDENT_PAIR_PARTS + RESIDENT_SMALL;
    gpu_attribute cluster = {.id = GPU_ATTRIBUTE_CLUSTER, .value.cluster = {2, 1, 1}};
    int most = 0;
    at->kernel = p->capacity <= 12 ? GPU_resident_denoise_12 : GPU_resident_denoise_16;
    if (self->shared_bytes < rest + LEAST_STAGES * RESIDENT_PIECE) return 0;
    p->stages = (int)((self->shared_bytes - rest) / RESIDENT_PIECE);
    if (p->stages > RESIDENT_STAGES) p->stages = RESIDENT_STAGES;
    at->shared = rest + (size_t)p->stages * RESIDENT_PIECE;
    gpu_launch config = {
        {(unsigned)self->multiprocessors & ~1u, 1, 1}, {RESIDENT_THREADS, 1, 1}, (unsigned)at->shared, NULL, &cluster, 1};
    if (self->driver.max_clusters(&most, self->kernels[at->kernel], &config)) return 0;
    at->clusters = most < self->multiprocessors / 2 ? most : self->multiprocessors / 2;
    int blocks = 2 * at->clusters;
    return blocks && ceil_div(p->width / 8, 2) <= at->clusters && p->heads * RESIDENT_SPLITS <= blocks &&
           ceil_div((p->heads + 2) * 16, blocks) <= RESIDENT_UNITS && ceil_div(p->mlp / 8, blocks) <= RESIDENT_UNITS;
}

/* ---- the run ------------------------------------------------------------------------------------------------ */

/* Ops of the run of steps at ops[0] and the kernel's arguments but for the work block; 0: none. */
static int recognise(gpu_issue *issue, const op *ops, int count, gpu_resident *p, layout *at) {
    gpu_device *self = issue->device;
    int depth, per_step, steps = 1;
    ptrdiff_t floats = 0;
    if (!self->resident || !self->kernels[GPU_resident_denoise_12] || !self->driver.max_clusters || !self->driver.tensor_map)
        return 0;
    depth = step_depth(ops, count);
    if (!depth || !step_legal(ops, depth)) return 0;
    per_step = FIRST_LAYER + depth * LAYER_OPS + 1;
    if (step_depth(ops + per_step, count - per_step) == depth) {
        const float *next = ops[per_step + FIRST_LAYER + QKV].norm_qkv.norm.weight,
                    *now = ops[FIRST_LAYER + QKV].norm_qkv.norm.weight;
        floats = (ptrdiff_t)(((intptr_t)next - (intptr_t)now) / (intptr_t)sizeof(float));
        if (floats < 0 || floats % 4) floats = 0;
    }
    while (step_depth(ops + steps * per_step, count - steps * per_step) == depth &&
           step_follows(ops + steps * per_step, ops, depth, steps, floats))
        steps++;
    fill(p, ops, depth, steps, floats);
    return fits(issue, p, at) ? steps * per_step : 0;
}

int gpu_resident_take(gpu_issue *issue, const op *ops, int count) {
    gpu_resident p;
    layout at;
    int taken = recognise(issue, ops, count, &p, &at);
    if (!taken) return 0;
    at.bytes = lay_out(issue, &p);
    if (at.bytes > issue->work_bytes) issue->work_bytes = at.bytes;
    if (issue->measure || issue->code) return taken;
    issue->ops = taken;

    const kv_cache *c0 = &ops[FIRST_LAYER + QKV].norm_qkv.cache, *c1 = c0;
    if (p.depth > 1) c1 = &ops[FIRST_LAYER + LAYER_OPS + QKV].norm_qkv.cache;
    gpu_attribute cluster = {.id = GPU_ATTRIBUTE_CLUSTER, .value.cluster = {2, 1, 1}};
    gpu_launch config = {
        {2 * (unsigned)at.clusters, 1, 1}, {RESIDENT_THREADS, 1, 1}, (unsigned)at.shared, issue->stream, &cluster, 1};
    void *list[] = {&p};
    issue->code = cache_map(issue, &p.k, c0->k, (const char *)c1->k - (const char *)c0->k, c0->capacity, p.depth);
    if (!issue->code)
        issue->code = cache_map(issue, &p.v, c0->v, (const char *)c1->v - (const char *)c0->v, c0->capacity, p.depth);
    if (!issue->code) issue->code = issue->device->driver.fill((gpu_address)(uintptr_t)issue->work, 0, at.bytes, issue->stream);
    if (!issue->code) issue->code = issue->device->driver.launch(&config, issue->device->kernels[at.kernel], list, NULL);
    issue->first = 0;
    if (issue->recording) gpu_note_launch(issue, at.kernel, &config, 2);
    return taken;
}

int gpu_resident_stamps(gpu_device *device, const op *ops, int count, const void *work, uint64_t *out, int most, int *depth) {
    gpu_issue issue = {.device = device, .measure = 1};
    gpu_resident p;
    layout at;
    int n;
    if (!device->resident_stamps) return 0;
    for (int i = 0; i < count; i++) {
        if (!recognise(&issue, ops + i, count - i, &p, &at)) continue;
        n = p.steps * (p.depth + 1) + 1;
        *depth = p.depth;
        if (n > most) return 0;
        if (device->driver.download(out, (gpu_address)(uintptr_t)work, (size_t)n * sizeof *out, device->stream) ||
            device->driver.stream_wait(device->stream))
            return 0;
        return n;
    }
    return 0;
}
