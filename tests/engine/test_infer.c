/* labels: threads */
/* A policy and a session that were not made for each other would compute actions that look like any:
 * openpi_policy_infer refuses them, with both sides in the sentence. What a caller may choose is taken. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "policy_golden.h"
#include "structs.h"

enum { DIMS = OPENPI_ACTION_DIM, SIDE = OPENPI_IMAGE_SIZE, STATES = 8 };

#define LENGTH(table) (sizeof(table) / sizeof *(table))

typedef struct pair {
    const char *policy, *robot, *config; /* the policy's synthetic model, robot or config */
    int policy_lerobot, policy_prompt;   /* LeRobot's conventions; its max_prompt, 0: default */
    const char *engine;
    int engine_lerobot, horizon, max_prompt; /* session options, 0: default */
    const char *says;                        /* NULL: runs */
} pair;

static const pair pairs[] = {
    /* variant */
    {.policy = "odd:pi0:4", .robot = "droid", .engine = "odd:pi0:4", .horizon = 3},
    {.policy = "odd:pi05:4", .robot = "droid", .engine = "odd:pi05:4", .horizon = 3},
    {.policy = "odd:pi05:4",
     .robot = "droid",
     .engine = "odd:pi0:4",
     .horizon = 3,
     .max_prompt = 200,
     .says = "the policy is of a π0.5 model, the session's engine runs π0, synthetic odd:pi0:4"},
    {.policy = "odd:pi0:4",
     .robot = "droid",
     .engine = "odd:pi05:4",
     .horizon = 3,
     .says = "the policy is of a π0 model, the session's engine runs π0.5, synthetic odd:pi05:4"},
    /* conventions */
    {.policy = "odd:pi0:4",
     .robot = "lerobot",
     .policy_lerobot = 1,
     .engine = "odd:pi0:4",
     .engine_lerobot = 1,
     .horizon = 3},
    {.policy = "odd:pi0:4",
     .robot = "lerobot",
     .policy_lerobot = 1,
     .engine = "odd:pi0:4",
     .horizon = 3,
     .says = "the policy was opened for a checkpoint of LeRobot's, the session's engine runs one of "
             "openpi's, synthetic odd:pi0:4"},
    {.policy = "odd:pi0:4",
     .robot = "droid",
     .engine = "odd:pi0:4",
     .engine_lerobot = 1,
     .horizon = 3,
     .says =
         "the policy was opened for a checkpoint of openpi's, the session's engine runs one of LeRobot's"},
    {.policy = "odd:pi0:4",
     .robot = "droid",
     .policy_lerobot = 1,
     .engine = "odd:pi0:4",
     .engine_lerobot = 1,
     .horizon = 3}, /* openpi's robot on LeRobot's file */
    /* horizon: pi05_droid has 15, the checkpoint says nothing, so that a session has 50 by default */
    {.policy = "odd:pi05:4", .config = "pi05_droid", .engine = "odd:pi05:4", .horizon = 15},
    {.policy = "odd:pi05:4", .config = "pi05_droid", .engine = "odd:pi05:4", .horizon = 3},  /* chosen */
    {.policy = "odd:pi05:4", .config = "pi05_droid", .engine = "odd:pi05:4", .horizon = 50}, /* chosen */
    {.policy = "odd:pi05:4",
     .config = "pi05_droid",
     .engine = "odd:pi05:4",
     .says = "the policy's horizon is 15, the session's is 50 by default; set the session option horizon"},
    {.policy = "odd:pi05:4",
     .config = "pi05_aloha",
     .engine = "odd:pi05:4",
     .says = "the state has 8 numbers"}, /* 50 is its own */
    /* prompt: pi0_droid_jointpos_polaris has 100 tokens, a session of π0 has 48 by default */
    {.policy = "odd:pi0:4",
     .config = "pi0_droid_jointpos_polaris",
     .engine = "odd:pi0:4",
     .horizon = 10,
     .max_prompt = 100},
    {.policy = "odd:pi0:4",
     .config = "pi0_droid_jointpos_polaris",
     .engine = "odd:pi0:4",
     .horizon = 10,
     .max_prompt = 30}, /* chosen */
    {.policy = "odd:pi0:4",
     .config = "pi0_droid_jointpos_polaris",
     .engine = "odd:pi0:4",
     .horizon = 10,
     .says = "the policy's prompts have up to 100 tokens, the session takes 48 by default; set the session "
             "option max_prompt"},
    {.policy = "odd:pi0:4",
     .robot = "droid",
     .policy_prompt = 20,
     .engine = "odd:pi0:4",
     .horizon = 3}, /* shorter than the session's */
};

