/* See fields.h. */
#include "runner/fields.h"

#include <stdlib.h>
#include <string.h>

#include "base/report.h"

/* ---- pictures --------------------------------------------------------------------------------------- */

static int ends_with(const char *key, const char *name) {
    size_t whole = strlen(key), part = strlen(name);
    return whole > part && key[whole - part - 1] == '/' && !strcmp(key + whole - part, name);
}

/* The key of the robot's camera that a picture's name means. NULL: none. */
static const char *key_of(const robot *robot, const char *name) {
    const char *found = NULL;
    for (int c = 0; c < robot->camera_count; c++)
        if (!strcmp(robot->cameras[c].key, name)) return robot->cameras[c].key;
    for (int c = 0; c < robot->camera_count && !found; c++)
        if (ends_with(robot->cameras[c].key, name)) found = robot->cameras[c].key;
    for (int c = 0; c < robot->camera_count && !found; c++)
        if (robot->cameras[c].slot >= 0 && robot->cameras[c].slot == robot_slot(name))
            found = robot->cameras[c].key;
    return found;
}

static int is_plain(const openpi_image *image) {
    size_t row = (size_t)image->width * sight_pixel_bytes(image);
    int gaps = image->row_bytes && image->row_bytes != row;
    gaps |= image->plane_bytes && image->plane_bytes != row * (size_t)image->height;
    return image->channels == OPENPI_RGB && !gaps;
}

/* The place of colour c (red first) in a pixel, or its plane. */
static int place_of(const openpi_image *image, int c) {
    return image->channels == OPENPI_BGR || image->channels == OPENPI_BGRA ? 2 - c : c;
}

static void copy_pixels(const openpi_image *image, size_t element, uint8_t *to) {
    size_t width = (size_t)image->width, pixel = sight_pixel_bytes(image);
    for (int plane = 0; image->layout == OPENPI_CHW && plane < 3; plane++)
        for (int r = 0; r < image->height; r++, to += width * pixel)
            memcpy(to, sight_row(image, place_of(image, plane) * image->height + r), width * pixel);
    for (int r = 0; image->layout == OPENPI_HWC && r < image->height; r++) {
        const uint8_t *row = sight_row(image, r);
        for (size_t x = 0; x < width; x++)
            for (int c = 0; c < 3; c++, to += element)
                memcpy(to, row + x * pixel + (size_t)place_of(image, c) * element, element);
    }
}

static openpi_status pack(fields *f, int i, const openpi_image *image, openpi_field *out,
                          openpi_error *error) {
    size_t colours = image->channels == OPENPI_RGBA || image->channels == OPENPI_BGRA ? 4 : 3;
    size_t element = sight_pixel_bytes(image) / (image->layout == OPENPI_CHW ? 1 : colours);
    size_t bytes = (size_t)image->height * (size_t)image->width * 3 * element;
    if (bytes > f->capacity[i]) {
        free(f->pixels[i]);
        f->pixels[i] = malloc(bytes);
        f->capacity[i] = f->pixels[i] ? bytes : 0;
        if (!f->pixels[i]) return report_no_memory(error, bytes, "a picture");
    }
    copy_pixels(image, element, f->pixels[i]);
    out->data = f->pixels[i];
    return OPENPI_OK;
}

static openpi_status add_picture(fields *f, int i, const robot *robot, const openpi_image *image,
                                 openpi_error *error) {
    openpi_field *out = &f->field[f->count++];
    int chw = image->layout == OPENPI_CHW;
    *out = (openpi_field)OPENPI_FIELD_INIT;
    out->name = key_of(robot, image->name);
    if (!out->name)
        return report(error, OPENPI_BAD_INPUT, "picture \"%s\" is no camera of robot %s", image->name,
                      robot->name);
    out->element = image->element;
    out->data = image->data;
    out->rank = 3;
    out->shape[0] = chw ? 3 : image->height;
    out->shape[1] = chw ? image->height : image->width;
    out->shape[2] = chw ? image->width : 3;
    return is_plain(image) ? OPENPI_OK : pack(f, i, image, out, error);
}

/* ---- state and prompt -------------------------------------------------------------------------------- */

static openpi_status add_state(fields *f, const robot *robot, const openpi_observation *o,
                               openpi_error *error) {
    int at = 0;
    if (robot->state_length && robot->state_length != o->state_length)
        return report(error, OPENPI_BAD_INPUT,
                      "the observation's state has %d numbers, expected %d of robot %s", o->state_length,
                      robot->state_length, robot->name);
    for (int p = 0; p < robot->part_count; p++) {
        openpi_field *out = &f->field[f->count++];
        int length = robot->parts[p].length ? robot->parts[p].length : o->state_length;
        *out = (openpi_field)OPENPI_FIELD_INIT;
        out->name = robot->parts[p].key;
        out->data = o->state + at;
        out->element = OPENPI_FLOAT64;
        out->rank = 1;
        out->shape[0] = length;
        at += length;
    }
    return OPENPI_OK;
}

openpi_status fields_of(fields *f, const robot *robot, const openpi_observation *o, openpi_error *error) {
    f->count = 0;
    for (int i = 0; i < o->image_count; i++) TRY(add_picture(f, i, robot, &o->images[i], error));
    TRY(add_state(f, robot, o, error));
    if (!o->prompt) return OPENPI_OK;
    openpi_field *out = &f->field[f->count++];
    *out = (openpi_field)OPENPI_FIELD_INIT;
    out->name = "prompt";
    out->text = o->prompt;
    out->text_length = o->prompt_length;
    return OPENPI_OK;
}

void fields_free(fields *f) {
    for (int i = 0; i < SIGHT_PICTURES; i++) free(f->pixels[i]);
}
