/* A session: the buffers and the plan of one stream of inferences, and the journey of a call through them.
 *
 *   check -> fill the row tables -> upload tables, state, noise, pictures -> run the plan -> download x
 *
 * All memory is allocated when the session opens; openpi_session_run allocates nothing, unless an observer is
 * set (observe.c). */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/boundary.h"
#include "base/clock.h"
#include "base/finite.h"
#include "base/report.h"
#include "model/chunking.h"
#include "ops/limits.h"
#include "openpi_internal.h"

/* ---- opening ---------------------------------------------------------------------------------------- */

static openpi_status in_range(const char *what, int value, int low, int high, openpi_error *error) {
    if (value >= low && value <= high) return OPENPI_OK;
    return report(error, OPENPI_BAD_ARGUMENT, "session options: %s is %d, expected %d to %d", what, value,
                  low, high);
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
    TRY(in_range("reserved", out->reserved, 0, 0, error));
    return in_range("max_prompt", out->max_prompt, 1, LIMIT_PROMPT, error);
}

/* The work block serves whichever plan runs. */
static size_t work_bytes(const openpi_session *s) {
    size_t bytes = s->kinds.work_bytes;
    for (int kind = 0; kind < PLAN_KINDS; kind++)
        if (s->rtc_plans[kind] && s->rtc_kinds[kind].work_bytes > bytes)
            bytes = s->rtc_kinds[kind].work_bytes;
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

static openpi_status draft_rtc(openpi_session *s, const plan_shape *shape, openpi_error *error) {
    for (int kind = PLAN_GUIDED; kind < PLAN_KINDS && s->options.rtc; kind++) {
        if (kind == PLAN_TRAINED && !shape->known) continue;
        TRY(plan_create(s->engine->model, shape, (plan_kind)kind, &s->rtc_plans[kind], error));
        TRY(call_kinds_open(&s->rtc_kinds[kind], s->rtc_plans[kind], error));
    }
    return OPENPI_OK;
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
                        .inputs_apart = engine->device->shared_memory};
    TRY(plan_create(engine->model, &shape, PLAN_ORDINARY, &s->plan, error));
    TRY(call_kinds_open(&s->kinds, s->plan, error));
    TRY(draft_rtc(s, &shape, error));
    call_lay_out(&s->in, &measure, s->plan);
    return OPENPI_OK;
}

static void close_draft(openpi_session *s) {
    call_kinds_close(&s->kinds);
    plan_close(s->plan);
    for (int kind = 0; kind < PLAN_KINDS; kind++) {
        call_kinds_close(&s->rtc_kinds[kind]);
        plan_close(s->rtc_plans[kind]);
    }
}

/* 1 where the device has a copy of the inputs. */
static int is_staged(const openpi_session *s) { return s->host && !s->plan->shape.inputs_apart; }

/* The inputs from the block's start to `end`. */
static openpi_status upload_inputs(openpi_session *s, const void *end, openpi_error *error) {
    device *device = s->engine->device;
    if (!is_staged(s)) return OPENPI_OK;
    return device->backend->upload(device, s->plan->buffers.in.start, s->in.start,
                                   (size_t)((const char *)end - s->in.start), error);
}

/* What plan_bind takes as the inputs. */
static void *inputs_of_plan(const openpi_session *s) {
    return s->plan->shape.inputs_apart ? s->host : NULL;
}

