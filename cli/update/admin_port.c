#include "admin_port.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum { SECONDS = 10 };

int admin_port_read(const char *text, const char *key, admin_port *a) {
    *a = (admin_port){.text = text, .key = key};
    const char *colon = strrchr(a->text, ':'), *begin = a->text;
    size_t count = colon ? (size_t)(colon - begin) : 0;
    if (count > 2 && begin[0] == '[' && begin[count - 1] == ']') begin++, count -= 2;
    int fits = count && count < HOST && strlen(colon + 1) < PORT && colon[1] &&
               !colon[1 + strspn(colon + 1, "0123456789")];
    if (!fits)
        return usage_error(&verb_update, "--admin is '%s', expected HOST:PORT, as 127.0.0.1:8642", a->text);
    snprintf(a->host, sizeof a->host, "%.*s", (int)count, begin);
    snprintf(a->port, sizeof a->port, "%s", colon + 1);
    return END_FINE;
}

static int connect_to(const struct addrinfo *address) {
    const struct timeval patience = {.tv_sec = SECONDS};
    int fd = socket(address->ai_family, address->ai_socktype, address->ai_protocol);
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (!connect(fd, address->ai_addr, address->ai_addrlen)) return fd;
    close(fd);
    return -1;
}

/* -1: no address of the host takes a connection. */
static int reach(const admin_port *a) {
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *list;
    int fd = -1;
    if (getaddrinfo(a->host, a->port, &hints, &list)) return -1;
    for (const struct addrinfo *one = list; one && fd < 0; one = one->ai_next) fd = connect_to(one);
    freeaddrinfo(list);
    return fd;
}

static int put_all(int fd, const char *text, size_t bytes) {
    while (bytes) {
        ssize_t sent = send(fd, text, bytes, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return 0;
        text += sent;
        bytes -= (size_t)sent;
    }
    return 1;
}

/* Until the server closes, or the text is full. */
static void take_all(int fd, char *text, size_t bytes) {
    size_t used = 0;
    ssize_t got = 1;
    while (got && used + 1 < bytes) {
        got = recv(fd, text + used, bytes - used - 1, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) break;
        used += (size_t)got;
    }
    text[used] = 0;
}

static int read_answer(const admin_port *a, const char *text, admin_answer *out) {
    const char *body = strstr(text, "\r\n\r\n");
    if (strncmp(text, "HTTP/1.", 7) || !body)
        return input_error(&verb_update,
                           "%s does not answer in HTTP: on loopback the admin port does, and where other "
                           "machines reach it it speaks TLS, so run this on the server's machine or use curl",
                           a->text);
    out->status = atoi(text + strcspn(text, " "));
    snprintf(out->body, sizeof out->body, "%s", body + 4);
    out->body[strcspn(out->body, "\r\n")] = 0;
    return END_FINE;
}

int admin_port_ask(const admin_port *a, const char *method, const char *path, admin_answer *out) {
    char text[ANSWER];
    int fd = reach(a);
    if (fd < 0)
        return input_error(&verb_update, "%s: no server's admin port takes a connection there", a->text);
    int length = snprintf(text, sizeof text,
                          "%s %s HTTP/1.1\r\nHost: %s\r\nContent-Length: 0\r\nConnection: close\r\n%s%s%s\r\n",
                          method, path, a->text, a->key ? "Authorization: Bearer " : "", a->key ? a->key : "",
                          a->key ? "\r\n" : "");
    if (length < (int)sizeof text && put_all(fd, text, (size_t)length)) take_all(fd, text, sizeof text);
    else text[0] = 0;
    close(fd);
    return read_answer(a, text, out);
}
