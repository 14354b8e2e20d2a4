/* What the two levels of a recorded golden share: see verify_recorded.c. */
#ifndef MEASURE_VERIFY_RECORDED_H
#define MEASURE_VERIFY_RECORDED_H

#include "lab/verify/verify_model.h"

typedef struct recorded {
    const char *path;
    openpi_engine *engine;       /* shared by the rows of one dtype; NULL until one needs it              */
    golden_model model;
    int lerobot, rounded;        /* rounded: 1 if the golden holds actions.bf16                           */
    const char *config;          /* openpi's name of the training config, NULL: none                      */
    int64_t A;
    double *state, *actions;     /* [B][32], [B][H][A]                                                    */
} recorded;

/* Reads what both levels need and checks that it was recorded from this checkpoint. *judged: 0 where the case
 * was skipped. */
openpi_status recorded_read(verify_case *c, recorded *r, tensors **file, int *judged, openpi_error *error);

/* r->engine is open, and its model is the recorded one's. */
openpi_status recorded_engine(verify_case *c, recorded *r, openpi_error *error);

/* An observation as a client sends it -> the prepared sample -> robot actions. */
openpi_status recorded_policy_level(verify_case *c, recorded *r, openpi_error *error);

#endif
