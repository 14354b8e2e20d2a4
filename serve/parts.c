/* Messages of several observations: each is read and prepared as a request of its own, by whatever threads
 * are free.
 *
 *   all are read -> the chunks of each are known, and memory for them -> all are prepared
 *
 * What will be refused is refused before pictures are resized and the prompt is tokenised. */
#include <stdio.h>

#include "serve/small/fail.h"
#include "prepare_inside.h"

/* Bytes that an observation may keep, and *while_made: what preparing it may take beyond that. */
static size_t part_needs(const job *job, int count, size_t *while_made) {
    size_t kept, all = openpi_request_bytes(job->model->policy, job->count / (size_t)count + 1, &kept);
    *while_made = all - kept;
    return kept;
}

size_t parts_needs(const prepare *p, const job *job) {
    size_t while_made, kept = part_needs(job, job->observations, &while_made),
           count = (size_t)job->observations, threads = (size_t)p->options.threads + 1;
    if (threads > count) threads = count;
    return openpi_request_bytes(job->model->policy, 0, NULL) + count * kept + threads * while_made;
}

/* ---- reading ---------------------------------------------------------------------------------------- */

/* What the extras of an observation ask for can be had. */
static openpi_status check_extras(const job *job, job_part *part, openpi_error *error) {
    openpi_extras extras = OPENPI_EXTRAS_INIT;
    SERVE_TRY(openpi_request_extras(part->request, &extras, error));
    if (extras.rtc)
        return fail(error, OPENPI_BAD_INPUT,
                    "\"openpi/rtc\" of the request is for a message of one observation, expected none among "
                    "several");
    SERVE_TRY(prepare_check_noise(job, &extras, error));
    part->deadline_ms = extras.deadline_ms;
    part->samples = extras.samples;
    return OPENPI_OK;
}

static openpi_status read_part(prepare *p, job *job, int i, openpi_error *error) {
    job_part *part = &job->parts[i];
    SERVE_TRY(prepare_more(p, job->model, &part->request, error));
    SERVE_TRY(openpi_request_read_msgpack_at(part->request, job->bytes, job->count, i, error));
    return check_extras(job, part, error);
}

static void note_part(job_part *part, openpi_status status, const openpi_error *why) {
    part->status = status;
    if (status != OPENPI_OK) snprintf(part->sentence, sizeof part->sentence, "%s", why->message);
}

static void read_step(prepare *p, job *job, int i) {
    openpi_error why = OPENPI_ERROR_INIT;
    note_part(&job->parts[i], read_part(p, job, i, &why), &why);
}

/* The least deadline is the message's. *samples: what the first one that can be read says. */
static void gather(job *job, int *samples) {
    int known = 0;
    *samples = 0;
    for (int i = 0; i < job->part_count; i++) {
        const job_part *part = &job->parts[i];
        if (part->status != OPENPI_OK) continue;
        if (!known) *samples = part->samples;
        known = 1;
        if (part->deadline_ms > 0 && (job->deadline_ms <= 0 || part->deadline_ms < job->deadline_ms))
            job->deadline_ms = part->deadline_ms;
    }
}

/* Memory for the chunks of all observations. */
static openpi_status make_chunks(prepare *p, job *job, int samples, openpi_error *error) {
    int horizon = job->model->horizon, dims = job->model->info.action_dim, count = job->part_count;
    int chunks = count * (samples ? samples : 1);
    if (chunks > OPENPI_MAX_OBSERVATIONS)
        return fail(error, OPENPI_BAD_INPUT,
                    "the request has %d observations with %d chunks each, expected at most %d chunks "
                    "together", count, samples, OPENPI_MAX_OBSERVATIONS);
    prepare_count(p, job, job->needs + job_parts_bytes(count, samples, horizon, dims));
    if (job_make_part_chunks(job, samples, horizon, dims)) return OPENPI_OK;
    return fail(error, OPENPI_NO_MEMORY, "out of memory: a request of %d observations", count);
}

/* ---- preparing -------------------------------------------------------------------------------------- */

static openpi_status prepare_part(prepare *p, job *job, int i, openpi_error *error) {
    openpi_extras extras = OPENPI_EXTRAS_INIT;
    job_part *part = &job->parts[i];
    int chunks = job_part_chunks(job);
    SERVE_TRY(openpi_request_extras(part->request, &extras, error));
    if (extras.samples != job->part_samples)
        return fail(error, OPENPI_BAD_INPUT,
                    "\"openpi/samples\" of the request is %d, expected %d as of the observations before it "
                    "(0: absent)", extras.samples, job->part_samples);
    prepare_noise(p, job, &extras, i * chunks, chunks);
    SERVE_TRY(openpi_request_prepare_read(part->request, NULL, error));
    part->truncated = openpi_request_prompt_truncated(part->request);
    part->sample = (openpi_sample)OPENPI_SAMPLE_INIT;
    return openpi_request_sample(part->request, &part->sample, error);
}

static void prepare_step(prepare *p, job *job, int i) {
    openpi_error why = OPENPI_ERROR_INIT;
    job_part *part = &job->parts[i];
    if (part->status == OPENPI_OK) note_part(part, prepare_part(p, job, i, &why), &why);
}

/* The chunks that are computed, in order. */
static void list_fitting(job *job) {
    int chunks = job_part_chunks(job);
    job->truncated = 0;
    for (int i = 0; i < job->part_count; i++) {
        if (job->parts[i].status != OPENPI_OK) continue;
        job->truncated |= job->parts[i].truncated;
        for (int c = 0; c < chunks; c++) job->fit[job->fit_count++] = i * chunks + c;
    }
}

/* What is left of the memory when all are prepared. */
static void count_kept(prepare *p, job *job) {
    size_t while_made, kept = part_needs(job, job->part_count, &while_made);
    prepare_count(p, job, openpi_request_bytes(job->model->policy, 0, NULL) + (size_t)job->part_count * kept +
                              job_parts_bytes(job->part_count, job->part_samples, job->model->horizon,
                                              job->model->info.action_dim));
}

/* One that cannot be prepared has its sentence; the others go on. The answer to a message of none that can
 * be is the first one's. */
openpi_status parts_prepare(prepare *p, job *job, openpi_error *error) {
    int samples, count = job->observations;
    if (!job_make_parts(job, count))
        return fail(error, OPENPI_NO_MEMORY, "out of memory: a request of %d observations", count);
    prepare_each(p, job, read_step);
    gather(job, &samples);
    SERVE_TRY(make_chunks(p, job, samples, error));
    prepare_each(p, job, prepare_step);
    list_fitting(job);
    count_kept(p, job);
    if (job->fit_count) return OPENPI_OK;
    return fail(error, job->parts[0].status, "observation 0 of %d: %.400s", count, job->parts[0].sentence);
}
