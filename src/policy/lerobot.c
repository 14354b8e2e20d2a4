/* LeRobot's pipelines, read as data and run in fp32.
 *
 * Surprising: a step or a setting that this file does not know is an error, never skipped: a pipeline that
 * runs without one of its steps gives plausible, wrong actions. */
#include "policy/lerobot.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/report.h"
#include "model/tensors.h"
#include "model/variant.h"
#include "policy/robots.h"

static const char STATE_KEY[] = "observation.state", ACTION_KEY[] = "action",
                  IMAGE_PREFIX[] = "observation.images.";

/* ---- small readers -------------------------------------------------------------------------------- */

static openpi_status copy_text(const char *text, const char *name, const char *what, char *out, size_t bytes,
                               openpi_error *error) {
    size_t length = strlen(text);
    if (!length || length >= bytes)
        return report(error, OPENPI_BAD_FILE, "%s: %s \"%.80s\" has %zu bytes, expected 1 to %zu", name, what,
                      text, length, bytes - 1);
    memcpy(out, text, length + 1);
    return OPENPI_OK;
}

/* A file's or folder's name inside the checkpoint: no way out of it. */
static openpi_status check_inside(const char *path, const char *name, const char *what, openpi_error *error) {
    if (path[0] && path[0] != '/' && !strstr(path, "..")) return OPENPI_OK;
    return report(error, OPENPI_BAD_FILE,
                  "%s: %s is \"%.80s\", expected a name inside the checkpoint's folder", name, what, path);
}

static openpi_status check_keys(const json_t *object, const char *const *known, const char *name,
                                const char *what, openpi_error *error) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value) {
        int found = 0;
        for (const char *const *k = known; *k; k++) found |= !strcmp(*k, key);
        if (!found)
            return report(error, OPENPI_UNSUPPORTED, "%s: %s has a setting \"%.64s\" that is not known", name,
                          what, key);
    }
    return OPENPI_OK;
}

static openpi_status read_json(const char *folder, const char *file, char **path, json_t **root,
                               openpi_error *error) {
    *path = file_join(folder, file);
    if (!*path) return report_no_memory(error, strlen(folder) + strlen(file) + 2, "a path");
    openpi_status status = json_read(*path, root, error);
    if (status == OPENPI_OK && !json_is_object(*root)) {
        status = report(error, OPENPI_BAD_FILE, "%s: the file holds %s, expected an object", *path,
                        json_kind(*root));
        json_decref(*root);
    }
    if (status != OPENPI_OK) free(*path);
    return status;
}

/* ---- config.json ---------------------------------------------------------------------------------- */

openpi_status lerobot_detect(const char *folder, int *found, openpi_error *error) {
    char *path = file_join(folder, "config.json");
    if (!path) return report_no_memory(error, strlen(folder) + 13, "a path");
    int there = file_exists(path);
    free(path);
    *found = 0;
    if (!there) return OPENPI_OK;
    json_t *root;
    TRY(read_json(folder, "config.json", &path, &root, error));
    *found = json_is_string(json_object_get(root, "type"));
    json_decref(root);
    free(path);
    return OPENPI_OK;
}

/* The first dimension of a one-dimensional feature. */
static openpi_status read_length(const json_t *feature, const char *name, const char *key, int *out,
                                 openpi_error *error) {
    const json_t *shape = json_object_get(feature, "shape"), *first = json_array_get(shape, 0);
    json_int_t length = json_integer_value(first);
    if (json_array_size(shape) != 1 || !json_is_integer(first) || length < 1 || length > LEROBOT_DIMS)
        return report(error, OPENPI_BAD_FILE,
                      "%s: the shape of feature \"%s\" is not one number from 1 to %d", name, key,
                      LEROBOT_DIMS);
    *out = (int)length;
    return OPENPI_OK;
}

static int is_empty_camera(const char *key) {
    static const char prefix[] = "observation.images.empty_camera_";
    return !strncmp(key, prefix, sizeof prefix - 1);
}

