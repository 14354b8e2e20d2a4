/* Addresses that the server listens on, and the connections that come to them; see net.h.
 *
 * Listening sockets are our own: the network library only gets connections that are accepted, so that an
 * address can be taken before the model is loaded, given back while connections live on, or come from
 * elsewhere. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "serve/small/clock.h"
#include "serve/small/fail.h"
#include "net_inside.h"
#include "sockets.h"

enum {
    ACCEPTS = 64,                /* connections that one turn of the loop accepts, most to hang up on      */
    ADOPTS = 4,                  /* robots' that it gives to the library; then there is a pause for them   */
    PAUSE_MS = 1,
    SEND_BYTES = 64 << 10,       /* messages that the kernel keeps for a client who does not read          */
};

/* ---- addresses -------------------------------------------------------------------------------------- */

/* What is said where the port cannot be had: a second server on the machine has the same default. */
static openpi_status refuse_port(net_side side, const char *host, int port, openpi_error *error) {
    int why = errno;
    const char *what = side == NET_ADMIN ? "admin port" : "robots' port";
    const char *other = side == NET_ADMIN ? "--admin HOST:PORT gives another one, --no-admin none"
                                          : "--port gives another one";
    if (why != EADDRINUSE)
        return fail(error, OPENPI_BAD_ARGUMENT, "cannot listen on %s, port %d (the %s): %s", host, port, what,
                    strerror(why));
    return fail(error, OPENPI_BAD_ARGUMENT,
                "cannot listen on %s, port %d (the %s): %s, another program has it; %s", host, port, what,
                strerror(why), other);
}

/* What a name has besides addresses of this machine is left out: ::1 where IPv6 is switched off. */
static openpi_status bind_all(net *net, net_side side, struct addrinfo *list, const char *host, int port,
                              openpi_error *error) {
    int *used = &net->ports[side];
    for (struct addrinfo *at = list; at && net->listener_count < LISTENERS; at = at->ai_next) {
        if (at->ai_family != AF_INET && at->ai_family != AF_INET6) continue;
        socket_set_port(at->ai_addr, *used ? *used : port);
        int fd = socket_bind(at);
        int absent = fd < 0 && (errno == EAFNOSUPPORT || errno == EADDRNOTAVAIL);
        if (absent && (*used || at->ai_next)) continue;
        if (fd < 0)
            return refuse_port(side, host, *used ? *used : port, error);
        net->listeners[net->listener_count++] = (listener){.net = net, .side = side, .fd = fd};
        *used = socket_port(fd);
    }
    if (*used) return OPENPI_OK;
    return fail(error, OPENPI_BAD_ARGUMENT, "%s has no address of this machine", host);
}

/* What is said about an address that other machines can reach. */
static const struct { const char *option, *advice; } exposed[NET_SIDES] = {
    {"--host", "whoever connects may move the robots; give --tokens, --tls-cert and --tls-key, or "
               "--trust-network where everybody on that network may"},
    {"--admin", "whoever connects may see the robots' pictures and stop the server; give --tokens with a "
                "token of the class admin, and --tls-cert and --tls-key or --trust-network"},
};

openpi_status net_bind(net *net, net_side side, const char *host, int port, int only_loopback,
                       openpi_error *error) {
    struct addrinfo wanted = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list;
    int code = getaddrinfo(host, NULL, &wanted, &list);
    if (code)
        return fail(error, OPENPI_BAD_ARGUMENT, "%s is '%s': %s", exposed[side].option, host,
                    gai_strerror(code));
    openpi_status status = OPENPI_OK;
    net->plain[side] = side == NET_ADMIN;
    for (struct addrinfo *at = list; at && status == OPENPI_OK; at = at->ai_next) {
        net->plain[side] &= socket_is_loopback(at->ai_addr);
        if (only_loopback && !socket_is_loopback(at->ai_addr))
            status = fail(error, OPENPI_BAD_ARGUMENT, "%s is '%s', which other machines can reach: %s",
                          exposed[side].option, host, exposed[side].advice);
    }
    if (status == OPENPI_OK) status = bind_all(net, side, list, host, port, error);
    freeaddrinfo(list);
    return status;
}

