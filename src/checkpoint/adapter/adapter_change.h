/* A tensor that an adapter's pair changes: its source adds to what another source reads. */
#ifndef CHECKPOINT_ADAPTER_CHANGE_H
#define CHECKPOINT_ADAPTER_CHANGE_H

#include "base/first_failure.h"
#include "checkpoint/adapter/adapter.h"
#include "checkpoint/source.h"

typedef struct adapter_change {
    char target[ADAPTER_NAME_BYTES];       /* the weight's name in the checkpoint                         */
    const tensor *a, *b;         /* b NULL: a replaces the weight                                         */
    int rank, applied;
    double factor;
    tensor base;                 /* the weight without the change                                         */
    float *a_values, *b_values;  /* NULL: not staged                                                      */
    first_failure *failure;      /* the adapter's first failed read                                       */
} adapter_change;

/* A changed tensor's `place` is its adapter_change. */
extern const tensor_source adapter_source;

#endif
