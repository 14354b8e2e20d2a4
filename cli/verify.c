/* openpi verify: runs golden files through the engine and prints a row a case. What is compared, and how, is
 * lab/verify/verify.h. */
#include "lab/verify/verify.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "input.h"
#include "progress.h"
#include "recorded.h"
#include "table.h"

typedef struct verify_values {
    const char *checkpoint, *robot, *config, *norm_stats, *assets, *tokenizer;
    lora_values lora;
    machine_values machine;
} verify_values;

enum { NAME_COLUMNS = 30, NOTES = 64 };

typedef struct tally {
    int results[3];
    int wide;                    /* columns of the name                                                   */
    int standard;                /* the golden is standard input                                          */
    const verify_values *v;
    char *said[NOTES];           /* notes that were printed                                               */
    int said_count;
    progress bar;
} tally;

static void put_padded(const char *text, int columns) {
    printf("%s%*s  ", text, columns > text_columns(text) ? columns - text_columns(text) : 0, "");
}

static void put_number(double value) {
    if (value - value == 0) printf("%10.3g", value);
    else printf("%10s", "-");
}

static void put_head(const tally *t) {
    put_padded("case", t->wide);
    put_padded("device", 15);
    put_padded("dtype", 5);
    printf("%10s%10s%10s  result\n", "max", "rms", "bound");
}

/* The name of the case. That of standard input is the kept file's, and what follows it after a space. */
static void put_name(const tally *t, const verify_row *row) {
    char name[sizeof row->name + 32];
    const char *rest = strchr(row->name, ' ');
    snprintf(name, sizeof name, "%s%s", input_name("-"), rest ? rest : "");
    put_padded(t->standard ? name : row->name, t->wide);
}

static void put_row(void *user, const verify_row *row) {
    tally *t = user;
    progress_end(&t->bar);
    if (!t->results[VERIFY_OK] && !t->results[VERIFY_FAIL] && !t->results[VERIFY_SKIPPED]) put_head(t);
    t->results[row->result]++;
    char detail[sizeof row->detail];
    snprintf(detail, sizeof detail, "%s", row->detail);
    input_rename_in(detail);
    put_name(t, row);
    put_padded(row->device, 15);
    put_padded(row->dtype, 5);
    put_number(row->max);
    put_number(row->rms);
    put_number(row->bound_max);
    printf("  %s%s%s\n", verify_result_text(row->result), detail[0] ? ": " : "", detail);
    fflush(stdout);
}

/* What loading a user's checkpoint tells, each sentence once: every golden and every dtype opens it anew. */
static void say_notes(tally *t, const openpi_engine *engine, const openpi_policy *policy) {
    const char *text;
    for (int i = 0, warning; t->v->checkpoint && (text = openpi_note(engine, policy, i, &warning)); i++) {
        int place = 0;
        while (place < t->said_count && strcmp(t->said[place], text)) place++;
        if (place < t->said_count || place == NOTES) continue;
        t->said[t->said_count++] = strcpy(allocate(strlen(text) + 1), text);
        progress_end(&t->bar);
        machine_say_note(&verb_verify, text, warning);
    }
}

static void forget_notes(tally *t) {
    for (int i = 0; i < t->said_count; i++) free(t->said[i]);
}

static void on_engine(void *user, openpi_engine *engine) { say_notes(user, engine, NULL); }
static void on_policy(void *user, openpi_policy *policy) { say_notes(user, NULL, policy); }

/* A device that is not there, a level of instructions or a switch that has no such name, a table that is
 * another machine's: nothing would be judged. A small model finds out before the first case; without a plan
 * of 8-bit weights, which is another model's. */
static int machine_can(const machine_values *machine) {
    openpi_synthetic small = OPENPI_SYNTHETIC_INIT;
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_engine *engine = NULL;
    char without[SWITCH_TEXT];
    machine_options(machine, without, &options);
    if (!machine->dtype) options.dtype = OPENPI_F32;
    if (verify_asks_plan(options.formats)) options.formats = NULL, options.accept_error = 0;
    options.synthetic = &small;
    openpi_status status = openpi_synthetic_parse("tiny", &small, &error);
    if (status == OPENPI_OK) status = openpi_engine_open(NULL, &options, &engine, &error);
    openpi_engine_close(engine);
    return status == OPENPI_OK ? END_FINE : library_error(&verb_verify, &error);
}

static int judge_path(tally *t, const verify_options *options, const char *path) {
    openpi_error error = OPENPI_ERROR_INIT;
    if (recorded_is(path))
        return recorded_verify(path, options, put_row, t, &error) == OPENPI_OK
                   ? END_FINE : library_error(&verb_verify, &error);
    int end = input_keep(&verb_verify, path);
    if (end != END_FINE) return end;
    t->standard = !strcmp(path, "-");
    if (verify_path(input_path(path), options, put_row, t, &error) != OPENPI_OK)
        return library_error(&verb_verify, &error);
    return END_FINE;
}

