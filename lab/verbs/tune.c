/* openpi tune: the fastest kernel choice of every operation on this device, as a table.
 *
 * The options, the progress and the tables on the screen; measuring is lab/tune/tune.h. */
#include "lab/tune/tune.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint/variant.h"
#include "cli/output.h"
#include "roof.h"
#include "subject.h"
#include "cli/table.h"

enum { NUMBERS = 16 };

typedef struct tune_values {
    subject_values subject;
    const char *out, *json, *rekey, *batches, *cameras, *horizons, *prompts;
    int fresh, rounds, no_library, least_share;
} tune_values;

typedef struct numbers {
    int count, list[NUMBERS];
} numbers;

typedef struct tune_job {
    const tune_values *v;
    numbers batches, cameras, horizons, prompts;
    char journal[4096];
    subject subject;             /* the newest                                                            */
    subject_values model;        /* its options                                                           */
    tune_plan_shape plans[NUMBERS * NUMBERS * NUMBERS];
    int plan_count;
    tune tune;
    int opened;                  /* tune is                                                               */
    int model_index, models;     /* which of the models is being tuned, from 1                            */
    double start_ms, last_ms;
    int tty, drawn;
} tune_job;

/* ---- the options ------------------------------------------------------------------------------------ */

static int read_numbers(const char *name, const char *text, int low, int high, numbers *out) {
    out->count = 0;
    for (const char *at = text;; at++) {
        char *end;
        long n = strtol(at, &end, 10);
        if (end == at || n < low || n > high || (*end && *end != ',') || (*end && !end[1]))
            return usage_error(&verb_tune, "--%s is '%s', expected numbers from %d to %d such as %d,%d", name,
                               text, low, high, low, low + 1);
        if (out->count == NUMBERS)
            return usage_error(&verb_tune, "--%s lists more than %d numbers", name, NUMBERS);
        out->list[out->count++] = (int)n;
        at = end;
        if (!*at) return END_FINE;
    }
}

static int read_words(tune_job *j) {
    const tune_values *v = j->v;
    int end = read_numbers("batches", v->batches ? v->batches : "1", 1, OPENPI_MAX_BATCH, &j->batches);
    if (end == END_FINE)
        end = read_numbers("cameras", v->cameras ? v->cameras : "1,2,3", 1, OPENPI_CAMERAS, &j->cameras);
    if (end == END_FINE)
        end = read_numbers("horizons", v->horizons ? v->horizons : "10,50", 1, OPENPI_MAX_HORIZON,
                           &j->horizons);
    if (end == END_FINE && v->prompts) end = read_numbers("prompts", v->prompts, 1, 4096, &j->prompts);
    if (end != END_FINE) return end;
    if (!v->out && !v->json)
        fprintf(stderr, "openpi tune: neither --out nor --json: the table is only shown\n");
    if (v->out && strlen(v->out) + 6 > sizeof j->journal)
        return usage_error(&verb_tune, "--out is longer than %zu bytes", sizeof j->journal - 6);
    if (v->out && output_is_regular(v->out)) snprintf(j->journal, sizeof j->journal, "%s.part", v->out);
    return END_FINE;
}

/* ---- progress: what is running, how far, how long still ------------------------------------------- */

static void clear_line(tune_job *j) {
    if (j->drawn && j->tty) fputs("\r\033[K", stderr);
    j->drawn = 0;
}

static void show_tuning(void *user, const char *what, uint64_t done, uint64_t total) {
    tune_job *j = user;
    double now = now_ms(), elapsed = now - j->start_ms;
    char left[40] = "", step[80];
    if (now - j->last_ms < (j->tty ? 100 : 10000)) return;
    j->last_ms = now;
    if (done >= 3 && total >= done)
        snprintf(left, sizeof left, ", about %.0f s left%s",
                 elapsed * (double)(total - done) / (double)done / 1e3,
                 j->models > 1 ? " of this model" : "");
    snprintf(step, sizeof step, "step %llu of %llu", (unsigned long long)done + 1, (unsigned long long)total);
    if (j->models > 1)
        snprintf(step, sizeof step, "model %d of %d, step %llu of %llu", j->model_index, j->models,
                 (unsigned long long)done + 1, (unsigned long long)total);
    if (j->tty) {
        char bar[21];
        int filled = total ? (int)(20 * done / total) : 0;
        memset(bar, '.', 20);
        memset(bar, '#', (size_t)(filled < 20 ? filled : 20));
        bar[20] = 0;
        fprintf(stderr, "\r\033[K[%s] %s%s: %s", bar, step, left, what);
    } else {
        fprintf(stderr, "%s after %.0f s%s: %s\n", step, elapsed / 1e3, left, what);
    }
    j->drawn = 1;
}

