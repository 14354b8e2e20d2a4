/* Measures one shape: runs its ops in sequence with each candidate alternately, and compares medians.
 *
 * A heavy op (a large batch's product takes milliseconds) is timed with fewer of its layers and in fewer
 * rounds, and its first pass runs each candidate once; what limits these is the time that they take. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/report.h"
#include "lab/measure/costs.h"
#include "lab/tune/tune_parts.h"

enum { INSTANCES = 36, PADDED = 8, SURVIVORS = 12, LEAST_INSTANCES = 2, LEAST_ROUNDS = 3 };
/* A run of a shape's ops takes about so long at most, and so do all rounds of its survivors. An op that takes
 * `heavy_us` at the roofs is heavy. */
static const double run_us = 10e3, rounds_ms = 1000, heavy_us = 300;
/* Times the best so far: beyond `hopeless` a candidate is not timed again, beyond `far_off` not in the
 * rounds. */
static const double hopeless = 1.6, far_off = 1.3;
static const double gain = 0.01;         /* least relative gain over the heuristic's choice                 */

/* ---- one run of some ops ------------------------------------------------------------------------------ */

openpi_status tune_hold_work(tune_bench *b, const op *ops, int count, openpi_error *error) {
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

openpi_status tune_prepare(tune_bench *b, tune_run *r, openpi_error *error) {
    const backend *backend = b->device->backend;
    r->recording = NULL;
    if (!backend->record) return OPENPI_OK;
    const op_list list = {.ops = r->ops, .count = r->count};
    openpi_status status = backend->record(b->device, list, b->work, &r->recording, error);
    return status == OPENPI_UNSUPPORTED ? OPENPI_OK : status;
}

void tune_forget(tune_bench *b, tune_run *r) {
    if (r->recording) b->device->backend->forget(b->device, r->recording);
    r->recording = NULL;
}

openpi_status tune_run_once(tune_bench *b, const tune_run *r, double *ms, double *stages,
                            openpi_error *error) {
    double times[OPENPI_STAGES] = {0};
    const backend *backend = b->device->backend;
    const op_list list = {.ops = r->ops, .count = r->count};
    TRY(r->recording ? backend->replay(b->device, r->recording, NULL, 0, NULL, times, error)
                     : backend->run(b->device, list, b->work, times, error));
    *ms = 0;
    for (int i = 0; i < OPENPI_STAGES; i++) *ms += times[i];
    if (stages) memcpy(stages, times, sizeof times);
    return OPENPI_OK;
}

/* ---- one shape ---------------------------------------------------------------------------------------- */

typedef struct contender {
    int choice;
    double best_ms;
    double times[TUNE_ROUNDS];
    tune_run run;
} contender;

/* The ops that are timed together: all that have the shape and weights of their own, else one of them
 * alternately with the plan's largest op. */
typedef struct lineup {
    op ops[2 * INSTANCES];
    int count, instances, padded, heavy;
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

tuning_key tune_key(const tune_bench *b, const op *op) {
    tuning_key key = tuning_key_of(op);
    int varies = op->stage == OPENPI_STAGE_VISION ||
                 (op->stage == OPENPI_STAGE_PREFIX && op->kind != OP_EMBED_TEXT) ||
                 op->kind == OP_CACHE_ATTENTION;
    key.cameras = varies && b->session->plan->shape.batch == 1 ? b->cameras : 0;
    return key;
}

double tune_roof_us(const tune *t, dtype type, double flops, double bytes) {
    double tflops =
        type == DTYPE_BF16 && t->roofs.bf16_tflops > 0 ? t->roofs.bf16_tflops : t->roofs.f32_tflops;
    if (tflops <= 0 || t->roofs.read_gbs <= 0) return 0;
    double compute = flops / (tflops * 1e6), memory = bytes / (t->roofs.read_gbs * 1e3);
    return compute > memory ? compute : memory;
}

double tune_op_us(const tune_bench *b, int index) {
    op_cost cost = costs_of_op(b->session, index).cost;
    return tune_roof_us(b->tune, tuning_key_of(&b->ops[index]).type, cost.flops, cost.bytes);
}

/* As many of `count` ops of `us` each as a run may have, at least two: then the weights of one are not what
 * the caches hold. */
static int fitting(int count, double us) {
    int most = us > 0 && run_us / us < count ? (int)(run_us / us) : count;
    if (most < LEAST_INSTANCES) most = LEAST_INSTANCES;
    return most < count ? most : count;
}

static void line_up(const tune_bench *b, const tuning_key *key, lineup *l) {
    const plan *p = b->session->plan;
    double bytes = 0, most = 0, own_us = 0, own_bytes = 0;
    int largest[INSTANCES], pads = 0;
    l->count = 0;
    for (int i = 0; i < p->count && l->count < INSTANCES; i++) {
        tuning_key other = tune_key(b, &b->ops[i]);
        const void *weights = weights_of(&b->ops[i]);
        if (!tuning_same(&other, key) || (weights && seen(l, weights))) continue;
        bytes += costs_of_op(b->session, i).cost.weight_bytes;
        own_us = tune_op_us(b, i);
        own_bytes = costs_of_op(b->session, i).cost.bytes;
        l->ops[l->count++] = b->ops[i];
    }
    l->heavy = own_us >= heavy_us;
    l->instances = l->count = fitting(l->count, own_us);
    /* An op whose rows alone exceed the cache needs nothing in between. */
    l->padded = bytes > 0 && bytes < (double)b->cache_bytes && own_bytes < 2 * (double)b->cache_bytes;
    if (!l->padded) return;
    for (int i = 0; i < p->count; i++)
        if (costs_of_op(b->session, i).cost.weight_bytes > most)
            most = costs_of_op(b->session, i).cost.weight_bytes;
    for (int i = 0; i < p->count && pads < INSTANCES; i++)
        if (costs_of_op(b->session, i).cost.weight_bytes >= most) largest[pads++] = i;
    op first[INSTANCES];
    int distinct = l->count;
    memcpy(first, l->ops, (size_t)distinct * sizeof *first);
    l->instances = fitting(PADDED, tune_op_us(b, largest[0]));
    l->heavy = 0;
    l->count = 0;
    for (int i = 0; i < l->instances; i++) {
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

static int by_best(const void *a, const void *b) {
    const contender *x = a, *y = b;
    return (x->best_ms > y->best_ms) - (x->best_ms < y->best_ms);
}

/* 1: candidates of one kernel and count, which may differ in the norm that goes first: "NAME, norm 4". */
static int same_kernel(const candidate *a, const candidate *b) {
    size_t length = strcspn(a->name, ",");
    return length == strcspn(b->name, ",") && !memcmp(a->name, b->name, length);
}

/* One candidate of the first pass: a warm-up run and two measured ones; of a heavy op one run of one op. */
static openpi_status try_once(tune_bench *b, const lineup *l, contender *c, double best,
                              openpi_error *error) {
    for (int run = 0; run < (l->heavy ? 1 : 3); run++) {
        double ms;
        TRY(tune_run_once(b, &c->run, &ms, NULL, error));
        if (run == 1 || l->heavy || (run && ms < c->best_ms)) c->best_ms = ms;
        if (run == 0 && best > 0 && ms > 4 * best) c->best_ms = ms, run = 3;
    }
    return OPENPI_OK;
}

/* First pass: how many candidates remain. Where a heavy op's kernel is hopeless with one norm it is not tried
 * with another. */
static openpi_status first_pass(tune_bench *b, lineup *l, const candidate *list, int count, contender *all,
                                int *left, openpi_error *error) {
    double best = 0;
    const candidate *lost = NULL;
    *left = 0;
    for (int i = 0; i < count; i++) {
        contender *c = &all[*left];
        *c = (contender){.choice = i + 1, .run = {l->ops, l->heavy ? 1 : l->count, NULL}};
        if (l->heavy && lost && same_kernel(lost, &list[i]) && !list[i].heuristic) continue;
        choose(l, c->choice);
        TRY(tune_prepare(b, &c->run, error));
        openpi_status status = try_once(b, l, c, best, error);
        if (status != OPENPI_OK) {
            tune_forget(b, &c->run);
            return status;
        }
        if (best <= 0 || c->best_ms < best) best = c->best_ms;
        lost = c->best_ms > hopeless * best ? &list[i] : NULL;
        if (lost && !list[i].heuristic) tune_forget(b, &c->run);
        else ++*left;
    }
    return OPENPI_OK;
}

/* Survivors of a heavy op's first pass run all ops of the line-up from here on. */
static openpi_status lengthen(tune_bench *b, lineup *l, contender *all, int count, openpi_error *error) {
    for (int i = 0; i < count; i++) {
        tune_forget(b, &all[i].run);
        all[i].run.count = l->count;
        all[i].best_ms *= l->count;
        choose(l, all[i].choice);
        TRY(tune_prepare(b, &all[i].run, error));
    }
    return OPENPI_OK;
}

/* As many rounds as fit into the time for them. */
static int rounds_of(const tune_bench *b, const contender *all, int count) {
    int most = b->tune->options.rounds;
    double ms = 0;
    for (int i = 0; i < count; i++) ms += all[i].best_ms;
    return tune_rounds_within(rounds_ms, ms, most);
}

int tune_rounds_within(double limit_ms, double round_ms, int most) {
    int fit = round_ms > 0 && limit_ms / round_ms < most ? (int)(limit_ms / round_ms) : most;
    if (fit < LEAST_ROUNDS) fit = LEAST_ROUNDS;
    return fit < most ? fit : most;
}

static openpi_status rounds(tune_bench *b, lineup *l, contender *all, int count, int times,
                            openpi_error *error) {
    for (int round = 0; round < times; round++)
        for (int i = 0; i < count; i++) {
            if (all[i].choice > 0) choose(l, all[i].choice);
            TRY(tune_run_once(b, &all[i].run, &all[i].times[round], NULL, error));
        }
    return OPENPI_OK;
}

/* Fills the row's entry; `all` holds count + 1. */
static openpi_status contest(tune_bench *b, lineup *l, const candidate *list, int count, contender *all,
                             int *left, tune_row *row, openpi_error *error) {
    int heuristic = -1;
    double padding = 0;
    TRY(first_pass(b, l, list, count, all, left, error));
    qsort(all, (size_t)*left, sizeof *all, by_best);
    int in = 0;
    for (int i = 0; i < *left; i++) {
        int is_heuristic = list[all[i].choice - 1].heuristic;
        if (!is_heuristic && (in >= SURVIVORS || all[i].best_ms > far_off * all[0].best_ms)) {
            tune_forget(b, &all[i].run);
            continue;
        }
        contender kept = all[i];
        all[i].run.recording = NULL;       /* moved, not shared */
        all[in++] = kept;
    }
    *left = in;
    if (l->heavy) TRY(lengthen(b, l, all, in, error));
    int times = rounds_of(b, all, in);
    if (l->padded) {
        contender *pad = &all[(*left)++];
        *pad = (contender){.choice = -1, .run = {l->padding, l->instances, NULL}};
        TRY(tune_prepare(b, &pad->run, error));
    }
    TRY(rounds(b, l, all, *left, times, error));
    if (l->padded) padding = tune_median(all[in].times, times);
    int first = -1, second = -1;
    double us[TUNING_CANDIDATES];
    for (int i = 0; i < in; i++) {
        us[i] = (tune_median(all[i].times, times) - padding) * 1000 / l->instances;
        if (us[i] < 0.001) us[i] = 0.001;
        if (list[all[i].choice - 1].heuristic) heuristic = i;
        if (first < 0 || us[i] < us[first]) second = first, first = i;
        else if (second < 0 || us[i] < us[second]) second = i;
    }
    if (heuristic < 0) heuristic = first;
    paired p = tune_paired(all[heuristic].times, all[first].times, times);
    int noise = !tune_gains(&p) || us[first] > us[heuristic] * (1 - gain);
    if (noise && first != heuristic) second = first, first = heuristic;
    tuning_entry *e = &row->entry;
    row->outcome = first == heuristic ? TUNE_HEURISTIC : TUNE_PENDING;
    row->winner_us = us[first];
    e->time_us = e->heuristic_us = us[heuristic];
    memcpy(row->winner, list[all[first].choice - 1].name, sizeof row->winner);
    memcpy(e->heuristic, list[all[heuristic].choice - 1].name, sizeof e->heuristic);
    memcpy(e->choice, e->heuristic, sizeof e->choice);
    if (second >= 0) {
        memcpy(e->runner_up, list[all[second].choice - 1].name, sizeof e->runner_up);
        e->runner_up_us = us[second];
    }
    return OPENPI_OK;
}

/* The library computes the plain product only: no norm before it, nothing fused after it. */
static void time_library(tune_bench *b, tune_row *row) {
    const backend *backend = b->device->backend;
    const tuning_key *key = &row->entry.key;
    openpi_error why = OPENPI_ERROR_INIT;
    int product = key->op == OP_NORM_LINEAR || key->op == OP_LINEAR_RESIDUAL || key->op == OP_NORM_QKV;
    if (!b->tune->options.library || !product || key->type != DTYPE_BF16 || !backend->library_product) return;
    if (backend->library_product(b->device, row->rows, key->n, key->k, &row->library_us, b->tune->library,
                                 &why) != OPENPI_OK) {
        row->library_us = 0;
        snprintf(b->tune->library, sizeof b->tune->library, "%.199s", why.message);
    }
}

/* The heuristic's choice for so many cameras is marked in the place of that for all. */
static void mark_usual(const tune_bench *b, const op *op, candidate *list, int count) {
    const int usual = call_kinds_usual(b->session->plan, op, b->cameras);
    for (int i = 0; usual && i < count; i++) list[i].heuristic = i + 1 == usual;
}

openpi_status tune_measure_shape(tune_bench *b, int index, const tuning_key *key, int calls,
                                 openpi_error *error) {
    static const size_t capacity = TUNING_CANDIDATES + 1;
    const op *op = &b->ops[index];
    call_cost cost = costs_of_op(b->session, index);
    candidate *list = calloc(TUNING_CANDIDATES, sizeof *list);
    contender *all = calloc(capacity, sizeof *all);
    lineup *l = malloc(sizeof *l);
    int left = 0;
    openpi_status status =
        list && all && l ? OPENPI_OK : report_no_memory(error, capacity * sizeof *all, "tuning's candidates");
    tune_row row = {.entry = {.key = *key},
                    .stage = op->stage,
                    .calls = calls,
                    .flops = cost.cost.flops,
                    .bytes = cost.cost.bytes,
                    .rows = cost.rows};
    snprintf(row.op, sizeof row.op, "%s", op->name ? op->name : "");
    if (status == OPENPI_OK) {
        row.candidates = b->device->backend->candidates(b->device, op, list, TUNING_CANDIDATES);
        if (row.candidates > TUNING_CANDIDATES) row.candidates = TUNING_CANDIDATES;
        mark_usual(b, op, list, row.candidates);
        line_up(b, key, l);
    }
    for (int i = 0; i <= row.candidates && status == OPENPI_OK; i++) {
        choose(l, i);
        status = tune_hold_work(b, l->ops, l->count, error);
    }
    if (status == OPENPI_OK) status = contest(b, l, list, row.candidates, all, &left, &row, error);
    for (int i = 0; all && i < (int)capacity; i++) tune_forget(b, &all[i].run);
    if (status == OPENPI_OK) {
        time_library(b, &row);
        tune_row *kept = tune_row_add(b->tune);
        if (kept) *kept = row;
        else status = report_no_memory(error, sizeof row, "the tuning rows");
    }
    if (status == OPENPI_OK) status = tune_journal_add(b->tune, b->device, &row, error);
    free(list);
    free(all);
    free(l);
    return status;
}
