/* The steps of LeRobot's processors, read as data.
 *
 * Note: a step or a setting that this file does not know is an error, never skipped: a pipeline that runs
 * without one of its steps gives plausible, wrong actions. */
#include <stdio.h>
#include <string.h>

#include "base/ascii.h"
#include "base/report.h"
#include "checkpoint/closed_world.h"
#include "policy/lerobot/lerobot_parts.h"
#include "policy/robots/robots.h"

/* ---- the other steps ------------------------------------------------------------------------------ */

static openpi_status read_rename(const lerobot_file *file, lerobot *out, openpi_error *error) {
    json_t *map = json_object_get(file->config, "rename_map"), *to;
    const char *from;
    if (map && !json_is_null(map) && !json_is_object(map))
        return report(error, OPENPI_BAD_FILE, "%s: %s: \"rename_map\" is %s, expected an object", file->name,
                      file->what, json_kind(map));
    if (out->rename_count)
        return report(error, OPENPI_UNSUPPORTED, "%s: %s: a second renaming is not supported", file->name,
                      file->what);
    json_object_foreach(map, from, to) {
        if (!json_is_string(to))
            return report(error, OPENPI_BAD_FILE, "%s: %s: rename_map.\"%.64s\" is %s, expected a string",
                          file->name, file->what, from, json_kind(to));
        if (out->rename_count == LEROBOT_RENAMES)
            return report(error, OPENPI_UNSUPPORTED, "%s: %s: rename_map has more than %d entries",
                          file->name, file->what, LEROBOT_RENAMES);
        if (!strcmp(from, LEROBOT_STATE) && strcmp(json_string_value(to), LEROBOT_STATE))
            return report(error, OPENPI_UNSUPPORTED,
                          "%s: %s: rename_map gives \"" LEROBOT_STATE "\", which the model reads, the name "
                          "\"%.64s\"", file->name, file->what, json_string_value(to));
        char(*pair)[LEROBOT_KEY_BYTES] = out->renames[out->rename_count++];
        TRY(lerobot_copy_text(from, file->name, "the renamed key", pair[0], LEROBOT_KEY_BYTES, error));
        TRY(lerobot_copy_text(json_string_value(to), file->name, "the new key", pair[1], LEROBOT_KEY_BYTES,
                              error));
    }
    return OPENPI_OK;
}

/* An excluded joint that is in no name: LeRobot makes every action relative then, in silence. */
static void find_unexcluded(const json_t *names, const json_t *excluded, lerobot *out) {
    for (size_t i = 0; i < json_array_size(excluded); i++) {
        const char *token = json_string_value(json_array_get(excluded, i));
        int found = !token || !*token;
        for (int dim = 0; dim < out->action_dim && !found; dim++) {
            const char *name = json_string_value(json_array_get(names, (size_t)dim));
            found = name && ascii_find(name, token);
        }
        if (!found) snprintf(out->unexcluded, sizeof out->unexcluded, "%s", token);
    }
}

/* Every dim is relative but those whose name contains an excluded one; without names nothing is excluded. */
static openpi_status read_relative(const lerobot_file *file, lerobot *out, openpi_error *error) {
    const json_t *names = json_object_get(file->config, "action_names"),
                 *excluded = json_object_get(file->config, "exclude_joints");
    if (names && !json_is_null(names) && !json_is_array(names))
        return report(error, OPENPI_BAD_FILE, "%s: %s: \"action_names\" is %s, expected an array or null",
                      file->name, file->what, json_kind(names));
    if (excluded && !json_is_null(excluded) && !json_is_array(excluded))
        return report(error, OPENPI_BAD_FILE, "%s: %s: \"exclude_joints\" is %s, expected an array",
                      file->name, file->what, json_kind(excluded));
    out->relative_enabled = 0;
    TRY(json_get_bool(file->config, "enabled", file->name, &out->relative_enabled, error));
    for (int dim = 0; dim < out->action_dim; dim++) {
        const json_t *name = json_array_get(names, (size_t)dim);
        if (name && !json_is_string(name))
            return report(error, OPENPI_BAD_FILE, "%s: %s: action_names[%d] is %s, expected a string",
                          file->name, file->what, dim, json_kind(name));
        out->relative[dim] = 1;
        out->other_names += name && out->action_names[dim][0] &&
                            strcmp(json_string_value(name), out->action_names[dim]) != 0;
        for (size_t i = 0; name && i < json_array_size(excluded); i++) {
            const char *token = json_string_value(json_array_get(excluded, i));
            if (!token)
                return report(error, OPENPI_BAD_FILE, "%s: %s: exclude_joints[%zu] is no string", file->name,
                              file->what, i);
            if (*token && ascii_find(json_string_value(name), token)) out->relative[dim] = 0;
        }
    }
    find_unexcluded(names, excluded, out);
    lerobot_list_text(excluded, out->excluded);
    return OPENPI_OK;
}

