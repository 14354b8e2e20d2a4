/* From the words about the machine to the engine's options. */
#include <stdio.h>

#include "cli.h"
#include "input.h"
#include "measure/tune.h"

const char *machine_without(const machine_values *values, char text[SWITCH_TEXT]) {
    const char *given = values->without ? values->without : "";
    if (!values->no_graph) return values->without;
    snprintf(text, SWITCH_TEXT, "%.480s%sgraph-replay", given, *given ? "," : "");
    return text;
}

void machine_options(const machine_values *values, char text[SWITCH_TEXT], openpi_engine_options *options) {
    options->device = values->device;
    options->dtype = (openpi_dtype)values->dtype;
    options->threads = values->threads;
    options->isa = values->isa;
    options->path = values->path;
    options->pin = values->pin;
    options->without = machine_without(values, text);
    options->table = input_path(values->table);
}

void machine_say_table(const verb *verb, const openpi_engine_info *info, const openpi_session *session) {
    const char *ignored;
    int known, unknown;
    tune_coverage(session, &known, &unknown, &ignored);
    if (!info->table[0])
        fprintf(stderr, "openpi %s: no tuning table is in use, every operation goes the built-in way\n", verb->name);
    else
        fprintf(stderr,
                "openpi %s: table %s: %d operations go its ways, %d have shapes that it does not know and go the built-in way\n",
                verb->name, input_shown(info->table), known, unknown);
    if (*ignored) fprintf(stderr, "openpi %s: table %s: %s\n", verb->name, input_shown(info->table), ignored);
}
