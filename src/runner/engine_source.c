/* See engine_source.h. */
#include "runner/engine_source.h"

#include <stdlib.h>

#include "base/boundary.h"
#include "base/report.h"

enum { NUMBERS = OPENPI_MAX_HORIZON * OPENPI_ACTION_DIM };

typedef struct engine_chunks {
    openpi_session *session;
    openpi_request *request;
    openpi_rtc_mode mode;
    int horizon, dims, max_delay;
    int has_kept;                /* 1: `kept` is the last chunk                                           */
    double kept[NUMBERS];
    float model[NUMBERS], previous[NUMBERS];
} engine_chunks;

static void close_chunks(void *user) {
    engine_chunks *e = user;
    openpi_request_close(e->request);
    openpi_session_close(e->session);
    free(e);
}

/* What is left of the last chunk for the prepared observation; OFF where nothing leads. */
static openpi_status follow(engine_chunks *e, const openpi_chunk_call *call, openpi_rtc *rtc,
                            openpi_error *error) {
    int left = e->horizon - call->executed, delay = call->delay;
    *rtc = (openpi_rtc)OPENPI_RTC_INIT;
    if (!e->mode || !call->follows || !e->has_kept || left <= 0) return OPENPI_OK;
    if (e->mode == OPENPI_RTC_TRAINED && delay > e->max_delay) delay = e->max_delay;
    if (delay > left) delay = left;
    if (delay > e->horizon - 1) delay = e->horizon - 1;
    TRY(openpi_request_previous(e->request, e->kept, e->horizon, call->executed, e->previous, NUMBERS,
                                &rtc->rows, &rtc->dims, error));
    rtc->mode = e->mode;
    rtc->delay = delay;
    rtc->previous = e->previous;
    return OPENPI_OK;
}

static openpi_status run(engine_chunks *e, const openpi_chunk_call *call, openpi_error *error) {
    openpi_sample sample = OPENPI_SAMPLE_INIT;
    openpi_rtc rtc = OPENPI_RTC_INIT;
    TRY(openpi_request_sample(e->request, &sample, error));
    TRY(follow(e, call, &rtc, error));
    if (rtc.mode) return openpi_session_run_rtc(e->session, &sample, &rtc, 1, NULL, e->model, NULL, error);
    return openpi_session_run(e->session, &sample, 1, NULL, e->model, NULL, error);
}

static openpi_status infer(void *user, const openpi_chunk_call *call, openpi_chunk *chunk,
                           openpi_error *error) {
    engine_chunks *e = user;
    TRY(openpi_request_prepare(e->request, call->observation, NULL, error));
    TRY(run(e, call, error));
    e->has_kept = 0;
    TRY(openpi_request_finish(e->request, e->model, e->horizon, chunk->actions, NUMBERS, error));
    if (e->mode) TRY(openpi_request_keep(e->request, e->model, e->horizon, e->kept, NUMBERS, error));
    e->has_kept = e->mode != OPENPI_RTC_OFF;
    chunk->rows = e->horizon;
    for (int a = 0; a < e->dims; a++) chunk->start[a] = openpi_request_action_start(e->request, a);
    return OPENPI_OK;
}

static openpi_status open_chunks(engine_chunks *e, openpi_engine *engine, const openpi_policy *policy,
                                 const openpi_session_options *session, openpi_error *error) {
    openpi_session_options options;
    openpi_session_info about = OPENPI_SESSION_INFO_INIT;
    openpi_engine_info model = OPENPI_ENGINE_INFO_INIT;
    openpi_policy_info robot = OPENPI_POLICY_INFO_INIT;
    TRY(BOUNDARY_TAKE(openpi_session_options, session, &options, error));
    TRY(openpi_engine_get_info(engine, &model, error));
    TRY(openpi_policy_get_info(policy, &robot, error));
    if (e->mode == OPENPI_RTC_TRAINED && !model.rtc_max_delay)
        return report(error, OPENPI_UNSUPPORTED,
                      "the runner's option rtc is trained, but the checkpoint was not trained for it, "
                      "expected guided");
    options.rtc = e->mode != OPENPI_RTC_OFF;
    if (!options.horizon) options.horizon = robot.horizon;
    if (!options.max_prompt) options.max_prompt = robot.max_prompt;
    TRY(openpi_session_create(engine, &options, &e->session, error));
    TRY(openpi_policy_match(policy, e->session, error));
    TRY(openpi_request_create(policy, &e->request, error));
    TRY(openpi_session_get_info(e->session, &about, error));
    openpi_request_borrow(e->request, 1);
    e->horizon = about.horizon;
    e->dims = robot.action_dim;
    e->max_delay = model.rtc_max_delay;
    return OPENPI_OK;
}

openpi_status engine_source(openpi_engine *engine, const openpi_policy *policy,
                            const openpi_session_options *session, openpi_rtc_mode mode,
                            openpi_source *source, openpi_error *error) {
    engine_chunks *e = calloc(1, sizeof *e);
    if (!e) return report_no_memory(error, sizeof *e, "a runner's chunks");
    e->mode = mode;
    openpi_status status = open_chunks(e, engine, policy, session, error);
    if (status != OPENPI_OK) {
        close_chunks(e);
        return status;
    }
    *source = (openpi_source){.size = sizeof *source, .user = e, .infer = infer, .close = close_chunks};
    return OPENPI_OK;
}
