/* Sending a reply from the thread that made it. Waking the I/O thread for it would take longer than all else
 * that is done with a reply.
 *
 * The I/O thread says when that is possible: while nothing else waits to be sent on the connection, and it is
 * neither closing nor TLS. A message is sent whole or not at all: only where the kernel holds no byte of the
 * connection that the client has not confirmed, so that there is space for all of it.
 *
 * Note: the network library answers pings by itself. A pong at the same time does not come between, because
 * the kernel takes the message in one call. Only a client that sends pings and reads no pong until the
 * kernel is full of them may get a pong in two parts, and a reply between them: it harms nobody else. */
#ifndef SERVE_NET_SENDER_H
#define SERVE_NET_SENDER_H

#include <pthread.h>
#include <stddef.h>

struct net_message;

enum { NET_SENDER_BYTES = 32 << 10 };      /* a longer message is the I/O thread's                        */

typedef struct net_sender {
    pthread_mutex_t lock;
    int fd;                      /* the connection's socket; -1: only the I/O thread sends                 */
} net_sender;

/* Nobody but the I/O thread sends. */
void net_sender_open(net_sender *sender);
void net_sender_close(net_sender *sender);
/* On the I/O thread. When it returns, no other thread uses the descriptor of before. */
void net_sender_set(net_sender *sender, int fd);

/* From any thread. 1: all of the message is sent, and message->sent is set. 0: none of it; it is left to
 * net_send. */
int net_sender_send(net_sender *sender, struct net_message *message);

#endif
