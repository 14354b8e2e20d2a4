/* See history.h. */
#include "history.h"

#include <math.h>
#include <string.h>

static const double FIRST_MS = 0.1, WIDER = 1.05;

static int64_t second_of(double now) { return (int64_t)floor(now / 1000); }

static history_second *at(history *h, double now) {
    int64_t number = second_of(now);
    history_second *s = &h->seconds[number % HISTORY_SECONDS];
    if (s->number != number) *s = (history_second){.number = number};
    return s;
}

static int bucket_of(double ms) {
    if (!(ms > FIRST_MS)) return 0;
    double bucket = ceil(log(ms / FIRST_MS) / log(WIDER));
    return bucket < HISTORY_BUCKETS - 1 ? (int)bucket : HISTORY_BUCKETS - 1;
}

void history_add(history *h, double now, int ok, double took_ms) {
    history_second *s = at(h, now);
    s->answered += ok != 0;
    s->bad += !ok;
    if (ok) s->buckets[bucket_of(took_ms)]++;
}

void history_busy(history *h, double now, double total_ms) {
    at(h, now)->busy_ms += total_ms - h->busy_ms;
    h->busy_ms = total_ms;
}

/* The middle of the bucket that has the request of this rank. */
static double percentile(const uint32_t *buckets, uint32_t count, int percent) {
    uint64_t rank = ((uint64_t)count * (uint64_t)percent + 99) / 100, below = 0;
    if (!count) return 0;
    for (int i = 0; i < HISTORY_BUCKETS; i++) {
        below += buckets[i];
        if (below >= rank) return FIRST_MS * pow(WIDER, i - 0.5);
    }
    return 0;
}

history_point history_look(const history *h, double now, int ago, int count) {
    history_point point = {.answered = 0};
    uint32_t buckets[HISTORY_BUCKETS] = {0};
    for (int i = ago; i < ago + count && i < HISTORY_SECONDS; i++) {
        int64_t number = second_of(now) - i;
        const history_second *s = &h->seconds[(number % HISTORY_SECONDS + HISTORY_SECONDS) % HISTORY_SECONDS];
        if (s->number != number) continue;
        point.answered += s->answered;
        point.bad += s->bad;
        point.busy_ms += s->busy_ms;
        for (int b = 0; b < HISTORY_BUCKETS; b++) buckets[b] += s->buckets[b];
    }
    point.p50_ms = percentile(buckets, point.answered, 50);
    point.p99_ms = percentile(buckets, point.answered, 99);
    return point;
}
