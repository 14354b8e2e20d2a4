/* A picture of any size to the 224×224 that the models see, in the two ways they were trained with.
 *
 * Both keep the aspect ratio and centre the result: ratio = max(w/224, h/224), size = trunc(side / ratio), an
 * odd row or column of padding goes below or right. openpi's way is Pillow's BILINEAR: a triangle filter as
 * wide as the reduction, in fixed point, horizontally and then vertically with a rounding to uint8 between
 * (as Pillow 11.2.1, which openpi pins, does it; 13.0 takes some tall pictures the other way round, for other
 * last bits). LeRobot's is plain bilinear interpolation of four neighbours in fp32, however much it shrinks.
 *
 * What surprises: the 22-bit weights of the fixed-point filter are split in two halves of 11 bits, so that
 * SSE2's 16-bit multiply-add does two taps at once. Both halves are exact, so is their sum. */
#include "policy/image.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "base/arena.h"
#include "base/finite.h"
#include "base/report.h"

enum {
    SIDE = OPENPI_IMAGE_SIZE,
    MAX_ROW = 1 << 24,           /* bytes between rows: room for any padding, and no sum of them overflows */
    MAX_SIDE = 16384,
    MAX_PIXELS = 64 << 20,
    WEIGHT_BITS = 22,
    HALF_BITS = 11,              /* of a weight: high = w >> 11 <= 2048, low = w & 2047 */
    CHECKED = 4096,              /* float pixels that are checked together                         */
    ROW_PAD = 16,                /* bytes after a row that the filter may read, times a weight of zero */
};

#define MAX_PLANE ((uint64_t)1 << 40)                    /* bytes between planes */

/* ---- scratch -------------------------------------------------------------------------------------- */

void image_scratch_free(image_scratch *scratch) {
    free(scratch->memory);
    scratch->memory = NULL;
    scratch->bytes = 0;
}

static openpi_status grow(image_scratch *scratch, size_t bytes, openpi_error *error) {
    if (bytes <= scratch->bytes) return OPENPI_OK;
    image_scratch_free(scratch);
    scratch->memory = malloc(bytes);
    if (!scratch->memory) return report_no_memory(error, bytes, "the resize of a picture");
    scratch->bytes = bytes;
    return OPENPI_OK;
}

/* How far from 0.5 a float pixel may be: by rounding alone, and by the overshoot of a resize that made the
 * picture (LeRobot clamps it). 0 … 255 and -1 … 1 are farther. */
static const float ROUNDED = 0.5f + 4e-6f, OVERSHOT = 1;

static const char *name_of(const openpi_image *image) {
    return image->name ? image->name : "(unnamed)";
}

typedef struct fitted {
    int width, height;           /* of the resized picture inside the 224×224 */
    int left, top;
} fitted;

static fitted fit_inside(int width, int height) {
    double across = (double)width / SIDE, down = (double)height / SIDE;
    double ratio = across > down ? across : down;
    fitted fit = {(int)(width / ratio), (int)(height / ratio), 0, 0};
    fit.left = (SIDE - fit.width) / 2;
    fit.top = (SIDE - fit.height) / 2;
    return fit;
}

/* ---- where a picture's elements lie --------------------------------------------------------------- */

static const size_t element_bytes[] = {[OPENPI_U8] = 1, [OPENPI_FLOAT32] = 4, [OPENPI_FLOAT64] = 8};

static int has_alpha(const openpi_image *image) {
    return image->channels == OPENPI_RGBA || image->channels == OPENPI_BGRA;
}

/* The place of a colour (0 red, 1 green, 2 blue) among a pixel's channels or the planes. */
static int channel_of(const openpi_image *image, int colour) {
    return image->channels == OPENPI_BGR || image->channels == OPENPI_BGRA ? 2 - colour : colour;
}

/* In bytes: from a pixel to the next of its row, from a row to the next, and where each colour begins. */
typedef struct places {
    size_t pixel, row, colour[3];
} places;

static places places_of(const openpi_image *image) {
    size_t element = element_bytes[image->element], channels = has_alpha(image) ? 4 : 3,
           width = (size_t)image->width;
    int chw = image->layout == OPENPI_CHW;
    places at = {.pixel = chw ? element : channels * element};
    at.row = image->row_bytes ? image->row_bytes : width * at.pixel;
    size_t plane = image->plane_bytes ? image->plane_bytes : (size_t)image->height * at.row;
    for (int c = 0; c < 3; c++) at.colour[c] = (size_t)channel_of(image, c) * (chw ? plane : element);
    return at;
}

