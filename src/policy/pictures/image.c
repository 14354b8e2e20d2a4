/* What a picture is: its geometry, its elements in memory, and its checks. The two resizes are image_openpi.c
 * and image_lerobot.c. */
#include "policy/pictures/image.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/finite.h"
#include "base/report.h"
#include "policy/pictures/image_parts.h"

enum {
    MAX_ROW = 1 << 24,           /* bytes between rows: any padding fits, and no sum of them overflows      */
    MAX_SIDE = 16384,
    MAX_PIXELS = 64 << 20,
    CHECKED = 4096,              /* float pixels that are checked together                                  */
};

#define MAX_PLANE ((uint64_t)1 << 40)                    /* bytes between planes */

/* ---- scratch -------------------------------------------------------------------------------------- */

void image_scratch_free(image_scratch *scratch) {
    free(scratch->memory);
    scratch->memory = NULL;
    scratch->bytes = 0;
}

openpi_status image_scratch_grow(image_scratch *scratch, size_t bytes, openpi_error *error) {
    if (bytes <= scratch->bytes) return OPENPI_OK;
    image_scratch_free(scratch);
    scratch->memory = malloc(bytes);
    if (!scratch->memory) return report_no_memory(error, bytes, "the resize of a picture");
    scratch->bytes = bytes;
    return OPENPI_OK;
}

void image_scratch_trim(image_scratch *scratch, size_t bytes) {
    if (scratch->bytes <= bytes) return;
    image_scratch_free(scratch);
    image_scratch_grow(scratch, bytes, NULL);                  /* else when it is needed                    */
}

/* The rows of a square picture after the horizontal pass, which has the most of them for its bytes, beside a
 * row and both filters of the longest sides (image_openpi.c). */
size_t image_scratch_most(size_t bytes) {
    enum { TAP = 16, ROUNDING = 64 * SIDE };
    double rows = 1 + sqrt((double)bytes / 3);
    size_t longest = bytes / 3 < MAX_SIDE ? bytes / 3 : MAX_SIDE;
    return (size_t)(rows < MAX_SIDE ? rows : MAX_SIDE) * 3 * SIDE + longest * (3 + 2 * TAP) + 2 * ROUNDING;
}

const char *image_name(const openpi_image *image) {
    return image->name ? image->name : "(unnamed)";
}

image_fit image_fit_inside(int width, int height) {
    double across = (double)width / SIDE, down = (double)height / SIDE;
    double ratio = across > down ? across : down;
    image_fit fit = {(int)(width / ratio), (int)(height / ratio), 0, 0};
    fit.left = (SIDE - fit.width) / 2;
    fit.top = (SIDE - fit.height) / 2;
    return fit;
}

/* ---- where a picture's elements lie --------------------------------------------------------------- */

static const size_t element_bytes[] = {[OPENPI_U8] = 1, [OPENPI_FLOAT32] = 4, [OPENPI_FLOAT64] = 8,
                                       [OPENPI_FLOAT16] = 2};

static int has_alpha(const openpi_image *image) {
    return image->channels == OPENPI_RGBA || image->channels == OPENPI_BGRA;
}

/* The place of a colour (0 red, 1 green, 2 blue) among a pixel's channels or the planes. */
static int channel_of(const openpi_image *image, int colour) {
    return image->channels == OPENPI_BGR || image->channels == OPENPI_BGRA ? 2 - colour : colour;
}

image_strides image_strides_of(const openpi_image *image) {
    size_t element = element_bytes[image->element], channels = has_alpha(image) ? 4 : 3,
           width = (size_t)image->width;
    int chw = image->layout == OPENPI_CHW;
    image_strides at = {.pixel = chw ? element : channels * element};
    at.row = image->row_bytes ? image->row_bytes : width * at.pixel;
    size_t plane = image->plane_bytes ? image->plane_bytes : (size_t)image->height * at.row;
    for (int c = 0; c < 3; c++) at.colour[c] = (size_t)channel_of(image, c) * (chw ? plane : element);
    return at;
}

size_t image_element_number(const openpi_image *image, int y, int x, int colour) {
    size_t height = (size_t)image->height, width = (size_t)image->width,
           channel = (size_t)channel_of(image, colour);
    if (image->layout == OPENPI_CHW) return (channel * height + (size_t)y) * width + (size_t)x;
    return ((size_t)y * width + (size_t)x) * (has_alpha(image) ? 4 : 3) + channel;
}

/* 1: the picture is 3 · width · height elements without gaps. */
static int is_whole(const openpi_image *image) {
    image_strides at = image_strides_of(image);
    size_t row = (size_t)image->width * at.pixel;
    return !has_alpha(image) && at.row == row &&
           (image->layout == OPENPI_HWC || !image->plane_bytes ||
            image->plane_bytes == row * (size_t)image->height);
}

/* ---- checks --------------------------------------------------------------------------------------- */

