/* From noise to actions: N Euler steps x += dt·v of the flow, t from 1 to 0. With real-time chunking guidance
 * may follow a step, and there may be rows of known actions, which no step changes.
 *
 * Note: π0's state token sees the prefix and itself only, and the time is not in it. So it is among the rows
 * of the first step alone and leaves its K and V in the cache; the other steps have action tokens only. */
#include "model/plan.h"

/* 1 where the state token is among the rows of this step. */
static int state_in_step(const plan *plan, int step) {
    return plan->state_token && plan->kind != PLAN_TIMED && (!step || plan->shape.state_every_step);
}

static void state_embed(plan *plan, int step, int stride) {
    const plan_buffers *b = &plan->buffers;
    const model *m = plan->model;
    plan_add(plan, OP_STATE_EMBED, OPENPI_STAGE_DENOISE, "state.embed", -1, step)->state_embed =
        (op_state_embed){.rows = plan_rows(&b->in.tables.state),
                         .state = b->in.state,
                         .weight = m->state,
                         .bias = m->state_bias,
                         .out_stride = stride,
                         .out = b->suffix_x};
}

/* Each sample has `stride` rows of the expert's, its actions begin at row `offset`. */
static void action_embed(plan *plan, int step, int stride, int offset) {
    const plan_buffers *b = &plan->buffers;
    const model *m = plan->model;
    int timed = plan->kind == PLAN_TIMED && variant_of(m->variant)->action_time_mlp;
    row_set rows = plan_rows(&b->in.tables.action);
    op_action_embed embed = {.rows = timed ? plan_timed(plan, rows, m->dims.expert_width) : rows,
                             .horizon = plan->shape.horizon,
                             .out_stride = stride,
                             .out_offset = offset,
                             .x = b->in.x_t,
                             .in = m->action_in,
                             .in_bias = m->action_in_bias,
                             .out = b->suffix_x};
    if (variant_of(m->variant)->action_time_mlp) {
        embed.mlp_in = m->mlp_in;
        embed.mlp_out = m->mlp_out;
        embed.mlp_out_bias = m->mlp_out_bias;
        size_t at = (size_t)plan_column(plan, step) * (size_t)m->dims.expert_width;
        embed.time = b->time ? b->time + at : NULL;
    }
    plan_add(plan, OP_ACTION_EMBED, OPENPI_STAGE_DENOISE, "action.embed", -1, step)->action_embed = embed;
}

/* Pulls x, one step on, towards the previous chunk. */
static void guide(plan *plan, int step) {
    const plan_buffers *b = &plan->buffers;
    size_t first = (size_t)step * (size_t)plan->shape.batch;
    plan_add(plan, OP_GUIDE, OPENPI_STAGE_DENOISE, "action.guide", -1, step)->guide =
        (op_guide){.rows = plan_rows(&b->in.tables.action),
                   .n = OPENPI_ACTION_DIM,
                   .target = b->in.target,
                   .weight = b->in.weight,
                   .gain = b->in.gain ? b->in.gain + first : NULL,
                   .velocity = b->velocity,
                   .t = plan->times ? plan->times[step] + plan->dt : 0,
                   .x_t = b->in.x_t};
}

/* The velocity from the expert's rows, and x one step on. */
static void velocity(plan *plan, const row_table *all, int step, int stride, int offset) {
    const plan_buffers *b = &plan->buffers;
    const model *m = plan->model;
    sublayer at = {
        .plan = plan, .stage = OPENPI_STAGE_DENOISE, .name = "action.velocity", .layer = -1, .step = step};
    norm norm = plan_expert_norm(plan, 2 * m->dims.depth, m->expert_norm, step);
    const void *x = plan_normed(at, plan_expert_rows(plan, all, step), b->suffix_x, m->dims.expert_width,
                                &norm);
    plan_add(plan, OP_VELOCITY, OPENPI_STAGE_DENOISE, "action.velocity", -1, step)->velocity =
        (op_velocity){.rows = plan_expert_rows(plan, &b->in.tables.action, step),
                      .horizon = plan->shape.horizon,
                      .x_stride = stride,
                      .x_offset = offset,
                      .x = x,
                      .norm = norm,
                      .weight = m->action_out,
                      .bias = m->action_out_bias,
                      .dt = plan->dt,
                      .own_dt = plan->kind == PLAN_TIMED ? b->in.own_dt : NULL,
                      .velocity = b->velocity,
                      .x_t = b->in.x_t};
}

/* A step whose layers are a block: all of it belongs to the block. Where nothing but its embedding stands
 * between it and a step that has as many rows, it is one more step of that one's block. */
static void note_step(plan *plan, op_block *step) {
    op_block *before = step - 1;
    step->count = plan->count - (int)(step->ops - plan->ops);
    step->step_ops = step->count + 1;
    step->guided = plan_guides(plan);
    step->norm_floats = plan_norm_floats(plan);
    if (variant_of(plan->model->variant)->action_time_mlp)
        step->embed_floats = plan->model->dims.expert_width;
    if (step == plan->blocks || before->kind != BLOCK_EXPERT_STEPS || before->rows != step->rows ||
        before->ops + before->count + 1 != step->ops)
        return;
    before->steps++;
    before->count += step->step_ops;
    plan->block_count--;
}

static void denoise_step(plan *plan, int step) {
    const call_tables *tables = &plan->buffers.in.tables;
    int offset = state_in_step(plan, step), stride = plan->shape.horizon + offset;
    const row_table *all = offset ? &tables->suffix : &tables->action;

    plan_step_schedule(plan, step);
    if (offset) state_embed(plan, step, stride);
    action_embed(plan, step, stride, offset);
    int first = plan->count;
    plan_expert(plan, all, step);
    op_block *block = plan->kind == PLAN_TIMED ? NULL
                                               : plan_block(plan, BLOCK_EXPERT_STEPS, first,
                                                            plan->model->dims.depth, all->capacity);
    velocity(plan, all, step, stride, offset);
    if (plan_guides(plan)) guide(plan, step);
    if (block) note_step(plan, block);
}

void plan_denoise(plan *plan) {
    int steps = plan->kind == PLAN_TIMED ? 1 : plan->shape.steps;
    for (int step = 0; step < steps; step++) denoise_step(plan, step);
}
