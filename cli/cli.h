/* The command line: verbs, their options, and how they end.
 *
 * A verb is a record. Its help page, its man page and its parser are three walks over that record, so that
 * they cannot disagree. Results go to stdout; sentences, progress and notes go to stderr. */
#ifndef CLI_H
#define CLI_H

#include <stddef.h>
#include <stdint.h>

#include "openpi.h"

/* How every verb ends. */
enum {
    END_FINE = 0,
    END_CHECK = 1,               /* a check failed: verify, bench --against, ladder, tune's last; actions
                                    beyond a robot's limits                                               */
    END_USAGE = 2,               /* bad usage or input, or a result that cannot be written                */
    END_DEVICE = 3,              /* the machine: no such device, device lost, out of memory               */
    END_INTERRUPTED = 130,       /* SIGINT, SIGTERM or SIGHUP; see output.h                               */
};

typedef enum option_kind {
    OPTION_HEADING,              /* no option: `name` heads the rows that follow in the help page         */
    OPTION_FLAG,                 /* int: 1 when given. With the argument "[-]" a "-" may follow           */
    OPTION_TEXT,                 /* const char *                                                          */
    OPTION_TEXTS,                /* text_list: may be repeated                                            */
    OPTION_INPUT,                /* const char *: a file for the library to read; "-" is kept (input.h)   */
    OPTION_OUTPUT,               /* const char *: a file to write; opened before the verb runs (output.h) */
    OPTION_INT,                  /* int, low … high                                                       */
    OPTION_U64,                  /* uint64_t                                                              */
    OPTION_BYTES,                /* uint64_t: 1000, 500MB, 2GB, 1GiB                                      */
    OPTION_CHOICE,               /* int: 1-based place in `argument`, "a|b|c"; 0 when not given           */
} option_kind;

enum { TEXT_LIST_MAX = 16 };
typedef struct text_list {
    int count;
    const char *items[TEXT_LIST_MAX];
} text_list;

typedef struct option_row {
    option_kind kind;
    const char *name;            /* without dashes; NULL ends the table                                   */
    const char *argument;        /* as help shows it, "NAME=FILE"; NULL for a flag                        */
    const char *help;
    size_t offset;               /* of the field in the verb's values                                     */
    int low, high;               /* OPTION_INT                                                            */
} option_row;

/* Two options that cannot stand together, and why. An `a` or `b` of "" is the positional argument. */
typedef struct conflict {
    const char *a, *b, *why;
} conflict;

/* An option and the one without which it has no effect: a user who gives it alone means something else. */
typedef struct option_pair {
    const char *name, *without;
} option_pair;

/* An option with which a verb does something else, for which only the options of `with` count. */
typedef struct option_alone {
    const char *name, *why;
    const char *with[4];         /* NULL-terminated                                                       */
} option_alone;

typedef struct example {
    const char *comment, *command;
} example;

typedef struct verb {
    const char *name, *summary;
    const char *const *synopsis;           /* what follows "openpi NAME "; NULL-terminated                 */
    const char *positional;                /* "CHECKPOINT", for sentences; NULL: takes none               */
    int positional_min, positional_max;    /* max -1: any number                                          */
    const char *description;               /* paragraphs apart by a blank line                            */
    const option_row *options;
    const conflict *conflicts;             /* a NULL `a` ends; may be NULL                                */
    const option_pair *needs;              /* a NULL `name` ends; may be NULL                              */
    const option_alone *alone;             /* one; may be NULL                                             */
    const example *examples;               /* a NULL command ends                                         */
    size_t values_bytes;
    const void *defaults;                  /* values before parsing; NULL: zeros                          */
    int own_signals;                       /* 1: SIGTERM and its like are the verb's; it writes no result */
    int (*run)(const void *values, char **positional, int count);
} verb;

extern const verb verb_run, verb_inspect, verb_convert, verb_synth, verb_verify, verb_bench, verb_devices;
extern const verb verb_doctor;
extern const verb verb_profile, verb_trace, verb_roof;
extern const verb verb_report;
extern const verb verb_ladder;
extern const verb verb_tune;
extern const verb verb_quantize;
extern const verb verb_serve, verb_replay, verb_update;

