/* A synthetic observation for a policy: noisy camera pictures, a state of zeros, a prompt of the requested
 * length. The policy level's counterpart of lab/measure/workload.h. */
#ifndef MEASURE_OBSERVATION_H
#define MEASURE_OBSERVATION_H

#include "lab/measure/workload.h"

enum { OBSERVATION_HEIGHT = 480, OBSERVATION_WIDTH = 640 };

typedef struct observation {
    openpi_observation view;     /* for openpi_request_prepare                                            */
    openpi_policy_info info;
    openpi_image images[OPENPI_CAMERAS];
    uint8_t *pixels;             /* [cameras][480][640][3]                                                */
    double *state;
    char *prompt;
} observation;

/* The cameras and the seed are the workload's. The prompt has more tokens than the workload's: a policy
 * opened with max_prompt = call->prompt truncates it there. observation_free in any case, also after a
 * failure. */
openpi_status observation_make(const openpi_policy *policy, const workload *call, observation *out,
                               openpi_error *error);
void observation_free(observation *observation);

#endif