/* ---- measuring ------------------------------------------------------------------------------------ */

static int ends(tune_job *j, const openpi_error *error) {
    const size_t journal = strlen(j->journal);
    clear_line(j);
    int end = library_error(&verb_tune, error);
    return journal && !strncmp(error->message, j->journal, journal) ? END_USAGE
                                                                    : end; /* a file like any other */
}

/* Every plan that is asked for, of the variant that is open. */
static void list_plans(tune_job *j) {
    numbers prompts = j->prompts;
    if (!prompts.count) {
        prompts.list[prompts.count++] = 20;
        if (j->subject.info.default_prompt != 20)
            prompts.list[prompts.count++] = j->subject.info.default_prompt;
    }
    j->plan_count = 0;
    for (int b = 0; b < j->batches.count; b++)
        for (int p = 0; p < prompts.count; p++)
            for (int h = 0; h < j->horizons.count; h++) {
                tune_plan_shape *s = &j->plans[j->plan_count++];
                *s = (tune_plan_shape){.batch = j->batches.list[b],
                                       .horizon = j->horizons.list[h],
                                       .max_prompt = prompts.list[p]};
                s->prompt = prompts.list[p]; /* the longest call: no shorter one has more waves of tiles */
                for (int c = 0; c < j->cameras.count; c++) s->cameras[j->cameras.list[c] - 1] = 1;
            }
}

static int open_without_table(tune_job *j) {
    char without[SWITCH_TEXT + 16], text[SWITCH_TEXT];
    const char *off = machine_without(&j->v->subject.machine, text);
    snprintf(without, sizeof without, "%s%stuned-tiles", off ? off : "", off && *off ? "," : "");
    return subject_open(&j->subject, without);
}

static int tune_variant(tune_job *j) {
    openpi_error error = OPENPI_ERROR_INIT;
    tune_options options = {.rounds = j->v->rounds,
                            .journal = j->journal[0] ? j->journal : NULL,
                            .fresh = j->v->fresh,
                            .library = !j->v->no_library,
                            .least_share = j->v->least_share / 1000.0,
                            .progress = show_tuning,
                            .progress_user = j};
    int end = open_without_table(j);
    if (end != END_FINE) return end;
    if (!j->opened && tune_open(j->subject.engine, &options, &j->tune, &error) != OPENPI_OK) {
        tune_close(&j->tune);
        return ends(j, &error);
    }
    if (!j->opened && j->tune.resumed)
        fprintf(stderr, "openpi tune: %s: continuing after %d shapes (--fresh starts anew)\n", j->journal,
                j->tune.resumed);
    if (!j->opened) j->start_ms = now_ms();
    list_plans(j);
    if (tune_expect(&j->tune, j->subject.engine, j->plans, j->plan_count, &error) != OPENPI_OK)
        return ends(j, &error);
    if (!j->opened && tune_measure_roofs(&j->tune, j->subject.engine, &error) != OPENPI_OK)
        return ends(j, &error);
    j->opened = 1;
    for (int i = 0; i < j->plan_count; i++)
        if (tune_plan(&j->tune, j->subject.engine, &j->plans[i], &error) != OPENPI_OK) return ends(j, &error);
    clear_line(j);
    return END_FINE;
}

/* Both variants of a synthetic model unless one is named; a checkpoint is what it is. */
static int tune_all(tune_job *j, char **positional, int count) {
    const subject_values *given = &j->v->subject;
    const char *colon = given->synthetic ? strchr(given->synthetic, ':') : NULL;
    int both = !count && !given->variant && !colon;
    j->models = both ? 2 : 1;
    for (int variant = 1; variant <= j->models; variant++) {
        j->model = *given;
        j->model_index = variant;
        if (both) j->model.variant = variant;
        int end = subject_read(&j->subject, &verb_tune, &j->model, positional, count);
        if (end == END_FINE) end = tune_variant(j);
        if (end == END_FINE && (!both || variant == 2)) continue; /* the last stays open for the head */
        subject_close(&j->subject);
        if (end != END_FINE) return end;
    }
    return END_FINE;
}

/* ---- showing -------------------------------------------------------------------------------------- */

