/* openpi's normalisation in double: statistics read, applied and undone. The order of the operations is
 * openpi's. */
#include "policy/normalize.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/report.h"

static const double EPSILON = 1e-6;

enum { STATS_BYTES = 4 << 20 };  /* largest norm_stats.json */

/* ---- reading -------------------------------------------------------------------------------------- */

static openpi_status read_entry(const json_t *root, const char *key, const char *name, norm_stats *stats,
                                openpi_error *error) {
    const json_t *entry = json_object_get(root, key);
    if (!json_is_object(entry))
        return report(error, OPENPI_BAD_FILE,
                      "%s: norm_stats.\"%s\" is %s, expected an object with mean, std, q01 and q99", name,
                      key, json_kind(entry));
    double *const into[] = {stats->mean, stats->std, stats->q01, stats->q99};
    static const char *const keys[] = {"mean", "std", "q01", "q99"};
    int counts[4];
    for (int k = 0; k < 4; k++)
        TRY(json_get_doubles(entry, keys[k], name, into[k], NORM_DIMS, &counts[k], error));
    if (!counts[0] || counts[1] != counts[0])
        return report(
            error, OPENPI_BAD_FILE,
            "%s: norm_stats.%s has %d means and %d standard deviations, expected equally many, 1 to %d", name,
            key, counts[0], counts[1], NORM_DIMS);
    if (counts[2] != counts[3] || (counts[2] && counts[2] != counts[0]))
        return report(error, OPENPI_BAD_FILE,
                      "%s: norm_stats.%s has %d q01 and %d q99, expected none or %d of each", name, key,
                      counts[2], counts[3], counts[0]);
    stats->dims = counts[0];
    stats->epsilon = EPSILON;
    stats->quantiles = counts[2] > 0;
    for (int i = 0; i < stats->dims; i++) {
        if (stats->std[i] < 0)
            return report(error, OPENPI_BAD_FILE, "%s: norm_stats.%s.std[%d] is %g, expected 0 or more", name,
                          key, i, stats->std[i]);
        if (stats->quantiles && stats->q99[i] < stats->q01[i])
            return report(error, OPENPI_BAD_FILE,
                          "%s: norm_stats.%s.q99[%d] is %g, less than q01, which is %g", name, key, i,
                          stats->q99[i], stats->q01[i]);
    }
    return OPENPI_OK;
}

openpi_status normalize_parse(const char *text, size_t bytes, const char *name, norm_stats *state,
                              norm_stats *actions, openpi_error *error) {
    json_t *file;
    norm_stats read[2] = {{0}};
    TRY(json_parse(text, bytes, name, &file, error));
    const json_t *root = json_object_get(file, "norm_stats");
    openpi_status status;
    if (!json_is_object(root)) {
        status = report(error, OPENPI_BAD_FILE,
                        "%s: \"norm_stats\" is %s, expected an object with state and actions", name,
                        json_kind(root));
    } else {
        status = read_entry(root, "state", name, &read[0], error);
        if (status == OPENPI_OK) status = read_entry(root, "actions", name, &read[1], error);
    }
    json_decref(file);
    if (status != OPENPI_OK) return status;
    *state = read[0];
    *actions = read[1];
    return OPENPI_OK;
}

openpi_status normalize_read(const char *path, norm_stats *state, norm_stats *actions, openpi_error *error) {
    char *text;
    size_t bytes;
    TRY(file_read(path, STATS_BYTES, &text, &bytes, error));
    openpi_status status = normalize_parse(text, bytes, path, state, actions, error);
    free(text);
    return status;
}

/* ---- a synthetic checkpoint's statistics ---------------------------------------------------------- */

static double uniform(const char *name, uint64_t seed, int index) {
    return hash_uniform(hash_key(name, strlen(name), seed), (uint64_t)index);
}

void normalize_synthetic_stats(uint64_t seed, norm_stats *state, norm_stats *actions) {
    norm_stats *const entries[] = {state, actions};
    static const char *const names[][2] = {{"norm_stats.state.mean", "norm_stats.state.std"},
                                           {"norm_stats.actions.mean", "norm_stats.actions.std"}};
    for (int e = 0; e < 2; e++) {
        norm_stats *stats = entries[e];
        memset(stats, 0, sizeof *stats);
        stats->dims = NORM_DIMS;
        stats->epsilon = EPSILON;
        stats->quantiles = 1;
        for (int i = 0; i < NORM_DIMS; i++) {
            stats->mean[i] = 0.25 * uniform(names[e][0], seed, i);
            stats->std[i] = 0.75 + 0.25 * uniform(names[e][1], seed, i);
            stats->q01[i] = stats->mean[i] - 2 * stats->std[i];
            stats->q99[i] = stats->mean[i] + 2 * stats->std[i];
        }
    }
}

/* ---- formulas ------------------------------------------------------------------------------------- */

void normalize_apply(norm_mode mode, const norm_stats *stats, double *x, int count) {
    for (int i = 0; i < count && mode != STATS_NONE; i++) {
        if (mode == STATS_ZSCORE)
            x[i] = (x[i] - stats->mean[i]) / (stats->std[i] + stats->epsilon);
        else
            x[i] = (x[i] - stats->q01[i]) / (stats->q99[i] - stats->q01[i] + stats->epsilon) * 2.0 - 1.0;
    }
}

static double invert_zscore(const norm_stats *stats, int i, double x) {
    int known = i < stats->dims;
    return x * ((known ? stats->std[i] : 1.0) + stats->epsilon) + (known ? stats->mean[i] : 0.0);
}

/* half: (x + 1) / 2 */
static double invert_quantile(const norm_stats *stats, int i, double half) {
    return half * (stats->q99[i] - stats->q01[i] + stats->epsilon) + stats->q01[i];
}

void normalize_invert(norm_mode mode, const norm_stats *stats, double *x, int count) {
    for (int i = 0; i < count && mode != STATS_NONE; i++) {
        if (mode == STATS_ZSCORE) x[i] = invert_zscore(stats, i, x[i]);
        else if (i < stats->dims) x[i] = invert_quantile(stats, i, (x[i] + 1.0) / 2.0);
    }
}

void normalize_invert_model(norm_mode mode, const norm_stats *stats, const float *x, double *out, int count) {
    for (int i = 0; i < count; i++) {
        out[i] = (double)x[i];
        if (mode == STATS_ZSCORE) out[i] = invert_zscore(stats, i, out[i]);
        else if (mode == STATS_QUANTILE && i < stats->dims)
            out[i] = invert_quantile(stats, i, (double)((x[i] + 1.0f) / 2.0f));
    }
}
