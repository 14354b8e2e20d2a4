/* Tunes a plan: finds its shapes, measures their candidates and tries the winners inside the whole plan.
 * tune_shape.c measures one shape, tune_journal.c keeps the journal. */
#include "lab/tune/tune.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/report.h"
#include "lab/tune/tune_parts.h"

enum { ROUNDS = 11, CONFIRM_ROUNDS = 15, STEPS = 10, LEAST_CHECK_ROUNDS = 7 };
/* Runs of two plans by turns take about so long at most; a plan that takes longer than `long_ms` tries
 * winners inside their stage alone. */
static const double confirm_ms = 2000, long_ms = 100;

/* ---- shapes ----------------------------------------------------------------------------------------- */

static int calls_of(const tune_bench *b, const tuning_key *key) {
    int calls = 0;
    for (int i = 0; i < b->session->plan->count; i++) {
        tuning_key other = tune_key(b, &b->ops[i]);
        calls += tuning_same(&other, key);
    }
    return calls;
}

/* Reports progress when a step begins; `done` grows when it ends. */
static void show(const tune *t, const char *what) {
    if (t->options.progress)
        t->options.progress(t->options.progress_user, what, (uint64_t)t->done, (uint64_t)t->expected);
}

static void show_plan(const tune_bench *b, const char *what) {
    char text[80];
    snprintf(text, sizeof text, "%.60s, %d camera%s", what, b->cameras, b->cameras == 1 ? "" : "s");
    show(b->tune, text);
}

/* The part of the call's time that all ops of a shape take, by the roofs; 1 where these are unknown. */
static double share_of(const tune_bench *b, const tuning_key *key) {
    double own = 0, all = 0;
    for (int i = 0; i < b->session->plan->count; i++) {
        tuning_key other = tune_key(b, &b->ops[i]);
        double us = tune_op_us(b, i);
        all += us;
        own += tuning_same(&other, key) ? us : 0;
    }
    return all > 0 ? own / all : 1;
}

/* The first op of the plan that has the shape. */
static int first_of(const tune_bench *b, const tuning_key *key) {
    for (int i = 0; i < b->session->plan->count; i++) {
        tuning_key other = tune_key(b, &b->ops[i]);
        if (tuning_same(&other, key)) return i;
    }
    return -1;
}

/* Measures every shape of the plan that has no row yet and takes enough of the call. */
static openpi_status measure_shapes(tune_bench *b, openpi_error *error) {
    const backend *backend = b->device->backend;
    for (int i = 0; i < b->session->plan->count; i++) {
        tuning_key key = tune_key(b, &b->ops[i]);
        int choices = backend->candidates ? backend->candidates(b->device, &b->ops[i], NULL, 0) : 0;
        if (choices < 2 || tune_row_find(b->tune, &key) || first_of(b, &key) != i) continue;
        int small = b->tune->options.least_share > 0 && share_of(b, &key) < b->tune->options.least_share;
        char what[80];
        snprintf(what, sizeof what, "%.30s, %d choices, %d camera%s%s", b->ops[i].name ? b->ops[i].name : "",
                 choices, b->cameras, b->cameras == 1 ? "" : "s", small ? ", left out" : "");
        show(b->tune, what);
        if (!small) TRY(tune_measure_shape(b, i, &key, calls_of(b, &key), error));
        b->tune->done++;
    }
    return OPENPI_OK;
}

/* ---- in place --------------------------------------------------------------------------------------- */

/* Sets the choice of all ops of the row's shape to `name`; returns how many there are. */
static int place(tune_bench *b, const tune_row *row, const char *name) {
    int placed = 0, choice = -1;
    for (int i = 0; i < b->session->plan->count; i++) {
        tuning_key key = tune_key(b, &b->ops[i]);
        if (!tuning_same(&key, &row->entry.key)) continue;
        if (choice < 0) choice = tuning_choice(b->device, &b->ops[i], name);
        b->ops[i].choice = choice;
        placed++;
    }
    return placed;
}

