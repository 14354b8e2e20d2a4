/* EXIF orientation: how a picture must be rotated or mirrored to be upright. */
#ifndef POLICY_ORIENTATION_H
#define POLICY_ORIENTATION_H

#include "openpi.h"

/* The orientation in a file's EXIF: 1 (upright) … 8, or another number if the file holds one that EXIF does
 * not define; 0: the file has no EXIF or no orientation in it. Any bytes may be given. */
int orientation_of_jpeg(const uint8_t *bytes, size_t count);
int orientation_of_png(const uint8_t *bytes, size_t count);
/* The same from EXIF's own bytes: a TIFF header, then a directory of tags. */
int orientation_of_tiff(const uint8_t *bytes, size_t count);

/* Makes a picture upright that has an orientation of 1 … 8; from 5 on height and width are swapped. pixels
 * [*height][*width][3] as stored, malloc. Returns `pixels`, or a new block (malloc) and frees `pixels`; NULL:
 * out of memory, and `pixels` is still the caller's. */
uint8_t *orientation_apply(int orientation, uint8_t *pixels, int *height, int *width);

#endif
