/* Calls that a server recorded as goldens: what an engine like this one told a robot, on this machine or on
 * another one. They find what another device, compiler, version or table changes; a fault that all of them
 * have is found by openpi's own results alone (verify_recorded.c).
 *
 * fp32: the bound of a user's golden, 1e-4 (on a GPU 2e-4) of the largest value of x. bf16: nothing else sets
 * a bound, so both types are computed here. The recorded bf16 and the one here are two roundings
 * of the same fp32: each has to be as far from the fp32 here as the other, within what verify_compare.c says
 * of such distances. A fault of both types here moves the recorded one away, a fault of bf16 the one here. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/report.h"
#include "lab/verify/verify_case.h"
#include "openpi_internal.h"

static const double f32_cpu = 1e-4, f32_gpu = 2e-4;          /* share of the largest value of x            */
static const double bf16_rms = 1.5, bf16_max = 3;            /* times the other bf16's distance            */

static const openpi_dtype types[] = {OPENPI_F32, OPENPI_BF16};

typedef struct run {
    openpi_engine *engine;
    openpi_policy *policy;
    openpi_request *request;
    openpi_session *session;
} run;

typedef struct trial {
    const verify_calls *calls;
    size_t chunk;                /* numbers of one                                                        */
    float *recorded, *noise;     /* [calls][chunk]                                                        */
    float *here[2];              /* the same, of each of `types`                                          */
    verify_row computed[2];      /* device, and FAIL or SKIPPED where there are no actions                */
} trial;

openpi_status verify_call_run(openpi_session *session, openpi_request *request, const verify_call *call,
                              float *noise, float *actions, openpi_error *error) {
    openpi_extras extras = OPENPI_EXTRAS_INIT;
    openpi_sample sample = OPENPI_SAMPLE_INIT;
    size_t count = (size_t)call->horizon * DIMS;
    openpi_status status =
        openpi_request_prepare_msgpack(request, call->request, call->request_bytes, NULL, error);
    if (status == OPENPI_OK) status = openpi_request_extras(request, &extras, error);
    if (status == OPENPI_OK) status = openpi_request_sample(request, &sample, error);
    if (status != OPENPI_OK) return status;
    if (extras.noise && extras.noise_rows == call->horizon)
        memcpy(noise, extras.noise, count * sizeof *noise);
    else openpi_noise(call->seed, call->stream, noise, count);
    return openpi_session_run_rtc(session, &sample, call->rtc, 1, noise, actions, NULL, error);
}

/* ---- computing -------------------------------------------------------------------------------------- */

static openpi_status open_policy(verify_case *c, const verify_calls *calls, run *r, openpi_error *error) {
    const verify_options *v = c->options;
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    int given = v->robot || v->config;
    options.robot = given ? v->robot : calls->config ? NULL : calls->robot;
    options.config = given ? v->config : calls->config;
    options.norm_stats = v->norm_stats;
    options.assets = v->assets;
    options.adapter = v->adapter;
    options.without_lora = v->without_lora;
    options.missing_chunks_are_zero = v->missing_chunks_are_zero;
    options.horizon = calls->horizon;
    options.tokenizer = v->tokenizer;
    options.tokenizer_cache = v->tokenizer_cache;
    return case_policy(c, v->checkpoint, &options, &r->policy, &r->request, error);
}

/* Other weights, or the same in another format: nothing can be said of their actions. */
static openpi_status same_model(verify_case *c, const verify_calls *calls, const openpi_engine *engine,
                                openpi_error *error) {
    openpi_engine_info info = OPENPI_ENGINE_INFO_INIT;
    TRY(openpi_engine_get_info(engine, &info, error));
    if (calls->hash && strcmp(calls->hash, info.checkpoint_hash))
        return report(error, OPENPI_BAD_INPUT, "recorded from other weights: their hash is %s there, %s here",
                      calls->hash, info.checkpoint_hash);
    if (formats_have_8_bits(&engine->model->types)) {
        c->row.result = VERIFY_SKIPPED;
        snprintf(c->row.detail, sizeof c->row.detail,
                 "8-bit weights, for which a recording sets no bound; `openpi replay` says what differs");
    } else if (calls->weights && c->options->dtype == calls->dtype && strcmp(calls->weights, info.formats)) {
        c->row.result = VERIFY_SKIPPED;
        snprintf(c->row.detail, sizeof c->row.detail, "recorded with weights %.60s, here they are %.60s",
                 calls->weights, info.formats);
    }
    return OPENPI_OK;
}

static openpi_status compute(verify_case *c, trial *t, run *r, float *actions, openpi_error *error) {
    const verify_calls *calls = t->calls;
    openpi_policy_info info = OPENPI_POLICY_INFO_INIT;
    TRY(open_policy(c, calls, r, error));
    TRY(openpi_policy_get_info(r->policy, &info, error));
    TRY(case_checkpoint(c, &r->engine, error));
    case_on_engine(c, r->engine);
    TRY(same_model(c, calls, r->engine, error));
    if (c->row.result == VERIFY_SKIPPED) return OPENPI_OK;
    TRY(case_chunking_session(c, r->engine, calls->horizon, calls->steps, info.max_prompt, &r->session,
                              error));
    TRY(openpi_policy_match(r->policy, r->session, error));
    for (int i = 0; i < calls->count; i++) {
        verify_call call;
        size_t at = (size_t)i * t->chunk;
        TRY(calls->read(calls->user, i, &call, error));
        if (call.horizon != calls->horizon)
            return report(error, OPENPI_BAD_FILE, "call %d has %d steps, those before it %d", i, call.horizon,
                          calls->horizon);
        memcpy(t->recorded + at, call.actions, t->chunk * sizeof *t->recorded);
        TRY(verify_call_run(r->session, r->request, &call, t->noise + at, actions + at, error));
    }
    return OPENPI_OK;
}

