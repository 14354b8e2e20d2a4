/* Sockets, HTTP and WebSocket by libwebsockets on a libuv loop; see net.h.
 *
 * Listening sockets are our own: the library only gets connections that are accepted, so that an address can
 * be taken before the model is loaded, given back while connections live on, or come from elsewhere.
 *
 * Note: libwebsockets gives a frame's bytes in pieces and tells with the first piece how long the frame is.
 * We send close frames ourselves and go on reading, to drop what comes: a client that is still sending would
 * otherwise see a reset instead of the reason. (The library's own way, lws_close_reason, loses the close
 * frame in Debian 12's build on libuv.) */
#include <errno.h>
#include <fcntl.h>
#include <libwebsockets.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

#include "clock.h"
#include "fail.h"
#include "net.h"
#include "sockets.h"

_Static_assert(LWS_PRE <= NET_HEADROOM, "a frame's head fits before a message");

enum {
    LISTENERS = 16,              /* addresses of both sides' host names                                    */
    SIGNALS = 3,
    READ_BYTES = 64 << 10,       /* of a socket at once                                                    */
    HEAD_BYTES = 8 << 10,        /* of an HTTP request's head                                              */
    HEADS = 1024,                /* connections whose head is being read                                   */
    ACCEPTS = 64,                /* connections that one turn of the loop accepts                          */
    PAGE_HEAD = 1024,            /* of an answer's head                                                    */
    PATH_BYTES = 256,
    CLOSE_REASON = 120,
    CLOSE_SECONDS = 2,           /* that a client has to answer a close                                    */
    WATCH_MS = 250,              /* between two looks at what clients take                                 */
    SEND_BYTES = 64 << 10,       /* of messages that the kernel keeps for a client who does not read       */
};

/* The certificate does not come from the library: the callback that is asked for it attaches ours. */
static const uint64_t TLS_OPTIONS =
    LWS_SERVER_OPTION_DO_SSL_GLOBAL_INIT | LWS_SERVER_OPTION_CREATE_VHOST_SSL_CTX;

typedef struct listener {
    uv_poll_t poll;
    net *net;
    net_side side;
    int fd, active, deaf;
} listener;

struct net {
    const net_events *events;
    void *user;
    uv_loop_t loop;
    struct lws_context *context;
    struct lws_vhost *vhost;
    struct lws_protocols protocols[2];
    struct lws_http_mount *mounts;
    listener listeners[LISTENERS];
    int listener_count, ports[NET_SIDES];
    int plain[NET_SIDES];        /* 1: without TLS, where there is a pair                                  */
    uv_signal_t signals[SIGNALS];
    uv_timer_t timer, watch, tick;
    net_limits limits;
    net_peer *peers;             /* all WebSockets                                                         */
    int spare;                   /* a descriptor for when there is no other; -1: none                      */
    tls_pair *pair;              /* NULL: no TLS                                                           */
};

/* libwebsockets keeps one of these for each connection, of zeros at first. */
struct net_peer {
    struct lws *wsi;
    net *net;
    net_peer *before, *after;    /* in the net's list                                                     */
    char address[NET_ADDRESS];
    void *connection;            /* NULL: no WebSocket yet, or no more                                     */
    net_message *first, *last;   /* to send                                                                */
    net_message *flushing;       /* written, but the kernel has not taken all of it                        */
    size_t message_bytes;        /* of the message being received, as far as its frames are announced      */
    size_t frame_left;           /* of the frame being received                                            */
    int close_code;              /* not 0: it ends, and what is received is dropped                        */
    int close_sent;
    const char *close_reason;
    int held;
    double heard_ms;             /* when something came last                                               */
    double began_ms;             /* when the message being received did; 0: there is none                  */
    double unread_ms;            /* since when it takes none of what waits; 0: it does                      */
    double pinged_ms;            /* when a ping was ordered that is not answered; 0: none                  */
    int ping_due;                /* 1: it is not sent yet                                                  */
    int dropped;
};

/* ---- sending ---------------------------------------------------------------------------------------- */

void net_send(net_peer *peer, net_message *message) {
    if (peer->close_code) return;
    message->next = NULL;
    if (peer->last) peer->last->next = message;
    else peer->first = message;
    peer->last = message;
    lws_callback_on_writable(peer->wsi);
}

