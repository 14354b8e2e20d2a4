/* Tuning a plan: its shapes, their candidates, the winners in place. The journal is tune_journal.c. */
#include "measure/tune.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/report.h"
#include "measure/costs.h"
#include "measure/figures.h"
#include "measure/workload.h"
#include "openpi_internal.h"

enum { INSTANCES = 36, PADDED = 8, SURVIVORS = 12, ROUNDS = 11, CONFIRM_ROUNDS = 15, STEPS = 10 };
static const double hopeless = 1.6, far_off = 1.3;       /* times the best so far: not timed again, not in the rounds */
static const double gain = 0.01;                         /* a winner is this much faster than the rule's way, at least */

/* A session whose buffers hold a call, and ops over it that may go other ways than the session's. */
typedef struct bench {
    tune *tune;
    openpi_session *session;
    device *device;
    workload_inputs inputs;
    int cameras;
    op *ops;                     /* [plan count] the plan's, as they run in place                         */
    void *work;
    size_t work_bytes;
    size_t cache_bytes;
} bench;

/* ---- one run of some ops ---------------------------------------------------------------------------------- */

typedef struct runnable {
    op *ops;
    int count;
    struct recording *recording; /* NULL: the device runs them one by one                                 */
} runnable;

static openpi_status hold_work(bench *b, const op *ops, int count, openpi_error *error) {
    const backend *backend = b->device->backend;
    size_t bytes = backend->work_bytes(b->device, ops, count);
    if (bytes <= b->work_bytes) return OPENPI_OK;
    if (b->work) backend->release(b->device, b->work);
    b->work = NULL;
    b->work_bytes = 0;
    TRY(backend->allocate(b->device, bytes, "tuning's work block", &b->work, error));
    b->work_bytes = bytes;
    return OPENPI_OK;
}

/* The work block must not move afterwards: hold_work has seen the largest. */
static openpi_status prepare(bench *b, runnable *r, openpi_error *error) {
    const backend *backend = b->device->backend;
    r->recording = NULL;
    if (!backend->record) return OPENPI_OK;
    openpi_status status = backend->record(b->device, r->ops, r->count, b->work, &r->recording, error);
    return status == OPENPI_UNSUPPORTED ? OPENPI_OK : status;
}

static void forget(bench *b, runnable *r) {
    if (r->recording) b->device->backend->forget(b->device, r->recording);
    r->recording = NULL;
}

/* stages may be NULL. */
static openpi_status run_once(bench *b, const runnable *r, double *ms, double *stages, openpi_error *error) {
    double times[OPENPI_STAGES] = {0};
    const backend *backend = b->device->backend;
    TRY(r->recording ? backend->replay(b->device, r->recording, times, error) : backend->run(b->device, r->ops, r->count, b->work, times, error));
    *ms = 0;
    for (int i = 0; i < OPENPI_STAGES; i++) *ms += times[i];
    if (stages) memcpy(stages, times, sizeof times);
    return OPENPI_OK;
}

/* ---- one shape -------------------------------------------------------------------------------------------- */

typedef struct contender {
    int choice;
    double best_ms;
    double times[64];
    runnable run;
} contender;

/* The ops that are timed together: all that have the shape and weights of their own, else one of them and the plan's
 * largest op by turns. */
typedef struct lineup {
    op ops[2 * INSTANCES];
    int count, instances, padded;
    op padding[INSTANCES];
} lineup;

static const void *weights_of(const op *op) {
    switch (op->kind) {
    case OP_PATCH_EMBED: return op->patch_embed.weight.data;
    case OP_NORM_LINEAR: return op->norm_linear.weight.data;
    case OP_LINEAR_RESIDUAL: return op->linear_residual.weight.data;
    case OP_NORM_QKV: return op->norm_qkv.weight.data;
    case OP_STATE_EMBED: return op->state_embed.weight.data;
    case OP_ACTION_EMBED: return op->action_embed.in.data;
    case OP_VELOCITY: return op->velocity.weight.data;
    case OP_CACHE_ATTENTION: return op->cache_attention.cache.k;
    default: return NULL;
    }
}

