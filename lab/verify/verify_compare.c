/* Comparisons of what was computed with a golden: distances, and exact ones that name the first element that
 * differs. */
#include <inttypes.h>
#include <math.h>

#include "lab/verify/eight_bits.h"
#include "lab/verify/verify_case.h"
#include "openpi_internal.h"

void distance_add(distance *d, double got, double expected) {
    double off = fabs(got - expected);
    if (isnan(off)) off = INFINITY;
    if (off > d->max || !d->count) {
        d->max = off;
        d->worst = d->count;
    }
    d->sum += off * off;
    d->count++;
}

double distance_rms(const distance *d) { return d->count ? sqrt(d->sum / (double)d->count) : 0; }

/* The distances of a bf16 model from its fp32 are close to normal values (in all goldens their fourth moment
 * is 2.7 to 4.2 squares of the second, 3 for normal ones), but those of a row belong together: mean squares
 * of rows scatter as if four values were one. So the logarithm of an rms of n values scatters by √(2/n), that
 * of the ratio of two by 2/√n, of which three are allowed. The largest of n normal values is beyond q of
 * their rms once in 10,000 where n·erfc(q/√2) = 0.0001. */
void distance_bounds(const distance *d, double rms_factor, double max_factor, double *bound_max,
                     double *bound_rms) {
    double n = d->count ? (double)d->count : 1, low = 0, high = 10;
    *bound_rms = fmax(rms_factor, exp(6 / sqrt(n))) * distance_rms(d);
    for (int i = 0; i < 50; i++) {
        double q = (low + high) / 2;
        if (n * erfc(q / sqrt(2)) > 1e-4) low = q;
        else high = q;
    }
    *bound_max = fmax(max_factor * d->max, high * *bound_rms);
}

void case_actions(verify_case *c, const char *what, const distance *d, double bound_max, double bound_rms) {
    double rms = distance_rms(d);
    if (!(c->row.max >= d->max)) c->row.max = d->max;
    if (!(c->row.rms >= rms)) c->row.rms = rms;
    c->row.bound_max = bound_max;
    c->row.bound_rms = bound_rms;
    if (!(d->max <= bound_max))
        case_fail(c, "%s: element %" PRId64 " is off by %.2e, allowed %.2e", what, d->worst, d->max,
                  bound_max);
    if (bound_rms > 0 && !(rms <= bound_rms))
        case_fail(c, "%s: rms %.2e, allowed %.2e", what, rms, bound_rms);
}

action_bounds case_bounds(const verify_case *c, const openpi_engine *engine, double f32, const float *truth,
                          const float *noise, size_t count) {
    action_bounds bounds = {.max = 0.08, .rms = 0.012};
    int eight_bits = eight_bits_widen(engine->model, truth, noise, count, &bounds.max, &bounds.rms);
    return eight_bits || c->options->dtype != OPENPI_F32 ? bounds : (action_bounds){.max = f32};
}

void case_same_i32(verify_case *c, const char *what, const int32_t *got, const int32_t *expected,
                   int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (got[i] != expected[i]) {
            case_fail(c, "%s: element %" PRId64 " is %d, expected %d", what, i, (int)got[i],
                      (int)expected[i]);
            return;
        }
}

void case_same_u8(verify_case *c, const char *what, const uint8_t *got, const uint8_t *expected,
                  int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (got[i] != expected[i]) {
            case_fail(c, "%s: element %" PRId64 " is %d, expected %d", what, i, got[i], expected[i]);
            return;
        }
}

void case_same_f32(verify_case *c, const char *what, const float *got, const float *expected, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (!(got[i] == expected[i])) {
            case_fail(c, "%s: element %" PRId64 " is %.9g, expected %.9g", what, i, (double)got[i],
                      (double)expected[i]);
            return;
        }
}

void case_near(verify_case *c, const char *what, const double *got, const double *expected, int64_t count,
               double bound) {
    for (int64_t i = 0; i < count; i++)
        if (!(fabs(got[i] - expected[i]) <= bound * fmax(1, fabs(expected[i])))) {
            case_fail(c, "%s: element %" PRId64 " is %.17g, expected %.17g within %g", what, i, got[i],
                      expected[i], bound);
            return;
        }
}

void case_prompt(verify_case *c, const char *what, const int32_t *ids, int count, const int32_t *tokens,
                 const uint8_t *mask, int length) {
    int valid = 0;
    while (valid < length && mask[valid] == 1) valid++;
    for (int i = 0; i < length; i++) {
        if (mask[i] != (i < valid)) case_fail(c, "%s: the golden's mask has a hole at token %d", what, valid);
        if (i >= valid && tokens[i])
            case_fail(c, "%s: the golden's padding has id %d at %d", what, (int)tokens[i], i);
    }
    for (int i = 0; i < valid && i < count; i++)
        if (ids[i] != tokens[i]) {
            case_fail(c, "%s: token %d is %d, expected %d", what, i, (int)ids[i], (int)tokens[i]);
            return;
        }
    if (count != valid) case_fail(c, "%s: %d tokens, expected %d", what, count, valid);
}