static openpi_status add_camera(lerobot *out, const char *key, const char *name, openpi_error *error) {
    if (out->camera_count == OPENPI_CAMERAS)
        return report(error, OPENPI_UNSUPPORTED,
                      "%s: more than %d cameras, the model has slots for %d; \"%.64s\" is one too many", name,
                      OPENPI_CAMERAS, OPENPI_CAMERAS, key);
    TRY(copy_text(key, name, "the camera", out->cameras[out->camera_count], LEROBOT_KEY_BYTES, error));
    out->empty[out->camera_count++] = (uint8_t)is_empty_camera(key);
    return OPENPI_OK;
}

static openpi_status read_features(const json_t *root, const char *name, lerobot *out, openpi_error *error) {
    json_t *inputs = json_object_get(root, "input_features"),
           *outputs = json_object_get(root, "output_features"), *feature;
    const char *key;
    int empty = 0;
    if (!json_is_object(inputs))
        return report(error, OPENPI_BAD_FILE, "%s: \"input_features\" is %s, expected an object", name,
                      json_kind(inputs));
    out->state_length = out->action_dim = LEROBOT_DIMS;              /* LeRobot's own defaults */
    json_object_foreach(inputs, key, feature) {
        const char *type = json_string_value(json_object_get(feature, "type"));
        if (!type) return report(error, OPENPI_BAD_FILE, "%s: feature \"%.64s\" has no type", name, key);
        if (!strcmp(type, "VISUAL")) TRY(add_camera(out, key, name, error));
        if (!strcmp(key, STATE_KEY)) TRY(read_length(feature, name, key, &out->state_length, error));
    }
    feature = json_object_get(outputs, ACTION_KEY);
    if (feature) TRY(read_length(feature, name, ACTION_KEY, &out->action_dim, error));
    TRY(json_get_int(root, "empty_cameras", name, 0, OPENPI_CAMERAS, &empty, error));
    for (int i = 0; i < empty; i++) {
        char camera[LEROBOT_KEY_BYTES];
        int known = 0;
        snprintf(camera, sizeof camera, "observation.images.empty_camera_%d", i);
        for (int c = 0; c < out->camera_count; c++) known |= !strcmp(out->cameras[c], camera);
        if (!known) TRY(add_camera(out, camera, name, error));
    }
    for (int c = 0; c < out->camera_count; c++)
        if (!out->empty[c]) return OPENPI_OK;
    return report(error, OPENPI_BAD_FILE, "%s: \"input_features\" has no camera (no feature of type VISUAL)",
                  name);
}

/* Settings that this engine has at one value only. */
static openpi_status check_fixed(const json_t *root, const char *name, openpi_error *error) {
    static const struct {
        const char *key;
        int expected;
    } numbers[] = {{"max_state_dim", LEROBOT_DIMS}, {"max_action_dim", LEROBOT_DIMS}, {"n_obs_steps", 1}};
    static const char *const off[] = {"use_visual_memory", "use_proprioceptive_memory"};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        int value = numbers[i].expected;
        TRY(json_get_int(root, numbers[i].key, name, 0, 1 << 20, &value, error));
        if (value != numbers[i].expected)
            return report(error, OPENPI_UNSUPPORTED, "%s: \"%s\" is %d, only %d is supported", name,
                          numbers[i].key, value, numbers[i].expected);
    }
    for (size_t i = 0; i < sizeof off / sizeof *off; i++) {
        int value = 0;
        TRY(json_get_bool(root, off[i], name, &value, error));
        if (value)
            return report(error, OPENPI_UNSUPPORTED,
                          "%s: \"%s\" is true, a memory of earlier observations is not supported", name,
                          off[i]);
    }
    double side[2];
    int count;
    TRY(json_get_doubles(root, "image_resolution", name, side, 2, &count, error));
    if (count && (count != 2 || side[0] != OPENPI_IMAGE_SIZE || side[1] != OPENPI_IMAGE_SIZE))
        return report(error, OPENPI_UNSUPPORTED, "%s: \"image_resolution\" is not [%d, %d]", name,
                      OPENPI_IMAGE_SIZE, OPENPI_IMAGE_SIZE);
    return OPENPI_OK;
}

