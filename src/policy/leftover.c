/* Real-time chunking from call to call: a chunk that is kept, and what is left of it at the next observation.
 *
 * Actions that are relative to a state were relative to the old one. They are kept as absolute ones, and
 * become relative to the new state when the next observation is prepared (LeRobot policies/rtc/relative.py,
 * reanchor_relative_rtc_prefix). All other policies keep the model's own numbers.
 *
 * Note: LeRobot normalises every dimension of a relative policy anew, also those that are not relative, and
 * openpi's policies do the same here. Where the statistics of a dimension have no span, LeRobot divides what
 * the robot drifted since by 1e-8 and pulls the whole chunk along. Here such a dimension follows on from the
 * only value that the data had, so nothing pulls it anywhere. */
#include <math.h>
#include <string.h>

#include "base/report.h"
#include "policy/policy.h"
#include "policy/spans.h"

enum { DIMS = OPENPI_ACTION_DIM };

/* ---- one step of a policy with relative actions --------------------------------------------------- */

/* Actions in the units of the statistics -> the model's. */
static void normalize_lerobot(const lerobot_norm *norm, float *actions, int count) {
    for (int d = 0; d < count; d++)
        if (spans_flat_lerobot(norm, d)) actions[d] = norm->low[d];
    lerobot_normalize(norm, actions, count);
}

static void normalize_openpi(norm_mode mode, const norm_stats *stats, double *actions, int count) {
    for (int d = 0; d < count; d++)
        if (spans_flat_openpi(mode, stats, d))
            actions[d] = mode == STATS_ZSCORE ? stats->mean[d] : stats->q01[d];
    normalize_apply(mode, stats, actions, count);
}

static int is_relative(const openpi_policy *policy) {
    const lerobot *p = &policy->pipeline;
    int absolute = 0, relative = 0;
    if (!policy->lerobot) {
        for (int d = 0; d < policy->robot.delta_count; d++) relative |= policy->robot.delta[d];
        return relative;
    }
    for (int i = 0; i < p->after_count; i++) absolute |= p->after[i].kind == LEROBOT_ABSOLUTE;
    for (int d = 0; d < policy->action_dim; d++) relative |= p->relative[d];
    return absolute && relative;
}

void leftover_note(openpi_policy *policy) { spans_tell(policy, is_relative(policy)); }

static void to_absolute(const openpi_request *request, const float *model, double *out) {
    const openpi_policy *policy = request_policy(request);
    float actions[DIMS];
    if (policy->lerobot) {
        memcpy(actions, model, sizeof actions);
        lerobot_actions_out(&policy->pipeline, request_lerobot_reference(request), actions);
        for (int d = 0; d < policy->action_dim; d++) out[d] = (double)actions[d];
        return;
    }
    normalize_invert_model(policy->mode, &policy->actions, model, out, policy->action_dim);
    for (int d = 0; d < policy->robot.delta_count; d++)
        if (policy->robot.delta[d]) out[d] += request_reference(request)[d];
}

static void to_relative(const openpi_request *request, const double *absolute, float *out) {
    const openpi_policy *policy = request_policy(request);
    const lerobot *p = &policy->pipeline;
    double actions[DIMS];
    if (policy->lerobot) {
        const float *state = request_lerobot_reference(request);
        for (int d = 0; d < policy->action_dim; d++)
            out[d] = p->relative[d] ? (float)absolute[d] - state[d] : (float)absolute[d];
        for (int i = 0; i < p->after_count; i++)
            if (p->after[i].kind == LEROBOT_UNNORMALIZE)
                normalize_lerobot(&p->after[i].norm, out, policy->action_dim);
        return;
    }
    memcpy(actions, absolute, sizeof actions);
    for (int d = 0; d < policy->robot.delta_count; d++)
        if (policy->robot.delta[d]) actions[d] -= request_reference(request)[d];
    int known = policy->actions.dims < policy->action_dim ? policy->actions.dims : policy->action_dim;
    normalize_openpi(policy->mode, &policy->actions, actions, known);
    for (int d = 0; d < policy->action_dim; d++) out[d] = (float)actions[d];
}

