/* See device.h.
 *
 * Note: every size of batch that is measured has a session of its own, because a device takes its kernels for
 * the rows that a session is made for: fewer samples would run slower there. */
#include "device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/small/clock.h"
#include "serve/small/fail.h"
#include "serve/messages.h"

enum {
    DIMS = OPENPI_ACTION_DIM,
    PIXELS = OPENPI_IMAGE_SIZE * OPENPI_IMAGE_SIZE * 3,
    TRIALS = 4,                  /* runs of each batch size                                                */
    ENOUGH_NS = 1000000000,      /* for the trials of a batch size                                         */
    SIZES = 7,                   /* batch sizes: 1, 2, 4, … OPENPI_MAX_BATCH                               */
};
_Static_assert(1 << (SIZES - 1) == OPENPI_MAX_BATCH, "every power of two up to the largest batch is a size");

/* For batches of up to `batch` samples. */
typedef struct sized_session {
    int batch;
    openpi_session *session;
} sized_session;

/* A session of one sample, whose prefix is a connection's. */
typedef struct prefix_session {
    openpi_session *session;
    int connection;              /* job.number; -1: none's                                                 */
    uint64_t used;               /* when, in calls of the device                                           */
} prefix_session;

struct serve_device {
    device_options options;
    openpi_engine_options engine_options;
    openpi_engine *engine;
    sized_session sizes[SIZES];  /* for batches of 1, 2, 4, … and the largest                              */
    int size_count;
    prefix_session *prefixes;    /* [prefix_count], the first is that of `sizes`                           */
    int prefix_count;
    openpi_session *chunks;      /* for several chunks of one observation; NULL: the others are            */
    int chunks_most;             /* that a call of them computes                                           */
    uint64_t calls, kept;
    int counts_lost;             /* 1: sessions count what 8-bit codes lose                                */
    metrics_lost lost;
    openpi_engine_info engine_info;
    openpi_session_info session_info;
    batch_times times;
    openpi_sample *samples;      /* [OPENPI_MAX_BATCH]                                                     */
    openpi_rtc *rtc;             /* [batch]                                                                */
    float *noise;                /* [batch][horizon][32]                                                   */
    float *model_actions;        /* [batch][horizon][32]                                                   */
    double *actions;             /* [OPENPI_MAX_BATCH][horizon][action_dim]                                */
};

static size_t chunk_numbers(const serve_device *d) { return (size_t)d->session_info.horizon * DIMS; }

/* The smallest session that takes so many samples. */
static openpi_session *session_for(const serve_device *d, int count) {
    int i = 0;
    while (d->sizes[i].batch < count) i++;
    return d->sizes[i].session;
}

/* The one that has the connection's prefix, or had none of another for longest. */
static openpi_session *session_of(serve_device *d, int connection) {
    prefix_session *found = d->prefixes;
    for (prefix_session *p = d->prefixes; p < d->prefixes + d->prefix_count; p++) {
        if (p->connection == connection) {
            found = p;
            break;
        }
        if (p->used < found->used) found = p;
    }
    found->connection = connection;
    found->used = ++d->calls;
    return found->session;
}

static size_t robot_numbers(const serve_device *d) {
    return (size_t)d->session_info.horizon * (size_t)d->options.model->info.action_dim;
}

/* ---- jobs ------------------------------------------------------------------------------------------- */

/* The robot's actions from the model's. What limits did to them is added to the job's counts. */
static openpi_status finish_chunk(serve_device *d, job *job, openpi_request *request,
                                  const float *model_actions, double *actions, openpi_error *error) {
    int horizon = d->session_info.horizon;
    openpi_limited one = OPENPI_LIMITED_INIT, *all = &job->limited;
    openpi_status status = openpi_request_finish(request, model_actions, horizon, actions, robot_numbers(d),
                                                 error);
    SERVE_TRY(openpi_request_get_limited(request, &one, error));
    all->changed += one.changed;
    all->below_min += one.below_min;
    all->above_max += one.above_max;
    all->beyond_step += one.beyond_step;
    all->beyond_start += one.beyond_start;
    all->held += one.held;
    return status;
}

