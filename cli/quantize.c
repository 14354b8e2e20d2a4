/* openpi quantize: which products of a checkpoint may have 8 bits, measured on a user's observations. The
 * measuring is lab/quantize/. */
#include "quantize.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/ascii.h"
#include "base/json.h"
#include "input.h"
#include "json_file.h"
#include "output.h"

enum { FEW_SYNTHETIC = 8 };

/* ---- what is measured ---------------------------------------------------------------------------------- */

static int open_policy(quantize_job *j) {
    const quantize_values *v = j->v;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    char cache[HOME_PATH];
    policy_of_model(&j->model, &v->lora, &v->policy, cache, &options);
    options.horizon = v->horizon;
    if (openpi_policy_open(j->model.checkpoint, &options, &j->policy, &error) != OPENPI_OK)
        return library_error(&verb_quantize, &error);
    machine_say_notes(&verb_quantize, NULL, j->policy);
    return END_FINE;
}

static int take_observations(quantize_job *j) {
    const quantize_values *v = j->v;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_status status =
        v->synthetic ? observations_make(j->policy, v->synthetic, v->seed, &j->observations, &error)
                     : observations_read(j->policy, v->observations, v->most, &j->observations, &error);
    return status == OPENPI_OK ? END_FINE : library_error(&verb_quantize, &error);
}

static int read_bound(const quantize_values *v, double *rms) {
    *rms = 0;
    if (!v->bound) return END_FINE;
    char *end;
    *rms = ascii_number(v->bound, &end);
    if (*rms > 0 && *rms < 10 && !*end) return END_FINE;
    return usage_error(&verb_quantize, "--bound is '%s', expected a number of σ such as 0.02", v->bound);
}

static int set_options(quantize_job *j, char without[SWITCH_TEXT]) {
    const quantize_values *v = j->v;
    machine_options(&v->machine, without, &j->engine);
    engine_of_model(&j->model, &v->lora, &j->engine);
    j->options = (quantize_options){.checkpoint = j->model.checkpoint,
                                    .engine = &j->engine,
                                    .list = v->machine.weights,
                                    .bounds.units = v->unit_bound,
                                    .save = (quantize_save)(v->save ? v->save - 1 : 0),
                                    .horizon = v->horizon,
                                    .steps = v->steps,
                                    .seed = v->seed,
                                    .progress = progress_show,
                                    .progress_user = &j->bar,
                                    .on_candidate = v->json ? NULL : quantize_show_candidate,
                                    .on_candidate_user = j};
    return read_bound(v, &j->options.bounds.rms);
}

/* Opened before the long work, like every output. */
static int open_place(quantize_job *j) {
    static char kept[W8_PATH];             /* output.h finishes it after this verb has ended         */
    openpi_error error = OPENPI_ERROR_INIT;
    if (j->v->out) return snprintf(j->place, sizeof j->place, "%s", j->v->out), END_FINE;
    if (j->model.synthetic)
        return usage_error(&verb_quantize, "a synthetic model has no folder for its plan: give --out FILE");
    if (quantize_place(j->model.checkpoint, &j->engine, j->place, &error) != OPENPI_OK)
        return library_error(&verb_quantize, &error);
    snprintf(kept, sizeof kept, "%s", j->place);
    return output_open(&verb_quantize, "the plan", kept);
}

/* ---- what is written ----------------------------------------------------------------------------------- */

static json_t *head(const quantize_job *j, const char *kind) {
    const openpi_engine_info *i = &j->result.info;
    json_t *root = head_json(kind),
           *rest = json_pack("{s:o,s:o}", "model", head_model(i, j->source), "machine",
                             head_machine(i, i->device));
    json_object_update(root, rest);
    json_decref(rest);
    return root;
}

