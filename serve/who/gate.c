/* See gate.h. */
#include "gate.h"

#include <string.h>

#include "serve/small/fail.h"
#include "origin.h"

/* ---- refusals --------------------------------------------------------------------------------------- */

static int answer(net_page *page, int status, const char *sentence) {
    *page = (net_page){.status = status, .type = "text/plain", .body = sentence, .bytes = strlen(sentence)};
    return 1;
}

static log_entry refusal(const net_head *head, const token *token, const char *reason) {
    return (log_entry){.level = LOG_LEVEL_WARNING,
                       .event = "refused",
                       .reason = reason,
                       .address = head->address,
                       .robot = token ? token->name : NULL};
}

static void log_refused(const gate *a, const net_head *head, const token *token, const char *reason) {
    log_entry entry = refusal(head, token, reason);
    log_entry_write(a->log, &entry, "refused: %s", reason);
}

/* Which option has no place for another connection. */
static rejection full_for(const gate *a, address_key key) {
    if (a->connections->count >= a->options->max_connections) return REJECTED_CONNECTIONS;
    return net_count(a->net, key) < a->options->max_per_address ? REJECTIONS : REJECTED_ADDRESS;
}

/* Another connection of a token that has one reserves nothing more. */
static int refuse_rate(const gate *a, const net_head *head, const token *token, net_page *page) {
    connection_who who = gate_who(token, head);
    if (connections_find(a->connections, &who) >= 0) return 0;
    scheduler_state state = dispatch_state(a->dispatch);
    if (state.reserved + token->rate <= state.reservable) return 0;
    metrics_add_rejected(a->metrics, REJECTED_RESERVED);
    log_entry entry = refusal(head, token, "too many calls a second are reserved");
    log_entry_write(a->log, &entry,
                    "refused: it reserves %g calls a second, but %.4g of at most %.4g are reserved already",
                    token->rate, state.reserved, state.reservable);
    return answer(page, 503, "too many calls a second are reserved\n");
}

/* A web page of anywhere may open a WebSocket to a port of its reader's machine, also on loopback. */
static int refuse_origin(const gate *a, const net_head *head, net_page *page) {
    const serve_options *o = a->options;
    if (!*head->origin || (o->allow_origin && origin_is_listed(head->origin, o->allow_origin))) return 0;
    if (origin_is_own_host(head->host, o->host) && origin_is_own(head->origin, head->host)) return 0;
    metrics_add_rejected(a->metrics, REJECTED_ORIGIN);
    log_entry entry = refusal(head, NULL, "the header Origin is of another web page, see --allow-origin");
    log_entry_write(a->log, &entry, "refused: a web page of %s, which --allow-origin does not name",
                    head->origin);
    return answer(page, 403, "the header Origin is of another web page, which --allow-origin does not name\n");
}

int gate_refuse(const gate *a, const net_head *head, net_page *page) {
    if (refuse_origin(a, head, page)) return 1;
    const token *token = gate_token(a, head);
    if (!token) {
        metrics_add_rejected(a->metrics, REJECTED_TOKEN);
        log_refused(a, head, NULL, "no token, or an unknown one");
        return answer(page, 401, "no token, or an unknown one\n");
    }
    rejection full = full_for(a, head->key);
    if (full != REJECTIONS) {
        metrics_add_rejected(a->metrics, full);
        const char *here = "as many connections as --max-connections";
        const char *from_there = "this address has as many connections as --max-per-address";
        log_refused(a, head, token, full == REJECTED_CONNECTIONS ? here : from_there);
        return answer(page, 503, "too many connections\n");
    }
    return token->class == SCHEDULER_RESERVED ? refuse_rate(a, head, token, page) : 0;
}

/* ---- tokens ----------------------------------------------------------------------------------------- */

const token *gate_token(const gate *a, const net_head *head) {
    static const token everybody = {.class = SCHEDULER_SHARED};
    return a->options->tokens ? tokens_find(&a->tokens, head->authorization) : &everybody;
}

connection_who gate_who(const token *token, const net_head *head) {
    return (connection_who){.name = token->name,
                            .address = head->address,
                            .class = token->class,
                            .rate = token->rate,
                            .key = token->digest};
}

static int has_key(const void *user, const uint8_t *key) { return tokens_has_robot(user, key); }

/* Without an admin token the admin port would be open. */
static openpi_status read_again(const gate *a, tokens *fresh, openpi_error *error) {
    SERVE_TRY(tokens_open(a->options->tokens, fresh, error));
    if (!tokens_has_admin(&a->tokens) || tokens_has_admin(fresh)) return OPENPI_OK;
    tokens_close(fresh);
    return fail(error, OPENPI_BAD_ARGUMENT,
                "%s has no token of the class admin any more, so everybody could use the admin port",
                a->options->tokens);
}

void gate_renew(gate *a) {
    static const char gone[] = "the token is no longer valid: the file of --tokens has it no more";
    openpi_error error = OPENPI_ERROR_INIT;
    tokens fresh = {.count = 0};
    if (!a->options->tokens) return;
    if (read_again(a, &fresh, &error) != OPENPI_OK) {
        log_entry entry = {.level = LOG_LEVEL_WARNING, .event = "tokens"};
        log_entry_write(a->log, &entry, "the tokens stay as they were: %s", error.message);
        return;
    }
    tokens_close(&a->tokens);
    a->tokens = fresh;
    int closed = connections_keep(a->connections, has_key, &a->tokens, CLOSE_NOT_ALLOWED, gone);
    log_line(a->log, "tokens", "the tokens are read again: %s, tokens: %d, connections closed: %d",
             a->options->tokens, a->tokens.count, closed);
}
