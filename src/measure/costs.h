/* What a session's newest call cost: the plan's operations with the rows that the call really had. */
#ifndef MEASURE_COSTS_H
#define MEASURE_COSTS_H

#include "ops/ops.h"

struct openpi_session;

typedef struct call_cost {
    op_cost cost;                /* FLOPs, bytes of every operand, weight bytes                           */
    int rows;                    /* in use                                                                */
    double keys;                 /* mean of what the rows attend; 0 where they attend nothing             */
} call_cost;

/* Of plan->ops[index]. */
call_cost costs_of_op(const struct openpi_session *session, int index);

#endif
