/* See client.h. */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client.h"

/* A port, which ends at a '/' or at the text's end. */
static int read_port(const char *text, int *port) {
    char *end;
    if (*text < '0' || *text > '9') return 0;
    long value = strtol(text, &end, 10);
    *port = (int)value;
    return value >= 1 && value <= 65535 && (!*end || *end == '/');
}

int client_address_read(const char *text, client_address *out) {
    *out = (client_address){.port = 80};
    if (!strncmp(text, "wss://", 6)) out->tls = 1, out->port = 443;
    else if (strncmp(text, "ws://", 5)) return 0;
    const char *host = text + 5 + out->tls, *end = host + strcspn(host, ":/");
    if (*host == '[') {
        end = strchr(++host, ']');
        if (!end) return 0;
    }
    size_t length = (size_t)(end - host);
    if (!length || length >= sizeof out->host) return 0;
    memcpy(out->host, host, length);
    end += *end == ']';
    if (*end == ':' && !read_port(end + 1, &out->port)) return 0;
    if (*end && *end != ':' && *end != '/') return 0;
    const char *path = strchr(end, '/');
    return snprintf(out->path, sizeof out->path, "%s", path ? path : "/") < (int)sizeof out->path;
}

/* 1: something accepts connections there, within three seconds. */
static int accepts(const struct addrinfo *to) {
    int error = 0, fd = socket(to->ai_family, SOCK_STREAM, 0);
    socklen_t bytes = sizeof error;
    if (fd < 0) return 0;
    fcntl(fd, F_SETFL, O_NONBLOCK);
    int connected = !connect(fd, to->ai_addr, to->ai_addrlen);
    if (!connected && errno == EINPROGRESS) {
        struct pollfd wait = {.fd = fd, .events = POLLOUT};
        connected = poll(&wait, 1, 3000) == 1 &&
                    !getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) && !error;
    }
    close(fd);
    return connected;
}

int client_address_reach(const client_address *address, char number[CLIENT_HOST]) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    char port[16];
    snprintf(number, CLIENT_HOST, "%s", address->host);
    snprintf(port, sizeof port, "%d", address->port);
    if (getaddrinfo(address->host, port, &hints, &found)) return 0;
    for (const struct addrinfo *a = found; a; a = a->ai_next) {
        if (!accepts(a)) continue;
        getnameinfo(a->ai_addr, a->ai_addrlen, number, CLIENT_HOST, NULL, 0, NI_NUMERICHOST);
        break;
    }
    freeaddrinfo(found);
    return 1;
}