static openpi_status check_strides(const openpi_image *image, openpi_error *error) {
    const char *name = image_name(image);
    if ((unsigned)image->channels > OPENPI_BGRA)
        return report(
            error, OPENPI_BAD_INPUT,
            "picture \"%s\": channels %d, expected OPENPI_RGB, OPENPI_BGR, OPENPI_RGBA or OPENPI_BGRA", name,
            (int)image->channels);
    if (image->reserved)
        return report(error, OPENPI_BAD_INPUT, "picture \"%s\": reserved is %d, expected 0", name,
                      image->reserved);
    size_t row = (size_t)image->width * image_strides_of(image).pixel;
    if (image->row_bytes && (image->row_bytes < row || image->row_bytes > MAX_ROW))
        return report(error, OPENPI_BAD_INPUT,
                      "picture \"%s\": row_bytes is %zu, expected 0 or from %zu (a row's pixels) to %zu",
                      name, image->row_bytes, row, (size_t)MAX_ROW);
    if (image->plane_bytes && image->layout != OPENPI_CHW)
        return report(error, OPENPI_BAD_INPUT,
                      "picture \"%s\": plane_bytes is %zu, expected 0 where the layout is OPENPI_HWC", name,
                      image->plane_bytes);
    if (image->plane_bytes && (image->plane_bytes < row || image->plane_bytes > MAX_PLANE))
        return report(error, OPENPI_BAD_INPUT,
                      "picture \"%s\": plane_bytes is %zu, expected 0 or from %zu (a row's pixels) to %zu",
                      name, image->plane_bytes, row, (size_t)MAX_PLANE);
    return OPENPI_OK;
}

openpi_status image_check_fields(const openpi_image *image, openpi_error *error) {
    const char *name = image_name(image);
    if (!image->data) return report(error, OPENPI_BAD_INPUT, "picture \"%s\": its data is NULL", name);
    if ((unsigned)image->element > OPENPI_FLOAT16)
        return report(error, OPENPI_BAD_INPUT,
                      "picture \"%s\": element type %d, expected OPENPI_U8, OPENPI_FLOAT32, OPENPI_FLOAT64 "
                      "or OPENPI_FLOAT16",
                      name, (int)image->element);
    if (image->layout != OPENPI_HWC && image->layout != OPENPI_CHW)
        return report(error, OPENPI_BAD_INPUT, "picture \"%s\": layout %d, expected OPENPI_HWC or OPENPI_CHW",
                      name, (int)image->layout);
    if (image->width < 1 || image->height < 1 || image->width > MAX_SIDE || image->height > MAX_SIDE)
        return report(error, OPENPI_BAD_INPUT,
                      "picture \"%s\": %d×%d pixels (width×height), expected 1 to %d a side", name,
                      image->width, image->height, MAX_SIDE);
    if ((int64_t)image->width * image->height > MAX_PIXELS)
        return report(error, OPENPI_BAD_INPUT,
                      "picture \"%s\": %d×%d pixels (width×height), expected at most %d megapixels", name,
                      image->width, image->height, MAX_PIXELS >> 20);
    image_fit fit = image_fit_inside(image->width, image->height);
    if (fit.width < 1 || fit.height < 1)
        return report(error, OPENPI_BAD_INPUT,
                      "picture \"%s\": %d×%d pixels (width×height) would shrink to %d×%d, expected at least "
                      "one pixel a side",
                      name, image->width, image->height, fit.width, fit.height);
    return check_strides(image, error);
}

static double value_of(const openpi_image *image, size_t i) {
    return image_float_at(image->element, image->data, i);
}

/* 1: float pixels first … first+count-1, count <= CHECKED, are at most `radius` away from 0.5; infinity: are
 * finite. */
static int are_near(const openpi_image *image, size_t first, size_t count, float radius) {
    float narrow[CHECKED];
    const void *at = (const char *)image->data + first * sizeof(float);
    if (image->element != OPENPI_FLOAT32) {
        for (size_t i = 0; i < count; i++)
            narrow[i] = (float)image_float_at(image->element, image->data, first + i);
        at = narrow;
    }
    return radius < INFINITY ? all_near_f32(at, count, 0.5f, radius) : all_finite_f32(at, count);
}

static double value_at(const openpi_image *image, const image_strides *at, int y, int x, int colour) {
    const char *data =
        (const char *)image->data + (size_t)y * at->row + (size_t)x * at->pixel + at->colour[colour];
    return image_float_at(image->element, data, 0);
}

static openpi_status check_scattered(const openpi_image *image, float radius, const char *expected,
                                     openpi_error *error) {
    image_strides at = image_strides_of(image);
    for (int y = 0; y < image->height; y++)
        for (int x = 0; x < image->width; x++)
            for (int c = 0; c < 3; c++) {
                double value = value_at(image, &at, y, x, c);
                float narrow = (float)value;
                if (radius < INFINITY ? all_near_f32(&narrow, 1, 0.5f, radius) : all_finite_f32(&narrow, 1))
                    continue;
                return report(error, OPENPI_BAD_INPUT, "picture \"%s\": element %zu is %g, expected %s",
                              image_name(image), image_element_number(image, y, x, c), value, expected);
            }
    return OPENPI_OK;
}

openpi_status image_check_floats(const openpi_image *image, float radius, const char *expected,
                                  openpi_error *error) {
    if (image->element != OPENPI_U8 && !is_whole(image))
        return check_scattered(image, radius, expected, error);
    size_t count = (size_t)image->width * (size_t)image->height * 3;
    for (size_t first = 0; image->element != OPENPI_U8 && first < count; first += CHECKED) {
        size_t block = count - first < CHECKED ? count - first : CHECKED, i = first;
        if (are_near(image, first, block, radius)) continue;
        while (are_near(image, i, 1, radius)) i++;
        return report(error, OPENPI_BAD_INPUT, "picture \"%s\": element %zu is %g, expected %s",
                      image_name(image), i, value_of(image, i), expected);
    }
    return OPENPI_OK;
}

openpi_status image_check(const openpi_image *image, openpi_error *error) {
    TRY(image_check_fields(image, error));
    return image_check_floats(image, INFINITY, "finite float32 values", error);
}