void net_end(net_peer *peer, int code, const char *reason) {
    if (peer->close_code) return;
    peer->close_code = code;
    peer->close_reason = reason;
    lws_rx_flow_control(peer->wsi, 1);
    lws_callback_on_writable(peer->wsi);
}

void net_hold(net_peer *peer, int hold) {
    if (peer->held && !hold) peer->heard_ms = clock_now();
    peer->held = hold;
    peer->pinged_ms = 0;
    if (!peer->close_code) lws_rx_flow_control(peer->wsi, !hold);
}

/* The client answers with a close of its own; where it does not, time ends the connection. */
static int write_close(net_peer *peer) {
    uint8_t memory[LWS_PRE + 4 + CLOSE_REASON], *frame = memory + LWS_PRE;
    size_t count = strlen(peer->close_reason);
    if (count > CLOSE_REASON) count = CLOSE_REASON;
    frame[0] = 0x88;
    frame[1] = (uint8_t)(2 + count);
    frame[2] = (uint8_t)(peer->close_code >> 8);
    frame[3] = (uint8_t)peer->close_code;
    memcpy(frame + 4, peer->close_reason, count);
    peer->close_sent = 1;
    lws_set_timeout(peer->wsi, PENDING_TIMEOUT_USER_REASON_BASE, CLOSE_SECONDS);
    return lws_write(peer->wsi, frame, 4 + count, LWS_WRITE_RAW) < 0 ? -1 : 0;
}

/* With a byte in it: the library keeps a pong without one to itself. */
static int write_ping(net_peer *peer) {
    uint8_t memory[LWS_PRE + 1] = {0};
    peer->ping_due = 0;
    memory[LWS_PRE] = 'p';
    lws_callback_on_writable(peer->wsi);
    return lws_write(peer->wsi, memory + LWS_PRE, 1, LWS_WRITE_PING) < 0 ? -1 : 0;
}

/* The socket takes bytes. Returns -1 to close. */
static int write_more(net_peer *peer) {
    if (lws_partial_buffered(peer->wsi)) return 0;             /* called again when it has gone out         */
    if (lws_get_close_length(peer->wsi) > 0) return 0;         /* the library closes: no frame after that   */
    peer->unread_ms = 0;
    if (peer->ping_due) return write_ping(peer);
    net_message *message = peer->flushing;
    if (message) {
        peer->flushing = NULL;
        peer->net->events->sent(peer->connection, message);
    }
    message = peer->first;
    if (message) {
        peer->first = message->next;
        if (!peer->first) peer->last = NULL;
        int written = lws_write(peer->wsi, message->data, message->bytes,
                                message->text ? LWS_WRITE_TEXT : LWS_WRITE_BINARY);
        if (written < 0) return -1;
        if (lws_partial_buffered(peer->wsi)) peer->flushing = message;
        else peer->net->events->sent(peer->connection, message);
    } else if (peer->close_code && !peer->close_sent) {
        return write_close(peer);
    }
    if (peer->flushing || peer->first || (peer->close_code && !peer->close_sent))
        lws_callback_on_writable(peer->wsi);
    return 0;
}

/* ---- receiving -------------------------------------------------------------------------------------- */

static const char *reason_of(int code) {
    switch (code) {
    case CLOSE_UNSUPPORTED: return "a text message; expected msgpack in a binary one";
    case CLOSE_TOO_SLOW: return "the message took too long";
    case CLOSE_TOO_BIG: return "the message is too large";
    case CLOSE_TRY_LATER: return "no memory for another message; try again later";
    default: return "";
    }
}

static void hear(net_peer *peer) {
    peer->heard_ms = clock_now();
    peer->pinged_ms = 0;
}

static void read_piece(net_peer *peer, const uint8_t *bytes, size_t count) {
    const net_events *events = peer->net->events;
    hear(peer);
    if (peer->close_code) return;
    size_t left = lws_remaining_packet_payload(peer->wsi);
    int code = 0;
    if (lws_is_first_fragment(peer->wsi)) peer->message_bytes = peer->frame_left = 0;
    if (!peer->frame_left) {
        peer->message_bytes += count + left;
        code = events->announced(peer->connection, peer->message_bytes, !lws_frame_is_binary(peer->wsi));
    }
    peer->frame_left = left;
    int last = !left && lws_is_final_fragment(peer->wsi);
    if (last) peer->began_ms = 0;
    else if (!peer->began_ms) peer->began_ms = peer->heard_ms;
    if (!code) code = events->received(peer->connection, bytes, count, last);
    if (code) net_end(peer, code, reason_of(code));
}

