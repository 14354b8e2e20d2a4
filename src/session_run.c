/* A call's journey through a session:
 *
 *   check -> fill the row tables -> upload tables, state, noise, pictures -> run the plan -> download x
 *
 * or, in parts, the same for the prefix and then for as many Euler steps as are asked for, over the K and V
 * that are in the cache. Nothing is allocated, unless an observer is set (observe.c). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/boundary.h"
#include "base/clock.h"
#include "base/finite.h"
#include "base/report.h"
#include "model/chunking.h"
#include "openpi_internal.h"

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
    int batch, chunks;           /* chunks of each sample                                                 */
    const float *noise;          /* [batch][chunks][H][32] or NULL                                        */
    float *actions;              /* the same; NULL: none are made                                         */
    openpi_timing *timing;
} given_call;

static size_t chunk_numbers(const openpi_session *s) {
    return (size_t)s->options.horizon * OPENPI_ACTION_DIM;
}

static openpi_status check_sizes(const openpi_session *s, const given_call *call, openpi_error *error) {
    int most = s->options.batch;
    if (call->batch < 1 || call->batch > most)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "session run: batch is %d, expected 1 to %d (the session's)", call->batch, most);
    if (call->chunks >= 1 && call->chunks <= most / call->batch) return OPENPI_OK;
    return report(error, OPENPI_BAD_ARGUMENT,
                  "session run: %d chunks of each of %d samples, expected 1 to %d (the session's batch is "
                  "%d)",
                  call->chunks, call->batch, most / call->batch, most);
}

/* The caller's structs into s->samples and s->rtc, checked. */
static openpi_status take_call(openpi_session *s, const given_call *call, openpi_error *error) {
    if (!call->samples) return report(error, OPENPI_BAD_ARGUMENT, "session run: samples is NULL");
    TRY(check_sizes(s, call, error));
    for (int b = 0; b < call->batch; b++) {
        TRY(BOUNDARY_TAKE_AT(openpi_sample, call->samples, b, &s->samples[b], error));
        TRY(check_sample(s, &s->samples[b], s->samples[0].pixels, b, error));
        size_t numbers = (size_t)call->chunks * chunk_numbers(s);
        if (call->noise)
            TRY(check_finite("noise", b, call->noise + (size_t)b * numbers, numbers, error));
        TRY(chunking_take(s->engine->checkpoint, s->options.horizon, call->rtc, b, &s->rtc[b], error));
    }
    if (s->options.rtc || chunking_plan(s->rtc, call->batch) == PLAN_ORDINARY) return OPENPI_OK;
    return report(error, OPENPI_BAD_ARGUMENT,
                  "session run: a sample has real-time chunking, but the session was created without the "
                  "option rtc");
}

/* ---- filling a call --------------------------------------------------------------------------------- */

static size_t picture_bytes(openpi_pixels pixels) {
    return pixels == OPENPI_PIXELS_F32 ? IMAGE_BYTES * sizeof(float) : IMAGE_BYTES;
}