/* Two versions of a plan, run alternately. */
typedef struct duel {
    int stage;                   /* whose time counts; OPENPI_STAGES: the whole                           */
    double base_ms, trial_ms;    /* medians                                                               */
    paired paired;
} duel;

/* After one of warm-up as many rounds as fit into their time, but LEAST_CHECK_ROUNDS if so many are
 * wanted. */
static openpi_status compare(tune_bench *b, const tune_run *base, const tune_run *trial, duel *d,
                             openpi_error *error) {
    double times[2][TUNE_ROUNDS], stages[OPENPI_STAGES], round_ms = 0;
    int rounds = b->tune->options.confirm_rounds;
    for (int i = -1; i < rounds; i++) {
        for (int j = 0; j < 2; j++) {
            double ms;
            int which = (i & 1) ^ j;       /* the order alternates */
            TRY(tune_run_once(b, which ? trial : base, &ms, stages, error));
            if (i >= 0) times[which][i] = d->stage < OPENPI_STAGES ? stages[d->stage] : ms;
            else round_ms += ms;
        }
        if (i >= 0) continue;
        int fit = tune_rounds_within(confirm_ms, round_ms, rounds);
        if (fit < LEAST_CHECK_ROUNDS) fit = LEAST_CHECK_ROUNDS;
        if (fit < rounds) rounds = fit;
    }
    d->base_ms = tune_median(times[0], rounds);
    d->trial_ms = tune_median(times[1], rounds);
    d->paired = tune_paired(times[0], times[1], rounds);
    return OPENPI_OK;
}

/* Of the winners not tried yet whose shape the plan has: the one with the largest expected gain; -1: none. */
static int next_pending(const tune_bench *b, int *count) {
    const tune *t = b->tune;
    int best = -1;
    double best_gain = 0;
    *count = 0;
    for (int i = 0; i < t->count; i++) {
        const tune_row *row = &t->rows[i];
        double saved = row->calls * (row->entry.heuristic_us - row->winner_us);
        if (row->outcome != TUNE_PENDING || (row->entry.key.cameras && row->entry.key.cameras != b->cameras))
            continue;
        int there = 0;
        for (int j = 0; j < b->session->plan->count && !there; j++) {
            tuning_key key = tune_key(b, &b->ops[j]);
            there = tuning_same(&key, &row->entry.key);
        }
        if (!there) continue;
        ++*count;
        if (best < 0 || saved > best_gain) best = i, best_gain = saved;
    }
    return best;
}

static void settle(tune_row *row, int stays) {
    tuning_entry *e = &row->entry;
    row->outcome = stays ? TUNE_CONFIRMED : TUNE_REJECTED;
    e->confirmed = stays;
    memcpy(e->choice, stays ? row->winner : e->heuristic, sizeof e->choice);
    e->time_us = stays ? row->winner_us : e->heuristic_us;
}

/* The ops that a winner of a stage is tried in: all, of a long plan those from the first of its stage to the
 * last. */
static tune_run part_of(const tune_bench *b, op *ops, openpi_stage stage, int whole) {
    int first = 0, end = b->session->plan->count;
    while (!whole && ops[first].stage != stage) first++;
    while (!whole && ops[end - 1].stage != stage) end--;
    return (tune_run){ops + first, end - first, NULL};
}

/* A winner, which `b->ops` has and `ops` has not, inside the plan. */
static openpi_status try_winner(tune_bench *b, op *ops, tune_row *row, int whole, duel *d,
                                openpi_error *error) {
    tune_run base = part_of(b, ops, row->stage, whole), trial = part_of(b, b->ops, row->stage, whole);
    *d = (duel){.stage = (int)row->stage};
    openpi_status status = tune_hold_work(b, b->ops, b->session->plan->count, error);
    if (status == OPENPI_OK) status = tune_prepare(b, &base, error);
    if (status == OPENPI_OK) status = tune_prepare(b, &trial, error);
    if (status == OPENPI_OK) status = compare(b, &base, &trial, d, error);
    tune_forget(b, &base);
    tune_forget(b, &trial);
    row->base_ms = d->base_ms;
    row->trial_ms = d->trial_ms;
    return status;
}

