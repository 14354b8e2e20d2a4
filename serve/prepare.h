/* Preparing: threads that decode messages, resize their pictures and tokenise their prompts while the device
 * computes. The scratch memory of a request (openpi_request) is large, so a pool of them serves all
 * connections: where all are in use, shared connections' messages wait as they came, and so they do where a
 * request would take more than half of what is left in flight, unless none is in use. Reserved connections'
 * go first, always get one, and have a thread of their own: a large picture or a long prompt of a shared
 * connection makes none of them wait. */
#ifndef SERVE_PREPARE_H
#define SERVE_PREPARE_H

#include "job.h"
#include "model.h"

typedef struct prepare prepare;

typedef struct prepare_options {
    serve_model *model;          /* that requests are prepared for; it is held                             */
    int threads;                 /* besides the one for reserved connections                               */
    int most;                    /* requests that shared connections have in use; more for reserved ones   */
    in_flight *in_flight;        /* what their memory counts in; NULL: nowhere                             */
    uint64_t seed;               /* for the noise of requests that have none                               */
    void (*preparing)(void *user);         /* a job is about to be prepared; on a prepare thread            */
    /* Where a job goes that is prepared, or that is answered because it cannot be. On a prepare thread. */
    void (*prepared)(void *user, job *job);
    void (*refused)(void *user, job *job);
    void *user;
} prepare_options;

openpi_status prepare_open(const prepare_options *options, prepare **out, openpi_error *error);
/* Ends the threads and waits for them. Jobs that wait are left: they are the connections'. */
void prepare_end(prepare *prepare);
void prepare_close(prepare *prepare);

/* From any thread. */
void prepare_put(prepare *prepare, job *job);
/* A request of a reserved connection, or of a shared one, has begun to come. */
void prepare_expect(prepare *prepare, int reserved);
/* The model that requests are prepared for; the caller holds it. */
serve_model *prepare_model(prepare *prepare);
/* Requests from now on are prepared for this model. */
void prepare_renew(prepare *prepare, serve_model *model);
/* To be called a few times a second: requests that nobody has needed for some seconds are closed, but for as
 * many as there are threads. Returns how many. */
int prepare_trim(prepare *prepare, double now_ms);
/* Gives the job's request back to the pool. From any thread. */
void prepare_release(prepare *prepare, job *job);

#endif
