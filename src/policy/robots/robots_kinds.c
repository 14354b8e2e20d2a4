/* What a robot's actions command: a place to go to, or a motion.
 *
 * Note: a robot that is held still repeats a position, but not a velocity nor a step. Nothing is guessed:
 * where an action starts at a number of the state, it is a position like that, else "kinds" says it. */
#include <string.h>

#include "base/report.h"
#include "policy/robots/robots_parts.h"

static openpi_status read_kind(const json_t *item, const char *name, int action, uint8_t *out,
                               openpi_error *error) {
    const char *text = json_string_value(item);
    *out = OPENPI_ACTION_UNKNOWN;
    if (json_is_null(item)) return OPENPI_OK;
    if (text && !strcmp(text, "position")) *out = OPENPI_ACTION_POSITION;
    if (text && (!strcmp(text, "velocity") || !strcmp(text, "step"))) *out = OPENPI_ACTION_VELOCITY;
    if (*out) return OPENPI_OK;
    return report(error, OPENPI_BAD_FILE,
                  "%s: \"kinds\"[%d] is %s%.32s, expected \"position\", \"velocity\", \"step\" or null", name,
                  action, text ? "" : json_kind(item), text ? text : "");
}

openpi_status robot_read_kinds(const json_t *root, const char *name, robot *out, openpi_error *error) {
    const json_t *value = json_object_get(root, "kinds");
    int each = json_is_array(value);
    if (!value) return OPENPI_OK;
    if (each && json_array_size(value) != (size_t)out->action_dim)
        return report(error, OPENPI_BAD_FILE,
                      "%s: \"kinds\" has %zu entries, expected %d, as many as \"actions\" says", name,
                      json_array_size(value), out->action_dim);
    for (int i = 0; i < out->action_dim; i++)
        TRY(read_kind(each ? json_array_get(value, (size_t)i) : value, name, i, &out->kinds[i], error));
    return OPENPI_OK;
}

openpi_action_kind robot_kind(const robot *robot, int action) {
    if (robot->kinds[action]) return (openpi_action_kind)robot->kinds[action];
    return robot_start_state(robot, action) >= 0 ? OPENPI_ACTION_POSITION : OPENPI_ACTION_UNKNOWN;
}
