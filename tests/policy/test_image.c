/* policy/pictures/image.c and image_decode.c against openpi's resized pictures, LeRobot's, and Pillow's
 * decoded ones. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/file.h"
#include "checkpoint/open.h"
#include "policy/pictures/image.h"
#include "policy/orientation.h"
#include "structs.h"

enum { SIDE = OPENPI_IMAGE_SIZE, VALUES = SIDE * SIDE * 3 };

static uint64_t fnv1a64(const void *data, size_t bytes) {
    uint64_t hash = 0xCBF29CE484222325u;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ ((const uint8_t *)data)[i]) * 0x100000001B3u;
    return hash;
}

static const uint64_t golden_ratio = 0x9E3779B97F4A7C15u;

static uint64_t mix(uint64_t z) {
    z += golden_ratio;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* The goldens' pictures: (uint8)(u(i)·128 + 128), u of SYNTH.md for that name and seed. */
static uint8_t *synthetic_picture(const char *name, uint64_t seed, int height, int width) {
    size_t count = (size_t)height * (size_t)width * 3;
    uint8_t *pixels = malloc(count);
    assert_non_null(pixels);
    uint64_t key = mix(fnv1a64(name, strlen(name)) ^ seed);
    for (size_t i = 0; i < count; i++) {
        double u = ((double)(mix(key + i * golden_ratio) >> 40) + 0.5) * 0x1p-23 - 1.0;
        pixels[i] = (uint8_t)(u * 128 + 128);
    }
    return pixels;
}

static openpi_image picture(const void *data, openpi_element element, openpi_layout layout, int height,
                            int width) {
    openpi_image image = IMAGE("test", data, element, layout, height, width);
    return image;
}

static void *to_chw(const void *pixels, size_t element, int height, int width) {
    size_t plane = (size_t)height * (size_t)width;
    char *out = malloc(plane * 3 * element);
    assert_non_null(out);
    for (size_t i = 0; i < plane; i++)
        for (size_t c = 0; c < 3; c++) {
            char *to = out + (c * plane + i) * element;
            memcpy(to, (const char *)pixels + (i * 3 + c) * element, element);
        }
    return out;
}

/* ---- openpi's resize ---------------------------------------------------------------------------------- */

static void resize_as_openpi(void **state) {
    (void)state;
    static uint8_t out[VALUES], other[VALUES];
    openpi_error error = OPENPI_ERROR_INIT;
    image_scratch scratch = {NULL, 0};
    json_t *steps = json_load_file(GOLDEN "/steps.json", JSON_ALLOW_NUL, NULL); /* a text of it has a zero */
    tensors *stored;
    int compared = 0;
    assert_non_null(steps);
    if (tensors_open(GOLDEN "/resize.safetensors", &stored, &error) != OPENPI_OK)
        fail_msg("%s", error.message);
    assert_int_equal(tensors_load(stored, &error), OPENPI_OK);
    const json_t *cases = json_object_get(steps, "resize");
    assert_int_equal(json_array_size(cases), 15);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *one = json_array_get(cases, i);
        const char *name = json_string_value(json_object_get(one, "name"));
        int height = (int)json_integer_value(json_object_get(one, "height"));
        int width = (int)json_integer_value(json_object_get(one, "width"));
        uint8_t *pixels = synthetic_picture(name, (uint64_t)json_integer_value(json_object_get(one, "seed")),
                                            height, width);
        openpi_image image = picture(pixels, OPENPI_U8, OPENPI_HWC, height, width);
        assert_int_equal(image_check(&image, &error), OPENPI_OK);
        memset(out, 77, sizeof out);
        assert_int_equal(image_resize_openpi(&image, &scratch, out, &error), OPENPI_OK);
        uint64_t expected = strtoull(json_string_value(json_object_get(one, "fnv1a64")), NULL, 16);
        if (fnv1a64(out, sizeof out) != expected) fail_msg("%s, %d×%d", name, width, height);
        const tensor *whole = tensors_find(stored, name);
        if (whole) {
            assert_int_equal(whole->count, VALUES);
            assert_memory_equal(out, whole->data, VALUES);
            compared++;
        }
        uint8_t *planes = to_chw(pixels, 1, height, width);
        image = picture(planes, OPENPI_U8, OPENPI_CHW, height, width);
        assert_int_equal(image_resize_openpi(&image, &scratch, other, &error), OPENPI_OK);
        assert_memory_equal(out, other, VALUES);
        free(planes);
        free(pixels);
    }
    assert_int_equal(compared, 2);
    tensors_close(stored);
    json_decref(steps);
    image_scratch_free(&scratch);
}

