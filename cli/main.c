/* openpi: the command. Finds the verb and runs it; everything else lives with the verbs. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/ascii.h"
#include "cli.h"
#include "input.h"
#include "output.h"
#include "words.h"

const verb_group verb_groups[] = {
    {"Run a policy", {&verb_run, &verb_serve, &verb_update}},
    {"Look at checkpoints", {&verb_inspect, &verb_doctor, &verb_convert, &verb_synth}},
    {"Look at the machine", {&verb_devices, &verb_roof}},
    {"Prove that it computes right", {&verb_verify, &verb_replay}},
    {"Measure", {&verb_bench, &verb_profile, &verb_trace, &verb_ladder}},
    {"Make it faster", {&verb_tune, &verb_quantize}},
    {"Show what was measured", {&verb_report}},
    {0},
};

const verb *verb_at(int place) {
    for (const verb_group *group = verb_groups; group->title; group++)
        for (int i = 0; group->verbs[i]; i++)
            if (!place--) return group->verbs[i];
    return NULL;
}

static void say(const verb *verb, const char *format, va_list list) {
    fprintf(stderr, verb ? "openpi %s: " : "openpi: ", verb ? verb->name : "");
    vfprintf(stderr, format, list);
    fputc('\n', stderr);
}

int usage_error(const verb *verb, const char *format, ...) {
    va_list list;
    va_start(list, format);
    say(verb, format, list);
    va_end(list);
    if (verb) fprintf(stderr, "Try 'openpi %s --help'.\n", verb->name);
    else fprintf(stderr, "Try 'openpi --help'.\n");
    return END_USAGE;
}

int input_error(const verb *verb, const char *format, ...) {
    va_list list;
    va_start(list, format);
    say(verb, format, list);
    va_end(list);
    return END_USAGE;
}

static int status_end(openpi_status status) {
    switch (status) {
    case OPENPI_OK: return END_FINE;
    case OPENPI_BEYOND_LIMIT: return END_CHECK;
    case OPENPI_NO_DEVICE:
    case OPENPI_DEVICE_LOST:
    case OPENPI_NO_MEMORY:
    case OPENPI_SYSTEM: return END_DEVICE;
    case OPENPI_BAD_ARGUMENT:
    case OPENPI_BAD_INPUT:
    case OPENPI_BAD_FILE:
    case OPENPI_CANCELLED:
    case OPENPI_NOT_FOUND:
    case OPENPI_UNSUPPORTED: break;
    }
    return END_USAGE;
}

int library_error(const verb *verb, const openpi_error *error) {
    char sentence[SENTENCE_TEXT];
    words_translate(verb, error, sentence);
    outputs_rename_in(sentence, sizeof sentence);
    input_rename_in(sentence);
    input_error(verb, "%s", sentence);
    return status_end(error->status);
}

void *allocate(size_t bytes) {
    void *memory = malloc(bytes ? bytes : 1);
    if (!memory) {
        fprintf(stderr, "openpi: out of memory: %zu bytes\n", bytes);
        exit(END_DEVICE);
    }
    return memory;
}

const char *number_text(double value, char text[NUMBER_TEXT]) {
    if (!(value - value == 0)) return strcpy(text, "null");
    for (int digits = 9; digits <= 17; digits++) {
        snprintf(text, NUMBER_TEXT, "%.*g", digits, value);
        if (ascii_number(text, NULL) == value) break;
    }
    return text;
}

int not_standard_input(const verb *verb, const char *name, const char *checkpoint) {
    if (!checkpoint || strcmp(checkpoint, "-")) return END_FINE;
    return usage_error(
        verb, "%s is '-', expected a path: weights are read in pieces, which standard input cannot be", name);
}

int model_name_read(const verb *verb, const char *synthetic, char **positional, int count, model_name *out) {
    openpi_error error = OPENPI_ERROR_INIT;
    memset(out, 0, sizeof *out);
    if (!count && !synthetic)
        return usage_error(verb, "no model: give a CHECKPOINT folder or --synthetic PRESET");
    if (count) {
        int end = not_standard_input(verb, "CHECKPOINT", positional[0]);
        return end == END_FINE ? checkpoint_path(verb, positional[0], out->path, &out->checkpoint) : end;
    }
    out->recipe.size = sizeof out->recipe;
    if (openpi_synthetic_parse(synthetic, &out->recipe, &error) != OPENPI_OK)
        return library_error(verb, &error);
    out->synthetic = &out->recipe;
    return END_FINE;
}

static const verb *find_verb(const char *name) {
    const verb *v;
    for (int i = 0; (v = verb_at(i)); i++)
        if (!strcmp(v->name, name)) return v;
    return NULL;
}

static int no_verb(const char *word) {
    char text[GUESS_TEXT];
    const verb *v;
    guess g;
    guess_start(&g, word, strlen(word));
    for (int i = 0; (v = verb_at(i)); i++) guess_offer(&g, v->name, strlen(v->name));
    guess_offer(&g, "help", 4);
    return usage_error(NULL, "there is no verb '%s'%s", word, guess_text(&g, "", text));
}

static void list_verbs(void) {
    const verb *v;
    for (int i = 0; (v = verb_at(i)); i++) printf("%s\n", v->name);
}

/* openpi help [VERB] */
static int help(int argc, char **argv) {
    const verb *verb = argc > 1 ? find_verb(argv[1]) : NULL;
    if (argc > 2) return usage_error(NULL, "unexpected argument '%s' after help VERB", argv[2]);
    if (argc > 1 && !verb) return no_verb(argv[1]);
    if (verb) help_verb(verb);
    else help_all();
    return END_FINE;
}

