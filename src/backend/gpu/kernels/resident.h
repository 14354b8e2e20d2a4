/* What the host hands to the resident denoise kernel, and the sizes both sides agree on. Plain C, read by both compilers.
 *
 * Blocks talk through exchanges in the work block: arrays of 16-byte packets, three pairs of bf16 (or three floats) and a
 * tag that names the phase that wrote them. The host clears them before every launch, so a tag is never old. */
#ifndef BACKEND_GPU_KERNELS_RESIDENT_H
#define BACKEND_GPU_KERNELS_RESIDENT_H

#include "args.h"

enum {
    RESIDENT_ROWS = 16,                    /* most                                                            */
    RESIDENT_LAYERS = 32,                  /* most                                                            */
    RESIDENT_SPLITS = 16,                  /* of the keys of a head, a block each                             */
    RESIDENT_SPAN = 64,                    /* most keys a split                                               */
    RESIDENT_HEAD = 256,                   /* head_dim                                                        */
    RESIDENT_PIECE = 16384,                /* a stage of the ring: 16 atoms or 32 keys                        */
    RESIDENT_BOX_KEYS = 32,
    RESIDENT_STAGES = 12,                  /* most                                                            */
    RESIDENT_UNITS = 4,                    /* most units of 16 packed columns a block in one phase            */
    RESIDENT_THREADS = 544,                /* 16 warps multiply, one copies                                   */
    RESIDENT_PARTS = RESIDENT_UNITS * 2 * 8 * 512,         /* bytes: sums of 8 warps, a group of 8 columns 512 */
    RESIDENT_PAIR_PARTS = 2 * 8 * 512,
    RESIDENT_ACTIONS = 32,                 /* width of an action                                              */
    /* Shared memory behind the ring, the operand and the sums. */
    RESIDENT_ROPE = RESIDENT_UNITS * RESIDENT_ROWS * 64,
    RESIDENT_SMALL = RESIDENT_ROPE + GPU_ATOM_BYTES + RESIDENT_ROWS * RESIDENT_ACTIONS * 4,
};

typedef struct resident_layer {
    const void *qkv, *o, *gate_up, *down;
    const float *scale_in, *shift_in, *gate_in;            /* of step 0; shift and gate may be NULL           */
    const float *scale_post, *shift_post, *gate_post;
} resident_layer;

typedef struct gpu_resident {
    gpu_tensor_map k, v;                   /* [layers][places][256], boxes of 32 places x 64 dims, swizzled   */
    resident_layer layers[RESIDENT_LAYERS];
    const int32_t *position, *keys;
    int capacity;                          /* rows: of one sample all are there                               */
    int width, mlp, heads, depth, steps;
    int stages, flight;                    /* of the ring; pieces that may be on their way                    */
    int operand;                           /* bytes of the operand                                            */
    int step_floats;                       /* from a step's norm parameters and gates to the next one's       */
    float eps, scale, dt, by_width;        /* by_width: 1 / width                                             */
    uint32_t by_units, by_heads[2], by_mlp[2];             /* reciprocals (resident_packets.cuh) of the units of width, of
                                              the ranks' parts of the heads' outputs and of the hidden ones   */
    const float *rope;
    const void *in, *mlp_out, *out;        /* mlp_out NULL: actions go straight in; else `in` is fp32, without a bias */
    const float *in_bias, *time, *mlp_out_bias, *out_bias; /* time: [steps][width]                            */
    const float *scale_out, *shift_out;
    float *x_t, *velocity;                 /* [rows][32]                                                      */
    /* Exchanges of `packets` x units, unit the faster: x twice in turn, the rest once. */
    char *x[2], *q, *k_new, *v_new, *part, *attended, *hidden, *embed;
    uint64_t *stamps;                      /* [steps][depth + 1] and one more, or NULL: nanoseconds at the start of a step, the
                                              end of each layer, the end of all                               */
} gpu_resident;

#endif
