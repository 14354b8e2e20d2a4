/* See rtc.h. */
#include "rtc.h"

#include "serve/small/fail.h"

rtc_offer rtc_offered(const openpi_engine_info *engine, const openpi_session_info *session) {
    int trained = engine->rtc_max_delay > 0 && engine->rtc_mode == OPENPI_RTC_TRAINED;
    return (rtc_offer){.horizon = session->horizon,
                       .max_delay = engine->rtc_max_delay,
                       .max_weight = engine->rtc_max_weight,
                       .steps = session->steps,
                       .mode = trained ? OPENPI_RTC_TRAINED : OPENPI_RTC_GUIDED};
}

/* What the engine would refuse, and with it the whole batch. */
static openpi_status check(const rtc_offer *offer, const openpi_rtc *rtc, openpi_error *error) {
    int trained = rtc->mode == OPENPI_RTC_TRAINED, most = offer->horizon - 1;
    if (rtc->mode == OPENPI_RTC_VJP)
        return fail(error, OPENPI_UNSUPPORTED,
                    "\"openpi/rtc/mode\" of the request is vjp, which needs a backward pass that openpi does "
                    "not have, expected guided%s", offer->max_delay ? " or trained" : "");
    if (trained && !offer->max_delay)
        return fail(error, OPENPI_UNSUPPORTED,
                    "\"openpi/rtc/mode\" of the request is trained, but the checkpoint was not trained for "
                    "it, expected guided");
    if (trained && rtc->delay > offer->max_delay)
        return fail(error, OPENPI_BAD_INPUT,
                    "\"openpi/rtc/delay\" of the request is %d, expected 0 to %d: the checkpoint was trained "
                    "for no more", rtc->delay, offer->max_delay);
    if (rtc->delay > most)
        return fail(error, OPENPI_BAD_INPUT,
                    "\"openpi/rtc/delay\" of the request is %d, expected 0 to %d: the chunk has %d steps",
                    rtc->delay, most, offer->horizon);
    if (rtc->horizon > offer->horizon)
        return fail(error, OPENPI_BAD_INPUT,
                    "\"openpi/rtc/horizon\" of the request is %d, expected 1 to %d: the chunk has %d steps",
                    rtc->horizon, offer->horizon, offer->horizon);
    return OPENPI_OK;
}

/* As the request and the checkpoint say, without what is left of a chunk. */
static openpi_rtc asked(const rtc_offer *offer, const openpi_extras *extras) {
    openpi_rtc rtc = OPENPI_RTC_INIT;
    rtc.mode = extras->rtc_mode ? extras->rtc_mode : offer->mode;
    rtc.delay = extras->rtc_delay;
    rtc.schedule = extras->rtc_schedule;
    rtc.horizon = extras->rtc_horizon;
    rtc.max_weight = extras->rtc_max_weight;
    return rtc;
}

openpi_status rtc_check(const rtc_offer *offer, const openpi_extras *extras, openpi_error *error) {
    openpi_rtc rtc = asked(offer, extras);
    return extras->rtc ? check(offer, &rtc, error) : OPENPI_OK;
}

openpi_status rtc_prepare(const rtc_offer *offer, const openpi_extras *extras, job *job,
                          openpi_error *error) {
    int executed = extras->rtc_executed, left = offer->horizon - executed;
    job->rtc = (openpi_rtc)OPENPI_RTC_INIT;
    job->rtc_weight = 0;
    job->rtc_asked = extras->rtc;
    if (!extras->rtc) return OPENPI_OK;
    if (job->snapshot) job->snapshot->executed = executed;
    openpi_rtc rtc = asked(offer, extras);
    if (!job->last || job->last_model != job->model_number || left <= 0) return OPENPI_OK;
    if (rtc.mode == OPENPI_RTC_TRAINED && (!rtc.delay || rtc.delay > left)) return OPENPI_OK;
    SERVE_TRY(openpi_request_previous(job->request, job->last, offer->horizon, executed, job->previous,
                                      (size_t)offer->horizon * OPENPI_ACTION_DIM, &rtc.rows, &rtc.dims,
                                      error));
    rtc.previous = job->previous;
    job->rtc = rtc;
    double weight = rtc.max_weight > 0 ? rtc.max_weight : offer->max_weight;
    if (rtc.mode == OPENPI_RTC_GUIDED && weight > offer->steps) job->rtc_weight = offer->steps;
    return OPENPI_OK;
}
