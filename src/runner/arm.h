/* What a runner has to know of the arm that it moves, from a policy or from a robot's record. */
#ifndef RUNNER_ARM_H
#define RUNNER_ARM_H

#include "policy/robots/robots.h"
#include "runner/schedule.h"

typedef struct arm {
    char name[ROBOT_KEY_BYTES];
    int dims;
    double rate_hz;              /* 0: unknown                                                            */
    openpi_action_kind kinds[OPENPI_ACTION_DIM];
    limits limits;
    int has_record;              /* 1: `record` is known: request keys, and where actions start           */
    robot record;
} arm;

void arm_of_policy(const openpi_policy *policy, arm *out);
openpi_status arm_of_robot(const char *robot, arm *out, openpi_error *error);

/* Where actions start in a state; NAN: unknown. */
void arm_starts(const arm *arm, const double *state, int length, double *out);

/* What the options leave open becomes its default; those out of their range are refused. */
openpi_status arm_schedule(const arm *arm, openpi_runner_options *options, schedule_options *out,
                           openpi_error *error);

#endif
