/* One array of a JAX checkpoint and its tensors. An array that is stacked over layers can only be decoded in
 * order, and its layers do not fit into memory together: one of them is there at a time. */
#ifndef MODEL_ORBAX_ARRAY_H
#define MODEL_ORBAX_ARRAY_H

#include "base/first_failure.h"
#include "checkpoint/jax/lora.h"
#include "checkpoint/jax/orbax_names.h"
#include "checkpoint/jax/zarr_reader.h"
#include "checkpoint/tensors_build.h"

/* One tensor's place in its array. */
typedef struct orbax_part {
    struct orbax_array *array;
} orbax_part;

typedef struct orbax_array {
    const array_rule *rule;
    zarr_array zarr;             /* its name is owned                                                     */
    lora *lora;                  /* NULL: none                                                            */
    dtype type;                  /* its tensors' type: the array's, F32 where LoRA is merged, or BF16     */
    int layers, parts;
    int64_t batch, inputs, channels, outputs;      /* one tensor's axes: see array_rule                   */
    int64_t group;               /* lines that hold one input's outputs                                   */
    int stage;                   /* stage of its first layer; 0: all layers are in stage 0                */
    int sequential;
    int kept;                    /* 1: not rounded while it is decoded                                    */
    zarr_reader *reader;         /* NULL: not begun                                                       */
    int next;                    /* the layer that the reader stands before                               */
    int64_t line;                /* sequential: the line that the reader stands before                    */
    char *data;                  /* the layer that is held, or all; sequential: one line; or NULL         */
    int held;                    /* that layer, of stage 0 the last one; -1: none                         */
    int64_t last_line;           /* sequential: the line in `data`; -1: none                              */
    orbax_part *tensors;         /* [layers][parts]                                                       */
    first_failure *failure;      /* the checkpoint's first failed read                                    */
} orbax_array;

/* Reads the header of values' KEY/.zarray and the sizes that it has. To be closed also where it fails. */
openpi_status orbax_array_open(const array_rule *rule, const values *values, const char *key, orbax_array *a,
                               openpi_error *error);
void orbax_array_close(orbax_array *a);
openpi_status orbax_array_tensors(orbax_array *a, tensors *list, const char *folder, openpi_error *error);
/* How these are read; a tensor's `place` is its orbax_part (orbax_source.c). */
extern const struct tensor_source orbax_source;

/* 1: matrices of all layers, too large for stage 0. */
int orbax_array_is_stacked(const orbax_array *a);
int orbax_part_layer(const orbax_part *part);

/* on 1: tensors but a sequential one become bf16, rounded while they are decoded; 0: as they are stored. What
 * was decoded is dropped. */
void orbax_array_round(orbax_array *a, int on);

/* Decodes a layer, or all of an array of stage 0, unless it is held. Back to an earlier layer begins anew. */
openpi_status orbax_array_hold(orbax_array *a, int layer, const decode_watch *watch, openpi_error *error);
/* Frees what is held. */
void orbax_array_drop(orbax_array *a);
/* And closes its files: reading begins anew. */
void orbax_array_release(orbax_array *a);

/* The part's bytes in memory; NULL: its layer is not held. */
const char *orbax_part_data(const orbax_part *part);
/* Of a sequential array: bytes from … of the tensor. */
openpi_status orbax_array_read(orbax_array *a, uint64_t from, size_t bytes, char *out, openpi_error *error);

#endif