openpi_status net_inherit(net *net, int first, int count, int only_loopback, openpi_error *error) {
    if (count > LISTENERS)
        return fail(error, OPENPI_BAD_ARGUMENT, "the service manager passes %d sockets, expected at most %d",
                    count, LISTENERS);
    for (int fd = first; fd < first + count; fd++) {
        struct sockaddr_storage address;
        const char *why;
        if (!socket_listening(fd, &address, &why))
            return fail(error, OPENPI_BAD_ARGUMENT,
                        "the service manager passes %s as descriptor %d, expected a TCP socket that listens",
                        why, fd);
        if (only_loopback && !socket_is_loopback((struct sockaddr *)&address))
            return fail(error, OPENPI_BAD_ARGUMENT,
                        "the service manager's socket on port %d is one which other machines can reach: "
                        "whoever connects may move the robots; give --tokens, --tls-cert and --tls-key, or "
                        "--trust-network where everybody on that network may",
                        socket_port(fd));
        fcntl(fd, F_SETFD, FD_CLOEXEC);
        fcntl(fd, F_SETFL, O_NONBLOCK);
        if (!net->ports[NET_ROBOTS]) net->ports[NET_ROBOTS] = socket_port(fd);
        net->listeners[net->listener_count++] = (listener){.net = net, .fd = fd, .side = NET_ROBOTS};
    }
    return OPENPI_OK;
}

/* ---- connections ------------------------------------------------------------------------------------ */

typedef struct caller {
    struct sockaddr_storage from;
    socklen_t bytes;
    char text[NET_ADDRESS];
} caller;

void address_text(const struct sockaddr_storage *from, char text[NET_ADDRESS]) {
    text[0] = 0;
    getnameinfo((const struct sockaddr *)from, sizeof *from, text, NET_ADDRESS, NULL, 0, NI_NUMERICHOST);
}

static const char *text_of(caller *c) {
    address_text(&c->from, c->text);
    return c->text;
}

static void hang_up(const listener *l, int fd, caller *caller, drop_reason why) {
    l->net->events->dropped(l->net->user, NULL, text_of(caller), why);
    close(fd);
}

/* The library closes the socket where it fails, which is also where the TLS handshake fails at once. */
static void adopt(listener *l, int fd, caller *caller) {
    visitor *made = calloc(1, sizeof *made);
    if (!made) {
        hang_up(l, fd, caller, DROP_MEMORY);
        return;
    }
    const struct sockaddr *from = (const struct sockaddr *)&caller->from;
    *made = (visitor){.to = l, .from = caller->from, .waiter = {.key = address_key_of(from)}};
    visitors_make_room(l->net, l->side, made->waiter.key);
    lws_adoption_type type = LWS_ADOPT_SOCKET | LWS_ADOPT_HTTP;
    if (!l->net->plain[l->side]) type |= LWS_ADOPT_ALLOW_SSL;
    lws_sock_file_fd_type socket = {.sockfd = fd};
    struct lws *wsi = lws_adopt_descriptor_vhost(l->net->vhost, type, socket, NULL, NULL);
    if (wsi) {
        made->wsi = wsi;
        lws_set_opaque_user_data(wsi, made);
        visitor_wait(l->net, made, l->net->limits.handshake);
        return;
    }
    free(made);
    drop_reason why = net_is_plain(l->net, l->side) ? DROP_MEMORY : DROP_TLS;
    if (l->side == NET_ROBOTS) l->net->events->dropped(l->net->user, NULL, text_of(caller), why);
}

drop_reason visitor_reason(const net *net, const visitor *v) {
    switch (v->visit) {
    case VISIT_NEW: return net_is_plain(net, v->to->side) ? DROP_HEAD : DROP_TLS;
    case VISIT_UPGRADES: return DROP_HANDSHAKE;
    case VISIT_NAMES_PROTOCOL: return DROP_SUBPROTOCOL;
    default: return DROP_REASONS;
    }
}

/* Note: browsers open connections to the admin side that they may never use; nobody is told of those. */
void visitor_tell(net *net, const visitor *v, drop_reason why) {
    caller caller = {.from = v->from, .bytes = sizeof caller.from};
    if (v->to->side == NET_ROBOTS) net->events->dropped(net->user, NULL, text_of(&caller), why);
}

void visitor_leave(net *net, visitor *v) {
    drop_reason why = visitor_reason(net, v);
    waiting_leave(&net->waiting[v->to->side], &v->waiter);
    if (why != DROP_REASONS && !net->closing) visitor_tell(net, v, why);
    free(v);
}

static int take_call(const listener *l, caller *c) {
    c->bytes = sizeof c->from;
    return accept4(l->fd, (struct sockaddr *)&c->from, &c->bytes, SOCK_CLOEXEC);
}

