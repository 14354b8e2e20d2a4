/* openpi inspect: what a checkpoint is. The library describes it as JSON, which is printed as text here. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/text.h"
#include "cli.h"
#include "head.h"
#include "input.h"
#include "inspect_head.h"
#include "table.h"
#include "words.h"

typedef struct inspect_values {
    const char *synthetic, *weights;
    int json;
    lora_values lora;
    policy_values policy;
} inspect_values;

/* 7013345280 -> "7.01 GB"; 3238048528 -> "3.24 billion" */
static void put_scaled(double value, const char *const units[3]) {
    if (value >= 1e9) printf("%.2f %s", value / 1e9, units[0]);
    else if (value >= 1e6) printf("%.2f %s", value / 1e6, units[1]);
    else if (value >= 1e3) printf("%.1f %s", value / 1e3, units[2]);
    else printf("%.0f", value);
}

/* The library's sentence, with its fields as the options that they are. */
static void put_reason(const char *text) {
    openpi_error reason = OPENPI_ERROR_INIT;
    char sentence[SENTENCE_TEXT];
    snprintf(reason.message, sizeof reason.message, "%s", text);
    words_translate(&verb_inspect, &reason, sentence);
    fputs(sentence, stdout);
}

static void put_scalar(const char *key, const json_t *value) {
    static const char *const bytes[] = {"GB", "MB", "kB"}, *const count[] = {"billion", "million",
                                                                             "thousand"};
    char number[NUMBER_TEXT];
    if (json_is_string(value) && !strcmp(key, "reason")) put_reason(json_string_value(value));
    else if (json_is_string(value)) fputs(json_string_value(value), stdout);
    else if (json_is_boolean(value)) fputs(json_is_true(value) ? "yes" : "no", stdout);
    else if (json_is_null(value)) fputs("-", stdout);
    else if (json_is_integer(value) && (text_ends_with(key, "bytes") || !strcmp(key, "memory")))
        put_scaled((double)json_integer_value(value), bytes);
    else if (json_is_integer(value) && text_ends_with(key, "parameters"))
        put_scaled((double)json_integer_value(value), count);
    else if (json_is_integer(value)) printf("%" JSON_INTEGER_FORMAT, json_integer_value(value));
    else fputs(number_text(json_real_value(value), number), stdout);
}

static void put_object(const json_t *object, int indent);

/* "vision_width" -> "vision width" */
static void put_key(const char *key, int indent) {
    printf("%*s", indent, "");
    for (const char *c = key; *c; c++) putchar(*c == '_' ? ' ' : *c);
}

static int is_flat(const json_t *array) {
    for (size_t i = 0; i < json_array_size(array); i++)
        if (json_is_object(json_array_get(array, i)) || json_is_array(json_array_get(array, i))) return 0;
    return 1;
}

#define DEFAULT_WORDS " (default, not in the checkpoint)"
enum { FILES_SHOWN = 8 };        /* files listed; beyond them only the count and the first */

static void put_value(const char *key, const json_t *value, int indent, int is_default) {
    size_t items = json_array_size(value);
    if (!strcmp(key, "files") && items > FILES_SHOWN) {
        printf("%zu, the first is %s\n", items, json_string_value(json_array_get(value, 0)));
    } else if (json_is_object(value)) {
        puts(is_default ? DEFAULT_WORDS : "");
        put_object(value, indent + 2);
    } else if (json_is_array(value) && is_flat(value)) {
        for (size_t i = 0; i < items; i++) {
            if (i) fputs(", ", stdout);
            put_scalar(key, json_array_get(value, i));
        }
        fputs(items ? "\n" : "none\n", stdout);
    } else if (json_is_array(value)) {
        putchar('\n');
        for (size_t i = 0; i < items; i++) {
            json_t *item = json_array_get(value, i);
            if (json_is_object(item)) put_object(item, indent + 2);
            else put_value(key, item, indent + 2, 0);
            if (i + 1 < items && json_is_object(item)) putchar('\n');
        }
    } else {
        put_scalar(key, value);
        puts(is_default ? DEFAULT_WORDS : "");
    }
}

static int has_text(const json_t *list, const char *text) {
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!strcmp(json_string_value(json_array_get(list, i)), text)) return 1;
    return 0;
}

static void put_object(const json_t *object, int indent) {
    const char *key;
    json_t *value;
    int wide = 0;
    json_object_foreach((json_t *)(uintptr_t)object, key, value) {
        if (text_columns(key) > wide) wide = text_columns(key);
    }
    json_object_foreach((json_t *)(uintptr_t)object, key, value) {
        int below = json_is_object(value) || (json_is_array(value) && !is_flat(value));
        put_key(key, indent);
        if (!below) printf("%*s", wide - text_columns(key) + 2, "");
        put_value(key, value, indent, has_text(json_object_get(object, "defaults"), key));
    }
}

/* What an option says and the policy cannot take is a wrong option, as in run; what is missing besides is
 * not. */
static int check_given(const inspect_values *v, const json_t *root) {
    const policy_values *p = &v->policy;
    const char *const given[] = {p->robot, p->config, p->norm_stats, p->assets, p->tokenizer};
    const char *reason = json_string_value(json_object_get(json_object_get(root, "policy"), "reason"));
    static const char missing[] = "norm_stats.json, the statistics of robot";
    openpi_error error = OPENPI_ERROR_INIT;
    for (size_t i = 0; reason && i < sizeof given / sizeof *given; i++) {
        if (!given[i] || !strstr(reason, given[i]) || (!p->norm_stats && strstr(reason, missing))) continue;
        error.status = OPENPI_BAD_ARGUMENT;
        snprintf(error.message, sizeof error.message, "%s", reason);
        return library_error(&verb_inspect, &error);
    }
    return END_FINE;
}

