/* The cameras of a policy, by the names that pictures come with: openpi's robots (robots.h) or the features
 * of a LeRobot checkpoint (lerobot.h). */
#ifndef POLICY_CAMERAS_H
#define POLICY_CAMERAS_H

#include "policy/policy.h"

/* The slot (openpi) or feature (LeRobot) of a picture, or ROBOT_SLOT_UNUSED, ROBOT_SLOT_UNKNOWN. */
int cameras_find(const openpi_policy *policy, const char *name);
/* 1: it was found only because slots are numbered as the features are. */
int cameras_by_position(const openpi_policy *policy, const char *name);

/* "front, wrist" into `out`, for sentences. Returns out. */
const char *cameras_describe(const openpi_policy *policy, char *out, size_t bytes);
/* The robot's name, for sentences. */
const char *cameras_robot(const openpi_policy *policy);

#endif
