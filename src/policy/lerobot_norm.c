/* LeRobot's normalisation: modes and statistics of a step, read from its configuration and state file, and
 * the formulas, in fp32. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/report.h"
#include "model/tensors.h"
#include "policy/lerobot_parts.h"

/* ---- statistics ----------------------------------------------------------------------------------- */

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

/* norm_map[type], IDENTITY where absent. Other modes are refused before (closed_world.h). */
static int find_mode(const lerobot_file *file, const char *type) {
    const char *name = json_string_value(json_object_get(json_object_get(file->config, "norm_map"), type));
    for (int m = 0; name && m < MODES; m++)
        if (!strcmp(modes[m].name, name)) return m;
    return 0;
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

static openpi_status read_statistic(const lerobot_file *file, const tensors *stats, const char *key, int mode,
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

static openpi_status fill_norm(const lerobot_file *file, const tensors *stats, const char *key, int mode,
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

/* 1: `key` is normalised. normalize_observation_keys, if given, lists all keys that are. */
static int is_listed(const json_t *keys, const char *key) {
    if (!json_is_array(keys)) return 1;
    for (size_t i = 0; i < json_array_size(keys); i++) {
        const char *listed = json_string_value(json_array_get(keys, i));
        if (listed && !strcmp(listed, key)) return 1;
    }
    return 0;
}

static openpi_status read_observation_norm(const lerobot_file *file, const tensors *stats,
                                           const lerobot *pipeline, lerobot_norm *norm, openpi_error *error) {
    json_t *features = json_object_get(file->config, "features"), *feature;
    const json_t *listed = json_object_get(file->config, "normalize_observation_keys");
    const char *key;
    json_object_foreach(features, key, feature) {
        const char *type = json_string_value(json_object_get(feature, "type"));
        if (!type)
            return report(error, OPENPI_BAD_FILE, "%s: %s: feature \"%.64s\" has no type", file->name,
                          file->what, key);
        if (!strcmp(type, "ACTION") || !is_listed(listed, key)) continue;
        int mode = find_mode(file, type);
        if (!strcmp(key, LEROBOT_STATE))
            TRY(fill_norm(file, stats, key, mode, pipeline->state_length, norm, error));
        if (!strcmp(type, "VISUAL") && mode && has_statistics(stats, key))
            return report(error, OPENPI_UNSUPPORTED,
                          "%s: %s: pictures (\"%.64s\") are normalised by %s, only IDENTITY is supported",
                          file->name, file->what, key, modes[mode].name);
    }
    return OPENPI_OK;
}

openpi_status lerobot_read_norm(const lerobot_file *file, const lerobot *pipeline, int inverse,
                               lerobot_norm *norm, openpi_error *error) {
    const char *state_file = NULL;
    tensors *stats = NULL;
    TRY(json_get_string(file->step, "state_file", file->name, &state_file, error));
    if (state_file) {
        TRY(lerobot_check_inside(state_file, file->name, "\"state_file\"", error));
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
    openpi_status status = inverse ? fill_norm(file, stats, LEROBOT_ACTION, find_mode(file, "ACTION"),
                                               pipeline->action_dim, norm, error)
                                   : read_observation_norm(file, stats, pipeline, norm, error);
    tensors_close(stats);
    return status;
}

/* ---- formulas (lerobot processor/normalize_processor.py) ------------------------------------------- */

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
