/* Sockets, HTTP and WebSocket: everything that the server knows of the network library.
 *
 * One thread runs the loop (net_run), and all events are its. It never waits for anything else. From other
 * threads only net_wake may be called, and what net_sender.h says.
 *
 *   TCP connection
 *   -> request head
 *   -> asked: a page, or 0 for a WebSocket
 *   -> opened
 *   -> announced, received …
 *   -> closed
 *
 * Note: four files know libwebsockets and libuv: net.c the loop and WebSockets, net_http.c HTTP requests,
 * net_limits.c what a client may take, net_listen.c addresses. Where the libraries are not installed
 * net_absent.c stands in for all of them, and its net_open says so in a sentence. */
#ifndef SERVE_NET_H
#define SERVE_NET_H

#include <stddef.h>
#include <stdint.h>

#include "serve/who/address_key.h"
#include "serve/who/drops.h"
#include "net_sender.h"
#include "openpi.h"
#include "tls.h"

enum {
    NET_HEADROOM = 32,           /* bytes before a message's data that sending overwrites                   */
    NET_ADDRESS = 64,            /* a client's address as text                                             */
    NET_AUTHORIZATION = 512,     /* the header's value                                                     */
    NET_HOST = 300,              /* the headers Host and Origin                                            */
};

/* The two addresses that the server may listen on. */
typedef enum net_side { NET_ROBOTS, NET_ADMIN, NET_SIDES } net_side;

typedef enum net_method { NET_OTHER, NET_GET, NET_HEAD, NET_POST } net_method;

/* Close codes of RFC 6455 and its registry that this server sends. */
enum {
    CLOSE_GOING_AWAY = 1001,     /* the server drains                                                      */
    CLOSE_UNSUPPORTED = 1003,    /* a text message                                                         */
    CLOSE_TOO_SLOW = 1008,       /* a message that takes too long                                          */
    CLOSE_TOO_MANY = 1008,       /* frames or pings without content                                        */
    CLOSE_NOT_ALLOWED = 1008,    /* its token is no longer valid                                           */
    CLOSE_TOO_BIG = 1009,
    CLOSE_RESTART = 1012,        /* the device is lost                                                     */
    CLOSE_TRY_LATER = 1013,      /* no memory for another message                                          */
};

typedef struct net net;
typedef struct net_peer net_peer;          /* one WebSocket                                                */

/* A message to send. It belongs to the sender, and stays as it is until `sent` or `closed`. */
typedef struct net_message {
    struct net_message *next;
    uint8_t *data;               /* [bytes], with NET_HEADROOM bytes before it                             */
    size_t bytes;
    int text;
    int sent;                    /* 1: net_sender.h has sent it                                            */
} net_message;

/* The head of an HTTP request. */
typedef struct net_head {
    net_side side;               /* that it came to                                                        */
    net_method method;
    const char *path;            /* without its query                                                      */
    int query;                   /* 1: it has one                                                          */
    int upgrade;                 /* 1: asks for a WebSocket                                                */
    const char *address;         /* the client's                                                           */
    address_key key;             /* the same client's                                                      */
    /* The headers' values; "": there is none; "?": one longer than NET_AUTHORIZATION or NET_HOST. */
    const char *authorization, *host, *origin;
} net_head;

/* An answer to an HTTP request. */
typedef struct net_page {
    int status;
    const char *type;            /* "text/plain"                                                           */
    const char *headers;         /* more of them, each with its \r\n; NULL: none                           */
    const char *body;            /* valid until the next request is asked                                  */
    size_t bytes;
} net_page;

