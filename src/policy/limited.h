/* A request's actions against the limits of its robot: what has to be known for it, and what came of it. */
#ifndef POLICY_LIMITED_H
#define POLICY_LIMITED_H

#include "policy/policy.h"

typedef struct limited {
    double last[OPENPI_ACTION_DIM];           /* the action that was sent before the chunk                */
    int has_last;                /* 0: not known                                                          */
    limits_report report;        /* what happened to the last chunk                                       */
} limited;

void limited_clear(limited *limited);

/* The request's own; it is written while a request that is const is finished. */
limited *request_limited(const openpi_request *request);

/* actions[horizon][action_dim] in place; raw_state as the request has it. Actions that may not be sent are
 * OPENPI_BEYOND_LIMIT. */
openpi_status limited_apply(limited *limited, const openpi_policy *policy, const double *raw_state,
                            double *actions, int horizon, openpi_error *error);

#endif
