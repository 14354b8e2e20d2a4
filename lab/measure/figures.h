/* Times of many runs in seven numbers and a histogram. Percentiles interpolate linearly between order
 * statistics. */
#ifndef MEASURE_FIGURES_H
#define MEASURE_FIGURES_H

typedef struct figures {
    double mean_ms, std_ms, min_ms, max_ms, p50_ms, p95_ms, p99_ms;
} figures;

/* Bins of equal width from the shortest time on; the last bin holds all longer times. */
enum { HISTOGRAM_BINS = 17 };
typedef struct histogram {
    double low_ms, width_ms;     /* the first bin; width 0: all times are equal, in the first bin         */
    int counts[HISTOGRAM_BINS];
} histogram;

/* Sorts `values`, count ≥ 1. */
figures figures_of(double *values, int count);
/* Of ascending values, part 0 … 1. */
double figures_percentile(const double *sorted, int count, double part);
/* Of ascending values, count ≥ 1: the bins before the last reach to the 99th percentile. */
histogram histogram_of(const double *sorted, int count);

#endif
