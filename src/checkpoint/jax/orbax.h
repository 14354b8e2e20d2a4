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

#include "checkpoint/tensors.h"

/* What becomes of chunks that a checkpoint lacks. */
typedef enum missing_chunks {
    MISSING_REFUSED,             /* unless the checkpoint says that chunks of zeros were not saved        */
    MISSING_ZERO,                /* zeros, unless the checkpoint says that every chunk was saved          */
    MISSING_UNSEEN,              /* nobody looks: names and shapes only are wanted                        */
} missing_chunks;

struct notes;
typedef struct orbax_options {
    int without_lora;            /* 1: its LoRA pairs are left out: the base as it was before the training */
    missing_chunks missing;
    struct notes *notes;         /* what is to be told; NULL: nobody                                      */
} orbax_options;

/* The folder's arrays become tensors of the list. Call tensors_finish afterwards. */
openpi_status orbax_read(tensors *list, const char *params, const orbax_options *options,
                         openpi_error *error);

/* What a list knows as a JAX checkpoint; NULL: it is none. Of NULL the functions below tell nothing: 0, and
 * no text. It is the list's. */
typedef struct orbax orbax;
const orbax *orbax_of(const tensors *list);

/* The rank of the index-th array that LoRA changes, its name and its layers; 0: there are not so many. */
int orbax_lora(const orbax *orbax, int index, const char **array, int *layers);
/* The arrays of LoRA that orbax_options.without_lora left out. */
int orbax_lora_left_out(const orbax *orbax);
/* The chunks that are zeros because they are not there; *why: the sentence that says so. */
int orbax_missing_chunks(const orbax *orbax, const char **why);
/* Heads of the vision tower, which only this layout tells; 0: the array is not there. */
int orbax_vision_heads(const orbax *orbax);
/* {"params": the folder of arrays, "arrays": how many, "missing_chunks": where zeros stand for some; of a
 * training run also "step" and all its "steps"}; a new reference. *out NULL: it is no JAX checkpoint. */
openpi_status orbax_describe(const orbax *orbax, json_t **out, openpi_error *error);

#endif
