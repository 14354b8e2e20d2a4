/* Figures that others published for the workload that bench runs by default, for pictures that set them side
 * by side. */
#ifndef CLI_PUBLISHED_H
#define CLI_PUBLISHED_H

enum { PUBLISHED_BATCHES = 7 };

typedef struct published_series {
    const char *name;            /* system, and what is to be known of it                                 */
    double samples_per_s[PUBLISHED_BATCHES];
} published_series;

/* π0 of full size, bf16, 3 cameras, 20 prompt tokens, horizon 10, 10 steps; device boundary. */
extern const int published_batches[PUBLISHED_BATCHES];
extern const published_series published[];                 /* a NULL name ends                            */

#endif