/* When descriptors run out accept() fails at once and the loop spins. A spare descriptor lets it accept the
 * next connection and close it. Another thread may have taken the spare in between: then there is none until
 * the next time. Returns 0 where no connection was taken. */
static int turn_away(listener *l) {
    caller caller;
    if (l->net->spare >= 0) close(l->net->spare);
    int fd = take_call(l, &caller);
    if (fd >= 0) hang_up(l, fd, &caller, DROP_DESCRIPTORS);
    l->net->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return fd >= 0;
}

/* Hangs up, or gives the connection to the library.
 *
 * Note: the library has a table with a place for each descriptor below limits.files, and writes behind its
 * end where it is given a larger one. */
static void receive_call(listener *l, int fd, caller *caller) {
    net *net = l->net;
    const struct sockaddr *from = (struct sockaddr *)&caller->from;
    int robots = l->side == NET_ROBOTS;
    if (robots && !attempts_take(&net->attempts, from, net->limits.attempts, clock_ns())) {
        net->events->too_often(net->user, text_of(caller));
        close(fd);
    } else if (fd >= net->limits.files) {
        hang_up(l, fd, caller, DROP_DESCRIPTORS);
    } else {
        net->may_adopt -= robots;
        adopt(l, fd, caller);
    }
}

static int is_listening(const listener *l) { return l->active && !l->deaf; }

/* A handshake takes as long as a good part of a robot's request. Where hundreds come at once, robots would
 * wait for all of them: the loop serves sockets in the order in which they are ready. So the others wait in
 * the kernel's queue. The admin side has no such pause: it must answer during such a storm.
 *
 * Where there is no descriptor left, not even the spare one, a listener of either side pauses. */
static void pause_listener(net *net, listener *l) {
    if (is_listening(l)) uv_poll_stop(&l->poll);
    uv_timer_start(&net->pause, listeners_go_on, PAUSE_MS, 0);
}

static void pause_robots(net *net) {
    for (int i = 0; i < net->listener_count; i++)
        if (net->listeners[i].side == NET_ROBOTS) pause_listener(net, &net->listeners[i]);
}

static void on_connection(uv_poll_t *poll, int status, int events) {
    listener *l = poll->data;
    net *net = l->net;
    (void)status;
    (void)events;
    for (int i = 0; i < ACCEPTS && (net->may_adopt || l->side == NET_ADMIN); i++) {
        caller caller;
        int fd = take_call(l, &caller);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE)) {
            if (turn_away(l)) continue;
            pause_listener(net, l);
        }
        if (fd < 0) return;
        receive_call(l, fd, &caller);
    }
    if (!net->may_adopt && l->side == NET_ROBOTS) pause_robots(net);
}

void listeners_go_on(uv_timer_t *pause) {
    net *net = pause->data;
    net->may_adopt = ADOPTS;
    for (int i = 0; i < net->listener_count; i++) {
        listener *l = &net->listeners[i];
        if (is_listening(l)) uv_poll_start(&l->poll, UV_READABLE, on_connection);
    }
}

openpi_status listeners_start(net *net, openpi_error *error) {
    net->may_adopt = ADOPTS;
    for (int i = 0; i < net->listener_count; i++) {
        listener *l = &net->listeners[i];
        int one = 1, most = SEND_BYTES;
        setsockopt(l->fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);     /* for who listens after us      */
        setsockopt(l->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);     /* accepted ones inherit both    */
        setsockopt(l->fd, SOL_SOCKET, SO_SNDBUF, &most, sizeof most);
        if (listen(l->fd, SOMAXCONN))
            return refuse_port(l->side, "its address", net->ports[l->side], error);
        uv_poll_init(&net->loop, &l->poll, l->fd);
        l->poll.data = l;
        l->active = 1;
        uv_poll_start(&l->poll, UV_READABLE, on_connection);
    }
    return OPENPI_OK;
}

static void on_deaf(uv_handle_t *handle) {
    listener *l = handle->data;
    close(l->fd);
}

void net_deafen(net *net, net_side side) {
    for (int i = 0; i < net->listener_count; i++) {
        listener *l = &net->listeners[i];
        if (l->side != side || l->deaf) continue;
        l->deaf = 1;
        if (l->active) uv_close((uv_handle_t *)&l->poll, on_deaf);
        else close(l->fd);
    }
}
