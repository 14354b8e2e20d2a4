/* Recordings of ranges of Euler steps, each made at the first call that asks for it.
 *
 * A session's whole denoising is recorded when it opens (call_kinds.h). A caller that goes step by step asks
 * for few ranges again and again. What they take of the device is bounded by the number of recorded steps:
 * RANGES_SHARE times the session's. Beyond that the range goes that was used least lately. */
#ifndef TUNING_STEP_RANGES_H
#define TUNING_STEP_RANGES_H

#include "tuning/call_kinds.h"

enum { RANGES_SHARE = 4 };

typedef struct step_range {
    int from, to, kind;          /* kind: whose choices it was recorded with (call_kinds.same_as)          */
    uint64_t used;               /* the turn in which it was replayed last                                 */
    struct recording *recording;
} step_range;

typedef struct step_ranges {
    call_kinds *kinds;           /* the steps' list has these                                              */
    step_range *list;            /* [RANGES_SHARE·steps]                                                   */
    int count, steps;            /* steps: of all ranges together                                          */
    int cannot;                  /* 1: the device could not record one, and is not asked again             */
    uint64_t turns, recorded;    /* recorded: how many there were, also those that went                    */
} step_ranges;

openpi_status step_ranges_open(step_ranges *ranges, call_kinds *kinds, openpi_error *error);
/* What replays the steps from … to-1 for calls of this kind, whose choices the ops have; recorded now where
 * it is asked for the first time. *out NULL: they run op by op. Fails where the device does. */
openpi_status step_ranges_find(step_ranges *ranges, int from, int to, int kind, void *work,
                               struct recording **out, openpi_error *error);
/* Gives the recordings back to the device. */
void step_ranges_forget(step_ranges *ranges);
/* Frees host memory only. */
void step_ranges_close(step_ranges *ranges);

#endif