static openpi_status read_config(const json_t *root, const char *name, lerobot *out, openpi_error *error) {
    const char *type = NULL;
    TRY(json_get_string(root, "type", name, &type, error));
    if (!type)
        return report(error, OPENPI_BAD_FILE, "%s: \"type\" is absent, so this is no LeRobot checkpoint",
                      name);
    if (!variant_parse(type, strlen(type), &out->variant))
        return report(error, OPENPI_UNSUPPORTED,
                      "%s: \"type\" is \"%.32s\", supported are \"pi0\" and \"pi05\"", name, type);
    out->horizon = 50;
    TRY(json_get_int(root, "chunk_size", name, 1, OPENPI_MAX_HORIZON, &out->horizon, error));
    TRY(check_fixed(root, name, error));
    return read_features(root, name, out, error);
}

/* ---- statistics ----------------------------------------------------------------------------------- */

typedef struct step_file {
    const char *folder, *name;   /* the checkpoint; the JSON file for sentences */
    const json_t *step, *config;
    char what[96];               /* "step 3 (normalizer_processor)"             */
} step_file;

static const struct {
    const char *name;
    lerobot_mode mode;
    const char *low, *high;
} modes[] = {
    {"IDENTITY", LEROBOT_IDENTITY, NULL, NULL},      {"MEAN_STD", LEROBOT_MEAN_STD, "mean", "std"},
    {"MIN_MAX", LEROBOT_MIN_MAX, "min", "max"},      {"QUANTILES", LEROBOT_QUANTILES, "q01", "q99"},
    {"QUANTILE10", LEROBOT_QUANTILES, "q10", "q90"},
};

enum { MODES = sizeof modes / sizeof *modes };

/* norm_map[type], IDENTITY where absent. */
static openpi_status find_mode(const step_file *file, const char *type, int *mode, openpi_error *error) {
    const json_t *value = json_object_get(json_object_get(file->config, "norm_map"), type);
    *mode = 0;
    if (!value) return OPENPI_OK;
    for (int m = 0; json_is_string(value) && m < MODES; m++) {
        if (strcmp(modes[m].name, json_string_value(value))) continue;
        *mode = m;
        return OPENPI_OK;
    }
    return report(
        error, OPENPI_UNSUPPORTED,
        "%s: %s: norm_map.%s is %.32s, expected one of IDENTITY, MEAN_STD, MIN_MAX, QUANTILES, QUANTILE10",
        file->name, file->what, type, json_is_string(value) ? json_string_value(value) : json_kind(value));
}

/* 1 if the state file has any statistic of the feature: a tensor "KEY.STAT" with no dot in STAT. */
static int has_statistics(const tensors *stats, const char *key) {
    size_t length = strlen(key);
    for (int i = 0; stats && i < tensors_count(stats); i++) {
        const char *name = tensors_at(stats, i)->name;
        if (!strncmp(name, key, length) && name[length] == '.' && !strchr(name + length + 1, '.')) return 1;
    }
    return 0;
}

static openpi_status read_statistic(const step_file *file, const tensors *stats, const char *key, int mode,
                                    const char *stat, int count, float *out, openpi_error *error) {
    char name[LEROBOT_KEY_BYTES];
    snprintf(name, sizeof name, "%s.%s", key, stat);
    const tensor *t = tensors_find(stats, name);
    if (!t)
        return report(error, OPENPI_BAD_FILE,
                      "%s: %s: the state file has statistics of %s but not \"%s\", which %s needs",
                      file->name, file->what, key, name, modes[mode].name);
    if (t->type != DTYPE_F32 && t->type != DTYPE_BF16 && t->type != DTYPE_F16)
        return report(error, OPENPI_BAD_FILE,
                      "%s: tensor \"%s\" is not of a float type that is known, expected F32", t->file, name);
    if (t->count != count && t->count != 1)
        return report(error, OPENPI_BAD_FILE, "%s: tensor \"%s\" has %lld elements, expected %d", t->file,
                      name, (long long)t->count, count);
    tensor_read_f32(t, 0, t->count, out);
    for (int i = 0; i < count; i++) {
        if (t->count == 1) out[i] = out[0];
        if (!isfinite(out[i]))
            return report(error, OPENPI_BAD_FILE, "%s: tensor \"%s\"[%d] is %g, expected a finite value",
                          t->file, name, i, (double)out[i]);
    }
    return OPENPI_OK;
}

