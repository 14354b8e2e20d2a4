/* What depends on the step alone, computed once when a session opens: the times, their embeddings, and, by a
 * few operations on the device, the time half of π0's action_time_mlp_in or all of π0.5's modulations.
 * Actions that are known beforehand (trained real-time chunking) have a column of their own, time 0. Those of
 * a timed step are computed by its setup whenever they are others.
 *
 * Note: openpi adds dt to an fp32 accumulator, LeRobot computes each t in double; the two differ in the last
 * bits, and each checkpoint gets its own. */
#include <math.h>

#include "model/plan.h"

static const double TWO_PI = 6.283185307179586;

void schedule_times(plan *plan) {
    int n = plan->shape.steps;
    float t = 1;
    plan->dt = (float)(-1.0 / n);
    for (int k = 0; k < n; k++) {
        plan->times[k] = plan->model->checkpoint->lerobot ? (float)(1.0 + k * (-1.0 / n)) : t;
        t += plan->dt;
    }
}

/* [sin s_j | cos s_j], s_j = 2π·t / period_j, periods 0.004 … 4.0 geometric, both ends included. */
void schedule_temb(float t, int width, float *temb) {
    int half = width / 2;
    for (int j = 0; j < half; j++) {
        double fraction = half > 1 ? (double)j / (half - 1) : 0;
        double period = 0.004 * pow(4.0 / 0.004, fraction);
        double s = 1 / period * TWO_PI * t;
        temb[j] = (float)sin(s);
        temb[half + j] = (float)cos(s);
    }
}

/* Angles in fp32 from integer positions, as the original does; sine and cosine of them correctly rounded. */
void schedule_rope(int positions, int head_dim, float *rope) {
    int half = head_dim / 2;
    for (int i = 0; i < half; i++) {
        float timescale = (float)pow(10000.0, (float)(2.0 / head_dim) * (float)i);
        for (int p = 0; p < positions; p++) {
            double angle = (float)p / timescale;
            rope[((size_t)p * (size_t)half + (size_t)i) * 2] = (float)cos(angle);
            rope[((size_t)p * (size_t)half + (size_t)i) * 2 + 1] = (float)sin(angle);
        }
    }
}

int schedule_is_constant(const plan *plan) {
    int adaptive = variant_of(plan->model->variant)->adaptive_norms;
    return plan_on(plan, adaptive ? SWITCH_PRECOMPUTED_MODULATIONS : SWITCH_FOLDED_CONSTANTS);
}

/* ---- the time's products, once in the setup or in every step ---------------------------------------- */

enum { ALL_STEPS = -1 };         /* in place of a column                                                   */

static op *add_setup(plan *plan) {
    op *op = plan->setup_count < plan->setup_capacity ? &plan->setup[plan->setup_count] : &plan->spare;
    plan->setup_count++;
    *op = (struct op){
        .kind = OP_NORM_LINEAR, .stage = OPENPI_STAGE_DENOISE, .step = -1, .layer = -1, .name = "schedule"};
    return op;
}

/* A plain fp32 product over rows of the schedule: all N steps', the known column's or a timed step's in the
 * setup, or one step's inside the plan. */
static void linear(plan *plan, int column, const float *x, const matrix *weight, const float *bias,
                   activation activation, float *out) {
    const call_tables *tables = &plan->buffers.in.tables;
    int timed = plan->kind == PLAN_TIMED;
    int in_setup = column == ALL_STEPS || column == plan_known_column(plan) || timed;
    size_t row = column == ALL_STEPS ? 0 : (size_t)column;
    op *op = in_setup ? add_setup(plan)
                      : plan_add(plan, OP_NORM_LINEAR, OPENPI_STAGE_DENOISE, "step.schedule", -1, column);
    op->type = DTYPE_F32;
    op->parameters = !in_setup;
    const row_table *rows = timed ? &tables->times : column == ALL_STEPS ? &tables->steps : &tables->one;
    op->norm_linear = (op_norm_linear){.rows = plan_rows(rows),
                                       .x = x ? x + row * (size_t)weight->k : NULL,
                                       .weight = *weight,
                                       .bias = bias,
                                       .activation = activation,
                                       .out = out ? out + row * (size_t)weight->n : NULL};
}

/* Of the adaptive norm `which`: scale, shift and gate. */
static void modulate(plan *plan, int column, int which, const matrix *weight, const float *bias) {
    const plan_buffers *b = &plan->buffers;
    size_t one = (size_t)plan_columns(plan) * 3 * (size_t)plan->model->dims.expert_width;
    linear(plan, column, b->cond, weight, bias, ACT_NONE,
           b->modulation ? b->modulation + (size_t)which * one : NULL);
}

static void schedule(plan *plan, int column) {
    const plan_buffers *b = &plan->buffers;
    const model *m = plan->model;
    if (variant_of(m->variant)->action_time_mlp) {
        linear(plan, column, b->temb, &m->time_in, m->time_in_bias, ACT_NONE, b->time);
        return;
    }
    linear(plan, column, b->temb, &m->time_in, m->time_in_bias, ACT_SILU, b->hidden);
    linear(plan, column, b->hidden, &m->mlp_out, m->mlp_out_bias, ACT_SILU, b->cond);
    for (int i = 0; i < m->dims.depth; i++) {
        const gemma_layer *layer = &m->expert[i];
        modulate(plan, column, 2 * i, &layer->ada_in, layer->ada_in_bias);
        modulate(plan, column, 2 * i + 1, &layer->ada_post, layer->ada_post_bias);
    }
    modulate(plan, column, 2 * m->dims.depth, &m->expert_ada, m->expert_ada_bias);
}

/* The ordinary plan's setup serves every plan of the session. */
void plan_schedule(plan *plan) {
    if (plan->kind == PLAN_ORDINARY && schedule_is_constant(plan)) schedule(plan, ALL_STEPS);
    if (plan->kind == PLAN_TRAINED) schedule(plan, plan_known_column(plan));
    if (plan->kind == PLAN_TIMED) schedule(plan, plan_timed_column(plan));
}

void plan_step_schedule(plan *plan, int step) {
    if (!schedule_is_constant(plan) && plan->kind != PLAN_TIMED) schedule(plan, step);
}
