/* Who may have a WebSocket, and as what: tokens, limits, reserved rates. All of it is on the I/O thread.
 *
 * Note: what is refused here never gets a WebSocket; openpi's client raises the status of the answer. */
#ifndef SERVE_GATE_H
#define SERVE_GATE_H

#include "serve/connection.h"
#include "serve/schedule/dispatch.h"
#include "serve/log/log.h"
#include "serve/admin/metrics.h"
#include "serve/net/net.h"
#include "serve/serve.h"
#include "tokens.h"

typedef struct gate {
    const serve_options *options;
    tokens tokens;               /* of options->tokens                                                     */
    net *net;
    dispatch *dispatch;
    connections *connections;
    metrics *metrics;
    logger *log;
} gate;

/* The token of a request; one for everybody where the server has no tokens. NULL: none, or an unknown one. */
const token *gate_token(const gate *gate, const net_head *head);
/* 0: may have a WebSocket. 1: *page says why not, and so does the log. */
int gate_refuse(const gate *gate, const net_head *head, net_page *page);
/* Who has one now. */
connection_who gate_who(const token *token, const net_head *head);

/* Reads the tokens again. Where the file cannot be used, one sentence in the log says why, and the old ones
 * stay. Connections whose key is in it no more are closed; the others keep the class and the rate that they
 * connected with. */
void gate_renew(gate *gate);

#endif
