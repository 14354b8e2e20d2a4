/* Profile: rows from launches, medians from calls, floors from roofs. */
#include "lab/measure/profile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/report.h"
#include "lab/measure/costs.h"
#include "openpi_internal.h"

/* ---- shapes --------------------------------------------------------------------------------------- */

/* How the shape of an op of a kind is written, and the offset of the field that holds it. */
typedef enum shape_form { SHAPE_ROWS, SHAPE_MATRIX, SHAPE_HEADS, SHAPE_COLUMNS } shape_form;

static const struct {
    shape_form form;
    size_t at; /* offset of a matrix, of the number of heads or of columns               */
} forms[OP_KINDS] = {
    [OP_PATCH_EMBED] = {SHAPE_MATRIX, offsetof(op, patch_embed.weight)},
    [OP_NORM_LINEAR] = {SHAPE_MATRIX, offsetof(op, norm_linear.weight)},
    [OP_LINEAR_RESIDUAL] = {SHAPE_MATRIX, offsetof(op, linear_residual.weight)},
    [OP_NORM_QKV] = {SHAPE_MATRIX, offsetof(op, norm_qkv.weight)},
    [OP_STATE_EMBED] = {SHAPE_MATRIX, offsetof(op, state_embed.weight)},
    [OP_ACTION_EMBED] = {SHAPE_MATRIX, offsetof(op, action_embed.in)},
    [OP_VELOCITY] = {SHAPE_MATRIX, offsetof(op, velocity.weight)},
    [OP_IMAGE_ATTENTION] = {SHAPE_HEADS, offsetof(op, image_attention.heads)},
    [OP_CACHE_ATTENTION] = {SHAPE_HEADS, offsetof(op, cache_attention.heads)},
    [OP_SCORES] = {SHAPE_HEADS, offsetof(op, scores.heads)},
    [OP_SOFTMAX] = {SHAPE_HEADS, offsetof(op, softmax.heads)},
    [OP_VALUES] = {SHAPE_HEADS, offsetof(op, values.heads)},
    [OP_EMBED_TEXT] = {SHAPE_COLUMNS, offsetof(op, embed_text.table.k)},
    [OP_NORM] = {SHAPE_COLUMNS, offsetof(op, norm.n)},
    [OP_ACTIVATE] = {SHAPE_COLUMNS, offsetof(op, activate.n)},
    [OP_ADD] = {SHAPE_COLUMNS, offsetof(op, add.n)},
    [OP_GUIDE] = {SHAPE_COLUMNS, offsetof(op, guide.n)},
};

static void write_shape(const op *op, int rows, double keys, char *text, size_t bytes) {
    const char *place = (const char *)op + forms[op->kind].at;
    int number = 0;
    matrix w = {0};
    switch (forms[op->kind].form) {
    case SHAPE_ROWS: snprintf(text, bytes, "%d", rows); break;
    case SHAPE_MATRIX: {
        static const char *const more[] = {"", "", "+mlp_out", "+mlp"};
        int products = op->kind == OP_ACTION_EMBED ? action_embed_products(&op->action_embed) : 1;
        memcpy(&w, place, sizeof w);
        snprintf(text, bytes, "%dx%dx%d%s", rows, w.n, w.k, more[products]);
        break;
    }
    case SHAPE_HEADS:
        memcpy(&number, place, sizeof number);
        snprintf(text, bytes, "%dx%dx%lld", number, rows, (long long)(keys + 0.5));
        break;
    case SHAPE_COLUMNS:
        memcpy(&number, place, sizeof number);
        snprintf(text, bytes, "%dx%d", rows, number);
        break;
    }
}

/* ---- rows ----------------------------------------------------------------------------------------- */

static void add_cost(op_cost *to, const op_cost *cost) {
    to->flops += cost->flops;
    to->bytes += cost->bytes;
    to->weight_bytes += cost->weight_bytes;
}

static void add_kernel(profile_op *row, const char *kernel) {
    size_t used = strlen(row->kernel), length = strlen(kernel);
    const char *at = strstr(row->kernel, kernel);
    if (at && (at[length] == ' ' || !at[length])) return;
    snprintf(row->kernel + used, sizeof row->kernel - used, "%s%s", used ? " + " : "", kernel);
}