/* Copies a picture to `to`: zeros for an absent one that is computed all the same. Returns its end. */
static char *fill_image(const openpi_session *s, const openpi_sample *sample, int camera, char *to) {
    size_t bytes = picture_bytes(sample->pixels);
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
    if (session_is_staged(s) && bytes > 0)
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

/* x at t = 1 of every chunk. */
static void fill_noise(openpi_session *s, int chunks, const float *noise) {
    size_t one = chunk_numbers(s);
    for (int c = 0; c < chunks; c++) {
        float *x = s->in.x_t + (size_t)c * one;
        if (noise)
            memcpy(x, noise + (size_t)c * one, one * sizeof *x);
        else
            openpi_noise(s->options.seed, s->runs * OPENPI_MAX_BATCH + (uint64_t)c, x, one);
        clear_unused(s, x);
    }
}

/* The states, one a chunk. */
static void fill_states(openpi_session *s, int batch, int chunks) {
    for (int i = 0; i < batch * chunks && s->plan->state_token; i++)
        memcpy(s->in.state + (size_t)i * OPENPI_ACTION_DIM, s->samples[i / chunks].state,
               OPENPI_ACTION_DIM * sizeof(float));
}

/* Bytes of the counters, up to the x that follows them. */
static size_t counts_bytes(const openpi_session *s) {
    return s->in.counts ? (size_t)((const char *)s->in.x_t - (const char *)s->in.counts) : 0;
}

/* From the device: the counters, of x this many chunks. */
static device_copy copy_down(const openpi_session *s, int chunks) {
    size_t counts = counts_bytes(s);
    return (device_copy){(char *)s->in.x_t - counts, (const char *)s->plan->buffers.in.x_t - counts,
                         counts + (size_t)chunks * chunk_numbers(s) * sizeof(float)};
}

/* Before what goes up. */
static void clear_counts(openpi_session *s) {
    if (s->in.counts) memset(s->in.counts, 0, counts_bytes(s));
}

/* What a call's 8-bit codes lost, once it has come back. A number that is not finite has a code like others,
 * so that nothing else tells. */
static openpi_status take_counts(openpi_session *s, openpi_error *error) {
    const uint32_t *counts = s->in.counts;
    if (!counts) return OPENPI_OK;
    for (int i = 0; i < INT8_COUNTS; i++) s->counts[i] += counts[i];
    if (!counts[INT8_NOT_FINITE]) return OPENPI_OK;
    return report(error, OPENPI_BAD_INPUT,
                  "session run: %u numbers of the rows that ffn's down reads are NaN or infinite, expected "
                  "finite ones: the model's arithmetic overflowed, its weights, state or noise are too large",
                  (unsigned)counts[INT8_NOT_FINITE]);
}

/* Fills the inputs where the device copies them from. */
static call_copies fill_call(openpi_session *s, const plan *plan, const given_call *call) {
    const openpi_sample *samples = s->samples;
    int batch = call->batch, chunks = call->chunks, known[OPENPI_MAX_BATCH];
    call_copies copies = {.down = copy_down(s, batch * chunks)};
    for (int b = 0; b < batch; b++) known[b] = chunking_known(&s->rtc[b]);
    s->last = call_fill(plan, &s->in.tables, samples, known, batch, chunks);
    clear_counts(s);
    if (s->on_tables) s->on_tables(s->on_tables_user, &s->in.tables);
    fill_states(s, batch, chunks);
    fill_noise(s, batch * chunks, call->noise);
    if (plan->kind == PLAN_GUIDED || plan->kind == PLAN_TRAINED) chunking_fill(plan, &s->in, s->rtc, batch);
    int together = plan_on(s->plan, SWITCH_BATCHED_VISION);
    copy_up(s, s->in.start, together ? fill_images(s, samples, batch) : s->in.images, &copies);
    if (!together) fill_slots(s, samples, batch, &copies);
    return copies;
}

/* ---- running ---------------------------------------------------------------------------------------- */

/* Copies x to the caller, unless it holds a NaN or an infinity: finite inputs and weights give one where the
 * arithmetic overflows. */
static openpi_status copy_actions(openpi_session *s, int batch, float *actions, openpi_error *error) {
    size_t one = chunk_numbers(s), count = (size_t)batch * one, i = 0;
    const float *x = s->in.x_t;
    TRY(take_counts(s, error));
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

/* Copies and ops of the plan one after the other: where nothing is recorded, or an observer or instrument
 * takes part. */
static openpi_status run_by_turns(openpi_session *s, const plan *plan, op_list list,
                                  const call_copies *copies, openpi_timing *t, openpi_error *error) {
    device *device = s->engine->device;
    double start = clock_ms();
    for (int i = 0; i < copies->count; i++)
        TRY(device->backend->upload(device, copies->up[i].to, copies->up[i].from, copies->up[i].bytes,
                                    error));
    double uploaded = clock_ms();
    if (s->observer && list.count == plan->count)
        TRY(session_run_observed(s, plan, s->last.batch, t->stage_ms, error));
    else if (s->on_run && plan == s->plan)
        TRY(s->on_run(s->on_run_user, s, t->stage_ms, error));
    else
        TRY(device->backend->run(device, list, s->work, t->stage_ms, error));
    t->stage_ms[OPENPI_STAGE_UPLOAD] += uploaded - start;
    t->device_ms += clock_ms() - uploaded;
    if (!copies->down.bytes) return OPENPI_OK;
    return device->backend->download(device, copies->down.to, copies->down.from, copies->down.bytes, error);
}

/* All queued at once, timed by the device's own clock. `t` may be NULL. */
static openpi_status replay(openpi_session *s, struct recording *recording, const call_copies *copies,
                            openpi_timing *t, openpi_error *error) {
    device *device = s->engine->device;
    double ms[OPENPI_MAX_STAGES] = {0};
    TRY(device->backend->replay(device, recording, copies->up, copies->count,
                                copies->down.bytes ? &copies->down : NULL, t ? ms : NULL, error));
    for (int i = OPENPI_STAGE_VISION; t && i <= OPENPI_STAGE_DENOISE; i++) {
        t->stage_ms[i] += ms[i];
        t->device_ms += ms[i];
    }
    return OPENPI_OK;
}

/* All of a plan, as it is recorded. */
static openpi_status run_plan(openpi_session *s, plan *plan, call_kinds *kinds, const call_copies *copies,
                              openpi_timing *t, int timed, openpi_error *error) {
    int kind = call_kinds_find(kinds, s->last.images, s->last.text);
    struct recording *recording = call_kinds_recording(kinds, kind);
    call_kinds_choose(kinds, kind);
    return recording && !s->observer && !s->on_run
               ? replay(s, recording, copies, timed ? t : NULL, error)
               : run_by_turns(s, plan, plan_list(plan), copies, t, error);
}

/* ---- the prefix that is kept ------------------------------------------------------------------------ */

/* Which plan computes the call's prefix alone: one sample is computed as in a session of one. */
static plan_kind prefix_kind(const openpi_session *s, const given_call *call) {
    return call->batch == 1 && s->more_plans[PLAN_PREFIX_ONE] ? PLAN_PREFIX_ONE : PLAN_PREFIX;
}

/* All of it but tokens and pictures, which are in the inputs. kind: the plan that has computed it. */
static void keep_prefix(openpi_session *s, const given_call *call, plan_kind kind) {
    kept_prefix *kept = &s->kept;
    *kept = (kept_prefix){.batch = call->batch,
                          .chunks = call->chunks,
                          .version = s->engine->version,
                          .kind = kind,
                          .pixels = s->samples[0].pixels};
    for (int b = 0; b < call->batch; b++) {
        memcpy(kept->mask[b], s->samples[b].image_mask, sizeof kept->mask[b]);
        kept->tokens[b] = s->samples[b].token_count;
    }
}

static int same_pictures(const openpi_session *s, int batch) {
    const char *at = s->in.images;
    size_t bytes = picture_bytes(s->kept.pixels);
    for (int b = 0; b < batch; b++)
        for (int c = 0; c < OPENPI_CAMERAS; c++) {
            const openpi_sample *sample = &s->samples[b];
            if (!call_has_rows(s->plan, sample, c)) continue;
            if (sample->image_mask[c] && memcmp(at, sample->images[c], bytes)) return 0;
            at += bytes;
        }
    return 1;
}

/* 1: the cache has the prefix of this call, byte for byte. */
static int is_kept(const openpi_session *s, const given_call *call) {
    const kept_prefix *kept = &s->kept;
    const int32_t *ids = s->in.tables.ids;
    if (!s->options.parts || s->observer || s->on_run || !plan_on(s->plan, SWITCH_BATCHED_VISION)) return 0;
    if (kept->version != s->engine->version || kept->kind != prefix_kind(s, call)) return 0;
    if (kept->batch != call->batch || kept->chunks != call->chunks || kept->pixels != s->samples[0].pixels)
        return 0;
    for (int b = 0; b < call->batch; b++) {
        const openpi_sample *sample = &s->samples[b];
        if (memcmp(kept->mask[b], sample->image_mask, sizeof kept->mask[b])) return 0;
        if (kept->tokens[b] != sample->token_count) return 0;
        if (sample->token_count && memcmp(ids, sample->tokens, (size_t)sample->token_count * sizeof *ids))
            return 0;
        ids += sample->token_count;
    }
    return same_pictures(s, call->batch);
}

/* K and V of each sample's prefix into the places of its other chunks; returns when they are there, since a
 * replay does not wait for copies. */
static openpi_status spread_cache(openpi_session *s, openpi_error *error) {
    const plan_buffers *b = &s->plan->buffers;
    device *device = s->engine->device;
    void *const caches[2] = {b->cache_k, b->cache_v};
    size_t layer = b->cache_layer_bytes, block = layer / (size_t)s->options.batch;
    if (s->kept.chunks == 1) return OPENPI_OK;
    for (int i = 0; i < s->kept.batch * s->kept.chunks * 2; i++) {
        int chunk = i / 2, first = chunk - chunk % s->kept.chunks;
        char *cache = caches[i % 2];
        if (chunk == first) continue;
        TRY(device->backend->copy_rows(device, cache + (size_t)chunk * block, cache + (size_t)first * block,
                                       layer, block, s->engine->model->dims.depth, error));
    }
    return device->backend->download(device, s->in.x_t, b->in.x_t, 0, error);      /* waits, copies nothing */
}

static openpi_status run_prefix(openpi_session *s, const given_call *call, openpi_timing *t, int timed,
                                openpi_error *error) {
    const plan_kind kind = prefix_kind(s, call);
    double start = clock_ms();
    call_copies copies = fill_call(s, s->more_plans[kind], call);
    t->stage_ms[OPENPI_STAGE_UPLOAD] = clock_ms() - start;
    copies.down = copy_down(s, 0);
    s->kept.batch = 0;
    TRY(run_plan(s, s->more_plans[kind], &s->more_kinds[kind], &copies, t, timed, error));
    TRY(take_counts(s, error));
    keep_prefix(s, call, kind);
    openpi_status status = spread_cache(s, error);
    if (status != OPENPI_OK) s->kept.batch = 0;
    return status;
}

/* What goes up for Euler steps over a prefix that is kept, and comes back. */
static call_copies copies_of_steps(openpi_session *s) {
    int chunks = s->kept.batch * s->kept.chunks;
    call_copies copies = {.down = copy_down(s, chunks)};
    clear_counts(s);
    copy_up(s, s->in.state, s->in.x_t + (size_t)chunks * chunk_numbers(s), &copies);
    return copies;
}

/* All steps, from the x that is filled in. */
static openpi_status run_denoise(openpi_session *s, openpi_timing *t, int timed, openpi_error *error) {
    call_copies copies = copies_of_steps(s);
    TRY(run_plan(s, s->more_plans[PLAN_DENOISE], &s->more_kinds[PLAN_DENOISE], &copies, t, timed, error));
    s->kept.has_state = 1;
    return OPENPI_OK;
}

/* Some of them. */
static openpi_status run_steps(openpi_session *s, int from, int to, openpi_timing *t, int timed,
                               openpi_error *error) {
    const plan *plan = s->more_plans[PLAN_DENOISE];
    call_kinds *kinds = &s->more_kinds[PLAN_DENOISE];
    int kind = call_kinds_find(kinds, s->last.images, s->last.text);
    call_copies copies = copies_of_steps(s);
    op_block cut[OPENPI_MAX_STEPS];
    struct recording *recording;
    call_kinds_choose(kinds, kind);
    TRY(step_ranges_find(&s->ranges, from, to, kind, s->work, &recording, error));
    TRY(recording ? replay(s, recording, &copies, timed ? t : NULL, error)
                  : run_by_turns(s, plan, plan_steps(plan, from, to, cut), &copies, t, error));
    s->kept.has_state |= !from;
    return OPENPI_OK;
}

/* ---- calls ------------------------------------------------------------------------------------------ */

/* Tells how long it took. */
static void end_call(double start, openpi_timing *t, openpi_timing *timing) {
    t->total_ms = clock_ms() - start;
    t->stage_ms[OPENPI_STAGE_DOWNLOAD] =
        fmax(0, t->total_ms - t->device_ms - t->stage_ms[OPENPI_STAGE_UPLOAD]);
    BOUNDARY_GIVE(openpi_timing, t, timing);
}

/* A checked call whose prefix is in the cache. */
static openpi_status run_over_kept(openpi_session *s, const given_call *call, openpi_timing *t,
                                   openpi_error *error) {
    int chunks = call->batch * call->chunks;
    fill_states(s, call->batch, call->chunks);
    fill_noise(s, chunks, call->noise);
    TRY(run_denoise(s, t, call->timing != NULL, error));
    return copy_actions(s, chunks, call->actions, error);
}

/* A checked call on one of the session's plans. */
static openpi_status run_whole(openpi_session *s, plan *plan, call_kinds *kinds, const given_call *call,
                               openpi_timing *t, openpi_error *error) {
    double start = clock_ms();
    call_copies copies = fill_call(s, plan, call);
    t->stage_ms[OPENPI_STAGE_UPLOAD] = clock_ms() - start;
    s->kept.batch = 0;
    TRY(run_plan(s, plan, kinds, &copies, t, call->timing != NULL, error));
    TRY(copy_actions(s, call->batch, call->actions, error));
    if (plan->kind != PLAN_ORDINARY) return OPENPI_OK;
    keep_prefix(s, call, PLAN_PREFIX);
    s->kept.has_state = 1;
    return OPENPI_OK;
}

/* What a session has computed of the weights, where they are others now. */
static openpi_status renew_schedule(openpi_session *s, openpi_error *error) {
    device *device = s->engine->device;
    if (s->version == s->engine->version) return OPENPI_OK;
    TRY(device->backend->run(device, plan_setup(s->plan), s->work, NULL, error));
    for (int kind = 0; kind < PLAN_KINDS; kind++)
        if (s->more_plans[kind])
            TRY(device->backend->run(device, plan_setup(s->more_plans[kind]), s->work, NULL, error));
    s->version = s->engine->version;
    return OPENPI_OK;
}

/* On success the call is let in, and leave() has to follow. */
static openpi_status begin_call(openpi_session *s, const char *doing, const openpi_timing *timing,
                                openpi_error *error) {
    if (!s) return report(error, OPENPI_BAD_ARGUMENT, "%s: the session is NULL", doing);
    TRY(engine_check_process(s->engine, doing, error));
    TRY(BOUNDARY_CHECK(openpi_timing, timing, error));
    engine_enter(s->engine);
    openpi_status status = renew_schedule(s, error);
    if (status != OPENPI_OK) engine_leave(s->engine);
    return status;
}

/* The same where the session must have been created with parts. */
static openpi_status begin_part(openpi_session *s, const char *doing, const openpi_timing *timing,
                                openpi_error *error) {
    if (s && !s->options.parts)
        return report(error, OPENPI_BAD_ARGUMENT, "%s: the session was created without the option parts",
                      doing);
    return begin_call(s, doing, timing, error);
}

/* A call that begin_call has let in has ended. */
static openpi_status leave(openpi_session *s, openpi_status status) {
    engine_leave(s->engine);
    return status;
}

static openpi_status run_rtc(openpi_session *s, const openpi_sample *samples, const openpi_rtc *rtc,
                                     int batch, const float *noise, float *actions, openpi_timing *timing,
                                     openpi_error *error) {
    given_call call = {samples, rtc, batch, 1, noise, actions, timing};
    openpi_timing t = OPENPI_TIMING_INIT;
    double start = clock_ms();
    if (!actions && samples) return report(error, OPENPI_BAD_ARGUMENT, "session run: actions is NULL");
    TRY(take_call(s, &call, error));
    plan_kind kind = chunking_plan(s->rtc, batch);
    if (kind != PLAN_ORDINARY) {
        TRY(run_whole(s, s->more_plans[kind], &s->more_kinds[kind], &call, &t, error));
    } else if (is_kept(s, &call)) {
        TRY(run_over_kept(s, &call, &t, error));
        s->prefixes_kept++;
    } else {
        TRY(run_whole(s, s->plan, &s->kinds, &call, &t, error));
    }
    s->runs++;
    end_call(start, &t, timing);
    return OPENPI_OK;
}

openpi_status openpi_session_run_rtc(openpi_session *s, const openpi_sample *samples, const openpi_rtc *rtc,
                                     int batch, const float *noise, float *actions, openpi_timing *timing,
                                     openpi_error *error) {
    TRY(begin_call(s, "session run", timing, error));
    return leave(s, run_rtc(s, samples, rtc, batch, noise, actions, timing, error));
}

openpi_status openpi_session_run(openpi_session *s, const openpi_sample *samples, int batch,
                                 const float *noise, float *actions, openpi_timing *timing,
                                 openpi_error *error) {
    return openpi_session_run_rtc(s, samples, NULL, batch, noise, actions, timing, error);
}

static openpi_status make_run_many(openpi_session *s, const openpi_sample *samples, int batch, int chunks,
                                      const float *noise, float *actions, openpi_timing *timing,
                                      openpi_error *error) {
    given_call call = {samples, NULL, batch, chunks, noise, actions, timing};
    openpi_timing t = OPENPI_TIMING_INIT;
    double start = clock_ms();
    if (!actions && samples) return report(error, OPENPI_BAD_ARGUMENT, "session run: actions is NULL");
    TRY(take_call(s, &call, error));
    if (is_kept(s, &call))
        s->prefixes_kept++;
    else
        TRY(run_prefix(s, &call, &t, timing != NULL, error));
    TRY(run_over_kept(s, &call, &t, error));
    s->runs++;
    end_call(start, &t, timing);
    return OPENPI_OK;
}

openpi_status openpi_session_run_many(openpi_session *s, const openpi_sample *samples, int batch, int chunks,
                                      const float *noise, float *actions, openpi_timing *timing,
                                      openpi_error *error) {
    TRY(begin_part(s, "session run", timing, error));
    return leave(s, make_run_many(s, samples, batch, chunks, noise, actions, timing, error));
}

static openpi_status make_prefix(openpi_session *s, const openpi_sample *samples, int batch, int chunks,
                                    openpi_timing *timing, openpi_error *error) {
    given_call call = {samples, NULL, batch, chunks, NULL, NULL, timing};
    openpi_timing t = OPENPI_TIMING_INIT;
    double start = clock_ms();
    TRY(take_call(s, &call, error));
    if (is_kept(s, &call)) {
        fill_states(s, batch, chunks);
        s->prefixes_kept++;
        s->kept.has_state = 0;
    } else {
        TRY(run_prefix(s, &call, &t, timing != NULL, error));
    }
    end_call(start, &t, timing);
    return OPENPI_OK;
}

openpi_status openpi_session_prefix(openpi_session *s, const openpi_sample *samples, int batch, int chunks,
                                    openpi_timing *timing, openpi_error *error) {
    TRY(begin_part(s, "session prefix", timing, error));
    return leave(s, make_prefix(s, samples, batch, chunks, timing, error));
}

/* An x of `count` chunks for the prefix that is kept. */
static openpi_status check_x(const openpi_session *s, const char *doing, const float *x, int count,
                             openpi_error *error) {
    int chunks = s->kept.batch * s->kept.chunks;
    if (!x) return report(error, OPENPI_BAD_ARGUMENT, "%s: x is NULL", doing);
    if (!chunks)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "%s: there is no prefix, expected openpi_session_prefix before it", doing);
    if (s->kept.version != s->engine->version)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "%s: the engine's weights have changed since the prefix was computed, expected "
                      "openpi_session_prefix before it",
                      doing);
    if (count != chunks)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "%s: x has %d chunks, expected %d: the prefix is of %d samples with %d each", doing,
                      count, chunks, s->kept.batch, s->kept.chunks);
    for (int c = 0; c < chunks; c++)
        TRY(check_finite("x", c, x + (size_t)c * chunk_numbers(s), chunk_numbers(s), error));
    return OPENPI_OK;
}

