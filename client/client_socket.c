/* WebSocket connections of a client by libwebsockets on a libuv loop; see client.h. */
#include "client.h"

#include <libwebsockets.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "client/client_frame.h"

enum { READ_BYTES = 64 << 10, CONNECT_SECONDS = 10 };

#define NO_HOST "there is no such host"

struct client_socket {
    client_loop *loop;
    client_socket *previous, *next;/* in the client's list                                                  */
    struct lws *wsi;
    void *user;
    char *authorization;         /* NULL: none                                                            */
    const uint8_t *message;      /* to send; NULL: none                                                   */
    size_t message_bytes, written;         /* written: of them, in frames                                  */
    int flushing;                /* written, but the kernel has not taken all of it                       */
    uint8_t *received;           /* [received_count] of a message that is not whole                       */
    size_t received_count, received_capacity;
    char why[CLIENT_SENTENCE];       /* the close that the server sent                                      */
};

struct client_loop {
    const client_events *events;
    client_address address;
    char number[CLIENT_HOST], origin[CLIENT_HOST + 16];
    int host_found;
    void *user;
    uv_loop_t loop;
    uv_timer_t timer;
    struct lws_context *context;
    struct lws_protocols protocols[2];
    client_socket *sockets;
    uint8_t frame[LWS_PRE + CLIENT_FRAME];                     /* that is being written                    */
};

static void forget(client_socket *s) {
    if (s->next) s->next->previous = s->previous;
    if (s->previous) s->previous->next = s->next;
    else s->loop->sockets = s->next;
    free(s->authorization);
    free(s->received);
    free(s);
}

static void end(client_socket *s, const char *why) {
    s->loop->events->closed(s->user, why);
    forget(s);
}

/* ---- messages ------------------------------------------------------------------------------------- */

void client_send(client_socket *s, const uint8_t *data, size_t bytes) {
    s->message = data;
    s->message_bytes = bytes;
    s->written = 0;
    lws_callback_on_writable(s->wsi);
}

/* The message's next frame. Returns -1 to close. */
static int write_frame(client_socket *s) {
    uint8_t mask[CLIENT_MASK], *frame = s->loop->frame + LWS_PRE;
    if (lws_get_random(s->loop->context, mask, CLIENT_MASK) != CLIENT_MASK) return -1;
    size_t bytes = client_frame_write(frame, s->message, s->message_bytes, &s->written, mask);
    if (lws_write(s->wsi, frame, bytes, LWS_WRITE_RAW) < 0) return -1;
    if (s->written == s->message_bytes) s->message = NULL;
    return 0;
}

/* The socket takes bytes. Returns -1 to close. */
static int write_more(client_socket *s) {
    if (lws_partial_buffered(s->wsi)) return 0;                /* called again when it has gone out         */
    if (s->message) {
        if (write_frame(s) < 0) return -1;
        s->flushing = !s->message && lws_partial_buffered(s->wsi);
        if (s->message || s->flushing) lws_callback_on_writable(s->wsi);
        else s->loop->events->sent(s->user);
    } else if (s->flushing) {
        s->flushing = 0;
        s->loop->events->sent(s->user);
    }
    return 0;
}

/* Returns 0 where there is no memory. */
static int keep(client_socket *s, const uint8_t *bytes, size_t count) {
    if (s->received_count + count > s->received_capacity) {
        size_t capacity = 2 * (s->received_count + count);
        uint8_t *larger = realloc(s->received, capacity);
        if (!larger) return 0;
        s->received = larger;
        s->received_capacity = capacity;
    }
    memcpy(s->received + s->received_count, bytes, count);
    s->received_count += count;
    return 1;
}

/* A piece of a message. Returns -1 to close. */
static int read_piece(client_socket *s, const uint8_t *bytes, size_t count) {
    if (lws_is_first_fragment(s->wsi)) s->received_count = 0;
    if (!keep(s, bytes, count)) return -1;
    if (lws_remaining_packet_payload(s->wsi) || !lws_is_final_fragment(s->wsi)) return 0;
    s->loop->events->received(s->user, s->received, s->received_count, !lws_frame_is_binary(s->wsi));
    return 0;
}