profile_op profile_row(const openpi_session *s, int first, int ops, const bench_roofs *roofs) {
    const op *op = &s->plan->ops[first], *last = op + ops - 1;
    profile_op row = {.stage = op->stage, .step = op->step, .layer = op->layer, .first = first, .ops = ops};
    row.kind = ops == 1 ? op_kind_name(op->kind) : "several";
    snprintf(row.name, sizeof row.name, ops == 1 ? "%s" : "%s … %s", op->name, last->name);
    for (int i = 0; i < ops; i++) {
        call_cost cost = costs_of_op(s, first + i);
        add_cost(&row.cost, &cost.cost);
        if (ops == 1) write_shape(op, cost.rows, cost.keys, row.shape, sizeof row.shape);
        if (op[i].step != row.step) row.step = -1;
        if (row.layer == -1) row.layer = op[i].layer;
        if (op[i].layer >= 0 && op[i].layer != row.layer) row.layer = -2;
    }
    if (row.layer < 0) row.layer = -1;
    if (ops > 1) snprintf(row.shape, sizeof row.shape, "%d operations", ops);
    row.floor_ms = bench_floor(row.cost.flops, row.cost.weight_bytes, roofs, &row.memory_bound);
    return row;
}

/* One row for the ops of each launch, in the plan's order; places[i]: the row of launch i. An op without a
 * launch of its own has a row too, with its work and without a time. */
static void make_rows(const timed *t, const bench_roofs *roofs, profile *out, int *places) {
    const openpi_session *s = t->session;
    int next = 0;
    for (int i = 0; i < t->count; i++) {
        const launch_record *l = &t->launches[i];
        profile_op *last = out->count ? &out->ops[out->count - 1] : NULL;
        if (!last || l->op != last->first) {
            for (; next < l->op; next++) out->ops[out->count++] = profile_row(s, next, 1, roofs);
            last = &out->ops[out->count++];
            *last = profile_row(s, l->op, l->ops, roofs);
            next = l->op + l->ops;
        }
        last->calls++;
        add_kernel(last, l->kernel);
        places[i] = out->count - 1;
    }
    for (; next < s->plan->count; next++) out->ops[out->count++] = profile_row(s, next, 1, roofs);
}

/* ---- measuring ------------------------------------------------------------------------------------ */

typedef struct samples {
    double *host, *replay, *timed, *coverage; /* [runs]                                            */
    double *ops; /* [rows][runs]                                                          */
    int *places; /* [launches]                                                            */
} samples;

static double stages_ms(const openpi_timing *timing) {
    double sum = 0;
    for (int i = 0; i < OPENPI_STAGES; i++)
        if (i != OPENPI_STAGE_UPLOAD && i != OPENPI_STAGE_DOWNLOAD) sum += timing->stage_ms[i];
    return sum;
}

/* By the clock that times the launches: the device's if all ran as one replay. */
static double run_ms(const timed *t, const openpi_timing *timing) {
    return t->method == TIMED_REPLAY ? stages_ms(timing) : timing->device_ms;
}

static openpi_status one_pair(timed *t, workload_inputs *in, int run, int runs, samples *to,
                              openpi_error *error) {
    openpi_timing plain = OPENPI_TIMING_INIT, timing = OPENPI_TIMING_INIT;
    double sum = 0;
    timed_switch(t, 0);
    TRY(workload_run(t->session, in, &plain, error));
    timed_switch(t, 1);
    TRY(workload_run(t->session, in, &timing, error));
    if (run < 0) return OPENPI_OK;
    to->host[run] = plain.total_ms;
    to->replay[run] = run_ms(t, &plain);
    to->timed[run] = run_ms(t, &timing);
    for (int i = 0; i < t->count; i++) {
        double ms = t->launches[i].end_ms - t->launches[i].start_ms;
        to->ops[to->places[i] * runs + run] += ms;
        sum += ms;
    }
    to->coverage[run] = to->timed[run] > 0 ? sum / to->timed[run] : 0;
    return OPENPI_OK;
}

static openpi_status check_launches(const timed *t, openpi_error *error) {
    int next = 0, last = -1;
    for (int i = 0; i < t->count; i++) {
        const launch_record *l = &t->launches[i];
        if ((l->op == last || l->op >= next) && l->ops > 0 && l->op + l->ops <= t->session->plan->count) {
            last = l->op;
            next = l->op + l->ops;
            continue;
        }
        return report(error, OPENPI_SYSTEM,
                      "launch %d of the timed recording computes %d operations from %d on, expected some "
                      "from %d on of %d",
                      i, l->ops, l->op, next, t->session->plan->count);
    }
    return OPENPI_OK;
}

static openpi_status take(const timed *t, int runs, profile *out, samples *to, openpi_error *error) {
    size_t rows = (size_t)t->session->plan->count, n = (size_t)runs;
    out->ops = calloc(rows, sizeof *out->ops);
    to->host = calloc((rows + 4) * n, sizeof *to->host);
    to->places = calloc((size_t)t->count + 1, sizeof *to->places);
    if (!out->ops || !to->host || !to->places)
        return report_no_memory(error, (rows + 4) * n * sizeof *to->host, "the profile's times");
    to->replay = to->host + n;
    to->timed = to->replay + n;
    to->coverage = to->timed + n;
    to->ops = to->coverage + n;
    return OPENPI_OK;
}

