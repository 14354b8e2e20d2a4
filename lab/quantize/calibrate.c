/* Operations one by one, and a look at what each product is about to read. */
#include "lab/quantize/calibrate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/report.h"
#include "checkpoint/tensor_names.h"
#include "model/smoothing.h"
#include "ops/int8_rows.h"
#include "ops/limits.h"
#include "ops/scalar.h"

/* Who reads a set: operations by name, tensors by what follows "….layers.N.". */
static const struct {
    smooth_tower tower;
    smooth_set set;
    const char *op, *tensors[3];
} readers[] = {
    {SMOOTH_VISION, SMOOTH_NORM1, "vision.qkv", {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}},
    {SMOOTH_VISION, SMOOTH_NORM2, "vision.fc1", {"mlp.fc1"}},
    {SMOOTH_VISION, SMOOTH_VALUES, "vision.out", {"self_attn.out_proj"}},
    {SMOOTH_PREFIX, SMOOTH_NORM1, "prefix.qkv", {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}},
    {SMOOTH_PREFIX, SMOOTH_NORM2, "prefix.gate_up", {"mlp.gate_proj", "mlp.up_proj"}},
    {SMOOTH_PREFIX, SMOOTH_HIDDEN, "prefix.down", {"mlp.down_proj"}},
    {SMOOTH_PREFIX, SMOOTH_VALUES, "prefix.o", {"self_attn.o_proj"}},
    {SMOOTH_EXPERT, SMOOTH_NORM1, "expert.qkv", {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}},
    {SMOOTH_EXPERT, SMOOTH_NORM2, "expert.gate_up", {"mlp.gate_proj", "mlp.up_proj"}},
    {SMOOTH_EXPERT, SMOOTH_HIDDEN, "expert.down", {"mlp.down_proj"}},
    {SMOOTH_EXPERT, SMOOTH_VALUES, "expert.o", {"self_attn.o_proj"}},
};
enum { READERS = sizeof readers / sizeof *readers, TENSORS_OF = 3 };

/* By how much rows may be larger than the largest of the calibration before they are clipped. A scale that
 * is a tenth too wide costs less than a tenth more error, and so does one that is a quarter too small; half
 * of what is needed costs twice the error, a quarter ten times (docs/w8.md). */
static const float margin = 1.1f;

static const openpi_dims *dims_of(const calibration *c) { return &c->session->plan->model->dims; }

/* ---- rows ---------------------------------------------------------------------------------------------- */

static openpi_status fetch(const calibration *c, const void *from, size_t bytes, void *to,
                           openpi_error *error) {
    device *device = c->session->engine->device;
    return device->backend->download(device, to, from, bytes, error);
}

/* Rows that a product reads, and where the magnitudes of their channels go. */
typedef struct reading {
    const void *x;
    norm norm;                   /* its parameters on the device                                           */
    const row_set *rows;
    int k, channels;
    float *to;
} reading;

/* 0: the operation is no product. */
static int read_by(const op *op, reading *out) {
    switch (op->kind) {
    case OP_NORM_LINEAR:
        *out = (reading){.x = op->norm_linear.x, .norm = op->norm_linear.norm, .rows = &op->norm_linear.rows,
                         .k = op->norm_linear.weight.k};
        return 1;
    case OP_NORM_QKV:
        *out = (reading){.x = op->norm_qkv.x, .norm = op->norm_qkv.norm, .rows = &op->norm_qkv.rows,
                         .k = op->norm_qkv.weight.k};
        return 1;
    case OP_LINEAR_RESIDUAL:
        *out = (reading){.x = op->linear_residual.a, .rows = &op->linear_residual.rows,
                         .k = op->linear_residual.weight.k};
        return 1;
    default: return 0;
    }
}

