/* Where a robot's actions start: which number of the state is now what the action will be.
 *
 * Note: a place alone says nothing. A velocity is no place to go to, and LIBERO's actions are steps, although
 * both have numbers of the state in the same places. So "starts" of the record says it, or "delta", whose
 * actions are added to a number of the state. */
#include <math.h>
#include <string.h>

#include "base/report.h"
#include "policy/robots/robots_parts.h"

/* 3, null, or {"state": 3, "as": "aloha_gripper"} */
static openpi_status read_start(const json_t *item, const char *name, int action, robot_start *out,
                                openpi_error *error) {
    const json_t *number = json_is_object(item) ? json_object_get(item, "state") : item;
    const char *as = json_string_value(json_object_get(item, "as"));
    *out = (robot_start){.state = -1};
    if (json_is_null(item)) return OPENPI_OK;
    json_int_t at = json_integer_value(number);
    if (!json_is_integer(number) || at < 0 || at >= OPENPI_ACTION_DIM)
        return report(error, OPENPI_BAD_FILE,
                      "%s: \"starts\"[%d] names no number of the state: expected one from 0, null, or "
                      "{\"state\": 6, \"as\": \"aloha_gripper\"}",
                      name, action);
    if (json_is_object(item) && (json_object_size(item) != 2 || !as || strcmp(as, "aloha_gripper")))
        return report(error, OPENPI_BAD_FILE,
                      "%s: \"starts\"[%d] is an object, expected \"state\" and \"as\" in it, which is "
                      "\"aloha_gripper\"",
                      name, action);
    out->state = (int)at;
    out->measure = as ? ROBOT_ALOHA_GRIPPER : ROBOT_SAME_MEASURE;
    return OPENPI_OK;
}

static openpi_status check_start(const robot *robot, const char *name, int action, openpi_error *error) {
    int state = robot->starts[action].state;
    if (robot->state_length && state >= robot->state_length)
        return report(error, OPENPI_BAD_FILE, "%s: \"starts\"[%d] is %d, but the state has %d numbers", name,
                      action, state, robot->state_length);
    if (state >= 0 && state != action && action < robot->delta_count && robot->delta[action])
        return report(error, OPENPI_BAD_FILE,
                      "%s: \"starts\"[%d] is %d, but \"delta\" adds number %d of the state to this action",
                      name, action, state, action);
    return OPENPI_OK;
}

openpi_status robot_read_starts(const json_t *root, const char *name, robot *out, openpi_error *error) {
    const json_t *array = json_object_get(root, "starts");
    if (!array) return OPENPI_OK;
    if (!json_is_array(array))
        return report(error, OPENPI_BAD_FILE, "%s: \"starts\" is %s, expected an array such as [0, 1, null]",
                      name, json_kind(array));
    if (json_array_size(array) != (size_t)out->action_dim)
        return report(error, OPENPI_BAD_FILE,
                      "%s: \"starts\" has %zu entries, expected %d, as many as \"actions\" says", name,
                      json_array_size(array), out->action_dim);
    for (int i = 0; i < out->action_dim; i++) {
        TRY(read_start(json_array_get(array, (size_t)i), name, i, &out->starts[i], error));
        TRY(check_start(out, name, i, error));
    }
    out->has_starts = 1;
    return OPENPI_OK;
}

int robot_start_state(const robot *robot, int action) {
    if (robot->has_starts) return robot->starts[action].state;
    return action < robot->delta_count && robot->delta[action] ? action : -1;
}

double robot_start_value(const robot *robot, int action, const double *state) {
    int at = robot_start_state(robot, action);
    if (at < 0) return NAN;
    return robot->has_starts && robot->starts[action].measure == ROBOT_ALOHA_GRIPPER
               ? robot_gripper_command(state[at])
               : state[at];
}
