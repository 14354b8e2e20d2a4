/* See watch.h.
 *
 * Note: a real camera's picture is never the same twice, because its pixels are noisy; a simulator's is,
 * whenever nothing moves. */
#include "runner/watch.h"

#include <math.h>
#include <string.h>

#include "base/hash.h"

/* A pixel is black up to here, of 255. */
enum { BLACK = 3 };

static uint64_t hash_row(uint64_t hash, const uint8_t *bytes, size_t count) {
    for (; count >= sizeof hash; bytes += sizeof hash, count -= sizeof hash) {
        uint64_t word;
        memcpy(&word, bytes, sizeof word);
        hash = (hash ^ word) * UINT64_C(0x9E3779B97F4A7C15);
        hash ^= hash >> 29;
    }
    return hash_fnv1a64(hash, bytes, count);
}

static int black_byte_row(const openpi_image *image, const uint8_t *row) {
    size_t step = sight_pixel_bytes(image), colours = step == 4 ? 3 : step;
    for (size_t at = 0; at < (size_t)image->width * step; at += step)
        for (size_t c = 0; c < colours; c++)
            if (row[at + c] > BLACK) return 0;
    return 1;
}

static int black_float_row(const openpi_image *image, const uint8_t *row) {
    size_t step = sight_pixel_bytes(image) / sizeof(float), colours = step == 4 ? 3 : step;
    for (size_t at = 0; at < (size_t)image->width * step; at += step)
        for (size_t c = 0; c < colours; c++) {
            float value;
            memcpy(&value, row + (at + c) * sizeof value, sizeof value);
            if (!(value * 255 <= (float)BLACK)) return 0;
        }
    return 1;
}

/* Pictures of bytes and of floats; those of other numbers are never black. */
static int is_black(const openpi_image *image) {
    int bytes = image->element == OPENPI_U8;
    if (!bytes && image->element != OPENPI_FLOAT32) return 0;
    for (int r = 0; r < sight_rows(image); r++) {
        const uint8_t *row = sight_row(image, r);
        if (!(bytes ? black_byte_row(image, row) : black_float_row(image, row))) return 0;
    }
    return 1;
}

static int is_frozen(struct watched *camera, const openpi_image *image, int after) {
    uint64_t hash = HASH_FNV_START;
    size_t bytes = (size_t)image->width * sight_pixel_bytes(image);
    for (int r = 0; r < sight_rows(image); r++) hash = hash_row(hash, sight_row(image, r), bytes);
    int same = hash == camera->hash && !strcmp(camera->name, image->name);
    memcpy(camera->name, image->name, strlen(image->name) + 1);
    camera->hash = hash;
    camera->same = same ? camera->same + (camera->same < after) : 1;
    return camera->same >= after;
}

openpi_reason watch_look(watch *watch, const openpi_observation *observation, int frozen_after,
                         int black_allowed, const char **camera) {
    openpi_reason found = OPENPI_REASON_NONE;
    for (int i = 0; i < observation->image_count; i++) {
        const openpi_image *image = &observation->images[i];
        openpi_reason one = OPENPI_REASON_NONE;
        if (frozen_after > 0 && is_frozen(&watch->camera[i], image, frozen_after))
            one = OPENPI_REASON_FROZEN_CAMERA;
        if (!black_allowed && is_black(image)) one = OPENPI_REASON_BLACK_CAMERA;
        if (!one || found) continue;
        found = one;
        *camera = image->name;
    }
    return found;
}
