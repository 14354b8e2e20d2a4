/* The plan of a call without device, weights and pictures, and what its operations would take. */
#include <stdlib.h>
#include <string.h>

#include "base/report.h"
#include "lab/paper/paper.h"
#include "openpi_internal.h"

/* Only sizes are asked of the device that the plan is made for; the host is always there. */
static openpi_status open_plan(const checkpoint_source *source, const workload *w, int horizon, int steps,
                               openpi_session *s, openpi_error *error) {
    openpi_engine *e = s->engine;
    plan_shape shape = {.batch = w->batch,
                        .horizon = horizon,
                        .steps = steps,
                        .max_prompt = w->prompt ? w->prompt : 1};
    model_types types = engine_types(OPENPI_BF16, OPENPI_WEIGHTS_AUTO);
    TRY(pool_create(1, 0, &e->pool, error));
    TRY(backend_cpu.open("cpu", &(device_options){.pool = e->pool}, &e->device, error));
    TRY(checkpoint_open_source(source, &e->checkpoint, error));
    TRY(model_measure(e->checkpoint, e->device, types, 0, &e->model, error));
    s->options.batch = w->batch;
    return plan_create(e->model, &shape, PLAN_ORDINARY, &s->plan, error);
}

/* The rows of a call, without its pictures: the tables are all that costs are made of. */
static openpi_status fill(const workload *w, openpi_session *s, openpi_error *error) {
    arena measure = {NULL, 0};
    call_lay_out(&s->in, &measure, s->plan);
    size_t prompt = (size_t)w->prompt, bytes = s->in.bytes + (prompt + 1) * sizeof(int32_t);
    s->host = calloc(1, bytes);
    if (!s->host) return report_no_memory(error, bytes, "the tables of a call");
    int32_t *tokens = (int32_t *)((char *)s->host + s->in.bytes);
    arena bind = {s->host, 0};
    call_lay_out(&s->in, &bind, s->plan);
    for (int b = 0; b < w->batch; b++) {
        openpi_sample *sample = &s->samples[b];
        sample->size = sizeof *sample;
        for (int c = 0; c < OPENPI_CAMERAS; c++) sample->image_mask[c] = w->cameras[c];
        sample->tokens = tokens;
        sample->token_count = w->prompt;
    }
    s->last = call_fill(s->plan, &s->in.tables, s->samples, NULL, w->batch, 1);
    return OPENPI_OK;
}

static openpi_status predict(const openpi_session *s, const paper_card *card, profile *out,
                             openpi_error *error) {
    bench_roofs roofs = paper_roofs(card);
    size_t bytes = (size_t)s->plan->count * sizeof *out->ops;
    out->ops = calloc(1, bytes);
    if (!out->ops) return report_no_memory(error, bytes, "the predictions");
    for (int i = 0; i < s->plan->count; i++) {
        call_cost cost = costs_of_op(s, i);
        paper_time time = paper_predict(card, &s->plan->ops[i], cost.rows, cost.keys, s->options.batch);
        profile_op *row = &out->ops[out->count++];
        *row = profile_row(s, i, 1, &roofs);
        row->calls = time.launches;
        row->ms = time.us * 1e-3;
        out->launches += time.launches;
        out->sum_ms += row->ms;
    }
    out->method = TIMED_PREDICTED;
    return OPENPI_OK;
}

openpi_status paper_run(const char *path, const openpi_synthetic *synthetic, const workload *w, int horizon,
                        int steps, const paper_card *card, paper_call *out, openpi_error *error) {
    const checkpoint_source source = {.path = path, .synthetic = synthetic};
    openpi_engine engine = {0};
    openpi_session *s = calloc(1, sizeof *s);
    *out = (paper_call){0};
    if (!s) return report_no_memory(error, sizeof *s, "the call");
    s->engine = &engine;
    openpi_status status = open_plan(&source, w, horizon, steps, s, error);
    if (status == OPENPI_OK) status = fill(w, s, error);
    if (status == OPENPI_OK) status = predict(s, card, &out->profile, error);
    if (status == OPENPI_OK) {
        out->variant = engine.checkpoint->variant;
        out->parameters = engine.checkpoint->parameters;
    }
    plan_close(s->plan);
    free(s->host);
    free(s);
    model_close(engine.model);
    checkpoint_close(engine.checkpoint);
    if (engine.device) engine.device->backend->close(engine.device);
    pool_close(engine.pool);
    return status;
}
