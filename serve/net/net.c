/* The loop, and WebSockets: sending, receiving, and what a client may take; see net.h.
 *
 * Note: libwebsockets gives a frame's bytes in pieces and tells with the first piece how long the frame is.
 * We send close frames ourselves and go on reading, to drop what comes: a client that is still sending would
 * otherwise see a reset instead of the reason. (The library's own way, lws_close_reason, loses the close
 * frame in Debian 12's build on libuv.) */
#define _DEFAULT_SOURCE         /* struct tcp_info */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "serve/small/alert.h"
#include "serve/small/clock.h"
#include "serve/small/fail.h"
#include "net_inside.h"

_Static_assert(LWS_PRE <= NET_HEADROOM, "a frame's head fits before a message");

enum {
    HEAD_BYTES = 8 << 10,        /* longest head of an HTTP request                                        */
    NET_WHY = 200,
    NEEDED = 16,                 /* descriptors, to begin with                                              */
    HEADS = 1024,                /* connections whose head is being read                                   */
    CLOSE_SECONDS = 2,           /* that a client has to answer a close                                    */
    WATCH_MS = 250,              /* between two looks at what clients take                                 */
    LOOK_NS = 100000,            /* for a message's next piece, before the loop sleeps                     */
    LOOKS_NS = 300000,           /* for all pieces of a message                                            */
};

/* The certificate does not come from the library: the callback that is asked for it attaches ours. */
static const uint64_t TLS_OPTIONS =
    LWS_SERVER_OPTION_DO_SSL_GLOBAL_INIT | LWS_SERVER_OPTION_CREATE_VHOST_SSL_CTX;

net *net_of(struct lws *wsi) { return lws_context_user(lws_get_context(wsi)); }
visitor *visitor_of(struct lws *wsi) { return lws_get_opaque_user_data(wsi); }

/* ---- sending ---------------------------------------------------------------------------------------- */

/* The sender may use the socket while nothing else waits to be sent, the connection stays and there is no
 * TLS. */
void peer_share(net_peer *peer, int may) {
    int shared = may && peer->sender && !peer->first && !peer->flushing && !peer->close_code &&
                 !peer->dropped && !lws_is_ssl(peer->wsi) && !lws_partial_buffered(peer->wsi);
    if (shared == peer->shared) return;
    peer->shared = shared;
    net_sender_set(peer->sender, shared ? (int)lws_get_socket_fd(peer->wsi) : -1);
}

void net_share(net_peer *peer, net_sender *sender) {
    peer_share(peer, 0);
    peer->sender = sender;
    peer_share(peer, 1);
}

void net_send(net_peer *peer, net_message *message) {
    if (peer->close_code) return;
    peer_share(peer, 0);
    message->next = NULL;
    if (peer->last) peer->last->next = message;
    else peer->first = message;
    peer->last = message;
    lws_callback_on_writable(peer->wsi);
}

void net_end(net_peer *peer, int code, const char *reason) {
    if (peer->close_code) return;
    peer_share(peer, 0);
    peer->close_code = code;
    peer->close_reason = reason;
    peer_read_or_not(peer);
    lws_callback_on_writable(peer->wsi);
}

void net_hold(net_peer *peer, int hold) {
    peer->held = hold;
    peer_read_or_not(peer);
}

void net_rest(net_peer *peer, int milliseconds) {
    peer->rest_ms = clock_now() + milliseconds;
    peer_read_or_not(peer);
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
    peer_share(peer, 0);
    lws_callback_on_writable(peer->wsi);
    return lws_write(peer->wsi, memory + LWS_PRE, 1, LWS_WRITE_PING) < 0 ? -1 : 0;
}