static int seen(const lineup *l, const void *weights) {
    for (int i = 0; i < l->count; i++)
        if (weights_of(&l->ops[i]) == weights) return 1;
    return 0;
}

/* cameras of a key: where the number of cameras changes the rows in use or the keys. */
static tuning_key key_of(const bench *b, const op *op) {
    tuning_key key = tuning_key_of(op);
    int varies = op->stage == OPENPI_STAGE_VISION || (op->stage == OPENPI_STAGE_PREFIX && op->kind != OP_EMBED_TEXT) || op->kind == OP_CACHE_ATTENTION;
    key.cameras = varies ? b->cameras : 0;
    return key;
}

static void line_up(const bench *b, const tuning_key *key, lineup *l) {
    const plan *p = b->session->plan;
    double bytes = 0, most = 0;
    int largest[INSTANCES], pads = 0;
    l->count = 0;
    for (int i = 0; i < p->count && l->count < INSTANCES; i++) {
        tuning_key other = key_of(b, &b->ops[i]);
        const void *weights = weights_of(&b->ops[i]);
        if (!tuning_same(&other, key) || (weights && seen(l, weights))) continue;
        bytes += costs_of_op(b->session, i).cost.weight_bytes;
        l->ops[l->count++] = b->ops[i];
    }
    l->instances = l->count;
    l->padded = bytes > 0 && bytes < (double)b->cache_bytes;
    if (!l->padded) return;
    for (int i = 0; i < p->count; i++)
        if (costs_of_op(b->session, i).cost.weight_bytes > most) most = costs_of_op(b->session, i).cost.weight_bytes;
    for (int i = 0; i < p->count && pads < INSTANCES; i++)
        if (costs_of_op(b->session, i).cost.weight_bytes >= most) largest[pads++] = i;
    op first[INSTANCES];
    int distinct = l->count;
    memcpy(first, l->ops, (size_t)distinct * sizeof *first);
    l->instances = PADDED;
    l->count = 0;
    for (int i = 0; i < PADDED; i++) {
        op pad = b->ops[largest[i % pads]];
        pad.stage = first[0].stage;
        pad.choice = 0;
        l->padding[i] = l->ops[l->count++] = pad;
        l->ops[l->count++] = first[i % distinct];
    }
}

static void choose(lineup *l, int choice) {
    for (int i = l->padded; i < l->count; i += 1 + l->padded) l->ops[i].choice = choice;
}

static double median(double *times, int count) { return figures_of(times, count).p50_ms; }

static int by_best(const void *a, const void *b) {
    const contender *x = a, *y = b;
    return (x->best_ms > y->best_ms) - (x->best_ms < y->best_ms);
}

/* First pass: one warm run and two that count. Returns how many are still in. */
static openpi_status first_pass(bench *b, lineup *l, const candidate *list, int count, contender *all, int *left, openpi_error *error) {
    double best = 0;
    *left = 0;
    for (int i = 0; i < count; i++) {
        contender *c = &all[*left];
        *c = (contender){.choice = i + 1, .run = {l->ops, l->count, NULL}};
        choose(l, c->choice);
        TRY(prepare(b, &c->run, error));
        for (int run = 0; run < 3; run++) {
            double ms;
            openpi_status status = run_once(b, &c->run, &ms, NULL, error);
            if (status != OPENPI_OK) {
                forget(b, &c->run);
                return status;
            }
            if (run == 1 || (run && ms < c->best_ms)) c->best_ms = ms;
            if (run == 0 && best > 0 && ms > 4 * best) c->best_ms = ms, run = 3;
        }
        if (best <= 0 || c->best_ms < best) best = c->best_ms;
        if (c->best_ms > hopeless * best && !list[i].rule) forget(b, &c->run);
        else ++*left;
    }
    return OPENPI_OK;
}

static openpi_status rounds(bench *b, lineup *l, contender *all, int count, int times, openpi_error *error) {
    for (int round = 0; round < times; round++)
        for (int i = 0; i < count; i++) {
            if (all[i].choice > 0) choose(l, all[i].choice);
            TRY(run_once(b, &all[i].run, &all[i].times[round], NULL, error));
        }
    return OPENPI_OK;
}

