/* Records calls. */
#include "lab/measure/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/report.h"
#include "lab/measure/observation.h"
#include "lab/measure/power.h"
#include "openpi_internal.h"

typedef struct recorder {
    openpi_session *session;
    const trace_options *options;
    timed timed;
    workload_inputs inputs;
    observation observation;
    openpi_request *request; /* NULL: model level                                           */
    double *actions;
    size_t action_count;
    power *power;
    double begin_ms, energy_j; /* time by the host's clock; energy at the last reading        */
    trace *out;
} recorder;

/* ---- power ---------------------------------------------------------------------------------------- */

/* With a counter of energy only (RAPL), power is its rate since the last reading. */
static openpi_status read_power(recorder *r, trace_reading *to, double since_ms, openpi_error *error) {
    power_reading now = {0};
    if (!r->power) return OPENPI_OK;
    TRY(power_read(r->power, &now, error));
    double at = clock_ms() - r->begin_ms, passed = at - since_ms;
    *to = (trace_reading){at, now.watts, now.core_mhz, now.memory_mhz};
    if (to->watts <= 0 && now.energy_j > r->energy_j && passed > 0)
        to->watts = (now.energy_j - r->energy_j) / (passed * 1e-3);
    r->energy_j = now.energy_j;
    return OPENPI_OK;
}

/* ---- a call --------------------------------------------------------------------------------------- */

static void add_span(trace_call *c, const char *name, double start, double end) {
    c->spans[c->span_count++] = (trace_span){name, start, end};
}

static openpi_status run_model(recorder *r, openpi_timing *prepared, openpi_timing *ran, double *finish,
                               openpi_error *error) {
    openpi_sample sample = OPENPI_SAMPLE_INIT;
    if (!r->request) {
        *finish = 0;
        return workload_run(r->session, &r->inputs, ran, error);
    }
    TRY(openpi_request_prepare(r->request, &r->observation.view, prepared, error));
    TRY(openpi_request_sample(r->request, &sample, error));
    TRY(openpi_session_run(r->session, &sample, 1, r->inputs.noise, r->inputs.actions, ran, error));
    *finish = clock_ms();
    return openpi_request_finish(r->request, r->inputs.actions, r->session->options.horizon, r->actions,
                                 r->action_count, error);
}

/* Parts of a call whose length is known but not their beginning are placed next to the run, whose times are
 * known. */
static openpi_status run_call(recorder *r, trace_call *c, openpi_error *error) {
    openpi_timing prepared = OPENPI_TIMING_INIT, ran = OPENPI_TIMING_INIT;
    double finish, begin = r->begin_ms;
    if (c) TRY(read_power(r, &c->before, 0, error));
    double start = clock_ms();
    TRY(run_model(r, &prepared, &ran, &finish, error));
    double end = clock_ms();
    if (!c) return OPENPI_OK;
    const timed *t = &r->timed;
    double run = t->start_ms - begin, ran_to = t->end_ms - begin,
           uploaded = run - ran.stage_ms[OPENPI_STAGE_UPLOAD];
    c->start_ms = start - begin;
    c->end_ms = end - begin;
    if (r->request) {
        double pictures = c->start_ms + prepared.stage_ms[OPENPI_STAGE_PICTURE];
        add_span(c, "picture", c->start_ms, pictures);
        add_span(c, "prompt", pictures, pictures + prepared.stage_ms[OPENPI_STAGE_PROMPT]);
    }
    double after = c->span_count ? c->spans[c->span_count - 1].end_ms : c->start_ms;
    add_span(c, "upload", uploaded > after ? uploaded : after, run);
    c->run = c->span_count;
    add_span(c, t->method == TIMED_REPLAY ? "replay" : "run", run, ran_to);
    double last = r->request ? finish - begin : c->end_ms,
           download = last - ran.stage_ms[OPENPI_STAGE_DOWNLOAD];
    if (download < ran_to) download = ran_to;
    if (t->method == TIMED_REPLAY) add_span(c, "reading the event nodes", ran_to, download);
    add_span(c, "download", download, last);
    if (r->request) add_span(c, "actions", last, c->end_ms);

    /* The host has waited for the last launch: so the last launch ends with the replay, and the first does
     * not begin before it. */
    double device_ms =
        t->method == TIMED_REPLAY && t->count ? ran_to - t->launches[t->count - 1].end_ms : run;
    c->device_ms = device_ms > run ? device_ms : run;
    for (int i = 0; i < t->count; i++) {
        c->starts[i] = t->launches[i].start_ms;
        c->ends[i] = t->launches[i].end_ms;
    }
    return read_power(r, &c->after, c->before.at_ms, error);
}

/* ---- launches ------------------------------------------------------------------------------------- */

/* A fused product counts as a product, whatever is fused with it. */
const char *trace_group(const char *kind) {
    static const struct {
        const char *kind, *group;
    } groups[] = {{"patch_embed", "GEMM"},          {"norm_linear", "GEMM"},
                  {"linear_residual", "GEMM"},      {"norm_qkv", "GEMM"},
                  {"state_embed", "GEMM"},          {"action_embed", "GEMM"},
                  {"velocity", "GEMM"},             {"image_attention", "attention"},
                  {"cache_attention", "attention"}, {"scores", "attention"},
                  {"softmax", "attention"},         {"values", "attention"},
                  {"norm", "norm"},                 {"activate", "activation"},
                  {"rope_cache", "RoPE"},           {"several", "several in one"}};
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        if (!strcmp(groups[i].kind, kind)) return groups[i].group;
    return "other";
}