/* The plans of real-time chunking over the session's memory: their part of the setup, and recordings. */
static openpi_status bind_rtc(openpi_session *s, openpi_error *error) {
    device *device = s->engine->device;
    for (int kind = 0; kind < PLAN_KINDS; kind++) {
        plan *plan = s->rtc_plans[kind];
        if (!plan) continue;
        TRY(plan_bind(plan, s->memory, inputs_of_plan(s), error));
        TRY(device->backend->run(device, plan_setup(plan), s->work, NULL, error));
        TRY(call_kinds_record(&s->rtc_kinds[kind], s->work, error));
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
    call_fill(s->plan, &s->in.tables, NULL, NULL, 0);
    TRY(upload_inputs(s, s->in.state, error));
    TRY(backend->run(device, plan_setup(s->plan), s->work, NULL, error));
    TRY(call_kinds_record(&s->kinds, s->work, error));
    return bind_rtc(s, error);
}

openpi_status session_create(openpi_engine *engine, const openpi_session_options *options,
                             int state_every_step, openpi_session **session, openpi_error *error) {
    if (!session) return report(error, OPENPI_BAD_ARGUMENT, "session: the address for the session is NULL");
    if (engine) TRY(engine_check_process(engine, "session create", error));
    openpi_session *s = calloc(1, sizeof *s);
    if (!s) return report_no_memory(error, sizeof *s, "the session");
    if (engine) atomic_fetch_add(&engine->users, 1);
    openpi_status status = draft(engine, options, state_every_step, s, error);
    if (status == OPENPI_OK) status = take_memory(s, error);
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
    call_kinds_forget(&s->kinds);
    for (int kind = 0; kind < PLAN_KINDS; kind++)
        if (s->rtc_plans[kind]) call_kinds_forget(&s->rtc_kinds[kind]);
}

void openpi_session_close(openpi_session *s) {
    if (!s) return;
    /* In a forked child a GPU's memory is the parent's. */
    if (s->engine && !(engine_inherited(s->engine) && s->engine->device->backend->allocate_host))
        release_memory(s);
    close_draft(s);
    if (s->engine) engine_release(s->engine);
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
    BOUNDARY_GIVE(openpi_session_info, &own, info);
    return OPENPI_OK;
}

void openpi_session_observe(openpi_session *s, openpi_observer observer, void *user) {
    s->observer = observer;
    s->observer_user = user;
}

/* ---- checking a call -------------------------------------------------------------------------------- */

static openpi_status check_finite(const char *what, int sample, const float *values, size_t count,
                                  openpi_error *error) {
    for (size_t i = 0; i < count; i++)
        if (!isfinite(values[i]))
            return report(error, OPENPI_BAD_INPUT, "sample %d: %s[%zu] is %g, expected a finite number",
                          sample, what, i, (double)values[i]);
    return OPENPI_OK;
}

/* Prepared float pixels: the little that rounding adds at the ends of [-1,1] is accepted. */
static openpi_status check_pixels(const float *pixels, int sample, int camera, openpi_error *error) {
    static const float edge = 1 + 1e-5f;
    if (all_near_f32(pixels, IMAGE_BYTES, 0, edge)) return OPENPI_OK;
    size_t i = 0;
    while (fabsf(pixels[i]) <= edge) i++;
    return report(error, OPENPI_BAD_INPUT, "sample %d: images[%d][%zu] is %g, expected -1 to 1", sample,
                  camera, i, (double)pixels[i]);
}

static openpi_status check_sample(const openpi_session *s, const openpi_sample *sample, openpi_pixels pixels,
                                  int b, openpi_error *error) {
    int vocab = s->engine->checkpoint->dims.vocab;
    if (sample->pixels != OPENPI_PIXELS_U8 && sample->pixels != OPENPI_PIXELS_F32)
        return report(error, OPENPI_BAD_INPUT,
                      "sample %d: pixels is %d, expected OPENPI_PIXELS_U8 or OPENPI_PIXELS_F32", b,
                      (int)sample->pixels);
    if (sample->pixels != pixels)
        return report(error, OPENPI_BAD_INPUT,
                      "sample %d: its pixels differ in type from sample 0's, expected one type a call", b);
    for (int c = 0; c < OPENPI_CAMERAS; c++) {
        if (sample->image_mask[c] > 1)
            return report(error, OPENPI_BAD_INPUT, "sample %d: image_mask[%d] is %d, expected 0 or 1", b, c,
                          sample->image_mask[c]);
        if (sample->image_mask[c] && !sample->images[c])
            return report(error, OPENPI_BAD_INPUT, "sample %d: image_mask[%d] is 1 but images[%d] is NULL", b,
                          c, c);
        if (sample->image_mask[c] && pixels == OPENPI_PIXELS_F32)
            TRY(check_pixels(sample->images[c], b, c, error));
    }
    if (sample->token_count < 0 || sample->token_count > s->options.max_prompt)
        return report(error, OPENPI_BAD_INPUT, "sample %d: token_count is %d, expected 0 to %d (max_prompt)",
                      b, sample->token_count, s->options.max_prompt);
    if (sample->token_count && !sample->tokens)
        return report(error, OPENPI_BAD_INPUT, "sample %d: tokens is NULL, expected %d ids", b,
                      sample->token_count);
    for (int i = 0; i < sample->token_count; i++)
        if (sample->tokens[i] < 0 || sample->tokens[i] >= vocab)
            return report(error, OPENPI_BAD_INPUT, "sample %d: tokens[%d] is %d, expected 0 to %d", b, i,
                          (int)sample->tokens[i], vocab - 1);
    if (!call_prefix_length(sample))
        return report(error, OPENPI_BAD_INPUT,
                      "sample %d: no camera and no prompt token, expected at least one", b);
    if (!s->plan->state_token) return OPENPI_OK;
    if (!sample->state)
        return report(error, OPENPI_BAD_INPUT, "sample %d: state is NULL, expected %d numbers (a π0 model)",
                      b, OPENPI_ACTION_DIM);
    return check_finite("state", b, sample->state, OPENPI_ACTION_DIM, error);
}

/* What the caller passes to a run. */
typedef struct given_call {
    const openpi_sample *samples;
    const openpi_rtc *rtc;       /* NULL: none                                                            */
    int batch;
    const float *noise;
    float *actions;
    openpi_timing *timing;
} given_call;

/* The caller's structs into s->samples and s->rtc, checked. */
static openpi_status take_call(openpi_session *s, const given_call *call, openpi_error *error) {
    const openpi_sample *samples = call->samples;
    const float *noise = call->noise, *actions = call->actions;
    int batch = call->batch;
    if (!samples || !actions)
        return report(error, OPENPI_BAD_ARGUMENT, "session run: %s is NULL", samples ? "actions" : "samples");
    if (batch < 1 || batch > s->options.batch)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "session run: batch is %d, expected 1 to %d (the session's)", batch, s->options.batch);
    for (int b = 0; b < batch; b++) {
        TRY(BOUNDARY_TAKE_AT(openpi_sample, samples, b, &s->samples[b], error));
        TRY(check_sample(s, &s->samples[b], s->samples[0].pixels, b, error));
        size_t one = (size_t)s->options.horizon * OPENPI_ACTION_DIM;
        if (noise) TRY(check_finite("noise", b, noise + (size_t)b * one, one, error));
        TRY(chunking_take(s->engine->checkpoint, s->options.horizon, call->rtc, b, &s->rtc[b], error));
    }
    if (s->options.rtc || chunking_plan(s->rtc, batch) == PLAN_ORDINARY) return OPENPI_OK;
    return report(error, OPENPI_BAD_ARGUMENT,
                  "session run: a sample has real-time chunking, but the session was created without the "
                  "option rtc");
}

