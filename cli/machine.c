/* From the command's options about the machine to the engine's. */
#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "input.h"
#include "lab/tune/tune.h"
#include "words.h"

const char *machine_without(const machine_values *values, char text[SWITCH_TEXT]) {
    const char *given = values->without ? values->without : "";
    if (!values->no_graph) return values->without;
    snprintf(text, SWITCH_TEXT, "%.480s%sgraph-replay", given, *given ? "," : "");
    return text;
}

const char *machine_weights(const openpi_engine_info *info) {
    int f32 = info->weights == OPENPI_WEIGHTS_F32;
    if (strcmp(info->formats, "bf16") && strcmp(info->formats, "f32") && strcmp(info->formats, "file"))
        return info->formats;
    return f32 == (info->dtype == OPENPI_F32) ? NULL : f32 ? "f32" : "bf16";
}

const char *machine_types(const openpi_engine_info *info, char text[TYPES_TEXT]) {
    const char *weights = machine_weights(info);
    snprintf(text, TYPES_TEXT, "%s%s%s%s", info->dtype == OPENPI_F32 ? "f32" : "bf16",
             weights ? " with " : "", weights ? weights : "", weights ? " weights" : "");
    return text;
}

void machine_options(const machine_values *values, char text[SWITCH_TEXT], openpi_engine_options *options) {
    options->device = values->device;
    options->dtype = (openpi_dtype)values->dtype;
    options->formats = values->weights;
    options->accept_error = values->accept_error;
    options->threads = values->threads;
    options->isa = values->isa;
    options->path = values->path;
    options->as_card = values->as;
    options->pin = values->pin;
    options->without = machine_without(values, text);
    options->table = input_path(values->table);
}

void engine_of_model(const model_name *model, const lora_values *lora, openpi_engine_options *options) {
    options->synthetic = model->synthetic;
    options->adapter = lora->adapter;
    options->without_lora = lora->without_lora;
    options->missing_chunks_are_zero = lora->missing_chunks_are_zero;
}

void policy_of_model(const model_name *model, const lora_values *lora, const policy_values *values,
                     char cache[HOME_PATH], openpi_policy_options *options) {
    options->robot = input_path(values->robot);
    options->config = values->config;
    options->norm_stats = input_path(values->norm_stats);
    options->assets = values->assets;
    options->tokenizer = input_path(values->tokenizer);
    options->tokenizer_cache = tokenizer_cache(cache);
    options->prompt_state = (openpi_prompt_state)values->prompt_state;
    options->synthetic = model->synthetic;
    options->adapter = lora->adapter;
    options->without_lora = lora->without_lora;
    options->missing_chunks_are_zero = lora->missing_chunks_are_zero;
}

void lora_source(const lora_values *values, const char *checkpoint, char *text, size_t bytes) {
    int whole = (int)bytes - 1, most = values->adapter ? whole / 2 - 8 : whole;
    snprintf(text, bytes, "%.*s%s%.*s%s", most, checkpoint, values->adapter ? " with adapter " : "",
             values->adapter ? whole / 2 - 20 : 0, values->adapter ? values->adapter : "",
             values->without_lora ? " without LoRA" : "");
}

void machine_say_table(const verb *verb, const openpi_engine_info *info, const openpi_session *session) {
    int known, unknown;
    tune_coverage(session, &known, &unknown);
    if (!info->table[0])
        fprintf(stderr, "openpi %s: no tuning table is in use, the heuristic chooses every kernel\n",
                verb->name);
    else
        fprintf(stderr,
                "openpi %s: table %s: it chooses the kernels of %d operations; %d have shapes that it lacks, "
                "the heuristic chooses\n",
                verb->name, input_shown(info->table), known, unknown);
}

void machine_warn_table(const verb *verb, const openpi_engine_info *info) {
    if (info->table_ignored[0])
        fprintf(stderr, "openpi %s: table %s: %s\n", verb->name, input_shown(info->table),
                info->table_ignored);
}

void machine_say_note(const verb *verb, const char *text, int warning) {
    openpi_error note = OPENPI_ERROR_INIT;
    char sentence[SENTENCE_TEXT];
    snprintf(note.message, sizeof note.message, "%s", text);
    words_translate(verb, &note, sentence);
    fprintf(stderr, "openpi %s: %s%s\n", verb->name, warning ? "warning: " : "", sentence);
}

void machine_say_notes(const verb *verb, const openpi_engine *engine, const openpi_policy *policy) {
    const char *text;
    int warning;
    for (int i = 0; (text = openpi_note(engine, policy, i, &warning)); i++)
        machine_say_note(verb, text, warning);
}