/* The verbs by what they are for, in the order of `openpi --help`. The one list that there is. */
enum { GROUP_VERBS = 8 };
typedef struct verb_group {
    const char *title;                     /* NULL ends the list of groups                                */
    const verb *verbs[GROUP_VERBS];        /* NULL-terminated                                             */
} verb_group;
extern const verb_group verb_groups[];
/* The verb at a place of that list, NULL after its end. */
const verb *verb_at(int place);

/* The options about the machine, for every verb that computes: put MACHINE_OPTIONS(struct, member) into its
 * table. */
typedef struct machine_values {
    const char *device, *isa, *path, *as, *without, *table;
    int no_graph;
    const char *weights;         /* openpi_engine_options.formats                                         */
    int dtype;                   /* CHOICE bf16|f32: openpi_dtype's own numbers                           */
    int threads, pin;
    int accept_error;            /* openpi_engine_options.accept_error                                    */
} machine_values;

#define WEIGHTS_OPTION(type, member)                                                                        \
    {OPTION_TEXT, "weights", "[GROUP=]FORMAT[,…]",                                                          \
     "what products keep their weights in: bf16, f32, int8, e4m3, file (as it has them) or int8x8 (int8, "  \
     "and int8 rows); for all, or for vision, attention, ffn, expert or heads: expert=int8,ffn=int8x8 "     \
     "(docs/weights.md; default: as the dtype, and under f32 no more than the file has); or w8, the plan "   \
     "that `openpi quantize` wrote beside the checkpoint, w8=FILE elsewhere (docs/w8.md)",                  \
     .offset = offsetof(type, member)}
#define AS_HELP                                                                                              \
    "a GPU keeps to the shared memory and the multiprocessors of this card, so that its kernels are those "  \
    "that run there: rtx3090, rtx4090, rtx5090, a100, l4, l40s, a6000, rtx6000ada, orin, thor, spark, h100 " \
    "or h200 (docs/cards.md); implies --path portable"
#define MACHINE_OPTIONS_WITHOUT_PIN(type, member, dtype_default)                                             \
    {OPTION_TEXT, "device", "NAME", "which device computes, as `openpi devices` names it (default: cpu)",    \
     .offset = offsetof(type, member.device)},                                                               \
    {OPTION_CHOICE, "dtype", "bf16|f32",                                                                     \
     "arithmetic: bf16 at tensor boundaries and fp32 inside, or fp32 throughout (default: " dtype_default    \
     ")", .offset = offsetof(type, member.dtype)},                                                           \
    WEIGHTS_OPTION(type, member.weights),                                                                    \
    {OPTION_FLAG, "accept-error", NULL,                                                                      \
     "open --weights w8 although its error is above its bound; every result says so",                        \
     .offset = offsetof(type, member.accept_error)},                                                         \
    {OPTION_INT, "threads", "N", "worker threads (default: every processor this process may use)",           \
     .offset = offsetof(type, member.threads), .low = 1, .high = 1024},                                      \
    {OPTION_TEXT, "isa", "NAME",                                                                             \
     "highest CPU instructions to use: reference, on x86 also avx2, avx512, avx512_vnni, avx512_bf16, amx, " \
     "on ARM neon, neon_dot, neon_bf16 (default: the best that the CPU runs)",                               \
     .offset = offsetof(type, member.isa)},                                                                  \
    {OPTION_TEXT, "path", "NAME", "kernels of a GPU: hopper or portable (default: the best that it runs)",   \
     .offset = offsetof(type, member.path)},                                                                 \
    {OPTION_TEXT, "as", "CARD", AS_HELP, .offset = offsetof(type, member.as)},                              \
    {OPTION_FLAG, "no-graph", NULL,                                                                          \
     "a GPU runs operation by operation, not as one graph; as --without graph-replay",                       \
     .offset = offsetof(type, member.no_graph)},                                                             \
    {OPTION_TEXT, "without", "NAME[,NAME]", "switch optimisations off; `openpi ladder --list` names them",   \
     .offset = offsetof(type, member.without)},                                                              \
    {OPTION_INPUT, "table", "FILE",                                                                          \
     "tiles from this table of `openpi tune` (default: the device's own, where openpi has one)",             \
     .offset = offsetof(type, member.table)}
