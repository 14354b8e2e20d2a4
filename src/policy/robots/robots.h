/* Robots as data: their pictures, state and actions, and the transforms of each.
 *
 * A robot is one record. Built-in robots are written in the JSON form that users write for their own arm
 * (docs/robots.md), and so are openpi's training configs (configs.c): robots with a model's settings.
 *
 * Note: a transform works in the robot's units, outside of the normalisation; relative actions are added to
 * the state after unnormalising and before the output transform. */
#ifndef POLICY_ROBOTS_H
#define POLICY_ROBOTS_H

#include "openpi.h"
#include "policy/limits.h"

enum {
    ROBOT_KEY_BYTES = 64,        /* a name or request key with its NUL                                    */
    ROBOT_LABEL_BYTES = 32,       /* an action's name or unit with its NUL                                 */
    ROBOT_PROMPT_BYTES = 1024,
    ROBOT_ASSETS_BYTES = 128,
    ROBOT_CAMERAS = 8,
    ROBOT_PARTS = 8,
    ROBOT_MAX_PROMPT = 4096,     /* tokens                                                                */
    ROBOT_MAX_RATE = 100000,     /* Hz                                                                    */
    ROBOT_MAX_RANK = 4096,       /* largest LoRA rank                                                     */
    ROBOT_POSE = 32,             /* numbers of a reset pose                                               */
    ROBOT_TEXT_BYTES = 1 << 20,  /* largest JSON file of a robot                                          */
};

/* Slots other than 0 … 2. */
enum { ROBOT_SLOT_UNUSED = -1, ROBOT_SLOT_UNKNOWN = -2 };

typedef struct robot_camera {
    char key[ROBOT_KEY_BYTES];   /* in a request: "images/cam_high"                                       */
    int slot;                    /* 0 … 2, or ROBOT_SLOT_UNUSED: accepted and ignored                     */
    int required;
} robot_camera;

typedef struct robot_part {
    char key[ROBOT_KEY_BYTES];   /* in a request: "observation/joint_position"                            */
    int length;                  /* 1 … 32; 0 (a single part only): any length up to 32                   */
} robot_part;

typedef enum robot_transform {
    ROBOT_PLAIN,                 /* state and actions as they come                                        */
    ROBOT_ALOHA,                 /* ALOHA's joint signs and gripper maps (openpi's adapt_to_pi)           */
} robot_transform;

typedef enum robot_normalization {
    ROBOT_NORM_AUTO, ROBOT_NORM_ZSCORE, ROBOT_NORM_QUANTILE, ROBOT_NORM_NONE
} robot_normalization;

enum { ROBOT_VARIANT_ANY = -1 };

/* Of a number of the state or of an action, in the robot's units. */
typedef struct robot_limit {
    uint8_t on;                  /* 0: none                                                               */
    double low, high;            /* infinite: no limit at that end                                        */
} robot_limit;

/* In which measure a number of the state is, compared with the action that starts there. */
typedef enum robot_measure {
    ROBOT_SAME_MEASURE,
    ROBOT_ALOHA_GRIPPER,         /* an opening of ALOHA's real gripper, the action an angle of its motor  */
} robot_measure;

typedef struct robot_start {
    int state;                   /* number of the state; -1: none                                         */
    robot_measure measure;
} robot_start;