/* ---- chunks --------------------------------------------------------------------------------------- */

static openpi_status check_call(const char *what, const openpi_request *request, const void *in,
                                const void *out, int horizon, openpi_error *error) {
    if (!request || !in || !out)
        return report(error, OPENPI_BAD_ARGUMENT, "request %s: %s is NULL", what,
                      !request ? "the request" : in ? "the output" : "the chunk");
    if (!request_reference(request))
        return report(error, OPENPI_BAD_ARGUMENT, "request %s: nothing was prepared, or preparing failed",
                      what);
    if (horizon >= 1 && horizon <= OPENPI_MAX_HORIZON) return OPENPI_OK;
    return report(error, OPENPI_BAD_ARGUMENT, "request %s: horizon is %d, expected 1 to %d", what, horizon,
                  OPENPI_MAX_HORIZON);
}

static openpi_status check_capacity(const char *what, size_t capacity, int rows, int dims,
                                    openpi_error *error) {
    size_t needed = (size_t)rows * (size_t)dims;
    if (capacity >= needed) return OPENPI_OK;
    return report(error, OPENPI_BAD_ARGUMENT, "%s holds %zu numbers, expected %zu: %d steps times %d", what,
                  capacity, needed, rows, dims);
}

static openpi_status check_number(const char *what, double x, int step, int dim, openpi_error *error) {
    if (isfinite(x)) return OPENPI_OK;
    return report(error, OPENPI_BAD_INPUT, "%s of step %d, dimension %d is %g, expected a finite number",
                  what, step, dim, isnan(x) ? (double)NAN : x);
}

openpi_status openpi_request_keep(const openpi_request *request, const float *model_actions, int horizon,
                                  double *kept, size_t capacity, openpi_error *error) {
    double own[OPENPI_MAX_HORIZON * DIMS] = {0};
    TRY(check_call("keep", request, model_actions, kept, horizon, error));
    TRY(check_capacity("kept", capacity, horizon, DIMS, error));
    const openpi_policy *policy = request_policy(request);
    int relative = is_relative(policy);
    for (int h = 0; h < horizon; h++) {
        const float *model = model_actions + h * DIMS;
        double *out = own + h * DIMS;
        for (int d = 0; d < DIMS; d++) {
            TRY(check_number("the model's action", (double)model[d], h, d, error));
            if (!relative) out[d] = (double)model[d];
        }
        if (relative) to_absolute(request, model, out);
        for (int d = 0; d < DIMS; d++) TRY(check_number("the absolute action", out[d], h, d, error));
    }
    memcpy(kept, own, (size_t)horizon * DIMS * sizeof *kept);
    return OPENPI_OK;
}

openpi_status openpi_request_previous(const openpi_request *request, const double *kept, int horizon,
                                      int executed, float *previous, size_t capacity, int *rows, int *dims,
                                      openpi_error *error) {
    float own[OPENPI_MAX_HORIZON * DIMS];
    TRY(check_call("previous", request, kept, rows && dims ? previous : NULL, horizon, error));
    if (executed < 0 || executed >= horizon)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "request previous: %d steps are executed, expected 0 to %d (the chunk has %d)",
                      executed, horizon - 1, horizon);
    const openpi_policy *policy = request_policy(request);
    int left = horizon - executed, n = policy->action_dim, relative = is_relative(policy);
    TRY(check_capacity("previous", capacity, left, n, error));
    for (int r = 0; r < left; r++) {
        const double *from = kept + (executed + r) * DIMS;
        float *to = own + r * n;
        for (int d = 0; d < n; d++) to[d] = (float)from[d];
        if (relative) to_relative(request, from, to);
        for (int d = 0; d < n; d++)
            TRY(check_number("the previous action", (double)to[d], executed + r, d, error));
    }
    memcpy(previous, own, (size_t)left * (size_t)n * sizeof *previous);
    *rows = left;
    *dims = n;
    return OPENPI_OK;
}
