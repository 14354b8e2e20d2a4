#include "checkpoint/adapter/adapter_config.h"

#include <math.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/ascii.h"
#include "base/file.h"
#include "base/report.h"
#include "checkpoint/closed_world.h"

enum { LARGEST_RANK = 1 << 16, PATTERN_BYTES = 256 };

static const char file_name[] = "adapter_config.json";

/* ---- patterns ---- */

/* A key of "rank_pattern" or "alpha_pattern": a regular expression of Python's, and what modules get whose
 * name, or its end after a dot, matches. */
struct adapter_pattern {
    const char *key;
    double value;
    regex_t regex;
};

/* An escaped character of Python's as POSIX writes it, outside of brackets or inside. NULL: it is none of
 * both. */
static const char *escaped(char c, int inside, char text[3]) {
    if (c == 'd') return inside ? "0-9" : "[0-9]";
    if (c == 'w') return inside ? "a-zA-Z0-9_" : "[a-zA-Z0-9_]";
    if (!c || ascii_is_alnum(c) || (inside && strchr("\\[]^-", c))) return NULL;
    size_t at = 0;
    if (!inside && strchr(".*+?()[]{}|^$\\", c)) text[at++] = '\\';
    text[at++] = c;
    text[at] = 0;
    return text;
}

/* A character outside of brackets: 'a' part of a pattern, 'q' a quantifier, '(' and '[', 0: not translated,
 * or ' ': to be left out. `last`: what this said of the character before. */
static char kind_of(const char *c, char last) {
    if (*c == '{' || (strchr("*+", *c) && last == 'q')) return 0;
    if (*c == '?' && last == 'q') return ' ';                  /* lazy: the same names match */
    if (*c == '?' && last == '(') return c[1] == ':' ? ' ' : 0;
    return strchr("*+?", *c) ? 'q' : strchr("([", *c) ? *c : 'a';
}

/* Python's syntax as POSIX's extended one, after `begin`. 0: it has what this does not translate. */
static int translate(const char *key, const char *begin, char *out, size_t bytes) {
    size_t used = (size_t)snprintf(out, bytes, "%s", begin);
    int inside = 0;
    char last = 'a';
    for (const char *c = key; *c; c++) {
        char text[3] = {*c, 0, 0}, kind = 'a';
        const char *put = text;
        if (*c == '\\') put = escaped(*++c, inside, text);
        else if (!inside) kind = kind_of(c, last);
        else if (*c == '[') put = NULL;
        else inside = *c != ']';
        if (!put || !kind || used + strlen(put) + 4 > bytes) return 0;
        if (kind == '[') inside = 1;
        if (kind == ' ' && last == '(') c++;                   /* "(?:" */
        if (kind != ' ') used += (size_t)snprintf(out + used, bytes - used, "%s", put);
        last = kind;
    }
    snprintf(out + used, bytes - used, ")$");
    return !inside;
}

static openpi_status read_pattern(const adapter_config *c, const char *field, const char *key,
                                  const json_t *value, adapter_pattern *out, openpi_error *error) {
    char text[PATTERN_BYTES];
    int rank = !strcmp(field, "rank_pattern");
    double number = json_number_value(value);
    if (rank ? !json_is_integer(value) || number < 1 || number > LARGEST_RANK : !json_is_number(value))
        return report(error, OPENPI_BAD_FILE, "%s: \"%s\" of \"%s\" is %s, expected %s", c->path, field, key,
                      json_kind(value), rank ? "an integer from 1 to 65536" : "a number");
    locale_t before = ascii_enter();                     /* where "[a-z]" ends is the locale's else */
    int failed = translate(key, "^(.*\\.)?(", text, sizeof text)
                     ? regcomp(&out->regex, text, REG_EXTENDED | REG_NOSUB)
                     : REG_BADPAT;
    ascii_leave(before);
    if (failed == REG_ESPACE) return report_no_memory(error, sizeof text, c->path);
    if (failed)
        return report(error, OPENPI_UNSUPPORTED,
                      "%s: \"%s\" has the pattern \"%s\", expected a module's name or a simple regular "
                      "expression",
                      c->path, field, key);
    out->key = key;
    out->value = number;
    return OPENPI_OK;
}

static openpi_status read_patterns(const adapter_config *c, const char *field, adapter_pattern **out,
                                   int *count, openpi_error *error) {
    json_t *object = json_object_get(c->root, field), *value;
    const char *key;
    if (!object || json_is_null(object)) return OPENPI_OK;
    if (!json_is_object(object))
        return report(error, OPENPI_BAD_FILE, "%s: \"%s\" is %s, expected an object", c->path, field,
                      json_kind(object));
    size_t bytes = json_object_size(object) * sizeof **out;
    *out = malloc(bytes ? bytes : 1);
    if (!*out) return report_no_memory(error, bytes, c->path);
    json_object_foreach(object, key, value) {
        TRY(read_pattern(c, field, key, value, &(*out)[*count], error));
        ++*count;
    }
    return OPENPI_OK;
}

