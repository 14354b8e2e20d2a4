/* What one call takes elsewhere: other systems on the workload that bench runs by default, batch 1. The batch
 * series are published.h.
 *
 * They are references, never measurements of this program: whatever shows them says whose they are. */
#ifndef CLI_SYSTEMS_H
#define CLI_SYSTEMS_H

/* π0 or π0.5 of full size, 3 cameras, 20 prompt tokens, horizon 10, 10 steps; inputs and outputs resident on
 * the device. */
typedef struct other_system {
    const char *variant;         /* pi0 or pi05                                                           */
    const char *who;             /* "published", or "measured by this project" on its own cards           */
    const char *name, *gpu;
    double ms;
    int wrong_masks;             /* its attention masks are not the model's: less work                    */
    const char *caveat;          /* what the figure hides; NULL: nothing known                            */
} other_system;

extern const other_system other_systems[];                 /* a NULL name ends                            */

/* The sentence about the masks that stands below every comparison. */
extern const char other_systems_masks[];

#endif