/* 255·x is cut, not rounded; float32 in its own precision; the data may lie at any address. */
static void floats_are_truncated(void **state) {
    (void)state;
    enum { HEIGHT = 40, WIDTH = 33, COUNT = HEIGHT * WIDTH * 3 };
    static float single[COUNT];
    static double twice[COUNT];
    static uint8_t bytes[COUNT], out[VALUES], expected[VALUES];
    static char shifted[sizeof twice + 1];
    openpi_error error = OPENPI_ERROR_INIT;
    image_scratch scratch = {NULL, 0};
    for (int i = 0; i < COUNT; i++) {
        bytes[i] = (uint8_t)(i * 7);
        single[i] = ((float)bytes[i] + 0.99f) / 255.0f;
        twice[i] = (bytes[i] + 0.999) / 255.0;
    }
    single[0] = 1.0f, twice[0] = 1.0, bytes[0] = 255;
    single[1] = -0.003f, twice[1] = -0.003, bytes[1] = 0;           /* towards zero */
    single[2] = 1.003f, twice[2] = 1.003, bytes[2] = 255;
    openpi_image image = picture(bytes, OPENPI_U8, OPENPI_HWC, HEIGHT, WIDTH);
    assert_int_equal(image_resize_openpi(&image, &scratch, expected, &error), OPENPI_OK);
    const struct { const void *data; openpi_element element; size_t bytes; } kinds[] = {
        {single, OPENPI_FLOAT32, sizeof(float)}, {twice, OPENPI_FLOAT64, sizeof(double)}};
    for (int k = 0; k < 2; k++) {
        memcpy(shifted + 1, kinds[k].data, COUNT * kinds[k].bytes);
        image = picture(shifted + 1, kinds[k].element, OPENPI_HWC, HEIGHT, WIDTH);
        assert_int_equal(image_check(&image, &error), OPENPI_OK);
        assert_int_equal(image_resize_openpi(&image, &scratch, out, &error), OPENPI_OK);
        assert_memory_equal(out, expected, VALUES);
        void *planes = to_chw(kinds[k].data, kinds[k].bytes, HEIGHT, WIDTH);
        image = picture(planes, kinds[k].element, OPENPI_CHW, HEIGHT, WIDTH);
        assert_int_equal(image_resize_openpi(&image, &scratch, out, &error), OPENPI_OK);
        assert_memory_equal(out, expected, VALUES);
        free(planes);
    }
    image_scratch_free(&scratch);
}

static void right_size_is_untouched(void **state) {
    (void)state;
    static uint8_t out[VALUES];
    static float scaled[VALUES], wild[VALUES];
    openpi_error error = OPENPI_ERROR_INIT;
    image_scratch scratch = {NULL, 0};
    uint8_t *pixels = synthetic_picture("any", 1, SIDE, SIDE);
    openpi_image image = picture(pixels, OPENPI_U8, OPENPI_HWC, SIDE, SIDE);
    assert_int_equal(image_resize_openpi(&image, &scratch, out, &error), OPENPI_OK);
    assert_memory_equal(out, pixels, VALUES);
    assert_int_equal(image_resize_lerobot(&image, &scratch, scaled, &error), OPENPI_OK);
    for (int i = 0; i < VALUES; i++) assert_true(scaled[i] == (float)pixels[i] / 255.0f * 2.0f - 1.0f);
    for (int i = 0; i < VALUES; i++) wild[i] = (float)i / (VALUES - 1);
    wild[7] = -1e-6f, wild[8] = 1 + 1e-6f;                          /* LeRobot clamps only what it resizes */
    image = picture(wild, OPENPI_FLOAT32, OPENPI_HWC, SIDE, SIDE);
    assert_int_equal(image_resize_lerobot(&image, &scratch, scaled, &error), OPENPI_OK);
    for (int i = 0; i < VALUES; i++) assert_true(scaled[i] == wild[i] * 2.0f - 1.0f);
    free(pixels);
    image_scratch_free(&scratch);
}

/* A request after the first of its size allocates nothing. */
static void scratch_is_kept(void **state) {
    (void)state;
    static uint8_t out[VALUES];
    static float scaled[VALUES];
    openpi_error error = OPENPI_ERROR_INIT;
    image_scratch scratch = {NULL, 0};
    uint8_t *pixels = synthetic_picture("any", 1, 480, 640);
    openpi_image image = picture(pixels, OPENPI_U8, OPENPI_HWC, 480, 640);
    assert_int_equal(image_resize_openpi(&image, &scratch, out, &error), OPENPI_OK);
    const void *memory = scratch.memory;
    size_t bytes = scratch.bytes;
    static const int sizes[][2] = {{480, 640}, {1, 1}, {100, 30}, {224, 224}, {479, 639}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        image = picture(pixels, OPENPI_U8, i & 1 ? OPENPI_CHW : OPENPI_HWC, sizes[i][0], sizes[i][1]);
        assert_int_equal(image_resize_openpi(&image, &scratch, out, &error), OPENPI_OK);
        assert_int_equal(image_resize_lerobot(&image, &scratch, scaled, &error), OPENPI_OK);
        assert_ptr_equal(scratch.memory, memory);
        assert_int_equal(scratch.bytes, bytes);
    }
    free(pixels);
    image_scratch_free(&scratch);
    image_scratch_free(&scratch);
}

/* Every width and height near the edges of the filter, in memory of exactly the picture's size: for
 * sanitizers. A picture of one colour stays that colour inside and black outside. */
static void no_size_reads_outside(void **state) {
    (void)state;
    static uint8_t out[VALUES];
    static float scaled[VALUES];
    static const int sides[] = {1,   2,   3,   4,   5,   7,   8,   15,  63,  111,
                                112, 113, 223, 224, 225, 337, 448, 449, 673, 1000};
    openpi_error error = OPENPI_ERROR_INIT;
    image_scratch scratch = {NULL, 0};
    for (size_t h = 0; h < sizeof sides / sizeof sides[0]; h++)
        for (size_t w = 0; w < sizeof sides / sizeof sides[0]; w++) {
            int height = sides[h], width = sides[w];
            size_t bytes = (size_t)height * (size_t)width * 3;
            uint8_t *pixels = malloc(bytes);
            assert_non_null(pixels);
            memset(pixels, 200, bytes);
            openpi_image image = picture(pixels, OPENPI_U8, OPENPI_HWC, height, width);
            int shrinks_away = height > SIDE * width || width > SIDE * height;
            openpi_status expected = shrinks_away ? OPENPI_BAD_INPUT : OPENPI_OK;
            assert_int_equal(image_check(&image, &error), expected);
            assert_int_equal(image_resize_openpi(&image, &scratch, out, &error), expected);
            assert_int_equal(image_resize_lerobot(&image, &scratch, scaled, &error), expected);
            int inside = 0;
            for (int i = 0; i < VALUES && !shrinks_away; i++) {
                assert_true(out[i] == 0 || out[i] == 200);
                assert_true(scaled[i] == -1.0f || fabsf(scaled[i] - (200.0f / 255 * 2 - 1)) < 1e-6f);
                assert_int_equal(out[i] == 0, scaled[i] == -1.0f);
                inside += out[i] == 200;
            }
            assert_true(shrinks_away || inside >= (SIDE - 1) * 3); /* 113 / (113 / 224.0) is less than 224 */
            free(pixels);
        }
    image_scratch_free(&scratch);
}

