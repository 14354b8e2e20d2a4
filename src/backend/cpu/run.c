/* Each op as what it is on a CPU: one product of rows and weights with its own beginning and end (gemm.c),
 * three of them in a row, attention, or a copy.
 *
 * Note: the three heads (state, action, velocity) take fp32 rows even in a bf16 plan; which product that
 * means follows from the types alone. */
#include "backend/cpu/run.h"

#include <stdio.h>

#include "backend/cpu/attention.h"
#include "backend/cpu/gemm.h"
#include "backend/cpu/layout.h"
#include "backend/cpu/pointwise.h"
#include "backend/cpu/raw.h"
#include "ops/reference.h"

enum { ALIGN = 256 };

static cpu_gemm patch_embed(const op *op, cpu_gemm g) {
    const op_patch_embed *a = &op->patch_embed;
    g.weight = &a->weight;
    g.patches = a;
    g.finisher = g.kernels->elements->linear;
    g.finish = (cpu_finish){.type = op->type, .n = a->weight.n, .bias = a->bias, .row_add = a->position,
                            .row_add_period = OPENPI_IMAGE_TOKENS, .out = a->out};
    return g;
}

static cpu_gemm norm_linear(const op *op, cpu_gemm g) {
    const op_norm_linear *a = &op->norm_linear;
    int gated = a->weight.form == MATRIX_GATED;
    g.weight = &a->weight;
    g.x = a->x;
    g.norm = a->norm;
    g.finisher = gated ? g.kernels->elements->gated : g.kernels->elements->linear;
    g.finish = (cpu_finish){.type = op->type,
                            .n = gated ? a->weight.n / 2 : a->weight.n,
                            .activation = a->activation,
                            .bias = a->bias,
                            .out_row = a->out_row,
                            .out = a->out};
    return g;
}

static cpu_gemm linear_residual(const op *op, cpu_gemm g) {
    const op_linear_residual *a = &op->linear_residual;
    g.weight = &a->weight;
    g.x = a->a;
    g.finisher = g.kernels->elements->residual;
    g.finish = (cpu_finish){.type = op->type,
                            .n = a->weight.n,
                            .bias = a->bias,
                            .gate = a->gate,
                            .out = a->x,
                            .set = g.set};
    return g;
}

static cpu_gemm norm_qkv(const op *op, cpu_gemm g) {
    const op_norm_qkv *a = &op->norm_qkv;
    g.weight = &a->weight;
    g.x = a->x;
    g.norm = a->norm;
    g.finisher = g.kernels->elements->qkv;
    g.finish = (cpu_finish){.type = op->type, .qkv = a};
    return g;
}

static cpu_gemm state_embed(const op *op, cpu_gemm g) {
    const op_state_embed *a = &op->state_embed;
    g.weight = &a->weight;
    g.x = a->state;
    g.type = DTYPE_F32;
    g.finisher = g.kernels->elements->linear;
    g.finish = (cpu_finish){.type = op->type,
                            .n = a->weight.n,
                            .bias = a->bias,
                            .group = 1,
                            .stride = a->out_stride,
                            .out = a->out};
    return g;
}

static cpu_gemm velocity(const op *op, cpu_gemm g) {
    const op_velocity *a = &op->velocity;
    g.weight = &a->weight;
    g.x = a->x;
    g.norm = a->norm;
    g.group = a->horizon;
    g.stride = a->x_stride;
    g.offset = a->x_offset;
    g.finisher = g.kernels->elements->velocity;
    g.finish = (cpu_finish){.n = a->weight.n,
                            .bias = a->bias,
                            .out = a->velocity,
                            .dt = a->dt,
                            .own_dt = a->own_dt,
                            .x_t = a->x_t,
                            .set = g.set};
    return g;
}

/* ---- action tokens: for π0 two or three layers, fp32 rows in between ----------------------------------- */

enum { ACTION_IN, ACTION_HIDDEN, ACTION_OUT };

