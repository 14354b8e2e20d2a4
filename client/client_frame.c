/* See client_frame.h. */
#include "client/client_frame.h"

#include <string.h>

/* `first`, `last`: in the message. Returns the head's bytes. */
static size_t write_head(uint8_t *to, int first, int last, size_t bytes, const uint8_t mask[CLIENT_MASK]) {
    enum { LAST = 0x80, BINARY = 2, MASKED = 0x80, TWO_MORE = 126, EIGHT_MORE = 127 };
    int more = bytes < TWO_MORE ? 0 : bytes <= UINT16_MAX ? 2 : 8;
    size_t at = 0;
    to[at++] = (uint8_t)((last ? LAST : 0) | (first ? BINARY : 0));
    to[at++] = (uint8_t)(MASKED | (!more ? bytes : more == 2 ? TWO_MORE : EIGHT_MORE));
    for (int i = more - 1; i >= 0; i--) to[at++] = (uint8_t)((uint64_t)bytes >> 8 * i);
    memcpy(to + at, mask, CLIENT_MASK);
    return at + CLIENT_MASK;
}

static void write_masked(uint8_t *to, const uint8_t *from, size_t count, const uint8_t mask[CLIENT_MASK]) {
    uint8_t twice[2 * CLIENT_MASK];
    uint64_t masks, eight;
    size_t i = 0;
    memcpy(twice, mask, CLIENT_MASK);
    memcpy(twice + CLIENT_MASK, mask, CLIENT_MASK);
    memcpy(&masks, twice, sizeof masks);
    for (; i + sizeof eight <= count; i += sizeof eight) {
        memcpy(&eight, from + i, sizeof eight);
        eight ^= masks;
        memcpy(to + i, &eight, sizeof eight);
    }
    for (; i < count; i++) to[i] = from[i] ^ mask[i % CLIENT_MASK];
}

size_t client_frame_write(uint8_t frame[CLIENT_FRAME], const uint8_t *message, size_t count, size_t *written,
                          const uint8_t mask[CLIENT_MASK]) {
    size_t from = *written, left = count - from, bytes = left < CLIENT_FRAME_DATA ? left : CLIENT_FRAME_DATA;
    size_t head = write_head(frame, !from, bytes == left, bytes, mask);
    if (bytes) write_masked(frame + head, message + from, bytes, mask);
    *written += bytes;
    return head + bytes;
}
