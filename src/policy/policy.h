/* A policy: what turns one robot's observations into samples and the model's actions into the robot's.
 * Read-only once open, so threads share it. */
#ifndef POLICY_POLICY_H
#define POLICY_POLICY_H

#include "base/notes.h"
#include "policy/lerobot/lerobot.h"
#include "policy/normalize.h"
#include "policy/robots/robots.h"
#include "policy/tokenizer/tokenizer.h"

struct openpi_policy {
    openpi_variant variant;
    int lerobot;                 /* 1: `pipeline` applies; 0: `robot`, `mode` and the statistics do       */
    int lerobot_checkpoint;      /* 1: opened for a LeRobot checkpoint, whatever the robot                */
    lerobot pipeline;
    robot robot;
    norm_mode mode;
    norm_stats state, actions;
    tokenizer *tokenizer;
    int state_in_prompt;
    int state_length;            /* 0: any up to 32                                                       */
    int action_dim;
    int max_prompt;
    int model_dims;              /* action dimensions of the model, 1 to 32                               */
    int horizon;                 /* 0: not stated by config or checkpoint                                 */
    char *tokenizer_path;        /* NULL: embedded                                                        */
    char *statistics_path;       /* NULL: no file                                                         */
    int made_statistics;         /* 1: a synthetic model's, made in memory                                */
    int given_prompt;            /* 1: robot.prompt is openpi_policy_default_prompt's                     */
    notes notes;                 /* what opening it found that changes actions                            */
};

/* The policy that the request was created for. */
const openpi_policy *request_policy(const openpi_request *request);

/* The prepared state that relative actions are added to: 32 numbers, of openpi's policies or of LeRobot's.
 * NULL: nothing is prepared. */
const double *request_reference(const openpi_request *request);
const float *request_lerobot_reference(const openpi_request *request);

/* Adds a note on the actions whose statistics have no span, where their leftovers need one (leftover.c). */
void leftover_note(openpi_policy *policy);

/* An error where `capacity` is less than horizon * action_dim doubles. */
openpi_status request_check_capacity(const openpi_request *request, int horizon, size_t capacity,
                                     openpi_error *error);

#endif
