/* A made-up observation for a policy: noisy camera pictures, a state of zeros, a prompt that is as long as
 * asked for. The policy level's counterpart of measure/workload.h. */
#ifndef MEASURE_OBSERVATION_H
#define MEASURE_OBSERVATION_H

#include "measure/workload.h"

enum { OBSERVATION_HEIGHT = 480, OBSERVATION_WIDTH = 640 };

typedef struct observation {
    openpi_observation view;     /* what openpi_request_prepare takes                                     */
    openpi_policy_info info;
    openpi_image images[OPENPI_CAMERAS];
    uint8_t *pixels;             /* [cameras][480][640][3]                                                */
    double *state;
    char *prompt;
} observation;

/* The cameras and the seed are the workload's. The prompt has more tokens than it asks for: a policy opened
 * with max_prompt = call->prompt cuts it there, as it cuts any. observation_free in any case. */
openpi_status observation_make(const openpi_policy *policy, const workload *call, observation *out,
                               openpi_error *error);
void observation_free(observation *observation);

#endif
