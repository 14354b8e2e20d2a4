/* The whole journey of one request: observation -> sample -> model -> robot actions. The list of devices is
 * here too, because it needs every layer. */
#include "backend/backend.h"
#include "base/boundary.h"
#include "base/clock.h"
#include "base/report.h"
#include "openpi_internal.h"
#include "policy/policy.h"

enum { MOST_DEVICES = 64 };      /* most devices of one backend */

openpi_status openpi_devices(openpi_device *devices, int capacity, int *count, openpi_error *error) {
    openpi_device own[MOST_DEVICES];
    int found = 0;
    if (!count || (!devices && capacity > 0))
        return report(error, OPENPI_BAD_ARGUMENT, "devices: %s is NULL", count ? "the array" : "count");
    if (capacity > 0) TRY(BOUNDARY_CHECK(openpi_device, devices, error));
    for (int i = 0; backends[i]; i++) {
        int here = backends[i]->devices(own, MOST_DEVICES);
        if (here > MOST_DEVICES) here = MOST_DEVICES;
        for (int d = 0; d < here; d++, found++)
            if (found < capacity) BOUNDARY_GIVE_AT(openpi_device, &own[d], devices, found);
    }
    *count = found;
    return OPENPI_OK;
}

/* A policy and a session that do not belong together would compute actions that look plausible and are wrong.
 * A horizon or a prompt length that the caller set is accepted; a default one has to be the policy's. */
openpi_status openpi_policy_match(const openpi_policy *policy, const openpi_session *session,
                                  openpi_error *error) {
    if (!policy || !session)
        return report(error, OPENPI_BAD_ARGUMENT, "policy match: %s is NULL",
                      policy ? "the session" : "the policy");
    const checkpoint *model = session->engine->checkpoint;
    const openpi_session_options *options = &session->options;
    if (policy->variant != model->variant)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "policy infer: the policy is of a %s model, the session's engine runs %s, %s",
                      variant_of(policy->variant)->symbol, variant_of(model->variant)->symbol, model->name);
    if (policy->lerobot_checkpoint != model->lerobot)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "policy infer: the policy was opened for a checkpoint of %s, the session's engine runs "
                      "one of %s, %s",
                      policy->lerobot_checkpoint ? "LeRobot's" : "openpi's",
                      model->lerobot ? "LeRobot's" : "openpi's", model->name);
    if (session->default_horizon && policy->horizon && policy->horizon != options->horizon)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "policy infer: the policy's horizon is %d, the session's is %d by default; set the "
                      "session option horizon",
                      policy->horizon, options->horizon);
    if (session->default_prompt && policy->max_prompt > options->max_prompt)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "policy infer: the policy's prompts have up to %d tokens, the session takes %d by "
                      "default; set the session option max_prompt",
                      policy->max_prompt, options->max_prompt);
    return OPENPI_OK;
}

openpi_status openpi_policy_infer(openpi_request *request, openpi_session *session,
                                  const openpi_observation *observation, const float *noise, double *actions,
                                  size_t capacity, openpi_timing *timing, openpi_error *error) {
    float model_actions[OPENPI_MAX_HORIZON * OPENPI_ACTION_DIM];
    openpi_timing prepared = OPENPI_TIMING_INIT, ran = OPENPI_TIMING_INIT;
    openpi_sample sample = OPENPI_SAMPLE_INIT;
    double start = clock_ms();
    if (!session || !request || !actions)
        return report(error, OPENPI_BAD_ARGUMENT, "policy infer: %s is NULL",
                      !session   ? "the session"
                      : !request ? "the request"
                                 : "actions");
    TRY(BOUNDARY_CHECK(openpi_timing, timing, error));
    TRY(openpi_policy_match(request_policy(request), session, error));
    TRY(request_check_capacity(request, session->options.horizon, capacity, error));
    TRY(openpi_request_prepare(request, observation, &prepared, error));
    TRY(openpi_request_sample(request, &sample, error));
    TRY(openpi_session_run(session, &sample, 1, noise, model_actions, &ran, error));
    double finish = clock_ms();
    TRY(openpi_request_finish(request, model_actions, session->options.horizon, actions, capacity, error));
    double end = clock_ms();
    ran.stage_ms[OPENPI_STAGE_PICTURE] = prepared.stage_ms[OPENPI_STAGE_PICTURE];
    ran.stage_ms[OPENPI_STAGE_PROMPT] = prepared.stage_ms[OPENPI_STAGE_PROMPT];
    ran.stage_ms[OPENPI_STAGE_ACTIONS] = end - finish;
    ran.total_ms = end - start;
    BOUNDARY_GIVE(openpi_timing, &ran, timing);
    return OPENPI_OK;
}
