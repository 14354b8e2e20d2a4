/* Observed calls: the plan runs op by op, and the observer receives each stage's tensors in fp32 as soon as
 * they are there. */
#include <stdlib.h>
#include <string.h>

#include "base/convert.h"
#include "base/report.h"
#include "openpi_internal.h"

/* Shows columns-wide rows of an act or fp32 buffer, converted to fp32. */
static openpi_status show(openpi_session *s, openpi_tensor tensor, int sample, int index, const void *from,
                          dtype type, int rows, int columns, float *scratch, openpi_error *error) {
    device *device = s->engine->device;
    size_t count = (size_t)rows * (size_t)columns;
    TRY(device->backend->download(device, scratch, from, count * dtype_bytes(type), error));
    if (type == DTYPE_BF16) convert_widen(scratch, count);
    s->observer(s->observer_user, tensor, sample, index, scratch, rows, columns);
    return OPENPI_OK;
}

static const void *act_row(const openpi_session *s, const void *base, size_t row, int columns) {
    return (const char *)base + row * (size_t)columns * dtype_bytes(s->plan->model->type);
}

static openpi_status show_image_tokens(openpi_session *s, const openpi_sample *samples, int batch,
                                       float *scratch, openpi_error *error) {
    const model *m = s->plan->model;
    size_t row = 0;
    for (int b = 0; b < batch; row += (size_t)samples[b++].token_count)
        for (int c = 0; c < OPENPI_CAMERAS; c++) {
            if (samples[b].image_mask[c])
                TRY(show(s, OPENPI_TENSOR_IMAGE_TOKENS, b, c,
                         act_row(s, s->plan->buffers.prefix_x, row, m->dims.width), m->type,
                         OPENPI_IMAGE_TOKENS, m->dims.width, scratch, error));
            if (call_has_rows(s->plan, &samples[b], c)) row += OPENPI_IMAGE_TOKENS;
        }
    return OPENPI_OK;
}

static openpi_status show_cache(openpi_session *s, const openpi_sample *samples, int batch, float *scratch,
                                openpi_error *error) {
    device *device = s->engine->device;
    const openpi_dims *d = &s->plan->model->dims;
    for (int layer = 0; layer < d->depth; layer++)
        for (int b = 0; b < batch; b++)
            for (int which = 0; which < 2; which++) {
                kv_cache cache = plan_cache(s->plan, layer);
                int rows = call_prefix_length(&samples[b]);
                TRY(device->backend->cache_read(device, &cache, s->plan->model->type, which, b, rows, scratch,
                                                error));
                s->observer(s->observer_user, which ? OPENPI_TENSOR_V : OPENPI_TENSOR_K, b, layer, scratch,
                            rows, d->head_dim);
            }
    return OPENPI_OK;
}

static openpi_status show_step(openpi_session *s, int batch, int step, float *scratch, openpi_error *error) {
    const plan_buffers *b = &s->plan->buffers;
    for (size_t i = 0, at = 0; i < (size_t)batch; i++) {
        int rows = s->options.horizon;
        TRY(show(s, OPENPI_TENSOR_VELOCITY, (int)i, step, b->velocity + at, DTYPE_F32, rows,
                 OPENPI_ACTION_DIM, scratch, error));
        TRY(show(s, OPENPI_TENSOR_X, (int)i, step, b->in.x_t + at, DTYPE_F32, rows, OPENPI_ACTION_DIM,
                 scratch, error));
        at += (size_t)rows * OPENPI_ACTION_DIM;
    }
    return OPENPI_OK;
}

/* The expert's first input. */
static openpi_status show_suffix(openpi_session *s, int batch, float *scratch, openpi_error *error) {
    const model *m = s->plan->model;
    int width = m->dims.expert_width;
    size_t at = 0;
    for (int b = 0; b < batch; b++) {
        int rows = s->options.horizon + s->plan->state_token;
        TRY(show(s, OPENPI_TENSOR_SUFFIX, b, 0, act_row(s, s->plan->buffers.suffix_x, at, width), m->type,
                 rows, width, scratch, error));
        at += (size_t)rows;
    }
    return OPENPI_OK;
}

/* Shows what ops[i], which has just run, completes. */
static openpi_status show_after(openpi_session *s, const plan *plan, int i, int batch, float *scratch,
                                openpi_error *error) {
    const openpi_sample *samples = s->samples;
    const op *op = &plan->ops[i];
    openpi_stage next = i + 1 < plan->count ? plan->ops[i + 1].stage : OPENPI_STAGE_DOWNLOAD;
    op_kind step_ends = plan_guides(plan) ? OP_GUIDE : OP_VELOCITY;
    if (op->stage == OPENPI_STAGE_VISION && next != OPENPI_STAGE_VISION)
        return show_image_tokens(s, samples, batch, scratch, error);
    if (op->stage == OPENPI_STAGE_PREFIX && next != OPENPI_STAGE_PREFIX)
        return show_cache(s, samples, batch, scratch, error);
    if (op->kind == OP_ACTION_EMBED && op->step == 0)
        return show_suffix(s, batch, scratch, error);
    if (op->kind == step_ends) return show_step(s, batch, op->step, scratch, error);
    return OPENPI_OK;
}

openpi_status session_run_observed(openpi_session *s, const plan *plan, int batch, double *stage_ms,
                                   openpi_error *error) {
    device *device = s->engine->device;
    const openpi_dims *d = &s->plan->model->dims;
    size_t longest = (size_t)OPENPI_IMAGE_TOKENS * (size_t)d->width;
    size_t suffix = (size_t)(OPENPI_MAX_HORIZON + 1) *
                    (size_t)(d->expert_width > OPENPI_ACTION_DIM ? d->expert_width : OPENPI_ACTION_DIM);
    size_t cache = (size_t)s->plan->buffers.cache_capacity * (size_t)d->head_dim;
    if (suffix > longest) longest = suffix;
    if (cache > longest) longest = cache;
    float *scratch = malloc(longest * sizeof(float));
    openpi_status status =
        scratch ? OPENPI_OK : report_no_memory(error, longest * sizeof(float), "the observer");
    for (int i = 0; i < plan->count && status == OPENPI_OK; i++) {
        status = device->backend->run(device, op_alone(&plan->ops[i]), s->work, stage_ms, error);
        if (status == OPENPI_OK) status = show_after(s, plan, i, batch, scratch, error);
    }
    free(scratch);
    return status;
}
