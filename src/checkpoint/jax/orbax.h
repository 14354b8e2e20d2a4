/* openpi's JAX checkpoints as Orbax saves them, behind the interface of tensors.h: stacked arrays become one
 * tensor a layer, under openpi's PyTorch names and in PyTorch's order [out, in] (MODEL.md, "Tensors in a JAX
 * checkpoint").
 *
 * A stacked array can only be decoded in order, and all of them do not fit into memory. So tensors have a
 * stage: those of stage 0 are small and read together, those of a later one are a layer of every array. Who
 * wants all tensors goes through the stages, or through each array's layers by themselves. */
#ifndef MODEL_ORBAX_H
#define MODEL_ORBAX_H

#include <jansson.h>

#include "base/threads.h"
#include "checkpoint/tensors.h"

typedef struct orbax orbax;

/* One tensor's place in its array. */
typedef struct orbax_part orbax_part;

/* Finds arrays and adds their tensors to the list. *out belongs to the caller and must stay while the list
 * does. */
openpi_status orbax_open(const char *params, const tensors_options *options, tensors *list, orbax **out,
                         openpi_error *error);
void orbax_close(orbax *orbax);
/* Closes its files and forgets what was decoded. Reading begins anew. */
void orbax_release(orbax *orbax);

/* on 1: tensors but the sequential one become bf16, rounded while they are decoded; 0: as they are stored.
 * What was staged is forgotten. */
void orbax_round(orbax *orbax, int on);
dtype orbax_part_type(const orbax_part *part);
/* The part's array stays as it is stored whatever orbax_round says: something is to be added to it. */
void orbax_part_keep(orbax_part *part);

int orbax_stages(const orbax *orbax);
/* Decodes the tensors of a stage, arrays side by side; those of other stages but 0 are dropped. Going back to
 * an earlier stage decodes from the start. pool NULL: by the calling thread. */
openpi_status orbax_stage(orbax *orbax, int stage, pool *pool, openpi_error *error);

int orbax_part_stage(const orbax_part *part);
/* 1: never in memory as a whole, to be read in ascending order by one thread (the embedding table). */
int orbax_part_is_sequential(const orbax_part *part);
/* As the file has it. */
dtype orbax_part_stored_type(const orbax_part *part);

/* What identifies the part's array; NULL: it is in stage 0. */
const void *orbax_part_array(const orbax_part *part);
/* Decodes the part's layer of its array; the layer before is dropped. Several threads may, each with arrays
 * of its own. */
openpi_status orbax_part_hold(const orbax_part *part, const decode_watch *watch, openpi_error *error);
/* Drops what the array holds, and closes its files. */
void orbax_part_release(const orbax_part *part);

/* Bytes from … of the tensor, which must be held or sequential. A failure gives zeros, and orbax_check its
 * sentence. */
void orbax_part_read(const orbax_part *part, uint64_t from, size_t bytes, void *out);
openpi_status orbax_check(const orbax *orbax, openpi_error *error);

/* The rank, the name and the layers of the index-th array that LoRA changes; 0: there are not so many. */
int orbax_lora(const orbax *orbax, int index, const char **array, int *layers);
/* Arrays of LoRA that were not looked at. */
int orbax_lora_left_out(const orbax *orbax);
/* Chunks that are zeros because they are not there; *why: the sentence that says so. */
int orbax_missing_chunks(const orbax *orbax, const char **why);
/* Heads of the vision tower, which only this layout tells; 0: the array is not there. */
int orbax_vision_heads(const orbax *orbax);

/* Files that are read, and the size of one. */
int orbax_files(const orbax *orbax);
const char *orbax_file(const orbax *orbax, int index, uint64_t *bytes);
/* {"params": the folder of arrays, "arrays": how many, "missing_chunks": where zeros stand for some; of a
 * training run also "step" and all its "steps"}; a new reference. */
openpi_status orbax_describe(const orbax *orbax, json_t **out, openpi_error *error);

#endif
