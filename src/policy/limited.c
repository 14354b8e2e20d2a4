/* See limited.h. */
#include "policy/limited.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/boundary.h"
#include "base/report.h"

void limited_clear(limited *limited) {
    limited->has_last = 0;
    limited->report = (limits_report){.step = -1, .dim = -1};
}

static openpi_status refuse(const limits_report *r, const openpi_policy *policy, openpi_error *error) {
    const char *name = openpi_policy_action_name(policy, r->dim);
    char what[240], named[ROBOT_LABEL_BYTES + 8] = "";
    if (name && *name) snprintf(named, sizeof named, " (%s)", name);
    return report(error, OPENPI_BEYOND_LIMIT,
                  "robot \"%.64s\" is sent nothing: action %d%s of step %d is %s", policy->robot.name, r->dim,
                  named, r->step, limits_describe(r, what, sizeof what));
}

openpi_status limited_apply(limited *limited, const openpi_policy *policy, const double *raw_state,
                            double *actions, int horizon, openpi_error *error) {
    const limits *limits = &policy->robot.limits;
    double start[OPENPI_ACTION_DIM];
    limited->report = (limits_report){.step = -1, .dim = -1};
    if (policy->lerobot || !limits->count) return OPENPI_OK;
    for (int d = 0; d < limits->dims; d++)
        start[d] = isfinite(limits->max_start_jump[d]) ? robot_start_value(&policy->robot, d, raw_state)
                                                       : (double)NAN;
    if (limits_apply(limits, limited->has_last ? limited->last : NULL, start, actions, horizon,
                     &limited->report))
        return OPENPI_OK;
    return refuse(&limited->report, policy, error);
}

/* ---- openpi.h ------------------------------------------------------------------------------------------ */

openpi_status openpi_policy_get_limits(const openpi_policy *policy, openpi_limits *out, openpi_error *error) {
    if (!policy || !out)
        return report(error, OPENPI_BAD_ARGUMENT, "policy limits: %s is NULL",
                      policy ? "the struct" : "the policy");
    TRY(BOUNDARY_CHECK(openpi_limits, out, error));
    openpi_limits own = OPENPI_LIMITS_INIT;
    limits none;
    limits_clear(&none, OPENPI_ACTION_DIM);
    const limits *from = policy->lerobot ? &none : &policy->robot.limits;
    own.count = from->count;
    own.on_violation = (openpi_on_violation)from->on_violation;
    memcpy(own.min, from->min, sizeof own.min);
    memcpy(own.max, from->max, sizeof own.max);
    memcpy(own.max_step, from->max_step, sizeof own.max_step);
    memcpy(own.max_start_jump, from->max_start_jump, sizeof own.max_start_jump);
    BOUNDARY_GIVE(openpi_limits, &own, out);
    return OPENPI_OK;
}

openpi_status openpi_request_last_action(openpi_request *request, const double *action, int count,
                                         openpi_error *error) {
    if (!request) return report(error, OPENPI_BAD_ARGUMENT, "request last action: the request is NULL");
    limited *own = request_limited(request);
    int dims = request_policy(request)->action_dim;
    own->has_last = 0;
    if (!action) return OPENPI_OK;
    if (count != dims)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "request last action: %d numbers, expected %d, as many as an action has", count, dims);
    for (int d = 0; d < dims; d++)
        if (!isfinite(action[d]))
            return report(error, OPENPI_BAD_INPUT,
                          "the last action's number %d is %f, expected a finite number", d, action[d]);
    memcpy(own->last, action, (size_t)dims * sizeof *action);
    own->has_last = 1;
    return OPENPI_OK;
}

openpi_status openpi_request_get_limited(const openpi_request *request, openpi_limited *out,
                                         openpi_error *error) {
    if (!request || !out)
        return report(error, OPENPI_BAD_ARGUMENT, "request limited: %s is NULL",
                      request ? "the struct" : "the request");
    TRY(BOUNDARY_CHECK(openpi_limited, out, error));
    const limits_report *r = &request_limited(request)->report;
    openpi_limited own = OPENPI_LIMITED_INIT;
    own.changed = r->changed;
    own.below_min = r->beyond[LIMIT_MIN];
    own.above_max = r->beyond[LIMIT_MAX];
    own.beyond_step = r->beyond[LIMIT_STEP];
    own.beyond_start = r->beyond[LIMIT_START];
    own.held = r->held;
    own.step = r->step;
    own.action = r->dim;
    own.changed_steps = r->changed_steps;
    BOUNDARY_GIVE(openpi_limited, &own, out);
    return OPENPI_OK;
}
