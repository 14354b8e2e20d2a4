/* The settings in a checkpoint's config.json, openpi's or LeRobot's. */
#ifndef MODEL_CHECKPOINT_CONFIG_H
#define MODEL_CHECKPOINT_CONFIG_H

#include "checkpoint/checkpoint.h"
#include "checkpoint/place.h"

typedef struct checkpoint_config {
    char path[300];              /* for sentences                     */
    json_t *root;                /* NULL: there is none               */
    int lerobot;
    openpi_variant type;         /* LeRobot's; what openpi's lacks    */
    int action_dim;              /* 0: not said                       */
    int horizon, steps, max_prompt;
    int use_peft;                /* 1: LeRobot trained an adapter     */
    checkpoint_rtc rtc;          /* fields of 0: not said             */
} checkpoint_config;

/* The adapter's config.json, else the base's; without either *c stays as it is. *c is all zeros before; the
 * caller gives c->root back (json_decref), also after a failure. */
openpi_status checkpoint_config_read(const model_place *place, checkpoint_config *c, openpi_error *error);

#endif
