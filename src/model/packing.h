/* What weights.c passes to packing.c: every matrix and vector of a model, what it is made of and its place
 * in the model's block. A job is made of tensors on top of each other, or of numbers computed beforehand;
 * never of both. */
#ifndef MODEL_PACKING_H
#define MODEL_PACKING_H

#include <stdatomic.h>

#include "backend/backend.h"
#include "base/threads.h"
#include "checkpoint/tensors.h"

enum { JOB_PARTS = GENERATED_PARTS };

/* Elements first … end-1 of a row or a column times 2^(sign·powers), whose `count` numbers repeat. */
typedef struct scaling {
    const int8_t *powers;                  /* NULL: nothing changes                                         */
    int count, first, end, sign;
    int plus_one;                          /* the first of this many elements are gains of 1 + w            */
} scaling;

/* The power of element i. */
static inline int scaling_power(const scaling *s, int i) {
    return s->powers && i >= s->first && i < s->end ? s->sign * s->powers[(i - s->first) % s->count] : 0;
}

typedef struct matrix_job {
    matrix *matrix;                        /* n and k count the parts' rows, and the columns taken          */
    const tensor *parts[JOB_PARTS];
    int rows[JOB_PARTS], part_count;
    int column, row_length;                /* first column taken; columns a row has in the file             */
    scaling by_row, by_column;             /* what their elements are multiplied by                         */
    const float *computed;                 /* [n][k], and no parts; NULL: none                              */
    void *to;
    void *scales_to;                       /* on the device; NULL: the format has none                      */
} matrix_job;

typedef struct vector_job {
    const tensor *parts[JOB_PARTS];
    int part_count, count;                 /* count: elements of all parts                                  */
    scaling by;                            /* what their elements are multiplied by                         */
    const float *computed;                 /* [count], and no parts; NULL: none                             */
    void *to;
} vector_job;

/* *damaged is set where a number is NaN or infinite (damage.h). */
openpi_status pack_vectors(device *device, const vector_job *jobs, int count, atomic_int *damaged,
                           openpi_error *error);
/* openpi_progress while a model loads; not 0: loading stops, OPENPI_CANCELLED. */
typedef int (*load_progress)(void *user, const char *what, uint64_t done, uint64_t total);

/* What is in stage 0 must be in memory. Progress is in tasks ("packing weights"), and of matrices that are
 * decoded in bytes ("decoding weights"). */
openpi_status pack_matrices(device *device, const matrix_job *jobs, int count, pool *pool,
                            load_progress progress, void *progress_user, atomic_int *damaged,
                            openpi_error *error);

#endif