static openpi_status look_at(calibration *c, const reading *r, dtype type, openpi_error *error) {
    float weight[LIMIT_WIDTH], bias[LIMIT_WIDTH];
    norm own = r->norm;
    int32_t count;
    size_t k = (size_t)r->k;
    if (own.weight) TRY(fetch(c, own.weight, k * sizeof *weight, weight, error));
    if (own.bias) TRY(fetch(c, own.bias, k * sizeof *bias, bias, error));
    own.weight = own.weight ? weight : NULL;
    own.bias = own.bias ? bias : NULL;
    TRY(fetch(c, r->rows->count, sizeof count, &count, error));
    for (int row = 0; row < count; row++) {
        const char *from = (const char *)r->x + (size_t)row * k * dtype_bytes(type);
        TRY(fetch(c, from, k * dtype_bytes(type), c->act, error));
        norm_row(&own, c->act, type, 0, r->k, c->row);
        for (int i = 0; i < r->k; i++)
            r->to[i % r->channels] = fmaxf(r->to[i % r->channels], fabsf(c->row[i]));
    }
    return OPENPI_OK;
}

static openpi_status look(calibration *c, const op *op, openpi_error *error) {
    reading r;
    for (int i = 0; i < READERS; i++) {
        if (op->layer < 0 || strcmp(op->name, readers[i].op) || !read_by(op, &r)) continue;
        r.channels = smooth_channels(dims_of(c), readers[i].tower, readers[i].set);
        r.to = c->rows + smooth_at(dims_of(c), readers[i].tower, op->layer, readers[i].set);
        return look_at(c, &r, op->type, error);
    }
    return OPENPI_OK;
}

/* openpi_session.on_run */
static openpi_status run_and_look(void *user, openpi_session *s, double *stage_ms, openpi_error *error) {
    calibration *c = user;
    device *device = s->engine->device;
    for (int i = 0; i < s->plan->count; i++) {
        TRY(look(c, &s->plan->ops[i], error));
        TRY(device->backend->run(device, op_alone(&s->plan->ops[i]), s->work, stage_ms, error));
    }
    return OPENPI_OK;
}

openpi_status calibration_open(openpi_session *s, calibration *c, openpi_error *error) {
    *c = (calibration){.session = s};
    size_t count = smooth_count(dims_of(c));
    c->rows = calloc(count, sizeof *c->rows);
    c->weights = calloc(count, sizeof *c->weights);
    c->act = malloc(LIMIT_INPUTS * sizeof(float));
    c->row = malloc(LIMIT_INPUTS * sizeof *c->row);
    if (!c->rows || !c->weights || !c->act || !c->row)
        return report_no_memory(error, count * 2 * sizeof(float), "the calibration");
    s->on_run = run_and_look;
    s->on_run_user = c;
    return OPENPI_OK;
}

void calibration_close(calibration *c) {
    if (c->session) c->session->on_run = NULL;
    free(c->rows);
    free(c->weights);
    free(c->act);
    free(c->row);
    *c = (calibration){.session = NULL};
}

/* ---- weights ------------------------------------------------------------------------------------------- */

/* A matrix whose columns are to be measured, by any thread. */
typedef struct column_job {
    const tensor *tensor;
    float *to;                   /* several jobs may have one: each has its own until all are done         */
    float *own;                  /* [channels]                                                             */
    int channels;
} column_job;

typedef struct column_jobs {
    column_job *list;
    int count, stage;
} column_jobs;

static void measure_columns(void *user, int task, int worker) {
    const column_jobs *jobs = user;
    const column_job *j = &jobs->list[task];
    (void)worker;
    if (tensor_stage(j->tensor) != jobs->stage) return;
    int64_t rows = j->tensor->shape[0], k = j->tensor->count / rows;
    float *row = j->own + j->channels;
    for (int64_t r = 0; r < rows; r++) {
        tensor_read_f32(j->tensor, r * k, k, row);
        for (int64_t i = 0; i < k; i++)
            j->own[i % j->channels] = fmaxf(j->own[i % j->channels], fabsf(row[i]));
    }
}