static void a_policy_needs_its_session(void **state) {
    (void)state;
    static const uint8_t picture[SIDE * SIDE * 3];
    for (size_t i = 0; i < LENGTH(pairs); i++) {
        const pair *p = &pairs[i];
        openpi_error error = OPENPI_ERROR_INIT;
        openpi_synthetic of_policy = OPENPI_SYNTHETIC_INIT, of_engine = OPENPI_SYNTHETIC_INIT;
        openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
        openpi_engine_options engine_options = OPENPI_ENGINE_OPTIONS_INIT;
        openpi_session_options session_options = OPENPI_SESSION_OPTIONS_INIT;
        openpi_policy *policy;
        openpi_policy_info info = OPENPI_POLICY_INFO_INIT;
        openpi_request *request;
        openpi_engine *engine;
        openpi_session *session;
        double raw[DIMS] = {0}, actions[OPENPI_MAX_HORIZON * DIMS], before[OPENPI_MAX_HORIZON * DIMS];
        WORKS(openpi_synthetic_parse(p->policy, &of_policy, &error));
        WORKS(openpi_synthetic_parse(p->engine, &of_engine, &error));
        of_policy.lerobot = p->policy_lerobot;
        of_engine.lerobot = p->engine_lerobot;
        options.synthetic = &of_policy;
        options.robot = p->robot;
        options.config = p->config;
        options.max_prompt = p->policy_prompt;
        WORKS(openpi_policy_open(NULL, &options, &policy, &error));
        openpi_policy_get_info(policy, &info, NULL);
        WORKS(openpi_request_create(policy, &request, &error));
        engine_options.synthetic = &of_engine;
        engine_options.dtype = OPENPI_F32;
        engine_options.threads = 2;
        WORKS(openpi_engine_open(NULL, &engine_options, &engine, &error));
        session_options.horizon = p->horizon;
        session_options.max_prompt = p->max_prompt;
        session_options.steps = 1;
        WORKS(openpi_session_create(engine, &session_options, &session, &error));
        openpi_image images[] = {IMAGE(info.cameras[0], picture, OPENPI_U8, OPENPI_HWC, SIDE, SIDE),
                                 IMAGE(info.cameras[1], picture, OPENPI_U8, OPENPI_HWC, SIDE, SIDE)};
        int count = p->policy_lerobot && !strcmp(p->robot, "lerobot") ? info.state_length : STATES;
        openpi_observation observation = OBSERVATION(images, 2, raw, count, "go", 0);
        memset(before, 0x5a, sizeof before);
        memcpy(actions, before, sizeof before);
        if (p->says) {
            error.message[0] = 0;
            openpi_status status = openpi_policy_infer(request, session, &observation, NULL, actions,
                                                       CAPACITY(actions), NULL, &error);
            if (status == OPENPI_OK || !strstr(error.message, p->says))
                fail_msg("pair %zu: %s, \"%s\", expected \"%s\"", i, openpi_status_text(status),
                         error.message, p->says);
            assert_memory_equal(actions, before, sizeof before);
        } else {
            WORKS(openpi_policy_infer(request, session, &observation, NULL, actions, CAPACITY(actions), NULL, &error));
            int horizon = p->horizon ? p->horizon : 50;
            for (int k = 0; k < horizon * info.action_dim; k++) assert_true(isfinite(actions[k]));
            assert_memory_equal(actions + horizon * info.action_dim, before, sizeof(double));
        }
        openpi_session_close(session);
        openpi_engine_close(engine);
        openpi_request_close(request);
        openpi_policy_close(policy);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_policy_needs_its_session)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
