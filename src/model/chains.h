/* Matrices of a JAX checkpoint in the order in which they can be packed. An array is decoded layer after
 * layer, so the matrices that are made of it are packed one after the other: a chain. Matrices that share an
 * array are in one chain, so a thread can work through it alone, and no two chains wait for each other. */
#ifndef MODEL_CHAINS_H
#define MODEL_CHAINS_H

#include "model/packing.h"

typedef struct chain {
    int first, count;            /* range of chains.jobs                                                  */
    uint64_t bytes;              /* that are decoded for it                                               */
} chain;

/* Zeros: none. */
typedef struct chains {
    chain *list;                 /* the longest first                                                     */
    const matrix_job **jobs;     /* those of a chain in the order of their layers                         */
    int count, job_count;
    uint64_t bytes;
} chains;

/* 1: the job is made of an array that has to be decoded in order. */
int chains_take(const matrix_job *job);
/* The jobs that chains_take names. To be freed also where it fails. */
openpi_status chains_make(const matrix_job *jobs, int count, chains *out, openpi_error *error);
void chains_free(chains *c);

#endif
