/* Limits of the actions that a robot is sent, of its JSON file: what limits.h checks.
 *
 * Note: a limit that could not be checked is refused when it is read. A jump needs to know from which number
 * of the state an action starts, which "starts" or "delta" of the file says. */
#include <math.h>
#include <string.h>

#include "base/report.h"
#include "policy/robots/robots_parts.h"

_Static_assert((int)LIMITS_DIMS == (int)OPENPI_ACTION_DIM, "an action has no more numbers than the model's");

/* A number or null for each action. `least`: numbers are above it. */
static openpi_status read_list(const json_t *limits, const char *key, const char *name, double least,
                               double none, int actions, double *out, openpi_error *error) {
    const json_t *list = json_object_get(limits, key);
    if (!list) return OPENPI_OK;
    if (!json_is_array(list))
        return report(error, OPENPI_BAD_FILE,
                      "%s: \"limits\": \"%s\" is %s, expected an array of a number or null for each action",
                      name, key, json_kind(list));
    if (json_array_size(list) != (size_t)actions)
        return report(error, OPENPI_BAD_FILE,
                      "%s: \"limits\": \"%s\" has %zu entries, expected %d, as many as \"actions\" says",
                      name, key, json_array_size(list), actions);
    for (int d = 0; d < actions; d++) {
        const json_t *item = json_array_get(list, (size_t)d);
        if (!json_is_number(item) && !json_is_null(item))
            return report(error, OPENPI_BAD_FILE,
                          "%s: \"limits\": \"%s\"[%d] is %s, expected a number or null", name, key, d,
                          json_kind(item));
        out[d] = json_is_null(item) ? none : json_number_value(item);
        if (!(out[d] > least) && json_is_number(item))
            return report(error, OPENPI_BAD_FILE,
                          "%s: \"limits\": \"%s\"[%d] is %g, expected a number above %g or null", name, key,
                          d, out[d], least);
    }
    return OPENPI_OK;
}

static openpi_status read_verb(const json_t *limits, const char *name, limits_verb *out,
                               openpi_error *error) {
    const char *word = NULL;
    TRY(json_get_string(limits, "on_violation", name, &word, error));
    if (!word) return OPENPI_OK;
    for (int verb = LIMITS_CLAMP; verb <= LIMITS_STOP; verb++) {
        if (strcmp(word, limits_verb_name((limits_verb)verb))) continue;
        *out = (limits_verb)verb;
        return OPENPI_OK;
    }
    return report(error, OPENPI_BAD_FILE,
                  "%s: \"limits\": \"on_violation\" is \"%.64s\", expected \"clamp\", \"hold\" or \"stop\"",
                  name, word);
}

static int count_limits(const limits *l) {
    int count = 0;
    for (int d = 0; d < l->dims; d++)
        count += (isfinite(l->min[d]) != 0) + (isfinite(l->max[d]) != 0) + (isfinite(l->max_step[d]) != 0) +
                 (isfinite(l->max_start_jump[d]) != 0);
    return count;
}

static openpi_status check(const robot *robot, const char *name, openpi_error *error) {
    const limits *l = &robot->limits;
    for (int d = 0; d < l->dims; d++) {
        if (!(l->min[d] < l->max[d]))
            return report(error, OPENPI_BAD_FILE,
                          "%s: \"limits\": \"min\"[%d] is %g and \"max\"[%d] is %g, expected a smaller "
                          "\"min\"", name, d, l->min[d], d, l->max[d]);
        if (!isfinite(l->max_start_jump[d])) continue;
        int start = robot_start_state(robot, d);
        if (start < 0)
            return report(error, OPENPI_BAD_FILE,
                          "%s: \"limits\": \"max_start_jump\"[%d] cannot be checked: no number of the state "
                          "is named that the action starts from, expected one in \"starts\"[%d], or null in "
                          "\"max_start_jump\"", name, d, d);
        if (start >= robot->state_length)
            return report(error, OPENPI_BAD_FILE,
                          "%s: \"limits\": \"max_start_jump\"[%d] cannot be checked: the action starts from "
                          "number %d of the state, which may have any length, expected a length in \"state\"",
                          name, d, start);
    }
    return OPENPI_OK;
}

openpi_status robot_read_action_limits(const json_t *from, const char *name, robot *out,
                                       openpi_error *error) {
    limits *l = &out->limits;
    if (l->dims != out->action_dim) limits_clear(l, out->action_dim);
    TRY(read_list(from, "min", name, -INFINITY, -INFINITY, l->dims, l->min, error));
    TRY(read_list(from, "max", name, -INFINITY, INFINITY, l->dims, l->max, error));
    TRY(read_list(from, "max_step", name, 0, INFINITY, l->dims, l->max_step, error));
    TRY(read_list(from, "max_start_jump", name, 0, INFINITY, l->dims, l->max_start_jump, error));
    TRY(read_verb(from, name, &l->on_violation, error));
    l->count = count_limits(l);
    if (json_object_get(from, "on_violation") && !l->count)
        return report(error, OPENPI_BAD_FILE,
                      "%s: \"limits\" has \"on_violation\" and no limit that it is about, expected one in "
                      "\"min\", \"max\", \"max_step\" or \"max_start_jump\"", name);
    return check(out, name, error);
}
