/* Dispatching: prepared jobs of all connections to the devices, in the order that the scheduler says. A
 * thread for each device; one lock around the scheduler. */
#ifndef SERVE_DISPATCH_H
#define SERVE_DISPATCH_H

#include "device.h"
#include "serve/job.h"
#include "serve/admin/metrics.h"
#include "scheduler.h"

typedef struct dispatch dispatch;

enum { DISPATCH_SLOW = 20 };

typedef struct dispatch_options {
    serve_device **devices;      /* [device_count]; dispatch_renew changes them                            */
    int device_count;
    int connections;             /* at most at a time                                                      */
    double max_block;            /* longest shared batch, in calls of one sample                           */
    metrics *metrics;            /* what batches report to                                                 */
    /* Where a job goes that has its answer, or that nobody waits for any more. On a device's thread, or on
     * dispatch_submit's. */
    void (*answered)(void *user, job *job);
    /* Where a job goes that was prepared for the model before, to be prepared anew. Not on a device's
     * thread. */
    void (*again)(void *user, job *job);
    /* A device is lost: jobs that reach it are answered with a sentence. On its thread. */
    void (*lost)(void *user, const char *sentence);
    void *user;
} dispatch_options;

openpi_status dispatch_open(const dispatch_options *options, dispatch **out, openpi_error *error);
/* Ends the threads when their calls have ended. Jobs that wait are left, for dispatch_leave to return. */
void dispatch_end(dispatch *dispatch);
void dispatch_close(dispatch *dispatch);

/* Each device's thread computes with fresh[i] in the place of its device from its next call on, and jobs that
 * wait go where they are prepared anew. `first(user)`, which has jobs prepared for the new model from then
 * on, is called before either, with the lock held. Waits until all devices are changed, or the threads have
 * ended. On return fresh[device_count] holds the old devices; the caller closes them. From one thread at a
 * time. */
void dispatch_renew(dispatch *dispatch, serve_device **fresh, void (*first)(void *user), void *user);

/* A connection comes: *number is its own. `other`: of a connection of the same reserved token, whose rate it
 * shares; -1: there is none. */
scheduler_joined dispatch_join(dispatch *dispatch, scheduler_class class, double rate, int other,
                               int *number);
scheduler_state dispatch_state(dispatch *dispatch);
/* A connection goes. `running`: its job between dispatch and prepare, or NULL. Returns the job where it
 * waited and will not be computed. */
job *dispatch_leave(dispatch *dispatch, int number, job *running);
/* A device whose batch has been running for more than `patience` nanoseconds, and for more than
 * DISPATCH_SLOW times as long as it took at the start; -1: none. */
int dispatch_hung(dispatch *dispatch, int64_t patience, int64_t now);

/* 1: no request waits for the device, or is expected to within `ns`. */
int dispatch_quiet(dispatch *dispatch, int device, int64_t ns);

/* A job is being prepared. */
void dispatch_expect(dispatch *dispatch);

/* The job is prepared. */
void dispatch_submit(dispatch *dispatch, job *job);

#endif
