/* Where the arrays of a JAX checkpoint lie: the folder, and its files where they are not in a database. */
#ifndef MODEL_ORBAX_FOLDER_H
#define MODEL_ORBAX_FOLDER_H

#include "checkpoint/jax/values.h"

/* The folder of arrays: this one, its params, or the params of a training run's newest step. The caller frees
 * it; NULL: there is none (or no memory). */
char *orbax_folder_find(const char *folder);

/* Where `params` was found in the folder of a training run: the newest step that is not finished, if that is
 * newer than the one found (*found), as the name of its folder; 1: there is one. */
int orbax_folder_unfinished(const char *run, const char *params, long long *found, char name[256]);

/* The finished steps of the training run that a folder of arrays belongs to, in ascending order (malloc), and
 * which of them it is. *count 0: it is of no run. */
openpi_status orbax_folder_steps(const char *params, long long **steps, int *count, long long *step,
                                 openpi_error *error);

/* 1: an OCDBT database; 0: a folder an array and a file a chunk (Orbax's use_ocdbt=False). */
int orbax_folder_is_database(const char *params);
/* Those files, as keys and values. */
openpi_status orbax_folder_list(const char *params, values **out, openpi_error *error);

/* Where orbax_folder_find found nothing: OPENPI_OK if nothing of Orbax is there either, else the sentence
 * that says what is missing and why. */
openpi_status orbax_folder_explain(const char *folder, openpi_error *error);

#endif
