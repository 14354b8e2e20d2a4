/* openpi's normalisation: z-score or quantile statistics of state and actions, always in double.
 *
 * Note: openpi adds 1e-6 to every denominator, in both directions, so a dimension that never moved is divided
 * by 1e-6 and restored exactly. */
#ifndef POLICY_NORMALIZE_H
#define POLICY_NORMALIZE_H

#include "openpi.h"

enum { NORM_DIMS = OPENPI_ACTION_DIM };

typedef enum norm_mode { STATS_NONE, STATS_ZSCORE, STATS_QUANTILE } norm_mode;

/* One entry of norm_stats.json: one number a dimension. */
typedef struct norm_stats {
    int dims;                    /* 1 … 32                                                                */
    int quantiles;               /* 1: q01 and q99 are there                                              */
    double epsilon;              /* 1e-6: added to std and to q99 - q01                                   */
    double mean[NORM_DIMS], std[NORM_DIMS], q01[NORM_DIMS], q99[NORM_DIMS];
} norm_stats;

/* Reads {"norm_stats": {"state": {"mean": […], "std": […], "q01": […]|null, "q99": […]|null},
 * "actions": …}}. */
openpi_status normalize_read(const char *path, norm_stats *state, norm_stats *actions, openpi_error *error);

/* The same from text; error sentences begin with `name`. */
openpi_status normalize_parse(const char *text, size_t bytes, const char *name, norm_stats *state,
                              norm_stats *actions, openpi_error *error);

/* The statistics of a synthetic checkpoint, the same in memory and in its norm_stats.json: 32 dims of state
 * and actions, mean = 0.25 u(i),  std = 0.75 + 0.25 v(i),  q01 = mean - 2 std,  q99 = mean + 2 std, where u
 * is the generator of SYNTH.md for the name "norm_stats.state.mean" (or "norm_stats.actions.mean"), v the one
 * for "norm_stats.state.std" (…), both with the checkpoint's seed, i the dimension. */
void normalize_synthetic_stats(uint64_t seed, norm_stats *state, norm_stats *actions);

/* x[count] in place. zscore: (x - mean)/(std + 1e-6). quantile: (x - q01)/(q99 - q01 + 1e-6)·2 - 1.
 * count <= dims: longer statistics are cut. (openpi src/openpi/transforms.py, Normalize) */
void normalize_apply(norm_mode mode, const norm_stats *stats, double *x, int count);

/* x[count] in place. zscore: x·(std + 1e-6) + mean, past the statistics with mean 0 and std 1.
 * quantile: (x + 1)/2·(q99 - q01 + 1e-6) + q01, past the statistics unchanged. (openpi
 * src/openpi/transforms.py, Unnormalize) */
void normalize_invert(norm_mode mode, const norm_stats *stats, double *x, int count);
/* The same for fp32 values of the model. openpi keeps them in fp32 until a statistic multiplies them, so (x +
 * 1)/2 is rounded to fp32. */
void normalize_invert_model(norm_mode mode, const norm_stats *stats, const float *x, double *out, int count);

#endif
