/* What the model of a checkpoint answers to one made-up sample, for comparing checkpoints bit by bit. Include
 * after cmocka.h. */
#ifndef TESTS_ACTIONS_H
#define TESTS_ACTIONS_H

#include "held.h"
#include "policy_golden.h"

enum {
    ACTIONS_HORIZON = 3,
    ACTIONS_STEPS = 2,
    ACTIONS_TOKENS = 9,
    ACTIONS = ACTIONS_HORIZON * OPENPI_ACTION_DIM,
    ACTIONS_PICTURE = OPENPI_IMAGE_SIZE * OPENPI_IMAGE_SIZE * 3
};

/* `held`: a folder of which the loaded engine must keep nothing, or NULL. */
static inline void actions_of(const char *checkpoint, openpi_dtype dtype, openpi_weights weights,
                              const scratch *held, float actions[ACTIONS]) {
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    openpi_session_options plan = OPENPI_SESSION_OPTIONS_INIT;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_engine *engine = NULL;
    openpi_session *session = NULL;
    static uint8_t picture[ACTIONS_PICTURE];
    float state[OPENPI_ACTION_DIM], noise[ACTIONS];
    int32_t tokens[ACTIONS_TOKENS];
    for (int i = 0; i < ACTIONS_PICTURE; i++) picture[i] = (uint8_t)(i * 7 + i / 600);
    for (int i = 0; i < OPENPI_ACTION_DIM; i++) state[i] = 0.1f * (float)(i % 7) - 0.3f;
    for (int i = 0; i < ACTIONS_TOKENS; i++) tokens[i] = 31 + 167 * i % 1000;
    openpi_noise(3, 0, noise, ACTIONS);
    options.dtype = dtype;
    options.weights = weights;
    options.threads = 2;
    plan.horizon = ACTIONS_HORIZON, plan.steps = ACTIONS_STEPS, plan.max_prompt = ACTIONS_TOKENS;
    WORKS(openpi_engine_open(checkpoint, &options, &engine, &error));
    if (held) nothing_is_held(held);
    WORKS(openpi_session_create(engine, &plan, &session, &error));
    openpi_sample sample = {.size = sizeof sample,
                            .images = {picture, picture, NULL},
                            .image_mask = {1, 1, 0},
                            .tokens = tokens,
                            .token_count = ACTIONS_TOKENS,
                            .state = state};
    memset(actions, 0, ACTIONS * sizeof *actions);
    WORKS(openpi_session_run(session, &sample, 1, noise, actions, NULL, &error));
    openpi_session_close(session);
    openpi_engine_close(engine);
}

#endif
