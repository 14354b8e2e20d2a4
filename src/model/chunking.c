/* Real-time chunking (LeRobot policies/rtc/modeling_rtc.py; policies/pi05/modeling_pi05.py).
 *
 *   guided   rows of the new chunk are pulled towards the previous one, by a weight a row and a gain a step
 *   trained  the first rows are the previous chunk's, which no step changes (row_set.known)
 */
#include "model/chunking.h"

#include <math.h>
#include <string.h>

#include "base/boundary.h"
#include "base/finite.h"
#include "base/report.h"

enum { DIMS = OPENPI_ACTION_DIM };
static const double E = 2.718281828459045;

/* ---- checking --------------------------------------------------------------------------------------- */

static openpi_status in_range(const char *what, int value, int low, int high, int b, openpi_error *error) {
    if (value >= low && value <= high) return OPENPI_OK;
    return report(error, OPENPI_BAD_INPUT, "sample %d: rtc %s is %d, expected %d to %d", b, what, value, low,
                  high);
}

static openpi_status check_mode(const checkpoint *c, const openpi_rtc *rtc, int b, openpi_error *error) {
    switch (rtc->mode) {
    case OPENPI_RTC_OFF:
    case OPENPI_RTC_GUIDED: return OPENPI_OK;
    case OPENPI_RTC_TRAINED:
        if (c->rtc.max_delay) return OPENPI_OK;
        return report(error, OPENPI_UNSUPPORTED,
                      "sample %d: rtc mode is trained, but %s was not trained for it (its config.json has no "
                      "\"rtc_training_max_delay\" above 0); guided runs with any checkpoint",
                      b, c->name);
    case OPENPI_RTC_VJP:
        return report(error, OPENPI_UNSUPPORTED,
                      "sample %d: rtc mode is vjp, which needs the denoiser's Jacobian, a backward pass that "
                      "this engine does not have; expected guided or trained",
                      b);
    }
    return report(error, OPENPI_BAD_INPUT,
                  "sample %d: rtc mode is %d, expected OPENPI_RTC_OFF, OPENPI_RTC_GUIDED or "
                  "OPENPI_RTC_TRAINED",
                  b, (int)rtc->mode);
}

static openpi_status check_previous(const openpi_rtc *rtc, int horizon, int b, openpi_error *error) {
    if (!rtc->previous)
        return report(error, OPENPI_BAD_INPUT, "sample %d: rtc previous is NULL, expected the previous chunk",
                      b);
    TRY(in_range("rows", rtc->rows, 1, horizon, b, error));
    TRY(in_range("dims", rtc->dims, 1, DIMS, b, error));
    size_t count = (size_t)rtc->rows * (size_t)rtc->dims, i = 0;
    if (all_finite_f32(rtc->previous, count)) return OPENPI_OK;
    while (isfinite(rtc->previous[i])) i++;
    return report(error, OPENPI_BAD_INPUT,
                  "sample %d: rtc previous, row %d, dimension %d is %g, expected a finite number", b,
                  (int)i / rtc->dims, (int)i % rtc->dims, (double)rtc->previous[i]);
}

static openpi_status take_trained(const checkpoint *c, int horizon, openpi_rtc *rtc, int b,
                                  openpi_error *error) {
    if (rtc->delay > c->rtc.max_delay)
        return report(error, OPENPI_BAD_INPUT,
                      "sample %d: rtc delay is %d, but %s was trained for at most %d", b, rtc->delay, c->name,
                      c->rtc.max_delay);
    if (!rtc->delay) {
        rtc->mode = OPENPI_RTC_OFF;
        return OPENPI_OK;
    }
    TRY(check_previous(rtc, horizon, b, error));
    if (rtc->rows >= rtc->delay) return OPENPI_OK;
    return report(error, OPENPI_BAD_INPUT,
                  "sample %d: rtc previous has %d rows, but the delay is %d, expected at least as many rows",
                  b, rtc->rows, rtc->delay);
}

static openpi_status take_guided(const checkpoint *c, int horizon, openpi_rtc *rtc, int b,
                                 openpi_error *error) {
    TRY(check_previous(rtc, horizon, b, error));
    if ((unsigned)rtc->schedule > OPENPI_RTC_EXP)
        return report(error, OPENPI_BAD_INPUT,
                      "sample %d: rtc schedule is %d, expected OPENPI_RTC_ZEROS, OPENPI_RTC_ONES, "
                      "OPENPI_RTC_LINEAR or OPENPI_RTC_EXP",
                      b, (int)rtc->schedule);
    if (!isfinite(rtc->max_weight) || rtc->max_weight < 0)
        return report(error, OPENPI_BAD_INPUT,
                      "sample %d: rtc max_weight is %g, expected a finite number of at least 0", b,
                      rtc->max_weight);
    TRY(in_range("horizon", rtc->horizon, 0, horizon, b, error));
    if (!rtc->schedule) rtc->schedule = c->rtc.schedule;
    if (!rtc->horizon) rtc->horizon = c->rtc.horizon;
    if (rtc->max_weight == 0) rtc->max_weight = c->rtc.max_weight;
    if (rtc->horizon > rtc->rows) rtc->horizon = rtc->rows;
    return OPENPI_OK;
}