static const char *words_of(const tune_row *row, char text[96]) {
    const tuning_key *k = &row->entry.key;
    int n = snprintf(text, 96, "%d", k->m);
    if (k->n) n += snprintf(text + n, 96 - (size_t)n, "x%d", k->n);
    if (k->k) n += snprintf(text + n, 96 - (size_t)n, "x%d", k->k);
    if (!k->n) n += snprintf(text + n, 96 - (size_t)n, ", %d heads", k->heads);
    if (k->capacity) n += snprintf(text + n, 96 - (size_t)n, ", %d places", k->capacity);
    if (k->cameras) snprintf(text + n, 96 - (size_t)n, ", %d cam", k->cameras);
    return text;
}

static double best_us(const tune_row *row) {
    return row->outcome == TUNE_HEURISTIC ? row->entry.heuristic_us : row->winner_us;
}

static int by_share(const void *a, const void *b) {
    const tune_row *x = *(const tune_row *const *)a, *y = *(const tune_row *const *)b;
    double p = x->calls * x->entry.heuristic_us, q = y->calls * y->entry.heuristic_us;
    return (p < q) - (p > q);
}

static void print_rows(const tune_job *j) {
    const char *const heads[] = {"operation", "shape", "heuristic", "µs",         "winner",
                                 "µs",        "gain",  "roof",      "library µs", "in place"};
    table *t = table_create("lllrlrrrrl");
    const tune_row **rows = allocate((size_t)j->tune.count * sizeof *rows);
    char text[96], share[ROOF_TEXT];
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) table_cell(t, "%s", heads[i]);
    for (int i = 0; i < j->tune.count; i++) rows[i] = &j->tune.rows[i];
    qsort(rows, (size_t)j->tune.count, sizeof *rows, by_share);
    for (int i = 0; i < j->tune.count; i++) {
        const tune_row *r = rows[i];
        double us = best_us(r), roof = tune_roof_ratio(&j->tune, r, us);
        table_cell(t, "%s", r->op);
        table_cell(t, "%s", words_of(r, text));
        table_cell(t, "%s", r->entry.heuristic);
        table_cell(t, "%.2f", r->entry.heuristic_us);
        table_cell(t, "%s", r->outcome == TUNE_HEURISTIC ? "the same" : r->winner);
        table_cell(t, "%.2f", us);
        table_cell(t, "%.1f %%", r->entry.heuristic_us > 0 ? (1 - us / r->entry.heuristic_us) * 100 : 0);
        if (roof > 0) table_cell(t, "%s", roof_share(roof, share));
        else table_cell(t, "-");
        if (r->library_us > 0) table_cell(t, "%.2f", r->library_us);
        else table_cell(t, "-");
        if (r->base_ms > 0)
            table_cell(t, "%s, %s %.4f -> %.4f ms", tune_outcome_name(r->outcome),
                       openpi_stage_name(r->stage), r->base_ms, r->trial_ms);
        else table_cell(t, "%s", r->outcome == TUNE_HEURISTIC ? "" : tune_outcome_name(r->outcome));
    }
    free(rows);
    table_print(t, stdout, 0);
    printf("\nroof: the winner's part of what this device's measured ceilings allow (an op's bytes and "
           "multiplications, each "
           "once)\n");
    if (j->tune.library[0])
        printf("library: %s, the plain product of the same rows, outputs and inputs; the own kernels also do "
               "what stands around it\n"
               "(norm, bias, activation, RoPE, cache, residual)\n",
               j->tune.library);
}

static void print_pairs(const tune_job *j) {
    table *t = table_create("lrrrrrrrr");
    const char *const heads[] = {"plan",    "batch",      "horizon", "max prompt",
                                 "cameras", "without ms", "with ms", "gain", "spread"};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) table_cell(t, "%s", heads[i]);
    for (int i = 0; i < j->tune.pair_count; i++) {
        const tune_pair *p = &j->tune.pairs[i];
        table_cell(t, "%s", variant_of(p->variant)->symbol);
        table_cell(t, "%d", p->batch);
        table_cell(t, "%d", p->horizon);
        table_cell(t, "%d", p->max_prompt);
        table_cell(t, "%d", p->cameras);
        table_cell(t, "%.4f", p->before_ms);
        table_cell(t, "%.4f", p->after_ms);
        table_cell(t, "%.2f %%", p->before_ms > 0 ? (1 - p->after_ms / p->before_ms) * 100 : 0);
        table_cell(t, "%.2f %%", p->before_ms > 0 ? p->spread_ms / p->before_ms * 100 : 0);
    }
    printf("\n");
    table_print(t, stdout, 0);
}