#define MACHINE_OPTIONS(type, member)                                                                        \
    MACHINE_OPTIONS_WITHOUT_PIN(type, member, "bf16"),                                                       \
    {OPTION_FLAG, "pin", NULL, "pin each worker thread to one processor", .offset = offsetof(type, member.pin)}

#define SYNTHETIC_OPTION(type, member)                                                                      \
    {OPTION_TEXT, "synthetic", "PRESET[:pi0|pi05[:SEED]]",                                                  \
     "make the weights in memory instead of reading a checkpoint; PRESET is full, tiny or odd (default "    \
     "variant and seed: pi0:7)", .offset = offsetof(type, member)}

/* The options about which weights of a checkpoint count, for every verb that takes one. */
typedef struct lora_values {
    const char *adapter;
    int without_lora, missing_chunks_are_zero;
} lora_values;

#define LORA_OPTIONS(type, member)                                                                          \
    {OPTION_TEXT, "adapter", "DIR",                                                                         \
     "a PEFT adapter (adapter_config.json) to add to the checkpoint's weights; its processors and "         \
     "statistics count before the checkpoint's", .offset = offsetof(type, member.adapter)},                 \
    {OPTION_FLAG, "without-lora", NULL,                                                                     \
     "the base alone: neither the adapter's weights nor LoRA in a JAX checkpoint",                          \
     .offset = offsetof(type, member.without_lora)},                                                        \
    {OPTION_FLAG, "missing-chunks-are-zero", NULL,                                                          \
     "take zeros for chunks that a JAX checkpoint lacks where nothing in it says whether they were saved "  \
     "(default: refuse)",                                                                                   \
     .offset = offsetof(type, member.missing_chunks_are_zero)}

/* The options about how observations become samples, for every verb with a policy. */
typedef struct policy_values {
    const char *robot, *config, *norm_stats, *assets, *tokenizer;
    int prompt_state;            /* CHOICE off|on: openpi_prompt_state's own numbers                      */
} policy_values;

#define POLICY_OPTIONS(type, member)                                                                        \
    {OPTION_INPUT, "robot", "NAME|FILE",                                                                    \
     "aloha, aloha_sim, droid, droid_jointpos, libero, lerobot, none (32 normalised numbers in and out), "  \
     "or the JSON file of your own arm", .offset = offsetof(type, member.robot)},                           \
    {OPTION_TEXT, "config", "NAME",                                                                         \
     "everything as openpi's training config of that name has it, for example pi05_droid",                  \
     .offset = offsetof(type, member.config)},                                                              \
    {OPTION_INPUT, "norm-stats", "FILE",                                                                    \
     "norm_stats.json (default: the checkpoint's)", .offset = offsetof(type, member.norm_stats)},           \
    {OPTION_TEXT, "assets", "NAME",                                                                         \
     "statistics of this folder in the checkpoint's assets (default: the robot's)",                         \
     .offset = offsetof(type, member.assets)},                                                              \
    {OPTION_INPUT, "tokenizer", "FILE",                                                                     \
     "tokenizer.model or tokenizer.json (default: the checkpoint's, then openpi's download cache)",         \
     .offset = offsetof(type, member.tokenizer)},                                                           \
    {OPTION_CHOICE, "prompt-state", "off|on",                                                               \
     "write the state into the prompt (default: as the variant or config has it)",                          \
     .offset = offsetof(type, member.prompt_state)}
#define LORA_CONFLICT {"adapter", "synthetic", "an adapter changes a checkpoint"}

/* "pi0_base with adapter my_lora", for results that name their model. */
void lora_source(const lora_values *values, const char *checkpoint, char *text, size_t bytes);

