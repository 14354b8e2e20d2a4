/* A WebSocket client made of bytes: whatever a test wants to send, and every frame that comes back. Include
 * after cmocka.h. Waits at most ws_seconds for anything. */
#ifndef TESTS_WEBSOCKET_H
#define TESTS_WEBSOCKET_H

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

/* WS_SECONDS: most that anybody waits; under a sanitizer a call of the stand-in GPU takes half a minute. */
enum { WS_SECONDS = 600, WS_TEXT = 1, WS_BINARY = 2, WS_CLOSE = 8, WS_PING = 9, WS_PONG = 10, WS_END = -1 };

typedef struct ws_frame {
    int opcode;                  /* WS_END: the server closed the socket                                   */
    size_t bytes;
    uint8_t *data;               /* a NUL follows; to be freed                                             */
} ws_frame;

static int ws_seconds = WS_SECONDS;          /* time limit of the next sockets                             */
static int ws_window;            /* bytes that the next sockets keep unread; 0: as the system does         */

/* -1: refused. */
static inline int ws_try_socket(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct timeval most = {.tv_sec = ws_seconds};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
    if (ws_window) setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &ws_window, sizeof ws_window);
    if (!connect(fd, (struct sockaddr *)&address, sizeof address)) return fd;
    close(fd);
    return -1;
}

static inline int ws_socket(int port) {
    int fd = ws_try_socket(port);
    if (fd < 0) fail_msg("port %d: %s", port, strerror(errno));
    return fd;
}

static inline void ws_put(int fd, const void *data, size_t bytes) {
    const char *at = data;
    while (bytes) {
        ssize_t put = send(fd, at, bytes, MSG_NOSIGNAL);
        if (put <= 0) return;    /* the server has closed; reading tells                                    */
        at += put;
        bytes -= (size_t)put;
    }
}

/* Returns 0 at the end of the stream. */
static inline int ws_get(int fd, void *data, size_t bytes) {
    char *at = data;
    while (bytes) {
        ssize_t got = recv(fd, at, bytes, 0);
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            fail_msg("nothing came from the server within %d s", ws_seconds);
        if (got <= 0) return 0;
        at += got;
        bytes -= (size_t)got;
    }
    return 1;
}

/* The head of an HTTP answer into `head`, up to and with its empty line. */
static inline void ws_head(int fd, char *head, size_t capacity) {
    size_t count = 0;
    while (count + 1 < capacity && (count < 4 || memcmp(head + count - 4, "\r\n\r\n", 4)))
        if (!ws_get(fd, head + count, 1)) break;
        else count++;
    head[count] = 0;
}

/* Sends "GET PATH" and gives the answer's head; the body follows on the socket. */
static inline int ws_request(int port, const char *path, const char *more, char *head, size_t capacity) {
    char request[1024];
    int fd = ws_socket(port);
    snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n%s\r\n", path, port, more);
    ws_put(fd, request, strlen(request));
    ws_head(fd, head, capacity);
    return fd;
}

#define WS_UPGRADE                                                                                          \
    "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"                           \
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"

