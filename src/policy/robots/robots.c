/* Robots: opened by name, from a file or from openpi's configs; where a camera's picture belongs; and the two
 * transforms between a robot's units and the model's. */
#include "policy/robots/robots.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/guess.h"
#include "base/report.h"
#include "policy/configs.h"

/* ---- opening -------------------------------------------------------------------------------------- */

openpi_status robot_open(const char *name_or_path, robot *out, openpi_error *error) {
    char list[128];
    if (name_or_path[0] == '{')
        return robot_parse(name_or_path, strlen(name_or_path), "the robot's JSON", out, error);
    const char *record = robot_builtin(name_or_path);
    if (record) return robot_parse(record, strlen(record), name_or_path, out, error);
    if (!file_exists(name_or_path)) {
        report(error, OPENPI_NOT_FOUND,
               "robot \"%.128s\" is not known and no file of that name is there; known are %s, lerobot, or a "
               "JSON file", name_or_path, robot_builtin_names(list, sizeof list));
        return guess_add(error, OPENPI_NOT_FOUND, name_or_path, list);
    }
    char *text;
    size_t bytes;
    TRY(file_read(name_or_path, ROBOT_TEXT_BYTES, &text, &bytes, error));
    openpi_status status = robot_parse(text, bytes, name_or_path, out, error);
    free(text);
    return status;
}

openpi_status robot_from_config(const char *config, robot *out, openpi_error *error) {
    const char *record;
    TRY(config_find(config, &record, error));
    return robot_parse(record, strlen(record), config, out, error);
}

/* ---- slots and cameras ---------------------------------------------------------------------------- */

static const char *const slot_names[OPENPI_CAMERAS][2] = {
    {"base", "base_0_rgb"}, {"left_wrist", "left_wrist_0_rgb"}, {"right_wrist", "right_wrist_0_rgb"}};

const char *robot_slot_name(int slot) {
    return slot_names[slot][0];
}

int robot_slot(const char *name) {
    for (int slot = 0; slot < OPENPI_CAMERAS; slot++)
        if (!strcmp(name, slot_names[slot][0]) || !strcmp(name, slot_names[slot][1])) return slot;
    return ROBOT_SLOT_UNKNOWN;
}

int robot_camera_slot(const robot *robot, const char *name) {
    int ends = 0, slot = ROBOT_SLOT_UNKNOWN;
    for (int c = 0; c < robot->camera_count; c++)
        if (!strcmp(robot->cameras[c].key, name)) return robot->cameras[c].slot;
    for (int c = 0; c < robot->camera_count; c++) {
        const char *tail = strrchr(robot->cameras[c].key, '/');
        if (tail && !strcmp(tail + 1, name)) {
            slot = robot->cameras[c].slot;
            ends++;
        }
    }
    if (ends == 1) return slot;
    slot = robot_slot(name);
    for (int c = 0; c < robot->camera_count && slot >= 0; c++)
        if (robot->cameras[c].slot == slot) return slot;
    return ROBOT_SLOT_UNKNOWN;
}

const char *robot_describe_cameras(const robot *robot, char *out, size_t bytes) {
    size_t at = 0;
    for (int c = 0; c < robot->camera_count && at < bytes; c++) {
        int slot = robot->cameras[c].slot;
        at += (size_t)snprintf(out + at, bytes - at, "%s%s (%s)", c ? ", " : "", robot->cameras[c].key,
                               slot < 0 ? "unused" : slot_names[slot][0]);
    }
    return out;
}

/* ---- ALOHA's transform (openpi policies/aloha_policy.py) ------------------------------------------ */

static const double aloha_signs[7] = {1, -1, -1, 1, 1, 1, 1};

enum { ALOHA_ARM = 7, ALOHA_GRIPPER = 6, ALOHA_DIMS = 14 };

/* Gripper opening in 0 … 1 of the linear drive -> angle of the horn. */
static double gripper_angle(double v) {
    double p = v * (0.05800 - 0.01844) + 0.01844;
    double s = (0.022 * 0.022 + p * p - 0.036 * 0.036) / (2 * 0.022 * p);
    s = s < -1.0 ? -1.0 : s > 1.0 ? 1.0 : s;
    return asin(s);
}

/* The angle of an opening, in the range that the model was trained with. */
static double gripper_in(double v) {
    return (gripper_angle(v) - 0.5476) / (1.6296 - 0.5476);
}

/* An angle in the robot's own range: openpi examples/aloha_real/constants.py, PUPPET_GRIPPER_JOINT_CLOSE and
 * PUPPET_GRIPPER_JOINT_OPEN. */
static double gripper_normalized(double angle) {
    return (angle - -0.6213) / (1.4910 - -0.6213);
}

static double gripper_out(double v) {
    return gripper_normalized(v + 0.5476);
}

double robot_gripper_command(double opening) {
    return gripper_normalized(gripper_angle(opening));
}

void robot_state_in(const robot *robot, double *state) {
    if (robot->transform != ROBOT_ALOHA) return;
    for (int i = 0; i < ALOHA_DIMS; i++) {
        int joint = i % ALOHA_ARM;
        state[i] = aloha_signs[joint] * state[i];
        if (joint == ALOHA_GRIPPER) state[i] = gripper_in(state[i]);
    }
}

void robot_actions_out(const robot *robot, double *actions) {
    if (robot->transform != ROBOT_ALOHA) return;
    for (int i = 0; i < ALOHA_DIMS; i++) {
        int joint = i % ALOHA_ARM;
        actions[i] = aloha_signs[joint] * actions[i];
        if (joint == ALOHA_GRIPPER) actions[i] = gripper_out(actions[i]);
    }
}
