/* Cameras that do not see: the same bytes again and again, or black. */
#ifndef RUNNER_WATCH_H
#define RUNNER_WATCH_H

#include "openpi_runner.h"
#include "runner/sight.h"

/* Begins as all zeros. */
typedef struct watch {
    struct watched {
        char name[SIGHT_NAME];
        uint64_t hash;
        int same;                /* observations with these bytes                                         */
    } camera[SIGHT_PICTURES];
} watch;

/* FROZEN_CAMERA or BLACK_CAMERA, and *camera is its name, valid until the next call; or NONE. frozen_after
 * below 1: no camera is frozen. */
openpi_reason watch_look(watch *watch, const openpi_observation *observation, int frozen_after,
                         int black_allowed, const char **camera);

#endif
