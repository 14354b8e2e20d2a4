/* LeRobot's pipelines: config.json, policy_preprocessor.json, policy_postprocessor.json and their state
 * files, read as data into a record whose steps run in the order of the files.
 *
 * Note: everything is fp32 in LeRobot's order of operations, because results are compared bit for bit. Slots
 * are not fixed: present cameras come first, in the order of the config's features. */
#ifndef POLICY_LEROBOT_H
#define POLICY_LEROBOT_H

#include "base/notes.h"
#include "policy/normalize.h"

enum {
    LEROBOT_DIMS = OPENPI_ACTION_DIM,
    LEROBOT_STEPS = 16,
    LEROBOT_RENAMES = 16,
    LEROBOT_KEY_BYTES = 128,
    LEROBOT_NAME_BYTES = 64,     /* of an action's name with its NUL                                      */
    LEROBOT_WHY_BYTES = 192,
};

typedef enum lerobot_mode {
    LEROBOT_IDENTITY, LEROBOT_MEAN_STD, LEROBOT_MIN_MAX, LEROBOT_QUANTILES
} lerobot_mode;

typedef struct lerobot_norm {
    lerobot_mode mode;           /* identity also where there are no statistics                           */
    float eps;
    float low[LEROBOT_DIMS], high[LEROBOT_DIMS];   /* mean and std, min and max, or the two quantiles     */
} lerobot_norm;

typedef enum lerobot_kind {
    LEROBOT_PASS,                /* batching, devices: nothing to do here                                 */
    LEROBOT_RENAME,              /* applied when pictures are looked up                                   */
    LEROBOT_RELATIVE,            /* remembers the state that absolute actions add                         */
    LEROBOT_NORMALIZE,           /* the state                                                             */
    LEROBOT_NEW_LINE,            /* π0's prompt ends in a newline                                         */
    LEROBOT_STATE_TEXT,          /* π0.5's prompt holds the state as it is at this step                   */
    LEROBOT_TOKENIZE,
    LEROBOT_UNNORMALIZE,         /* the actions                                                           */
    LEROBOT_ABSOLUTE,            /* adds the remembered state                                             */
} lerobot_kind;

typedef struct lerobot_step {
    lerobot_kind kind;
    lerobot_norm norm;           /* LEROBOT_NORMALIZE, LEROBOT_UNNORMALIZE                                */
} lerobot_step;

/* Where the statistics of the state or of the actions are from. */
typedef struct lerobot_statistics {
    const char *mode;            /* norm_map's, "IDENTITY" where it has none; static                      */
    char file[LEROBOT_KEY_BYTES];          /* in the checkpoint; empty: none                              */
    char why[LEROBOT_WHY_BYTES];           /* why there are none                                          */
    int meant;                   /* 1: the step says itself that it does nothing                          */
    int named;                   /* 1: the step names a state file                                        */
} lerobot_statistics;

/* What config.json says of what the steps decide; notes tell where the two differ. */
typedef struct lerobot_said {
    int state, actions;          /* 1: a feature says how many numbers, which are 32 else                 */
    int relative;                /* use_relative_actions; -1: not said                                    */
    char excluded[LEROBOT_KEY_BYTES];      /* relative_exclude_joints as JSON; empty: not said            */
    int max_prompt;              /* tokenizer_max_length; 0: not said                                     */
    char state_mode[16], action_mode[16];  /* normalization_mapping; empty: not said                      */
    int fine_tune;               /* 1: pretrained_path says where the training began                      */
    int old_resize;              /* 1: LeRobot 0.1 to 0.3 resized pictures, which padded otherwise        */
    char unread[LEROBOT_KEY_BYTES];        /* an input feature that the model does not read; empty: none  */
} lerobot_said;