/* ---- HTTP ------------------------------------------------------------------------------------------- */

static const char *status_text(int status) {
    switch (status) {
    case 200: return "OK";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 426: return "Upgrade Required";
    case 503: return "Service Unavailable";
    default: return "Error";
    }
}

static net *net_of(struct lws *wsi) { return lws_context_user(lws_get_context(wsi)); }

/* A client that does not read it is cut off as one that does not read its replies. */
static int answer(struct lws *wsi, const net_page *page) {
    int has_body = lws_hdr_total_length(wsi, WSI_TOKEN_HEAD_URI) <= 0;
    uint8_t *memory = malloc(LWS_PRE + PAGE_HEAD + page->bytes);
    if (!memory) return -1;
    uint8_t *start = memory + LWS_PRE;
    int head = snprintf((char *)start, PAGE_HEAD,
                        "HTTP/1.1 %d %s\r\nContent-Type: %s\r\n%s%sContent-Length: %zu\r\n\r\n",
                        page->status, status_text(page->status), page->type,
                        page->status == 401 ? "WWW-Authenticate: Bearer\r\n" : "",
                        page->headers ? page->headers : "", page->bytes);
    if (head >= PAGE_HEAD) {
        free(memory);
        return -1;
    }
    if (has_body) memcpy(start + head, page->body, page->bytes);
    lws_set_timeout(wsi, PENDING_TIMEOUT_HTTP_CONTENT, net_of(wsi)->limits.reply);
    int written = lws_write(wsi, start, (size_t)head + (has_body ? page->bytes : 0), LWS_WRITE_HTTP_FINAL);
    free(memory);
    return written < 0 ? -1 : 0;
}

typedef struct head_text {
    char path[PATH_BYTES], address[NET_ADDRESS], authorization[NET_AUTHORIZATION], host[NET_HOST];
    char origin[NET_HOST];
} head_text;

/* "": absent; "?": longer than fits. */
static void read_header(struct lws *wsi, enum lws_token_indexes name, char *text, size_t capacity) {
    if (lws_hdr_copy(wsi, text, (int)capacity, name) > 0) return;
    snprintf(text, capacity, "%s", lws_hdr_total_length(wsi, name) > 0 ? "?" : "");
}

/* The path is "" where it is longer than any page's, or of another method. */
static net_method read_path(struct lws *wsi, char *path) {
    static const struct { enum lws_token_indexes name; net_method method; } methods[] = {
        {WSI_TOKEN_GET_URI, NET_GET}, {WSI_TOKEN_HEAD_URI, NET_HEAD}, {WSI_TOKEN_POST_URI, NET_POST}};
    for (int i = 0; i < 3; i++)
        if (lws_hdr_copy(wsi, path, PATH_BYTES, methods[i].name) > 0) return methods[i].method;
    path[0] = 0;
    return NET_OTHER;
}

static net_head read_head(struct lws *wsi, int upgrade, head_text *text) {
    const listener *from = lws_get_opaque_user_data(wsi);
    net_method method = read_path(wsi, text->path);
    read_header(wsi, WSI_TOKEN_HTTP_AUTHORIZATION, text->authorization, sizeof text->authorization);
    read_header(wsi, WSI_TOKEN_HOST, text->host, sizeof text->host);
    read_header(wsi, WSI_TOKEN_ORIGIN, text->origin, sizeof text->origin);
    text->address[0] = 0;
    lws_get_peer_simple(wsi, text->address, sizeof text->address);
    return (net_head){.side = from->side,
                      .method = method,
                      .path = text->path,
                      .query = lws_hdr_total_length(wsi, WSI_TOKEN_HTTP_URI_ARGS) > 0,
                      .upgrade = upgrade,
                      .address = text->address,
                      .authorization = text->authorization,
                      .host = text->host,
                      .origin = text->origin};
}

static int ask(struct lws *wsi, int upgrade, net_page *page) {
    net *net = net_of(wsi);
    head_text text;
    net_head head = read_head(wsi, upgrade, &text);
    return net->events->asked(net->user, &head, page);
}

/* A request that asks for no WebSocket. */
static int plain_request(struct lws *wsi) {
    static const char sentence[] = "a WebSocket server for robots; GET /healthz says whether it is ready\n";
    net_page page = {.status = 426, .type = "text/plain", .body = sentence, .bytes = sizeof sentence - 1};
    ask(wsi, 0, &page);
    return answer(wsi, &page) || lws_http_transaction_completed(wsi) ? -1 : 0;
}