/* Standard input where an option of the library's names it. */
static int keep_inputs(const verb *verb, const void *values) {
    int end = END_FINE;
    for (const option_row *row = verb->options; row->name && end == END_FINE; row++)
        if (row->kind == OPTION_INPUT)
            end = input_keep(verb, *(const char *const *)((const char *)values + row->offset));
    return end;
}

/* Every result that the options name, before any work. */
static int open_outputs(const verb *verb, const void *values) {
    char name[64];
    int end = END_FINE;
    for (const option_row *row = verb->options; row->name && end == END_FINE; row++) {
        if (row->kind != OPTION_OUTPUT) continue;
        const char *path = *(const char *const *)((const char *)values + row->offset);
        snprintf(name, sizeof name, "--%s", row->name);
        if (path) end = output_open(verb, name, path);
    }
    return end;
}

static int run_verb(const verb *verb, int argc, char **argv) {
    void *values = allocate(verb->values_bytes);
    char **positional;
    int count;
    memset(values, 0, verb->values_bytes);
    if (verb->defaults) memcpy(values, verb->defaults, verb->values_bytes);
    int end = options_parse(verb, argc, argv, values, &positional, &count);
    if (end == END_FINE) {
        outputs_watch(verb);
        end = open_outputs(verb, values);
        if (end == END_FINE) end = keep_inputs(verb, values);
        if (end == END_FINE) end = verb->run(values, positional, count);
    }
    if (end < 0) end = END_FINE;           /* a help page */
    if (end == END_FINE || end == END_CHECK) {
        int saved = outputs_finish(verb);
        if (saved != END_FINE) end = saved;
    }
    outputs_discard();
    free(values);
    return end;
}

/* A standard descriptor that is closed would be the next file's or socket's, and get what is meant for it.
 * Reading and writing fail as before. */
static void hold_standard_descriptors(void) {
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0) open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

int main(int argc, char **argv) {
    int end = END_FINE;
    hold_standard_descriptors();
    if (argc < 2) {
        help_all();
        return END_USAGE;
    }
    const char *word = argv[1];
    const verb *verb = find_verb(word);
    if (verb) return run_verb(verb, argc - 1, argv + 1);
    if (!strcmp(word, "--help") || !strcmp(word, "-h")) help_all();
    else if (!strcmp(word, "--version")) version_show();
    else if (!strcmp(word, "--man")) man_all();
    else if (!strcmp(word, "--verbs")) list_verbs();
    else if (!strcmp(word, "help")) end = help(argc - 1, argv + 1);
    else if (word[0] == '-') end = usage_error(NULL, "unknown option '%s'", word);
    else end = no_verb(word);

    return end == END_FINE ? outputs_finish(NULL) : end;
}
