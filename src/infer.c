/* The whole journey of one request: observation -> sample -> model -> robot actions. Also what needs every
 * layer at once: the list of devices. */
#include "backend/backend.h"
#include "base/clock.h"
#include "base/report.h"
#include "openpi_internal.h"

int openpi_devices(openpi_device *devices, int capacity) {
    int count = 0;
    for (int i = 0; backends[i]; i++) {
        int room = count < capacity ? capacity - count : 0;
        count += backends[i]->devices(room ? devices + count : NULL, room);
    }
    return count;
}

openpi_status openpi_policy_infer(openpi_request *request, openpi_session *session, const openpi_observation *observation,
                                  const float *noise, double *actions, openpi_timing *timing, openpi_error *error) {
    float model_actions[OPENPI_MAX_HORIZON * OPENPI_ACTION_DIM];
    openpi_timing prepared = {0}, ran = {0};
    double start = clock_ms();
    if (!session || !request || !actions)
        return report(error, OPENPI_BAD_ARGUMENT, "policy infer: %s is NULL",
                      !session   ? "the session"
                      : !request ? "the request"
                                 : "actions");
    TRY(openpi_request_prepare(request, observation, &prepared, error));
    TRY(openpi_session_run(session, openpi_request_sample(request), 1, noise, model_actions, &ran, error));
    double finish = clock_ms();
    TRY(openpi_request_finish(request, model_actions, session->options.horizon, actions, error));
    double end = clock_ms();
    if (timing) {
        *timing = ran;
        timing->stage_ms[OPENPI_STAGE_PICTURE] = prepared.stage_ms[OPENPI_STAGE_PICTURE];
        timing->stage_ms[OPENPI_STAGE_PROMPT] = prepared.stage_ms[OPENPI_STAGE_PROMPT];
        timing->stage_ms[OPENPI_STAGE_ACTIONS] = end - finish;
        timing->total_ms = end - start;
    }
    return OPENPI_OK;
}
