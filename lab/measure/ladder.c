/* Measures each state of the switches: opens an engine and a session, keeps the actions of one call, times
 * calls. */
#include "lab/measure/ladder.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/report.h"
#include "lab/measure/bench.h"
#include "lab/measure/rounding.h"
#include "openpi_internal.h"

typedef struct climber {
    const ladder_job *job;
    ladder_report *out;
    openpi_engine *engine;                 /* open, or NULL                                               */
    uint32_t fixed;                        /* off throughout                                              */
    float *actions; /* [NOISE + 1][count]: of the climb, of LEFT_OUT + switch, of TOP; NOISE */
    size_t count;
    int done, total;
} climber;

enum { LEFT_OUT = LADDER_SWITCHES + 1, TOP = LEFT_OUT + LADDER_SWITCHES, NOISE };

static float *actions_of(const climber *c, int place) { return c->actions + (size_t)place * c->count; }

static uint32_t bit(int which) { return 1u << which; }

/* ---- what applies ------------------------------------------------------------------------------------- */

/* The device has not what this switches. */
static int missing(const openpi_engine *e, op_switch which) {
    const backend *b = e->device->backend;
    return !b->record || (b->missing && switch_off(b->missing(e->device), which));
}

const char *ladder_reason(const openpi_engine *e, const workload *call, int which) {
    const variant_traits *traits = variant_of(e->checkpoint->variant);
    int records = e->device->backend->record != NULL, all = 1;
    for (int c = 0; c < OPENPI_CAMERAS; c++) all &= call->cameras[c];
    switch ((op_switch)which) {
    case SWITCH_FOLDED_CONSTANTS: return traits->action_time_mlp ? "" : "π0.5 has no time in its action MLP";
    case SWITCH_STATE_TOKEN_ONCE: return traits->state_token ? "" : "π0.5 has no state token";
    case SWITCH_PRECOMPUTED_MODULATIONS: return traits->adaptive_norms ? "" : "π0 has no modulations";
    case SWITCH_MASKED_CAMERAS_DROPPED: return all ? "all cameras are there" : "";
    case SWITCH_GRAPH_REPLAY: return records ? "" : "this device runs operation by operation";
    case SWITCH_DEPENDENT_LAUNCH:
        if (!records) return "this device launches nothing";
        return missing(e, SWITCH_DEPENDENT_LAUNCH) ? "this device cannot start a kernel early" : "";
    case SWITCH_TUNED_TILES: return e->tuning ? "" : "there is no table for this device";
    case SWITCH_PACKED_WEIGHTS:
        return strcmp(e->device->path, "reference") ? "" : "the scalar definitions read rows";
    case SWITCH_PERSISTENT_DENOISE:
        return missing(e, SWITCH_PERSISTENT_DENOISE) ? "this device has no resident kernel" : "";
    case SWITCH_PERSISTENT_VISION:
        return missing(e, SWITCH_PERSISTENT_VISION) ? "this device has no resident vision kernel" : "";
    case SWITCH_BATCHED_VISION:
    case SWITCH_FUSED_QKV:
    case SWITCH_FUSED_GATE_UP:
    case SWITCH_FUSED_POINTWISE:
    case SWITCH_FUSED_ATTENTION:
    case SWITCH_DEAD_WORK_REMOVAL:
    case SWITCHES: break;
    }
    return "";
}

/* ---- one rung ----------------------------------------------------------------------------------------- */

/* An engine in this state: the open one if its weights are packed for it, else a new one. */
static openpi_status open_engine(climber *c, uint32_t off, openpi_error *error) {
    openpi_engine_options options = c->job->engine;
    char names[400];
    if (c->engine && engine_set_off(c->engine, off)) return OPENPI_OK;
    openpi_engine_close(c->engine);        /* two may not fit the memory */
    c->engine = NULL;
    /* Opened with the switches that pack weights; the others are set below, so that the table is loaded when
     * a rung uses it. */
    switches_write((off & MODEL_SWITCHES) | c->fixed, names, sizeof names);
    options.without = names;
    double start = clock_ms();
    TRY(openpi_engine_open(c->job->checkpoint, &options, &c->engine, error));
    c->out->ready_ms = clock_ms() - start;
    engine_set_off(c->engine, off);
    return OPENPI_OK;
}

