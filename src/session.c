/* A session: the buffers and the plans of one stream of inferences. session_run.c has a call's journey
 * through them. All memory is allocated when the session opens. */
#include <stdlib.h>
#include <string.h>

#include "base/boundary.h"
#include "base/report.h"
#include "ops/limits.h"
#include "openpi_internal.h"

/* ---- opening ---------------------------------------------------------------------------------------- */

static openpi_status in_range(const char *what, int value, int low, int high, openpi_error *error) {
    if (value >= low && value <= high) return OPENPI_OK;
    return report(error, OPENPI_BAD_ARGUMENT, "session options: %s is %d, expected %d to %d", what, value,
                  low, high);
}

/* Steps whose rows have times of their own are steps over a prefix that is kept. */
static openpi_status check_times(const openpi_session_options *options, openpi_error *error) {
    if (!options->times) return OPENPI_OK;
    TRY(in_range("times", options->times, 0, options->batch * options->horizon, error));
    if (options->parts) return OPENPI_OK;
    return report(error, OPENPI_BAD_ARGUMENT,
                      "session options: times is %d, but parts is 0, expected 1: steps are over a prefix "
                      "that is kept",
                      options->times);
}

/* The caller's options into s->options: zeros become defaults, and the session notes which ones did. */
static openpi_status resolve(const openpi_engine *engine, const openpi_session_options *given,
                             openpi_session *s, openpi_error *error) {
    openpi_session_options *out = &s->options;
    if (!engine) return report(error, OPENPI_BAD_ARGUMENT, "session: the engine is NULL");
    TRY(BOUNDARY_TAKE(openpi_session_options, given, out, error));
    s->default_horizon = !out->horizon;
    s->default_prompt = !out->max_prompt;
    if (!out->batch) out->batch = 1;
    if (!out->horizon) out->horizon = engine->checkpoint->horizon;
    if (!out->steps) out->steps = engine->checkpoint->steps;
    if (!out->max_prompt) out->max_prompt = engine->checkpoint->max_prompt;
    TRY(in_range("batch", out->batch, 1, OPENPI_MAX_BATCH, error));
    TRY(in_range("horizon", out->horizon, 1, OPENPI_MAX_HORIZON, error));
    TRY(in_range("steps", out->steps, 1, OPENPI_MAX_STEPS, error));
    TRY(in_range("rtc", out->rtc, 0, 1, error));
    TRY(in_range("parts", out->parts, 0, 1, error));
    TRY(check_times(out, error));
    return in_range("max_prompt", out->max_prompt, 1, LIMIT_PROMPT, error);
}

/* The work block serves whichever plan runs. */
static size_t work_bytes(const openpi_session *s) {
    size_t bytes = s->kinds.work_bytes;
    for (int kind = 0; kind < PLAN_KINDS; kind++)
        if (s->more_plans[kind] && s->more_kinds[kind].work_bytes > bytes)
            bytes = s->more_kinds[kind].work_bytes;
    return bytes;
}

static uint64_t session_total(const openpi_session *s) {
    return s->plan->device_bytes + work_bytes(s) +
           (s->engine->device->backend->allocate_host ? s->in.bytes : 0);
}

/* Of a sample's actions at most all but one are known. */
static int most_known(const openpi_engine *engine, const openpi_session_options *options) {
    int delay = engine->checkpoint->rtc.max_delay;
    if (!options->rtc) return 0;
    return delay < options->horizon ? delay : options->horizon - 1;
}

/* 1: the session's options ask for such a plan beside the ordinary one. */
static int is_wanted(const openpi_session *s, const plan_shape *shape, int kind) {
    if (kind == PLAN_PREFIX || kind == PLAN_DENOISE) return s->options.parts;
    if (kind == PLAN_PREFIX_ONE) return s->options.parts && shape->batch > 1;
    if (kind == PLAN_TIMED) return s->options.times > 0;
    return kind == PLAN_GUIDED ? s->options.rtc : kind == PLAN_TRAINED && shape->known;
}

