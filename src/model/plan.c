/* Builds a plan: buffers in one device block, then the op list over them. Both happen twice: first without
 * memory, to learn the sizes, then bound to it. Without memory an operand is its place in the block and not
 * NULL, since a device chooses kernels by what an operation has (a gate, known rows). */
#include "model/plan.h"

#include <stdlib.h>

#include "base/report.h"

#define FIRST_PLACE ((char *)(uintptr_t)ARENA_ALIGN)
enum {
    CACHE_ROUND = 32,
    MOST_TOWERS = OPENPI_CAMERAS + 1,      /* blocks that are no steps: passes over pictures, the prefix    */
};

op *plan_add(plan *plan, op_kind kind, openpi_stage stage, const char *name, int layer, int step) {
    op *op = plan->count < plan->capacity ? &plan->ops[plan->count] : &plan->spare;
    plan->count++;
    op->kind = kind;
    op->stage = stage;
    op->type = plan->model->type;
    op->step = step;
    op->layer = layer;
    op->name = name;
    return op;
}

op_block *plan_block(plan *plan, block_kind kind, int first, int layers, int rows) {
    int count = plan->count - first;
    if (!plan->ops || !layers || count != layers * LAYER_OPS) return NULL;
    op_block *block = &plan->blocks[plan->block_count++];
    *block = (op_block){.kind = kind,
                        .weights = &plan->model->blocks[kind],
                        .ops = plan->ops + first,
                        .count = count,
                        .layers = layers,
                        .rows = rows,
                        .samples = plan_samples(plan),
                        .cache_bytes = plan->buffers.cache_layer_bytes,
                        .steps = 1,
                        .step_ops = count};
    return block;
}

op_list plan_steps(const plan *plan, int from, int to, op_block cut[OPENPI_MAX_STEPS]) {
    int first = 0, end, blocks = 0;
    while (plan->ops[first].step < from) first++;
    for (end = first; end < plan->count && plan->ops[end].step < to; end++) {}
    for (int i = 0; i < plan->block_count; i++) {
        const op_block *block = &plan->blocks[i];
        int step = block->ops->step, last = step + block->steps;
        int begin = step > from ? step : from, steps = (last < to ? last : to) - begin;
        if (block->kind != BLOCK_EXPERT_STEPS || steps <= 0) continue;
        cut[blocks] = *block;
        cut[blocks].ops += (begin - step) * block->step_ops;
        cut[blocks].steps = steps;
        cut[blocks++].count = steps * block->step_ops - 1;
    }
    return (op_list){plan->ops + first, end - first, cut, blocks};
}

row_set plan_rows(const row_table *t) {
    return (row_set){.capacity = t->capacity,
                     .count = t->count,
                     .sample = t->sample,
                     .position = t->position,
                     .keys = t->keys};
}

kv_cache plan_cache(const plan *plan, int layer) {
    const plan_buffers *b = &plan->buffers;
    size_t at = (size_t)layer * b->cache_layer_bytes;
    return (kv_cache){b->cache_k ? (char *)b->cache_k + at : NULL,
                      b->cache_v ? (char *)b->cache_v + at : NULL, b->cache_capacity,
                      plan->model->dims.head_dim};
}

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

static size_t most(size_t a, size_t b, size_t c) { return larger(larger(a, b), c); }