static openpi_status fill_norm(const step_file *file, const tensors *stats, const char *key, int mode,
                               int count, lerobot_norm *norm, openpi_error *error) {
    const json_t *eps = json_object_get(file->config, "eps");
    if (eps && !json_is_number(eps))
        return report(error, OPENPI_BAD_FILE, "%s: %s: \"eps\" is %s, expected a number", file->name,
                      file->what, json_kind(eps));
    norm->eps = eps ? (float)json_number_value(eps) : 1e-8f;
    if (modes[mode].mode == LEROBOT_IDENTITY || !has_statistics(stats, key)) return OPENPI_OK;
    TRY(read_statistic(file, stats, key, mode, modes[mode].low, count, norm->low, error));
    TRY(read_statistic(file, stats, key, mode, modes[mode].high, count, norm->high, error));
    norm->mode = modes[mode].mode;
    return OPENPI_OK;
}

/* normalize_observation_keys, where given, are the only ones that are. */
static int is_listed(const json_t *keys, const char *key) {
    if (!json_is_array(keys)) return 1;
    for (size_t i = 0; i < json_array_size(keys); i++) {
        const char *listed = json_string_value(json_array_get(keys, i));
        if (listed && !strcmp(listed, key)) return 1;
    }
    return 0;
}

static openpi_status read_observation_norm(const step_file *file, const tensors *stats,
                                           const lerobot *pipeline, lerobot_norm *norm, openpi_error *error) {
    json_t *features = json_object_get(file->config, "features"), *feature;
    const json_t *listed = json_object_get(file->config, "normalize_observation_keys");
    const char *key;
    json_object_foreach(features, key, feature) {
        const char *type = json_string_value(json_object_get(feature, "type"));
        int mode;
        if (!type)
            return report(error, OPENPI_BAD_FILE, "%s: %s: feature \"%.64s\" has no type", file->name,
                          file->what, key);
        if (!strcmp(type, "ACTION") || !is_listed(listed, key)) continue;
        TRY(find_mode(file, type, &mode, error));
        if (!strcmp(key, STATE_KEY))
            TRY(fill_norm(file, stats, key, mode, pipeline->state_length, norm, error));
        if (!strcmp(type, "VISUAL") && mode && has_statistics(stats, key))
            return report(error, OPENPI_UNSUPPORTED,
                          "%s: %s: pictures (\"%.64s\") are normalised by %s, only IDENTITY is supported",
                          file->name, file->what, key, modes[mode].name);
    }
    return OPENPI_OK;
}

static openpi_status read_norm(const step_file *file, const lerobot *pipeline, int inverse,
                               lerobot_norm *norm, openpi_error *error) {
    const char *state_file = NULL;
    int mode;
    tensors *stats = NULL;
    TRY(json_get_string(file->step, "state_file", file->name, &state_file, error));
    if (state_file) {
        TRY(check_inside(state_file, file->name, "\"state_file\"", error));
        char *path = file_join(file->folder, state_file);
        if (!path) return report_no_memory(error, strlen(file->folder) + strlen(state_file) + 2, "a path");
        openpi_status status = tensors_open(path, &stats, error);
        free(path);
        if (status == OPENPI_OK) status = tensors_load(stats, error);
        if (status != OPENPI_OK) {
            tensors_close(stats);
            return status;
        }
    }
    openpi_status status;
    if (inverse) {
        status = find_mode(file, "ACTION", &mode, error);
        if (status == OPENPI_OK)
            status = fill_norm(file, stats, ACTION_KEY, mode, pipeline->action_dim, norm, error);
    } else {
        status = read_observation_norm(file, stats, pipeline, norm, error);
    }
    tensors_close(stats);
    return status;
}

/* ---- the other steps ------------------------------------------------------------------------------ */

static openpi_status read_rename(const step_file *file, lerobot *out, openpi_error *error) {
    json_t *map = json_object_get(file->config, "rename_map"), *to;
    const char *from;
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
        char(*pair)[LEROBOT_KEY_BYTES] = out->renames[out->rename_count++];
        TRY(copy_text(from, file->name, "the renamed key", pair[0], LEROBOT_KEY_BYTES, error));
        TRY(copy_text(json_string_value(to), file->name, "the new key", pair[1], LEROBOT_KEY_BYTES, error));
    }
    return OPENPI_OK;
}