/* Tries the winners, the largest expected gain first. A confirmed winner stays in `ops`, the plan, for the
 * next trial. */
static openpi_status confirm_all(tune_bench *b, op *ops, int whole, openpi_error *error) {
    tune *t = b->tune;
    int pending;
    next_pending(b, &pending);
    t->expected += pending;
    for (int at; (at = next_pending(b, &pending)) >= 0; t->done++) {
        tune_row *row = &t->rows[at];
        char what[80];
        snprintf(what, sizeof what, "%.30s in place", row->op);
        show_plan(b, what);
        place(b, row, row->winner);
        duel d;
        TRY(try_winner(b, ops, row, whole, &d, error));
        /* The gain must exceed the pairs' spread and a quarter of the expected gain, else it is noise. */
        double promised = row->calls * (row->entry.heuristic_us - row->winner_us) * 1e-3;
        int stays = tune_gains(&d.paired) && d.paired.gain > promised / 4;
        settle(row, stays);
        if (!stays) place(b, row, row->entry.heuristic);
        memcpy(ops, b->ops, (size_t)b->session->plan->count * sizeof *ops);
        TRY(tune_journal_add(t, b->device, row, error));
    }
    return OPENPI_OK;
}

static openpi_status note_pair(tune_bench *b, const tune_pair *pair, openpi_error *error) {
    tune *t = b->tune;
    if (t->pair_count == t->pair_capacity) {
        int capacity = t->pair_capacity ? 2 * t->pair_capacity : 16;
        tune_pair *more = realloc(t->pairs, (size_t)capacity * sizeof *more);
        if (!more) return report_no_memory(error, (size_t)capacity * sizeof *more, "the tuning rows");
        t->pairs = more;
        t->pair_capacity = capacity;
    }
    t->pairs[t->pair_count++] = *pair;
    return OPENPI_OK;
}

/* Makes room for every version of the plan (a recording keeps the work block's address), and the plan without
 * a table, ready to run. */
static openpi_status prepare_plain(tune_bench *b, tune_run *plain, openpi_error *error) {
    for (int i = 0; i < b->tune->count; i++) {
        const tune_row *row = &b->tune->rows[i];
        if (row->outcome == TUNE_PENDING) place(b, row, row->winner);
        else if (row->outcome == TUNE_CONFIRMED) place(b, row, row->entry.choice);
    }
    TRY(tune_hold_work(b, b->ops, plain->count, error));
    for (int i = 0; i < plain->count; i++)
        b->ops[i].choice = call_kinds_usual(b->session->plan, &b->ops[i], b->cameras);
    TRY(tune_hold_work(b, b->ops, plain->count, error));
    memcpy(plain->ops, b->ops, (size_t)plain->count * sizeof *plain->ops);
    return tune_prepare(b, plain, error);
}

/* `table->ops`, with all choices that are decided; returns how many ops have another than the plain plan. */
static int decide(tune_bench *b, const tune_run *plain, const tune_run *table) {
    int placed = 0;
    memcpy(b->ops, plain->ops, (size_t)plain->count * sizeof *b->ops);
    for (int i = 0; i < b->tune->count; i++)
        if (b->tune->rows[i].outcome == TUNE_CONFIRMED)
            place(b, &b->tune->rows[i], b->tune->rows[i].entry.choice);
    memcpy(table->ops, b->ops, (size_t)plain->count * sizeof *b->ops);
    for (int i = 0; i < plain->count; i++) placed += table->ops[i].choice != plain->ops[i].choice;
    return placed;
}

static openpi_status compare_whole(tune_bench *b, const tune_run *plain, tune_run *table, duel *d,
                                   openpi_error *error) {
    *d = (duel){.stage = OPENPI_STAGES};
    TRY(tune_prepare(b, table, error));
    openpi_status status = compare(b, plain, table, d, error);
    tune_forget(b, table);
    return status;
}

