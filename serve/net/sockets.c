/* See sockets.h. */
#include "sockets.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <unistd.h>

int socket_is_loopback(const struct sockaddr *address) {
    if (address->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)(const void *)address)->sin_addr.s_addr) >> 24 == 127;
    if (address->sa_family != AF_INET6) return 0;
    return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)address)->sin6_addr);
}

void socket_set_port(struct sockaddr *address, int port) {
    uint16_t number = htons((uint16_t)port);
    if (address->sa_family == AF_INET) ((struct sockaddr_in *)(void *)address)->sin_port = number;
    else ((struct sockaddr_in6 *)(void *)address)->sin6_port = number;
}

int socket_port(int fd) {
    struct sockaddr_storage address;
    socklen_t bytes = sizeof address;
    if (getsockname(fd, (struct sockaddr *)&address, &bytes)) return 0;
    if (address.ss_family == AF_INET) return ntohs(((struct sockaddr_in *)(void *)&address)->sin_port);
    return ntohs(((struct sockaddr_in6 *)(void *)&address)->sin6_port);
}

/* Not at once with SO_REUSEADDR: two that have it may bind the same port while neither listens. Only where
 * connections of before are still in the system's memory the port cannot be had without it. */
int socket_bind(const struct addrinfo *at) {
    int one = 1, fd = socket(at->ai_family, at->ai_socktype, at->ai_protocol);
    if (fd < 0) return -1;
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    if (at->ai_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof one);
    if (!bind(fd, at->ai_addr, at->ai_addrlen)) return fd;
    int taken = errno == EADDRINUSE;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (taken && !bind(fd, at->ai_addr, at->ai_addrlen)) return fd;
    int why = errno;
    close(fd);
    errno = why;
    return -1;
}

int socket_listening(int fd, struct sockaddr_storage *address, const char **why) {
    int value = 0;
    socklen_t bytes = sizeof value;
    *why = "no socket";
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &value, &bytes)) return 0;
    *why = "no TCP socket";
    int stream = value == SOCK_STREAM;
    bytes = sizeof *address;
    if (!stream || getsockname(fd, (struct sockaddr *)address, &bytes) ||
        (address->ss_family != AF_INET && address->ss_family != AF_INET6))
        return 0;
    *why = "a socket that does not listen";
    bytes = sizeof value;
    return !getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &value, &bytes) && value;
}

/* What was received is asked for first, so that bytes which come meanwhile count as unread. */
uint64_t socket_bytes_read(int fd) {
    struct tcp_info info = {0};
    socklen_t size = sizeof info;
    int unread = 0;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) || ioctl(fd, FIONREAD, &unread)) return 0;
    uint64_t left = (uint64_t)unread;
    return info.tcpi_bytes_received > left ? info.tcpi_bytes_received - left : 0;
}