static openpi_status read_tokenizer(const lerobot_file *file, lerobot *out, openpi_error *error) {
    const char *folder = NULL, *tokenizer = NULL;
    out->max_prompt = 0;
    TRY(json_get_int(file->config, "max_length", file->name, 1, ROBOT_MAX_PROMPT, &out->max_prompt, error));
    if (!out->max_prompt)
        return report(error, OPENPI_BAD_FILE, "%s: %s: \"max_length\" is absent, expected a number of tokens",
                      file->name, file->what);
    TRY(json_get_string(file->config, "tokenizer_name", file->name, &tokenizer, error));
    snprintf(out->tokenizer_name, sizeof out->tokenizer_name, "%s", tokenizer ? tokenizer : "");
    const json_t *artifacts = json_object_get(file->step, "artifacts");
    TRY(json_get_string(artifacts, "tokenizer_name", file->name, &folder, error));
    if (!folder) return OPENPI_OK;
    TRY(lerobot_check_inside(folder, file->name, "the tokenizer's folder", error));
    return lerobot_copy_text(folder, file->name, "the tokenizer's folder", out->tokenizer,
                             sizeof out->tokenizer, error);
}

/* A file or a folder at a step that reads none: whatever it holds would be skipped. */
static openpi_status refuse_unread(const lerobot_file *file, lerobot_kind kind, openpi_error *error) {
    int normalises = kind == LEROBOT_NORMALIZE || kind == LEROBOT_UNNORMALIZE;
    const char *key = !normalises && json_object_get(file->step, "state_file")              ? "state_file"
                      : kind != LEROBOT_TOKENIZE && json_object_get(file->step, "artifacts") ? "artifacts"
                                                                                             : NULL;
    if (!key || json_is_null(json_object_get(file->step, key))) return OPENPI_OK;
    return report(error, OPENPI_UNSUPPORTED, "%s: %s has \"%s\", which this step does not read", file->name,
                  file->what, key);
}

/* Steps that would act twice, or of whose settings only the last would be known. */
static openpi_status refuse_second(const lerobot_file *file, const lerobot_step *steps, size_t index,
                                   openpi_error *error) {
    lerobot_kind kind = steps[index].kind;
    if (kind != LEROBOT_RELATIVE && kind != LEROBOT_NORMALIZE && kind != LEROBOT_UNNORMALIZE &&
        kind != LEROBOT_ABSOLUTE)
        return OPENPI_OK;
    for (size_t i = 0; i < index; i++)
        if (steps[i].kind == kind)
            return report(error, OPENPI_UNSUPPORTED, "%s: %s is the same kind of step as step %zu, expected "
                          "one", file->name, file->what, i);
    return OPENPI_OK;
}

/* ---- the pipelines -------------------------------------------------------------------------------- */

static const struct step_name {
    const char *name;
    lerobot_kind kind;
    int where;
} step_names[] = {
    {"rename_observations_processor", LEROBOT_RENAME, LEROBOT_BEFORE},
    {"to_batch_processor", LEROBOT_PASS, LEROBOT_BEFORE | LEROBOT_AFTER},
    {"device_processor", LEROBOT_PASS, LEROBOT_BEFORE | LEROBOT_AFTER},
    {"relative_actions_processor", LEROBOT_RELATIVE, LEROBOT_BEFORE},
    {"normalizer_processor", LEROBOT_NORMALIZE, LEROBOT_BEFORE},
    {"pi0_new_line_processor", LEROBOT_NEW_LINE, LEROBOT_BEFORE},
    {"pi05_prepare_state_tokenizer_processor_step", LEROBOT_STATE_TEXT, LEROBOT_BEFORE},
    {"tokenizer_processor", LEROBOT_TOKENIZE, LEROBOT_BEFORE},
    {"unnormalizer_processor", LEROBOT_UNNORMALIZE, LEROBOT_AFTER},
    {"absolute_actions_processor", LEROBOT_ABSOLUTE, LEROBOT_AFTER},
};

