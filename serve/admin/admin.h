/* The admin port: what the operator sees of the server, and what he can ask it to do (docs/serve-admin.md).
 *
 * Who may: where the tokens have one of the class admin, whoever sends it. Without one the port is on
 * loopback only, and open to every program of the machine, but not to web pages that a browser on it shows:
 * the header Host has to be this machine's (against a name that an attacker lets point here), and a POST's
 * header Origin, which browsers always send, the admin page's own.
 *
 * All of it is on the I/O thread, and nothing here waits. */
#ifndef SERVE_ADMIN_H
#define SERVE_ADMIN_H

#include "serve/connection.h"
#include "serve/schedule/dispatch.h"
#include "metrics.h"
#include "serve/net/net.h"
#include "serve/prepare.h"
#include "serve/reload.h"
#include "state.h"
#include "serve/small/text.h"
#include "serve/who/tokens.h"

enum {
    ADMIN_HOST = 256,
    ADMIN_ROBOTS = 64,           /* connections that the page lists                                        */
};

typedef struct admin {
    char host[ADMIN_HOST];       /* as --admin says                                                        */
    int port;
    const state_about *about;
    double began_ms;
    const tokens *tokens;
    connections *connections;
    dispatch *dispatch;
    metrics *metrics;
    prepare *prepare;
    logger *log;
    reload *reload;              /* to be looked at                                                        */
    /* What the server does when it is asked. */
    void (*drain)(void *user);
    void (*reload_all)(void *user);
    void *user;
    text text;                   /* the last answer                                                        */
} admin;

/* Splits "HOST:PORT", "[HOST]:PORT" for an address with colons. */
openpi_status admin_split(const char *address, char host[ADMIN_HOST], int *port, openpi_error *error);

/* Answers the request. */
void admin_asked(admin *admin, const net_head *head, net_page *page);

#endif
