/* A device: an engine, its session, and the thread that runs prepared jobs on it and writes their replies. */
#ifndef SERVE_DEVICE_H
#define SERVE_DEVICE_H

#include "job.h"
#include "queue.h"

typedef struct device device;

typedef struct device_options {
    const char *checkpoint;
    const openpi_engine_options *engine;
    openpi_session_options session;
    int action_dim;              /* of the robot                                                           */
    queue *prepared;             /* where jobs come from                                                   */
    /* Where a job goes that is answered. On the device's thread. */
    void (*answered)(void *user, job *job);
    void *user;
} device_options;

/* Loads the model and runs one call. */
openpi_status device_open(const device_options *options, device **out, openpi_error *error);
/* Starts the thread; it ends when the queue does. */
openpi_status device_start(device *device, openpi_error *error);
void device_close(device *device);

const openpi_engine_info *device_engine_info(const device *device);
const openpi_session_info *device_session_info(const device *device);

#endif
