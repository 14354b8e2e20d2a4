/* The raw bytes of a message, walked once against the limits before anything is allocated for them. */
#include <string.h>

#include "base/report.h"
#include "policy/wire/wire_parts.h"

typedef struct walk {
    const uint8_t *bytes;
    size_t count, at;
    size_t values;
    openpi_error *error;
} walk;

static openpi_status walk_cut(const walk *walk) {
    return report(walk->error, OPENPI_BAD_INPUT,
                  "request: the message is cut short: it ends after %zu bytes, inside a value", walk->count);
}

/* A big-endian number of 1, 2, 4 or 8 bytes. */
static openpi_status walk_number(walk *walk, int bytes, uint64_t *number) {
    if (walk->count - walk->at < (size_t)bytes) return walk_cut(walk);
    *number = 0;
    for (int i = 0; i < bytes; i++) *number = *number << 8 | walk->bytes[walk->at++];
    return OPENPI_OK;
}

static openpi_status walk_skip(walk *walk, uint64_t bytes) {
    if (walk->count - walk->at < bytes) return walk_cut(walk);
    walk->at += (size_t)bytes;
    return OPENPI_OK;
}

/* As long as the message may be: where a text is read, it may have WIRE_MAX_TEXT. */
static openpi_status walk_text(walk *walk, uint64_t bytes) {
    if (bytes > WIRE_MAX_BYTES)
        return report(walk->error, OPENPI_BAD_INPUT,
                      "request: a string of %llu bytes at byte %zu, expected at most %d",
                      (unsigned long long)bytes, walk->at, WIRE_MAX_BYTES);
    return walk_skip(walk, bytes);
}

static openpi_status walk_value(walk *walk, int depth);

/* `each` values an entry: 1 for a list, 2 for a map. */
static openpi_status walk_entries(walk *walk, uint64_t entries, uint64_t each, int depth) {
    const char *what = each == 2 ? "map" : "list";
    if (depth >= WIRE_MAX_DEPTH)
        return report(walk->error, OPENPI_BAD_INPUT, "request: a %s at byte %zu is nested deeper than %d",
                      what, walk->at, WIRE_MAX_DEPTH);
    if (entries * each > WIRE_MAX_VALUES - walk->values)
        return report(walk->error, OPENPI_BAD_INPUT,
                      "request: a %s of %llu entries at byte %zu, expected at most %d values in a message",
                      what, (unsigned long long)entries, walk->at, WIRE_MAX_VALUES);
    walk->values += (size_t)(entries * each);
    for (uint64_t i = 0; i < entries * each; i++) TRY(walk_value(walk, depth + 1));
    return OPENPI_OK;
}

static openpi_status walk_value(walk *walk, int depth) {
    uint64_t tag, length;
    TRY(walk_number(walk, 1, &tag));
    if (tag <= 0x7f || tag >= 0xe0) return OPENPI_OK;                            /* small integers     */
    if (tag <= 0x8f) return walk_entries(walk, tag & 15, 2, depth);
    if (tag <= 0x9f) return walk_entries(walk, tag & 15, 1, depth);
    if (tag <= 0xbf) return walk_text(walk, tag & 31);
    switch (tag) {
    case 0xc0: case 0xc2: case 0xc3: return OPENPI_OK;                           /* nil, false, true   */
    case 0xc4: case 0xc5: case 0xc6:                                             /* bin 8, 16, 32      */
        TRY(walk_number(walk, 1 << (tag - 0xc4), &length));
        return walk_skip(walk, length);
    case 0xca: return walk_skip(walk, 4);                                        /* float 32, 64       */
    case 0xcb: return walk_skip(walk, 8);
    case 0xcc: case 0xcd: case 0xce: case 0xcf: return walk_skip(walk, 1u << (tag - 0xcc));
    case 0xd0: case 0xd1: case 0xd2: case 0xd3: return walk_skip(walk, 1u << (tag - 0xd0));
    case 0xd9: case 0xda: case 0xdb:                                             /* str 8, 16, 32      */
        TRY(walk_number(walk, 1 << (tag - 0xd9), &length));
        return walk_text(walk, length);
    case 0xdc: case 0xdd:                                                        /* list 16, 32        */
        TRY(walk_number(walk, tag == 0xdc ? 2 : 4, &length));
        return walk_entries(walk, length, 1, depth);
    case 0xde: case 0xdf:                                                        /* map 16, 32         */
        TRY(walk_number(walk, tag == 0xde ? 2 : 4, &length));
        return walk_entries(walk, length, 2, depth);
    case 0xc1:
        return report(walk->error, OPENPI_BAD_INPUT, "request: byte %zu is 0xc1, which msgpack never uses",
                      walk->at - 1);
    case 0xc7: case 0xc8: case 0xc9:                                             /* ext 8, 16, 32      */
        TRY(walk_number(walk, 1 << (tag - 0xc7), &length));
        return walk_skip(walk, length + 1);
    default: return walk_skip(walk, (1u << (tag - 0xd4)) + 1);                   /* ext of 1 … 16      */
    }
}

