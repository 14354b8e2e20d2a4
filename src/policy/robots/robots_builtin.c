/* The robots that openpi knows, as records in the JSON form of docs/robots.md.
 *
 * Note: nothing here is special to a built-in robot; `{"like": "aloha", "delta": []}` is as good a robot. */
#include <stdio.h>
#include <string.h>

#include "policy/robots/robots.h"

#define JSON(...) #__VA_ARGS__

/* Request keys, slots, state and number of actions: openpi
 * src/openpi/policies/{aloha,droid,libero}_policy.py.
 * Deltas, prompts and asset ids: the data configs of openpi src/openpi/training/config.py. The source of
 * names, units and rate stands before each robot; docs/robots.md tells where the sources are silent. Unit
 * "normalized": a number without a dimension that the robot's controller scales. */
static const struct {
    const char *name, *record;
} builtins[] = {
    /* Order, joints absolute, grippers 0 (closed) to 1 (open): openpi examples/aloha_real/real_env.py,
     * RealEnv. Joint names: examples/aloha_real/constants.py, JOINT_NAMES. Radians: openpi
     * docs/norm_stats.md. Rate: examples/aloha_real/main.py, main (max_hz). Starts: RealEnv.get_qpos gives a
     * gripper's opening (PUPPET_GRIPPER_POSITION_NORMALIZE_FN), set_gripper_pose takes an angle of its motor
     * (PUPPET_GRIPPER_JOINT_UNNORMALIZE_FN). */
    {"aloha", JSON({
        "name": "aloha",
        "cameras": {
            "images/cam_high": "base",
            "images/cam_left_wrist": {"slot": "left_wrist", "required": false},
            "images/cam_right_wrist": {"slot": "right_wrist", "required": false},
            "images/cam_low": null
        },
        "layout": "chw",
        "other_pictures": "refuse",
        "state": {"state": 14},
        "actions": 14,
        "action_names": ["left_waist", "left_shoulder", "left_elbow", "left_forearm_roll", "left_wrist_angle",
                         "left_wrist_rotate", "left_gripper", "right_waist", "right_shoulder", "right_elbow",
                         "right_forearm_roll", "right_wrist_angle", "right_wrist_rotate", "right_gripper"],
        "units": ["rad", "rad", "rad", "rad", "rad", "rad", "normalized",
                  "rad", "rad", "rad", "rad", "rad", "rad", "normalized"],
        "rate_hz": 50,
        "transform": "aloha",
        "delta": [6, -1, 6, -1],
        "starts": [0, 1, 2, 3, 4, 5, {"state": 6, "as": "aloha_gripper"},
                   7, 8, 9, 10, 11, 12, {"state": 13, "as": "aloha_gripper"}],
        "assets": "trossen"
    })},
    /* Order and ranges as aloha's, but openings of grippers in state and actions alike:
     * gym_aloha/tasks/sim.py, BimanualViperXTask. Rate: openpi examples/aloha_sim/main.py, main (max_hz), and
     * LeRobot envs/configs.py, AlohaEnv.fps. */
    {"aloha_sim", JSON({
        "like": "aloha",
        "name": "aloha_sim",
        "delta": [],
        "starts": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13],
        "prompt": "Transfer cube",
        "assets": "lerobot/aloha_sim_transfer_cube_human"
    })},
    /* Seven joint velocities clipped to -1 … 1 and a gripper position in 0 (open) … 1 (closed): openpi
     * examples/droid/main.py, main, and docs/norm_stats.md. Fields joint_velocity and gripper_position:
     * openpi src/openpi/training/droid_rlds_dataset.py, DroidRldsDataset. Rate: examples/droid/main.py,
     * DROID_CONTROL_FREQUENCY. */
    {"droid", JSON({
        "name": "droid",
        "cameras": {
            "observation/exterior_image_1_left": "base",
            "observation/wrist_image_left": "left_wrist"
        },
        "other_pictures": "ignore",
        "state": {"observation/joint_position": 7, "observation/gripper_position": 1},
        "actions": 8,
        "action_names": ["joint_velocity_1", "joint_velocity_2", "joint_velocity_3", "joint_velocity_4",
                         "joint_velocity_5", "joint_velocity_6", "joint_velocity_7", "gripper_position"],
        "units": "normalized",
        "starts": [null, null, null, null, null, null, null, 7],
        "kinds": ["velocity", "velocity", "velocity", "velocity", "velocity", "velocity", "velocity",
                  "position"],
        "rate_hz": 15,
        "assets": "droid"
    })},
    /* Field joint_position in place of joint_velocity: DroidRldsDataset (DroidActionSpace.JOINT_POSITION).
     * Radians: openpi docs/norm_stats.md. Rate: that of DROID's data. */
    {"droid_jointpos", JSON({
        "like": "droid",
        "name": "droid_jointpos",
        "action_names": ["joint_position_1", "joint_position_2", "joint_position_3", "joint_position_4",
                         "joint_position_5", "joint_position_6", "joint_position_7", "gripper_position"],
        "units": ["rad", "rad", "rad", "rad", "rad", "rad", "rad", "normalized"],
        "starts": [0, 1, 2, 3, 4, 5, 6, 7],
        "delta": [7, -1]
    })},
    /* Six relative pose numbers and a gripper, all in -1 … 1: LeRobot envs/configs.py,
     * LiberoEnv.control_mode, and envs/libero.py, ACTION_LOW and ACTION_HIGH. Neither openpi nor LeRobot
     * names them. LIBERO's controller does (libero/libero/envs/env_wrapper.py, ControlEnv: robosuite's
     * OSC_POSE): a position and a rotation about an axis, (ax, ay, az) in robosuite
     * docs/modules/controllers.rst. Rate: LeRobot envs/configs.py, LiberoEnv.fps, and ControlEnv's
     * control_freq. */
    {"libero", JSON({
        "name": "libero",
        "cameras": {"observation/image": "base", "observation/wrist_image": "left_wrist"},
        "other_pictures": "ignore",
        "state": {"observation/state": 8},
        "actions": 7,
        "action_names": ["x", "y", "z", "ax", "ay", "az", "gripper"],
        "units": "normalized",
        "starts": [null, null, null, null, null, null, null],
        "kinds": ["step", "step", "step", "step", "step", "step", "position"],
        "rate_hz": 20,
        "assets": "physical-intelligence/libero"
    })},
    /* The model's own space: its dimensions mean what the data of a checkpoint mean, so they have no names
     * here. */
    {"none", JSON({
        "name": "none",
        "about": "the model's own space: normalised state and actions",
        "cameras": {
            "base": {"slot": "base", "required": false},
            "left_wrist": {"slot": "left_wrist", "required": false},
            "right_wrist": {"slot": "right_wrist", "required": false}
        },
        "state": {"state": 0},
        "actions": 32,
        "normalization": "none"
    })},
};

enum { BUILTINS = sizeof builtins / sizeof *builtins };

const char *robot_builtin_names(char *out, size_t bytes) {
    size_t at = 0;
    for (int i = 0; i < BUILTINS && at < bytes; i++)
        at += (size_t)snprintf(out + at, bytes - at, "%s%s", i ? ", " : "", builtins[i].name);
    return out;
}

const char *robot_builtin(const char *name) {
    for (int i = 0; i < BUILTINS; i++)
        if (!strcmp(builtins[i].name, name)) return builtins[i].record;
    return NULL;
}
