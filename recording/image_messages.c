/* Pictures as ROS 2 has them (sensor_msgs/msg), in CDR: four bytes that say "little-endian", then fields,
 * each at a multiple of its size counted from there. Definitions: docs.ros.org, common_interfaces. */
#include "recording/parts.h"

#define ROS_HEADER                                                                  \
    "================================================================================\n" \
    "MSG: std_msgs/Header\nbuiltin_interfaces/Time stamp\nstring frame_id\n"             \
    "================================================================================\n" \
    "MSG: builtin_interfaces/Time\nint32 sec\nuint32 nanosec\n"

const char recording_image_schema[] =
    "std_msgs/Header header\nuint32 height\nuint32 width\nstring encoding\nuint8 is_bigendian\nuint32 step\n"
    "uint8[] data\n" ROS_HEADER;

const char recording_compressed_schema[] = "std_msgs/Header header\nstring format\nuint8[] data\n" ROS_HEADER;

const char recording_call_schema[] =
    "{\"type\":\"object\",\"title\":\"openpi.Call\",\"properties\":{"
    "\"order\":{\"type\":\"integer\"},\"connection\":{\"type\":\"integer\"},\"robot\":{\"type\":\"string\"},"
    "\"address\":{\"type\":\"string\"},\"prompt\":{\"type\":\"string\"},\"total_ms\":{\"type\":\"number\"},"
    "\"model_ms\":{\"type\":\"number\"},\"batch\":{\"type\":\"integer\"},\"refused\":{\"type\":\"string\"},"
    "\"state\":{\"type\":\"array\",\"items\":{\"type\":\"number\"}},"
    "\"actions\":{\"type\":\"array\",\"items\":{\"type\":\"array\",\"items\":{\"type\":\"number\"}}}}}";

enum { CDR_BEGIN = 4 };

static void align(byte_buffer *out, size_t begin, size_t to) {
    while (!out->failed && (out->count - begin - CDR_BEGIN) % to) put_number(out, 0, 1);
}

static void put_cdr_u32(byte_buffer *out, size_t begin, uint32_t value) {
    align(out, begin, 4);
    put_u32(out, value);
}

/* Its length counts the NUL. */
static void put_cdr_text(byte_buffer *out, size_t begin, const char *text) {
    size_t length = strlen(text) + 1;
    put_cdr_u32(out, begin, (uint32_t)length);
    put_bytes(out, text, length);
}

void put_image_head(byte_buffer *out, const recorded_picture *p, uint64_t ns) {
    static const uint8_t little[CDR_BEGIN] = {0, 1, 0, 0};
    const size_t begin = out->count;
    put_bytes(out, little, sizeof little);
    put_u32(out, (uint32_t)(ns / 1000000000));
    put_u32(out, (uint32_t)(ns % 1000000000));
    put_cdr_text(out, begin, p->key);
    if (p->format) {
        put_cdr_text(out, begin, p->format);
    } else {
        put_cdr_u32(out, begin, (uint32_t)p->height);
        put_cdr_u32(out, begin, (uint32_t)p->width);
        put_cdr_text(out, begin, "rgb8");
        put_number(out, 0, 1);
        put_cdr_u32(out, begin, (uint32_t)p->width * 3);
    }
    put_cdr_u32(out, begin, (uint32_t)p->count);
}

void interleave_pixels(const uint8_t *planar, size_t count, uint8_t *out) {
    size_t pixels = count / 3;
    for (size_t i = 0; i < pixels; i++)
        for (size_t c = 0; c < 3; c++) out[3 * i + c] = planar[c * pixels + i];
}

void part_pixels(const uint8_t *interleaved, size_t count, uint8_t *out) {
    size_t pixels = count / 3;
    for (size_t i = 0; i < pixels; i++)
        for (size_t c = 0; c < 3; c++) out[c * pixels + i] = interleaved[3 * i + c];
}
