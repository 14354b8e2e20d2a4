/* What an instrument works on: a model on a device, and a made-up call. One set of options for bench,
 * profile, trace, tune, ladder and roof, one function that loads, one head for their JSON files.
 *
 *   subject_read -> subject_open -> subject_session as often as needed -> subject_close */
#ifndef CLI_SUBJECT_H
#define CLI_SUBJECT_H

#include <jansson.h>

#include "cli/cli.h"
#include "cli/head.h"
#include "cli/json_file.h"
#include "lab/measure/bench.h"
#include "cli/progress.h"

typedef struct subject_values {
    const char *synthetic, *cameras;
    int variant, prompt, horizon, steps;
    uint64_t seed;
    lora_values lora;
    machine_values machine;
} subject_values;

/* The published workload. */
#define SUBJECT_DEFAULTS {.prompt = 20, .horizon = 10, .steps = 10}

#define SUBJECT_MODEL_OPTIONS(type, member) \
    {OPTION_HEADING, .name = "Model"}, SYNTHETIC_OPTION(type, member.synthetic), \
    LORA_OPTIONS(type, member.lora), { \
        OPTION_CHOICE, "variant", "pi0|pi05", \
            "variant of the synthetic model; of a checkpoint, the one it must be", \
            .offset = offsetof(type, member.variant) \
    }
/* A heading, and a verb's own --batch, stand before these. */
#define SUBJECT_WORKLOAD_OPTIONS(type, member)                                                              \
    {OPTION_TEXT, "cameras", "MASK", "which cameras are there: base, left wrist, right wrist (default: 111)",\
     .offset = offsetof(type, member.cameras)},                                                             \
    {OPTION_INT, "prompt", "N", "prompt tokens (default: 20)",                                              \
     .offset = offsetof(type, member.prompt), .low = 0, .high = 4096},                                      \
    {OPTION_INT, "horizon", "N", "actions of the chunk (default: 10)",                                      \
     .offset = offsetof(type, member.horizon), .low = 1, .high = OPENPI_MAX_HORIZON},                       \
    {OPTION_INT, "steps", "N", "denoising steps (default: 10)",                                             \
     .offset = offsetof(type, member.steps), .low = 1, .high = OPENPI_MAX_STEPS},                           \
    {OPTION_U64, "seed", "N", "seed of pictures, tokens, state and noise (default: 0)",                     \
     .offset = offsetof(type, member.seed)}
#define SUBJECT_MACHINE_OPTIONS(type, member)                                                               \
    {OPTION_HEADING, .name = "Machine"}, MACHINE_OPTIONS(type, member.machine)

typedef struct subject {
    const verb *verb;            /* for sentences                                                         */
    const subject_values *v;
    model_name model;
    char source[128];            /* the model's name for people                                           */
    workload call;               /* batch 1 unless the verb says otherwise                                */
    int parts;                   /* 1: sessions are created with the option parts                         */
    openpi_engine *engine;       /* NULL until opened                                                     */
    openpi_engine_info info;
    int warned;                  /* 1: the user was told that a table is not used whole                   */
    device_facts facts;
    char hardware[HARDWARE_TEXT];          /* "NVIDIA H200"                                               */
    double ready_ms;             /* opening the engine: weights packed                                    */
    progress bar;
    openpi_progress on_load;     /* called beside the bar while the engine opens; may be NULL             */
    void *on_load_user;
} subject;

/* Reads the options; every function returns END_FINE or the code to end with, having said why. */
int subject_read(subject *subject, const verb *verb, const subject_values *values, char **positional,
                 int count);
/* Opens the engine. `without`: switches that are off, NULL: as the options say. */
int subject_open(subject *subject, const char *without);
/* A session that holds `batch` samples of the workload and prompts of up to `max_prompt` tokens (0: the
 * workload's). */
int subject_session(subject *subject, int batch, int max_prompt, openpi_session **session);
void subject_close(subject *subject);

/* Two lines on stdout: the model on the machine, the workload. */
void subject_print(const subject *subject);
/* {"kind", "format": 1, "version", "model", "machine", "workload", "ready_ms"} of an opened subject. */
json_t *subject_json(const subject *subject, const char *kind);

#endif