/* The plan's choices that no whole call has confirmed yet: confirmed by this one (`gains`), or rejected.
 * *changed: how many were rejected. */
static openpi_status settle_whole(tune_bench *b, int gains, int *changed, openpi_error *error) {
    *changed = 0;
    for (int i = 0; i < b->tune->count; i++) {
        tune_row *row = &b->tune->rows[i];
        if (row->outcome != TUNE_CONFIRMED || row->whole || first_of(b, &row->entry.key) < 0) continue;
        row->whole = gains;
        if (gains) continue;
        settle(row, 0);
        ++*changed;
        TRY(tune_journal_add(b->tune, b->device, row, error));
    }
    return OPENPI_OK;
}

/* Whole calls with the table and without it by turns. They decide: where they gain no more than their spread,
 * the choices that this plan has brought go. */
static openpi_status check_whole(tune_bench *b, const tune_plan_shape *shape, const tune_run *plain,
                                 tune_run *table, openpi_error *error) {
    duel d;
    int placed = decide(b, plain, table), changed;
    show_plan(b, "the whole plan with and without the table");
    TRY(compare_whole(b, plain, table, &d, error));
    TRY(settle_whole(b, tune_gains(&d.paired), &changed, error));
    if (changed) {
        placed = decide(b, plain, table);
        TRY(compare_whole(b, plain, table, &d, error));
    }
    b->tune->done++;
    return note_pair(b,
                     &(tune_pair){.batch = shape->batch,
                                  .horizon = shape->horizon,
                                  .max_prompt = b->session->options.max_prompt,
                                  .cameras = b->cameras,
                                  .variant = b->session->plan->model->variant,
                                  .before_ms = d.base_ms,
                                  .after_ms = d.trial_ms,
                                  .spread_ms = d.paired.spread,
                                  .rounds = d.paired.rounds,
                                  .slower = d.paired.slower,
                                  .placed = placed},
                     error);
}

/* The table starts with all choices that are decided already. */
static openpi_status confirm(tune_bench *b, const tune_plan_shape *shape, openpi_error *error) {
    int count = b->session->plan->count;
    size_t bytes = (size_t)count * sizeof(op);
    tune_run plain = {malloc(bytes), count, NULL}, table = {malloc(bytes), count, NULL};
    double plain_ms = 0;
    openpi_status status =
        plain.ops && table.ops ? OPENPI_OK : report_no_memory(error, bytes, "tuning's plans");
    if (status == OPENPI_OK) status = prepare_plain(b, &plain, error);
    if (status == OPENPI_OK) status = tune_run_once(b, &plain, &plain_ms, NULL, error);
    if (status == OPENPI_OK) {
        decide(b, &plain, &table);
        status = confirm_all(b, table.ops, plain_ms <= long_ms, error);
    }
    if (status == OPENPI_OK) status = check_whole(b, shape, &plain, &table, error);
    tune_forget(b, &plain);
    tune_forget(b, &table);
    free(plain.ops);
    free(table.ops);
    return status;
}

/* ---- a plan ----------------------------------------------------------------------------------------- */

static openpi_status tune_cameras(tune_bench *b, const tune_plan_shape *shape, openpi_error *error) {
    const plan *p = b->session->plan;
    workload call = {.batch = shape->batch, .prompt = shape->prompt, .seed = 1};
    for (int i = 0; i < b->cameras; i++) call.cameras[i] = 1;
    show_plan(b, "warm-up");
    TRY(workload_make(b->session, &call, &b->inputs, error));
    TRY(workload_run(b->session, &b->inputs, NULL, error));
    memcpy(b->ops, p->ops, (size_t)p->count * sizeof *p->ops);
    for (int i = 0; i < p->count; i++) b->ops[i].choice = 0;
    b->tune->done++;
    TRY(measure_shapes(b, error));
    return confirm(b, shape, error);
}

/* 1: the plan is timed with this number of cameras a sample: every requested number, for a batch only the
 * largest. */
static int runs_with(const tune_plan_shape *shape, int cameras) {
    for (int more = cameras + 1; more <= OPENPI_CAMERAS; more++)
        if (shape->batch > 1 && shape->cameras[more - 1]) return 0;
    return shape->cameras[cameras - 1];
}

