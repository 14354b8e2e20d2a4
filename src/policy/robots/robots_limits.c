/* Limits of a robot's JSON file. Those of its transform are read here: a number of the state beyond its
 * limits counts as the limit, an action beyond its limits becomes the limit, as a clip in a training config
 * does. Those of the actions that are sent are robots_action_limits.c's.
 *
 * Note: they hold in the robot's units, before its transform where the state comes in and after it where the
 * actions go out. An infinite action stays one, so that it is refused and does not hide behind a limit. */
#include <math.h>
#include <string.h>

#include "base/guess.h"
#include "base/json.h"
#include "base/report.h"
#include "policy/robots/robots_parts.h"

#define KEYS "min, max, max_step, max_start_jump, on_violation, state and actions"

static int is_pair(const json_t *value) {
    int items = 0;
    for (size_t i = 0; i < 2 && json_array_size(value) == 2; i++) {
        const json_t *end = json_array_get(value, i);
        items += json_is_number(end) || json_is_null(end);
    }
    return items == 2 && !(json_is_null(json_array_get(value, 0)) && json_is_null(json_array_get(value, 1)));
}

/* [low, high], null at an end without a limit; or null: none at all. */
static openpi_status read_pair(const json_t *value, const char *name, const char *what, robot_limit *out,
                               openpi_error *error) {
    *out = (robot_limit){.low = -INFINITY, .high = INFINITY};
    if (json_is_null(value)) return OPENPI_OK;
    const json_t *low = json_array_get(value, 0), *high = json_array_get(value, 1);
    if (is_pair(value)) {
        if (json_is_number(low)) out->low = json_number_value(low);
        if (json_is_number(high)) out->high = json_number_value(high);
        out->on = 1;
    }
    if (out->on && out->low < out->high) return OPENPI_OK;
    return report(error, OPENPI_BAD_FILE,
                  "%s: the limits of %s are no two numbers [low, high] of which the first is smaller, and "
                  "null for an end without a limit",
                  name, what);
}

/* One pair for all `count` numbers, or a pair or null for each. */
static openpi_status read_limits(const json_t *value, const char *name, const char *what, int each, int count,
                                 robot_limit *out, openpi_error *error) {
    if (is_pair(value) || !json_is_array(value)) {
        TRY(read_pair(value, name, what, &out[0], error));
        for (int i = 1; i < count; i++) out[i] = out[0];
        return OPENPI_OK;
    }
    if (!each || json_array_size(value) != (size_t)count)
        return report(error, OPENPI_BAD_FILE, "%s: the limits of %s have %zu entries, expected %s", name,
                      what, json_array_size(value),
                      each ? "one pair for all, or as many as there are numbers"
                           : "one pair for all: their number is not known");
    for (int i = 0; i < count; i++)
        TRY(read_pair(json_array_get(value, (size_t)i), name, what, &out[i], error));
    return OPENPI_OK;
}

static openpi_status read_state_limits(const json_t *object, const char *name, robot *out,
                                       openpi_error *error) {
    const char *key;
    json_t *value;
    if (!json_is_object(object))
        return report(error, OPENPI_BAD_FILE,
                      "%s: \"limits\": \"state\" is %s, expected an object of request keys and limits", name,
                      json_kind(object));
    json_object_foreach((json_t *)(uintptr_t)object, key, value) {
        int at = 0, part = 0;
        while (part < out->part_count && strcmp(out->parts[part].key, key)) at += out->parts[part++].length;
        if (part == out->part_count)
            return report(error, OPENPI_BAD_FILE,
                          "%s: \"limits\": \"state\" has \"%.64s\", expected a key of the robot's \"state\"",
                          name, key);
        int length = out->parts[part].length;
        TRY(read_limits(value, name, key, length > 0, length ? length : OPENPI_ACTION_DIM,
                        out->state_limits + at, error));
    }
    return OPENPI_OK;
}

static openpi_status check_keys(const json_t *limits, const char *name, openpi_error *error) {
    static const char *const known[] = {"state", "actions", "min", "max", "max_step", "max_start_jump",
                                        "on_violation"};
    enum { KNOWN = sizeof known / sizeof *known };
    const char *key;
    json_t *ignored;
    json_object_foreach((json_t *)(uintptr_t)limits, key, ignored) {
        int i = 0;
        while (i < KNOWN && strcmp(key, known[i])) i++;
        if (i < KNOWN) continue;
        report(error, OPENPI_BAD_FILE, "%s: \"limits\" has an unknown key \"%.64s\", known are %s", name, key,
               KEYS);
        return guess_add(error, OPENPI_BAD_FILE, key, KEYS);
    }
    return OPENPI_OK;
}

openpi_status robot_read_limits(const json_t *root, const char *name, robot *out, openpi_error *error) {
    const json_t *limits = json_object_get(root, "limits"), *state = json_object_get(limits, "state"),
                 *actions = json_object_get(limits, "actions");
    if (limits && !json_is_object(limits))
        return report(error, OPENPI_BAD_FILE, "%s: \"limits\" is %s, expected an object of %s", name,
                      json_kind(limits), KEYS);
    TRY(check_keys(limits, name, error));
    TRY(robot_read_action_limits(limits, name, out, error));
    if (state) {
        memset(out->state_limits, 0, sizeof out->state_limits);
        TRY(read_state_limits(state, name, out, error));
    }
    if (!actions) return OPENPI_OK;
    memset(out->action_limits, 0, sizeof out->action_limits);
    return read_limits(actions, name, "the actions", 1, out->action_dim, out->action_limits, error);
}

void robot_limit_all(const robot_limit *limits, int count, double *values) {
    for (int i = 0; i < count; i++) {
        if (!limits[i].on || !isfinite(values[i])) continue;
        if (values[i] < limits[i].low) values[i] = limits[i].low;
        if (values[i] > limits[i].high) values[i] = limits[i].high;
    }
}

int robot_limit_count(const robot_limit *limits, int count) {
    int on = 0;
    for (int i = 0; i < count; i++) on += limits[i].on;
    return on;
}
