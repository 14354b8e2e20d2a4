/* Costs of a session's latest call: the plan's operations with the rows of that call. */
#ifndef MEASURE_COSTS_H
#define MEASURE_COSTS_H

#include "ops/ops.h"

struct openpi_session;

typedef struct call_cost {
    op_cost cost;                /* FLOPs, bytes of every operand, weight bytes                           */
    int rows;                    /* in use                                                                */
    double keys;                 /* mean number of keys that a row attends; 0: no attention               */
} call_cost;

/* Of plan->ops[index]. */
call_cost costs_of_op(const struct openpi_session *session, int index);

#endif
