/* See systemd.h. */
#include "systemd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "serve/small/fail.h"

enum {
    REPORT_BYTES = 512,
    PINGS = 2,                   /* within the time that systemd waits                                     */
    LOOKS = 4,                   /* between two pings                                                      */
};

/* Returns the address' length, 0 where `path` is none. */
static socklen_t address_of(const char *path, struct sockaddr_un *address) {
    size_t length = strlen(path);
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    if ((path[0] != '/' && path[0] != '@') || length < 2 || length >= sizeof address->sun_path) return 0;
    memcpy(address->sun_path, path, length);
    if (path[0] == '@') address->sun_path[0] = 0;
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length + (path[0] == '/'));
}

openpi_status systemd_open(systemd *out, const char *path, int64_t watchdog_us, openpi_error *error) {
    struct sockaddr_un address;
    *out = (systemd){.fd = -1};
    if (!path) return OPENPI_OK;
    socklen_t bytes = address_of(path, &address);
    if (!bytes)
        return fail(error, OPENPI_BAD_ARGUMENT,
                    "NOTIFY_SOCKET is '%s', expected the path of a socket, or '@' and a name", path);
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, bytes)) {
        int why = errno;
        if (fd >= 0) close(fd);
        return fail(error, OPENPI_BAD_ARGUMENT, "NOTIFY_SOCKET is '%s': %s", path, strerror(why));
    }
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    out->fd = fd;
    out->watchdog_ns = watchdog_us * 1000;
    return OPENPI_OK;
}

void systemd_close(systemd *s) {
    if (s->fd >= 0) close(s->fd);
    s->fd = -1;
}

void systemd_report(const systemd *s, const char *format, ...) {
    char text[REPORT_BYTES];
    va_list list;
    if (s->fd < 0) return;
    va_start(list, format);
    int length = vsnprintf(text, sizeof text, format, list);
    va_end(list);
    if (length < 0) return;
    size_t count = (size_t)length < sizeof text ? (size_t)length : sizeof text - 1;
    send(s->fd, text, count, MSG_DONTWAIT | MSG_NOSIGNAL);
}

int systemd_interval(const systemd *s) {
    int64_t interval = s->watchdog_ns / (PINGS * LOOKS * 1000000);
    if (s->fd < 0 || !s->watchdog_ns) return 0;
    return interval < 1 ? 1 : interval > 1000 ? 1000 : (int)interval;
}

void systemd_alive(systemd *s, const char *hung, int64_t now) {
    if (s->fd < 0 || !s->watchdog_ns) return;
    if (hung) {
        if (!s->hung) systemd_report(s, "STATUS=%s does not come back from a call", hung);
        s->hung = 1;
        return;
    }
    int due = !s->pinged_ns || now - s->pinged_ns >= s->watchdog_ns / PINGS;
    if (s->hung) systemd_report(s, "STATUS=serving");
    if (due || s->hung) {
        systemd_report(s, "WATCHDOG=1");
        s->pinged_ns = now;
    }
    s->hung = 0;
}
