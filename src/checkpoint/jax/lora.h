/* LoRA in a JAX checkpoint: two small arrays a and b beside a stacked array W of Gemma. Together they are the
 * change a·b of W's last two axes, which is added in fp32 while a layer of W is decoded (MODEL.md, "LoRA in a
 * JAX checkpoint"). */
#ifndef MODEL_LORA_H
#define MODEL_LORA_H

#include "checkpoint/jax/zarr_reader.h"

enum { LORA_A, LORA_B };

/* Zeros: no factor yet. */
typedef struct lora {
    struct lora_factor {
        zarr_array zarr;         /* its name is owned; NULL: the factor is not there                      */
        zarr_reader *reader;     /* NULL: not begun                                                       */
        int64_t next;            /* the layer that the reader stands before                               */
        float *values;           /* the layer that was decoded last: all of its heads or parts            */
    } factors[2];
    int summed;                  /* 1: every head's a meets the sum of all heads' b (MODEL.md)            */
    int64_t rows, columns, rank; /* W [rows][columns] of one head or part is changed by a [rows][rank] and
                                  * b [rank][columns]                                                     */
} lora;

/* 1: the array's name is that of a factor; then which one, and the name of its W. */
int lora_names(const char *name, char *target, size_t bytes, int *which);

/* Reads the header of a factor, "params.….lora_a". Once each. */
openpi_status lora_add(lora *lora, int which, const values *values, const char *key, openpi_error *error);
/* Both are there and fit W. */
openpi_status lora_check(lora *lora, const zarr_array *w, openpi_error *error);
void lora_close(lora *lora);

/* Decodes the pair's layer. Layers come in ascending order; lora_rewind goes back to the first. */
openpi_status lora_layer(lora *lora, int64_t layer, openpi_error *error);
/* Closes its files and frees its layer. */
void lora_rewind(lora *lora);
/* out[count][columns] = W + a·b in fp32, for `count` lines of W in that layer, the first of them `line`. */
void lora_merge(const lora *lora, dtype type, const void *w, int64_t line, int64_t count, float *out);

#endif