static void free_patterns(adapter_pattern *patterns, int count) {
    for (int i = 0; i < count; i++) regfree(&patterns[i].regex);
    free(patterns);
}

/* The first that matches, as peft takes it; NULL: none. */
static const adapter_pattern *match(const adapter_pattern *patterns, int count, const char *module) {
    const adapter_pattern *found = NULL;
    locale_t before = ascii_enter();
    for (int i = 0; i < count && !found; i++)
        if (!regexec(&patterns[i].regex, module, 0, NULL, 0)) found = &patterns[i];
    ascii_leave(before);
    return found;
}

/* ---- fields ---- */

/* Initialisations that change the base: its weights here are not those that were trained with. */
static int changes_base(const char *init) {
    static const char *const names[] = {"pissa", "olora", "corda", "loftq", "lora_ga"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strncmp(init, names[i], strlen(names[i]))) return 1;
    return 0;
}

/* Initialisations of the factors alone; true and false are others. */
static int is_of_factors(const char *init) {
    static const char *const names[] = {"gaussian", "eva", "orthogonal"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(init, names[i])) return 1;
    return 0;
}

static openpi_status check_fields(adapter_config *c, openpi_error *error) {
    const char *type = NULL, *bias = NULL;
    const json_t *init = json_object_get(c->root, "init_lora_weights");
    TRY(json_get_string(c->root, "peft_type", c->path, &type, error));
    if (!type || strcmp(type, "LORA"))
        return report(error, OPENPI_UNSUPPORTED, "%s: \"peft_type\" is \"%s\", expected \"LORA\"", c->path,
                      type ? type : "null");
    TRY(closed_world_check("adapter_config.json", c->root, c->path, "", error));
    if (init && !json_is_string(init) && !json_is_boolean(init) && !json_is_null(init))
        return report(error, OPENPI_BAD_FILE,
                      "%s: \"init_lora_weights\" is %s, expected true, false or a string", c->path,
                      json_kind(init));
    if (json_is_string(init) && changes_base(json_string_value(init)))
        return report(error, OPENPI_UNSUPPORTED,
                      "%s: \"init_lora_weights\" is \"%s\", which changed the base before the training, "
                      "expected an adapter that peft has converted to the unchanged base "
                      "(save_pretrained with path_initial_model_for_weight_conversion)",
                      c->path, json_string_value(init));
    if (json_is_string(init) && !is_of_factors(json_string_value(init)))
        return report(error, OPENPI_UNSUPPORTED,
                      "%s: \"init_lora_weights\" is \"%.64s\", which is not known and may have changed "
                      "the base, expected true, false, \"gaussian\", \"eva\" or \"orthogonal\"",
                      c->path, json_string_value(init));
    TRY(json_get_string(c->root, "bias", c->path, &bias, error));
    c->biases = bias && strcmp(bias, "none");
    return json_get_bool(c->root, "use_rslora", c->path, &c->rslora, error);
}

static openpi_status check_modules(const adapter_config *c, openpi_error *error) {
    const json_t *list = json_object_get(c->root, "modules_to_save");
    if (!list || json_is_null(list)) return OPENPI_OK;
    if (!json_is_array(list))
        return report(error, OPENPI_BAD_FILE, "%s: \"modules_to_save\" is %s, expected an array", c->path,
                      json_kind(list));
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!json_is_string(json_array_get(list, i)))
            return report(error, OPENPI_BAD_FILE, "%s: \"modules_to_save\"[%zu] is %s, expected a string",
                          c->path, i, json_kind(json_array_get(list, i)));
    return OPENPI_OK;
}

static openpi_status read_fields(adapter_config *c, openpi_error *error) {
    const json_t *alpha = json_object_get(c->root, "lora_alpha");
    TRY(check_fields(c, error));
    TRY(check_modules(c, error));
    TRY(json_get_int(c->root, "r", c->path, 1, LARGEST_RANK, &c->rank, error));
    if (!c->rank)
        return report(error, OPENPI_BAD_FILE, "%s: \"r\" is absent, expected the rank", c->path);
    if (!json_is_number(alpha))
        return report(error, OPENPI_BAD_FILE, "%s: \"lora_alpha\" is %s, expected a number", c->path,
                      json_kind(alpha));
    c->alpha = json_number_value(alpha);
    TRY(read_patterns(c, "rank_pattern", &c->ranks, &c->rank_count, error));
    return read_patterns(c, "alpha_pattern", &c->alphas, &c->alpha_count, error);
}