/* Keeps a job's actions for the connection's next request and for a recording; unnormalises and packs
 * them. */
static openpi_status write_reply(serve_device *d, job *job, const float *model_actions, double model_ms,
                                 openpi_error *error) {
    int horizon = d->session_info.horizon, chunks = job->samples ? job->samples : 1;
    if (model_actions) memcpy(job->model_actions, model_actions, chunk_numbers(d) * sizeof *model_actions);
    job->model_ms = model_ms;
    SERVE_TRY(openpi_request_keep(job->request, job->model_actions, horizon, job->chunk, chunk_numbers(d),
                                  error));
    for (int c = 0; c < chunks; c++)
        SERVE_TRY(finish_chunk(d, job, job->request, job->model_actions + (size_t)c * chunk_numbers(d),
                               d->actions + (size_t)c * robot_numbers(d), error));
    for (int i = 0; i < horizon * d->options.model->info.action_dim; i++) job->sent[i] = (float)d->actions[i];
    job->rate_hz = openpi_policy_rate(d->options.model->policy);
    reply reply = {.actions = d->actions,
                   .horizon = horizon,
                   .action_dim = d->options.model->info.action_dim,
                   .chunks = job->samples,
                   .model_ms = model_ms,
                   .infer_ms = clock_now() - job->at_ms[MOMENT_ARRIVED],
                   .prev_total_ms = job->prev_total_ms,
                   .rtc = job->rtc_asked,
                   .rtc_applied = job->rtc.mode != OPENPI_RTC_OFF,
                   .rtc_delay = job->rtc.delay,
                   .rtc_weight = job->rtc_weight,
                   .truncated = job->truncated,
                   .limited = job->limited};
    job->answer.bytes = reply_write(&reply, job->answer.data, job->answer_capacity);
    snapshot_reply(job->snapshot, &reply);
    return OPENPI_OK;
}

/* ---- messages of several observations ---------------------------------------------------------------- */

/* All of them are computed or refused. Where some have actions, the others have their sentences. */
static openpi_status write_parts(serve_device *d, job *job, openpi_error *error) {
    const char **errors = calloc((size_t)job->part_count, sizeof *errors);
    int refused = 0;
    if (!errors) return fail(error, OPENPI_NO_MEMORY, "out of memory: a reply");
    for (int i = 0; i < job->part_count; i++) {
        const job_part *part = &job->parts[i];
        if (part->status != OPENPI_OK) errors[i] = part->sentence, refused++;
    }
    reply reply = {.actions = job->part_actions,
                   .horizon = d->session_info.horizon,
                   .action_dim = d->options.model->info.action_dim,
                   .observations = job->part_count,
                   .chunks = job->part_samples,
                   .model_ms = job->model_ms,
                   .infer_ms = clock_now() - job->at_ms[MOMENT_ARRIVED],
                   .prev_total_ms = job->prev_total_ms,
                   .truncated = job->truncated,
                   .errors = refused ? errors : NULL,
                   .limited = job->limited};
    job->answer.bytes = reply_write(&reply, job->answer.data, job->answer_capacity);
    free(errors);
    return OPENPI_OK;
}

static void refuse_part(job_part *part, openpi_status status, const char *sentence) {
    part->status = status;
    snprintf(part->sentence, sizeof part->sentence, "%s", sentence);
}

/* A part is refused by its own sentence, where a job of one observation is. */
static void take_part_actions(serve_device *d, job *job, int chunk, const float *model_actions) {
    openpi_error own = OPENPI_ERROR_INIT;
    job_part *part = &job->parts[chunk / job_part_chunks(job)];
    double *actions = job->part_actions + (size_t)chunk * robot_numbers(d);
    openpi_status status = finish_chunk(d, job, part->request, model_actions, actions, &own);
    if (status != OPENPI_OK) refuse_part(part, status, own.message);
}

