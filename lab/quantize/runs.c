/* Engines that are opened, run over all observations and closed again. */
#include "lab/quantize/runs.h"

#include <stdlib.h>
#include <string.h>

#include "base/report.h"
#include "lab/measure/figures.h"
#include "lab/quantize/calibrate.h"
#include "model/smoothing.h"
#include "openpi_internal.h"

enum { LEAST_CALLS = 5 };        /* that a median is made of                                              */

openpi_status chunks_make(const chunks_shape *s, chunks *out, openpi_error *error) {
    size_t rows = (size_t)(s->observations * s->horizon);
    out->model = calloc(rows * OPENPI_ACTION_DIM, sizeof *out->model);
    out->robot = calloc(rows * (size_t)s->dims, sizeof *out->robot);
    return out->model && out->robot ? OPENPI_OK : report_no_memory(error, rows * 128, "actions");
}

void chunks_free(chunks *c) {
    free(c->model);
    free(c->robot);
    *c = (chunks){.model = NULL};
}

uint64_t run_stream(const gate *g, int observation, int other) {
    return (uint64_t)(observation + other * g->shape.observations);
}

static void tell(const gate *g, const run_kind *kind, int observation) {
    char what[80];
    uint64_t all = (uint64_t)g->shape.observations;
    if (!g->options->progress) return;
    snprintf(what, sizeof what, "measuring %s", kind->name);
    g->options->progress(g->options->progress_user, what, (uint64_t)observation, all);
}

/* ---- one engine ---------------------------------------------------------------------------------------- */

typedef struct runner {
    gate *g;
    const run_kind *kind;
    openpi_engine *engine;
    openpi_session *session;
    float *noise;                /* [horizon][32]                                                         */
    double *ms;                  /* [calls]                                                               */
    int calls;
} runner;

static openpi_status call(runner *r, int i, int other, chunks *out, openpi_error *error) {
    const chunks_shape *s = &r->g->shape;
    size_t chunk = (size_t)(s->horizon * OPENPI_ACTION_DIM), robot = (size_t)(s->horizon * s->dims);
    openpi_sample sample = OPENPI_SAMPLE_INIT;
    openpi_timing timing = OPENPI_TIMING_INIT;
    openpi_request *request = r->g->observations->requests[i];
    float *model = out->model + (size_t)i * chunk;
    openpi_noise(r->g->options->seed, run_stream(r->g, i, other), r->noise, chunk);
    TRY(openpi_request_sample(request, &sample, error));
    TRY(openpi_session_run(r->session, &sample, 1, r->noise, model, &timing, error));
    r->ms[r->calls++] = timing.device_ms;
    return openpi_request_finish(request, model, s->horizon, out->robot + (size_t)i * robot, robot, error);
}

static openpi_status call_all(runner *r, int other, chunks *out, openpi_error *error) {
    for (int i = 0; i < r->g->shape.observations; i++) {
        tell(r->g, r->kind, i);
        TRY(call(r, i, other, out, error));
    }
    tell(r->g, r->kind, r->g->shape.observations);
    return OPENPI_OK;
}

/* The first call of a session is slower than the others: where times matter it is run once more. */
static openpi_status answer(runner *r, chunks *out, chunks *also, run_facts *facts, openpi_error *error) {
    if (facts && r->g->options->save != QUANTIZE_BYTES) TRY(call(r, 0, 0, out, error));
    r->calls = 0;
    TRY(call_all(r, 0, out, error));
    while (facts && r->g->options->save != QUANTIZE_BYTES && r->calls < LEAST_CALLS)
        TRY(call(r, 0, 0, out, error));
    if (facts) {
        figures f = figures_of(r->ms, r->calls);
        facts->ms = f.p50_ms;
    }
    r->calls = 0;
    return also ? call_all(r, 1, also, error) : OPENPI_OK;
}

/* Nothing before the calibration. */
static formats_measured measured_of(const gate *g) {
    const quantize_result *r = g->result;
    return (formats_measured){.powers = r->powers, .row_scales = {r->row_scales[0], r->row_scales[1]}};
}

static openpi_status open_engine(runner *r, int rounded, openpi_error *error) {
    const quantize_options *o = r->g->options;
    openpi_engine_options own = *o->engine;
    own.formats = rounded ? "bf16" : r->kind->formats;
    own.weights = OPENPI_WEIGHTS_AUTO;
    own.accept_error = 0;
    own.progress = o->progress;
    own.progress_user = o->progress_user;
    if (r->kind->fp32) own.dtype = OPENPI_F32;
    const engine_more more = {.measured = measured_of(r->g), .keep_files = r->kind->reference};
    r->g->result->loads++;
    return engine_open_more(o->checkpoint, &own, &more, &r->engine, error);
}

/* fp32 takes twice bf16's memory. Where there is none for its weights, bf16's stand for them. */
static openpi_status open_or_round(runner *r, openpi_error *error) {
    openpi_status status = open_engine(r, 0, error);
    if (status != OPENPI_NO_MEMORY || !r->kind->fp32) return status;
    r->g->result->fp32_rounded = 1;
    return open_engine(r, 1, error);
}