/* For sentences: which of the picture's elements this is, counted as if they lay one behind the other. */
static size_t element_number(const openpi_image *image, int y, int x, int colour) {
    size_t height = (size_t)image->height, width = (size_t)image->width,
           channel = (size_t)channel_of(image, colour);
    if (image->layout == OPENPI_CHW) return (channel * height + (size_t)y) * width + (size_t)x;
    return ((size_t)y * width + (size_t)x) * (has_alpha(image) ? 4 : 3) + channel;
}

/* 1: 3 · width · height elements, one behind the other. */
static int is_whole(const openpi_image *image) {
    places at = places_of(image);
    size_t row = (size_t)image->width * at.pixel;
    return !has_alpha(image) && at.row == row &&
           (image->layout == OPENPI_HWC || !image->plane_bytes ||
            image->plane_bytes == row * (size_t)image->height);
}

/* ---- checks --------------------------------------------------------------------------------------- */

static openpi_status check_strides(const openpi_image *image, openpi_error *error) {
    const char *name = name_of(image);
    if ((unsigned)image->channels > OPENPI_BGRA)
        return report(
            error, OPENPI_BAD_INPUT,
            "picture \"%s\": channels %d, expected OPENPI_RGB, OPENPI_BGR, OPENPI_RGBA or OPENPI_BGRA", name,
            (int)image->channels);
    if (image->reserved)
        return report(error, OPENPI_BAD_INPUT, "picture \"%s\": reserved is %d, expected 0", name,
                      image->reserved);
    size_t row = (size_t)image->width * places_of(image).pixel;
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

static openpi_status check_fields(const openpi_image *image, openpi_error *error) {
    const char *name = name_of(image);
    if (!image->data) return report(error, OPENPI_BAD_INPUT, "picture \"%s\": its data is NULL", name);
    if (image->element != OPENPI_U8 && image->element != OPENPI_FLOAT32 && image->element != OPENPI_FLOAT64)
        return report(error, OPENPI_BAD_INPUT,
                      "picture \"%s\": element type %d, expected OPENPI_U8, OPENPI_FLOAT32 or OPENPI_FLOAT64",
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
    fitted fit = fit_inside(image->width, image->height);
    if (fit.width < 1 || fit.height < 1)
        return report(error, OPENPI_BAD_INPUT,
                      "picture \"%s\": %d×%d pixels (width×height) would shrink to %d×%d, expected at least "
                      "one pixel a side",
                      name, image->width, image->height, fit.width, fit.height);
    return check_strides(image, error);
}

/* Float data may lie anywhere in a client's message, so every read is a copy; compilers make it a plain load.
 */
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

static double value_of(const openpi_image *image, size_t i) {
    return image->element == OPENPI_FLOAT32 ? (double)float_at(image->data, i) : double_at(image->data, i);
}

/* 1: float pixels first … first+count-1, count <= CHECKED, are at most `radius` away from 0.5; infinity: are
 * finite. */
static int are_near(const openpi_image *image, size_t first, size_t count, float radius) {
    float narrow[CHECKED];
    const void *at = (const char *)image->data + first * sizeof(float);
    if (image->element == OPENPI_FLOAT64) {
        for (size_t i = 0; i < count; i++) narrow[i] = (float)double_at(image->data, first + i);
        at = narrow;
    }
    return radius < INFINITY ? all_near_f32(at, count, 0.5f, radius) : all_finite_f32(at, count);
}

static double value_at(const openpi_image *image, const places *at, int y, int x, int colour) {
    const char *data =
        (const char *)image->data + (size_t)y * at->row + (size_t)x * at->pixel + at->colour[colour];
    return image->element == OPENPI_FLOAT32 ? (double)float_at(data, 0) : double_at(data, 0);
}

static openpi_status check_scattered(const openpi_image *image, float radius, const char *expected,
                                     openpi_error *error) {
    places at = places_of(image);
    for (int y = 0; y < image->height; y++)
        for (int x = 0; x < image->width; x++)
            for (int c = 0; c < 3; c++) {
                double value = value_at(image, &at, y, x, c);
                float narrow = (float)value;
                if (radius < INFINITY ? all_near_f32(&narrow, 1, 0.5f, radius) : all_finite_f32(&narrow, 1))
                    continue;
                return report(error, OPENPI_BAD_INPUT, "picture \"%s\": element %zu is %g, expected %s",
                              name_of(image), element_number(image, y, x, c), value, expected);
            }
    return OPENPI_OK;
}

static openpi_status check_floats(const openpi_image *image, float radius, const char *expected,
                                  openpi_error *error) {
    if (image->element != OPENPI_U8 && !is_whole(image))
        return check_scattered(image, radius, expected, error);
    size_t count = (size_t)image->width * (size_t)image->height * 3;
    for (size_t first = 0; image->element != OPENPI_U8 && first < count; first += CHECKED) {
        size_t block = count - first < CHECKED ? count - first : CHECKED, i = first;
        if (are_near(image, first, block, radius)) continue;
        while (are_near(image, i, 1, radius)) i++;
        return report(error, OPENPI_BAD_INPUT, "picture \"%s\": element %zu is %g, expected %s",
                      name_of(image), i, value_of(image, i), expected);
    }
    return OPENPI_OK;
}

openpi_status image_check(const openpi_image *image, openpi_error *error) {
    TRY(check_fields(image, error));
    return check_floats(image, INFINITY, "finite float32 values", error);
}

/* ---- rows of uint8 -------------------------------------------------------------------------------- */

/* One colour of row y to out[0], out[3], …: uint8 as it is, float by truncation of 255·x in the picture's own
 * precision. A value whose 255·x has no uint8 (numpy would wrap it around) is refused. */
static openpi_status read_colour(const openpi_image *image, const places *at, int y, int colour, uint8_t *out,
                                 openpi_error *error) {
    const uint8_t *from = (const uint8_t *)image->data + (size_t)y * at->row + at->colour[colour];
    if (image->element == OPENPI_U8) {
        for (int x = 0; x < image->width; x++) out[3 * x] = from[(size_t)x * at->pixel];
        return OPENPI_OK;
    }
    for (int x = 0; x < image->width; x++) {
        double value;
        if (image->element == OPENPI_FLOAT32) value = 255.0f * float_at(from + (size_t)x * at->pixel, 0);
        else value = 255.0 * double_at(from + (size_t)x * at->pixel, 0);
        if (!(value > -1.0 && value < 256.0))
            return report(error, OPENPI_BAD_INPUT,
                          "picture \"%s\": element %zu is %g, expected float pictures in [0,1]",
                          name_of(image), element_number(image, y, x, colour), value / 255.0);
        out[3 * x] = (uint8_t)(int)value;
    }
    return OPENPI_OK;
}

/* Row y as RGB bytes: a pointer into the picture where it is stored so and the filter may read past the row's
 * end, else `buffer` [width*3 + ROW_PAD]. */
static openpi_status read_row(const openpi_image *image, int y, uint8_t *buffer, const uint8_t **row,
                              openpi_error *error) {
    places at = places_of(image);
    size_t bytes = (size_t)image->width * 3, start = (size_t)y * at.row,
           end = (size_t)(image->height - 1) * at.row + bytes;
    *row = buffer;
    if (image->layout == OPENPI_HWC && image->element == OPENPI_U8 && image->channels == OPENPI_RGB) {
        const uint8_t *from = (const uint8_t *)image->data + start;
        if (start + bytes + ROW_PAD <= end) *row = from;
        else memcpy(buffer, from, bytes);
        return OPENPI_OK;
    }
    for (int colour = 0; colour < 3; colour++)
        TRY(read_colour(image, &at, y, colour, buffer + colour, error));
    return OPENPI_OK;
}

/* ---- Pillow's filter ------------------------------------------------------------------------------ */

/* The triangle filter of one axis. Weights are in 1/2^22; taps beyond an output's own have weight 0, up to an
 * even number, since they are taken in pairs: high and low are the halves of two neighbours in one int32. */
typedef struct triangle {
    int pairs;                   /* of the widest output */
    int32_t *from;               /* [out] first input    */
    int32_t *taps;               /* [out] how many       */
    int32_t *weights;            /* [out][2*pairs]       */
    int32_t *high, *low;         /* [out][pairs]         */
} triangle;

static double filter_support(int in, int out) {
    double scale = (double)in / out;
    return scale < 1.0 ? 1.0 : scale;
}

static void filter_take(triangle *filter, arena *arena, int in, int out) {
    filter->pairs = (int)ceil(filter_support(in, out)) + 1;
    size_t outputs = (size_t)out, pairs = (size_t)filter->pairs;
    filter->from = arena_take(arena, outputs * sizeof(int32_t));
    filter->taps = arena_take(arena, outputs * sizeof(int32_t));
    filter->weights = arena_take(arena, outputs * pairs * 2 * sizeof(int32_t));
    filter->high = arena_take(arena, outputs * pairs * sizeof(int32_t));
    filter->low = arena_take(arena, outputs * pairs * sizeof(int32_t));
}

static double filter_weight(int tap, double center, double inverse) {
    double distance = fabs((tap - center + 0.5) * inverse);
    return distance < 1.0 ? 1.0 - distance : 0.0;
}

/* In double and in this order of operations, as Pillow: the last bits decide roundings. */
static void filter_make(triangle *filter, int in, int out) {
    double scale = (double)in / out, support = filter_support(in, out), inverse = 1.0 / support;
    for (int o = 0; o < out; o++) {
        double center = (o + 0.5) * scale, sum = 0.0;
        int low = (int)(center - support + 0.5), high = (int)(center + support + 0.5);
        if (low < 0) low = 0;
        if (high > in) high = in;
        int32_t *weights = filter->weights + (size_t)o * (size_t)filter->pairs * 2;
        memset(weights, 0, (size_t)filter->pairs * 2 * sizeof *weights);
        for (int j = low; j < high; j++) sum += filter_weight(j, center, inverse);
        for (int j = low; j < high; j++) {
            double weight = filter_weight(j, center, inverse);
            if (sum != 0.0) weight /= sum;
            weights[j - low] = (int32_t)(0.5 + weight * (1 << WEIGHT_BITS));
        }
        filter->from[o] = low;
        filter->taps[o] = high - low;
        for (int p = 0; p < filter->pairs; p++) {
            size_t at = (size_t)o * (size_t)filter->pairs + (size_t)p;
            int32_t first = weights[2 * p], second = weights[2 * p + 1], mask = (1 << HALF_BITS) - 1;
            filter->high[at] = first >> HALF_BITS | (second >> HALF_BITS) << 16;
            filter->low[at] = (first & mask) | (second & mask) << 16;
        }
    }
}

/* The definition: one output of `taps` inputs that lie `stride` bytes apart. */
static uint8_t filter_one(const uint8_t *in, size_t stride, const int32_t *weights, int taps) {
    int32_t sum = 1 << (WEIGHT_BITS - 1);
    for (int t = 0; t < taps; t++) sum += weights[t] * in[(size_t)t * stride];
    sum >>= WEIGHT_BITS;
    return (uint8_t)(sum > 255 ? 255 : sum);
}

#if defined(__SSE2__)

/* (high·2^11 + low + half) >> 22 of four sums. */
static inline __m128i round_sums(__m128i high, __m128i low) {
    __m128i half = _mm_set1_epi32(1 << (WEIGHT_BITS - 1));
    return _mm_srai_epi32(_mm_add_epi32(_mm_add_epi32(_mm_slli_epi32(high, HALF_BITS), low), half),
                          WEIGHT_BITS);
}

/* row [width*3 + ROW_PAD] -> out [width out * 3]. Lanes: r0 r1 g0 g1 b0 b1 - - of two neighbouring pixels. */
static void filter_across(const triangle *filter, const uint8_t *row, uint8_t *out, int width) {
    __m128i zero = _mm_setzero_si128();
    for (int o = 0; o < width; o++) {
        const uint8_t *in = row + (size_t)filter->from[o] * 3;
        const int32_t *high = filter->high + (size_t)o * (size_t)filter->pairs;
        const int32_t *low = filter->low + (size_t)o * (size_t)filter->pairs;
        __m128i high_sum = zero, low_sum = zero;
        for (int p = 0, pairs = (filter->taps[o] + 1) / 2; p < pairs; p++, in += 6) {
            __m128i pixels = _mm_loadl_epi64((const __m128i *)(const void *)in);
            pixels = _mm_unpacklo_epi8(_mm_unpacklo_epi8(pixels, _mm_srli_epi64(pixels, 24)), zero);
            high_sum = _mm_add_epi32(high_sum, _mm_madd_epi16(pixels, _mm_set1_epi32(high[p])));
            low_sum = _mm_add_epi32(low_sum, _mm_madd_epi16(pixels, _mm_set1_epi32(low[p])));
        }
        __m128i sums = round_sums(high_sum, low_sum);
        sums = _mm_packs_epi32(sums, sums);
        int32_t pixel = _mm_cvtsi128_si32(_mm_packus_epi16(sums, sums));
        memcpy(out + 3 * o, &pixel, 3);
    }
}

/* Output row o of `count` bytes from rows of `count` bytes. Lanes: neighbouring bytes, each of two rows. */
static void filter_down(const triangle *filter, int o, const uint8_t *rows, uint8_t *out, int count) {
    const int32_t *high = filter->high + (size_t)o * (size_t)filter->pairs;
    const int32_t *low = filter->low + (size_t)o * (size_t)filter->pairs;
    size_t stride = (size_t)count;
    const uint8_t *first = rows + (size_t)filter->from[o] * stride;
    int taps = filter->taps[o], i = 0;
    __m128i zero = _mm_setzero_si128();
    for (; i + 8 <= count; i += 8) {
        __m128i high_left = zero, high_right = zero, low_left = zero, low_right = zero;
        const uint8_t *in = first + i;
        for (int t = 0; t < taps; t += 2, in += 2 * stride) {
            __m128i upper = _mm_loadl_epi64((const __m128i *)(const void *)in);
            __m128i lower =
                t + 1 < taps ? _mm_loadl_epi64((const __m128i *)(const void *)(in + stride)) : zero;
            __m128i bytes = _mm_unpacklo_epi8(upper, lower);
            __m128i left = _mm_unpacklo_epi8(bytes, zero), right = _mm_unpackhi_epi8(bytes, zero);
            __m128i high_pair = _mm_set1_epi32(high[t / 2]), low_pair = _mm_set1_epi32(low[t / 2]);
            high_left = _mm_add_epi32(high_left, _mm_madd_epi16(left, high_pair));
            high_right = _mm_add_epi32(high_right, _mm_madd_epi16(right, high_pair));
            low_left = _mm_add_epi32(low_left, _mm_madd_epi16(left, low_pair));
            low_right = _mm_add_epi32(low_right, _mm_madd_epi16(right, low_pair));
        }
        __m128i sums = _mm_packs_epi32(round_sums(high_left, low_left), round_sums(high_right, low_right));
        _mm_storel_epi64((__m128i *)(void *)(out + i), _mm_packus_epi16(sums, sums));
    }
    const int32_t *weights = filter->weights + (size_t)o * (size_t)filter->pairs * 2;
    for (; i < count; i++) out[i] = filter_one(first + i, stride, weights, taps);
}

#else

static void filter_across(const triangle *filter, const uint8_t *row, uint8_t *out, int width) {
    for (int i = 0; i < 3 * width; i++) {
        int o = i / 3;
        out[i] = filter_one(row + (size_t)filter->from[o] * 3 + i % 3, 3,
                            filter->weights + (size_t)o * (size_t)filter->pairs * 2, filter->taps[o]);
    }
}

static void filter_down(const triangle *filter, int o, const uint8_t *rows, uint8_t *out, int count) {
    const int32_t *weights = filter->weights + (size_t)o * (size_t)filter->pairs * 2;
    const uint8_t *first = rows + (size_t)filter->from[o] * (size_t)count;
    for (int i = 0; i < count; i++) out[i] = filter_one(first + i, (size_t)count, weights, filter->taps[o]);
}

#endif

/* ---- openpi --------------------------------------------------------------------------------------- */

typedef struct openpi_plan {
    triangle across, down;
    uint8_t *row;                /* [w*3 + ROW_PAD] one converted row                 */
    uint8_t *narrow;             /* [h][fit.width*3] after the horizontal pass        */
} openpi_plan;

static void plan_take(openpi_plan *plan, arena *arena, const openpi_image *image, fitted fit) {
    filter_take(&plan->across, arena, image->width, fit.width);
    filter_take(&plan->down, arena, image->height, fit.height);
    plan->row = arena_take(arena, (size_t)image->width * 3 + ROW_PAD);
    plan->narrow = arena_take(arena, (size_t)image->height * (size_t)fit.width * 3);
}

openpi_status image_resize_openpi(const openpi_image *image, image_scratch *scratch, uint8_t *out,
                                  openpi_error *error) {
    TRY(check_fields(image, error));
    fitted fit = fit_inside(image->width, image->height);
    openpi_plan plan;
    arena block = {NULL, 0};
    plan_take(&plan, &block, image, fit);
    TRY(grow(scratch, block.used, error));
    block.base = scratch->memory;
    block.used = 0;
    plan_take(&plan, &block, image, fit);

    int across = fit.width != image->width, down = fit.height != image->height, bytes = fit.width * 3;
    if (across) filter_make(&plan.across, image->width, fit.width);
    if (down) filter_make(&plan.down, image->height, fit.height);
    memset(plan.row + (size_t)image->width * 3, 0, ROW_PAD);
    for (int y = 0; y < image->height; y++) {
        const uint8_t *row;
        uint8_t *narrow = plan.narrow + (size_t)y * (size_t)bytes;
        TRY(read_row(image, y, plan.row, &row, error));
        if (across) filter_across(&plan.across, row, narrow, fit.width);
        else memcpy(narrow, row, (size_t)bytes);
    }
    memset(out, 0, SIDE * SIDE * 3);
    for (int y = 0; y < fit.height; y++) {
        uint8_t *to = out + ((size_t)(fit.top + y) * SIDE + (size_t)fit.left) * 3;
        if (down) filter_down(&plan.down, y, plan.narrow, to, bytes);
        else memcpy(to, plan.narrow + (size_t)y * (size_t)bytes, (size_t)bytes);
    }
    return OPENPI_OK;
}

/* ---- LeRobot -------------------------------------------------------------------------------------- */

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
    places at;
    float byte[256];             /* u/255                                    */
} source;

static void source_of(const openpi_image *image, source *from) {
    from->image = image;
    from->at = places_of(image);
    for (int u = 0; u < 256; u++) from->byte[u] = (float)u / 255.0f;
}

static inline float pixel_at(const source *from, int y, int x, int colour) {
    const char *data = (const char *)from->image->data + (size_t)y * from->at.row +
                       (size_t)x * from->at.pixel + from->at.colour[colour];
    switch (from->image->element) {
    case OPENPI_U8: return from->byte[*(const uint8_t *)data];
    case OPENPI_FLOAT32: return float_at(data, 0);
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

openpi_status image_resize_lerobot(const openpi_image *image, image_scratch *scratch, float *out,
                                   openpi_error *error) {
    TRY(check_fields(image, error));
    source from;
    source_of(image, &from);
    int untouched = image->width == SIDE && image->height == SIDE;  /* no resize, and so no clamp */
    TRY(check_floats(
        image, untouched ? ROUNDED : OVERSHOT,
        untouched ? "float pictures in [0,1]" : "float pictures in [0,1], or by at most 0.5 outside", error));
    if (untouched) {
        for (int y = 0; y < SIDE; y++)
            for (int x = 0; x < SIDE; x++)
                for (int channel = 0; channel < 3; channel++)
                    *out++ = pixel_at(&from, y, x, channel) * 2.0f - 1.0f;
        return OPENPI_OK;
    }
    fitted fit = fit_inside(image->width, image->height);
    size_t row_bytes = SIDE * 3 * sizeof(float);
    arena block = {NULL, 0};
    arena_take(&block, SIDE * sizeof(neighbours)), arena_take(&block, row_bytes),
        arena_take(&block, row_bytes);
    TRY(grow(scratch, block.used, error));
    block.base = scratch->memory;
    block.used = 0;
    neighbours *columns = arena_take(&block, SIDE * sizeof *columns);
    float *rows[2] = {arena_take(&block, row_bytes), arena_take(&block, row_bytes)};
    int held[2] = {-1, -1};                                          /* the input row that each of them is */

    for (int x = 0; x < fit.width; x++) columns[x] = neighbours_at(image->width, fit.width, x);
    for (int i = 0; i < SIDE * SIDE * 3; i++) out[i] = -1.0f;
    for (int y = 0; y < fit.height; y++) {
        neighbours between = neighbours_at(image->height, fit.height, y);
        int wanted[2] = {between.first, between.second};
        if (held[1] == wanted[0] && held[0] != wanted[0]) {          /* the lower row becomes the upper one */
            float *row = rows[0];
            rows[0] = rows[1], rows[1] = row;
            held[1] = held[0], held[0] = wanted[0];
        }
        for (int i = 0; i < 2; i++)
            if (held[i] != wanted[i]) {
                interpolate_row(&from, wanted[i], columns, fit.width, rows[i]);
                held[i] = wanted[i];
            }
        float *to = out + ((size_t)(fit.top + y) * SIDE + (size_t)fit.left) * 3;
        for (int i = 0; i < fit.width * 3; i++) {
            float value = fmaf(between.first_weight, rows[0][i], between.second_weight * rows[1][i]);
            value = value < 0.0f ? 0.0f : value > 1.0f ? 1.0f : value;
            to[i] = value * 2.0f - 1.0f;
        }
    }
    return OPENPI_OK;
}
