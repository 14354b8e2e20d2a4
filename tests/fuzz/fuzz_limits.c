/* Limits of a robot's actions (policy/limits.h): any limits, any actions, also NaN and infinite ones. What
 * may be sent is finite, within every limit, and as it came where nothing is counted as changed. The input: a
 * byte that says what happens beyond a limit and what is given, one with the number of dimensions, then
 * floats. */
#include <math.h>
#include <string.h>

#include "fuzz.h"
#include "policy/limits.h"

enum { STEPS = 6 };

typedef struct reader {
    const uint8_t *data;
    size_t left;
} reader;

static double next(reader *r, double otherwise) {
    float value;
    if (r->left < sizeof value) return otherwise;
    memcpy(&value, r->data, sizeof value);
    r->data += sizeof value;
    r->left -= sizeof value;
    return (double)value;
}

/* As a robot's file may have them: no NaN, differences above 0, min not above max. */
static void read_limits(reader *r, limits *l, int dims, int verb) {
    limits_clear(l, dims);
    l->on_violation = (limits_verb)verb;
    for (int i = 0; i < dims; i++) {
        double a = next(r, NAN), b = next(r, NAN), step = fabs(next(r, NAN)), start = fabs(next(r, NAN));
        if (!isnan(a) && !isnan(b)) l->min[i] = fmin(a, b), l->max[i] = fmax(a, b);
        if (step > 0) l->max_step[i] = step;
        if (start > 0) l->max_start_jump[i] = start;
    }
    l->count = 1;
}

/* Roundings of a difference are no violation. */
static int near(double difference, double limit, double size) {
    return !(difference > limit + 1e-12 * (size + limit));
}

static void must_be_within(const limits *l, const double *before, const double *row) {
    for (int i = 0; i < l->dims; i++) {
        PROMISE(isfinite(row[i]) && row[i] >= l->min[i] && row[i] <= l->max[i]);
        if (before) PROMISE(near(fabs(row[i] - before[i]), l->max_step[i], fabs(row[i]) + fabs(before[i])));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    double previous[LIMITS_DIMS], start[LIMITS_DIMS], came[STEPS * LIMITS_DIMS], sent[STEPS * LIMITS_DIMS];
    limits l;
    limits_report report;
    if (size < 2) return 0;
    reader r = {data + 2, size - 2};
    int dims = 1 + data[1] % LIMITS_DIMS, verb = data[0] % 3, with = data[0] / 3;
    read_limits(&r, &l, dims, verb);
    for (int i = 0; i < dims; i++) previous[i] = next(&r, 0), start[i] = next(&r, NAN);
    for (int i = 0; i < STEPS * dims; i++) sent[i] = came[i] = next(&r, 0.5 * i);
    const double *before = with & 1 ? previous : NULL;
    if (!limits_apply(&l, before, with & 2 ? start : NULL, sent, STEPS, &report)) {
        char text[256];
        PROMISE(report.stop != LIMITS_SENT && limits_describe(&report, text, sizeof text) == text);
        return 0;
    }
    int changed = 0;
    for (int s = 0; s < STEPS; s++) {
        must_be_within(&l, s ? sent + (s - 1) * dims : before, sent + s * dims);
        for (int i = 0; i < dims; i++) changed += sent[s * dims + i] != came[s * dims + i];
    }
    PROMISE(changed == report.changed && report.held <= STEPS);
    return 0;
}