static int write_plan(quantize_job *j) {
    if (!j->result.plan) {
        output_drop(j->place);
        return END_FINE;
    }
    char *text = quantize_text(&j->result, head(j, "w8"), quantize_report(j));
    if (!text) return input_error(&verb_quantize, "%s: cannot be written: out of memory", j->place);
    fprintf(output_file(j->place), "%s\n", text);
    free(text);
    return END_FINE;
}

static int show_json(quantize_job *j) {
    json_t *root = head(j, "quantize"), *report = quantize_report(j);
    json_object_update(root, report);
    json_object_set_new(root, "plan", j->result.plan ? json_string(j->place) : json_null());
    json_decref(report);
    char *text = json_text(root, JSON_INDENT(1) | JSON_REAL_PRECISION(7));
    json_decref(root);
    if (!text) return input_error(&verb_quantize, "out of memory");
    puts(text);
    free(text);
    return END_FINE;
}

static int measure(quantize_job *j) {
    openpi_error error = OPENPI_ERROR_INIT;
    progress_start(&j->bar);
    openpi_status status = quantize_run(&j->observations, &j->options, &j->result, &error);
    progress_end(&j->bar);
    if (status != OPENPI_OK) return library_error(&verb_quantize, &error);
    int end = write_plan(j);
    if (end == END_FINE && j->v->json) end = show_json(j);
    else if (end == END_FINE) quantize_show(j);
    return end != END_FINE || j->result.holds ? end : END_CHECK;
}

static int check_values(const quantize_values *v) {
    if (!v->observations == !v->synthetic)
        return usage_error(&verb_quantize, v->observations
                                               ? "--observations and --synthetic: expected one of them"
                                               : "no observations: give --observations FOLDER, or "
                                                 "--synthetic N where there are none");
    return END_FINE;
}

static int quantize_main(const void *values, char **positional, int count) {
    quantize_job j = {.v = values, .engine = OPENPI_ENGINE_OPTIONS_INIT};
    char without[SWITCH_TEXT];
    int end = check_values(j.v);
    if (end == END_FINE)
        end = model_name_read(&verb_quantize, j.v->synthetic_model, positional, count, &j.model);
    if (end == END_FINE) end = set_options(&j, without);
    if (end == END_FINE) end = open_place(&j);
    if (end == END_FINE) end = open_policy(&j);
    if (end == END_FINE) end = take_observations(&j);
    lora_source(&j.v->lora, j.model.checkpoint ? j.model.checkpoint : j.v->synthetic_model, j.source,
                sizeof j.source);
    if (end == END_FINE) end = measure(&j);
    quantize_free(&j.result);
    observations_free(&j.observations);
    openpi_policy_close(j.policy);
    return end;
}

/* ---- the options --------------------------------------------------------------------------------------- */

#define AT(field) offsetof(quantize_values, field)

static const quantize_values defaults = {.most = 32};