/* The socket takes bytes. Returns -1 to close. */
static int write_more(net_peer *peer) {
    if (lws_partial_buffered(peer->wsi)) return 0;             /* called again when it has gone out         */
    if (lws_get_close_length(peer->wsi) > 0) return 0;         /* the library closes: no frame after that   */
    peer->unread_ms = 0;
    int due = peer->flushing || peer->first || (peer->close_code && !peer->close_sent);
    if (!due && !peer->ping_due) peer_count_pong(peer);
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
    peer_share(peer, 1);
    return 0;
}

/* ---- receiving -------------------------------------------------------------------------------------- */

static void hear(net_peer *peer) {
    peer->heard_ms = clock_now();
    peer->pinged_ms = 0;
}

static void on_look(uv_idle_t *handle) {
    if (clock_ns() >= ((net *)handle->data)->look_until) uv_idle_stop(handle);
}

/* The message's next piece is about to come, if its client is near: waking for it would take longer. */
static void look(net_peer *peer, int last) {
    net *net = peer->net;
    int64_t until = last ? 0 : clock_ns() + LOOK_NS, most = (int64_t)(peer->began_ms * 1e6) + LOOKS_NS;
    if (!net->may_look) return;
    net->look_until = until < most ? until : most;
    if (!last) uv_idle_start(&net->looking, on_look);
}

static void read_piece(net_peer *peer, const uint8_t *bytes, size_t count) {
    const net_events *events = peer->net->events;
    hear(peer);
    if (peer->close_code) return;
    size_t left = lws_remaining_packet_payload(peer->wsi);
    int code = 0;
    int begins = !peer->frame_left || lws_is_first_fragment(peer->wsi);
    if (lws_is_first_fragment(peer->wsi)) {
        peer->message_bytes = 0;
        peer->empty_frames = 0;
    }
    if (begins) {
        peer->message_bytes += count + left;
        code = events->announced(peer->connection, peer->message_bytes, !lws_frame_is_binary(peer->wsi));
    }
    peer->frame_left = left;
    int last = !left && lws_is_final_fragment(peer->wsi);
    if (last) peer->began_ms = 0;
    else if (!peer->began_ms) peer->began_ms = peer->heard_ms;
    look(peer, last);
    if (!code) code = events->received(peer->connection, bytes, count, last);
    if (code) peer_end_with(peer, code);
    if (begins) peer_count_frame(peer, count + left);
}

/* ---- the library's events --------------------------------------------------------------------------- */

static int established(net_peer *peer, struct lws *wsi) {
    http_head head;
    http_read_head(wsi, 1, &head);
    visitor_enter(net_of(wsi), visitor_of(wsi));
    peer->wsi = wsi;
    peer->net = net_of(wsi);
    peer->heard_ms = clock_now();
    peer_count_from_here(peer);
    snprintf(peer->address, sizeof peer->address, "%s", head.address);
    peer->key = head.head.key;
    peer->connection = peer->net->events->opened(peer->net->user, peer, &head.head);
    if (!peer->connection) {
        peer->net->events->dropped(peer->net->user, NULL, peer->address, DROP_MEMORY);
        return -1;
    }
    peer_join(peer);
    return 0;
}

/* Whether the client has ended its side, also where there is more of it to read. */
static int has_ended(struct lws *wsi) {
    struct tcp_info info;
    socklen_t bytes = sizeof info;
    return getsockopt(lws_get_socket_fd(wsi), IPPROTO_TCP, TCP_INFO, &info, &bytes) ||
           info.tcpi_state != TCP_ESTABLISHED;
}

/* The library ends a WebSocket: the client has left, or it sends what no client may.
 *
 * Note: for some broken frames the library sends no close frame. With TLS the socket does not tell whether
 * the client has left, so those have no line there. */
static void library_closes(net_peer *peer) {
    const net *net = peer->net;
    net_share(peer, NULL);
    if (!peer->connection || peer->close_code || peer->dropped || peer->left || net->closing) return;
    int frames = lws_get_close_length(peer->wsi) > 0 || (!lws_is_ssl(peer->wsi) && !has_ended(peer->wsi));
    if (frames) net->events->dropped(net->user, peer->connection, peer->address, DROP_FRAMES);
}

