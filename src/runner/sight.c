/* See sight.h. */
#include "runner/sight.h"

#include <stdlib.h>
#include <string.h>

#include "base/boundary.h"
#include "base/report.h"

enum { LARGEST_SIDE = 1 << 15 };

/* ---- a picture's rows ------------------------------------------------------------------------------ */

static size_t element_bytes(openpi_element element) {
    static const size_t bytes[] = {1, 4, 8, 2};
    return (size_t)element < sizeof bytes / sizeof *bytes ? bytes[element] : 0;
}

size_t sight_pixel_bytes(const openpi_image *image) {
    size_t channels = image->channels == OPENPI_RGBA || image->channels == OPENPI_BGRA ? 4 : 3;
    return element_bytes(image->element) * (image->layout == OPENPI_CHW ? 1 : channels);
}

int sight_rows(const openpi_image *image) {
    int known = image->layout == OPENPI_CHW || image->layout == OPENPI_HWC;
    if (!known || !element_bytes(image->element) || image->height < 1 || image->height > LARGEST_SIDE ||
        image->width < 1 || image->width > LARGEST_SIDE)
        return 0;
    return image->layout == OPENPI_CHW ? 3 * image->height : image->height;
}

const uint8_t *sight_row(const openpi_image *image, int row) {
    size_t packed = (size_t)image->width * sight_pixel_bytes(image);
    size_t stride = image->row_bytes ? image->row_bytes : packed;
    size_t plane = image->plane_bytes ? image->plane_bytes : stride * (size_t)image->height;
    return (const uint8_t *)image->data + (size_t)(row / image->height) * plane +
           (size_t)(row % image->height) * stride;
}

/* ---- what is kept ---------------------------------------------------------------------------------- */

static openpi_status grow(void **memory, size_t *capacity, size_t bytes, const char *what,
                          openpi_error *error) {
    if (bytes <= *capacity) return OPENPI_OK;
    void *larger = malloc(bytes);
    if (!larger) return report_no_memory(error, bytes, what);
    free(*memory);
    *memory = larger;
    *capacity = bytes;
    return OPENPI_OK;
}

static openpi_status check_picture(const openpi_image *image, openpi_error *error) {
    size_t named = image->name ? strlen(image->name) : 0;
    if (!named || named >= SIGHT_NAME)
        return report(error, OPENPI_BAD_INPUT,
                      "a picture of the observation has %s, expected a name of 1 to %d bytes",
                      image->name ? "a name without or with too many bytes" : "no name", SIGHT_NAME - 1);
    if (image->data && sight_rows(image)) return OPENPI_OK;
    return report(error, OPENPI_BAD_INPUT,
                  "picture \"%s\" has %s, %d rows and %d columns, expected pixels, a known element and "
                  "layout, and "
                  "1 to %d of each",
                  image->name, image->data ? "pixels" : "no pixels", image->height, image->width,
                  LARGEST_SIDE);
}

static openpi_status copy_pixels(sight *s, int i, openpi_error *error) {
    openpi_image *image = &s->images[i];
    size_t row = (size_t)image->width * sight_pixel_bytes(image);
    int rows = sight_rows(image);
    void *memory = s->pixels[i];
    openpi_status status = grow(&memory, &s->capacity[i], row * (size_t)rows, "a picture", error);
    s->pixels[i] = memory;
    TRY(status);
    for (int r = 0; r < rows; r++) memcpy(s->pixels[i] + (size_t)r * row, sight_row(image, r), row);
    image->data = s->pixels[i];
    image->row_bytes = image->plane_bytes = 0;
    return OPENPI_OK;
}

static openpi_status keep_prompt(sight *s, const openpi_observation *given, openpi_error *error) {
    size_t bytes = !given->prompt ? 0 : given->prompt_length ? given->prompt_length : strlen(given->prompt);
    void *memory = s->prompt;
    openpi_status status = grow(&memory, &s->prompt_capacity, bytes + 1, "a prompt", error);
    s->prompt = memory;
    TRY(status);
    if (bytes) memcpy(s->prompt, given->prompt, bytes);
    s->prompt[bytes] = 0;
    s->observation.prompt = given->prompt ? s->prompt : NULL;
    s->observation.prompt_length = bytes;
    return OPENPI_OK;
}

static openpi_status keep_picture(sight *s, const openpi_image *images, int i, int copies,
                                  openpi_error *error) {
    TRY(BOUNDARY_TAKE_AT(openpi_image, images, i, &s->images[i], error));
    TRY(check_picture(&s->images[i], error));
    memcpy(s->names[i], s->images[i].name, strlen(s->images[i].name) + 1);
    s->images[i].name = s->names[i];
    return copies ? copy_pixels(s, i, error) : OPENPI_OK;
}

openpi_status sight_fill(sight *s, const openpi_observation *observation, int copies, openpi_error *error) {
    openpi_observation given;
    TRY(BOUNDARY_TAKE(openpi_observation, observation, &given, error));
    if (given.image_count < 0 || given.image_count > SIGHT_PICTURES || (given.image_count && !given.images))
        return report(error, OPENPI_BAD_INPUT, "the observation has %d pictures%s, expected 0 to %d",
                      given.image_count, given.images ? "" : " at NULL", SIGHT_PICTURES);
    if (given.state_length < 0 || given.state_length > OPENPI_ACTION_DIM ||
        (given.state_length && !given.state))
        return report(error, OPENPI_BAD_INPUT, "the observation's state has %d numbers%s, expected 0 to %d",
                      given.state_length, given.state ? "" : " at NULL", OPENPI_ACTION_DIM);
    s->observation = given;
    for (int i = 0; i < given.image_count; i++) TRY(keep_picture(s, given.images, i, copies, error));
    if (given.state_length) memcpy(s->state, given.state, (size_t)given.state_length * sizeof *s->state);
    s->observation.images = s->images;
    s->observation.state = s->state;
    return keep_prompt(s, &given, error);
}

void sight_release(sight *s) {
    if (s->release) s->release(s->user);
    s->release = NULL;
}

void sight_free(sight *s) {
    sight_release(s);
    for (int i = 0; i < SIGHT_PICTURES; i++) free(s->pixels[i]);
    free(s->prompt);
}
