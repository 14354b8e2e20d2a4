/* What the two resizes of a picture share: its place in the 224×224, where its elements lie, its checks and
 * the scratch of the resizes. */
#ifndef POLICY_IMAGE_PARTS_H
#define POLICY_IMAGE_PARTS_H

#include <string.h>

#include "base/dtype.h"
#include "policy/pictures/image.h"

enum { SIDE = OPENPI_IMAGE_SIZE };

typedef struct image_fit {
    int width, height;           /* the resized picture inside the 224×224 */
    int left, top;
} image_fit;

/* ratio = max(width/224, height/224), side = trunc(side / ratio), centred: an odd row or column of padding
 * goes below or right. */
image_fit image_fit_inside(int width, int height);

/* In bytes: from a pixel to the next of its row, from a row to the next, and where each colour begins. */
typedef struct image_strides {
    size_t pixel, row, colour[3];
} image_strides;

image_strides image_strides_of(const openpi_image *image);

/* For sentences: the number of an element, counted as if all lay without gaps. */
size_t image_element_number(const openpi_image *image, int y, int x, int colour);
/* For sentences: the picture's name, or "(unnamed)". */
const char *image_name(const openpi_image *image);

/* Float pixels are at most `radius` away from 0.5; INFINITY: are finite. `expected` ends the sentence. */
openpi_status image_check_floats(const openpi_image *image, float radius, const char *expected,
                                 openpi_error *error);

/* At least `bytes` of scratch. What it held is lost where it grows. */
openpi_status image_scratch_grow(image_scratch *scratch, size_t bytes, openpi_error *error);

/* Float data may have any alignment in a client's message, so every read is a copy; compilers make it a plain
 * load. */
static inline float float_at(const void *data, size_t index) {
    float value;
    memcpy(&value, (const char *)data + index * sizeof value, sizeof value);
    return value;
}

static inline double double_at(const void *data, size_t index) {
    double value;
    memcpy(&value, (const char *)data + index * sizeof value, sizeof value);
    return value;
}

static inline float half_at(const void *data, size_t index) {
    uint16_t bits;
    memcpy(&bits, (const char *)data + index * sizeof bits, sizeof bits);
    return f16_to_float(bits);
}

/* Of any element but uint8. */
static inline double image_float_at(openpi_element element, const void *data, size_t index) {
    switch (element) {
    case OPENPI_FLOAT32: return (double)float_at(data, index);
    case OPENPI_FLOAT16: return (double)half_at(data, index);
    default: return double_at(data, index);
    }
}

#endif