static openpi_status check_steps(const openpi_session *s, const float *x, int count, int from, int to,
                                 openpi_error *error) {
    if (from < 0 || from >= to || to > s->options.steps)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "session denoise: steps %d to %d, expected a first one below the last, within 0 to %d",
                      from, to, s->options.steps);
    return check_x(s, "session denoise", x, count, error);
}

/* π0's state among the keys, whose K and V come with step 0, from any x. */
static openpi_status make_state(openpi_session *s, int count, const float *x, openpi_timing *t,
                                openpi_error *error) {
    if (!s->plan->state_token || s->kept.has_state) return OPENPI_OK;
    fill_noise(s, count, x);
    return run_steps(s, 0, 1, t, 0, error);
}

static openpi_status make_denoise(openpi_session *s, float *x, int count, int from, int to,
                                     openpi_timing *timing, openpi_error *error) {
    openpi_timing t = OPENPI_TIMING_INIT;
    double start = clock_ms();
    TRY(check_steps(s, x, count, from, to, error));
    if (from) TRY(make_state(s, count, x, &t, error));
    fill_noise(s, count, x);
    TRY(!from && to == s->options.steps ? run_denoise(s, &t, timing != NULL, error)
                                        : run_steps(s, from, to, &t, timing != NULL, error));
    TRY(copy_actions(s, count, x, error));
    end_call(start, &t, timing);
    return OPENPI_OK;
}

