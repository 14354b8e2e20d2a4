/* See arm.h. */
#include "runner/arm.h"

#include <math.h>
#include <string.h>

#include "base/ascii.h"
#include "base/report.h"
#include "policy/policy.h"

enum {
    DEFAULT_BLEND = 5, DEFAULT_DECELERATE = 5, DEFAULT_ASK_AFTER = 5, DEFAULT_AGE_MS = 500,
    DEFAULT_FROZEN = 10, MOST_CALLS = 1000,
};

static void take_limits(arm *arm) {
    if (arm->has_record && arm->record.limits.count) arm->limits = arm->record.limits;
    else limits_clear(&arm->limits, arm->dims);
}

void arm_of_policy(const openpi_policy *policy, arm *out) {
    memset(out, 0, sizeof *out);
    out->dims = policy->action_dim;
    out->rate_hz = openpi_policy_rate(policy);
    out->has_record = !policy->lerobot;
    if (out->has_record) out->record = policy->robot;
    ascii_print(out->name, sizeof out->name, "%s",
                policy->lerobot ? "the checkpoint's robot" : policy->robot.name);
    for (int a = 0; a < out->dims; a++) out->kinds[a] = openpi_policy_action_kind(policy, a);
    take_limits(out);
}

openpi_status arm_of_robot(const char *robot, arm *out, openpi_error *error) {
    if (!robot)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "the runner's option robot is NULL, expected a robot's name or JSON file: it says how "
                      "many "
                      "numbers an action has");
    memset(out, 0, sizeof *out);
    TRY(robot_open(robot, &out->record, error));
    out->has_record = 1;
    out->dims = out->record.action_dim;
    out->rate_hz = out->record.rate_hz;
    memcpy(out->name, out->record.name, sizeof out->name);
    for (int a = 0; a < out->dims; a++) out->kinds[a] = robot_kind(&out->record, a);
    take_limits(out);
    return OPENPI_OK;
}

void arm_starts(const arm *arm, const double *state, int length, double *out) {
    for (int a = 0; a < arm->dims; a++) {
        int at = arm->has_record ? robot_start_state(&arm->record, a) : -1;
        out[a] = at >= 0 && at < length ? robot_start_value(&arm->record, a, state) : NAN;
    }
}

/* ---- options --------------------------------------------------------------------------------------- */

static openpi_status range(const char *name, int *value, int otherwise, int least, int most,
                           openpi_error *error) {
    if (!*value) *value = otherwise;
    if (*value >= least && *value <= most) return OPENPI_OK;
    return report(error, OPENPI_BAD_ARGUMENT, "the runner's option %s is %d, expected %d to %d", name,
                  *value, least, most);
}

static openpi_status duration(const char *name, double *value, double otherwise, openpi_error *error) {
    if (*value == 0) *value = otherwise;               /* NaN is refused below                            */
    if (*value > 0) return OPENPI_OK;
    return report(error, OPENPI_BAD_ARGUMENT, "the runner's option %s is %g ms, expected more than 0", name,
                  *value);
}

static openpi_status check_choices(openpi_runner_options *o, openpi_error *error) {
    if ((unsigned)o->seam > OPENPI_SEAM_APPEND || (unsigned)o->ending > OPENPI_ENDING_STOP ||
        (unsigned)o->kind > OPENPI_ACTION_VELOCITY || (unsigned)o->rtc > OPENPI_RTC_TRAINED)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "the runner's options have seam %d, ending %d, kind %d and rtc %d, expected values of "
                      "their "
                      "enums, and of rtc none, guided or trained",
                      (int)o->seam, (int)o->ending, (int)o->kind, (int)o->rtc);
    if (o->rtc && o->seam == OPENPI_SEAM_APPEND)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "the runner's option seam is append and rtc is on, expected replace or blend: a chunk "
                      "of "
                      "real-time chunking goes on from where it takes over");
    return OPENPI_OK;
}

static openpi_status check_rate(const arm *arm, openpi_runner_options *o, openpi_error *error) {
    if (o->rate_hz == 0) o->rate_hz = arm->rate_hz;
    if (o->rate_hz == 0)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "%s does not say how many steps it makes a second, expected \"rate_hz\" in its file "
                      "or the "
                      "runner's option rate_hz",
                      arm->name);
    if (o->rate_hz > 0 && o->rate_hz <= ROBOT_MAX_RATE) return OPENPI_OK;
    return report(error, OPENPI_BAD_ARGUMENT,
                  "the runner's option rate_hz is %g, expected more than 0 and at most %d", o->rate_hz,
                  ROBOT_MAX_RATE);
}

static openpi_status check_kinds(const arm *arm, const openpi_runner_options *o, schedule_options *out,
                                 openpi_error *error) {
    for (int a = 0; a < arm->dims; a++) {
        openpi_action_kind kind = arm->kinds[a] ? arm->kinds[a] : o->kind;
        if (!kind)
            return report(error, OPENPI_BAD_ARGUMENT,
                          "%s does not say whether action %d is a position or a velocity, and so not how it "
                          "is held "
                          "still: expected \"kinds\" in its file or the runner's option kind",
                          arm->name, a);
        out->velocity[a] = kind == OPENPI_ACTION_VELOCITY;
    }
    return OPENPI_OK;
}

openpi_status arm_schedule(const arm *arm, openpi_runner_options *o, schedule_options *out,
                           openpi_error *error) {
    *out = (schedule_options){.dims = arm->dims, .limits = arm->limits};
    TRY(check_choices(o, error));
    TRY(check_rate(arm, o, error));
    TRY(check_kinds(arm, o, out, error));
    TRY(range("calls_per_step", &o->calls_per_step, 1, 1, MOST_CALLS, error));
    TRY(range("blend_steps", &o->blend_steps, DEFAULT_BLEND, 1, OPENPI_MAX_HORIZON, error));
    TRY(range("decelerate_steps", &o->decelerate_steps, DEFAULT_DECELERATE, 1, OPENPI_MAX_HORIZON, error));
    TRY(range("ask_after", &o->ask_after, DEFAULT_ASK_AFTER, 1, OPENPI_MAX_HORIZON, error));
    TRY(range("frozen_after", &o->frozen_after, DEFAULT_FROZEN, -1, 1 << 20, error));
    TRY(duration("max_age_ms", &o->max_age_ms, DEFAULT_AGE_MS, error));
    TRY(duration("deadline_ms", &o->deadline_ms, OPENPI_MAX_HORIZON * 1000 / o->rate_hz, error));
    if (!(o->retry_ms >= 0))
        return report(error, OPENPI_BAD_ARGUMENT, "the runner's option retry_ms is %g, expected 0 or more",
                      o->retry_ms);
    out->seam = o->seam;
    out->blend_steps = o->seam == OPENPI_SEAM_BLEND ? o->blend_steps : 0;
    out->ending = o->ending;
    out->decelerate_steps = o->decelerate_steps;
    out->calls_per_step = o->calls_per_step;
    out->interpolate = o->interpolate != 0;
    out->max_age = o->max_age_ms;
    out->deadline = o->deadline_ms;
    return OPENPI_OK;
}
