/* LeRobot goldens with a model: what verify_lerobot.c and verify_chunking.c share. */
#ifndef MEASURE_VERIFY_LEROBOT_H
#define MEASURE_VERIFY_LEROBOT_H

#include "lab/verify/verify_case.h"
#include "policy/policy.h"

typedef struct golden_lerobot {
    const char *folder, *path;
    tensors *file;
    json_t *about;               /* metadata "case"                                                       */
    openpi_policy *policy;
    openpi_policy_info info;
    openpi_request *request;
    openpi_sample sample;        /* the last prepared one                                                 */
    int64_t L, n, a;             /* prompt, state and action lengths                                      */
    /* With a model: */
    openpi_synthetic synthetic;
    int steps;
    int64_t H;
    float *state, *noise;        /* [n] raw, [H][32]                                                      */
} golden_lerobot;

#define LEROBOT_GOLDEN(FOLDER, PATH) \
    {.folder = FOLDER, .path = PATH, .info = OPENPI_POLICY_INFO_INIT, .sample = OPENPI_SAMPLE_INIT, \
     .synthetic = OPENPI_SYNTHETIC_INIT}

/* Opens file, policy and request of a golden whose folder and path are set. */
openpi_status lerobot_golden(verify_case *c, golden_lerobot *g, openpi_error *error);
/* Of a golden with a model: its weights, noise and prepared sample. */
openpi_status lerobot_observation(verify_case *c, golden_lerobot *g, openpi_error *error);

/* Real-time chunking, whose goldens have the observation of the folder pi05 beside theirs. Ends the case,
 * which has begun. */
openpi_status verify_chunking(verify_walk *walk, verify_case *c, const char *folder, const char *path,
                              openpi_error *error);

#endif
