/* The places where a policy's files are looked for while it opens. */
#ifndef POLICY_POLICY_SOURCE_H
#define POLICY_POLICY_SOURCE_H

#include "checkpoint/place.h"
#include "policy/policy.h"

typedef struct policy_source {
    const char *checkpoint;      /* as given, may be NULL                          */
    const model_place *place;    /* place of its weights and their adapter         */
    char *folder;                /* folder with the files beside the weights, NULL: in memory */
    char *second;                /* the base's where `folder` is its adapter's; NULL */
    openpi_policy_options options;             /* its synthetic is the one below   */
    openpi_synthetic synthetic;
} policy_source;

/* Sets *path to folder/name if that exists, else to NULL. */
openpi_status policy_find_file(const char *folder, const char *name, char **path, openpi_error *error);

/* The caller's tokenizer, the checkpoint's own or the cache's (policy_tokenizer.c). */
openpi_status policy_open_tokenizer(const policy_source *from, openpi_policy *policy, openpi_error *error);

#endif
