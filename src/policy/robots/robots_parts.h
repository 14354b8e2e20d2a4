/* What the readers of a robot's JSON file share: the record is robots_json.c, its limits are
 * robots_limits.c and robots_action_limits.c, where its actions start is robots_starts.c, what they command
 * robots_kinds.c. */
#ifndef POLICY_ROBOTS_PARTS_H
#define POLICY_ROBOTS_PARTS_H

#include "base/json.h"
#include "policy/robots/robots.h"

/* "limits": after the state's parts, the number of actions and where actions start are known. */
openpi_status robot_read_limits(const json_t *root, const char *name, robot *out, openpi_error *error);

/* "min", "max", "max_step", "max_start_jump" and "on_violation" of the object "limits"; NULL: it has none. */
openpi_status robot_read_action_limits(const json_t *limits, const char *name, robot *out,
                                       openpi_error *error);

/* "starts": after the state, the number of actions and "delta" are known. */
openpi_status robot_read_starts(const json_t *root, const char *name, robot *out, openpi_error *error);

/* "kinds": after the number of actions is known. */
openpi_status robot_read_kinds(const json_t *root, const char *name, robot *out, openpi_error *error);

#endif