static openpi_status add_columns(calibration *c, column_jobs *jobs, const tensors *tensors, int reader,
                                 int layer, const char *name, openpi_error *error) {
    static const char *const bases[SMOOTH_TOWERS] = {TOWER "encoder.", LANGUAGE, EXPERT_MODEL};
    char text[256];
    snprintf(text, sizeof text, "%slayers.%d.%s.weight", bases[readers[reader].tower], layer, name);
    column_job *j = &jobs->list[jobs->count];
    j->tensor = tensors_find(tensors, text);
    if (!j->tensor) return report(error, OPENPI_BAD_FILE, "tensor \"%s\" is missing", text);
    j->channels = smooth_channels(dims_of(c), readers[reader].tower, readers[reader].set);
    j->to = c->weights + smooth_at(dims_of(c), readers[reader].tower, layer, readers[reader].set);
    size_t floats = (size_t)j->channels + (size_t)(j->tensor->count / j->tensor->shape[0]);
    j->own = calloc(floats, sizeof *j->own);
    jobs->count++;
    return j->own ? OPENPI_OK : report_no_memory(error, floats * sizeof *j->own, "the calibration");
}

static openpi_status add_all(calibration *c, column_jobs *jobs, const tensors *tensors, openpi_error *error) {
    const openpi_dims *d = dims_of(c);
    size_t most = (size_t)READERS * TENSORS_OF * (size_t)(d->vision_depth + d->depth);
    jobs->list = calloc(most, sizeof *jobs->list);
    if (!jobs->list) return report_no_memory(error, most * sizeof *jobs->list, "the calibration");
    for (int i = 0; i < READERS; i++) {
        int depth = readers[i].tower == SMOOTH_VISION ? d->vision_depth : d->depth;
        for (int layer = 0; layer < depth; layer++)
            for (int t = 0; t < TENSORS_OF && readers[i].tensors[t]; t++)
                TRY(add_columns(c, jobs, tensors, i, layer, readers[i].tensors[t], error));
    }
    return OPENPI_OK;
}

static openpi_status measure_weights(calibration *c, column_jobs *jobs, const tensors *tensors,
                                     openpi_error *error) {
    pool *pool = c->session->engine->pool;
    TRY(add_all(c, jobs, tensors, error));
    for (jobs->stage = 0; jobs->stage < tensors_stages(tensors); jobs->stage++) {
        TRY(tensors_stage(tensors, jobs->stage, pool, error));
        pool_run(pool, measure_columns, jobs, jobs->count);
    }
    for (int i = 0; i < jobs->count; i++)
        for (int k = 0; k < jobs->list[i].channels; k++)
            jobs->list[i].to[k] = fmaxf(jobs->list[i].to[k], jobs->list[i].own[k]);
    return tensors_check(tensors, error);
}

openpi_status calibration_powers(calibration *c, const checkpoint_source *source, int8_t *powers,
                                 openpi_error *error) {
    checkpoint *checkpoint = NULL;
    column_jobs jobs = {.list = NULL};
    TRY(checkpoint_open_source(source, &checkpoint, error));
    openpi_status status = measure_weights(c, &jobs, checkpoint->tensors, error);
    if (status == OPENPI_OK) smooth_powers(dims_of(c), c->rows, c->weights, powers);
    for (int i = 0; i < jobs.count; i++) free(jobs.list[i].own);
    free(jobs.list);
    checkpoint_close(checkpoint);
    return status;
}

/* ---- static scales ------------------------------------------------------------------------------------- */

void calibration_row_scales(const calibration *c, const int8_t *powers, float *scales) {
    const openpi_dims *d = dims_of(c);
    for (int layer = 0; layer < formats_row_scales(d); layer++) {
        size_t at = smooth_at(d, SMOOTH_PREFIX, layer, SMOOTH_HIDDEN);
        float top = 0;
        for (size_t i = at; i < at + (size_t)d->mlp; i++)
            top = fmaxf(top, powers ? ldexpf(c->rows[i], -powers[i]) : c->rows[i]);
        float scale = top / 127 * margin;
        scales[layer] = int8_scale_is_fit(scale) ? scale : 1;          /* rows of zeros: nothing is known   */
    }
}