static int verify_run(const void *values, char **positional, int count) {
    const verify_values *v = values;
    tally t = {.wide = NAME_COLUMNS, .v = v};
    verify_options options = VERIFY_OPTIONS_INIT;
    char without[SWITCH_TEXT], cache[HOME_PATH];
    options.device = v->machine.device;
    options.isa = v->machine.isa;
    options.path = v->machine.path;
    options.as_card = v->machine.as;
    options.without = machine_without(&v->machine, without);
    options.table = input_path(v->machine.table);
    options.dtype = (openpi_dtype)v->machine.dtype;
    options.formats = v->machine.weights;
    options.threads = v->machine.threads;
    options.tokenizer = input_path(v->tokenizer);
    options.checkpoint = v->checkpoint;
    options.adapter = v->lora.adapter;
    options.without_lora = v->lora.without_lora;
    options.missing_chunks_are_zero = v->lora.missing_chunks_are_zero;
    options.accept_error = v->machine.accept_error;
    options.robot = input_path(v->robot);
    options.config = v->config;
    options.norm_stats = input_path(v->norm_stats);
    options.assets = v->assets;
    options.tokenizer_cache = tokenizer_cache(cache);
    options.progress = progress_show;
    options.progress_user = &t.bar;
    options.on_engine = on_engine;
    options.on_policy = on_policy;
    options.hook_user = &t;
    int end = not_standard_input(&verb_verify, "--checkpoint", v->checkpoint);
    if (end == END_FINE) end = machine_can(&v->machine);
    if (end != END_FINE) return end;
    progress_start(&t.bar);
    for (int i = 0; i < count && end == END_FINE; i++) end = judge_path(&t, &options, positional[i]);
    forget_notes(&t);
    if (end != END_FINE) return end;
    progress_end(&t.bar);
    printf("%d ok, %d FAIL, %d skipped\n", t.results[VERIFY_OK], t.results[VERIFY_FAIL],
           t.results[VERIFY_SKIPPED]);
    return t.results[VERIFY_FAIL] ? END_CHECK : END_FINE;
}

#define AT(field) offsetof(verify_values, field)

static const option_row options[] = {
    {OPTION_HEADING, .name = "Goldens of your own checkpoint, by tools/record-golden or openpi serve --record"},
    {OPTION_TEXT, "checkpoint", "DIR",
     "the weights that PATH was recorded from; without --dtype each golden is judged in f32 and in bf16",
     .offset = AT(checkpoint)},
    LORA_OPTIONS(verify_values, lora),
    {OPTION_INPUT, "robot", "NAME|FILE",
     "a robot's name or JSON file, as in run (default: the golden's or recording's)", .offset = AT(robot)},
    {OPTION_TEXT, "config", "NAME",
     "openpi's name of a training config (default: the golden's)", .offset = AT(config)},
    {OPTION_INPUT, "norm-stats", "FILE",
     "norm_stats.json (default: the checkpoint's)", .offset = AT(norm_stats)},
    {OPTION_TEXT, "assets", "NAME",
     "statistics of this folder in the checkpoint's assets (default: the robot's)", .offset = AT(assets)},
    {OPTION_HEADING, .name = "Files"},
    {OPTION_INPUT, "tokenizer", "FILE",
     "tokenizer of the cases (default: with --checkpoint as in run, else the tokenizer.model in a case's "
     "folder or up to two folders above)", .offset = AT(tokenizer)},
    {OPTION_HEADING, .name = "Machine"},
    MACHINE_OPTIONS_WITHOUT_PIN(verify_values, machine, "f32"),
    {0},
};

static const example examples[] = {
    {"is the engine right with your weights (docs/verify.md: how to record mine.safetensors)",
     "openpi verify --checkpoint pi05_droid mine.safetensors"},
    {"does this machine tell a robot what the one that was recorded did",
     "openpi verify --checkpoint pi05_droid logs/2026-11-28T10.mcap"},
    {"every golden of openpi, on this machine", "openpi verify tests/golden"},
    {"one case, in the arithmetic that is fast", "openpi verify tests/golden/model/pi0_tiny.safetensors --dtype bf16"},
    {"are the AVX2 kernels right here", "openpi verify tests/golden/model --isa avx2"},
    {NULL, NULL},
};

static const conflict conflicts[] = {
    {"robot", "config", "a config names its robot"},
    {"norm-stats", "assets", "both name the statistics"},
    {NULL, NULL, NULL},
};

static const option_pair needs[] = {{"robot", "checkpoint"},      {"config", "checkpoint"},
                                    {"norm-stats", "checkpoint"}, {"assets", "checkpoint"},
                                    {"adapter", "checkpoint"},    {"without-lora", "checkpoint"},
                                    {NULL, NULL}};

static const char *const synopsis[] = {"PATH... [options]", "--checkpoint DIR FILE... [options]", NULL};

const verb verb_verify = {
    .name = "verify",
    .summary = "check this machine against results of openpi itself",
    .synopsis = synopsis,
    .positional = "PATH",
    .positional_min = 1,
    .positional_max = -1,
    .description =
        "Recomputes golden files made by openpi and LeRobot and compares. PATH is a model/NAME.safetensors "
        "file, a "
        "policy/NAME or lerobot/NAME "
        "folder, a steps.json, or a folder of such, which is walked; or, with --checkpoint, a file that "
        "tools/record-golden wrote from those weights, or a recording of `openpi serve --record`, FILE.mcap, "
        "which judges this machine by what that one told a robot. A single .safetensors file may be '-', "
        "standard input.\n\n"
        "One line a case: the largest and the root mean square difference of the final actions, the bound, "
        "and ok, "
        "FAIL with the first "
        "stage or tensor that left its bound, or skipped with the reason. Any FAIL ends with status 1; a "
        "device or an option with which no model can run is no FAIL and ends with 2 or 3 before the first "
        "case.",
    .options = options,
    .conflicts = conflicts,
    .needs = needs,
    .examples = examples,
    .values_bytes = sizeof(verify_values),
    .run = verify_run,
};