/* Buffers between the parts of sub-layers, where a switch takes those apart. Rows of the stages: I, P, T. */
static void lay_out_parts(plan *plan, arena *arena, size_t I, size_t P, size_t T) {
    const openpi_dims *d = &plan->model->dims;
    plan_buffers *b = &plan->buffers;
    int fused = plan_on(plan, SWITCH_FUSED_POINTWISE), qkv = plan_on(plan, SWITCH_FUSED_QKV);
    int gate_up = plan_on(plan, SWITCH_FUSED_GATE_UP);
    size_t act = dtype_bytes(plan->model->type), heads = (size_t)d->heads,
           qkv_width = (heads + 2) * (size_t)d->head_dim;
    size_t width = (size_t)d->width, expert = (size_t)d->expert_width, vision = (size_t)d->vision_width;
    size_t prefix_sums = qkv_width, suffix_sums = qkv_width;
    if (!fused) b->normed = arena_take(arena, most(I * vision, P * width, T * expert) * act);
    if (!fused) prefix_sums = larger(qkv_width, width), suffix_sums = larger(qkv_width, expert);
    if (!gate_up)
        prefix_sums = larger(prefix_sums, (size_t)d->mlp),
        suffix_sums = larger(suffix_sums, (size_t)d->expert_mlp);
    if (!fused || !qkv || !gate_up)
        b->sums = arena_take(arena, most(fused ? 0 : I * vision, P * prefix_sums, T * suffix_sums) * act);
    if (plan_on(plan, SWITCH_FUSED_ATTENTION)) return;
    size_t of_images = I * (size_t)d->vision_heads * OPENPI_IMAGE_TOKENS,
           of_caches = larger(P, T) * heads * (size_t)b->cache_capacity;
    b->scores = arena_take(arena, larger(of_images, of_caches) * sizeof(float));
}

/* A device chooses kernels by how many rows there may be. */
static void keep_rows(const plan *plan, call_tables *t) {
    row_table *const tables[] = {&t->vision, &t->text, &t->prefix};
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        tables[i]->capacity = tables[i]->capacity / plan->shape.batch * plan_samples(plan);
    for (int c = 0; c < OPENPI_CAMERAS; c++)
        t->camera[c].capacity = t->camera[c].capacity / plan->shape.batch * plan_samples(plan);
}

/* `inputs`: NULL, or an arena of their own. */
static void lay_out(plan *plan, arena *arena, struct arena *inputs) {
    const model *m = plan->model;
    const openpi_dims *d = &m->dims;
    const plan_shape *s = &plan->shape;
    plan_buffers *b = &plan->buffers;
    size_t act = dtype_bytes(m->type), width = (size_t)d->expert_width;
    size_t I = (size_t)s->batch * OPENPI_CAMERAS * OPENPI_IMAGE_TOKENS,
           P = I + (size_t)(s->batch * s->max_prompt);
    size_t T = (size_t)(s->batch * (s->horizon + plan->state_token)), q = (size_t)(d->heads * d->head_dim);
    size_t actions = (size_t)(s->batch * s->horizon) * OPENPI_ACTION_DIM;
    size_t vw = (size_t)d->vision_width;
    size_t columns = (size_t)plan_columns(plan);

    call_lay_out(&b->in, inputs ? inputs : arena, plan);
    keep_rows(plan, &b->in.tables);
    b->velocity = arena_take(arena, actions * sizeof(float));
    b->rope = arena_take(arena, (size_t)b->cache_capacity * (size_t)d->head_dim * sizeof(float));
    b->temb = arena_take(arena, columns * width * sizeof(float));
    if (variant_of(m->variant)->adaptive_norms) {
        b->hidden = arena_take(arena, columns * width * sizeof(float));
        b->cond = arena_take(arena, columns * width * sizeof(float));
        b->modulation = arena_take(arena, (size_t)(2 * d->depth + 1) * columns * 3 * width * sizeof(float));
    }
    if (variant_of(m->variant)->action_time_mlp)
        b->time = arena_take(arena, columns * width * sizeof(float));
    b->cache_k = arena_take(arena, (size_t)d->depth * b->cache_layer_bytes);
    b->cache_v = arena_take(arena, (size_t)d->depth * b->cache_layer_bytes);
    b->prefix_x = arena_take(arena, P * (size_t)d->width * act);
    b->suffix_x = arena_take(arena, T * width * act);
    lay_out_parts(plan, arena, I, P, T);

    /* The three stages' inner buffers are never alive together: they share one region. */
    size_t region = arena->used, end;
    b->vision_x = arena_take(arena, I * vw * act);
    b->vision_qkv = arena_take(arena, I * 3 * vw * act);
    b->vision_o = arena_take(arena, I * vw * act);
    b->vision_h = arena_take(arena, I * (size_t)d->vision_mlp * act);
    end = arena->used;
    arena->used = region;
    b->prefix_q = arena_take(arena, P * q * act);
    b->prefix_o = arena_take(arena, P * q * act);
    b->prefix_h = arena_take(arena, P * (size_t)d->mlp * act);
    end = larger(end, arena->used);
    arena->used = region;
    b->suffix_q = arena_take(arena, T * q * act);
    b->suffix_o = arena_take(arena, T * q * act);
    b->suffix_h = arena_take(arena, T * (size_t)d->expert_mlp * act);
    arena->used = larger(end, arena->used);
}