/* ---- LeRobot's resize --------------------------------------------------------------------------------- */

static void resize_as_lerobot(void **state) {
    (void)state;
    static const struct { const char *file, *camera; int slot; } cases[] = {
        {"pi0/expected", "top", 0},            {"pi0/expected", "left_wrist", 1},    {"pi0/expected_missing", "left_wrist", 0},
        {"pi05/expected", "front", 0},         {"pi05/expected", "wrist", 1},        {"pi05/expected", "side", 2},
        {"pi05/expected_missing", "front", 0}, {"pi05/expected_missing", "side", 1},
    };
    static float out[VALUES], other[VALUES];
    openpi_error error = OPENPI_ERROR_INIT;
    image_scratch scratch = {NULL, 0};
    int whole_pictures = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char path[512], name[64];
        tensors *file;
        snprintf(path, sizeof path, GOLDEN "/lerobot/%s.safetensors", cases[i].file);
        snprintf(name, sizeof name, "in.image.%s", cases[i].camera);
        assert_int_equal(tensors_open(path, &file, &error), OPENPI_OK);
        assert_int_equal(tensors_load(file, &error), OPENPI_OK);
        const tensor *in = tensors_find(file, name), *images = tensors_find(file, "images");
        const tensor *rows = tensors_find(file, "image_rows"), *first = tensors_find(file, "image0");
        assert_non_null(in), assert_non_null(images), assert_non_null(rows);
        int height = (int)in->shape[0], width = (int)in->shape[1];
        openpi_element element = in->type == DTYPE_U8 ? OPENPI_U8 : OPENPI_FLOAT32;
        openpi_image image = picture(in->data, element, OPENPI_HWC, height, width);
        assert_int_equal(image_check(&image, &error), OPENPI_OK);
        assert_int_equal(image_resize_lerobot(&image, &scratch, out, &error), OPENPI_OK);
        void *planes = to_chw(in->data, element == OPENPI_U8 ? 1 : sizeof(float), height, width);
        image = picture(planes, element, OPENPI_CHW, height, width);
        assert_int_equal(image_resize_lerobot(&image, &scratch, other, &error), OPENPI_OK);
        assert_memory_equal(out, other, sizeof out);
        free(planes);
        int64_t stored_rows = images->shape[2];
        for (int64_t r = 0; r < stored_rows; r++) {
            int32_t y;
            memcpy(&y, (const char *)rows->data + r * 4, sizeof y);
            for (int c = 0; c < 3; c++) {
                float expected[SIDE];
                tensor_read_f32(images, ((cases[i].slot * 3 + c) * stored_rows + r) * SIDE, SIDE, expected);
                for (int x = 0; x < SIDE; x++) assert_true(out[(y * SIDE + x) * 3 + c] == expected[x]);
            }
        }
        for (int c = 0; first && cases[i].slot == 0 && c < 3; c++)
            for (int y = 0; y < SIDE; y++) {
                float expected[SIDE];
                tensor_read_f32(first, (c * SIDE + y) * SIDE, SIDE, expected);
                for (int x = 0; x < SIDE; x++) assert_true(out[(y * SIDE + x) * 3 + c] == expected[x]);
                whole_pictures += y == 0 && c == 0;
            }
        tensors_close(file);
    }
    assert_int_equal(whole_pictures, 1);
    image_scratch_free(&scratch);
}

/* LeRobot clamps the overshoot of a resize (its goldens have 0.1), but a picture of other units would be
 * clamped to black and white; and at 224×224, where it clamps nothing, the model would see more than it can.
 */
static void lerobots_floats_have_a_range(void **state) {
    (void)state;
    static const struct {
        int side, at;
        double value;
        const char *sentence;    /* NULL: taken */
    } cases[] = {
        {30, 0, 1.49, NULL},
        {30, 2699, -0.49, NULL},
        {30, 2699, 1.51, "element 2699 is 1.51, expected float pictures in [0,1], or by at most 0.5 outside"},
        {30, 17, -1, "element 17 is -1, expected float pictures in [0,1], or by at most 0.5 outside"},
        {30, 0, 255, "element 0 is 255, expected float pictures in [0,1], or by at most 0.5 outside"},
        {SIDE, 5, 1.000001, NULL},
        {SIDE, 5, -0.000001, NULL},
        {SIDE, 5, 1.0001, "element 5 is 1.0001, expected float pictures in [0,1]"},
        {SIDE, VALUES - 1, -0.0001, "element 150527 is -0.0001, expected float pictures in [0,1]"},
    };
    static float single[VALUES], out[VALUES];
    static double twice[VALUES];
    image_scratch scratch = {NULL, 0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int k = 0; k < 4; k++) {
            openpi_error error = OPENPI_ERROR_INIT;
            const void *data = k & 1 ? (const void *)twice : single;
            single[cases[i].at] = (float)cases[i].value;
            twice[cases[i].at] = cases[i].value;
            openpi_image image = picture(data, k & 1 ? OPENPI_FLOAT64 : OPENPI_FLOAT32,
                                         k & 2 ? OPENPI_CHW : OPENPI_HWC, cases[i].side, cases[i].side);
            openpi_status status = image_resize_lerobot(&image, &scratch, out, &error);
            single[cases[i].at] = 0, twice[cases[i].at] = 0;
            assert_int_equal(status, cases[i].sentence ? OPENPI_BAD_INPUT : OPENPI_OK);
            if (cases[i].sentence) assert_non_null(strstr(error.message, cases[i].sentence));
        }
    image_scratch_free(&scratch);
}