/* Fills the row's entry; all has room for count + 1. */
static openpi_status contest(bench *b, lineup *l, const candidate *list, int count, contender *all, int *left, tune_row *row, openpi_error *error) {
    int times = b->tune->options.rounds, rule = -1;
    double padding = 0;
    TRY(first_pass(b, l, list, count, all, left, error));
    qsort(all, (size_t)*left, sizeof *all, by_best);
    int in = 0;
    for (int i = 0; i < *left; i++) {
        int is_rule = list[all[i].choice - 1].rule;
        if (!is_rule && (in >= SURVIVORS || all[i].best_ms > far_off * all[0].best_ms)) {
            forget(b, &all[i].run);
            continue;
        }
        contender kept = all[i];
        all[i].run.recording = NULL;       /* moved, not shared */
        all[in++] = kept;
    }
    *left = in;
    if (l->padded) {
        contender *pad = &all[(*left)++];
        *pad = (contender){.choice = -1, .run = {l->padding, PADDED, NULL}};
        TRY(prepare(b, &pad->run, error));
    }
    TRY(rounds(b, l, all, *left, times, error));
    if (l->padded) padding = median(all[in].times, times);
    int first = -1, second = -1;
    double us[TUNING_CANDIDATES];
    for (int i = 0; i < in; i++) {
        us[i] = (median(all[i].times, times) - padding) * 1000 / l->instances;
        if (us[i] < 0.001) us[i] = 0.001;
        if (list[all[i].choice - 1].rule) rule = i;
        if (first < 0 || us[i] < us[first]) second = first, first = i;
        else if (second < 0 || us[i] < us[second]) second = i;
    }
    if (rule < 0) rule = first;
    if (us[first] > us[rule] * (1 - gain) && first != rule) second = first, first = rule;
    tuning_entry *e = &row->entry;
    row->outcome = first == rule ? TUNE_HEURISTIC : TUNE_PENDING;
    row->winner_us = us[first];
    e->time_us = e->heuristic_us = us[rule];
    memcpy(row->winner, list[all[first].choice - 1].name, sizeof row->winner);
    memcpy(e->heuristic, list[all[rule].choice - 1].name, sizeof e->heuristic);
    memcpy(e->choice, e->heuristic, sizeof e->choice);
    if (second >= 0) {
        memcpy(e->runner_up, list[all[second].choice - 1].name, sizeof e->runner_up);
        e->runner_up_us = us[second];
    }
    return OPENPI_OK;
}

/* The library does the plain product only: no norm in front, nothing behind. */
static void time_library(bench *b, tune_row *row) {
    const backend *backend = b->device->backend;
    const tuning_key *key = &row->entry.key;
    openpi_error why = {OPENPI_OK, ""};
    int product = key->op == OP_NORM_LINEAR || key->op == OP_LINEAR_RESIDUAL || key->op == OP_NORM_QKV;
    if (!b->tune->options.library || !product || key->type != DTYPE_BF16 || !backend->library_product) return;
    if (backend->library_product(b->device, row->rows, key->n, key->k, &row->library_us, b->tune->library, &why) != OPENPI_OK) {
        row->library_us = 0;
        snprintf(b->tune->library, sizeof b->tune->library, "%.199s", why.message);
    }
}