static const option_row options[] = {
    {OPTION_HEADING, .name = "Observations"},
    {OPTION_TEXT, "observations", "FOLDER",
     ".msgpack files of requests as openpi clients send them, one or several a file, or a .safetensors file "
     "of tools/record-golden; 16 or more from different moments of the task", .offset = AT(observations)},
    {OPTION_INT, "most", "N", "take at most N of them, evenly spread (default: 32)", .offset = AT(most),
     .low = 1, .high = OBSERVATIONS_MAX},
    {OPTION_INT, "synthetic", "N", "make up N observations, which proves little",
     .offset = AT(synthetic), .low = 1, .high = OBSERVATIONS_MAX},
    {OPTION_HEADING, .name = "Bounds"},
    {OPTION_TEXT, "bound", "RMS",
     "of the difference from the same model without 8 bits, in σ of normalised actions; five times it bounds "
     "their 99.9 % quantile (default: 0.02; none where --unit-bound is given alone)", .offset = AT(bound)},
    {OPTION_TEXT, "unit-bound", "\"NAME NUMBER[UNIT],…\"",
     "the largest difference of the actions whose names have NAME in them: \"joint 0.3deg, gripper 0.01\"; "
     "`joint` is also any other angle, `all` every action", .offset = AT(unit_bound)},
    {OPTION_CHOICE, "save", "auto|ms|bytes",
     "what the choice is to save (default: auto, which is ms where a format is faster here, else bytes)",
     .offset = AT(save)},
    {OPTION_HEADING, .name = "Model"},
    {OPTION_TEXT, "model", "PRESET[:pi0|pi05[:SEED]]",
     "a synthetic model in place of a checkpoint, for tests; needs --out", .offset = AT(synthetic_model)},
    LORA_OPTIONS(quantize_values, lora),
    {OPTION_HEADING, .name = "Policy"},
    POLICY_OPTIONS(quantize_values, policy),
    {OPTION_HEADING, .name = "Sampling"},
    {OPTION_INT, "horizon", "N", "actions of the chunk (default: the config's or the checkpoint's)",
     .offset = AT(horizon), .low = 1, .high = OPENPI_MAX_HORIZON},
    {OPTION_INT, "steps", "N", "denoising steps (default: the checkpoint's, 10)", .offset = AT(steps),
     .low = 1, .high = OPENPI_MAX_STEPS},
    {OPTION_U64, "seed", "N", "of the noise, and of made-up observations (default: 0)", .offset = AT(seed)},
    {OPTION_HEADING, .name = "Result"},
    {OPTION_OUTPUT, "out", "FILE",
     "the plan's file (default: openpi-w8.json beside the weights, where --weights w8 looks for it)",
     .offset = AT(out)},
    {OPTION_FLAG, "json", NULL, "print what was measured as JSON", .offset = AT(json)},
    {OPTION_HEADING, .name = "Machine"},
    MACHINE_OPTIONS(quantize_values, machine),
    {0},
};

static const conflict conflicts[] = {
    {"", "model", "the weights are either read or made"},
    {"observations", "synthetic", "observations are either read or made up"},
    {"most", "synthetic", "--synthetic says how many"},
    {"robot", "config", "a config names its robot"},
    {"norm-stats", "assets", "both name the statistics"},
    {0},
};

static const example examples[] = {
    {"which products may have 8 bits, by a robot's own requests",
     "openpi quantize pi05_droid/ --config pi05_droid --observations requests/ --device cuda:0"},
    {"no joint off by more than 0.3 degrees",
     "openpi quantize ckpt/ --robot aloha --observations requests/ "
     "--unit-bound \"joint 0.3deg, gripper 0.01\""},
    {"judge one table instead of choosing",
     "openpi quantize ckpt/ --robot droid --observations requests/ --weights expert=int8"},
    {"then run with it", "openpi serve pi05_droid/ --config pi05_droid --weights w8"},
    {NULL, NULL},
};

static const char *const synopsis[] = {"CHECKPOINT --observations FOLDER [options]",
                                       "CHECKPOINT --synthetic N [options]", NULL};

const verb verb_quantize = {
    .name = "quantize",
    .summary = "choose 8-bit weights by measuring what they do to actions",
    .synopsis = synopsis,
    .positional = "CHECKPOINT",
    .positional_max = 1,
    .description =
        "Runs each group of products in each format of 8 bits alone, integers also with channels made alike "
        "(+smooth), on observations of yours, and compares "
        "the actions with those of the same model without 8 bits on the same device. Of what saves the most "
        "for the least error a table is chosen whose predicted error is within the bounds; it is run as a "
        "whole, and groups are taken back until it is. The table goes to openpi-w8.json beside the "
        "checkpoint, and --weights w8 of every verb opens with it.\n\n"
        "With --weights LIST that table is judged and nothing is chosen. Status 1: nothing may have 8 bits "
        "within the bounds, or the table that was to be judged is above them. docs/w8.md says how to read "
        "the result.",
    .options = options,
    .conflicts = conflicts,
    .examples = examples,
    .values_bytes = sizeof(quantize_values),
    .defaults = &defaults,
    .run = quantize_main,
};