/* ---- filling a call --------------------------------------------------------------------------------- */

/* Copies a picture to `to`: zeros for an absent one that is computed all the same. Returns its end. */
static char *fill_image(const openpi_session *s, const openpi_sample *sample, int camera, char *to) {
    size_t bytes = sample->pixels == OPENPI_PIXELS_F32 ? IMAGE_BYTES * sizeof(float) : IMAGE_BYTES;
    if (!call_has_rows(s->plan, sample, camera)) return to;
    if (sample->image_mask[camera])
        memcpy(to, sample->images[camera], bytes);
    else
        memset(to, 0, bytes);
    return to + bytes;
}

/* All pictures, one after the other; returns the end of the last. */
static char *fill_images(openpi_session *s, const openpi_sample *samples, int batch) {
    char *to = s->in.images;
    for (int b = 0; b < batch; b++)
        for (int c = 0; c < OPENPI_CAMERAS; c++) to = fill_image(s, &samples[b], c, to);
    return to;
}

/* The copies of a call to the device, piece by piece, and back. */
typedef struct call_copies {
    device_copy up[1 + OPENPI_CAMERAS], down;
    int count;                   /* of up; 0 where device memory is host memory                           */
} call_copies;

/* Adds the host's inputs from … end, which have the same place in the device's block. */
static void copy_up(const openpi_session *s, const void *from, const void *end, call_copies *copies) {
    ptrdiff_t at = (const char *)from - s->in.start, bytes = (const char *)end - (const char *)from;
    if (is_staged(s) && bytes > 0)
        copies->up[copies->count++] = (device_copy){s->plan->buffers.in.start + at, from, (size_t)bytes};
}

