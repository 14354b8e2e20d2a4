/* A device: an engine and its sessions, which run prepared jobs and write their replies. Loads the model,
 * runs a first call, and measures how long batches take. */
#ifndef SERVE_DEVICE_H
#define SERVE_DEVICE_H

#include "batch_times.h"
#include "serve/admin/metrics.h"
#include "serve/job.h"
#include "serve/model.h"

typedef struct serve_device serve_device;

typedef struct device_options {
    const char *checkpoint;
    const char *name;            /* "cuda:0"                                                               */
    const openpi_engine_options *engine;
    openpi_session_options session;           /* its batch is the largest that may run                     */
    int prefixes;                /* connections whose prefix is kept; 0: none is                           */
    int samples;                 /* chunks of one observation that a call computes; at least 1             */
    serve_model *model;          /* whose weights these are; the device holds it                           */
    const serve_device *like;    /* a device that computes meanwhile: where this one is of the same kind, its
                                    times hold, which were measured undisturbed. NULL: none                */
} device_options;

openpi_status device_open(const device_options *options, serve_device **out, openpi_error *error);
void device_close(serve_device *device);

/* Runs the jobs in one batch and sets their answers: replies, or sentences. The status is not OK where the
 * device failed. On one thread at a time. */
openpi_status device_run(serve_device *device, job *const *jobs, int count, openpi_error *error);

/* Calls since this was asked last that took a prefix that was kept. On device_run's thread. */
int device_kept(serve_device *device);
/* What 8-bit codes lost since this was asked last; zeros where rows have scales of their own. On device_run's
 * thread. */
metrics_lost device_losses(serve_device *device);
serve_model *device_model(const serve_device *device);
openpi_engine *device_engine(const serve_device *device);
const openpi_engine_info *device_engine_info(const serve_device *device);
const openpi_session_info *device_session_info(const serve_device *device);
/* As measured when it opened, or when `like` did. */
const batch_times *device_times(const serve_device *device);

#endif
