/* What the files of the network share; see net.h. Only net.c, net_http.c and net_listen.c include this
 * header, and with it the network library. */
#ifndef SERVE_NET_INSIDE_H
#define SERVE_NET_INSIDE_H

#include <libwebsockets.h>
#include <sys/socket.h>
#include <uv.h>

#include "attempts.h"
#include "net.h"

enum {
    LISTENERS = 16,              /* addresses of both sides' host names                                    */
    SIGNALS = 3,
};

typedef struct listener {
    uv_poll_t poll;
    net *net;
    net_side side;
    int fd, active, deaf;
} listener;

/* How far a connection is on its way to a WebSocket. */
typedef enum visit {
    VISIT_NEW,                   /* no complete request head so far                                        */
    VISIT_UPGRADES,              /* its head asks for an upgrade, and may                                  */
    VISIT_NAMES_PROTOCOL,        /* the same, for a subprotocol                                            */
    VISIT_ANSWERED,              /* it got an answer, or a WebSocket                                       */
} visit;

/* A connection, from accepted to destroyed. */
typedef struct visitor {
    listener *to;
    visit visit;
    struct sockaddr_storage from;
} visitor;

struct net {
    const net_events *events;
    void *user;
    uv_loop_t loop;
    struct lws_context *context;
    struct lws_vhost *vhost;
    struct lws_protocols protocols[2];
    listener listeners[LISTENERS];
    int listener_count, ports[NET_SIDES];
    int plain[NET_SIDES];        /* 1: without TLS, where there is a pair                                  */
    uv_signal_t signals[SIGNALS];
    uv_timer_t timer, watch, tick;
    uv_idle_t looking;           /* while it is active the loop does not sleep                             */
    int64_t look_until;          /* nanoseconds                                                            */
    uv_timer_t pause;            /* after which robots' connections are accepted again                     */
    int may_adopt;               /* of them, before there is a pause                                       */
    int may_look;                /* 1: there are processors enough                                         */
    net_limits limits;
    attempts attempts;           /* of the robots' side                                                    */
    net_peer *peers;             /* all WebSockets                                                         */
    int closing;                 /* 1: net_close                                                           */
    int spare;                   /* a descriptor for when there is no other; -1: none                      */
    tls_pair *pair;              /* NULL: no TLS                                                           */
};

/* The net of a connection, and the connection; the library knows both. */
net *net_of(struct lws *wsi);
visitor *visitor_of(struct lws *wsi);

/* ---- net_http.c ------------------------------------------------------------------------------------- */

enum { HTTP_PATH = 256 };

/* A request's head, with the memory of its strings. */
typedef struct http_head {
    net_head head;
    char path[HTTP_PATH], address[NET_ADDRESS], authorization[NET_AUTHORIZATION], host[NET_HOST];
    char origin[NET_HOST];
} http_head;

void http_read_head(struct lws *wsi, int upgrade, http_head *out);
/* A request that asks for no WebSocket: answers it. Returns -1 to hang up. */
int http_plain(struct lws *wsi);
/* A request that asks for an upgrade to the protocol `to`. Returns -1 to hang up, 0 to upgrade, 1 when it was
 * answered. */
int http_upgrade(struct lws *wsi, const char *to);

/* ---- net_listen.c ----------------------------------------------------------------------------------- */

/* The connection is destroyed. */
void visitor_leave(net *net, visitor *visitor);

/* The pause is over. */
void listeners_go_on(uv_timer_t *pause);
/* From now on connections are accepted. */
openpi_status listeners_start(net *net, openpi_error *error);

#endif
