/* A policy: everything that one robot's observations and actions go through, read once, then only read. */
#ifndef POLICY_POLICY_H
#define POLICY_POLICY_H

#include "policy/lerobot.h"
#include "policy/normalize.h"
#include "policy/robots.h"
#include "policy/tokenizer.h"

struct openpi_policy {
    openpi_variant variant;
    int lerobot;                 /* 1: pipeline counts, 0: robot, mode and statistics do                  */
    int lerobot_checkpoint;      /* 1: it was opened for a checkpoint of LeRobot's, whatever the robot     */
    lerobot pipeline;
    robot robot;
    norm_mode mode;
    norm_stats state, actions;
    tokenizer *tokenizer;
    int state_in_prompt;
    int state_length;            /* 0: any up to 32                                                       */
    int action_dim;
    int max_prompt;
    int horizon;                 /* 0: nothing says                                                       */
    char *tokenizer_path;        /* NULL: embedded                                                        */
};

/* The policy that a request is of. */
const openpi_policy *request_policy(const openpi_request *request);

/* A sentence where horizon * action_dim doubles do not fit. */
openpi_status request_check_capacity(const openpi_request *request, int horizon, size_t capacity,
                                     openpi_error *error);

#endif
