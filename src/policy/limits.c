/* See limits.h.
 *
 * Note: the limits of a number are an interval each, so "within all of them" is their intersection, and
 * clamping goes to its nearest end: there is no order in which limits are taken. The ends of a difference
 * (the action before, plus or minus max_step) are rounded, and may then be a last bit too far away. Such an
 * end moves inwards until the difference of the numbers that are sent, rounded as a difference of doubles
 * is, is no larger than the limit. */
#include "policy/limits.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "base/ascii.h"

typedef struct interval {
    double low, high;            /* low > high: empty                                                     */
} interval;

void limits_clear(limits *limits, int dims) {
    *limits = (struct limits){.dims = dims};
    for (int d = 0; d < LIMITS_DIMS; d++) {
        limits->min[d] = -INFINITY;
        limits->max[d] = limits->max_step[d] = limits->max_start_jump[d] = INFINITY;
    }
}

/* The numbers whose difference from `center` is no larger than `reach`. */
static interval around(double center, double reach) {
    interval all = {center - reach, center + reach};
    while (center - all.low > reach) all.low = nextafter(all.low, center);
    while (all.high - center > reach) all.high = nextafter(all.high, center);
    return all;
}

/* Of one kind, for dimension d; whole where there is none. */
static interval allowed(const limits *limits, limit_kind kind, int d, const double *previous,
                        const double *start) {
    switch (kind) {
    case LIMIT_MIN: return (interval){limits->min[d], INFINITY};
    case LIMIT_MAX: return (interval){-INFINITY, limits->max[d]};
    case LIMIT_STEP:
        if (previous && isfinite(limits->max_step[d])) return around(previous[d], limits->max_step[d]);
        break;
    case LIMIT_START:
        if (start && isfinite(limits->max_start_jump[d])) return around(start[d], limits->max_start_jump[d]);
        break;
    default: break;
    }
    return (interval){-INFINITY, INFINITY};
}

static double bound_of(const limits *limits, limit_kind kind, int d) {
    const double *const lists[LIMIT_KINDS] = {limits->min, limits->max, limits->max_step,
                                              limits->max_start_jump};
    return lists[kind][d];
}

static void note_first(limits_report *report, int step, int d, double value) {
    if (report->step >= 0) return;
    report->step = step;
    report->dim = d;
    report->value = value;
}

/* Counts the limits that the number is beyond; `fits` becomes what is within all of them. */
static int check_number(const limits *limits, const double *previous, const double *start, double value,
                        int step, int d, interval *fits, limits_report *report) {
    int beyond = 0;
    *fits = (interval){-INFINITY, INFINITY};
    for (int kind = 0; kind < LIMIT_KINDS; kind++) {
        interval one = allowed(limits, (limit_kind)kind, d, previous, start);
        fits->low = fmax(fits->low, one.low);
        fits->high = fmin(fits->high, one.high);
        if (value >= one.low && value <= one.high) continue;
        if (report->step < 0) {
            report->kind = (limit_kind)kind;
            report->limit = bound_of(limits, (limit_kind)kind, d);
            report->from = kind == LIMIT_STEP ? previous[d] : kind == LIMIT_START ? start[d] : 0;
            note_first(report, step, d, value);
        }
        report->beyond[kind]++;
        beyond = 1;
    }
    return beyond;
}

/* A whole action; how many of its numbers are beyond a limit. fits [dims]. */
static int check_action(const limits *limits, const double *previous, const double *start,
                        const double *action, int step, interval *fits, limits_report *report) {
    int beyond = 0;
    for (int d = 0; d < limits->dims; d++)
        beyond += check_number(limits, previous, start, action[d], step, d, &fits[d], report);
    return beyond;
}

static void note_changed(limits_report *report, int step, int changed) {
    report->changed += changed;
    if (changed && step < 64) report->changed_steps |= UINT64_C(1) << step;
}

static int all_finite(const double *action, int step, int dims, limits_report *report) {
    for (int d = 0; d < dims; d++) {
        if (isfinite(action[d])) continue;
        report->stop = LIMITS_NOT_FINITE;
        report->step = -1;
        note_first(report, step, d, action[d]);
        return 0;
    }
    return 1;
}

/* What differences are taken from has to be there, or no difference is known. */
static int all_known(const limits *limits, const double *previous, const double *start,
                     limits_report *report) {
    for (int d = 0; d < limits->dims; d++) {
        int before = !previous || isfinite(previous[d]),
            measured = !start || !isfinite(limits->max_start_jump[d]) || isfinite(start[d]);
        if (before && measured) continue;
        report->stop = LIMITS_UNKNOWN;
        report->kind = before ? LIMIT_START : LIMIT_STEP;
        note_first(report, 0, d, NAN);
        return 0;
    }
    return 1;
}

