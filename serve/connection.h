/* Connections: what the server owes each robot. All of it is on the I/O thread.
 *
 * A connection has one request running and at most one read ahead; then its socket is not read. So it gets
 * exactly one answer for each request, in order, and the reply can say how long the request before took.
 *
 * Note: a connection outlives its socket while one of its requests is being computed. */
#ifndef SERVE_CONNECTION_H
#define SERVE_CONNECTION_H

#include "dispatch.h"
#include "job.h"
#include "net.h"

typedef struct connection connection;

/* All connections of the server. */
typedef struct connections {
    job_pool pool;
    net_message metadata;        /* the first message of each                                              */
    uint64_t max_message_bytes;
    uint64_t requests;           /* that were complete so far                                              */
    connection *first;
    int count;
    int draining;
    dispatch *dispatch;
    metrics *metrics;
    /* Where a complete request goes; where one goes that will not be computed, because its connection has
     * left; and that the last connection has left. */
    void (*submit)(void *user, job *job);
    void (*withdrawn)(void *user, job *job);
    void (*emptied)(void *user);
    void *user;
} connections;

/* net.h's events. `rate`: what a reserved connection declares. */
void *connection_opened(connections *all, net_peer *peer, scheduler_class class, double rate);
int connection_announced(void *connection, size_t bytes, int text);
int connection_received(void *connection, const uint8_t *bytes, size_t count, int last);
void connection_sent(void *connection, net_message *message);
void connection_closed(void *connection);

/* A job came back with its answer. */
void connection_answered(job *job);

/* Closes every connection as soon as its requests are answered. */
void connections_drain(connections *all);
/* Answers every request that came whole with this sentence, which a constant message has, and closes every
 * connection. */
void connections_lose(connections *all, const net_message *sentence, int code, const char *reason);
/* Closes every connection now. */
void connections_end(connections *all, int code, const char *reason);
/* How many requests are being computed. */
int connections_running(const connections *all);
/* Frees what is left. No event may follow. */
void connections_close(connections *all);

#endif
