/* The orientation in EXIF or XMP: how a picture must be rotated or mirrored to be upright. */
#ifndef POLICY_ORIENTATION_H
#define POLICY_ORIENTATION_H

#include "openpi.h"

/* What is no orientation. */
enum {
    ORIENTATION_ABSENT = -3,
    ORIENTATION_NO_DIGITS = -2,  /* EXIF as text, which is not hexadecimal                                 */
    ORIENTATION_UNREADABLE = -1, /* neither an integer, nor a single one                                   */
};

/* The orientation in a file's EXIF or XMP: 1 (upright) … 8, another number if the file holds one that EXIF
 * does not define, or one of the above; 0 also where EXIF is damaged. Any bytes may be given. */
int orientation_of_jpeg(const uint8_t *bytes, size_t count);
/* Of a PNG's EXIF chunks alone: its texts, which may be compressed, are the decoder's. */
int orientation_of_png(const uint8_t *bytes, size_t count, int *has_exif);
/* The same from EXIF's own bytes: a TIFF header, then a directory of tags. */
int orientation_of_tiff(const uint8_t *bytes, size_t count);
/* From a PNG's text "Raw profile type exif": three lines, then hexadecimal digits. Overwrites the text. */
int orientation_of_profile(char *text, size_t count);
/* From the text of XMP. */
int orientation_of_xmp(const char *text, size_t count);

/* Makes a picture upright that has an orientation of 1 … 8; from 5 on height and width are swapped. pixels
 * [*height][*width][3] as stored, malloc. Returns `pixels`, or a new block (malloc) and frees `pixels`; NULL:
 * out of memory, and `pixels` is still the caller's. */
uint8_t *orientation_apply(int orientation, uint8_t *pixels, int *height, int *width);

#endif