static const struct {
    const char *begin, *kind;
} files[] = {
    {"\xff\xd8\xff", "a JPEG file"},        {"\x89PNG\r\n", "a PNG file"}, {"\x93NUMPY", "a .npy file"},
    {"PK\x03\x04", "a zip or .npz file"},   {"\x80\x02", "a Python pickle"}, {"\x80\x03", "a Python pickle"},
    {"\x80\x04", "a Python pickle"},        {"\x80\x05", "a Python pickle"}, {"GIF8", "a GIF file"},
    {"RIFF", "a WebP file"},                 {"BM", "a BMP file"},             {"\x1f\x8b", "a gzip file"},
    {"\x89HDF\r\n", "an HDF5 file"},
};

const char *wire_file_kind(const void *bytes, size_t count) {
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        size_t length = strlen(files[i].begin);
        if (count > length && !memcmp(bytes, files[i].begin, length)) return files[i].kind;
    }
    return NULL;
}

uint64_t wire_entries(const uint8_t *bytes, size_t *first) {
    int wide = bytes[0] == 0xdc || bytes[0] == 0xde ? 2 : bytes[0] >= 0xdc ? 4 : 0;
    uint64_t entries = wide ? 0 : bytes[0] & 15;
    for (int i = 1; i <= wide; i++) entries = entries << 8 | bytes[i];
    *first = (size_t)wide + 1;
    return entries;
}

size_t wire_end(const uint8_t *bytes, size_t count, size_t at) {
    walk walk = {.bytes = bytes, .count = count, .at = at};
    walk_value(&walk, 0);
    return walk.at;
}

static int is_map(uint8_t tag) { return (tag >= 0x80 && tag <= 0x8f) || tag == 0xde || tag == 0xdf; }

static int is_list(uint8_t tag) { return (tag >= 0x90 && tag <= 0x9f) || tag == 0xdc || tag == 0xdd; }

openpi_status wire_check_bytes(const uint8_t *bytes, size_t count, int list, openpi_error *error) {
    if (count > WIRE_MAX_BYTES)
        return report(error, OPENPI_BAD_INPUT, "request: %zu bytes, expected at most %d", count,
                      WIRE_MAX_BYTES);
    if (!count)
        return report(error, OPENPI_BAD_INPUT, "request: an empty message, expected a map of msgpack");
    uint8_t tag = bytes[0];
    const char *file = tag == '{' && count > 1 ? "JSON text" : wire_file_kind(bytes, count);
    list = list && is_list(tag);
    if (file || (!is_map(tag) && !list))
        return report(error, OPENPI_BAD_INPUT,
                      "request: the message starts with byte 0x%02x, expected a map of msgpack%s%s", tag,
                      file ? "; it is " : "", file ? file : "");
    walk walk = {.bytes = bytes, .count = count, .error = error};
    TRY(walk_value(&walk, -list));
    if (walk.at != count)
        return report(error, OPENPI_BAD_INPUT, "request: %zu bytes follow the message's map, expected none",
                      count - walk.at);
    return OPENPI_OK;
}
