/* A session whose calls are timed launch by launch, for profile and trace.
 *
 *   timed_open -> any number of openpi_session_run, after each of which `launches` is read -> timed_close
 *
 * Only the plan runs differently: as a timed recording if the device supports it (an event node after every
 * launch), else op by op. On a CPU a plan always runs op by op. */
#ifndef MEASURE_TIMED_H
#define MEASURE_TIMED_H

#include "backend/backend.h"

struct openpi_session;

typedef enum timed_method {
    TIMED_CLOCK,                 /* op by op, the host's clock around each                                */
    TIMED_EVENTS,                /* op by op, the device's own times of each                              */
    TIMED_REPLAY,                /* inside the replay of a recording                                      */
    TIMED_PREDICTED,             /* not at all: the static model's times (lab/paper/paper.h)                */
} timed_method;

typedef struct timed {
    struct openpi_session *session;
    timed_method method;
    char not_replayed[200];      /* why TIMED_EVENTS is not TIMED_REPLAY                                  */
    struct recording *recording;
    launch_record *launches;     /* the latest call's launches, in order; times from the run's beginning  */
    int count, capacity;
    double start_ms, end_ms;     /* the latest run, by the host's clock (base/clock.h)                    */
    double total_ms;             /* its length by the clock that times the launches                       */
} timed;

/* Sets the session's on_run; timed_close, also after a failure, removes it. */
openpi_status timed_open(struct openpi_session *session, timed *timed, openpi_error *error);
void timed_close(timed *timed);
/* 0: the session runs plain calls; 1: timed calls, the state after timed_open. */
void timed_switch(timed *timed, int on);

/* "clock", "events", "replay", "PREDICTED", and a sentence that explains it. */
const char *timed_method_name(timed_method method);
const char *timed_method_text(timed_method method);

#endif