/* 1 if `token` is in `name`, ASCII letters of either case. */
static int contains(const char *name, const char *token) {
    for (; *name; name++) {
        size_t i = 0;
        while (token[i] && tolower((unsigned char)name[i]) == tolower((unsigned char)token[i])) i++;
        if (!token[i]) return 1;
    }
    return 0;
}

/* Every dim is relative but those whose name contains an excluded one; without names nothing is excluded. */
static openpi_status read_relative(const step_file *file, lerobot *out, openpi_error *error) {
    const json_t *names = json_object_get(file->config, "action_names"),
                 *excluded = json_object_get(file->config, "exclude_joints");
    if (names && !json_is_null(names) && !json_is_array(names))
        return report(error, OPENPI_BAD_FILE, "%s: %s: \"action_names\" is %s, expected an array or null",
                      file->name, file->what, json_kind(names));
    if (excluded && !json_is_null(excluded) && !json_is_array(excluded))
        return report(error, OPENPI_BAD_FILE, "%s: %s: \"exclude_joints\" is %s, expected an array",
                      file->name, file->what, json_kind(excluded));
    for (int dim = 0; dim < out->action_dim; dim++) {
        const json_t *name = json_array_get(names, (size_t)dim);
        if (name && !json_is_string(name))
            return report(error, OPENPI_BAD_FILE, "%s: %s: action_names[%d] is %s, expected a string",
                          file->name, file->what, dim, json_kind(name));
        out->relative[dim] = 1;
        for (size_t i = 0; name && i < json_array_size(excluded); i++) {
            const char *token = json_string_value(json_array_get(excluded, i));
            if (!token)
                return report(error, OPENPI_BAD_FILE, "%s: %s: exclude_joints[%zu] is no string", file->name,
                              file->what, i);
            if (*token && contains(json_string_value(name), token)) out->relative[dim] = 0;
        }
    }
    return OPENPI_OK;
}

static openpi_status read_tokenizer(const step_file *file, lerobot *out, openpi_error *error) {
    const char *task_key = "task", *folder = NULL;
    int truncation = 1;
    out->max_prompt = 0;
    TRY(json_get_int(file->config, "max_length", file->name, 1, ROBOT_MAX_PROMPT, &out->max_prompt, error));
    TRY(json_get_string(file->config, "task_key", file->name, &task_key, error));
    TRY(json_get_bool(file->config, "truncation", file->name, &truncation, error));
    if (!out->max_prompt)
        return report(error, OPENPI_BAD_FILE, "%s: %s: \"max_length\" is absent, expected a number of tokens",
                      file->name, file->what);
    if (strcmp(task_key, "task") || !truncation)
        return report(error, OPENPI_UNSUPPORTED,
                      "%s: %s: task_key is \"%.32s\" and truncation %s, supported are \"task\" and true",
                      file->name, file->what, task_key, truncation ? "true" : "false");
    const json_t *artifacts = json_object_get(file->step, "artifacts");
    TRY(json_get_string(artifacts, "tokenizer_name", file->name, &folder, error));
    if (!folder) return OPENPI_OK;
    TRY(check_inside(folder, file->name, "the tokenizer's folder", error));
    return copy_text(folder, file->name, "the tokenizer's folder", out->tokenizer, sizeof out->tokenizer,
                     error);
}

static openpi_status check_device(const step_file *file, openpi_error *error) {
    const char *type = NULL;
    TRY(json_get_string(file->config, "float_dtype", file->name, &type, error));
    if (!type || !strcmp(type, "float32") || !strcmp(type, "float")) return OPENPI_OK;
    return report(error, OPENPI_UNSUPPORTED,
                  "%s: %s: float_dtype is \"%.32s\", supported are null and \"float32\"", file->name,
                  file->what, type);
}

/* ---- the pipelines -------------------------------------------------------------------------------- */

enum { BEFORE = 1, AFTER = 2 };

