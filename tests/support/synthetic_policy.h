/* A policy whose weights and statistics are made. After cmocka.h and policy/policy.h. */
#ifndef TESTS_SYNTHETIC_POLICY_H
#define TESTS_SYNTHETIC_POLICY_H

#include "policy_golden.h"
#include "structs.h"

enum { DIMS = 32, PIXELS = 224 * 224 * 3 };

static inline openpi_policy *open_synthetic(const char *robot, const char *config, openpi_variant variant) {
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_synthetic synthetic = {.size = sizeof(openpi_synthetic), .dims = OPENPI_DIMS_INIT,
                                  .variant = variant, .seed = 7};
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    openpi_policy *policy;
    options.robot = robot;
    options.config = config;
    options.synthetic = &synthetic;
    WORKS(openpi_policy_open(NULL, &options, &policy, &error));
    return policy;
}

#endif
