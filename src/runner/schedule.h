/* Which action a robot is given now: the core of a runner, in virtual time, without threads.
 *
 * Chunks are offered when they come, and at every tick schedule_next gives one action: the next row of the
 * chunk in use, or what holding still means. Every row of the timeline (timeline.h) is given once at most and
 * in order, and nothing is given that is beyond the limits.
 *
 * Threads: one thread, the control thread; others may read `timeline`. Nothing here waits or allocates. */
#ifndef RUNNER_SCHEDULE_H
#define RUNNER_SCHEDULE_H

#include "openpi_runner.h"
#include "policy/limits.h"
#include "runner/timeline.h"

typedef struct schedule_options {
    int dims;                    /* numbers of an action, 1 … 32                                          */
    uint8_t velocity[OPENPI_ACTION_DIM];               /* 1: holding still is 0; 0: it is the last number */
    openpi_seam seam;
    int blend_steps;
    openpi_ending ending;
    int decelerate_steps;
    int calls_per_step;
    int interpolate;
    double max_age; /* the newest observation may be so old, ms                                         */
    double deadline;             /* from an observation until its chunk is of no use, ms                  */
    limits limits;
} schedule_options;

typedef struct schedule_chunk {
    uint64_t number;             /* from 1, rising                                                        */
    uint64_t base;               /* steps executed before its observation was taken: row 0 is this step   */
    double taken;
    int rows;
    double start[OPENPI_ACTION_DIM];                   /* the measured state in the actions' units, or NaN */
    double actions[OPENPI_MAX_HORIZON * OPENPI_ACTION_DIM];    /* [rows][dims]                            */
} schedule_chunk;

/* What is known outside of the schedule at a tick. */
typedef struct schedule_news {
    double newest;               /* when the newest observation was taken; -infinite: there is none        */
    openpi_reason camera;        /* FROZEN_CAMERA, BLACK_CAMERA, or NONE                                   */
    openpi_reason source;        /* LOST, FAILED, or NONE: why no chunk comes                              */
    int stop;                    /* 1: the robot is to be stopped, 0: not                                  */
    int resume;                  /* 1: a stop ends                                                         */
} schedule_news;

typedef struct schedule {
    schedule_options options;
    timeline timeline;
    schedule_chunk current, pending;     /* rows 0: none. pending: APPEND's next one                      */
    uint64_t newest, newest_base;        /* chunk that was taken last; the base of it                     */
    double flushed;              /* chunks of observations taken before are not used                      */
    int forbidden;               /* 1: the call before might not move, whatever chunks there were         */
    int delay; /* measured when the current chunk took over                                */
    double offset[OPENPI_ACTION_DIM];    /* BLEND: what the motion before had more                        */
    int blended;                 /* steps of it that are done; blend_steps: all                           */
    int part;                    /* call of the current step: 0 … calls_per_step-1                        */
    double from[OPENPI_ACTION_DIM], target[OPENPI_ACTION_DIM];  /* the current step's two ends            */
    double last[OPENPI_ACTION_DIM];      /* given by the call before                                      */
    double motion[OPENPI_ACTION_DIM];    /* the last step's: the difference of its ends              */
    int given, moved;            /* 1: `last` and `motion` are known                                      */
    int held;                    /* calls since the robot is held; 0: it moves                            */
    openpi_reason stopped;       /* NONE: it is not                                                       */
    uint64_t ticks, holds, late, limited;
} schedule;

void schedule_begin(schedule *s, const schedule_options *options);

/* A chunk has come. 1: it is used, now or later; 0: it came too late, or out of order. */
int schedule_offer(schedule *s, const schedule_chunk *chunk, double now);

/* The action of this tick; *state of openpi_runner_next. */
openpi_move schedule_next(schedule *s, const schedule_news *news, double now, double *action,
                          openpi_runner_state *state);

#endif
