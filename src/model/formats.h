/* In which format each group of a model's products is: what users ask for, as a list.
 *
 *   "int8"                         all products but the heads
 *   "expert=int8,ffn=int8x8"       these groups; the others keep the default
 *   "bf16,expert=e4m3,heads=f32"   a format for all, and groups that differ from it
 *   "ffn=int8x8+smooth"            channels are made alike first (smoothing.h), which takes a weight plan
 *   "ffn=int8x8+static"            rows that down reads have one scale a layer, which takes one too
 *
 * weights.c says which matrix is in which group. The embedding table is in none: prompts take rows of it and
 * nothing multiplies by it, so it is f32, bf16 or as in the file. */
#ifndef MODEL_FORMATS_H
#define MODEL_FORMATS_H

#include "ops/ops.h"

/* X(constant, name, weights, input of its products) */
#define FORMAT_LIST(X)                                          \
    X(FORMAT_BF16, "bf16", WEIGHT_BF16, INPUT_ACT)              \
    X(FORMAT_F32, "f32", WEIGHT_F32, INPUT_ACT)                 \
    X(FORMAT_INT8, "int8", WEIGHT_INT8, INPUT_ACT)              \
    X(FORMAT_INT8X8, "int8x8", WEIGHT_INT8_ROW, INPUT_INT8)     \
    X(FORMAT_E4M3, "e4m3", WEIGHT_E4M3, INPUT_ACT)              \
    X(FORMAT_FILE, "file", WEIGHT_F32, INPUT_ACT)

typedef enum product_format {
#define X(constant, name, weights, input) constant,
    FORMAT_LIST(X)
#undef X
    FORMATS                      /* FORMAT_FILE: bf16 where the file has bf16, else fp32                   */
} product_format;

/* X(constant, name) */
#define GROUP_LIST(X)                                                                          \
    X(GROUP_VISION, "vision")          /* the layers of the vision tower, and the projector */ \
    X(GROUP_ATTENTION, "attention")    /* the prefix: q, k, v and o */                         \
    X(GROUP_FFN, "ffn")                /* the prefix: gate, up and down */                     \
    X(GROUP_EXPERT, "expert")          /* all layers of the action expert */                   \
    X(GROUP_HEADS, "heads")            /* patches, state, actions, time, modulations */

typedef enum weight_group {
#define X(constant, name) constant,
    GROUP_LIST(X)
#undef X
    GROUPS
} weight_group;

/* What a model computes in and what it keeps its weights in. */
typedef struct model_types {
    dtype act;                   /* fp32 or bf16                                                           */
    product_format all;          /* what groups have where nothing else was asked for; heads: FORMAT_FILE,
                                    or FORMAT_F32 where `all` is that                                      */
    product_format group[GROUPS];
    int smooth[GROUPS];          /* 1: channels of its 8-bit products are made alike (smoothing.h)         */
    const int8_t *powers;        /* by how much, while a model loads; the caller's. NULL: none are known   */
    int fixed;                   /* 1: rows that ffn's down reads have the scales of a calibration         */
    const float *row_scales;     /* [formats_row_scales] these, while a model loads; the caller's, or NULL */
} model_types;

/* What a calibration has measured. */
typedef struct formats_measured {
    const int8_t *powers;        /* model_types.powers                                                     */
    const float *row_scales[2];  /* model_types.row_scales: of hidden rows as they are; of smoothed ones   */
} formats_measured;

const char *product_format_name(product_format format);
const char *weight_group_name(weight_group group);
weight_type format_weights(product_format format);
matrix_input format_input(product_format format);

/* One format for all. */
model_types formats_all(dtype act, product_format all);
/* Changes *types as a list says. Sentences begin with "weights is". */
openpi_status formats_parse(const char *list, model_types *types, openpi_error *error);
/* The shortest list that says it: "bf16,ffn=int8x8,expert=int8". */
enum { FORMATS_TEXT = 128 };
void formats_write(const model_types *types, char text[FORMATS_TEXT]);
/* The embedding table's. */
product_format formats_embedding(const model_types *types);
/* 1: a group has 8 bits. */
int formats_have_8_bits(const model_types *types);
/* 1: a group is smoothed. */
int formats_smooth(const model_types *types);
/* Gives *types what it needs of it; with `smooth` and `fixed` in mind. */
void formats_take(model_types *types, formats_measured measured);
/* How many row scales there are: of every layer but the last, whose FFN nothing reads. */
int formats_row_scales(const openpi_dims *dims);

#endif