typedef struct net_events {
    /* 1: *page is the answer; 0: becomes a WebSocket, where head->upgrade allows it. */
    int (*asked)(void *user, const net_head *head, net_page *page);
    /* The handshake is done; `head` is the one that was asked. Returns what the next four are called with;
     * NULL: it is closed. */
    void *(*opened)(void *user, net_peer *peer, const net_head *head);
    /* A frame begins, and with it the message has at least `bytes` bytes. 0, or the code to close with. */
    int (*announced)(void *connection, size_t bytes, int text);
    /* Bytes of the message; `last`: it is complete. 0, or the code to close with. */
    int (*received)(void *connection, const uint8_t *bytes, size_t count, int last);
    /* The kernel has all of it. */
    void (*sent)(void *connection, net_message *message);
    /* The peer is gone, and no event of this connection follows. Messages that are not sent will not be. */
    void (*closed)(void *connection);
    /* After net_wake; several calls may be one event. */
    void (*woken)(void *user);
    /* After net_after. */
    void (*timed)(void *user);
    /* Again and again after net_every. */
    void (*ticked)(void *user);
    /* A connection to the robots' side ends, and not because the client has asked for it: a WebSocket, and
     * `closed` follows with the same `connection`, or one that is none yet: NULL. */
    void (*dropped)(void *user, const void *connection, const char *address, drop_reason why);
    /* A connection is hung up on, because its address has had net_limits.attempts. */
    void (*too_often)(void *user, const char *address);
} net_events;

/* What clients may take, in seconds where nothing else is said. */
typedef struct net_limits {
    int handshake;               /* from accept to a WebSocket or an answer, and from that to the next     */
    int message;                 /* from a message's first byte to its last                                */
    int reply;                   /* until the kernel has all of a message that is sent                     */
    int ping;                    /* seconds of silence before a ping, and for its answer                   */
    int attempts;                /* connections a second of one address, to the robots' side               */
    int files;                   /* a connection with a descriptor of this number or more is closed        */
    int per_address;             /* connections of one address that are no WebSocket                       */
    int waiting[NET_SIDES];      /* the same of all; the one that waits longest makes room for another     */
    uint64_t message_bytes, in_flight;     /* said in closes: who counts them is the caller of net_open     */
} net_limits;

/* A loop without a socket. `pair`: for TLS on every connection, from then on the net's; NULL: no TLS. On
 * success *out is the caller's, for net_close. */
openpi_status net_open(const net_events *events, void *user, const net_limits *limits, tls_pair *pair,
                       net **out, openpi_error *error);
void net_close(net *net);
/* Handshakes from now on use this pair, which is then the net's. Only where net_open was given one. */
void net_renew(net *net, tls_pair *pair);

/* Takes the side's address, which nobody else can then have; connections are refused until net_listen.
 * `host`: a name or an address; `port` 0: one that is free. `only_loopback`: another address is refused with
 * a sentence. */
openpi_status net_bind(net *net, net_side side, const char *host, int port, int only_loopback,
                       openpi_error *error);
/* Instead of net_bind, for robots: `count` listening TCP sockets that this process has inherited, from the
 * descriptor `first` on. They are the net's. */
openpi_status net_inherit(net *net, int first, int count, int only_loopback, openpi_error *error);
/* The port in use; 0: the side has no address. */
int net_port(const net *net, net_side side);
/* 1: the side speaks no TLS: without a pair, and the admin side on loopback. */
int net_is_plain(const net *net, net_side side);
openpi_status net_listen(net *net, openpi_error *error);
/* Closes the side's listening sockets; connections stay. */
void net_deafen(net *net, net_side side);

/* How many WebSockets the client's address has. */
int net_count(const net *net, address_key key);

/* Runs until net_stop. */
void net_run(net *net);
void net_stop(net *net);
void net_wake(net *net);
/* One `timed` event in so many milliseconds, instead of the one that was ordered before. */
void net_after(net *net, int milliseconds);
/* `ticked` events so many milliseconds apart. */
void net_every(net *net, int milliseconds);

/* Sends after all that was ordered before. A peer that is closing drops it: `sent` never comes. */
void net_send(net_peer *peer, net_message *message);
/* From now until `closed` the sender sends on this connection, where it can. NULL: none does. */
void net_share(net_peer *peer, net_sender *sender);
/* Closes when all that is ordered is sent. `reason`: a constant of at most 120 bytes. */
void net_end(net_peer *peer, int code, const char *reason);
/* Stops reading from the peer, or goes on. */
void net_hold(net_peer *peer, int hold);
/* Does not read from the peer for about so many milliseconds. */
void net_rest(net_peer *peer, int milliseconds);

#endif