typedef struct robot {
    char name[ROBOT_KEY_BYTES];
    robot_camera cameras[ROBOT_CAMERAS];
    int camera_count;
    int refuse_other_pictures;   /* 1: a request with a picture that is no camera here is an error        */
    int always_chw;              /* 1: pictures of msgpack requests are CHW; 0: where the first dim is 3  */
    robot_part parts[ROBOT_PARTS];            /* the state is their concatenation                         */
    int part_count;
    int state_length;            /* sum of the parts; 0: any up to 32                                     */
    int action_dim;              /* actions of one step                                                   */
    char action_names[OPENPI_ACTION_DIM][ROBOT_LABEL_BYTES];   /* [action_dim]; "": not named              */
    char units[OPENPI_ACTION_DIM][ROBOT_LABEL_BYTES];          /* [action_dim]; "": unknown                */
    double rate_hz;              /* steps a second; 0: unknown                                            */
    uint8_t delta[OPENPI_ACTION_DIM];         /* 1: the model's action is relative to the state           */
    int delta_count;             /* 0: no action is                                                       */
    int has_starts;              /* 1: `starts` says where actions start; 0: relative ones at their number */
    robot_start starts[OPENPI_ACTION_DIM];                 /* [action_dim]                                */
    uint8_t kinds[OPENPI_ACTION_DIM];         /* [action_dim] openpi_action_kind, as far as it is said     */
    robot_limit state_limits[OPENPI_ACTION_DIM];           /* limits of the state's numbers, as they come */
    robot_limit action_limits[OPENPI_ACTION_DIM];          /* [action_dim], as they leave                */
    limits limits;               /* what the robot may be sent, checked after all else                    */
    robot_transform transform;
    robot_normalization normalization;        /* auto: z-score for π0, quantile for π0.5                  */
    openpi_prompt_state prompt_state;         /* default: on for π0.5                                     */
    int has_prompt;
    char prompt[ROBOT_PROMPT_BYTES];          /* where a request has none                                 */
    char assets[ROBOT_ASSETS_BYTES];          /* assets/<this>/norm_stats.json; empty: none needed        */
    int variant;                 /* the only openpi_variant that it supports, or ROBOT_VARIANT_ANY        */
    int horizon, max_prompt;     /* 0: the checkpoint's                                                   */
    int lora_vlm, lora_expert;   /* rank of the LoRA that was trained with it; 0: none                    */
    double reset_pose[ROBOT_POSE];            /* where a robot's program starts: openpi's metadata        */
    int reset_pose_count;        /* 0: none                                                               */
} robot;

/* By built-in name, from JSON text (starting with '{'), or from a JSON file, in this order. */
openpi_status robot_open(const char *name_or_path, robot *out, openpi_error *error);

/* From JSON text; error sentences begin with `name`. Unknown keys are an error. */
openpi_status robot_parse(const char *text, size_t bytes, const char *name, robot *out, openpi_error *error);

/* The record of a built-in robot, JSON text; NULL: there is none of that name. */
const char *robot_builtin(const char *name);
/* "aloha, aloha_sim, …" into `out`, for sentences. Returns out. */
const char *robot_builtin_names(char *out, size_t bytes);

/* openpi's training config of that name (configs.c). Names that this engine cannot run are
 * OPENPI_UNSUPPORTED. */
openpi_status robot_from_config(const char *config, robot *out, openpi_error *error);

/* Names of slots: "base", "left_wrist", "right_wrist". */
const char *robot_slot_name(int slot);
/* A slot's name, short or openpi's ("base_0_rgb") -> 0 … 2; else ROBOT_SLOT_UNKNOWN. */
int robot_slot(const char *name);

/* The slot of the picture `name`: that of the camera with this key, of the only camera whose key ends in
 * "/name", or of the robot's camera in the slot of this name; ROBOT_SLOT_UNUSED; or ROBOT_SLOT_UNKNOWN. */
int robot_camera_slot(const robot *robot, const char *name);

/* "images/cam_high (base), …" into `out`, for sentences. Returns out. */
const char *robot_describe_cameras(const robot *robot, char *out, size_t bytes);

/* values[count] in place: finite ones beyond their limit become the limit. */
void robot_limit_all(const robot_limit *limits, int count, double *values);
/* How many of the first `count` have a limit. */
int robot_limit_count(const robot_limit *limits, int count);

/* The number of the state that is now what an action will be; -1: none, or not known. */
int robot_start_state(const robot *robot, int action);
/* Its value in the action's units, of a state as it comes, which has that number; NAN: none. */
double robot_start_value(const robot *robot, int action, const double *state);

/* What an action commands: as "kinds" says; else a position, where it starts at a number of the state. */
openpi_action_kind robot_kind(const robot *robot, int action);

/* The normalised angle of ALOHA's real gripper at a normalised opening: what its actions command. */
double robot_gripper_command(double opening);

/* state[state_length] from the robot's to the model's units, in place. */
void robot_state_in(const robot *robot, double *state);

/* actions[action_dim] of one step from the model's to the robot's units, in place. */
void robot_actions_out(const robot *robot, double *actions);

#endif