openpi_status openpi_session_denoise(openpi_session *s, float *x, int count, int from, int to,
                                     openpi_timing *timing, openpi_error *error) {
    TRY(begin_part(s, "session denoise", timing, error));
    return leave(s, make_denoise(s, x, count, from, to, timing, error));
}

/* ---- a step whose rows have times of their own -------------------------------------------------------- */

static int find_time(const openpi_session *s, float time) {
    int i = 0;
    while (i < s->times_count && s->times[i] != time) i++;
    return i;
}

/* The embeddings of s->times, and what the model makes of them, into the schedule's columns. */
static openpi_status compute_times(openpi_session *s, openpi_error *error) {
    plan *plan = s->more_plans[PLAN_TIMED];
    device *device = s->engine->device;
    const plan_buffers *b = &plan->buffers;
    size_t width = (size_t)plan->model->dims.expert_width, count = (size_t)s->times_count;
    float *temb = s->times + s->options.times;
    const int32_t *rows = s->in.tables.times.count;
    for (size_t i = 0; i < count; i++) schedule_temb(s->times[i], (int)width, temb + i * width);
    *s->in.tables.times.count = s->times_count;
    if (session_is_staged(s))
        TRY(device->backend->upload(device, b->in.tables.times.count, rows, sizeof *rows, error));
    TRY(device->backend->upload(device, b->temb + (size_t)plan_timed_column(plan) * width, temb,
                                count * width * sizeof *temb, error));
    return device->backend->run(device, plan_setup(plan), s->work, NULL, error);
}

