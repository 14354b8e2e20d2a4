/* Connections: what the server owes each robot. All of it is on the I/O thread.
 *
 * A connection has one request running and at most one read ahead; then its socket is not read. So it gets
 * exactly one answer for each request, in order, and the reply can say how long the request before took.
 *
 * Note: a connection outlives its socket while one of its requests is being computed. */
#ifndef SERVE_CONNECTION_H
#define SERVE_CONNECTION_H

#include "serve/schedule/dispatch.h"
#include "serve/admin/history.h"
#include "job.h"
#include "serve/log/log.h"
#include "serve/record/recorder.h"
#include "serve/shadow/shadow.h"
#include "serve/net/net.h"
#include "serve/admin/recent.h"
#include "serve/admin/trail.h"
#include "serve/admin/watch.h"

typedef struct connection connection;

/* All connections of the server. */
typedef struct connections {
    job_pool pool;
    net_message metadata;        /* the first message of who connects now                                  */
    uint64_t max_message_bytes;
    uint64_t requests;           /* that were complete so far                                              */
    connection *first;
    int count;
    uint64_t numbered;           /* connections so far                                                     */
    int watched;                 /* connections that somebody looks at                                     */
    int draining;
    history history;             /* all their requests                                                     */
    dispatch *dispatch;
    metrics *metrics;
    logger *log;
    shadow *shadow;              /* NULL: nothing is computed again                                        */
    recorder *recorder;          /* NULL: nothing is recorded                                              */
    int log_requests;            /* 1: a line for each, not only for those that fail                       */
    /* The first bytes of a request are there, and more will come. */
    void (*coming)(void *user, int reserved);
    /* Takes a complete request. */
    void (*submit)(void *user, job *job);
    /* Takes back a request that will not be computed, because its connection has left. */
    void (*withdrawn)(void *user, job *job);
    /* The last connection has left. */
    void (*emptied)(void *user);
    /* Lets replies that are already sent come back. */
    void (*settle)(void *user);
    void *user;
} connections;

/* Who connects. */
typedef struct connection_who {
    const char *name;            /* its token's; "": none                                                  */
    const char *address;
    scheduler_class class;
    double rate;                 /* what a reserved connection declares                                    */
    const uint8_t *key;          /* [DIGEST_BYTES], SHA-256 of its token's key                             */
} connection_who;

/* net.h's events. The strings and the key of `who` are copied. */
void *connection_opened(connections *all, net_peer *peer, const connection_who *who);
/* Its number in the log, on the admin page and in connection_look; never 0. */
uint64_t connection_id(const void *connection);
/* Of its token; "": it has none. */
const char *connection_name(const void *connection);
int connection_announced(void *connection, size_t bytes, int text);
int connection_received(void *connection, const uint8_t *bytes, size_t count, int last);
void connection_sent(void *connection, net_message *message);
void connection_closed(void *connection);

/* A job came back with its answer. */
void connection_answered(job *job);
/* Sends the answer already, where that can be done. On the thread that has made it, before
 * connection_answered. */
void connection_send_early(job *job);

/* Closes every connection as soon as its requests are answered. */
void connections_drain(connections *all);
/* Answers every request that came whole with this sentence, which a constant message has, and closes every
 * connection. */
void connections_lose(connections *all, const net_message *sentence, int code, const char *reason);
/* Closes every connection now. */
void connections_end(connections *all, int code, const char *reason);
/* The dispatch's number of a connection with the same key and reserved rate; -1: there is none. */
int connections_find(const connections *all, const connection_who *who);
/* Closes those whose key is not to be kept. Returns how many. */
int connections_keep(connections *all, int (*keeps)(const void *user, const uint8_t *key), const void *user,
                     int code, const char *reason);
/* How many requests are being computed. */
int connections_running(const connections *all);
/* Frees what is left. No event may follow. */
void connections_close(connections *all);

/* ---- what the admin page shows --------------------------------------------------------------------- */

typedef struct connection_look {
    uint64_t id;                 /* never given to another connection                                      */
    connection_who who;
    uint64_t requests;           /* that were answered                                                     */
    int waiting;                 /* requests that came whole and are not answered                          */
    recent_summary recent;
} connection_look;

/* Fills looks[most] with the connections that came last. Returns how many. */
int connections_look(const connections *all, connection_look *looks, int most, double now);
/* Somebody looks at this connection. NULL: there is no such connection, or no memory. */
const watch *connection_watch(connections *all, uint64_t id, double now);
/* Its last minute, which is always kept. NULL: there is no such connection, it had no
 * answer yet, or no memory. */
trail *connection_trail(const connections *all, uint64_t id);

#endif
