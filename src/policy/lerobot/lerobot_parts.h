/* What the readers of LeRobot's files share: config.json (lerobot_config.c), the processors' steps
 * (lerobot_steps.c) and their statistics (lerobot_norm.c). */
#ifndef POLICY_LEROBOT_PARTS_H
#define POLICY_LEROBOT_PARTS_H

#include "base/json.h"
#include "policy/lerobot/lerobot.h"

/* Names of features. */
#define LEROBOT_STATE "observation.state"
#define LEROBOT_ACTION "action"
#define LEROBOT_IMAGES "observation.images."

/* The processors of a pipeline: before the model and after it. */
enum { LEROBOT_BEFORE = 1, LEROBOT_AFTER = 2 };

/* A step of a processor's file, while it is read. */
typedef struct lerobot_file {
    const char *folder, *name;   /* the checkpoint; the JSON file for sentences */
    const json_t *step, *config;
    char what[96];               /* "step 3 (normalizer_processor)"             */
} lerobot_file;

/* A text of 1 … bytes - 1 bytes. `name` and `what` lead the sentence. */
openpi_status lerobot_copy_text(const char *text, const char *name, const char *what, char *out, size_t bytes,
                                openpi_error *error);

/* A file's or folder's name must stay inside the checkpoint: not absolute, no "..". */
openpi_status lerobot_check_inside(const char *path, const char *name, const char *what, openpi_error *error);

/* An array as JSON, cut to LEROBOT_KEY_BYTES; empty where it is none or has no elements. */
void lerobot_list_text(const json_t *array, char out[LEROBOT_KEY_BYTES]);

/* The object in folder/file. *path is malloc, *root a new reference; neither on failure. */
openpi_status lerobot_read_json(const char *folder, const char *file, char **path, json_t **root,
                                openpi_error *error);

openpi_status lerobot_read_config(const json_t *root, const char *name, lerobot *out, openpi_error *error);

/* The actions' names; those that are none are told. */
void lerobot_read_names(const json_t *root, const char *name, lerobot *out, notes *notes);

/* The steps of one processor's file; `where`: LEROBOT_BEFORE or LEROBOT_AFTER. */
openpi_status lerobot_read_steps(const char *folder, const json_t *root, const char *name, int where,
                                 lerobot *out, lerobot_step *steps, int *count, openpi_error *error);

/* A normalising step's mode and statistics; `inverse`: of the actions, else of the observation. Where they
 * are from is written into the pipeline. */
openpi_status lerobot_read_norm(const lerobot_file *file, lerobot *pipeline, int inverse,
                                lerobot_norm *norm, openpi_error *error);

#endif