static openpi_status draft_more(openpi_session *s, const plan_shape *shape, openpi_error *error) {
    for (int kind = 0; kind < PLAN_KINDS; kind++) {
        if (!is_wanted(s, shape, kind)) continue;
        TRY(plan_create(s->engine->model, shape, (plan_kind)kind, &s->more_plans[kind], error));
        TRY(call_kinds_open(&s->more_kinds[kind], s->more_plans[kind], error));
    }
    if (!s->options.parts) return OPENPI_OK;
    return step_ranges_open(&s->ranges, &s->more_kinds[PLAN_DENOISE], error);
}

/* Everything but the memory. */
static openpi_status draft(openpi_engine *engine, const openpi_session_options *options, int state_every_step,
                           openpi_session *s, openpi_error *error) {
    arena measure = {NULL, 0};
    s->engine = engine;
    TRY(resolve(engine, options, s, error));
    plan_shape shape = {.batch = s->options.batch,
                        .horizon = s->options.horizon,
                        .steps = s->options.steps,
                        .max_prompt = s->options.max_prompt,
                        .state_every_step = state_every_step,
                        .rtc = s->options.rtc,
                        .known = most_known(engine, &s->options),
                        .times = s->options.times,
                        .inputs_apart = engine->device->shared_memory};
    TRY(plan_create(engine->model, &shape, PLAN_ORDINARY, &s->plan, error));
    TRY(call_kinds_open(&s->kinds, s->plan, error));
    TRY(draft_more(s, &shape, error));
    call_lay_out(&s->in, &measure, s->plan);
    return OPENPI_OK;
}

/* Places for the times of a step, and for their embeddings on their way to the device. */
static openpi_status take_times(openpi_session *s, openpi_error *error) {
    size_t most = (size_t)s->options.times, width = (size_t)s->engine->model->dims.expert_width;
    if (!most) return OPENPI_OK;
    s->times = malloc(most * (1 + width) * sizeof *s->times);
    return s->times ? OPENPI_OK : report_no_memory(error, most * (1 + width) * sizeof *s->times, "the times");
}

static void close_draft(openpi_session *s) {
    step_ranges_close(&s->ranges);
    call_kinds_close(&s->kinds);
    plan_close(s->plan);
    for (int kind = 0; kind < PLAN_KINDS; kind++) {
        call_kinds_close(&s->more_kinds[kind]);
        plan_close(s->more_plans[kind]);
    }
}

/* The inputs from the block's start to `end`. */
static openpi_status upload_inputs(openpi_session *s, const void *end, openpi_error *error) {
    device *device = s->engine->device;
    if (!session_is_staged(s)) return OPENPI_OK;
    return device->backend->upload(device, s->plan->buffers.in.start, s->in.start,
                                   (size_t)((const char *)end - s->in.start), error);
}

/* What plan_bind takes as the inputs. */
static void *inputs_of_plan(const openpi_session *s) {
    return s->plan->shape.inputs_apart ? s->host : NULL;
}

/* The other plans over the session's memory: their part of the setup, and recordings. */
static openpi_status bind_more(openpi_session *s, openpi_error *error) {
    device *device = s->engine->device;
    for (int kind = 0; kind < PLAN_KINDS; kind++) {
        plan *plan = s->more_plans[kind];
        if (!plan) continue;
        TRY(plan_bind(plan, s->memory, inputs_of_plan(s), error));
        TRY(device->backend->run(device, plan_setup(plan), s->work, NULL, error));
        TRY(call_kinds_record(&s->more_kinds[kind], s->work, error));
    }
    return OPENPI_OK;
}

static openpi_status take_memory(openpi_session *s, openpi_error *error) {
    device *device = s->engine->device;
    const backend *backend = device->backend;
    size_t work = work_bytes(s);
    TRY(backend->allocate(device, s->plan->device_bytes, "the session's buffers", &s->memory, error));
    if (work) TRY(backend->allocate(device, work, "the session's work block", &s->work, error));
    if (backend->allocate_host)
        TRY(backend->allocate_host(device, s->in.bytes, "the session's inputs", &s->host, error));
    TRY(plan_bind(s->plan, s->memory, inputs_of_plan(s), error));
    arena bind = {s->host ? s->host : s->plan->buffers.in.start, 0};
    call_lay_out(&s->in, &bind, s->plan);
    call_fill(s->plan, &s->in.tables, NULL, NULL, 0, 1);
    TRY(upload_inputs(s, s->in.state, error));
    TRY(backend->run(device, plan_setup(s->plan), s->work, NULL, error));
    TRY(call_kinds_record(&s->kinds, s->work, error));
    return bind_more(s, error);
}

