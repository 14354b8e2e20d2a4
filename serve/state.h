/* What the admin page polls: the server's state as JSON (docs/serve-admin.md). Pure. */
#ifndef SERVE_STATE_H
#define SERVE_STATE_H

#include "connection.h"
#include "metrics.h"
#include "scheduler.h"
#include "text.h"

typedef struct state {
    const char *version, *robot;
    int horizon, action_dim, draining;
    double now_ms, up_seconds;
    const metrics_counts *counts;
    scheduler_state queue;
    const connection_look *robots;         /* [robot_count], of connections                                */
    int robot_count, connections;
    uint64_t watched;            /* the connection that somebody looks at; 0: none                         */
    const watch *watch;          /* of it; NULL: it is gone                                                */
} state;

void state_write(const state *state, text *out);

#endif
