/* What every robot saw and was told, into files (recording/call.h). A thread writes; who answers robots hands
 * it a request that is over and goes on. What the disk does not take in time is left out and counted: no
 * robot waits for it. */
#ifndef SERVE_RECORD_RECORDER_H
#define SERVE_RECORD_RECORDER_H

#include "serve/job.h"
#include "serve/log/log.h"

typedef struct recorder recorder;

typedef struct recorder_options {
    const char *folder;
    uint64_t most;               /* bytes of all files together; the oldest go first                       */
    uint64_t seed;               /* draws the noise of requests without their own                          */
    logger *log;
    metrics *metrics;
} recorder_options;

/* Proves that the folder can be written to, and starts the thread. */
openpi_status recorder_open(const recorder_options *options, recorder **out, openpi_error *error);

/* For the heads of files; copied. Before the first request, and only once. */
typedef struct recorder_model {
    const char *checkpoint;      /* NULL: a synthetic one                                                  */
    const char *config, *robot;
    const openpi_engine_info *engine;
    const openpi_session_info *session;
} recorder_model;
void recorder_describe(recorder *recorder, const recorder_model *model);

/* Who sent it. */
typedef struct recorder_client {
    uint64_t connection;
    const char *robot, *address;
} recorder_client;

/* The request is over, whatever its answer: takes the message out of the job. On the I/O thread. */
void recorder_put(recorder *recorder, job_pool *pool, job *job, const recorder_client *client);

/* Writes what waits, closes the file. NULL: nothing. */
void recorder_close(recorder *recorder);

#endif
