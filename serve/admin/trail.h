/* The last minute of one robot, second by second: chunks that it was sent, what limits did to them, where
 * chunks meet, how long it did not ask, and what its runner tells of holds. Bounded, and all of it on the I/O
 * thread.
 *
 * Note: the server knows what it sent. Which rows of a chunk were executed the robot may tell with its next
 * request; else they are taken to begin with the reply and to follow each other at the robot's rate. */
#ifndef SERVE_TRAIL_H
#define SERVE_TRAIL_H

#include "openpi_runner.h"
#include "serve/small/text.h"

enum { TRAIL_SECONDS = 60 };     /* whole ones, before the one that runs                                   */

typedef struct trail trail;

/* A request that was answered. */
typedef struct trail_call {
    double arrived_ms, sent_ms;  /* its last byte came, its reply was sent                                 */
    openpi_status status;
    const float *actions;        /* [horizon][dims] as they were sent; looked at where status is OK        */
    const openpi_limited *limited;         /* what the robot's limits did                                  */
    double rate_hz;              /* the robot's; 0: unknown                                                */
    int executed;                /* rows of the chunk before that were executed; negative: not told        */
    double held_ms;              /* how long its runner held it since its request before                   */
    openpi_reason reason;        /* why, at last                                                           */
} trail_call;

/* NULL: no memory. About 150 + 12 dims bytes a second, and a chunk. */
trail *trail_create(int horizon, int dims);
void trail_free(trail *trail);

void trail_add(trail *trail, const trail_call *call);
/* {"seconds":60,"answered":[…],…}, from the oldest second to the last whole one. */
void trail_write(trail *trail, double now_ms, text *out);

#endif
