/* Reads EXIF's orientation tag and applies it to a picture.
 *
 * EXIF is a TIFF directory: in JPEG files in an APP1 segment, in PNG files in an eXIf chunk or as hexadecimal
 * digits in a text (ImageMagick, older ExifTool). Where EXIF has no orientation, XMP's counts. Cameras that
 * are mounted sideways or upside down store rows in the sensor's order and write here how to rotate or mirror
 * them. Which of several counts is as Pillow's exif_transpose has it. Formats: CIPA DC-008 (EXIF 2.3), TIFF
 * 6.0, the PNG specification (third edition, 11.3.4.5), XMP (Adobe, part 3). */
#include "policy/orientation.h"

#include <stdlib.h>
#include <string.h>

enum {
    TAG_ORIENTATION = 0x0112,
    TIFF_HEADER = 8,             /* byte order, 42, offset of the first directory                */
    TIFF_ENTRY = 12,             /* tag, type, count, value                                      */
    TYPE_SHORT = 3, TYPE_LONG = 4, TYPE_SBYTE = 6, TYPE_SSHORT = 8, TYPE_SLONG = 9, TYPE_IFD = 13,
    PNG_SIGNATURE = 8,
    PNG_AROUND = 12,             /* a chunk's length, type and checksum                          */
};

/* ---- reading -------------------------------------------------------------------------------------- */

static uint32_t number(const uint8_t *at, int bytes, int big_endian) {
    uint32_t value = 0;
    for (int i = 0; i < bytes; i++) value |= (uint32_t)at[big_endian ? bytes - 1 - i : i] << 8 * i;
    return value;
}

int orientation_of_tiff(const uint8_t *bytes, size_t count) {
    static const size_t widths[] = {[TYPE_SHORT] = 2, [TYPE_LONG] = 4,  [TYPE_SBYTE] = 1,
                                    [TYPE_SSHORT] = 2, [TYPE_SLONG] = 4, [TYPE_IFD] = 4};
    if (count < TIFF_HEADER || bytes[0] != bytes[1] || (bytes[0] != 'I' && bytes[0] != 'M')) return 0;
    int big = bytes[0] == 'M';
    uint64_t at = number(bytes + 4, 4, big);
    if (number(bytes + 2, 2, big) != 42 || at + 2 > count) return 0;
    uint32_t entries = number(bytes + at, 2, big), i = 0;
    at += 2;
    for (; i < entries && at + TIFF_ENTRY <= count; i++, at += TIFF_ENTRY) {
        const uint8_t *entry = bytes + at;
        uint32_t type = number(entry + 2, 2, big);
        if (number(entry, 2, big) != TAG_ORIENTATION) continue;
        if (type >= sizeof widths / sizeof *widths || !widths[type] || number(entry + 4, 4, big) != 1)
            return ORIENTATION_UNREADABLE;
        uint32_t value = number(entry + 8, (int)widths[type], big);
        return value > INT32_MAX ? INT32_MAX : (int)value;
    }
    return i == entries ? ORIENTATION_ABSENT : 0;
}

