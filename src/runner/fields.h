/* An observation under the request keys of a robot, as a policy server takes it. */
#ifndef RUNNER_FIELDS_H
#define RUNNER_FIELDS_H

#include "policy/robots/robots.h"
#include "runner/sight.h"

/* Begins as all zeros, for fields_free. */
typedef struct fields {
    openpi_field field[SIGHT_PICTURES + ROBOT_PARTS + 1];
    int count;
    uint8_t *pixels[SIGHT_PICTURES]; /* [capacity] of pictures that cannot stay as they are */
    size_t capacity[SIGHT_PICTURES];
} fields;

/* Pictures of RGB without gaps stay where they are, others are copied. */
openpi_status fields_of(fields *fields, const robot *robot, const openpi_observation *observation,
                        openpi_error *error);
void fields_free(fields *fields);

#endif