static json_t *job_json(const tune_job *j) {
    json_t *root = subject_json(&j->subject, "tune"), *rows = json_array(), *pairs = json_array();
    const device_roofs *roofs = &j->tune.roofs;
    for (int i = 0; i < j->tune.count; i++) {
        const tune_row *r = &j->tune.rows[i];
        json_t *row = tune_row_json(r);
        double roof = tune_roof_ratio(&j->tune, r, best_us(r));
        if (roof > 0) json_object_set_new(row, "roof_ratio", json_real(roof));
        json_array_append_new(rows, row);
    }
    for (int i = 0; i < j->tune.pair_count; i++) {
        const tune_pair *p = &j->tune.pairs[i];
        json_array_append_new(
            pairs, json_pack("{s:s,s:i,s:i,s:i,s:i,s:f,s:f,s:f,s:i,s:i,s:i}", "variant",
                             variant_of(p->variant)->name, "batch", p->batch, "horizon", p->horizon,
                             "max_prompt", p->max_prompt, "cameras", p->cameras, "before_ms", p->before_ms,
                             "after_ms", p->after_ms, "spread_ms", p->spread_ms, "rounds", p->rounds,
                             "slower_rounds", p->slower, "placed", p->placed));
    }
    json_object_set_new(root, "roof",
                        json_pack("{s:f,s:f,s:f,s:f}", "bf16_tflops", roofs->bf16_tflops, "f32_tflops",
                                  roofs->f32_tflops, "read_gbs", roofs->read_gbs, "copy_gbs",
                                  roofs->copy_gbs));
    json_object_set_new(root, "library", json_string(j->tune.library));
    json_object_set_new(root, "shapes", rows);
    json_object_set_new(root, "plans", pairs);
    return root;
}

static int finish(tune_job *j) {
    int outcomes[TUNE_OUTCOMES] = {0};
    openpi_error error = OPENPI_ERROR_INIT;
    for (int i = 0; i < j->tune.count; i++) outcomes[j->tune.rows[i].outcome]++;
    print_rows(j);
    print_pairs(j);
    printf("\n%s (%s): %d shapes, %d winners confirmed in place, %d rejected, %d where the heuristic is as "
           "fast; %.0f s\n",
           j->tune.machine.device, j->tune.machine.path, j->tune.count, outcomes[TUNE_CONFIRMED],
           outcomes[TUNE_REJECTED], outcomes[TUNE_HEURISTIC], (now_ms() - j->start_ms) / 1e3);
    if (j->v->json) {
        int end = json_save(&verb_tune, j->v->json, job_json(j));
        if (end != END_FINE) return end;
    }
    if (!j->v->out) return END_FINE;
    FILE *file = output_file(j->v->out);
    if (tune_write(&j->tune, j->subject.engine, j->v->out, file, &error) != OPENPI_OK) {
        int end = library_error(&verb_tune, &error);
        output_drop(j->v->out);
        return tune_slowed(&j->tune) ? END_CHECK : end;
    }
    int end = outputs_finish(&verb_tune);
    if (end != END_FINE) return end;
    tune_forget_journal(&j->tune);
    printf("%s: written\n", j->v->out);
    return END_FINE;
}

/* A table's entries with the hashes of this build; the model only opens the device. */
static int rekey(tune_job *j, char **positional, int count) {
    const tune_values *v = j->v;
    openpi_error error = OPENPI_ERROR_INIT;
    int kept, dropped;
    if (!v->out) return usage_error(&verb_tune, "--rekey without --out: expected a file to write");
    j->model = v->subject;
    if (!count && !j->model.synthetic) j->model.synthetic = "tiny";
    int end = subject_read(&j->subject, &verb_tune, &j->model, positional, count);
    if (end == END_FINE) end = open_without_table(j);
    if (end != END_FINE) return end;
    if (tune_rekey(j->subject.engine, v->rekey, output_file(v->out), &kept, &dropped, &error) != OPENPI_OK) {
        output_drop(v->out);
        return library_error(&verb_tune, &error);
    }
    end = outputs_finish(&verb_tune);
    if (end != END_FINE) return end;
    printf("%s: written, %d entries; %d left out whose kernels this build does not have\n", v->out, kept,
           dropped);
    return END_FINE;
}

