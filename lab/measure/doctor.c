/* See doctor.h: what is seen. What it means is doctor_judge.c. */
#include "lab/measure/doctor.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/report.h"

enum { DIMS = OPENPI_ACTION_DIM, PIXELS = OPENPI_IMAGE_SIZE * OPENPI_IMAGE_SIZE * 3 };

/* A normal distribution has as much beyond mean ± NORMAL_Q99 std as beyond its q01 and q99. */
#define NORMAL_Q99 2.3263

/* ---- statistics ---------------------------------------------------------------------------------------- */

static void take_openpi(doctor *doc, const norm_stats *stats, norm_mode mode) {
    doc->known = mode != STATS_NONE;
    for (int d = 0; d < stats->dims && doc->known; d++) {
        int exact = mode == STATS_QUANTILE || stats->quantiles;
        doc->low[d] = exact ? stats->q01[d] : stats->mean[d] - NORMAL_Q99 * stats->std[d];
        doc->high[d] = exact ? stats->q99[d] : stats->mean[d] + NORMAL_Q99 * stats->std[d];
    }
}

static void take_lerobot(doctor *doc, const lerobot *pipeline) {
    for (int i = 0; i < pipeline->before_count; i++) {
        const lerobot_norm *norm = &pipeline->before[i].norm;
        if (pipeline->before[i].kind != LEROBOT_NORMALIZE || norm->mode == LEROBOT_IDENTITY) continue;
        doc->known = 1;
        for (int d = 0; d < DIMS; d++) {
            double low = (double)norm->low[d], high = (double)norm->high[d];
            int deviation = norm->mode == LEROBOT_MEAN_STD;
            doc->low[d] = deviation ? low - NORMAL_Q99 * high : low;
            doc->high[d] = deviation ? low + NORMAL_Q99 * high : high;
        }
    }
}

/* ---- one request --------------------------------------------------------------------------------------- */

static double pixel_at(const openpi_sample *sample, int slot, int i) {
    return sample->pixels == OPENPI_PIXELS_U8 ? ((const uint8_t *)sample->images[slot])[i] / 255.0
                                              : ((double)((const float *)sample->images[slot])[i] + 1) / 2;
}

static doctor_picture look_at(const openpi_sample *sample, int slot) {
    doctor_picture seen = {.there = sample->image_mask[slot] != 0, .hash = 0xCBF29CE484222325u};
    double sum = 0, squares = 0;
    for (int i = 0; i < PIXELS && seen.there; i++) {
        double value = pixel_at(sample, slot, i);
        seen.hash = (seen.hash ^ (uint64_t)(value * 255 + 0.5)) * 0x100000001B3u;
        sum += value;
        squares += value * value;
    }
    seen.mean = sum / PIXELS;
    seen.deviation = sqrt(fmax(squares / PIXELS - seen.mean * seen.mean, 0));
    return seen;
}

/* The state in the units of its statistics, as take_robot_state of request.c has it before it normalises. */
static void take_state(doctor *doc, const openpi_request *request, doctor_sight *sight) {
    int count;
    const double *raw = openpi_request_raw_state(request, &count),
                 *normal = openpi_request_state(request, &count);
    memcpy(sight->state, raw, (size_t)count * sizeof *raw);
    memcpy(sight->normal, normal, (size_t)count * sizeof *normal);
    if (!doc->policy->lerobot && count) {
        robot_limit_all(doc->policy->robot.state_limits, count, sight->state);
        robot_state_in(&doc->policy->robot, sight->state);
    }
    if (count > doc->numbers) doc->numbers = count;
}

static openpi_status read_one(openpi_request *request, const request_folder *folder, int index,
                              openpi_error *error) {
    char *bytes;
    size_t count;
    TRY(request_folder_read(folder, index, &bytes, &count, error));
    openpi_status status = openpi_request_prepare_msgpack(request, bytes, count, NULL, error);
    free(bytes);
    return status;
}

