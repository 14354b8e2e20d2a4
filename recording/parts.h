/* What writing and reading calls share. */
#ifndef RECORDING_PARTS_H
#define RECORDING_PARTS_H

#include <msgpack.h>

#include "openpi.h"
#include "recording/bytes.h"

#define RECORDING_EXACT "/openpi/exact"
#define RECORDING_CALL "/openpi/call"
#define RECORDING_CAMERA "/camera/"
#define RECORDING_MODEL "openpi.Model"

enum {
    RECORDING_PICTURES = 16,     /* most that are taken out of a request's bytes                           */
    RECORDING_KEY = 128,         /* bytes of a picture's key with its NUL                                  */
    RECORDING_FORMAT = 1,        /* /openpi/exact's; another one is not read                               */
    RECORDING_DIMS = OPENPI_ACTION_DIM,
};

/* A picture within a request's bytes. */
typedef struct recorded_picture {
    char key[RECORDING_KEY];     /* the request's, "/" between maps                                        */
    size_t offset, count;        /* where it lies in the request                                           */
    int height, width;           /* raw RGB pixels; 0: a picture's file                                    */
    int planar;                  /* 1: channels first in the request; a viewer gets them last              */
    const char *format;          /* "jpeg" or "png", of a file                                              */
} recorded_picture;

/* Pictures of a request that a viewer can show: arrays u8 [h,w,3] or [3,h,w] and files, in the order of their
 * bytes. Bytes that are no msgpack have none. */
int recorded_pictures(const uint8_t *request, size_t count, recorded_picture out[RECORDING_PICTURES]);

/* Numbers of a request's or a reply's array under this key (joined by "/"), as doubles: how many, at most
 * `capacity`; 0: there is none. */
size_t recorded_array(const uint8_t *message, size_t count, const char *key, double *out, size_t capacity);
/* A text; the span is bad where there is none. */
span recorded_text(const uint8_t *message, size_t count, const char *key);

/* 1: one msgpack value whose maps and lists hold no more than there are bytes for, so that msgpack-c, which
 * takes memory by the number that stands there, takes little. */
int msgpack_fits(const uint8_t *data, size_t count);

/* `count` bytes of pixels, channels first to channels last, and back. */
void interleave_pixels(const uint8_t *planar, size_t count, uint8_t *out);
void part_pixels(const uint8_t *interleaved, size_t count, uint8_t *out);

/* ROS 2's messages (CDR, little-endian) but for the picture's bytes, which come last. */
void put_image_head(byte_buffer *out, const recorded_picture *picture, uint64_t ns);

extern const char recording_image_schema[], recording_compressed_schema[], recording_call_schema[];

#endif