/* tiff:Orientation="6", or <tiff:Orientation>6: the first of them that has a digit. */
int orientation_of_xmp(const char *text, size_t count) {
    static const char key[] = "tiff:Orientation", *const signs[] = {"=\"", ">"};
    const size_t length = sizeof key - 1;
    for (size_t at = 0; at + length < count; at++) {
        if (memcmp(text + at, key, length)) continue;
        for (int i = 0; i < 2; i++) {
            size_t digit = at + length + strlen(signs[i]);
            if (digit < count && !memcmp(text + at + length, signs[i], strlen(signs[i])) &&
                text[digit] >= '0' && text[digit] <= '9')
                return text[digit] - '0';
        }
    }
    return ORIENTATION_ABSENT;
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    c |= 'a' - 'A';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The name before EXIF's bytes in JPEG files, and from some writers in PNG files. */
static const char exif_name[6] = "Exif\0";

static int has_name(const uint8_t *bytes, size_t count) {
    return count >= sizeof exif_name && !memcmp(bytes, exif_name, sizeof exif_name);
}

/* The name stands there once, from some writers twice, or not at all. */
static int orientation_of_exif(const uint8_t *bytes, size_t count) {
    for (int i = 0; i < 2 && has_name(bytes, count); i++) {
        bytes += sizeof exif_name;
        count -= sizeof exif_name;
    }
    return count ? orientation_of_tiff(bytes, count) : ORIENTATION_ABSENT;
}

int orientation_of_profile(char *text, size_t count) {
    uint8_t *bytes = (uint8_t *)text;
    size_t at = 0, digits = 0;
    for (int lines = 0; at < count && lines < 3; at++) lines += text[at] == '\n';
    for (; at < count; at++) {
        int digit = hex_digit(text[at]);
        if (strchr(" \t\n\v\f\r", text[at]) && text[at] && !(digits & 1)) continue;
        if (digit < 0) return ORIENTATION_NO_DIGITS;
        bytes[digits / 2] = (uint8_t)(digits & 1 ? bytes[digits / 2] << 4 | digit : digit);
        digits++;
    }
    return digits & 1 ? ORIENTATION_NO_DIGITS : orientation_of_exif(bytes, digits / 2);
}

static const char xmp_name[] = "http://ns.adobe.com/xap/1.0/";

int orientation_of_jpeg(const uint8_t *bytes, size_t count) {
    int exif = ORIENTATION_ABSENT, has_exif = 0, xmp = ORIENTATION_ABSENT;
    enum {
        MARKER = 0xff, START_OF_SCAN = 0xda, END = 0xd9, APP1 = 0xe1, TEMPORARY = 0x01, RESTART_0 = 0xd0,
        START = 0xd8
    };
    size_t at = 2;
    while (at + 4 <= count && bytes[at] == MARKER) {
        int marker = bytes[at + 1];
        if (marker == MARKER) {                          /* markers may be padded with any number of 0xff */
            at++;
            continue;
        }
        if (marker == START_OF_SCAN || marker == END) break;
        if (marker == TEMPORARY || (marker >= RESTART_0 && marker <= START)) {
            at += 2;
            continue;
        }
        size_t length = number(bytes + at + 2, 2, 1);    /* its own two bytes included */
        const uint8_t *data = bytes + at + 4;
        size_t left = count - at - 4, has = length < 2 ? 0 : length - 2 < left ? length - 2 : left;
        if (length < 2) break;
        if (marker == APP1 && has_name(data, has) && !has_exif) {
            exif = orientation_of_exif(data, has);
            has_exif = 1;
        } else if (marker == APP1 && has >= sizeof xmp_name && !memcmp(data, xmp_name, sizeof xmp_name)) {
            xmp = orientation_of_xmp((const char *)data + sizeof xmp_name, has - sizeof xmp_name);
        }
        at += 2 + length;
    }
    return exif == ORIENTATION_ABSENT ? xmp : exif;
}

int orientation_of_png(const uint8_t *bytes, size_t count, int *has_exif) {
    static const char key[] = "exif";
    int orientation = ORIENTATION_ABSENT;
    *has_exif = 0;
    for (size_t at = PNG_SIGNATURE; at + PNG_AROUND <= count;) {
        size_t length = number(bytes + at, 4, 1), left = count - at - PNG_AROUND;
        const uint8_t *data = bytes + at + 8;
        if (length > left) break;
        int text =
            !memcmp(bytes + at + 4, "tEXt", 4) && length >= sizeof key && !memcmp(data, key, sizeof key);
        if (text || !memcmp(bytes + at + 4, "eXIf", 4)) {
            size_t name = text ? sizeof key : 0;
            orientation = orientation_of_exif(data + name, length - name);
            *has_exif = 1;
        }
        at += PNG_AROUND + length;
    }
    return orientation;
}

/* ---- applying ------------------------------------------------------------------------------------- */

uint8_t *orientation_apply(int orientation, uint8_t *pixels, int *height, int *width) {
    /* Upright pixel (y, x) is stored at (y, x), or at (x, y) where transposed; counted from the last row or
     * column where flipped. */
    static const struct {
        int transposed, rows_flipped, columns_flipped;
    } transforms[] = {[2] = {0, 0, 1}, [3] = {0, 1, 1}, [4] = {0, 1, 0}, [5] = {1, 0, 0},
                 [6] = {1, 1, 0}, [7] = {1, 1, 1}, [8] = {1, 0, 1}};
    if (orientation < 2 || orientation > 8) return pixels;
    size_t rows = (size_t)*height, columns = (size_t)*width;
    int transposed = transforms[orientation].transposed;
    size_t out_rows = transposed ? columns : rows, out_columns = transposed ? rows : columns;
    uint8_t *out = malloc(rows * columns * 3), *to = out;
    if (!out) return NULL;
    for (size_t y = 0; y < out_rows; y++)
        for (size_t x = 0; x < out_columns; x++, to += 3) {
            size_t row = transposed ? x : y, column = transposed ? y : x;
            if (transforms[orientation].rows_flipped) row = rows - 1 - row;
            if (transforms[orientation].columns_flipped) column = columns - 1 - column;
            memcpy(to, pixels + (row * columns + column) * 3, 3);
        }
    free(pixels);
    *height = (int)out_rows;
    *width = (int)out_columns;
    return out;
}
