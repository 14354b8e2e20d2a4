/* A walk over ops: what it is for, what it launches, and the work block (launch.c). */
#ifndef BACKEND_GPU_LAUNCH_H
#define BACKEND_GPU_LAUNCH_H

#include "backend/gpu/device.h"

/* What a walk over ops is for. */
typedef enum gpu_purpose {
    GPU_LAUNCH,                            /* kernels start, now or in a capture                            */
    GPU_MEASURE,                           /* the work block is added up                                    */
    GPU_LIST,                              /* an op's choices are listed                                    */
    GPU_BUILD,                             /* an op's task is made                                          */
} gpu_purpose;

/* The work block, for one op after the other. */
typedef struct gpu_work {
    char *memory;                          /* NULL: it is only measured                                     */
    size_t used, most;                     /* bytes: of this op, and of all ops so far                      */
    int cleared;                           /* 1: the counters at its beginning are zero                     */
} gpu_work;

/* One launch of a recording, and the event after it where the recording is timed. */
typedef struct gpu_mark {
    launch_record launch;
    void *event;
} gpu_mark;

/* What a recording notes of the launches in it. */
typedef struct gpu_log {
    int timed;                             /* 1: an event follows every launch                              */
    int whole_device;                      /* 1: a launch needs the device for itself; the device counts it */
    gpu_mark *marks;
    int count, capacity;
} gpu_log;

/* GPU_LAUNCH: where launches go. */
typedef struct gpu_emission {
    void *stream;
    gpu_log *log;                          /* notes every launch of a capture; NULL: none                   */
    int alone;                             /* 1: the next launch waits for all before it                    */
    int in_turn;                           /* 1: each launch does                                           */
    int code;                              /* the first error                                               */
} gpu_emission;

/* GPU_LIST: where choices are written. */
typedef struct gpu_listing {
    candidate *list;
    int capacity, count;                   /* count: all there are                                          */
} gpu_listing;

struct gpu_issue {
    gpu_device *device;
    gpu_purpose purpose;
    gpu_work work;
    gpu_emission emit;
    gpu_listing listing;
    gpu_task *built;                       /* GPU_BUILD                                                     */
    /* The op that is being issued. */
    const op *op;
    int place, left;                       /* its place; ops from it on, 0: it alone is known               */
    int ops;                               /* that the next launches compute: 1, or what a family takes     */
    int choice;                            /* op.choice, for the task that has choices                      */
    int family;                            /* that is being asked                                           */
};

/* The next op begins, after the work block's counters. */
void gpu_work_begin(gpu_work *work);
/* Gives back what the log has. */
void gpu_forget_log(gpu_device *device, gpu_log *log);

#endif
