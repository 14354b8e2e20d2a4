/* The frames of a client's messages.
 *
 * Note: libwebsockets would mask a message byte by byte, all of it before the first one leaves, and copy what
 * the kernel does not take at once. A long message is several frames, so that a pong of the library fits
 * between two of them. */
#ifndef CLIENT_FRAME_H
#define CLIENT_FRAME_H

#include <stddef.h>
#include <stdint.h>

enum {
    CLIENT_MASK = 4,
    CLIENT_FRAME_DATA = 256 << 10,         /* the most that a frame has of a message                       */
    CLIENT_FRAME = 14 + CLIENT_FRAME_DATA, /* with the longest head                                        */
};

/* The next frame of a binary message that is not yet in frames from *written on, which moves. Returns the
 * frame's bytes. */
size_t client_frame_write(uint8_t frame[CLIENT_FRAME], const uint8_t *message, size_t count, size_t *written,
                          const uint8_t mask[CLIENT_MASK]);

#endif