/* After a call: what is left of the jobs' observations is for the next ones. */
static void end_turn(serve_device *d, job *job, double ms) {
    openpi_error own = OPENPI_ERROR_INIT;
    job->done += job->turn;
    job->model_ms = (job->done == job->turn ? 0 : job->model_ms) + ms;
    if (job->done < job->fit_count) return;
    openpi_status status = write_parts(d, job, &own);
    if (status != OPENPI_OK) job_refuse(job, status, own.message);
}

/* ---- a call ------------------------------------------------------------------------------------------ */

/* A sample of a call: a job's own, or a part's. */
typedef struct unit {
    job *job;
    job_part *part;              /* NULL: the job has one observation                                      */
    int chunk;                   /* among the chunks of all parts                                          */
} unit;

/* The samples of a batch. Returns how many. */
static int list_units(job *const *jobs, int count, unit *units) {
    int listed = 0;
    for (int i = 0; i < count; i++) {
        job *job = jobs[i];
        if (!job->part_count) units[listed++] = (unit){job, NULL, 0};
        for (int k = 0; job->part_count && k < job->turn; k++) {
            int chunk = job->fit[job->done + k];
            units[listed++] = (unit){job, &job->parts[chunk / job_part_chunks(job)], chunk};
        }
    }
    return listed;
}

static const float *noise_of(const serve_device *d, const unit *u) {
    return u->job->noise + (size_t)u->chunk * chunk_numbers(d);
}

static void refuse_unit(const unit *u, openpi_status status, const char *sentence) {
    if (u->part) refuse_part(u->part, status, sentence);
    else job_refuse(u->job, status, sentence);
}

static openpi_status compute(serve_device *d, const unit *units, int count, double *ms, openpi_error *error) {
    openpi_timing timing = OPENPI_TIMING_INIT;
    for (int i = 0; i < count; i++) {
        const unit *u = &units[i];
        d->samples[i] = u->part ? u->part->sample : u->job->sample;
        d->rtc[i] = u->job->rtc;
        memcpy(d->noise + (size_t)i * chunk_numbers(d), noise_of(d, u), chunk_numbers(d) * sizeof(float));
    }
    openpi_session *session = count == 1 ? session_of(d, units[0].job->number) : session_for(d, count);
    SERVE_TRY(openpi_session_run_rtc(session, d->samples, d->rtc, count, d->noise,
                                     d->model_actions, &timing, error));
    for (int i = 0; i < count; i++) {
        openpi_error own = OPENPI_ERROR_INIT;
        const float *model_actions = d->model_actions + (size_t)i * chunk_numbers(d);
        units[i].job->batch = count;
        if (units[i].part) {
            take_part_actions(d, units[i].job, units[i].chunk, model_actions);
            continue;
        }
        openpi_status status = write_reply(d, units[i].job, model_actions, timing.total_ms, &own);
        if (status != OPENPI_OK) job_refuse(units[i].job, status, own.message);
    }
    *ms += timing.total_ms;
    return OPENPI_OK;
}

/* A sample that the model cannot take fails its whole batch; then each is computed alone. */
static openpi_status compute_batch(serve_device *d, job *const *jobs, int count, openpi_error *error) {
    unit units[OPENPI_MAX_BATCH] = {{NULL, NULL, 0}};
    double ms = 0;
    int samples = list_units(jobs, count, units);
    openpi_status status = compute(d, units, samples, &ms, error);
    int alone = samples > 1 && status == OPENPI_BAD_INPUT, refused = status != OPENPI_OK;
    for (int i = 0; i < samples && refused; i++) {
        if (alone) status = compute(d, units + i, 1, &ms, error);
        if (status != OPENPI_OK && (status == OPENPI_BAD_INPUT || !units[i].part))
            refuse_unit(&units[i], status, error->message);
        else if (status != OPENPI_OK) job_refuse(units[i].job, status, error->message);
    }
    for (int i = 0; i < count; i++)
        if (jobs[i]->part_count && jobs[i]->status == OPENPI_OK) end_turn(d, jobs[i], ms);
    return status;
}