/* Which time each row has: those of the last step where all are among them, else others are computed. */
static openpi_status take_times(openpi_session *s, const float *times, int rows, openpi_error *error) {
    int known = 1;
    for (int r = 0; r < rows && known; r++) known = find_time(s, times[r]) < s->times_count;
    if (!known) {
        s->times_count = 0;
        for (int r = 0; r < rows; r++) {
            int at = find_time(s, times[r]);
            if (at == s->options.times) {
                s->times_count = 0;
                return report(error, OPENPI_BAD_ARGUMENT,
                              "session step: the rows have more than %d different times, expected as many "
                              "as the session's option times at most",
                              s->options.times);
            }
            if (at == s->times_count) s->times[s->times_count++] = times[r];
        }
        openpi_status status = compute_times(s, error);
        if (status != OPENPI_OK) {
            s->times_count = 0;
            return status;
        }
    }
    for (int r = 0; r < rows; r++) s->in.tables.time_of[r] = find_time(s, times[r]);
    return OPENPI_OK;
}

static openpi_status check_times(const openpi_session *s, const float *times, const float *dt, int count,
                                 openpi_error *error) {
    int horizon = s->options.horizon;
    if (!times || !dt)
        return report(error, OPENPI_BAD_ARGUMENT, "session step: %s is NULL", times ? "dt" : "times");
    for (int r = 0; r < count * horizon; r++) {
        if (!(times[r] >= 0 && times[r] <= 1))
            return report(error, OPENPI_BAD_INPUT, "sample %d: times[%d] is %g, expected 0 to 1", r / horizon,
                          r % horizon, (double)times[r]);
        if (!isfinite(dt[r]))
            return report(error, OPENPI_BAD_INPUT, "sample %d: dt[%d] is %g, expected a finite number",
                          r / horizon, r % horizon, (double)dt[r]);
    }
    return OPENPI_OK;
}

