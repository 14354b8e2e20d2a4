/* A PEFT adapter on a checkpoint, as LeRobot saves it: adapter_config.json and adapter_model.safetensors. A
 * module's pair A [rank][in] and B [out][rank] changes its weight [out][in] to W + factor·B·A; some modules
 * are replaced as a whole (MODEL.md, "PEFT adapters").
 *
 * The sum is made in fp32 while elements are read, so there is no second copy of a weight. Only the factors
 * are in memory, in fp32, from adapter_stage to adapter_release. */
#ifndef MODEL_ADAPTER_H
#define MODEL_ADAPTER_H

#include <jansson.h>

#include "checkpoint/tensors.h"

typedef struct adapter adapter;

enum { ADAPTER_NAME_BYTES = 256 };

/* Reads the config and the names and shapes of the tensors; every pair is whole and of its rank. */
openpi_status adapter_open(const char *folder, adapter **out, openpi_error *error);
void adapter_close(adapter *adapter);

/* 1: tensors of these names are an adapter's, in part at least. */
int adapter_is(const tensors *list);
/* An adapter that is no folder of peft's: the tensors of a file or of a caller, with peft's names or with
 * openpi's (gemma_factors.h), beside which weights of a checkpoint's names replace those. `folder`: where its
 * adapter_config.json lies; NULL: has none, and the tensor "lora_alpha" says alpha where names are peft's.
 * `from` begins sentences. Takes the list over, also where it fails. */
openpi_status adapter_open_list(tensors *list, const char *from, const char *folder, const openpi_dims *dims,
                                adapter **out, openpi_error *error);
const char *adapter_folder(const adapter *adapter);

/* The weights that it changes: how many, the name of one as the checkpoint has it ("….q_proj.weight"), and
 * the adapter's own tensor, for sentences. */
int adapter_count(const adapter *adapter);
const char *adapter_target(const adapter *adapter, int index);
const tensor *adapter_tensor(const adapter *adapter, int index);
/* All of its tensors. */
const tensors *adapter_list(const adapter *adapter);
int adapter_applied(const adapter *adapter, int index);
/* The module as the config names it, "model.….q_proj"; and the config. */
void adapter_module(const adapter *adapter, int index, char module[ADAPTER_NAME_BYTES]);
const struct adapter_config *adapter_settings(const adapter *adapter);
/* The rank of a pair, and what B·A is multiplied by; 0: the weight is replaced. */
int adapter_rank(const adapter *adapter, int index, double *factor);
/* Makes the checkpoint's tensor a changed one: its source wraps the one that it had, and its type is F32; a
 * replacement has the adapter's source and type. The shapes must fit, and once each. */
openpi_status adapter_apply(adapter *adapter, int index, tensor *tensor, openpi_error *error);

/* Reads the factors of the pairs that were applied, once, and refuses what is not finite. */
openpi_status adapter_stage(adapter *adapter, openpi_error *error);
/* Closes its file and frees the factors. */
void adapter_release(adapter *adapter);
/* The sentence of the first read that failed. */
openpi_status adapter_check(const adapter *adapter, openpi_error *error);

/* The list owns the adapter from here on, also where it fails: closes, stages, checks and releases it. */
openpi_status adapter_give(adapter *adapter, tensors *list, openpi_error *error);
/* The adapter that a list owns; NULL: none. */
const adapter *adapter_of(const tensors *list);

/* Tells what the config promises and the file lacks: modules without tensors, layers between those that are
 * changed, and a factor of 0. `base`: the checkpoint's tensors (adapter_missing.c). */
struct notes;
void adapter_tell(const adapter *adapter, const tensors *base, struct notes *notes);

/* {"modules": [{"module", "layers", "rank", "factor"}], "replaced": [name], "unused": n}; NULL: no memory.
 * Modules that differ in their layer only are one row, with "*" for the layer (adapter_describe.c). */
json_t *adapter_describe(const adapter *adapter);

#endif