/* 1: every number has become the nearest one that fits. */
static int clamp(const interval *fits, int dims, double *action, int step, limits_report *report) {
    int changed = 0;
    for (int d = 0; d < dims; d++) {
        double sent = fmin(fmax(action[d], fits[d].low), fits[d].high);
        if (!(fits[d].low <= fits[d].high) || !isfinite(sent)) {
            report->stop = LIMITS_NOTHING_FITS;
            report->step = -1;
            note_first(report, step, d, action[d]);
            report->limit = fits[d].low;
            report->from = fits[d].high;
            return 0;
        }
        changed += sent != action[d];
        action[d] = sent;
    }
    note_changed(report, step, changed);
    return 1;
}

/* 1: actions[step …] have become the action before, which was within all limits. */
static int hold(const limits *limits, const double *previous, const double *start, double *actions, int step,
                int steps, limits_report *report) {
    interval fits[LIMITS_DIMS];
    limits_report own = {.step = -1};
    int dims = limits->dims;
    if (!previous || check_action(limits, previous, start, previous, step, fits, &own)) {
        report->stop = LIMITS_NOTHING_HELD;
        return 0;
    }
    for (int s = step; s < steps; s++) {
        double *action = actions + (size_t)s * (size_t)dims;
        int changed = 0;
        for (int d = 0; d < dims; d++) changed += action[d] != previous[d];
        note_changed(report, s, changed);
        memcpy(action, previous, (size_t)dims * sizeof *action);
    }
    report->held = steps - step;
    return 1;
}

int limits_apply(const limits *limits, const double *previous, const double *start, double *actions,
                 int steps, limits_report *report) {
    interval fits[LIMITS_DIMS];
    *report = (limits_report){.step = -1, .dim = -1};
    for (int s = 0; s < steps; s++)
        if (!all_finite(actions + (size_t)s * (size_t)limits->dims, s, limits->dims, report)) return 0;
    if (!limits->count) return 1;
    if (!all_known(limits, previous, start, report)) return 0;
    for (int s = 0; s < steps; s++) {
        double *action = actions + (size_t)s * (size_t)limits->dims;
        const double *measured = s ? NULL : start;
        if (check_action(limits, previous, measured, action, s, fits, report)) {
            if (limits->on_violation == LIMITS_STOP) report->stop = LIMITS_REFUSED;
            if (limits->on_violation == LIMITS_HOLD)
                return hold(limits, previous, measured, actions, s, steps, report);
            if (report->stop || !clamp(fits, limits->dims, action, s, report)) return 0;
        }
        previous = action;
    }
    return 1;
}

const char *limits_kind_name(limit_kind kind) {
    static const char *const names[LIMIT_KINDS] = {"min", "max", "max_step", "max_start_jump"};
    return names[kind];
}

const char *limits_verb_name(limits_verb verb) {
    static const char *const names[] = {"clamp", "hold", "stop"};
    return names[verb];
}

const char *limits_describe(const limits_report *r, char *out, size_t bytes) {
    const char *name = limits_kind_name(r->kind),
               *held = r->stop == LIMITS_NOTHING_HELD ? ", and no action within the limits was sent before "
                                                        "that could be held"
                                                      : "";
    if (r->stop == LIMITS_NOTHING_FITS)
        ascii_print(out, bytes, "%.9g, and no number is at least %.9g and at most %.9g, as its limits want",
                    r->value, r->limit, r->from);
    else if (r->stop == LIMITS_NOT_FINITE)
        ascii_print(out, bytes, "%f, expected a finite number", r->value);
    else if (r->stop == LIMITS_UNKNOWN)
        ascii_print(out, bytes, "not checked: its %s counts from %s, which is no finite number", name,
                    r->kind == LIMIT_STEP ? "the action before" : "the measured state");
    else if (r->kind == LIMIT_MIN || r->kind == LIMIT_MAX)
        ascii_print(out, bytes, "%.9g, %s the %s of %.9g%s", r->value,
                    r->kind == LIMIT_MIN ? "below" : "above", name, r->limit, held);
    else
        ascii_print(out, bytes, "%.9g, %.9g from %.9g, %s, more than the %s of %.9g%s", r->value,
                    fabs(r->value - r->from), r->from,
                    r->kind == LIMIT_STEP ? "the action before" : "the measured state", name, r->limit, held);
    return out;
}