static inline int ws_open(int port, const char *path) {
    char head[1024];
    int fd = ws_request(port, path, WS_UPGRADE, head, sizeof head);
    if (strncmp(head, "HTTP/1.1 101 ", 13) || !strstr(head, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="))
        fail_msg("the handshake was answered with:\n%s", head);
    return fd;
}

/* A frame's head of up to 14 bytes, as if `bytes` bytes followed, masked by 0: they follow as they are. */
static inline void ws_put_head(int fd, int opcode, int fin, uint64_t bytes) {
    uint8_t head[14] = {(uint8_t)((fin ? 0x80 : 0) | opcode)};
    size_t count = 2;
    if (bytes < 126) {
        head[1] = (uint8_t)(0x80 | bytes);
    } else {
        int wide = bytes < 65536 ? 2 : 8;
        head[1] = (uint8_t)(0x80 | (wide == 2 ? 126 : 127));
        for (int i = 0; i < wide; i++) head[count++] = (uint8_t)(bytes >> 8 * (wide - 1 - i));
    }
    ws_put(fd, head, count + 4);
}

/* A frame with a real mask. */
static inline void ws_send(int fd, int opcode, int fin, const void *data, size_t bytes) {
    static const uint8_t mask[4] = {0x12, 0xf3, 0x00, 0x5a};
    uint8_t *frame = malloc(bytes + 14);
    size_t count = 2;
    assert_non_null(frame);
    frame[0] = (uint8_t)((fin ? 0x80 : 0) | opcode);
    if (bytes < 126) {
        frame[1] = (uint8_t)(0x80 | bytes);
    } else {
        int wide = bytes < 65536 ? 2 : 8;
        frame[1] = (uint8_t)(0x80 | (wide == 2 ? 126 : 127));
        for (int i = 0; i < wide; i++) frame[count++] = (uint8_t)(bytes >> 8 * (wide - 1 - i));
    }
    memcpy(frame + count, mask, 4);
    count += 4;
    for (size_t i = 0; i < bytes; i++) frame[count + i] = ((const uint8_t *)data)[i] ^ mask[i % 4];
    ws_put(fd, frame, count + bytes);
    free(frame);
}

static inline ws_frame ws_receive(int fd) {
    uint8_t head[2], wide[8];
    ws_frame frame = {.opcode = WS_END};
    if (!ws_get(fd, head, 2)) return frame;
    frame.bytes = head[1] & 0x7f;
    assert_true(head[0] & 0x80);             /* the server sends whole messages, and masks none            */
    assert_false(head[1] & 0x80);
    if (frame.bytes >= 126) {
        int count = frame.bytes == 126 ? 2 : 8;
        if (!ws_get(fd, wide, (size_t)count)) return frame;
        frame.bytes = 0;
        for (int i = 0; i < count; i++) frame.bytes = frame.bytes << 8 | wide[i];
    }
    frame.data = calloc(1, frame.bytes + 1);
    assert_non_null(frame.data);
    if (ws_get(fd, frame.data, frame.bytes)) frame.opcode = head[0] & 0xf;
    return frame;
}

/* The next frame must be of this kind. */
static inline ws_frame ws_expect(int fd, int opcode) {
    ws_frame frame = ws_receive(fd);
    if (frame.opcode != opcode)
        fail_msg("got opcode %d with %zu bytes \"%s\", expected opcode %d", frame.opcode, frame.bytes,
                 !frame.data || frame.opcode == WS_BINARY ? ""
                 : frame.opcode == WS_CLOSE               ? (char *)frame.data + 2
                                                          : (char *)frame.data,
                 opcode);
    return frame;
}

/* What was sent before has been read. */
static inline void ws_ping(int fd) {
    ws_send(fd, WS_PING, 1, "", 0);
    free(ws_expect(fd, WS_PONG).data);
}

/* Each pong is a turn of the server's loop; the timers of one turn are over before the next one reads. */
static inline void ws_turn(int fd) {
    for (int i = 0; i < 3; i++) ws_ping(fd);
}

/* Nothing has come, not even the end. */
static inline int ws_is_there(int fd) {
    char byte;
    return recv(fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK) < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
}

/* The next that comes is the end. */
static inline void ws_must_end(int fd) {
    char byte;
    assert_int_equal(ws_get(fd, &byte, 1), 0);
    close(fd);
}

/* The server closes with this code; answers as a client does, and waits for the end. */
static inline void ws_expect_close(int fd, int code) {
    ws_frame frame = ws_expect(fd, WS_CLOSE);
    assert_true(frame.bytes >= 2);
    assert_int_equal(frame.data[0] << 8 | frame.data[1], code);
    ws_send(fd, WS_CLOSE, 1, frame.data, 2);
    free(frame.data);
    frame = ws_expect(fd, WS_END);
    free(frame.data);
    close(fd);
}

#endif