static openpi_status measure_shape(bench *b, int index, const tuning_key *key, int calls, openpi_error *error) {
    static const size_t room = TUNING_CANDIDATES + 1;
    const op *op = &b->ops[index];
    call_cost cost = costs_of_op(b->session, index);
    candidate *list = calloc(TUNING_CANDIDATES, sizeof *list);
    contender *all = calloc(room, sizeof *all);
    lineup *l = malloc(sizeof *l);
    int left = 0;
    openpi_status status = list && all && l ? OPENPI_OK : report_no_memory(error, room * sizeof *all, "tuning's candidates");
    tune_row row = {.entry = {.key = *key}, .stage = op->stage, .calls = calls, .flops = cost.cost.flops, .bytes = cost.cost.bytes, .rows = cost.rows};
    snprintf(row.op, sizeof row.op, "%s", op->name ? op->name : "");
    if (status == OPENPI_OK) {
        row.candidates = b->device->backend->candidates(b->device, op, list, TUNING_CANDIDATES);
        if (row.candidates > TUNING_CANDIDATES) row.candidates = TUNING_CANDIDATES;
        line_up(b, key, l);
    }
    for (int i = 0; i <= row.candidates && status == OPENPI_OK; i++) {
        choose(l, i);
        status = hold_work(b, l->ops, l->count, error);
    }
    if (status == OPENPI_OK) status = contest(b, l, list, row.candidates, all, &left, &row, error);
    for (int i = 0; all && i < (int)room; i++) forget(b, &all[i].run);
    if (status == OPENPI_OK) {
        time_library(b, &row);
        tune_row *kept = tune_row_add(b->tune);
        if (kept) *kept = row;
        else status = report_no_memory(error, sizeof row, "the tuning rows");
    }
    if (status == OPENPI_OK) status = tune_journal_add(b->tune, &row, error);
    free(list);
    free(all);
    free(l);
    return status;
}

static int calls_of(const bench *b, const tuning_key *key) {
    int calls = 0;
    for (int i = 0; i < b->session->plan->count; i++) {
        tuning_key other = key_of(b, &b->ops[i]);
        calls += tuning_same(&other, key);
    }
    return calls;
}

static void show(const bench *b, const char *what) {
    const tune *t = b->tune;
    if (t->options.progress) t->options.progress(t->options.progress_user, what, (uint64_t)t->done, (uint64_t)(t->expected > t->done ? t->expected : t->done + 1));
}

/* Every shape of the plan that is not known yet. */
static openpi_status measure_shapes(bench *b, openpi_error *error) {
    const backend *backend = b->device->backend;
    for (int i = 0; i < b->session->plan->count; i++) {
        tuning_key key = key_of(b, &b->ops[i]);
        int ways = backend->candidates ? backend->candidates(b->device, &b->ops[i], NULL, 0) : 0;
        if (ways < 2 || tune_row_find(b->tune, &key)) continue;
        char what[80];
        snprintf(what, sizeof what, "%.30s, %d ways, %d camera%s", b->ops[i].name ? b->ops[i].name : "", ways, b->cameras, b->cameras == 1 ? "" : "s");
        show(b, what);
        TRY(measure_shape(b, i, &key, calls_of(b, &key), error));
        b->tune->done++;
    }
    return OPENPI_OK;
}

/* ---- in place --------------------------------------------------------------------------------------------- */

/* Ops of the row's shape go as `name` says; returns how many there are. */
static int place(bench *b, const tune_row *row, const char *name) {
    int placed = 0, choice = -1;
    for (int i = 0; i < b->session->plan->count; i++) {
        tuning_key key = key_of(b, &b->ops[i]);
        if (!tuning_same(&key, &row->entry.key)) continue;
        if (choice < 0) choice = tuning_choice(b->device, &b->ops[i], name);
        b->ops[i].choice = choice;
        placed++;
    }
    return placed;
}

/* Two versions of the whole plan by turns; stage OPENPI_STAGES: the whole. */
static openpi_status compare(bench *b, const runnable *base, const runnable *trial, int stage, double *base_ms, double *trial_ms, openpi_error *error) {
    double times[2][64], stages[OPENPI_STAGES];
    int count = b->tune->options.confirm_rounds;
    for (int i = -1; i < count; i++)
        for (int j = 0; j < 2; j++) {
            double ms;
            int which = (i & 1) ^ j;       /* who goes first changes */
            TRY(run_once(b, which ? trial : base, &ms, stages, error));
            if (i >= 0) times[which][i] = stage < OPENPI_STAGES ? stages[stage] : ms;
        }
    *base_ms = median(times[0], count);
    *trial_ms = median(times[1], count);
    return OPENPI_OK;
}

