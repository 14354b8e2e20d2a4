/* The first lines of `openpi inspect`: what it is, where it fits, what is missing, what to type. */
#ifndef CLI_INSPECT_HEAD_H
#define CLI_INSPECT_HEAD_H

#include <jansson.h>

/* One option as it was given; value NULL: a flag. */
typedef struct inspect_given {
    const char *name, *value;
} inspect_given;

/* `root`: the library's description; `reason`: what is missing, NULL: nothing; `given` ends with a NULL
 * name. */
void inspect_head(const json_t *root, const char *reason, const char *checkpoint,
                  const inspect_given *given);

#endif