/* ---- the library's events ------------------------------------------------------------------------- */

/* The close frame's payload: a code of two bytes, then a reason. */
static void note_close(client_socket *s, const uint8_t *payload, size_t count) {
    if (count < 2) snprintf(s->why, sizeof s->why, "closed by the server");
    else
        snprintf(s->why, sizeof s->why, "closed by the server with code %d \"%.*s\"",
                 payload[0] << 8 | payload[1], (int)(count - 2), (const char *)payload + 2);
}

/* The handshake failed. `text` is the library's word for it. */
static void note_failure(client_socket *s, const char *text, size_t count) {
    unsigned code = s->wsi ? lws_http_client_http_response(s->wsi) : 0;
    if (!s->loop->host_found) snprintf(s->why, sizeof s->why, NO_HOST);
    else if (code >= 300) snprintf(s->why, sizeof s->why, "the server answers with HTTP %u", code);
    else
        snprintf(s->why, sizeof s->why, "%s (%.*s)",
                 s->loop->address.tls ? "no server answers there with TLS that can be trusted"
                                        : "no server answers there", count ? (int)count : 9,
                 count ? text : "no reason");
}

/* *at … end is free in the request's head; *at moves on. Returns -1 where it does not fit. */
static int add_authorization(const client_socket *s, unsigned char **at, size_t count) {
    if (!s->authorization) return 0;
    return lws_add_http_header_by_token(s->wsi, WSI_TOKEN_HTTP_AUTHORIZATION,
                                        (const unsigned char *)s->authorization,
                                        (int)strlen(s->authorization), at, *at + count)
               ? -1
               : 0;
}

/* Destroyed without another event: the library takes a server that hangs up before an answer for no error. */
static void hung_up(client_socket *s) {
    snprintf(s->why, sizeof s->why, "the server hangs up without an answer%s",
             s->loop->address.tls ? "" : "; one that has TLS is asked with wss://");
}

static int on_event(struct lws *wsi, enum lws_callback_reasons reason, void *user, void *in, size_t count) {
    client_socket *s = user;
    if (!s) return 0;                                          /* the client's own, or it has ended         */
    switch (reason) {
    case LWS_CALLBACK_CLIENT_APPEND_HANDSHAKE_HEADER: return add_authorization(s, in, count);
    case LWS_CALLBACK_CLIENT_ESTABLISHED: s->loop->events->opened(s->user, s); return 0;
    case LWS_CALLBACK_CLIENT_RECEIVE: return read_piece(s, in, count);
    case LWS_CALLBACK_CLIENT_WRITEABLE: return write_more(s);
    case LWS_CALLBACK_WS_PEER_INITIATED_CLOSE: note_close(s, in, count); return 0;
    case LWS_CALLBACK_CLIENT_CLOSED:
        if (!s->why[0]) snprintf(s->why, sizeof s->why, "the connection broke");
        break;
    case LWS_CALLBACK_CLIENT_CONNECTION_ERROR: note_failure(s, in, in ? count : 0); break;
    case LWS_CALLBACK_WSI_DESTROY: hung_up(s); break;
    default: return 0;
    }
    lws_set_wsi_user(wsi, NULL);
    end(s, s->why);
    return 0;
}

static void on_timer(uv_timer_t *handle) {
    client_loop *c = handle->data;
    c->events->timed(c->user);
}

/* ---- opening and closing -------------------------------------------------------------------------- */

