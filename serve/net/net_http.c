/* HTTP: reads a request's head, asks net_events for the answer and writes it; see net_inside.h.
 *
 * An answer is written as a whole: the library keeps what the socket does not take. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/ascii.h"
#include "serve/small/clock.h"
#include "net_inside.h"

enum { PAGE_HEAD = 1024 };       /* bytes of an answer's head                                              */

/* ---- answers ---------------------------------------------------------------------------------------- */

static const char *status_text(int status) {
    switch (status) {
    case 200: return "OK";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 426: return "Upgrade Required";
    case 503: return "Service Unavailable";
    default: return "Error";
    }
}

/* A client that does not read it is cut off as one that does not read its replies. */
static int answer(struct lws *wsi, const net_page *page) {
    int shows = lws_hdr_total_length(wsi, WSI_TOKEN_HEAD_URI) <= 0;
    uint8_t *memory = malloc(LWS_PRE + PAGE_HEAD + page->bytes);
    if (!memory) return -1;
    uint8_t *start = memory + LWS_PRE;
    int head = snprintf((char *)start, PAGE_HEAD,
                        "HTTP/1.1 %d %s\r\nContent-Type: %s\r\n%s%sContent-Length: %zu\r\n\r\n",
                        page->status, status_text(page->status), page->type,
                        page->status == 401 ? "WWW-Authenticate: Bearer\r\n" : "",
                        page->headers ? page->headers : "", page->bytes);
    if (head >= PAGE_HEAD) {
        free(memory);
        return -1;
    }
    if (shows) memcpy(start + head, page->body, page->bytes);
    lws_set_timeout(wsi, PENDING_TIMEOUT_HTTP_CONTENT, net_of(wsi)->limits.reply);
    int written = lws_write(wsi, start, (size_t)head + (shows ? page->bytes : 0), LWS_WRITE_HTTP_FINAL);
    free(memory);
    if (written < 0) return -1;
    const net_limits *most = &net_of(wsi)->limits;
    visitor_wait(net_of(wsi), visitor_of(wsi), lws_partial_buffered(wsi) ? most->reply : most->handshake);
    return 0;
}

/* ---- requests --------------------------------------------------------------------------------------- */

/* "": absent; "?": longer than fits. */
static void read_header(struct lws *wsi, enum lws_token_indexes name, char *text, size_t capacity) {
    if (lws_hdr_copy(wsi, text, (int)capacity, name) > 0) return;
    snprintf(text, capacity, "%s", lws_hdr_total_length(wsi, name) > 0 ? "?" : "");
}

/* The path is "" where it is longer than any page's, or of another method. */
static net_method read_path(struct lws *wsi, char *path) {
    static const struct { enum lws_token_indexes name; net_method method; } methods[] = {
        {WSI_TOKEN_GET_URI, NET_GET}, {WSI_TOKEN_HEAD_URI, NET_HEAD}, {WSI_TOKEN_POST_URI, NET_POST}};
    for (int i = 0; i < 3; i++)
        if (lws_hdr_copy(wsi, path, HTTP_PATH, methods[i].name) > 0) return methods[i].method;
    path[0] = 0;
    return NET_OTHER;
}

void http_read_head(struct lws *wsi, int upgrade, http_head *out) {
    net_method method = read_path(wsi, out->path);
    read_header(wsi, WSI_TOKEN_HTTP_AUTHORIZATION, out->authorization, sizeof out->authorization);
    read_header(wsi, WSI_TOKEN_HOST, out->host, sizeof out->host);
    read_header(wsi, WSI_TOKEN_ORIGIN, out->origin, sizeof out->origin);
    address_text(&visitor_of(wsi)->from, out->address);
    out->head = (net_head){.side = visitor_of(wsi)->to->side,
                           .method = method,
                           .path = out->path,
                           .query = lws_hdr_total_length(wsi, WSI_TOKEN_HTTP_URI_ARGS) > 0,
                           .upgrade = upgrade,
                           .address = out->address,
                           .key = address_key_of((const struct sockaddr *)&visitor_of(wsi)->from),
                           .authorization = out->authorization,
                           .host = out->host,
                           .origin = out->origin};
}

static int ask(struct lws *wsi, int upgrade, net_page *page) {
    net *net = net_of(wsi);
    http_head head;
    visitor_of(wsi)->visit = VISIT_ANSWERED;
    http_read_head(wsi, upgrade, &head);
    return net->events->asked(net->user, &head.head, page);
}

/* Whether a body follows the head. Nobody wants one, and the library reads it for as long as it comes. */
static int has_body(struct lws *wsi) {
    char length[32];
    read_header(wsi, WSI_TOKEN_HTTP_CONTENT_LENGTH, length, sizeof length);
    return strspn(length, "0") != strlen(length) ||
           lws_hdr_total_length(wsi, WSI_TOKEN_HTTP_TRANSFER_ENCODING) > 0;
}

int http_plain(struct lws *wsi) {
    static const char sentence[] = "a WebSocket server for robots; GET /healthz says whether it is ready\n";
    net_page page = {.status = 426, .type = "text/plain", .body = sentence, .bytes = sizeof sentence - 1};
    int last = has_body(wsi);
    ask(wsi, 0, &page);
    return answer(wsi, &page) || last || lws_http_transaction_completed(wsi) ? -1 : 0;
}

/* To refuse a handshake costs ten times as much as to hang up on a connection. So an address whose handshakes
 * are refused again and again is soon hung up on. */
static void charge(struct lws *wsi) {
    enum { REFUSAL = 4 };
    net *net = net_of(wsi);
    const visitor *visitor = visitor_of(wsi);
    if (visitor->to->side != NET_ROBOTS) return;
    const struct sockaddr *from = (const struct sockaddr *)&visitor->from;
    attempts_charge(&net->attempts, from, REFUSAL, net->limits.attempts, clock_ns());
}

int http_upgrade(struct lws *wsi, const char *to) {
    static const char no_get[] = "a WebSocket begins with GET\n";
    net_page page;
    visitor *visitor = visitor_of(wsi);
    visitor->visit = VISIT_UPGRADES;
    if (!ascii_same(to, "websocket")) return -1;
    if (lws_hdr_total_length(wsi, WSI_TOKEN_GET_URI) <= 0) {
        visitor->visit = VISIT_ANSWERED;
        page = (net_page){.status = 405, .type = "text/plain", .body = no_get, .bytes = sizeof no_get - 1};
    } else if (!ask(wsi, 1, &page)) {
        int names = lws_hdr_total_length(wsi, WSI_TOKEN_PROTOCOL) > 0;
        visitor->visit = names ? VISIT_NAMES_PROTOCOL : VISIT_UPGRADES;
        return 0;
    }
    charge(wsi);
    return answer(wsi, &page) ? -1 : 1;
}

/* The library's next state is a connection without HTTP. Robots need none, so it ends with an answer. */
int http_connect(struct lws *wsi) {
    static const char text[] = "HTTP/1.1 405 Method Not Allowed\r\nContent-Type: text/plain\r\n"
                               "Content-Length: 15\r\nConnection: close\r\n\r\nanother method\n";
    uint8_t memory[LWS_PRE + sizeof text];
    visitor_of(wsi)->visit = VISIT_ANSWERED;
    memcpy(memory + LWS_PRE, text, sizeof text);
    charge(wsi);
    lws_write(wsi, memory + LWS_PRE, sizeof text - 1, LWS_WRITE_RAW);
    return -1;
}
