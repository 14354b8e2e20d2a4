/* What a JAX checkpoint lacks: chunks of its arrays, and arrays that its own list of parameters names.
 *
 * Zarr reads zeros where a chunk is not there, and Orbax saves such a checkpoint where its _METADATA says
 * "store_array_data_equal_to_fill_value": false. openpi's Orbax writes true: every chunk was saved, so one
 * that is not there was lost. */
#ifndef MODEL_ORBAX_GAPS_H
#define MODEL_ORBAX_GAPS_H

#include "checkpoint/jax/orbax.h"
#include "checkpoint/jax/zarr.h"

enum { ORBAX_GAP = 500 };

typedef struct orbax_gaps {
    const char *params;
    const values *values;
    /* By _METADATA. */
    enum { SAVED_UNKNOWN, SAVED_ALL, SAVED_WITHOUT_ZEROS } saved;
    int chunks;                  /* that are not there                                                    */
    char first[ORBAX_GAP];       /* array, chunk and file of the first of them                            */
    char empty[ORBAX_GAP];       /* of the first chunk that is there without a byte                       */
    char why[400];               /* why zeros stand for them; empty: they do not, or nothing is missing   */
} orbax_gaps;

/* Reads _METADATA, if it is there. An array that it names must be there, and the header of every array that
 * has chunks; without_lora 1: those of LoRA need not be. Folder and values must stay while gaps are looked
 * for. */
openpi_status orbax_gaps_begin(orbax_gaps *gaps, const char *params, const values *values, int without_lora,
                               openpi_error *error);
/* Counts the chunks that the array lacks. */
void orbax_gaps_look(orbax_gaps *gaps, const zarr_array *array);
/* A chunk without a byte is refused. Where chunks are missing: refused, or `why` says that zeros stand for
 * them. */
openpi_status orbax_gaps_end(orbax_gaps *gaps, missing_chunks missing, openpi_error *error);

#endif
