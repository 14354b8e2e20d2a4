/* What the admin page polls: the server's state as JSON (docs/serve-admin.md). Pure. */
#ifndef SERVE_STATE_H
#define SERVE_STATE_H

#include "serve/connection.h"
#include "serve/log/log.h"
#include "metrics.h"
#include "serve/model.h"
#include "serve/reload.h"
#include "serve/schedule/scheduler.h"
#include "serve/small/text.h"

/* What stays as it is while the server runs. */
typedef struct state_about {
    const char *checkpoint;      /* as it was named                                                        */
    const char *cards[SCHEDULER_DEVICES];  /* what each device is, as devices are described; "": unknown   */
    const char *kernels;         /* "avx512"                                                               */
    const char *address;         /* where robots connect: "ws://127.0.0.1:8000"                            */
    int tokens;                  /* 1: they need one                                                       */
} state_about;

typedef struct state {
    const char *version;
    const state_about *about;
    const serve_model *model;    /* the model that new requests are prepared for                           */
    update_served update;        /* which weights it has now                                               */
    int horizon, action_dim, draining;
    double now_ms, up_seconds;
    const metrics_counts *counts;
    const history *history;
    const log_recent *warnings;
    scheduler_state queue;
    const connection_look *robots;         /* [robot_count], of connections                                */
    int robot_count, connections;
    uint64_t watched;            /* the connection that somebody looks at; 0: none                         */
    const watch *watch;          /* on this robot; NULL: it is gone                                        */
    trail *trail;                /* its last minute; NULL: there is none                                   */
} state;

void state_write(const state *state, text *out);

/* state_send.c: ",\"send\":{…},\"actions\":{…}": what a robot sends to this server, and what comes back. */
void state_write_send(const state *state, text *out);

#endif