/* Returns -1 to hang up, 0 to upgrade, 1 when it was answered. */
static int upgrade_request(struct lws *wsi, const char *to) {
    net_page page;
    if (strcasecmp(to, "websocket")) return -1;
    if (!ask(wsi, 1, &page)) return 0;
    return answer(wsi, &page) ? -1 : 1;
}

/* ---- what a client may take ------------------------------------------------------------------------- */

static void peer_join(net_peer *peer) {
    net *net = peer->net;
    peer->after = net->peers;
    if (peer->after) peer->after->before = peer;
    net->peers = peer;
}

static void peer_leave(net_peer *peer) {
    if (peer->before) peer->before->after = peer->after;
    else peer->net->peers = peer->after;
    if (peer->after) peer->after->before = peer->before;
}

int net_count(const net *net, const char *address) {
    int count = 0;
    for (const net_peer *peer = net->peers; peer; peer = peer->after)
        count += !strcmp(peer->address, address);
    return count;
}

static int is_over(double since_ms, int seconds, double now) {
    return since_ms > 0 && now - since_ms > 1000.0 * seconds;
}

/* Cuts it off without a close frame, which it would not read. */
static void drop(net_peer *peer, const char *why) {
    peer->dropped = 1;
    peer->net->events->dropped(peer->net->user, peer->address, why);
    lws_set_timeout(peer->wsi, PENDING_TIMEOUT_USER_REASON_BASE, LWS_TO_KILL_ASYNC);
    net_wake(peer->net);         /* or the library would look at its timeouts with the next event only     */
}

/* A peer that is held back is not read, so that its silence says nothing. */
static void watch_peer(net_peer *peer, double now) {
    const net_limits *most = &peer->net->limits;
    int waits = peer->first || peer->flushing || lws_partial_buffered(peer->wsi);
    if (!waits) peer->unread_ms = 0;
    else if (!peer->unread_ms) peer->unread_ms = now;
    if (is_over(peer->unread_ms, most->reply, now)) {
        drop(peer, "it does not read its replies");
    } else if (peer->close_code || peer->held) {
        return;
    } else if (is_over(peer->began_ms, most->message, now)) {
        peer->net->events->dropped(peer->net->user, peer->address, "its message takes too long");
        net_end(peer, CLOSE_TOO_SLOW, reason_of(CLOSE_TOO_SLOW));
    } else if (is_over(peer->pinged_ms, most->ping, now)) {
        drop(peer, "it does not answer a ping");
    } else if (!peer->pinged_ms && is_over(peer->heard_ms, most->ping, now)) {
        peer->pinged_ms = now;
        peer->ping_due = 1;
        lws_callback_on_writable(peer->wsi);
    }
}

static void on_watch(uv_timer_t *handle) {
    net *net = handle->data;
    double now = clock_now();
    for (net_peer *peer = net->peers; peer; peer = peer->after)
        if (!peer->dropped) watch_peer(peer, now);
}

/* ---- the library's events --------------------------------------------------------------------------- */

static int established(net_peer *peer, struct lws *wsi) {
    head_text text;
    net_head head = read_head(wsi, 1, &text);
    peer->wsi = wsi;
    peer->net = net_of(wsi);
    peer->heard_ms = clock_now();
    memcpy(peer->address, text.address, sizeof peer->address);
    peer->connection = peer->net->events->opened(peer->net->user, peer, &head);
    if (!peer->connection) return -1;
    peer_join(peer);
    return 0;
}

static void closed(net_peer *peer) {
    void *connection = peer->connection;
    peer->connection = NULL;
    if (!connection) return;
    peer_leave(peer);
    peer->net->events->closed(connection);
}

