/* See ws_client.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ws_client.h"

/* A port, which ends at a '/' or at the text's end. */
static int read_port(const char *text, int *port) {
    char *end;
    if (*text < '0' || *text > '9') return 0;
    long value = strtol(text, &end, 10);
    *port = (int)value;
    return value >= 1 && value <= 65535 && (!*end || *end == '/');
}

int ws_address_read(const char *text, ws_address *out) {
    *out = (ws_address){.port = 80};
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
