/* A robot that somebody looks at on the admin page: its last two chunks and its last pictures. It ends by
 * itself when nobody has asked for WATCH_MS. All of it is on the I/O thread. */
#ifndef SERVE_WATCH_H
#define SERVE_WATCH_H

#include "snapshot.h"

enum {
    WATCH_MS = 60000,
    WATCH_PICTURES_MS = 400,     /* pictures are taken no more often                                       */
    WATCHES = 8,                 /* robots that are looked at; one more takes the place of the longest ago */
};

typedef struct watch {
    double asked_ms;             /* somebody looked last                                                   */
    double taken_ms;             /* pictures were taken last                                               */
    snapshot *last, *before;     /* the last two replies; NULL: there is none                              */
    snapshot *seen;              /* the last one with pictures; NULL: there is none                        */
    int replies, pictures;       /* so far                                                                 */
} watch;

/* NULL: no memory. */
watch *watch_create(void);
void watch_free(watch *watch);
/* What the next request shall fill; NULL: nothing. */
snapshot *watch_take(watch *watch, int horizon, int action_dim, double now);
/* The request has filled it; from now on it is the watch's. */
void watch_give(watch *watch, snapshot *snapshot);

#endif