openpi_status session_create(openpi_engine *engine, const openpi_session_options *options,
                             int state_every_step, openpi_session **session, openpi_error *error) {
    if (!session) return report(error, OPENPI_BAD_ARGUMENT, "session: the address for the session is NULL");
    if (engine) TRY(engine_check_process(engine, "session create", error));
    openpi_session *s = calloc(1, sizeof *s);
    if (!s) return report_no_memory(error, sizeof *s, "the session");
    if (engine) atomic_fetch_add(&engine->users, 1);
    openpi_status status = draft(engine, options, state_every_step, s, error);
    if (status == OPENPI_OK) status = take_times(s, error);
    if (status == OPENPI_OK) {
        engine_enter(engine);
        s->version = engine->version;
        status = take_memory(s, error);
        engine_leave(engine);
    }
    if (status != OPENPI_OK) {
        openpi_session_close(s);
        return status;
    }
    *session = s;
    return OPENPI_OK;
}

openpi_status openpi_session_create(openpi_engine *engine, const openpi_session_options *options,
                                    openpi_session **session, openpi_error *error) {
    return session_create(engine, options, 0, session, error);
}

openpi_status openpi_session_bytes(const openpi_engine *engine, const openpi_session_options *options,
                                   uint64_t *bytes, openpi_error *error) {
    openpi_session s = {0};
    if (!bytes) return report(error, OPENPI_BAD_ARGUMENT, "session: the address for the bytes is NULL");
    openpi_status status = draft((openpi_engine *)(uintptr_t)engine, options, 0, &s, error);
    if (status == OPENPI_OK) *bytes = session_total(&s);
    close_draft(&s);
    return status;
}

static void release_memory(openpi_session *s) {
    device *device = s->engine->device;
    if (s->memory) device->backend->release(device, s->memory);
    if (s->work) device->backend->release(device, s->work);
    if (s->host) device->backend->release_host(device, s->host);
    step_ranges_forget(&s->ranges);
    call_kinds_forget(&s->kinds);
    for (int kind = 0; kind < PLAN_KINDS; kind++)
        if (s->more_plans[kind]) call_kinds_forget(&s->more_kinds[kind]);
}

void openpi_session_close(openpi_session *s) {
    if (!s) return;
    /* In a forked child a GPU's memory is the parent's. */
    if (s->engine && !(engine_inherited(s->engine) && s->engine->device->backend->allocate_host))
        release_memory(s);
    close_draft(s);
    if (s->engine) engine_release(s->engine);
    free(s->times);
    free(s);
}

openpi_status openpi_session_get_info(const openpi_session *s, openpi_session_info *info,
                                      openpi_error *error) {
    if (!s || !info)
        return report(error, OPENPI_BAD_ARGUMENT, "session info: %s is NULL", s ? "info" : "the session");
    TRY(BOUNDARY_CHECK(openpi_session_info, info, error));
    openpi_session_info own = {.batch = s->options.batch,
                               .horizon = s->options.horizon,
                               .steps = s->options.steps,
                               .max_prompt = s->options.max_prompt,
                               .bytes = session_total(s),
                               .runs = s->runs,
                               .operations = s->plan->count,
                               .recorded = s->kinds.recordings[CALL_ANY] != NULL};
    memcpy(own.not_recorded, s->kinds.no_recording, sizeof own.not_recorded);
    own.prefixes_kept = s->prefixes_kept;
    own.ranges_recorded = s->ranges.recorded;
    own.w8_clipped = s->counts[INT8_CLIPPED];
    own.w8_clipped_rows = s->counts[INT8_CLIPPED_ROWS];
    own.w8_not_finite = s->counts[INT8_NOT_FINITE];
    BOUNDARY_GIVE(openpi_session_info, &own, info);
    return OPENPI_OK;
}

void openpi_session_observe(openpi_session *s, openpi_observer observer, void *user) {
    s->observer = observer;
    s->observer_user = user;
}
