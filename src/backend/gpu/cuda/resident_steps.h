/* Which ops the resident kernel takes as one launch: the layers of a denoise step, its velocity, its guide,
 * and further steps of the same kind. resident_steps.c compares ops and addresses, so it needs no device. */
#ifndef BACKEND_GPU_CUDA_RESIDENT_STEPS_H
#define BACKEND_GPU_CUDA_RESIDENT_STEPS_H

#include "ops/ops.h"

/* The ops of a layer. */
enum {
    QKV,
    ATTENTION,
    OUT,
    GATE_UP,
    DOWN,
    LAYER_OPS,
};

/* Which of the kernels: rows and the norms' shifts are 12 at most; rows are 16 at most, and with their shifts
 * more than 12; rows are more than 16, or those of several samples, with their shift 64 at most. */
typedef enum resident_rows {
    RESIDENT_FEW,
    RESIDENT_APART,
    RESIDENT_LONG,
} resident_rows;

typedef struct resident_chain {
    int ops, depth;                        /* 0: none of it is for the kernel; layers of each step          */
    int steps;                             /* with all their layers                                         */
    int velocity;                          /* 1: also the velocities, and the embeddings between the steps  */
    int guided;                            /* 1: also a guide after each velocity                           */
    int samples;                           /* of each step                                                  */
    resident_rows kind;                    /* as asked for                                                  */
    int floats, in_floats;                 /* from a step to the next: modulations; bias of the embedding   */
} resident_chain;

/* The longest launch that begins at ops[0]. For many rows it is the layers of one step. */
resident_chain resident_chain_of(const op *ops, int count, resident_rows kind);

/* Bytes from layer 0's keys (values: 1) to those of a layer of the step at `ops`. */
ptrdiff_t resident_cache_distance(const op *ops, int layer, int values);
/* Rows that shifts take: the step's, and that of known rows. */
int resident_shifts_of(const op_norm_qkv *q);
/* What is added inside the embedding: π0's half of the MLP for the time, or π0.5's bias. */
const float *resident_embedding_bias(const op_action_embed *a);

#endif