/* Without batched-vision: the pictures of a camera lie in its slot, and each slot is uploaded by itself. */
static void fill_slots(openpi_session *s, const openpi_sample *samples, int batch, call_copies *copies) {
    for (int c = 0; c < OPENPI_CAMERAS; c++) {
        char *from = (char *)s->in.images + (size_t)c * call_slot_bytes(s->plan), *end = from;
        for (int b = 0; b < batch; b++) end = fill_image(s, &samples[b], c, end);
        copy_up(s, from, end, copies);
    }
}

/* Dimensions that the model does not have are no noise: their actions are 0. */
static void clear_unused(const openpi_session *s, float *x) {
    int dims = s->engine->checkpoint->action_dim;
    if (dims == OPENPI_ACTION_DIM) return;
    for (int row = 0; row < s->options.horizon; row++)
        memset(x + row * OPENPI_ACTION_DIM + dims, 0, (size_t)(OPENPI_ACTION_DIM - dims) * sizeof *x);
}

/* Fills the inputs where the device copies them from. */
static call_copies fill_call(openpi_session *s, const plan *plan, int batch, const float *noise) {
    const openpi_sample *samples = s->samples;
    size_t one = (size_t)s->options.horizon * OPENPI_ACTION_DIM;
    call_copies copies = {.down = {s->in.x_t, s->plan->buffers.in.x_t, (size_t)batch * one * sizeof(float)}};
    int known[OPENPI_MAX_BATCH];
    for (int b = 0; b < batch; b++) known[b] = chunking_known(&s->rtc[b]);
    s->last = call_fill(plan, &s->in.tables, samples, known, batch);
    if (s->on_tables) s->on_tables(s->on_tables_user, &s->in.tables);
    for (int b = 0; b < batch; b++) {
        if (s->plan->state_token)
            memcpy(s->in.state + (size_t)b * OPENPI_ACTION_DIM, samples[b].state,
                   OPENPI_ACTION_DIM * sizeof(float));
        if (noise)
            memcpy(s->in.x_t + (size_t)b * one, noise + (size_t)b * one, one * sizeof(float));
        else
            openpi_noise(s->options.seed, s->runs * OPENPI_MAX_BATCH + (uint64_t)b,
                         s->in.x_t + (size_t)b * one, one);
        clear_unused(s, s->in.x_t + (size_t)b * one);
    }
    if (plan->kind != PLAN_ORDINARY) chunking_fill(plan, &s->in, s->rtc, batch);
    int together = plan_on(s->plan, SWITCH_BATCHED_VISION);
    copy_up(s, s->in.start, together ? fill_images(s, samples, batch) : s->in.images, &copies);
    if (!together) fill_slots(s, samples, batch, &copies);
    return copies;
}

/* ---- running ---------------------------------------------------------------------------------------- */

/* Copies x to the caller, unless it holds a NaN or an infinity: finite inputs and weights give one where the
 * arithmetic overflows. */
static openpi_status copy_actions(const openpi_session *s, int batch, float *actions, openpi_error *error) {
    size_t one = (size_t)s->options.horizon * OPENPI_ACTION_DIM, count = (size_t)batch * one, i = 0;
    const float *x = s->in.x_t;
    if (all_finite_f32(x, count)) {
        memcpy(actions, x, count * sizeof *x);
        return OPENPI_OK;
    }
    while (isfinite(x[i])) i++;
    return report(
        error, OPENPI_BAD_INPUT,
        "sample %d: the model's action of step %d, dimension %d is %g, expected a finite number: the model's "
        "arithmetic overflowed, its weights, state or noise are too large",
        (int)(i / one), (int)(i % one / OPENPI_ACTION_DIM), (int)(i % OPENPI_ACTION_DIM),
        isnan(x[i]) ? (double)NAN : (double)x[i]);
}