/* ---- other places and orders --------------------------------------------------------------------------- */

/* The plain picture's elements at the places that `image` names, in memory of just the size that it needs.
 * What lies between is poison: as a float not a number. */
static void *scatter(const void *plain, size_t element, openpi_image *image) {
    int alpha = image->channels >= OPENPI_RGBA, swapped = image->channels & 1,
        chw = image->layout == OPENPI_CHW;
    size_t channels = alpha ? 4 : 3, width = (size_t)image->width, height = (size_t)image->height;
    size_t row = image->row_bytes ? image->row_bytes : width * element * (chw ? 1 : channels);
    size_t plane = image->plane_bytes ? image->plane_bytes : height * row,
           pixel = element * (chw ? 1 : channels);
    size_t end = (height - 1) * row + width * pixel + (chw ? 2 * plane : 0);
    uint8_t *out = malloc(end);
    assert_non_null(out);
    memset(out, 0xff, end);
    for (size_t y = 0; y < height; y++)
        for (size_t x = 0; x < width; x++)
            for (size_t c = 0; c < 3; c++) {
                size_t channel = swapped ? 2 - c : c,
                       at = y * row + x * pixel + channel * (chw ? plane : element);
                assert_true(at + element <= end);
                memcpy(out + at, (const char *)plain + ((y * width + x) * 3 + c) * element, element);
            }
    image->data = out;
    return out;
}

/* Whatever the order, the stride and the planes: the same bits as of the plain picture. */
static void places_change_no_bit(void **state) {
    (void)state;
    static const struct { int height, width; } sizes[] = {{13, 19}, {224, 224}, {300, 70}};
    static const size_t elements[] = {1, 4, 8};
    static uint8_t expected[VALUES], found[VALUES];
    static float scaled_expected[VALUES], scaled_found[VALUES];
    openpi_error error = OPENPI_ERROR_INIT;
    image_scratch scratch = {NULL, 0};
    int compared = 0;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int e = 0; e < 3; e++) {
            int height = sizes[s].height, width = sizes[s].width;
            size_t count = (size_t)height * (size_t)width * 3;
            char *plain = malloc(count * elements[e]);
            assert_non_null(plain);
            for (size_t i = 0; i < count; i++) {
                uint8_t u = (uint8_t)(i * 2654435761u >> 13);
                float f = (float)u / 255;
                double d = (double)u / 255;
                memcpy(plain + i * elements[e],
                       e == 0   ? (void *)&u
                       : e == 1 ? (void *)&f
                                : (void *)&d,
                       elements[e]);
            }
            openpi_image image = picture(plain, (openpi_element)e, OPENPI_HWC, height, width);
            assert_int_equal(image_resize_openpi(&image, &scratch, expected, &error), OPENPI_OK);
            assert_int_equal(image_resize_lerobot(&image, &scratch, scaled_expected, &error), OPENPI_OK);
            for (int form = 0; form < 4 * 2 * 4; form++) {  /* channels, layout, strides */
                image = picture(plain, (openpi_element)e, (openpi_layout)(form >> 2 & 1), height, width);
                image.channels = (openpi_channels)(form & 3);
                size_t row = (size_t)width * elements[e];
                if (image.layout == OPENPI_HWC) row *= image.channels >= OPENPI_RGBA ? 4 : 3;
                if (form >> 3 & 1) image.row_bytes = row + 37;              /* at no alignment */
                if (form >> 3 == 2 && image.layout == OPENPI_CHW)
                    image.plane_bytes = row * (size_t)height + 11;
                if (form >> 3 == 3 && image.layout == OPENPI_CHW)
                    image.plane_bytes = row, image.row_bytes = 4 * row;
                void *data = scatter(plain, elements[e], &image);
                if (image_check(&image, &error)) fail_msg("%s", error.message);
                assert_int_equal(image_resize_openpi(&image, &scratch, found, &error), OPENPI_OK);
                assert_int_equal(image_resize_lerobot(&image, &scratch, scaled_found, &error), OPENPI_OK);
                if (memcmp(expected, found, sizeof found) ||
                    memcmp(scaled_expected, scaled_found, sizeof scaled_found))
                    fail_msg("%d×%d, element %d, form %d: other pixels", width, height, e, form);
                compared++;
                free(data);
            }
            free(plain);
        }
    assert_int_equal(compared, 3 * 3 * 32);
    image_scratch_free(&scratch);
}

