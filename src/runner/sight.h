/* An observation that a runner keeps until it is computed: copied, or with pictures that stay where they
 * are. */
#ifndef RUNNER_SIGHT_H
#define RUNNER_SIGHT_H

#include "openpi.h"

enum { SIGHT_PICTURES = 8, SIGHT_NAME = 128 };

/* Begins as all zeros, for sight_free. Its memory stays for the next observation. */
typedef struct sight {
    double taken;
    openpi_observation observation;                    /* points into this struct                         */
    openpi_image images[SIGHT_PICTURES];
    char names[SIGHT_PICTURES][SIGHT_NAME];
    uint8_t *pixels[SIGHT_PICTURES];                   /* [capacity], copies                              */
    size_t capacity[SIGHT_PICTURES];
    double state[OPENPI_ACTION_DIM];
    char *prompt;
    size_t prompt_capacity;
    void (*release)(void *user);                       /* gives lent pictures back; NULL: none are       */
    void *user;
} sight;

/* Fills it, without pictures that it holds. `copies` 0: pictures stay where they are. On failure nothing is
 * lent. */
openpi_status sight_fill(sight *sight, const openpi_observation *observation, int copies,
                         openpi_error *error);
/* Gives lent pictures back, once. */
void sight_release(sight *sight);
void sight_free(sight *sight);

/* Bytes of a pixel in the innermost row: 3 or 4 elements, or one where there are planes. */
size_t sight_pixel_bytes(const openpi_image *image);
/* Its rows: height, or three planes of them. 0: a field is out of its range. */
int sight_rows(const openpi_image *image);
const uint8_t *sight_row(const openpi_image *image, int row);

#endif