/* Copies and plan one after the other: where nothing is recorded, or an observer or instrument takes part. */
static openpi_status run_in_parts(openpi_session *s, const plan *plan, int batch, const call_copies *copies,
                                  openpi_timing *t, openpi_error *error) {
    device *device = s->engine->device;
    double start = clock_ms();
    for (int i = 0; i < copies->count; i++)
        TRY(device->backend->upload(device, copies->up[i].to, copies->up[i].from, copies->up[i].bytes,
                                    error));
    double uploaded = clock_ms();
    if (s->observer)
        TRY(session_run_observed(s, plan, batch, t->stage_ms, error));
    else if (s->on_run && plan == s->plan)
        TRY(s->on_run(s->on_run_user, s, t->stage_ms, error));
    else
        TRY(device->backend->run(device, plan_list(plan), s->work, t->stage_ms, error));
    t->stage_ms[OPENPI_STAGE_UPLOAD] += uploaded - start;
    t->device_ms = clock_ms() - uploaded;
    return device->backend->download(device, copies->down.to, copies->down.from, copies->down.bytes, error);
}

/* All queued at once, timed by the device's own clock. `t` may be NULL. */
static openpi_status replay(openpi_session *s, struct recording *recording, const call_copies *copies,
                            openpi_timing *t, openpi_error *error) {
    device *device = s->engine->device;
    TRY(device->backend->replay(device, recording, copies->up, copies->count, &copies->down,
                                t ? t->stage_ms : NULL, error));
    for (int i = OPENPI_STAGE_VISION; t && i <= OPENPI_STAGE_DENOISE; i++) t->device_ms += t->stage_ms[i];
    return OPENPI_OK;
}

/* A checked call on one of the session's plans. */
static openpi_status run(openpi_session *s, plan *plan, call_kinds *kinds, const given_call *call,
                         openpi_error *error) {
    openpi_timing t = OPENPI_TIMING_INIT, *timing = call->timing;
    double start = clock_ms();
    call_copies copies = fill_call(s, plan, call->batch, call->noise);
    int kind = call_kinds_find(kinds, s->last.images, s->last.text);
    struct recording *recording = call_kinds_recording(kinds, kind);
    call_kinds_choose(kinds, kind);
    t.stage_ms[OPENPI_STAGE_UPLOAD] = clock_ms() - start;
    TRY(recording && !s->observer && !s->on_run ? replay(s, recording, &copies, timing ? &t : NULL, error)
                                                : run_in_parts(s, plan, call->batch, &copies, &t, error));
    TRY(copy_actions(s, call->batch, call->actions, error));
    s->runs++;
    t.total_ms = clock_ms() - start;
    t.stage_ms[OPENPI_STAGE_DOWNLOAD] = fmax(0, t.total_ms - t.device_ms - t.stage_ms[OPENPI_STAGE_UPLOAD]);
    BOUNDARY_GIVE(openpi_timing, &t, timing);
    return OPENPI_OK;
}

openpi_status openpi_session_run_rtc(openpi_session *s, const openpi_sample *samples, const openpi_rtc *rtc,
                                     int batch, const float *noise, float *actions, openpi_timing *timing,
                                     openpi_error *error) {
    given_call call = {samples, rtc, batch, noise, actions, timing};
    if (!s) return report(error, OPENPI_BAD_ARGUMENT, "session run: the session is NULL");
    TRY(engine_check_process(s->engine, "session run", error));
    TRY(BOUNDARY_CHECK(openpi_timing, timing, error));
    TRY(take_call(s, &call, error));
    plan_kind kind = chunking_plan(s->rtc, batch);
    if (kind == PLAN_ORDINARY) return run(s, s->plan, &s->kinds, &call, error);
    return run(s, s->rtc_plans[kind], &s->rtc_kinds[kind], &call, error);
}

openpi_status openpi_session_run(openpi_session *s, const openpi_sample *samples, int batch,
                                 const float *noise, float *actions, openpi_timing *timing,
                                 openpi_error *error) {
    return openpi_session_run_rtc(s, samples, NULL, batch, noise, actions, timing, error);
}
