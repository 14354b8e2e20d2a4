/* How far two sets of actions lie apart, in figures that a person can judge, and what bounds say of them. */
#ifndef QUANTIZE_DIFFERENCES_H
#define QUANTIZE_DIFFERENCES_H

#include "model/w8_plan.h"
#include "openpi.h"

/* Actions of all observations. */
typedef struct chunks {
    float *model;                /* [observations][horizon][32], normalised                               */
    double *robot;               /* [observations][horizon][dims], the robot's units                      */
} chunks;

typedef struct chunks_shape {
    int observations, horizon, dims;
    const openpi_policy *policy; /* names and units                                                       */
} chunks_shape;

typedef struct distance_figures {
    double rms, p99, p999, max;
} distance_figures;

/* σ: a unit of normalised actions: a standard deviation of the training data, or half of what lies between
 * their 1 % and 99 % quantiles where a model is normalised by those. */
typedef struct differences {
    distance_figures all;        /* all dimensions, σ                                                     */
    distance_figures sigma[OPENPI_ACTION_DIM], unit[OPENPI_ACTION_DIM];    /* each dimension; robot units */
    int flipped;                 /* gripper actions on the other side of the middle, by more than 0.1 σ   */
} differences;

openpi_status differences_of(const chunks_shape *shape, const chunks *a, const chunks *b, differences *out,
                             openpi_error *error);
/* rms of one observation's chunk, σ. */
double differences_chunk(const chunks_shape *shape, const chunks *a, const chunks *b, int observation);

/* What the user allows. rms 0: none was given. */
typedef struct bounds_given {
    double rms;
    const char *units;           /* "joint 0.3deg, gripper 0.01"; NULL: none                              */
} bounds_given;

/* Makes a list of bounds: "rms", "p99.9", "flipped grippers", and for each dimension that a word of `units`
 * means the largest difference in its unit. Where only `units` is given, rms and p99.9 are not bound. */
openpi_status bounds_make(const chunks_shape *shape, const bounds_given *given, w8_bound *list, int *dims,
                          int *count, openpi_error *error);
/* Fills `found`; dims[i]: the dimension that bound i is of. Returns the largest share of a bound. */
double bounds_fill(const differences *d, w8_bound *list, const int *dims, int count);

#endif
