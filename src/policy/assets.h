/* Statistics in a checkpoint: each folder of its assets that has a norm_stats.json, by the folder's name. */
#ifndef POLICY_ASSETS_H
#define POLICY_ASSETS_H

#include "policy/robots/robots.h"

enum { ASSETS_MOST = 64, ASSETS_TEXT = 160 };

typedef struct assets {
    int count, more;             /* more: that there was no space for                                     */
    char names[ASSETS_MOST][ROBOT_ASSETS_BYTES];   /* "droid", "physical-intelligence/libero", sorted      */
} assets;

/* home: the checkpoint's folder (checkpoint/home.h). Without assets the list is empty. */
openpi_status assets_list(const char *home, assets *out, openpi_error *error);
/* "droid, trossen" or "none", for sentences. Returns text. */
const char *assets_text(const assets *list, char text[ASSETS_TEXT]);

/* Which statistics of a checkpoint. */
typedef struct assets_choice {
    const char *home;            /* NULL: in memory, without assets                                       */
    const char *chosen;          /* the caller's asset; NULL: the robot's                                 */
    const robot *robot;
} assets_choice;

/* A name that `chosen` may have. */
openpi_status assets_check(const char *chosen, openpi_error *error);
/* *path, malloc: the norm_stats.json of the asset that the caller chose; else of the robot's; else of
 * `synthetic`; else, where the robot names none, of the only one. NULL: it is not there. */
openpi_status assets_find(const assets_choice *choice, char **path, openpi_error *error);
/* The sentence for what assets_find did not find: it lists what is there. */
openpi_status assets_missing(const assets_choice *choice, openpi_error *error);

#endif