static int next_pending(const bench *b, double most) {
    const tune *t = b->tune;
    int best = -1;
    double best_gain = 0;
    for (int i = 0; i < t->count; i++) {
        const tune_row *row = &t->rows[i];
        double saved = row->calls * (row->entry.heuristic_us - row->winner_us);
        if (row->outcome != TUNE_PENDING || (row->entry.key.cameras && row->entry.key.cameras != b->cameras) || saved > most) continue;
        if (best >= 0 && saved <= best_gain) continue;
        int there = 0;
        for (int j = 0; j < b->session->plan->count && !there; j++) {
            tuning_key key = key_of(b, &b->ops[j]);
            there = tuning_same(&key, &row->entry.key);
        }
        if (there) best = i, best_gain = saved;
    }
    return best;
}

static void settle(tune_row *row, int stays) {
    tuning_entry *e = &row->entry;
    row->outcome = stays ? TUNE_CONFIRMED : TUNE_REJECTED;
    e->confirmed = stays;
    if (!stays) return;
    memcpy(e->choice, row->winner, sizeof e->choice);
    e->time_us = row->winner_us;
}

/* The largest expected gain first; what is confirmed stays in the plan for the next. */
static openpi_status confirm_all(bench *b, runnable *base, runnable *trial, openpi_error *error) {
    tune *t = b->tune;
    for (int at; (at = next_pending(b, 1e30)) >= 0;) {
        tune_row *row = &t->rows[at];
        char what[80];
        snprintf(what, sizeof what, "%.30s in place, %d camera%s", row->op, b->cameras, b->cameras == 1 ? "" : "s");
        show(b, what);
        place(b, row, row->winner);
        trial->ops = b->ops;
        trial->count = b->session->plan->count;
        TRY(hold_work(b, b->ops, trial->count, error));
        TRY(prepare(b, trial, error));
        TRY(compare(b, base, trial, (int)row->stage, &row->base_ms, &row->trial_ms, error));
        /* A quarter of what the winner promised must be there, or it is the machine's noise. */
        double promised = row->calls * (row->entry.heuristic_us - row->winner_us) * 1e-3;
        int stays = row->base_ms - row->trial_ms > promised / 4;
        settle(row, stays);
        if (!stays) place(b, row, row->entry.heuristic);
        runnable *gone = stays ? base : trial;
        forget(b, gone);
        if (stays) {
            base->recording = trial->recording;
            trial->recording = NULL;
            memcpy(base->ops, b->ops, (size_t)base->count * sizeof *base->ops);
        }
        TRY(tune_journal_add(t, row, error));
    }
    return OPENPI_OK;
}

static openpi_status note_pair(bench *b, const tune_plan_shape *shape, double before, double after, openpi_error *error) {
    tune *t = b->tune;
    if (t->pair_count == t->pair_capacity) {
        int capacity = t->pair_capacity ? 2 * t->pair_capacity : 16;
        tune_pair *more = realloc(t->pairs, (size_t)capacity * sizeof *more);
        if (!more) return report_no_memory(error, (size_t)capacity * sizeof *more, "the tuning rows");
        t->pairs = more;
        t->pair_capacity = capacity;
    }
    t->pairs[t->pair_count++] = (tune_pair){shape->batch, shape->horizon, b->session->options.max_prompt, b->cameras, b->session->plan->model->variant, before, after};
    return OPENPI_OK;
}

