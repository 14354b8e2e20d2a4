/* TCP sockets before anybody listens: their addresses, a bound one, one that somebody else passes. */
#ifndef SERVE_SOCKETS_H
#define SERVE_SOCKETS_H

#include <netdb.h>
#include <stdint.h>
#include <sys/socket.h>

/* Whether only programs of this machine reach the address. */
int socket_is_loopback(const struct sockaddr *address);
/* Sets the port of an IPv4 or IPv6 address. */
void socket_set_port(struct sockaddr *address, int port);
/* How many bytes were read of a TCP connection so far, at least; 0: the system does not say. */
uint64_t socket_bytes_read(int fd);
/* The port that a socket is bound to, in host order. 0: it cannot be told. */
int socket_port(int fd);

/* A new socket that is bound to an address, does not wait and is not passed on to other programs. Returns -1
 * and errno where it cannot be. */
int socket_bind(const struct addrinfo *at);
/* The address of a listening TCP socket. Returns 0 where it is none, and `why` says what it is. */
int socket_listening(int fd, struct sockaddr_storage *address, const char **why);

#endif