/* Beside the reference, whose weights it shares but for the groups that differ. Where there is no memory for
 * those as well, the reference is closed, and engines are opened one at a time. */
static openpi_status open_beside(runner *r, openpi_error *error) {
    gate *g = r->g;
    openpi_status status = OPENPI_NO_MEMORY;
    if (g->base && !r->kind->fp32)
        status = engine_beside(g->base, r->kind->formats, measured_of(g), &r->engine, error);
    if (status != OPENPI_NO_MEMORY) return status;
    openpi_engine_close(g->base);
    g->base = NULL;
    return open_or_round(r, error);
}

/* A JAX checkpoint is decoded in order, once an engine: nothing is kept of it. */
static void keep_base(runner *r) {
    if (!r->kind->reference || tensors_stages(r->engine->checkpoint->tensors) > 1) return;
    r->g->base = r->engine;
    r->engine = NULL;
}

static openpi_status tell_facts(const runner *r, run_facts *facts, openpi_error *error) {
    openpi_engine_info info = OPENPI_ENGINE_INFO_INIT;
    TRY(openpi_engine_get_info(r->engine, &info, error));
    facts->bytes = (double)info.weight_bytes;
    snprintf(facts->formats, sizeof facts->formats, "%s", info.formats);
    snprintf(facts->path, sizeof facts->path, "%s", info.path);
    if (!r->kind->formats && !r->kind->fp32) r->g->result->info = info;
    snprintf(facts->identity, sizeof facts->identity, "%.16s", info.checkpoint_hash);
    return OPENPI_OK;
}

static openpi_status open_session(runner *r, openpi_error *error) {
    openpi_session_options shape = OPENPI_SESSION_OPTIONS_INIT;
    openpi_session_info info = OPENPI_SESSION_INFO_INIT;
    shape.horizon = r->g->shape.horizon;
    shape.steps = r->g->options->steps;
    shape.max_prompt = r->g->max_prompt;
    TRY(openpi_session_create(r->engine, &shape, &r->session, error));
    TRY(openpi_policy_match(r->g->observations->policy, r->session, error));
    TRY(openpi_session_get_info(r->session, &info, error));
    r->g->steps = info.steps;
    return OPENPI_OK;
}

static openpi_status take_memory(runner *r, openpi_error *error) {
    int calls = r->g->shape.observations + LEAST_CALLS;
    r->noise = malloc((size_t)(r->g->shape.horizon * OPENPI_ACTION_DIM) * sizeof *r->noise);
    r->ms = malloc((size_t)calls * sizeof *r->ms);
    return r->noise && r->ms ? OPENPI_OK : report_no_memory(error, (size_t)calls * 8, "a run");
}

/* ---- calibration --------------------------------------------------------------------------------------- */

static openpi_status look_at_calls(runner *r, openpi_error *error) {
    const chunks_shape *s = &r->g->shape;
    int count = s->observations < CALIBRATE_MOST ? s->observations : CALIBRATE_MOST;
    for (int i = 0; i < count; i++) {
        r->calls = 0;
        TRY(call(r, (int)((int64_t)i * s->observations / count), 0, &r->g->last, error));
    }
    return OPENPI_OK;
}

static openpi_status calibrate(runner *r, openpi_error *error) {
    const quantize_options *o = r->g->options;
    quantize_result *result = r->g->result;
    const checkpoint_source source = {o->checkpoint, o->engine->synthetic, o->engine->adapter,
                                      o->engine->without_lora, o->engine->missing_chunks_are_zero};
    calibration c;
    result->power_count = smooth_count(&r->engine->checkpoint->dims);
    result->powers = malloc(result->power_count);
    result->row_scale_count = formats_row_scales(&r->engine->checkpoint->dims);
    for (int i = 0; i < 2; i++)
        result->row_scales[i] = calloc((size_t)result->row_scale_count + 1, sizeof **result->row_scales);
    if (!result->powers || !result->row_scales[0] || !result->row_scales[1])
        return report_no_memory(error, result->power_count, "the calibration");
    openpi_status status = calibration_open(r->session, &c, error);
    if (status == OPENPI_OK) status = look_at_calls(r, error);
    if (status == OPENPI_OK) status = calibration_powers(&c, &source, result->powers, error);
    for (int i = 0; i < 2 && status == OPENPI_OK; i++)
        calibration_row_scales(&c, i ? result->powers : NULL, result->row_scales[i]);
    calibration_close(&c);
    return status;
}

openpi_status run_all(gate *g, const run_kind *kind, chunks *out, chunks *also, run_facts *facts,
                      openpi_error *error) {
    runner r = {.g = g, .kind = kind};
    openpi_status status = take_memory(&r, error);
    if (status == OPENPI_OK) status = open_beside(&r, error);
    if (status == OPENPI_OK) status = open_session(&r, error);
    if (status == OPENPI_OK) status = answer(&r, out, also, facts, error);
    if (status == OPENPI_OK && facts) status = tell_facts(&r, facts, error);
    if (status == OPENPI_OK && kind->reference) status = calibrate(&r, error);
    openpi_session_close(r.session);
    if (status == OPENPI_OK) keep_base(&r);
    openpi_engine_close(r.engine);
    free(r.noise);
    free(r.ms);
    return status;
}
