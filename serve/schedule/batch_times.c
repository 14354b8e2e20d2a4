/* See batch_times.h. */
#include "batch_times.h"

#include <math.h>

int batch_times_fill(batch_times *times, const batch_time *measured, int count) {
    *times = (batch_times){0};
    if (count < 1 || measured[0].batch != 1) return 0;
    for (int i = 0; i < count; i++) {
        int from = times->largest, to = measured[i].batch;
        if (to <= from || to > BATCH_TIMES_MAX || measured[i].ns <= 0) return 0;
        int64_t before = times->ns[from], after = measured[i].ns > before ? measured[i].ns : before;
        for (int batch = from + 1; batch <= to; batch++)
            times->ns[batch] = before + (after - before) * (batch - from) / (to - from);
        times->largest = to;
    }
    return 1;
}

batch_times batch_times_scaled(const batch_times *times, double factor) {
    batch_times scaled = *times;
    for (int batch = 1; batch <= times->largest; batch++)
        scaled.ns[batch] = (int64_t)ceil((double)times->ns[batch] * factor);
    return scaled;
}

int batch_times_best(const batch_times *times, int count, int64_t limit) {
    int best = 0;
    double rate = 0;
    for (int batch = 1; batch <= count && batch <= times->largest && times->ns[batch] <= limit; batch++) {
        double now = (double)batch / (double)times->ns[batch];
        if (now > rate) best = batch, rate = now;
    }
    return best;
}
