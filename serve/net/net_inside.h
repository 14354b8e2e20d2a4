/* What the files of the network share; see net.h. Only net.c, net_http.c, net_limits.c and net_listen.c
 * include this header, and with it the network library. */
#ifndef SERVE_NET_INSIDE_H
#define SERVE_NET_INSIDE_H

#include <libwebsockets.h>
#include <sys/socket.h>
#include <uv.h>

#include "serve/who/attempts.h"
#include "net.h"
#include "waiting.h"

enum {
    LISTENERS = 16,              /* addresses of both sides' host names                                    */
    READ_BYTES = 128 << 10,      /* most from a socket at once: a request takes four turns                 */
    CLOSE_REASON = 120,          /* bytes of a close's text                                                */
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
    VISIT_DROPPED,               /* its end has been told                                                  */
} visit;

/* A connection, from accepted to destroyed. While it waits it is in the net's list of its side. */
typedef struct visitor {
    waiter waiter;
    struct lws *wsi;
    listener *to;
    visit visit;
    struct sockaddr_storage from;
} visitor;

/* libwebsockets keeps one of these for each connection, of zeros at first. */
struct net_peer {
    struct lws *wsi;
    net *net;
    net_peer *before, *after;    /* in the net's list                                                     */
    char address[NET_ADDRESS];
    address_key key;             /* the address's                                                          */
    void *connection;            /* NULL: no WebSocket yet, or no more                                     */
    net_message *first, *last;   /* to send                                                                */
    net_message *flushing;       /* written, but the kernel has not taken all of it                        */
    net_sender *sender;          /* NULL: none                                                             */
    int shared;                  /* 1: the sender may use the socket                                       */
    size_t message_bytes;        /* the message being received, as far as its frames are announced         */
    size_t frame_left;           /* bytes of the frame being received                                      */
    int close_code;              /* not 0: it ends, and what is received is dropped                        */
    int close_sent;
    const char *close_reason;
    int held;
    double rest_ms;              /* until when it is not read; 0: it is                                    */
    double heard_ms;             /* when something came last                                               */
    double began_ms;             /* when the message being received did; 0: there is none                  */
    double unread_ms;            /* since when it takes none of what waits; 0: it does                      */
    double pinged_ms;            /* when a ping was ordered that is not answered; 0: none                  */
    int ping_due;                /* 1: it is not sent yet                                                  */
    int dropped;
    int left;                    /* it closes                                                              */
    /* net_limits.c's. */
    int empty_frames;            /* those in the message being received                                    */
    int turn_frames;             /* since the loop has left this socket                                    */
    int yields;                  /* 1: not read before the loop's next turn                                */
    double second_ms;            /* when the second began whose pings are counted                          */
    int pings;                   /* in it, as far as each had a pong                                       */
    int floods;                  /* 1: it sends so much without content that it is read no more            */
    int unasked;                 /* 1: the library may ask for something to send without a pong            */
    uint64_t data_bytes;         /* messages with their frames' heads                                      */
    uint64_t other_bytes;        /* that the socket had received besides them, when the second began       */
    uint64_t first_bytes;        /* that it had received before the first frame                            */
    double read_again_ms;        /* when it was last read again after a rest                               */
};

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
    uv_timer_t timer, watch, tick;
    uv_idle_t looking;           /* while it is active the loop does not sleep                             */
    int64_t look_until;          /* nanoseconds                                                            */
    uv_timer_t pause;            /* after which robots' connections are accepted again                     */
    int may_adopt;               /* most before there is a pause                                           */
    int may_look;                /* 1: there are processors enough                                         */
    net_limits limits;
    attempts attempts;           /* those on the robots' side                                              */
    net_peer *peers;             /* all WebSockets                                                         */
    waiting waiting[NET_SIDES];  /* all other connections                                                  */
    uv_idle_t yielding;          /* active while one of them is not read before the next turn              */
    char reasons[DROP_REASONS][CLOSE_REASON + 1];    /* what a client reads in its close                   */
    int closing;                 /* 1: net_close                                                           */
    int spare;                   /* a descriptor for when there is no other; -1: none                      */
    tls_pair *pair;              /* NULL: no TLS                                                           */
};

/* The net of a connection, and the connection; the library knows both. */
net *net_of(struct lws *wsi);
visitor *visitor_of(struct lws *wsi);

/* ---- net.c ------------------------------------------------------------------------------------------ */

/* The sender may use the socket, or not. */
void peer_share(net_peer *peer, int may);

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

/* A request with the method CONNECT, which the library takes for something else than HTTP. Always -1. */
int http_connect(struct lws *wsi);

/* ---- net_limits.c ----------------------------------------------------------------------------------- */

/* Writes net->reasons. */
void limits_open(net *net);
/* The list of WebSockets. */
void peer_join(net_peer *peer);
void peer_leave(net_peer *peer);
/* Reads from the peer, unless there is a reason not to. */
void peer_read_or_not(net_peer *peer);
/* Closes it, and says why. The second one: with a code of net_events. */
void peer_end_for(net_peer *peer, drop_reason why);
void peer_end_with(net_peer *peer, int code);
/* The handshake is over: frames follow. */
void peer_count_from_here(net_peer *peer);
/* A frame of a message begins. */
void peer_count_frame(net_peer *peer, size_t length);
/* The library asks for something to send, and nothing is: it has sent a pong. */
void peer_count_pong(net_peer *peer);
/* Looks at all connections. */
void limits_watch(uv_timer_t *watch);
/* Peers that were left are read again. */
void limits_go_on(uv_idle_t *yielding);

/* The visitor waits, from now on for so many seconds; or no more, because it is a WebSocket. */
void visitor_wait(net *net, visitor *visitor, int seconds);
void visitor_enter(net *net, visitor *visitor);
/* Another connection from this address has come: one that waits makes room for it, where there is none. */
void visitors_make_room(net *net, net_side side, address_key key);

/* ---- net_listen.c ----------------------------------------------------------------------------------- */

/* The connection is destroyed. */
void visitor_leave(net *net, visitor *visitor);
/* Which reason a visitor has that ends at this point of its way; DROP_REASONS: none. */
drop_reason visitor_reason(const net *net, const visitor *visitor);
/* Tells that it was dropped. */
void visitor_tell(net *net, const visitor *visitor, drop_reason why);

/* As text, also where the client has left. */
void address_text(const struct sockaddr_storage *from, char text[NET_ADDRESS]);
/* The pause is over. */
void listeners_go_on(uv_timer_t *pause);
/* From now on connections are accepted. */
openpi_status listeners_start(net *net, openpi_error *error);

#endif