static void closed(net_peer *peer) {
    void *connection = peer->connection;
    peer->connection = NULL;
    if (!connection) return;
    peer_share(peer, 0);
    peer_leave(peer);
    peer->net->events->closed(connection);
}

static int on_event(struct lws *wsi, enum lws_callback_reasons reason, void *user, void *in, size_t count) {
    net_peer *peer = user;
    switch (reason) {
    case LWS_CALLBACK_HTTP: return http_plain(wsi);
    case LWS_CALLBACK_RAW_ADOPT: return http_connect(wsi);
    case LWS_CALLBACK_HTTP_CONFIRM_UPGRADE: return http_upgrade(wsi, in);
    case LWS_CALLBACK_ESTABLISHED: return established(peer, wsi);
    case LWS_CALLBACK_RECEIVE: read_piece(peer, in, count); return 0;
    case LWS_CALLBACK_RECEIVE_PONG: hear(peer); return 0;
    case LWS_CALLBACK_SERVER_WRITEABLE: return write_more(peer);
    case LWS_CALLBACK_WS_PEER_INITIATED_CLOSE:
        net_share(peer, NULL);
        peer->left = 1;
        return peer->close_sent;                               /* 1: it answers ours                        */
    case LWS_CALLBACK_WS_SERVER_DROP_PROTOCOL: library_closes(peer); return 0;
    case LWS_CALLBACK_WSI_DESTROY:
        if (visitor_of(wsi)) visitor_leave(net_of(wsi), visitor_of(wsi));
        return 0;
    case LWS_CALLBACK_CLOSED: closed(peer); return 0;
    case LWS_CALLBACK_OPENSSL_LOAD_EXTRA_SERVER_VERIFY_CERTS: return !tls_attach(user, &net_of(wsi)->pair);
    case LWS_CALLBACK_EVENT_WAIT_CANCELLED: net_of(wsi)->events->woken(net_of(wsi)->user); return 0;
    default: return 0;
    }
}

static void on_timer(uv_timer_t *handle) {
    net *net = handle->data;
    net->events->timed(net->user);
}

static void on_tick(uv_timer_t *handle) {
    net *net = handle->data;
    net->events->ticked(net->user);
}

/* ---- the loop --------------------------------------------------------------------------------------- */

/* The library's own pings would come every 300 s and end a connection whose pong does not come within 10 s,
 * also one that is held back and not read. watch_peer pings instead. */
static const lws_retry_bo_t no_pings = {.secs_since_valid_ping = 0, .secs_since_valid_hangup = 0};

/* For each connection the library looks through a table with as many entries as the process may open files
 * when the context is made, which may be a million. */
static struct lws_context *create_for(int files, const struct lws_context_creation_info *info) {
    struct rlimit before, fewer;
    int lower = !getrlimit(RLIMIT_NOFILE, &before) && before.rlim_cur > (rlim_t)files;
    fewer = before;
    fewer.rlim_cur = (rlim_t)files;
    if (lower) setrlimit(RLIMIT_NOFILE, &fewer);
    struct lws_context *made = lws_create_context(info);
    if (lower) setrlimit(RLIMIT_NOFILE, &before);
    return made;
}

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
        .timeout_secs_ah_idle = (unsigned)net->limits.handshake,   /* to a complete head, TLS included    */
        .keepalive_timeout = net->limits.handshake,                /* from an answer to the next head     */
        .retry_and_idle_policy = &no_pings,
        .alpn = "http/1.1",
        .pcontext = &net->context,         /* NULL when it is gone                                        */
    };
    return create_for(net->limits.files, &info);
}

