/* Optimisations by name. Each can be switched off alone, so that what it is worth can be measured and what
 * it does can be checked: a plan without it computes the same actions by other operations, kernels or
 * layouts.
 *
 * A set of switches that are off is a number, bit SWITCH_x for switch x; 0 is the engine with all of them
 * on. */
#ifndef OPS_SWITCHES_H
#define OPS_SWITCHES_H

#include <stdint.h>

#include "openpi.h"

/* X(constant, name, what it does), in the order in which the ladder climbs */
#define SWITCH_LIST(X)                                                                    \
    X(BATCHED_VISION, "batched-vision",                                                   \
      "all pictures of a call in one pass of the vision tower, not a pass a camera")      \
    X(FUSED_QKV, "fused-qkv",                                                             \
      "q, k and v of a layer are one product, not three")                                 \
    X(FUSED_GATE_UP, "fused-gate-up",                                                     \
      "gate and up of an MLP are one product whose sums become GeGLU at once")            \
    X(FUSED_POINTWISE, "fused-pointwise",                                                 \
      "norms, biases, activations, RoPE and residuals happen inside products")            \
    X(FOLDED_CONSTANTS, "folded-constants",                                               \
      "π0: one product before the action MLP's SiLU, not two; its time half is constant") \
    X(FUSED_ATTENTION, "fused-attention",                                                 \
      "attention never writes its scores to memory")                                      \
    X(DEAD_WORK_REMOVAL, "dead-work-removal",                                             \
      "the last prefix layer stops at K and V, which is all that is read")                \
    X(STATE_TOKEN_ONCE, "state-token-once",                                               \
      "π0's state token runs in the first step alone, not in every one")                  \
    X(PRECOMPUTED_MODULATIONS, "precomputed-modulations",                                 \
      "π0.5's adaRMS modulations are computed when a session opens")                      \
    X(MASKED_CAMERAS_DROPPED, "masked-cameras-dropped",                                   \
      "absent cameras are not computed")                                                  \
    X(GRAPH_REPLAY, "graph-replay",                                                       \
      "a call replays one recorded graph")                                                \
    X(DEPENDENT_LAUNCH, "dependent-launch",                                               \
      "a kernel starts before the one before it has ended")                               \
    X(TUNED_TILES, "tuned-tiles",                                                         \
      "tiles come from the tuning table where it has the shape")                          \
    X(PACKED_WEIGHTS, "packed-weights",                                                   \
      "weights are packed for the kernels once, when the model loads")                    \
    X(PERSISTENT_DENOISE, "persistent-denoise",                                           \
      "the layers of a denoise step are one resident kernel (up to four samples)")         \
    X(PERSISTENT_VISION, "persistent-vision",                                             \
      "the layers of the vision tower are one resident kernel (up to three images)")

typedef enum op_switch {
#define X(constant, name, text) SWITCH_##constant,
    SWITCH_LIST(X)
#undef X
    SWITCHES
} op_switch;

/* 1 where `off`, a set, holds the switch. */
static inline int switch_off(uint32_t off, op_switch which) { return (int)(off >> which & 1); }

const char *switch_name(op_switch which);
/* What it does, in a line. */
const char *switch_text(op_switch which);
/* Reads "fused-qkv,graph-replay" (NULL and "": nothing is off). */
openpi_status switches_parse(const char *names, uint32_t *off, openpi_error *error);
/* The set as a list of names, into `bytes` bytes. */
void switches_write(uint32_t off, char *names, size_t bytes);

#endif