openpi_status tune_plan(tune *t, openpi_engine *engine, const tune_plan_shape *shape, openpi_error *error) {
    openpi_session_options options = OPENPI_SESSION_OPTIONS_INIT;
    tune_bench b = {.tune = t, .device = engine->device};
    device_facts facts = {0};
    options.batch = shape->batch;
    options.horizon = shape->horizon;
    options.steps = t->options.steps;
    options.max_prompt = shape->max_prompt;
    TRY(openpi_session_create(engine, &options, &b.session, error));
    if (b.device->backend->facts) b.device->backend->facts(b.device, &facts, NULL);
    b.cache_bytes = facts.cache_bytes;
    b.ops = calloc((size_t)b.session->plan->count, sizeof *b.ops);
    openpi_status status =
        b.ops ? OPENPI_OK
              : report_no_memory(error, (size_t)b.session->plan->count * sizeof *b.ops, "tuning's plans");
    for (int cameras = OPENPI_CAMERAS; cameras >= 1 && status == OPENPI_OK; cameras--) {
        if (!runs_with(shape, cameras)) continue;
        b.cameras = cameras;
        status = tune_cameras(&b, shape, error);
        workload_free(&b.inputs);
    }
    if (b.work) b.device->backend->release(b.device, b.work);
    free(b.ops);
    openpi_session_close(b.session);
    return status;
}

/* ---- how much there is to do ------------------------------------------------------------------------ */

openpi_status tune_expect(tune *t, openpi_engine *engine, const tune_plan_shape *shapes, int count,
                          openpi_error *error) {
    tuning_key *keys = NULL;
    int known = 0, capacity = 0;
    openpi_status status = OPENPI_OK;
    for (int i = 0; i < count && status == OPENPI_OK; i++) {
        plan_shape shape = {.batch = shapes[i].batch,
                            .horizon = shapes[i].horizon,
                            .steps = t->options.steps,
                            .max_prompt = shapes[i].max_prompt};
        openpi_session seen = {0};
        tune_bench b = {.tune = t, .session = &seen, .device = engine->device};
        for (int cameras = 1; cameras <= OPENPI_CAMERAS; cameras++)
            t->expected += runs_with(&shapes[i], cameras) ? 2 : 0;
        status = plan_create(engine->model, &shape, PLAN_ORDINARY, &seen.plan, error);
        for (int j = 0; status == OPENPI_OK && j < seen.plan->count * OPENPI_CAMERAS; j++) {
            const op *op = &seen.plan->ops[j / OPENPI_CAMERAS];
            b.cameras = 1 + j % OPENPI_CAMERAS;
            if (!runs_with(&shapes[i], b.cameras)) continue;
            tuning_key key = tune_key(&b, op);
            int at = 0;
            while (at < known && !tuning_same(&keys[at], &key)) at++;
            if (at < known) continue;
            if (known == capacity) {
                tuning_key *more = realloc(keys, (size_t)(capacity + 64) * sizeof *more);
                if (!more) {
                    status =
                        report_no_memory(error, (size_t)(capacity + 64) * sizeof *more, "tuning's shapes");
                    break;
                }
                keys = more;
                capacity += 64;
            }
            keys[known++] = key;
            const backend *backend = b.device->backend;
            int choices = backend->candidates ? backend->candidates(b.device, op, NULL, 0) : 0;
            t->expected += choices > 1 && !tune_row_find(t, &key);
        }
        plan_close(seen.plan);
    }
    free(keys);
    return status;
}

/* ---- the whole -------------------------------------------------------------------------------------- */

