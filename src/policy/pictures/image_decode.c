/* PNG and JPEG files in memory to RGB bytes, as Pillow's convert("RGB") gives them: palettes and gray become
 * RGB, 16 bits of RGB or of gray with alpha keep their upper 8, alpha is dropped (not composited), no colour
 * profile or gamma is applied. The picture is then rotated or mirrored upright by the orientation in its EXIF
 * or XMP, as Pillow's exif_transpose does. 16 bits of gray alone are values of 0 to 255 to Pillow, and larger
 * ones are white: such a picture, a depth camera's for example, is refused here.
 * JPEG is decoded with the accurate DCT and smooth chroma, libjpeg's defaults.
 *
 * The first bytes decide the format. Sizes are read from the header and limited before pixels are allocated.
 *
 * Note: both libraries recover from much damage with a warning and gray areas. Here a JPEG warning is a
 * failure, because a robot should not act on half a picture. */
#include <limits.h>
#include <png.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <turbojpeg.h>

#include "base/report.h"
#include "openpi.h"
#include "policy/orientation.h"

enum {
    MAX_SIDE = 16384,
    MAX_PIXELS = 64 << 20,
    PNG_HEADER = 33,             /* signature and the IHDR chunk        */
    PNG_CHUNK_BYTES = 8 << 20,   /* any one chunk that libpng must hold */
    PNG_TAKE_BYTES = 2 * PNG_CHUNK_BYTES, /* any one piece of memory that libpng asks for */
    PNG_CHUNKS = 1000,
};

typedef struct picture {
    const char *name;
    uint8_t *pixels;             /* [height][width][3] */
    int height, width;
    int gray16;                  /* 1: a PNG with 16 bits of gray */
    int profile, xmp;            /* orientations in a PNG's texts */
} picture;

/* Checks the sizes that the header claims and allocates the pixels. */
static openpi_status take_pixels(picture *picture, uint32_t width, uint32_t height, openpi_error *error) {
    if (width < 1 || height < 1 || width > MAX_SIDE || height > MAX_SIDE ||
        (uint64_t)width * height > MAX_PIXELS)
        return report(error, OPENPI_BAD_FILE,
                      "%s: %u×%u pixels (width×height), expected 1 to %d a side and at most %d megapixels",
                      picture->name, width, height, MAX_SIDE, MAX_PIXELS >> 20);
    size_t bytes = (size_t)width * height * 3;
    picture->pixels = malloc(bytes);
    if (!picture->pixels) return report_no_memory(error, bytes, picture->name);
    picture->width = (int)width;
    picture->height = (int)height;
    return OPENPI_OK;
}

/* ---- PNG ------------------------------------------------------------------------------------------ */

/* What libpng's callbacks need. A failing call of libpng ends with longjmp. */
typedef struct png_source {
    const uint8_t *next;
    size_t left;
    int no_memory;
    jmp_buf jump;
    char why[200];
} png_source;

static void png_fail(png_structp png, png_const_charp message) {
    png_source *source = png_get_error_ptr(png);
    snprintf(source->why, sizeof source->why, "%s", message);
    longjmp(source->jump, 1);
}

static void png_ignore(png_structp png, png_const_charp message) {
    (void)png, (void)message;
}

static void png_give(png_structp png, png_bytep to, size_t bytes) {
    png_source *source = png_get_io_ptr(png);
    if (bytes > source->left) png_error(png, "the file is cut short");
    memcpy(to, source->next, bytes);
    source->next += bytes;
    source->left -= bytes;
}

/* libpng takes memory for an eXIf chunk as long as its header claims. Rows are far shorter than the limit. */
static png_voidp png_take(png_structp png, png_alloc_size_t bytes) {
    if (bytes > PNG_TAKE_BYTES) return NULL;
    void *memory = malloc(bytes);
    if (!memory) ((png_source *)png_get_mem_ptr(png))->no_memory = 1;
    return memory;
}

static void png_return(png_structp png, png_voidp memory) {
    (void)png;
    free(memory);
}

/* Gray values of two bytes, at the pixels' beginning, to RGB; 0: one is larger than 255. */
static int widen_gray(const picture *picture) {
    for (size_t i = (size_t)picture->width * (size_t)picture->height; i-- > 0;) {
        const uint8_t *gray = picture->pixels + 2 * i;
        if (gray[0]) return 0;
        memset(picture->pixels + 3 * i, gray[1], 3);
    }
    return 1;
}