static openpi_status read_step(lerobot_file *file, int where, lerobot *out, lerobot_step *step,
                               openpi_error *error) {
    const struct step_name *known = NULL;
    const char *name = json_string_value(json_object_get(file->step, "registry_name"));
    if (!name) {
        const char *class = json_string_value(json_object_get(file->step, "class"));
        return report(error, OPENPI_UNSUPPORTED,
                      "%s: %s has no registry_name (class %.64s), so it cannot be run", file->name,
                      file->what, class ? class : "unknown");
    }
    for (size_t i = 0; i < sizeof step_names / sizeof *step_names; i++)
        if (!strcmp(step_names[i].name, name) && (step_names[i].where & where)) known = &step_names[i];
    if (!known)
        return report(error, OPENPI_UNSUPPORTED, "%s: %s is \"%.64s\", a step that is not known here",
                      file->name, file->what, name);
    size_t length = strlen(file->what);
    snprintf(file->what + length, sizeof file->what - length, " (%s)", name);
    if (file->config && !json_is_object(file->config))
        return report(error, OPENPI_BAD_FILE, "%s: the config of %s is %s, expected an object", file->name,
                      file->what, json_kind(file->config));
    TRY(closed_world_check("step", file->step, file->name, file->what, error));
    TRY(closed_world_check(name, file->config, file->name, file->what, error));
    TRY(refuse_unread(file, known->kind, error));
    int enabled = 0;
    step->kind = known->kind;
    switch (known->kind) {
    case LEROBOT_RENAME: return read_rename(file, out, error);
    case LEROBOT_RELATIVE: return read_relative(file, out, error);
    case LEROBOT_NORMALIZE: return lerobot_read_norm(file, out, 0, &step->norm, error);
    case LEROBOT_UNNORMALIZE: return lerobot_read_norm(file, out, 1, &step->norm, error);
    case LEROBOT_TOKENIZE: return read_tokenizer(file, out, error);
    case LEROBOT_ABSOLUTE:
        TRY(json_get_bool(file->config, "enabled", file->name, &enabled, error));
        if (!enabled) step->kind = LEROBOT_PASS;
        out->absolute_enabled = enabled;
        return OPENPI_OK;
    case LEROBOT_STATE_TEXT: out->state_in_prompt = 1; return OPENPI_OK;
    case LEROBOT_PASS:
    case LEROBOT_NEW_LINE: return OPENPI_OK;
    }
    return OPENPI_OK;
}

openpi_status lerobot_read_steps(const char *folder, const json_t *root, const char *name, int where,
                                lerobot *out, lerobot_step *steps, int *count, openpi_error *error) {
    const json_t *array = json_object_get(root, "steps");
    TRY(closed_world_check("processor", root, name, "", error));
    if (!json_is_array(array))
        return report(error, OPENPI_BAD_FILE, "%s: \"steps\" is %s, expected an array", name,
                      json_kind(array));
    size_t size = json_array_size(array);
    if (size > LEROBOT_STEPS)
        return report(error, OPENPI_UNSUPPORTED, "%s: %zu steps, at most %d are supported", name, size,
                      LEROBOT_STEPS);
    for (size_t i = 0; i < size; i++) {
        lerobot_file file = {.folder = folder, .name = name, .step = json_array_get(array, i)};
        file.config = json_object_get(file.step, "config");
        snprintf(file.what, sizeof file.what, "step %zu", i);
        TRY(read_step(&file, where, out, &steps[i], error));
        TRY(refuse_second(&file, steps, i, error));
    }
    *count = (int)size;
    return OPENPI_OK;
}