/* Everything that is settled already is in the base from the start. */
static openpi_status confirm(bench *b, const tune_plan_shape *shape, openpi_error *error) {
    int count = b->session->plan->count;
    size_t bytes = (size_t)count * sizeof(op);
    runnable plain = {malloc(bytes), count, NULL}, base = {malloc(bytes), count, NULL}, trial = {NULL, 0, NULL};
    openpi_status status = plain.ops && base.ops ? OPENPI_OK : report_no_memory(error, bytes, "tuning's plans");
    /* Recordings keep the work block's address: it must be as large as any version needs before the first is made. */
    for (int i = 0; i < b->tune->count && status == OPENPI_OK; i++) {
        const tune_row *row = &b->tune->rows[i];
        if (row->outcome == TUNE_PENDING) place(b, row, row->winner);
        else if (row->outcome == TUNE_CONFIRMED) place(b, row, row->entry.choice);
    }
    if (status == OPENPI_OK) status = hold_work(b, b->ops, count, error);
    for (int i = 0; i < count; i++) b->ops[i].choice = 0;
    if (status == OPENPI_OK) status = hold_work(b, b->ops, count, error);
    if (status == OPENPI_OK) {
        memcpy(plain.ops, b->ops, bytes);
        status = prepare(b, &plain, error);
    }
    for (int i = 0; i < b->tune->count; i++)
        if (b->tune->rows[i].outcome == TUNE_CONFIRMED) place(b, &b->tune->rows[i], b->tune->rows[i].entry.choice);
    if (status == OPENPI_OK) {
        memcpy(base.ops, b->ops, bytes);
        status = prepare(b, &base, error);
    }
    if (status == OPENPI_OK) status = confirm_all(b, &base, &trial, error);
    double before = 0, after = 0;
    if (status == OPENPI_OK) status = compare(b, &plain, &base, OPENPI_STAGES, &before, &after, error);
    if (status == OPENPI_OK) status = note_pair(b, shape, before, after, error);
    forget(b, &plain);
    forget(b, &base);
    forget(b, &trial);
    free(plain.ops);
    free(base.ops);
    return status;
}

/* ---- a plan ----------------------------------------------------------------------------------------------- */

static openpi_status tune_cameras(bench *b, const tune_plan_shape *shape, openpi_error *error) {
    const plan *p = b->session->plan;
    workload call = {.batch = shape->batch, .prompt = shape->prompt, .seed = 1};
    for (int i = 0; i < b->cameras; i++) call.cameras[i] = 1;
    TRY(workload_make(b->session, &call, &b->inputs, error));
    TRY(workload_run(b->session, &b->inputs, NULL, error));
    memcpy(b->ops, p->ops, (size_t)p->count * sizeof *p->ops);
    for (int i = 0; i < p->count; i++) b->ops[i].choice = 0;
    TRY(measure_shapes(b, error));
    return confirm(b, shape, error);
}

openpi_status tune_plan(tune *t, openpi_engine *engine, const tune_plan_shape *shape, openpi_error *error) {
    openpi_session_options options = OPENPI_SESSION_OPTIONS_INIT;
    bench b = {.tune = t, .device = engine->device};
    device_facts facts = {0};
    options.batch = shape->batch;
    options.horizon = shape->horizon;
    options.steps = t->options.steps;
    options.max_prompt = shape->max_prompt;
    TRY(openpi_session_create(engine, &options, &b.session, error));
    if (b.device->backend->facts) b.device->backend->facts(b.device, &facts, NULL);
    b.cache_bytes = facts.cache_bytes;
    b.ops = calloc((size_t)b.session->plan->count, sizeof *b.ops);
    openpi_status status = b.ops ? OPENPI_OK : report_no_memory(error, (size_t)b.session->plan->count * sizeof *b.ops, "tuning's plans");
    for (int cameras = OPENPI_CAMERAS; cameras >= 1 && status == OPENPI_OK; cameras--) {
        if (!shape->cameras[cameras - 1]) continue;
        b.cameras = cameras;
        status = tune_cameras(&b, shape, error);
        workload_free(&b.inputs);
    }
    if (b.work) b.device->backend->release(b.device, b.work);
    free(b.ops);
    openpi_session_close(b.session);
    return status;
}

/* ---- how much there is to do ------------------------------------------------------------------------------ */