/* What the library needs from the system: with less its context fails half made. Returns 0 with why. */
static int system_has(char why[NET_WHY]) {
    int held[NEEDED], count = 0, random = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    if (random < 0) {
        snprintf(why, NET_WHY, "/dev/urandom cannot be opened: %s", strerror(errno));
        return 0;
    }
    while (count < NEEDED && (held[count] = fcntl(random, F_DUPFD_CLOEXEC, 0)) >= 0) count++;
    for (int i = 0; i < count; i++) close(held[i]);
    close(random);
    if (count == NEEDED) return 1;
    snprintf(why, NET_WHY, "%d descriptors are left, expected %d or more (ulimit -n)", count + 1, NEEDED + 1);
    return 0;
}

/* The library has left handles in the loop that it has freed: neither is touched again. The process ends. */
static openpi_status refuse_context(net *made, openpi_error *error) {
    if (made->spare >= 0) close(made->spare);
    tls_free(made->pair);
    return fail(error, OPENPI_SYSTEM,
                "libwebsockets cannot start on libuv: is the package libwebsockets-evlib-uv installed?");
}

openpi_status net_open(const net_events *events, void *user, const net_limits *limits, tls_pair *pair,
                       net **out, openpi_error *error) {
    char why[NET_WHY];
    if (!system_has(why)) {
        tls_free(pair);
        return fail(error, OPENPI_SYSTEM, "the network cannot start: %s", why);
    }
    net *made = calloc(1, sizeof *made);
    if (!made) {
        tls_free(pair);
        return fail(error, OPENPI_NO_MEMORY, "out of memory: the network's loop");
    }
    made->events = events;
    made->user = user;
    made->limits = *limits;
    limits_open(made);
    made->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
    made->pair = pair;
    lws_set_log_level(0, NULL);
    if (uv_loop_init(&made->loop)) {
        if (made->spare >= 0) close(made->spare);
        tls_free(pair);
        free(made);
        return fail(error, OPENPI_SYSTEM, "the network's loop cannot be made");
    }
    uv_timer_init(&made->loop, &made->timer);
    uv_timer_init(&made->loop, &made->watch);
    uv_timer_init(&made->loop, &made->tick);
    uv_timer_init(&made->loop, &made->pause);
    uv_idle_init(&made->loop, &made->looking);
    uv_idle_init(&made->loop, &made->yielding);
    made->yielding.data = made->looking.data = made->pause.data = made;
    made->may_look = sysconf(_SC_NPROCESSORS_ONLN) >= ALERT_PROCESSORS;
    made->timer.data = made->watch.data = made->tick.data = made;
    made->context = context_of(made);
    if (!made->context) return refuse_context(made, error);
    made->vhost = lws_get_vhost_by_name(made->context, "default");
    *out = made;
    return OPENPI_OK;
}

void net_renew(net *net, tls_pair *pair) {
    tls_free(net->pair);
    net->pair = pair;
}

int net_port(const net *net, net_side side) { return net->ports[side]; }
int net_is_plain(const net *net, net_side side) { return !net->pair || net->plain[side]; }

openpi_status net_listen(net *net, openpi_error *error) {
    SERVE_TRY(listeners_start(net, error));
    uv_timer_start(&net->watch, limits_watch, WATCH_MS, WATCH_MS);
    return OPENPI_OK;
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
    net->closing = 1;
    for (int side = 0; side < NET_SIDES; side++) net_deafen(net, (net_side)side);
    uv_close((uv_handle_t *)&net->timer, NULL);
    uv_close((uv_handle_t *)&net->watch, NULL);
    uv_close((uv_handle_t *)&net->tick, NULL);
    uv_close((uv_handle_t *)&net->looking, NULL);
    uv_close((uv_handle_t *)&net->yielding, NULL);
    uv_close((uv_handle_t *)&net->pause, NULL);
    for (int turn = 0; net->context && turn < 2; turn++) {     /* the second one frees what the loop held   */
        lws_context_destroy(net->context);
        for (int i = 0; i < 1000 && uv_run(&net->loop, UV_RUN_NOWAIT); i++) {}
    }
    uv_loop_close(&net->loop);
    if (net->spare >= 0) close(net->spare);
    tls_free(net->pair);
    free(net);
}