/* The orientations in the texts; of several texts of a name the last one counts. */
static void png_read_texts(png_structp png, png_infop info, picture *picture) {
    png_textp texts = NULL;
    int count = png_get_text(png, info, &texts, NULL);
    for (int i = 0; i < count; i++) {
        size_t length = texts[i].text_length ? texts[i].text_length : texts[i].itxt_length;
        if (!strcmp(texts[i].key, "Raw profile type exif"))
            picture->profile = orientation_of_profile(texts[i].text, length);
        else if (!strcmp(texts[i].key, "XML:com.adobe.xmp"))
            picture->xmp = orientation_of_xmp(texts[i].text, length);
    }
}

/* Everything between here and the last row may jump to the caller's setjmp. */
static void png_rows(png_structp png, png_infop info, picture *picture) {
    png_read_info(png, info);
    picture->gray16 =
        png_get_bit_depth(png, info) == 16 && png_get_color_type(png, info) == PNG_COLOR_TYPE_GRAY;
    if (!picture->gray16) {
        png_set_expand(png); /* palette to RGB, 1, 2, 4 bits to 8, tRNS to alpha */
        png_set_strip_16(png);
        png_set_gray_to_rgb(png);
        png_set_strip_alpha(png);
    }
    int passes = png_set_interlace_handling(png);
    png_read_update_info(png, info);
    size_t stride = (size_t)picture->width * (picture->gray16 ? 2 : 3);
    if (png_get_image_width(png, info) != (png_uint_32)picture->width ||
        png_get_image_height(png, info) != (png_uint_32)picture->height ||
        png_get_rowbytes(png, info) != stride)
        png_error(png, "the header changed while it was read");
    for (int pass = 0; pass < passes; pass++)
        for (int y = 0; y < picture->height; y++)
            png_read_row(png, picture->pixels + (size_t)y * stride, NULL);
    png_read_end(png, info);
    png_read_texts(png, info, picture);
}