openpi_status tune_expect(tune *t, openpi_engine *engine, const tune_plan_shape *shapes, int count, openpi_error *error) {
    tuning_key *keys = NULL;
    int known = 0, room = 0;
    openpi_status status = OPENPI_OK;
    for (int i = 0; i < count && status == OPENPI_OK; i++) {
        plan_shape shape = {.batch = shapes[i].batch, .horizon = shapes[i].horizon, .steps = t->options.steps, .max_prompt = shapes[i].max_prompt};
        openpi_session seen = {0};
        bench b = {.tune = t, .session = &seen, .device = engine->device};
        status = plan_create(engine->model, &shape, &seen.plan, error);
        for (int j = 0; status == OPENPI_OK && j < seen.plan->count * OPENPI_CAMERAS; j++) {
            const op *op = &seen.plan->ops[j / OPENPI_CAMERAS];
            b.cameras = 1 + j % OPENPI_CAMERAS;
            if (!shapes[i].cameras[b.cameras - 1]) continue;
            tuning_key key = key_of(&b, op);
            int at = 0;
            while (at < known && !tuning_same(&keys[at], &key)) at++;
            if (at < known) continue;
            if (known == room) {
                tuning_key *more = realloc(keys, (size_t)(room + 64) * sizeof *more);
                if (!more) {
                    status = report_no_memory(error, (size_t)(room + 64) * sizeof *more, "tuning's shapes");
                    break;
                }
                keys = more;
                room += 64;
            }
            keys[known++] = key;
            const backend *backend = b.device->backend;
            int ways = backend->candidates ? backend->candidates(b.device, op, NULL, 0) : 0;
            t->expected += ways > 1 && !tune_row_find(t, &key);
        }
        plan_close(seen.plan);
    }
    free(keys);
    return status;
}

/* ---- the whole -------------------------------------------------------------------------------------------- */

openpi_status tune_open(openpi_engine *engine, const tune_options *options, tune *out, openpi_error *error) {
    *out = (tune){.options = *options, .machine = tuning_machine_of(engine->device, pool_threads(engine->pool))};
    if (out->options.rounds <= 0) out->options.rounds = ROUNDS;
    if (out->options.confirm_rounds <= 0) out->options.confirm_rounds = CONFIRM_ROUNDS;
    if (out->options.rounds > 64 || out->options.confirm_rounds > 64)
        return report(error, OPENPI_BAD_ARGUMENT, "tune: %d and %d rounds, expected at most 64", out->options.rounds, out->options.confirm_rounds);
    if (out->options.steps <= 0) out->options.steps = STEPS;
    return tune_journal_read(out, error);
}

openpi_status tune_measure_roofs(tune *t, openpi_engine *engine, openpi_error *error) {
    const backend *backend = engine->device->backend;
    return backend->roof ? backend->roof(engine->device, engine->model->type, &t->roofs, error) : OPENPI_OK;
}

void tune_close(tune *t) {
    free(t->rows);
    free(t->pairs);
    *t = (tune){0};
}

double tune_roof_ratio(const tune *t, const tune_row *row, double us) {
    double tflops = row->entry.key.type == DTYPE_BF16 && t->roofs.bf16_tflops > 0 ? t->roofs.bf16_tflops : t->roofs.f32_tflops;
    if (tflops <= 0 || t->roofs.read_gbs <= 0 || us <= 0) return 0;
    double compute = row->flops / (tflops * 1e6), memory = row->bytes / (t->roofs.read_gbs * 1e3);
    return (compute > memory ? compute : memory) / us;
}

openpi_status tune_save(const tune *t, const char *path, openpi_error *error) {
    tuning table = {.machine = t->machine};
    openpi_status status = OPENPI_OK;
    for (int i = 0; i < t->count && status == OPENPI_OK; i++) status = tuning_add(&table, &t->rows[i].entry, error);
    json_t *root = status == OPENPI_OK ? tuning_json(&table) : NULL;
    free(table.entries);
    if (status != OPENPI_OK) return status;
    char *text = root ? json_text(root, JSON_INDENT(1) | JSON_REAL_PRECISION(7)) : NULL;
    json_decref(root);
    if (!text) return report_no_memory(error, 4096, "the tuning table");
    FILE *file = fopen(path, "w");
    int failed = !file || fprintf(file, "%s\n", text) < 0;
    if (file && fclose(file)) failed = 1;
    free(text);
    if (failed) return report(error, OPENPI_SYSTEM, "%s: the table cannot be written", path);
    if (t->options.journal) remove(t->options.journal);
    return OPENPI_OK;
}