static openpi_status run_call(climber *c, openpi_session *session, float *actions, openpi_error *error) {
    workload_inputs in;
    openpi_status status = workload_make(session, &c->job->call, &in, error);
    if (status == OPENPI_OK) status = workload_run(session, &in, NULL, error);
    if (status == OPENPI_OK) {
        memcpy(actions, in.actions, c->count * sizeof *actions);
        memcpy(actions_of(c, NOISE), in.noise, c->count * sizeof *actions);
    }
    workload_free(&in);
    return status;
}

/* Where the rung before it had as many nodes a resident kernel took nothing. */
static int changes_nothing(const climber *c, const ladder_rung *rung, const ladder_rung *other) {
    const int resident =
        rung->which == SWITCH_PERSISTENT_DENOISE || rung->which == SWITCH_PERSISTENT_VISION;
    return resident && other && rung->nodes == other->nodes && c->engine->device->backend->nodes;
}

static openpi_status measure(climber *c, openpi_session *session, ladder_rung *rung, const ladder_rung *other,
                             float *actions, openpi_error *error) {
    const backend *backend = c->engine->device->backend;
    openpi_session_info info = OPENPI_SESSION_INFO_INIT;
    bench_workload work = {.call = c->job->call, .warmup = c->job->warmup, .runs = c->job->runs};
    bench_report bench;
    TRY(openpi_session_get_info(session, &info, error));
    rung->operations = info.operations;
    const struct recording *recording = session->kinds.recordings[CALL_ANY];
    rung->nodes = recording && backend->nodes ? backend->nodes(recording) : 0;
    rung->session_bytes = info.bytes;
    rung->weight_bytes = c->engine->model->bytes;
    if (changes_nothing(c, rung, other)) {
        snprintf(rung->reason, sizeof rung->reason, "the resident kernel does not take this plan");
        return OPENPI_OK;
    }
    TRY(run_call(c, session, actions, error));
    TRY(bench_run(session, &work, NULL, &bench, error));
    rung->p50_ms = bench.host.p50_ms;
    rung->device_ms = bench.device.p50_ms;
    return OPENPI_OK;
}

/* `off`: the state; `other`: the rung to compare nodes with, or NULL. */
static openpi_status climb_to(climber *c, uint32_t off, ladder_rung *rung, const ladder_rung *other,
                              float *actions, openpi_error *error) {
    openpi_session *session = NULL;
    TRY(open_engine(c, off | c->fixed, error));
    openpi_status status = openpi_session_create(c->engine, &c->job->session, &session, error);
    if (status == OPENPI_OK) status = measure(c, session, rung, other, actions, error);
    openpi_session_close(session);
    if (c->job->progress)
        c->job->progress(c->job->progress_user, "climbing", (uint64_t)++c->done, (uint64_t)c->total);
    return status;
}

/* ---- all rungs, and one switch at a time -------------------------------------------------------------- */

static void name_rung(const climber *c, ladder_rung *rung, int which) {
    *rung = (ladder_rung){.which = which};
    if (which < 0) return;
    const char *reason = c->fixed & bit(which) ? "off on every rung, as asked"
                                               : ladder_reason(c->engine, &c->job->call, which);
    snprintf(rung->reason, sizeof rung->reason, "%s", reason);
}

static openpi_status climb(climber *c, openpi_error *error) {
    ladder_report *r = c->out;
    uint32_t off = (uint32_t)((UINT64_C(1) << SWITCHES) - 1);
    int below = 0;
    name_rung(c, &r->climb[0], -1);
    TRY(climb_to(c, off, &r->climb[0], NULL, actions_of(c, 0), error));
    r->climb_count = 1;
    for (int which = 0; which < SWITCHES; which++) {
        ladder_rung *rung = &r->climb[r->climb_count];
        name_rung(c, rung, which);
        off &= ~bit(which);
        if (!rung->reason[0])
            TRY(climb_to(c, off, rung, &r->climb[below], actions_of(c, r->climb_count), error));
        rung->before_ms = r->climb[below].p50_ms;
        if (!rung->reason[0]) below = r->climb_count;
        r->climb_count++;
    }
    r->foot_ms = r->climb[0].p50_ms;
    r->top_ms = r->climb[below].p50_ms;
    engine_set_off(c->engine, c->fixed);
    TRY(openpi_engine_get_info(c->engine, &r->info, error));
    TRY(bench_device_facts(c->engine, &r->facts, error));
    memcpy(actions_of(c, TOP), actions_of(c, below), c->count * sizeof *c->actions);
    return OPENPI_OK;
}

