/* Every operation, at every level of every backend, against its scalar definition.
 *
 *   problem.c   one op with random operands on the host, in canonical layouts: what the definition makes of
 *               them, and how far each element may be from it
 *   bounds.c    that distance
 *   problem_parts.c  both for the ops that fused ones are made of
 *   moved.c     the same op with its rows in other places
 *   trial.c     the same op on a device: operands packed and surrounded with guards, outputs poisoned,
 *               results compared
 *   timing.c    full-size ops without comparison: time against the machine's roofs
 *   functions.c the error of exp, gelu and silu over their whole range
 *   main.c      which cases, which levels, the report */
#ifndef OPS_HARNESS_H
#define OPS_HARNESS_H

#include "backend/backend.h"
#include "base/threads.h"
#include "ops/shapes.h"

enum { BUFFERS = 16, MATRICES = 3, CANDIDATES = 512 };

/* Beside the options of shapes.h: output o is input o, without bias, and must be it exactly. */
enum {
    SHAPE_COPY = 1 << 16,
    SHAPE_BATCH = 1 << 17,       /* 64 samples                                                            */
    SHAPE_IMAGE = 1 << 18,       /* scores, values: of images, not of a cache                             */
    SHAPE_RAW = 1 << 19,         /* weights stay row-major                                                */
    SHAPE_KNOWN = 1 << 21,       /* some rows are known: they have a norm or a gate of their own          */
    SHAPE_SUFFIX = 1 << 22,      /* always in the denoise stage; other shapes of few rows now and then     */
    SHAPE_HARD = 1 << 23,        /* linear_residual: rows that 8 bits find hard (problem.c)               */
    SHAPE_FIXED = 1 << 24,       /* linear_residual: integer rows have one scale, which clips some        */
    SHAPE_LOUD = 1 << 20,        /* queries LOUD times as large: exp of a score is infinite, in double too*/
};

/* A power of two, so that bf16 keeps its bits. Scores are about 512 apart, the largest of many above 710. */
enum { LOUD = 512 };

typedef enum role { ROLE_IN, ROLE_OUT, ROLE_INOUT, ROLE_KEYS, ROLE_VALUES } role;

/* An operand that an op points to. */
typedef struct buffer {
    const char *name;
    size_t field;                /* where in the op the pointer stands                                    */
    role role;
    dtype type;
    size_t count;                /* elements                                                              */
    void *data;                  /* as the op finds it                                                    */
    void *expected;              /* OUT, INOUT, KEYS, VALUES: as the definition leaves it                 */
    float *bound;                /* [count] allowed distance from it; INFINITY: written, but the definition
                                    did not do this row                                                   */
} buffer;

typedef struct problem_matrix {
    size_t field;                /* where in the op the matrix stands                                     */
    void *data;                  /* row-major codes                                                       */
    float *scales;               /* as weights.h orders them; NULL: none                                  */
    size_t scale_bytes;
    float *norms;                /* [n] Euclidean length of each row                                      */
    float top;                   /* largest |w|                                                           */
} problem_matrix;

typedef struct problem {
    op_shape shape;              /* as it is run: rows and columns may be fewer than in the real shape    */
    dtype type;
    weight_type weights;
    matrix_input input;          /* INPUT_INT8 where the weights are for it and the op takes it           */
    int samples;
    op op;                       /* over the host's canonical operands                                    */
    buffer buffers[BUFFERS];
    problem_matrix matrices[MATRICES];
    int buffer_count, matrix_count;
    int32_t *row_tables[4];      /* count, sample, position, keys                                         */
    int capacity;
    int checked;                 /* rows that the definition does: all, or this many spread over them     */
    int unknown;                 /* bounds.c: the row at hand is not among them                           */
} problem;

typedef struct dice {
    uint64_t state;
} dice;
double random_uniform(dice *r);                      /* [-1, 1)                                         */
int random_below(dice *r, int n);

/* The definition does `checked` rows; 0: none, only operands are made (for timing). Returns 0 when out of
 * memory. */
int problem_make(problem *p, const op_shape *shape, dtype type, weight_type weights, int samples, dice *r,
                 pool *pool, int checked);
int problem_checks(const problem *p, int row);
void problem_free(problem *p);
buffer *problem_buffer(problem *p, const char *name);
/* The value of element i. */
double problem_value(const void *data, dtype type, size_t i);
/* Bits that no computation leaves: a NaN with a pattern. */
void poison(void *data, dtype type, size_t count);
int is_poison(const void *data, dtype type, size_t i);

/* How far rows, and the samples whose cache they read, are moved. */
typedef struct move {
    int rows, samples;
} move;
/* By chance; no rows: those of this op cannot be moved. */
move moved_by(const problem *p, dice *r);
/* Row r of `to` is row (r + by.rows) % rows of `from`, whose other operands it shares. 0: out of memory. */
int moved_make(problem *to, const problem *from, move by);
void moved_free(problem *to, const problem *from);
/* What of a buffer moves: the first `all` elements, and of these the ones from `first` on come first. */
typedef struct rotation {
    size_t first, all;
} rotation;
rotation moved_part(const problem *p, const buffer *b, move by);

/* Fills the bounds of every buffer that has an expectation. */
void bounds_fill(problem *p);

typedef struct verdict {
    int ok;
    double worst;                /* largest distance in units of its bound                                */
    double neighbours;           /* largest part of a bf16 result that is not exactly as expected         */
    char detail[500];
} verdict;

/* How large a part of a level's bf16 results may be the neighbour of what is expected. */
typedef struct allowance {
    double neighbours, attention_neighbours;
} allowance;

/* Runs the problem on two devices of one level, `device` with many threads and `single` with one; a GPU is
 * both. */
verdict trial_run(problem *p, device *device, struct device *single, allowance allowed, dice *r);

/* One line of timing under `roofs`, or under roofs measured again right before it. */
void timing_run(const op_shape *shape, dtype type, device *device, pool *pool, dice *r, device_roofs roofs,
                int again);
void timing_head(device *device, pool *pool, dtype type, device_roofs *roofs);

/* Of the CPU's element functions; a verdict a level. */
verdict functions_run(device *device);

#endif
