/* What π0 and π0.5 do differently, as one table: everything else asks for a trait and not for the variant. */
#ifndef MODEL_VARIANT_H
#define MODEL_VARIANT_H

#include <stddef.h>

#include "openpi.h"

enum { VARIANTS = 2 };

typedef struct variant_traits {
    const char *name;            /* "pi0": in options, configs and files                                    */
    const char *symbol;          /* "π0": in sentences                                                      */
    int state_token;             /* 1: the state is a token before the actions                              */
    int state_in_prompt;         /* 1: the state is written into the prompt unless a config says otherwise */
    int adaptive_norms;          /* 1: the expert's norms take scale, shift and gate from the time          */
    int action_time_mlp;         /* 1: an MLP mixes the time into every action token                        */
    const char *time_mlp_in, *time_mlp_out;      /* tensors of the MLP that takes the time                  */
    int quantiles;               /* 1: q01, q99 normalise unless a config says otherwise; 0: mean and std */
    int max_prompt;              /* tokens, unless a config says otherwise                                  */
} variant_traits;

const variant_traits *variant_of(openpi_variant variant);
/* The variant whose expert has adaptive norms, or the one whose has none: how checkpoints are told apart. */
openpi_variant variant_by_norms(int adaptive);
/* 1 where the `length` bytes of `name` are a variant's. */
int variant_parse(const char *name, size_t length, openpi_variant *out);
/* Refuses a number that is no variant; `what` begins the sentence. */
openpi_status variant_check(openpi_variant variant, const char *what, openpi_error *error);

#endif
