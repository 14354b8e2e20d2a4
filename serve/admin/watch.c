/* See watch.h. */
#include "watch.h"

#include <stdlib.h>

watch *watch_create(void) { return calloc(1, sizeof(watch)); }

/* The last two replies may be what has the pictures. */
static void release(watch *w, snapshot *s) {
    if (s != w->last && s != w->before && s != w->seen) snapshot_free(s);
}

void watch_free(watch *w) {
    if (!w) return;
    snapshot *held[3] = {w->last, w->before, w->seen};
    w->last = w->before = NULL;
    if (held[2] != held[0] && held[2] != held[1]) snapshot_free(held[2]);
    snapshot_free(held[0]);
    snapshot_free(held[1]);
    free(w);
}

snapshot *watch_take(watch *w, int horizon, int action_dim, double now) {
    int with_pictures = !w->taken_ms || now - w->taken_ms >= WATCH_PICTURES_MS;
    if (with_pictures) w->taken_ms = now;
    return snapshot_create(with_pictures, horizon, action_dim);
}

void watch_give(watch *w, snapshot *s) {
    if (!s) return;
    if (s->pictured) {
        snapshot *over = w->seen;
        w->seen = s;
        w->pictures++;
        release(w, over);
    }
    if (s->replied) {
        snapshot *over = w->before;
        w->before = w->last;
        w->last = s;
        w->replies++;
        release(w, over);
    }
    release(w, s);
}