static openpi_status look_through(doctor *doc, openpi_request *request, const request_folder *folder,
                                  openpi_error *error) {
    int looked = folder->count < DOCTOR_MOST ? folder->count : DOCTOR_MOST;
    doc->sights = calloc((size_t)looked, sizeof *doc->sights);
    if (!doc->sights) return report_no_memory(error, (size_t)looked * sizeof *doc->sights, "what is seen");
    for (int i = 0; i < looked; i++) {
        int index = (int)((long)i * folder->count / looked);
        openpi_error why = OPENPI_ERROR_INIT;
        openpi_sample sample = OPENPI_SAMPLE_INIT;
        openpi_status status = read_one(request, folder, index, &why);
        if (status == OPENPI_NO_MEMORY || status == OPENPI_SYSTEM) return report_again(error, &why);
        if (status != OPENPI_OK) {
            if (!doc->refused++)
                snprintf(doc->refusal, sizeof doc->refusal, "%.100s: %.280s", folder->paths[index],
                         why.message);
            continue;
        }
        doctor_sight *sight = &doc->sights[doc->count++];
        TRY(openpi_request_sample(request, &sample, error));
        take_state(doc, request, sight);
        sight->truncated = openpi_request_prompt_truncated(request);
        for (int slot = 0; slot < OPENPI_CAMERAS; slot++) sight->pictures[slot] = look_at(&sample, slot);
    }
    return OPENPI_OK;
}

openpi_status doctor_look(doctor *doc, openpi_policy *policy, const request_folder *folder,
                          openpi_error *error) {
    openpi_request *request;
    *doc = (doctor){.policy = policy};
    if (policy->lerobot) limits_clear(&doc->limits, policy->action_dim);
    else doc->limits = policy->robot.limits;
    if (policy->lerobot) take_lerobot(doc, &policy->pipeline);
    else take_openpi(doc, &policy->state, policy->mode);
    TRY(openpi_request_create(policy, &request, error));
    openpi_status status = look_through(doc, request, folder, error);
    openpi_request_close(request);
    return status;
}

void doctor_close(doctor *doc) {
    free(doc->sights);
    doc->sights = NULL;
}

/* ---- the model ----------------------------------------------------------------------------------------- */

/* Answers to one request: [seeds][horizon][32] as the model gives them, and those of the first noise
 * [horizon][action_dim] in the robot's units. */
typedef struct answers {
    float *model;
    double actions[OPENPI_MAX_HORIZON * DIMS];
    double start[DIMS];
} answers;

static void count_actions(doctor *doc, const answers *a) {
    int dims = doc->policy->action_dim;
    for (int d = 0; d < dims; d++) {
        double steps = 0;
        for (int h = 0; h < doc->horizon; h++) {
            double value = a->actions[h * dims + d];
            doc->least[d] = doc->chunks || h ? fmin(doc->least[d], value) : value;
            doc->most[d] = doc->chunks || h ? fmax(doc->most[d], value) : value;
            if (h) steps += fabs(value - a->actions[(h - 1) * dims + d]);
        }
        if (doc->horizon > 1) doc->step[d] += steps / (doc->horizon - 1);
        doc->jump[d] += fabs(a->actions[d] - a->start[d]);
    }
}

static void count_noise(doctor *doc, const answers *a) {
    double span = doc->policy->mode == STATS_ZSCORE ? 2 * NORMAL_Q99 : 2;
    int outside = 0;
    for (int d = 0; d < doc->policy->action_dim; d++) {
        double all = 0;
        for (int h = 0; h < doc->horizon; h++) {
            double sum = 0, squares = 0;
            for (int s = 0; s < doc->seeds; s++) {
                double value = (double)a->model[((size_t)s * (size_t)doc->horizon + (size_t)h) * DIMS +
                                                (size_t)d];
                sum += value;
                squares += value * value;
                outside += fabs(value) > 1.5 * span;
            }
            sum /= doc->seeds;
            all += sqrt(fmax(squares / doc->seeds - sum * sum, 0));
        }
        doc->spread[d] += all / doc->horizon / span;
    }
    doc->outside += (double)outside / (doc->policy->action_dim * doc->horizon * doc->seeds);
}