static void broken_places(void **state) {
    (void)state;
    static const uint8_t bytes[64];
    static const float bad[16] = {[6] = NAN};
    static const struct {
        openpi_element element;
        openpi_layout layout;
        size_t row, plane;
        int channels, reserved;
        const char *sentence;
    } rows[] = {
        {OPENPI_U8, OPENPI_HWC, 5, 0, 0, 0, "row_bytes is 5, expected 0 or from 6 (a row's pixels) to 16777216"},
        {OPENPI_U8, OPENPI_HWC, 7, 0, OPENPI_BGRA, 0, "row_bytes is 7, expected 0 or from 8"},
        {OPENPI_FLOAT32, OPENPI_HWC, 23, 0, 0, 0, "row_bytes is 23, expected 0 or from 24"},
        {OPENPI_U8, OPENPI_CHW, 1, 0, 0, 0, "row_bytes is 1, expected 0 or from 2"},
        {OPENPI_U8, OPENPI_HWC, (size_t)-1, 0, 0, 0, "row_bytes is 18446744073709551615, expected 0 or from 6"},
        {OPENPI_U8, OPENPI_HWC, 0, 12, 0, 0, "plane_bytes is 12, expected 0 where the layout is OPENPI_HWC"},
        {OPENPI_U8, OPENPI_CHW, 0, 1, 0, 0, "plane_bytes is 1, expected 0 or from 2 (a row's pixels) to 1099511627776"},
        {OPENPI_U8, OPENPI_CHW, 0, (size_t)-1, 0, 0, "plane_bytes is 18446744073709551615"},
        {OPENPI_U8, OPENPI_HWC, 0, 0, 4, 0, "channels 4, expected OPENPI_RGB, OPENPI_BGR, OPENPI_RGBA or OPENPI_BGRA"},
        {OPENPI_U8, OPENPI_HWC, 0, 0, -1, 0, "channels -1, expected OPENPI_RGB"},
        {OPENPI_U8, OPENPI_HWC, 0, 0, 0, 3, "reserved is 3, expected 0"},
        {OPENPI_FLOAT32, OPENPI_HWC, 0, 0, OPENPI_RGBA, 0, "element 6 is nan, expected finite float32 values"},
    };
    openpi_error error = OPENPI_ERROR_INIT;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const void *data = rows[i].element == OPENPI_U8 ? (const void *)bytes : bad;
        openpi_image image = picture(data, rows[i].element, rows[i].layout, 2, 2);
        image.row_bytes = rows[i].row;
        image.plane_bytes = rows[i].plane;
        image.channels = (openpi_channels)rows[i].channels;
        image.reserved = rows[i].reserved;
        assert_int_equal(image_check(&image, &error), OPENPI_BAD_INPUT);
        if (!strstr(error.message, rows[i].sentence))
            fail_msg("\"%s\", expected \"%s\"", error.message, rows[i].sentence);
    }
}

/* ---- what is refused ---------------------------------------------------------------------------------- */

static void broken_pictures(void **state) {
    (void)state;
    static uint8_t out[VALUES];
    static const float bad[4][12] = {{[5] = NAN}, {[5] = INFINITY}, {[7] = -0.5f}, {[3] = 255.0f}};
    static const double huge[12] = {[2] = 1e300};
    static const uint8_t one[12];
    static const struct {
        openpi_image image;
        const char *sentence;
        int resize_only;         /* LeRobot takes it, openpi's resize does not */
    } cases[] = {
        {IMAGE("base", NULL, OPENPI_U8, OPENPI_HWC, 2, 2), "picture \"base\": its data is NULL", 0},
        {IMAGE(NULL, NULL, OPENPI_U8, OPENPI_HWC, 2, 2), "picture \"(unnamed)\": its data is NULL", 0},
        {IMAGE("base", one, (openpi_element)9, OPENPI_HWC, 2, 2),
         "picture \"base\": element type 9, expected OPENPI_U8, OPENPI_FLOAT32, OPENPI_FLOAT64 or "
         "OPENPI_FLOAT16", 0},
        {IMAGE("base", one, OPENPI_U8, (openpi_layout)5, 2, 2),
         "picture \"base\": layout 5, expected OPENPI_HWC or OPENPI_CHW", 0},
        {IMAGE("base", one, OPENPI_U8, OPENPI_HWC, 0, 2),
         "picture \"base\": 2×0 pixels (width×height), expected 1 to 16384 a side", 0},
        {IMAGE("base", one, OPENPI_U8, OPENPI_HWC, 2, -1),
         "picture \"base\": -1×2 pixels (width×height), expected 1 to 16384 a side", 0},
        {IMAGE("base", one, OPENPI_U8, OPENPI_HWC, 16385, 2),
         "picture \"base\": 2×16385 pixels (width×height), expected 1 to 16384 a side", 0},
        {IMAGE("base", one, OPENPI_U8, OPENPI_HWC, 16384, 16384),
         "picture \"base\": 16384×16384 pixels (width×height), expected at most 64 megapixels", 0},
        {IMAGE("base", one, OPENPI_U8, OPENPI_HWC, 2000, 3),
         "picture \"base\": 3×2000 pixels (width×height) would shrink to 0×224, expected at least one pixel "
         "a side",
         0},
        {IMAGE("base", bad[0], OPENPI_FLOAT32, OPENPI_HWC, 2, 2),
         "picture \"base\": element 5 is nan, expected finite float32 values", 0},
        {IMAGE("base", bad[1], OPENPI_FLOAT32, OPENPI_CHW, 2, 2),
         "picture \"base\": element 5 is inf, expected finite float32 values", 0},
        {IMAGE("base", huge, OPENPI_FLOAT64, OPENPI_HWC, 2, 2),
         "picture \"base\": element 2 is 1e+300, expected finite float32 values", 0},
        {IMAGE("base", bad[2], OPENPI_FLOAT32, OPENPI_HWC, 2, 2),
         "picture \"base\": element 7 is -0.5, expected float pictures in [0,1]", 1},
        {IMAGE("base", bad[3], OPENPI_FLOAT32, OPENPI_HWC, 2, 2),
         "picture \"base\": element 3 is 255, expected float pictures in [0,1]", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        openpi_error error = OPENPI_ERROR_INIT;
        image_scratch scratch = {NULL, 0};
        openpi_status status = image_check(&cases[i].image, &error);
        if (cases[i].resize_only) {
            assert_int_equal(status, OPENPI_OK);
            status = image_resize_openpi(&cases[i].image, &scratch, out, &error);
        }
        assert_int_equal(status, OPENPI_BAD_INPUT);
        assert_string_equal(error.message, cases[i].sentence);
        assert_int_equal(image_resize_openpi(&cases[i].image, &scratch, out, NULL), OPENPI_BAD_INPUT);
        image_scratch_free(&scratch);
    }
}

/* ---- files ---------------------------------------------------------------------------------------- */

/* FNV-1a64 of the pixels of Pillow's exif_transpose and convert("RGB"). */
static const struct {
    const char *file;
    int height, width;
    uint64_t hash;
} files[] = {
    {"rgb.png", 13, 19, 0x7ad90a8e11d88c8c},        {"rgba.png", 13, 19, 0x7ad90a8e11d88c8c},
    {"gray.png", 13, 19, 0x16b9eb95a3395980},       {"gray_alpha.png", 13, 19, 0x16b9eb95a3395980},
    {"bits1.png", 13, 19, 0x85a20edf14757309},      {"palette.png", 13, 19, 0x4dc11ef814a09cf6},
    {"palette4.png", 13, 19, 0xd755101bf4f4f84e},   {"gray_key.png", 13, 19, 0x16b9eb95a3395980},
    {"rgb16.png", 13, 19, 0x7ad90a8e11d88c8c},      {"gray16_low.png", 13, 19, 0x16b9eb95a3395980},
    {"interlaced.png", 13, 19, 0x7ad90a8e11d88c8c}, {"half.jpg", 13, 19, 0x155e39601ab0dde7},
    {"full.jpg", 13, 19, 0xa1c2b88a19a72960},       {"gray.jpg", 13, 19, 0x2a5caaa0be9eb105},
    {"progressive.jpg", 13, 19, 0x10449962ca6f0b3b}, {"rotated.jpg", 19, 13, 0x671344d55d3424f6},
    {"exif_text.png", 19, 13, 0xda4d20de08014a94},  {"xmp.png", 19, 13, 0xda4d20de08014a94},
    {"xmp.jpg", 19, 13, 0x94c0074adce2cb58},
};

static char *read_picture(const char *file, size_t *count) {
    char path[512], *bytes;
    snprintf(path, sizeof path, TESTS_DIR "/pictures/%s", file);
    assert_int_equal(file_read(path, 1 << 20, &bytes, count, NULL), OPENPI_OK);
    return bytes;
}

static void files_decode_as_pillow(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        size_t count;
        char *bytes = read_picture(files[i].file, &count);
        uint8_t *pixels;
        int height, width;
        openpi_error error = OPENPI_ERROR_INIT;
        if (openpi_image_decode(bytes, count, files[i].file, &pixels, &height, &width, &error) != OPENPI_OK)
            fail_msg("%s", error.message);
        assert_int_equal(height, files[i].height);
        assert_int_equal(width, files[i].width);
        if (fnv1a64(pixels, (size_t)height * (size_t)width * 3) != files[i].hash)
            fail_msg("%s: other pixels", files[i].file);
        openpi_free(pixels);
        for (size_t cut = 0; cut < count; cut++) { /* cut anywhere, in memory of just that size */
            char *less = malloc(cut ? cut : 1);
            assert_non_null(less);
            memcpy(less, bytes, cut);
            pixels = NULL;
            assert_int_equal(openpi_image_decode(less, cut, "cut", &pixels, &height, &width, &error),
                             OPENPI_BAD_FILE);
            assert_memory_equal(error.message, "cut: n", 6);         /* not a valid …, neither a … */
            assert_null(pixels);
            free(less);
        }
        free(bytes);
    }
}

