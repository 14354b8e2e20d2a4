/* From noise to actions: N Euler steps x += dt·v of the flow, t from 1 to 0.
 * What surprises: π0's state token sees the prefix and itself only and there is no time in it, so it is among the rows of
 * the first step alone and leaves its K and V in the cache; the other steps carry action tokens only. */
#include "model/plan.h"

/* 1 where the state token is among the rows of this step. */
static int state_in_step(const plan *plan, int step) { return plan->state_token && (!step || plan->shape.state_every_step); }

static void state_embed(plan *plan, int step, int stride) {
    const plan_buffers *b = &plan->buffers;
    const model *m = plan->model;
    plan_add(plan, OP_STATE_EMBED, OPENPI_STAGE_DENOISE, "state.embed", -1, step)->state_embed =
        (op_state_embed){plan_rows(&b->in.tables.state), b->in.state, m->state, m->state_bias, stride, b->suffix_x};
}

static void denoise_step(plan *plan, int step) {
    const plan_buffers *b = &plan->buffers;
    const model *m = plan->model;
    int horizon = plan->shape.horizon, offset = state_in_step(plan, step), stride = horizon + offset;
    row_set rows = plan_rows(&b->in.tables.action);
    op_action_embed embed = {rows, horizon, stride, offset, b->in.x_t,  m->action_in, m->action_in_bias,
                             {0},  {0},     NULL,   NULL,   b->suffix_x};

    plan_step_schedule(plan, step);
    if (offset) state_embed(plan, step, stride);
    if (variant_of(m->variant)->action_time_mlp) {
        embed.mlp_in = m->mlp_in;
        embed.mlp_out = m->mlp_out;
        embed.mlp_out_bias = m->mlp_out_bias;
        embed.time = b->time ? b->time + (size_t)step * (size_t)m->dims.expert_width : NULL;
    }
    plan_add(plan, OP_ACTION_EMBED, OPENPI_STAGE_DENOISE, "action.embed", -1, step)->action_embed = embed;
    const row_table *all = offset ? &b->in.tables.suffix : &b->in.tables.action;
    plan_expert(plan, all, step);
    sublayer last = {plan, OPENPI_STAGE_DENOISE, "action.velocity", -1, step};
    norm norm = plan_expert_norm(plan, 2 * m->dims.depth, m->expert_norm, step);
    const void *x = plan_normed(last, plan_rows(all), b->suffix_x, m->dims.expert_width, &norm);
    plan_add(plan, OP_VELOCITY, OPENPI_STAGE_DENOISE, "action.velocity", -1, step)->velocity = (op_velocity){
        rows, horizon, stride, offset, x, norm, m->action_out, m->action_out_bias, plan->dt, b->velocity, b->in.x_t};
}

void plan_denoise(plan *plan) {
    for (int step = 0; step < plan->shape.steps; step++) denoise_step(plan, step);
}