openpi_status chunking_take(const checkpoint *c, int horizon, const openpi_rtc *given, int b, openpi_rtc *out,
                            openpi_error *error) {
    *out = (openpi_rtc)OPENPI_RTC_INIT;
    if (!given) return OPENPI_OK;
    TRY(BOUNDARY_TAKE_AT(openpi_rtc, given, b, out, error));
    TRY(check_mode(c, out, b, error));
    if (out->mode == OPENPI_RTC_OFF) return OPENPI_OK;
    TRY(in_range("delay", out->delay, 0, horizon - 1, b, error));
    if (out->mode == OPENPI_RTC_TRAINED) return take_trained(c, horizon, out, b, error);
    return take_guided(c, horizon, out, b, error);
}

plan_kind chunking_plan(const openpi_rtc *rtc, int batch) {
    plan_kind kind = PLAN_ORDINARY;
    for (int b = 0; b < batch; b++) {
        plan_kind needs = rtc[b].mode == OPENPI_RTC_TRAINED  ? PLAN_TRAINED
                          : rtc[b].mode == OPENPI_RTC_GUIDED ? PLAN_GUIDED
                                                             : PLAN_ORDINARY;
        if (needs > kind) kind = needs;
    }
    return kind;
}

int chunking_known(const openpi_rtc *rtc) { return rtc->mode == OPENPI_RTC_TRAINED ? rtc->delay : 0; }

/* ---- formulas --------------------------------------------------------------------------------------- */

static float faded(openpi_rtc_schedule schedule, int k, int start, int end) {
    float u = 1 - (float)(k - start + 1) / (float)(end - start + 1);
    switch (schedule) {
    case OPENPI_RTC_ONES: return 1;
    case OPENPI_RTC_LINEAR: return u;
    case OPENPI_RTC_EXP: return u * (expm1f(u) / (float)(E - 1));
    default: return 0;
    }
}

void chunking_weights(openpi_rtc_schedule schedule, int delay, int end, int horizon, float *weights) {
    int start = delay < end ? delay : end;
    for (int k = 0; k < horizon; k++)
        weights[k] = k < start ? 1 : k < end ? faded(schedule, k, start, end) : 0;
}

/* At τ = 0 the first factor is infinite. */
double chunking_gain(double t, double max_weight, int steps) {
    double tau = 1 - t, left = t * t, gain = tau > 0 ? t / tau * ((left + tau * tau) / left) : HUGE_VAL;
    return fmin(fmin(gain, max_weight), steps);
}

/* ---- a call's inputs -------------------------------------------------------------------------------- */

/* Row k of the previous chunk, zeros after it. */
static void previous_row(const openpi_rtc *rtc, int k, float *out) {
    int dims = k < rtc->rows ? rtc->dims : 0;
    if (dims) memcpy(out, rtc->previous + (size_t)k * (size_t)rtc->dims, (size_t)dims * sizeof *out);
    memset(out + dims, 0, (size_t)(DIMS - dims) * sizeof *out);
}

/* x, target and weight: of the sample's rows. */
static void fill_sample(int horizon, const openpi_rtc *rtc, float *x, float *target, float *weight) {
    memset(weight, 0, (size_t)horizon * sizeof *weight);
    if (rtc->mode == OPENPI_RTC_GUIDED)
        chunking_weights(rtc->schedule, rtc->delay, rtc->horizon, horizon, weight);
    for (int k = 0; k < horizon; k++) {
        if (k < chunking_known(rtc)) previous_row(rtc, k, x + (size_t)k * DIMS);
        if (weight[k] != 0) previous_row(rtc, k, target + (size_t)k * DIMS);
    }
}

void chunking_fill(const plan *plan, plan_inputs *in, const openpi_rtc *rtc, int batch) {
    size_t horizon = (size_t)plan->shape.horizon;
    for (size_t b = 0; b < (size_t)batch; b++) {
        size_t row = b * horizon;
        fill_sample((int)horizon, &rtc[b], in->x_t + row * DIMS, in->target + row * DIMS, in->weight + row);
        for (int step = 0; step < plan->shape.steps; step++)
            in->gain[step * plan->shape.batch + (int)b] =
                (float)(chunking_gain(plan->times[step], rtc[b].max_weight, plan->shape.steps) *
                        -(double)plan->dt);
    }
}
