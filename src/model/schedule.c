/* What depends on the step alone, computed once when a session opens: the times, their embeddings, and through
 * a few operations on the device π0's time half of action_time_mlp_in or all of π0.5's modulations.
 * What surprises: openpi adds dt to an fp32 accumulator, LeRobot computes each t in double; the two differ in
 * the last bits and each checkpoint gets its own. */
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

/* A plain fp32 linear over the rows of the schedule: all N in the setup (step -1), or a step's own inside the plan. */
static void linear(plan *plan, int step, const float *x, const matrix *weight, const float *bias, activation activation,
                   float *out) {
    const call_tables *tables = &plan->buffers.in.tables;
    norm none = {NORM_NONE, NULL, NULL, 0};
    if (step >= 0) {
        size_t row = (size_t)step;
        op *op = plan_add(plan, OP_NORM_LINEAR, OPENPI_STAGE_DENOISE, "step.schedule", -1, step);
        op->type = DTYPE_F32;
        op->parameters = 1;
        x = x ? x + row * (size_t)weight->k : NULL;
        out = out ? out + row * (size_t)weight->n : NULL;
        op->norm_linear = (op_norm_linear){plan_rows(&tables->one), x, none, *weight, bias, activation, NULL, out};
        return;
    }
    if (plan->setup_count < plan->setup_capacity)
        plan->setup[plan->setup_count] = (op){
            .kind = OP_NORM_LINEAR, .stage = OPENPI_STAGE_DENOISE, .type = DTYPE_F32, .step = -1, .layer = -1, .name = "schedule",
            .norm_linear = {plan_rows(&tables->steps), x, none, *weight, bias, activation, NULL, out}};
    plan->setup_count++;
}

static void schedule(plan *plan, int step) {
    const plan_buffers *b = &plan->buffers;
    const model *m = plan->model;
    size_t one = (size_t)plan->shape.steps * 3 * (size_t)m->dims.expert_width;
    float *to = b->modulation;
    if (variant_of(m->variant)->action_time_mlp) {
        linear(plan, step, b->temb, &m->time_in, m->time_in_bias, ACT_NONE, b->time);
        return;
    }
    linear(plan, step, b->temb, &m->time_in, m->time_in_bias, ACT_SILU, b->hidden);
    linear(plan, step, b->hidden, &m->mlp_out, m->mlp_out_bias, ACT_SILU, b->cond);
    for (int i = 0; i < m->dims.depth; i++) {
        const gemma_layer *layer = &m->expert[i];
        linear(plan, step, b->cond, &layer->ada_in, layer->ada_in_bias, ACT_NONE, to ? to + (size_t)(2 * i) * one : NULL);
        linear(plan, step, b->cond, &layer->ada_post, layer->ada_post_bias, ACT_NONE, to ? to + (size_t)(2 * i + 1) * one : NULL);
    }
    linear(plan, step, b->cond, &m->expert_ada, m->expert_ada_bias, ACT_NONE, to ? to + (size_t)(2 * m->dims.depth) * one : NULL);
}

void plan_schedule(plan *plan) {
    if (schedule_is_constant(plan)) schedule(plan, -1);
}

void plan_step_schedule(plan *plan, int step) {
    if (!schedule_is_constant(plan)) schedule(plan, step);
}