static const struct step_name {
    const char *name;
    lerobot_kind kind;
    int where;
    const char *settings[8];
} step_names[] = {
    {"rename_observations_processor", LEROBOT_RENAME, BEFORE, {"rename_map"}},
    {"to_batch_processor", LEROBOT_PASS, BEFORE | AFTER, {NULL}},
    {"device_processor", LEROBOT_PASS, BEFORE | AFTER, {"device", "float_dtype"}},
    {"relative_actions_processor", LEROBOT_RELATIVE, BEFORE, {"enabled", "exclude_joints", "action_names"}},
    {"normalizer_processor",
     LEROBOT_NORMALIZE,
     BEFORE,
     {"eps", "features", "norm_map", "normalize_observation_keys"}},
    {"pi0_new_line_processor", LEROBOT_NEW_LINE, BEFORE, {NULL}},
    {"pi05_prepare_state_tokenizer_processor_step", LEROBOT_STATE_TEXT, BEFORE, {NULL}},
    {"tokenizer_processor",
     LEROBOT_TOKENIZE,
     BEFORE,
     {"max_length", "task_key", "padding_side", "padding", "truncation", "tokenizer_name"}},
    {"unnormalizer_processor",
     LEROBOT_UNNORMALIZE,
     AFTER,
     {"eps", "features", "norm_map", "normalize_observation_keys"}},
    {"absolute_actions_processor", LEROBOT_ABSOLUTE, AFTER, {"enabled"}},
};

static openpi_status read_step(step_file *file, int where, lerobot *out, lerobot_step *step,
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
    TRY(check_keys(file->config, known->settings, file->name, file->what, error));
    int enabled = 0;
    step->kind = known->kind;
    switch (known->kind) {
    case LEROBOT_RENAME: return read_rename(file, out, error);
    case LEROBOT_RELATIVE: return read_relative(file, out, error);
    case LEROBOT_NORMALIZE: return read_norm(file, out, 0, &step->norm, error);
    case LEROBOT_UNNORMALIZE: return read_norm(file, out, 1, &step->norm, error);
    case LEROBOT_TOKENIZE: return read_tokenizer(file, out, error);
    case LEROBOT_PASS: return check_device(file, error);
    case LEROBOT_ABSOLUTE:
        TRY(json_get_bool(file->config, "enabled", file->name, &enabled, error));
        if (!enabled) step->kind = LEROBOT_PASS;
        return OPENPI_OK;
    case LEROBOT_NEW_LINE:
    case LEROBOT_STATE_TEXT: return OPENPI_OK;
    }
    return OPENPI_OK;
}

static openpi_status read_steps(const char *folder, const json_t *root, const char *name, int where,
                                lerobot *out, lerobot_step *steps, int *count, openpi_error *error) {
    const json_t *array = json_object_get(root, "steps");
    if (!json_is_array(array))
        return report(error, OPENPI_BAD_FILE, "%s: \"steps\" is %s, expected an array", name,
                      json_kind(array));
    size_t size = json_array_size(array);
    if (size > LEROBOT_STEPS)
        return report(error, OPENPI_UNSUPPORTED, "%s: %zu steps, at most %d are supported", name, size,
                      LEROBOT_STEPS);
    for (size_t i = 0; i < size; i++) {
        step_file file = {folder, name, json_array_get(array, i), NULL, ""};
        file.config = json_object_get(file.step, "config");
        snprintf(file.what, sizeof file.what, "step %zu", i);
        TRY(read_step(&file, where, out, &steps[i], error));
    }
    *count = (int)size;
    return OPENPI_OK;
}

/* What the order of the steps has to give: one tokenizer, before it one way to write a prompt; a remembered
 * state. */
