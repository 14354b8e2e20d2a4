/* Pictures: decoding, and the two resizes that policies were trained with. */
#ifndef POLICY_IMAGE_H
#define POLICY_IMAGE_H

#include "openpi.h"

/* Scratch of one thread for the resizes; grows with the largest picture so far. */
typedef struct image_scratch {
    void *memory;
    size_t bytes;
} image_scratch;
void image_scratch_free(image_scratch *scratch);
/* Gives back what is there beyond `bytes`. */
void image_scratch_trim(image_scratch *scratch, size_t bytes);
/* At most so many bytes of scratch for a picture whose data have `bytes` bytes. */
size_t image_scratch_most(size_t bytes);

/* Checks the fields of a picture (name in the sentence): sizes 1 … 16384, at most 64 megapixels, data not
 * NULL, and that openpi's resize leaves at least one pixel a side. */
openpi_status image_check_fields(const openpi_image *image, openpi_error *error);
/* The same, and that float values are finite and within float32. */
openpi_status image_check(const openpi_image *image, openpi_error *error);

/* openpi's resize (MODEL.md, "Pictures, statistics and requests"): float pictures to uint8 by truncation of
 * 255·x, which must fit one, CHW to HWC, then openpi_client's resize_with_pad (Pillow's BILINEAR, fixed
 * point) to out[224][224][3]. Bit-exact. */
openpi_status image_resize_openpi(const openpi_image *image, image_scratch *scratch, uint8_t *out,
                                  openpi_error *error);

/* 1: image_resize_openpi would copy the picture's bytes as they are. */
int image_is_ready(const openpi_image *image);

/* LeRobot's resize (tests/golden/lerobot/README.md, "Tolerances"): uint8 is divided by 255 first; float is
 * taken unchanged, and refused beyond [-0.5,1.5] (LeRobot clamps it) or, at 224×224, where nothing is
 * clamped, beyond [0,1]; result in [-1,1], HWC float out[224][224][3], padding -1. Bit-exact with its fma
 * formula. */
openpi_status image_resize_lerobot(const openpi_image *image, image_scratch *scratch, float *out,
                                   openpi_error *error);

#endif
