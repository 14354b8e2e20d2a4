/* The observations that 8 bits are judged on: each prepared in a request of its own, which later turns model
 * actions into the robot's. */
#ifndef QUANTIZE_OBSERVATIONS_H
#define QUANTIZE_OBSERVATIONS_H

#include "openpi.h"

enum { OBSERVATIONS_MAX = 256 };

typedef struct observations {
    const openpi_policy *policy;
    openpi_request *requests[OBSERVATIONS_MAX];
    int count, found;            /* found: in the files; of more than `most`, evenly spread ones */
    int synthetic;
} observations;

/* A folder of requests as openpi clients send them (request_folder.h; a file may hold several, one after
 * another), or a .safetensors file of requests that tools/record-golden recorded. At most `most`. */
openpi_status observations_read(const openpi_policy *policy, const char *path, int most, observations *out,
                                openpi_error *error);
/* Noise for pictures, a state of zeros, prompts of several lengths: they prove little. */
openpi_status observations_make(const openpi_policy *policy, int count, uint64_t seed, observations *out,
                                openpi_error *error);
/* In any case, also after a failure. */
void observations_free(observations *o);

#endif
