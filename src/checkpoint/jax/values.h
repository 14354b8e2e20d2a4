/* A list of keys and where their values lie: in a file or in memory. What ocdbt.c and orbax.c make of a
 * folder, and zarr.c reads arrays from. */
#ifndef MODEL_VALUES_H
#define MODEL_VALUES_H

#include <stddef.h>
#include <stdint.h>

#include "openpi.h"

typedef struct stored_value {
    const char *key;
    const char *file;            /* its path; of a value in memory what sentences call its place          */
    uint64_t at, bytes;          /* where in the file                                                     */
    const unsigned char *data;   /* in memory; NULL: in the file                                          */
} stored_value;

typedef struct values values;

values *values_create(void);               /* NULL when out of memory */
void values_close(values *values);

/* Adds a value; key, path and, where not NULL, the bytes at `data` are copied. */
openpi_status values_add(values *values, const char *key, const char *file, uint64_t at, uint64_t bytes,
                         const void *data, openpi_error *error);
/* Once all are there: orders keys for values_find and refuses two of one name. `name` leads the sentence. */
openpi_status values_finish(values *values, const char *name, openpi_error *error);

int values_count(const values *values);
const stored_value *values_at(const values *values, int index); /* in order of keys once finished */
const stored_value *values_find(const values *values, const char *key);    /* NULL if absent */

/* Files that hold values, and those noted besides; each once, in order once finished. */
openpi_status values_note_file(values *values, const char *file, openpi_error *error);
int values_files(const values *values);
const char *values_file(const values *values, int index);

/* All bytes of a value of at most `limit` (malloc; one 0 byte follows the end). */
openpi_status value_read(const stored_value *value, size_t limit, char **data, openpi_error *error);

#endif