static openpi_status check_pipeline(const lerobot *p, const char *folder, openpi_error *error) {
    int formats = 0, tokenizers = 0, remembered = 0;
    for (int i = 0; i < p->before_count; i++) {
        lerobot_kind kind = p->before[i].kind;
        if (kind == LEROBOT_NEW_LINE || kind == LEROBOT_STATE_TEXT) {
            if (tokenizers)
                return report(error, OPENPI_UNSUPPORTED,
                              "%s/policy_preprocessor.json: step %d changes the prompt after the tokenizer",
                              folder, i);
            formats++;
        }
        if (kind == LEROBOT_TOKENIZE) tokenizers++;
        if (kind == LEROBOT_RELATIVE) remembered++;
    }
    if (tokenizers != 1 || formats != 1)
        return report(error, OPENPI_UNSUPPORTED,
                      "%s/policy_preprocessor.json: %d tokenizer steps after %d steps that write the prompt "
                      "(pi0_new_line_processor, "
                      "pi05_prepare_state_tokenizer_processor_step), expected one of each",
                      folder, tokenizers, formats);
    for (int i = 0; i < p->after_count; i++) {
        if (p->after[i].kind != LEROBOT_ABSOLUTE) continue;
        if (!remembered)
            return report(
                error, OPENPI_BAD_FILE,
                "%s/policy_postprocessor.json: step %d makes actions absolute, but the preprocessor has no "
                "relative_actions_processor",
                folder, i);
        if (p->state_length < p->action_dim)
            return report(
                error, OPENPI_BAD_FILE,
                "%s/policy_postprocessor.json: step %d adds a state of %d numbers to %d action dimensions",
                folder, i, p->state_length, p->action_dim);
    }
    return OPENPI_OK;
}

openpi_status lerobot_open(const char *folder, lerobot *out, openpi_error *error) {
    static const char *const files[] = {"config.json", "policy_preprocessor.json",
                                        "policy_postprocessor.json"};
    lerobot *p = calloc(1, sizeof *p);
    if (!p) return report_no_memory(error, sizeof *p, "a LeRobot pipeline");
    openpi_status status = OPENPI_OK;
    for (int f = 0; f < 3 && status == OPENPI_OK; f++) {
        char *path;
        json_t *root;
        status = read_json(folder, files[f], &path, &root, error);
        if (status != OPENPI_OK) break;
        if (f == 0) status = read_config(root, path, p, error);
        if (f == 1) status = read_steps(folder, root, path, BEFORE, p, p->before, &p->before_count, error);
        if (f == 2) status = read_steps(folder, root, path, AFTER, p, p->after, &p->after_count, error);
        json_decref(root);
        free(path);
    }
    if (status == OPENPI_OK) status = check_pipeline(p, folder, error);
    if (status == OPENPI_OK) *out = *p;
    free(p);
    return status;
}

/* ---- a synthetic checkpoint's pipelines ------------------------------------------------------------ */

static void fill_synthetic(int quantiles, const norm_stats *stats, lerobot_norm *norm) {
    norm->mode = quantiles ? LEROBOT_QUANTILES : LEROBOT_MEAN_STD;
    norm->eps = 1e-8f;
    for (int i = 0; i < LEROBOT_DIMS; i++) {
        norm->low[i] = (float)(quantiles ? stats->q01[i] : stats->mean[i]);
        norm->high[i] = (float)(quantiles ? stats->q99[i] : stats->std[i]);
    }
}

void lerobot_synthetic(const openpi_synthetic *synthetic, lerobot *out) {
    static const char *const cameras[] = {"base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb"};
    /* Where the state is written into the prompt, it is normalised before that. */
    static const lerobot_kind orders[][4] = {
        {LEROBOT_NEW_LINE, LEROBOT_TOKENIZE, LEROBOT_RELATIVE, LEROBOT_NORMALIZE},
        {LEROBOT_RELATIVE, LEROBOT_NORMALIZE, LEROBOT_STATE_TEXT, LEROBOT_TOKENIZE},
    };
    const variant_traits *traits = variant_of(synthetic->variant);
    const lerobot_kind *steps = orders[traits->state_in_prompt];
    norm_stats state, actions;
    normalize_synthetic_stats(synthetic->seed, &state, &actions);
    *out = (lerobot){.variant = synthetic->variant,
                     .state_length = LEROBOT_DIMS,
                     .action_dim = LEROBOT_DIMS,
                     .horizon = 50,
                     .max_prompt = traits->max_prompt,
                     .camera_count = OPENPI_CAMERAS,
                     .before_count = 4,
                     .after_count = 1};
    for (int c = 0; c < OPENPI_CAMERAS; c++)
        snprintf(out->cameras[c], LEROBOT_KEY_BYTES, "%s%s", IMAGE_PREFIX, cameras[c]);
    for (int i = 0; i < out->before_count; i++) {
        out->before[i].kind = steps[i];
        if (steps[i] == LEROBOT_NORMALIZE) fill_synthetic(traits->quantiles, &state, &out->before[i].norm);
    }
    out->after[0].kind = LEROBOT_UNNORMALIZE;
    fill_synthetic(traits->quantiles, &actions, &out->after[0].norm);
    memset(out->relative, 1, sizeof out->relative);
}