/* Two products are the last two layers, one is the first. */
static int action_first(const op_action_embed *a) {
    return action_embed_products(a) == 2 ? ACTION_HIDDEN : ACTION_IN;
}
static int action_last(const op_action_embed *a) {
    return action_embed_products(a) == 1 ? ACTION_IN : ACTION_OUT;
}

static cpu_gemm action_layer(const op *op, cpu_gemm g, int which, const float *x, float *out) {
    const op_action_embed *a = &op->action_embed;
    g.weight = which == action_first(a) ? &a->in : which == ACTION_HIDDEN ? &a->mlp_in : &a->mlp_out;
    g.x = x;
    g.type = DTYPE_F32;
    g.finisher = g.kernels->elements->linear;
    g.finish = (cpu_finish){.type = DTYPE_F32, .n = a->in.n, .out = out};
    g.finish.bias = which == ACTION_IN ? a->in_bias : which == ACTION_HIDDEN ? a->time : a->mlp_out_bias;
    if (which == ACTION_HIDDEN) {
        g.finish.activation = ACT_SILU;
        g.finish.set = a->rows.times ? g.set : NULL;
    }
    if (which == action_last(a)) {
        g.finish.type = op->type;
        g.finish.group = a->horizon;
        g.finish.stride = a->out_stride;
        g.finish.offset = a->out_offset;
        g.finish.out = a->out;
    }
    return g;
}

static size_t action_rows_bytes(const op_action_embed *a) {
    return ((size_t)a->rows.capacity * (size_t)a->in.n * sizeof(float) + ALIGN - 1) / ALIGN * ALIGN;
}

static size_t action_bytes(const op *op, cpu_gemm g) {
    const op_action_embed *a = &op->action_embed;
    size_t most = 0;
    for (int i = action_first(a); i <= action_last(a); i++) {
        cpu_gemm layer = action_layer(op, g, i, NULL, NULL);
        size_t bytes = cpu_gemm_bytes(&layer);
        if (bytes > most) most = bytes;
    }
    return 2 * action_rows_bytes(a) + most;
}

static void action_run(const op *op, cpu_gemm g, char *work) {
    const op_action_embed *a = &op->action_embed;
    size_t bytes = action_rows_bytes(a);
    const float *x = a->x;
    for (int i = action_first(a); i <= action_last(a); i++) {
        float *out = (float *)(work + (i & 1 ? bytes : 0));
        cpu_gemm layer = action_layer(op, g, i, x, out);
        cpu_gemm_run(&layer, work + 2 * bytes);
        x = out;
    }
}

/* ---- text ---------------------------------------------------------------------------------------------- */

typedef struct text_loop {
    const cpu_kernels *kernels;
    const op *op;
    int rows, step;              /* in all; of a task                                                      */
} text_loop;

static void text_task(void *argument, int task, int worker) {
    const text_loop *l = argument;
    const op_embed_text *a = &l->op->embed_text;
    const matrix *table = &a->table;
    const weight_format *format = &weight_formats[table->type];
    size_t from = weight_row_bytes(format, table->k), to = (size_t)table->k * dtype_bytes(l->op->type);
    (void)worker;
    for (int row = task * l->step; row < (task + 1) * l->step && row < l->rows; row++)
        l->kernels->elements->scale((const char *)table->data + (size_t)a->ids[row] * from, format->source,
                                    table->k, a->scale, (char *)a->out + (size_t)a->out_row[row] * to,
                                    l->op->type);
}

/* ---- by kind ------------------------------------------------------------------------------------------- */

typedef cpu_gemm (*gemm_of)(const op *op, cpu_gemm start);

/* The ops that are one product. */
static const gemm_of gemms[OP_KINDS] = {
    [OP_PATCH_EMBED] = patch_embed, [OP_NORM_LINEAR] = norm_linear, [OP_LINEAR_RESIDUAL] = linear_residual,
    [OP_NORM_QKV] = norm_qkv,       [OP_STATE_EMBED] = state_embed, [OP_VELOCITY] = velocity,
};