static void broken_files(void **state) {
    (void)state;
    static const struct {
        const char *file;        /* one byte of it is changed … */
        int at;
        uint8_t byte;
        const char *sentence;
    } cases[] = {
        {"cmyk.jpg", 0, 0xff, "f: a JPEG in CMYK colours, expected RGB or gray"},
        {"gray16.png", 0, 0x89,
         "f: 16 bits of gray with values above 255, as of a depth camera, expected a picture of 8 bits a "
         "colour"},
        {"rgb.png", 0, 0x88, "f: neither a PNG nor a JPEG file (167 bytes)"},
        {"rgb.png", 16, 0x01, "f: 16777235×13 pixels (width×height), expected 1 to 16384 a side and at most 64 megapixels"},
        {"rgb.png", 19, 0, "f: 0×13 pixels (width×height), expected 1 to 16384 a side and at most 64 megapixels"},
        {"rgb.png", 19, 20, "f: not a valid PNG: IHDR: CRC error"},
        {"rgb.png", 100, 0x5a, "f: not a valid PNG: IDAT: incorrect data check"},
        {"half.jpg", 2, 0x00, "f: neither a PNG nor a JPEG file (772 bytes)"},
        {"half.jpg", 700, 0x00, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t count;
        char *bytes = read_picture(cases[i].file, &count);
        uint8_t *pixels = NULL;
        int height, width;
        openpi_error error = OPENPI_ERROR_INIT;
        bytes[cases[i].at] = (char)cases[i].byte;
        openpi_status status = openpi_image_decode(bytes, count, "f", &pixels, &height, &width, &error);
        if (cases[i].sentence) {
            assert_int_equal(status, OPENPI_BAD_FILE);
            assert_string_equal(error.message, cases[i].sentence);
        } else if (status == OPENPI_OK) {
            openpi_free(pixels);
        }
        free(bytes);
    }
    uint8_t *pixels;
    int height, width;
    assert_int_equal(openpi_image_decode(NULL, 4, "f", &pixels, &height, &width, NULL), OPENPI_BAD_ARGUMENT);
    assert_int_equal(openpi_image_decode("GIF89a", 6, NULL, &pixels, &height, &width, NULL), OPENPI_BAD_FILE);
}

/* ---- EXIF ---------------------------------------------------------------------------------------------- */

/* A TIFF of one directory with two tags: an unimportant one, and the orientation as type (3: SHORT) and value
 * say. */
static size_t make_tiff(uint8_t *out, int big, int type, uint32_t items, uint32_t value) {
    size_t at = 0;
    int bytes = type == 3 || type == 8 ? 2 : 4;
    const struct { int bytes; uint32_t value; } fields[] = {
        {2, 42}, {4, 8}, {2, 2}, {2, 0x10f}, {2, 2}, {4, 1}, {4, 0}, {2, 0x112}, {2, (uint32_t)type}, {4, items},
        {bytes, value}, {4 - bytes, 0}, {4, 0}};
    out[at++] = big ? 'M' : 'I';
    out[at++] = big ? 'M' : 'I';
    for (size_t f = 0; f < sizeof fields / sizeof *fields; f++)
        for (int i = 0; i < fields[f].bytes; i++)
            out[at++] = (uint8_t)(fields[f].value >> 8 * (big ? fields[f].bytes - 1 - i : i));
    return at;
}

/* The file with EXIF after its first bytes: an APP1 segment, or an eXIf chunk. *count grows. */
static uint8_t *with_exif(const char *file, const uint8_t *exif, size_t bytes, size_t *count) {
    char *plain = read_picture(file, count);
    int png = plain[0] != (char)0xff;
    size_t front = png ? 33 : 2, at = 0;
    uint8_t *out = malloc(*count + bytes + 16);
    assert_non_null(out);
    memcpy(out, plain, front);
    at = front;
    if (png) {
        for (int i = 0; i < 4; i++) out[at++] = (uint8_t)(bytes >> 8 * (3 - i));
        memcpy(out + at, "eXIf", 4);
        memcpy(out + at + 4, exif, bytes);
        uint32_t crc = 0xffffffff;                       /* the PNG specification, annex D */
        for (size_t i = 0; i < bytes + 4; i++) {
            crc ^= out[at + i];
            for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? 0xedb88320 ^ crc >> 1 : crc >> 1;
        }
        at += bytes + 4;
        for (int i = 0; i < 4; i++) out[at++] = (uint8_t)(~crc >> 8 * (3 - i));
    } else {
        const uint8_t head[] = {
            0xff, 0xe1, (uint8_t)((bytes + 8) >> 8), (uint8_t)(bytes + 8), 'E', 'x', 'i', 'f', 0, 0};
        memcpy(out + at, head, sizeof head);
        memcpy(out + at + sizeof head, exif, bytes);
        at += sizeof head + bytes;
    }
    memcpy(out + at, plain + front, *count - front);
    *count += at - front;
    free(plain);
    return out;
}

static void pictures_stand_upright(void **state) {
    (void)state;
    static const struct {
        int height, width;
        uint64_t jpeg, png;      /* hash after Pillow's exif_transpose */
    } upright[9] = {
        [1] = {13, 19, 0xa1c2b88a19a72960, 0x7ad90a8e11d88c8c},
        [2] = {13, 19, 0xe49017869e7ac4c8, 0x131891bc5dc63300},
        [3] = {13, 19, 0x795e74666666592c, 0xeb9e464e86df054},
        [4] = {13, 19, 0x154f910b19c200e4, 0x6bbaa072e2c66ae8},
        [5] = {19, 13, 0xcbe4f1ad787a14a4, 0xb8bccfd373aae7e8},
        [6] = {19, 13, 0x94c0074adce2cb58, 0xda4d20de08014a94},
        [7] = {19, 13, 0xeec52d5f38723c8, 0x816ea7c4ed964028},
        [8] = {19, 13, 0x3541d1f5c15015dc, 0xbc15007aaad2ce04},
    };
    static const int types[] = {3, 4, 8, 9, 13};
    openpi_error error = OPENPI_ERROR_INIT;
    for (int orientation = 1; orientation <= 8; orientation++)
        for (int form = 0; form < 20; form++) { /* JPEG or PNG, little or big endian, a type */
            uint8_t exif[64], *pixels;
            int height, width, big = form >> 1 & 1;
            const char *file = form & 1 ? "rgb.png" : "full.jpg";
            size_t count, bytes = make_tiff(exif, big, types[form >> 2], 1, (uint32_t)orientation);
            uint8_t *picture = with_exif(file, exif, bytes, &count);
            if (openpi_image_decode(picture, count, file, &pixels, &height, &width, &error))
                fail_msg("%s", error.message);
            assert_int_equal(height, upright[orientation].height);
            assert_int_equal(width, upright[orientation].width);
            uint64_t hash = fnv1a64(pixels, (size_t)height * (size_t)width * 3);
            if (hash != (form & 1 ? upright[orientation].png : upright[orientation].jpeg))
                fail_msg("%s, orientation %d, form %d: other pixels", file, orientation, form);
            openpi_free(pixels);
            free(picture);
        }
}

/* EXIF that is cut or damaged is passed over, one whose orientation is there and means nothing is not. */
static void broken_exif(void **state) {
    (void)state;
    static const struct {
        int type;
        uint32_t items, value;
        const char *sentence;    /* NULL: taken as upright */
    } rows[] = {
        {3, 1, 0, NULL},
        {3, 1, 9, "f: its EXIF orientation is 9, expected 1 to 8"},
        {3, 1, 65535, "f: its EXIF orientation is 65535, expected 1 to 8"},
        {4, 1, 0xffffffff, "f: its EXIF orientation is 2147483647, expected 1 to 8"},
        {1, 1, 6, "f: its EXIF orientation is no single SHORT or LONG, expected 1 to 8"},
        {2, 1, 6, "f: its EXIF orientation is no single SHORT or LONG, expected 1 to 8"},
        {3, 2, 6, "f: its EXIF orientation is no single SHORT or LONG, expected 1 to 8"},
        {77, 1, 6, "f: its EXIF orientation is no single SHORT or LONG, expected 1 to 8"},
    };
    openpi_error error = OPENPI_ERROR_INIT;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int png = 0; png < 2; png++) {
            uint8_t exif[64], *pixels = NULL;
            int height = 0, width = 0;
            size_t count, bytes = make_tiff(exif, 0, rows[i].type, rows[i].items, rows[i].value);
            uint8_t *picture = with_exif(png ? "rgb.png" : "full.jpg", exif, bytes, &count);
            openpi_status status = openpi_image_decode(picture, count, "f", &pixels, &height, &width, &error);
            assert_int_equal(status, rows[i].sentence ? OPENPI_BAD_FILE : OPENPI_OK);
            if (rows[i].sentence) assert_string_equal(error.message, rows[i].sentence);
            else assert_int_equal(height, 13);
            openpi_free(pixels);
            free(picture);
        }
    uint8_t exif[64];
    size_t whole = make_tiff(exif, 1, 3, 1, 6), count;
    assert_int_equal(orientation_of_tiff(exif, whole), 6);
    for (size_t cut = 0; cut <= whole; cut++) { /* the last 4 bytes are the address of another directory */
        uint8_t *less = malloc(cut ? cut : 1);
        assert_non_null(less);
        memcpy(less, exif, cut);
        assert_int_equal(orientation_of_tiff(less, cut), cut >= whole - 4 ? 6 : 0);
        free(less);
        if (!cut) continue;
        uint8_t *pixels, *picture = with_exif("rgb.png", exif, cut, &count);
        int height, width;
        assert_int_equal(openpi_image_decode(picture, count, "f", &pixels, &height, &width, &error),
                         OPENPI_OK);
        assert_int_equal(height, cut >= whole - 4 ? 19 : 13);
        openpi_free(pixels);
        free(picture);
    }
    for (size_t at = 0; at < 8; at++) {                  /* a header that is none holds no orientation */
        uint8_t kept = exif[at];
        exif[at] = 0x77;
        assert_int_equal(orientation_of_tiff(exif, whole), 0);
        exif[at] = kept;
    }
}