static openpi_status decode_png(const uint8_t *bytes, size_t count, picture *picture, openpi_error *error) {
    if (count < PNG_HEADER || memcmp(bytes + 12, "IHDR", 4) != 0)
        return report(error, OPENPI_BAD_FILE, "%s: not a valid PNG: no header in %zu bytes", picture->name,
                      count);
    uint32_t side[2];
    for (int i = 0; i < 2; i++) {
        const uint8_t *at = bytes + 16 + 4 * i;
        side[i] = (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
    }
    TRY(take_pixels(picture, side[0], side[1], error));

    png_source source;
    memset(&source, 0, sizeof source);
    source.next = bytes;
    source.left = count;
    png_structp png = png_create_read_struct_2(PNG_LIBPNG_VER_STRING, &source, png_fail, png_ignore, &source,
                                               png_take, png_return);
    png_infop info = png ? png_create_info_struct(png) : NULL;
    if (!info) {
        png_destroy_read_struct(&png, NULL, NULL);
        return report(error, OPENPI_NO_MEMORY, "out of memory: decoding %s", picture->name);
    }
    png_set_user_limits(png, MAX_SIDE, MAX_SIDE);
    png_set_chunk_malloc_max(png, PNG_CHUNK_BYTES);
    png_set_chunk_cache_max(png, PNG_CHUNKS);
    png_set_read_fn(png, &source, png_give);
    openpi_status status = OPENPI_OK;
    if (setjmp(source.jump)) {
        status = source.no_memory
                     ? report(error, OPENPI_NO_MEMORY, "out of memory: decoding %s", picture->name)
                     : report(error, OPENPI_BAD_FILE, "%s: not a valid PNG: %s", picture->name, source.why);
    } else {
        png_rows(png, info, picture);
    }
    png_destroy_read_struct(&png, &info, NULL);
    if (status == OPENPI_OK && picture->gray16 && !widen_gray(picture))
        return report(error, OPENPI_BAD_FILE,
                      "%s: 16 bits of gray with values above 255, as of a depth camera, expected a picture "
                      "of 8 bits a colour",
                      picture->name);
    return status;
}

/* ---- JPEG ----------------------------------------------------------------------------------------- */

static openpi_status jpeg_failed(tjhandle jpeg, const picture *picture, openpi_error *error) {
    const char *why = tjGetErrorStr2(jpeg);
    if (strstr(why, "Insufficient memory") || strstr(why, "allocation failure"))
        return report(error, OPENPI_NO_MEMORY, "out of memory: decoding %s", picture->name);
    return report(error, OPENPI_BAD_FILE, "%s: not a valid JPEG: %s", picture->name, why);
}

static openpi_status decode_jpeg(const uint8_t *bytes, size_t count, picture *picture, openpi_error *error) {
    if (count > ULONG_MAX)
        return report(error, OPENPI_BAD_FILE, "%s: %zu bytes are too many for a JPEG", picture->name, count);
    tjhandle jpeg = tjInitDecompress();
    if (!jpeg) return report(error, OPENPI_NO_MEMORY, "out of memory: decoding %s", picture->name);
    int width = 0, height = 0, sampling, colours = 0;
    unsigned long length = (unsigned long)count;
    openpi_status status;
    if (tjDecompressHeader3(jpeg, bytes, length, &width, &height, &sampling, &colours)) {
        status = jpeg_failed(jpeg, picture, error);
    } else if (!width || !height) {                      /* tables only: legal, but usually truncated */
        status = report(error, OPENPI_BAD_FILE, "%s: not a valid JPEG: %zu bytes without a picture",
                        picture->name, count);
    } else if (colours == TJCS_CMYK || colours == TJCS_YCCK) {
        status =
            report(error, OPENPI_BAD_FILE, "%s: a JPEG in CMYK colours, expected RGB or gray", picture->name);
    } else {
        status = take_pixels(picture, (uint32_t)width, (uint32_t)height, error);
        if (status == OPENPI_OK &&
            tjDecompress2(jpeg, bytes, length, picture->pixels, width, 0, height, TJPF_RGB,
                          TJFLAG_STOPONWARNING | TJFLAG_LIMITSCANS))
            status = jpeg_failed(jpeg, picture, error);
    }
    tjDestroy(jpeg);
    return status;
}

/* ---- either --------------------------------------------------------------------------------------- */

/* Where EXIF has no orientation, XMP's counts; a text with EXIF counts where there is no other EXIF. */
static int orientation_of(const picture *picture, int is_png, const void *bytes, size_t count) {
    if (!is_png) return orientation_of_jpeg(bytes, count);
    int has_exif, orientation = orientation_of_png(bytes, count, &has_exif);
    if (!has_exif) orientation = picture->profile;
    return orientation == ORIENTATION_ABSENT ? picture->xmp : orientation;
}

/* Refuses an orientation that EXIF does not define: the picture may lie on its side. 0, which cameras without
 * a sensor for it write, counts as upright. */
static openpi_status set_upright(picture *picture, int orientation, openpi_error *error) {
    if (orientation == ORIENTATION_ABSENT) return OPENPI_OK;
    if (orientation == ORIENTATION_NO_DIGITS)
        return report(error, OPENPI_BAD_FILE,
                      "%s: its text \"Raw profile type exif\" is no EXIF in hexadecimal digits",
                      picture->name);
    if (orientation < 0)
        return report(error, OPENPI_BAD_FILE,
                      "%s: its EXIF orientation is no single SHORT or LONG, expected 1 to 8", picture->name);
    if (orientation > 8)
        return report(error, OPENPI_BAD_FILE, "%s: its EXIF orientation is %d, expected 1 to 8",
                      picture->name, orientation);
    size_t bytes = (size_t)picture->height * (size_t)picture->width * 3;
    uint8_t *upright = orientation_apply(orientation, picture->pixels, &picture->height, &picture->width);
    if (!upright) return report_no_memory(error, bytes, picture->name);
    picture->pixels = upright;
    return OPENPI_OK;
}

openpi_status openpi_image_decode(const void *bytes, size_t count, const char *name, uint8_t **pixels,
                                  int *height, int *width, openpi_error *error) {
    static const uint8_t png[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'}, jpeg[] = {0xff, 0xd8, 0xff};
    if ((!bytes && count) || !pixels || !height || !width)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "openpi_image_decode: bytes, pixels, height and width must not be NULL");
    picture picture = {
        .name = name ? name : "picture", .profile = ORIENTATION_ABSENT, .xmp = ORIENTATION_ABSENT};
    openpi_status status;
    int is_png = count >= sizeof png && memcmp(bytes, png, sizeof png) == 0;
    if (is_png) status = decode_png(bytes, count, &picture, error);
    else if (count >= sizeof jpeg && memcmp(bytes, jpeg, sizeof jpeg) == 0)
        status = decode_jpeg(bytes, count, &picture, error);
    else
        status = report(error, OPENPI_BAD_FILE, "%s: neither a PNG nor a JPEG file (%zu bytes)", picture.name,
                        count);
    if (status == OPENPI_OK)
        status = set_upright(&picture, orientation_of(&picture, is_png, bytes, count), error);
    if (status != OPENPI_OK) {
        free(picture.pixels);
        return status;
    }
    *pixels = picture.pixels;
    *height = picture.height;
    *width = picture.width;
    return OPENPI_OK;
}