static openpi_status describe_all(recorder *r, openpi_error *error) {
    const timed *t = &r->timed;
    trace *out = r->out;
    out->launches = calloc((size_t)t->count + 1, sizeof *out->launches);
    if (!out->launches)
        return report_no_memory(error, (size_t)t->count * sizeof *out->launches, "the trace's launches");
    for (int i = 0, first = 0; i < t->count; i++) {
        const launch_record *l = &t->launches[i];
        if (l->op < 0 || l->ops < 1 || l->op + l->ops > r->session->plan->count)
            return report(error, OPENPI_SYSTEM,
                          "launch %d computes %d operations from %d on, the plan has %d", i, l->ops, l->op,
                          r->session->plan->count);
        profile_op what = profile_row(r->session, l->op, l->ops, NULL);
        out->launches[i] =
            (trace_launch){.record = *l, .what = what, .group = trace_group(what.kind)};
        if (l->op != t->launches[first].op) first = i;
        out->launches[i].place = i - first + 1;
        for (int j = first; j <= i; j++) out->launches[j].places = i - first + 1;
    }
    out->launch_count = t->count;
    return OPENPI_OK;
}

/* ---- opening -------------------------------------------------------------------------------------- */

/* If the policy refuses the synthetic observation, the trace is of the model level. */
static openpi_status open_policy(recorder *r, openpi_error *error) {
    const trace_options *o = r->options;
    openpi_error why = OPENPI_ERROR_INIT;
    openpi_sample sample = OPENPI_SAMPLE_INIT;
    openpi_status status = OPENPI_OK;
    snprintf(r->out->not_policy, sizeof r->out->not_policy, "%.299s", o->not_policy ? o->not_policy : "");
    r->out->prompt = o->call.prompt;
    if (!o->policy) return OPENPI_OK;
    TRY(observation_make(o->policy, &o->call, &r->observation, error));
    r->action_count = (size_t)r->session->options.horizon * (size_t)r->observation.info.action_dim;
    r->actions = malloc(r->action_count * sizeof *r->actions);
    if (!r->actions) return report_no_memory(error, r->action_count * sizeof *r->actions, "the actions");
    status = openpi_request_create(o->policy, &r->request, &why);
    if (status == OPENPI_OK) status = openpi_request_prepare(r->request, &r->observation.view, NULL, &why);
    if (status == OPENPI_OK) status = openpi_request_sample(r->request, &sample, &why);
    if (status == OPENPI_OK) {
        r->out->prompt = sample.token_count;
        r->out->policy = 1;
        return OPENPI_OK;
    }
    openpi_request_close(r->request);
    r->request = NULL;
    snprintf(r->out->not_policy, sizeof r->out->not_policy, "%.299s", why.message);
    return status == OPENPI_NO_MEMORY ? report(error, status, "%s", why.message) : OPENPI_OK;
}

static openpi_status take_calls(recorder *r, openpi_error *error) {
    trace *out = r->out;
    size_t n = (size_t)r->timed.count;
    out->calls = calloc((size_t)r->options->calls, sizeof *out->calls);
    if (!out->calls)
        return report_no_memory(error, (size_t)r->options->calls * sizeof *out->calls, "the trace's calls");
    out->count = r->options->calls;
    for (int i = 0; i < out->count; i++) {
        out->calls[i].starts = malloc((2 * n + 1) * sizeof(double));
        if (!out->calls[i].starts)
            return report_no_memory(error, (2 * n + 1) * sizeof(double), "a call of the trace");
        out->calls[i].ends = out->calls[i].starts + n;
    }
    return OPENPI_OK;
}

static openpi_status open_power(recorder *r, openpi_error *error) {
    trace *out = r->out;
    TRY(power_open(r->options->device, &r->power, error));
    const power_facts *facts = power_get_facts(r->power);
    snprintf(out->power, sizeof out->power, "%s", facts->counter);
    if (!facts->counter[0]) snprintf(out->no_power, sizeof out->no_power, "%.299s", facts->reason);
    return OPENPI_OK;
}

static openpi_status record(recorder *r, openpi_error *error) {
    const trace_options *o = r->options;
    TRY(workload_make(r->session, &o->call, &r->inputs, error));
    TRY(open_policy(r, error));
    TRY(open_power(r, error));
    TRY(timed_open(r->session, &r->timed, error));
    TRY(take_calls(r, error));
    r->out->method = r->timed.method;
    memcpy(r->out->not_replayed, r->timed.not_replayed, sizeof r->out->not_replayed);
    r->out->steps = r->session->options.steps;
    r->begin_ms = clock_ms();
    for (int i = -o->warmup; i < o->calls; i++) {
        if (!i) r->begin_ms = clock_ms();
        TRY(run_call(r, i < 0 ? NULL : &r->out->calls[i], error));
        uint64_t done = (uint64_t)(i + o->warmup + 1), total = (uint64_t)(o->calls + o->warmup);
        if (o->progress) o->progress(o->progress_user, "tracing", done, total);
    }
    return describe_all(r, error);
}

openpi_status trace_run(openpi_session *session, const trace_options *options, trace *out,
                        openpi_error *error) {
    recorder r = {.session = session, .options = options, .out = out};
    *out = (trace){.count = 0};
    if (options->calls < 1 || options->warmup < 0)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "trace: %d calls and %d warm-up calls, expected at least 1 and 0", options->calls,
                      options->warmup);
    openpi_status status = record(&r, error);
    timed_close(&r.timed);
    workload_free(&r.inputs);
    observation_free(&r.observation);
    openpi_request_close(r.request);
    power_close(r.power);
    free(r.actions);
    return status;
}

void trace_free(trace *t) {
    for (int i = 0; i < t->count; i++) free(t->calls[i].starts);
    free(t->calls);
    free(t->launches);
    *t = (trace){.count = 0};
}