static int tune_verb_run(const void *values, char **positional, int count) {
    tune_job *j = allocate(sizeof *j);
    memset(j, 0, sizeof *j);
    j->v = values;
    j->tty = isatty(STDERR_FILENO);
    int end = j->v->rekey ? rekey(j, positional, count) : read_words(j);
    if (end == END_FINE && !j->v->rekey) end = tune_all(j, positional, count);
    if (end == END_FINE && !j->v->rekey) end = finish(j);
    subject_close(&j->subject);
    tune_close(&j->tune);
    free(j);
    return end;
}

#define AT(member) offsetof(tune_values, member)
static const option_row options[] = {
    SUBJECT_MODEL_OPTIONS(tune_values, subject),
    {OPTION_HEADING, .name = "Plans"},
    {OPTION_TEXT, "batches", "N[,N]", "samples of a call (default: 1)", .offset = AT(batches)},
    {OPTION_TEXT, "cameras", "N[,N]", "cameras a sample (default: 1,2,3)", .offset = AT(cameras)},
    {OPTION_TEXT, "horizons", "N[,N]", "actions of the chunk (default: 10,50)", .offset = AT(horizons)},
    {OPTION_TEXT, "prompts", "N[,N]",
     "most prompt tokens of a session (default: 20 and the model's own)", .offset = AT(prompts)},
    {OPTION_HEADING, .name = "Measuring"},
    {OPTION_OUTPUT, "out", "FILE",
     "write the table here; FILE.part is the journal from which a stopped run continues",
     .offset = AT(out)},
    {OPTION_TEXT, "rekey", "TABLE",
     "measure nothing: write TABLE with the hashes of this build's kernels to --out, after a change of "
     "their sources that changes no speed", .offset = AT(rekey)},
    {OPTION_FLAG, "fresh", NULL, "forget a journal that is there", .offset = AT(fresh)},
    {OPTION_OUTPUT, "json", "FILE", "also write everything that was measured here", .offset = AT(json)},
    {OPTION_INT, "rounds", "N",
     "times that a candidate near the best is timed (default: 11)",
     .offset = AT(rounds), .low = 1, .high = 64},
    {OPTION_INT, "least-share", "N",
     "leave out shapes that take less than N thousandths of a call, by the device's ceilings (default: 0)",
     .offset = AT(least_share), .low = 0, .high = 1000},
    {OPTION_FLAG, "no-library", NULL, "do not time cuBLASLt for comparison", .offset = AT(no_library)},
    SUBJECT_MACHINE_OPTIONS(tune_values, subject),
    {0},
};
static const example examples[] = {
    {"a table for this GPU: batch 1, both variants, 1 to 3 cameras, horizons 10 and 50",
     "openpi tune --device cuda:0 --out tune/mine.json"},
    {"use it", "openpi bench --device cuda:0 --table tune/mine.json"},
    {"only the plans that matter here",
     "openpi tune --device cuda:0 --variant pi05 --batches 1,4 --cameras 2 --horizons 10 --out mine.json"},
    {"for a processor, with as many threads as will be used",
     "openpi tune --threads 16 --horizons 10 --cameras 3 --out mine.json"},
    {NULL, NULL},
};
static const char *const synopsis[] = {"[--synthetic PRESET[:pi0|pi05[:SEED]]] [options]",
                                       "CHECKPOINT [options]", NULL};
static const tune_values defaults = {.subject = SUBJECT_DEFAULTS};

const verb verb_tune = {
    .name = "tune",
    .summary = "the fastest kernel choice of every operation on this device",
    .synopsis = synopsis,
    .positional = "CHECKPOINT",
    .positional_max = 1,
    .description =
        "Times every kernel choice that the device offers for every shape of the plans asked for: kernels, "
        "tiles, stages, splits and clusters on a GPU, blockings on a CPU. Each winner then runs inside the "
        "whole plan against the plan without it; one that gains no more there than the runs' spread is "
        "rejected. At the end every plan runs with the table and without it by turns: where that gains no "
        "more than the spread, the plan's new choices go, and a table that makes one slower is not written "
        "and the status is 1. --table uses the resulting table; openpi uses its own where it has one for the "
        "device. The heuristic chooses for shapes that are not in the table.\n\n"
        "Without a model it takes the full synthetic π0 and π0.5. A run that was stopped continues when it "
        "is started again with the same --out.",
    .options = options,
    .examples = examples,
    .values_bytes = sizeof(tune_values),
    .defaults = &defaults,
    .run = tune_verb_run,
};
