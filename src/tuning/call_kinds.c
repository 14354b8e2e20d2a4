#include "tuning/call_kinds.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/report.h"
#include "tuning/tuning.h"

enum { SHAPES = 96, PICTURE_ROWS = OPENPI_CAMERAS * OPENPI_IMAGE_TOKENS };

/* CALL_ANY first: what other kinds share with it is recorded once, as its own. */
static const int order[CALL_KINDS] = {CALL_ANY, 0, 1, OPENPI_CAMERAS, OPENPI_CAMERAS + 1, OPENPI_CAMERAS + 2};

static device *device_of(const call_kinds *kinds) { return kinds->plan->model->device; }

/* ---- choices ---------------------------------------------------------------------------------------- */

/* A shape that was looked up already: a plan has hundreds of ops and few shapes. */
typedef struct known_shape {
    tuning_key key;
    int choices[CALL_KINDS];
    int found, candidates;
} known_shape;

/* The rows of an op that have as many as the pictures, or as the prefix; NULL: no such op. */
static row_set *picture_rows(const plan *p, op *op) {
    row_set *rows = tuning_rows(op);
    int longest = PICTURE_ROWS + p->shape.max_prompt;
    return rows && (rows->capacity == PICTURE_ROWS || rows->capacity == longest) ? rows : NULL;
}

/* 1: the device asks its heuristic for each number of cameras. */
static int by_rows(const model *m) {
    const backend *backend = m->device->backend;
    return backend->chooses_by_rows && backend->chooses_by_rows(m->device);
}

int call_kinds_usual(const plan *p, const op *op, int cameras) {
    const backend *backend = p->model->device->backend;
    candidate list[TUNING_CANDIDATES];
    struct op fewer = *op;
    row_set *rows = picture_rows(p, &fewer);
    if (!rows || plan_samples(p) > 1 || cameras == OPENPI_CAMERAS || !by_rows(p->model)) return 0;
    rows->capacity -= (OPENPI_CAMERAS - cameras) * OPENPI_IMAGE_TOKENS;
    const int count = backend->candidates(p->model->device, &fewer, list, TUNING_CANDIDATES);
    for (int i = 0; i < count && i < TUNING_CANDIDATES; i++)
        if (list[i].heuristic) return tuning_choice(p->model->device, op, list[i].name);
    return 0;
}

/* For a short prompt, ops over the rows of the longest prefix are looked up as if it were the short one. */
static void look_up(const call_kinds *kinds, const op *op, known_shape *out) {
    const model *m = kinds->plan->model;
    const backend *backend = m->device->backend;
    *out = (known_shape){.key = tuning_key_of(op)};
    out->candidates = backend->candidates ? backend->candidates(m->device, op, NULL, 0) : 0;
    for (int kind = 0; kind < CALL_KINDS && out->candidates > 1; kind++) {
        tuning_key key = out->key;
        if (kind > CALL_ANY && kinds->short_prompt && key.m == PICTURE_ROWS + kinds->plan->shape.max_prompt)
            key.m = PICTURE_ROWS + kinds->short_prompt;
        const int cameras = kind % OPENPI_CAMERAS + 1;
        const tuning_entry *entry = m->tuning ? tuning_find(m->tuning, &key, cameras) : NULL;
        const int known = entry ? tuning_choice(m->device, op, entry->choice) : 0;
        out->choices[kind] = known ? known : call_kinds_usual(kinds->plan, op, cameras);
        out->found |= known > 0;
    }
}

/* The longest prompt of the table that is shorter than this plan's: its prefix has the rows of an entry. */
static int find_short_prompt(const plan *p) {
    int rows = 0;
    for (int i = 0; p->model->tuning && i < p->model->tuning->count; i++) {
        int m = p->model->tuning->entries[i].key.m;
        if (m > PICTURE_ROWS && m < PICTURE_ROWS + p->shape.max_prompt && m > rows) rows = m;
    }
    return plan_samples(p) == 1 && rows ? rows - PICTURE_ROWS : 0;
}

static openpi_status find_choices(call_kinds *kinds, openpi_error *error) {
    const plan *p = kinds->plan;
    known_shape shapes[SHAPES], other;
    size_t bytes = (size_t)p->count * CALL_KINDS * sizeof *kinds->choices;
    int count = 0;
    if (!p->model->tuning && !by_rows(p->model)) return OPENPI_OK;
    kinds->short_prompt = find_short_prompt(p);
    kinds->choices = malloc(bytes);
    if (!kinds->choices) return report_no_memory(error, bytes, "the plan's choices");
    for (int i = 0; i < p->count; i++) {
        tuning_key key = tuning_key_of(&p->ops[i]);
        known_shape *shape = shapes;
        while (shape < shapes + count && !tuning_same(&shape->key, &key)) shape++;
        if (shape == shapes + SHAPES) shape = &other;
        if (shape == shapes + count || shape == &other) look_up(kinds, &p->ops[i], shape);
        if (shape == shapes + count) count++;
        for (int kind = 0; kind < CALL_KINDS; kind++)
            kinds->choices[kind * p->count + i] = shape->choices[kind];
        kinds->tuned += shape->found;
        kinds->unknown += shape->candidates > 1 && !shape->found;
    }
    return OPENPI_OK;
}

