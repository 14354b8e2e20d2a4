/* See recent.h. */
#include "recent.h"

#include <stdlib.h>
#include <string.h>

void recent_open(recent *r, double now) {
    r->count = r->next = 0;
    r->began_ms = now;
}

void recent_add(recent *r, double end_ms, double took_ms) {
    r->end_ms[r->next] = end_ms;
    r->took_ms[r->next] = (float)took_ms;
    r->next = (r->next + 1) % RECENT_REQUESTS;
    if (r->count < RECENT_REQUESTS) r->count++;
}

static int ascending(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

/* The smallest value that at least so much of all are not above. */
static double percentile(const float *sorted, int count, int percent) {
    int rank = (count * percent + 99) / 100;
    return (double)sorted[rank > 0 ? rank - 1 : 0];
}

/* Where all that are kept are within the window, it reaches back to the oldest of them only. */
static double rate(const recent *r, double now) {
    double oldest = now, window = now - r->began_ms;
    int count = 0;
    for (int i = 0; i < r->count; i++) {
        if (now - r->end_ms[i] >= RECENT_WINDOW_MS) continue;
        count++;
        if (r->end_ms[i] < oldest) oldest = r->end_ms[i];
    }
    if (window > RECENT_WINDOW_MS) window = RECENT_WINDOW_MS;
    if (count == RECENT_REQUESTS) window = now - oldest;
    return window > 0 ? 1000.0 * count / window : 0;
}

recent_summary recent_look(const recent *r, double now) {
    recent_summary summary = {.count = r->count, .rate = rate(r, now)};
    float sorted[RECENT_REQUESTS];
    if (!r->count) return summary;
    memcpy(sorted, r->took_ms, (size_t)r->count * sizeof *sorted);
    qsort(sorted, (size_t)r->count, sizeof *sorted, ascending);
    summary.p50_ms = percentile(sorted, r->count, 50);
    summary.p99_ms = percentile(sorted, r->count, 99);
    return summary;
}