openpi_status tune_open(openpi_engine *engine, const tune_options *options, tune *out, openpi_error *error) {
    *out =
        (tune){.options = *options, .machine = tuning_machine_of(engine->device, pool_threads(engine->pool))};
    if (out->options.rounds <= 0) out->options.rounds = ROUNDS;
    if (out->options.confirm_rounds <= 0) out->options.confirm_rounds = CONFIRM_ROUNDS;
    if (out->options.rounds > TUNE_ROUNDS || out->options.confirm_rounds > TUNE_ROUNDS)
        return report(error, OPENPI_BAD_ARGUMENT, "tune: %d and %d rounds, expected at most %d",
                      out->options.rounds, out->options.confirm_rounds, TUNE_ROUNDS);
    if (out->options.steps <= 0) out->options.steps = STEPS;
    return tune_journal_read(out, engine->device, error);
}

openpi_status tune_measure_roofs(tune *t, openpi_engine *engine, openpi_error *error) {
    const backend *backend = engine->device->backend;
    t->expected++;
    show(t, "the machine's ceilings");
    TRY(backend->roof ? backend->roof(engine->device, engine->model->type, &t->roofs, error) : OPENPI_OK);
    t->done++;
    return OPENPI_OK;
}

void tune_coverage(const openpi_session *session, int *known, int *unknown) {
    *known = session->kinds.tuned;
    *unknown = session->kinds.unknown;
}

void tune_close(tune *t) {
    free(t->rows);
    free(t->pairs);
    *t = (tune){0};
}

double tune_roof_ratio(const tune *t, const tune_row *row, double us) {
    return us > 0 ? tune_roof_us(t, row->entry.key.type, row->flops, row->bytes) / us : 0;
}

static openpi_status write_table(const tuning *table, const device *device, FILE *file, openpi_error *error) {
    json_t *root = tuning_json(table, device);
    char *text = root ? json_text(root, JSON_INDENT(1) | JSON_REAL_PRECISION(7)) : NULL;
    json_decref(root);
    if (!text) return report_no_memory(error, 4096, "the tuning table");
    fprintf(file, "%s\n", text);
    free(text);
    return OPENPI_OK;
}

openpi_status tune_write(const tune *t, const openpi_engine *engine, const char *name, FILE *file,
                         openpi_error *error) {
    const tune_pair *slowed = tune_slowed(t);
    if (slowed)
        return report(error, OPENPI_BAD_INPUT,
                      "%s: not written: with this table a call of %s, batch %d, horizon %d, prompt %d, %d "
                      "camera%s takes %.4g "
                      "ms, without it %.4g ms (slower in %d of %d rounds): tune again on a machine that does "
                      "nothing else, "
                      "with --fresh",
                      name, variant_of(slowed->variant)->symbol, slowed->batch, slowed->horizon,
                      slowed->max_prompt, slowed->cameras, slowed->cameras == 1 ? "" : "s", slowed->after_ms,
                      slowed->before_ms, slowed->slower, slowed->rounds);
    tuning table = {.machine = t->machine};
    openpi_status status = OPENPI_OK;
    for (int i = 0; i < t->count && status == OPENPI_OK; i++)
        status = tuning_add(&table, &t->rows[i].entry, error);
    if (status == OPENPI_OK) status = write_table(&table, engine->device, file, error);
    free(table.entries);
    return status;
}

openpi_status tune_rekey(const openpi_engine *engine, const char *path, FILE *file, int *kept, int *dropped,
                         openpi_error *error) {
    device *device = engine->device;
    tuning_machine machine = tuning_machine_of(device, pool_threads(engine->pool));
    json_t *root = NULL;
    tuning *table = NULL;
    TRY(json_read(path, &root, error));
    openpi_status status = tuning_parse(root, path, &machine, NULL, &table, error);
    json_decref(root);
    if (status != OPENPI_OK) return status;
    *kept = *dropped = 0;
    for (int i = 0; i < table->count; i++) {
        const backend *backend = device->backend;
        if (backend->kernel_hash && !backend->kernel_hash(device, table->entries[i].choice)) ++*dropped;
        else table->entries[(*kept)++] = table->entries[i];
    }
    table->count = *kept;
    status = write_table(table, device, file, error);
    tuning_close(table);
    return status;
}

void tune_forget_journal(const tune *t) {
    if (t->options.journal) remove(t->options.journal);
}