static void keep_row(void *user, const verify_row *row) { *(verify_row *)user = *row; }

/* Both types are computed before either is judged, and one engine is closed before the other opens. */
static void compute_type(const verify_walk *walk, trial *t, int type) {
    verify_walk quiet = {.options = walk->options, .each = keep_row, .user = &t->computed[type]};
    openpi_error error = OPENPI_ERROR_INIT;
    run r = {0};
    verify_case c;
    quiet.options.dtype = types[type];
    case_begin(&c, &quiet, t->calls->name);
    snprintf(c.row.dtype, sizeof c.row.dtype, "%s", type ? "bf16" : "f32");
    openpi_status status = compute(&c, t, &r, t->here[type], &error);
    case_end(&c, &quiet, status, &error);
    openpi_engine_close(r.engine);
}

/* ---- judging ---------------------------------------------------------------------------------------- */

static distance apart(const trial *t, const float *a, const float *b) {
    distance d = {0};
    for (size_t i = 0; i < (size_t)t->calls->count * t->chunk; i++)
        distance_add(&d, (double)a[i], (double)b[i]);
    return d;
}

static double largest(const trial *t) {
    double most = 0;
    for (size_t i = 0; i < (size_t)t->calls->count * t->chunk; i++)
        most = fmax(most, fmax(fabs((double)t->recorded[i]), fabs((double)t->noise[i])));
    return most;
}

static void judge(verify_case *c, const trial *t, int type) {
    double max, rms;
    if (t->calls->dtype == OPENPI_F32) {
        distance d = apart(t, t->here[0], t->recorded);
        max = (strncmp(c->row.device, "cpu", 3) ? f32_gpu : f32_cpu) * largest(t);
        case_actions(c, "actions", &d, max, 0);
        return;
    }
    distance then = apart(t, t->recorded, t->here[0]), now = apart(t, t->here[1], t->here[0]);
    distance_bounds(type ? &then : &now, bf16_rms, bf16_max, &max, &rms);
    case_actions(c, type ? "actions from f32 here" : "recorded actions from f32 here", type ? &now : &then,
                 max, rms);
}

static void take_result(verify_case *c, const verify_row *from) {
    if (c->row.result != VERIFY_OK || from->result == VERIFY_OK) return;
    c->row.result = from->result;
    memcpy(c->row.detail, from->detail, sizeof c->row.detail);
}

/* Where bf16 was recorded the other type sets the bound, so both have to be there. */
static void judge_type(verify_walk *walk, const trial *t, int type) {
    openpi_error error = OPENPI_ERROR_INIT;
    int rounded = t->calls->dtype == OPENPI_BF16;
    verify_case c;
    case_begin(&c, walk, t->calls->name);
    snprintf(c.row.dtype, sizeof c.row.dtype, "%s", type ? "bf16" : "f32");
    const verify_row *own = &t->computed[rounded ? type : 0];
    snprintf(c.row.device, sizeof c.row.device, "%s", own->device);
    take_result(&c, own);
    if (rounded) take_result(&c, &t->computed[!type]);
    else if (type && c.row.result == VERIFY_OK) {
        c.row.result = VERIFY_SKIPPED;
        snprintf(c.row.detail, sizeof c.row.detail,
                 "recorded in f32: no bf16 there, whose distance from f32 is the bound");
    }
    if (c.row.result == VERIFY_OK) judge(&c, t, type);
    case_end(&c, walk, OPENPI_OK, &error);
}

static openpi_status make_trial(verify_case *c, trial *t, openpi_error *error) {
    size_t count = (size_t)t->calls->count;
    t->chunk = (size_t)t->calls->horizon * DIMS;
    TRY(case_take(c, count, t->chunk * sizeof *t->recorded, &t->recorded, error));
    TRY(case_take(c, count, t->chunk * sizeof *t->noise, &t->noise, error));
    for (int i = 0; i < 2; i++) TRY(case_take(c, count, t->chunk * sizeof **t->here, &t->here[i], error));
    return OPENPI_OK;
}

openpi_status verify_recording(const verify_calls *calls, const verify_options *options, verify_each row,
                               void *user, openpi_error *error) {
    verify_walk walk = {.options = *options, .each = row, .user = user};
    verify_row last;
    verify_walk quiet = {.options = *options, .each = keep_row, .user = &last};
    trial t = {.calls = calls};
    verify_case memory;
    if (!options->checkpoint)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "%s: recorded from a checkpoint of its own: give --checkpoint DIR", calls->name);
    case_begin(&memory, &quiet, calls->name);
    openpi_status status = make_trial(&memory, &t, error);
    for (int i = 0; i < 2 && status == OPENPI_OK; i++)
        if (calls->dtype == OPENPI_BF16 || !i) compute_type(&walk, &t, i);
    for (int i = 0; i < 2 && status == OPENPI_OK; i++)
        if (!options->dtype || options->dtype == types[i]) judge_type(&walk, &t, i);
    case_end(&memory, &quiet, OPENPI_OK, error);
    return status;
}