static int on_event(struct lws *wsi, enum lws_callback_reasons reason, void *user, void *in, size_t count) {
    net_peer *peer = user;
    switch (reason) {
    case LWS_CALLBACK_HTTP: return plain_request(wsi);
    case LWS_CALLBACK_HTTP_CONFIRM_UPGRADE: return upgrade_request(wsi, in);
    case LWS_CALLBACK_ESTABLISHED: return established(peer, wsi);
    case LWS_CALLBACK_RECEIVE: read_piece(peer, in, count); return 0;
    case LWS_CALLBACK_RECEIVE_PONG: hear(peer); return 0;
    case LWS_CALLBACK_SERVER_WRITEABLE: return write_more(peer);
    case LWS_CALLBACK_WS_PEER_INITIATED_CLOSE: return peer->close_sent;        /* 1: it answers ours       */
    case LWS_CALLBACK_CLOSED: closed(peer); return 0;
    case LWS_CALLBACK_OPENSSL_LOAD_EXTRA_SERVER_VERIFY_CERTS: return !tls_attach(user, &net_of(wsi)->pair);
    case LWS_CALLBACK_EVENT_WAIT_CANCELLED: net_of(wsi)->events->woken(net_of(wsi)->user); return 0;
    default: return 0;
    }
}

static void on_signal(uv_signal_t *handle, int number) {
    net *net = handle->data;
    net->events->signalled(net->user, number);
}

static void on_timer(uv_timer_t *handle) {
    net *net = handle->data;
    net->events->timed(net->user);
}

static void on_tick(uv_timer_t *handle) {
    net *net = handle->data;
    net->events->ticked(net->user);
}

/* ---- listening -------------------------------------------------------------------------------------- */

/* The library closes the socket where it fails. */
static void adopt(listener *l, int fd) {
    lws_adoption_type type = LWS_ADOPT_SOCKET | LWS_ADOPT_HTTP;
    if (!l->net->plain[l->side]) type |= LWS_ADOPT_ALLOW_SSL;
    lws_sock_file_fd_type socket = {.sockfd = fd};
    struct lws *wsi = lws_adopt_descriptor_vhost(l->net->vhost, type, socket, NULL, NULL);
    if (wsi) lws_set_opaque_user_data(wsi, l);
}

/* Without a descriptor nobody can be accepted, and the loop would turn for who waits. So one is kept, with
 * which to take the next one and to hang up. Returns 0 where nobody waits. */
static int turn_away(listener *l) {
    struct sockaddr_storage from;
    socklen_t bytes = sizeof from;
    char address[NET_ADDRESS] = "";
    close(l->net->spare);
    int fd = accept(l->fd, (struct sockaddr *)&from, &bytes);
    if (fd >= 0) {
        getnameinfo((struct sockaddr *)&from, bytes, address, sizeof address, NULL, 0, NI_NUMERICHOST);
        l->net->events->dropped(l->net->user, address, "no descriptor is left");
        close(fd);
    }
    l->net->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return fd >= 0;
}

static void on_connection(uv_poll_t *poll, int status, int events) {
    listener *l = poll->data;
    (void)status;
    (void)events;
    for (int i = 0; i < ACCEPTS; i++) {
        int one = 1, most = SEND_BYTES, fd = accept(l->fd, NULL, NULL);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE) && l->net->spare >= 0 && turn_away(l)) continue;
        if (fd < 0) return;
        fcntl(fd, F_SETFD, FD_CLOEXEC);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &most, sizeof most);
        adopt(l, fd);
    }
}