/* What the robot's limits would say, on a copy. */
static void count_limits(doctor *doc, const answers *a) {
    double copy[OPENPI_MAX_HORIZON * DIMS];
    limits_report found;
    int numbers = doc->horizon * doc->policy->action_dim;
    if (!doc->limits.count) return;
    memcpy(copy, a->actions, (size_t)numbers * sizeof *copy);
    doc->limited += numbers;
    int sent = limits_apply(&doc->limits, NULL, a->start, copy, doc->horizon, &found);
    for (int kind = 0; kind < LIMIT_KINDS; kind++) doc->beyond[kind] += found.beyond[kind];
    if (sent || doc->stopped++) return;
    char why[200];
    snprintf(doc->stop, sizeof doc->stop, "action %d of step %d is %s", found.dim, found.step,
             limits_describe(&found, why, sizeof why));
}

static openpi_status ask_one(doctor *doc, openpi_session *session, openpi_request *request, answers *a,
                             openpi_error *error) {
    size_t chunk = (size_t)doc->horizon * DIMS;
    openpi_sample sample = OPENPI_SAMPLE_INIT;
    float noise[OPENPI_MAX_HORIZON * DIMS];
    TRY(openpi_request_sample(request, &sample, error));
    for (int s = 0; s < doc->seeds; s++) {
        openpi_noise((uint64_t)s, 0, noise, chunk);
        TRY(openpi_session_run(session, &sample, 1, noise, a->model + (size_t)s * chunk, NULL, error));
    }
    TRY(openpi_request_finish(request, a->model, doc->horizon, a->actions, OPENPI_MAX_HORIZON * DIMS, error));
    for (int d = 0; d < DIMS; d++) a->start[d] = openpi_request_action_start(request, d);
    count_actions(doc, a);
    count_noise(doc, a);
    count_limits(doc, a);
    doc->chunks++;
    return OPENPI_OK;
}

static openpi_status ask_some(doctor *doc, openpi_session *session, const request_folder *folder, int chunks,
                              answers *a, openpi_error *error) {
    openpi_request *request;
    TRY(openpi_request_create(doc->policy, &request, error));
    int asked = folder->count < chunks ? folder->count : chunks;
    openpi_status status = OPENPI_OK;
    for (int i = 0; i < asked && status == OPENPI_OK; i++) {
        openpi_error refused = OPENPI_ERROR_INIT;         /* doctor_look has told of it                    */
        if (read_one(request, folder, (int)((long)i * folder->count / asked), &refused) == OPENPI_OK)
            status = ask_one(doc, session, request, a, error);
    }
    openpi_request_close(request);
    return status;
}

static void divide_by_chunks(doctor *doc) {
    for (int d = 0; d < DIMS && doc->chunks; d++) {
        doc->step[d] /= doc->chunks;
        doc->jump[d] /= doc->chunks;
        doc->spread[d] /= doc->chunks;
    }
    if (doc->chunks) doc->outside /= doc->chunks;
}

openpi_status doctor_ask(doctor *doc, openpi_session *session, const request_folder *folder, int chunks,
                         int seeds, openpi_error *error) {
    openpi_session_info info = OPENPI_SESSION_INFO_INIT;
    TRY(openpi_policy_match(doc->policy, session, error));
    TRY(openpi_session_get_info(session, &info, error));
    doc->horizon = info.horizon;
    doc->seeds = seeds;
    answers *a = calloc(1, sizeof *a);
    float *model = calloc((size_t)seeds * (size_t)info.horizon * DIMS, sizeof *model);
    int limited = doc->policy->robot.limits.count;
    openpi_status status = OPENPI_NO_MEMORY;
    doc->policy->robot.limits.count = 0;         /* the model's own actions are what is looked at          */
    if (a && model) {
        a->model = model;
        status = ask_some(doc, session, folder, chunks, a, error);
    } else {
        report(error, status, "out of memory: the answers of the model");
    }
    doc->policy->robot.limits.count = limited;
    free(model);
    free(a);
    divide_by_chunks(doc);
    return status;
}