static openpi_status measure(timed *t, const profile_options *o, const bench_roofs *roofs,
                             workload_inputs *in, profile *out, samples *to, openpi_error *error) {
    TRY(check_launches(t, error));
    TRY(take(t, o->runs, out, to, error));
    for (int i = -o->warmup; i < o->runs; i++) {
        if (!i && !o->warmup)
            TRY(workload_run(t->session, in, NULL, error)); /* the rows of the call must be there */
        if (!i) make_rows(t, roofs, out, to->places);
        TRY(one_pair(t, in, i, o->runs, to, error));
        uint64_t done = (uint64_t)(i + o->warmup + 1), total = (uint64_t)(o->runs + o->warmup);
        if (o->progress) o->progress(o->progress_user, "profiling", done, total);
    }
    return OPENPI_OK;
}

static void summarise(const timed *t, const profile_options *o, samples *from, profile *out) {
    const backend *backend = t->session->engine->device->backend;
    out->method = t->method;
    memcpy(out->not_replayed, t->not_replayed, sizeof out->not_replayed);
    out->runs = o->runs;
    out->launches = t->count;
    const struct recording *recording = t->session->kinds.recordings[CALL_ANY];
    if (recording && backend->nodes) out->nodes = backend->nodes(recording);
    out->host = figures_of(from->host, o->runs);
    out->replay = figures_of(from->replay, o->runs);
    out->timed = figures_of(from->timed, o->runs);
    out->coverage_ratio = figures_of(from->coverage, o->runs).p50_ms;
    for (int i = 0; i < out->count; i++) {
        out->ops[i].ms = figures_of(from->ops + (size_t)i * (size_t)o->runs, o->runs).p50_ms;
        out->sum_ms += out->ops[i].ms;
    }
}

openpi_status profile_run(openpi_session *s, const profile_options *o, const bench_roofs *roofs, profile *out,
                          openpi_error *error) {
    workload_inputs in = {0};
    samples samples = {0};
    timed t = {0};
    *out = (profile){0};
    if (o->runs < 1 || o->warmup < 0)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "profile: %d measured and %d warm-up runs, expected at least 1 and 0", o->runs,
                      o->warmup);
    openpi_status status = workload_make(s, &o->call, &in, error);
    if (status == OPENPI_OK) status = timed_open(s, &t, error);
    if (status == OPENPI_OK) status = measure(&t, o, roofs, &in, out, &samples, error);
    if (status == OPENPI_OK) summarise(&t, o, &samples, out);
    timed_close(&t);
    workload_free(&in);
    free(samples.host);
    free(samples.places);
    return status;
}

void profile_free(profile *p) {
    free(p->ops);
    *p = (profile){0};
}

/* ---- groups --------------------------------------------------------------------------------------- */

static void group_name(const profile_op *row, profile_by by, char *name, size_t bytes) {
    const char *stage = openpi_stage_name(row->stage);
    switch (by) {
    case PROFILE_BY_STAGE: snprintf(name, bytes, "%s", stage); break;
    case PROFILE_BY_STEP:
        if (row->step < 0) snprintf(name, bytes, "%s", row->ops > 1 ? "several steps" : "before the steps");
        else snprintf(name, bytes, "step %d", row->step);
        break;
    case PROFILE_BY_OP: snprintf(name, bytes, "%s", row->name); break;
    case PROFILE_BY_KIND: snprintf(name, bytes, "%s", row->kind); break;
    case PROFILE_BY_LAYER:
        if (row->layer < 0)
            snprintf(name, bytes, "%s, %s", stage, row->ops > 1 ? "several layers" : "no layer");
        else snprintf(name, bytes, "%s layer %d", stage, row->layer);
        break;
    case PROFILE_BY_SHAPE: snprintf(name, bytes, "%s %s", row->kind, row->shape); break;
    }
}

static int by_time(const void *a, const void *b) {
    double x = ((const profile_group *)a)->ms, y = ((const profile_group *)b)->ms;
    return (x < y) - (x > y);
}

int profile_groups(const profile *p, profile_by by, profile_group *out) {
    int count = 0;
    for (int i = 0; i < p->count; i++) {
        const profile_op *row = &p->ops[i];
        char name[sizeof out->name];
        int g = 0;
        group_name(row, by, name, sizeof name);
        while (g < count && strcmp(out[g].name, name)) g++;
        if (g == count) {
            out[count++] = (profile_group){.ms = 0};
            memcpy(out[g].name, name, sizeof name);
        }
        out[g].ops += row->ops;
        out[g].calls += row->calls;
        add_cost(&out[g].cost, &row->cost);
        out[g].ms += row->ms;
        out[g].floor_ms += row->floor_ms;
        if (row->memory_bound) out[g].memory_ms += row->floor_ms;
    }
    if (by != PROFILE_BY_STAGE && by != PROFILE_BY_STEP) qsort(out, (size_t)count, sizeof *out, by_time);
    return count;
}