static struct lws_context *context_of(client_loop *c) {
    void *loops[1] = {&c->loop};
    c->protocols[0] =
        (struct lws_protocols){.name = "openpi", .callback = on_event, .rx_buffer_size = READ_BYTES};
    struct lws_context_creation_info info = {
        .port = CONTEXT_PORT_NO_LISTEN,
        .protocols = c->protocols,
        .options = LWS_SERVER_OPTION_LIBUV | (c->address.tls ? LWS_SERVER_OPTION_DO_SSL_GLOBAL_INIT : 0),
        .foreign_loops = loops,
        .pt_serv_buf_size = READ_BYTES,
        .timeout_secs = CONNECT_SECONDS,
        .pcontext = &c->context,           /* NULL when it is gone                                         */
    };
    return lws_create_context(&info);
}

client_loop *client_open(const client_events *events, const client_address *address, void *client_user,
                          char why[CLIENT_SENTENCE]) {
    client_loop *c = calloc(1, sizeof *c);
    snprintf(why, CLIENT_SENTENCE, "out of memory: the network's loop");
    if (!c) return NULL;
    c->events = events;
    c->address = *address;
    c->user = client_user;
    c->host_found = client_address_reach(address, c->number);
    snprintf(c->origin, sizeof c->origin, "%s:%d", address->host, address->port);
    lws_set_log_level(0, NULL);
    if (uv_loop_init(&c->loop)) {
        free(c);
        return NULL;
    }
    uv_timer_init(&c->loop, &c->timer);
    c->timer.data = c;
    c->context = context_of(c);
    if (c->context) return c;
    client_close(c);
    snprintf(why, CLIENT_SENTENCE,
             "libwebsockets cannot start on libuv: is the package libwebsockets-evlib-uv installed?");
    return NULL;
}

void client_close(client_loop *c) {
    if (!c) return;
    uv_close((uv_handle_t *)&c->timer, NULL);
    for (int turn = 0; c->context && turn < 2; turn++) {       /* the second one frees what the loop held   */
        lws_context_destroy(c->context);
        for (int i = 0; i < 1000 && uv_run(&c->loop, UV_RUN_NOWAIT); i++) {}
    }
    uv_loop_close(&c->loop);
    while (c->sockets) forget(c->sockets);
    free(c);
}

void client_run(client_loop *c) { uv_run(&c->loop, UV_RUN_DEFAULT); }
void client_stop(client_loop *c) { uv_stop(&c->loop); }

void client_after(client_loop *c, double milliseconds) {
    uv_update_time(&c->loop);
    uv_timer_start(&c->timer, on_timer, milliseconds > 0 ? (uint64_t)(milliseconds + 0.5) : 0, 0);
}

static client_socket *socket_of(client_loop *c, const char *key, void *user) {
    client_socket *s = calloc(1, sizeof *s);
    size_t bytes = key ? strlen(key) + sizeof "Api-Key " : 0;
    if (!s) return NULL;
    s->loop = c;
    s->user = user;
    if (key) s->authorization = malloc(bytes);
    if (key && !s->authorization) {
        free(s);
        return NULL;
    }
    if (key) snprintf(s->authorization, bytes, "Api-Key %s", key);
    s->next = c->sockets;
    if (s->next) s->next->previous = s;
    return c->sockets = s;
}

int client_connect(client_loop *c, const char *key, void *user) {
    client_socket *s = socket_of(c, key, user);
    if (!s) return 0;
    struct lws_client_connect_info info = {
        .context = c->context,
        .address = c->number,
        .port = c->address.port,
        .ssl_connection = c->address.tls ? LCCSCF_USE_SSL : 0,
        .path = c->address.path,
        .host = c->origin,
        .origin = c->origin,
        .ietf_version_or_minus_one = -1,
        .userdata = s,
        .local_protocol_name = "openpi",
        .pwsi = &s->wsi,
    };
    if (lws_client_connect_via_info(&info)) return 1;
    client_socket *left = c->sockets;        /* the library may have called `closed` already, or not at all */
    while (left && left != s) left = left->next;
    if (left) end(left, c->host_found ? "no connection can be made to it" : NO_HOST);
    return 1;
}