typedef struct lerobot {
    openpi_variant variant;
    int state_length;            /* 1 … 32                                                                */
    int action_dim;              /* 1 … 32                                                                */
    int horizon;                 /* chunk_size                                                            */
    int max_prompt;              /* the tokenizer step's max_length                                       */
    char cameras[OPENPI_CAMERAS][LEROBOT_KEY_BYTES];   /* features in the config's order, after renaming  */
    uint8_t empty[OPENPI_CAMERAS];                     /* 1: an empty_camera, never there                 */
    int camera_count;
    char renames[LEROBOT_RENAMES][2][LEROBOT_KEY_BYTES];   /* from, to                                    */
    int rename_count;
    char tokenizer[LEROBOT_KEY_BYTES];   /* the saved tokenizer's folder inside the checkpoint, or empty   */
    char tokenizer_name[LEROBOT_KEY_BYTES];   /* the step's, on the Hub; empty: it has none               */
    lerobot_step before[LEROBOT_STEPS], after[LEROBOT_STEPS];
    int before_count, after_count;
    uint8_t relative[LEROBOT_DIMS];      /* 1: an enabled absolute step adds the state                     */
    char action_names[LEROBOT_DIMS][LEROBOT_NAME_BYTES];   /* [action_dim]; "": not named                */
    int state_in_prompt;                 /* 1: a step writes the state into the prompt                     */
    int relative_enabled;                /* of the relative step; -1: there is none                        */
    int absolute_enabled;                /* of the absolute step; -1: there is none                        */
    char unexcluded[LEROBOT_KEY_BYTES];  /* one of exclude_joints that excludes nothing; empty: none       */
    char excluded[LEROBOT_KEY_BYTES];    /* exclude_joints as JSON; empty: none                            */
    int other_names;                     /* how many action_names are not action_feature_names'           */
    lerobot_statistics state_statistics, action_statistics;
    lerobot_said said;
} lerobot;

/* *found 1: config.json has a "type", so the folder is a LeRobot checkpoint. */
openpi_status lerobot_detect(const char *folder, int *found, openpi_error *error);

/* Reads the three JSON files and the state files that they name. model.safetensors is not needed. `notes`
 * (may be NULL) gets what is to be told. */
openpi_status lerobot_open(const char *folder, lerobot *out, notes *notes, openpi_error *error);

/* Tells what in the pipelines changes actions and is no error: statistics that are missing, halves that
 * contradict each other. `name` is the checkpoint (lerobot_notes.c). */
void lerobot_tell(const lerobot *pipeline, const char *name, notes *notes);

/* 1: the tokenizer step names a tokenizer that is not PaliGemma's, or none. */
int lerobot_tokenizer_is_foreign(const lerobot *pipeline);

/* Takes statistics of openpi's norm_stats.json for the state and the actions that have none; *taken: how many
 * of the two. `name` is the file. */
openpi_status lerobot_take_statistics(lerobot *pipeline, const norm_stats *state, const norm_stats *actions,
                                      const char *name, int *taken, openpi_error *error);

/* The pipelines of a synthetic checkpoint in LeRobot's layout, the same that openpi_synthetic_write writes to
 * files: three cameras named as the slots, 32 dims, mean and std for π0, quantiles for π0.5. */
void lerobot_synthetic(const openpi_synthetic *synthetic, lerobot *out);

/* A picture's name, before or after renaming, with or without "observation.images.", or a slot's name, to the
 * index of its feature; -1 where there is none. A slot's name means the feature of that name, "base_0_rgb" or
 * "base"; where there is none, the one in the slot's place, unless it has the name of another slot. */
int lerobot_camera(const lerobot *pipeline, const char *name);
/* 1: only by the slot's place. */
int lerobot_camera_by_position(const lerobot *pipeline, const char *name);

/* The shortest name that a picture of the feature may have: before renaming, without the prefix. */
const char *lerobot_camera_name(const lerobot *pipeline, int camera);

/* state[state_length] in place, from raw to the model's. reference[state_length] receives the state that
 * absolute actions add, text[state_length] the state in the prompt (the raw state where there is no such
 * step). */
void lerobot_state_in(const lerobot *pipeline, float *state, float *reference, float *text);

/* actions[action_dim] of one step in place, from the model's to the robot's. */
void lerobot_actions_out(const lerobot *pipeline, const float *reference, float *actions);

/* The number of the state that an action is relative to, where the file's steps add it in the robot's units;
 * else -1. config.json has no names of the state that could be compared with those of the actions. */
int lerobot_start_state(const lerobot *pipeline, int action);

/* x[count] in place. MEAN_STD: (x - mean)/(std + eps), its inverse x·std + mean. MIN_MAX, QUANTILES:
 * 2 (x - low)/(high - low) - 1 and its inverse; eps in place of a span of 0. */
void lerobot_normalize(const lerobot_norm *norm, float *x, int count);
void lerobot_unnormalize(const lerobot_norm *norm, float *x, int count);

#endif
