/* openpi's resize: Pillow's BILINEAR, a triangle filter as wide as the reduction, in fixed point,
 * horizontally and then vertically with a rounding to uint8 between (as Pillow 11.2.1, which openpi
 * pins; 13.0 filters some tall pictures vertically first, for other last bits).
 *
 * Note: the 22-bit weights of the fixed-point filter are split in two halves of 11 bits, so that SSE2's
 * 16-bit multiply-add does two taps at once. Both halves are exact, so is their sum. */
#include <math.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "base/arena.h"
#include "base/report.h"
#include "policy/pictures/image_parts.h"

enum {
    WEIGHT_BITS = 22,
    HALF_BITS = 11,              /* low bits of a weight: high = w >> 11 <= 2048, low = w & 2047            */
    ROW_PAD = 16,                /* bytes after a row that the filter may read, times a weight of zero      */
};

/* ---- rows of uint8 -------------------------------------------------------------------------------- */

/* One colour of row y to out[0], out[3], …: uint8 unchanged, float by truncation of 255·x in the picture's
 * own precision. A value whose 255·x does not fit a uint8 (numpy would wrap it around) is refused. */
static openpi_status read_colour(const openpi_image *image, const image_strides *at, int y, int colour,
                                 uint8_t *out, openpi_error *error) {
    const uint8_t *from = (const uint8_t *)image->data + (size_t)y * at->row + at->colour[colour];
    if (image->element == OPENPI_U8) {
        for (int x = 0; x < image->width; x++) out[3 * x] = from[(size_t)x * at->pixel];
        return OPENPI_OK;
    }
    for (int x = 0; x < image->width; x++) {
        double value;
        const uint8_t *pixel = from + (size_t)x * at->pixel;
        if (image->element == OPENPI_FLOAT32) value = 255.0f * float_at(pixel, 0);
        else if (image->element == OPENPI_FLOAT16)
            value = f16_to_float(float_to_f16(255.0f * half_at(pixel, 0)));
        else value = 255.0 * double_at(pixel, 0);
        if (!(value > -1.0 && value < 256.0))
            return report(error, OPENPI_BAD_INPUT,
                          "picture \"%s\": element %zu is %g, expected float pictures in [0,1]",
                          image_name(image), image_element_number(image, y, x, colour), value / 255.0);
        out[3 * x] = (uint8_t)(int)value;
    }
    return OPENPI_OK;
}

/* Row y as RGB bytes: a pointer into the picture if it is stored so and the filter may read past the row's
 * end, else `buffer` [width*3 + ROW_PAD]. */
static openpi_status read_row(const openpi_image *image, int y, uint8_t *buffer, const uint8_t **row,
                              openpi_error *error) {
    image_strides at = image_strides_of(image);
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
    int pairs;                   /* pairs in the widest output */
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

/* In double and in Pillow's order of operations: the last bits decide roundings. */
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

/* ---- the resize --------------------------------------------------------------------------------------- */

typedef struct openpi_plan {
    triangle across, down;
    uint8_t *row;                /* [w*3 + ROW_PAD] one converted row                 */
    uint8_t *narrow;             /* [h][fit.width*3] after the horizontal pass        */
} openpi_plan;

static void plan_take(openpi_plan *plan, arena *arena, const openpi_image *image, image_fit fit) {
    filter_take(&plan->across, arena, image->width, fit.width);
    filter_take(&plan->down, arena, image->height, fit.height);
    plan->row = arena_take(arena, (size_t)image->width * 3 + ROW_PAD);
    plan->narrow = arena_take(arena, (size_t)image->height * (size_t)fit.width * 3);
}

/* A picture that keeps its size: each row to its place. */
static openpi_status copy_rows(const openpi_image *image, uint8_t *buffer, uint8_t *out,
                               openpi_error *error) {
    for (int y = 0; y < image->height; y++) {
        const uint8_t *row;
        TRY(read_row(image, y, buffer, &row, error));
        memcpy(out + (size_t)y * SIDE * 3, row, (size_t)image->width * 3);
    }
    return OPENPI_OK;
}

int image_is_ready(const openpi_image *image) {
    const size_t row = SIDE * 3;
    return image->element == OPENPI_U8 && image->layout == OPENPI_HWC && image->channels == OPENPI_RGB &&
           image->width == SIDE && image->height == SIDE && (!image->row_bytes || image->row_bytes == row);
}

openpi_status image_resize_openpi(const openpi_image *image, image_scratch *scratch, uint8_t *out,
                                  openpi_error *error) {
    TRY(image_check_fields(image, error));
    image_fit fit = image_fit_inside(image->width, image->height);
    openpi_plan plan;
    arena block = {NULL, 0};
    plan_take(&plan, &block, image, fit);
    TRY(image_scratch_grow(scratch, block.used, error));
    block = (arena){scratch->memory, 0};
    plan_take(&plan, &block, image, fit);

    int across = fit.width != image->width, down = fit.height != image->height, bytes = fit.width * 3;
    memset(plan.row + (size_t)image->width * 3, 0, ROW_PAD);
    if (fit.width < SIDE || fit.height < SIDE) memset(out, 0, SIDE * SIDE * 3);
    uint8_t *first = out + ((size_t)fit.top * SIDE + (size_t)fit.left) * 3;
    if (!across && !down) return copy_rows(image, plan.row, first, error);
    if (across) filter_make(&plan.across, image->width, fit.width);
    if (down) filter_make(&plan.down, image->height, fit.height);
    for (int y = 0; y < image->height; y++) {
        const uint8_t *row;
        uint8_t *narrow = plan.narrow + (size_t)y * (size_t)bytes;
        TRY(read_row(image, y, plan.row, &row, error));
        if (across) filter_across(&plan.across, row, narrow, fit.width);
        else memcpy(narrow, row, (size_t)bytes);
    }
    for (int y = 0; y < fit.height; y++) {
        uint8_t *to = first + (size_t)y * SIDE * 3;
        if (down) filter_down(&plan.down, y, plan.narrow, to, bytes);
        else memcpy(to, plan.narrow + (size_t)y * (size_t)bytes, (size_t)bytes);
    }
    return OPENPI_OK;
}
