/* See log_sample.h. */
#include "log_sample.h"

#include <stdio.h>
#include <string.h>

enum { SECOND = 1000000000 };

/* As far as they are kept. */
static int is_same(const char *kept, const char *given, size_t capacity) {
    return !strncmp(kept, given, capacity - 1);
}

/* The last place is shared by all reasons that find no place of their own. */
static log_count *place_of(log_sampler *s, const char *event, const char *reason) {
    for (int i = 0; i < s->count; i++)
        if (is_same(s->items[i].event, event, sizeof s->items[i].event) &&
            is_same(s->items[i].reason, reason, sizeof s->items[i].reason))
            return &s->items[i];
    if (s->count == LOG_REASONS) return &s->items[LOG_REASONS - 1];
    log_count *item = &s->items[s->count++];
    *item = (log_count){.since = INT64_MIN};
    snprintf(item->event, sizeof item->event, "%s", s->count == LOG_REASONS ? "others" : event);
    snprintf(item->reason, sizeof item->reason, "%s", s->count == LOG_REASONS ? "" : reason);
    return item;
}

static int is_over(const log_count *item, int64_t now) {
    return item->since == INT64_MIN || now < item->since || now - item->since >= SECOND;
}

int log_sampler_take(log_sampler *s, const char *event, const char *reason, int64_t now) {
    log_count *item = place_of(s, event, reason);
    if (is_over(item, now)) {
        item->since = now;
        item->written = 0;
    }
    if (item->written < LOG_PER_SECOND) {
        item->written++;
        return 1;
    }
    item->more++;
    return 0;
}

int log_sampler_over(log_sampler *s, int64_t now, log_count *over) {
    for (int i = 0; i < s->count; i++) {
        log_count *item = &s->items[i];
        if (!item->more || !is_over(item, now)) continue;
        *over = *item;
        item->more = 0;
        return 1;
    }
    return 0;
}