static openpi_status make_step(openpi_session *s, float *x, int count, const float *times, const float *dt,
                               openpi_timing *timing, openpi_error *error) {
    int rows = count * s->options.horizon;
    openpi_timing t = OPENPI_TIMING_INIT;
    double start = clock_ms();
    TRY(check_x(s, "session step", x, count, error));
    TRY(check_times(s, times, dt, count, error));
    TRY(make_state(s, count, x, &t, error));
    TRY(take_times(s, times, rows, error));
    memcpy(s->in.own_dt, dt, (size_t)rows * sizeof *dt);
    fill_noise(s, count, x);
    call_copies copies = {.down = copy_down(s, count)};
    clear_counts(s);
    copy_up(s, s->in.tables.time_of, s->in.x_t + (size_t)count * chunk_numbers(s), &copies);
    TRY(run_plan(s, s->more_plans[PLAN_TIMED], &s->more_kinds[PLAN_TIMED], &copies, &t, timing != NULL,
                 error));
    TRY(copy_actions(s, count, x, error));
    end_call(start, &t, timing);
    return OPENPI_OK;
}

openpi_status openpi_session_step(openpi_session *s, float *x, int count, const float *times, const float *dt,
                                  openpi_timing *timing, openpi_error *error) {
    if (s && !s->options.times)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "session step: the session was created without the option times");
    TRY(begin_part(s, "session step", timing, error));
    return leave(s, make_step(s, x, count, times, dt, timing, error));
}