/* Of EXIF, EXIF as text and XMP the first that has an orientation counts; Pillow's exif_transpose says so. */
static void which_orientation_counts(void **state) {
    (void)state;
    static const struct {
        const char *file;
        uint32_t exif;
        int height;
    } rows[] = {{"xmp.png", 1, 13}, {"xmp.png", 0, 13}, {"xmp.jpg", 1, 13}, {"exif_text.png", 1, 13},
                {"xmp.jpg", 8, 19}};
    openpi_error error = OPENPI_ERROR_INIT;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int named = 0; named < 2; named++) {            /* the orientation, or another tag alone */
            uint8_t exif[64], *pixels;
            int height, width, tag = named ? 0x12 : 0x13;
            size_t count, bytes = make_tiff(exif, 1, 3, 1, rows[i].exif);
            exif[23] = (uint8_t)tag;
            uint8_t *picture = with_exif(rows[i].file, exif, bytes, &count);
            assert_int_equal(openpi_image_decode(picture, count, "f", &pixels, &height, &width, &error),
                             OPENPI_OK);
            int text = !strcmp(rows[i].file, "exif_text.png");
            assert_int_equal(height, named ? rows[i].height : text ? 13 : 19);
            openpi_free(pixels);
            free(picture);
        }
    static const struct {
        const char *text;
        int orientation;
    } texts[] = {{"", ORIENTATION_ABSENT},
                 {"\nexif\n  26\n4949", 0},
                 {"\nexif\n  26\n494", ORIENTATION_NO_DIGITS},
                 {"\nexif\n  26\n4949zz", ORIENTATION_NO_DIGITS},
                 {"\nexif\n  26\n4D4D002A00000008 0001 0112 0003 00000001\n0003000000000000\n", 3}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char text[128];
        size_t length = strlen(texts[i].text);
        memcpy(text, texts[i].text, length);
        assert_int_equal(orientation_of_profile(text, length), texts[i].orientation);
    }
    static const struct {
        const char *text;
        int orientation;
    } xmp[] = {{"", ORIENTATION_ABSENT},
               {"<tiff:Orientation>8</tiff:Orientation>", 8},
               {"tiff:Orientation='6'", ORIENTATION_ABSENT},
               {"tiff:Orientation, tiff:Orientation=\"2\"", 2},
               {"tiff:Orientation=\"", ORIENTATION_ABSENT}};
    for (size_t i = 0; i < sizeof xmp / sizeof *xmp; i++)
        assert_int_equal(orientation_of_xmp(xmp[i].text, strlen(xmp[i].text)), xmp[i].orientation);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resize_as_openpi),        cmocka_unit_test(floats_are_truncated),
        cmocka_unit_test(right_size_is_untouched), cmocka_unit_test(lerobots_floats_have_a_range),
        cmocka_unit_test(scratch_is_kept),
        cmocka_unit_test(no_size_reads_outside),   cmocka_unit_test(resize_as_lerobot),
        cmocka_unit_test(broken_pictures),         cmocka_unit_test(files_decode_as_pillow),
        cmocka_unit_test(broken_files),            cmocka_unit_test(pictures_stand_upright),
        cmocka_unit_test(broken_exif),
        cmocka_unit_test(which_orientation_counts),             cmocka_unit_test(places_change_no_bit),
        cmocka_unit_test(broken_places),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