openpi_status adapter_config_read(const char *folder, adapter_config *c, openpi_error *error) {
    c->path = file_join(folder, file_name);
    if (!c->path) return report_no_memory(error, strlen(folder) + sizeof file_name, folder);
    TRY(json_read(c->path, &c->root, error));
    if (!json_is_object(c->root))
        return report(error, OPENPI_BAD_FILE, "%s: is %s, expected an object", c->path, json_kind(c->root));
    return read_fields(c, error);
}

void adapter_config_close(adapter_config *c) {
    free_patterns(c->ranks, c->rank_count);
    free_patterns(c->alphas, c->alpha_count);
    json_decref(c->root);
    free(c->path);
    *c = (adapter_config){0};
}

/* ---- what a module gets ---- */

int adapter_config_rank(const adapter_config *c, const char *module, const char **field) {
    const adapter_pattern *found = match(c->ranks, c->rank_count, module);
    *field = found ? found->key : "r";
    return found ? (int)found->value : c->rank;
}

double adapter_config_factor(const adapter_config *c, const char *module) {
    const adapter_pattern *found = match(c->alphas, c->alpha_count, module);
    const char *field;
    double rank = adapter_config_rank(c, module, &field), alpha = found ? found->value : c->alpha;
    return alpha / (c->rslora ? sqrt(rank) : rank);
}

/* peft takes every module whose name ends with one of the list, and all that lies in it. */
int adapter_config_saves(const adapter_config *c, const char *tensor) {
    const json_t *list = json_object_get(c->root, "modules_to_save");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *tail = json_string_value(json_array_get(list, i));
        size_t length = strlen(tail);
        for (const char *dot = strchr(tensor, '.'); length && dot; dot = strchr(dot + 1, '.'))
            if ((size_t)(dot - tensor) >= length && !strncmp(dot - length, tail, length)) return 1;
    }
    return 0;
}

/* ---- which modules ---- */

static int is_named(const char *module, const char *name) {
    size_t length = strlen(module), end = name ? strlen(name) : 0;
    return end && length >= end && !strcmp(module + length - end, name) &&
           (length == end || module[length - end - 1] == '.');
}

/* 1: the whole name matches, 0: it does not, -1: the pattern is not understood here. */
static int matches_whole(const char *pattern, const char *module) {
    char text[PATTERN_BYTES * 2];
    regex_t regex;
    if (!strcmp(pattern, "all-linear") || !translate(pattern, "^(", text, sizeof text)) return -1;
    locale_t before = ascii_enter();
    int found = regcomp(&regex, text, REG_EXTENDED | REG_NOSUB) ? -1 : 1;
    if (found == 1) {
        found = !regexec(&regex, module, 0, NULL, 0);
        regfree(&regex);
    }
    ascii_leave(before);
    return found;
}

/* "target_modules" and "exclude_modules": names or ends of names, or one pattern of whole names. */
static int lists(const adapter_config *c, const char *field, const char *module) {
    const json_t *value = json_object_get(c->root, field);
    if (json_is_string(value)) return matches_whole(json_string_value(value), module);
    if (!json_is_array(value)) return -1;
    for (size_t i = 0; i < json_array_size(value); i++)
        if (is_named(module, json_string_value(json_array_get(value, i)))) return 1;
    return 0;
}

/* "layers_to_transform": a number or numbers; the layer is the last number of the name. */
static int has_layer(const adapter_config *c, const char *module) {
    const json_t *layers = json_object_get(c->root, "layers_to_transform"),
                 *pattern = json_object_get(c->root, "layers_pattern");
    long layer = -1;
    if ((!json_is_integer(layers) && !json_array_size(layers)) || (pattern && !json_is_null(pattern)))
        return -1;
    for (const char *dot = strchr(module, '.'); dot; dot = strchr(dot + 1, '.')) {
        char *after;
        long number = strtol(dot + 1, &after, 10);
        if (after > dot + 1 && *after == '.') layer = number;
    }
    if (json_is_integer(layers)) return json_integer_value(layers) == layer;
    for (size_t i = 0; i < json_array_size(layers); i++)
        if (json_integer_value(json_array_get(layers, i)) == layer) return 1;
    return 0;
}

int adapter_config_changes(const adapter_config *c, const char *module, const char **field) {
    int target = lists(c, "target_modules", module);
    *field = lists(c, "exclude_modules", module) == 1 ? "exclude_modules"
             : !target                                ? "target_modules"
             : !has_layer(c, module)                  ? "layers_to_transform"
                                                      : NULL;
    return *field ? 0 : target;
}
