/* EXIF orientation: how a picture must be turned to stand upright. */
#ifndef POLICY_ORIENTATION_H
#define POLICY_ORIENTATION_H

#include "openpi.h"

/* The orientation that a file's EXIF states: 1 (upright) … 8, or another number where it states one that EXIF
 * does not define; 0 where there is no EXIF or none that holds an orientation. Any bytes may be given. */
int orientation_of_jpeg(const uint8_t *bytes, size_t count);
int orientation_of_png(const uint8_t *bytes, size_t count);
/* Of EXIF's own bytes, which are a TIFF file's: the header, then a directory of tags. */
int orientation_of_tiff(const uint8_t *bytes, size_t count);

/* pixels: [*height][*width][3] as stored, malloc. Turns the picture upright for an orientation of 1 … 8:
 * orientations from 5 on swap height and width. Returns `pixels` or, in its place, another block (malloc);
 * NULL where there is no memory: `pixels` is then still the caller's. */
uint8_t *orientation_apply(int orientation, uint8_t *pixels, int *height, int *width);

#endif