/* --without and --no-graph together, in `text`; NULL where neither is given. */
enum { SWITCH_TEXT = 512 };
const char *machine_without(const machine_values *values, char text[SWITCH_TEXT]);
/* The engine's arithmetic, and its weights where they are not of that type: "f32 with bf16 weights". */
enum { TYPES_TEXT = 160 };
const char *machine_types(const openpi_engine_info *info, char text[TYPES_TEXT]);
/* Where weights are not of the dtype, "bf16", "f32" or their formats by group; else NULL. */
const char *machine_weights(const openpi_engine_info *info);
/* Sets the engine's options from those about the machine; `text` must live as long as the result. */
void machine_options(const machine_values *values, char text[SWITCH_TEXT], openpi_engine_options *options);

/* --verbose: how many operations the tuner's table knows, on stderr. */
void machine_say_table(const verb *verb, const openpi_engine_info *info, const openpi_session *session);
/* What of the table is ignored, if anything, on stderr: kernels have changed since. */
void machine_warn_table(const verb *verb, const openpi_engine_info *info);
/* A sentence of openpi_note or an openpi_tell on standard error. */
void machine_say_note(const verb *verb, const char *text, int warning);
/* What loading told of (openpi_note), each sentence once. Either may be NULL. */
void machine_say_notes(const verb *verb, const openpi_engine *engine, const openpi_policy *policy);

/* The folder where openpi keeps the tokenizer that it downloads: ~/.cache/openpi/big_vision. NULL: no home
 * folder. */
enum { HOME_PATH = 4096 };
const char *tokenizer_cache(char path[HOME_PATH]);

/* A checkpoint's name as a path: as it is where something of that name is there; of "OWNER/NAME" and
 * "hf://OWNER/NAME" the folder in Hugging Face's cache, of "gs://BUCKET/PATH" that in openpi's, told on
 * stderr. *out: `path`, else the name itself. Where the cache lacks it, says which command fetches it and
 * returns END_USAGE. */
int checkpoint_path(const verb *verb, const char *name, char path[HOME_PATH], const char **out);

/* A model as the options name it: either a checkpoint or a synthetic recipe. */
typedef struct model_name {
    const char *checkpoint;      /* NULL: synthetic                                                       */
    char path[HOME_PATH];        /* where it lies, if that is not its name                                */
    openpi_synthetic recipe;
    const openpi_synthetic *synthetic;     /* &recipe or NULL                                             */
} model_name;

/* Weights cannot come from standard input: a checkpoint "-" is refused with a sentence that begins with
 * `name`. */
int not_standard_input(const verb *verb, const char *name, const char *checkpoint);
/* Returns END_FINE or the code to end with, having said why. */
int model_name_read(const verb *verb, const char *synthetic, char **positional, int count, model_name *out);

/* Which weights count, from a verb's options to the engine's; and those about the policy. The texts and
 * `cache` must live as long as the result. */
void engine_of_model(const model_name *model, const lora_values *lora, openpi_engine_options *options);
void policy_of_model(const model_name *model, const lora_values *lora, const policy_values *values,
                     char cache[HOME_PATH], openpi_policy_options *options);

/* Fills `values` from argv[1…]; positional arguments are moved to *positional. Returns END_FINE, or END_USAGE
 * having said why, or -1 where a help page was asked for and printed. */
int options_parse(const verb *verb, int argc, char **argv, void *values, char ***positional, int *count);

void help_all(void);                       /* openpi --help                                               */
void help_verb(const verb *verb);          /* openpi VERB --help                                          */
void version_show(void);                   /* openpi --version                                            */
void man_all(void);                        /* openpi.1                                                    */
void man_verb(const verb *verb);           /* openpi-VERB.1                                               */

/* One sentence on stderr with a hint to --help; returns END_USAGE. `verb` NULL: the command itself. */
int usage_error(const verb *verb, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* One sentence on stderr; returns END_USAGE. */
int input_error(const verb *verb, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The library's sentence on stderr; returns the code that its status ends with. */
int library_error(const verb *verb, const openpi_error *error);

/* malloc that ends the command with a sentence where there is no memory. */
void *allocate(size_t bytes);

/* Shortest decimal text that reads back as the same number; "null" where it is not finite. */
enum { NUMBER_TEXT = 32 };
const char *number_text(double value, char text[NUMBER_TEXT]);

#endif