/* Chunks `from` … from+count-1 of the job's observation. */
static openpi_status compute_some(serve_device *d, job *job, int from, int count, openpi_timing *timing,
                                  openpi_error *error) {
    openpi_session *session = d->chunks ? d->chunks : session_of(d, job->number);
    const float *noise = job->noise + (size_t)from * chunk_numbers(d);
    float *actions = job->model_actions + (size_t)from * chunk_numbers(d);
    if (d->options.prefixes)
        return openpi_session_run_many(session, &job->sample, 1, count, noise, actions, timing, error);
    for (int i = 0; i < count; i++) d->samples[i] = job->sample;
    return openpi_session_run(session, d->samples, count, noise, actions, timing, error);
}

/* In calls of one size, so that they share a prefix; the last begins where that needs it, with chunks that
 * are there. */
static openpi_status compute_chunks(serve_device *d, job *job, openpi_error *error) {
    int all = job->samples, calls = (all + d->chunks_most - 1) / d->chunks_most;
    int size = (all + calls - 1) / calls;
    double ms = 0;
    for (int from = 0; from < all; from += size) {
        openpi_timing timing = OPENPI_TIMING_INIT;
        int begin = from + size > all ? all - size : from;
        SERVE_TRY(compute_some(d, job, begin, size, &timing, error));
        ms += timing.total_ms;
    }
    job->batch = size;
    openpi_error own = OPENPI_ERROR_INIT;
    openpi_status status = write_reply(d, job, NULL, ms, &own);
    if (status != OPENPI_OK) job_refuse(job, status, own.message);
    return OPENPI_OK;
}

openpi_status device_run(serve_device *d, job *const *jobs, int count, openpi_error *error) {
    if (count != 1 || !jobs[0]->samples) return compute_batch(d, jobs, count, error);
    openpi_status status = compute_chunks(d, jobs[0], error);
    if (status != OPENPI_OK) job_refuse(jobs[0], status, error->message);
    return status;
}

/* ---- the first calls -------------------------------------------------------------------------------- */

/* A picture in every slot, the longest prompt. */
typedef struct made_up {
    uint8_t *picture;
    int32_t *tokens;
    float state[DIMS];
} made_up;

static openpi_status make_up(serve_device *d, made_up *m, openpi_error *error) {
    int count = d->session_info.max_prompt;
    m->picture = calloc(PIXELS, 1);
    m->tokens = calloc((size_t)count, sizeof *m->tokens);
    if (!m->picture || !m->tokens) return fail(error, OPENPI_NO_MEMORY, "out of memory: the first call");
    for (int i = 0; i < count; i++) m->tokens[i] = 2;
    for (int b = 0; b < d->options.session.batch; b++) {
        openpi_sample *sample = &d->samples[b];
        *sample = (openpi_sample)OPENPI_SAMPLE_INIT;
        for (int slot = 0; slot < OPENPI_CAMERAS; slot++) {
            sample->images[slot] = m->picture;
            sample->image_mask[slot] = 1;
        }
        sample->tokens = m->tokens;
        sample->token_count = count;
        sample->state = m->state;
    }
    return OPENPI_OK;
}

/* The same sizes, kernels and calls: other weights only. */
static int is_like(const serve_device *d, const serve_device *other) {
    if (!other) return 0;
    const openpi_engine_info *a = &d->engine_info, *b = &other->engine_info;
    const openpi_session_info *m = &d->session_info, *n = &other->session_info;
    return a->variant == b->variant && a->dtype == b->dtype && !strcmp(a->formats, b->formats) &&
           a->parameters == b->parameters && a->weight_bytes == b->weight_bytes &&
           !strcmp(a->path, b->path) && m->horizon == n->horizon && m->steps == n->steps &&
           m->max_prompt == n->max_prompt && m->operations == n->operations && m->recorded == n->recorded;
}

