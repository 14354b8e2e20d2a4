/* LeRobot's normalisation: modes and statistics of a step, read from its configuration and state file, and
 * the formulas, in fp32. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/report.h"
#include "checkpoint/open.h"
#include "policy/lerobot/lerobot_parts.h"

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

/* 1 if the state file has any statistic of the feature: a tensor "KEY.STAT" with no dot in STAT. *other: the
 * name of a tensor that ends like one and belongs to another key; NULL: none. */
static int has_statistics(const tensors *stats, const char *key, const char **other) {
    size_t length = strlen(key);
    *other = NULL;
    for (int i = 0; stats && i < tensors_count(stats); i++) {
        const char *name = tensors_at(stats, i)->name, *dot = strrchr(name, '.');
        size_t before = dot ? (size_t)(dot - name) : 0;
        if (before == length && !strncmp(name, key, length)) return 1;
        if (before > length && !strncmp(dot - length, key, length)) *other = name;
        else if (!*other && strncmp(name, "observation.", 12) && strncmp(name, LEROBOT_ACTION ".", 7))
            *other = name;
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

/* A negative span or deviation turns a dimension's sign. */
static openpi_status check_spans(const tensors *stats, const char *key, int mode, int count,
                                 const lerobot_norm *norm, openpi_error *error) {
    int deviations = modes[mode].mode == LEROBOT_MEAN_STD;
    char name[LEROBOT_KEY_BYTES];
    snprintf(name, sizeof name, "%s.%s", key, modes[mode].high);
    for (int i = 0; i < count; i++) {
        float least = deviations ? 0 : norm->low[i];
        if (norm->high[i] < least)
            return report(error, OPENPI_BAD_FILE, "%s: tensor \"%s\"[%d] is %g, expected at least %s%s%g",
                          tensors_find(stats, name)->file, name, i, (double)norm->high[i],
                          deviations ? "" : modes[mode].low, deviations ? "" : ", which is ", (double)least);
    }
    return OPENPI_OK;
}

static openpi_status why_not(lerobot_statistics *from, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static openpi_status why_not(lerobot_statistics *from, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(from->why, sizeof from->why, format, arguments);
    va_end(arguments);
    return OPENPI_OK;
}

/* Before a step's statistics are looked for: why nothing is normalised where its settings say so. */
static void begin_statistics(const lerobot_file *file, const char *type, lerobot_statistics *from) {
    const json_t *mode = json_object_get(json_object_get(file->config, "norm_map"), type);
    *from = (lerobot_statistics){.mode = "IDENTITY", .meant = mode != NULL};
    if (mode) why_not(from, "norm_map.%s is IDENTITY", type);
    else why_not(from, "norm_map has no %s", type);
}

static openpi_status fill_norm(const lerobot_file *file, const tensors *stats, const char *key, int mode,
                               int count, lerobot_norm *norm, lerobot_statistics *from,
                               openpi_error *error) {
    const char *state_file = json_string_value(json_object_get(file->step, "state_file")), *other;
    const json_t *eps = json_object_get(file->config, "eps");
    if (eps && !(json_number_value(eps) >= 0 && json_is_number(eps)))
        return report(error, OPENPI_BAD_FILE, "%s: %s: \"eps\" is %s, expected a number of 0 or more",
                      file->name, file->what, json_is_number(eps) ? "negative" : json_kind(eps));
    norm->eps = eps ? (float)json_number_value(eps) : 1e-8f;
    from->mode = modes[mode].name;
    from->named = state_file != NULL;
    if (modes[mode].mode == LEROBOT_IDENTITY) return OPENPI_OK;
    from->meant = 0;
    if (!has_statistics(stats, key, &other)) {
        if (!state_file) return why_not(from, "the step names no state file");
        if (!tensors_count(stats)) return why_not(from, "%.80s holds no tensor", state_file);
        if (!other) return why_not(from, "%.80s has no \"%s.%s\"", state_file, key, modes[mode].low);
        return why_not(from, "%.80s has \"%.48s\" and no \"%s.%s\"", state_file, other, key, modes[mode].low);
    }
    TRY(read_statistic(file, stats, key, mode, modes[mode].low, count, norm->low, error));
    TRY(read_statistic(file, stats, key, mode, modes[mode].high, count, norm->high, error));
    TRY(check_spans(stats, key, mode, count, norm, error));
    norm->mode = modes[mode].mode;
    snprintf(from->file, sizeof from->file, "%s", state_file);
    return OPENPI_OK;
}

static openpi_status check_listed(const lerobot_file *file, const json_t *keys, openpi_error *error) {
    if (keys && !json_is_null(keys) && !json_is_array(keys))
        return report(error, OPENPI_BAD_FILE,
                      "%s: %s: \"normalize_observation_keys\" is %s, expected an array of strings or null",
                      file->name, file->what, json_kind(keys));
    for (size_t i = 0; i < json_array_size(keys); i++)
        if (!json_is_string(json_array_get(keys, i)))
            return report(error, OPENPI_BAD_FILE,
                          "%s: %s: normalize_observation_keys[%zu] is %s, expected a string", file->name,
                          file->what, i, json_kind(json_array_get(keys, i)));
    return OPENPI_OK;
}

/* 1: `key` is normalised. normalize_observation_keys, if given, lists all keys that are. */
static int is_listed(const json_t *keys, const char *key) {
    if (!json_is_array(keys)) return 1;
    for (size_t i = 0; i < json_array_size(keys); i++) {
        const char *listed = json_string_value(json_array_get(keys, i));
        if (!strcmp(listed, key)) return 1;
    }
    return 0;
}

static openpi_status fill_state(const lerobot_file *file, const tensors *stats, const char *type,
                                lerobot *pipeline, lerobot_norm *norm, openpi_error *error) {
    if (strcmp(type, "STATE"))
        return report(error, OPENPI_BAD_FILE,
                      "%s: %s: the type of feature \"" LEROBOT_STATE "\" is \"%.32s\", expected \"STATE\"",
                      file->name, file->what, type);
    begin_statistics(file, type, &pipeline->state_statistics);
    return fill_norm(file, stats, LEROBOT_STATE, find_mode(file, type), pipeline->state_length, norm,
                     &pipeline->state_statistics, error);
}

static openpi_status fill_actions(const lerobot_file *file, const tensors *stats, lerobot *pipeline,
                                  lerobot_norm *norm, openpi_error *error) {
    begin_statistics(file, "ACTION", &pipeline->action_statistics);
    return fill_norm(file, stats, LEROBOT_ACTION, find_mode(file, "ACTION"), pipeline->action_dim, norm,
                     &pipeline->action_statistics, error);
}

/* Before the features are walked over: why the state is not normalised where it is none of them. */
static void begin_state(const lerobot_file *file, const json_t *features, const json_t *listed,
                        lerobot_statistics *from) {
    begin_statistics(file, "STATE", from);
    if (!json_object_get(features, LEROBOT_STATE)) {
        from->mode = modes[find_mode(file, "STATE")].name;
        from->named = json_object_get(file->step, "state_file") != NULL;
        from->meant = 0;
        why_not(from, "the step's features have no \"" LEROBOT_STATE "\"");
    }
    if (!is_listed(listed, LEROBOT_STATE)) {
        from->meant = 1;
        why_not(from, "normalize_observation_keys leaves \"" LEROBOT_STATE "\" out");
    }
}

static openpi_status read_observation_norm(const lerobot_file *file, const tensors *stats,
                                           lerobot *pipeline, lerobot_norm *norm, openpi_error *error) {
    json_t *features = json_object_get(file->config, "features"), *feature;
    const json_t *listed = json_object_get(file->config, "normalize_observation_keys");
    const char *key, *other;
    TRY(check_listed(file, listed, error));
    begin_state(file, features, listed, &pipeline->state_statistics);
    json_object_foreach(features, key, feature) {
        const char *type = json_string_value(json_object_get(feature, "type"));
        if (!type)
            return report(error, OPENPI_BAD_FILE, "%s: %s: feature \"%.64s\" has no type", file->name,
                          file->what, key);
        if (!is_listed(listed, key)) continue;
        int mode = find_mode(file, type);
        if (!strcmp(key, LEROBOT_STATE)) TRY(fill_state(file, stats, type, pipeline, norm, error));
        if (!strcmp(type, "VISUAL") && mode && has_statistics(stats, key, &other))
            return report(error, OPENPI_UNSUPPORTED,
                          "%s: %s: pictures (\"%.64s\") are normalised by %s, only IDENTITY is supported",
                          file->name, file->what, key, modes[mode].name);
    }
    return OPENPI_OK;
}

openpi_status lerobot_read_norm(const lerobot_file *file, lerobot *pipeline, int inverse,
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
    openpi_status status = inverse ? fill_actions(file, stats, pipeline, norm, error)
                                   : read_observation_norm(file, stats, pipeline, norm, error);
    tensors_close(stats);
    return status;
}

/* ---- statistics of openpi's norm_stats.json ------------------------------------------------------------ */

static openpi_status take(lerobot_norm *norm, lerobot_statistics *from, const norm_stats *stats, int count,
                          const char *what, const char *name, openpi_error *error) {
    int quantiles = !strcmp(from->mode, "QUANTILES");
    if (!quantiles && strcmp(from->mode, "MEAN_STD"))
        return report(error, OPENPI_UNSUPPORTED,
                      "%s: the checkpoint normalises its %s by %s, for which norm_stats.json has no numbers, "
                      "expected MEAN_STD or QUANTILES",
                      name, what, from->mode);
    if (stats->dims < count || (quantiles && !stats->quantiles))
        return report(error, OPENPI_BAD_FILE, "%s: statistics of %d %s%s, expected %d%s", name, stats->dims,
                      what, stats->quantiles ? "" : " without q01 and q99", count,
                      quantiles ? " with q01 and q99" : "");
    norm->mode = quantiles ? LEROBOT_QUANTILES : LEROBOT_MEAN_STD;
    for (int i = 0; i < count; i++) {
        norm->low[i] = (float)(quantiles ? stats->q01[i] : stats->mean[i]);
        norm->high[i] = (float)(quantiles ? stats->q99[i] : stats->std[i]);
    }
    size_t length = strlen(name), most = sizeof from->file - 1;
    snprintf(from->file, sizeof from->file, "%s", length > most ? name + length - most : name);
    from->why[0] = 0;
    return OPENPI_OK;
}

static lerobot_norm *find_norm(lerobot_step *steps, int count, lerobot_kind kind) {
    for (int i = 0; i < count; i++)
        if (steps[i].kind == kind) return &steps[i].norm;
    return NULL;
}

openpi_status lerobot_take_statistics(lerobot *p, const norm_stats *state, const norm_stats *actions,
                                      const char *name, int *taken, openpi_error *error) {
    lerobot_norm *before = find_norm(p->before, p->before_count, LEROBOT_NORMALIZE),
                 *after = find_norm(p->after, p->after_count, LEROBOT_UNNORMALIZE);
    lerobot_statistics *from_state = &p->state_statistics, *from_actions = &p->action_statistics;
    *taken = 0;
    if (before && !from_state->file[0] && strcmp(from_state->mode, "IDENTITY")) {
        TRY(take(before, from_state, state, p->state_length, "state dimensions", name, error));
        ++*taken;
    }
    if (after && !from_actions->file[0] && strcmp(from_actions->mode, "IDENTITY")) {
        TRY(take(after, from_actions, actions, p->action_dim, "action dimensions", name, error));
        ++*taken;
    }
    return OPENPI_OK;
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