static int equal(const call_kinds *kinds, int a, int b) {
    int count = kinds->plan->count;
    return !memcmp(kinds->choices + a * count, kinds->choices + b * count,
                   (size_t)count * sizeof *kinds->choices);
}

static void find_shared(call_kinds *kinds) {
    int several = kinds->choices && plan_samples(kinds->plan) == 1;
    for (int i = 0; i < CALL_KINDS; i++) {
        int at = 0;
        while (several && at < i && !equal(kinds, order[at], order[i])) at++;
        kinds->same_as[order[i]] = order[at];
    }
}

openpi_status call_kinds_open(call_kinds *kinds, plan *plan, openpi_error *error) {
    const backend *backend = plan->model->device->backend;
    *kinds = (call_kinds){.plan = plan, .chosen = -1};
    TRY(find_choices(kinds, error));
    find_shared(kinds);
    kinds->work_bytes = backend->work_bytes(plan->model->device, plan->setup, plan->setup_count);
    for (int i = CALL_KINDS - 1; i >= 0; i--) {            /* CALL_ANY last: it stays chosen */
        if (kinds->same_as[order[i]] != order[i]) continue;
        call_kinds_choose(kinds, order[i]);
        size_t bytes = backend->work_bytes(plan->model->device, plan->ops, plan->count);
        if (bytes > kinds->work_bytes) kinds->work_bytes = bytes;
    }
    return OPENPI_OK;
}

int call_kinds_find(const call_kinds *kinds, int pictures, int tokens) {
    if (plan_samples(kinds->plan) > 1) return CALL_ANY;
    int is_short = kinds->short_prompt && tokens <= kinds->short_prompt;
    return (pictures ? pictures - 1 : 0) + (is_short ? OPENPI_CAMERAS : 0);
}

void call_kinds_choose(call_kinds *kinds, int kind) {
    const plan *p = kinds->plan;
    if (kinds->chosen == kind) return;
    kinds->chosen = kind;
    for (int i = 0; kinds->choices && i < p->count; i++)
        p->ops[i].choice = kinds->choices[kind * p->count + i];
}

/* ---- recordings ------------------------------------------------------------------------------------- */

static openpi_status record(call_kinds *kinds, int kind, void *work, openpi_error *error) {
    device *device = device_of(kinds);
    const plan *p = kinds->plan;
    call_kinds_choose(kinds, kind);
    return device->backend->record(device, plan_list(p), work, &kinds->recordings[kind], error);
}

openpi_status call_kinds_record(call_kinds *kinds, void *work, openpi_error *error) {
    openpi_error why = OPENPI_ERROR_INIT;
    if (!device_of(kinds)->backend->record) return OPENPI_OK;
    openpi_status status = record(kinds, CALL_ANY, work, &why);
    if (status == OPENPI_UNSUPPORTED) {
        snprintf(kinds->no_recording, sizeof kinds->no_recording, "%.199s", why.message);
        return OPENPI_OK;
    }
    for (int i = 1; i < CALL_KINDS && status == OPENPI_OK; i++) {
        if (kinds->same_as[order[i]] != order[i]) continue;
        status = record(kinds, order[i], work, &why);
        if (status == OPENPI_UNSUPPORTED) status = OPENPI_OK;
    }
    call_kinds_choose(kinds, CALL_ANY);
    if (status == OPENPI_OK) return OPENPI_OK;
    call_kinds_forget(kinds);
    return report_again(error, &why);
}

struct recording *call_kinds_recording(const call_kinds *kinds, int kind) {
    struct recording *any = kinds->recordings[CALL_ANY], *own = kinds->recordings[kinds->same_as[kind]];
    return any && own ? own : any;
}

void call_kinds_forget(call_kinds *kinds) {
    for (int kind = 0; kind < CALL_KINDS; kind++) {
        if (kinds->recordings[kind])
            device_of(kinds)->backend->forget(device_of(kinds), kinds->recordings[kind]);
        kinds->recordings[kind] = NULL;
    }
}

void call_kinds_close(call_kinds *kinds) {
    free(kinds->choices);
    kinds->choices = NULL;
}
