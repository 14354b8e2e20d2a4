/* LeRobot's resize: plain bilinear interpolation of four neighbours in fp32, however much it shrinks. */
#include <math.h>
#include <string.h>

#include "base/arena.h"
#include "base/report.h"
#include "policy/pictures/image_parts.h"

/* How far from 0.5 a float pixel may be: by rounding alone, and by the overshoot of a resize that made the
 * picture (LeRobot clamps it). 0 … 255 and -1 … 1 are farther. */
static const float ROUNDED = 0.5f + 4e-6f, OVERSHOT = 1;

/* Where an output lies between two inputs of its axis, in fp32. */
typedef struct neighbours {
    int first, second;
    float first_weight, second_weight;
} neighbours;

static neighbours neighbours_at(int in, int out, int o) {
    float scale = (float)in / (float)out;
    float at = fmaf(scale, (float)o + 0.5f, -0.5f);
    if (at < 0.0f) at = 0.0f;
    neighbours between;
    between.first = (int)at < in - 1 ? (int)at : in - 1;
    between.second = between.first + 1 < in ? between.first + 1 : in - 1;
    between.second_weight = at - (float)between.first;
    between.first_weight = 1.0f - between.second_weight;
    return between;
}

/* Channel values as LeRobot's tensors hold them: uint8/255 or the float itself. */
typedef struct source {
    const openpi_image *image;
    image_strides at;
    float byte[256];             /* u/255                                    */
} source;

static void source_of(const openpi_image *image, source *from) {
    from->image = image;
    from->at = image_strides_of(image);
    for (int u = 0; u < 256; u++) from->byte[u] = (float)u / 255.0f;
}

static inline float pixel_at(const source *from, int y, int x, int colour) {
    const char *data = (const char *)from->image->data + (size_t)y * from->at.row +
                       (size_t)x * from->at.pixel + from->at.colour[colour];
    switch (from->image->element) {
    case OPENPI_U8: return from->byte[*(const uint8_t *)data];
    case OPENPI_FLOAT32: return float_at(data, 0);
    case OPENPI_FLOAT16: return half_at(data, 0);
    default: return (float)double_at(data, 0);
    }
}

/* One input row, interpolated along x. */
static void interpolate_row(const source *from, int y, const neighbours *columns, int width, float *out) {
    for (int x = 0; x < width; x++) {
        const neighbours *at = &columns[x];
        for (int channel = 0; channel < 3; channel++) {
            float left = pixel_at(from, y, at->first, channel),
                  right = pixel_at(from, y, at->second, channel);
            out[3 * x + channel] = fmaf(at->first_weight, left, at->second_weight * right);
        }
    }
}

/* ---- the resize ----------------------------------------------------------------------------------- */

typedef struct bilinear_plan {
    neighbours *columns;         /* [224]                                                                   */
    float *rows[2];              /* [224*3] two input rows, interpolated along x                            */
    int held[2];                 /* the input row that each of them is; -1: none yet                        */
} bilinear_plan;

static void plan_take(bilinear_plan *plan, arena *arena) {
    plan->columns = arena_take(arena, SIDE * sizeof *plan->columns);
    for (int i = 0; i < 2; i++) plan->rows[i] = arena_take(arena, SIDE * 3 * sizeof(float));
    plan->held[0] = plan->held[1] = -1;
}

/* Both input rows that an output row lies between. What is held already is not computed again. */
static void hold_rows(bilinear_plan *plan, const source *from, const neighbours *between, int width) {
    int wanted[2] = {between->first, between->second};
    if (plan->held[1] == wanted[0] && plan->held[0] != wanted[0]) {  /* the lower row becomes the upper one */
        float *row = plan->rows[0];
        plan->rows[0] = plan->rows[1], plan->rows[1] = row;
        plan->held[1] = plan->held[0], plan->held[0] = wanted[0];
    }
    for (int i = 0; i < 2; i++) {
        if (plan->held[i] == wanted[i]) continue;
        interpolate_row(from, wanted[i], plan->columns, width, plan->rows[i]);
        plan->held[i] = wanted[i];
    }
}

/* A picture of 224×224 already: no resize, and so no clamp. */
static openpi_status copy_pixels(const source *from, float *out, openpi_error *error) {
    TRY(image_check_floats(from->image, ROUNDED, "float pictures in [0,1]", error));
    for (int y = 0; y < SIDE; y++)
        for (int x = 0; x < SIDE; x++)
            for (int channel = 0; channel < 3; channel++)
                *out++ = pixel_at(from, y, x, channel) * 2.0f - 1.0f;
    return OPENPI_OK;
}

openpi_status image_resize_lerobot(const openpi_image *image, image_scratch *scratch, float *out,
                                   openpi_error *error) {
    source from;
    TRY(image_check_fields(image, error));
    source_of(image, &from);
    if (image->width == SIDE && image->height == SIDE) return copy_pixels(&from, out, error);
    TRY(image_check_floats(image, OVERSHOT, "float pictures in [0,1], or by at most 0.5 outside", error));

    image_fit fit = image_fit_inside(image->width, image->height);
    bilinear_plan plan;
    arena block = {NULL, 0};
    plan_take(&plan, &block);
    TRY(image_scratch_grow(scratch, block.used, error));
    block = (arena){scratch->memory, 0};
    plan_take(&plan, &block);

    for (int x = 0; x < fit.width; x++) plan.columns[x] = neighbours_at(image->width, fit.width, x);
    for (int i = 0; i < SIDE * SIDE * 3; i++) out[i] = -1.0f;
    for (int y = 0; y < fit.height; y++) {
        neighbours between = neighbours_at(image->height, fit.height, y);
        hold_rows(&plan, &from, &between, fit.width);
        float *to = out + ((size_t)(fit.top + y) * SIDE + (size_t)fit.left) * 3;
        for (int i = 0; i < fit.width * 3; i++) {
            float value =
                fmaf(between.first_weight, plan.rows[0][i], between.second_weight * plan.rows[1][i]);
            value = value < 0.0f ? 0.0f : value > 1.0f ? 1.0f : value;
            to[i] = value * 2.0f - 1.0f;
        }
    }
    return OPENPI_OK;
}
