/* Times of many runs in seven numbers. Percentiles interpolate linearly between order statistics. */
#ifndef MEASURE_FIGURES_H
#define MEASURE_FIGURES_H

typedef struct figures {
    double mean_ms, std_ms, min_ms, max_ms, p50_ms, p95_ms, p99_ms;
} figures;

/* Sorts `values`, count ≥ 1. */
figures figures_of(double *values, int count);
/* Of ascending values, part 0 … 1. */
double figures_percentile(const double *sorted, int count, double part);

#endif
