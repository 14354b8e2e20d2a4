/* What the bounds of all ops share. */
#ifndef OPS_BOUNDS_H
#define OPS_BOUNDS_H

#include "harness.h"

/* Length and largest element of a row after its norm. */
typedef struct row_size {
    double length, top;
    int top_may_round;           /* 1: in bf16 the largest element may be its neighbour                   */
} row_size;

extern const double bounds_unit, bounds_products;

row_size bounds_row(const norm *norm, const void *x, dtype type, size_t at, int k);
/* n elements of an output from `at` on may be so far off; a stored result may be the neighbour on top of
 * that. */
void bounds_fill_row(const problem *p, buffer *b, size_t at, int n, double error);

/* problem_parts.c */
#define X(kind, member, type) void bound_##member(problem *p, int row);
OP_PART_LIST(X)
#undef X

#endif