static void build(plan *plan) {
    plan->count = plan->setup_count = plan->block_count = 0;
    if (plan->kind != PLAN_DENOISE && plan->kind != PLAN_TIMED) {
        plan_vision(plan);
        plan_prefix(plan);
    }
    if (!plan_is_prefix(plan)) plan_denoise(plan);
    plan_schedule(plan);
}

openpi_status plan_create(const model *model, const plan_shape *shape, plan_kind kind, plan **out,
                          openpi_error *error) {
    const backend *backend = model->device->backend;
    plan *p = calloc(1, sizeof *p);
    if (!p) return report_no_memory(error, sizeof *p, "the plan");
    p->model = model;
    p->shape = *shape;
    p->kind = kind;
    p->state_token = variant_of(model->variant)->state_token;
    if (!plan_on(p, SWITCH_STATE_TOKEN_ONCE)) p->shape.state_every_step = 1;
    int places = OPENPI_CAMERAS * OPENPI_IMAGE_TOKENS + shape->max_prompt + 1 + shape->horizon;
    p->buffers.cache_capacity = (places + CACHE_ROUND - 1) / CACHE_ROUND * CACHE_ROUND;
    p->buffers.cache_layer_bytes =
        (size_t)shape->batch *
        backend->cache_bytes(model->device, p->buffers.cache_capacity, model->dims.head_dim, model->type);

    build(p);                    /* counts */
    p->capacity = p->count;
    p->setup_capacity = p->setup_count;
    p->ops = calloc((size_t)p->capacity, sizeof *p->ops);
    p->setup = calloc((size_t)p->setup_capacity + 1, sizeof *p->setup);        /* the setup may be empty */
    p->times = calloc((size_t)shape->steps, sizeof *p->times);
    p->blocks = calloc((size_t)(MOST_TOWERS + shape->steps), sizeof *p->blocks);
    if (!p->ops || !p->setup || !p->times || !p->blocks) {
        openpi_status status = report_no_memory(error, (size_t)p->capacity * sizeof *p->ops, "the plan");
        plan_close(p);
        return status;
    }
    schedule_times(p);
    arena unbound = {FIRST_PLACE, 0}, inputs = unbound;
    lay_out(p, &unbound, shape->inputs_apart ? &inputs : NULL);
    p->device_bytes = unbound.used;
    build(p);
    *out = p;
    return OPENPI_OK;
}

openpi_status plan_bind(plan *plan, void *memory, void *inputs, openpi_error *error) {
    const device *device = plan->model->device;
    const plan_buffers *b = &plan->buffers;
    arena bind = {memory, 0}, apart = {inputs, 0};
    int width = plan->model->dims.expert_width, steps = plan->shape.steps, columns = plan_columns(plan);
    size_t temb_bytes = (size_t)columns * (size_t)width * sizeof(float);
    size_t rope_bytes = (size_t)b->cache_capacity * (size_t)plan->model->dims.head_dim * sizeof(float);
    lay_out(plan, &bind, inputs ? &apart : NULL);
    build(plan);
    float *host = malloc(larger(temb_bytes, rope_bytes));
    if (!host) return report_no_memory(error, larger(temb_bytes, rope_bytes), "the schedule");
    for (int k = 0; k < columns; k++)
        schedule_temb(k < steps ? plan->times[k] : 0, width, host + (size_t)k * (size_t)width);
    openpi_status status = device->backend->upload((struct device *)device, b->temb, host, temb_bytes, error);
    if (status == OPENPI_OK) {
        schedule_rope(b->cache_capacity, plan->model->dims.head_dim, host);
        status = device->backend->upload((struct device *)device, b->rope, host, rope_bytes, error);
    }
    free(host);
    return status;
}

void plan_close(plan *plan) {
    if (!plan) return;
    free(plan->ops);
    free(plan->setup);
    free(plan->times);
    free(plan->blocks);
    free(plan);
}