static int by_time(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* The median of a few calls, without the first one. Where calls are slow, or others compute on the device,
 * one is enough. */
static openpi_status measure_batch(serve_device *d, int batch, uint8_t *picture, int64_t *ns,
                                   openpi_error *error) {
    int64_t trials[TRIALS], begin = clock_ns();
    int count = 0, most = is_like(d, d->options.like) ? 1 : TRIALS;
    do {
        picture[0]++;            /* or its prefix would be kept                                            */
        int64_t start = clock_ns();
        SERVE_TRY(openpi_session_run(session_for(d, batch), d->samples, batch, NULL, d->model_actions, NULL,
                                     error));
        trials[count++] = clock_ns() - start;
    } while (count < most && clock_ns() - begin < ENOUGH_NS);
    int first = count > 1;
    qsort(trials + first, (size_t)(count - first), sizeof *trials, by_time);
    *ns = trials[first + (count - first) / 2] > 0 ? trials[first + (count - first) / 2] : 1;
    return OPENPI_OK;
}

static openpi_status measure(serve_device *d, uint8_t *picture, openpi_error *error) {
    batch_time measured[SIZES];
    const openpi_engine_options *o = &d->engine_options;
    for (int i = 0; i < d->size_count; i++) {
        if (o->cancel && o->cancel(o->progress_user))
            return fail(error, OPENPI_CANCELLED, "the first calls were cancelled");
        measured[i].batch = d->sizes[i].batch;
        SERVE_TRY(measure_batch(d, measured[i].batch, picture, &measured[i].ns, error));
    }
    if (!batch_times_fill(&d->times, measured, d->size_count))
        return fail(error, OPENPI_SYSTEM, "the times of batches could not be measured");
    if (is_like(d, d->options.like)) d->times = d->options.like->times;
    return OPENPI_OK;
}

static openpi_status first_calls(serve_device *d, openpi_error *error) {
    made_up m = {.picture = NULL};
    openpi_status status = make_up(d, &m, error);
    if (status == OPENPI_OK) status = measure(d, m.picture, error);
    free(m.picture);
    free(m.tokens);
    return status;
}

/* ---- opening ---------------------------------------------------------------------------------------- */

static openpi_status open_sessions(serve_device *d, openpi_error *error) {
    int largest = d->options.session.batch;
    for (int batch = 1; batch; batch = batch == largest ? 0 : batch * 2 < largest ? batch * 2 : largest) {
        openpi_session_options options = d->options.session;
        sized_session *sized = &d->sizes[d->size_count++];
        options.batch = sized->batch = batch;
        options.rtc = 1;
        options.parts = d->options.prefixes && batch == 1;
        SERVE_TRY(openpi_session_create(d->engine, &options, &sized->session, error));
    }
    return OPENPI_OK;
}

/* Those that keep the prefixes of further connections, and the one of several chunks. */
static openpi_status open_more_sessions(serve_device *d, openpi_error *error) {
    openpi_session_options options = d->options.session;
    int count = d->options.prefixes ? d->options.prefixes : 1;
    d->prefixes = calloc((size_t)count, sizeof *d->prefixes);
    if (!d->prefixes) return fail(error, OPENPI_NO_MEMORY, "out of memory: %d prefixes", count);
    d->prefixes[0].session = d->sizes[0].session;
    options.batch = options.rtc = 1;
    options.parts = d->options.prefixes > 0;
    for (d->prefix_count = 1; d->prefix_count < count; d->prefix_count++)
        SERVE_TRY(openpi_session_create(d->engine, &options, &d->prefixes[d->prefix_count].session, error));
    for (int i = 0; i < count; i++) d->prefixes[i].connection = -1;
    d->chunks_most = options.batch = d->options.samples > 1 ? d->options.samples : 1;
    options.rtc = 0;
    if (d->chunks_most == 1) return OPENPI_OK;
    return openpi_session_create(d->engine, &options, &d->chunks, error);
}

static openpi_status load(serve_device *d, openpi_error *error) {
    int batch = d->options.session.batch;
    d->engine_options = *d->options.engine;
    d->engine_options.device = d->options.name;
    SERVE_TRY(openpi_engine_open(d->options.checkpoint, &d->engine_options, &d->engine, error));
    model_take_notes(d->options.model, d->engine);
    d->engine_info = (openpi_engine_info)OPENPI_ENGINE_INFO_INIT;
    SERVE_TRY(openpi_engine_get_info(d->engine, &d->engine_info, error));
    d->counts_lost = strstr(d->engine_info.formats, "+static") != NULL;
    SERVE_TRY(open_sessions(d, error));
    SERVE_TRY(open_more_sessions(d, error));
    d->session_info = (openpi_session_info)OPENPI_SESSION_INFO_INIT;
    SERVE_TRY(openpi_session_get_info(d->sizes[0].session, &d->session_info, error));
    size_t numbers = (size_t)batch * chunk_numbers(d);
    size_t steps = OPENPI_MAX_BATCH * (size_t)d->session_info.horizon;
    d->samples = calloc(OPENPI_MAX_BATCH, sizeof *d->samples);
    d->rtc = calloc((size_t)batch, sizeof *d->rtc);
    d->noise = malloc(numbers * sizeof *d->noise);
    d->model_actions = malloc(numbers * sizeof *d->model_actions);
    d->actions = malloc(steps * (size_t)d->options.model->info.action_dim * sizeof *d->actions);
    if (!d->samples || !d->rtc || !d->noise || !d->model_actions || !d->actions)
        return fail(error, OPENPI_NO_MEMORY, "out of memory: the actions of a call");
    return first_calls(d, error);
}

openpi_status device_open(const device_options *options, serve_device **out, openpi_error *error) {
    serve_device *made = calloc(1, sizeof *made);
    if (!made) return fail(error, OPENPI_NO_MEMORY, "out of memory: a device");
    made->options = *options;
    model_hold(options->model);
    openpi_status status = load(made, error);
    made->options.like = NULL;   /* it may be closed before this one                                       */
    if (status == OPENPI_OK) *out = made;
    else device_close(made);
    return status;
}

void device_close(serve_device *d) {
    if (!d) return;
    for (int i = 0; i < d->size_count; i++) openpi_session_close(d->sizes[i].session);
    for (int i = 1; i < d->prefix_count; i++) openpi_session_close(d->prefixes[i].session);
    openpi_session_close(d->chunks);
    free(d->prefixes);
    openpi_engine_close(d->engine);
    free(d->samples);
    free(d->rtc);
    free(d->noise);
    free(d->model_actions);
    free(d->actions);
    model_drop(d->options.model);
    free(d);
}

static uint64_t kept_by(const openpi_session *session) {
    openpi_session_info info = OPENPI_SESSION_INFO_INIT;
    if (session) openpi_session_get_info(session, &info, NULL);
    return info.prefixes_kept;
}

int device_kept(serve_device *d) {
    uint64_t before = d->kept;
    d->kept = kept_by(d->chunks);
    for (int i = 0; i < d->prefix_count; i++) d->kept += kept_by(d->prefixes[i].session);
    return (int)(d->kept - before);
}

static void add_lost(const openpi_session *session, metrics_lost *to) {
    openpi_session_info info = OPENPI_SESSION_INFO_INIT;
    if (session) openpi_session_get_info(session, &info, NULL);
    to->clipped += info.w8_clipped;
    to->rows += info.w8_clipped_rows;
    to->not_finite += info.w8_not_finite;
}

metrics_lost device_losses(serve_device *d) {
    metrics_lost before = d->lost, now = {0};
    if (!d->counts_lost) return now;
    add_lost(d->chunks, &now);
    for (int i = 0; i < d->size_count; i++) add_lost(d->sizes[i].session, &now);
    for (int i = 1; i < d->prefix_count; i++) add_lost(d->prefixes[i].session, &now);
    d->lost = now;
    return (metrics_lost){now.clipped - before.clipped, now.rows - before.rows,
                          now.not_finite - before.not_finite};
}

serve_model *device_model(const serve_device *d) { return d->options.model; }
openpi_engine *device_engine(const serve_device *d) { return d->engine; }
const openpi_engine_info *device_engine_info(const serve_device *d) { return &d->engine_info; }
const openpi_session_info *device_session_info(const serve_device *d) { return &d->session_info; }
const batch_times *device_times(const serve_device *d) { return &d->times; }