/* ---- pictures ------------------------------------------------------------------------------------- */

static const char *renamed(const lerobot *p, const char *key) {
    for (int r = 0; r < p->rename_count; r++)
        if (!strcmp(p->renames[r][0], key)) return p->renames[r][1];
    return key;
}

static int find_feature(const lerobot *p, const char *key) {
    key = renamed(p, key);
    for (int c = 0; c < p->camera_count; c++)
        if (!p->empty[c] && !strcmp(p->cameras[c], key)) return c;
    return -1;
}

int lerobot_camera(const lerobot *p, const char *name) {
    char key[LEROBOT_KEY_BYTES];
    int camera = find_feature(p, name);
    if (camera >= 0) return camera;
    if (snprintf(key, sizeof key, "%s%s", IMAGE_PREFIX, name) < (int)sizeof key)
        camera = find_feature(p, key);
    if (camera >= 0) return camera;
    int slot = robot_slot(name);
    return slot >= 0 && slot < p->camera_count && !p->empty[slot] ? slot : -1;
}

const char *lerobot_camera_name(const lerobot *p, int camera) {
    const char *key = p->cameras[camera];
    for (int r = 0; r < p->rename_count; r++)
        if (!strcmp(p->renames[r][1], key)) {
            key = p->renames[r][0];
            break;
        }
    return strncmp(key, IMAGE_PREFIX, sizeof IMAGE_PREFIX - 1) ? key : key + sizeof IMAGE_PREFIX - 1;
}

/* ---- formulas (lerobot processor/normalize_processor.py, relative_action_processor.py) ------------- */

static float span_of(const lerobot_norm *norm, int i) {
    float span = norm->high[i] - norm->low[i];
    return span == 0.0f ? norm->eps : span;
}

void lerobot_normalize(const lerobot_norm *norm, float *x, int count) {
    for (int i = 0; i < count; i++) {
        if (norm->mode == LEROBOT_MEAN_STD) x[i] = (x[i] - norm->low[i]) / (norm->high[i] + norm->eps);
        else if (norm->mode != LEROBOT_IDENTITY)
            x[i] = 2.0f * (x[i] - norm->low[i]) / span_of(norm, i) - 1.0f;
    }
}

void lerobot_unnormalize(const lerobot_norm *norm, float *x, int count) {
    for (int i = 0; i < count; i++) {
        if (norm->mode == LEROBOT_MEAN_STD) x[i] = x[i] * norm->high[i] + norm->low[i];
        else if (norm->mode == LEROBOT_MIN_MAX) x[i] = (x[i] + 1.0f) / 2.0f * span_of(norm, i) + norm->low[i];
        else if (norm->mode == LEROBOT_QUANTILES)
            x[i] = (x[i] + 1.0f) * span_of(norm, i) / 2.0f + norm->low[i];
    }
}

void lerobot_state_in(const lerobot *p, float *state, float *reference, float *text) {
    size_t bytes = (size_t)p->state_length * sizeof *state;
    memcpy(reference, state, bytes);
    memcpy(text, state, bytes);
    for (int i = 0; i < p->before_count; i++) {
        switch (p->before[i].kind) {
        case LEROBOT_RELATIVE: memcpy(reference, state, bytes); break;
        case LEROBOT_NORMALIZE: lerobot_normalize(&p->before[i].norm, state, p->state_length); break;
        case LEROBOT_STATE_TEXT: memcpy(text, state, bytes); break;
        default: break;
        }
    }
}

void lerobot_actions_out(const lerobot *p, const float *reference, float *actions) {
    for (int i = 0; i < p->after_count; i++) {
        if (p->after[i].kind == LEROBOT_UNNORMALIZE)
            lerobot_unnormalize(&p->after[i].norm, actions, p->action_dim);
        if (p->after[i].kind != LEROBOT_ABSOLUTE) continue;
        for (int d = 0; d < p->action_dim; d++) actions[d] += reference[d] * (float)p->relative[d];
    }
}