static void put_head(const inspect_values *v, const json_t *root, const char *checkpoint) {
    const char *text = json_string_value(json_object_get(json_object_get(root, "policy"), "reason"));
    openpi_error reason = OPENPI_ERROR_INIT;
    char sentence[SENTENCE_TEXT];
    const inspect_given all[] = {
        {"synthetic", v->synthetic}, {"robot", v->policy.robot}, {"config", v->policy.config},
        {"norm-stats", v->policy.norm_stats}, {"assets", v->policy.assets}, {"tokenizer", v->policy.tokenizer},
        {"prompt-state", v->policy.prompt_state ? v->policy.prompt_state == 2 ? "on" : "off" : NULL},
        {"adapter", v->lora.adapter}, {"weights", v->weights},
    };
    inspect_given given[sizeof all / sizeof *all + 3] = {0};
    int count = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].value) given[count++] = all[i];
    if (v->lora.without_lora) given[count++].name = "without-lora";
    if (v->lora.missing_chunks_are_zero) given[count++].name = "missing-chunks-are-zero";
    if (text) {
        snprintf(reason.message, sizeof reason.message, "%s", text);
        words_translate(&verb_inspect, &reason, sentence);
    }
    inspect_head(root, text ? sentence : NULL, checkpoint, given);
}

static int inspect_run(const void *values, char **positional, int count) {
    const inspect_values *v = values;
    openpi_error error = OPENPI_ERROR_INIT;
    model_name model;
    char *text;
    int end = model_name_read(&verb_inspect, v->synthetic, positional, count, &model);
    if (end != END_FINE) return end;
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    char cache[HOME_PATH];
    policy_of_model(&model, &v->lora, &v->policy, cache, &options);
    options.formats = v->weights;
    if (openpi_inspect(model.checkpoint, &options, &text, &error) != OPENPI_OK)
        return library_error(&verb_inspect, &error);
    json_t *root;
    input_rename_in(text);
    openpi_status status = json_parse(text, strlen(text), "the description by openpi_inspect", &root, &error);
    openpi_free(text);
    if (status != OPENPI_OK) return library_error(&verb_inspect, &error);
    if (v->json) {
        json_t *head = head_json("inspect");
        json_object_update(head, root);
        json_dumpf(head, stdout, JSON_INDENT(2));
        putchar('\n');
        json_decref(head);
    } else {
        put_head(v, root, model.checkpoint);
        put_object(root, 0);
    }
    end = check_given(v, root);
    json_decref(root);
    return end;
}

#define AT(field) offsetof(inspect_values, field)

static const option_row options[] = {
    {OPTION_FLAG, "json", "[-]", "print JSON", .offset = AT(json)},
    SYNTHETIC_OPTION(inspect_values, synthetic),
    WEIGHTS_OPTION(inspect_values, weights),
    LORA_OPTIONS(inspect_values, lora),
    {OPTION_HEADING, .name = "As run would take it"},
    {OPTION_INPUT, "robot", "NAME|FILE", "a robot's name or JSON file, as in run", .offset = AT(policy.robot)},
    {OPTION_TEXT, "config", "NAME", "openpi's name of a training config, as in run", .offset = AT(policy.config)},
    {OPTION_INPUT, "norm-stats", "FILE",
     "norm_stats.json (default: the checkpoint's)", .offset = AT(policy.norm_stats)},
    {OPTION_TEXT, "assets", "NAME",
     "statistics of this folder in the checkpoint's assets (default: the robot's)",
     .offset = AT(policy.assets)},
    {OPTION_INPUT, "tokenizer", "FILE",
     "tokenizer.model or tokenizer.json (default: the checkpoint's)", .offset = AT(policy.tokenizer)},
    {OPTION_CHOICE, "prompt-state", "off|on", "write the state into the prompt", .offset = AT(policy.prompt_state)},
    {0},
};

static const conflict conflicts[] = {
    {"", "synthetic", "the weights are either read or made"},
    LORA_CONFLICT,
    {"robot", "config", "a config names its robot"},
    {"norm-stats", "assets", "both name the statistics"},
    {0},
};

static const example examples[] = {
    {"what a downloaded folder holds", "openpi inspect pi05_droid/"},
    {"would this machine hold it", "openpi inspect --synthetic full:pi05"},
    {"what eight bits would save", "openpi inspect pi05_droid/ --weights expert=int8,ffn=int8x8"},
    {"ranks and factors of a LeRobot adapter", "openpi inspect pi0_base/ --adapter my_lora/"},
    {"for a script", "openpi inspect my_lerobot_policy/ --json"},
    {NULL, NULL},
};

static const char *const synopsis[] = {"CHECKPOINT [options]",
                                       "--synthetic PRESET[:pi0|pi05[:SEED]] [options]", NULL};

const verb verb_inspect = {
    .name = "inspect",
    .summary = "what a checkpoint is",
    .synopsis = synopsis,
    .positional = "CHECKPOINT",
    .positional_max = 1,
    .description = "Prints a checkpoint's variant, dimensions, parameters and dtypes, its cameras, robot, "
                   "statistics and prompt "
                   "format, its default "
                   "steps and horizon, and the memory that it needs on each device. No weights are loaded.",
    .options = options,
    .conflicts = conflicts,
    .examples = examples,
    .values_bytes = sizeof(inspect_values),
    .run = inspect_run,
};
