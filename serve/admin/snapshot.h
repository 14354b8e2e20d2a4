/* What the admin page shows of one request: the pictures as the model saw them, and the chunk. A job has one
 * only while somebody looks at its robot, and each thread writes its part while it has the job. */
#ifndef SERVE_SNAPSHOT_H
#define SERVE_SNAPSHOT_H

#include <stddef.h>
#include <stdint.h>

#include "serve/messages.h"
#include "openpi.h"

enum {
    SNAPSHOT_HEAD = 54,          /* bytes of a BMP file's head                                             */
    SNAPSHOT_PROMPT = 1024,      /* bytes of a prompt that are shown                                       */
    SNAPSHOT_PICTURE = SNAPSHOT_HEAD + OPENPI_IMAGE_SIZE * OPENPI_IMAGE_SIZE * 3,
};

typedef struct snapshot {
    uint8_t *pictures;           /* [OPENPI_CAMERAS][SNAPSHOT_PICTURE], each a BMP file; NULL: not wanted  */
    uint8_t mask[OPENPI_CAMERAS];          /* 1: the model saw it                                          */
    int pictured;                /* 1: there are pictures                                                  */
    double *actions;             /* [horizon][action_dim]: the reply's                                     */
    int replied;                 /* 1: there are actions                                                   */
    int executed;                /* steps of the chunk before that are executed; negative: no "openpi/rtc" */
    int applied, delay;          /* the reply's "rtc"                                                      */
    char prompt[SNAPSHOT_PROMPT + 4];      /* its end "…" where it is longer                               */
    int truncated;               /* 1: it has more tokens than the model takes                             */
    double state[OPENPI_ACTION_DIM];       /* [state_count], in the robot's units                          */
    int state_count;
    double starts[OPENPI_ACTION_DIM];      /* where each action starts in the state; NaN: nowhere          */
} snapshot;

/* NULL: no memory. */
snapshot *snapshot_create(int with_pictures, int horizon, int action_dim);
void snapshot_free(snapshot *snapshot);

/* The prepared request and the sample that openpi_request_sample gave. The snapshot may be NULL. */
void snapshot_see(snapshot *snapshot, const openpi_request *request, const openpi_sample *sample);
/* The reply, of the horizon and actions that the snapshot was created for. The snapshot may be NULL. */
void snapshot_reply(snapshot *snapshot, const reply *reply);

#endif
