/* LeRobot's JSON files as a closed world: every key that they may hold, by the object that holds it, and what
 * becomes of it here. What stands in none of the rows is refused by its name, because a setting that is
 * skipped gives plausible, wrong actions. docs/closed-world.md is written from the same table. */
#ifndef MODEL_CLOSED_WORLD_H
#define MODEL_CLOSED_WORLD_H

#include "base/json.h"

typedef enum closed_use {
    KEY_USED,                    /* read, and checked by its reader                                       */
    KEY_HARMLESS,                /* changes no action; `why` is the reason                                */
    KEY_ONLY,                    /* taken with one of `values`, else refused                              */
} closed_use;

typedef struct closed_key {
    const char *where;           /* the object: "config.json", "rtc_config", a step's registry name …     */
    const char *key;
    closed_use use;
    const char *values;          /* KEY_ONLY: JSON values, with commas between; else the `where` of the
                                    object that the key holds, or NULL                                    */
    const char *why;             /* what it says, or why nothing else is taken                            */
} closed_key;

/* Row `index` of the table, rows of one object together; NULL: after the last. */
const closed_key *closed_world_at(int index);

/* Every key of `object` is known, and has a value that is taken; what should be an object is one, or null.
 * `file` leads the sentence, then `what` where it is not empty: "step 3 (tokenizer_processor)". */
openpi_status closed_world_check(const char *where, const json_t *object, const char *file, const char *what,
                                 openpi_error *error);

#endif
