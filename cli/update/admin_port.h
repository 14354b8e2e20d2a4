/* Requests to the admin port of a running server, in HTTP without TLS: a request a connection. */
#ifndef CLI_ADMIN_PORT_H
#define CLI_ADMIN_PORT_H

#include "cli.h"

enum { HOST = 256, PORT = 8, ANSWER = 4096 };

typedef struct admin_port {
    const char *text, *key;      /* "127.0.0.1:8642"; key NULL: none is sent                              */
    char host[HOST], port[PORT];
} admin_port;

typedef struct admin_answer {
    int status;
    char body[ANSWER];           /* a sentence, without the end of its line                               */
} admin_answer;

/* "HOST:PORT" or "[HOST]:PORT"; both texts outlive it. Returns how the verb ends where it is no such text. */
int admin_port_read(const char *text, const char *key, admin_port *port);
/* Waits for the answer. Returns how the verb ends where there is none. */
int admin_port_ask(const admin_port *port, const char *method, const char *path, admin_answer *answer);

#endif