static openpi_status bind_all(net *net, net_side side, struct addrinfo *list, const char *host, int port,
                              openpi_error *error) {
    int *used = &net->ports[side];
    for (struct addrinfo *at = list; at && net->listener_count < LISTENERS; at = at->ai_next) {
        if (at->ai_family != AF_INET && at->ai_family != AF_INET6) continue;
        socket_set_port(at->ai_addr, *used ? *used : port);
        int fd = socket_bind(at);
        if (fd < 0 && errno == EAFNOSUPPORT && at->ai_next) continue;
        if (fd < 0)
            return fail(error, OPENPI_BAD_ARGUMENT, "cannot listen on %s, port %d: %s", host,
                        *used ? *used : port, strerror(errno));
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

int net_port(const net *net, net_side side) { return net->ports[side]; }
int net_is_plain(const net *net, net_side side) { return !net->pair || net->plain[side]; }

openpi_status net_listen(net *net, openpi_error *error) {
    static const int numbers[SIGNALS] = {SIGTERM, SIGINT, SIGHUP};
    for (int i = 0; i < net->listener_count; i++) {
        listener *l = &net->listeners[i];
        if (listen(l->fd, SOMAXCONN))
            return fail(error, OPENPI_BAD_ARGUMENT, "cannot listen on port %d: %s", net->ports[l->side],
                        strerror(errno));
        uv_poll_init(&net->loop, &l->poll, l->fd);
        l->poll.data = l;
        l->active = 1;
        uv_poll_start(&l->poll, UV_READABLE, on_connection);
    }
    uv_timer_start(&net->watch, on_watch, WATCH_MS, WATCH_MS);
    for (int i = 0; i < SIGNALS; i++) uv_signal_start(&net->signals[i], on_signal, numbers[i]);
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

/* ---- the loop --------------------------------------------------------------------------------------- */

static struct lws_context *context_of(net *net) {
    void *loops[1] = {&net->loop};
    net->protocols[0] = (struct lws_protocols){.name = "openpi",
                                               .callback = on_event,
                                               .per_session_data_size = sizeof(net_peer),
                                               .rx_buffer_size = READ_BYTES};
    struct lws_context_creation_info info = {
        .port = CONTEXT_PORT_NO_LISTEN_SERVER,
        .protocols = net->protocols,
        .options = LWS_SERVER_OPTION_LIBUV | (net->pair ? TLS_OPTIONS : 0),
        .foreign_loops = loops,
        .user = net,
        .pt_serv_buf_size = READ_BYTES,
        .max_http_header_data = HEAD_BYTES,
        .max_http_header_pool = HEADS,
        .timeout_secs = (unsigned)net->limits.handshake,
        .alpn = "http/1.1",
        .pcontext = &net->context,         /* NULL when it is gone                                        */
    };
    return lws_create_context(&info);
}

openpi_status net_open(const net_events *events, void *user, const net_limits *limits, tls_pair *pair,
                       net **out, openpi_error *error) {
    net *made = calloc(1, sizeof *made);
    if (!made) {
        tls_free(pair);
        return fail(error, OPENPI_NO_MEMORY, "out of memory: the network's loop");
    }
    made->events = events;
    made->user = user;
    made->limits = *limits;
    made->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
    made->pair = pair;
    lws_set_log_level(0, NULL);
    if (uv_loop_init(&made->loop)) {
        if (made->spare >= 0) close(made->spare);
        tls_free(pair);
        free(made);
        return fail(error, OPENPI_SYSTEM, "the network's loop cannot be made");
    }
    for (int i = 0; i < SIGNALS; i++) {
        uv_signal_init(&made->loop, &made->signals[i]);
        made->signals[i].data = made;
    }
    uv_timer_init(&made->loop, &made->timer);
    uv_timer_init(&made->loop, &made->watch);
    uv_timer_init(&made->loop, &made->tick);
    made->timer.data = made->watch.data = made->tick.data = made;
    made->context = context_of(made);
    if (!made->context) {
        net_close(made);
        return fail(error, OPENPI_SYSTEM,
                    "libwebsockets cannot start on libuv: is the package libwebsockets-evlib-uv installed?");
    }
    made->vhost = lws_get_vhost_by_name(made->context, "default");
    *out = made;
    return OPENPI_OK;
}

void net_renew(net *net, tls_pair *pair) {
    tls_free(net->pair);
    net->pair = pair;
}

void net_run(net *net) { uv_run(&net->loop, UV_RUN_DEFAULT); }
void net_stop(net *net) { uv_stop(&net->loop); }
void net_wake(net *net) { lws_cancel_service(net->context); }

void net_after(net *net, int milliseconds) {
    uv_timer_start(&net->timer, on_timer, milliseconds > 0 ? (uint64_t)milliseconds : 0, 0);
}

void net_every(net *net, int milliseconds) {
    uv_timer_start(&net->tick, on_tick, (uint64_t)milliseconds, (uint64_t)milliseconds);
}

void net_close(net *net) {
    if (!net) return;
    for (int side = 0; side < NET_SIDES; side++) net_deafen(net, (net_side)side);
    for (int i = 0; i < SIGNALS; i++) uv_close((uv_handle_t *)&net->signals[i], NULL);
    uv_close((uv_handle_t *)&net->timer, NULL);
    uv_close((uv_handle_t *)&net->watch, NULL);
    uv_close((uv_handle_t *)&net->tick, NULL);
    for (int turn = 0; net->context && turn < 2; turn++) {     /* the second one frees what the loop held   */
        lws_context_destroy(net->context);
        for (int i = 0; i < 1000 && uv_run(&net->loop, UV_RUN_NOWAIT); i++) {}
    }
    uv_loop_close(&net->loop);
    if (net->spare >= 0) close(net->spare);
    tls_free(net->pair);
    free(net);
}
