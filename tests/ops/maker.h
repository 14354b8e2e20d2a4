/* How problem.c makes operands, for the file that makes those of the parts (problem_parts.c). */
#ifndef OPS_MAKER_H
#define OPS_MAKER_H

#include "harness.h"

typedef struct maker {
    problem *p;
    dice *r;
    int failed;
} maker;

#define AT(member) offsetof(op, member)

/* The first `used` of count elements random with the standard deviation `scale`, around `mean`; the rest
 * poison. */
void *maker_add(maker *m, const char *name, size_t field, role role, dtype type, size_t count, size_t used,
                double scale, double mean);
/* act [rows and spare ones][columns], rows in use random unless it is an output. */
void maker_add_act(maker *m, const char *name, size_t field, role role, int rows, int columns);
void maker_add_floats(maker *m, const char *name, size_t field, int count, double scale);
/* Norm weights, biases or gates [count]; after them, with poison between, those of known rows. */
void maker_add_modulation(maker *m, const char *name, size_t field, int count, double scale, double mean);
/* count, sample, position, keys and maybe which are known; places start at `start`. */
void maker_add_rows(maker *m, size_t field, int start);
/* A scattered order of rows. */
void maker_add_out_rows(maker *m, size_t field);
void maker_add_norm(maker *m, size_t field);
/* Angles of so many places. */
void maker_add_rope(maker *m, size_t field, int places);
/* Keys and values, the first `used` places of each sample random. */
void maker_add_cache(maker *m, size_t field, int capacity, int used);

/* problem_parts.c */
#define X(kind, member, type) void make_##member(maker *m);
OP_PART_LIST(X)
#undef X

#endif
