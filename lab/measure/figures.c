/* Summaries of measured times. */
#include "lab/measure/figures.h"

#include <math.h>
#include <stdlib.h>

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double figures_percentile(const double *sorted, int count, double part) {
    double at = part * (count - 1);
    int low = (int)at, high = low + 1 < count ? low + 1 : low;
    return sorted[low] + (at - low) * (sorted[high] - sorted[low]);
}

figures figures_of(double *values, int count) {
    double sum = 0, squares = 0;
    qsort(values, (size_t)count, sizeof *values, ascending);
    for (int i = 0; i < count; i++) sum += values[i];
    double mean = sum / count;
    for (int i = 0; i < count; i++) squares += (values[i] - mean) * (values[i] - mean);
    return (figures){mean,
                     count > 1 ? sqrt(squares / (count - 1)) : 0,
                     values[0],
                     values[count - 1],
                     figures_percentile(values, count, 0.50),
                     figures_percentile(values, count, 0.95),
                     figures_percentile(values, count, 0.99)};
}

histogram histogram_of(const double *sorted, int count) {
    histogram h = {
        sorted[0], (figures_percentile(sorted, count, 0.99) - sorted[0]) / (HISTOGRAM_BINS - 1), {0}};
    for (int i = 0; i < count; i++) {
        double bin = h.width_ms > 0 ? (sorted[i] - h.low_ms) / h.width_ms : 0;
        h.counts[bin < HISTOGRAM_BINS - 1 ? (int)bin : HISTOGRAM_BINS - 1]++;
    }
    return h;
}