static cpu_gemm start(const cpu_kernels *kernels, pool *pool, const op *op, int rows) {
    return (cpu_gemm){
        .kernels = kernels, .pool = pool, .rows = rows, .type = op->type, .set = op_rows(op)};
}

/* 1 where an op at its capacity is a product that streams; for action_embed, whose first product does. */
static int streams(const cpu_kernels *kernels, pool *pool, const op *op) {
    cpu_gemm g = start(kernels, pool, op, op_rows(op)->capacity);
    if (op->kind == OP_ACTION_EMBED) g = action_layer(op, g, action_first(&op->action_embed), NULL, NULL);
    else if (gemms[op->kind]) g = gemms[op->kind](op, g);
    else return 0;
    return cpu_gemm_streams(&g);
}

int cpu_op_candidates(const cpu_kernels *kernels, pool *pool, const op *op, candidate *out, int capacity) {
    struct op seen = *op;
    int count, cut = gemms[op->kind] || op->kind == OP_ACTION_EMBED || op->kind == OP_IMAGE_ATTENTION ||
                     op->kind == OP_CACHE_ATTENTION || op->kind == OP_EMBED_TEXT;
    if (!cut) return 0;
    cpu_raw_types(kernels, &seen);
    const cpu_blocking *list = cpu_blockings(op->kind, streams(kernels, pool, &seen), &count);
    for (int i = 0; i < count && i < capacity; i++) {
        snprintf(out[i].name, sizeof out[i].name, "%s", list[i].name);
        out[i].heuristic = !i;
    }
    return count;
}

static size_t op_bytes(const cpu_kernels *kernels, pool *pool, const op *op) {
    cpu_gemm g = start(kernels, pool, op, op_rows(op)->capacity);
    if (gemms[op->kind]) {
        g = gemms[op->kind](op, g);
        return cpu_gemm_bytes(&g);
    }
    if (op->kind == OP_ACTION_EMBED) return action_bytes(op, g);
    if (cpu_is_pointwise(op->kind)) return cpu_pointwise_bytes(pool, op);
    int units = cpu_blocking_of(op->kind, 0, op->choice).units;
    return op->kind == OP_EMBED_TEXT ? 0 : cpu_attention_bytes(kernels, pool, op, units);
}

static void op_run(const cpu_kernels *kernels, pool *pool, const op *op, void *work) {
    int rows = *op_rows(op)->count;
    cpu_gemm g = start(kernels, pool, op, rows);
    if (rows <= 0) return;
    cpu_blocking blocking = cpu_blocking_of(op->kind, streams(kernels, pool, op), op->choice);
    text_loop text = {kernels, op, rows, blocking.rows};
    g.blocking = blocking;
    if (gemms[op->kind]) {
        g = gemms[op->kind](op, g);
        cpu_gemm_run(&g, work);
        return;
    }
    if (op->kind == OP_ACTION_EMBED)
        action_run(op, g, work);
    else if (op->kind == OP_EMBED_TEXT)
        pool_run(pool, text_task, &text, (rows + blocking.rows - 1) / blocking.rows);
    else if (cpu_is_pointwise(op->kind))
        cpu_pointwise_run(kernels, pool, op, work);
    else
        cpu_attention_run(kernels, pool, op, blocking.units, work);
}

size_t cpu_op_bytes(const cpu_kernels *kernels, pool *pool, const op *op) {
    struct op seen = *op;
    cpu_raw_types(kernels, &seen);
    return cpu_raw_bytes(kernels, pool, op) + op_bytes(kernels, pool, &seen);
}

void cpu_op_run(const cpu_kernels *kernels, pool *pool, const op *op, void *work) {
    struct op packed = *op;
    if (*op_rows(op)->count > 0) work = cpu_raw_pack(kernels, pool, &packed, work);
    op_run(kernels, pool, &packed, work);
}