/* Those that the top's engine can run come first. */
static openpi_status leave_out(climber *c, openpi_error *error) {
    ladder_report *r = c->out;
    r->without_count = SWITCHES;
    for (int pass = 0; pass < 2; pass++)
        for (int which = 0; which < SWITCHES; which++) {
            ladder_rung *rung = &r->without[which];
            int packs = (MODEL_SWITCHES & bit(which)) != 0;
            if (packs != pass) continue;
            *rung = (ladder_rung){.which = which};
            memcpy(rung->reason, r->climb[which + 1].reason, sizeof rung->reason);
            if (!rung->reason[0])
                TRY(climb_to(c, bit(which), rung, NULL, actions_of(c, LEFT_OUT + which), error));
            rung->before_ms = rung->p50_ms;
        }
    return OPENPI_OK;
}

/* ---- checking ----------------------------------------------------------------------------------------- */

/* In fp32 the goldens' bounds: the largest distance from the truth, on a GPU three times and at full size
 * five times that of a CPU and a small model (twice on a GPU). In bf16 what rounding explains. */
static void set_bounds(climber *c) {
    ladder_report *r = c->out;
    const openpi_dims *dims = &c->engine->checkpoint->dims;
    int gpu = c->engine->device->backend->allocate_host != NULL, large = dims->width > 512;
    if (c->engine->dtype == OPENPI_F32) {
        r->bound_max = large ? (gpu ? 1e-3 : 5e-4) : gpu ? 3e-4 : 1e-4;
        return;
    }
    rounding_bound bound = rounding_between(dims, actions_of(c, TOP), actions_of(c, NOISE), c->count);
    r->bound_max = bound.max;
    r->bound_rms = bound.rms;
}

static void check(const climber *c, ladder_rung *rung, const float *actions) {
    const float *top = actions_of(c, TOP);
    ladder_report *r = c->out;
    double squares = 0;
    if (rung->reason[0]) return;
    for (size_t i = 0; i < c->count; i++) {
        double d = fabs((double)actions[i] - top[i]);
        if (!(d <= rung->deviation_max)) rung->deviation_max = d;          /* NaN fails */
        squares += d * d;
    }
    rung->deviation_rms = sqrt(squares / (double)c->count);
    rung->within =
        rung->deviation_max <= r->bound_max && (r->bound_rms <= 0 || rung->deviation_rms <= r->bound_rms);
    r->failed += !rung->within;
}

static openpi_status prepare(climber *c, openpi_error *error) {
    uint32_t all = (uint32_t)((UINT64_C(1) << SWITCHES) - 1);
    TRY(switches_parse(c->job->engine.without, &c->fixed, error));
    if (c->job->runs < 1 || c->job->warmup < 0)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "ladder: %d runs after %d to warm up, expected at least one run", c->job->runs,
                      c->job->warmup);
    TRY(open_engine(c, all, error));
    int horizon = c->job->session.horizon ? c->job->session.horizon : c->engine->checkpoint->horizon;
    c->count = (size_t)c->job->call.batch * (size_t)horizon * OPENPI_ACTION_DIM;
    c->actions = calloc((NOISE + 1) * c->count, sizeof *c->actions);
    if (!c->actions)
        return report_no_memory(error, (NOISE + 1) * c->count * sizeof *c->actions, "the ladder's actions");
    for (int which = 0; which < SWITCHES; which++)
        if (!(c->fixed & bit(which)) && !*ladder_reason(c->engine, &c->job->call, which)) c->total += 2;
    c->total++;
    return OPENPI_OK;
}

openpi_status ladder_run(const ladder_job *job, ladder_report *out, openpi_error *error) {
    climber c = {.job = job, .out = out};
    *out = (ladder_report){.info = OPENPI_ENGINE_INFO_INIT};
    openpi_status status = prepare(&c, error);
    if (status == OPENPI_OK) status = climb(&c, error);
    if (status == OPENPI_OK) status = leave_out(&c, error);
    if (status == OPENPI_OK) {
        set_bounds(&c);
        for (int i = 0; i < out->climb_count; i++) check(&c, &out->climb[i], actions_of(&c, i));
        for (int i = 0; i < out->without_count; i++)
            check(&c, &out->without[i], actions_of(&c, LEFT_OUT + i));
    }
    free(c.actions);
    openpi_engine_close(c.engine);
    return status;
}
