/* A tensor that an adapter's pair changes: its source adds to what another source reads. */
#ifndef CHECKPOINT_ADAPTER_CHANGE_H
#define CHECKPOINT_ADAPTER_CHANGE_H

#include "base/first_failure.h"
#include "checkpoint/adapter/adapter.h"
#include "checkpoint/adapter/adapter_config.h"
#include "checkpoint/adapter/gemma_factors.h"
#include "checkpoint/source.h"

typedef struct adapter_change {
    char target[ADAPTER_NAME_BYTES];       /* the weight's name in the checkpoint                         */
    const tensor *a, *b;         /* b NULL: a replaces the weight                                         */
    gemma_factor gemma;          /* rule not NULL: a and b are stacked, and this is a layer and its part  */
    int layer, part;
    int rank, applied;
    double factor;
    tensor base;                 /* the weight without the change                                         */
    float *a_values, *b_values;  /* [out / rows][rank][in], [out][rank]; NULL: not staged                 */
    int64_t rows;                /* rows of the weight with one A                                         */
    first_failure *failure;      /* the adapter's first failed read                                       */
} adapter_change;

struct adapter {
    char *folder;                /* or the file's path, for sentences                                     */
    adapter_config config;       /* root NULL: it has none                                                */
    double alpha;                /* where it has none                                                     */
    openpi_dims dims;            /* the model's, where factors are stacked                                */
    tensors *tensors;
    adapter_change *changes;
    int count, staged;
    first_failure failure;       /* the first failed read                                                 */
};

/* For `count` changes. */
openpi_status adapter_make_room(adapter *adapter, int count, openpi_error *error);
/* 1: the tensor's name is peft's. */
int adapter_has_peft_name(const tensor *t);
/* The change of a tensor with peft's name; a pair's is added with its A. */
openpi_status adapter_add_peft(adapter *adapter, const tensor *t, openpi_error *error);

/* A changed tensor's `place` is its adapter_change. */
extern const tensor_source adapter_source;

#endif
