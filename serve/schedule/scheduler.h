/* Which requests a device computes now, or until when it waits.
 *
 * The caller says what happens and when; after every event it asks scheduler_next for each device. Nothing
 * here knows threads, clocks or sockets: the caller holds one lock around all calls, and every time is its
 * own, in nanoseconds from any beginning. Where its clock steps back, no time has passed. After
 * scheduler_create no memory is taken.
 *
 * Two classes. *Reserved* connections declare a rate and go first, in the order of arrival. All others are
 * *shared*: the one that has used the least device time is next (start-time fair queueing; the time of a
 * batch is divided among its members; who comes new or comes back starts level with the one that runs now).
 *
 *   block   a shared batch lasts no longer than max_block calls of one sample
 *   hold    a shared batch does not start where it would still run while a reserved robot is expected
 *           (rhythm.h) and no other device is free for that robot
 *   calm    a shared batch of several takes at most half of the time that is left until then, so batches get
 *           smaller as the robot's call comes near: a large one has the device at its power limit, and the
 *           clock comes back slowly
 *   bound   holding spends an account of the device: SCHEDULER_HOLD_CALLS calls of one sample are in it at
 *           most, and each shared batch pays SCHEDULER_HOLD_SHARE times its own duration in. An empty
 *           account holds nothing back. So while shared requests wait, they get at least
 *           1/(1 + SCHEDULER_HOLD_SHARE) of the time that reserved calls leave, less what
 *           SCHEDULER_HOLD_CALLS calls take once
 *   pace    a reserved connection that asks faster than it declared is served as shared until it is back
 *           within its rate (pace.h). The connections of one token have one rate together
 *   late    a request that can no longer be answered by its deadline is not computed
 *   many    each sample of a request is a turn: the request is computed in as many batches as that takes,
 *           beside those of other connections, and each of its samples is paid for like a request. A whole
 *           request, whose samples share what a call computes, is one batch of its own
 *
 * A connection has at most one request running and one queued, and its requests are answered in order.
 *
 * Note: several reserved requests run one after the other, unless one batch of them ends early enough that
 * their mean answer comes no later. */
#ifndef SERVE_SCHEDULER_H
#define SERVE_SCHEDULER_H

#include "batch_times.h"

#define SCHEDULER_NEVER INT64_MAX

enum { SCHEDULER_DEVICES = 16, SCHEDULER_HOLD_CALLS = 16, SCHEDULER_HOLD_SHARE = 4 };

typedef enum scheduler_class { SCHEDULER_SHARED, SCHEDULER_RESERVED, SCHEDULER_CLASSES } scheduler_class;

typedef struct scheduler scheduler;

typedef struct scheduler_options {
    int devices;                 /* 1 … SCHEDULER_DEVICES                                                 */
    const batch_times *times;    /* [devices], copied                                                     */
    int connections;             /* at most at a time                                                     */
    double max_block;            /* in calls of one sample; below 1: 1                                    */
} scheduler_options;

/* NULL: no memory. */
scheduler *scheduler_create(const scheduler_options *options);
void scheduler_destroy(scheduler *scheduler);
/* Other times of an idle device, after another checkpoint was loaded. */
void scheduler_measured(scheduler *scheduler, int device, const batch_times *times);

/* ---- what happens -------------------------------------------------------------------------------- */

typedef enum scheduler_joined {
    SCHEDULER_JOINED,
    SCHEDULER_FULL,              /* as many connections as there may be                                   */
    SCHEDULER_OVERBOOKED,        /* the reserved rates would exceed SCHEDULER_RESERVABLE of the devices   */
} scheduler_joined;
#define SCHEDULER_RESERVABLE 0.7

/* A connection comes; `rate` is what a reserved one declares, in calls a second, and must be above 0. */
scheduler_joined scheduler_join(scheduler *scheduler, scheduler_class class, double rate, int64_t now,
                                int *connection);
/* Another connection of the reserved token that `other` is a connection of: the rate that the token declares
 * is one for all its connections, so nothing more is reserved. */
scheduler_joined scheduler_join_token(scheduler *scheduler, int other, int64_t now, int *connection);
/* A connection goes. Returns its queued request, which will not be computed, or NULL. A running request
 * stays in its batch, and what is queued of its samples is forgotten; the number of the connection is given
 * to no other before that batch has finished. */
void *scheduler_leave(scheduler *scheduler, int connection, int64_t now);
/* A request is ready to run; `request` (not NULL) is the caller's own. `deadline`: when the answer has to be
 * there, SCHEDULER_NEVER without one. 0, and nothing happens: the connection has a queued request already. */
int scheduler_submit(scheduler *scheduler, int connection, void *request, int64_t deadline, int64_t now);
/* The same of a request of `samples`, 1 … 64. `whole`: 1, they are computed in one call of their own. */
int scheduler_submit_many(scheduler *scheduler, int connection, void *request, int samples, int whole,
                          int64_t deadline, int64_t now);
/* Takes a queued request back, as if it had not been submitted. NULL: none is queued. */
void *scheduler_withdraw(scheduler *scheduler);
/* Takes back what is queued of the connection's request: the rest of its samples will not be computed. Where
 * another one is queued, nothing happens. */
void scheduler_forget_request(scheduler *scheduler, int connection, const void *request);
/* The device's batch took less than its size says, because something was there already: its time tells
 * nothing about the device's speed. Before scheduler_finish. */
void scheduler_shorter(scheduler *scheduler, int device);
/* The batch that the device was given has ended: its answers are sent now. */
void scheduler_finish(scheduler *scheduler, int device, int64_t now);

/* ---- what to do ---------------------------------------------------------------------------------- */

typedef enum scheduler_verb {
    SCHEDULER_RUN,               /* compute `requests` in one batch, then call scheduler_finish           */
    SCHEDULER_LATE,              /* answer `requests` as too late, then ask again                         */
    SCHEDULER_WAIT,              /* nothing to do: ask again after the next event, and at `until`         */
} scheduler_verb;

typedef struct scheduler_action {
    scheduler_verb verb;
    int count;
    void *const *requests;       /* [count], valid until the device is asked again                        */
    const int *samples;          /* [count] of RUN: the next ones of each request; all of a whole one     */
    int64_t until;               /* the end of WAIT; SCHEDULER_NEVER: only an event changes anything      */
} scheduler_action;

/* A device that is running a batch may be asked too: it finds late requests. */
scheduler_action scheduler_next(scheduler *scheduler, int device, int64_t now);

/* ---- what it knows ------------------------------------------------------------------------------- */

typedef struct scheduler_connection {
    scheduler_class class;
    double rate;                 /* its token's                                                            */
    int64_t device_ns;           /* device time used so far                                               */
    double interval_ns, deviation_ns;      /* its pause or period (rhythm.h); 0: the rhythm is not known    */
} scheduler_connection;
scheduler_connection scheduler_look(const scheduler *scheduler, int connection);

/* 1: no request waits, the device is idle, and no reserved robot is expected that would need it within `ns`:
 * work that no robot waits for may begin. */
int scheduler_quiet(scheduler *scheduler, int device, int64_t ns, int64_t now);

typedef struct scheduler_state {
    int connections;
    int queued[SCHEDULER_CLASSES];         /* by the class of the connection                               */
    double reserved, reservable; /* calls a second: declared by all reserved connections, and at most      */
    int64_t held_ns;             /* all devices: time that shared requests waited because of a hold        */
} scheduler_state;
scheduler_state scheduler_get_state(const scheduler *scheduler);

#endif
